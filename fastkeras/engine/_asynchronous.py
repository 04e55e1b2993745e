"""What can't be under a `ParameterServerStrategy`, refused at `compile`.

What is exact there: each update by itself. Clipping, `Accumulate` (a worker is
given the whole window), `Microbatch`, `SkipNonFinite`, `Watch`, the loss scale
of `MixedPrecision`, `Rematerialize` and `PadBatches` work within one update,
and do there what they do on one device.
"""

import itertools

from fastkeras._lib import checks
from fastkeras._lib import private
from fastkeras._lib import private_coordinator
from fastkeras._lib import replicas
from fastkeras.perf._feature import Stage


def check_asynchronous(plan, model, given):
    """Refuses what steps on workers of their own can't do.

    Args:
        plan: `Plan`.
        model: The model that is being compiled.
        given: Dict of the arguments of `compile`.

    Raises:
        ValueError: If something of it is asked for.
    """
    refused = itertools.chain(
        _of_steps(plan, given),
        _of_optimizer(plan, model, given),
        _of_strategy(replicas.strategy_of(model)),
    )
    for received, remedy in refused:
        raise ValueError(
            checks.message(
                "Under a ParameterServerStrategy each worker runs whole steps "
                "by itself, on weights that the others change",
                received,
                remedy,
            )
        )


def _of_steps(plan, given):
    if plan.is_keras:
        received = "perf=None: Keras's own loop knows no coordinator"
        yield received, 'Leave `perf` at "auto".'
    if given["run_eagerly"]:
        received = "run_eagerly=True: a worker is given graphs"
        yield received, "Leave it out, or debug under no strategy."
    if plan.execution.pins:
        received = f"signature={plan.execution.signature!r}"
        yield received, "Leave `signature` out of `Execution`."


def _of_optimizer(plan, model, given):
    half = model.dtype_policy.name == "mixed_float16"
    ours = any(f.stage == Stage.SCALE for f in plan.features)
    wrapped = isinstance(given["optimizer"], private.LossScaleOptimizer)
    if wrapped or (half and given["auto_scale_loss"] and not ours):
        received = "a LossScaleOptimizer, whose scale the workers would share"
        yield received, "Give the inner optimizer, and `MixedPrecision()`."
    optimizer = private.inner_optimizer(given["optimizer"])
    steps = getattr(optimizer, "gradient_accumulation_steps", None)
    if steps:
        received = f"gradient_accumulation_steps={steps}: their sums would mix"
        yield received, f"Give `perf=[perf.Accumulate({steps})]` instead."
    frequency = getattr(optimizer, "ema_overwrite_frequency", None)
    if frequency:
        received = f"ema_overwrite_frequency={frequency}"
        yield received, "Leave it out: `fit` overwrites at its end."


def _of_strategy(strategy):
    count = strategy.num_replicas_in_sync
    if count > 1:
        yield f"{count} GPUs a worker", "Start one worker for each GPU."
    if private_coordinator.has_partitioner(strategy):
        received = "a strategy with a `variable_partitioner`"
        yield received, "Leave it out; the servers share whole variables."
