"""The stream feed: batches of anything Keras takes, one epoch at a time."""

import tensorflow as tf

from fastkeras._lib import checks
from fastkeras._lib import private
from fastkeras._lib.warn import warn


class Stream:
    """Batches from arrays, a `tf.data.Dataset`, a generator or a `PyDataset`.

    Keras's adapters turn the data into a dataset. What differs from Keras's
    own iteration: a spent generator is not begun again with its first two
    batches, an exception in the user's data keeps its type, a class missing
    from `class_weight` counts as 1 in every kind of data, and
    `PyDataset.on_epoch_end` runs once an epoch.

    Args:
        strategy: `tf.distribute.Strategy` the batches are for.
        steps: Integer, batches in an epoch, or None for all.
        x, y, sample_weight, batch_size, shuffle, class_weight: As for `fit`.

    Raises:
        ValueError: If there is no row of data.
    """

    def __init__(self, strategy, steps=None, class_weight=None, **data):
        self.steps = steps
        self._error = None
        self._iterator = None
        self._left = None
        self._spent = False
        x = data["x"]
        if class_weight is not None and isinstance(x, tf.data.Dataset):
            data["x"] = x.map(_weigher(class_weight), tf.data.AUTOTUNE)
            class_weight = None
        self._adapter = private.data_adapters.get_data_adapter(
            steps_per_epoch=steps, class_weight=class_weight, **data
        )
        if self._adapter.num_batches == 0:
            raise ValueError(
                checks.message(
                    "The data must hold at least one batch",
                    "an empty dataset or arrays of 0 rows",
                    "Check the path or the filter the data comes from.",
                )
            )
        self._once = private.keep_errors(self._adapter, self._keep_error)
        dataset = self._adapter.get_tf_dataset()
        if not isinstance(dataset, tf.distribute.DistributedDataset):
            dataset = strategy.experimental_distribute_dataset(dataset)
        self._dataset = dataset
        self._length = self._adapter.num_batches

    @property
    def num_batches(self):
        """Batches in an epoch, or None while that is not known."""
        return self.steps or self._length

    def check_length(self, epochs):
        """Says before the first step if the data can't last."""
        length, steps = self._length, self.steps
        if not length or not steps or length % steps == 0:
            return
        if steps * epochs > length:
            warn(
                f"The training needs {steps * epochs} batches "
                f"(steps_per_epoch={steps}, epochs={epochs}), the data has "
                f"{length}. Epochs that run out of data are cut short. Leave "
                "`steps_per_epoch` out, or repeat the dataset (`.repeat()`)."
            )

    def peek(self):
        """The first batch, without taking it out."""
        return next(iter(self._dataset))

    def epoch(self):
        """Yields the batches of one epoch.

        Yields:
            Batches as the dataset gives them.
        """
        self._adapter.on_epoch_begin()
        try:
            yield from self._batches()
        finally:
            self._adapter.on_epoch_end()

    @property
    def is_spent(self):
        """True if the data can be gone through only once, and was."""
        return self._spent

    def _batches(self):
        if self._iterator is None or self.steps is None:
            self._iterator = iter(self._dataset)
            self._left = self._length
        seen = 0
        while self.steps is None or seen < self.steps:
            batch = self._next()
            if batch is None:
                self._ended(seen)
                return
            seen += 1
            yield batch
        if self._left == 0:
            self._iterator = None

    def _next(self):
        """The next batch, or None at the end of the data."""
        try:
            batch = next(self._iterator)
        except (StopIteration, tf.errors.OutOfRangeError):
            batch = None
        except tf.errors.OpError:
            if self._error is None:
                raise
            error, self._error = self._error, None
            raise error from None
        if self._left is not None:
            self._left -= 1
        return batch

    def _ended(self, seen):
        self._iterator = None
        self._spent = self._once
        if self.steps is None:
            self._length = seen or self._length
        elif seen < self.steps:
            warn(
                f"The data ran out after {seen} of {self.steps} batches; the "
                "epoch is cut short. Leave `steps_per_epoch` out, or repeat "
                "the dataset (`.repeat()`)."
            )

    def _keep_error(self, error):
        self._error = error


def _weigher(class_weight):
    """Maps (x, y) to (x, y, weight); a class that is missing counts as 1."""
    size = max(class_weight) + 1
    table = tf.constant([float(class_weight.get(c, 1.0)) for c in range(size)])

    def weigh(*data):
        if len(data) != 2 or isinstance(data[1], (dict, list, tuple)):
            raise ValueError(
                checks.message(
                    "`class_weight` needs data of the form (x, y) with a "
                    "single y",
                    f"{len(data)} parts",
                    "Give sample weights instead.",
                )
            )
        x, y = data
        classes = y
        if y.shape.rank and y.shape.rank > 1:
            if y.shape[-1] == 1:
                classes = tf.squeeze(y, -1)
            else:
                classes = tf.argmax(y, -1)
        classes = tf.cast(tf.round(tf.cast(classes, tf.float32)), tf.int32)
        known = tf.logical_and(classes >= 0, classes < size)
        weights = tf.gather(table, tf.where(known, classes, 0))
        return x, y, tf.where(known, weights, 1.0)

    return weigh
