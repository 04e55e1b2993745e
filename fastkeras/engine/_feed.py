"""What the two feeds have in common."""

import time


class Wait:
    """Adds up the seconds in its `with` blocks.

    Attributes:
        seconds: Float, the sum so far.
    """

    def __init__(self):
        self.seconds = 0.0

    def __enter__(self):
        self._start = time.perf_counter()

    def __exit__(self, *error):
        self.seconds += time.perf_counter() - self._start


class Feed:
    """Batches of an epoch, handed out launch by launch.

    Attributes:
        name: String, `"resident"` or `"stream"`.
        steps: Integer, the batches in an epoch that were asked for, or None
            for all.
        length: Integer, the batches the data holds, or None while that is not
            known.
        left: Integer, the batches left in this epoch, or None.
        is_spent: True if the data can be gone through only once, and was.
        wait: `Wait`, the time spent on waiting for batches.
        is_kept: Bool, whether a callback keeps the position.
    """

    name = None
    is_spent = False
    is_kept = False

    def __init__(self, length, steps):
        self.length = length
        self.steps = steps
        self.left = 0
        self.wait = Wait()

    @property
    def num_batches(self):
        """Batches in an epoch, or None while that is not known."""
        return self.steps or self.length

    def end(self):
        """Ends an epoch, also one that was cut short."""
