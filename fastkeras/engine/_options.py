"""Where Keras's own options and `Execution` meet; counts of `fit`."""

import numbers

import keras

from fastkeras._lib import checks
from fastkeras._lib import private
from fastkeras._lib import replicas
from fastkeras._lib.warn import warn
from fastkeras.engine._asynchronous import check_asynchronous
from fastkeras.engine._workers import is_asynchronous

_AT_LEAST_ONE = (
    "batch_size",
    "steps_per_epoch",
    "validation_steps",
    "validation_batch_size",
    "steps",
)
_AT_LEAST_ZERO = ("epochs", "initial_epoch")


def options(plan, model, given):
    """Settles the arguments of `compile` that say how steps run.

    Args:
        plan: `Plan`.
        model: The model that is being compiled.
        given: Dict of the arguments of `compile`.

    Returns:
        Dict of the arguments to change.

    Raises:
        TypeError: If `steps_per_execution` is not an integer.
        ValueError: If it is < 1, Keras's argument and `Execution` disagree,
            or the strategy can't run what is asked.
    """
    steps = given["steps_per_execution"]
    checks.positive_int(steps, "steps_per_execution", "Leave it out.")
    if is_asynchronous(model):
        check_asynchronous(plan, model, given)
    execution = plan.execution
    jit = _agreed(
        ("jit_compile", given["jit_compile"], "auto"), ("jit", execution.jit)
    )
    steps = _agreed(
        ("steps_per_execution", steps, 1),
        ("steps_per_launch", execution.steps_per_launch),
    )
    if jit is True and not plan.is_keras:
        refuse_xla(model, given["run_eagerly"])
    return {"jit_compile": jit, "steps_per_execution": steps}


def refuse_xla(model, is_eager):
    """Refuses to have XLA compile steps that run eagerly or on replicas.

    Args:
        model: The model.
        is_eager: Bool, whether its steps run eagerly.

    Raises:
        ValueError: If they do.
    """
    if is_eager:
        raise ValueError(
            checks.message(
                "A step runs eagerly or is compiled, not both",
                "run_eagerly=True and jit=True",
                "Leave one of them out.",
            )
        )
    count = model.distribute_strategy.num_replicas_in_sync
    if count > 1 or is_asynchronous(model):
        name = replicas.name(model.distribute_strategy)
        sparse = _embeddings(model)
        raise ValueError(
            checks.message(
                f"XLA can't compile a step under {name}, which exchanges "
                "gradients inside it",
                f"jit_compile=True and {name} with {count} replicas"
                + (f", and the Embedding layers {sparse}" if sparse else ""),
                "Leave `jit_compile` (`Execution(jit=)`, `JitToggle`) out, or "
                "train on one device.",
            )
        )


def _embeddings(model):
    """Names of the layers whose sparse gradients XLA can't exchange either."""
    return [
        layer.name
        for layer in private.flat_layers(model)
        if isinstance(layer, keras.layers.Embedding)
    ]


def _agreed(keras_option, ours):
    name, value, default = keras_option
    our_name, our_value = ours
    if our_value == "auto":
        return value
    if value not in (default, our_value):
        raise ValueError(
            checks.message(
                f"`{name}` of `compile` and `{our_name}` of `Execution` must "
                "agree",
                f"{name}={value!r}, {our_name}={our_value!r}",
                "Give one of them.",
            )
        )
    return our_value


def check_counts(given):
    """Refuses counts without sense, before anything has changed.

    What Keras gives a meaning stays: no epochs, or an `initial_epoch` past
    the last, train nothing.

    Args:
        given: Dict of the arguments of `fit`, `evaluate` or `predict`.

    Raises:
        TypeError: If a count is not an integer.
        ValueError: If a count is too small.
    """
    for name in _AT_LEAST_ONE:
        if given.get(name) is not None:
            checks.positive_int(given[name], name, "Leave it out.")
    for name in _AT_LEAST_ZERO:
        _check_from_zero(given.get(name, 0), name)
    freq = given.get("validation_freq", 1)
    if not isinstance(freq, list):
        remedy = "Give a number of epochs, or a list of epochs."
        checks.positive_int(freq, "validation_freq", remedy)
    share = given.get("validation_split")
    if share and given["validation_data"] is None and not 0 < share < 1:
        raise ValueError(
            checks.message(
                "`validation_split` must be > 0 and < 1",
                f"validation_split={share!r}",
                "Give the share of the rows to validate on, such as 0.2.",
            )
        )


def _check_from_zero(value, name):
    if not isinstance(value, numbers.Integral) or value < 0:
        wrong = ValueError if isinstance(value, numbers.Integral) else TypeError
        raise wrong(
            checks.message(
                f"`{name}` must be an integer >= 0",
                f"{name}={value!r}",
                "Epochs are counted from 0.",
            )
        )


def limited(value, name):
    """A count, cut to the limit that `keras.config` sets for debugging."""
    limit = getattr(keras.config, f"max_{name}")()
    if not limit or (value is not None and value <= limit):
        return value
    warn(f"`{name}` is limited to {limit} by `keras.config.set_max_{name}`.")
    return limit


def check_unrolled(model):
    """Refuses an unrolling that can't be, and says that none is in effect.

    Args:
        model: The model, whose `unrolled_steps_per_execution` is Keras's.

    Raises:
        ValueError: If more steps are to be unrolled than one call runs.
    """
    unrolled = model.unrolled_steps_per_execution
    if unrolled > model.steps_per_execution:
        raise ValueError(
            checks.message(
                "`unrolled_steps_per_execution` must be <= "
                "`steps_per_execution`",
                f"unrolled_steps_per_execution={unrolled}, "
                f"steps_per_execution={model.steps_per_execution}",
                "Leave it at 1, or raise `steps_per_execution`.",
            )
        )
    if unrolled > 1:
        warn(
            f"`unrolled_steps_per_execution={unrolled}` is not in effect: the "
            "steps of a launch run in a loop, whose length can change without "
            "a new trace. Leave it at 1, or train with `perf=None`.",
            told=model._step.told,
        )
