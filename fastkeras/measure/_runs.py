"""Short trainings with a clock at their epochs, traced at the beginning."""

import itertools
import statistics

import keras
import tensorflow as tf

from fastkeras._lib import checks
from fastkeras._lib import private_measure
from fastkeras.measure import _xplane
from fastkeras.measure._state import whole
from fastkeras.measure.stats import summarize

#: Batches that are trained before any counts.
WARM_UP = 10
#: What is compared runs in so many turns: a machine that is slow for a while
#: is so for all.
TURNS = 3
# Batches that are timed at the least: fewer have no spread.
_BATCHES = 20
# Batches that are traced at the most, and until when: TensorFlow leaves a cheap
# operation out of a trace once it has run about 90 times.
_TRACED, _UNTIL = 60, 85
# Stretches of an epoch that are timed apart, and the batches one must hold:
# pipelines give batches several at a time.
_STRETCHES, _LEAST = 5, 6


def ends(count):
    """The batches of an epoch after which a stretch of it ends.

    Args:
        count: Integer, batches in an epoch.

    Example:

    >>> ends(20)
    [6, 12, 20]
    """
    length = max(_LEAST, count // _STRETCHES)
    return [*range(length, count - length + 1, length), count]


def _pieces(mark, batches, calls):
    """A launch in its steps, if its function was called for each of them."""
    if not batches:
        return []
    start, end = mark
    inside = [call for call in calls if start <= call < end]
    if len(inside) != batches:
        return [(start, end, batches)]
    edges = itertools.pairwise([start, *inside[1:], end])
    return [(a, b, 1) for a, b in edges]


def once(what):
    """The message for data that can be gone through only once.

    Args:
        what: String, what was received.
    """
    return checks.message(
        "`data` must be such that it can be gone through again",
        what,
        "A generator would lose the batches that the profile takes: give "
        "arrays, a Dataset or a PyDataset.",
    )


class Runs(keras.callbacks.Callback):
    """Times the epochs of fits after a warm-up, and traces some before.

    The device is waited for at the ends of the stretches of an epoch alone.
    What the first launch of an epoch takes longer than the others, as its data
    have yet to begin, is time of the epoch, where at least as much follows.

    Args:
        count: Integer, batches in an epoch.
        epochs: Integer, epochs to time in all turns, or more.
        clock: `Clock`.
        folder: String, where the trace goes, or None for no trace.

    Attributes:
        launches: List of integers, the launches of each epoch.
        marked: List of lists, of each launch traced: its epoch, and the first
            batch and the one after its last; the same where it found no data.
        traced: Integer, the batches traced.
    """

    #: The engine may run many steps between two calls of the hooks.
    per_launch = True

    def __init__(self, count, epochs, clock, folder=None):
        super().__init__()
        self.launches, self.marked, self.traced = [], [], 0
        self._count = count
        self._ends = ends(count)
        self._timed = -(-max(-(-_BATCHES // count), epochs) // TURNS)
        self._wanted = min(count * epochs, _TRACED) if folder else 0
        first = -(-WARM_UP // count)
        self._warm = first + -(-self._wanted // count)
        # At the start of an epoch, if that is not too late.
        whole_epochs = first * count
        is_early = whole_epochs + self._wanted <= _UNTIL
        self._traces_from = whole_epochs if is_early else WARM_UP
        self._clock = clock
        self._folder = folder
        self._walls, self._steps, self._stretches = [], [], []
        self._tracing = False
        self._mark = None

    def fit(self, model, **data):
        """Trains the model on the data: a turn, the first with a warm-up."""
        begun = len(self.launches)
        epochs = self._timed + (0 if begun else self._warm)
        try:
            model.fit(**data, epochs=epochs, verbose=0, callbacks=[self])
        finally:
            whole(lambda: self._stop_trace(save=False))
        if len(self.launches) < begun + epochs or not all(self.launches):
            raise TypeError(once(f"{epochs} passes, of which one was empty"))

    # What was measured.

    @property
    def step(self):
        """`Summary` of the seconds of a batch, over the stretches timed."""
        return summarize(itertools.chain(*self._stretches[self._warm :]))

    @property
    def turns(self):
        """List of floats, the median seconds of a batch in each turn."""
        timed = self._stretches[self._warm :]
        return [
            statistics.median(itertools.chain(*timed[k : k + self._timed]))
            for k in range(0, len(timed), self._timed)
        ]

    @property
    def beside(self):
        """`Summary` of the seconds of an epoch beside its batches."""
        pairs = zip(self._walls, self._steps, strict=True)
        return summarize([wall - steps for wall, steps in pairs][self._warm :])

    @property
    def batches_per_launch(self):
        """Batches in a launch, over the epochs timed."""
        timed = self.launches[self._warm :]
        return self._count * len(timed) / sum(timed)

    def windows(self, marks, calls):
        """The stretches traced, what is between their launches with them.

        Args:
            marks: List of start and end of each launch traced.
            calls: List of the moments a compiled function was called.

        Returns:
            List of tuples of start, end and batches.
        """
        found, last, begins = [], None, True
        for launch, mark in zip(self.marked, marks, strict=True):
            epoch, first, done = launch
            for start, end, size in _pieces(mark, done - first, calls):
                if epoch == last:
                    # Up to where the next begins.
                    found[-1][1] = start
                if epoch != last or begins:
                    found.append([start, end, 0])
                found[-1][1:] = end, found[-1][2] + size
                begins = any(first < e <= first + size for e in self._ends)
                first, last = first + size, epoch
        return list(map(tuple, found))

    # Keras's hooks.

    def on_train_begin(self, logs=None):
        self._begin = None

    def on_epoch_begin(self, epoch, logs=None):
        if len(self.launches) == self._warm:
            self._stop_trace(save=True)
        self._end_epoch()
        self.launches.append(0)
        self._stretches.append([])
        self._first = self._done = self._left_out = 0
        self._start = None

    def on_train_batch_begin(self, batch, logs=None):
        before = self._count * (len(self.launches) - 1) + self._done
        if self.traced < self._wanted and before >= self._traces_from:
            self._start_trace()
        if self._start is None:
            self._begun = self._timed_from = self._start = self._clock.now()
        if self._tracing:
            self.marked.append([len(self.launches), self._done, self._done])
            # Without `_r` no tool can tell the time of a step.
            self._mark = tf.profiler.experimental.Trace(
                _xplane.MARK, step_num=batch, _r=1
            )
            self._mark.__enter__()

    def on_train_batch_end(self, batch, logs=None):
        self.launches[-1] += 1
        before = self._done
        # Keras counts the last launch as if it were full.
        self._done = min(batch + 1, self._count)
        if not before and 2 * self._done <= self._count:
            # The first batch also waits until the pipeline has begun.
            self._start = self._timed_from = self._now()
            self._first = self._left_out = self._done
        elif any(self._first < end <= self._done for end in self._ends):
            self._end_stretch()
        self._end_mark()
        if self._tracing:
            self.marked[-1][2] = self._done
            self.traced += self._done - before
            if self.traced >= self._wanted:
                self._stop_trace(save=True)

    def on_epoch_end(self, epoch, logs=None):
        self._end_mark()
        # Data of random length may end before they did the first time.
        if self._left_out == self._done:
            self._start = self._timed_from = self._begun
            self._first = self._left_out = 0
        if self._first < self._done:
            self._end_stretch()
        share = (self._done - self._left_out) / self._done
        self._steps.append((self._start - self._timed_from) / share)

    def on_train_end(self, logs=None):
        self._end_epoch()

    def _end_epoch(self):
        """Ends one with what comes after its hooks, and begins another."""
        now = self._clock.now()
        if self._begin is not None:
            self._walls.append(now - self._begin)
        self._begin = now

    def _end_stretch(self):
        now, batches = self._now(), self._done - self._first
        self._stretches[-1].append((now - self._start) / batches)
        self._start, self._first = now, self._done

    def _now(self):
        """The moment at which the device is done."""
        if self.model.optimizer is not None:
            self.model.optimizer.iterations.numpy()
        return self._clock.now()

    def _end_mark(self):
        if self._mark is not None:
            self._mark.__exit__(None, None, None)
            self._mark = None

    def _stop_trace(self, save):
        self._end_mark()
        if self._tracing and private_measure.is_profiled():
            tf.profiler.experimental.stop(save)
        self._tracing = False

    def _start_trace(self):
        if self._tracing:
            return
        # The default levels, without Python's calls: given as options they are
        # not taken, and TensorFlow prints a warning for each.
        # Said before it is true: an interrupt may fall in between.
        self._tracing = True
        try:
            tf.profiler.experimental.start(self._folder)
        except tf.errors.AlreadyExistsError:
            self._tracing = False
            raise ValueError(
                checks.message(
                    "`profile` must be the only profiler that runs",
                    "a profiler that is running",
                    "Stop it first: tf.profiler.experimental.stop().",
                )
            ) from None
