"""Rules on a device that is busy: XLA, half precision, larger batches."""

import keras

from fastkeras.advise._advice import FAST
from fastkeras.advise._advice import Advice
from fastkeras.advise._advice import times
from fastkeras.engine._tiers import xla_refusal

#: The smallest `epsilon` that still counts beside a float16 slot.
LEAST_EPSILON = 1e-4
#: A batch of twice the rows is worth it below so many times the seconds, and
#: where an epoch still has so many steps.
CHEAP_DOUBLE, STEPS = 1.25, 10
#: XLA is told of where it is so many times as fast, noise taken off.
FASTER = 1.02
#: Share of a step from which on metrics are dear.
COSTLY = 0.1


def xla(facts):
    model = facts.model
    measured = facts.is_fast and facts.requested_jit == "auto"
    if model.jit_compile or measured or xla_refusal(model):
        return None
    if not facts.is_device_bound or facts.varies:
        # XLA would compile each of the shapes.
        return None
    if facts.is_long:
        found, gain, ground = "", "operations are fused", "not measured"
        gain += f": a trace takes {facts.trace_seconds:.3g} s, XLA longer"
    else:
        ratio, ground = facts.without_xla, "measured"
        if ratio is None or ratio.lower < FASTER:
            return None
        found = f", and without it a step takes {ratio} the time"
        gain = f"{times(ratio.median)} times as fast"
    return Advice(
        "XLA",
        f"a step of {_computing(facts)}, operation by operation: XLA is off"
        + found,
        gain,
        "jit 'auto' in `Execution`, which measures it, or jit_compile=True"
        if facts.is_fast
        else f"{facts.way_to_fast}, which measures it, or "
        "compile(jit_compile=True)",
        ground=ground,
        settings={"jit_compile": True},
        alternatives=({"jit_compile": "auto"} if facts.is_fast else FAST,),
    )


def xla_layers(facts):
    names = facts.without_jit
    if not names or facts.requested_jit is False:
        return None
    return Advice(
        "layers that turn XLA off",
        f"supports_jit=False: {', '.join(names)}; the whole step runs without "
        "XLA",
        "XLA for the rest of the model",
        "move them into `dataset.map`, before the model",
    )


def xla_requested(facts):
    """XLA was asked for, and does not run."""
    if facts.requested_jit is not True or (
        facts.model.jit_compile and not facts.is_eager
    ):
        return None
    reason = (
        "steps run eagerly"
        if facts.is_eager
        else xla_refusal(facts.model) or "Keras turned it off"
    )
    change = "ask for it no more"
    if facts.is_eager:
        change = "compile(run_eagerly=False)"
    elif facts.without_jit:
        change = f"move these layers into `dataset.map`, or {change}"
    return Advice(
        "XLA requested but off",
        f"jit requested True, effective False: {reason}",
        "what was asked for",
        change,
    )


def mixed_precision(facts):
    if not facts.gpus or facts.policies - {"float32"}:
        return None
    if not facts.is_device_bound:
        return None
    return Advice(
        "mixed precision",
        f"all layers compute in float32 on {facts.gpus} GPU(s), and a step of "
        f"{_computing(facts)}",
        "half the memory of the activations; on a GPU with Tensor Cores "
        "faster, not measured",
        "perf='mixed_float16' (or 'mixed_bfloat16')",
        mathematics="changed",
    )


def larger_batch(facts):
    if not facts.is_device_bound or facts.data.rows >= 1024 or facts.is_long:
        return None
    if facts.data.count < 2 * STEPS:
        return None
    ratio = facts.growth.median
    if facts.growth.upper >= CHEAP_DOUBLE:
        return None
    return Advice(
        "larger batch",
        f"twice {facts.data.rows} rows take {facts.growth} the time",
        f"{2 / max(1, ratio):.2g} times the rows a second",
        f"batch_size={2 * facts.data.rows}, with a learning rate to match",
        mathematics="changed",
        ground="measured",
    )


