"""The private names that measuring needs: each still does what it is for."""

import keras
import numpy as np
import pytest

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
