"""`predict` of every kind of data against Keras's own, tier by tier."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from fastkeras import FastModel
from fastkeras.engine import _outputs
from fastkeras.engine import _pilot
from fastkeras.engine import _tiers

X = np.random.default_rng(0).normal(size=(43, 3)).astype("float32")


def network(base):
    keras.utils.set_random_seed(4)
    inputs = keras.Input((3,))
    hidden = keras.layers.Dense(5, activation="tanh")(inputs)
    hidden = keras.layers.Dropout(0.5)(
        keras.layers.BatchNormalization()(hidden)
    )
    outputs = {
        "a": keras.layers.Dense(2)(hidden),
        "b": (inputs * 2.0, keras.ops.argmax(hidden, -1)),
    }
    model = base(inputs, outputs)
    model.compile()
    return model


def tries(tier, monkeypatch):
    """Has a tier tried after a few batches."""
    tiers = ["graph-step", tier]
    monkeypatch.setattr(_tiers, "available", lambda *_: (tiers, []))
    monkeypatch.setattr(_pilot, "FREE", 1e9)
    monkeypatch.setattr(_pilot, "LAUNCH_SECONDS", 0)


def same(ours, stock):
    keras.tree.assert_same_structure(ours, stock)
    for a, b in zip(
        keras.tree.flatten(ours), keras.tree.flatten(stock), strict=True
    ):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, atol=1e-6)


@pytest.mark.parametrize("tier", ["graph-step", "graph-loop", "xla-loop"])
def test_each_tier_predicts_what_keras_does(tier, monkeypatch):
    stock = network(keras.Model).predict(X, batch_size=4, verbose=0)
    monkeypatch.setattr(_tiers, "available", lambda *_: ([tier], []))
    monkeypatch.setattr(_outputs, "ROOM", 6)
    model = network(FastModel)
    for _ in range(2):
        same(model.predict(X, batch_size=4, verbose=0), stock)
    # Other rows are no new trace.
    short = model.predict(X[:26], batch_size=4, verbose=0)
    same(short, keras.tree.map_structure(lambda a: a[:26], stock))
    with pytest.raises(AssertionError):
        same(model.predict(X[::-1], batch_size=4, verbose=0), stock)
    report = model.perf_report()["predict_step"]
    assert report["traces"][tier] == (2 if tier == "graph-step" else 1)
    assert report["xla compiles"] == (tier == "xla-loop")


class Sequence(keras.utils.PyDataset):
    """Batches of four rows."""

    def __len__(self):
        return 11

    def __getitem__(self, k):
        return (X[4 * k : 4 * k + 4],)


def test_data_that_is_no_array_goes_through_the_same_loop():
    stock = network(keras.Model).predict(X, batch_size=4, verbose=0)
    model = network(FastModel)
    dataset = tf.data.Dataset.from_tensor_slices(X).batch(4)
    kinds = [
        dataset,
        dataset.filter(lambda *_: True),
        Sequence(),
        ((X[k : k + 4],) for k in range(0, 43, 4)),
    ]
    for data in kinds:
        same(model.predict(data, verbose=0), stock)
    some = keras.tree.map_structure(lambda a: a[:8], stock)
    same(model.predict(X, batch_size=4, steps=2, verbose=0), some)
    same(model.predict(dataset.repeat(), steps=2, verbose=0), some)
    # Keras's own loop was never made.
    assert model.predict_function is None


def test_outputs_of_several_lengths_are_ragged():
    def data():
        for k in (2, 3):
            yield (np.ones((2, k, 3), "float32"),)

    def predicted(base):
        inputs = keras.Input((None, 3))
        model = base(inputs, keras.ops.sum(inputs, -1))
        model.compile()
        return model.predict(data(), verbose=0)

    ours, stock = predicted(FastModel), predicted(keras.Model)
    assert isinstance(ours, tf.RaggedTensor)
    assert ours.to_list() == stock.to_list()


def test_callbacks_see_each_batch_and_may_stop():
    seen = []

    class Each(keras.callbacks.Callback):
        """Stops after the third batch."""

        def on_predict_batch_end(self, batch, logs=None):
            seen.append((batch, len(logs["a"])))
            self.model.stop_predicting = batch == 2

    model = network(FastModel)
    outputs = model.predict(X, batch_size=4, verbose=0, callbacks=[Each()])
    assert seen == [(0, 4), (1, 4), (2, 4)]
    assert len(outputs["a"]) == 12


def test_a_tier_whose_outputs_part_is_left_out(monkeypatch):
    class Unlike(keras.layers.Layer):
        """Adds numbers that are others under XLA."""

        def call(self, x):
            return x + tf.random.stateless_normal(tf.shape(x), [1, 2])

    inputs = keras.Input((3,))
    model = FastModel(inputs, Unlike()(inputs))
    model.compile()
    tries("xla-loop", monkeypatch)
    first = model.predict(X, batch_size=1, verbose=0)
    np.testing.assert_array_equal(
        model.predict(X, batch_size=1, verbose=0), first
    )
    why = "xla-loop left out: its output 0 differs from the graph's"
    assert model.perf_report()["predict_step"]["choices"] == [why]


@pytest.mark.parametrize(
    "output",
    [
        tf.reduce_sum,
        lambda x: tf.reduce_sum(x, 0),
        lambda x: tf.boolean_mask(x, x[:, 0] > 0),
        lambda x: tf.RaggedTensor.from_tensor(x),
        tf.sparse.from_dense,
    ],
    ids=["scalar", "no row", "some rows", "ragged", "sparse"],
)
@pytest.mark.parametrize("tier", ["graph-loop", "xla-loop"])
def test_outputs_that_no_loop_can_hold_come_from_steps(
    output, tier, monkeypatch
):
    tries(tier, monkeypatch)

    def predicted(base):
        class Model(base):
            """Has no layer."""

            def call(self, x):
                return output(x)

        model = Model()
        model.compile()
        return model, model.predict(X, batch_size=1, verbose=0)

    model, ours = predicted(FastModel)
    stock = predicted(keras.Model)[1]
    assert type(ours) is type(stock)
    if isinstance(stock, tf.RaggedTensor):
        ours, stock = ours.to_tensor(), stock.to_tensor()
    if isinstance(stock, tf.SparseTensor):
        ours, stock = map(tf.sparse.to_dense, (ours, stock))
    np.testing.assert_array_equal(ours, stock)
    (why,) = model.perf_report()["predict_step"]["choices"]
    assert f"{tier} left out: does not compile" in why


class Counts(keras.layers.Layer):
    """Adds how often it was called, kept where Keras does not look."""

    def __init__(self):
        super().__init__()
        self.calls = tf.Variable(0.0)

    def call(self, x):
        return x + self.calls.assign_add(1.0)


@pytest.mark.parametrize("tier", ["graph-loop", "xla-loop"])
@pytest.mark.parametrize("kind", ["own variable", "states of an RNN"])
def test_the_trial_of_a_tier_leaves_no_trace_in_a_state(
    kind, tier, monkeypatch
):
    tries(tier, monkeypatch)

    def predicted(base):
        keras.utils.set_random_seed(2)
        inputs = keras.Input((3,), batch_size=2)
        x = Counts()(inputs)
        if kind != "own variable":
            x = keras.layers.LSTM(2, stateful=True)(inputs[:, None])
        model = base(inputs, x)
        model.compile()
        return model, model.predict(X[:42], batch_size=2, verbose=0)

    model, ours = predicted(FastModel)
    np.testing.assert_allclose(ours, predicted(keras.Model)[1], atol=1e-6)
    assert tier in model.perf_report()["predict_step"]["time per batch"]
