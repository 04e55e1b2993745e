"""PerfTensorBoard: the figures of the monitors, receipts and profiles."""

import os
import time

import tensorflow as tf

from fastkeras._lib import checks
from fastkeras.callbacks import _summaries
from fastkeras.callbacks._monitor import Monitor
from fastkeras.callbacks._profiling import Profiler
from fastkeras.callbacks.memory_monitor import MemoryMonitor
from fastkeras.callbacks.retrace_monitor import RetraceMonitor
from fastkeras.callbacks.step_timer import StepTimer

_RANGE = "Give two batches, counted from 1, such as profile=(20, 40)."


class PerfTensorBoard(Monitor):
    """Writes figures for TensorBoard, by the number of batches seen.

    The axis is the batches since the start of the training, however many steps
    a launch runs. Next to Keras's TensorBoard callback, give both the same
    folder; this one writes to `perf` in it. Neither the `tensorboard` package
    nor a profile is needed for the scalars. As all callbacks it works in
    `fit`, not in `train_on_batch`.

    Args:
        log_dir: String or path, the folder for TensorBoard.
        profile: Tuple of integers, the first and the last batch to profile,
            counted from 1 over the whole training; the launches that hold
            them are profiled, each as one step. Defaults to `None`: none.
        every: Integer >= 1, batches between two points of the scalars in
            `batch/`. Defaults to `100`.
        monitors: List of callbacks of this package whose figures are written;
            they are run from here, so leave them out of `callbacks`. Defaults
            to `None`: a StepTimer, a RetraceMonitor and a MemoryMonitor.
        hparams: Dict of hyperparameters to numbers, bools or strings, for runs
            to be compared by. Defaults to `None`.

    Attributes:
        profile_files: List of paths of the profile.

    Raises:
        TypeError: If a batch or `every` is not an integer.
        ValueError: If `profile` is no range of batches, or `every` < 1.

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
        _check_range(profile)
        self.folder = os.path.join(log_dir, "perf")
        self.profile = profile
        self.every = every
        self.monitors = monitors
        if monitors is None:
            self.monitors = [
                StepTimer(),
                RetraceMonitor("ignore"),
                MemoryMonitor(),
            ]
        self.hparams = hparams or {}
        self.profile_files = []
        self._writer = self._profiler = None
        self._points = []

    def __str__(self):
        return "\n".join(
            [
                f"tensorboard --logdir {self.folder}",
                *(f"{type(m).__name__}: {m}" for m in self.monitors),
            ]
        )

    # Hooks, handed on.

    def set_params(self, params):
        super().set_params(params)
        for monitor in self.monitors:
            monitor.set_params(params)

    def set_model(self, model):
        super().set_model(model)
        for monitor in self.monitors:
            monitor.set_model(model)

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        self._writer = tf.summary.create_file_writer(self.folder)
        self._points, self._last = [], 0
        if self.profile:
            self._profiler = Profiler(self.folder, *self.profile)
        if self.hparams:
            with self._writer.as_default():
                _summaries.hparams(self.hparams, time.time())
        for monitor in self.monitors:
            monitor.on_train_begin(logs)

    def on_epoch_begin(self, epoch, logs=None):
        super().on_epoch_begin(epoch, logs)
        self._begin = time.perf_counter()
        for monitor in self.monitors:
            monitor.on_epoch_begin(epoch, logs)

    def on_train_batch_begin(self, batch, logs=None):
        super().on_train_batch_begin(batch, logs)
        if self._profiler:
            self._profiler.before_launch(self.seen + batch)
        for monitor in self.monitors:
            monitor.on_train_batch_begin(batch, logs)

    def on_train_batch_end(self, batch, logs=None):
        super().on_train_batch_end(batch, logs)
        for monitor in self.monitors:
            monitor.on_train_batch_end(batch, logs)
        step = self.seen + self._ended
        if step - self._last >= self.every and isinstance(logs, dict):
            self._last = step
            self._points.append((step, dict(logs)))

    def on_test_begin(self, logs=None):
        super().on_test_begin(logs)
        for monitor in self.monitors:
            monitor.on_test_begin(logs)

    def on_test_end(self, logs=None):
        for monitor in self.monitors:
            monitor.on_test_end(logs)

    def on_epoch_end(self, epoch, logs=None):
        super().on_epoch_end(epoch, logs)
        for monitor in self.monitors:
            monitor.on_epoch_end(epoch, logs)
        self._write(logs or {})

    def on_train_end(self, logs=None):
        for monitor in self.monitors:
            monitor.on_train_end(logs)
        with self._writer.as_default():
            if hasattr(self.model, "perf_report"):
                receipt = f"```\n{self.model.perf_report()}\n```"
                _summaries.text("receipt", receipt, self.seen)
        self._writer.close()
        if self._profiler:
            self._profiler.finish()
            self.profile_files = self._profiler.files
        self._writer = self._profiler = None

    # Writing.

    def after_batches(self):
        if self._profiler:
            self._profiler.end_launch()

    def after_epoch(self, epoch, logs):
        self._seconds = time.perf_counter() - self._begin

    def _write(self, logs):
        """Writes what an epoch gave; its batches are counted in `seen`."""
        found = {f"epoch/{k}": v for k, v in logs.items()}
        found["epoch/seconds"] = self._seconds
        found["epoch/steps_per_second"] = self.done / self._seconds
        for monitor in self.monitors:
            name = type(monitor).__name__
            for key, value in monitor.scalars().items():
                found[f"{name}/{key}"] = value
        points, self._points = self._points, []
        with self._writer.as_default():
            # Keras may have handed them over in any order.
            for step, values in sorted(points, key=lambda p: p[0]):
                named = {f"batch/{k}": v for k, v in values.items()}
                _summaries.scalars(named, step)
            _summaries.scalars(found, self.seen)
        self._writer.flush()


def _check_range(profile):
    if profile is None:
        return
    if not isinstance(profile, (tuple, list)) or len(profile) != 2:
        raise ValueError(
            checks.message(
                "`profile` must be the first and the last batch",
                f"profile={profile!r}",
                _RANGE,
            )
        )
    first, last = profile
    checks.positive_int(first, "profile", _RANGE)
    checks.positive_int(last, "profile", _RANGE)
    if last < first:
        raise ValueError(
            checks.message(
                "`profile` must not end before it begins",
                f"profile={profile!r}",
                _RANGE,
            )
        )
