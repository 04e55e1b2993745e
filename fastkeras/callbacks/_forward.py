"""What the operations of a forward pass gave: dead units, the first NaN."""

import numpy as np
import tensorflow as tf

from fastkeras._lib import scopes
from fastkeras.callbacks._finite import check_sum

#: Operations that hand on what others made.
_PASSIVE = {"Const", "Identity", "ReadVariableOp", "Reshape"}
#: Operations that take a batch from all the data of an epoch.
_TAKING = {"GatherV2", "Slice", "StridedSlice"}
_RELUS = {"Relu", "Relu6"}
_UNSEEN = -1.0


class Forward:
    """Notes, within a branch of the step, how its forward pass went."""

    def __init__(self):
        self._names = []
        self._alive = {}
        # An update with a bad forward pass, its first operation.
        self._first = variable(tf.constant([0, -1], tf.int64))

    @property
    def notes(self):
        """List of its variables."""
        return [self._first, *self._alive.values()]

    def note(self, operations, output, good, wanted, step):
        """Notes, at an update, which units live, and what turned first.

        Args:
            operations: List of the operations so far in the outer graph.
            output: Function of a tensor of theirs to that of this graph.
            good: Scalar bool tensor, whether the update seems finite.
            wanted: Scalar bool tensor, whether to note what turned.
            step: Scalar int64 tensor, the number of the update.
        """
        self._note_alive(operations, output, good)
        looked = [o for o in operations if _is_of_batch(o)]
        offset = len(self._names)
        # Each tier traces the step, and may number its operations otherwise.
        self._names += [(o.name, o.type) for o in looked]
        finite = tf.math.is_finite(
            tf.stack([check_sum(output(o.outputs[0])) for o in looked])
        )
        number = tf.where(
            tf.reduce_all(finite),
            tf.constant(-1, tf.int64),
            offset + tf.argmin(tf.cast(finite, tf.int32)),
        )
        before = self._first + 0
        # The first of several parts of an update.
        is_first = wanted & (number >= 0) & (before[0] != step)
        now = tf.stack([step, number])
        self._first.assign(tf.where(is_first, now, before))

    def _note_alive(self, operations, output, good):
        relus = [o for o in operations if _rectifies(o)]
        key = tuple(
            (o.name, o.outputs[0].shape[-1])
            for o in relus
            if o.outputs[0].shape[-1:].is_fully_defined()
        )
        if not key:
            return
        if key not in self._alive:
            with tf.init_scope():
                unseen = tf.fill([sum(width for _, width in key)], _UNSEEN)
                self._alive[key] = variable(unseen)
        tops = [
            _largest(output(o.outputs[0])) for o in relus if o.name in dict(key)
        ]
        seen = self._alive[key]
        # Units are neither dead nor alive where all is NaN.
        now = tf.maximum(seen, tf.concat(tops, 0))
        seen.assign(tf.where(good, now, seen + 0.0))

    # Outside.

    def dead(self):
        """Dict of operation name to the fraction of its units that is dead.

        Without operations of which no finite update was looked at.
        """
        found = {}
        for key, seen in self._alive.items():
            names, widths = zip(*key, strict=True)
            parts = np.split(seen.numpy(), np.cumsum(widths)[:-1])
            for name, part in zip(names, parts, strict=True):
                if not (part == _UNSEEN).any():
                    found[name] = float((part <= 0).mean())
        return found

    def first(self, step):
        """Name and type of the first operation that turned at an update.

        `()` if all of them were finite, None if they could not be looked at.
        """
        if not self._names:
            return None
        seen, number = self._first.numpy().tolist()
        return self._names[number] if seen == step and number >= 0 else ()

    def reset(self):
        """Begins an epoch."""
        for seen in self._alive.values():
            seen.assign(np.full(seen.shape, _UNSEEN, "float32"))


def _rectifies(operation):
    """Whether an operation is a ReLU, as Keras or a user writes it."""
    if operation.type == "Maximum":
        return any(map(_is_zero, operation.inputs))
    if operation.type == "SelectV2":
        # Keras's with a threshold.
        condition, kept, other = operation.inputs
        is_larger = condition.op.type == "Greater"
        is_larger = is_larger and condition.op.inputs[0] is kept
        return is_larger and _is_zero(other)
    return operation.type in _RELUS


def _is_zero(tensor):
    is_scalar = tensor.op.type == "Const" and tensor.shape.rank == 0
    return is_scalar and tf.get_static_value(tensor) == 0


def _is_of_batch(operation):
    """Whether an operation made floats of this batch, or is its input."""
    if operation.type in _PASSIVE or not operation.outputs:
        return False
    if not operation.outputs[0].dtype.is_floating:
        return False
    return operation.type != "Placeholder" or not any(
        reader.type in _TAKING and scopes.FEED in reader.name
        for reader in operation.outputs[0].consumers()
    )


def variable(value):
    """A variable to note figures in, in each replica its own."""
    return tf.Variable(
        value,
        trainable=False,
        aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
    )


def _largest(output):
    """The largest value of each unit, over rows and places."""
    axes = list(range(output.shape.rank - 1))
    return tf.cast(tf.reduce_max(output, axes), tf.float32)
