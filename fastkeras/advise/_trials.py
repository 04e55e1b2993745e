"""Trying advice: measured in turns after warm-up, kept only if it pays."""

import dataclasses
import logging
import math

import keras
import numpy as np
import tensorflow as tf

from fastkeras import measure
from fastkeras._lib.private import tree

#: Turns of each of the two ways, after one that warms up.
TURNS = 7
#: Seconds of a turn, the steps that it may have for it, and those that come
#: before the first.
_SECONDS, _MOST_STEPS, _WARM_STEPS = 0.2, 200, 2
#: Largest difference of the losses, as a share of the loss.
TOLERANCE = 1e-3

_LOG = logging.getLogger("fastkeras.advise")


def try_all(facts, found):
    """Tries each advice that is a setting and leaves mathematics alone.

    Each is tried on top of what was kept before it. The model is left with
    what was kept; its state is as before.

    Args:
        facts: `Facts`.
        found: List of `Advice`.

    Returns:
        The same list, with `receipt` and `kept` of those that were tried.
    """
    model, tried = facts.model, []
    with facts.undisturbed():
        base = Way(facts, {})
        for advice in found:
            if advice.settings and advice.mathematics == "same":
                way = Way(facts, advice.settings, base)
                text, is_kept = _verdict(base, way)
                receipt = f"{advice.rule}: {text}"
                advice = dataclasses.replace(
                    advice, receipt=receipt, kept=is_kept
                )
                base = way if is_kept else base
                _LOG.info("%s", receipt)
            tried.append(advice)
    base.set()
    model.train_function = None
    return tried


def _verdict(base, way):
    try:
        comparison = compare(base, way)
    except tf.errors.OpError as error:
        # Some operations are found out by XLA only as it compiles them.
        return f"not kept, it fails: {error.message.splitlines()[0]}", False
    return str(comparison), comparison.is_kept


class Way:
    """One way of running the steps of a model, and its train function.

    Args:
        facts: `Facts`.
        settings: Dict as in `Advice`.
        base: The `Way` that is changed. Defaults to `None`: as compiled.
    """

    def __init__(self, facts, settings, base=None):
        self.facts = facts
        self.function = None
        model = facts.model
        self.values = dict(base.values) if base else _values(model)
        for name, value in settings.items():
            if name == "execution":
                plan = self.values["_plan"]
                execution = dataclasses.replace(plan.execution, **value)
                plan = dataclasses.replace(plan, execution=execution)
                self.values["_plan"] = plan
                self.values["steps_per_execution"] = 1
            else:
                self.values[name] = value
        if "requested_jit" in self.values and "jit_compile" in settings:
            self.values["requested_jit"] = settings["jit_compile"]

    def set(self):
        """Has the model run its steps in this way."""
        model = self.facts.model
        for name, value in self.values.items():
            if name == "_plan":
                # Past Keras's tracking of attributes.
                vars(model)[name] = value
            else:
                setattr(model, name, value)
        model.train_function = self.function

    def run(self, steps):
        """Trains so many steps from the state as it is.

        Returns:
            Tuple of the seconds of a step and the loss.
        """
        facts, timer = self.facts, _Timer(self.facts.clock)
        with facts.undisturbed():
            self.set()
            history = facts.model.fit(
                # Cut, not counted: with `steps_per_execution`, Keras goes on
                # past the steps of an epoch where there is data.
                _repeated(facts.data.batches).take(steps),
                verbose=0,
                shuffle=False,
                callbacks=[timer],
            )
            self.function = facts.model.train_function
        return timer.seconds / steps, history.history["loss"][0]


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Two ways of running steps, measured in turns.

    Attributes:
        before: `Summary`, seconds of a step.
        after: `Summary`.
        ratio: `Summary` of before over after, turn by turn.
        steps: Integer, steps of each that were timed.
        difference: Float, between the losses.
        agrees: Bool, whether that is the order of additions at most.
    """

    before: measure.Summary
    after: measure.Summary
    ratio: measure.Summary
    steps: int
    difference: float
    agrees: bool

    @property
    def is_kept(self):
        """Whether it is faster beyond the noise, with the same numbers."""
        return self.agrees and self.ratio.lower > 1.02

    def __str__(self):
        before, after, half = (
            seconds * 1e3
            for seconds in (
                self.before.median,
                self.after.median,
                self.after.spread / 2,
            )
        )
        digits = max(0, 1 - math.floor(math.log10(after)))
        if self.is_kept:
            verdict = "kept"
        elif self.agrees:
            verdict = "not kept, it is not faster beyond the noise"
        else:
            verdict = "not kept, the numbers do not agree"
        return (
            f"{before:.{digits}f} -> {after:.{digits}f} ms/step "
            f"(±{half:.{digits}f}, n={self.steps}), loss differs by "
            f"{self.difference:.0e}: {verdict}"
        )


def compare(base, way):
    """Runs two ways in turns, after a turn of each that warms up.

    Returns:
        A `Comparison`.
    """
    steps = _WARM_STEPS
    for each in (base, way):
        each.run(steps)
    # Twice: what an epoch takes by itself counts for much in a short one.
    for _ in range(2):
        seconds, _ = base.run(steps)
        steps = max(1, min(_MOST_STEPS, int(_SECONDS / seconds)))
    times, losses = ([], []), ([], [])
    # A launch of another length may be compiled in the first turn.
    for turn in range(TURNS + 1):
        for each, found, loss in zip((base, way), times, losses, strict=True):
            second, value = each.run(steps)
            loss.append(value)
            if turn:
                found.append(second)
    old, new = np.asarray(losses)
    difference = float(np.abs(old - new).max())
    return Comparison(
        measure.summarize(times[0]),
        measure.summarize(times[1]),
        measure.ratio(*times),
        TURNS * steps,
        difference,
        difference <= TOLERANCE * max(float(np.abs(old).max()), 1e-6),
    )


class _Timer(keras.callbacks.Callback):
    """Times the steps of an epoch; it asks for no batch of its own."""

    def __init__(self, clock):
        super().__init__()
        self._clock = clock

    def on_epoch_begin(self, epoch, logs=None):
        self._start = self._clock.now()

    def on_epoch_end(self, epoch, logs=None):
        # The logs are numbers by now: the device has been waited for.
        self.seconds = self._clock.now() - self._start


def _values(model):
    names = ["run_eagerly", "jit_compile", "steps_per_execution"]
    values = {name: getattr(model, name) for name in names}
    if hasattr(model, "perf"):
        values["_plan"] = model.perf
        values["requested_jit"] = model.requested_jit
    return values


def _repeated(batches):
    """A dataset that gives the batches of one shape again and again."""
    first = tree.map_structure(lambda t: t.shape, batches[0])
    alike = [
        b for b in batches if tree.map_structure(lambda t: t.shape, b) == first
    ]
    stacked = tree.map_structure(lambda *t: tf.stack(t), *alike)
    return tf.data.Dataset.from_tensor_slices(stacked).repeat()
