"""How the training step of a model is compiled, and how it is changed."""

import itertools
from typing import NamedTuple

import tensorflow as tf

from fastkeras._lib import checks
from fastkeras._lib import private
from fastkeras._lib.warn import warn
from fastkeras.callbacks._traces import make_intended
from fastkeras.callbacks._traces import mark_intended
from fastkeras.engine import _refusals
from fastkeras.engine._launch import Batches
from fastkeras.engine._ledger import watching
from fastkeras.engine._options import refuse_xla
from fastkeras.engine._tiers import xla_loops_are_slow
from fastkeras.engine._tiers import xla_refusal

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


def switch(model, jit, by):
    """Makes the train function of a model anew, with XLA or without.

    Args:
        model: The model.
        jit: Bool.
        by: String, the callback that asks for it.

    Returns:
        The `Way` in which the model trains from now on.
    """
    take(model, way_of(model)._replace(jit=jit))
    if hasattr(model, "requested_jit"):
        model.requested_jit, model.jit_asked_by = jit, by
    make_intended(model)
    if jit and not hasattr(model.train_function, "ledger"):
        model.train_function = _watched(model.train_function)
        mark_intended(model.train_function)
    return way_of(model)


def _watched(function):
    """Keras's train function, whose first call is watched while it compiles."""
    calls = []

    def train(iterator):
        if calls:
            return function(iterator)
        calls.append(1)
        with watching("train_step"):
            return function(iterator)

    return train


def guard(model, plain, refused):
    """Has the runner of a model step aside if XLA can't compile its first call.

    Args:
        model: A FastModel, whose runner has not run yet.
        plain: The runner to run in its place.
        refused: Function of the reason, called once.
    """
    runner = model.train_function
    ask, run = runner.next, runner.run

    def check(error):
        reason = _refusals.xla_refusal(error, model)
        if reason is None or runner.ledger.calls:
            raise error
        refused(reason)

    def next_launch(feed, ahead, every_batch):
        try:
            return ask(feed, ahead, every_batch)
        except tf.errors.OpError as error:
            check(error)
        runner.run = plain.run
        return plain.next(feed, ahead, every_batch)

    def first_launch(feed, launch, tier):
        again = None
        if isinstance(launch, Batches):
            launch.data, again = itertools.tee(launch.data)
        try:
            logs = run(feed, launch, tier)
        except tf.errors.OpError as error:
            check(error)
            if again is not None:
                launch.data = again
            return plain.run(feed, launch, plain.fixed)
        del runner.next, runner.run
        return logs

    runner.next, runner.run = next_launch, first_launch


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
