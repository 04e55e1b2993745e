"""Where Keras's own options and `Execution` meet."""

import keras

from fastkeras._lib import checks
from fastkeras._lib import private


def options(plan, model, given):
    """Settles the arguments of `compile` that say how steps run.

    Args:
        plan: `Plan`.
        model: The model that is being compiled.
        given: Dict of the arguments of `compile`.

    Returns:
        Dict of the arguments to change.

    Raises:
        ValueError: If Keras's argument and `Execution` disagree, or the
            strategy can't run what is asked.
    """
    execution = plan.execution
    jit = _agreed(
        ("jit_compile", given["jit_compile"], "auto"), ("jit", execution.jit)
    )
    steps = _agreed(
        ("steps_per_execution", given["steps_per_execution"], 1),
        ("steps_per_launch", execution.steps_per_launch),
    )
    if jit is True and given["run_eagerly"] and not plan.is_keras:
        raise ValueError(
            checks.message(
                "A step runs eagerly or is compiled, not both",
                "run_eagerly=True and jit=True",
                "Leave one of them out.",
            )
        )
    replicas = model.distribute_strategy.num_replicas_in_sync
    if jit is True and replicas > 1 and not plan.is_keras:
        name = type(model.distribute_strategy).__name__
        sparse = _embeddings(model)
        raise ValueError(
            checks.message(
                f"XLA can't compile a step under {name}, which exchanges "
                "gradients inside it",
                f"jit_compile=True and {name} with {replicas} replicas"
                + (f", and the Embedding layers {sparse}" if sparse else ""),
                "Leave `jit_compile` (`Execution(jit=)`) out, or train on one "
                "device.",
            )
        )
    return {"jit_compile": jit, "steps_per_execution": steps}


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
