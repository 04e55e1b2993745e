"""Specs: what a trace or a compilation depends on in the data."""

from typing import NamedTuple

import tensorflow as tf

from fastkeras._lib import private
from fastkeras.engine._feed import Feed
from fastkeras.perf._padding import Padded
from fastkeras.perf._parts import Window

#: Values that a `tf.function` takes as they are, with a trace for each.
_PYTHON = (bool, int, float, complex, str, bytes)
#: What has no dtype, but a part in a spec.
_OTHERS = (*_PYTHON, tf.distribute.DistributedValues)
#: The dtype of a part of the data that is not there.
NOTHING = "nothing"
#: The paths that stand for the rows of a batch where these are gathered from
#: arrays, and for the number of batches in a window.
SIZE = "batch_size"
WINDOW = "batches of an update"
_NAMES = ("x", "y", "sample_weight")


class Leaf(NamedTuple):
    """What a trace depends on in one value of the data.

    Attributes:
        path: String, such as `"x['words']"`; `"batch_size"` for the rows of a
            batch where these are gathered from arrays.
        dtype: String; `"Python float"` for a value that is no tensor, `""`
            for the batch size, `"nothing"` for what is not there.
        shape: Tuple; for a Python value, that value.
    """

    path: str
    dtype: str
    shape: tuple

    def __str__(self):
        return f"{self.dtype} {self.shape}".strip()


def spec_of(data):
    """Tuple of a `Leaf` for each tensor, spec or Python value of data."""
    rows = ()
    if isinstance(data, Feed):
        rows = (Leaf(SIZE, "", data.batch_size),)
        data = data.data
    if isinstance(data, Window):
        return (Leaf(WINDOW, "", len(data.batches)),) + tuple(
            leaf._replace(path=f"{leaf.path} of batch {k}")
            for k, batch in enumerate(data.batches, 1)
            for leaf in spec_of(batch)
        )
    if isinstance(data, Padded):
        data = data.data
    names = _NAMES if isinstance(data, tuple) else ()
    return rows + tuple(
        _leaf(_name(path, names), value)
        for path, value in private.tree.flatten_with_path(data)
        if hasattr(value, "dtype") or isinstance(value, _OTHERS)
    )


def batch_of(spec):
    """What a batch of a feed of rows is like."""
    rows, *leaves = spec
    return tuple(
        leaf._replace(shape=(rows.shape, *leaf.shape[1:])) for leaf in leaves
    )


def _name(path, names):
    """The name of a part of a batch, as `fit` calls its arguments."""
    first = "x"
    if names and path:
        first = dict(enumerate(names)).get(path[0], f"data[{path[0]!r}]")
        path = path[1:]
    return first + "".join(f"[{key!r}]" for key in path)


def _leaf(path, value):
    if isinstance(value, tf.distribute.DistributedValues):
        parts = [_leaf(path, part) for part in value.values]
        rows = [part.shape[0] for part in parts if part.shape]
        if not all(isinstance(n, int) for n in rows):
            return parts[0]
        # Its rows are those of all replicas.
        total = (sum(rows),) if rows else ()
        return parts[0]._replace(shape=total + parts[0].shape[1:])
    if hasattr(value, "dtype"):
        is_open = getattr(value.shape, "rank", 0) is None
        shape = ("...",) if is_open else tuple(value.shape)
        return Leaf(path, tf.as_dtype(value.dtype).name, shape)
    return Leaf(path, f"Python {type(value).__name__}", repr(value))


def nearest(specs, new):
    """The spec that differs least from `new`, the latest of several; or None.

    A part that is missing or of another kind counts most, then a dtype, then
    each dimension.
    """
    return min(
        reversed(specs),
        key=lambda old: sum(_distance(a, b) for a, b in differences(old, new)),
        default=None,
    )


def _distance(old, new):
    shapes = old.shape, new.shape
    if NOTHING in (old.dtype, new.dtype):
        return 1000
    if old.dtype != new.dtype:
        return 100
    if not all(isinstance(s, tuple) for s in shapes):
        return 1
    if len(old.shape) != len(new.shape):
        return 10
    return sum(a != b for a, b in zip(*shapes, strict=True))


def differences(old, new):
    """Pairs of the leaves of two specs that differ, by their paths."""
    old = {leaf.path: leaf for leaf in old}
    new = {leaf.path: leaf for leaf in new}
    pairs = [
        (
            old.get(path, Leaf(path, NOTHING, "")),
            new.get(path, Leaf(path, NOTHING, "")),
        )
        for path in {**old, **new}
    ]
    return [(a, b) for a, b in pairs if a != b]


def change(old, new):
    """How two leaves of one path differ, in words."""
    if NOTHING in (old.dtype, new.dtype) or not new.dtype:
        return f"{new.path}: {old} -> {new}"
    if old.dtype != new.dtype:
        return f"{new.path}: dtype {old.dtype} -> {new.dtype}"
    return f"{new.path}: shape {old.shape} -> {new.shape}"
