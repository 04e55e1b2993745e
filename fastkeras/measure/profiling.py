"""Where the time of a training step goes.

Does: trains a few steps and reads TensorFlow's own trace of them; runs the
same steps in turns with steps on one batch that is always at hand, and with
the pipeline without the model; then puts everything back.
When it helps: before anything is tuned.
Mathematics: same; the model is left bit for bit as it was.
Cost: two traces of the step, and about nine times the steps asked for: one
to warm up, one with the trace, three to be timed, four on the one batch. Less
where an epoch is shorter.
Reference: https://www.tensorflow.org/guide/profiler

Example:

>>> import keras, numpy as np
>>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
>>> model.compile("sgd", "mse")
>>> found = profile(model, (np.ones((64, 4)), np.ones((64, 1))), steps=4)
>>> sorted(found["split"])
['compute', 'copies', 'dispatch', 'idle', 'input']
"""

import dataclasses
import gc
import importlib.util
import pathlib
import shlex
import shutil
import tempfile

import keras
import tensorflow as tf

from fastkeras._lib import checks
from fastkeras._lib import private
from fastkeras._lib.machine import machine
from fastkeras._lib.machine import versions
from fastkeras.measure import _instants
from fastkeras.measure import _metric_cost
from fastkeras.measure import _pipeline
from fastkeras.measure import _profile_text
from fastkeras.measure import _xplane
from fastkeras.measure._runs import TURNS
from fastkeras.measure._runs import Runs
from fastkeras.measure._state import as_before
from fastkeras.measure._state import optimizers
from fastkeras.measure.clock import Clock
from fastkeras.measure.profile_report import Profile
from fastkeras.measure.stats import ratio

_FORMAT = 1
# The input is the bound from this share of a step on, and from this part of
# the time of a step whose batch is at hand.
_MUCH = 0.1
_NEAR = 0.8


def profile(model, data, steps=30, batch_size=None, log_dir=None, say=None):
    """Measures where the time of a training step goes.

    Args:
        model: A compiled `keras.Model` or `FastModel`. Weights, optimizer,
            metrics, random generators and compiled functions are left as
            they are, and so is the place in the data. With `perf="auto"` the
            steps run as at the start of a training so short; pin `Execution`
            to look at another way.
        data: Arrays `(x, y)` or `(x, y, sample_weight)`, a `tf.data.Dataset`
            or a `keras.utils.PyDataset`, as for `fit`; no generator, which
            would lose its batches. What its own Python code draws or counts
            is drawn and counted.
        steps: Integer >= 1, batches to measure, of which the first 60 at the
            most are traced. Defaults to `30`.
        batch_size: Integer >= 1, rows of a batch, for arrays. Defaults to
            `None`, which is Keras's 32.
        log_dir: String, a folder where TensorFlow's own trace is kept for
            TensorBoard. Defaults to `None`: it is not kept.
        say: Function of a string that is told what is being done. Defaults
            to `None`.

    Returns:
        A `Profile`.

    Raises:
        TypeError: If `model` is no model, `steps` is not an integer, or
            `data` can't be gone through again.
        ValueError: If `steps` is < 1, the model is not compiled, the data is
            empty, or another profiler is running.
        OSError: If `log_dir` can't be made.
        tf.errors.OpError: If a Dataset can't be copied: one made of arrays
            that are larger than 2 GB. Give the arrays then.

    Example:

    >>> import keras, numpy as np
    >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse")
    >>> found = profile(model, (np.ones((32, 2)), np.ones((32, 1))), steps=2)
    >>> found["run"]["steps"]
    2
    """
    checks.positive_int(steps, "steps", "Give the batches to measure, as 30.")
    if not isinstance(model, keras.Model):
        raise TypeError(
            checks.message(
                "`model` must be a compiled `keras.Model`",
                f"{type(model).__name__}",
                "Give the model first, then its data.",
            )
        )
    private.assert_compiled(model, "profile")
    say = say or (lambda text: None)
    if log_dir:
        # What can't be made is found before anything runs.
        pathlib.Path(log_dir).mkdir(parents=True, exist_ok=True)
    pipeline = _pipeline.Pipeline(data, batch_size, steps)
    count = pipeline.count()
    if not count:
        raise ValueError(
            checks.message(
                "`data` must hold at least one batch",
                "an empty dataset or arrays of 0 rows",
                "Check the path or the filter the data comes from.",
            )
        )
    _build(model, pipeline.spec)
    with as_before(model), _metric_cost.named(model):
        return _measure(model, pipeline, count, steps, log_dir, say)


def _build(model, spec):
    """Makes what the first step of a `fit` would make, for good."""
    with model.distribute_strategy.scope():
        private.symbolic_build(model, spec)
        if model.optimizer is not None:
            model.optimizer.build(model.trainable_variables)


