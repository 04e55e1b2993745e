"""What building, training and dropping models adds to a process.

Run by itself with Python's memory from the same allocator; prints a line of
JSON for a `FastModel` and one for a plain `keras.Model`: the bytes that each
from the third to the sixth added, and how many of all are still there. Each
kind has a process of its own, forked once all is imported. No tier is tried:
what XLA compiles is TensorFlow's, which keeps it.
"""

import ctypes
import gc
import json
import math
import os
import sys

import keras
import numpy as np

import fastkeras as fk
from fastkeras.engine import _pilot

MODELS, FIRST = 6, 2


class Info(ctypes.Structure):
    """What the allocator tells of itself, to the byte."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in "arena free small mapped in_maps a b in_use c d".split()
    ]


LIBC = ctypes.CDLL(None)
LIBC.mallinfo2.restype = Info


def main():
    for form in (fk.FastModel, keras.Model):
        child = os.fork()
        if not child:
            print(json.dumps(left_behind(form)), flush=True)
            os._exit(0)
        if os.waitpid(child, 0)[1]:
            sys.exit(f"{form.__name__} failed")


def left_behind(form):
    _pilot.FREE = -math.inf
    x = np.random.default_rng(0).random((64, 8), dtype="float32")
    used = []
    for _ in range(MODELS):
        inputs = keras.Input((8,))
        hidden = keras.layers.Dense(16, "relu")(inputs)
        model = form(inputs, keras.layers.Dense(1)(hidden))
        model.compile("adam", "mse")
        data = x, x[:, :1]
        model.fit(
            *data, batch_size=16, epochs=2, verbose=0, validation_data=data
        )
        del model, inputs, hidden
        gc.collect()
        info = LIBC.mallinfo2()
        used.append(info.in_use + info.in_maps)
    alive = sum(isinstance(o, keras.Model) for o in gc.get_objects())
    grown = (used[-1] - used[FIRST - 1]) / (MODELS - FIRST)
    return {"grown": grown, "alive": alive}


if __name__ == "__main__":
    main()
