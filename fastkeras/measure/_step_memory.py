"""One training step in a fresh process: the memory it takes.

`memory_plan.py` starts it with `fastkeras` imported, so that a model of any
class of the package can be loaded.
"""

import gc

import keras
import tensorflow as tf

from fastkeras._lib import process


def run(path, specs):
    """Trains a saved model for a step of few rows, then for one of all.

    Args:
        path: String, a `.keras` file of a compiled model.
        specs: List of shape and dtype of x and of y.

    Returns:
        Integer, bytes of the peak above what was held between the two.
    """
    model = keras.saving.load_model(path)
    train = tf.function(model.train_step, autograph=False)
    batch = _zeros(specs, None)
    step = train.get_concrete_function(batch)
    train(_zeros(specs, 2))
    gc.collect()
    held = process.held()
    step(batch)
    return process.peak() - held


def _zeros(specs, rows):
    return tuple(
        tf.zeros([rows or shape[0], *shape[1:]], dtype)
        for shape, dtype in specs
    )
