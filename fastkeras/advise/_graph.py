"""What the traced graph of a training step tells, before any step is run."""

import contextlib
import dataclasses
import math
import traceback

import keras
import tensorflow as tf

from fastkeras._lib import checks
from fastkeras._lib import private
from fastkeras._lib.private import tree

_PYTHON = {"PyFunc", "PyFuncStateless", "EagerPyFunc"}
# Whose code is not the user's.
_OTHERS = {"keras", "tensorflow", "fastkeras", "numpy", "optree"}
_ASSIGN = {
    "AssignVariableOp",
    "AssignAddVariableOp",
    "AssignSubVariableOp",
}
#: Eager steps in which traces are counted.
STEPS = 3
#: What a model keeps in a list for good.
_MADE = (keras.layers.Layer, keras.Variable)
#: Operations whose result is no new memory.
_PASSIVE = {"Const", "Identity", "Placeholder", "ReadVariableOp", "Reshape"}
#: In the name of every operation that a tape's backward pass makes.
_BACKWARD = "gradient_tape"


@dataclasses.dataclass(frozen=True)
class Traced:
    """What was read from the graph of one step.

    Attributes:
        error: String, why the step can't be traced, or `""`.
        python: Integer, operations that call back into Python.
        largest: Pair of operation name and bytes of the largest activation.
        activations: Integer, bytes of the forward pass that the backward pass
            reads.
        gathered: List of pairs: operation name, and the entries that it
            gathered from a table.
        assigned: List of shapes that were assigned to variables whole.
        grown: List of the names of Python lists that grew in the trace.
    """

    error: str = ""
    python: int = 0
    largest: tuple = ("", 0)
    activations: int = 0
    gathered: list = dataclasses.field(default_factory=list)
    assigned: list = dataclasses.field(default_factory=list)
    grown: list = dataclasses.field(default_factory=list)


def step_function(model, jit=None):
    """A `tf.function` of one training step on a batch."""
    step = tf.function(eager_step(model), autograph=False, jit_compile=jit)
    return private.without_retrace_warning(step)


def eager_step(model):
    """A function of one training step on a batch, as it runs eagerly."""
    strategy = model.distribute_strategy

    def step(batch):
        return strategy.run(model.train_step, args=(batch,))

    return step


@contextlib.contextmanager
def shortened(lists):
    """Takes out of Python lists what is added to them meanwhile.

    Args:
        lists: Dict of name to list.

    Returns:
        A context manager that gives a list of the names of those that grew.
    """
    before = {name: len(values) for name, values in lists.items()}
    grown = []
    try:
        yield grown
    finally:
        for name, values in lists.items():
            added = values[before[name] :]
            # What a `build` adds is to stay.
            kept = [x for x in added if isinstance(x, _MADE)]
            if len(kept) < len(added):
                grown.append(name)
                values[before[name] :] = kept


def trace(step, batch, lists):
    """Traces a training step and reads its graph; nothing is run.

    Args:
        step: What `step_function` returned.
        batch: Structure of tensors.
        lists: Dict of name to a Python list that may grow; what the trace
            adds to one is taken out again.

    Returns:
        A `Traced`.
    """
    error, graph = "", None
    try:
        with shortened(lists) as grown:
            graph = step.get_concrete_function(batch).graph
    except Exception as caught:
        # Whatever the user's code raises: that it can't be traced is the
        # finding, and an advice says so.
        error = told(caught)
    if graph is None:
        return Traced(error, grown=grown)
    rows = tree.flatten(batch)[0].shape[0]
    return _read(graph, rows, grown)


def told(error):
    """An error in words, with the place in the user's own code."""
    places = [
        f" in {frame.f_code.co_qualname} (line {line})"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if frame.f_globals.get("__name__", "").partition(".")[0] not in _OTHERS
    ]
    where = places[-1] if places else ""
    return f"{type(error).__name__}: {checks.gist(error)}{where}"


def trace_counts(model, batch, functions):
    """How often each function is traced in a few steps on one batch.

    Args:
        model: A model whose steps are run eagerly; its state is changed.
        batch: Structure of tensors.
        functions: Dict of name to `tf.function`.

    Returns:
        Dict of name to the traces of `STEPS` steps, after the first.
    """
    model.train_step(batch)
    before = {
        name: function.experimental_get_tracing_count()
        for name, function in functions.items()
    }
    for _ in range(STEPS):
        model.train_step(batch)
    return {
        name: function.experimental_get_tracing_count() - before[name]
        for name, function in functions.items()
    }


def outputs(model, x):
    """List of the dtypes of what a model gives for inputs; nothing is run."""
    function = tf.function(
        lambda x: private.forward(model, x, True), autograph=False
    )
    found = function.get_concrete_function(x).structured_outputs
    return [t.dtype for t in tree.flatten(found)]


def _read(graph, rows, grown):
    operations = graph.get_operations()
    names = [op.name for op in operations]
    backward = [k for k, name in enumerate(names) if _BACKWARD in name]
    forward = [
        t
        for op in operations[: backward[0] if backward else None]
        if op.type not in _PASSIVE
        for t in op.outputs
        if _is_activation(t, rows)
    ]
    largest = max(forward, key=_size, default=None)
    return Traced(
        python=python_calls(graph.as_graph_def()),
        largest=("", 0)
        if largest is None
        else (largest.op.name, _size(largest)),
        activations=sum(
            _size(t)
            for t in forward
            if any(_BACKWARD in op.name for op in t.consumers())
        ),
        gathered=[
            (op.name, math.prod(op.outputs[0].shape))
            for op in operations
            if op.type in ("ResourceGather", "GatherV2")
            and op.outputs[0].shape.is_fully_defined()
        ],
        assigned=[
            tuple(op.inputs[1].shape)
            for op in operations
            if op.type in _ASSIGN and op.inputs[1].shape.is_fully_defined()
        ],
        grown=grown,
    )


def python_calls(definition):
    """How many operations of a `GraphDef` call back into Python."""
    nodes = [n for f in definition.library.function for n in f.node_def]
    return sum(n.op in _PYTHON for n in [*definition.node, *nodes])


def _is_activation(tensor, rows):
    shape = tensor.shape
    return (
        tensor.dtype.is_floating
        and shape.is_fully_defined()
        and shape.rank > 0
        and shape[0] % rows == 0
        and shape[0] > 0
    )


def _size(tensor):
    return math.prod(tensor.shape) * tensor.dtype.size
