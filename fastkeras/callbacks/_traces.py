"""Trace counts of what runs the steps: the engine's runner, or Keras's."""

import weakref


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
    """A runner and its count of traces and compilations, to be compared.

    The runner is held weakly: one that is made anew may get the old one's id.
    """
    if runner is None:
        return None, 0
    if hasattr(runner, "ledger"):
        count = len(runner.ledger.entries)
    else:
        count = sum(trace_counts("", runner).values())
    return weakref.ref(runner), count
