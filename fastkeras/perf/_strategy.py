"""What a `tf.distribute` strategy asks of a model, checked at `compile`."""

from fastkeras._lib import checks
from fastkeras._lib import private
from fastkeras._lib import replicas


def check_strategy(model, optimizer):
    """Refuses what a strategy would refuse in the middle of the first step.

    Args:
        model: The model that is being compiled.
        optimizer: Its `keras.Optimizer`, or None.

    Raises:
        ValueError: If the optimizer was made for another strategy than the
            model, or accumulates by itself over several replicas.
    """
    if optimizer is None:
        return
    strategy = replicas.strategy_of(model)
    inner = private.inner_optimizer(optimizer)
    theirs = replicas.optimizer_strategy(inner)
    if theirs is not strategy:
        raise ValueError(
            checks.message(
                "A model and its optimizer must be made, and compiled, in the "
                "scope of one strategy",
                f"a model made under {replicas.name(strategy)}, and the "
                f"optimizer {inner.name!r} made under {replicas.name(theirs)}",
                "Make both and call `compile` inside `with strategy.scope():`.",
            )
        )
    steps = inner.gradient_accumulation_steps
    if steps and strategy.num_replicas_in_sync > 1:
        raise ValueError(
            checks.message(
                "Keras's gradient accumulation can't run under "
                f"{replicas.name(strategy)}, where no condition may hold an "
                "update",
                f"optimizer {inner.name}: gradient_accumulation_steps={steps}",
                "Leave it out of the optimizer, and give "
                f"`perf=[perf.Accumulate({steps})]`.",
            )
        )
