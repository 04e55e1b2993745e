"""A model's state, put back after a few steps were tried on it."""

import contextlib
import random

import numpy as np
import tensorflow as tf

from fastkeras._lib import private_runtime


@contextlib.contextmanager
def kept(model):
    """Puts weights, optimizer, metrics and random states back at the end.

    Args:
        model: A built model.
    """
    before = [(v, tf.identity(v)) for v in variables(model)]
    states = random.getstate(), np.random.get_state()
    seeds = private_runtime.eager_seeds()
    drawn = seeds and seeds.getstate()
    generator = tf.random.get_global_generator()
    state = tf.identity(generator.state)
    try:
        yield
    finally:
        known = {id(v) for v, _ in before}
        if any(id(v) not in known for v in variables(model)):
            # Metrics whose variables the first step has made.
            model.reset_metrics()
        for variable, value in before:
            variable.assign(value)
        generator.reset(state)
        if seeds:
            seeds.setstate(drawn)
        random.setstate(states[0])
        np.random.set_state(states[1])


def variables(model):
    """All `tf.Variable`s that a step of the model may change."""
    lists = [model.variables, model.metrics_variables]
    if model.optimizer is not None:
        lists.append(model.optimizer.variables)
    for state in getattr(getattr(model, "_step", None), "states", ()):
        lists.append(state.variables.values())
        lists += [t.variables for t in state.trackers.values()]
    lists.append(private_runtime.global_seed())
    found = {}
    for variable in (v for each in lists for v in each):
        value = getattr(variable, "value", variable)
        found[id(value)] = value
    return list(found.values())
