"""A retrace, as RetraceMonitor tells it."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Retrace:
    """One trace, or one compilation by XLA, that came on top of the first.

    Attributes:
        function: String, the function and its tier.
        kind: `"trace"` or `"compile"`.
        changes: Tuple of strings, `"x: old -> new"`.
        epoch: Integer, counted from 0.
        batch: Integer, batches of the epoch done by then, this one included.
        seconds: Float, of the call in which it happened.
        cause: String, one of the known causes.
        fix: String, what to do about that cause.
        where: String, the epoch and the batch as `fit` prints them, or the
            method that was called instead of `fit`.
        compiled: Bool, whether XLA compiled it.
    """

    function: str
    kind: str
    changes: tuple
    epoch: int
    batch: int
    seconds: float
    cause: str
    fix: str
    where: str
    compiled: bool

    def __str__(self):
        what = "traced" if self.kind == "trace" else "compiled by XLA"
        if self.kind == "trace" and self.compiled:
            what = "traced and compiled by XLA"
        changes = "; ".join(self.changes)
        return (
            f"{self.function} was {what} again: {self.cause}"
            + (f" ({changes})" if changes else "")
            + f". {self.where}"
            + (f"; {self.seconds:.2f} s lost" if self.seconds else "")
            + f". {self.fix}"
        )


def batches(first, last):
    """The batches of a call, counted from 1, in words."""
    if first >= last:
        return f"batch {last}"
    return f"one of the batches {first} to {last}"
