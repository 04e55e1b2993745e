"""Batches of few shapes: the last rows, and sequences, are filled up.

Does: fills a batch that is short with copies of its last row, and sequences
of varying length with masked steps, before the step sees them. The model
computes on all of it; its outputs are cut to the real rows and steps before
losses and metrics see them.
When it helps: with XLA, which compiles again for each shape, traced anew or
not; and where one trace is wanted for each step.
Mathematics: same as the batches that were not padded: loss, gradients,
metrics (weighted or not) and true weights, with sample weights, masks and
every feature. Random layers draw for the padding as well, so Dropout agrees
in distribution. What an attention returns at a step that the data itself
masks may differ; nothing reads it.
Cost: the computation of what is added, and a gather of the outputs in every
batch: 1.16 times the step of a small MLP in a graph loop, 1.00 times in an XLA
loop (MLP 64-128-128-10, batch 32, 2-core CPU, 2026-11-29). One more symbolic
pass before the first step, which makes the variables of the metrics.
Conflicts: refused by name are a `BatchNormalization` that trains, losses that
layers add (`add_loss`, `activity_regularizer`), a `train_step`, `test_step` or
`predict_step` of your own, ragged and sparse data, several replicas, and, for
lengths, a model without a mask (`Embedding(mask_zero=True)`, `Masking`). A
layer without support for masks is warned of by name. A layer of your own that
mixes the rows of a batch can't be noticed. Arrays have one length and keep it.
`train_on_batch` and its kin are given one batch, and do not pad it.
Measured: 103 rows in batches of 10 are traced once and compiled once instead
of twice; ten sequence lengths are compiled once instead of once each
(tests/perf/test_pad_batches.py).
Reference: https://www.tensorflow.org/xla/tf2xla (shapes and compilation).
"""

import bisect
import collections.abc
import dataclasses
import inspect
from typing import ClassVar

import keras
import tensorflow as tf

from fastkeras._lib import checks
from fastkeras._lib import private
from fastkeras._lib import replicas
from fastkeras._lib.private import tree
from fastkeras._lib.warn import warn
from fastkeras.perf._feature import Feature
from fastkeras.perf._feature import Stage
from fastkeras.perf._padding import Padded
from fastkeras.perf._padding import refuse_trained_norms
from fastkeras.perf._parts import check_dense

_LEAVE_OUT = "Leave it out, or leave PadBatches out of `perf`."


