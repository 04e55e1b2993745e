"""A monotonic clock that a test can replace by one it moves by hand.

Whatever takes a time takes a `Clock`, so that every reported time can be
checked against times chosen by the test.

Example:

>>> clock = ManualClock(start=10.0)
>>> clock.advance(0.5)
>>> clock.now()
10.5
"""

import contextlib
import math
import time

from fastkeras._lib import checks


class Stopwatch:
    """What `Clock.stopwatch` hands out: reads on while it runs, then stands.

    Attributes:
        seconds: Float, the time since the start, or from start to stop.

    Example:

    >>> clock = ManualClock()
    >>> with clock.stopwatch() as watch:
    ...     clock.advance(1.0)
    ...     halfway = watch.seconds
    ...     clock.advance(1.0)
    >>> halfway, watch.seconds
    (1.0, 2.0)
    """

    def __init__(self, clock):
        self._clock = clock
        self._start = clock.now()
        self._stop = None

    @property
    def seconds(self):
        end = self._clock.now() if self._stop is None else self._stop
        return end - self._start

    def stop(self):
        """Stops the watch; a second stop changes nothing."""
        if self._stop is None:
            self._stop = self._clock.now()


class Clock:
    """Seconds that never go backwards, from an arbitrary start.

    An operation that returns before its work is done (a GPU kernel, a tensor
    still being computed) must be waited for inside the timed block: fetch a
    value with `.numpy()` before the block ends.

    Example:

    >>> with Clock().stopwatch() as watch:
    ...     total = sum(range(1000))
    >>> watch.seconds > 0
    True
    """

    def now(self):
        """Returns the time as a float, in seconds."""
        return time.perf_counter()

    @contextlib.contextmanager
    def stopwatch(self):
        """Times a `with` block, also one that ends with an exception.

        Returns:
            A context manager that gives a running `Stopwatch`.
        """
        watch = Stopwatch(self)
        try:
            yield watch
        finally:
            watch.stop()


class ManualClock(Clock):
    """A clock that stands still until it is told to move. For tests.

    Args:
        start: Float, the first reading in seconds. Defaults to `0.0`.

    Example:

    >>> clock = ManualClock()
    >>> clock.advance(2.5)
    >>> clock.now()
    2.5
    """

    def __init__(self, start=0.0):
        self._seconds = float(start)

    def now(self):
        return self._seconds

    def advance(self, seconds):
        """Moves the clock on.

        Args:
            seconds: Float >= 0.

        Raises:
            ValueError: If `seconds` is negative or not finite.
        """
        if not (math.isfinite(seconds) and seconds >= 0):
            raise ValueError(
                checks.message(
                    "`seconds` must be finite and >= 0",
                    f"seconds={seconds!r}",
                    "A monotonic clock only moves on; make a new ManualClock "
                    "to start earlier.",
                )
            )
        self._seconds += seconds
