"""The private names that measuring needs: each still does what it is for."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from fastkeras._lib import private_measure


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


def test_the_arguments_of_compile_come_as_they_were_given():
    def loss(y, y_pred):
        return keras.ops.mean(y - y_pred)

    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", loss, metrics=["mae"], jit_compile=True)
    given = private_measure.compile_arguments(model)
    assert given["loss"] is loss and given["metrics"] == ["mae"]
    assert given["jit_compile"] is True and "auto_scale_loss" not in given


def test_a_profiler_that_runs_is_seen(tmp_path):
    assert not private_measure.is_profiled()
    with tf.profiler.experimental.Profile(str(tmp_path)):
        assert private_measure.is_profiled()
    assert not private_measure.is_profiled()
