"""One part of an update: forward, loss, gradients, each with its true weight.

The gradient of a part is taken of the plain (scaled) loss and multiplied by
the part's weight afterwards, in float32: multiplied before, the weight would
act as a second loss scale in float16.
"""

from typing import NamedTuple

import keras
import tensorflow as tf

from fastkeras._lib import private
from fastkeras.perf import _gradients
from fastkeras.perf import _padding
from fastkeras.perf import _parts
from fastkeras.perf._losses import ROWS
from fastkeras.perf._losses import SUM
from fastkeras.perf._losses import RecordingLoss


class Total(NamedTuple):
    """What parts add up to.

    Attributes:
        sums: `Sums`; two totals are added entry by entry.
        logs: Dict, what `compute_metrics` returned last.
        before: `Before`, what a window that is left out goes back to.
    """

    sums: object
    logs: dict
    before: object = None


class Sums(NamedTuple):
    """The entries of a total that are added.

    Attributes:
        gradients: Per group of losses, a list with one entry per variable,
            each multiplied by the weight of its part.
        weights: Per group, the sum of the weights; None where the losses of
            the group do not divide.
        losses: Vector, each compiled loss times its weight, then the rest.
        divisors: Vector, the weights that belong to `losses`.
        rows: Scalar, float32: rows of all parts.
    """

    gradients: list
    weights: list
    losses: object
    divisors: object
    rows: object


class Part(NamedTuple):
    """A batch or slice, unpacked.

    Attributes:
        x, y, sample_weight: What losses and metrics see.
        rows: Scalar, float32.
        data: The batch as it came, which the model is called on.
    """

    x: object
    y: object
    sample_weight: object
    rows: object
    data: object


class Objective(NamedTuple):
    """Losses that share a divisor.

    Attributes:
        target: Tensor to differentiate.
        weight: Scalar tensor it was divided by, or None.
        replicas: Integer it was divided by on top, for distribution.
    """

    target: object
    weight: object
    replicas: int


class Before(NamedTuple):
    """Values of variables before the forward pass of a window.

    Attributes:
        metrics: List of pairs of variable and value.
        layers: The same for what layers update as they are called, such as
            the moving statistics of a BatchNormalization.
    """

    metrics: list
    layers: list


def before(model):
    """Takes down what the forward pass of a window changes."""
    logged = [private.loss_tracker(model)]
    logged += getattr(private.compile_loss(model), "metrics", [])
    metrics = [m for m in model.metrics if all(m is not k for k in logged)]
    layers = private.flat_layers(model)
    return Before(
        _values(v for m in metrics for v in m.variables),
        _values(v for layer in layers for v in private.own_state(layer)),
    )


def _values(variables):
    return [(v, tf.identity(v.value)) for v in variables]


def go_back(pairs, ok):
    """Gives variables their values of before, unless `ok`."""
    for variable, value in pairs:
        variable.assign(tf.where(ok, variable.value, value))


def add(a, b):
    """The sum of two totals; the logs are those of the second."""
    return Total(tf.nest.map_structure(_gradients.add, a.sums, b.sums), b.logs)


def loss_and_predictions(model, part, training, logs_itself):
    """Runs the model and its loss, and records each compiled loss.

    Args:
        model: The model.
        part: `Part`.
        training: Bool.
        logs_itself: Bool, True if the part is a whole update on one replica
            and never left out, so that the compiled losses may log
            themselves.

    Returns:
        Tuple of loss, predictions and list of `Record`.
    """
    y_pred = _padding.forward(model, part.data, training)
    container = private.compile_loss(model)
    records = []
    if isinstance(container, RecordingLoss):
        container.logs_itself = logs_itself
        container.records = records = []
    loss = private.compute_loss(
        model, part.x, part.y, y_pred, part.sample_weight, training
    )
    if isinstance(container, RecordingLoss):
        container.logs_itself = True
        records = container.records
    return loss, y_pred, records


def evaluate(model, data):
    """Keras's own `test_step`, on what is real of a batch."""
    part = unpack(data)
    loss, y_pred, _ = loss_and_predictions(model, part, False, True)
    private.log_loss(model, loss, part.rows)
    return model.compute_metrics(
        part.x, part.y, y_pred, sample_weight=part.sample_weight
    )


