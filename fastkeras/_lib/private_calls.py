"""Private names of Keras and TensorFlow about calling layers and recording.

The second part of `private.py`, under the same rule: the reason stands beside
each name, and `tests/_lib/test_private.py` fails by name when it moves.
"""

import contextlib

import keras
import tensorflow as tf

# Runs a function on shapes alone; the public way is a layer's, for its call.
from keras.src.backend import compute_output_spec

# The call in progress and the dtype variables are cast to: known to a layer
# only while the model is being called, and needed again when it is not.
from keras.src.backend.common import global_state

# A tape can stop its own recording; a layer does not know its tape.
from tensorflow.python.eager import record

from fastkeras._lib.private import Functional
from fastkeras._lib.private import tree

_CALL = ("current_call_ctx", "autocast_scope")

#: What `calling` takes where no layer is being called.
NO_CALL = (None, None)

stop_recording = record.stop_recording
is_recording = record.could_possibly_record


def record_gradient(outputs, inputs, gradient):
    """Gives tensors a gradient of their own on the tapes that record.

    `tf.custom_gradient` does the same and, in a graph, enters the function in
    a registry that keeps it, the graph and the model for good.

    Args:
        outputs, inputs: Lists of tensors.
        gradient: Function of the gradients of all outputs to a list of those
            of all inputs, None among them.
    """
    record.record_operation("Recomputed", outputs, inputs, gradient)


def call_state():
    """The call in progress: its `training` value, its autocast dtype."""
    return [global_state.get_global_attribute(name) for name in _CALL]


@contextlib.contextmanager
def calling(state):
    """While open, layers are called as in the call that `state` was read in."""
    before = call_state()
    _set_call(state)
    try:
        yield
    finally:
        _set_call(before)


def _set_call(state):
    for name, value in zip(_CALL, state, strict=True):
        global_state.set_global_attribute(name, value)


def graph_of_layers(model):
    """The functional model that runs the layers of a model, or None.

    A `Sequential` that is built keeps one; other subclasses have none.
    """
    inner = vars(model).get("_functional", model)
    return inner if isinstance(inner, Functional) else None


def ordered_nodes(functional):
    """The calls of operations a functional model is made of, in its order."""
    by_depth = functional._nodes_by_depth
    return [
        node
        for depth in sorted(by_depth, reverse=True)
        for node in by_depth[depth]
        if node.operation and not node.is_input
    ]


def run_node(node, tensors, operation_fn):
    """Runs one call on the tensors by id of their symbol, and adds its own."""
    args, kwargs = node.arguments.fill_in(tensors)
    outputs = operation_fn(node.operation)(*args, **kwargs)
    for symbol, tensor in zip(node.outputs, tree.flatten(outputs), strict=True):
        tensors[id(symbol)] = tensor


def replace_run(functional, run):
    """Has a functional model run its graph by `run(usual, inputs, fn)`.

    Returns:
        Function that undoes it.
    """
    usual = functional._run_through_graph

    def replaced(inputs, operation_fn=lambda op: op, call_fn=None):
        if call_fn is not None:
            return usual(inputs, operation_fn, call_fn)
        return run(usual, inputs, operation_fn)

    vars(functional)["_run_through_graph"] = replaced
    return lambda: vars(functional).pop("_run_through_graph")


def output_structure(functional):
    """The nested structure of symbols that a functional model returns."""
    return functional._outputs_struct


def build_metrics(model, batch):
    """Makes the variables of the metrics and losses of a functional model.

    Made while the first step is traced, they have TensorFlow trace it twice.
    Keras's own `_symbolic_build` calls the model for its outputs, which a
    functional model has at hand.

    Args:
        model: A functional model, compiled, whose metrics and losses are
            computed in Keras's way.
        batch: The specs of a batch. Where a shape is not known but for the
            rows, nothing is made.
    """
    predicted = model._outputs_struct
    if not all(map(_is_shaped, tree.flatten([batch, predicted]))):
        return
    batch = tree.map_structure(_symbol, batch)
    x, y, weight = keras.utils.unpack_x_y_sample_weight(batch)
    if y is None:
        return
    metrics, loss = model._compile_metrics, model._compile_loss
    # The loss first, as in a step: it says which labels are missing.
    if loss is not None and not loss.built:
        compute_output_spec(loss, y, predicted, weight)
    if metrics is not None and not metrics.built:
        compute_output_spec(model.compute_metrics, x, y, predicted, weight)


def _is_shaped(spec):
    if spec is None:
        return True
    if not isinstance(spec, (tf.TensorSpec, keras.KerasTensor)):
        return False
    return spec.shape is not None and None not in tuple(spec.shape)[1:]


def _symbol(spec):
    if spec is None:
        return None
    shape = (None, *spec.shape[1:])
    return keras.KerasTensor(shape, keras.backend.standardize_dtype(spec.dtype))


def scope_mode(layer):
    """The mode of the `keras.RematScope` a layer was made in, or None.

    A layer keeps the scope it was made in, and no public name tells it.
    """
    return layer._remat_mode and layer._remat_mode.mode
