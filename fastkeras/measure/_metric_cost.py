"""What each compiled metric costs, told apart from model and optimizer."""

import statistics

import tensorflow as tf

from fastkeras._lib import private
from fastkeras._lib import private_measure

_CALLS = 15


def seconds(model, batch, clock):
    """Seconds of each metric's update on a batch.

    Each is compiled alone and called in turns with a function that does
    nothing, whose time, that of the call, is taken off.

    Args:
        model: A compiled model that has been trained for a step.
        batch: Nested tensors `(x, y, sample_weight)`.
        clock: `Clock`.

    Returns:
        Dict of label to float, the dearest first. A metric with thresholds
        says how many.
    """
    x, y, weight = private.data_adapter_utils.unpack_x_y_sample_weight(batch)
    if y is None:
        return {}
    predictions = private.forward(model, x, training=False)
    functions = {
        _label(metric): _update(metric, arguments)
        for metric, arguments in private_measure.metric_calls(
            model, y, predictions, weight
        )
    }
    return _timed(functions, clock) if functions else {}


def _label(metric):
    thresholds = getattr(metric, "num_thresholds", None)
    more = f" ({thresholds} thresholds)" if thresholds else ""
    return f"{metric.name}: {type(metric).__name__}{more}"


def _update(metric, arguments):
    def update():
        metric.update_state(*arguments)

    return tf.function(update)


def _timed(functions, clock):
    """Median seconds of each function beyond those of an empty one."""
    functions = {**functions, None: tf.function(lambda: None)}
    times = {name: [] for name in functions}
    for function in functions.values():
        function()
    for _ in range(_CALLS):
        for name, function in functions.items():
            with clock.stopwatch() as watch:
                function()
            times[name].append(watch.seconds)
    call = statistics.median(times.pop(None))
    found = {
        name: max(0.0, statistics.median(values) - call)
        for name, values in times.items()
    }
    return dict(sorted(found.items(), key=lambda pair: -pair[1]))
