"""StepTimer against times chosen by the test, and against a real clock."""

import copy
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

import fastkeras as fk
from fastkeras import measure
from fastkeras.callbacks import StepTimer

X = np.random.RandomState(0).randn(64, 3).astype("float32")
Y = X[:, :1]


class Takes(keras.layers.Layer):
    """A layer whose call takes a time by a clock: first the other."""

    def __init__(self, clock, seconds, first=None, **kwargs):
        super().__init__(**kwargs)
        self._take = lambda: clock.advance(times.pop() if times else seconds)
        times = [] if first is None else [first]

    def compute_output_shape(self, shape):
        return shape

    def call(self, x):
        with tf.control_dependencies([tf.py_function(self._take, [], [])]):
            return tf.identity(x)


def timed(base, clock, seconds=0.002, first=None, **options):
    inputs = keras.Input((3,))
    hidden = Takes(clock, seconds, first)(inputs)
    model = base(inputs, keras.layers.Dense(1)(hidden))
    model.compile("sgd", "mse", **options)
    return model


# One tier, so that nothing is traced but the step.
STREAM = fk.perf.Execution(feed="stream", steps_per_launch=1)
PLAIN = {"base": keras.Model}
FAST = {"base": fk.FastModel}


@pytest.mark.parametrize(
    "how",
    [
        PLAIN,
        {"base": keras.Model, "steps_per_execution": 4},
        FAST,
        {"base": fk.FastModel, "steps_per_execution": 4},
        {"base": fk.FastModel, "perf": STREAM},
    ],
)
def test_a_step_takes_what_it_takes_at_any_steps_per_launch(how):
    clock = measure.ManualClock()
    # The first step, which is traced, takes an hour: it must not show.
    model = timed(clock=clock, first=3600.0, **how)
    timer = StepTimer(warmup_steps=4, window=4, clock=clock)
    model.fit(X, Y, 4, epochs=12, verbose=0, callbacks=[timer])
    times = timer.times()
    assert times.step.median == pytest.approx(0.002)
    assert times.step.spread == pytest.approx(0.0)
    # A loop that is tried, at a time of its own, has a warm-up of its own.
    assert times.step.n >= (1 if how is FAST else 3)
    assert times.samples_per_second == pytest.approx(4 / 0.002)
    assert times.steps_per_epoch == 16
    assert times.reason == ""


def test_too_few_steps_give_a_reason_and_no_figure():
    clock = measure.ManualClock()
    model = timed(fk.FastModel, clock, perf=STREAM)
    timer = StepTimer(warmup_steps=10, clock=clock)
    model.fit(X[:8], Y[:8], 1, verbose=0, callbacks=[timer])
    assert timer.times().step is None
    assert "short of 10 of warm-up" in str(timer.times())
    assert "step_ms" not in timer.scalars()
    model.fit(X[:24], Y[:24], 1, verbose=0, callbacks=[timer])
    assert "14 step(s) after warm-up, and a window takes 20" in str(
        timer.times()
    )
    model.fit(X, Y, 1, verbose=0, callbacks=[timer])
    assert timer.times().step.median == pytest.approx(0.002)


@pytest.mark.parametrize("base", [keras.Model, fk.FastModel])
def test_a_short_last_batch_counts_its_rows(base):
    clock = measure.ManualClock()
    model = timed(base, clock)
    # Epochs of 8 + 3 rows, and a window is an epoch.
    timer = StepTimer(warmup_steps=2, window=2, clock=clock)
    model.fit(X[:11], Y[:11], 8, epochs=6, verbose=0, callbacks=[timer])
    assert timer.times().samples_per_second == pytest.approx(11 / 0.004)


