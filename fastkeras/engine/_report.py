"""Gathers the receipt of a model: `model.perf_report()`."""

import tensorflow as tf

from fastkeras._lib import checks
from fastkeras._lib import replicas
from fastkeras._lib.machine import machine
from fastkeras._lib.machine import versions
from fastkeras.engine import _tiers
from fastkeras.measure import receipt
from fastkeras.measure import stats

_TIERS = {
    "graph-step": "one step a call, a graph",
    "graph-loop": "several steps a call, a loop in a graph",
    "xla-step": "one step a call, compiled by XLA",
    "xla-loop": "several steps a call, a loop compiled by XLA",
}


def report(model):
    """Gathers what ran and why.

    Args:
        model: A compiled FastModel.

    Returns:
        A `Receipt` with the sections machine, versions, model, plan, settings,
        one for each function that has run (train_step, test_step,
        predict_step), and the time per epoch.

    Raises:
        ValueError: If the model is not compiled.
    """
    if not model.compiled:
        raise ValueError(
            checks.message(
                "`perf_report` tells of a compiled model",
                f"{model.name!r}, which is not",
                "Call `compile` and `fit` first.",
            )
        )
    values = {
        "machine": machine(),
        "versions": versions(),
        "model": {
            "name": model.name,
            "parameters": model.count_params() if model.built else "not built",
        },
        "plan": [repr(f) for f in model.perf.features] or [_plan(model)],
        "settings": _settings(model),
    }
    for name, runner in (
        ("train_step", model.train_function),
        ("test_step", model.test_function),
    ):
        if hasattr(runner, "pilots"):
            values[name] = _runner(runner)
    if model.epoch_times is not None:
        values["time per epoch"] = model.epoch_times.describe()
    if model.predictor is not None and model.predictor.ledger.entries:
        values["predict_step"] = _predictor(model.predictor)
    return receipt.Receipt(values)


def _plan(model):
    """What runs where there is no feature, in words."""
    if model.perf.is_keras:
        return "Keras itself"
    return "no feature: what Keras computes, run as measured faster"


def _settings(model):
    eager = model.run_eagerly or tf.config.functions_run_eagerly()
    runner = model.train_function
    tiers = [p.tier for p in getattr(runner, "pilots", {}).values()]
    # What there is to run, not what was set since.
    tiers.append(getattr(runner, "fixed", _tiers.fixed_step(model)))
    jit = any(t.startswith("xla") for t in tiers)
    return {
        "jit": {
            "requested": model.requested_jit,
            "effective": jit and not eager,
            "reason": _jit_reason(model, jit, eager),
        },
        "run_eagerly": {
            "requested": bool(model.run_eagerly),
            "effective": bool(eager),
            "reason": "every operation is run from Python: slow"
            if eager
            else "steps are traced",
        },
        "feed": "Keras's own loop"
        if model.perf.is_keras
        else model.feed_reason,
        "strategy": replicas.described(replicas.strategy_of(model)),
        "signature": str(model.perf.execution.signature),
        "warm-up launches": model.perf.execution.warmup_launches,
        **{k: v for s in model._step.states for k, v in s.settings.items()},
    }


def _jit_reason(model, jit, eager):
    if eager:
        return "steps run eagerly"
    if model.perf.is_keras:
        return "Keras itself runs the steps"
    if model.jit_asked_by:
        return f"asked for by {model.jit_asked_by}"
    if jit:
        return "asked for" if model.requested_jit is True else "measured faster"
    if model.jit_compile:
        return "`jit_compile` was set after `compile`: compile again"
    if model.requested_jit is False:
        return "asked for"
    refusal = _tiers.xla_refusal(model)
    if refusal:
        return refusal
    if model.requested_jit is True:
        return "Keras turned it off"
    pilots = getattr(model.train_function, "pilots", {}).values()
    if pilots and all(p.tiers == ["graph-step"] for p in pilots):
        return "XLA is tried in loops alone, and these are left out"
    return "the graph is kept until XLA is measured faster"


def _runner(runner):
    """What ran and why, feed by feed."""
    feeds = {
        name: _pilot(pilot, runner.eager)
        for name, pilot in runner.pilots.items()
    }
    return {**feeds, **runner.ledger.describe()}


def _predictor(predictor):
    """What the latest call of `predict` ran, and what all have traced."""
    section = _pilot(predictor.latest, False, "batch")
    return {**section, **predictor.ledger.describe()}


def _pilot(pilot, is_eager, unit="step"):
    described = {
        "tier": pilot.tier,
        "which is": "one operation after the other, called from Python"
        if is_eager
        else _TIERS[pilot.tier],
        f"time per {unit}": {
            tier: str(stats.summarize(pilot.times(tier)))
            for tier in pilot.tiers
            if pilot.times(tier)
        },
        "compile seconds": {
            tier: round(seconds, 3) for tier, seconds in pilot.cost.items()
        },
        "choices": pilot.reasons
        + [
            f"{tier} not tried: the time ahead did not pay for compiling it"
            for tier in pilot.untried
        ],
    }
    return {k: v for k, v in described.items() if v or k == "choices"}
