"""Processes that train, are killed, and are started by the same command."""

import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).resolve().parents[2]

SCRIPT = """
import os, sys, time
os.environ["KERAS_BACKEND"] = "tensorflow"
import keras
import numpy as np
import fastkeras as fk

folder, out, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])


class Tell(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        print(batch, flush=True)
        time.sleep(seconds)


keras.utils.set_random_seed(5)
inputs = keras.Input((3,))
h = keras.layers.Dropout(0.2)(keras.layers.Dense(8, "relu")(inputs))
model = fk.FastModel(inputs, keras.layers.Dense(1)(h))
model.compile("adam", "mse", jit_compile=False, perf=["clip_by_global_norm"])
x = np.random.default_rng(0).normal(size=(64, 3))
resume = fk.callbacks.Resume(folder, every_steps=3)
history = model.fit(
    x, x[:, 0], batch_size=4, epochs=3, verbose=0, callbacks=[Tell(), resume]
).history
weights = model.get_weights() + [np.array(history["loss"])]
np.savez(out, *weights)
"""


def start(tmp_path, name, seconds):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [
            sys.executable,
            script,
            tmp_path / name,
            tmp_path / f"{name}.npz",
            str(seconds),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
    )


def results(path):
    with np.load(path) as file:
        return [file[name] for name in file.files]


def after_batches(process, count):
    """Waits until so many batches are told."""
    for _ in range(count):
        assert process.stdout.readline()


def test_a_process_that_was_killed_goes_on(tmp_path):
    whole = start(tmp_path, "whole", 0)
    whole.communicate()
    assert whole.returncode == 0
    draw = random.Random(1)
    for sign, code in ((signal.SIGKILL, -9), (signal.SIGTERM, 75)):
        process = start(tmp_path, "cut", 0.02)
        after_batches(process, draw.randint(8, 16))
        time.sleep(draw.random() / 20)
        process.send_signal(sign)
        process.communicate()
        assert process.returncode == code
    last = start(tmp_path, "cut", 0)
    told = last.communicate()[0].split()
    assert last.returncode == 0
    assert len(told) < 3 * 16 - 10, "it has begun anew"
    for one, two in zip(
        results(tmp_path / "whole.npz"),
        results(tmp_path / "cut.npz"),
        strict=True,
    ):
        np.testing.assert_array_equal(one, two)
