"""Ways of running the steps of a model, each from the same state."""

import contextlib
import dataclasses

import keras
import numpy as np
import tensorflow as tf

from fastkeras._lib import private_measure
from fastkeras._lib.private import tree
from fastkeras.advise._graph import step_function
from fastkeras.callbacks._traces import trace_counts
from fastkeras.measure import _liveness
from fastkeras.measure._state import whole
from fastkeras.model import FastModel
from fastkeras.perf._losses import mend_containers
from fastkeras.perf._plan import check_plan
from fastkeras.perf._plan import make_plan
from fastkeras.perf._step import Step

_OPTIONS = ("run_eagerly", "jit_compile", "steps_per_execution")
# What a model loses as another plan begins.
_LOST = ("train_function", "test_function", "predict_function", "predictor")


class Way:
    """One way of running the steps of a model, and its train function.

    Args:
        facts: `Facts`.
        settings: Dict as in `Advice`. Features for a `keras.Model` make a way
            of a FastModel that shares its layers.
        base: The `Way` that is changed. Defaults to `None`: as compiled.

    Attributes:
        traces: Integer, traces and XLA compilations of the first run (traces
            alone where Keras runs the steps); None before it.

    Raises:
        ValueError: If the model can't be run so.
    """

    def __init__(self, facts, settings, base=None):
        self.facts, self.function, self.step = facts, None, None
        self.traces = None
        self.model = facts.model
        if base is None:
            self.values = {x: getattr(self.model, x) for x in _OPTIONS}
            self.plan = getattr(self.model, "perf", None)
            if self.plan is not None:
                self.values["requested_jit"] = self.model.requested_jit
        else:
            self.values, self.plan = dict(base.values), base.plan
            self.step = base.step
        changed = {k: v for k, v in settings.items() if k in _OPTIONS}
        self.values.update(changed)
        execution = dict(settings.get("execution", {}))
        if "jit_compile" in changed and self.plan is not None:
            self.values["requested_jit"] = changed["jit_compile"]
            execution["jit"] = "auto"
        if "steps_per_launch" in execution:
            self.values["steps_per_execution"] = 1
        if execution or "perf" in settings:
            self._begin(settings.get("perf", ()), execution)

    @property
    def is_own(self):
        """Whether the model itself can be run so, not only a FastModel."""
        return self.model is self.facts.model

    def _begin(self, features, execution):
        """Makes the plan and the step of this way."""
        if self.plan is None:
            self.model = as_fast(self.model, **self.values)
            self.plan = self.model.perf
        model, before = self.model, self.step or self.model._step
        self.plan = new_plan(self.plan, features, execution)
        check_plan(self.plan, model, model.optimizer)
        known = {id(feature): state for feature, state in before.pairs}
        with model.distribute_strategy.scope():
            states = [
                known[id(f)] if id(f) in known else f.new_state()
                for f in self.plan.features
            ]
        self.step = Step(self.plan, model, states)

    def keep(self):
        """Has the model run its steps in this way from now on."""
        if self.step is not None and self.model.perf.is_keras:
            given = private_measure.compile_arguments(self.model)
            mend_containers(self.model, given)
        self._set()
        self.model.train_function = None

    def _set(self):
        for name, value in self.values.items():
            setattr(self.model, name, value)
        if self.step is not None:
            self.model._begin(self.plan, self.step)

    @contextlib.contextmanager
    def _in_effect(self):
        """Has the model run its steps in this way; nothing stays of it."""
        model = self.model
        before = {name: getattr(model, name) for name in self.values}
        lost = {x: vars(model)[x] for x in _LOST if x in vars(model)}
        plan, step = getattr(model, "perf", None), vars(model).get("_step")

        def put_back():
            if self.step is not None:
                model._begin(plan, step)
            for name, value in before.items():
                setattr(model, name, value)
            vars(model).update(lost)

        try:
            self._set()
            with self.facts.undisturbed(model):
                yield
        finally:
            whole(put_back)

    def run(self, batches, steps):
        """Trains so many steps from the state as it is.

        Args:
            batches: `Batches`.
            steps: Integer.

        Returns:
            Tuple of the seconds of a step and a dict of the logs.
        """
        timer = _Timer(self.facts.clock, steps)
        with self._in_effect():
            self.model.train_function = self.function
            history = self.model.fit(
                **batches.of(steps), verbose=0, shuffle=False, callbacks=[timer]
            )
            self.function = self.model.train_function
        if self.traces is None:
            # Later runs, of other numbers of rows, are traced for these.
            self.traces = _traces(self.function)
            if self.step is None and self.values["jit_compile"]:
                # Keras's functions do not tell of what XLA compiles.
                self.traces = max(self.traces, batches.shapes)
        return timer.seconds / steps, {
            name: values[0] for name, values in history.history.items()
        }

    def step_bytes(self):
        """Bytes that the tensors of a step hold at once, by its graph."""
        with self._in_effect():
            step = step_function(self.model)
            graph = step.get_concrete_function(self.facts.data.batch).graph
            return _liveness.peak(graph)


