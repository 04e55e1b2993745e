"""The resident feed: arrays on the device, an epoch as a permutation.

Nothing of an epoch goes through `tf.data`: the rows of a batch are gathered
inside the step, by their place in the permutation.
"""

import numpy as np
import tensorflow as tf

from fastkeras._lib import private
from fastkeras._lib.warn import warn
from fastkeras.engine._feed import Feed
from fastkeras.engine._launch import Batches
from fastkeras.engine._launch import Rows
from fastkeras.perf._padding import Padded
from fastkeras.perf._padding import take
from fastkeras.perf._parts import Window

#: Bytes of a large array that are copied at a time.
_CHUNK = 2**24
#: Share of the free memory that resident data may take.
MEMORY_SHARE = 0.25


def refusal(arrays, rows):
    """Why arrays can't be resident; None if they can.

    Args:
        arrays: Nested structure of arrays, or None.
        rows: Integer.

    Returns:
        String or None.
    """
    if arrays is None:
        return "the data is not arrays"
    leaves = [a for a in private.tree.flatten(arrays) if a is not None]
    size = 0
    for leaf in leaves:
        if not isinstance(leaf, (np.ndarray, tf.Tensor)):
            return f"a {type(leaf).__name__} is not a dense array"
        if leaf.dtype in (tf.string, np.dtype("O")) or leaf.dtype == "object":
            return "strings and objects stay on the host"
        if len(leaf.shape) < 1 or leaf.shape[0] != rows:
            return "an array has no row per example"
        item = getattr(leaf.dtype, "itemsize", None) or leaf.dtype.size
        size += int(np.prod(leaf.shape)) * item
    limit = MEMORY_SHARE * free_memory()
    if size > limit:
        return (
            f"{size / 2**20:.0f} MB are more than the limit of "
            f"{limit / 2**20:.0f} MB, a quarter of the free memory"
        )
    return None


def free_memory():
    """Free memory of the host in bytes."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 2**31


def _copied(array):
    """The array as a tensor.

    TensorFlow's own conversion holds the data twice while it lasts; a large
    array is copied chunk by chunk instead, into memory taken once.
    """
    is_small = not isinstance(array, np.ndarray) or array.nbytes < 4 * _CHUNK
    if is_small or tf.config.list_physical_devices("GPU"):
        return tf.convert_to_tensor(array)
    tensor = tf.raw_ops.Empty(shape=array.shape, dtype=array.dtype)
    rows = max(1, _CHUNK * len(array) // array.nbytes)
    for first in range(0, len(array), rows):
        chunk = array[first : first + rows]
        places = np.arange(first, first + len(chunk), dtype="int32")
        tensor = tf.raw_ops.InplaceUpdate(x=tensor, i=places, v=chunk)
    return tensor


class Resident(Feed):
    """Batches of arrays that stay on the device.

    Args:
        arrays: Nested structure of arrays (rows, ...) or None.
        rows: Integer, the number of rows.
        batch_size: Integer, rows of a batch.
        steps: Integer, batches in an epoch, or None for all.
        shuffle: False, True, or `"batch"` (rows within each batch).
        pad: Function that pads: see `Feature.pad`. If it does, the last batch
            is filled up, and is like any other.
    """

    name = "resident"

    def __init__(self, arrays, rows, batch_size, steps, shuffle, pad):
        super().__init__(-(-rows // batch_size), steps)
        data = private.tree.map_structure(
            lambda a: None if a is None else _copied(a), arrays
        )
        self.rows = rows
        self.batch_size = batch_size
        self.spec = _batch_spec(data, batch_size)
        self.arrays = data
        self.data = pad(data, None, self.spec)
        self._filled = isinstance(self.data, Padded)
        self.full = self.length if self._filled else rows // batch_size
        self._shuffle = shuffle
        self._next = self.length
        self._seed = None
        self.order = None

    def at(self, k):
        """The k-th batch, which may be short, in the order of the rows."""
        rows = slice(k * self.batch_size, (k + 1) * self.batch_size)
        return private.tree.map_structure(
            lambda a: None if a is None else a[rows], self.arrays
        )

    def begin(self):
        """Starts an epoch; a new permutation where the last is used up."""
        if self.steps is None or self._next >= self.length:
            self._next = 0
            self._seed = self._drawn_seed()
            self.order = self._permutation()
        self.left = self.num_batches

    def rewind(self):
        """Makes the next epoch begin with the first batch."""
        self._next = self.length

    def state(self):
        """The position, as plain values."""
        return {"seed": self._seed, "next": self._next, "left": self.left}

    def restore(self, state):
        """Goes on from a position that `state` returned."""
        self._seed = state["seed"]
        self._next = state["next"]
        self.left = state["left"]
        self.order = self._permutation()

    def _drawn_seed(self):
        """The seed of a permutation; None without one."""
        if not self._shuffle:
            return None
        # What an operation of TensorFlow would take here.
        seed = tf.compat.v1.random.get_seed(None)
        return np.random.SeedSequence().entropy if seed[0] is None else seed

    def _permutation(self):
        if not self._shuffle and self.order is not None:
            return self.order
        rows = np.arange(self.rows, dtype="int32")
        if self._shuffle:
            # Drawn on the host: in short epochs, a call of the device for
            # the permutation takes as long as a step.
            random = np.random.default_rng(self._seed)
            if self._shuffle == "batch":
                batch = rows // self.batch_size
                rows = np.argsort(batch + random.random(self.rows))
            else:
                random.shuffle(rows)
        if self._filled:
            rows = np.resize(rows, self.length * self.batch_size)
        return tf.constant(rows, tf.int32)

    def take(self, updates, window, keeps_remainder):
        """The next launch of at most so many updates; None at the end.

        Args:
            updates: Integer >= 1.
            window: Integer, batches in an update.
            keeps_remainder: Bool, whether a last window that is not full
                makes an update.

        Returns:
            `Rows` or `Batches`, or None.
        """
        available = min(self.left, self.length - self._next)
        if available <= 0:
            self._say_if_short()
            return None
        whole = min(available, max(self.full - self._next, 0)) // window
        start = self._next
        if whole:
            count = min(updates, whole)
            self._advance(count * window)
            return Rows(count * window, count, start, self)
        count = min(available, window)
        if count < window and not keeps_remainder:
            self._advance(available)
            return None
        self._advance(count)
        batches = tuple(self._batch(start + k) for k in range(count))
        return Batches(count, [Window(batches) if window > 1 else batches[0]])

    def _advance(self, count):
        self._next += count
        self.left -= count

    def _say_if_short(self):
        if self.left > 0:
            warn(
                f"The data ran out {self.left} batches before the end of the "
                "epoch, which is cut short. Leave `steps_per_epoch` out."
            )
            self.left = 0

    def _batch(self, k):
        first = k * self.batch_size
        rows = self.order[first : first + self.batch_size]
        return take(self.data, rows, first)

    def batches(self, launch, window):
        """The batches (or windows) of `Rows`, one by one."""
        for k in range(launch.start, launch.start + launch.batches, window):
            batches = tuple(self._batch(k + j) for j in range(window))
            yield Window(batches) if window > 1 else batches[0]


def _batch_spec(data, batch_size):
    """The specs of a full batch."""
    return private.tree.map_structure(
        lambda a: (
            None
            if a is None
            else tf.TensorSpec([batch_size, *a.shape[1:]], a.dtype)
        ),
        data,
    )
