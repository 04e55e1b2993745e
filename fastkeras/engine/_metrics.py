"""Training and evaluation share metrics: neither may spoil the other's."""

import functools

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


def _variables(model):
    own = [t for s in model._step.states for t in s.trackers.values()]
    return [v for m in (*model.metrics, *own) for v in m.variables]