def new_plan(plan, features, execution):
    """A plan with more features, and parts of its `Execution` changed."""
    execution = dataclasses.replace(plan.execution, **execution)
    return make_plan([*plan.features, *features, execution])


class Batches:
    """Batches that are always at hand, for any number of steps.

    Of arrays as arrays, the last as short as that of the data; else as a
    dataset that gives some batches of the data again and again.

    Args:
        data: `Data`.
        window: Integer, the batches of an update. Defaults to `1`.

    Attributes:
        shown: Integer, the steps after which each shape was seen.
        shapes: Integer, how many there are.
    """

    def __init__(self, data, window=1):
        # A window that is full, and what is left of the last.
        self.shown = window + 1
        self._rows, self._last = data.rows, data.rows
        kinds = [_kind(batch) for batch in data.batches]
        alike = [
            b for b, k in zip(data.batches, kinds, strict=True) if k == kinds[0]
        ]
        self._arrays = self._dataset = None
        if data.is_arrays and all(
            isinstance(t, tf.Tensor) for t in tree.flatten(alike[0])
        ):
            self._last = data.last[0][0][0]
            self._arrays = tree.map_structure(
                lambda *t: tf.concat(t, 0).numpy(), *alike
            )
            self.shapes = 1 + (self._last != self._rows)
        else:
            self.shown = max(self.shown, len(alike))
            self._dataset = _in_turn(alike)
            shapes = [[t.shape for t in tree.flatten(b)] for b in alike]
            self.shapes = len({str(found) for found in shapes})

    def of(self, steps):
        """The arguments of `fit` for an epoch of so many steps."""
        if self._arrays is None:
            # Cut, not counted: with `steps_per_execution`, Keras goes on
            # past the steps of an epoch where there is data.
            return {"x": self._dataset.take(steps)}
        last = self._last if steps > 1 else self._rows
        rows = (steps - 1) * self._rows + last
        parts = tree.map_structure(
            lambda a: a[np.arange(rows) % len(a)], self._arrays
        )
        names = ("x", "y", "sample_weight")
        return {**dict(zip(names, parts)), "batch_size": self._rows}


def _kind(batch):
    return [t.dtype for t in tree.flatten(batch)]


def _in_turn(batches):
    datasets = [tf.data.Dataset.from_tensors(batch) for batch in batches]
    found = datasets[0]
    for dataset in datasets[1:]:
        found = found.concatenate(dataset)
    return found.repeat()


def as_fast(model, **options):
    """A FastModel with the layers and the optimizer of a `keras.Model`.

    Args:
        model: A compiled `keras.Model`.
        **options: Arguments of `compile` that are to be other ones.

    Returns:
        A FastModel, compiled like it with `perf="auto"`; the model itself if
        it is one already.
    """
    if isinstance(model, FastModel):
        return model
    given = {**private_measure.compile_arguments(model), **options}
    # Of "auto", Keras keeps only what it came to.
    given["jit_compile"] = given["jit_compile"] or "auto"
    with model.distribute_strategy.scope():
        fast = FastModel.from_keras(model)
        fast.compile(**given, perf="auto")
    return fast


def _traces(function):
    """Traces and XLA compilations of a train function."""
    if hasattr(function, "ledger"):
        return len(function.ledger.entries)
    return max(trace_counts("train_step", function).values(), default=0)


class _Timer(keras.callbacks.Callback):
    """Times the steps of an epoch, without what comes before and after."""

    #: The engine may run many steps between two calls of the hooks.
    per_launch = True

    def __init__(self, clock, steps):
        super().__init__()
        self._clock, self._steps, self._start = clock, steps, None

    def on_train_batch_begin(self, batch, logs=None):
        if self._start is None:
            self._start = self._clock.now()

    def on_train_batch_end(self, batch, logs=None):
        # Keras counts the last launch as if it were full.
        if batch + 1 >= self._steps:
            if self.model.optimizer is not None:
                # The device is waited for.
                self.model.optimizer.iterations.numpy()
            self.seconds = self._clock.now() - self._start
