"""Handing the gradients to the optimizer: what it leaves behind."""

import gc
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

import fastkeras as fk


def graphs_left(plan):
    """How many of the graphs of a step outlive its model."""
    graphs = []

    def loss(y_true, y_pred):
        graphs.append(weakref.ref(tf.compat.v1.get_default_graph()))
        return keras.losses.mean_squared_error(y_true, y_pred)

    inputs = keras.Input((2,))
    model = fk.FastModel(inputs, keras.layers.Dense(1)(inputs))
    model.compile("sgd", loss, perf=plan)
    model.fit(np.ones((4, 2)), np.ones((4, 1)), verbose=0)
    del model, inputs, loss
    gc.collect()
    assert graphs
    return sum(graph() is not None for graph in graphs)


@pytest.mark.parametrize("plan", ["auto", "skip_non_finite"])
def test_a_model_that_is_dropped_leaves_no_graph(plan):
    assert graphs_left(plan) == 0


def test_keras_keeps_the_graph_of_its_sum():
    # The control: what Keras's optimizer leaves is seen.
    assert graphs_left(None) > 0


@pytest.mark.parametrize("plan", ["auto", ["mixed_float16", "clip_by_value"]])
def test_a_model_without_an_optimizer_is_evaluated_but_not_trained(plan):
    inputs = keras.Input((2,))
    outputs = keras.layers.Dense(1, kernel_initializer="ones")(inputs)
    model = fk.FastModel(inputs, outputs)
    model.compile(optimizer=None, loss="mse", perf=plan)
    x, y = np.ones((4, 2)), np.ones((4, 1))
    assert model.evaluate(x, y, verbose=0) == 1.0
    with pytest.raises(ValueError, match="takes an optimizer. Received: opt"):
        model.fit(x, y, verbose=0)
    # The control: with one it is trained.
    model.compile("sgd", "mse")
    assert model.fit(x, y, verbose=0).history["loss"] == [1.0]
