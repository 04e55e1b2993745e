"""The workers of a parameter-server strategy, as the chief sees them."""

import re
import time

import tensorflow as tf

from fastkeras._lib import checks
from fastkeras._lib import private_coordinator
from fastkeras._lib import replicas

#: Seconds without any worker after which the training ends.
PATIENCE = 60.0
#: Seconds between two looks for workers.
_LOOK = 1.0
#: Seconds between two looks at the calls: at first, and at most.
_SHORT, _LONG = 2e-4, 2e-2
_SERVER = re.compile(r"/job:ps/replica:0/task:\d+")


def is_asynchronous(model):
    """Whether a model was made under a `ParameterServerStrategy`."""
    strategy = replicas.strategy_of(model)
    return isinstance(strategy, tf.distribute.ParameterServerStrategy)


class Workers:
    """Hands calls to the workers, and waits for them.

    Args:
        strategy: `tf.distribute.ParameterServerStrategy`.

    Attributes:
        count: Integer.
        coordinator: `tf.distribute.coordinator.ClusterCoordinator`.
    """

    def __init__(self, strategy):
        # One strategy has one coordinator: made again, it is the same.
        self.coordinator = tf.distribute.coordinator.ClusterCoordinator(
            strategy
        )
        private_coordinator.ends_without(self.coordinator)
        self._names = private_coordinator.worker_names(strategy)
        self.count = len(self._names)

    def wait(self):
        """Waits for all calls that were handed out.

        Raises:
            ConnectionError: If no worker is left for `PATIENCE` seconds, or
                if a parameter server is lost.
            ValueError: If data that a worker makes has ended.
            tf.errors.OpError: What a call raised.
        """
        pause, looked = _SHORT, time.monotonic()
        seen = looked
        while not self._are_done():
            time.sleep(pause)
            pause = min(2 * pause, _LONG)
            if time.monotonic() - looked > _LOOK:
                if any(map(private_coordinator.check_alive, self._names)):
                    seen = time.monotonic()
                looked = time.monotonic()
                self._check_patience(looked - seen)

    def _are_done(self):
        try:
            return self.coordinator.done()
        except tf.errors.OutOfRangeError as error:
            raise ValueError(
                checks.message(
                    "Data that each worker makes must not end",
                    "a dataset that has",
                    "Repeat it (`.repeat()`).",
                )
            ) from error
        except tf.errors.UnavailableError as error:
            server = _SERVER.search(error.message)
            if server is None:
                raise
            raise ConnectionError(
                checks.message(
                    "A parameter server holds the only copy of its weights, "
                    "so training ends with it",
                    f"no connection to {server.group()}",
                    "Start again from a checkpoint "
                    "(`keras.callbacks.BackupAndRestore`).",
                )
            ) from error

    def _check_patience(self, seconds):
        if seconds >= PATIENCE:
            raise ConnectionError(
                checks.message(
                    "At least one worker must run the steps",
                    f"none of {len(self._names)} workers for {seconds:.0f} s",
                    "Start the workers again, then the training from a "
                    "checkpoint (`keras.callbacks.BackupAndRestore`).",
                )
            )


class Scheduled:
    """A `tf.function` that is called on whichever worker is free.

    Args:
        workers: `Workers`.
        function: The `tf.function`.
    """

    def __init__(self, workers, function):
        self._workers = workers
        self._function = function

    def __call__(self, *args):
        """Hands out a call; returns its `RemoteValue`."""
        return self._workers.coordinator.schedule(self._function, args)

    def experimental_get_tracing_count(self):
        """The traces so far, as of a `tf.function`."""
        return self._function.experimental_get_tracing_count()
