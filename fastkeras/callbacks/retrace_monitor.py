"""RetraceMonitor: what was traced or compiled again, why, and the fix."""

import dataclasses

from fastkeras._lib import checks
from fastkeras._lib.warn import warn
from fastkeras.callbacks import _causes
from fastkeras.callbacks._monitor import Monitor
from fastkeras.callbacks._monitor import check_count
from fastkeras.callbacks._traces import Weak
from fastkeras.callbacks._traces import is_intended
from fastkeras.callbacks._traces import keras_traces
from fastkeras.callbacks._traces import made_so_far
from fastkeras.callbacks._traces import new_entries
from fastkeras.callbacks._traces import trace_counts

_RUNNERS = ("train_function", "test_function")
_BLIND = (
    "XLA compiles a keras.Model once for each new shape without a trace, so "
    "RetraceMonitor can't count these. Make it a FastModel "
    "(`FastModel.from_keras(model)`), which keeps account of them."
)


@dataclasses.dataclass(frozen=True)
class Retrace:
    """One trace, or one compilation by XLA, that came on top of the first.

    Attributes:
        function: String, the function and its tier.
        kind: `"trace"` or `"compile"`.
        changes: Tuple of strings, `"data[0]: old -> new"`.
        epoch: Integer, counted from 0.
        batch: Integer, batches of the epoch done when it was seen.
        seconds: Float, of the call in which it happened; 0 for a
            `keras.Model`, where it is not known.
        cause: String, one of the known causes.
        fix: String, what to do about that cause.
    """

    function: str
    kind: str
    changes: tuple
    epoch: int
    batch: int
    seconds: float
    cause: str
    fix: str

    def __str__(self):
        what = "traced" if self.kind == "trace" else "compiled by XLA"
        if self.kind == "trace" and "xla" in self.function:
            what = "traced and compiled by XLA"
        changes = "; ".join(self.changes)
        return (
            f"{self.function} was {what} again: {self.cause}"
            + (f" ({changes})" if changes else "")
            + f". Epoch {self.epoch}, by batch {self.batch}"
            + (f"; {self.seconds:.2f} s lost" if self.seconds else "")
            + f". {self.fix}"
        )


@dataclasses.dataclass
class _Read:
    """A runner, and how many of its traces were read."""

    runner: object
    count: int
    rebuilt: bool
    traces: dict = dataclasses.field(default_factory=dict)


