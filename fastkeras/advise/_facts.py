"""Facts: all that the rules read, gathered once and only when asked for."""

import contextlib
import functools
import logging

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
from fastkeras.advise._model_facts import AUGMENTING
from fastkeras.advise._model_facts import ModelFacts
from fastkeras.advise._ways import new_plan
from fastkeras.engine._resident import free_memory
from fastkeras.measure._pipeline import copied
from fastkeras.measure._state import as_before
from fastkeras.perf._plan import check_plan
from fastkeras.perf._plan import make_plan

#: Seconds of a trace beyond which what takes more of them is only named.
LONG = 8.0
#: Told what is done, and each receipt.
LOG = logging.getLogger("fastkeras.advise")


class Facts(ModelFacts):
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
        super().__init__(model)
        self.data = Data(data, batch_size)
        self.steps = steps
        self.clock = clock or measure.Clock()
        vars(self).update(known)
        self._failure = ""
        # An error of the data is not one of the model.
        batch = None if model.built else self.data.batch
        try:
            self._build(batch)
        except Exception as caught:
            # Whatever the user's code raises: `traced` gives it, as that of
            # a step that can't be traced.
            self._failure = _graph.told(caught)

    def _build(self, batch):
        """Makes the variables of the model and the optimizer."""
        model = self.model
        if not model.built:
            x, _, _ = keras.utils.unpack_x_y_sample_weight(batch)
            with _graph.shortened(self.code.lists):
                private.forward(model, x, False)
        if model.optimizer is not None and not model.optimizer.built:
            with model.distribute_strategy.scope():
                model.optimizer.build(model.trainable_variables)

    @functools.cached_property
    def free_memory(self):
        """Bytes of the host's memory that are free."""
        return free_memory()

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
    def step(self):
        """A `tf.function` of a step without XLA, traced once for all."""
        return _graph.step_function(self.model)

    @functools.cached_property
    def traced(self):
        if self._failure:
            return _graph.Traced(self._failure)
        with self.undisturbed():
            return _graph.trace(self.step, self.data.batch, self.code.lists)

    @functools.cached_property
    def trace_seconds(self):
        """Seconds that a trace of the step takes."""
        with measure.Clock().stopwatch() as watch:
            _ = self.traced
        return watch.seconds

    @property
    def is_long(self):
        """Whether a trace takes so long that no rule is to make another."""
        return self.trace_seconds > LONG

    @functools.cached_property
    def in_graph(self):
        """`Summary`: how many times as long a step takes run eagerly.

        None where it can't be traced, or nothing is.
        """
        if self.traced.error or tf.config.functions_run_eagerly():
            return None
        # What these steps trace, they would not trace again.
        _ = self.traced_again
        with self.undisturbed():
            return _times.in_graph(
                self.model, self.step, self.data.batch, self.steps, self.clock
            )

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
                self.model,
                self.data.source,
                self.steps,
                self.data.batch_size,
                say=LOG.info,
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
            step = self.step
            if self.model.jit_compile:
                step = _graph.step_function(self.model, True)
            return _times.growth(step, self.data.batch, self.steps, self.clock)

    @functools.cached_property
    def calls(self):
        """Two `Summary`: seconds of a step called alone, and in a loop.

        None where a trace takes long, or a loop can't hold it.
        """
        if self.is_long or self.traced.error:
            return None
        try:
            with self.undisturbed():
                return _times.in_loop(
                    self.step, self.data.batch, self.steps, self.clock
                )
        except tf.errors.OpError:
            # Some operations run step by step alone: the rule says then that
            # nothing was measured.
            return None

    @functools.cached_property
    def without_xla(self):
        """`Summary`: how many times as long a step takes without XLA.

        None where XLA fails.
        """
        try:
            with self.undisturbed():
                return _times.without_xla(
                    self.model,
                    self.step,
                    self.data.batch,
                    self.steps,
                    self.clock,
                )
        except tf.errors.OpError:
            # Some operations are found out by XLA only as it compiles them.
            return None

    @functools.cached_property
    def random_images(self):
        """Dict: seconds of each layer that draws images anew, on a batch."""
        layers = [x for x in self.layers if isinstance(x, AUGMENTING)]
        if not layers:
            return {}
        with self.undisturbed():
            return _times.of_layers(layers, self.data.rows, self.clock)

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
        half = any(x.compute_dtype == "float16" for x in self.layers)
        if not half or self.traced.error:
            return []
        x, _, _ = keras.utils.unpack_x_y_sample_weight(self.data.batch)
        with self.undisturbed():
            outputs = _graph.outputs(self.model, x)
        return [self.model.name] if tf.float16 in outputs else []

    @property
    def varies(self):
        """Whether batches differ in more than their rows."""
        return len(self.data.kinds) > 1

    def takes(self, settings):
        """Whether the model can be run so: see `Advice.settings`."""
        if "steps_per_execution" in settings:
            # Keras's fail where replicas come to the end of the data.
            return not self.is_distributed
        features, execution = (
            settings.get(name, {}) for name in ("perf", "execution")
        )
        plan = self.model.perf if self.is_fast else make_plan("auto")
        try:
            plan = new_plan(plan, features, execution)
            check_plan(plan, self.model, self.model.optimizer)
        except ValueError:
            # What is refused is not offered.
            return False
        return True

    @property
    def is_device_bound(self):
        """Whether the device is busy most of the time."""
        return (
            self.profile is not None
            and self.python_share <= 0.3
            and not self.profile["input"]["bound"]
        )
