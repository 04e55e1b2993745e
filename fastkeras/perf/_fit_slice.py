"""How many rows of a batch fit into a number of bytes, read from the graph."""

import resource

import keras
import tensorflow as tf

from fastkeras._lib import checks
from fastkeras._lib import private
from fastkeras._lib.private import tree
from fastkeras.measure import _liveness
from fastkeras.perf._padding import Padded

# Two sizes of a slice tell what a row takes and what is there in any case.
_SIZES = (8, 16)


def fitted_rows(model, batch, budget):
    """The largest slice whose forward and backward pass stay in a budget.

    Args:
        model: The model.
        batch: Nested structure of tensors (n, ...), n known.
        budget: Integer, bytes for what passes through the step: activations
            and gradients; without variables, slots and data.

    Returns:
        Integer, 1 to n.

    Raises:
        ValueError: If one row does not fit, or n is not known.
    """
    if isinstance(batch, Padded):
        batch = batch.data
    rows = next(t for t in tree.flatten(batch) if t is not None).shape[0]
    if rows is None:
        raise ValueError(
            checks.message(
                "Microbatch('auto') needs batches of a known size",
                "a batch of an unknown number of rows",
                "Batch the dataset with `drop_remainder=True`, or give the "
                "rows of a slice.",
            )
        )
    small, large = (_peak(model, batch, n) for n in _SIZES)
    row = max(1, (large - small) / (_SIZES[1] - _SIZES[0]))
    fixed = small - _SIZES[0] * row
    fitting = int((budget - fixed) // row)
    if fitting < 1:
        raise ValueError(
            checks.message(
                "`budget_bytes` must hold the activations of one row",
                f"budget_bytes={budget}",
                f"Give at least {int(fixed + row) + 1}: {int(fixed)} for the "
                f"gradients and {int(row)} for a row.",
            )
        )
    return min(fitting, int(rows))


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


def free_bytes():
    """Bytes the process may still take: of the machine, and by its limit."""
    with open("/proc/meminfo", encoding="ascii") as lines:
        fields = dict(line.split(":") for line in lines)
    free = int(fields["MemAvailable"].split()[0]) * 1024
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return free
    with open("/proc/self/statm", encoding="ascii") as file:
        taken = int(file.read().split()[0]) * resource.getpagesize()
    return max(0, min(free, limit - taken))
