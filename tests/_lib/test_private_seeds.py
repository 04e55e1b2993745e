"""The private names about generators of numbers still mean what they did."""

import random

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context

from fastkeras._lib import private_seeds
from fastkeras._lib import randomness


def draws():
    """A number from each of the global generators."""
    return [
        random.random(),
        np.random.random(),
        float(keras.random.uniform(())),
        tf.compat.v1.random.get_seed(None)[1],
        float(tf.random.get_global_generator().uniform(())),
    ]


def test_all_generators_go_on_from_a_state():
    draws()
    state = randomness.state()
    expected = draws()
    assert all(a != b for a, b in zip(draws(), expected, strict=True))
    randomness.set_state(state)
    assert draws() == expected


@pytest.mark.parametrize(
    ("name", "places"),
    [("python", [0]), ("numpy", [1]), ("keras", [2]), ("operations", [3])],
)
def test_each_state_is_of_its_own_generator(name, places):
    draws()
    state = randomness.state()
    expected = draws()
    now = randomness.state()
    randomness.set_state({**state, name: now[name]})
    pairs = zip(draws(), expected, strict=True)
    assert [k for k, (a, b) in enumerate(pairs) if a != b] == places


def test_without_a_seed_there_is_no_generator_of_seeds(monkeypatch):
    monkeypatch.delattr(context.context(), "_rng")
    state = randomness.state()
    assert state["operations"] is None
    randomness.set_state(state)


def test_a_generator_that_was_not_used_is_none():
    keras.utils.set_random_seed(1)
    assert private_seeds.keras_state() is None
    keras.random.uniform(())
    assert private_seeds.keras_state().shape == (2,)
    private_seeds.set_keras_state(None)
    assert private_seeds.keras_state() is None
