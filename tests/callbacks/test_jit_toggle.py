"""JitToggle changes how steps are compiled and nothing else."""

import copy

import keras
import numpy as np
import pytest
import tensorflow as tf

import fastkeras as fk
from fastkeras import measure
from fastkeras._lib.warn import FastKerasWarning
from fastkeras.callbacks import JitToggle
from fastkeras.callbacks import RetraceMonitor
from fastkeras.callbacks import _jit
from fastkeras.callbacks._traces import trace_counts

X = np.random.RandomState(0).randn(40, 3).astype("float32")
Y = X @ np.ones((3, 1), "float32")
# One tier of each kind, so that traces can be counted.
STREAM = fk.perf.Execution(feed="stream", steps_per_launch=1)
SCALED = [STREAM, fk.perf.MixedPrecision(initial_scale=8, growth_steps=3)]


def network(base, traced=None, **options):
    class Net(base):
        def compute_loss(self, *args, **kwargs):
            if traced is not None:
                traced.append(self.jit_compile)
            return super().compute_loss(*args, **kwargs)

    keras.utils.set_random_seed(3)
    inputs = keras.Input((3,))
    hidden = keras.layers.Dense(4, activation="tanh")(inputs)
    model = Net(inputs, keras.layers.Dense(1)(hidden))
    options.setdefault("optimizer", keras.optimizers.Adam(0.05))
    model.compile(loss="mse", metrics=["mae"], **options)
    return model


def train(model, *callbacks, epochs=4):
    history = model.fit(
        X,
        Y,
        8,
        epochs=epochs,
        shuffle=False,
        verbose=0,
        callbacks=list(callbacks),
    )
    return history.history