class RetraceMonitor(Monitor):
    """Tells what was traced or compiled again, why, and what to do.

    It counts by function, not by source line: fresh models that are each
    traced once have no retrace. A first call that makes variables is traced
    twice by TensorFlow; that is no retrace either, nor is a step that JitToggle
    or HealthMonitor makes anew. XLA compiles once for each new shape, without
    any new trace; these are counted too. For a `keras.Model` the causes are
    told from what its functions were traced for, where an open dimension is
    None; the seconds lost and the compilations can't be known.

    Args:
        action: `"warn"`, `"raise"` (a RuntimeError) or `"ignore"`. Defaults
            to `"warn"`; the same cause is told at its 1st, 2nd, 4th, 8th
            time.
        limit: Integer >= 0, the number of retraces and compilations after
            which `action` is taken. Defaults to `0`: at the first.

    Attributes:
        events: List of `Retrace`, in the order in which they were seen.

    Raises:
        TypeError: If `limit` is not an integer.
        ValueError: If `action` is unknown or `limit` is negative.

    Example:

    >>> import keras, numpy as np
    >>> from fastkeras import FastModel
    >>> inputs = keras.Input((2,))
    >>> model = FastModel(inputs, keras.layers.Dense(1)(inputs))
    >>> model.compile("sgd", "mse")
    >>> monitor = RetraceMonitor("ignore")
    >>> x = np.ones((10, 2))
    >>> _ = model.fit(x, x[:, 0], 4, verbose=0, callbacks=[monitor])
    >>> [event.cause for event in monitor.events]
    ['the last batch is smaller']

    Reference: https://www.tensorflow.org/guide/function#controlling_retracing
    """

    def __init__(self, action="warn", limit=0):
        super().__init__()
        checks.one_of(action, "action", ("warn", "raise", "ignore"))
        check_count(limit, "limit", "Give 0 to act at the first.")
        self.action = action
        self.limit = limit
        self._begin_anew()

    def _begin_anew(self):
        self._blind = set()
        self.events = []
        self._read = {}
        self._told = {}
        self._epoch = 0

    @property
    def retraces(self):
        """Number of traces that came on top of the first."""
        return sum(e.kind == "trace" for e in self.events)

    @property
    def compiles(self):
        """Number of compilations by XLA so far: one for each shape."""
        return sum(
            runner.ledger.compiles
            for runner in (getattr(self.model, n, None) for n in _RUNNERS)
            if hasattr(runner, "ledger")
        )

    def traces(self):
        """Dict of function to its number of traces so far."""
        found = {}
        for name in _RUNNERS:
            runner = getattr(self.model, name, None)
            found.update(trace_counts(name, runner))
        return found

    def __str__(self):
        head = f"{self.retraces} retrace(s), {self.compiles} compilation(s)"
        return "\n".join([head, *map(str, self.events)])

    def scalars(self):
        return {
            "retraces": float(self.retraces),
            "xla_compiles": float(self.compiles),
            "traces": float(sum(self.traces().values())),
        }

    # Hooks.

    def set_model(self, model):
        if model is not self.model:
            self._begin_anew()
        super().set_model(model)

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        for name in _RUNNERS:
            runner = getattr(self.model, name)
            if runner is not None and name not in self._read:
                # What earlier trainings traced is no affair of this one.
                read = self._known(name, runner)
                read.count = made_so_far(runner)[1]
                read.traces = _traces_of(name, runner)
        self._tell_of_blindness()

    def on_epoch_begin(self, epoch, logs=None):
        super().on_epoch_begin(epoch, logs)
        self._epoch = epoch

    def before_launch(self):
        self._look("train_function")

    def after_batches(self):
        self._look("train_function", last=True)

    def after_epoch(self, epoch, logs):
        self._look("test_function", last=True)

    def _tell_of_blindness(self):
        model = self.model
        if self.action != "ignore" and model.jit_compile is True:
            if not hasattr(model, "perf_report"):
                warn(_BLIND, told=self._blind)

    # Reading.

    def _known(self, name, runner):
        """What was read of a runner; callbacks may change between several."""
        known = self._read.setdefault(name, [])
        for read in known:
            if read.runner() is runner:
                return read
        # To make anew what was never traced costs nothing.
        rebuilt = any(read.count for read in known) and not is_intended(runner)
        known.append(_Read(Weak(runner), 0, rebuilt))
        return known[-1]

    def _look(self, name, last=False):
        runner = getattr(self.model, name)
        if runner is None:
            return
        read = self._known(name, runner)
        count, rebuilt = read.count, read.rebuilt and not read.count
        read.count = made_so_far(runner)[1]
        if hasattr(runner, "ledger"):
            self._read_ledger(runner.ledger.entries, count, rebuilt, last)
            return
        before, read.traces = read.traces, _traces_of(name, runner)
        if rebuilt and read.count:
            self._add(name, "trace", (), 0.0, _causes.REBUILT)
        # What the first call traced is its own affair: see the docstring.
        if count:
            for entry in new_entries(before, read.traces):
                self._add_entry(entry, _causes.cause(entry, last))

    def _read_ledger(self, entries, count, rebuilt, last):
        for k, entry in enumerate(entries[count:], count):
            cause = None
            if entry.kind != "first":
                cause = _causes.cause(entry, last)
            elif rebuilt and k == 0:
                cause = _causes.REBUILT
            elif last and _is_partial(entry, entries[:k]):
                cause = _causes.LAST_BATCH
            if cause is not None:
                self._add_entry(entry, cause)

    def _add_entry(self, entry, cause):
        kind = "compile" if entry.kind == "compile" else "trace"
        changes = tuple(
            f"{new.path}: {old} -> {new}" for old, new in entry.changes
        )
        self._add(entry.function, kind, changes, entry.seconds, cause)

    def _add(self, function, kind, changes, seconds, cause):
        event = Retrace(
            function,
            kind,
            changes,
            self._epoch,
            max(self.done, self._ended),
            seconds,
            cause,
            _causes.FIXES[cause],
        )
        self.events.append(event)
        if len(self.events) <= self.limit:
            return
        if self.action == "raise":
            raise RuntimeError(str(event))
        times = self._told[function, cause] = (
            self._told.get((function, cause), 0) + 1
        )
        if self.action == "warn" and times & (times - 1) == 0:
            again = f" (Time {times} of its kind.)" if times > 1 else ""
            warn(f"{event}{again}")


def _is_partial(entry, before):
    """Whether a first call was that of a batch the others' loop can't take."""
    return any(map(_of_rows, before)) and not _of_rows(entry)


def _of_rows(entry):
    return "resident" in entry.function or "loop" in entry.function


def _traces_of(name, runner):
    return {} if hasattr(runner, "ledger") else keras_traces(name, runner)
