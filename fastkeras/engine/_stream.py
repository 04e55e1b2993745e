"""The stream feed: batches of anything Keras takes, one epoch at a time."""

import time

import tensorflow as tf

from fastkeras._lib import checks
from fastkeras._lib import private
from fastkeras._lib import randomness
from fastkeras._lib import replicas
from fastkeras._lib.warn import warn
from fastkeras.engine import _iterators
from fastkeras.engine._feed import Feed
from fastkeras.engine._launch import Batches
from fastkeras.perf._padding import Padded
from fastkeras.perf._parts import Window

NO_DATA = checks.message(
    "The data must hold at least one batch",
    "an empty dataset or arrays of 0 rows",
    "Check the path or the filter the data comes from.",
)

#: What a position is made of, beside the iterator.
_POSITION = (
    "_begun",
    "_epochs",
    "_fresh",
    "_pulled",
    "_random",
    "_rest",
    "_rows",
    "_saved",
    "_seen",
    "_within",
    "is_spent",
    "left",
    "length",
)


class Stream(Feed):
    """Batches from arrays, a `tf.data.Dataset`, a generator or a `PyDataset`.

    Keras's adapters turn the data into a dataset. What differs from Keras's
    own iteration: a spent generator is not begun again with its first two
    batches, an exception in the user's data keeps its type, a class missing
    from `class_weight` counts as 1 in every kind of data, and
    `PyDataset.on_epoch_end` runs once an epoch.

    Args:
        strategy: `tf.distribute.Strategy` the batches are for.
        adapter: Keras's data adapter.
        steps: Integer, batches in an epoch, or None for all.
        pad: Function that pads: see `Feature.pad`.
    """

    name = "stream"

    def __init__(self, strategy, adapter, steps, pad):
        self._pad = pad
        self._rows = 0
        self._error = None
        self._iterator = None
        self._spent = _iterators.Spent()
        self._rest = None
        self._seen = 0
        self._fresh = True
        self._epochs = 0
        self._within = False
        self._begun = 0
        self._pulled = 0
        self._random = None
        self._saved = None
        self._adapter = adapter
        self._once = private.keep_errors(adapter, self._keep_error)
        dataset = adapter.get_tf_dataset()
        self.spec = dataset.element_spec
        self.sharding = None
        if not isinstance(dataset, tf.distribute.DistributedDataset):
            self.sharding = replicas.sharding(strategy, dataset)
            dataset = replicas.distribute(strategy, dataset)
        self._dataset = dataset
        super().__init__(adapter.num_batches, steps)

    def begin(self):
        """Starts an epoch."""
        self._begin_epoch()
        self._seen = 0
        self.left = self.num_batches
        if self._iterator is None or self.steps is None or self._rest == 0:
            self._begin_iterator()
            if self.is_kept:
                self._save_iterator()
            self._fresh = not self.is_spent
            self._rest = self.length

    def _begin_epoch(self):
        self._adapter.on_epoch_begin()
        self._epochs += 1
        self._within = True

    def _begin_iterator(self):
        self._random = randomness.host_state()
        self._iterator = iter(self._dataset)
        self._since = time.monotonic()
        self._begun += 1
        self._pulled = 0
        self._saved = None

    def rewind(self):
        """Makes the next epoch begin anew; no iterator is left open."""
        self._iterator = None
        self._spent = _iterators.Spent()

    def end(self):
        self._adapter.on_epoch_end()
        self._within = False

    def state(self):
        """The position, as plain values and arrays."""
        if self._iterator is not None:
            self._save_iterator()
        live = self._iterator is not None
        return {"live": live, **{k: getattr(self, k) for k in _POSITION}}

    def _save_iterator(self):
        """Saves the iterator at this batch, or keeps what was saved before.

        Once a shuffle has no rows left, TensorFlow leaves out the state of
        its seeds, and later epochs would come in another order.
        """
        if self._saved is not None and self._saved.reason:
            return
        saved = _iterators.save(self._iterator, self._pulled)
        if self._saved is None or saved.shuffles >= self._saved.shuffles:
            self._saved = saved

    def restore(self, state):
        """Goes on from a position that `state` returned.

        Where the iterator could not be saved, the data is gone through again
        up to there, with the random numbers it began with.
        """
        within, live = state["_within"], state["live"]
        self._repeat(state["_epochs"] - within, state["_begun"] - live)
        self._iterator = None
        if within:
            self._begin_epoch()
        if live:
            randomness.set_host_state(state["_random"])
            self._begin_iterator()
            saved = _iterators.Saved(*state["_saved"])
            if not saved.reason:
                _iterators.restore(self._iterator, saved)
            self._skip(state["_pulled"] - saved.at, saved.reason)
        for name in _POSITION:
            setattr(self, name, state[name])
        if self._saved is not None:
            self._saved = _iterators.Saved(*self._saved)

    def _repeat(self, epochs, iterators):
        """Goes through what earlier epochs changed in the data.

        The order of a dataset that shuffles anew depends on how often it was
        begun.
        """
        for k in range(max(epochs, iterators)):
            if k < epochs:
                self._begin_epoch()
            if k < iterators:
                self._begin_iterator()
                next(self._iterator, None)
            if k < epochs:
                self.end()

    def _skip(self, count, reason):
        if count and reason:
            warn(
                f"The position in the data can't be kept ({reason}): "
                f"{count} batches are gone through again."
            )
        for _ in range(count):
            next(self._iterator)

    def take(self, updates, window, keeps_remainder):
        """The next launch of at most so many updates; None at the end.

        Args:
            updates: Integer >= 1.
            window: Integer, batches in an update.
            keeps_remainder: Bool, whether a last window that is not full
                makes an update.

        Returns:
            `Batches`, or None.
        """
        first = self._window(window, keeps_remainder)
        if first is None:
            return None
        launch = Batches(0, ())
        launch.asked = updates
        launch.data = self._lazily(
            launch, first, updates, window, keeps_remainder
        )
        return launch

    def _lazily(self, launch, data, updates, window, keeps_remainder):
        """Yields windows as they are run, so that few are held at a time."""
        while data is not None:
            launch.add(data, window)
            yield data
            if launch.updates >= updates:
                return
            data = self._window(window, keeps_remainder)

    def _window(self, window, keeps_remainder):
        batches = self._pull(window)
        if not batches or (len(batches) < window and not keeps_remainder):
            return None
        return Window(tuple(batches)) if window > 1 else batches[0]

    def _pull(self, count):
        batches = []
        # The data may have ended within the window before this one.
        while len(batches) < count and self._iterator is not None:
            if self.steps is not None and self._seen >= self.steps:
                break
            with self.wait:
                batch = self._next()
            if batch is None:
                self._ended(self._seen)
                break
            self._seen += 1
            batches.append(batch)
        if self.left is not None:
            self.left -= len(batches)
        return batches

    def _next(self):
        """The next batch, or None at the end of the data."""
        try:
            batch = next(self._iterator)
            self._fresh = False
            self._pulled += 1
        except (StopIteration, tf.errors.OutOfRangeError):
            batch = None
        except tf.errors.OpError as error:
            raise self.cause(error) from None
        if batch is not None and self._rest is not None:
            self._rest -= 1
        return self._padded(batch)

    def cause(self, error):
        """The exception in the user's data behind one of TensorFlow's."""
        own, self._error = self._error, None
        return error if own is None else own

    @property
    def iterator(self):
        """What a loop in the graph pulls its batches from."""
        return self._iterator

    def pulled(self, count):
        """Counts batches that a loop in the graph has pulled."""
        self._seen += count
        self._pulled += count
        if self.left is not None:
            self.left -= count
        if self._rest is not None:
            self._rest -= count

    def _padded(self, batch):
        """Pads a batch up to the largest so far, which is the first."""
        if batch is None:
            return None
        batch = self._pad(batch, self._rows, self.spec)
        if isinstance(batch, Padded):
            self._rows = batch.size
        return batch

    def _ended(self, seen):
        if self._fresh:
            raise ValueError(NO_DATA)
        self._spent.add(self._iterator, self._since)
        self._iterator = None
        self.is_spent = self._once
        if self.steps is None:
            self.length = seen or self.length
        elif seen < self.steps:
            warn(
                f"The data ran out after {seen} of {self.steps} batches; the "
                "epoch is cut short. Leave `steps_per_epoch` out, or repeat "
                "the dataset (`.repeat()`)."
            )

    def _keep_error(self, error):
        self._error = error
