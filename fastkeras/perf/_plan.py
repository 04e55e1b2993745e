"""From `perf=` to a plan: features in stage order, and one `Execution`."""

import dataclasses

import keras

from fastkeras import perf as registry
from fastkeras._lib import checks
from fastkeras._lib import private
from fastkeras._lib import replicas
from fastkeras._lib.layers import trained_batch_norms
from fastkeras._lib.warn import warn
from fastkeras.perf._execution import Execution
from fastkeras.perf._feature import Feature
from fastkeras.perf._feature import Stage
from fastkeras.perf._parts import Window
from fastkeras.perf._strategy import check_strategy


@dataclasses.dataclass(frozen=True)
class Plan:
    """What `perf=` came to.

    Attributes:
        features: Tuple of features in the order of their stages.
        execution: `Execution`, how steps run.
        is_keras: Bool, True for `perf=None`: Keras itself.
    """

    features: tuple = ()
    execution: Execution = Execution()
    is_keras: bool = False

    @property
    def window(self):
        """Batches in one update."""
        return max([f.window for f in self.features], default=1)

    @property
    def cuts(self):
        """Whether an update is added up from several parts."""
        return any(
            f.stage in (Stage.WINDOW, Stage.SLICE) for f in self.features
        )

    @property
    def guards(self):
        """Whether a non-finite update is left out."""
        return any(f.guards for f in self.features)

    @property
    def shrinks(self):
        """Whether a step that runs out of memory is run again with less."""
        return any(f.shrinks for f in self.features)

    @property
    def keeps_remainder(self):
        """Whether a last window that is not full makes an update."""
        return all(f.keeps_remainder for f in self.features)

    @property
    def pads(self):
        """Whether batches are padded on their way to the step."""
        return any(f.stage == Stage.PAD for f in self.features)

    def joined(self, batches):
        """What a step is given for the batches of one update."""
        return Window(tuple(batches))

    def pad(self, batch, rows, spec):
        """Pads a batch on its way to the step: see `Feature.pad`."""
        for feature in self.features:
            batch = feature.pad(batch, rows, spec)
        return batch

    def get_config(self):
        """What `perf=` takes to make this plan again, serialised."""
        if self.is_keras:
            return None
        parts = list(self.features)
        if self.execution != Execution():
            parts.append(self.execution)
        if not parts:
            return "auto"
        return [keras.saving.serialize_keras_object(p) for p in parts]

    def __str__(self):
        if self.is_keras:
            return "Plan: Keras itself (perf=None)"
        lines = ["Plan:"]
        lines += [
            f"  {f!r}: mathematics {f.mathematics}" for f in self.features
        ]
        lines.append(f"  {self.execution!r}")
        return "\n".join(lines)


def make_plan(perf):
    """Turns the value of `perf=` into a `Plan`.

    Args:
        perf: None, `"auto"`, a feature or its name, an `Execution`, or a list
            of these.

    Returns:
        A `Plan`.

    Raises:
        TypeError: If a part is none of the above.
        ValueError: If a name is unknown or a stage is given twice.

    Example:

    >>> make_plan("accumulate").features
    (Accumulate(steps=2, remainder='flush'),)
    """
    if perf is None:
        return Plan(is_keras=True)
    if not isinstance(perf, (list, tuple)):
        perf = [perf]
    parts = [p for p in map(_part, perf) if p is not None]
    executions = [p for p in parts if isinstance(p, Execution)]
    features = [p for p in parts if isinstance(p, Feature)]
    if len(executions) > 1:
        raise ValueError(
            checks.message(
                "`perf` takes one `Execution`",
                f"perf={executions}",
                "Put all its arguments into one.",
            )
        )
    features.sort(key=lambda f: f.stage)
    for first, second in zip(features, features[1:], strict=False):
        if first.stage == second.stage:
            raise ValueError(
                checks.message(
                    f"`perf` takes one feature of stage {first.stage.name}",
                    f"{first!r} and {second!r}",
                    "Leave one of them out.",
                )
            )
    return Plan(tuple(features), *executions)


def _part(value):
    if isinstance(value, str):
        if value == "auto":
            return None
        checks.one_of(value, "perf", ("auto", *registry.NAMES))
        return registry.NAMES[value]()
    if isinstance(value, (Feature, Execution)):
        return value
    remedy = 'Write, for example, perf="auto" or perf=[perf.Accumulate(4)].'
    if isinstance(value, type) and issubclass(value, (Feature, Execution)):
        remedy = f"Make an instance: {value.__name__}()."
    raise TypeError(
        checks.message(
            "`perf` takes None, 'auto', features, their names, `Execution`, "
            "or a list of these",
            f"{value!r} of type {type(value).__name__}",
            remedy,
        )
    )


