"""Losses that also tell what they divide by.

Keras returns one number, already reduced. To make several parts equal one big
batch each loss must be known with its true weight: rows, unmasked positions,
or the sum of the sample weights, whichever its reduction divides by.
"""

from typing import NamedTuple

import tensorflow as tf

from fastkeras._lib import private

#: Group of losses that divide by the number of rows.
ROWS = "rows"
#: Group of losses that do not divide at all.
SUM = "sum"


class Record(NamedTuple):
    """One compiled loss on one part.

    Attributes:
        value: Scalar (or unreduced) tensor, as it enters the total.
        scale: Its entry in `loss_weights`, or None.
        group: Losses of one group share one weight.
        weight: Scalar tensor, what `value` was divided by; None for ROWS
            (the rows of the part) and SUM.
        replicas: What `value` was divided by on top, for distribution.
    """

    value: object
    scale: object
    group: object
    weight: object
    replicas: int

    @property
    def total(self):
        """The share of this loss in the total, a scalar tensor."""
        value = tf.reduce_sum(self.value)
        return value if self.scale is None else value * self.scale


class RecordingLoss(private.CompileLoss):
    """Keras's container of compiled losses, which keeps a record of each.

    Two faults of the original are mended on the way: the logged value of one
    output among several weighs a batch of unknown size by its rows, not by 1;
    a weight per row times a mask or a loss per position goes along the rows,
    also where the two sizes happen to agree.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._calling = False
        self.records = []
        #: Set by a step that logs whole windows itself.
        self.logs_itself = True

    @property
    def metrics(self):
        if self._calling:
            return [None] * len(self._metrics)
        return self._metrics

    def build(self, y_true, y_pred):
        super().build(y_true, y_pred)
        self._flat_losses = [
            item._replace(loss=_Recorder(item.loss, item.loss_weights, self))
            for item in self._flat_losses
        ]

    def call(self, y_true, y_pred, sample_weight=None):
        self.records = []
        self._calling = True
        try:
            total = super().call(y_true, y_pred, sample_weight)
        finally:
            self._calling = False
        if self.logs_itself and self._metrics:
            first = private.tree.flatten(y_pred)[0]
            rows = tf.cast(tf.shape(first)[0], tf.float32)
            for metric, record in zip(self._metrics, self.records, strict=True):
                metric.update_state(
                    tf.reduce_mean(record.value) * record.replicas, rows
                )
        return total


class RowMetrics(private.CompileMetrics):
    """Keras's container of compiled metrics, whose weights go along the rows.

    The same fault as that of the losses: a weight per row times a mask.
    """

    def update_state(self, y_true, y_pred, sample_weight=None):
        if not self.built:
            self.build(y_true, y_pred)
        if sample_weight is not None:
            predictions = private.per_output(self, y_pred)
            weights = private.per_output(self, sample_weight)
            if len(weights) < len(predictions):
                weights = weights[:1] * len(predictions)
            sample_weight = [
                _along_mask(w, getattr(p, "_keras_mask", None))
                for w, p in zip(weights, predictions, strict=True)
            ]
        super().update_state(y_true, y_pred, sample_weight)


def mend_containers(model, compiled):
    """Replaces Keras's containers of losses and metrics by those above.

    Args:
        model: The model, just compiled by Keras.
        compiled: Dict of the arguments of `compile`.
    """
    names = getattr(model, "output_names", None)
    loss, scales = compiled["loss"], compiled["loss_weights"]
    if loss is not None:
        private.set_compile_loss(
            model, RecordingLoss(loss, scales, output_names=names)
        )
    metrics, weighted = compiled["metrics"], compiled["weighted_metrics"]
    if weighted is not None:
        private.set_compile_metrics(
            model, RowMetrics(metrics, weighted, output_names=names)
        )


class _Recorder:
    """Stands in for one loss function inside the container."""

    def __init__(self, loss, scale, sink):
        self.loss = loss
        self.scale = scale
        self.sink = sink
        self.name = loss.name

    def __call__(self, y_true, y_pred, sample_weight=None):
        if type(self.loss).__call__ is private.Loss.__call__:
            record = self._reduce(y_true, y_pred, sample_weight)
        else:
            value = self.loss(y_true, y_pred, sample_weight)
            record = Record(value, self.scale, ROWS, None, 1)
        self.sink.records.append(record)
        return record.value

    def _reduce(self, y_true, y_pred, sample_weight):
        loss = self.loss
        in_mask = getattr(y_pred, "_keras_mask", None)
        y_true, y_pred = private.tree.map_structure(
            lambda t: tf.cast(tf.convert_to_tensor(t), loss.dtype),
            (y_true, y_pred),
        )
        values = tf.cast(
            tf.convert_to_tensor(loss.call(y_true, y_pred)), loss.dtype
        )
        mask = _both(in_mask, getattr(values, "_keras_mask", None))
        if sample_weight is not None:
            ranks = [len(t.shape) for t in (values, mask) if t is not None]
            sample_weight = _along_rows(sample_weight, max(ranks))
        value = private.reduce_weighted_values(
            values, sample_weight, mask, loss.reduction, loss.dtype
        )
        if values.shape.rank and values.shape[0] == 0:
            # A replica without a row: Keras gives back a vector of none.
            value = tf.reduce_sum(value)
        group, weight = self._weight(values, sample_weight, mask)
        mean = group != SUM and values.shape.rank != 0
        return Record(
            value, self.scale, group, weight, _replicas() if mean else 1
        )

    def _weight(self, values, sample_weight, mask):
        if values.shape.rank == 0:
            return ROWS, None
        reduction = self.loss.reduction
        if reduction in ("sum", "none", None):
            return SUM, None
        by_weight = reduction == "mean_with_sample_weight"
        if by_weight and sample_weight is not None:
            weight = tf.cast(sample_weight, values.dtype)
            if mask is not None:
                mask, weight = private.squeeze_or_expand_to_same_rank(
                    tf.cast(mask, values.dtype), weight
                )
                weight = weight * mask
            return self, tf.reduce_sum(weight)
        if mask is not None:
            mask = tf.cast(mask, values.dtype)
            if by_weight:
                return self, tf.reduce_sum(mask)
            positions = tf.math.divide_no_nan(_size(values), _size(mask))
            return self, tf.reduce_sum(mask) * positions
        if values.shape[1:].is_fully_defined():
            return ROWS, None
        return self, _size(values)


def _size(tensor):
    return tf.cast(tf.size(tensor), tensor.dtype)


def _both(a, b):
    if a is None or b is None:
        return b if a is None else a
    return tf.logical_and(a, b)


def _along_mask(sample_weight, mask):
    if sample_weight is None or mask is None:
        return sample_weight
    return _along_rows(sample_weight, len(mask.shape))


def _along_rows(sample_weight, rank):
    """Gives a weight per row one axis of size 1 for each axis it lacks."""
    weight = tf.convert_to_tensor(sample_weight)
    if weight.shape.rank == 1 and rank > 1:
        weight = tf.reshape(weight, [-1] + [1] * (rank - 1))
    return weight


def _replicas():
    return tf.distribute.get_strategy().num_replicas_in_sync
