"""A launch: one call of the device that runs some number of steps.

Tiers: `graph-step` and `xla-step` run one step in a call; `graph-loop` and
`xla-loop` run N steps of a resident feed in a loop, N being a run-time value,
so that it can change without a new trace.
"""

from typing import NamedTuple

import tensorflow as tf

from fastkeras._lib import private
from fastkeras._lib import scopes
from fastkeras._lib.philox import philox
from fastkeras.perf._padding import skip
from fastkeras.perf._padding import take
from fastkeras.perf._parts import Run
from fastkeras.perf._parts import Window

STEPS = ("graph-step", "xla-step")
LOOPS = ("graph-loop", "xla-loop")


class Rows(NamedTuple):
    """Full batches of a resident feed.

    Attributes:
        batches: Integer, how many.
        updates: Integer, how many updates they make.
        start: Integer, the first, counted from the start of the permutation.
        feed: `Resident`.
    """

    batches: int
    updates: int
    start: int
    feed: object


class Batches:
    """Batches at hand, or pulled while they are run.

    Attributes:
        batches: Integer, how many; grows while `data` is gone through.
        updates: Integer, how many updates they make; grows likewise.
        data: Iterable of batches, or of windows of them.
        asked: Integer, updates that a loop may run where it pulls the
            batches itself; 0 where they are at hand.
    """

    asked = 0

    def __init__(self, batches, data):
        self.batches = batches
        self.data = data
        self.updates = 0 if batches == 0 else len(data)

    def add(self, data, window):
        """Counts one more update that `data` is about to yield."""
        self.batches += len(data.batches) if window > 1 else 1
        self.updates += 1


class BlockWindow(Window):
    """A window whose batches are gathered from resident data."""

    def __new__(cls, count, get):
        window = super().__new__(cls, ())
        window.count = count
        window.get = get
        return window

    def runs(self, stack):
        """One run over all batches."""
        del stack
        return [Run(self.count, self.get)]


def with_philox(step, jit):
    """A step of one batch that XLA can compile well."""

    def compute(data):
        with philox(jit):
            return step(data)

    return compute


def step_function(strategy, step, jit, relax=True):
    """Compiles a step of one batch.

    Args:
        strategy: `tf.distribute.Strategy`.
        step: Function of one batch to a dict of logs.
        jit: Bool, whether XLA compiles it.
        relax: Bool, whether a second shape makes the first dimension open.

    Returns:
        A `tf.function` of one batch.
    """
    return quiet(
        lambda data: one_step(strategy, step, data, jit),
        reduce_retracing=relax,
        jit_compile=jit,
    )


def quiet(function, **options):
    """A `tf.function` without TensorFlow's own guess at retraces."""
    return private.without_retrace_warning(
        tf.function(function, autograph=False, **options)
    )


def one_step(strategy, step, data, jit=False):
    """Runs a step on every replica and reduces its logs."""
    with philox(jit):
        logs = strategy.run(step, args=(data,))
    return private.tree.map_structure(
        lambda value: _mean_over_replicas(strategy, value), logs
    )


def _mean_over_replicas(strategy, value):
    if not isinstance(value, tf.distribute.DistributedValues):
        return value
    return tf.reduce_mean(strategy.experimental_local_results(value), axis=0)


def _batch(data, order, first, size):
    """The batch whose rows stand at `first` of the permutation."""
    rows = tf.slice(order, [first], [size])
    return take(data, rows, first)


def rows_function(compute, reset, window):
    """Compiles one step on resident data.

    Args:
        compute: `tf.function` of one batch (or window) to a dict of logs;
            with XLA it is compiled apart from the gathering of its rows.
        reset: Function that resets the metrics.
        window: Integer, batches in an update.

    Returns:
        A `tf.function` of data, permutation, whether the metrics are reset
        before (scalar bool tensor), first batch (scalar int32 tensor) and
        rows of a batch (integer); it returns the logs.
    """

    def launch(data, order, due, start, batch_size):
        batches = tuple(
            _batch(data, order, (start + k) * batch_size, batch_size)
            for k in range(window)
        )
        batch = Window(batches) if window > 1 else batches[0]
        # Traced first: it may make the metrics that are reset before it.
        compute.get_concrete_function(batch)
        tf.cond(due, reset, lambda: None)
        return compute(batch)

    return quiet(launch)


