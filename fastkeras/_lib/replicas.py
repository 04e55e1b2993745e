"""What models and optimizers of Keras keep to themselves about strategies."""

import contextlib

import keras

from fastkeras._lib.private import default_strategy
from fastkeras._lib.private import inner_optimizer


@contextlib.contextmanager
def gradients_already_summed(optimizer):
    """Keeps an optimizer from summing over the replicas a second time.

    Keras sums inside `apply`, after its own clipping. Here the sum comes
    first, since the finite test, the division by the true weight and every
    clip need it; without this the gradient would count once per replica.

    `ema_overwrite_frequency` is held back as well: Keras overwrites under a
    condition inside a replica, which a strategy refuses.

    Yields:
        Function of the strategy that overwrites the weights with their moving
        averages where it is time; call it outside the replicas, afterwards.
    """
    inner = inner_optimizer(optimizer)
    frequency = inner.ema_overwrite_frequency
    inner.__dict__["_all_reduce_sum_gradients"] = list
    inner.__dict__["ema_overwrite_frequency"] = None
    try:
        yield lambda strategy: _overwrite(strategy, inner, frequency)
    finally:
        inner.__dict__.pop("_all_reduce_sum_gradients", None)
        inner.__dict__["ema_overwrite_frequency"] = frequency


def _overwrite(strategy, optimizer, frequency):
    if not optimizer.use_ema or not frequency:
        return
    averages = optimizer._model_variables_moving_average

    def overwrite():
        for variable, average in zip(
            optimizer._trainable_variables, averages, strict=True
        ):
            bound = variable.constraint or (lambda value: value)
            strategy.extended.update(
                variable.value,
                lambda v, a, bound=bound: v.assign(bound(a + 0.0)),
                args=(average.value,),
                group=False,
            )
        return True

    keras.ops.cond(
        optimizer.iterations % frequency == 0, overwrite, lambda: False
    )


def strategy_of(model):
    """The strategy a model was made under; the default one if under none.

    `model.distribute_strategy` would be that of the present scope, for a
    model made under none.
    """
    return model._distribute_strategy or default_strategy()


def optimizer_strategy(optimizer):
    """The strategy an optimizer was made under."""
    return optimizer._distribution_strategy


def is_default_strategy(strategy):
    """True if it stands for no strategy at all."""
    return strategy is default_strategy()
