"""Whether tensors are finite: by their sums, and by little of them."""

import numpy as np
import tensorflow as tf

from fastkeras.perf import _gradients


def seem_finite(gradients, layers, inputs, loss, ok):
    """Whether an update is finite, by little of it.

    What is not finite after a layer is so in the gradient of its bias, or in a
    row of that of its kernel. What is not before it is so in a column, however
    little comes out of the layer's activation: one operation each, so it is
    looked for where the data come in.

    Args:
        gradients: List of gradients or None.
        layers: List of what tells the layer of each.
        inputs: Integer, the tensors of floats among the data.
        loss: List of tensors that are looked at as well.
        ok: Scalar bool tensor, what a guard found; None where there is none.

    Returns:
        Scalar bool tensor.
    """
    if ok is None:
        parts = [check_vector(g) for g in _telling(gradients, layers, inputs)]
    else:
        parts = [tf.where(ok, [0.0], [np.nan])]
    # One operation for all layers.
    parts += [check_vector(tensor) for tensor in loss]
    return tf.math.is_finite(tf.reduce_sum(tf.concat(parts, 0)))


def _telling(gradients, layers, inputs):
    """Yields the parts of gradients that are looked at in each update."""
    kernels, with_bias = [], set()
    for g, layer in zip(gradients, layers, strict=True):
        if g is None:
            continue
        if isinstance(g, tf.IndexedSlices) or g.shape.rank < 2:
            with_bias.add(layer)
            yield g
        else:
            kernels.append((g, layer))
    for g, layer in kernels:
        if layer not in with_bias:
            yield g[0]
    # The first variable may be that of the first layer, of one branch alone.
    for g, _ in kernels if inputs > 1 else kernels[:inputs]:
        yield g[..., 0]


def are_finite(variables):
    """List of bool, whether each variable is finite; waits for the device."""
    # One operation each; squares overflow before the weights do.
    tensors = [tf.convert_to_tensor(v.value) for v in variables]
    halves = [float(tf.raw_ops.L2Loss(t=tensor)) for tensor in tensors]
    if np.isfinite(halves).all():
        return [True] * len(variables)
    return np.isfinite([float(check_sum(t)) for t in tensors]).tolist()


def check_sum(gradient):
    """A scalar that is finite if all values of a gradient are."""
    return tf.reduce_sum(check_vector(gradient))


def check_vector(gradient):
    """The values of a gradient, to be added: half precision can't be."""
    (tensor,) = _gradients.values([gradient])
    if tensor.dtype in (tf.float16, tf.bfloat16):
        tensor = tensor * 0
    if tensor.shape.rank != 1:
        tensor = tf.reshape(tensor, [-1])
    return tf.cast(tensor, tf.float32)
