"""What RetraceMonitor counts, against what TensorFlow and XLA really did."""

import copy
import functools
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import fastkeras as fk
from fastkeras._lib.warn import FastKerasWarning
from fastkeras.callbacks import PerfTensorBoard
from fastkeras.callbacks import RetraceMonitor
from fastkeras.callbacks import _causes

X = np.random.RandomState(0).randn(103, 4).astype("float32")
Y = X[:, :1]
# One tier, so that nothing is compiled but the step.
ONE = fk.perf.Execution(feed="stream", steps_per_launch=1)
ONE_STEP = fk.perf.Execution(steps_per_launch=1, jit=False)


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


@pytest.mark.slow
def test_the_rows_of_all_replicas_are_told(mirrored):
    with mirrored.scope():
        model = network()
    monitor = RetraceMonitor("ignore")
    model.fit(X[:11], Y[:11], 8, verbose=0, callbacks=[monitor])
    (event,) = monitor.events
    assert event.cause == "the last batch is smaller"
    assert event.changes[0] == "x: float32 (8, 4) -> float32 (3, 4)"


def test_six_fresh_models_have_no_retrace():
    monitor = RetraceMonitor("raise")
    for _ in range(6):
        model = network()
        model.fit(X[:40], Y[:40], 10, verbose=0, callbacks=[monitor])
        assert monitor.retraces == 0
        assert set(monitor.traces().values()) == {1}
    # The seventh of the same kind, with a last batch of its own. (A loop over
    # the others leaves it to a step that was not traced before.)
    with pytest.raises(RuntimeError, match="last batch is smaller"):
        network(perf=ONE_STEP).fit(X, Y, 10, verbose=0, callbacks=[monitor])


@pytest.mark.parametrize("base", [fk.FastModel, keras.Model])
def test_variables_made_in_the_first_call_are_no_retrace(base):
    model = base_with_late_layer(base)
    model.compile("adam", "mse")
    monitor = watch(model, X[:40], Y[:40], 10, epochs=2)
    assert max(monitor.traces().values()) <= 2
    assert monitor.events == []
    # Keras makes the variables of the optimizer in its first step.
    twice = max(monitor.traces().values()) == 2
    assert ("variables were made in the call" in str(monitor)) is twice
    assert ("`keras.Input`" in str(monitor)) is twice


