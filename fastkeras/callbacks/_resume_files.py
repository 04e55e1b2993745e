"""Files of states: plain values and arrays, written whole or not at all.

A state goes to a temporary name, to the disk, and is then renamed. Each part
of a file has a checksum, so that one that was cut short is recognised.
"""

import json
import os
import pathlib
import threading
import zipfile

import numpy as np
import tensorflow as tf

from fastkeras._lib.warn import warn

_PLAIN = (type(None), bool, int, float, str)
_UNREADABLE = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile)


def encode(value, arrays):
    """A value as JSON can hold it.

    Args:
        value: Nested lists, tuples and dicts of plain values and arrays.
        arrays: List to which the arrays are added.

    Returns:
        Nested lists and dicts of plain values.

    Raises:
        TypeError: If there is anything else in it.
    """
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is list:
        return [encode(v, arrays) for v in value]
    if isinstance(value, tuple):
        return {"tuple": [encode(v, arrays) for v in value]}
    if kind is dict:
        items = [
            [encode(k, arrays), encode(v, arrays)] for k, v in value.items()
        ]
        return {"dict": items}
    if isinstance(value, np.ndarray | np.generic) and value.dtype != object:
        arrays.append(np.asarray(value))
        scalar = isinstance(value, np.generic)
        name = str(value.dtype)
        return {"array": len(arrays) - 1, "dtype": name, "scalar": scalar}
    raise TypeError(f"{kind.__name__} is no plain value")


def decode(value, arrays):
    """The value that `encode` was given."""
    if isinstance(value, list):
        return [decode(v, arrays) for v in value]
    if not isinstance(value, dict):
        return value
    if "tuple" in value:
        return tuple(decode(v, arrays) for v in value["tuple"])
    if "dict" in value:
        return {decode(k, arrays): decode(v, arrays) for k, v in value["dict"]}
    array = arrays[value["array"]]
    if array.dtype.kind == "V":
        # NumPy's format does not know bfloat16.
        array = array.view(tf.as_dtype(value["dtype"]).as_numpy_dtype)
    return array[()] if value["scalar"] else array


class Files:
    """The states in a directory, the newest last.

    Args:
        directory: Path.
        keep: Integer >= 1, how many are kept.
    """

    def __init__(self, directory, keep):
        self.directory = pathlib.Path(directory)
        self._keep = keep
        self._thread = None
        self._error = None

    def paths(self):
        """The files, the oldest first."""
        return sorted(self.directory.glob("state-*.npz"))

    def load(self):
        """The newest state that can be read, or None.

        One that can't is said, and the one before it is taken.
        """
        for path in self.directory.glob("state-*.partial"):
            path.unlink()
        for path in reversed(self.paths()):
            try:
                return _read(path)
            except _UNREADABLE as error:
                warn(
                    f"{path} can't be read ({type(error).__name__}: {error}); "
                    "the state before it is used."
                )
        return None

    def save(self, state):
        """Begins to write a state, once the one before is written.

        Args:
            state: Nested plain values and arrays, which stay as they are.
        """
        self.wait()
        arrays = []
        text = json.dumps(encode(state, arrays))
        self._thread = threading.Thread(
            target=self._write, args=(text, arrays), name="resume"
        )
        self._thread.start()

    def wait(self):
        """Waits until the last state is written, and says if it is not."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            warn(
                f"A state can't be written to {self.directory} ({error}); the "
                "one before stays. Make room, or give another directory."
            )

    def _write(self, text, arrays):
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            last = self.paths()[-1:]
            number = int(last[0].stem.split("-")[1]) + 1 if last else 1
            path = self.directory / f"state-{number:08d}.npz"
            partial = path.with_suffix(".partial")
            _write_whole(partial, text, arrays)
            os.replace(partial, path)
            _to_disk(self.directory)
            for old in self.paths()[: -self._keep]:
                old.unlink()
        except OSError as error:
            self._error = error


def _write_whole(path, text, arrays):
    named = {str(k): array for k, array in enumerate(arrays)}
    with open(path, "wb") as file:
        np.savez(file, text=np.frombuffer(text.encode(), "uint8"), **named)
        file.flush()
        os.fsync(file.fileno())


def _to_disk(directory):
    """Makes a renaming last."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _read(path):
    # NumPy leaves a file open that it can't read.
    with open(path, "rb") as raw, np.load(raw, allow_pickle=False) as file:
        text = file["text"].tobytes().decode()
        arrays = [file[str(k)] for k in range(len(file.files) - 1)]
    return decode(json.loads(text), arrays)
