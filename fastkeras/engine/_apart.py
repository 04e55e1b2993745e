"""Of several workers the first alone writes the files of callbacks."""

import contextlib
import os
import shutil
import tempfile

import keras

from fastkeras._lib import replicas

#: Callbacks that write, and the attribute that says where.
_WRITERS = {
    keras.callbacks.BackupAndRestore: "backup_dir",
    keras.callbacks.CSVLogger: "filename",
    keras.callbacks.ModelCheckpoint: "filepath",
}


@contextlib.contextmanager
def apart(strategy, callbacks):
    """While open, the other workers write to a directory that is thrown away.

    They do write: values that are summed over the workers when they are read
    must be read by all. What was there before they read from a copy.

    Args:
        strategy: The strategy of the model.
        callbacks: List of callbacks.
    """
    if replicas.is_first(strategy):
        yield
        return
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        for k, callback in enumerate(callbacks):
            for kind, attribute in _WRITERS.items():
                if isinstance(callback, kind):
                    path = str(getattr(callback, attribute)).rstrip(os.sep)
                    paths = _below(callback, path)
                    stack.callback(vars(callback).update, paths)
                    _move(callback, paths, path, os.path.join(folder, str(k)))
        yield


def _below(callback, path):
    """The attributes of a callback that hold a path below this one."""
    return {
        name: value
        for name, value in vars(callback).items()
        if isinstance(value, str | os.PathLike) and str(value).startswith(path)
    }


def _move(callback, paths, path, folder):
    new = os.path.join(folder, os.path.basename(path))
    os.makedirs(folder)
    if os.path.isdir(path):
        shutil.copytree(path, new)
    for name, value in paths.items():
        setattr(callback, name, new + str(value)[len(path) :])