@pytest.mark.parametrize("is_done", [True, False])
def test_the_variables_of_optimizer_and_metrics_have_their_own_fix(is_done):
    inputs = keras.Input((4,))
    model = keras.Model(inputs, keras.layers.Dense(1)(inputs))
    model.compile("adam", "mse", metrics=["mae"])
    if is_done:
        model.optimizer.build(model.trainable_variables)
        model.test_on_batch(X[:4], Y[:4])
    monitor = watch(model, X[:8], Y[:8], 8)
    # Nothing is twice where that was followed.
    told = "`model.optimizer.build(model.trainable_variables)` and, with"
    assert (told in str(monitor)) is not is_done
    assert "keras.Input" not in str(monitor)


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
    monitor = watch(network(perf=ONE_STEP), *data, epochs=3)
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
    model = network(perf=ONE)
    with pytest.warns(FastKerasWarning) as told:
        watch(
            model,
            batches((X[:8], Y[:8]), (X[8:11], Y[8:11])),
            action="warn",
        )
    assert re.fullmatch(
        r"train_step \(graph-step\) was traced again: the last batch is "
        r"smaller \(x: float32 \(8, 4\) -> float32 \(3, 4\); "
        r"y: float32 \(8, 1\) -> float32 \(3, 1\)\)\. Epoch 1, "
        r"batch 2; \d+\.\d\d s lost\. Drop the last batch .*",
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
    model = recurrent(jit_compile=True, perf=ONE)
    monitor = watch(model, lengths(5, 6, 7, 8, 8, 8))
    assert monitor.compiles == 4
    assert max(monitor.traces().values()) < 4
    assert {e.cause for e in monitor.events} == {"the length varies"}
    assert {e.kind for e in monitor.events} == {"trace", "compile"}
    assert "PadBatches(multiple_of=16)" in monitor.events[0].fix
    # Padded to one bucket there is one.
    same = recurrent(jit_compile=True, perf=ONE)
    padded = watch(same, lengths(16, 16, 16))
    assert (padded.compiles, padded.events) == (1, [])


def test_a_rebuilt_function_is_told():
    model = network(perf=ONE_STEP)
    monitor = watch(model, X[:40], Y[:40], 10)
    model.fit(X[:40], Y[:40], 10, verbose=0, callbacks=[monitor])
    assert monitor.events == []
    model.compile()
    model.fit(X[:40], Y[:40], 10, verbose=0, callbacks=[monitor])
    assert [e.cause for e in monitor.events] == ["the function was rebuilt"]


def test_the_limit_lets_that_many_pass_and_many_are_told_few_times():
    sizes = range(3, 8)
    model = recurrent(jit_compile=True, perf=ONE)
    with pytest.warns(FastKerasWarning) as told:
        monitor = watch(model, lengths(*sizes), action="warn")
    assert len(monitor.events) == 4
    assert len([w for w in told if "again" in str(w.message)]) == 3
    once = functools.partial(recurrent, jit_compile=False, perf=ONE)
    with pytest.raises(RuntimeError, match="length varies"):
        watch(once(), lengths(3, 4), action="raise")
    watch(once(), lengths(3, 4), action="raise", limit=1)


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
    assert rows.cause == "the batch size changed"
    # TensorFlow relaxes what differs.
    assert rows.changes[0] == "x: float32 (10, 4) -> float32 (None, 4)"
    dtype = fit(X[:9].astype("float64"), 3)
    assert dtype.cause == "the dtype changed"
    assert dtype.changes[0].startswith("x: float32 (None, 4) -> float64")
    assert " s lost" in str(dtype) and "Epoch 1, batch 1;" in str(dtype)
    assert str(dtype).startswith("train_function.multi_step_on_iterator was")
    assert fit(X[:9].astype("float64"), 3) is dtype


@pytest.mark.parametrize("base", [fk.FastModel, keras.Model])
def test_another_batch_size_in_a_second_fit_is_told(base):
    options = {"perf": ONE_STEP} if base is fk.FastModel else {}
    model, monitor = network(base, **options), RetraceMonitor("ignore")
    sizes = []
    for size in (20, 10):
        model.fit(
            X[:40],
            Y[:40],
            size,
            verbose=0,
            validation_data=(X[:40], Y[:40]),
            validation_batch_size=size // 2,
            callbacks=[monitor],
        )
        sizes.append(len(monitor.events))
    # That of the validation is another function, so its first is its own.
    assert sizes == [0, 2]
    causes = {event.cause for event in monitor.events}
    assert causes == {"the batch size changed"}
    assert "Epoch 1, validation, " in str(monitor.events[1])
    if base is fk.FastModel:
        assert monitor.events[0].changes == ("batch_size: 20 -> 10",)


def test_the_batch_and_the_part_of_nested_data_are_named():
    def pair(rows, length):
        words = np.ones((rows, length), "float32")
        return {"u": {"a": X[:rows], "words": words}}, Y[:rows]

    pairs = [pair(8, 5), pair(8, 5), pair(8, 7), pair(3, 5)]
    data = tf.data.Dataset.from_generator(
        lambda: iter(pairs),
        output_signature=tf.nest.map_structure(
            lambda a: tf.TensorSpec([None, None], a.dtype), pairs[0]
        ),
    )
    a, words = keras.Input((4,)), keras.Input((None,))
    total = keras.ops.sum(words, -1, keepdims=True)
    model = fk.FastModel(
        {"u": {"a": a, "words": words}},
        keras.layers.Dense(1)(keras.layers.Concatenate()([a, total])),
    )
    model.compile("sgd", "mse", perf=ONE)
    length, last = watch(model, data).events
    assert length.changes == (
        "x['u']['words']: float32 (8, 5) -> float32 (8, 7)",
    )
    assert (length.cause, length.where) == (
        "the length varies",
        "Epoch 1, batch 3",
    )
    # Compared with the batch that is most like it, not with the latest.
    assert last.cause == "the last batch is smaller"
    assert (last.batch, last.where) == (4, "Epoch 1, batch 4")


@pytest.mark.parametrize("base", [fk.FastModel, keras.Model])
def test_batches_given_without_fit_are_told(base):
    model, monitor = network(base), RetraceMonitor("ignore")
    monitor.set_model(model)
    for rows in (8, 8, 5, 3):
        model.train_on_batch(X[:rows], Y[:rows])
        model.predict_on_batch(X[:rows])
    assert monitor.retraces == 2
    assert {event.cause for event in monitor.events} == {
        "the number of rows varies"
    }
    assert monitor.events[0].changes[0].startswith("x: float32 (8, 4) -> ")


def test_evaluate_and_predict_tell_of_theirs():
    model = network(perf=ONE_STEP)
    monitor = RetraceMonitor("raise", limit=1)
    model.evaluate(X, Y, 10, verbose=0, callbacks=[monitor])
    (event,) = monitor.events
    assert event.changes == ("batch_size: 10 -> 3",)
    with pytest.raises(RuntimeError, match=r"predict_step .* last batch"):
        model.predict(X, 10, verbose=0, callbacks=[monitor])
    whole = RetraceMonitor("raise")
    model.predict(X[:40], 10, verbose=0, callbacks=[whole])


def test_within_a_board_it_tells_the_same(tmp_path):
    beside, within = RetraceMonitor("ignore"), RetraceMonitor("ignore")
    board = PerfTensorBoard(tmp_path, monitors=[within])
    model = network(perf=ONE_STEP)
    model.evaluate(X, Y, 10, verbose=0, callbacks=[beside, board])
    model.predict(X, 10, verbose=0, callbacks=[beside, board])
    found = [(e.function, e.cause, e.where) for e in within.events]
    assert found == [(e.function, e.cause, e.where) for e in beside.events]
    assert {cause for _, cause, _ in found} == {"the last batch is smaller"}


def test_the_fix_for_lengths_that_are_padded_already_is_another():
    fixes = []
    for size in (None, 4):
        inputs = keras.Input((None,))
        hidden = keras.layers.Embedding(9, 1, mask_zero=True)(inputs)
        hidden = keras.layers.LSTM(1)(hidden)
        model = fk.FastModel(inputs, hidden)
        model.compile("sgd", "mse", perf=[fk.perf.PadBatches("batch", size)])
        fixes.append(_causes.fix(_causes.LENGTH, model))
    assert fixes == [_causes.FIXES[_causes.LENGTH], _causes.PADDED]


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
    with pytest.raises(TypeError, match="`limit` must be an integer >= 0"):
        RetraceMonitor(limit=1.5)
    twin = copy.deepcopy(RetraceMonitor("raise", limit=3))
    assert (twin.action, twin.limit, twin.events) == ("raise", 3, [])


@pytest.mark.parametrize("is_dataset", [True, False])
def test_a_last_window_with_fewer_batches_is_told(is_dataset):
    def causes(rows):
        x, y = X[:rows], Y[:rows]
        data = x, y
        if is_dataset:
            data = (tf.data.Dataset.from_tensor_slices((x, y)).batch(10),)
        model = network(perf=[fk.perf.Accumulate(2), ONE_STEP])
        size = {} if is_dataset else {"batch_size": 10}
        monitor = watch(model, *data, epochs=2, **size)
        return [e.cause for e in monitor.events]

    assert causes(40) == []
    assert causes(50) == ["the last update has fewer batches"]
    assert causes(38) != ["the last update has fewer batches"]


def test_arrays_of_another_length_are_no_smaller_last_batch():
    one = fk.perf.Execution(steps_per_launch=1)
    model = network(jit_compile=True, perf=one)
    monitor = RetraceMonitor("ignore")
    for rows in (40, 80, 20):
        model.fit(X[:rows], Y[:rows], 10, verbose=0, callbacks=[monitor])
    causes = {e.cause for e in monitor.events}
    assert causes == {"the arrays have another number of rows"}
    # XLA has the batches, which are as before: it compiles but once.
    assert (monitor.retraces, monitor.compiles) == (2, 1)
    assert "(xla-step, resident) was traced again" in str(monitor)


@pytest.mark.parametrize("is_dataset", [True, False])
def test_each_trace_of_a_loop_is_told(is_dataset):
    """A loop over a dataset is traced before it is called."""
    model = network(steps_per_execution=2, jit_compile=False)
    monitor = RetraceMonitor("ignore")
    for size in (8, 16, 32):
        data, options = (X[:64], Y[:64]), {"batch_size": size}
        if is_dataset:
            data = tf.data.Dataset.from_tensor_slices(data).batch(size, True)
            data, options = (data,), {}
        model.fit(*data, **options, verbose=0, callbacks=[monitor])
    assert set(monitor.traces().values()) == {3}
    # A launch holds all batches of a fit; the last is as large as the others.
    causes = [event.cause for event in monitor.events]
    assert causes == ["the batch size changed"] * 2
    first, *_ = model.train_function.ledger.entries
    assert first.cause == "first call"


@pytest.mark.parametrize("rows", [pytest.param(24, marks=pytest.mark.slow), 20])
def test_what_xla_compiles_within_a_launch_is_told(rows):
    x = X[:rows]
    data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(8)
    model = network(steps_per_execution=3, jit_compile=True)
    # The first epoch finds out how many steps a call may run.
    monitor = watch(model, data.take(2).repeat(2))
    assert (monitor.compiles, monitor.events) == (1, [])
    model.fit(data, verbose=0, callbacks=[monitor])
    assert model.train_function.ledger.calls < 2 * rows
    causes = [e.cause for e in monitor.events]
    assert causes == ["the last batch is smaller"] * (rows % 8 > 0)
    assert monitor.compiles == 1 + len(causes)