def _measure(model, pipeline, count, steps, log_dir, say):
    clock = Clock()
    epochs = -(-steps // count)
    with tempfile.TemporaryDirectory() as folder:
        real = Runs(count, epochs, clock, folder)
        still = Runs(count, epochs, clock)
        alone = _pipeline.Alone(pipeline, epochs, clock)
        say("profile: the model on its data")
        real.fit(model, **pipeline.arguments)
        run = {
            "steps per epoch": count,
            "batches in the data": pipeline.length,
            **_way(model, real),
        }
        batch, frozen = pipeline.frozen(count, "resident" in run["feeds"])
        say("profile: one batch, the pipeline alone, its data: in turns")
        for turn in range(TURNS):
            if turn:
                real.fit(model, **pipeline.arguments)
            still.fit(model, **frozen)
            alone.run()
        say("profile: the metrics")
        metrics = _metric_cost.seconds(model, batch, clock)
        say("profile: the trace")
        traced, spread, has_loop = _traced(model, folder, real)
        notes = _keep(folder, log_dir)
    metrics = _scaled(metrics, run["tier"], traced["phases"])
    times = {
        "step": real.step,
        "step on one batch": still.step,
        "pipeline alone": alone.step,
        "epoch beside its steps": real.beside,
    }
    lacks_cache = pipeline.leaves_cache and count == steps
    notes += _profile_text.limits(has_loop, run["tier"], lacks_cache)
    waits = traced["split"]["input"] / real.step.median
    return Profile(
        {
            "format": _FORMAT,
            "machine": machine(),
            "versions": versions(),
            "model": model.name,
            "run": run,
            **_seconds(times, metrics, spread),
            "input": _verdict(real.turns, still.turns, alone.turns, waits),
            **traced,
            "metrics": metrics,
            "notes": notes,
        }
    )


def _traced(model, folder, runs):
    """What `_instants.divided` gives, and whether a layer has a loop."""
    # To look through a million events for garbage takes a third of the time.
    collects = gc.isenabled()
    gc.disable()
    try:
        trace = _xplane.read(folder, _optimizers(model))
        has_loop = any(
            map(_xplane.is_of_a_loop, {e.name for e in trace.events})
        )
        return *_instants.divided(trace, runs), has_loop
    finally:
        if collects:
            gc.enable()


def _keep(folder, log_dir):
    """Copies the trace to where it is to be kept, and says where that is."""
    if not log_dir:
        return []
    shutil.copytree(folder, log_dir, dirs_exist_ok=True)
    return [_where(log_dir)]


def _where(log_dir):
    """How to look at the trace."""
    command = f"tensorboard --logdir {shlex.quote(str(log_dir))}"
    if any(map(importlib.util.find_spec, _xplane.PAGES)):
        return f"The trace: {command}"
    return (
        f"The trace is in {log_dir}. TensorBoard has no page for it: install "
        f"`{_xplane.PAGES[0]}`, then run `{command}`."
    )


def _seconds(times, metrics, more):
    medians = {name: time.median for name, time in times.items()}
    spread = {name: dataclasses.asdict(time) for name, time in times.items()}
    return {
        "seconds": {**medians, "metrics": sum(metrics.values())},
        "spread": {**spread, **more},
    }


def _scaled(metrics, tier, phases):
    """The seconds of each metric; under XLA shares of what all take in it.

    Timed apart, in calls of their own and uncompiled, they take far longer.
    """
    if "xla" not in tier.lower():
        return metrics
    total, apart = phases.get("metrics", 0.0), sum(metrics.values()) or 1.0
    return {name: value * total / apart for name, value in metrics.items()}


def _optimizers(model):
    """The names of the optimizers, and of those in them."""
    found = optimizers(model)
    return {o.name for o in (*found, *map(private.inner_optimizer, found))}


def _way(model, runs):
    """How the steps ran: tier, feeds, steps in a call of the function."""
    per_call, feeds = runs.batches_per_launch, []
    eager = bool(model.run_eagerly or tf.config.functions_run_eagerly())
    tier = "Keras, XLA" if model.jit_compile else "Keras, graph"
    report = getattr(model, "perf_report", None)
    if report is not None and not model.perf.is_keras:
        ran = {
            feed: section["tier"]
            for feed, section in report()["train_step"].items()
            if isinstance(section, dict) and "tier" in section
        }
        feeds, tiers = list(ran), sorted(set(ran.values()))
        tier = ", ".join(tiers)
        if all(name.endswith("-step") for name in tiers):
            # A launch of such a tier calls its function step by step.
            per_call = 1.0
    return {
        "steps": runs.traced,
        "steps per launch": 1.0 if eager else per_call,
        "eager": eager,
        "tier": "eager" if eager else tier,
        "feeds": feeds,
    }


def _verdict(step, still, alone, waits):
    """Whether the input holds the steps up, and the evidence.

    All must say so: the steps get faster when the batch is at hand, by more
    than turn differs from turn, the pipeline alone is no faster than the steps
    it is to feed, and the trace shows waits.
    """
    gain, pace = ratio(step, still), ratio(alone, still).median
    # No wait is longer than the pipeline takes.
    share = min(max(0.0, 1 - 1 / gain.median), pace / gain.median)
    bound = min(share, waits) > _MUCH and gain.lower > 1 and pace > _NEAR
    return {"bound": bound, "share": share}
