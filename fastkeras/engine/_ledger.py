"""The ledger: each trace and each XLA compilation, with its cause."""

import time

import tensorflow as tf

from fastkeras._lib import private


class Entry:
    """One trace or compilation.

    Attributes:
        function: String, the function and its tier.
        cause: String.
        seconds: Float, of the call in which it happened.
        step: Integer, launches before it.
    """

    def __init__(self, function, cause, seconds, step):
        self.function = function
        self.cause = cause
        self.seconds = seconds
        self.step = step

    def __str__(self):
        return (
            f"{self.function}, launch {self.step}, {self.seconds:.2f} s: "
            f"{self.cause}"
        )


class Ledger:
    """Counts the traces of `tf.function`s and the shapes XLA compiled."""

    def __init__(self):
        self.entries = []
        self.compiles = 0
        self._functions = {}
        self._specs = {}
        self._shapes = {}
        self._calls = 0

    def traces(self):
        """Dict of function name to its number of traces."""
        return {
            name: function.experimental_get_tracing_count()
            for name, function in self._functions.items()
        }

    def call(self, name, function, jit, data, *args):
        """Calls a `tf.function` and notes what it traced or compiled."""
        self._functions[name] = function
        before = function.experimental_get_tracing_count()
        start = time.perf_counter()
        result = function(data, *args)
        self._calls += 1
        traced = function.experimental_get_tracing_count() - before
        if traced or jit:
            seconds = time.perf_counter() - start
            self._note(name, jit, traced, data, seconds)
        return result

    def _note(self, name, jit, traced, data, seconds):
        spec = _spec(data)
        seen = self._shapes.setdefault(name, set())
        if traced:
            cause = _cause(self._specs.get(name), spec)
            self.entries.append(Entry(name, cause, seconds, self._calls))
            self._specs[name] = spec
        if jit and spec not in seen:
            seen.add(spec)
            self.compiles += 1
            if not traced:
                self.entries.append(
                    Entry(
                        name, "XLA compiled a new shape", seconds, self._calls
                    )
                )


def _spec(data):
    return tuple(
        ("/".join(map(str, path)), str(t.dtype), tuple(t.shape))
        for path, t in private.tree.flatten_with_path(data)
        if isinstance(t, tf.Tensor) or hasattr(t, "dtype")
    )


def _cause(old, new):
    if old is None:
        return "first call"
    if len(old) != len(new):
        return f"structure: {len(old)} tensors became {len(new)}"
    changed = []
    for (path, dtype, shape), (_, dtype2, shape2) in zip(old, new, strict=True):
        if dtype != dtype2:
            changed.append(f"data[{path}]: dtype {dtype} -> {dtype2}")
        elif shape != shape2:
            changed.append(f"data[{path}]: shape {shape} -> {shape2}")
    return "; ".join(changed) or "the function was called in another context"
