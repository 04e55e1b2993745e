"""The one place that touches private names of Keras.

Each name below is here because no public one gives the same thing; the reason
stands beside it, and `tests/_lib/test_private.py` fails by name when it moves.
"""

import keras
from keras.src import tree

# Random layers draw through this module; see `_lib/philox.py`.
from keras.src.backend.tensorflow import random as random_module

# The loss container is private; its per-output values and true weights are
# what exact accumulation needs, and `compute_loss` returns only their sum.
from keras.src.losses.loss import Loss
from keras.src.losses.loss import reduce_weighted_values
from keras.src.losses.loss import squeeze_or_expand_to_same_rank
from keras.src.losses.loss import unscale_loss_for_distribution

# `Model.__init__` would swap the bases of FastModel itself for these.
from keras.src.models.functional import Functional
from keras.src.optimizers.loss_scale_optimizer import LossScaleOptimizer

# The adapters turn every kind of data Keras accepts into a `tf.data.Dataset`.
from keras.src.trainers import data_adapters
from keras.src.trainers.compile_utils import CompileLoss
from keras.src.trainers.compile_utils import CompileMetrics
from keras.src.trainers.data_adapters import array_data_adapter
from keras.src.trainers.data_adapters import array_slicing
from keras.src.trainers.data_adapters import data_adapter_utils

# What the trainer itself answers to "can XLA compile this model?".
from keras.src.trainers.trainer import Trainer
from keras.src.trainers.trainer import model_supports_jit

# What a model made under no strategy is under, also from inside a scope.
from tensorflow.python.distribute.distribute_lib import (
    _get_default_strategy as default_strategy,
)

__all__ = [
    "CompileLoss",
    "CompileMetrics",
    "Functional",
    "Loss",
    "LossScaleOptimizer",
    "Trainer",
    "array_slicing",
    "data_adapter_utils",
    "data_adapters",
    "default_strategy",
    "model_supports_jit",
    "random_module",
    "reduce_weighted_values",
    "squeeze_or_expand_to_same_rank",
    "tree",
]


def forward(model, x, training):
    """Calls the model as the trainer does: `training` only if it is taken."""
    if model._call_has_training_arg:
        return model(x, training=training)
    return model(x)


def compute_loss(model, x, y, y_pred, sample_weight, training):
    """Calls the user's `compute_loss`, with or without `training`."""
    return model._compute_loss(
        x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=training
    )


def loss_tracker(model):
    """The `Mean` that logs `"loss"`."""
    return model._loss_tracker


def compile_loss(model):
    """The container of the compiled losses, or None."""
    return model._compile_loss


def set_compile_loss(model, value):
    """Replaces the container of the compiled losses."""
    model._compile_loss = value


def metrics_are_built(model):
    """Whether the compiled metrics have the variables a step makes."""
    metrics = model._compile_metrics
    return metrics is None or metrics.built


def set_compile_metrics(model, value):
    """Replaces the container of the compiled metrics.

    Past Keras's tracking of attributes, as its own `compile` does it: tracked,
    they would count a second time among the model's metrics.
    """
    vars(model)["_compile_metrics"] = value


def per_output(metrics, values):
    """Values in the order of the outputs, as a container of metrics has them.

    Args:
        metrics: A built `CompileMetrics`.
        values: Predictions, or weights that may stand for all outputs.
    """
    return metrics._flatten_y(values)


def flat_layers(model):
    """Every layer of the model, the model itself and nested ones included."""
    return list(model._flatten_layers())


def inner_optimizer(optimizer):
    """The optimizer below a `LossScaleOptimizer`, or the optimizer itself."""
    while isinstance(optimizer, LossScaleOptimizer):
        optimizer = optimizer.inner_optimizer
    return optimizer


def unknown_variables(optimizer, variables):
    """The variables a built optimizer holds no slots for."""
    optimizer = inner_optimizer(optimizer)
    if not optimizer.built:
        return []
    known = optimizer._trainable_variables_indices
    return [v for v in variables if optimizer._var_key(v) not in known]


def is_default_hook(method):
    """True if a callback hook is the base class's empty one."""
    return keras.src.utils.is_default(method)


def initial_epoch(model):
    """The epoch a restoring callback asked to go on from, or None."""
    return model._initial_epoch


def should_eval(model, epoch, validation_freq):
    """Keras's own reading of `validation_freq` (an integer or a list)."""
    return model._should_eval(epoch, validation_freq)


