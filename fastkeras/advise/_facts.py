"""Facts: all that the rules read, gathered once and only when asked for."""

import contextlib
import functools

import keras
import tensorflow as tf

from fastkeras import measure
from fastkeras._lib import checks
from fastkeras._lib import private
from fastkeras._lib import private_datasets
from fastkeras.advise import _graph
from fastkeras.advise import _times
from fastkeras.advise._code import Code
from fastkeras.advise._data import Data
from fastkeras.engine._resident import free_memory
from fastkeras.measure._pipeline import copied
from fastkeras.measure._state import as_before
from fastkeras.model import FastModel


class Facts:
    """Reads a model, its data, and the traced graph of its step.

    What takes time (a trace, a few steps) happens when a rule first asks.
    The state of the model is put back each time.

    Args:
        model: A compiled `keras.Model`.
        data: See `Data`.
        batch_size: Integer, of arrays. Defaults to `32`.
        steps: Integer, steps that are profiled. Defaults to `10`.
        clock: `fastkeras.measure.Clock`. Defaults to `None`: the real one.
        **known: Facts that are known already, by name.
    """

    def __init__(
        self, model, data, batch_size=32, steps=10, clock=None, **known
    ):
        if not getattr(model, "compiled", False):
            raise ValueError(
                checks.message(
                    "Advice is about a compiled `keras.Model`",
                    f"{type(model).__name__} that is not compiled",
                    "Call `model.compile(...)` first.",
                )
            )
        checks.positive_int(steps, "steps", "Leave it out for 10.")
        self.model = model
        self.data = Data(data, batch_size)
        self.steps = steps
        self.clock = clock or measure.Clock()
        vars(self).update(known)
        self._build()

    def _build(self):
        """Makes the variables of the model and the optimizer."""
        model = self.model
        if not model.built:
            x, _, _ = keras.utils.unpack_x_y_sample_weight(self.data.batch)
            with _graph.shortened(self.code.lists):
                private.forward(model, x, False)
        if model.optimizer is not None and not model.optimizer.built:
            with model.distribute_strategy.scope():
                model.optimizer.build(model.trainable_variables)

    # The model.

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
        return "FastModel.from_keras(model) with perf='auto'"

    @property
    def is_eager(self):
        return bool(self.model.run_eagerly or tf.config.functions_run_eagerly())

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
    def metrics(self):
        """The metrics, those that `compile` was given among them."""
        return [
            each
            for metric in self.model.metrics
            for each in (metric, *getattr(metric, "metrics", ()))
        ]

    @property
    def policies(self):
        """Names of the dtype policies of the layers."""
        return {layer.dtype_policy.name for layer in self.layers}

    @functools.cached_property
    def gpus(self):
        return len(tf.config.list_physical_devices("GPU"))

    @functools.cached_property
    def free_memory(self):
        """Bytes of the host's memory that are free."""
        return free_memory()

    # The step.

    @contextlib.contextmanager
    def undisturbed(self, model=None):
        """What happens in it to the model's state is undone.

        Args:
            model: One that shares the layers. Defaults to `None`: the model.
        """
        model = model or self.model
        made = len(model.metrics_variables)
        with as_before(model), _graph.shortened(self.code.lists):
            yield
        if len(model.metrics_variables) > made:
            # Metrics whose variables the first step has made.
            model.reset_metrics()

    @functools.cached_property
    def code(self):
        return Code(self.model)

    @functools.cached_property
    def traced(self):
        with self.undisturbed():
            return _graph.trace(self.model, self.data.batch, self.code.lists)

    @functools.cached_property
    def traced_again(self):
        """Names of the user's `tf.function`s that each eager step traces."""
        functions = self.code.compiled()
        if not self.is_eager or not functions:
            return []
        with self.undisturbed():
            counts = _graph.trace_counts(self.model, self.data.batch, functions)
        return [name for name, count in counts.items() if count >= _graph.STEPS]

    @functools.cached_property
    def profile(self):
        """`fastkeras.measure.Profile`, or None for a step run eagerly."""
        if self.is_eager or self.traced.error:
            return None
        with self.undisturbed():
            return measure.profile(
                self.model, self.data.source, self.steps, self.data.batch_size
            )

    @property
    def python_share(self):
        """Share of a step in which Python works and no operation does."""
        if self.profile is None:
            return 0.0
        return self.profile.shares["dispatch"] + self.profile.shares["idle"]

    @functools.cached_property
    def growth(self):
        """`Summary`: how many times as long twice the rows take."""
        with self.undisturbed():
            return _times.growth(
                self.model, self.data.batch, self.steps, self.clock
            )

    @functools.cached_property
    def without_xla(self):
        """`Summary`: how many times as long a step takes without XLA.

        None where XLA fails.
        """
        try:
            with self.undisturbed():
                return _times.without_xla(
                    self.model, self.data.batch, self.steps, self.clock
                )
        except tf.errors.OpError:
            # Some operations are found out by XLA only as it compiles them.
            return None

    @functools.cached_property
    def stages(self):
        """Pairs of the name of a stage of the pipeline, and its seconds."""
        if not isinstance(self.data.dataset, tf.data.Dataset):
            name = f"{type(self.data.dataset).__name__}.__getitem__"
            return [(name, _times.of_items(self.data.dataset, self.clock))]
        stages = [(name, copied(dataset)) for name, dataset in self.pipeline]
        return _times.stage_seconds(stages, self.data.rows, self.clock)

    @functools.cached_property
    def pipeline(self):
        """Pairs of the name of a stage and the dataset up to it."""
        dataset = self.data.dataset
        if self.data.is_arrays or not isinstance(dataset, tf.data.Dataset):
            return []
        return private_datasets.stages(dataset)

    @functools.cached_property
    def half_outputs(self):
        """Names of the layers, or of the model, whose outputs are float16."""
        if getattr(self.model, "outputs", None):
            layers = [t._keras_history.operation for t in self.model.outputs]
            return [x.name for x in layers if x.compute_dtype == "float16"]
        if not any(x.compute_dtype == "float16" for x in self.layers):
            return []
        x, _, _ = keras.utils.unpack_x_y_sample_weight(self.data.batch)
        with self.undisturbed():
            outputs = _graph.outputs(self.model, x)
        return [self.model.name] if tf.float16 in outputs else []

    @property
    def is_device_bound(self):
        """Whether the device is busy most of the time."""
        return (
            self.profile is not None
            and self.python_share <= 0.3
            and not self.profile["input"]["bound"]
        )
