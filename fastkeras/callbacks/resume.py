"""Resume: a training that was cut goes on as if it had not been."""

import pathlib
import signal
import threading
import time

from fastkeras import engine
from fastkeras._lib import checks
from fastkeras._lib import private
from fastkeras._lib import randomness
from fastkeras._lib import replicas
from fastkeras._lib.warn import warn
from fastkeras.callbacks import _resume_state
from fastkeras.callbacks._monitor import path
from fastkeras.callbacks._resume_files import Files
from fastkeras.model import FastModel


class Resume(engine.Keeper):
    """Keeps the state of a training; the same command goes on from there.

    Kept are weights, optimizer, metrics and the state of features (the loss
    scale), the epoch and the batch in it, the position in the data, seed
    generators and the global generators of random numbers, the history, the
    attributes of `EarlyStopping`, `ReduceLROnPlateau`, `ModelCheckpoint` and
    of callbacks of your own (plain values and arrays that are no argument of
    the constructor), and the tier that was chosen. In the graph tiers of a
    CPU the weights, history and logs are then those of a training that was
    not cut, bit for bit, if the program sets its seeds
    (`keras.utils.set_random_seed`).

    A state is written by a thread, to a temporary name, and renamed. One that
    was cut short is left out with a warning, and the one before is used. No
    state is kept of weights or a loss that are not finite, so after a NaN, or
    after Ctrl-C, the last good one is there. On SIGTERM a state is kept and
    the process ends with exit code `Resume.EXIT_CODE` (75).

    A training that has ended leaves its state: called again it ends at once
    with the same weights and history; with more `epochs` it goes on. Delete
    the directory to begin anew. Of several workers the first alone writes, to
    a directory that all can read, and at the ends of epochs alone. A
    `CSVLogger` needs `append=True`. What draws random numbers by operations
    of TensorFlow with a state of their own (`tf.random.normal` in a layer,
    where Keras has `keras.random.normal`) is not restored; nor are the global
    generators of data that is read ahead.

    Args:
        directory: Path of a directory for this one training.
        every_steps: Integer >= 1: after so many batches, at the end of a
            launch.
        every_epochs: Integer >= 1: after so many epochs.
        every_seconds: Number > 0: after so many seconds. Any of the three may
            be given; defaults to `every_epochs=1` if none is.
        keep: Integer >= 1, the states that stay on the disk. Defaults to `2`.

    Attributes:
        resumed: Tuple of the epoch and the batches of it that the last `fit`
            went on from, or None if it began anew.

    Raises:
        TypeError: If an argument has the wrong type; at the start of `fit`,
            if the model is not a FastModel with a plan.
        ValueError: If an argument is too small; at the start of `fit`, if the
            state is of another model, plan, data or version, or several
            workers train and states within an epoch are asked for. Nothing is
            written then.

    Example:

    >>> import keras, numpy as np, tempfile
    >>> def train(directory):
    ...     keras.utils.set_random_seed(0)
    ...     inputs = keras.Input((2,))
    ...     model = FastModel(inputs, keras.layers.Dense(1)(inputs))
    ...     model.compile("adam", "mse")
    ...     resume = Resume(directory, every_epochs=1)
    ...     x = np.ones((8, 2))
    ...     model.fit(x, x[:, 0], epochs=2, callbacks=[resume], verbose=0)
    ...     return resume.resumed
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     train(directory), train(directory)
    (None, (2, 0))
    """

    #: The exit code after SIGTERM: a temporary failure, call it again.
    EXIT_CODE = 75

    def __init__(
        self,
        directory,
        every_steps=None,
        every_epochs=None,
        every_seconds=None,
        keep=2,
    ):
        super().__init__()
        remedy = "Leave it out for a state after each epoch."
        if every_steps is not None:
            checks.positive_int(every_steps, "every_steps", remedy)
        if every_epochs is not None:
            checks.positive_int(every_epochs, "every_epochs", remedy)
        if every_seconds is not None:
            checks.positive_number(every_seconds, "every_seconds", remedy)
        checks.positive_int(keep, "keep", "One state has to stay.")
        if every_steps is None and every_seconds is None:
            every_epochs = every_epochs or 1
        self.directory = pathlib.Path(path(directory, "directory"))
        self.every_steps = every_steps
        self.every_epochs = every_epochs
        self.every_seconds = every_seconds
        self.resumed = None
        self._files = Files(self.directory, keep)
        self._state = None
        self._handler = None

    def on_train_begin(self, logs=None):
        if not isinstance(self.model, FastModel) or self.model.perf.is_keras:
            raise TypeError(
                checks.message(
                    "Resume needs a FastModel whose steps run by a plan",
                    type(self.model).__name__,
                    "Use `FastModel.from_keras(model)` and compile with "
                    'perf="auto".',
                )
            )

    # The hooks of a `Keeper`.

    def find(self, place):
        self._told = set()
        self._check_workers()
        self._random = randomness.state()
        self._optimizer = _resume_state.config_of(self.model.optimizer)
        self._state = self._files.load()
        self.resumed = None
        if self._state is not None:
            self._check(place)
            self.resumed = place.epoch, place.done = self._state["place"]
            place.resumed = True
        self._kept = self.resumed
        self._last = (place.epoch, place.done)
        self._steps = 0
        self._since = time.monotonic()
        self._listen()

    def restore(self, place):
        # Data is gone through as at the start; only then all is put back.
        if place.runs or not place.done:
            randomness.set_state(self._random)
            place.feed.restore(self._state["feed"])
        _resume_state.put_back(self.model, place, self._state)

    def keep(self, place):
        # The metrics of several workers are apart until the end of an epoch.
        stops = self._terminated and not (place.done and self._workers > 1)
        if self._is_due(place) or stops:
            self._keep(place)
        if stops:
            self._files.wait()
            raise SystemExit(self.EXIT_CODE)

    def close(self):
        self._files.wait()
        self._state = None
        if self._handler is not None:
            signal.signal(signal.SIGTERM, self._handler)
            self._handler = None

    def _check_workers(self):
        strategy = self.model.distribute_strategy
        self._workers = replicas.workers(strategy)
        self._writes = replicas.is_first(strategy)
        if self._workers > 1 and (self.every_steps or self.every_seconds):
            raise ValueError(
                checks.message(
                    "With several workers states are kept between epochs",
                    f"every_steps={self.every_steps}, "
                    f"every_seconds={self.every_seconds}, "
                    f"{self._workers} workers",
                    "Give `every_epochs`, and shorter epochs "
                    "(`steps_per_epoch`) where they are long.",
                )
            )

    def _check(self, place):
        """Refuses a state that this training can't go on with."""
        with self.model.distribute_strategy.scope():
            private.symbolic_build(self.model, place.feed.spec)
        now = _resume_state.identity(self.model, place.feed, self._optimizer)
        found = _resume_state.differences(self._state["identity"], now)
        if found:
            raise ValueError(
                checks.message(
                    f"The state in {str(self.directory)!r} must be of this "
                    "training",
                    "; ".join(found),
                    "Give another directory, or delete this one to begin anew.",
                )
            )

    def _is_due(self, place):
        epoch, done = self._last
        self._last = (place.epoch, place.done)
        if place.epoch == epoch:
            self._steps += place.done - done
        now = time.monotonic()
        return (
            place.ended
            or (self.every_steps and self._steps >= self.every_steps)
            or (self.every_seconds and now - self._since >= self.every_seconds)
            or (
                self.every_epochs
                and place.epoch > epoch
                and place.epoch % self.every_epochs == 0
            )
        )

    def _keep(self, place):
        if self._kept == (place.epoch, place.done):
            return
        if not _resume_state.is_finite(self.model, place.logs):
            warn(
                "No state is kept of a loss or weights that are not finite; "
                f"the last good one stays in {self.directory}.",
                told=self._told,
            )
            return
        state = _resume_state.take(self.model, place)
        state["identity"] = _resume_state.identity(
            self.model, place.feed, self._optimizer
        )
        if self._writes:
            self._files.save(state)
        self._kept = (place.epoch, place.done)
        self._steps = 0
        self._since = time.monotonic()

    def _listen(self):
        """Has SIGTERM end the training at the end of the launch."""
        self._terminated = False
        if threading.current_thread() is threading.main_thread():
            self._handler = signal.signal(signal.SIGTERM, self._terminate)

    def _terminate(self, *_):
        self._terminated = True
