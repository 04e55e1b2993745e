"""Half-precision layers with a dynamic loss scale.

Does: sets a mixed policy on the layers at `compile` (variables stay float32),
keeps the model's outputs and the loss float32, scales the loss so that small
float16 gradients survive, and leaves out an update whose gradient is not
finite, as `SkipNonFinite` does. A later `compile(perf=...)` without it
restores the policies. Logs `loss_scale` and `skipped_steps`; the logged loss
is never scaled.
When it helps: on accelerators with half-precision units (not measured on a
GPU). On a CPU it is usually slower: use it there to test numbers.
Mathematics: changed (half-precision rounding); the scale itself changes
nothing.
Cost: that of `SkipNonFinite`.
Conflicts: a `LossScaleOptimizer` and the optimizer's `loss_scale_factor`.
Keras's own loss scale has no floor, no skip count, and tests each replica's
gradient before they are summed; clips then see scaled gradients.
Measured: scales 2**3 and 2**15 give the same update within 1e-3
(tests/perf/test_mixed_precision.py).
Reference: Micikevicius et al. 2018, arXiv:1710.03740.
"""

import dataclasses
import weakref
from typing import ClassVar

import keras
import tensorflow as tf

from fastkeras._lib import checks
from fastkeras._lib import private
from fastkeras._lib.warn import warn
from fastkeras.perf import _gradients
from fastkeras.perf._feature import Feature
from fastkeras.perf._feature import Stage
from fastkeras.perf._feature import State
from fastkeras.perf.skip_non_finite import SkipState

_POLICIES = ("mixed_float16", "mixed_bfloat16")


class ScaleState(SkipState):
    """The loss scale and its growth counter, beside the skip counters."""

    def __init__(self, initial_scale):
        super().__init__()
        self.scale = self.add_variable("loss_scale", initial_scale, "float32")
        self.good = self.add_variable("good_steps", 0, "int32")

    def logs(self):
        return {**super().logs(), "loss_scale": self.scale.value + 0.0}


@keras.saving.register_keras_serializable("fastkeras")
@dataclasses.dataclass(frozen=True)
class MixedPrecision(Feature):
    """Runs the layers in half precision, with a dynamic loss scale.

    Args:
        policy: `"mixed_float16"` or `"mixed_bfloat16"` (which needs no loss
            scale and gets none). Defaults to `"mixed_float16"`.
        initial_scale: Float >= `min_scale`. Defaults to `2**15`.
        growth_steps: Integer, finite updates in a row after which the scale
            doubles. Defaults to `2000`.
        min_scale: Float >= 1, which the scale never falls below. Defaults to
            `1.0`.

    Raises:
        TypeError: If a number has the wrong type.
        ValueError: If `policy` is unknown or a number is out of range.

    Example:

    >>> MixedPrecision().policy
    'mixed_float16'

    Reference: Micikevicius et al. 2018, https://arxiv.org/abs/1710.03740
    """

    policy: str = "mixed_float16"
    initial_scale: float = 2.0**15
    growth_steps: int = 2000
    min_scale: float = 1.0

    stage: ClassVar[Stage] = Stage.SCALE
    mathematics: ClassVar[str] = "changed"
    owns: ClassVar[tuple[str, ...]] = (
        "LossScaleOptimizer",
        "loss_scale_factor",
    )

    def __post_init__(self):
        checks.one_of(self.policy, "policy", _POLICIES)
        fix = "Leave it out for the default."
        checks.positive_number(self.initial_scale, "initial_scale", fix)
        checks.positive_number(self.min_scale, "min_scale", fix)
        checks.positive_int(self.growth_steps, "growth_steps", fix)
        if self.min_scale < 1 or self.initial_scale < self.min_scale:
            raise ValueError(
                checks.message(
                    "`min_scale` must be >= 1 and <= `initial_scale`",
                    f"min_scale={self.min_scale}, "
                    f"initial_scale={self.initial_scale}",
                    fix,
                )
            )

    @property
    def guards(self):
        """Float16 alone overflows where float32 does not."""
        return self.policy == "mixed_float16"

    def check(self, model, optimizer):
        heads = _output_layers(model)
        inner = [x for x in private.flat_layers(model) if x is not model]
        if not any(_is_changeable(x, model) and x not in heads for x in inner):
            warn(
                f"No layer of {model.name!r} will run in half precision: it "
                "has none yet, or only such as must stay float32. Build a "
                "model that makes its layers late before you compile it."
            )

    def install(self, model):
        return _set_policies(model, self.policy)

    def new_state(self):
        return ScaleState(self.initial_scale) if self.guards else State()

    def output(self, y_pred):
        return private.tree.map_structure(_to_float32, y_pred)

    def scale(self, loss, state):
        if not self.guards:
            return loss
        return loss * tf.cast(state.scale.value, loss.dtype)

    def unscale(self, gradients, state):
        if not self.guards:
            return gradients
        factor = 1.0 / state.scale.value
        return _gradients.map_values(
            lambda v: v * tf.cast(factor, v.dtype), gradients
        )

    def settle(self, state, ok):
        if not self.guards:
            return
        state.count(ok)
        good = tf.where(ok, state.good.value + 1, 0)
        grow = good >= self.growth_steps
        scale = state.scale.value
        up = tf.where(tf.math.is_finite(scale * 2), scale * 2, scale)
        state.scale.assign(
            tf.where(
                ok,
                tf.where(grow, up, scale),
                tf.maximum(scale * 0.5, self.min_scale),
            )
        )
        state.good.assign(tf.where(grow, 0, good))

    def complaint(self, state):
        return state.complaint() if self.guards else None


def _to_float32(tensor):
    if getattr(tensor, "dtype", None) in (tf.float16, tf.bfloat16):
        mask = getattr(tensor, "_keras_mask", None)
        tensor = tf.cast(tensor, tf.float32)
        if mask is not None:
            tensor._keras_mask = mask
    return tensor


def _set_policies(model, policy):
    """Sets `policy` on all float32 layers; returns a function that undoes it.

    The layers that make the model's outputs stay (or become) float32, so that
    a softmax and the loss are computed in float32. In a model that was made
    with a mixed policy, a float32 layer was meant to be one.
    """
    heads = _output_layers(model)
    before = []
    for layer in private.flat_layers(model):
        old = layer.dtype_policy
        new = "float32" if layer in heads else policy
        if layer is model or not _is_changeable(layer, model):
            continue
        if old.name != new:
            before.append((weakref.ref(layer), old))
            layer.dtype_policy = new

    def undo():
        for ref, old in before:
            if ref() is not None:
                ref().dtype_policy = old

    return undo


def _is_changeable(layer, model):
    mixed = model.dtype_policy.name in _POLICIES
    names = _POLICIES if mixed else ("float32", *_POLICIES)
    return layer.dtype_policy.name in names


def _output_layers(model):
    """The layers whose call made an output; empty for a subclassed model."""
    heads = set()
    for tensor in getattr(model, "outputs", None) or []:
        layer = tensor._keras_history.operation
        if isinstance(layer, keras.Model):
            heads |= {layer, *_output_layers(layer)}
        elif isinstance(layer, keras.Layer):
            # A wrapper and what it wraps (an RNN and its cell) go together.
            heads.update(private.flat_layers(layer))
    return heads
