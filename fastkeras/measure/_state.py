"""Puts a model back to where it was: weights, optimizer, metrics, random."""

import contextlib

from fastkeras._lib import private_measure


@contextlib.contextmanager
def as_before(model):
    """While open, the model may be trained; at the end nothing has happened.

    Variables, attributes of the model (its compiled functions among them) and
    random generators are put back. What is compiled while it is open is made
    anew, so that the state that kernels hold is that of other functions.

    Args:
        model: A `keras.Model` whose variables are all made.
    """
    random = private_measure.random_state()
    variables = _variables(model)
    values = [v.numpy() for v in variables]
    attributes = dict(vars(model))
    vars(model)["train_function"] = None
    try:
        yield
    finally:
        vars(model).clear()
        vars(model).update(attributes)
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
        random()


def _variables(model):
    """Those of layers, metrics, seeds, optimizer and features, each once."""
    found = [*model.variables, *model.metrics_variables]
    if model.optimizer is not None:
        found += model.optimizer.variables
    for state in getattr(vars(model).get("_step"), "states", ()):
        found += state.variables.values()
        for tracker in state.trackers.values():
            found += tracker.variables
    return list({id(v): v for v in found}.values())
