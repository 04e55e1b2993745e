"""What RetraceMonitor counts, against what TensorFlow and XLA really did."""

import copy
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import fastkeras as fk
from fastkeras._lib.warn import FastKerasWarning
from fastkeras.callbacks import RetraceMonitor

X = np.random.RandomState(0).randn(103, 4).astype("float32")
Y = X[:, :1]
# One tier, so that nothing is compiled but the step.
ONE = fk.perf.Execution(feed="stream", steps_per_launch=1)


def network(base=fk.FastModel, **options):
    inputs = keras.Input((4,))
    model = base(inputs, keras.layers.Dense(1)(inputs))
    model.compile("sgd", "mse", **options)
    return model


def batches(*pairs):
    """A dataset of these batches, whatever their shapes."""
    x, y = pairs[0]
    spec = (
        tf.TensorSpec([None] * x.ndim, x.dtype),
        tf.TensorSpec([None] * y.ndim, y.dtype),
    )
    return tf.data.Dataset.from_generator(
        lambda: iter(pairs), output_signature=spec
    )


def watch(model, *args, action="ignore", limit=0, **kwargs):
    monitor = RetraceMonitor(action, limit)
    model.fit(*args, **kwargs, verbose=0, callbacks=[monitor])
    return monitor


def test_six_fresh_models_have_no_retrace():
    monitor = RetraceMonitor("raise")
    for _ in range(6):
        model = network()
        model.fit(X[:40], Y[:40], 10, verbose=0, callbacks=[monitor])
        assert monitor.retraces == 0
        assert set(monitor.traces().values()) == {1}
    # The seventh of the same kind, with a last batch of its own.
    with pytest.raises(RuntimeError, match="last batch is smaller"):
        network().fit(X, Y, 10, verbose=0, callbacks=[monitor])


@pytest.mark.parametrize("base", [fk.FastModel, keras.Model])
def test_variables_made_in_the_first_call_are_no_retrace(base):
    model = base_with_late_layer(base)
    model.compile("adam", "mse")
    monitor = watch(model, X[:40], Y[:40], 10, epochs=2)
    assert max(monitor.traces().values()) <= 2
    assert monitor.events == []


def base_with_late_layer(base):
    class Late(base):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, x):
            return self.dense(x)

    return Late()


@pytest.mark.parametrize("feed", ["resident", "stream"])
def test_a_smaller_last_batch_is_one_trace_more(feed):
    data = (X, Y, 10)
    if feed == "stream":
        data = (tf.data.Dataset.from_tensor_slices((X, Y)).batch(10),)
    monitor = watch(network(), *data, epochs=3)
    steps = [n for name, n in monitor.traces().items() if "step (" in name]
    assert sum(n for n in steps) <= 3
    (event,) = monitor.events
    assert event.cause == "the last batch is smaller"
    assert "drop_remainder=True" in event.fix
    assert "PadBatches()" in event.fix
    whole = tf.data.Dataset.from_tensor_slices((X, Y)).batch(10, True)
    assert watch(network(), whole, epochs=3).events == []


def test_under_xla_a_smaller_last_batch_is_one_compilation_more():
    monitor = watch(network(jit_compile=True, perf=ONE), X, Y, 10, epochs=2)
    (event,) = monitor.events
    assert "traced and compiled by XLA again: the last batch" in str(event)
    assert monitor.compiles == 2
    whole = watch(network(jit_compile=True, perf=ONE), X[:40], Y[:40], 10)
    assert (whole.compiles, whole.events) == (1, [])


def test_the_message_names_function_argument_specs_step_and_fix():
    model = network()
    with pytest.warns(FastKerasWarning) as told:
        watch(
            model,
            batches((X[:8], Y[:8]), (X[8:11], Y[8:11])),
            action="warn",
        )
    assert re.fullmatch(
        r"train_step \(graph-step\) was traced again: the last batch is "
        r"smaller \(data\[0\]: float32 \(8, 4\) -> float32 \(3, 4\); "
        r"data\[1\]: float32 \(8, 1\) -> float32 \(3, 1\)\)\. Epoch 0, by "
        r"batch \d; \d\.\d\d s lost\. Drop the last batch .*",
        str(told[0].message),
    )
    assert told[0].filename.endswith(__file__.rsplit("/", 1)[-1])


def test_each_known_cause_is_told_from_the_others():
    def step(model, *data):
        model.train_function(iter([data]))

    a, b = tf.constant(X[:4]), tf.constant(Y[:4])
    causes = {
        "the dtype changed": [(a, b), (tf.cast(a, "float64"), b)],
        "a Python number was passed": [(a, b, 1.0), (a, b, 2.0)],
        "the number of rows varies": [(a, b), (a[:3], b[:3])],
        "the structure of the data changed": [(a, b), (a, b, b[:, 0])],
    }
    for cause, (first, second) in causes.items():
        model = network()
        model.make_train_function()
        monitor = RetraceMonitor("ignore")
        monitor.set_model(model)
        for data in (first, first, second):
            step(model, *data)
        monitor.before_launch()
        assert [e.cause for e in monitor.events] == [cause]


