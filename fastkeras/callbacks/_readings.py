"""What a RetraceMonitor has read of each runner, and what is new there."""

import dataclasses

from fastkeras.callbacks import _causes
from fastkeras.callbacks._traces import Weak
from fastkeras.callbacks._traces import is_intended
from fastkeras.callbacks._traces import keras_traces
from fastkeras.callbacks._traces import made_so_far
from fastkeras.callbacks._traces import new_entries
from fastkeras.engine._specs import SIZE

#: What a first batch is told of, if it has other rows than those of before.
_SIZES = (_causes.ROWS, _causes.LAST_BATCH)


@dataclasses.dataclass
class _Read:
    """A runner, and how many of its traces and calls were read."""

    runner: object
    rebuilt: bool
    count: int = 0
    calls: int = 0
    traces: dict = dataclasses.field(default_factory=dict)


class Readings:
    """Reads the traces of runners, each once.

    Args:
        is_built: Bool, whether the model had its variables before.
    """

    def __init__(self, is_built=False):
        self._is_built = is_built
        self._read = {}
        self._twice = {}

    @property
    def notes(self):
        """List of strings, on first calls that were traced twice."""
        return list(self._twice.values())

    def pass_over(self, name, runner):
        """Takes what a runner has traced so far for read, at first sight."""
        if name not in self._read:
            read = self._known(name, runner)
            read.count = made_so_far(runner)[1]
            read.calls = _calls_of(runner)
            read.traces = _traces_of(name, runner)

    def _known(self, name, runner):
        """What was read of a runner; callbacks may change between several."""
        known = self._read.setdefault(name, [])
        for read in known:
            if read.runner() is runner:
                return read
        # To make anew what was never traced costs nothing.
        rebuilt = any(read.count for read in known) and not is_intended(runner)
        known.append(_Read(Weak(runner), rebuilt))
        return known[-1]

    def new(self, name, runner, last, seconds, fresh=False):
        """What a runner has traced since it was read.

        Args:
            name: String, of the runner.
            runner: The runner.
            last: Bool, whether its last call was the last of an epoch.
            seconds: Float, of the call, where the runner does not know them.
            fresh: Bool, whether it is in a call of `fit` and the like that
                has just begun.

        Returns:
            Tuple of a list of (entry, cause, number of its call since it was
            read), and the number of calls since; 0 where it is not known.
        """
        read = self._known(name, runner)
        rebuilt = read.rebuilt and not read.count
        entries, start = self._entries(name, runner, read, seconds)
        calls, found = _calls_of(runner) - read.calls, []
        for k, entry in enumerate(entries[start:], start):
            if entry.traces > 1:
                self._twice[entry.function] = self._note(entry.function)
            call = entry.step - read.calls
            # A short batch is in the last call, if these are known at all.
            ends = last and entry.step in (0, read.calls + calls)
            cause = _cause(entry, entries[:k], ends)
            if cause == _causes.LAST_BATCH and not entry.old:
                entry = _compared(entry, entries[:k])
            if rebuilt and k == 0:
                cause = _causes.REBUILT
            if cause in _SIZES and fresh and call <= 1:
                cause = _causes.BATCH_SIZE
            if cause is not None:
                found.append((entry, cause, call))
        read.calls += calls
        return found, calls

    def _note(self, function):
        fix = _causes.FIXES[_causes.VARIABLES]
        return (
            f"{function} was traced twice at its first call: "
            f"{_causes.VARIABLES}. {_causes.BUILT if self._is_built else fix}"
        )

    def _entries(self, name, runner, read, seconds):
        """The entries of a runner, and how many of them were read."""
        count, read.count = read.count, made_so_far(runner)[1]
        if hasattr(runner, "ledger"):
            return runner.ledger.entries[: read.count], count
        if read.count == count:
            return [], 0
        before, read.traces = read.traces, _traces_of(name, runner)
        return new_entries(before, read.traces, seconds), 0


def _cause(entry, before, last):
    """The cause of an entry, or None for a first call that has none."""
    if entry.kind != "first":
        return _causes.cause(entry, last)
    if last and any(map(_of_rows, before)) and not _of_rows(entry):
        # That of a batch which the others' loop can't take.
        sizes = [leaf.shape for leaf in before[-1].new if leaf.path == SIZE]
        is_full = sizes and set(_rows(entry)) == set(sizes)
        return _causes.LAST_WINDOW if is_full else _causes.LAST_BATCH
    return None


def _rows(entry):
    """The rows of each part of a batch."""
    shapes = [leaf.shape for leaf in entry.new if isinstance(leaf.shape, tuple)]
    return [shape[0] for shape in shapes if shape]


def _compared(entry, before):
    """An entry of a batch on its own, beside the batches of a loop."""
    old = [leaf for leaf in before[-1].new if leaf.path == SIZE]
    rows = _rows(entry)
    if not old or not rows:
        return entry
    new = old[0]._replace(shape=min(rows, key=lambda n: n or 0))
    return dataclasses.replace(entry, old=(old[0],), new=(new,))


def _of_rows(entry):
    return "resident" in entry.function or "loop" in entry.function


def _calls_of(runner):
    return runner.ledger.calls if hasattr(runner, "ledger") else 0


def _traces_of(name, runner):
    return {} if hasattr(runner, "ledger") else keras_traces(name, runner)
