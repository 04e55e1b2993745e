"""The rules, in the order of the field's practice.

First what keeps the step from being a graph, then its signature, then its
launches and input, then XLA, then half precision, then memory; at last what
costs nothing as the model is compiled.
"""

from fastkeras.advise import _compute
from fastkeras.advise import _input
from fastkeras.advise import _memory
from fastkeras.advise import _shapes
from fastkeras.advise import _tracing

RULES = (
    _tracing.eager,
    _tracing.sync_points,
    _tracing.python_print,
    _tracing.python_count,
    _tracing.grown_list,
    _tracing.python_values,
    _tracing.variables_in_call,
    _shapes.retraces,
    _shapes.last_batch,
    _shapes.shapes_under_xla,
    _input.one_step_epochs,
    _tracing.dispatch,
    _input.input_wait,
    _input.large_arrays,
    _input.shuffle_buffer,
    _compute.costly_metrics,
    _compute.augmentation,
    _compute.xla_requested,
    _compute.xla_layers,
    _tracing.many_small_variables,
    _compute.xla,
    _compute.pure_half,
    _compute.half_outputs,
    _compute.unscaled_loss,
    _compute.mixed_precision,
    _compute.larger_batch,
    _memory.activations,
    _memory.frozen_prefix,
    _memory.dense_table,
    _shapes.open_shapes,
)
