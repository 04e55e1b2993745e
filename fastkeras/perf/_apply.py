"""Handing the gradients of an update to the optimizer, once."""

import tensorflow as tf

from fastkeras._lib import checks
from fastkeras._lib import replicas
from fastkeras._lib.warn import warn


def with_gradient(gradients, variables, told):
    """Drops the variables the loss does not reach, and names them once.

    Args:
        gradients: List of gradients, None among them.
        variables: List of the variables.
        told: Set of the warnings given so far: each tier traces the step.

    Returns:
        Tuple of the gradients and of the variables that are left.

    Raises:
        ValueError: If none is left.
    """
    pairs = list(zip(gradients, variables, strict=True))
    missing = [v.path for g, v in pairs if g is None]
    if len(missing) == len(pairs):
        raise ValueError(
            checks.message(
                "At least one trained variable must have a gradient",
                f"none for {missing}",
                "Make the loss depend on the model's output through "
                "differentiable operations.",
            )
        )
    if missing:
        warn(
            f"No gradient reaches {missing}: the loss does not depend on them. "
            "They stay as they are.",
            told=told,
        )
    kept = [(g, v) for g, v in pairs if g is not None]
    return [g for g, _ in kept], [v for _, v in kept]


def needed(optimizer):
    """The optimizer of a model that is trained.

    Raises:
        ValueError: If it has none, which is enough to evaluate it.
    """
    if optimizer is None:
        raise ValueError(
            checks.message(
                "To train a model takes an optimizer",
                "optimizer=None",
                'Give one to `compile`, such as "adam".',
            )
        )
    return optimizer


def guarded(ok, apply):
    """Calls `apply`, only if `ok`; always where nothing guards the update."""
    if ok is None:
        apply()
        return

    def yes():
        apply()
        return tf.constant(True)

    tf.cond(ok, yes, lambda: tf.constant(False))


def alone(optimizer, gradients, variables, ok):
    """Applies gradients where there are no replicas.

    Keras would sum them all the same, by a function with a gradient of its
    own, which TensorFlow keeps for good, and with it the graph of the step.
    """

    def apply():
        with replicas.without_sum(optimizer):
            optimizer.apply(gradients, variables)

    guarded(ok, apply)


def across(optimizer, gradients, variables, ok):
    """Applies gradients that are summed already, the same on each replica.

    A condition whose branch merges the replicas is allowed only outside the
    replica context, so the replicas are merged first, then told apart again.
    """

    def merged(strategy, gradients, ok):
        if ok is not None:
            ok = strategy.experimental_local_results(ok)[0]

        def apply():
            with replicas.gradients_already_summed(optimizer) as overwrite:
                strategy.extended.call_for_each_replica(
                    lambda g: optimizer.apply(g, variables), args=(gradients,)
                )
            overwrite(strategy)

        guarded(ok, apply)

    tf.distribute.get_replica_context().merge_call(merged, args=(gradients, ok))
