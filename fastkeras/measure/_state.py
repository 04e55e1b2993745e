"""Puts a model back to where it was: weights, optimizer, metrics, random."""

import contextlib

import tensorflow as tf

from fastkeras._lib import private
from fastkeras._lib import private_seeds
from fastkeras._lib import randomness
from fastkeras._lib.variables import of_step


@contextlib.contextmanager
def as_before(model):
    """While open, the model may be trained; at the end nothing has happened.

    Variables, those of TensorFlow that a layer or the model holds among them,
    attributes of the model (its compiled functions too) and random generators
    are put back. What is compiled while it is open is made
    anew, so that the state that kernels hold is that of other functions.

    Args:
        model: A `keras.Model` whose variables are all made.
    """
    random = randomness.state()
    variables = [*of_step(model), *_of_tensorflow(model)]
    values = [v.numpy() for v in variables]
    attributes = dict(vars(model))

    def put_back():
        vars(model).clear()
        vars(model).update(attributes)
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
        randomness.set_state(random)

    try:
        vars(model)["train_function"] = None
        with private_seeds.another_series():
            yield
    finally:
        whole(put_back)


def _of_tensorflow(model):
    """Variables and generators of TensorFlow, which Keras does not track."""
    layers = private.flat_layers(model)
    leaves = [leaf for layer in layers for leaf in _leaves(vars(layer))]
    found = [v for v in leaves if isinstance(v, tf.Variable)]
    found += [v.state for v in leaves if isinstance(v, tf.random.Generator)]
    return list({id(v): v for v in found}.values())


def _leaves(value):
    """Yields what lists, tuples and dicts hold, and those in them."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def whole(put_back):
    """Has something put back also where Ctrl-C falls into it.

    Args:
        put_back: Function that may be called again. The interrupt is raised
            when all is done.
    """
    try:
        put_back()
    except KeyboardInterrupt:
        whole(put_back)
        raise
