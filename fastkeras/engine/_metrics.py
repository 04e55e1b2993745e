"""Metrics that training and evaluation share, and the logs made of them."""

import functools

import numpy as np

from fastkeras._lib import private
from fastkeras._lib.warn import warn

_MARK = "_in_epoch"


def in_epoch(train):
    """Marks a model as being in an epoch while a function of it runs."""

    @functools.wraps(train)
    def run(model, *args, **kwargs):
        # Past Keras's tracking of attributes: this is no state of the model.
        vars(model)[_MARK] = True
        try:
            return train(model, *args, **kwargs)
        finally:
            del vars(model)[_MARK]

    return run


def keeps_metrics(evaluate):
    """In mid-epoch, puts the metrics of the training back afterwards.

    A callback may evaluate the model there; the metrics are reset for that.
    """

    @functools.wraps(evaluate)
    def run(model, *args, **kwargs):
        kept = []
        if _MARK in vars(model):
            kept = [(v, v.value + 0) for v in _variables(model)]
        try:
            return evaluate(model, *args, **kwargs)
        finally:
            for variable, value in kept:
                variable.assign(value)

    return run


def all_metrics(model):
    """The metrics of a model and those of its features."""
    own = [t for s in model._step.states for t in s.trackers.values()]
    return [*model.metrics, *own]


def _variables(model):
    return [v for m in all_metrics(model) for v in m.variables]


def epoch_logs(model, logs):
    """The logs of an epoch: on one replica those of its last step."""
    step = model._step
    if model.distribute_strategy.num_replicas_in_sync > 1:
        own = {k for state in step.states for k in state.logs()}
        logs = {k: v for k, v in logs.items() if k not in own}
        logs = dict(private.metrics_or_logs(model, logs))
        logs.update(step.epoch_logs())
    step.complain()
    logs = private.pythonify(logs)
    warn_not_finite(logs, step.told)
    return logs


def warn_not_finite(logs, told):
    """Warns of a loss that is not a number; metrics may hide it.

    Args:
        logs: Dict of log name to value.
        told: Set of the warnings given so far.
    """
    if not np.all(np.isfinite(logs.get("loss", 0.0))):
        warn(
            "The loss is not finite. Look for NaN or Inf in the data and for "
            "labels out of range (XLA makes NaN of them, without an error), "
            "lower the learning rate, or clip the gradients "
            '(`perf=["clip_by_global_norm"]`).',
            told=told,
        )
