"""Adding parts up: in a loop of the graph, unrolled, and over the replicas."""

import contextlib
import contextvars

import tensorflow as tf

from fastkeras._lib import checks
from fastkeras._lib import figures
from fastkeras._lib.warn import warn
from fastkeras.perf import _gradients
from fastkeras.perf import _part

_UNROLLS = contextvars.ContextVar("unrolls", default=False)


@contextlib.contextmanager
def unrolled(on):
    """While open, runs of a known number of parts are not walked by a loop."""
    token = _UNROLLS.set(on)
    try:
        yield
    finally:
        _UNROLLS.reset(token)


def replicas():
    """Replicas that take part in one update."""
    return tf.distribute.get_strategy().num_replicas_in_sync


def over(runs, body):
    """The total of `body` over all parts of all runs.

    Args:
        runs: List of `Run`.
        body: Function of one part to a `Total`.

    Returns:
        A `Total`.
    """
    total = None
    for run in runs:
        if isinstance(run.count, int) and run.count == 1:
            part = body(run.get(0))
        elif tf.executing_eagerly() or replicas() > 1:
            part = _unrolled(run, body)
        elif _UNROLLS.get() and isinstance(run.count, int):
            part = _unrolled(run, body)
        else:
            part = _looped(run, body)
        total = part if total is None else _part.add(total, part)
    return total


def _unrolled(run, body):
    if not isinstance(run.count, int) and not tf.executing_eagerly():
        raise ValueError(
            checks.message(
                "Under a strategy with several replicas a batch that is cut "
                "into slices must have a known number of rows",
                "an unknown number of rows",
                "Batch the dataset with `drop_remainder=True`, or give arrays.",
            )
        )
    total = None
    for i in range(int(run.count)):
        part = body(run.get(i))
        total = part if total is None else _part.add(total, part)
    return total


def _looped(run, body):
    """Walks a run in the graph; one part is traced, once."""
    # As in Keras's own step, Python is not converted: that is slow to trace.
    traced = tf.function(lambda i: _dense(body(run.get(i))), autograph=False)
    part = traced.get_concrete_function(tf.TensorSpec([], tf.int32))
    spec = part.structured_outputs
    zeros = [tf.zeros(s.shape, s.dtype) for s in _leaves(spec.sums)]
    logs = [tf.zeros(s.shape, s.dtype) for s in _leaves(spec.logs)]

    def advance(i, sums, _):
        total = part(i)
        new = [a + b for a, b in zip(sums, _leaves(total.sums), strict=True)]
        return i + 1, new, _leaves(total.logs)

    _, sums, logs = tf.while_loop(
        lambda i, *_: i < run.count,
        advance,
        [tf.constant(0), zeros, logs],
        parallel_iterations=1,
    )
    return _part.Total(
        _with_leaves(spec.sums, sums), _with_leaves(spec.logs, logs)
    )


def _leaves(structure):
    return [t for t in tf.nest.flatten(structure) if t is not None]


def _with_leaves(structure, leaves):
    leaves = iter(leaves)
    return tf.nest.map_structure(
        lambda t: None if t is None else next(leaves), structure
    )


def _dense(total):
    """Makes sparse gradients dense, which a loop needs; says so."""
    sparse = [
        g
        for group in total.sums.gradients
        for g in group
        if isinstance(g, tf.IndexedSlices)
    ]
    if sparse:
        size = sum(g.shape.num_elements() * g.dtype.size for g in sparse)
        warn(
            f"{len(sparse)} sparse gradient(s) are added up as dense tensors "
            f"of {figures.memory(size)} in all, because the parts of an "
            "update are walked by a loop."
        )
    gradients = [
        [None if g is None else tf.convert_to_tensor(g) for g in group]
        for group in total.sums.gradients
    ]
    return total._replace(sums=total.sums._replace(gradients=gradients))


def over_replicas(sums):
    """Sums over the replicas: once for a whole update."""
    if replicas() == 1:
        return sums
    context = tf.distribute.get_replica_context()
    leaves = _leaves(sums)
    # TensorFlow packs what it is given into one tensor, so of one dtype.
    for dtype in dict.fromkeys(leaf.dtype for leaf in leaves):
        places = [k for k, leaf in enumerate(leaves) if leaf.dtype == dtype]
        summed = context.all_reduce(
            tf.distribute.ReduceOp.SUM, [leaves[k] for k in places]
        )
        for k, leaf in zip(places, summed, strict=True):
            leaves[k] = leaf
    return _with_leaves(sums, leaves)


def divided(sums):
    """The gradient of the whole window: each group over its own weight."""
    out = None
    for group, weight in zip(sums.gradients, sums.weights, strict=True):
        if weight is not None:
            group = _gradients.map_values(
                lambda v, w=weight: tf.math.divide_no_nan(
                    v, tf.cast(w, v.dtype)
                ),
                group,
            )
        if out is None:
            out = group
        else:
            out = [
                _gradients.add(a, b) for a, b in zip(out, group, strict=True)
            ]
    return out
