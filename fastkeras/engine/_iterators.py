"""The position of a `tf.data` iterator, as arrays."""

import pathlib
import tempfile
import time
from typing import NamedTuple

import numpy as np
import tensorflow as tf

#: Seconds after which an iterator is dropped without a wait.
_YOUNG = 0.05
#: Stands in what TensorFlow saves of a shuffle whose seeds it saves.
_SEEDS = b"epoch_num_random_samples"


class Saved(NamedTuple):
    """An iterator as TensorFlow saves it.

    Attributes:
        at: Integer, batches that had been pulled; 0 if it can't be saved.
        files: Dict of file name to bytes (uint8 array).
        shuffles: Integer, the shuffles whose seeds are in it.
        reason: String, why it can't be saved, or empty.
    """

    at: int
    files: dict
    shuffles: int
    reason: str


def save(iterator, at):
    """Saves an iterator, if it can be.

    Args:
        iterator: Iterator of a `tf.data.Dataset`.
        at: Integer, batches pulled so far.

    Returns:
        `Saved`.
    """
    with tempfile.TemporaryDirectory() as folder:
        try:
            tf.train.Checkpoint(iterator=iterator).write(f"{folder}/state")
        except (tf.errors.OpError, ValueError) as error:
            # A generator, a draw of random numbers, an iterator of a strategy.
            text = str(getattr(error, "message", error)).split("} ")[-1]
            return Saved(0, {}, 0, text.split("\n")[0])
        contents = {p.name: p.read_bytes() for p in _files(folder)}
    shuffles = sum(c.count(_SEEDS) for c in contents.values())
    files = {k: np.frombuffer(c, "uint8") for k, c in contents.items()}
    return Saved(at, files, shuffles, "")


def restore(iterator, saved):
    """Puts the iterator of an equal dataset where another was saved."""
    with tempfile.TemporaryDirectory() as folder:
        for name, content in saved.files.items():
            pathlib.Path(folder, name).write_bytes(content.tobytes())
        reader = tf.train.Checkpoint(iterator=iterator)
        reader.read(f"{folder}/state").assert_consumed()


def _files(folder):
    return sorted(pathlib.Path(folder).iterdir())


class Spent:
    """Iterators of short epochs that have ended, held until they are old.

    To drop an iterator, TensorFlow waits for the thread that tunes it, which
    first sleeps: 15 to 19 ms on a CPU, for an epoch of one batch.
    """

    def __init__(self):
        self._held = []

    def add(self, iterator, begun):
        """Takes an iterator that was begun at a `time.monotonic()`."""
        self._held.append((begun, iterator))
        now = time.monotonic()
        self._held = [(t, i) for t, i in self._held if now - t < _YOUNG]
