"""A warning points at the line of the user that led to it."""

import inspect

import keras
import numpy as np
import pytest

import fastkeras as fk
from fastkeras._lib.warn import FastKerasWarning
from fastkeras._lib.warn import warn


def here():
    return inspect.currentframe().f_back.f_lineno


def test_called_from_outside_it_points_at_the_caller():
    with pytest.warns(FastKerasWarning, match="^text$") as seen:
        line = here() + 1
        warn("text")
    assert (seen[0].filename, seen[0].lineno) == (__file__, line)
    assert issubclass(FastKerasWarning, UserWarning)


def test_another_category():
    with pytest.warns(DeprecationWarning, match="old"):
        warn("old", DeprecationWarning)


def model_with_batch_norm():
    inputs = keras.Input((2,))
    x = keras.layers.BatchNormalization()(inputs)
    return fk.FastModel(inputs, keras.layers.Dense(1)(x))


def test_from_compile_it_points_at_the_line_of_compile():
    model = model_with_batch_norm()
    with pytest.warns(FastKerasWarning, match="BatchNormalization") as seen:
        line = here() + 1
        model.compile("sgd", "mse", perf="accumulate")
    assert (seen[0].filename, seen[0].lineno) == (__file__, line)


@pytest.mark.parametrize("eager", [False, True])
def test_from_deep_inside_a_step_it_points_at_the_line_of_fit(eager):
    inputs = keras.Input((2,))
    outputs = [keras.layers.Dense(1)(inputs), keras.layers.Dense(1)(inputs)]
    model = fk.FastModel(inputs, outputs)
    model.compile("sgd", ["mse", None], run_eagerly=eager)
    x = np.ones((4, 2))
    with pytest.warns(FastKerasWarning, match="No gradient reaches") as seen:
        line = here() + 1
        model.fit(x, np.ones((4, 1)), verbose=0)
    assert (seen[0].filename, seen[0].lineno) == (__file__, line)


def test_keras_itself_would_point_into_its_own_files():
    """Why it looks for the frame: a fixed number of frames does not do."""
    inputs = keras.Input((2,))
    outputs = [keras.layers.Dense(1)(inputs), keras.layers.Dense(1)(inputs)]
    model = keras.Model(inputs, outputs)
    model.compile("sgd", ["mse", None])
    with pytest.warns(UserWarning, match="Gradients do not exist") as seen:
        model.fit(np.ones((4, 2)), np.ones((4, 1)), verbose=0)
    assert seen[0].filename != __file__