def metrics_or_logs(model, logs):
    """The model's metrics if the step returned just these, else its logs."""
    return model._get_metrics_result_or_logs(logs)


def graph_of(model):
    """Inputs and outputs of a model that is its graph of layers, or None."""
    if type(model) is keras.Sequential:
        model = model._functional
    if type(model) is not Functional:
        return None
    return model._inputs_struct, model._outputs_struct


def symbolic_build(model, batch):
    """Makes all variables of the model, its metrics and its optimizer."""
    # A generator's None has a spec without a shape.
    batch = tree.map_structure(
        lambda s: s if hasattr(s, "shape") else None, batch
    )
    model._symbolic_build(data_batch=batch)


def own_state(layer):
    """The variables a layer updates while it is called, no random seeds."""
    return layer._non_trainable_variables


def own_weights(layer):
    """The variables a layer holds itself, not through a layer below it."""
    return layer._trainable_variables + layer._non_trainable_variables


def log_loss(model, loss, rows):
    """Logs a loss as Keras does: not divided by the replicas, by rows."""
    tracker = model._loss_tracker
    if tracker is not None:
        tracker.update_state(unscale_loss_for_distribution(loss), rows)


def can_shuffle(data):
    """Whether Keras can shuffle the data itself: arrays, a finite PyDataset.

    Args:
        data: Dict of the arguments `x`, `y` and `sample_weight` of `fit`.
    """
    x = data["x"]
    if isinstance(x, keras.utils.PyDataset):
        return x.num_batches is not None
    arrays = (x, data["y"], data["sample_weight"])
    return array_data_adapter.can_convert_arrays(arrays)


def keep_errors(adapter, keep):
    """Hands exceptions of the user's own data code to `keep`.

    `tf.data` turns an exception in a generator into one of its own, and its
    type is lost.

    Returns:
        True if the data can be gone through only once.
    """
    for name in ("generator", "_get_iterator"):
        make = vars(adapter).get(name) or getattr(adapter, name, None)
        if make is not None and not isinstance(
            adapter, data_adapters.ArrayDataAdapter
        ):
            setattr(adapter, name, _watched(make, keep))
    return isinstance(adapter, data_adapters.GeneratorDataAdapter)


def _watched(make, keep):
    def batches():
        try:
            yield from make()
        except GeneratorExit:
            raise
        except BaseException as error:
            # Looked at and raised again: an interrupt keeps its type too.
            keep(error)
            raise

    return batches


def has_strategy(model):
    """True if the model was made in the scope of a strategy."""
    return model._distribute_strategy is not None


def assert_compiled(model, method):
    """Keras's own error for a model that is not compiled."""
    model._assert_compile_called(method)


def pythonify(logs):
    """Log values as Python floats, as Keras does it."""
    return keras.src.utils.python_utils.pythonify_logs(logs)


def in_metrics_order(model, logs):
    """Logs as the list (or single value) `evaluate` returns."""
    return model._flatten_metrics_in_order(logs)


def resident_arrays(adapter):
    """What an `ArrayDataAdapter` holds, as dense arrays of Keras's dtypes.

    Returns:
        Tuple of arrays (nested), rows and batch size; of None for other data.
    """
    if type(adapter) is not data_adapters.ArrayDataAdapter:
        return None, None, None
    arrays = array_slicing.convert_to_sliceable(
        adapter._inputs, target_backend="tensorflow"
    )
    return (
        tree.lists_to_tuples(arrays),
        adapter._num_samples,
        # An integer of NumPy would carry its own type into the graph.
        int(adapter._batch_size),
    )


def without_retrace_warning(function):
    """Keeps TensorFlow from guessing at retraces; the ledger knows them.

    TensorFlow counts traces by source line, so that several models, each
    traced once, look to it like one function traced again and again.
    """
    function._omit_frequent_tracing_warning = True
    return function


def metrics_are_plain(model):
    """Whether resetting the metrics does nothing but assign variables."""
    metrics = list(model.metrics)
    for metric in model.metrics:
        metrics += getattr(metric, "metrics", [])
    resets = [m.reset_state for m in metrics]
    ours = model.reset_metrics.__module__.startswith("fastkeras.")
    return ours and all(
        r.__module__.startswith(("keras.", "fastkeras.")) for r in resets
    )
