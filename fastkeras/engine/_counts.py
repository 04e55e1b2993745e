"""What asynchronous steps count: apart in each call, then put together.

Keras adds to a metric, and to `optimizer.iterations`, by reading and writing,
between which another worker may write. So while a step runs on a worker these
are variables of its own. What its metrics counted comes back to the chief,
which sums as a synchronous strategy sums over its replicas; a call that is run
again elsewhere, because its worker was lost, counts once. What an update reads
and changes beside the weights (its number, a loss scale) is read once at its
start and written at its end.
"""

import contextlib

import numpy as np
import tensorflow as tf

from fastkeras._lib import checks
from fastkeras._lib import private_coordinator
from fastkeras.engine._metrics import all_metrics
from fastkeras.perf._feature import Max


@contextlib.contextmanager
def apart(model, trains):
    """While a step is traced, has it count in variables of its own.

    Args:
        model: The model.
        trains: Bool, whether the step updates weights.

    Yields:
        Function without arguments, to be called after the step, that returns
        what the metrics counted: for each, a list of tensors.
    """
    metrics = all_metrics(model)
    for metric in metrics:
        _check(metric)
    kept = _kept(model) if trains else []
    counted = [v for m in metrics for v in m.variables]
    with private_coordinator.standing_in(kept + counted) as shared:
        model.reset_metrics()
        starts = []
        for variable, value in zip(kept, shared, strict=False):
            starts.append(value.read_value())
            variable.assign(starts[-1])

        def values():
            for triple in zip(kept, starts, shared, strict=False):
                _write(*triple)
            return [[v.value + 0 for v in m.variables] for m in metrics]

        yield values


def _kept(model):
    """What an update reads and changes, beside weights and metrics."""
    own = [v for s in model._step.states for v in s.variables.values()]
    return [model.optimizer.iterations, *own] if model.optimizer else own


def _write(variable, start, shared):
    """Writes what a step changed; what it counted up is added."""
    value = tf.convert_to_tensor(variable.value)

    def write():
        if not value.dtype.is_integer:
            return shared.assign(value).read_value()
        return tf.cond(
            value > start,
            lambda: shared.assign_add(value - start).read_value(),
            lambda: shared.assign(value).read_value(),
        )

    tf.cond(tf.equal(value, start), lambda: start, write)


def _check(metric):
    other = [v.path for v in metric.variables if v.aggregation != "sum"]
    if other and not isinstance(metric, Max):
        raise ValueError(
            checks.message(
                "Under parameter servers the variables of a metric must add "
                "up over the workers",
                f"metric {metric.name!r}, whose {other} have an `aggregation` "
                "other than 'sum'",
                "Keep sums in the metric, and divide in `result`.",
            )
        )


def collect(model, calls):
    """Adds what calls counted to the metrics of the model.

    Args:
        model: The model.
        calls: List of what each call returned, as arrays.
    """
    for k, metric in enumerate(all_metrics(model)):
        total = [v.numpy() for v in metric.variables]
        for call in calls:
            total = joined(metric, total, call[k], model.perf.guards)
        for variable, value in zip(metric.variables, total, strict=True):
            variable.assign(value)


def joined(metric, old, new, guards):
    """The variables of a metric that counted apart, as of one that saw all.

    Args:
        metric: The metric.
        old, new: Lists of arrays.
        guards: Bool, whether updates are guarded; a mean of nothing is then
            NaN, and does not hide the others.
    """
    if isinstance(metric, Max):
        return [np.maximum(a, b) for a, b in zip(old, new, strict=True)]
    if guards and not _is_finite(new):
        return old if _is_finite(old) and np.any(old) else new
    if guards and not _is_finite(old):
        return new
    return [a + b for a, b in zip(old, new, strict=True)]


def _is_finite(arrays):
    return all(np.all(np.isfinite(a)) for a in arrays)
