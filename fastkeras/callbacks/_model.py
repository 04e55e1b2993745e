"""What a model tells of itself, be it a FastModel or Keras's own."""

import keras

from fastkeras._lib import private
from fastkeras._lib import replicas
from fastkeras._lib.machine import machine
from fastkeras._lib.machine import versions
from fastkeras.measure.receipt import Receipt


def trained(model):
    """Batches that a model was trained on before this moment."""
    optimizer = private.inner_optimizer(model.optimizer)
    if optimizer is None:
        return 0
    window = getattr(optimizer, "gradient_accumulation_steps", None) or 1
    if hasattr(model, "perf"):
        window *= model.perf.window
    return int(_number(optimizer.iterations)) * window


def counted(model, batches, before):
    """Batches of an epoch of unknown length.

    Keras counts the last launch as full, whose batches it does not know.

    Args:
        model: The model, after the epoch.
        batches: Integer, its batches as they were counted.
        before: Integer, what `trained` gave before the epoch.
    """
    ran = trained(model) - before
    is_close = 0 < batches - ran < model.steps_per_execution
    return ran if _runs_as_keras(model) and is_close else batches


def batches_of_launch(model):
    """The most batches that the launch to come may hold."""
    if _runs_as_keras(model):
        return model.steps_per_execution
    return model.epoch_times.ahead if model.epoch_times else 1


def learning_rates(optimizer):
    """Dict of name to learning rate, named as by Keras's TensorBoard."""
    optimizer = private.inner_optimizer(optimizer)
    if hasattr(optimizer, "optimizers"):
        return {
            f"learning_rate_{o.name}": float(_number(o.learning_rate))
            for o in optimizer.optimizers
        }
    if optimizer is None:
        return {}
    return {"learning_rate": float(_number(optimizer.learning_rate))}


def receipt(model):
    """The receipt of a model, or what can be said of one without."""
    if hasattr(model, "perf_report"):
        return model.perf_report()
    return Receipt(
        {
            "machine": machine(),
            "versions": versions(),
            "plan": ["Keras itself"],
            "settings": {
                "jit": bool(model.jit_compile),
                "run_eagerly": bool(model.run_eagerly),
                "steps per launch": model.steps_per_execution,
                "strategy": replicas.described(replicas.strategy_of(model)),
            },
            "train_step": "not known: a keras.Model keeps no record of how "
            "its steps run; `FastModel.from_keras(model)` does",
        }
    )


def _runs_as_keras(model):
    return not hasattr(model, "perf") or model.perf.is_keras


def _number(value):
    # `float` takes no variable of a strategy.
    return keras.ops.convert_to_tensor(value).numpy()
