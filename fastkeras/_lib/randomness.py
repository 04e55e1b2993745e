"""The states of the global generators of random numbers, as plain values."""

import random

import numpy as np

from fastkeras._lib import private_seeds


def host_state():
    """The states of Python's and NumPy's global generators.

    Returns:
        Dict of name to nested tuples of numbers, strings and arrays.
    """
    return {"python": random.getstate(), "numpy": np.random.get_state()}


def set_host_state(state):
    """Puts back what `host_state` returned."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])


def state():
    """The states of all global generators: the host's, Keras's, TensorFlow's.

    Returns:
        Dict of name to nested tuples of numbers, strings and arrays, or None.
    """
    return {**host_state(), **step_state()}


def set_state(state):
    """Puts back what `state` returned."""
    set_host_state(state)
    set_step_state(state)


def step_state():
    """The states of the global generators that a step draws from.

    Returns:
        Dict as of `state`, without those of the host.
    """
    return {
        "keras": private_seeds.keras_state(),
        "operations": private_seeds.operations_state(),
        "tensorflow": private_seeds.tensorflow_state(),
    }


def set_step_state(state):
    """Puts back what `step_state` returned."""
    private_seeds.set_keras_state(state["keras"])
    private_seeds.set_operations_state(state["operations"])
    private_seeds.set_tensorflow_state(state["tensorflow"])