def objectives(model, loss, records, rows, replicas):
    """Splits a loss into one objective for each thing it divides by.

    Almost always there is one, which is the loss itself. A penalty beside a
    masked loss, or outputs with masks of their own, make more.
    """
    groups = {}
    for record in records:
        groups.setdefault((record.group, record.replicas), []).append(record)
    rest = _has_rest(model) or not records
    if rest:
        groups.setdefault((ROWS, replicas), [])
    out = []
    for (group, divided), members in groups.items():
        target = tf.reduce_sum(loss)
        if len(groups) > 1:
            target = _total(members, loss.dtype)
            if rest and (group, divided) == (ROWS, replicas):
                target += tf.reduce_sum(loss) - _total(records, loss.dtype)
        weight = members[0].weight if members else None
        if weight is None and group != SUM:
            weight = rows
        out.append(Objective(target, weight, divided))
    return out


def _total(records, dtype):
    totals = (tf.cast(r.total, dtype) for r in records)
    return sum(totals, tf.zeros((), dtype))


def _has_rest(model):
    """Whether the loss may hold more than the compiled losses."""
    own = type(model).compute_loss is not private.Trainer.compute_loss
    return own or bool(model.losses)


def weighed(gradients, objective):
    """Multiplies gradients by the weight their loss was divided by.

    A weight of 0 makes 0, also of a gradient that is not a number: a part
    that is masked out, or a replica without a row, adds nothing.
    """
    if objective.weight is None:
        return gradients
    weight = tf.cast(objective.weight, tf.float32) * objective.replicas
    return _gradients.map_values(
        lambda v: tf.math.multiply_no_nan(v, tf.cast(weight, v.dtype)),
        gradients,
    )


def log_terms(loss, records, rows, replicas):
    """Numerators and divisors of the losses of a window, as two vectors.

    A divisor of 0 stands for a loss that does not divide.
    """
    terms, divisors = [], []
    for record in records:
        value = tf.cast(tf.reduce_mean(record.value), tf.float32)
        divisor = rows if record.weight is None else record.weight
        if record.group == SUM and record.value.shape.rank == 0:
            terms.append(value)
            divisors.append(tf.zeros(()))
            continue
        divisor = tf.cast(divisor, tf.float32)
        terms.append(tf.math.multiply_no_nan(value * record.replicas, divisor))
        divisors.append(divisor)
    rest = tf.reduce_sum(loss) - _total(records, loss.dtype)
    rest = tf.cast(rest, tf.float32)
    terms.append(tf.math.multiply_no_nan(rest * replicas, rows))
    divisors.append(rows)
    return tf.stack(terms), tf.stack(divisors)


def log_window(model, sums, ok, before):
    """Logs the losses of a whole window, as one big batch would.

    The loss and the loss of each output are the window's own means; in the
    mean over the epoch they count by rows. Where the update is guarded, a loss
    that is not finite does not count, nor do the metrics of its window: one
    bad batch would hide all others.

    Args:
        model: The model.
        sums: `Sums` of the window.
        ok: Scalar bool, or None where nothing guards the update.
        before: `Before`, or None where nothing guards the update.
    """
    container = private.compile_loss(model)
    records = getattr(container, "records", [])
    divisors = tf.where(sums.divisors == 0, 1.0, sums.divisors)
    values = sums.losses / divisors
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    rows = sums.rows / replicas
    fine = None
    if ok is not None:
        fine = tf.reduce_all(tf.math.is_finite(values))
        go_back(before.metrics, fine)
    scales = [1.0 if r.scale is None else r.scale for r in records] + [1.0]
    tracker = private.loss_tracker(model)
    if tracker is not None:
        total = tf.reduce_sum(values * tf.stack(scales))
        _follow(tracker, total, rows, fine)
    if len(records) > 1:
        for k, metric in enumerate(container.metrics):
            _follow(metric, values[k], rows, fine)


def _follow(mean, value, rows, fine):
    """Updates a `Mean`; it is NaN for as long as no value was fine.

    Left alone it would say 0 then, which reads like the best of all losses.
    """
    if fine is None:
        mean.update_state(value, rows)
        return
    known = tf.math.is_finite(mean.total.value)
    for variable in (mean.total, mean.count):
        variable.assign(tf.where(known, variable.value, 0.0))
    mean.update_state(tf.where(fine, value, 0.0), tf.where(fine, rows, 0.0))
    some = tf.not_equal(mean.count.value, 0.0)
    mean.total.assign(tf.where(some, mean.total.value, float("nan")))
    mean.count.assign(tf.where(some, mean.count.value, 1.0))


def unpack(data):
    """Splits a batch or slice into its parts; what was padded is cut off."""
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(
        _padding.real(data)
    )
    rows = tf.cast(_parts.rows_of(x), tf.float32)
    return Part(x, y, sample_weight, rows, data)
