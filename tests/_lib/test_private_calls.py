"""The private names about calling layers and recording do what is said."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from fastkeras._lib import private_calls


def test_whether_a_tape_records():
    assert not private_calls.is_recording()
    x = tf.Variable(2.0)
    with tf.GradientTape() as tape:
        assert private_calls.is_recording()
        with private_calls.stop_recording():
            square = x * x
        twice = 2 * x
    assert tape.gradient([square, twice], x) == 2


@pytest.mark.parametrize("graph", [False, True])
def test_a_gradient_of_its_own(graph):
    def tripled(x, unused):
        with tf.GradientTape() as tape:
            tape.watch([x, unused])
            with private_calls.stop_recording():
                outputs = [x * 1.0, x * 2.0]
            private_calls.record_gradient(
                outputs, [x, unused], lambda a, b: [3 * a + b, None]
            )
            loss = outputs[0] * 5
        return tape.gradient(loss, x)

    run = tf.function(tripled) if graph else tripled
    assert run(tf.constant(2.0), tf.constant(1.0)) == 15


def test_a_call_is_entered_again():
    seen = []

    class Inner(keras.Layer):
        def call(self, x, training=False):
            seen.append((training, keras.ops.add(self.weight, 0).dtype))
            return x

        def build(self, shape):
            self.weight = self.add_weight(())

    class Outer(keras.Layer):
        def __init__(self, inner, **kwargs):
            super().__init__(**kwargs)
            self.inner = inner

        def build(self, shape):
            self.inner.build(shape)

        def call(self, x, training=False):
            self.state = private_calls.call_state()
            return self.inner(x)

    inner = Inner(dtype="mixed_float16")
    outer = Outer(inner, dtype="mixed_float16")
    x = tf.ones((1, 2))
    outer(x, training=True)
    inner.call(x)
    with private_calls.calling(outer.state):
        inner(x)
    assert seen[0] == seen[2] == (True, tf.float16)
    # The control: outside the call its state is not known.
    assert seen[1] == (False, tf.float32)
    assert private_calls.call_state() == list(private_calls.NO_CALL)


@pytest.fixture
def model():
    a, b = keras.Input((2,)), keras.Input((2,))
    added = keras.layers.add([a, b], name="sum")
    return keras.Model([a, b], {"out": keras.layers.ReLU()(added) * 2.0})


def test_the_graph_is_walked_node_by_node(model):
    names = [n.operation.name for n in private_calls.ordered_nodes(model)]
    assert len(names) == 3 and names[0] == "sum"
    x = [np.float32([[1, -3]]), np.float32([[2, 1]])]
    tensors = dict(zip(map(id, model.inputs), x, strict=True))
    for node in private_calls.ordered_nodes(model):
        private_calls.run_node(node, tensors, lambda operation: operation)
    out = private_calls.output_structure(model)["out"]
    np.testing.assert_array_equal(tensors[id(out)], [[6, 0]])
    np.testing.assert_array_equal(model(x)["out"], [[6, 0]])


def test_a_run_is_replaced_and_put_back(model):
    x = [tf.ones((1, 2)), tf.ones((1, 2))]

    def run(usual, inputs, operation_fn):
        return {"out": usual(inputs, operation_fn)["out"] + 1}

    undo = private_calls.replace_run(model, run)
    assert model(x)["out"].numpy().tolist() == [[5, 5]]
    undo()
    assert model(x)["out"].numpy().tolist() == [[4, 4]]


def test_the_graph_of_a_model(model):
    assert private_calls.graph_of_layers(model) is model
    built = keras.Sequential([keras.Input((1,)), keras.layers.ReLU()])
    assert len(private_calls.graph_of_layers(built).layers) == 2
    assert private_calls.graph_of_layers(keras.Sequential()) is None


def test_the_scope_a_layer_was_made_in():
    with keras.RematScope("larger_than"):
        made = keras.layers.ReLU()
        with keras.RematScope(None):
            off = keras.layers.ReLU()
    assert private_calls.scope_mode(made) == "larger_than"
    assert private_calls.scope_mode(off) is None
    assert private_calls.scope_mode(keras.layers.ReLU()) is None


@pytest.mark.parametrize(
    ("length", "are_built"), [(3, True), pytest.param(None, False)]
)
def test_metrics_are_made_from_the_outputs_of_a_model(length, are_built):
    inputs = keras.Input((length, 2))
    outputs = [keras.layers.Dense(1, name=n)(inputs) for n in "ab"]
    model = keras.Model(inputs, outputs)
    model.compile(loss=["mse", "mae"], metrics=[["mae"], ["mae"]])
    y = tf.TensorSpec([8, length, 1])
    private_calls.build_metrics(model, (tf.TensorSpec([8, length, 2]), (y, y)))
    names = {metric.name for metric in model.metrics}
    # Nothing is guessed where a length is open.
    assert ({"a_loss", "b_loss"} <= names) == are_built
    assert model._compile_metrics.built == are_built


def test_labels_that_are_missing_are_told_by_the_loss():
    inputs = keras.Input((2,))
    outputs = [keras.layers.Dense(1, name=n)(inputs) for n in "ab"]
    model = keras.Model(inputs, outputs)
    model.compile(loss={"a": "mse"}, metrics={"a": "mae"})
    batch = (tf.TensorSpec([8, 2]), {"a": tf.TensorSpec([8, 1])})
    with pytest.raises(ValueError, match="Expected keys .*'b'"):
        private_calls.build_metrics(model, batch)


def test_a_batch_without_labels_makes_no_metric():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model = keras.Model(model.inputs, model.outputs)
    model.compile(metrics=["mae"])
    private_calls.build_metrics(model, (tf.TensorSpec([8, 2]),))
    assert not model._compile_metrics.built
