"""How the training step of a model is compiled, and how it is changed."""

import functools
import itertools
from typing import NamedTuple

import tensorflow as tf

from fastkeras._lib import checks
from fastkeras._lib import private
from fastkeras._lib.warn import warn
from fastkeras.callbacks._model import trained
from fastkeras.callbacks._traces import make_intended
from fastkeras.callbacks._traces import mark_intended
from fastkeras.engine import _refusals
from fastkeras.engine._ledger import watching
from fastkeras.engine._options import refuse_xla
from fastkeras.engine._tiers import xla_loops_are_slow
from fastkeras.engine._tiers import xla_refusal
from fastkeras.engine._trial import TrialFunction

_SLOW = (
    "On a CPU, XLA compiles convolutions for long and runs them slower than "
    "the graph without it: a FastModel of its own never does it. Leave {by} "
    "out{compare}."
)


class Way(NamedTuple):
    """A way to compile a training step.

    Attributes:
        jit: Bool, whether by XLA.
        requested: Bool or `"auto"`, what was asked of a FastModel; None for
            a `keras.Model`.
        by: String, the callback that asked for it, or None for `compile`.
        runner: The train function.
    """

    jit: bool
    requested: object
    by: str
    runner: object

    @property
    def asked(self):
        """What was asked for: a bool, or `"auto"`."""
        return self.jit if self.requested is None else self.requested


def way_of(model):
    """The `Way` in which a model trains now."""
    requested = getattr(model, "requested_jit", None)
    by = getattr(model, "jit_asked_by", None)
    return Way(model.jit_compile, requested, by, model.train_function)


def take(model, way):
    """Has a model train in a `Way`."""
    model.jit_compile = way.jit
    model.train_function = way.runner
    mark_intended(way.runner)
    if way.requested is not None:
        # A FastModel keeps what was asked for beside what it came to.
        model.requested_jit = way.requested
        model.jit_asked_by = way.by


def switch(model, jit, by, refused=None):
    """Makes the train function of a model anew, with XLA or without.

    Args:
        model: The model.
        jit: Bool.
        by: String, the callback that asks for it.
        refused: Function of the reason, called if XLA can't compile the step;
            the train function of before then runs in its place. Defaults to
            `None`: that is an error.

    Returns:
        The `Way` in which the model trains from now on.
    """
    plain = model.train_function
    take(model, way_of(model)._replace(jit=jit))
    if hasattr(model, "requested_jit"):
        model.requested_jit, model.jit_asked_by = jit, by
    make_intended(model)
    if jit:
        model.train_function = _on_trial(model, plain, refused)
        mark_intended(model.train_function)
    return way_of(model)


def _on_trial(model, plain, refused):
    """The train function of a model, in whose place another may run."""
    function = model.train_function
    if not hasattr(function, "ledger"):
        first = function
        if refused is not None:
            first = functools.partial(_tried, model, function, plain, refused)
        return _watched(function, first)
    if refused is None:
        return function
    return TrialFunction(model, "train_step", plain, refused)


def _watched(function, first):
    """Keras's train function, whose first call is watched while it compiles.

    Args:
        function: The train function.
        first: Function that is called in its place at first. Not in its
            closure: traces are counted for what is found there.
    """
    calls = []

    def train(iterator):
        if calls:
            return function(iterator)
        calls.append(1)
        with watching("train_step"):
            return first(iterator)

    return train


def _tried(model, function, plain, refused, iterator):
    """The first call of a function, or of another if it can't be compiled."""
    take = _taken(iterator, model.steps_per_execution)
    before = trained(model)
    try:
        return function(take())
    except tf.errors.OpError as error:
        reason = _refusals.xla_refusal(error, model)
        if reason is None or trained(model) != before:
            raise
    refused(reason)
    return plain(take())


def _taken(iterator, steps):
    """Takes batches from an iterator; returns a function to iterate them anew.

    A step that XLA can't compile fails after it has pulled its batch.
    """
    batches = list(itertools.islice(iterator, steps))
    data = tf.data.Dataset.from_generator(
        lambda: iter(batches), output_signature=iterator.element_spec
    )
    return lambda: iter(data)


def pinned(model):
    """What `compile` said of XLA, as a user writes it, and its value.

    A `keras.Model` does not keep whether `"auto"` was said.

    Returns:
        Tuple of a string and a bool; None where nothing was pinned.
    """
    way = way_of(model)
    if way.requested in (None, "auto") or way.by:
        return None
    name = "jit_compile={}"
    if model.perf.execution.jit != "auto":
        name = "Execution(jit={})"
    return name.format(way.requested), way.requested


def check(model, by, compare=""):
    """Refuses XLA for what it can't compile; warns where it is known as slow.

    Args:
        model: The model.
        by: String, the callback that asks for it.
        compare: String, what else there is to do.

    Raises:
        ValueError: If XLA can't compile the step.
    """
    refuse_xla(model, model.run_eagerly)
    if not private.model_supports_jit(model):
        reason = xla_refusal(model)
        fix = "or replace these layers"
        if "supports_jit" not in reason:
            fix = "or train without `enable_op_determinism()`"
        raise ValueError(
            checks.message(
                "XLA must be able to compile the model",
                reason,
                f"Leave {by} out, {fix}.",
            )
        )
    if xla_loops_are_slow(model):
        warn(_SLOW.format(by=by, compare=compare))
