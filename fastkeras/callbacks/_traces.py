"""Trace counts of what runs the steps: the engine's runner, or Keras's."""

import weakref

from fastkeras._lib import private_traces
from fastkeras.engine._ledger import Entry
from fastkeras.engine._ledger import nearest
from fastkeras.engine._ledger import spec_of

#: Runners that a callback of this package made on purpose.
_INTENDED = weakref.WeakSet()


def make_intended(model):
    """Makes the train function of a model anew: RetraceMonitor lets it be."""
    model.make_train_function(force=True)
    _INTENDED.add(model.train_function)


def is_intended(runner):
    """Whether a callback of this package made a runner on purpose."""
    return runner in _INTENDED


class Weak:
    """A weak reference that can be copied and pickled: to nothing, then.

    By its id a runner can't be told from one made later in its place.
    """

    def __init__(self, runner=None):
        self._reference = None if runner is None else weakref.ref(runner)

    def __call__(self):
        return self._reference and self._reference()

    def __eq__(self, other):
        if not isinstance(other, Weak) or self() is None:
            return False
        return self() is other()

    __hash__ = None

    def __reduce__(self):
        return Weak, ()


def trace_counts(name, runner):
    """Dict of function to its number of traces.

    Args:
        name: String, put before the names of Keras's inner functions.
        runner: `train_function` or `test_function` of a model, or None.
    """
    if runner is None:
        return {}
    if hasattr(runner, "ledger"):
        return runner.ledger.traces()
    return {
        f"{name}.{inner}": function.experimental_get_tracing_count()
        for inner, function in _inner_functions(runner).items()
    }


def keras_traces(name, runner):
    """What Keras's functions were traced for so far.

    Returns:
        Dict of function to its number of traces and the list of their specs,
        tuples of `Leaf`; a first call may be traced twice for one spec.
    """
    return {
        f"{name}.{inner}": (
            function.experimental_get_tracing_count(),
            [spec_of(a) for a in private_traces.traced_arguments(function)],
        )
        for inner, function in _inner_functions(runner).items()
    }


def new_entries(before, now):
    """List of an `Entry` for each trace between two of `keras_traces`.

    Its seconds and its step are not known. Where the specs tell no
    difference, old and new are the same.
    """
    entries = []
    for name, (count, specs) in now.items():
        old_count, old = before.get(name, (0, []))
        fresh = [spec for spec in specs if spec not in old]
        for _ in range(count - old_count):
            new = fresh.pop(0) if fresh else specs[-1]
            like = nearest(old, new)
            entries.append(
                Entry(
                    name,
                    "retrace",
                    new if like is None else like,
                    new,
                    1,
                    0.0,
                    0,
                )
            )
            old = [*old, new]
    return entries


def _inner_functions(function):
    """The `tf.function`s in the closure of a function, by name.

    Keras hands out a Python function around its `tf.function`s and keeps no
    other hold of them.
    """
    found, todo = {}, [function]
    while todo:
        function = todo.pop()
        if hasattr(function, "experimental_get_tracing_count"):
            found[function.__name__] = function
            function = function.python_function
        cells = getattr(function, "__closure__", None) or ()
        inner = [cell.cell_contents for cell in cells]
        todo += [f for f in inner if callable(f) and f not in found.values()]
    return found


def made_so_far(runner):
    """A runner and its count of traces and compilations, to be compared."""
    if runner is None:
        return None, 0
    if hasattr(runner, "ledger"):
        count = len(runner.ledger.entries)
    else:
        count = sum(trace_counts("", runner).values())
    return Weak(runner), count
