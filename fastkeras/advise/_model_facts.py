"""What a compiled model says of itself, before any step of it is traced."""

import functools

import keras
import tensorflow as tf

from fastkeras._lib import private
from fastkeras.model import FastModel

#: Layers that draw images anew in training.
AUGMENTING = tuple(
    value
    for name, value in vars(keras.layers).items()
    if name.startswith(("Rand", "AugMix", "MixUp", "CutMix"))
)


class ModelFacts:
    """Reads a model and how it was compiled.

    Args:
        model: A compiled `keras.Model`.
    """

    def __init__(self, model):
        self.model = model

    @property
    def is_fast(self):
        """Whether fastkeras runs the steps: not Keras itself."""
        plan = getattr(self.model, "perf", None)
        return plan is not None and not plan.is_keras

    @property
    def way_to_fast(self):
        """How a model that Keras runs comes to be run by fastkeras."""
        if isinstance(self.model, FastModel):
            return "perf='auto' in compile"
        where = " in the strategy's scope" if self.is_distributed else ""
        return f"FastModel.from_keras(model) with perf='auto'{where}"

    @property
    def is_distributed(self):
        """Whether several replicas train it."""
        return self.model.distribute_strategy.num_replicas_in_sync > 1

    @property
    def is_eager(self):
        return bool(self.model.run_eagerly or tf.config.functions_run_eagerly())

    @property
    def is_compiled(self):
        """Whether XLA compiles the steps."""
        return bool(self.model.jit_compile) and not self.is_eager

    @property
    def traces_shapes(self):
        """Whether a batch of another shape has a step traced anew."""
        if not self.is_fast or self.is_eager or self.pads:
            return False
        return not self.model.perf.execution.pins

    @property
    def runs_loops(self):
        """Whether several steps go into one call, or are tried so."""
        if not self.is_fast:
            return self.model.steps_per_execution > 1
        execution = self.model.perf.execution
        return execution.steps_per_launch != 1 and not execution.pins

    @property
    def window(self):
        """Integer, the batches of an update."""
        return self.model.perf.window if self.is_fast else 1

    @property
    def pads(self):
        """Whether batches are padded to one shape."""
        return self.is_fast and self.model.perf.pads

    @property
    def requested_jit(self):
        """What was asked for, as far as it is known: True, False, "auto"."""
        if hasattr(self.model, "requested_jit"):
            return self.model.requested_jit
        # Of "auto", Keras keeps only what it came to.
        asked = self.model.get_compile_config()["jit_compile"]
        return asked or "auto"

    @property
    def has_own_train_step(self):
        """Whether the steps are the user's own `train_step`."""
        module = type(self.model).train_step.__module__
        return not module.startswith(("keras.", "fastkeras."))

    @functools.cached_property
    def layers(self):
        """All layers, without the model itself."""
        flat = private.flat_layers(self.model)
        return [layer for layer in flat if layer is not self.model]

    @property
    def without_jit(self):
        """Names of the layers that XLA can't compile."""
        return [x.name for x in self.layers if not x.supports_jit]

    @property
    def optimizer(self):
        """The optimizer, below one that scales the loss."""
        return private.inner_optimizer(self.model.optimizer)

    @property
    def policies(self):
        """Names of the dtype policies of the layers."""
        return {layer.dtype_policy.name for layer in self.layers}

    @functools.cached_property
    def gpus(self):
        return len(tf.config.list_physical_devices("GPU"))
