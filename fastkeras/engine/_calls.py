"""The compiled functions of one step, each made when it is first called."""

import time

import tensorflow as tf

from fastkeras._lib import private
from fastkeras.engine import _launch
from fastkeras.engine import _tiers
from fastkeras.engine._ledger import Ledger
from fastkeras.engine._refusals import annotate
from fastkeras.engine._reset import Reset
from fastkeras.engine._retry import within_memory
from fastkeras.engine._signature import PinnedFunction
from fastkeras.engine._signature import PinnedRows
from fastkeras.engine._signature import signature_of
from fastkeras.engine._traces import TraceOfFeed
from fastkeras.perf import _sums
from fastkeras.perf._parts import Window


class Calls:
    """Runs a step in each way there is, and keeps the ledger of it.

    Args:
        model: The model.
        name: String, `"train_step"` or `"test_step"`.
        eager: Bool, whether steps run without being compiled.
    """

    def __init__(self, model, name, eager):
        self.model = model
        self._name = name
        self._strategy = model.distribute_strategy
        self._step = _step(model, name)
        self._eager = eager
        self._functions = {}
        self._signature = signature_of(model, name)
        self.reset = Reset(model, eager)
        self.ledger = Ledger()

    @property
    def window(self):
        """Batches in an update."""
        return self.model.perf.window if self._name == "train_step" else 1

    @property
    def shrinks(self):
        """Whether a step without memory is run again with less."""
        return self._name == "train_step" and self.model.perf.shrinks

    @property
    def takes_batches(self):
        """Whether steps are given batches only, not rows to gather."""
        return self._eager

    def has(self, key):
        """Whether a loop (`"graph-loop, stream"`) is compiled."""
        return key in self._functions

    def forget(self, key):
        """Drops a loop that is of no use."""
        self._functions.pop(key, None)

    def forget_all(self):
        """Drops all functions, which are made anew when they are called."""
        self._functions.clear()
        self.ledger.forget_all()

    @within_memory
    def batch(self, tier, data):
        """Runs one step on a batch at hand."""
        data = _without_optionals(data)
        if self._signature:
            self._signature.check(data)
        if self._eager:
            return _launch.one_step(self._strategy, self._step, data)
        jit = tier == "xla-step"
        function = self._made(tier, self._step_function, jit)
        return self._call(tier, function, jit, data)

    def _step_function(self, jit):
        several = self._strategy.num_replicas_in_sync > 1
        cuts = self.model.perf.cuts and several
        relax = not (cuts or self._signature)
        function = _launch.step_function(
            self._strategy, self._step, jit, relax=relax
        )
        if self._signature:
            function = PinnedFunction(function, self._signature)
        return function

    @within_memory
    def row(self, tier, feed, start, due=False):
        """Runs one step of a resident feed.

        Args:
            tier: String.
            feed: `Resident`.
            start: Integer, the first batch.
            due: Bool, whether the metrics are reset before.
        """
        if self._signature:
            return self._pinned_row(tier, feed, due, start)

        def make(step, reset, window, jit):
            compute = _launch.with_philox(step, jit)
            compute = _launch.quiet(compute, jit_compile=jit)
            return _launch.rows_function(compute, reset, window)

        key = f"{tier}, resident"
        numbers = (due, start)
        return self._gathers(key, make, tier, feed, *numbers, by_batch=True)

    def _pinned_row(self, tier, feed, *numbers):
        """Runs one step of a resident feed by the one trace there is."""
        jit = tier == "xla-step"
        pinned = self._made(tier, self._step_function, jit)
        function = self._made(
            f"{tier}, resident",
            lambda: PinnedRows(
                pinned,
                _launch.rows_function(pinned, self.reset.within, self.window),
            ),
        )
        spec = feed.spec
        if self.window > 1:
            spec = Window((spec,) * self.window)
        numbers = map(tf.constant, numbers)
        return self._call(tier, function, jit, spec, feed, *numbers)

    @within_memory
    def loop(self, tier, feed, start, updates, due=False):
        """Runs steps of a resident feed in one call; see `row`."""
        key = loop_key(tier, feed)
        numbers = (due, start, updates)
        return self._gathers(key, _launch.loop_function, tier, feed, *numbers)

    def _gathers(self, key, make, tier, feed, *numbers, by_batch=False):
        """Calls a function that gathers its rows by the permutation."""
        jit = tier.startswith("xla")
        function = self._made(
            key,
            lambda: TraceOfFeed(
                make(self._step, self.reset.within, self.window, jit),
                relax=not jit,
            ),
        )
        numbers = map(tf.constant, numbers)
        return self._call(key, function, jit, feed, *numbers, by_batch=by_batch)

    def trace_pulls(self, tier, feed):
        """Traces the loop over a stream, apart from running it."""
        key = loop_key(tier, feed)
        jit = tier == "xla-loop"
        function = self._made(key, _launch.pulls_function, self._step, jit)
        count = tf.TensorSpec([], tf.int32)
        arguments = feed.spec, feed.iterator, count
        self.ledger.trace(self._named(key), function, *arguments)

    def pulls(self, tier, feed, first, count):
        """Runs steps over a stream in one call.

        Args:
            tier: String.
            feed: `Stream`.
            first: The first batch, which has been pulled.
            count: Integer, the most steps to run.

        Returns:
            Tuple of the steps it ran, and the logs of the last.
        """
        key, start = loop_key(tier, feed), time.perf_counter()
        done, logs, sizes = self._call(
            key,
            self._functions[key],
            tier == "xla-loop",
            first,
            feed.iterator,
            tf.constant(count),
        )
        done, seconds = int(done), time.perf_counter() - start
        for vector in sizes:
            self.ledger.pulled(self._named(key), first, vector.numpy(), seconds)
        return done, logs

    def _made(self, key, make, *args, **kwargs):
        if key not in self._functions:
            self._functions[key] = make(*args, **kwargs)
        return self._functions[key]

    def _named(self, key):
        return f"{self._name} ({key})"

    def _call(self, key, function, jit, *args, **how):
        name = self._named(key)
        try:
            return self.ledger.call(name, function, jit, *args, **how)
        except tf.errors.OpError as error:
            if jit:
                annotate(error, self.model)
            raise


def _step(model, name):
    """The step, whose parts an XLA loop would walk too slowly unrolled."""
    step = getattr(model, name)

    def unrolled(data):
        slow = model.jit_compile and _tiers.xla_loops_are_slow(model)
        with _sums.unrolled(slow):
            return step(data)

    return unrolled


def loop_key(tier, feed):
    """Names a loop; the resident feed is the one that has most."""
    return tier if feed.name == "resident" else f"{tier}, {feed.name}"


def _without_optionals(data):
    """Generators that yield None bring it as an empty optional."""
    return private.tree.map_structure(
        lambda t: None if isinstance(t, tf.experimental.Optional) else t, data
    )
