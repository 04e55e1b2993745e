"""Private names of Keras that measuring a model needs.

A part of `private.py`, under the same rule: the reason stands beside each
name, and `tests/_lib/test_private_measure.py` fails by name when it moves.
"""

# Whether a profiler runs is known to this module alone: starting one tells it
# too, by an exception.
from tensorflow.python.profiler import profiler_v2


def is_profiled():
    """Whether a profiler of TensorFlow runs in this process."""
    return profiler_v2._profiler is not None


def metric_calls(model, y, predictions, weight):
    """The compiled metrics, each with the arguments of its update.

    The container of a model updates them together, which would not tell
    which of them costs what.

    Args:
        model: A model that has been trained for a step.
        y, predictions, weight: Nested tensors; `weight` may be None.

    Returns:
        List of tuples of metric and tuple of arguments.
    """
    container = model._compile_metrics
    if container is None:
        return []
    true = container._flatten_y(y)
    predicted = container._flatten_y(predictions)
    none = [None] * len(true)
    weights = none if weight is None else container._flatten_y(weight)
    if len(weights) < len(true):
        weights = [weights[0]] * len(true)
    return [
        (metric, arguments)
        for lists, parts in (
            (container._flat_metrics, none),
            (container._flat_weighted_metrics, weights),
        )
        for found, *arguments in zip(lists, true, predicted, parts)
        for metric in (found.metrics if found else ())
    ]


def compile_arguments(model):
    """The arguments that a model was compiled with, as they were given.

    `get_compile_config` serialises them, which a lambda does not survive.

    Args:
        model: A compiled `keras.Model`.

    Returns:
        Dict of the arguments of `keras.Model.compile`, without
        `auto_scale_loss`; `jit_compile` is what `"auto"` came to.
    """
    return dict(model._compile_config.config)
