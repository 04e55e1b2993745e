"""What building, training and dropping models adds to a process.

Run as `python _leak.py KIND`, of "fast" and "keras"; prints, as JSON, the
bytes that each model from the sixth to the fifteenth added, and how many of
all are still there.
"""

import gc
import json
import sys

import keras
import numpy as np

import fastkeras as fk
from fastkeras._lib import process

MODELS, FIRST = 15, 5


def main(kind):
    x = np.random.default_rng(0).random((64, 8), dtype="float32")
    held = []
    for _ in range(MODELS):
        inputs = keras.Input((8,))
        hidden = keras.layers.Dense(16, "relu")(inputs)
        form = fk.FastModel if kind == "fast" else keras.Model
        model = form(inputs, keras.layers.Dense(1)(hidden))
        model.compile("adam", "mse")
        data = x, x[:, :1]
        model.fit(
            *data, batch_size=16, epochs=2, verbose=0, validation_data=data
        )
        del model, inputs, hidden
        gc.collect()
        held.append(process.held())
    alive = sum(isinstance(o, keras.Model) for o in gc.get_objects())
    grown = (held[-1] - held[FIRST - 1]) / (MODELS - FIRST)
    print(json.dumps({"grown": grown, "alive": alive}))


if __name__ == "__main__":
    main(*sys.argv[1:])