def check_plan(plan, model, optimizer):
    """Refuses a plan that can't work on this model, changing nothing.

    Args:
        plan: `Plan`.
        model: The model that is being compiled.
        optimizer: Its `keras.Optimizer`, as the user gave it.

    Raises:
        ValueError: If two places ask for the same thing, or a feature can't
            work on this model.
    """
    for feature in plan.features:
        for option in feature.owns:
            _check_option(feature, option, optimizer)
        feature.check(model, optimizer)
    _check_train_step(plan, model)
    _check_signature(plan, model)
    if not plan.is_keras:
        check_strategy(model, optimizer)
    if plan.cuts:
        _warn_of_batch_norm(plan, model)


def _check_option(feature, option, optimizer):
    if optimizer is None:
        return
    name = type(feature).__name__
    if option == "LossScaleOptimizer":
        clash = isinstance(optimizer, private.LossScaleOptimizer)
        received, remedy = (
            "optimizer=LossScaleOptimizer(...)",
            "Give the inner optimizer, and `MixedPrecision()` in `perf`.",
        )
    else:
        inner = private.inner_optimizer(optimizer)
        value = getattr(inner, option, None)
        clash = value is not None
        received = f"optimizer {inner.name}: {option}={value}"
        remedy = f"Leave `{option}` out of the optimizer, or {name} out of "
        remedy += "`perf`."
    if clash:
        raise ValueError(
            checks.message(
                f"`{name}` in `perf` and `{option}` of the optimizer would do "
                "the same thing twice",
                f"perf={feature!r}, {received}",
                remedy,
            )
        )


def _check_train_step(plan, model):
    if plan.window > 1 and model.has_own_train_step:
        raise ValueError(
            checks.message(
                "An update of several batches needs FastModel's own "
                "`train_step`, which is given them together",
                f"perf={list(plan.features)}, and "
                f"{type(model).__name__}.train_step",
                "Override `compute_loss` or `compute_metrics` instead, or use "
                "`Microbatch`.",
            )
        )


def _check_signature(plan, model):
    strategy = model.distribute_strategy
    if plan.execution.pins and strategy.num_replicas_in_sync > 1:
        raise ValueError(
            checks.message(
                "A pinned `signature` is for one device",
                f"signature={plan.execution.signature!r} and "
                f"{replicas.name(strategy)}",
                "Leave `signature` out of `Execution`.",
            )
        )


def _warn_of_batch_norm(plan, model):
    names = trained_batch_norms(model)
    if names:
        warn(
            f"BatchNormalization normalises each part of an update by itself, "
            f"so {names} make the update differ from that of one big batch. "
            "Freeze them (`trainable = False`) or use another normalisation "
            "to have it equal."
        )


def check_optimizer(model, optimizer, variables=None):
    """Refuses an optimizer that was built for other variables.

    Args:
        model: The model.
        optimizer: Its `keras.Optimizer`, or None.
        variables: The variables it is to train. Defaults to `None`: those
            that are trainable now.

    Raises:
        ValueError: If a trainable variable of a built model has no slots in a
            built optimizer.
    """
    if optimizer is None or not model.built:
        return
    if variables is None:
        variables = model.trainable_variables
    unknown = private.unknown_variables(optimizer, variables)
    if unknown:
        raise ValueError(
            checks.message(
                "An optimizer trains only the variables it was built for",
                f"optimizer {optimizer.name!r}, which does not know "
                f"{[v.path for v in unknown]}",
                "Compile with a new optimizer object, for example "
                "`type(optimizer).from_config(optimizer.get_config())`.",
            )
        )


def with_model_policy(plan, model, auto_scale_loss):
    """Adds our loss scaling where Keras would wrap the optimizer.

    A model built under the global policy `mixed_float16` gets a
    `LossScaleOptimizer` from Keras. Beside other features the loss scale must
    be ours, so that they see gradients that are not scaled.
    """
    half = model.dtype_policy.name == "mixed_float16"
    scaled = any(f.stage == Stage.SCALE for f in plan.features)
    if not plan.features or scaled or not half or not auto_scale_loss:
        return plan
    implied = registry.FEATURES["MixedPrecision"]()
    features = sorted((*plan.features, implied), key=lambda f: f.stage)
    return dataclasses.replace(plan, features=tuple(features))
