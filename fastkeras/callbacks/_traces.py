"""Trace counts of what runs the steps: the engine's runner, or Keras's."""

import weakref

from fastkeras._lib import private_traces
from fastkeras.engine._ledger import Entry
from fastkeras.engine._specs import nearest
from fastkeras.engine._specs import spec_of

#: Runners that a callback of this package made on purpose.
_INTENDED = weakref.WeakSet()
#: What `_inner_functions` has found: a closure stays as it was made.
_INNER = weakref.WeakKeyDictionary()


def make_intended(model):
    """Makes the train function of a model anew: RetraceMonitor lets it be."""
    model.make_train_function(force=True)
    mark_intended(model.train_function)


def mark_intended(runner):
    """Has RetraceMonitor let a runner be."""
    _INTENDED.add(runner)


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
            [_spec(a) for a in private_traces.traced_arguments(function)],
        )
        for inner, function in _inner_functions(runner).items()
    }


def _spec(batch):
    # A function of `predict` takes a list of batches.
    return spec_of(batch[0] if isinstance(batch, list) else batch)


def new_entries(before, now, seconds):
    """List of an `Entry` for each trace between two of `keras_traces`.

    What a function traces of another one is a part of its own trace. Their
    step is not known. Where the specs tell no difference, old and new are
    the same; what a first call traces has one entry.

    Args:
        before, now: Dicts of `keras_traces`.
        seconds: Float, of the time between the two.
    """
    for name, (count, specs) in now.items():
        old_count, old = before.get(name, (0, []))
        if count == old_count:
            continue
        fresh = [spec for spec in _distinct(specs) if spec not in old]
        entries, extra = [], count - old_count
        if not old_count:
            first = fresh.pop(0) if fresh else ()
            extra = len(fresh)
            traces = 1 + any(_is_twice(*read) for read in now.values())
            entries = [Entry(name, "first", (), first, traces, seconds, 0)]
            old = [first]
        for _ in range(extra):
            new = fresh.pop(0) if fresh else specs[-1]
            like = nearest(old, new) or new
            entries.append(Entry(name, "retrace", like, new, 1, seconds, 0))
            old = [*old, new]
        return entries
    return []


def _distinct(specs):
    return [s for k, s in enumerate(specs) if s not in specs[:k]]


def _is_twice(count, specs):
    """Whether a function was traced more often than for each spec once."""
    return count > max(1, len(_distinct(specs)))


def _inner_functions(function):
    """The `tf.function`s in the closure of a function, by name.

    Keras hands out a Python function around its `tf.function`s and keeps no
    other hold of them.
    """
    if function not in _INNER:
        found = _found_in(function).items()
        _INNER[function] = {name: weakref.ref(one) for name, one in found}
    return {name: one() for name, one in _INNER[function].items()}


def _found_in(function):
    found, todo = {}, [function]
    while todo:
        # The outer before those that it calls.
        function = todo.pop(0)
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