def loop_function(step, reset, window, jit):
    """Compiles a loop of N steps over resident data.

    Args:
        step: Function of one batch (or window) to a dict of logs.
        reset: Function that resets the metrics.
        window: Integer, batches in an update.
        jit: Bool, whether XLA compiles the loop.

    Returns:
        A `tf.function` of data, permutation, whether the metrics are reset
        before (scalar bool tensor), first batch and N (scalar int32 tensors),
        and rows of a batch (integer); it returns the logs of the last step.
        With N = 0 it compiles and touches nothing.
    """

    def loop(data, order, count, batch_size):
        def batch(k):
            return _batch(data, order, k * batch_size, batch_size)

        def one(i):
            if window == 1:
                return step(batch(i))
            return step(BlockWindow(window, lambda j: batch(i * window + j)))

        with philox(jit):
            traced = tf.function(one, autograph=False)
            body = traced.get_concrete_function(tf.TensorSpec([], tf.int32))
        zeros = tf.nest.map_structure(
            lambda s: tf.zeros(s.shape, s.dtype), body.structured_outputs
        )
        _, logs = tf.while_loop(
            lambda i, _: i < count,
            lambda i, _: (i + 1, body(i)),
            [tf.constant(0), zeros],
            parallel_iterations=1,
        )
        return logs

    compiled = quiet(loop, jit_compile=jit)

    def launch(data, order, due, start, count, batch_size):
        # Rolled out here: XLA takes `start` for a constant in some models (an
        # LSTM), and would compile the loop again for each new value.
        first = start * batch_size
        with tf.name_scope(scopes.FEED):
            order = tf.roll(order, -first, 0)
        args = (skip(data, first), order, count, batch_size)
        compiled.get_concrete_function(*args)
        tf.cond(due, reset, lambda: None)
        return compiled(*args)

    return quiet(launch)


def pulls_function(step, jit):
    """Compiles a loop of N steps over the batches of an iterator.

    Args:
        step: Function of one batch to a dict of logs.
        jit: Bool, whether XLA compiles the step; the loop itself stays in the
            graph, where batches of any shape can be pulled.

    Returns:
        A `tf.function` of the first batch, the iterator that yields the
        others, and N (scalar int32 tensor). It returns how many steps it ran,
        which are fewer where the data ends, the logs of the last, and a list
        of their `_sizes` (int32 vector), which is empty where XLA can't have
        compiled anew.
    """

    compute = quiet(with_philox(step, jit), jit_compile=jit)

    def launch(first, iterator, count):
        spec = iterator.element_spec
        body = compute.get_concrete_function(spec)
        zeros = tf.nest.map_structure(
            lambda s: tf.zeros(s.shape, s.dtype), body.structured_outputs
        )
        # The two ways to a batch must agree in their shapes.
        first = tf.nest.map_structure(
            lambda t, s: tf.compat.v1.placeholder_with_default(t, s.shape),
            first,
            spec,
        )

        def one(k, _, logs, sizes):
            batch = tf.cond(
                k == 0,
                lambda: tf.experimental.Optional.from_value(first),
                iterator.get_next_as_optional,
            )
            more = batch.has_value()
            logs, *size = tf.cond(
                more,
                lambda: _computed(compute, batch.get_value(), sizes),
                lambda: (logs, *[tf.zeros([0], tf.int32) for _ in sizes]),
            )
            sizes = [a.write(k, s) for a, s in zip(sizes, size, strict=True)]
            return k + tf.cast(more, tf.int32), more, logs, sizes

        done, _, logs, sizes = tf.while_loop(
            lambda k, more, *_: more & (k < count),
            one,
            [tf.constant(0), tf.constant(True), zeros, _noting(jit, spec)],
            parallel_iterations=1,
        )
        return done, logs, [a.concat() for a in sizes]

    return quiet(launch)


def _computed(compute, batch, sizes):
    """The logs of a batch, and its sizes where these are noted."""
    return (compute(batch), *[_sizes(batch) for _ in sizes])


def _noting(jit, spec):
    """What notes the sizes of each batch: a list of one array, or of none."""
    specs = private.tree.flatten(spec)
    if not jit or all(s.shape.is_fully_defined() for s in specs):
        return []
    options = {"infer_shape": False, "element_shape": [None]}
    return [tf.TensorArray(tf.int32, 0, dynamic_size=True, **options)]


def _sizes(batch):
    """The rank and the sizes of each part of a batch, one after the other."""
    shapes = [tf.shape(part) for part in private.tree.flatten(batch)]
    pairs = [part for shape in shapes for part in (tf.shape(shape), shape)]
    return tf.concat(pairs, 0)