def lengths(*sizes):
    x = np.ones((2, max(sizes)), "float32")
    return batches(*((x[:, :n], x[:, :1]) for n in sizes))


def recurrent(**options):
    inputs = keras.Input((None,))
    outputs = keras.layers.Lambda(
        lambda x: keras.ops.sum(x, -1, keepdims=True)
    )(inputs)
    model = fk.FastModel(inputs, keras.layers.Dense(1)(outputs))
    model.compile("sgd", "mse", **options)
    return model


def test_xla_compiles_for_each_length_though_the_traces_stop():
    """No warning of TensorFlow tells of these."""
    model = recurrent(jit_compile=True)
    monitor = watch(model, lengths(5, 6, 7, 8, 8, 8))
    assert monitor.compiles == 4
    assert max(monitor.traces().values()) < 4
    assert {e.cause for e in monitor.events} == {"the length varies"}
    assert {e.kind for e in monitor.events} == {"trace", "compile"}
    assert "PadBatches(multiple_of=16)" in monitor.events[0].fix
    # Padded to one bucket there is one.
    padded = watch(recurrent(jit_compile=True), lengths(16, 16, 16))
    assert (padded.compiles, padded.events) == (1, [])


def test_a_rebuilt_function_is_told():
    model = network()
    monitor = watch(model, X[:40], Y[:40], 10)
    model.fit(X[:40], Y[:40], 10, verbose=0, callbacks=[monitor])
    assert monitor.events == []
    model.compile()
    model.fit(X[:40], Y[:40], 10, verbose=0, callbacks=[monitor])
    assert [e.cause for e in monitor.events] == ["the function was rebuilt"]


def test_the_limit_lets_that_many_pass_and_many_are_told_few_times():
    sizes = range(3, 8)
    monitor = watch(recurrent(jit_compile=True), lengths(*sizes))
    assert len(monitor.events) == 4
    with pytest.raises(RuntimeError, match="length varies"):
        watch(recurrent(jit_compile=True), lengths(3, 4), action="raise")
    watch(recurrent(jit_compile=True), lengths(3, 4), action="raise", limit=1)
    with pytest.warns(FastKerasWarning) as told:
        watch(recurrent(jit_compile=True), lengths(*sizes), action="warn")
    assert len([w for w in told if "again" in str(w.message)]) == 3


def test_a_keras_model_has_its_causes_from_its_traces():
    model = network(keras.Model)
    monitor = watch(model, X[:40], Y[:40], 10, epochs=2)
    assert monitor.events == []
    assert monitor.traces()["train_function.multi_step_on_iterator"] == 1

    def fit(x, size):
        data = tf.data.Dataset.from_tensor_slices((x, Y[:9])).batch(size, True)
        model.fit(data, verbose=0, shuffle=False, callbacks=[monitor])
        return monitor.events[-1]

    rows = fit(X[:9], 3)
    assert rows.cause == "the number of rows varies"
    # TensorFlow relaxes what differs.
    assert rows.changes[0] == "data[0]: float32 (10, 4) -> float32 (None, 4)"
    dtype = fit(X[:9].astype("float64"), 3)
    assert dtype.cause == "the dtype changed"
    assert dtype.changes[0].startswith("data[0]: float32 (None, 4) -> float64")
    assert "s lost" not in str(dtype)
    assert str(dtype).startswith("train_function.multi_step_on_iterator was")
    assert fit(X[:9].astype("float64"), 3) is dtype


def test_compilations_that_can_not_be_counted_are_told():
    model = network(keras.Model, jit_compile=True)
    with pytest.warns(FastKerasWarning, match="can't count these"):
        watch(model, X[:40], Y[:40], 10, action="warn")


def test_batch_sizes_through_train_on_batch_take_two_traces():
    model = network()
    for size in range(1, 21):
        model.train_on_batch(X[:size], Y[:size])
        model.test_on_batch(X[:size], Y[:size])
    monitor = RetraceMonitor("ignore")
    monitor.set_model(model)
    assert set(monitor.traces().values()) == {2}


def test_arguments_are_checked_and_the_callback_copies():
    with pytest.raises(ValueError, match="Did you mean 'warn'"):
        RetraceMonitor("warm")
    with pytest.raises(ValueError, match="`limit` must be >= 0"):
        RetraceMonitor(limit=-1)
    twin = copy.deepcopy(RetraceMonitor("raise", limit=3))
    assert (twin.action, twin.limit, twin.events) == ("raise", 3, [])
