"""A padded batch: few shapes outside of the step, the real data inside it.

The model runs on all rows and steps, whose number is known to the compiler;
its outputs are cut to the real ones before any loss or metric sees them, so
that nothing has to know of weights of zero. The cut goes by a mask: a slice to
a number of rows would have XLA compile anew for each number.
"""

from typing import NamedTuple

import keras
import tensorflow as tf

from fastkeras._lib import checks
from fastkeras._lib import private
from fastkeras._lib import private_marks
from fastkeras._lib import scopes
from fastkeras._lib.layers import trained_batch_norms
from fastkeras._lib.private import tree


class Padded(NamedTuple):
    """A batch (or whole arrays) with rows or steps that do not count.

    Attributes:
        data: The padded batch, as `train_step` is given batches.
        rows: Scalar int32 tensor, the real rows.
        steps: The structure of `data`, with a scalar int32 tensor, the real
            steps, for each leaf that was padded along axis 1, else None.
    """

    data: object
    rows: object
    steps: object

    @property
    def size(self):
        """Integer, the rows with those that were added."""
        leaves = tree.flatten(self.data)
        return int(next(t for t in leaves if t is not None).shape[0])

    def real(self):
        """The batch without what was added."""
        return tree.map_structure(
            lambda t, steps: None if t is None else _cut(t, self.rows, steps),
            self.data,
            self.steps,
        )

    def real_outputs(self, outputs):
        """The model's outputs for the real rows and steps.

        An output with a mask over the padded steps has one entry a step; any
        other has none.
        """

        def cut(tensor):
            mask = private_marks.mask_of(tensor)
            steps = None if mask is None else self._steps_of(mask)
            tensor = _cut(tensor, self.rows, steps)
            if mask is not None:
                private_marks.set_mask(tensor, _cut(mask, self.rows, steps))
            return tensor

        return tree.map_structure(cut, outputs)

    def _steps_of(self, mask):
        """The real steps of what a mask belongs to, or None."""
        leaves = zip(
            tree.flatten(self.data), tree.flatten(self.steps), strict=True
        )
        for tensor, steps in leaves:
            if steps is not None and mask.shape[1:2].is_compatible_with(
                tensor.shape[1:2]
            ):
                return steps
        return None


def _cut(tensor, rows, steps):
    for axis, count in enumerate((rows, steps)):
        if count is not None:
            is_real = tf.range(tf.shape(tensor)[axis]) < count
            tensor = tf.gather(tensor, tf.where(is_real)[:, 0], axis=axis)
    return tensor


def take(data, rows, first):
    """Takes some rows of a batch or of whole arrays.

    Args:
        data: Nested structure of tensors, or a `Padded` of them.
        rows: Vector of int32, where the rows stand.
        first: Scalar, the rows taken before these; as many as are real after
            them are real among these.

    Returns:
        The same kind as `data`.
    """
    if isinstance(data, Padded):
        size = tf.shape(rows)[0]
        real_rows = tf.clip_by_value(data.rows - first, 0, size)
        return Padded(take(data.data, rows, first), real_rows, data.steps)
    with tf.name_scope(scopes.FEED):
        return tree.map_structure(
            lambda t: None if t is None else tf.gather(t, rows), data
        )


def skip(data, rows):
    """Whole arrays of which so many rows have been taken before."""
    if isinstance(data, Padded):
        return data._replace(rows=data.rows - rows)
    return data


def real(data):
    """A batch without what was added to it, if anything was."""
    return data.real() if isinstance(data, Padded) else data


def refuse_trained_norms(model):
    """Refuses layers whose mean over the batch would count the padding.

    Raises:
        ValueError: If the model has a `BatchNormalization` that trains.
    """
    names = trained_batch_norms(model)
    if names:
        raise ValueError(
            checks.message(
                "`PadBatches` can't be exact beside a BatchNormalization that "
                "trains: its mean would count the padding",
                f"layers {names}",
                "Freeze them (`trainable = False`), or drop the remainder.",
            )
        )


def forward(model, data, training):
    """Calls a model on a batch.

    Args:
        model: The model.
        data: A batch, padded or not.
        training: Bool.

    Returns:
        The outputs for the rows and steps that are real.

    Raises:
        ValueError: If a layer of a padded batch adds a loss, or takes the
            mean of the batch: it would count what was added.
    """
    padded = isinstance(data, Padded)
    x, _, _ = keras.utils.unpack_x_y_sample_weight(
        data.data if padded else data
    )
    outputs = private.forward(model, x, training)
    if not padded:
        return outputs
    if training:
        # Once more: by now, layers that are made in `build` are there.
        refuse_trained_norms(model)
    names = private_marks.layers_with_added_losses(model)
    if names:
        raise ValueError(
            checks.message(
                "A padded batch can't have losses that layers add "
                "(`add_loss`, `activity_regularizer`): they would count the "
                "padding",
                f"layers {names}",
                "Move the loss into `compute_loss`, or leave `PadBatches` out "
                "of `perf`.",
            )
        )
    return data.real_outputs(outputs)
