"""The position of a `tf.data` iterator, as arrays."""

import pathlib
import tempfile

import numpy as np
import tensorflow as tf


def save(iterator):
    """What TensorFlow saves of an iterator.

    Args:
        iterator: Iterator of a `tf.data.Dataset`.

    Returns:
        Dict of file name to bytes (uint8 array), or a string: why this
        iterator can't be saved.
    """
    with tempfile.TemporaryDirectory() as folder:
        try:
            tf.train.Checkpoint(iterator=iterator).write(f"{folder}/state")
        except (tf.errors.OpError, ValueError) as error:
            # A generator, a draw of random numbers, an iterator of a strategy.
            return str(getattr(error, "message", error)).split("\n")[0]
        return {
            path.name: np.fromfile(path, "uint8")
            for path in pathlib.Path(folder).iterdir()
        }


def restore(iterator, files):
    """Puts an iterator where `save` found one of an equal dataset."""
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            content.tofile(pathlib.Path(folder, name))
        reader = tf.train.Checkpoint(iterator=iterator)
        reader.read(f"{folder}/state").assert_consumed()
