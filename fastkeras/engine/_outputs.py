"""Outputs of many batches in one call, and whether a tier's are the graph's."""

import tensorflow as tf

from fastkeras._lib import private
from fastkeras._lib.philox import philox
from fastkeras.engine._launch import quiet
from fastkeras.engine._traces import any_rows

#: The most batches that XLA makes room for, and the most bytes of them.
ROOM = 128
_BYTES = 2**26
#: Largest difference, as a share of the outputs: more than the order of
#: additions explains.
SHARE = {tf.float64: 1e-6, tf.float32: 1e-4}
_COARSE = 0.05
#: Batches that a loop of the graph may predict at the same time.
_AT_ONCE = 8
#: Batches in one turn of a loop that XLA compiles.
_SIDE_BY_SIDE = 4
_READS = ("Placeholder", "ReadVariableOp", "ResourceGather")


class Loop:
    """Runs a step on full batches of arrays, one after the other.

    It is traced once, whatever the number of rows.

    Args:
        step: Function of a batch to nested tensors of known shapes.
        jit: Bool, whether XLA compiles it.
        feed: `Resident`, the first whose batches are run.

    Attributes:
        room: Integer, the most batches in a call, or None.
        before: List of the variables that a step may change and their values
            before the first call.
    """

    def __init__(self, step, jit, feed):
        self._step = step
        self._jit = jit
        self._size = feed.batch_size
        self.room = _room(feed) if jit else None
        self._function = quiet(self._launch)
        specs = private.tree.map_structure(any_rows, feed.arrays)
        number = tf.TensorSpec([], tf.int32)
        self._specs = specs, number, number
        self._trace = None
        self._free = False
        self.before = []

    def __call__(self, spec, arrays, start, count):
        del spec
        if self._trace is None:
            self._trace = self._function.get_concrete_function(*self._specs)
            if not self._free:
                # All that the step knows of, also where the model does not.
                self.before = [
                    (v, tf.identity(v)) for v in self._trace.variables
                ]
        return self._trace(arrays, start, count)

    def put_back(self):
        """Makes it as if the first call, and what came after, had not been."""
        for variable, value in self.before:
            variable.assign(value)

    def experimental_get_tracing_count(self):
        """How often the function was traced, as of a `tf.function`."""
        return self._function.experimental_get_tracing_count()

    def _launch(self, arrays, start, count):
        size = self._size
        rows = _rows(arrays, start * size, count * size)
        if not self._jit:
            return self._stacked(rows, count, count)
        # XLA compiles for one shape: there is room for more than is asked.
        compiled = quiet(
            lambda rows, count: self._stacked(rows, count, self.room),
            jit_compile=True,
        )
        rows = private.tree.map_structure(
            lambda a: None if a is None else _padded(a, self.room * size), rows
        )
        return tf.nest.map_structure(
            lambda t: t[: count * size], compiled(rows, count)
        )

    def _stacked(self, rows, count, room):
        def one(k):
            with philox(self._jit):
                return self._step(_rows(rows, k * self._size, self._size))

        traced = tf.function(one, autograph=False)
        body = traced.get_concrete_function(tf.TensorSpec([], tf.int32))
        _check(tf.nest.flatten(body.structured_outputs), self._size)
        # Whether the order in which batches are predicted can't be seen.
        self._free = _only_reads(body.graph)
        outs = _loop(body, count, room, self._jit, self._free)
        return tf.nest.pack_sequence_as(body.structured_outputs, outs)


def _room(feed):
    """How many batches XLA makes room for: whole turns of its loop."""
    leaves = [t for t in private.tree.flatten(feed.spec) if t is not None]
    size = sum(t.shape.num_elements() * t.dtype.size for t in leaves)
    most = max(1, min(feed.full, ROOM, _BYTES // max(size, 1)))
    return -(-most // _SIDE_BY_SIDE) * _SIDE_BY_SIDE


def _rows(arrays, first, count):
    return private.tree.map_structure(
        lambda a: None if a is None else _slice(a, first, count), arrays
    )


def _slice(array, first, count):
    rest = array.shape[1:].as_list()
    return tf.slice(array, [first] + [0] * len(rest), [count, *rest])


def _padded(array, rows):
    missing = rows - tf.shape(array)[0]
    pads = [[0, missing]] + [[0, 0]] * (array.shape.rank - 1)
    return tf.ensure_shape(tf.pad(array, pads), [rows, *array.shape[1:]])


def _loop(body, count, room, jit, free):
    """The outputs of all batches, one below the other, as a flat list."""
    arrays = [
        tf.TensorArray(s.dtype, room, element_shape=s.shape)
        for s in tf.nest.flatten(body.structured_outputs)
    ]

    # XLA runs what stands side by side in its loop at the same time. What is
    # past `count` is predicted of zeros, and left out.
    width = _SIDE_BY_SIDE if jit and free else 1

    def advance(k, arrays):
        for _ in range(width):
            outs = tf.nest.flatten(body(k))
            arrays = [a.write(k, t) for a, t in zip(arrays, outs, strict=True)]
            k += 1
        return k, arrays

    _, arrays = tf.while_loop(
        lambda k, _: k < count,
        advance,
        [tf.constant(0), arrays],
        parallel_iterations=_AT_ONCE if free else 1,
    )
    outs = [a.stack() for a in arrays]
    return [tf.reshape(t, [-1, *t.shape[2:]]) for t in outs]


def _only_reads(graph):
    """Whether nothing in a graph changes a state."""
    return all(
        op.type in _READS or not op.op_def.is_stateful
        for op in graph.get_operations()
    )


def _check(outputs, rows):
    """Refuses outputs that may not have so many rows in every batch."""
    for k, out in enumerate(outputs):
        fits = (
            isinstance(out, tf.Tensor)
            and out.shape.is_fully_defined()
            and out.shape[:1] == [rows]
        )
        if not fits:
            raise ValueError(
                f"output {k} is not, in every batch, an array with a row for "
                "each of the batch"
            )


def parting(got, want):
    """How the outputs of a tier part from the graph's, or None."""
    pairs = zip(tf.nest.flatten(got), tf.nest.flatten(want), strict=True)
    for k, (a, b) in enumerate(pairs):
        if bool(_differ(a, b)):
            return f"its output {k} differs from the graph's"
    return None


def _differ(got, want):
    if not want.dtype.is_floating:
        return tf.reduce_any(tf.not_equal(got, want))
    # What is no number in the graph is none in a tier either.
    share = SHARE.get(want.dtype, _COARSE)
    odd = tf.math.is_nan(want) | (got == want)
    got, want = (
        tf.where(odd, 0.0, tf.cast(t, tf.float64)) for t in (got, want)
    )
    return ~(tf.norm(got - want) <= share * tf.norm(want))