@keras.saving.register_keras_serializable("fastkeras")
@dataclasses.dataclass(frozen=True)
class PadBatches(Feature):
    """Fills batches up to few shapes; what is added counts for nothing.

    Args:
        to: `"batch"` or None. `"batch"` fills a short batch up to the batch
            size (that of the first batch, where the data names none); None
            leaves the rows alone. Defaults to `"batch"`.
        multiple_of: Integer >= 1 or None. Sequences (axis 1 of what varies in
            length, in x, y and sample weights) are filled up to a multiple of
            it. Defaults to `None`.
        buckets: Integers >= 1 or None, in place of `multiple_of`: sequences
            are filled up to the next of these lengths. Defaults to `None`.
        value: Number, what sequences of x are filled up with: what the model
            masks. Defaults to `0`.

    Raises:
        TypeError: If `multiple_of` or a bucket is not an integer.
        ValueError: If an argument is out of range, both `multiple_of` and
            `buckets` are given, or nothing is to be padded.

    Example:

    >>> PadBatches(buckets=[32, 8]).buckets
    (8, 32)

    Reference: https://www.tensorflow.org/xla/tf2xla
    """

    to: str | None = "batch"
    multiple_of: int | None = None
    buckets: tuple | None = None
    value: float = 0

    stage: ClassVar[Stage] = Stage.PAD

    def __post_init__(self):
        checks.one_of(self.to, "to", ("batch", None))
        if self.multiple_of is not None:
            checks.positive_int(self.multiple_of, "multiple_of", _LEAVE_OUT)
        if self.buckets is not None:
            self._settle_buckets()
        if not (self.to or self._pads_steps):
            raise ValueError(
                checks.message(
                    "`PadBatches` needs rows or lengths to pad",
                    repr(self),
                    "Give `to='batch'`, `multiple_of` or `buckets`.",
                )
            )

    def _settle_buckets(self):
        if not isinstance(self.buckets, collections.abc.Iterable):
            raise TypeError(
                checks.message(
                    "`buckets` must be a list of lengths",
                    f"buckets={self.buckets!r}",
                    _LEAVE_OUT,
                )
            )
        if self.multiple_of is not None or not self.buckets:
            raise ValueError(
                checks.message(
                    "`PadBatches` takes either `multiple_of` or `buckets`, "
                    "which hold at least one length",
                    f"multiple_of={self.multiple_of!r}, "
                    f"buckets={self.buckets!r}",
                    "Leave one of them out.",
                )
            )
        for length in self.buckets:
            checks.positive_int(length, "buckets", _LEAVE_OUT)
        # A list where it was given so, or came back from a config.
        object.__setattr__(self, "buckets", tuple(sorted(set(self.buckets))))

    @property
    def _pads_steps(self):
        return self.multiple_of is not None or self.buckets is not None

    # At `compile`.

    def check(self, model, optimizer):
        own = [
            name
            for name in ("train_step", "test_step", "predict_step")
            if _is_overridden(model, name)
        ]
        if own:
            _refuse(
                "needs FastModel's own steps, which know what is real",
                f"{type(model).__name__} with {own}",
                "Override `compute_loss` or `compute_metrics` instead.",
            )
        if model.distribute_strategy.num_replicas_in_sync > 1:
            _refuse(
                "runs on one device",
                replicas.name(model.distribute_strategy),
                "Batch the dataset with `drop_remainder=True`.",
            )
        layers = private.flat_layers(model)
        refuse_trained_norms(model)
        if self._pads_steps and len(layers) > 1:
            self._check_masks(model, layers)

    def _check_masks(self, model, layers):
        if not any(map(self._makes_mask, layers)):
            _refuse(
                f"fills sequences up with {self.value}, which the model must "
                "mask",
                f"no layer that masks {self.value}",
                "Use `Embedding(mask_zero=True)` or `Masking(value)`, and give "
                "its value as `value`.",
            )
        names = [m.name for m in _called(model) if _drops_mask(m)]
        if names:
            warn(
                f"Layers {names} do not support masks. Where they are given "
                "sequences, PadBatches has them compute with the padding, and "
                "the results differ. After the steps are summed up, all is "
                "well."
            )

    def _makes_mask(self, layer):
        if isinstance(layer, keras.layers.Masking):
            return layer.mask_value == self.value
        if isinstance(layer, keras.layers.Embedding):
            return layer.mask_zero and self.value == 0
        own = type(layer).compute_mask is not keras.layers.Layer.compute_mask
        return own and not type(layer).__module__.startswith("keras.")

    # In the feed.

    def pad(self, batch, rows, spec):
        check_dense(
            tree.flatten(batch),
            "`PadBatches` pads dense tensors",
            "Make it dense in the dataset (`to_tensor`), or leave PadBatches "
            "out of `perf`.",
        )
        batch = tree.map_structure(
            lambda t: t if isinstance(t, tf.Tensor) else None, batch
        )
        lengths = tree.map_structure(self._length, batch, spec)
        found = {n for n in tree.flatten(lengths) if n is not None}
        if len(found) > 1:
            _refuse(
                "takes sequences of one length in a batch",
                f"lengths {sorted(found)}",
                "Give them one length, or leave `multiple_of` and `buckets` "
                "out.",
            )
        if not (self.to or found):
            return batch
        real = int(
            next(t for t in tree.flatten(batch) if t is not None).shape[0]
        )
        batch = tree.map_structure(self._longer, batch, lengths)
        if self.to and rows is not None and rows > real:
            at = tf.minimum(tf.range(rows), real - 1)
            batch = tree.map_structure(
                lambda t: None if t is None else tf.gather(t, at), batch
            )
        steps = tree.map_structure(
            lambda n: None if n is None else tf.constant(n), lengths
        )
        return Padded(batch, tf.constant(real), steps)

    def _length(self, tensor, spec):
        """The steps of a tensor whose steps vary; else None."""
        if tensor is None or not self._pads_steps or tensor.shape.rank < 2:
            return None
        varies = spec.shape.rank is None or spec.shape[1] is None
        return int(tensor.shape[1]) if varies else None

    def _longer(self, tensor, length):
        if length is None:
            return tensor
        added = self._bucket(length) - length
        paddings = [[0, 0], [0, added]] + [[0, 0]] * (tensor.shape.rank - 2)
        value = tf.cast(self.value, tensor.dtype)
        return tf.pad(tensor, paddings, constant_values=value)

    def _bucket(self, length):
        if self.multiple_of is not None:
            return -(-length // self.multiple_of) * self.multiple_of
        place = bisect.bisect_left(self.buckets, length)
        if place == len(self.buckets):
            raise ValueError(
                checks.message(
                    "The longest of `buckets` must hold every sequence",
                    f"a sequence of {length} steps, buckets={self.buckets}",
                    "Add a longer bucket, or cut the sequences.",
                )
            )
        return self.buckets[place]


def _refuse(rule, received, remedy):
    raise ValueError(checks.message(f"`PadBatches` {rule}", received, remedy))


def _is_overridden(model, name):
    module = getattr(type(model), name).__module__
    return not module.startswith(("keras.", "fastkeras."))


def _called(model):
    """The layers a model calls; what they call in turn is their affair."""
    for layer in model.layers:
        if isinstance(layer, keras.Model):
            yield from _called(layer)
        else:
            yield layer


def _drops_mask(layer):
    own = (keras.layers.InputLayer, keras.layers.Embedding)
    if layer.supports_masking or isinstance(layer, own):
        return False
    return "mask" not in inspect.signature(layer.call).parameters
