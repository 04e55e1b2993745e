"""What each compiled metric costs, told apart from model and optimizer."""

import contextlib
import statistics

import tensorflow as tf

from fastkeras._lib import private
from fastkeras._lib import private_measure
from fastkeras._lib import scopes
from fastkeras.measure._state import whole

_CALLS = 15
_METHODS = ("update_state", "result")


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


@contextlib.contextmanager
def named(model):
    """While open, what metrics compute is traced in scopes of their names."""
    metrics = [
        part
        for metric in model.metrics
        for part in (metric, *getattr(metric, "metrics", ()))
    ]
    before = [dict(vars(metric)) for metric in metrics]

    def put_back():
        for metric, attributes in zip(metrics, before, strict=True):
            for method in _METHODS:
                vars(metric).pop(method, None)
                if method in attributes:
                    vars(metric)[method] = attributes[method]

    try:
        for metric in metrics:
            for method in _METHODS:
                vars(metric)[method] = _scoped(metric, getattr(metric, method))
        yield
    finally:
        whole(put_back)


def _scoped(metric, method):
    def call(*args, **kwargs):
        with tf.name_scope(scopes.METRICS), tf.name_scope(metric.name):
            return method(*args, **kwargs)

    return call


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
