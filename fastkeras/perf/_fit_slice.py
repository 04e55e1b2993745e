"""How many rows of a batch fit into a number of bytes, read from the graph."""

from typing import NamedTuple

import keras
import tensorflow as tf

from fastkeras._lib import checks
from fastkeras._lib import private
from fastkeras._lib import process
from fastkeras._lib.private import tree
from fastkeras.measure import _liveness
from fastkeras.perf._padding import Padded

# Rows of a batch whose number is not known while it is traced.
_SOME = 64


class Need(NamedTuple):
    """Bytes that pass through a step: activations and gradients.

    Attributes:
        least: Integer, of a slice of one row.
        row: Integer, for each further row.
    """

    least: int
    row: int

    def rows(self, budget):
        """The rows of the largest slice that stays in a budget.

        Args:
            budget: Integer, bytes.

        Raises:
            ValueError: If one row does not fit.
        """
        if budget < self.least:
            raise ValueError(
                checks.message(
                    "`budget_bytes` must hold the activations and gradients "
                    "of one row",
                    f"budget_bytes={budget}",
                    f"Give at least {self.least}.",
                )
            )
        return 1 + (budget - self.least) // self.row


def leaves_and_shapes(batch):
    """The tensors of a batch, and the shapes of a row of each."""
    leaves = [t for t in tree.flatten(_dense(batch)) if t is not None]
    return leaves, tuple(tuple(t.shape[1:]) for t in leaves)


def _dense(batch):
    return batch.data if isinstance(batch, Padded) else batch


def need(model, batch):
    """What the forward and backward pass of a slice takes.

    Args:
        model: The model.
        batch: Nested structure of tensors (n, ...).

    Returns:
        A `Need`, by an estimate that runs nothing.
    """
    leaves, _ = leaves_and_shapes(batch)
    # The peak bends upwards as rows are added, so that a line from one row to
    # the whole batch never says too little in between.
    rows = max(2, leaves[0].shape[0] or _SOME)
    least, most = (_peak(model, _dense(batch), n) for n in (1, rows))
    return Need(least, max(1, -(-(most - least) // (rows - 1))))


def _peak(model, batch, rows):
    """Bytes that the gradient of a slice of `rows` rows holds at most."""

    def gradient(data):
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            y_pred = private.forward(model, x, training=True)
            loss = private.compute_loss(
                model, x, y, y_pred, sample_weight, True
            )
        variables = [v.value for v in model.trainable_variables]
        return [g for g in tape.gradient(loss, variables) if g is not None]

    spec = tree.map_structure(
        lambda t: (
            None if t is None else tf.TensorSpec((rows, *t.shape[1:]), t.dtype)
        ),
        batch,
    )
    function = tf.function(gradient, autograph=False)
    return _liveness.peak(function.get_concrete_function(spec).graph)


def half_of_free():
    """Half of the bytes that the process may still take.

    Raises:
        ValueError: If the system does not tell.
    """
    free = process.free()
    if free is None:
        raise ValueError(
            checks.message(
                "Microbatch('auto') needs a budget where the system does not "
                "tell how much memory is free",
                "budget_bytes=None",
                "Give `budget_bytes`.",
            )
        )
    return free // 2
