"""Processes that train, are killed, and are started by the same command."""

import io
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
import os, sys
os.environ["KERAS_BACKEND"] = "tensorflow"
import keras
import numpy as np
import fastkeras as fk

folder, out = sys.argv[1:]


class Asks(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        print(batch, flush=True)
        sys.stdin.readline()


keras.utils.set_random_seed(5)
inputs = keras.Input((3,))
h = keras.layers.Dropout(0.2)(keras.layers.Dense(8, "relu")(inputs))
model = fk.FastModel(inputs, keras.layers.Dense(1)(h))
one = fk.perf.Execution(jit=False, steps_per_launch=1)
model.compile("adam", "mse", perf=["clip_by_global_norm", one])
x = np.random.default_rng(0).normal(size=(64, 3))
resume = fk.callbacks.Resume(folder, every_steps=3)
history = model.fit(
    x, x[:, 0], batch_size=4, epochs=3, verbose=0, callbacks=[Asks(), resume]
).history
weights = model.get_weights() + [np.array(history["loss"])]
np.savez(out, *weights)
"""


def start(tmp_path):
    """A process that tells of each batch, and then waits for a line."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, script, tmp_path / "cut", tmp_path / "cut.npz"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
    )


def cut(process, batches, seconds, sign):
    """Ends a process in mid-training, some time after so many batches.

    It can't end by itself before: it is given one line too few.
    """
    process.stdin.write("\n" * batches)
    process.stdin.flush()
    for _ in range(batches):
        assert process.stdout.readline()
    time.sleep(seconds)
    process.send_signal(sign)
    process.communicate()
    return process.returncode


def results(path):
    with np.load(path) as file:
        return [file[name] for name in file.files]


@pytest.fixture
def whole(tmp_path, monkeypatch, capsys):
    """What the script comes to if nothing cuts it."""
    out = tmp_path / "whole.npz"
    monkeypatch.setattr(sys, "argv", ["", tmp_path / "whole", out])
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    exec(SCRIPT, {})
    assert len(capsys.readouterr().out.split()) == 3 * 16
    return results(out)


def test_a_process_that_was_killed_goes_on(tmp_path, whole):
    draw = random.Random(1)
    for sign, code in ((signal.SIGKILL, -9), (signal.SIGTERM, 75)):
        batches, seconds = draw.randint(8, 16), draw.random() / 20
        process = start(tmp_path)
        assert cut(process, batches, seconds, sign) == code
    last = start(tmp_path)
    told, _ = last.communicate()
    assert last.returncode == 0
    assert len(told.split()) < 3 * 16 - 10, "it has begun anew"
    for one, two in zip(whole, results(tmp_path / "cut.npz"), strict=True):
        np.testing.assert_array_equal(one, two)
