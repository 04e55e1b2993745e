"""The ledger: each trace and each XLA compilation, with its cause."""

import contextlib
import dataclasses
import logging
import threading
import time
from typing import NamedTuple

import tensorflow as tf

from fastkeras._lib import private
from fastkeras.engine._feed import Feed
from fastkeras.perf._padding import Padded
from fastkeras.perf._parts import Window

#: Seconds after which a compilation that goes on is spoken of.
SLOW_COMPILE = 30.0
#: Values that a `tf.function` takes as they are, with a trace for each.
_PYTHON = (bool, int, float, complex, str, bytes)
#: The dtype of a part of the data that is not there.
NOTHING = "nothing"
#: The paths that stand for the rows of a batch where these are gathered from
#: arrays, and for the number of batches in a window.
SIZE = "batch_size"
WINDOW = "batches of an update"
_NAMES = ("x", "y", "sample_weight")


class Leaf(NamedTuple):
    """What a trace depends on in one value of the data.

    Attributes:
        path: String, such as `"x['words']"`; `"batch_size"` for the rows of a
            batch where these are gathered from arrays.
        dtype: String; `"Python float"` for a value that is no tensor, `""`
            for the batch size, `"nothing"` for what is not there.
        shape: Tuple; for a Python value, that value.
    """

    path: str
    dtype: str
    shape: tuple

    def __str__(self):
        return f"{self.dtype} {self.shape}".strip()


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
    """

    function: str
    kind: str
    old: tuple
    new: tuple
    traces: int
    seconds: float
    step: int

    @property
    def changes(self):
        """Pairs of the leaves that differ, old and new; none at first."""
        if not self.old:
            return []
        return _differences(self.old, self.new)

    @property
    def cause(self):
        """The cause in words."""
        if self.kind == "compile":
            return "XLA compiled a new shape"
        if self.kind == "first":
            return "first call"
        return (
            "; ".join(_change(a, b) for a, b in self.changes)
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

    def describe(self):
        """Traces and compilations, as nested plain values."""
        return {
            "traces": self.traces(),
            "xla compiles": self.compiles,
            "events": [str(entry) for entry in self.entries],
        }

    def call(self, name, function, jit, data, *args):
        """Calls a `tf.function` and notes what it traced or compiled."""
        self._functions[name] = function
        before = function.experimental_get_tracing_count()
        spec = spec_of(data) if jit else None
        new_shape = jit and spec not in self._compiled.get(name, ())
        start = time.perf_counter()
        with _watching(name) if new_shape else contextlib.nullcontext():
            result = function(data, *args)
        self.calls += 1
        traced = function.experimental_get_tracing_count() - before
        if traced or new_shape:
            seconds = time.perf_counter() - start
            self._note(name, new_shape, traced, spec or spec_of(data), seconds)
        return result

    def _note(self, name, new_shape, traced, spec, seconds):
        seen = self._traced.setdefault(name, [])
        compiled = self._compiled.setdefault(name, {})
        kind = "retrace" if traced else "compile"
        old = nearest(seen + list(compiled), spec)
        if old is None:
            kind, old = "first", ()
        self.entries.append(
            Entry(name, kind, old, spec, traced, seconds, self.calls)
        )
        if traced:
            seen.append(spec)
        if new_shape:
            compiled[spec] = True
            self.compiles += 1


@contextlib.contextmanager
def _watching(name):
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
        "%s: XLA is still compiling after %g s. To train without, give "
        "`perf=Execution(jit=False)`.",
        name,
        SLOW_COMPILE,
    )


def spec_of(data):
    """Tuple of a `Leaf` for each tensor, spec or Python value of data."""
    rows = ()
    if isinstance(data, Feed):
        rows = (Leaf(SIZE, "", data.batch_size),)
        data = data.data
    if isinstance(data, Window):
        return (Leaf(WINDOW, "", len(data.batches)),) + tuple(
            leaf._replace(path=f"{leaf.path} of batch {k}")
            for k, batch in enumerate(data.batches, 1)
            for leaf in spec_of(batch)
        )
    if isinstance(data, Padded):
        data = data.data
    names = _NAMES if isinstance(data, tuple) else ()
    return rows + tuple(
        _leaf(_name(path, names), value)
        for path, value in private.tree.flatten_with_path(data)
        if hasattr(value, "dtype") or isinstance(value, _PYTHON)
    )


def _name(path, names):
    """The name of a part of a batch, as `fit` calls its arguments."""
    first = "x"
    if names and path:
        first = dict(enumerate(names)).get(path[0], f"data[{path[0]!r}]")
        path = path[1:]
    return first + "".join(f"[{key!r}]" for key in path)


def _leaf(path, value):
    if hasattr(value, "dtype"):
        is_open = getattr(value.shape, "rank", 0) is None
        shape = ("...",) if is_open else tuple(value.shape)
        return Leaf(path, tf.as_dtype(value.dtype).name, shape)
    return Leaf(path, f"Python {type(value).__name__}", repr(value))


def nearest(specs, new):
    """The spec that differs least from `new`, the latest of several; or None.

    A part that is missing or of another kind counts most, then a dtype, then
    each dimension.
    """
    return min(
        reversed(specs),
        key=lambda old: sum(_distance(a, b) for a, b in _differences(old, new)),
        default=None,
    )


def _distance(old, new):
    shapes = old.shape, new.shape
    if NOTHING in (old.dtype, new.dtype):
        return 1000
    if old.dtype != new.dtype:
        return 100
    if not all(isinstance(s, tuple) for s in shapes):
        return 1
    if len(old.shape) != len(new.shape):
        return 10
    return sum(a != b for a, b in zip(*shapes, strict=True))


def _differences(old, new):
    """Pairs of the leaves of two specs that differ, by their paths."""
    old = {leaf.path: leaf for leaf in old}
    new = {leaf.path: leaf for leaf in new}
    pairs = [
        (
            old.get(path, Leaf(path, NOTHING, "")),
            new.get(path, Leaf(path, NOTHING, "")),
        )
        for path in {**old, **new}
    ]
    return [(a, b) for a, b in pairs if a != b]


def _change(old, new):
    if NOTHING in (old.dtype, new.dtype) or not new.dtype:
        return f"{new.path}: {old} -> {new}"
    if old.dtype != new.dtype:
        return f"{new.path}: dtype {old.dtype} -> {new.dtype}"
    return f"{new.path}: shape {old.shape} -> {new.shape}"
