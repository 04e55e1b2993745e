"""Private names of Keras and TensorFlow that measuring a model needs.

A part of `private.py`, under the same rule: the reason stands beside each
name, and `tests/_lib/test_private_measure.py` fails by name when it moves.
"""

import random

import numpy as np

# The generator behind every layer and call that is given no seed.
from keras.src.backend.common import global_state
from keras.src.random.seed_generator import GLOBAL_SEED_GENERATOR

# Seeds of single operations are drawn from a generator of the context, which
# can only be seeded anew through the public `tf.random.set_seed`.
from tensorflow.python.eager import context

# The public `get_global_generator` makes one if there is none.
from tensorflow.python.ops import stateful_random_ops


def random_state():
    """Takes down the state of all generators that training may draw from.

    From here on, TensorFlow draws the seeds of single operations from another
    series: a kernel goes on where it was if its seed comes again.

    Returns:
        A function that puts all of it back.
    """
    python, numpy = random.getstate(), np.random.get_state()
    # There is none before the first `tf.random.set_seed`.
    seeds = vars(context.context()).get("_rng")
    context.context()._rng = random.Random("another series")
    keras = global_state.get_global_attribute(GLOBAL_SEED_GENERATOR)
    counter = None if keras is None else keras.state.numpy()
    generator = stateful_random_ops.global_generator
    place = None if generator is None else generator.state.numpy()

    def restore():
        random.setstate(python)
        np.random.set_state(numpy)
        if seeds is None:
            del context.context()._rng
        else:
            context.context()._rng = seeds
        global_state.set_global_attribute(GLOBAL_SEED_GENERATOR, keras)
        if keras is not None:
            keras.state.assign(counter)
        stateful_random_ops.global_generator = generator
        if generator is not None:
            generator.state.assign(place)

    return restore


def metric_calls(model, y, predictions, weight):
    """The compiled metrics, each with the arguments of its update.

    The container of a model updates them together, which would not tell
    which of them costs what.

    Args:
        model: A model that has been trained for a step.
        y, predictions, weight: Nested tensors; `weight` may be None.

    Returns:
        List of tuples of metric and tuple of arguments.
    """
    container = model._compile_metrics
    if container is None:
        return []
    true = container._flatten_y(y)
    predicted = container._flatten_y(predictions)
    none = [None] * len(true)
    weights = none if weight is None else container._flatten_y(weight)
    if len(weights) < len(true):
        weights = [weights[0]] * len(true)
    return [
        (metric, arguments)
        for lists, parts in (
            (container._flat_metrics, none),
            (container._flat_weighted_metrics, weights),
        )
        for found, *arguments in zip(lists, true, predicted, parts)
        for metric in (found.metrics if found else ())
    ]
