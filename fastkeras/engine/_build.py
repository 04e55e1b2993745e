"""Variables that are made before the first trace, where that is needed."""

import keras
import tensorflow as tf

from fastkeras._lib import private
from fastkeras._lib import private_calls
from fastkeras._lib.forms import is_functional


def build(model, spec):
    """Makes all variables before the first trace, where that is needed.

    Under a strategy no variable can be made inside a replica, and a step that
    makes some is traced twice, which a pinned one and padded batches exclude;
    what a step made that ran out of memory could not be put back; elsewhere
    they are made if that is cheaper than a second trace, or else, as by Keras,
    while the first step is traced.

    Args:
        model: A compiled FastModel.
        spec: The specs of a batch.
    """
    if model.optimizer is not None and model._step.is_ready(model):
        if not model.optimizer.built:
            with model.distribute_strategy.scope():
                model.optimizer.build(model._step.trainable(model))
    plan = model.perf
    once = plan.execution.pins or plan.pads or plan.shrinks
    if private.has_strategy(model) or once:
        with model.distribute_strategy.scope():
            private.symbolic_build(model, spec)
    elif _computes_as_keras(model):
        private_calls.build_metrics(model, spec)


def _computes_as_keras(model):
    """Whether metrics see what a functional model returns, in a graph."""
    if model.run_eagerly or tf.config.functions_run_eagerly():
        return False
    if not is_functional(model) or model.has_own_train_step:
        return False
    return all(
        getattr(type(model), name) is getattr(keras.Model, name)
        for name in ("compute_loss", "compute_metrics")
    )
