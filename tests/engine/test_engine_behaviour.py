"""What a run keeps when something goes wrong or changes in the middle."""

import threading
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

from fastkeras import FastModel
from fastkeras import measure
from fastkeras import perf
from fastkeras._lib import private_calls
from fastkeras.engine import _ledger
from fastkeras.engine import _parity
from fastkeras.engine import _tiers

X = np.random.RandomState(0).randn(40, 3).astype("float32")
Y = X @ np.ones((3, 1), "float32")


def network():
    keras.utils.set_random_seed(2)
    inputs = keras.Input((3,))
    hidden = keras.layers.Dense(4, activation="tanh")(inputs)
    return FastModel(inputs, keras.layers.Dense(1)(hidden))


def test_a_tier_that_parts_from_the_graph_is_found_and_state_put_back():
    model = network()
    model.compile("adam", "mse", metrics=["mae"])
    model.fit(X, Y, verbose=0)
    before = [v.numpy() for v in model.variables + model.optimizer.variables]

    def step():
        model.train_function(iter([(X[:8], Y[:8])]))

    def wrong():
        step()
        model.trainable_variables[0].assign_add(
            0.01 * tf.ones_like(model.trainable_variables[0])
        )

    assert _parity.parting(model, step, step) is None
    assert "update of" in _parity.parting(model, wrong, step)
    after = [v.numpy() for v in model.variables + model.optimizer.variables]
    for a, b in zip(before, after, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_call_takes_no_batch_beyond_its_steps():
    model = network()
    model.compile("sgd", "mse", steps_per_execution=2)
    batches = iter([(X[:8], Y[:8])] * 5)
    model.make_train_function()
    for left in (3, 1, 0):
        model.train_function(batches)
        assert batches.__length_hint__() == left
    with pytest.raises(StopIteration):
        model.train_function(batches)
    assert model.optimizer.iterations == 5


@pytest.mark.usefixtures("no_trials")
def test_metrics_do_not_have_the_first_step_traced_twice(monkeypatch):
    def traces():
        model = network()
        model.compile("adam", "mse", metrics=["mae"])
        data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(8, True)
        history = model.fit(data, epochs=2, verbose=0).history
        return list(model.train_function.ledger.traces().values()), history

    once, history = traces()
    monkeypatch.setattr(private_calls, "build_metrics", lambda *_: None)
    twice, same = traces()
    assert (once, twice) == ([1], [2])
    assert history == same


def test_a_gradient_that_is_rounding_errors_is_no_reason(monkeypatch):
    class Shift(keras.layers.Layer):
        """Adds one number to all logits, which a softmax does not see."""

        def build(self, _):
            self.shift = self.add_weight(shape=(1,), name="shift")

        def call(self, x):
            return x + self.shift

    keras.utils.set_random_seed(2)
    inputs = keras.Input((3,))
    logits = Shift()(keras.layers.Dense(5)(inputs))
    model = FastModel(inputs, keras.layers.Softmax()(logits))
    model.compile("adam", "sparse_categorical_crossentropy")
    labels = np.arange(40) % 5
    model.fit(X, labels, verbose=0)

    def step(order):
        return lambda: model.train_function(iter([(X[order], labels[order])]))

    forward, backward = np.arange(40), np.arange(39, -1, -1)
    assert _parity.parting(model, step(backward), step(forward)) is None
    # Without an allowance for them it would be one.
    monkeypatch.setattr(_parity, "NOISE", 0.0)
    assert "shift" in _parity.parting(model, step(backward), step(forward))


def test_a_tier_that_does_not_compile_is_left_out_by_name(monkeypatch):
    class Odd(keras.layers.Layer):
        def compute_output_shape(self, shape):
            return shape

        def call(self, x):
            zero = tf.py_function(lambda t: t * 0, [x[0, 0]], tf.float32)
            return x + tf.reshape(zero, [])

    inputs = keras.Input((3,))
    model = FastModel(
        inputs, keras.layers.Dense(1)(Odd(name="odd_one")(inputs))
    )
    model.compile("sgd", "mse")
    monkeypatch.setattr(
        _tiers, "available", lambda *_: (["graph-step", "xla-loop"], [])
    )
    monkeypatch.setattr("fastkeras.engine._pilot.FREE", 1e9)
    model.fit(X, Y, batch_size=2, epochs=3, verbose=0)
    assert model.optimizer.iterations.numpy() == 60
    choices = model.perf_report()["train_step"]["resident"]["choices"]
    why = "operation EagerPyFunc of layer 'odd_one' can't be compiled by XLA"
    assert choices == [f"xla-loop left out: does not compile: {why}"]
    monkeypatch.undo()
    # Asked for, it is an error that says the same and what to do.
    model.compile("sgd", "mse", jit_compile=True)
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        model.fit(X, Y, verbose=0)
    assert f"{why}. Leave `jit_compile`" in error.value.__notes__[0]


def test_a_compilation_that_takes_long_is_spoken_of(monkeypatch, caplog):
    monkeypatch.setattr(_ledger, "SLOW_COMPILE", 0.01)
    ledger, told = _ledger.Ledger(), "slow: XLA is still compiling"

    @tf.function
    def slow(x):
        # Its body is run as it is traced: until then, or for far too long.
        end = time.monotonic() + (0.1 if x.shape[0] == 2 else 60)
        while told not in caplog.text and time.monotonic() < end:
            time.sleep(0.01)
        return x

    ledger.call("quick", slow, False, tf.ones([2]))
    assert not caplog.text
    ledger.call("slow", slow, True, tf.ones([3]))
    ledger.call("slow", slow, True, tf.ones([3]))
    assert caplog.text.count(told) == 1


def test_a_trace_ahead_is_noted_with_the_first_call(monkeypatch):
    clock, ledger = measure.ManualClock(), _ledger.Ledger()
    monkeypatch.setattr(_ledger.time, "perf_counter", clock.now)
    # Its body is run as it is traced, and only then.
    function = tf.function(lambda x: clock.advance(2.0) or x)
    ledger.trace("ahead", function, tf.TensorSpec([2]))
    assert ledger.entries == []
    for _ in range(2):
        ledger.call("ahead", function, False, tf.ones([2]))
    (entry,) = ledger.entries
    assert (entry.traces, entry.seconds, entry.step) == (1, 2.0, 1)
    ledger.call("ahead", function, False, tf.ones([3]))
    assert ledger.entries[1].kind == "retrace"


def test_two_fits_in_two_threads():
    def run():
        model = network()
        model.compile("adam", "mse")
        return model

    models = [run() for _ in range(2)]
    alone = run()
    threads = [
        threading.Thread(
            target=m.fit,
            args=(X, Y),
            kwargs={"epochs": 5, "verbose": 0, "shuffle": False},
        )
        for m in models
    ]
    [t.start() for t in threads]
    [t.join() for t in threads]
    alone.fit(X, Y, epochs=5, verbose=0, shuffle=False)
    for model in models:
        for a, b in zip(model.get_weights(), alone.get_weights(), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-6)


def test_data_that_raises_in_mid_epoch_leaves_the_last_full_step():
    class Broken(RuntimeError):
        pass

    def batches():
        for k in range(5):
            if k == 3:
                raise Broken("disk")
            yield X[:4], Y[:4]

    model = network()
    model.compile("adam", "mse")
    with pytest.raises(Broken, match="disk"):
        model.fit(batches(), verbose=0)
    assert model.optimizer.iterations.numpy() == 3
    reference = network()
    reference.compile("adam", "mse")
    for _ in range(3):
        reference.train_on_batch(X[:4], Y[:4])
    for a, b in zip(model.get_weights(), reference.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


@pytest.mark.parametrize("where", ["compile", "functions"])
def test_eager_runs_are_honoured_and_reported(where):
    model = network()
    model.compile("sgd", "mse", run_eagerly=where == "compile")
    if where == "functions":
        tf.config.run_functions_eagerly(True)
    try:
        model.fit(X, Y, verbose=0)
        eager = model.perf_report()["settings"]["run_eagerly"]
    finally:
        tf.config.run_functions_eagerly(False)
    assert eager["effective"] is True
    assert model.perf_report()["train_step"]["traces"] == {}


def test_report_says_requested_effective_and_reason():
    table = keras.layers.IntegerLookup(vocabulary=[1, 2, 3])
    inputs = keras.Input((2,), dtype="int64")
    hidden = keras.layers.Embedding(5, 2)(table(inputs))
    outputs = keras.layers.Dense(1)(keras.layers.Flatten()(hidden))
    model = FastModel(inputs, outputs)
    with pytest.warns(UserWarning):
        model.compile("sgd", "mse", jit_compile=True)
    model.fit(np.ones((8, 2), "int64"), np.ones((8, 1)), verbose=0)
    jit = model.perf_report()["settings"]["jit"]
    assert jit["requested"] is True
    assert jit["effective"] is False
    assert table.name in jit["reason"]


def test_batch_sizes_in_turn_make_few_traces(monkeypatch):
    def traces(sizes):
        model = network()
        model.compile("adam", "mse", metrics=["mae"])
        for size in sizes:
            model.train_on_batch(X[:size], Y[:size])
            model.test_on_batch(X[:size], Y[:size])
            model.predict_on_batch(X[:size])
        report = model.perf_report()
        return [
            sum(report[step]["traces"].values())
            for step in ("train_step", "test_step")
        ]

    assert traces(range(1, 21)) == [2, 2]
    # The control: what the first step makes has it traced twice.
    monkeypatch.setattr(private_calls, "build_metrics", lambda *_: None)
    assert traces(range(1, 3)) == [3, 2]


@pytest.mark.usefixtures("no_trials")
def test_events_name_the_argument_and_both_shapes():
    model = network()
    model.compile("sgd", "mse", perf=perf.Execution(feed="stream"))
    model.fit(X[:22], Y[:22], batch_size=8, epochs=3, verbose=0)
    report = model.perf_report()["train_step"]
    assert report["traces"] == {"train_step (graph-step)": 2}
    assert "x: shape (8, 3) -> (6, 3)" in report["events"][1]


def test_six_fresh_models_are_traced_once_each(caplog):
    for _ in range(6):
        model = network()
        model.compile("sgd", "mse")
        model.fit(X, Y, batch_size=8, epochs=2, verbose=0)
        traces = model.perf_report()["train_step"]["traces"]
        # The pilot may have tried a second tier: each is traced once.
        assert set(traces.values()) == {1}
    assert "retracing" not in caplog.text


@pytest.mark.usefixtures("no_trials")
def test_an_engine_keeps_nothing_of_a_finished_run():
    model = network()
    model.compile("sgd", "mse")
    sizes = []
    for _ in range(3):
        model.fit(X, Y, verbose=0)
        model.evaluate(X, Y, verbose=0)
        sizes.append(len(model.train_function._calls._functions))
    assert sizes == [sizes[0]] * 3
