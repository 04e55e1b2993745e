"""The data that advice is asked for: its batches, shapes and pipeline."""

import functools
import itertools
import math

import keras
import tensorflow as tf

from fastkeras._lib import checks
from fastkeras._lib.private import tree
from fastkeras.measure._pipeline import copied

#: Batches that are kept, and batches whose shapes are looked at.
KEPT, SEEN = 8, 64


class Data:
    """Batches from arrays, a dataset or a PyDataset.

    Args:
        data: `(x, y)` or `(x, y, sample_weight)` of arrays (each may be a
            structure), a `tf.data.Dataset` of batches, or a
            `keras.utils.PyDataset`.
        batch_size: Integer >= 1, of arrays.

    Raises:
        TypeError: If `data` is something else, such as a generator, which
            can't be gone through a second time.
        ValueError: If there is no batch.
    """

    def __init__(self, data, batch_size):
        checks.positive_int(batch_size, "batch_size", "Leave it out for 32.")
        self.is_arrays = isinstance(data, (tuple, list))
        if self.is_arrays:
            data = tuple(data)
            while data and data[-1] is None:
                data = data[:-1]
        self.source, self.batch_size = data, batch_size
        if not self.is_arrays and not isinstance(
            data, (tf.data.Dataset, keras.utils.PyDataset)
        ):
            raise TypeError(
                checks.message(
                    "`data` must be (x, y) of arrays, a tf.data.Dataset of "
                    "batches, or a keras.utils.PyDataset",
                    f"{type(data).__name__}",
                    "Wrap a generator with `tf.data.Dataset.from_generator`.",
                )
            )
        self.dataset = data
        if self.is_arrays:
            self.dataset = tf.data.Dataset.from_tensor_slices(data).batch(
                batch_size
            )

    def __iter__(self):
        dataset = self.dataset
        if isinstance(dataset, tf.data.Dataset):
            # A seeded shuffle counts how often it was gone through.
            yield from dataset if self.is_arrays else copied(dataset)
            return
        count = dataset.num_batches
        for k in itertools.count() if count is None else range(count):
            yield tree.map_structure(
                lambda t: None if t is None else tf.convert_to_tensor(t),
                dataset[k],
            )

    @functools.cached_property
    def _seen(self):
        batches, specs, batch = [], [], None
        for batch in itertools.islice(self, SEEN + 1):
            if len(batches) < KEPT:
                batches.append(batch)
            specs.append(_spec(batch))
        if KEPT < len(specs) <= SEEN:
            batches.append(batch)
        if not specs:
            raise ValueError(
                checks.message(
                    "`data` must hold at least one batch",
                    "no batch",
                    "Look at the pipeline: a filter or a file list may be "
                    "empty.",
                )
            )
        return batches, specs

    @property
    def batches(self):
        """Some batches, as structures of tensors: the first, and the last."""
        return self._seen[0]

    @property
    def batch(self):
        """The first batch."""
        return self.batches[0]

    @property
    def rows(self):
        """Integer, rows of the first batch."""
        return self.specs[0][0][0][0]

    @property
    def specs(self):
        """Of each batch that was seen, shape and dtype of its tensors."""
        return self._seen[1][:SEEN]

    @property
    def kinds(self):
        """Set of what was seen of batches, without their rows."""
        return {without_rows(spec) for spec in self.specs}

    @property
    def open_spec(self):
        """Structure of `tf.TensorSpec` of all batches, what varies open.

        None where they differ in more than the sizes of dense tensors.
        """
        leaves = tree.flatten(self.batch)
        ranks = {tuple((len(s), d) for s, d in spec) for spec in self.specs}
        if len(ranks) > 1 or not all(isinstance(t, tf.Tensor) for t in leaves):
            return None
        return tree.pack_sequence_as(
            self.batch, [_open(leaf) for leaf in zip(*self.specs, strict=True)]
        )

    @functools.cached_property
    def array_bytes(self):
        """Integer, bytes of all rows of arrays; 0 where there are none."""
        if not self.is_arrays:
            return 0
        rows = (self.count - 1) * self.rows
        specs = tree.flatten(self.dataset.element_spec)
        row = sum(math.prod(s.shape[1:]) * s.dtype.size for s in specs)
        return (rows + self.last[0][0][0]) * row

    @functools.cached_property
    def count(self):
        """Integer, the batches of an epoch, or those that were seen."""
        if not self.is_arrays:
            return len(self._seen[1])
        return int(self.dataset.cardinality())

    @property
    def is_whole(self):
        """Whether all batches of an epoch were seen."""
        return len(self._seen[1]) <= SEEN

    @functools.cached_property
    def last(self):
        """Shape and dtype in the last batch, or None if it is not known."""
        if self.is_whole:
            return self.specs[-1]
        if not self.is_arrays:
            return None
        (batch,) = self.dataset.skip(self.count - 1)
        return _spec(batch)


def without_rows(spec):
    """Shapes and dtypes of a batch, without the first dimension."""
    return tuple((shape[1:], dtype) for shape, dtype in spec)


def _open(found):
    """The spec of a tensor, from its shape and dtype in each batch."""
    sizes = zip(*(shape for shape, _ in found), strict=True)
    shape = [size[0] if len(set(size)) == 1 else None for size in sizes]
    return tf.TensorSpec([None, *shape[1:]], found[0][1])


def _spec(batch):
    return tuple(
        (tuple(t.shape), t.dtype.name)
        for t in tree.flatten(batch)
        if t is not None
    )
