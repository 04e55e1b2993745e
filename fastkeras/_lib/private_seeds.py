"""Private names of Keras and TensorFlow about their generators of numbers.

A part of `private.py`, under the same rule: the reason stands beside each
name, and `tests/_lib/test_private_seeds.py` fails by name when it moves.
"""

import contextlib
import random

import tensorflow as tf

# The generator of layers and operations without a seed of their own; public
# functions draw from it, none reads or sets it.
from keras.src.backend.common import global_state
from keras.src.random import seed_generator

# `tf.random.set_seed` starts the seeds of single operations, which come from
# a generator that only the context holds.
from tensorflow.python.eager import context

# The public `get_global_generator` makes one if there is none, which is an
# error where operations are asked to be deterministic.
from tensorflow.python.ops import stateful_random_ops


def keras_state():
    """The state of Keras's global seed generator, or None if none was used."""
    generator = global_state.get_global_attribute(
        seed_generator.GLOBAL_SEED_GENERATOR
    )
    return None if generator is None else generator.state.numpy()


def set_keras_state(state):
    """Gives Keras's global seed generator a state of `keras_state`."""
    if state is None:
        global_state.set_global_attribute(
            seed_generator.GLOBAL_SEED_GENERATOR, None
        )
    else:
        seed_generator.global_seed_generator().state.assign(state)


def _operations():
    """The generator of seeds; there is none before the first is set."""
    return getattr(context.context(), "_rng", None)


def operations_state():
    """What the seeds of eager operations are drawn from, or None."""
    generator = _operations()
    return None if generator is None else generator.getstate()


def set_operations_state(state):
    """Goes on from a state of `operations_state`."""
    generator = _operations()
    if state is not None and generator is not None:
        generator.setstate(state)


@contextlib.contextmanager
def another_series():
    """While open, the seeds of eager operations come from another generator.

    A kernel goes on where it was if its seed comes again; that of another
    series never does.
    """
    holder, before = context.context(), _operations()
    holder._rng = random.Random("another series")
    try:
        yield
    finally:
        if before is None:
            del holder._rng
        else:
            holder._rng = before


def tensorflow_state():
    """State and algorithm of TensorFlow's global generator, or None."""
    generator = stateful_random_ops.global_generator
    if generator is None:
        return None
    return generator.state.numpy(), generator.algorithm


def set_tensorflow_state(state):
    """Gives TensorFlow's global generator a state of `tensorflow_state`."""
    generator = stateful_random_ops.global_generator
    if state is None:
        stateful_random_ops.global_generator = None
    elif generator is None:
        tf.random.set_global_generator(tf.random.Generator.from_state(*state))
    else:
        generator.state.assign(state[0])