@pytest.mark.parametrize(
    ("base", "options", "near"),
    [
        (keras.Model, {"jit_compile": False}, 1e-5),
        (fk.FastModel, {"perf": STREAM}, 1e-5),
        # XLA rounds to half precision in fewer places.
        pytest.param(
            fk.FastModel, {"perf": SCALED}, 5e-3, marks=pytest.mark.slow
        ),
    ],
)
def test_a_toggle_changes_no_number_and_traces_once_more(base, options, near):
    traced, plain_traced = [], []
    plain = network(base, plain_traced, **options)
    logs = train(plain)
    model = network(base, traced, **options)
    toggled_logs = train(model, JitToggle(at_epoch=2, to=True))
    assert len(traced) == len(plain_traced) + 1
    assert traced[-1] is True
    assert model.jit_compile is True
    assert model.optimizer.iterations.numpy() == 20
    for a, b in zip(plain.variables, model.variables, strict=True):
        np.testing.assert_allclose(a, b, atol=near)
    slots = zip(
        plain.optimizer.variables, model.optimizer.variables, strict=True
    )
    for a, b in slots:
        np.testing.assert_allclose(a, b, atol=near)
    assert list(logs) == list(toggled_logs)
    for name in logs:
        np.testing.assert_allclose(
            logs[name], toggled_logs[name], rtol=100 * near
        )
    if options.get("perf") is SCALED:
        # It doubles after 3 good steps, and goes on to do so.
        assert toggled_logs["loss_scale"] == logs["loss_scale"]
        assert toggled_logs["loss_scale"][-1] == 8 * 2 ** (20 // 3)


def test_the_same_comparison_sees_an_epoch_less():
    models = [network(keras.Model) for _ in range(2)]
    for model, epochs in zip(models, (4, 3), strict=True):
        train(model, epochs=epochs)
    first, second = (m.get_weights()[0] for m in models)
    assert abs(first - second).max() > 5e-2


def test_the_report_of_the_model_and_the_monitor_tell_of_it():
    model = network(fk.FastModel, perf=STREAM)
    monitor = RetraceMonitor("ignore")
    train(model, JitToggle(at_epoch=1, to=True), monitor)
    assert model.perf_report()["settings"]["jit"]["effective"] is True
    # What is meant is no retrace.
    assert monitor.events == []
    assert model.get_compile_config()["jit_compile"] is True


def test_it_goes_before_what_was_pinned_and_says_so():
    toggle = JitToggle(at_epoch=0, to=False)
    pinned = fk.perf.Execution(jit=True, steps_per_launch=1)
    model = network(fk.FastModel, perf=pinned)
    with pytest.warns(FastKerasWarning) as told:
        train(model, toggle, epochs=1)
    (line,) = [str(w.message) for w in told]
    assert f"{toggle!r} goes before `Execution(jit=True)` of `compile`" in line
    jit = model.perf_report()["settings"]["jit"]
    assert jit["effective"] is False
    assert jit["reason"] == "asked for by JitToggle(at_epoch=0, to=False)"
    # What the plan pins, it pins in a copy too.
    model.compile_from_config(model.get_compile_config())
    assert (model.requested_jit, model.jit_asked_by) == (True, None)
    model = network(fk.FastModel, jit_compile=True)
    with pytest.warns(FastKerasWarning, match="before `jit_compile=True` of"):
        train(model, JitToggle(at_epoch=0, to=False), epochs=1)


@pytest.mark.filterwarnings("error::fastkeras._lib.warn.FastKerasWarning")
def test_it_is_silent_where_nothing_is_pinned():
    model = network(fk.FastModel)
    # Resumed after the epoch in question.
    model.fit(
        X,
        Y,
        epochs=6,
        initial_epoch=5,
        verbose=0,
        callbacks=[JitToggle(at_epoch=2, to=False)],
    )
    # It would have chosen by itself.
    assert model.requested_jit is False


def test_convolutions_on_a_cpu_are_warned_of():
    inputs = keras.Input((3, 1))
    hidden = keras.layers.Flatten()(keras.layers.Conv1D(1, 2)(inputs))
    model = fk.FastModel(inputs, keras.layers.Dense(1)(hidden))
    model.compile("sgd", "mse")
    with pytest.warns(FastKerasWarning, match="runs them slower") as told:
        train(model, JitToggle(at_epoch=9, to=True), epochs=1)
    assert "see what `JitToggle.compare()` measures" in str(told[0].message)


class Costs(keras.callbacks.Callback):
    """Moves the clock by what an epoch of a kind takes."""

    def __init__(self, clock, graph, xla):
        super().__init__()
        self.clock, self.costs = clock, {False: graph, True: xla}
        self.epochs = {False: 0, True: 0}

    def on_train_batch_begin(self, batch, logs=None):
        jit = self.model.jit_compile
        # The first epoch of each is a thousand times as long.
        slow = 1000 if self.epochs[jit] == 0 else 1
        self.clock.advance(self.costs[jit] * slow)

    def on_epoch_end(self, epoch, logs=None):
        self.epochs[self.model.jit_compile] += 1


@pytest.mark.parametrize(
    ("base", "xla", "kept"),
    [(fk.FastModel, 0.001, True), (keras.Model, 0.004, False)],
)
def test_the_faster_is_kept(base, xla, kept, recwarn):
    clock = measure.ManualClock()
    traced, options = [], {"perf": STREAM} if base is fk.FastModel else {}
    model = network(base, traced, jit_compile=False, **options)
    comparison = JitToggle.compare(epochs=8, clock=clock)
    train(model, comparison, Costs(clock, 0.002, xla), epochs=10)
    assert comparison.kept is kept and model.jit_compile is kept
    assert comparison.graph.median == pytest.approx(0.002)
    assert comparison.xla.median == pytest.approx(xla)
    assert comparison.graph.n == comparison.xla.n == 3
    assert comparison.ratio.median == pytest.approx(0.002 / xla)
    assert "15 warm steps of each" in comparison.reason
    assert "2.00 ms (±0.00, n=3)" in str(comparison)
    assert model.optimizer.iterations.numpy() == 50
    assert traced.count(True) < 4
    # A `keras.Model` does not know what it was given.
    told = [str(w.message) for w in recwarn if w.category is FastKerasWarning]
    line = "JitToggle.compare(epochs=8) goes before `jit_compile=False`"
    assert [line in text for text in told] == [True] * (base is fk.FastModel)


@pytest.mark.parametrize(
    ("slow", "kept"),
    [
        ((3, 1.2, 1.1), "auto"),
        pytest.param((3, 3.2, 3.1), True, marks=pytest.mark.slow),
    ],
)
def test_within_noise_what_was_compiled_is_kept(slow, kept):
    """Pairs of 2 and 1 times something would be decided, but for the noise."""
    clock = measure.ManualClock()

    class Noisy(Costs):
        def on_train_batch_begin(self, batch, logs=None):
            k = self.epochs[False] - 1
            graph = slow[k] if 0 <= k < len(slow) else 1
            self.costs = {False: 0.001 * graph, True: 0.001}
            super().on_train_batch_begin(batch, logs)

    model = network(fk.FastModel, perf=STREAM)
    comparison = JitToggle.compare(epochs=8, clock=clock)
    traced = RetraceMonitor("raise")
    train(model, comparison, Noisy(clock, 0, 0), traced, epochs=9)
    assert comparison.ratio.n == 3 and comparison.ratio.median > 1.1
    assert comparison.kept == model.requested_jit == kept
    by = "JitToggle.compare(epochs=8)" if kept is True else None
    assert model.jit_asked_by == by
    noise = "0.95 from 1), so jit_compile=auto is kept as before"
    assert (noise in str(comparison)) is (kept == "auto")


def test_too_short_a_comparison_decides_nothing():
    model = network(keras.Model, jit_compile=False)
    comparison = JitToggle.compare(epochs=6)
    train(model, comparison, epochs=3)
    assert comparison.graph is None
    assert "0 warm steps of each in 0 pair(s)" in str(comparison)
    assert comparison.kept is False and model.jit_compile is False
    assert all(trace_counts("", model.train_function).values())
    # Another has no traces of the one before it.
    _jit.switch(model, True, "test", refused=str)
    assert set(trace_counts("", model.train_function).values()) == {0}


class Odd(keras.layers.Layer):
    """What XLA can't compile."""

    def call(self, x):
        y = tf.numpy_function(np.sin, [x], tf.float32)
        return x + tf.stop_gradient(tf.ensure_shape(y, x.shape))


def by_two(feed):
    two = fk.perf.Execution(feed=feed, steps_per_launch=2)
    return fk.FastModel, {"perf": two}


@pytest.mark.parametrize(
    ("base", "options"),
    [
        by_two("resident"),
        pytest.param(*by_two("stream"), marks=pytest.mark.slow),
        (keras.Model, {"jit_compile": False}),
        pytest.param(
            keras.Model,
            {"jit_compile": False, "steps_per_execution": 2},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_model_that_xla_can_not_compile_is_trained_on(base, options):
    def odd(*callbacks):
        keras.utils.set_random_seed(3)
        inputs = keras.Input((3,))
        hidden = Odd(name="odd")(inputs)
        model = base(inputs, keras.layers.Dense(1)(hidden))
        model.compile("sgd", "mse", **options)
        return train(model, *callbacks, epochs=3), model.get_weights()

    comparison = JitToggle.compare()
    logs, weights = odd(comparison)
    plain_logs, plain = odd()
    np.testing.assert_allclose(logs["loss"], plain_logs["loss"], rtol=1e-5)
    np.testing.assert_allclose(weights[0], plain[0], rtol=1e-5)
    assert "PyFunc of layer 'odd' can't be compiled" in str(comparison)
    model, auto = comparison.model, base is fk.FastModel
    assert comparison.kept == ("auto" if auto else False)
    assert model.optimizer.iterations == 15 and model.jit_compile is False
    with pytest.raises(tf.errors.OpError):
        odd(JitToggle(at_epoch=1, to=True))


def test_an_interrupted_comparison_leaves_all_as_it_was():
    class Interrupts(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1:
                assert self.model.requested_jit is True
                raise KeyboardInterrupt

    model = network(fk.FastModel, perf=STREAM)
    with pytest.raises(KeyboardInterrupt):
        train(model, JitToggle.compare(), Interrupts())
    assert (model.requested_jit, model.jit_asked_by) == ("auto", None)
    assert model.jit_compile is False


def test_what_xla_can_not_compile_is_refused(mirrored, monkeypatch):
    toggle = JitToggle(at_epoch=0, to=True)
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse", run_eagerly=True)
    with pytest.raises(ValueError, match="run_eagerly=True"):
        train(model, toggle)
    model.layers[0].supports_jit = False
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="supports_jit=False"):
        train(model, toggle)
    monkeypatch.setattr(model.layers[0], "supports_jit", True)
    monkeypatch.setattr(_jit.private, "model_supports_jit", lambda _: False)
    with pytest.raises(ValueError, match=r"without `enable_op_determinism\(\)"):
        train(model, toggle)
    with mirrored.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    for one in (toggle, JitToggle.compare()):
        with pytest.raises(ValueError, match="exchanges gradients inside"):
            train(model, one)


def test_arguments_are_checked_and_the_callback_copies():
    with pytest.raises(TypeError, match="`to` must be True"):
        JitToggle(1, to="auto")
    with pytest.raises(ValueError, match="`at_epoch` must be >= 0"):
        JitToggle(-1, to=True)
    for epochs in (4, 7):
        with pytest.raises(ValueError, match="even and >= 6"):
            JitToggle.compare(epochs=epochs)
    twin = copy.deepcopy(JitToggle(2, to=True))
    assert (twin.at_epoch, twin.to) == (2, True)
    assert copy.deepcopy(JitToggle.compare(epochs=6)).epochs == 6
