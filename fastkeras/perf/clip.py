"""Clipping by global norm, by norm, by value, and adaptively.

Does: bounds the gradient of one update, after the sum over micro-batches,
batches and replicas and after loss scaling is undone. Logs, per epoch, the
gradient norm before clipping (`grad_norm` mean, `grad_norm_max`) and the
fraction of updates that were clipped (`clipped_fraction`).
When it helps: exploding gradients (RNNs, transformers, large learning rates);
`AdaptiveClip` where no one threshold fits all layers.
Mathematics: changed.
Cost: one pass over the gradients.
Conflicts: the optimizer's `clipnorm`, `global_clipnorm` and `clipvalue`; its
`loss_scale_factor` and a `LossScaleOptimizer`, whose gradients are still
scaled. Keras has the first three clips too; they run before the replicas (and
the rows of repeated ids of an embedding) are summed and report nothing.
Measured: equal to NumPy within 1e-6 (tests/perf/test_clip.py).
Reference: Pascanu et al. 2013, arXiv:1211.5063; for `AdaptiveClip`, Brock et
al. 2021, arXiv:2102.06171.
"""

import dataclasses
from typing import ClassVar

import keras
import tensorflow as tf

from fastkeras._lib import checks
from fastkeras.perf import _gradients
from fastkeras.perf._feature import Feature
from fastkeras.perf._feature import Max
from fastkeras.perf._feature import Stage
from fastkeras.perf._feature import State

_OFF = "To switch clipping off, leave it out of `perf`."


class _Clip(Feature):
    stage: ClassVar[Stage] = Stage.CLIP
    mathematics: ClassVar[str] = "changed"
    owns: ClassVar[tuple[str, ...]] = (
        "clipnorm",
        "global_clipnorm",
        "clipvalue",
        "loss_scale_factor",
        "LossScaleOptimizer",
    )

    def new_state(self):
        state = State()
        state.trackers = {
            "grad_norm": keras.metrics.Mean(name="grad_norm"),
            "grad_norm_max": Max(name="grad_norm_max"),
            "clipped_fraction": keras.metrics.Mean(name="clipped_fraction"),
        }
        return state

    def clip(self, gradients, variables, state, ok):
        gradients = [_gradients.sum_duplicates(g) for g in gradients]
        norm = _gradients.global_norm(gradients)
        clipped, hit = self._clip(gradients, variables, norm)
        counts = None if ok is None else tf.cast(ok, tf.float32)
        if ok is not None:
            norm = tf.where(ok, norm, tf.zeros_like(norm))
        state.trackers["grad_norm"].update_state(norm, counts)
        state.trackers["grad_norm_max"].update_state(norm, counts)
        state.trackers["clipped_fraction"].update_state(
            tf.cast(hit, tf.float32), counts
        )
        return clipped

    def _clip(self, gradients, variables, norm):
        """Returns the clipped gradients and whether any changed."""
        raise NotImplementedError


@keras.saving.register_keras_serializable("fastkeras")
@dataclasses.dataclass(frozen=True)
class ClipByGlobalNorm(_Clip):
    """Scales all gradients together so that their joint L2 norm is bounded.

    Args:
        max_norm: Float > 0, the largest norm. Defaults to `1.0`.

    Raises:
        TypeError: If `max_norm` is not a number.
        ValueError: If `max_norm` is not finite and > 0.

    Example:

    >>> ClipByGlobalNorm(0.5)
    ClipByGlobalNorm(max_norm=0.5)

    Reference: Pascanu et al. 2013, https://arxiv.org/abs/1211.5063
    """

    max_norm: float = 1.0

    def __post_init__(self):
        checks.positive_number(self.max_norm, "max_norm", _OFF)

    def _clip(self, gradients, variables, norm):
        factor = _shrink(norm, self.max_norm)
        return _times(gradients, factor), norm > self.max_norm


@keras.saving.register_keras_serializable("fastkeras")
@dataclasses.dataclass(frozen=True)
class ClipByNorm(_Clip):
    """Bounds the L2 norm of each variable's gradient by itself.

    Args:
        max_norm: Float > 0, the largest norm. Defaults to `1.0`.

    Raises:
        TypeError: If `max_norm` is not a number.
        ValueError: If `max_norm` is not finite and > 0.

    Example:

    >>> ClipByNorm(0.5)
    ClipByNorm(max_norm=0.5)

    Reference: Pascanu et al. 2013, https://arxiv.org/abs/1211.5063
    """

    max_norm: float = 1.0

    def __post_init__(self):
        checks.positive_number(self.max_norm, "max_norm", _OFF)

    def _clip(self, gradients, variables, norm):
        out, hits = [], []
        for g in gradients:
            if g is not None:
                own = tf.sqrt(_gradients.square_norm(g))
                hits.append(own > self.max_norm)
                (g,) = _times([g], _shrink(own, self.max_norm))
            out.append(g)
        return out, tf.reduce_any(hits)


