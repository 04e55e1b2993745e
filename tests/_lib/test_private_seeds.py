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


def test_draws_from_another_series_leave_no_trace():
    results = []
    for looks in (False, True):
        keras.utils.set_random_seed(5)
        tf.random.set_global_generator(tf.random.Generator.from_seed(5))
        state = randomness.state()
        if looks:
            with private_seeds.another_series():
                between = [*draws(), float(tf.random.normal(()))]
            randomness.set_state(state)
        results.append([*draws(), float(tf.random.normal(()))])
    assert results[0] == results[1]
    # Control: without it, everything has moved on.
    moved = [*draws(), float(tf.random.normal(()))]
    assert not set(moved) & set(results[0])
    assert between[-1] != results[0][-1]


def test_a_generator_that_was_not_there_is_not_there_afterwards():
    keras.backend.clear_session(free_memory=False)
    random.seed(1)
    state = randomness.state()
    first = float(keras.random.normal(()))
    randomness.set_state(state)
    assert float(keras.random.normal(())) == first


def test_another_series_leaves_no_generator_of_seeds(monkeypatch):
    current = context.context()
    monkeypatch.delattr(current, "_rng")
    with private_seeds.another_series():
        assert hasattr(current, "_rng")
    assert not hasattr(current, "_rng")


def test_no_global_generator_is_made_by_looking(monkeypatch):
    monkeypatch.setattr(
        private_seeds.stateful_random_ops, "global_generator", None
    )
    state = randomness.state()
    # Making one is an error where operations are to be deterministic.
    assert state["tensorflow"] is None
    assert private_seeds.stateful_random_ops.global_generator is None
    tf.random.set_global_generator(tf.random.Generator.from_seed(3))
    kept = randomness.state()
    expected = float(tf.random.get_global_generator().uniform(()))
    randomness.set_state(state)
    assert private_seeds.stateful_random_ops.global_generator is None
    randomness.set_state(kept)
    assert float(tf.random.get_global_generator().uniform(())) == expected
