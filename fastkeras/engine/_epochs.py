"""Where the time of an epoch went: steps, input, validation, the rest."""

import collections
import contextlib
import time
from typing import NamedTuple

from fastkeras.measure import stats

#: Epochs that are kept.
_KEPT = 64
#: From this share of an epoch on, what is beside its one step is spoken of.
_MUCH = 0.3
#: Seconds that the clock reads where nothing happened.
_NOTHING = 1e-5


class Epoch(NamedTuple):
    """Seconds of one epoch.

    Attributes:
        total: Float.
        steps: Float, spent in launches.
        wait: Float, spent waiting for batches.
        validation: Float.
        batches: Integer.
    """

    total: float
    steps: float
    wait: float
    validation: float
    batches: int

    @property
    def overhead(self):
        """Seconds outside of all that: callbacks, logs, the epoch's start."""
        return self.total - self.steps - self.wait - self.validation


class EpochTimes:
    """Adds up the parts of each epoch of a `fit`.

    Args:
        feed: The feed, which knows how long it was waited for.

    Attributes:
        ahead: Integer, the most batches that the launch to come may hold.
    """

    def __init__(self, feed):
        self._wait = feed.wait
        self._spans = collections.Counter()
        self.batches = 0
        self.ahead = 1
        self.epochs = collections.deque(maxlen=_KEPT)

    @contextlib.contextmanager
    def epoch(self):
        """Measures one epoch."""
        self._spans.clear()
        self.batches = 0
        start, waited = time.perf_counter(), self._wait.seconds
        yield
        self.epochs.append(
            Epoch(
                total=time.perf_counter() - start,
                steps=self._spans["steps"],
                wait=self._wait.seconds - waited,
                validation=self._spans["validation"],
                batches=self.batches,
            )
        )

    @contextlib.contextmanager
    def span(self, name):
        """Measures a part of an epoch, without the waits for batches in it."""
        start, waited = time.perf_counter(), self._wait.seconds
        yield
        waited = self._wait.seconds - waited
        self._spans[name] += time.perf_counter() - start - waited

    def describe(self):
        """The medians of what took time, without the first epoch, as text."""
        warm = list(self.epochs)[1:]
        if not warm:
            return "no figure: the first epoch is warm-up; train for a second"
        figures = {}
        for name in ("total", "steps", "wait", "validation", "overhead"):
            seconds = [getattr(e, name) for e in warm]
            if name == "validation":
                # `validation_freq` leaves some epochs without any.
                seconds = [s for s in seconds if s > _NOTHING]
            if max(seconds, default=0) > _NOTHING:
                figures[name] = str(stats.summarize(seconds))
        shares = [e.overhead / e.total for e in warm]
        if warm[-1].batches == 1 and stats.summarize(shares).median > _MUCH:
            figures["advice"] = (
                "an epoch is one step, and most of its time is beside that "
                "step: repeat the data, so that an epoch holds more of them"
            )
        return figures
