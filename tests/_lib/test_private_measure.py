"""The private names that measuring needs: each still does what it is for."""

import random

import keras
import numpy as np
import pytest
import tensorflow as tf

from fastkeras._lib import private_measure


def draw():
    return [
        random.random(),
        np.random.random(),
        keras.random.normal(()).numpy(),
        tf.random.normal(()).numpy(),
        tf.random.get_global_generator().normal(()).numpy(),
    ]


def test_the_random_state_is_put_back():
    results = []
    for looks in (False, True):
        keras.utils.set_random_seed(5)
        tf.random.set_global_generator(tf.random.Generator.from_seed(5))
        if looks:
            restore = private_measure.random_state()
            between = draw()
            restore()
        results.append(draw())
    assert results[0] == results[1]
    # Control: without it, everything has moved on.
    assert not set(draw()) & set(results[0])
    assert between[3] != results[0][3]


def test_a_generator_that_was_not_there_is_not_there_afterwards():
    keras.backend.clear_session(free_memory=False)
    random.seed(1)
    restore = private_measure.random_state()
    first = keras.random.normal(()).numpy()
    restore()
    assert keras.random.normal(()).numpy() == first


def test_a_process_that_has_set_no_seed_still_has_none(monkeypatch):
    current = private_measure.context.context()
    monkeypatch.delattr(current, "_rng")
    private_measure.random_state()()
    assert not hasattr(current, "_rng")


@pytest.mark.parametrize("weight", [None, np.array([2.0, 0.0])])
def test_each_metric_comes_with_the_arguments_of_its_update(weight):
    inputs = keras.Input((1,))
    model = keras.Model(
        inputs,
        [keras.layers.Dense(1)(inputs), keras.layers.Dense(1)(inputs)],
    )
    model.compile(
        "sgd",
        ["mse", "mse"],
        metrics=[["mae"], None],
        weighted_metrics=[None, ["mse"]],
    )
    y = [np.zeros((2, 1)), np.ones((2, 1))]
    model.fit(np.ones((2, 1)), y, verbose=0)
    calls = private_measure.metric_calls(model, y, y[::-1], weight)
    assert [m.name for m, _ in calls] == ["mae", "mse"]
    assert calls[0][1][2] is None
    assert calls[1][1][2] is weight
    assert [a[0].max() for _, a in calls] == [0.0, 1.0]
