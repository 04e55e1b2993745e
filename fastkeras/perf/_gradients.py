"""Sums, norms and tests on lists of gradients.

A gradient is a tensor, a `tf.IndexedSlices` or None; None passes through, and
nothing here makes a sparse gradient dense.
"""

import tensorflow as tf


def map_values(fn, gradients):
    """Applies `fn` to each gradient's tensor, keeping sparse ones sparse."""
    return [on_values(fn, g) for g in gradients]


def on_values(fn, gradient):
    """Applies an elementwise `fn` to one gradient."""
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(
            fn(gradient.values), gradient.indices, gradient.dense_shape
        )
    return fn(gradient)


def values(gradients):
    """The tensors of all gradients that are not None."""
    return [
        g.values if isinstance(g, tf.IndexedSlices) else g
        for g in gradients
        if g is not None
    ]


def widen(tensor):
    """To float32, unless it is wider already."""
    if tensor.dtype in (tf.float16, tf.bfloat16):
        return tf.cast(tensor, tf.float32)
    return tensor


def add(a, b):
    """The sum of two gradients of one variable; sparse stays sparse."""
    if a is None or b is None:
        return b if a is None else a
    sparse = [isinstance(g, tf.IndexedSlices) for g in (a, b)]
    if all(sparse):
        return tf.IndexedSlices(
            tf.concat([a.values, b.values], 0),
            tf.concat([a.indices, b.indices], 0),
            a.dense_shape,
        )
    return tf.convert_to_tensor(a) + tf.convert_to_tensor(b)


def sum_duplicates(gradient):
    """Sums the rows of an `IndexedSlices` that share an id.

    Shapes stay static so that XLA can compile it: ids are sorted, equal
    neighbours share a segment, and unused segments hold zeros for id 0.

    Args:
        gradient: Any gradient; only an `IndexedSlices` changes.

    Returns:
        The same gradient, each id with its whole sum in one row.
    """
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    order = tf.argsort(gradient.indices, stable=True)
    ids = tf.gather(gradient.indices, order)
    rows = tf.gather(gradient.values, order)
    starts = tf.concat([[0], tf.cast(ids[1:] != ids[:-1], tf.int32)], 0)
    segment = tf.cumsum(starts)[: tf.size(ids)]
    count = tf.size(ids)
    return tf.IndexedSlices(
        tf.math.unsorted_segment_sum(rows, segment, count),
        tf.maximum(tf.math.unsorted_segment_max(ids, segment, count), 0),
        gradient.dense_shape,
    )


def square_norm(gradient):
    """The sum of squares of one gradient (duplicates summed already)."""
    (tensor,) = values([gradient])
    return tf.reduce_sum(tf.square(widen(tensor)))


def global_norm(gradients):
    """The L2 norm over all gradients together, a scalar."""
    squares = [square_norm(g) for g in gradients if g is not None]
    widest = tf.float64 if any(s.dtype == tf.float64 for s in squares) else None
    return tf.sqrt(tf.add_n([tf.cast(s, widest or s.dtype) for s in squares]))


def all_finite(gradients):
    """A scalar bool: True if no value is an infinity or NaN."""
    return tf.reduce_all(
        [tf.reduce_all(tf.math.is_finite(v)) for v in values(gradients)]
    )