def unscaled_loss(facts):
    """A `train_step` of the user's that leaves the loss as it is."""
    scaled = isinstance(
        facts.model.optimizer, keras.optimizers.LossScaleOptimizer
    )
    if not scaled or not facts.has_own_train_step or facts.code.scales():
        return None
    return Advice(
        "loss not scaled",
        f"`train_step` of {type(facts.model).__name__} never calls "
        "`scale_loss`, and its LossScaleOptimizer divides the gradients by "
        f"{float(facts.model.optimizer.dynamic_scale):g}",
        "updates of the right size",
        "take gradients of `self.optimizer.scale_loss(loss)`",
        mathematics="changed",
    )


def costly_metrics(facts):
    """Metrics that take a tenth of a step or more.

    A plain AUC beside a small step is 1 to 3 % of it, and is not told.
    """
    if facts.profile is None:
        return None
    step, costs = facts.profile.step, facts.profile["metrics"]
    taken = facts.profile["phases"].get("metrics", 0.0)
    if taken < COSTLY * step or not costs:
        return None
    label = max(costs, key=costs.get)
    return Advice(
        "costly metrics",
        f"of a step of {step * 1e3:.3g} ms the metrics take "
        f"{taken * 1e3:.3g} ms, {label} most of it",
        f"up to {1 / max(1 - taken / step, 0.1):.2g} times as fast without "
        "them",
        f"leave {label.partition(':')[0]} out of `compile` and take it once "
        "an epoch from `model.predict` on the validation data"
        + (", or give it fewer thresholds" if "thresholds" in label else ""),
        ground="bound",
    )


def augmentation(facts):
    """Layers that draw images anew, which a pipeline could run beside."""
    if not facts.random_images or facts.profile is None:
        return None
    step, costs = facts.profile.step, facts.random_images
    taken = sum(costs.values())
    if taken < COSTLY * step:
        return None
    each = ", ".join(f"{k} {v * 1e3:.3g} ms" for k, v in costs.items())
    return Advice(
        "augmentation in the step",
        f"alone {each} a batch, beside a step of {step * 1e3:.3g} ms that "
        "runs them one after the other",
        f"about {times(1 / max(1 - taken / step, 0.1))} times as fast where "
        "other processors have the time for them",
        "`dataset.map(lambda x, y: (layers(x, training=True), y), "
        "num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)`, and "
        "the model without them",
        mathematics="changed",
        ground="estimate",
    )


def _computing(facts):
    step, share = facts.profile.step * 1e3, 1 - facts.python_share
    return f"{step:.3g} ms is {share:.0%} computing"


def half_outputs(facts):
    half = facts.half_outputs
    if not half or (facts.is_fast and _casts(facts.model.perf)):
        return None
    return Advice(
        "float16 outputs",
        f"the outputs of {', '.join(half)} are float16: a softmax or a loss "
        "overflows at 65504",
        "a finite loss, and a loss scale that stays high",
        "dtype='float32' on the last activation, or perf='mixed_float16', "
        "which does it",
        mathematics="changed",
    )


def _casts(plan):
    return any(f.__class__.__name__ == "MixedPrecision" for f in plan.features)


def pure_half(facts):
    half = [
        v.path for v in facts.model.trainable_variables if v.dtype == "float16"
    ]
    # Adafactor has two; the first is added to squares.
    epsilon = getattr(facts.optimizer, "epsilon", None)
    epsilon = getattr(facts.optimizer, "epsilon_1", epsilon)
    if not half or epsilon is None or epsilon >= LEAST_EPSILON:
        return None
    return Advice(
        "float16 variables",
        f"{len(half)} variables such as {half[0]} are float16, where "
        f"epsilon={epsilon:g} of the optimizer is lost",
        "no NaN from a division by 0",
        "float32 variables (perf='mixed_float16'), or epsilon=1e-4 or more",
        mathematics="changed",
    )