@keras.saving.register_keras_serializable("fastkeras")
@dataclasses.dataclass(frozen=True)
class ClipByValue(_Clip):
    """Bounds each single gradient value to `[-max_value, max_value]`.

    Args:
        max_value: Float > 0. Defaults to `0.5`.

    Raises:
        TypeError: If `max_value` is not a number.
        ValueError: If `max_value` is not finite and > 0.

    Example:

    >>> ClipByValue(0.1)
    ClipByValue(max_value=0.1)

    Reference: https://keras.io/api/optimizers/ (`clipvalue`)
    """

    max_value: float = 0.5

    def __post_init__(self):
        checks.positive_number(self.max_value, "max_value", _OFF)

    def _clip(self, gradients, variables, norm):
        hits = [
            tf.reduce_any(tf.abs(v) > tf.cast(self.max_value, v.dtype))
            for v in _gradients.values(gradients)
        ]
        return _gradients.map_values(self._bound, gradients), tf.reduce_any(
            hits
        )

    def _bound(self, tensor):
        limit = tf.cast(self.max_value, tensor.dtype)
        return tf.clip_by_value(tensor, -limit, limit)


@keras.saving.register_keras_serializable("fastkeras")
@dataclasses.dataclass(frozen=True)
class AdaptiveClip(_Clip):
    """Bounds each unit's gradient by a fraction of that unit's weight norm.

    A unit is one output column of a Dense kernel, one output channel of a
    convolution, one row of an embedding table; a vector (a bias, a scale) is
    one unit.

    Args:
        factor: Float > 0, the largest ratio of gradient norm to weight norm.
            Defaults to `0.01`.
        epsilon: Float > 0, the smallest weight norm, so that zero weights can
            leave zero. Defaults to `1e-3`.

    Raises:
        TypeError: If an argument is not a number.
        ValueError: If an argument is not finite and > 0.

    Example:

    >>> AdaptiveClip(0.02)
    AdaptiveClip(factor=0.02, epsilon=0.001)

    Reference: Brock et al. 2021, https://arxiv.org/abs/2102.06171
    """

    factor: float = 0.01
    epsilon: float = 1e-3

    def __post_init__(self):
        checks.positive_number(self.factor, "factor", _OFF)
        checks.positive_number(self.epsilon, "epsilon", _OFF)

    def _clip(self, gradients, variables, norm):
        out, hits = [], []
        for g, variable in zip(gradients, variables, strict=True):
            if g is not None:
                g, hit = self._clip_units(g, variable)
                hits.append(hit)
            out.append(g)
        return out, tf.reduce_any(hits)

    def _clip_units(self, gradient, variable):
        weight = tf.convert_to_tensor(variable.value)
        if isinstance(gradient, tf.IndexedSlices):
            weight = tf.gather(weight, gradient.indices)
        tensor = _gradients.widen(_gradients.values([gradient])[0])
        weight = tf.cast(weight, tensor.dtype)
        axes = _unit_axes(variable)
        largest = self.factor * tf.maximum(
            _unit_norm(weight, axes), tf.cast(self.epsilon, tensor.dtype)
        )
        own = _unit_norm(tensor, axes)
        factor = _shrink(own, largest)
        hit = tf.reduce_any(own > largest)
        return _gradients.on_values(
            lambda v: v * tf.cast(factor, v.dtype), gradient
        ), hit


def _unit_axes(variable):
    rank = len(variable.shape)
    if variable.name == "embeddings":
        return list(range(1, rank))
    return list(range(rank - 1)) if rank > 1 else list(range(rank))


def _unit_norm(tensor, axes):
    return tf.sqrt(tf.reduce_sum(tf.square(tensor), axes, keepdims=True))


def _shrink(norm, largest):
    largest = tf.cast(largest, norm.dtype)
    return largest / tf.maximum(norm, largest)


def _times(gradients, factor):
    return _gradients.map_values(
        lambda v: v * tf.cast(factor, v.dtype), gradients
    )
