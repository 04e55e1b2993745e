"""What building, training and dropping models adds to a process.

Run by itself; prints a line of JSON for a `FastModel` and one for a plain
`keras.Model`: the bytes that each from the sixth to the fifteenth added, and
how many of all are still there. Each kind has a process of its own, forked
once all is imported.
"""

import ctypes
import gc
import json
import os
import sys

import keras
import numpy as np

import fastkeras as fk
from fastkeras._lib import process

MODELS, FIRST = 15, 5


def main():
    for form in (fk.FastModel, keras.Model):
        child = os.fork()
        if not child:
            print(json.dumps(left_behind(form)), flush=True)
            os._exit(0)
        if os.waitpid(child, 0)[1]:
            sys.exit(f"{form.__name__} failed")


def left_behind(form):
    x = np.random.default_rng(0).random((64, 8), dtype="float32")
    held = []
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
        # What lies free in the allocator is no one's.
        ctypes.CDLL(None).malloc_trim(0)
        held.append(process.held())
    alive = sum(isinstance(o, keras.Model) for o in gc.get_objects())
    grown = (held[-1] - held[FIRST - 1]) / (MODELS - FIRST)
    return {"grown": grown, "alive": alive}


if __name__ == "__main__":
    main()
