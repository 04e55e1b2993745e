"""PerfTensorBoard: the figures of the monitors, receipts and profiles."""

import os
import shlex
import time

import tensorflow as tf

from fastkeras._lib import checks
from fastkeras._lib import replicas
from fastkeras._lib.warn import warn
from fastkeras.callbacks import _model
from fastkeras.callbacks import _summaries
from fastkeras.callbacks._monitor import Monitor
from fastkeras.callbacks._monitor import check_monitors
from fastkeras.callbacks._monitor import path
from fastkeras.callbacks._profiling import Profiler
from fastkeras.callbacks._profiling import check_range
from fastkeras.callbacks._profiling import warn_outside_of_fit
from fastkeras.callbacks.memory_monitor import MemoryMonitor
from fastkeras.callbacks.retrace_monitor import RetraceMonitor
from fastkeras.callbacks.step_timer import StepTimer
from fastkeras.engine._place import Closing


class PerfTensorBoard(Monitor, Closing):
    """Writes figures for TensorBoard, by the number of batches seen.

    The axis is the batches that the model was trained on, however many steps a
    launch runs: it starts at the `iterations` of the optimizer times the
    batches of an update, so that a second `fit`, or one of a model that was
    loaded with its optimizer, goes on where the last one ended. Next to
    Keras's TensorBoard callback, give both the same folder; this one writes to
    `perf` in it. Neither the `tensorboard` package nor a profile is needed for
    the scalars. Of several workers the first writes. As all callbacks it works
    in `fit`, not in `train_on_batch`: profiling too works in `fit` only. A
    plain `keras.Model` tells no callback of an error: after one, a profile
    goes on until `close()` or that of another `fit`.

    Args:
        log_dir: String or path, the folder for TensorBoard; one for each run
            that is to be compared.
        profile: Tuple of integers, the first and the last batch to profile,
            counted from 1 over the epochs of one `fit`; the launches that
            hold them are profiled, each as one step. Defaults to `None`:
            none.
        every: Integer >= 1, the fewest batches between two points of the
            scalars in `batch/`. A launch of many steps hands over the logs
            of its last, so it gives one point at most. Defaults to `100`.
        monitors: List of callbacks of this package whose figures are written;
            they are run from here, so leave them out of `callbacks`. Defaults
            to `None`: a StepTimer, a RetraceMonitor and a MemoryMonitor.
        hparams: Dict of hyperparameters to numbers, bools or strings, for runs
            to be compared by. Defaults to `None`.

    Attributes:
        profile_files: List of paths of the profile.

    Raises:
        TypeError: If `log_dir` is no path, a batch or `every` not an integer,
            or `hparams` no dict of names to numbers, bools or strings.
        ValueError: If `profile` is no range of batches, or `every` < 1; in
            `fit`, before any step, if the folder can't be written to.

    Example:

    >>> import keras, numpy as np, tempfile
    >>> model = keras.Sequential([keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse")
    >>> x, folder = np.ones((8, 2)), tempfile.mkdtemp()
    >>> board = PerfTensorBoard(folder, hparams={"rate": 0.01})
    >>> _ = model.fit(x, x[:, 0], verbose=0, callbacks=[board])
    >>> import os
    >>> os.listdir(folder)
    ['perf']

    Reference: https://www.tensorflow.org/tensorboard
    """

    def __init__(
        self, log_dir, profile=None, every=100, monitors=None, hparams=None
    ):
        super().__init__()
        checks.positive_int(every, "every", "Leave it out for the default.")
        check_range(profile)
        if monitors is None:
            monitors = [StepTimer(), RetraceMonitor("ignore"), MemoryMonitor()]
        check_monitors(monitors)
        self.hparams = {} if hparams is None else hparams
        _summaries.check_hparams(self.hparams)
        self.folder = os.path.join(path(log_dir, "log_dir"), "perf")
        self.profile = profile
        self.every = every
        self.monitors = monitors
        self.profile_files = []
        self._writer = self._profiler = None
        self._given, self._points = {}, set()
        self._start = self._first = None
        # Where the axis and the optimizer were when the last `fit` ended.
        self._end = None
        self._told = set()

    def __getstate__(self):
        state = super().__getstate__()
        return {**state, "_writer": None, "_profiler": None, "_end": None}

    def __str__(self):
        return "\n".join(
            [
                f"tensorboard --logdir {shlex.quote(self.folder)}",
                *(f"{type(m).__name__}: {m}" for m in self.monitors),
            ]
        )

    # Hooks, handed on.

    def _hand_on(self, hook, *args):
        for monitor in self.monitors:
            getattr(monitor, hook)(*args)

    def set_params(self, params):
        super().set_params(params)
        self._hand_on("set_params", params)

    def set_model(self, model):
        if model is not self._model:
            self._end = None
        super().set_model(model)
        self._hand_on("set_model", model)

    def on_train_begin(self, logs=None):
        # Keras tells no callback of an error that ended the last `fit`.
        self.close()
        super().on_train_begin(logs)
        self._given, self._points, self._last = {}, set(), 0
        self._start = None
        if replicas.is_first(self.model.distribute_strategy):
            _summaries.check_folder(self.folder)
            self._writer = tf.summary.create_file_writer(self.folder)
            if self.profile:
                self._profiler = Profiler(
                    self.folder, *self.profile, fit=self.params
                )
        else:
            self._writer = tf.summary.create_noop_writer()
        if self.hparams:
            with self._writer.as_default():
                _summaries.hparams(self.hparams, time.time())
        self._hand_on("on_train_begin", logs)

    def on_epoch_begin(self, epoch, logs=None):
        super().on_epoch_begin(epoch, logs)
        self._begin, self._first = time.perf_counter(), None
        self._trained = _model.trained(self.model)
        self._hand_on("on_epoch_begin", epoch, logs)

    def on_train_batch_begin(self, batch, logs=None):
        # Not the last launch: Keras may count it as full though it is not.
        self._settle(self.seen + self.done)
        super().on_train_batch_begin(batch, logs)
        if self._first is None:
            self._first = batch
        if self._start is None:
            self._start = self._before() - batch
        if self._profiler:
            self._profiler.before_launch(
                self.seen + batch, _model.batches_of_launch(self.model)
            )
        for monitor in self.monitors:
            monitor.on_train_batch_begin(batch, logs)

    def on_train_batch_end(self, batch, logs=None):
        super().on_train_batch_end(batch, logs)
        for monitor in self.monitors:
            monitor.on_train_batch_end(batch, logs)
        # In any order, perhaps while the next launch runs.
        if isinstance(logs, dict):
            self._given[self.seen + batch + 1] = logs

    def on_predict_begin(self, logs=None):
        self._warn_outside_of_fit("predict")
        self._hand_on("on_predict_begin", logs)

    def on_predict_end(self, logs=None):
        self._hand_on("on_predict_end", logs)

    def on_test_begin(self, logs=None):
        self._warn_outside_of_fit("evaluate")
        super().on_test_begin(logs)
        self._hand_on("on_test_begin", logs)

    def on_test_batch_begin(self, batch, logs=None):
        self._hand_on("on_test_batch_begin", batch, logs)

    def on_test_batch_end(self, batch, logs=None):
        self._hand_on("on_test_batch_end", batch, logs)

    def on_test_end(self, logs=None):
        self._hand_on("on_test_end", logs)

    def on_epoch_end(self, epoch, logs=None):
        super().on_epoch_end(epoch, logs)
        self._hand_on("on_epoch_end", epoch, logs)
        self._write(logs or {})

    def on_train_end(self, logs=None):
        self._hand_on("on_train_end", logs)
        with self._writer.as_default():
            receipt = f"```\n{_model.receipt(self.model)}\n```"
            _summaries.text("receipt", receipt, self._step(self.seen))
        if self._profiler:
            self._profiler.finish()
        self._end = self._step(self.seen), _model.trained(self.model)
        self.close()

    def close(self):
        """Ends what an error has left open."""
        if self._writer is not None:
            self._writer.close()
        if self._profiler is not None:
            self._profiler.stop()
            self.profile_files = self._profiler.files
        self._writer = self._profiler = None

    # Writing.

    def after_batches(self):
        if self._profiler:
            self._profiler.end_launch()

    def after_epoch(self, epoch, logs):
        self._seconds = time.perf_counter() - self._begin
        if (self.params or {}).get("steps") is None:
            self.done = _model.counted(self.model, self.done, self._trained)

    def _before(self):
        """Batches that the model was trained on before this moment.

        What is left out, as a non-finite update is, and windows of fewer
        batches do not count among the iterations of the optimizer.
        """
        trained = _model.trained(self.model)
        if self._end is None:
            return trained
        step, then = self._end
        # None of them, if another optimizer was compiled in.
        return step + max(trained - then, 0)

    def _warn_outside_of_fit(self, method):
        if self.profile and self._writer is None and not self.profile_files:
            warn_outside_of_fit(self.profile, method, self._told)

    def _step(self, seen):
        """The place on the axis after so many batches of this training."""
        return (self._start or 0) + seen

    def _write(self, logs):
        """Writes what an epoch gave; its batches are counted in `seen`."""
        found = {f"epoch/{k}": v for k, v in logs.items()}
        for name, rate in _model.learning_rates(self.model.optimizer).items():
            found.setdefault(f"epoch/{name}", rate)
        found["epoch/seconds"] = self._seconds
        done = self.done - (self._first or 0)
        found["epoch/steps_per_second"] = done / self._seconds
        for monitor in self.monitors:
            name = type(monitor).__name__
            for key, value in monitor.scalars().items():
                found[f"{name}/{key}"] = value
        for k in sorted(self._given):
            ended = min(k, self.seen)
            self._given[ended] = self._given.pop(k)
            self._settle(ended)
        self._points.clear()
        with self._writer.as_default():
            self._write_scalars(found, self._step(self.seen))
        self._writer.flush()

    def _settle(self, step):
        """Chooses whether a launch that ended is a point; writes what is."""
        if step - self._last >= self.every:
            self._last = step
            self._points.add(step)
        for k in sorted(self._given):
            if k > step:
                break
            values = self._given.pop(k)
            if k in self._points:
                named = {f"batch/{name}": v for name, v in values.items()}
                with self._writer.as_default():
                    self._write_scalars(named, self._step(k))

    def _write_scalars(self, values, step):
        left_out = _summaries.scalars(values, step)
        if left_out:
            warn(
                f"No numbers, and so left out: {', '.join(left_out)}.",
                told=self._told,
            )
