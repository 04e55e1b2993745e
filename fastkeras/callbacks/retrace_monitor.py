"""RetraceMonitor: what was traced or compiled again, why, and the fix."""

from fastkeras._lib import checks
from fastkeras._lib.warn import warn
from fastkeras.callbacks import _causes
from fastkeras.callbacks._monitor import Monitor
from fastkeras.callbacks._monitor import check_count
from fastkeras.callbacks._readings import Readings
from fastkeras.callbacks._retrace import Retrace
from fastkeras.callbacks._retrace import batches
from fastkeras.callbacks._traces import trace_counts
from fastkeras.measure import Clock

_RUNNERS = {
    "train_function": "train_on_batch",
    "test_function": "evaluate or test_on_batch",
    "predictor": "predict",
    "predict_function": "predict or predict_on_batch",
}
_BLIND = (
    "XLA compiles a keras.Model once for each new shape without a trace, so "
    "RetraceMonitor can't count these. Make it a FastModel "
    "(`FastModel.from_keras(model)`), which keeps account of them."
)


class RetraceMonitor(Monitor):
    """Tells what was traced or compiled again, why, and what to do.

    It counts by function, not by source line: fresh models that are each
    traced once have no retrace. A first call that makes variables is traced
    twice by TensorFlow; that is no retrace either (`print(monitor)` tells of
    it), nor is a step that JitToggle or HealthMonitor makes anew. XLA compiles
    once for each new shape, without any new trace; these are counted too, but
    for those of `predict_on_batch`. For a `keras.Model` the causes are told
    from what its functions were traced for, where an open dimension is None,
    and the compilations can't be known.

    Give it to `fit`, `evaluate` or `predict`. For a loop of your own over
    `train_on_batch` and the like, call `set_model(model)` before it; what was
    traced since is looked up where the monitor is read, and then `action` is
    not taken.

    Args:
        action: `"warn"`, `"raise"` (a RuntimeError) or `"ignore"`. Defaults
            to `"warn"`; the same cause is told at its 1st, 2nd, 4th, 8th
            time.
        limit: Integer >= 0, the number of retraces and compilations after
            which `action` is taken. Defaults to `0`: at the first.

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
        self._clock = Clock()
        self._begin_anew()

    def _begin_anew(self):
        self._blind = set()
        self._events = []
        self._readings = Readings()
        self._told = {}
        self._fresh = set()
        self._epoch = 0
        self._in_fit = False
        self._last = 0
        self._since = None

    @property
    def events(self):
        """List of `Retrace`, in the order in which they were seen."""
        self._look_between()
        return self._events

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
        return "\n".join([head, *map(str, self.events), *self._readings.notes])

    def scalars(self):
        return {
            "retraces": float(self.retraces),
            "xla_compiles": float(self.compiles),
            "traces": float(sum(self.traces().values())),
        }

    # Hooks.

    def set_model(self, model):
        is_new = model is not self.model
        if is_new:
            self._begin_anew()
            self._readings = Readings(model.built)
        super().set_model(model)
        if is_new:
            self._pass_over()

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        self._in_fit = True
        self._fresh.add("train_function")
        self._pass_over()
        self._tell_of_blindness()

    def on_epoch_begin(self, epoch, logs=None):
        super().on_epoch_begin(epoch, logs)
        self._epoch = epoch
        self._last = 0

    def before_launch(self):
        self._look("train_function", self.done)

    def after_batches(self):
        self._look("train_function", self._ended(), last=True)

    def on_test_begin(self, logs=None):
        super().on_test_begin(logs)
        self._fresh.add("test_function")
        self._last = self._tested = 0

    def on_test_batch_begin(self, batch, logs=None):
        self._look("test_function", batch)

    def on_test_batch_end(self, batch, logs=None):
        self._tested = max(self._tested, batch + 1)

    def on_test_end(self, logs=None):
        self._look("test_function", self._tested, last=True)

    def on_predict_begin(self, logs=None):
        self._last = 0
        self._since = self._clock.now()

    def on_predict_end(self, logs=None):
        ours = hasattr(self.model, "predictor") and self.model.predictor
        self._look("predictor" if ours else "predict_function", 0, last=True)

    def on_train_end(self, logs=None):
        self._in_fit = False

    def _look_between(self):
        """Looks up what was traced outside `fit`, without any action."""
        if self._in_fit or self.model is None:
            return
        self._last, self._since = 0, None
        for name in _RUNNERS:
            self._events += self._new(name, 0)

    def _tell_of_blindness(self):
        model = self.model
        if self.action != "ignore" and model.jit_compile is True:
            if not hasattr(model, "perf_report"):
                warn(_BLIND, told=self._blind)

    # Reading.

    def _pass_over(self):
        """What was traced before is no affair of this monitor."""
        for name in _RUNNERS:
            runner = getattr(self.model, name, None)
            if runner is not None:
                self._readings.pass_over(name, runner)

    def _look(self, name, done, last=False):
        """Reads what a runner has traced since the last look.

        Args:
            name: String, of the runner.
            done: Integer, batches of this epoch that are done.
            last: Bool, whether the epoch has no more.
        """
        for event in self._new(name, done, last):
            self._events.append(event)
            self._act(event)
        self._last = done
        self._since = self._clock.now()

    def _new(self, name, done, last=False):
        """List of a `Retrace` for each new entry of a runner."""
        runner = getattr(self.model, name, None)
        if runner is None:
            return []
        seconds = 0.0
        if self._since is not None:
            seconds = self._clock.now() - self._since
        fresh = name in self._fresh
        found, calls = self._readings.new(name, runner, last, seconds, fresh)
        if done:
            self._fresh.discard(name)
        each = calls == done - self._last
        return [self._event(name, *f, done, each) for f in found]

    def _event(self, name, entry, cause, call, done, each):
        kind = "compile" if entry.kind == "compile" else "trace"
        changes = tuple(
            f"{new.path}: {old} -> {new}" for old, new in entry.changes
        )
        first, batch = self._last + 1, done
        if each:
            # One call for each batch.
            first = batch = self._last + call
        function = entry.function
        if name == "predictor":
            function = f"predict_step ({function})"
        return Retrace(
            function,
            kind,
            changes,
            self._epoch,
            batch,
            entry.seconds,
            cause,
            _causes.fix(cause, self.model),
            self._where(name, first, batch),
            entry.compiled,
        )

    def _where(self, name, first, batch):
        if not self._in_fit:
            place = f"In {_RUNNERS[name]}"
        elif name == "test_function":
            place = f"Epoch {self._epoch + 1}, validation"
        else:
            place = f"Epoch {self._epoch + 1}"
        return f"{place}, {batches(first, batch)}" if batch else place

    def _act(self, event):
        if len(self._events) <= self.limit:
            return
        if self.action == "raise":
            raise RuntimeError(str(event))
        key = event.function, event.cause
        times = self._told[key] = self._told.get(key, 0) + 1
        if self.action == "warn" and times & (times - 1) == 0:
            again = f" (Time {times} of its kind.)" if times > 1 else ""
            warn(f"{event}{again}")
