"""The ledger: each trace and each XLA compilation, with its cause."""

import contextlib
import dataclasses
import itertools
import logging
import threading
import time

from fastkeras.engine._specs import batch_of
from fastkeras.engine._specs import change
from fastkeras.engine._specs import differences
from fastkeras.engine._specs import nearest
from fastkeras.engine._specs import spec_of

#: Seconds after which a compilation that goes on is spoken of.
SLOW_COMPILE = 30.0


@dataclasses.dataclass(frozen=True)
class Entry:
    """One trace or compilation.

    Attributes:
        function: String, the function and its tier.
        kind: `"first"` for the first call, `"retrace"`, or `"compile"` where
            XLA compiled a new shape without a new trace.
        old: Tuple of `Leaf`, of the earlier call that is most alike.
        new: Tuple of `Leaf`.
        traces: Integer, traces in this one call.
        seconds: Float, of the call in which it happened.
        step: Integer, which call of all functions it was, counted from 1.
        compiled: Bool, whether XLA compiled a new shape.
    """

    function: str
    kind: str
    old: tuple
    new: tuple
    traces: int
    seconds: float
    step: int
    compiled: bool = False

    @property
    def changes(self):
        """Pairs of the leaves that differ, old and new; none at first."""
        if not self.old:
            return []
        return differences(self.old, self.new)

    @property
    def cause(self):
        """The cause in words."""
        if self.kind == "compile":
            return "XLA compiled a new shape"
        if self.kind == "first":
            return "first call"
        return (
            "; ".join(change(a, b) for a, b in self.changes)
            or "the function was called in another context"
        )

    def __str__(self):
        return (
            f"{self.function}, call {self.step}, {self.seconds:.2f} s: "
            f"{self.cause}"
        )


class Ledger:
    """Counts the traces of `tf.function`s and the shapes XLA compiled."""

    def __init__(self):
        self.entries = []
        self.compiles = 0
        self._functions = {}
        self._traced = {}
        self._compiled = {}
        self._ahead = {}
        self.calls = 0

    def traces(self):
        """Dict of function name to its number of traces."""
        return {
            name: function.experimental_get_tracing_count()
            for name, function in self._functions.items()
        }

    def forget_all(self):
        """The functions are made anew: their next call is the first."""
        self._traced.clear()
        self._compiled.clear()
        self._ahead.clear()

    def describe(self):
        """Traces and compilations, as nested plain values."""
        return {
            "traces": self.traces(),
            "xla compiles": self.compiles,
            "events": [str(entry) for entry in self.entries],
        }

    def trace(self, name, function, *args):
        """Traces a `tf.function` ahead; its next call is noted for it."""
        start = time.perf_counter()
        function.get_concrete_function(*args)
        self._ahead[name] = 1, time.perf_counter() - start

    def call(self, name, function, jit, data, *args, by_batch=False):
        """Calls a `tf.function` and notes what it traced or compiled.

        Args:
            name: String, of the function.
            function: `tf.function` of the data and further arguments.
            jit: Bool, whether XLA compiles it.
            data: What it is traced for.
            *args: The further arguments.
            by_batch: Bool, whether XLA compiles what it does with a batch of
                the data alone.

        Returns:
            What the function returns.
        """
        self._functions[name] = function
        ahead, spent = self._ahead.pop(name, (0, 0.0))
        before = function.experimental_get_tracing_count() - ahead
        spec = spec_of(data) if jit else None
        shape = batch_of(spec) if jit and by_batch else spec
        new_shape = jit and shape not in self._compiled.get(name, ())
        start = time.perf_counter()
        with watching(name) if new_shape else contextlib.nullcontext():
            result = function(data, *args)
        self.calls += 1
        traced = function.experimental_get_tracing_count() - before
        if traced or new_shape:
            seconds = time.perf_counter() - start + spent
            shape = shape if new_shape else None
            self._note(name, traced, spec or spec_of(data), seconds, shape)
        return result

    def pulled(self, name, first, sizes, seconds):
        """Notes what XLA compiled within a call that pulls its batches.

        Args:
            name: String, of the function.
            first: Its first batch, which is noted.
            sizes: Iterator of integers, the rank and the sizes of each part
                of each batch.
            seconds: Float, of the call.
        """
        like, sizes = spec_of(first), iter(sizes.tolist())
        for rank in sizes:
            shapes = [tuple(itertools.islice(sizes, rank))]
            for _ in like[1:]:
                shapes.append(tuple(itertools.islice(sizes, next(sizes))))
            pairs = zip(like, shapes, strict=True)
            spec = tuple(leaf._replace(shape=shape) for leaf, shape in pairs)
            if spec not in self._compiled[name]:
                self._note(name, 0, spec, seconds, spec)
                # Told once, of all that the call has compiled.
                seconds = 0.0

    def _note(self, name, traced, spec, seconds, shape):
        """Adds an entry; `shape` is what XLA compiled for, or None."""
        seen = self._traced.setdefault(name, [])
        compiled = self._compiled.setdefault(name, {})
        kind = "retrace" if traced else "compile"
        old = nearest([*seen, *compiled.values()], spec)
        if old is None:
            kind, old = "first", ()
        call, jit = self.calls, shape is not None
        self.entries.append(
            Entry(name, kind, old, spec, traced, seconds, call, jit)
        )
        if traced:
            seen.append(spec)
        if jit:
            compiled[shape] = spec
            self.compiles += 1


@contextlib.contextmanager
def watching(name):
    """Says so if XLA is still compiling after a while."""
    timer = threading.Timer(SLOW_COMPILE, _say_slow, [name])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _say_slow(name):
    logging.getLogger(__name__).warning(
        "%s: XLA is still compiling after %g s. To train without it, give "
        "`jit_compile=False` to `compile`.",
        name,
        SLOW_COMPILE,
    )
