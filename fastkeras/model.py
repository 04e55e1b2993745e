"""FastModel: a `keras.Model` whose step and loop are steered by `perf=`."""

import functools
import inspect

import keras

from fastkeras import engine
from fastkeras._lib import checks
from fastkeras._lib import forms
from fastkeras._lib import private
from fastkeras._lib import private_forms
from fastkeras.perf._feature import Stage
from fastkeras.perf._losses import mend_containers
from fastkeras.perf._padding import forward
from fastkeras.perf._part import evaluate
from fastkeras.perf._plan import check_optimizer
from fastkeras.perf._plan import check_plan
from fastkeras.perf._plan import make_plan
from fastkeras.perf._plan import with_model_policy
from fastkeras.perf._scaling import warn_of_lost_epsilon
from fastkeras.perf._state import SavedState
from fastkeras.perf._step import Step

if keras.backend.backend() != "tensorflow":
    raise ImportError(
        checks.message(
            "fastkeras needs the TensorFlow backend of Keras",
            f"backend={keras.backend.backend()!r}",
            "Set KERAS_BACKEND=tensorflow before Keras is imported.",
        )
    )

_KEEP = object()

# The defaults of `compile`: given all of these, it was called bare.
_DEFAULTS = {
    name: parameter.default
    for name, parameter in inspect.signature(
        keras.Model.compile
    ).parameters.items()
    if name != "self"
}


