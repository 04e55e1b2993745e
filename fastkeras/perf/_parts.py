"""The parts an update is added up from: batches of a window, slices of a batch.

A `Run` is a number of parts of one shape and a way to get each. Parts of one
shape are walked by a loop in the graph, so its size does not grow with their
number.
"""

from typing import NamedTuple

import tensorflow as tf

from fastkeras._lib import checks
from fastkeras._lib.private import tree
from fastkeras.perf._padding import Padded
from fastkeras.perf._padding import take


class Window(NamedTuple):
    """Successive batches that make one update.

    Attributes:
        batches: Tuple of batches, each what `train_step` is given.
    """

    batches: tuple

    def runs(self, stack):
        """Groups the batches into runs.

        Args:
            stack: Bool, whether neighbours of one fully known shape may be
                put into one tensor, to be walked by a loop.

        Returns:
            List of `Run`, in order.
        """
        groups = []
        for batch in self.batches:
            spec = _static_spec(batch)
            if groups and stack and spec is not None and spec == groups[-1][0]:
                groups[-1][1].append(batch)
            else:
                groups.append((spec, [batch]))
        return [run for _, batches in groups for run in _run(batches)]


class Run(NamedTuple):
    """Parts of one shape.

    Attributes:
        count: Integer, or a scalar int32 tensor where the rows of the batch
            are not known while tracing.
        get: Function of an index (integer or scalar tensor) to the part.
    """

    count: object
    get: object


def single(data):
    """A run of one."""
    return Run(1, lambda _: data)


def _run(batches):
    if len(batches) < 3:
        return [single(b) for b in batches]
    stacked = tree.map_structure(
        lambda *t: None if t[0] is None else tf.stack(t), *batches
    )
    return [
        Run(len(batches), lambda i: _map(lambda t: tf.gather(t, i), stacked))
    ]


def _static_spec(batch):
    """A comparable spec, or None where a dimension is not known."""
    leaves = [t for t in tree.flatten(batch) if t is not None]
    if not all(isinstance(t, tf.Tensor) for t in leaves):
        return None
    if not all(t.shape.is_fully_defined() for t in leaves):
        return None
    return [(t.dtype, tuple(t.shape)) for t in leaves]


def slices(batch, size):
    """Cuts a batch into runs of slices with at most `size` rows.

    Args:
        batch: Nested structure of tensors (n, ...), or None at a leaf.
        size: Integer >= 1.

    Returns:
        List of `Run`. With n known while tracing: the full slices, then the
        rest. With n unknown: one run whose last slice is cut short.

    Raises:
        TypeError: If a tensor is ragged or sparse.
    """
    if isinstance(batch, Padded):
        return [_padded_slices(batch, size)]
    leaves = [t for t in tree.flatten(batch) if t is not None]
    check_dense(
        leaves,
        "A batch that is cut into slices must hold dense tensors",
        "Make it dense in the dataset, or use `Accumulate` with smaller "
        "batches.",
    )
    rows = leaves[0].shape[0] if leaves[0].shape.rank else None
    if rows is None:
        return [_unknown_slices(batch, rows_of(batch), size)]
    full, rest = divmod(int(rows), size)
    out = []
    if full == 1:
        out.append(single(_map(lambda t: t[:size], batch)))
    elif full:
        blocks = _map(
            lambda t: tf.reshape(
                t[: full * size], [full, size, *_inner_shape(t)]
            ),
            batch,
        )
        out.append(Run(full, lambda i: _map(lambda t: t[i], blocks)))
    if rest:
        out.append(single(_map(lambda t: t[full * size :], batch)))
    return out or [single(batch)]


def check_dense(leaves, rule, remedy):
    """Refuses ragged and sparse tensors.

    Args:
        leaves: Iterable of tensors.
        rule: String, what must be dense.
        remedy: String, what to do.

    Raises:
        TypeError: If one of them is not dense.
    """
    for tensor in leaves:
        if isinstance(tensor, (tf.RaggedTensor, tf.SparseTensor)):
            kind = f"a {type(tensor).__name__}"
            raise TypeError(checks.message(rule, kind, remedy))


def _inner_shape(tensor):
    static, dynamic = tensor.shape[1:], tf.shape(tensor)[1:]
    return [dynamic[k] if d is None else d for k, d in enumerate(static)]


def _unknown_slices(batch, rows, size):
    def get(i):
        return _map(
            lambda t: t[i * size : tf.minimum((i + 1) * size, rows)], batch
        )

    return Run((rows + size - 1) // size, get)


def _padded_slices(batch, size):
    """Slices of one shape, the last filled up with the last row."""
    last = rows_of(batch.data) - 1

    def get(i):
        rows = tf.minimum(i * size + tf.range(size), last)
        return take(batch, rows, i * size)

    return Run((batch.rows + size - 1) // size, get)


def _map(fn, batch):
    return tree.map_structure(lambda t: t if t is None else fn(t), batch)


def rows_of(structure):
    """Rows of a batch, a scalar int32 tensor."""
    first = next(t for t in tree.flatten(structure) if t is not None)
    if isinstance(first, tf.RaggedTensor):
        return tf.cast(first.nrows(), tf.int32)
    if isinstance(first, tf.SparseTensor):
        return tf.cast(first.dense_shape[0], tf.int32)
    return tf.shape(first)[0]