def test_input_validation_and_epochs_are_apart(monkeypatch):
    clock = measure.ManualClock()
    monkeypatch.setattr(time, "perf_counter", clock.now)

    def batches():
        for k in range(0, 64, 8):
            clock.advance(0.005)
            yield X[k : k + 8], Y[k : k + 8]
        # To find that there are no more is no part of a step.
        clock.advance(0.05)

    class Slow(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            """Keras calls this at once, as it is not `async_safe`."""

        def on_epoch_end(self, epoch, logs=None):
            clock.advance(0.1)

    model = timed(fk.FastModel, clock, perf=STREAM)
    spec = [tf.TensorSpec([8, n], "float32") for n in (3, 1)]
    data = tf.data.Dataset.from_generator(batches, output_signature=tuple(spec))
    data = data.apply(tf.data.experimental.assert_cardinality(8))
    # Else a thread fetches ahead, and moves the clock when it likes.
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    data = data.with_options(options)
    timer = StepTimer(warmup_steps=4, window=8, clock=clock)
    model.fit(
        data,
        epochs=5,
        verbose=0,
        validation_data=(X, Y),
        validation_batch_size=32,
        callbacks=[timer, Slow()],
    )
    times = timer.times()
    assert times.step.median == pytest.approx(0.007)
    assert times.input_wait.median == pytest.approx(0.005)
    assert times.validation.median == pytest.approx(2 * 0.002)
    assert times.epoch_overhead.median == pytest.approx(0.15)
    assert "spent outside its 8 step(s)" in str(times)
    # What is called afterwards leaves the figures as they are.
    model.predict(X, verbose=0, callbacks=[timer])
    assert timer.times() == times


def test_a_later_trace_begins_the_warm_up_anew():
    clock = measure.ManualClock()
    model = timed(fk.FastModel, clock, perf=STREAM)

    class Rebuilt(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:
                self.model.compile()

    def windows(*callbacks):
        timer = StepTimer(warmup_steps=4, window=4, clock=clock)
        model.fit(X, Y, 8, epochs=4, verbose=0, callbacks=[timer, *callbacks])
        return timer.times().step.n

    assert windows(Rebuilt()) < windows()


def test_the_parts_of_an_epoch_are_no_more_than_the_whole():
    inputs = keras.Input((3,))
    model = fk.FastModel(inputs, keras.layers.Dense(1)(inputs))
    model.compile("sgd", "mse")
    timer = StepTimer(warmup_steps=5, window=5)
    start = time.perf_counter()
    model.fit(X, Y, 64, epochs=40, verbose=0, callbacks=[timer])
    wall = time.perf_counter() - start
    times = timer.times()
    # Half of them are at least as long as the median one.
    for part, steps in ((times.step, 5), (times.epoch_overhead, 1)):
        assert 0 < part.median * ((part.n + 1) // 2) * steps < wall
    assert 0 < times.overhead_share < 1


def test_it_reads_the_device_at_the_ends_of_its_windows_alone():
    clock = measure.ManualClock()
    model = timed(fk.FastModel, clock, perf=STREAM)
    reads = []

    class Counted(StepTimer):
        def _now(self, steps):
            reads.append(steps)
            return super()._now(steps)

    timer = Counted(warmup_steps=4, window=16, clock=clock)
    model.fit(X, Y, 1, epochs=2, verbose=0, callbacks=[timer])
    assert len(reads) <= 2 * 64 / 16 + 2 + 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("base", "options"),
    [
        (keras.Model, {}),
        (fk.FastModel, {"perf": fk.perf.Execution(steps_per_launch=1)}),
    ],
)
def test_the_rows_of_all_replicas_count(base, options, mirrored):
    with mirrored.scope():
        inputs = keras.Input((3,))
        model = base(inputs, keras.layers.Dense(1)(inputs))
        model.compile("sgd", "mse", **options)
    timer = StepTimer(warmup_steps=2, window=6)
    model.fit(X, Y, 16, epochs=3, verbose=0, callbacks=[timer])
    times = timer.times()
    # Of one window, the rate and the time are no medians.
    assert times.step.n == 1
    rows = times.samples_per_second * times.step.median
    assert rows == pytest.approx(16)


def test_arguments_are_checked_and_the_callback_copies():
    with pytest.raises(ValueError, match="`warmup_steps` must be >= 1"):
        StepTimer(0)
    with pytest.raises(TypeError, match="`window` must be an integer"):
        StepTimer(window=2.5)
    twin = copy.deepcopy(StepTimer(3, window=7))
    assert (twin.warmup_steps, twin.window) == (3, 7)
