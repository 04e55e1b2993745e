"""Which tiers a model can run in, and why the others are left out."""

import keras
import tensorflow as tf

from fastkeras._lib import private
from fastkeras._lib import replicas

#: What XLA takes to compile a step, as a multiple of the time to trace it.
_XLA_FACTOR = 3.0

_CONVOLUTIONS = (
    "BaseConv",
    "BaseConvTranspose",
    "BaseDepthwiseConv",
    "BaseSeparableConv",
)


def fixed_step(model):
    """The step tier that runs what no loop can: XLA only if asked for."""
    return "xla-step" if model.jit_compile else "graph-step"


def pinned_steps(model):
    """The steps of a launch that the user asked for, or None."""
    steps = model.steps_per_execution
    if steps == 1 and model.perf.execution.steps_per_launch == "auto":
        return None
    return max(1, steps // model.perf.window)


def estimate(tier, traces):
    """Seconds that compiling a tier is thought to take.

    The time to trace the step tells both the size of its graph and the speed
    of this machine at the moment.

    Args:
        tier: String.
        traces: List of the seconds that tracing has taken so far.
    """
    factor = _XLA_FACTOR if tier.startswith("xla") else 1
    return factor * min(traces, default=0.5)


def available(model, name, feed):
    """The tiers of a model on a feed, cheapest first, and reasons.

    Args:
        model: The model.
        name: String, `"train_step"`, `"test_step"` or `"predict_step"`.
        feed: The feed.

    Returns:
        Tuple of a list of tier names and a list of strings.
    """
    step = fixed_step(model)
    if model.run_eagerly or tf.config.functions_run_eagerly():
        return ["graph-step"], ["every step runs eagerly, as asked for"]
    if model.perf.execution.pins:
        return [step], ["loops left out: the signature is pinned to one trace"]
    family = step.removesuffix("-step")
    resident = feed.name == "resident"
    if not resident:
        reason = _loop_refusal(model, feed)
        if reason:
            reasons = [f"loops left out: {reason}"]
            exchange = _exchange(model)
            if exchange:
                reasons.append(f"XLA left out: {exchange}")
            return [step], reasons
    tiers = [step, f"{family}-loop"]
    pinned = name != "predict_step" and pinned_steps(model)
    if pinned and pinned > 1:
        tiers.remove(step)
    elif pinned and model.steps_per_execution == 1:
        # A loop of one step is no other way to run it.
        tiers = [step]
    elif name == "test_step" and resident and feed.full > 1:
        tiers.reverse()
    reasons = []
    if family == "graph" and model.requested_jit == "auto":
        reason = xla_refusal(model)
        if reason is None:
            tiers.append("xla-loop")
        else:
            reasons.append(f"XLA left out: {reason}")
    if family == "xla" and xla_loops_are_slow(model):
        tiers = [step]
        reasons.append(
            "xla-loop left out: on a CPU, XLA runs a convolution in a loop "
            "many times slower"
        )
    return tiers, reasons


def _loop_refusal(model, feed):
    """Why no loop in the graph can pull the batches of a stream, or None."""
    if private.has_strategy(model):
        return "the strategy takes one batch at a time to its replicas"
    if model.perf.window > 1:
        return "a window is put together outside the graph"
    if model.perf.pads:
        return "batches are padded outside the graph"
    if model.perf.shrinks:
        return "a batch must be at hand to be run again in smaller slices"
    if not all(
        isinstance(s, tf.TensorSpec) for s in private.tree.flatten(feed.spec)
    ):
        return "the batches hold more than dense tensors"
    return None


def xla_refusal(model):
    """Why XLA is not tried on a model; None if it may be."""
    if _exchange(model):
        return _exchange(model)
    if not private.model_supports_jit(model):
        names = [
            layer.name
            for layer in private.flat_layers(model)
            if not layer.supports_jit
        ]
        if names:
            return f"layers {names} have supports_jit=False"
        return "operations are asked to be deterministic"
    if xla_loops_are_slow(model):
        return "on a CPU, XLA runs convolutions slower than the graph"
    names = _cudnn_layers(model) if _has_gpu() else []
    if names:
        return (
            f"layers {names} run cuDNN's kernels on a GPU, which XLA can't "
            "compile; with use_cudnn=False it can"
        )
    return None


def _exchange(model):
    """Why several replicas keep a step from XLA; None for one."""
    strategy = model.distribute_strategy
    if strategy.num_replicas_in_sync == 1:
        return None
    return (
        f"the replicas of a {replicas.name(strategy)} exchange gradients "
        "inside a step, which XLA can't compile"
    )


def _cudnn_layers(model):
    """Names of the recurrent layers that take cuDNN where they can."""
    return [
        layer.name
        for layer in private.flat_layers(model)
        if isinstance(layer, (keras.layers.LSTM, keras.layers.GRU))
        and layer.use_cudnn
    ]


def has_convolution(model):
    """Whether any layer of the model is a convolution."""
    return any(
        base.__name__ in _CONVOLUTIONS
        for layer in private.flat_layers(model)
        for base in type(layer).__mro__
    )


def xla_loops_are_slow(model):
    """Whether XLA would run what is in a loop many times slower."""
    return has_convolution(model) and not _has_gpu()


def _has_gpu():
    return bool(tf.config.list_physical_devices("GPU"))


def is_blind(callback):
    """Whether a callback can't look at the metrics before the first launch."""
    kind = type(callback)
    if kind.__module__.startswith("keras."):
        return kind is not keras.callbacks.LambdaCallback
    return _leaves(
        callback,
        "on_epoch_begin",
        "on_train_batch_begin",
        "on_batch_begin",
        "on_test_batch_begin",
    )


def is_lazy_in_predict(callback):
    """Whether a callback is content with the end of each launch there."""
    return isinstance(callback, keras.callbacks.ProgbarLogger) or _leaves(
        callback, "on_predict_batch_begin", "on_predict_batch_end"
    )


def is_lazy(callback):
    """Whether a callback is content with the end of each launch."""
    if getattr(callback, "per_launch", False):
        return True
    if isinstance(
        callback,
        (
            keras.callbacks.ProgbarLogger,
            keras.callbacks.History,
        ),
    ):
        return True
    if getattr(callback, "save_freq", None) == "epoch":
        return True
    return _leaves(
        callback,
        "on_train_batch_begin",
        "on_train_batch_end",
        "on_batch_begin",
        "on_batch_end",
    )


def _leaves(callback, *hooks):
    """Whether a callback leaves all of these hooks as Keras has them."""
    return all(
        private.is_default_hook(getattr(callback, hook)) for hook in hooks
    )
