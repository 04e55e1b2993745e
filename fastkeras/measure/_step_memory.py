"""One training step in a fresh process: the memory it takes.

`memory_plan.py` starts it with `fastkeras` imported, so that a model of any
class of the package can be loaded.
"""

import gc

import keras
import tensorflow as tf

from fastkeras._lib import process
from fastkeras._lib.private import tree


def written(spec):
    """A spec as text, such as `"float32 8,4"`; None stays None."""
    if spec is None:
        return None
    return f"{spec.dtype.name} " + ",".join(map(str, spec.shape))


def run(path, specs):
    """Trains a saved model for a step of few rows, then for one of all.

    Args:
        path: String, a `.keras` file of a compiled model.
        specs: The data of a step: nested list or dict, with a leaf as of
            `written` for each tensor.

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
    def zeros(text):
        dtype, shape = text.split(" ")
        whole, *inner = map(int, shape.split(","))
        return tf.zeros([rows or whole, *inner], dtype)

    return tuple(tree.map_structure(lambda s: s and zeros(s), specs))
