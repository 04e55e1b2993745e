"""Puts a model back to where it was: weights, optimizer, metrics, random."""

import contextlib

import keras
import tensorflow as tf

from fastkeras._lib import private
from fastkeras._lib import private_seeds
from fastkeras._lib import randomness
from fastkeras._lib.variables import of_step


@contextlib.contextmanager
def as_before(model):
    """While open, the model may be trained; at the end nothing has happened.

    Variables, those of TensorFlow and of optimizers that a layer or the model
    holds among them, attributes of the model (its compiled functions too) and
    random generators are put back. What is compiled while it is open is made
    anew, so that the state that kernels hold is that of other functions.

    Args:
        model: A `keras.Model` whose variables are all made.
    """
    random = randomness.state()
    owned = optimizers(model)
    unbuilt = [optimizer for optimizer in owned if not optimizer.built]
    variables = [*of_step(model), *_of_tensorflow(model)]
    variables += [v for optimizer in owned for v in optimizer.variables]
    variables = list({id(v): v for v in variables}.values())
    values = [v.numpy() for v in variables]
    attributes = dict(vars(model))

    def put_back():
        vars(model).clear()
        vars(model).update(attributes)
        for optimizer in unbuilt:
            if optimizer.built:
                _begin_anew(model, optimizer)
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
        randomness.set_state(random)

    try:
        vars(model)["train_function"] = None
        with private_seeds.another_series():
            yield
    finally:
        whole(put_back)


def optimizers(model):
    """The optimizers that a model or one of its layers holds.

    Args:
        model: A `keras.Model`; one with a `train_step` of its own may have
            several.
    """
    kind = keras.optimizers.Optimizer
    held = [leaf for leaf in _held(model) if isinstance(leaf, kind)]
    if model.optimizer is not None:
        held.append(model.optimizer)
    return list({id(optimizer): optimizer for optimizer in held}.values())


def _begin_anew(model, optimizer):
    """Sets what an optimizer holds to what one that is just built does."""
    variables = model.trainable_variables
    others = set(map(id, private.unknown_variables(optimizer, variables)))
    with model.distribute_strategy.scope():
        new = type(optimizer).from_config(optimizer.get_config())
        new.build([v for v in variables if id(v) not in others])
    values = {v.path: v.numpy() for v in new.variables}
    for variable in optimizer.variables:
        variable.assign(values[variable.path])


def _of_tensorflow(model):
    """Variables and generators of TensorFlow, which Keras does not track."""
    leaves = _held(model)
    found = [v for v in leaves if isinstance(v, tf.Variable)]
    found += [v.state for v in leaves if isinstance(v, tf.random.Generator)]
    return list({id(v): v for v in found}.values())


def _held(model):
    """What the layers of a model, itself among them, have as attributes."""
    layers = private.flat_layers(model)
    return [leaf for layer in layers for leaf in _leaves(vars(layer))]


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
