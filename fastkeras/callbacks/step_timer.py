"""StepTimer: the time of a step after warm-up, and what is beside it."""

import collections
import dataclasses
from typing import NamedTuple

from fastkeras._lib import checks
from fastkeras.callbacks._monitor import Monitor
from fastkeras.callbacks._monitor import synchronise
from fastkeras.callbacks._step_times import StepTimes
from fastkeras.callbacks._traces import made_so_far
from fastkeras.measure import Clock
from fastkeras.measure import summarize

#: Steps between two synchronisations where nothing else is asked for.
WINDOW = 20
#: Windows, epochs and validations that are kept.
KEPT = 1000


class _Amount(NamedTuple):
    """A moment, or what is between two."""

    seconds: float = 0.0
    steps: int = 0
    rows: float = 0.0
    wait: float = 0.0


@dataclasses.dataclass
class _Epoch:
    """An epoch under way: what of it was not overhead, so far."""

    begin: float
    wait: float
    is_cold: bool
    inside: float = 0.0
    first: float | None = None


class StepTimer(Monitor):
    """Times the steps of a training once they are warm.

    Nothing that was traced or compiled enters a figure: each trace begins the
    warm-up anew. It waits for the device at the ends of its windows alone, so
    a step counts with all that belongs to it: input, callbacks, work that
    runs after Python has gone on. With several steps in a launch a window ends
    with the launch that fills it.

    Args:
        warmup_steps: Integer >= 1, the steps to leave out. Defaults to `10`.
        window: Integer >= 1, the steps between two synchronisations, one
            value of the median. Defaults to `None`: 20.
        clock: `fastkeras.measure.Clock`. Defaults to `None`: the real one.

    Raises:
        TypeError: If a number of steps is not an integer.
        ValueError: If it is < 1.

    Example:

    >>> import keras, numpy as np
    >>> model = keras.Sequential([keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse")
    >>> timer = StepTimer(warmup_steps=10)
    >>> x = np.ones((8, 2))
    >>> _ = model.fit(x, x[:, 0], 1, verbose=0, callbacks=[timer])
    >>> print(timer.times())
    no figure: 3 step(s) short of 10 of warm-up since the last trace. Train \
for longer.
    """

    def __init__(self, warmup_steps=10, window=None, clock=None):
        super().__init__()
        fix = "Leave it out for the default."
        checks.positive_int(warmup_steps, "warmup_steps", fix)
        if window is not None:
            checks.positive_int(window, "window", fix)
        self.warmup_steps = warmup_steps
        self.window = window or WINDOW
        self.clock = clock or Clock()
        self._begin_anew()

    def _begin_anew(self):
        self._windows = collections.deque(maxlen=KEPT)
        self._overheads = collections.deque(maxlen=KEPT)
        self._validations = collections.deque(maxlen=KEPT)
        self._made = None
        self._cold = self.warmup_steps
        self._mark = None
        self._last = None
        self._window = _Amount()
        self._epoch = None
        self._per_epoch = 0

    def times(self):
        """The figures so far, as `StepTimes`."""
        windows = self._windows
        steps = [w.seconds / w.steps for w in windows]
        rates = [w.rows / w.seconds for w in windows if w.seconds]
        waits = [w.wait / w.steps for w in windows]
        return StepTimes(
            summarize(steps) if steps else None,
            (summarize(rates).median or None) if rates else None,
            summarize(waits) if waits and self._sees_wait else None,
            summarize(self._overheads) if self._overheads else None,
            summarize(self._validations) if self._validations else None,
            self._per_epoch,
            "" if steps else self._reason(),
        )

    def __str__(self):
        return str(self.times())

    def _reason(self):
        if self._cold > 0:
            return (
                f"{self._cold} step(s) short of {self.warmup_steps} of warm-up"
                " since the last trace. Train for longer."
            )
        return (
            f"{self._window.steps} step(s) after warm-up, and a window takes "
            f"{self.window}. Train for longer or give a smaller `window`."
        )

    def scalars(self):
        times = self.times()
        found = {
            "step_ms": times.step and times.step.median * 1e3,
            "steps_per_second": times.step and 1 / times.step.median,
            "samples_per_second": times.samples_per_second,
            "input_wait_ms": times.input_wait and times.input_wait.median * 1e3,
            "epoch_overhead_ms": times.epoch_overhead
            and times.epoch_overhead.median * 1e3,
            "validation_ms": times.validation and times.validation.median * 1e3,
        }
        return {k: float(v) for k, v in found.items() if v is not None}

    # Hooks.

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        self._begin_anew()
        self._made = made_so_far(self.model.train_function)
        self._sees_wait = self._wait() is not None

    def on_epoch_begin(self, epoch, logs=None):
        super().on_epoch_begin(epoch, logs)
        now = self.clock.now()
        self._close_epoch(now)
        self._epoch = _Epoch(now, self._wait() or 0.0, self._cold > 0)
        self._mark = None

    def before_launch(self):
        if self._mark is None:
            # The wait for the first batch is over already.
            epoch, wait = self._epoch, self._wait() or 0.0
            epoch.first = self.clock.now() - (wait - epoch.wait)
            self._mark = _Amount(epoch.first, wait=epoch.wait)
            self._last = self._mark
            return
        # That of no batch, if it turns out that the data has ended.
        self._last = self._moment(self.done)
        steps = self.done - self._mark.steps
        if self._cold:
            self._warm_up(steps)
            self._mark = self._mark._replace(steps=self.done)
            if not self._cold:
                self._mark = self._now(self.done)
        elif self._window.steps + steps >= self.window:
            self._fill(self._now(self.done))

    def on_train_batch_end(self, batch, logs=None):
        super().on_train_batch_end(batch, logs)
        self._last = self._moment(batch + 1)

    def after_batches(self):
        if self._mark is None:
            # The data is spent: an epoch without a batch.
            return
        asked = self.clock.now()
        self._end = self._now(0)
        self._pending = self._end.seconds - asked

    def after_epoch(self, epoch, logs):
        if self._mark is None:
            return
        # What is between the last step and here belongs to no step, but for
        # what the device still had to do.
        seconds, _, _, wait = self._last
        seconds += self._pending
        self._epoch.inside += seconds - self._epoch.first
        steps = self.done - self._mark.steps
        if self._cold:
            self._warm_up(steps)
        elif steps:
            rows = self._end.rows
            self._fill(_Amount(seconds, self.done, rows, wait))
        self._per_epoch = self.done

    def on_test_begin(self, logs=None):
        super().on_test_begin(logs)
        self._test = self.clock.now(), made_so_far(self.model.test_function)

    def on_test_end(self, logs=None):
        begin, made = self._test
        seconds = self.clock.now() - begin
        if self._epoch is not None:
            self._epoch.inside += seconds
            if made_so_far(self.model.test_function) == made:
                self._validations.append(seconds)

    def on_train_end(self, logs=None):
        self._close_epoch(self.clock.now())

    # Windows.

    def _moment(self, steps):
        return _Amount(self.clock.now(), steps, wait=self._wait() or 0.0)

    def _now(self, steps):
        """Waits for the device; then the moment, and what is done by then."""
        synchronise(self.model)
        moment, rows = self._moment(steps), 0.0
        for metric in self.model.metrics:
            # Keras weighs the loss of a batch by its rows.
            if metric.name == "loss" and hasattr(metric, "count"):
                # Of several replicas, it is the sum of theirs.
                rows = float(metric.count.numpy())
        return moment._replace(rows=rows)

    def _warm_up(self, steps):
        if self._is_new():
            self._cold = self.warmup_steps
        else:
            self._cold = max(0, self._cold - steps)

    def _fill(self, now):
        """Adds what was done since the mark to the open window."""
        parts = zip(self._window, now, self._mark, strict=True)
        self._window = _Amount(*(w + b - a for w, b, a in parts))
        self._mark = now
        if self._is_new():
            self._cold = self.warmup_steps
            self._window = _Amount()
        elif self._window.steps >= self.window:
            self._windows.append(self._window)
            self._window = _Amount()

    def _is_new(self):
        """Whether anything was traced or compiled since this was asked."""
        before, self._made = self._made, made_so_far(self.model.train_function)
        if self._made != before:
            self._epoch.is_cold = True
        return self._made != before

    def _close_epoch(self, now):
        epoch, self._epoch = self._epoch, None
        if epoch is not None and not epoch.is_cold:
            self._overheads.append(now - epoch.begin - epoch.inside)

    def _wait(self):
        """Seconds of waiting for data so far; None under Keras's own `fit`."""
        wait = (self.params or {}).get("input_wait")
        return None if wait is None else wait.seconds
