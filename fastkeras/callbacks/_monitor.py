"""What the callbacks of this package share: they count batches by index.

Hooks of a batch run once a launch, and Keras may run the one at its end late,
in another thread (`async_safe`). So nothing is timed or counted there: the
hook before a launch says how many batches are done, and the end of the epoch
says the rest.
"""

import numbers
import os

import keras

from fastkeras._lib import checks


class Monitor(keras.callbacks.Callback):
    """A callback for which one call a launch is enough.

    Attributes:
        done: Integer, batches of this epoch that are done.
        seen: Integer, batches of the earlier epochs of this training.
    """

    #: Keras may call the hook at the end of a batch in a thread of its own.
    async_safe = True
    #: The engine may run many steps between two calls of the hooks.
    per_launch = True

    def __init__(self):
        super().__init__()
        self.done = 0
        self.seen = 0
        self._ends = []
        self._training = False

    def __getstate__(self):
        # A copy watches a training of its own.
        return {**vars(self), "_model": None}

    # For the subclasses.

    def before_launch(self):
        """Before each launch."""

    def after_batches(self):
        """After the last launch of an epoch, before its validation."""

    def after_epoch(self, epoch, logs):
        """At the end of an epoch; `done` is its number of batches."""

    def scalars(self):
        """Dict of name to float: what there is to log at this moment."""
        return {}

    # Keras's hooks.

    def on_train_begin(self, logs=None):
        self.seen = 0

    def on_epoch_begin(self, epoch, logs=None):
        self.done = 0
        self._ends = []
        self._training = True

    def on_train_batch_begin(self, batch, logs=None):
        self.done = batch
        self._ends.clear()
        self.before_launch()

    def on_train_batch_end(self, batch, logs=None):
        # Keras has these run in several threads, in any order.
        self._ends.append(batch + 1)

    def on_test_begin(self, logs=None):
        self._end_of_batches()

    def on_epoch_end(self, epoch, logs=None):
        self._end_of_batches()
        self.done = self._ended()
        self.after_epoch(epoch, logs or {})
        self.seen += self.done

    def _ended(self):
        """Batches of this epoch that are done after its last launch."""
        ended = max([self.done, *self._ends])
        # Keras counts a last launch as full that is not.
        return min(ended, (self.params or {}).get("steps") or ended)

    def _end_of_batches(self):
        if self._training:
            self._training = False
            self.after_batches()


def synchronise(model):
    """Waits until the device has done all updates handed to it."""
    if model.optimizer is not None:
        model.optimizer.iterations.numpy()


def path(value, name):
    """The path of a folder, as a string.

    Raises:
        TypeError: If `value` is neither a string nor a path.
    """
    if not isinstance(value, (str, os.PathLike)):
        raise TypeError(
            checks.message(
                f"`{name}` must be a string or a path",
                f"{name}={value!r}",
                'Give a folder, such as "runs/1".',
            )
        )
    return os.fspath(value)


def check_monitors(values):
    """Refuses what is no list of callbacks of this package.

    Raises:
        TypeError: If `values` is something else.
    """
    is_list = isinstance(values, (list, tuple))
    if not is_list or not all(isinstance(one, Monitor) for one in values):
        raise TypeError(
            checks.message(
                "`monitors` must be a list of callbacks of fastkeras",
                f"monitors={values!r}",
                "Give a list such as [StepTimer()]; other callbacks go to "
                "`fit`.",
            )
        )


def check_count(value, name, remedy):
    """Refuses anything that is not an integer >= 0.

    Raises:
        TypeError: If `value` is not an integer.
        ValueError: If `value` is negative.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        rule, kind = f"`{name}` must be an integer >= 0", TypeError
    elif value < 0:
        rule, kind = f"`{name}` must be >= 0", ValueError
    else:
        return
    raise kind(checks.message(rule, f"{name}={value!r}", remedy))