class FastModel(engine.Loops, keras.Model):
    """A `keras.Model` that trains faster and says why.

    Subclass it where you subclassed `keras.Model`, make it from inputs and
    outputs, or wrap a model with `FastModel.from_keras`. Then compile and fit
    as usual; `perf=` of `compile` is the one knob.

    Args:
        *args: As for `keras.Model`: nothing, or `inputs` and `outputs`.
        **kwargs: As for `keras.Model`.

    Example:

    >>> import numpy as np
    >>> inputs = keras.Input((4,))
    >>> model = FastModel(inputs, keras.layers.Dense(1)(inputs))
    >>> model.compile("sgd", "mse", perf="clip_by_global_norm")
    >>> history = model.fit(np.ones((8, 4)), np.ones((8, 1)), verbose=0)
    >>> sorted(history.history)
    ['clipped_fraction', 'grad_norm', 'grad_norm_max', 'loss']
    """

    def __new__(cls, *args, **kwargs):
        if cls is FastModel and forms.from_graph(args, kwargs):
            cls = FunctionalFastModel
        model = keras.Model.__new__(cls, *args, **kwargs)
        forms.keep_arguments(model, args, kwargs)
        return model

    _plan = make_plan("auto")
    predictor = None
    requested_jit = "auto"
    feed_reason = "no fit yet"

    def __init__(self, *args, **kwargs):
        if forms.from_graph(args, kwargs):
            forms.init_functional(self, *args, **kwargs)
        else:
            super().__init__(*args, **kwargs)

    @classmethod
    def from_keras(cls, model):
        """Makes a FastModel that shares the layers of a Keras model.

        Args:
            model: A Sequential, functional or subclassed `keras.Model`. It is
                left as it is; the two train the same weights.

        Returns:
            A `FastModel`, not compiled.

        Raises:
            TypeError: If `model` is not a `keras.Model`.

        Example:

        >>> source = keras.Sequential([keras.layers.Dense(1)])
        >>> FastModel.from_keras(source).layers[-1] is source.layers[-1]
        True
        """
        return forms.from_keras(model, FastModel, FunctionalFastModel)

    def compile(
        self,
        optimizer="rmsprop",
        loss=None,
        loss_weights=None,
        metrics=None,
        weighted_metrics=None,
        run_eagerly=False,
        steps_per_execution=1,
        jit_compile="auto",
        auto_scale_loss=True,
        perf=_KEEP,
    ):
        """Configures the model for training, as `keras.Model.compile` does.

        Called again with no argument at all, it keeps everything (optimizer,
        loss, metrics, their state) and only makes the step anew; that is safe
        also from a callback in mid-fit.

        Args:
            optimizer, loss, loss_weights, metrics, weighted_metrics,
            run_eagerly, steps_per_execution, jit_compile, auto_scale_loss: As
                for `keras.Model.compile`.
            perf: What a step computes and how steps run: `None` (Keras
                itself), `"auto"` (same mathematics, run by measurement), a
                feature or its name, an `Execution`, or a list of these.
                Defaults to the value of the last `compile`, at first
                `"auto"`.

        Raises:
            TypeError: If a part of `perf` has the wrong type.
            ValueError: If a name is unknown, a stage is given twice, or two
                places ask for the same thing. Nothing has changed then.
        """
        given = {k: v for k, v in locals().items() if k in _DEFAULTS}
        if self.compiled and perf is _KEEP and given == _DEFAULTS:
            check_optimizer(self, self.optimizer)
            self._begin(self.perf, Step(self.perf, self, self._step.states))
            return
        plan = self.perf if perf is _KEEP else make_plan(perf)
        plan = with_model_policy(plan, self, auto_scale_loss)
        given["optimizer"] = optimizer = keras.optimizers.get(optimizer)
        check_plan(plan, self, optimizer)
        check_optimizer(self, optimizer)
        given.update(engine.options(plan, self, given))
        step = Step(plan, self)
        if any(f.stage == Stage.SCALE for f in plan.features):
            given["auto_scale_loss"] = False
        super().compile(**given)
        self.requested_jit, self.jit_asked_by = given["jit_compile"], None
        if not plan.is_keras:
            mend_containers(self, given)
            warn_of_lost_epsilon(self, optimizer)
        self._begin(plan, step)

    def _begin(self, plan, step):
        """Starts a plan: its policies, its state, a step made anew."""
        self._uninstall()
        self._install(plan)
        self._plan = plan
        self._step = step
        # Keras saves what it finds among the attributes; set as usual this
        # would be tracked as one of the model's metrics as well.
        self.__dict__["perf_state"] = SavedState(self._step)
        self.train_function = None
        self.test_function = None
        self.predict_function = None
        self.predictor = engine.Predictor(self)

    def _install(self, plan):
        self._undo = [feature.install(self) for feature in plan.features]

    def _uninstall(self):
        for undo in vars(self).get("_undo", ()):
            undo()

    @property
    def perf(self):
        """The `Plan` that `perf=` of the last `compile` came to."""
        return self._plan

    def get_compile_config(self):
        config = super().get_compile_config()
        if config:
            config["perf"] = self.perf.get_config()
            # Not what "auto" came to here, nor what a callback made of a plan.
            in_plan = self.perf.execution.jit != "auto"
            config["jit_compile"] = "auto" if in_plan else self.requested_jit
        return config

    def compile_from_config(self, config):
        config = keras.saving.deserialize_keras_object(config)
        self.compile(**config)
        if self.optimizer is not None and self.built:
            self.optimizer.build(self.trainable_variables)

    @private_forms.is_no_override
    def get_config(self):
        with forms.before_perf(self):
            if forms.is_functional(self):
                return forms.functional_config(self, FunctionalFastModel)
            return {
                **super().get_config(),
                **forms.plain_arguments(self, FastModel),
            }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        if forms.is_functional_config(config):
            return forms.functional_from_config(cls, config, custom_objects)
        return super().from_config(config, custom_objects)

    def __call__(self, *args, **kwargs):
        outputs = super().__call__(*args, **kwargs)
        for feature in self.perf.features:
            outputs = feature.output(outputs)
        return outputs

    # The step.

    def train_step(self, data):
        """One update: from a batch, or from the batches of a window.

        Args:
            data: A batch as `fit` gives it, or a window of batches.

        Returns:
            Dict of log name to scalar tensor.
        """
        step = self._step
        total = step.add_up(self, step.parts(data))
        update = step.reduce(self, total)
        step.apply(self, update)
        return step.logs(self, update)

    def test_step(self, data):
        """One step of `evaluate`, on a batch as it gives them."""
        return evaluate(self, data)

    def predict_step(self, data):
        """One step of `predict`, on a batch as it gives them."""
        return forward(self, data, training=False)

    @property
    def has_own_train_step(self):
        """Whether a subclass overrides `train_step`."""
        return type(self).train_step is not FastModel.train_step

    def reset_metrics(self):
        super().reset_metrics()
        self._step.reset()

    def perf_report(self):
        """The receipt: what was asked for, what ran, how fast, and why.

        Returns:
            A `fastkeras.measure.Receipt`; print it, or take `to_dict()`.

        Raises:
            ValueError: If the model is not compiled.

        Example:

        >>> model = FastModel.from_keras(keras.Sequential([keras.Input((1,))]))
        >>> model.compile(perf="clip_by_value")
        >>> model.perf_report()["plan"]
        ['ClipByValue(max_value=0.5)']
        """
        return engine.report(self)


@keras.saving.register_keras_serializable("fastkeras", "FunctionalFastModel")
class FunctionalFastModel(FastModel, private.Functional):
    """What `FastModel(inputs, outputs)` makes.

    Keras would put its functional class among the bases of FastModel itself,
    after which no subclass with a `call` of its own could be made.
    """

    def __init__(self, *args, **kwargs):
        forms.init_functional(self, *args, **kwargs)


private_forms.clone_with(
    FastModel, functools.partial(forms.clone_functional, FunctionalFastModel)
)


@keras.saving.register_keras_serializable("fastkeras", "SharedFastModel")
class _Shared(forms.Shared, FastModel):
    """Stands for the models that `from_keras` makes of subclassed ones."""

    make = FastModel.from_keras
