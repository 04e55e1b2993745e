"""Allocations that fail, in a process of its own: slices halve, numbers stay.

In the graph the address space of the process is limited. Under XLA, whose
compiler itself would fail then, a layer asks for more than any machine has
for slices above some rows.
"""

import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]

SCRIPT = """
import json, resource, sys, warnings
import keras, numpy as np, tensorflow as tf
import fastkeras as fk
from fastkeras._lib.variables import of_step
from fastkeras.perf import Execution, Microbatch

ROWS, WIDE = 512, 2**14
AUTO = Microbatch("auto", budget_bytes=2**50)


class Wide(keras.layers.Layer):
    # Six tensors of 32 MB that the backward pass reads.
    def call(self, x):
        x = tf.tile(x, [1, WIDE // 4])
        for _ in range(6):
            x = tf.tanh(x)
        return tf.reduce_mean(tf.reshape(x, [-1, WIDE // 4, 4]), 1)


class Endless(keras.layers.Layer):
    # 64 TB above 128 rows.
    def call(self, x):
        size = 2**22 if x.shape[0] and x.shape[0] > 128 else 2
        row = tf.tile(x[:1, :1], [size, 1])
        many = tf.matmul(row, row, transpose_b=True)
        some = tf.matmul(many, row) + tf.matmul(tf.tanh(many), row)
        return x + 1e-30 * tf.reduce_mean(some)


class Limit(keras.callbacks.Callback):
    def __init__(self, room):
        super().__init__()
        self.room = room

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1 and self.room:
            with open("/proc/self/statm") as file:
                taken = int(file.read().split()[0]) * 4096
            limit = taken + self.room * 2**20, resource.RLIM_INFINITY
            resource.setrlimit(resource.RLIMIT_AS, limit)

    def on_train_end(self, logs=None):
        none = resource.RLIM_INFINITY
        resource.setrlimit(resource.RLIMIT_AS, (none, none))


rng = np.random.default_rng(0)
x = rng.random((3 * ROWS, 4), dtype="float32")
y = x[:, :1].copy()


def train(layer, feature, room, **how):
    keras.utils.set_random_seed(0)
    inputs = keras.Input((4,))
    hidden = layer()(keras.layers.Dense(4, "tanh")(inputs))
    model = fk.FastModel(inputs, keras.layers.Dense(1)(hidden))
    perf = [feature, Execution(cache=False, steps_per_launch=3, **how)]
    model.compile("adam", "mse", metrics=["mae"], perf=perf)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", UserWarning)
        logs = model.fit(
            x, y, batch_size=ROWS, epochs=2, verbose=0, shuffle=False,
            callbacks=[Limit(room)],
        )
    told = [str(w.message) for w in said if "ran out" in str(w.message)]
    slices = model.perf_report()["settings"].get("rows of a slice")
    values = [np.asarray(v) for v in of_step(model)]
    return values, logs.history, told, slices


found, rights = [], {}
for layer, room, ways in (
    (Wide, 120, ({"feed": "resident"}, {"feed": "stream"})),
    (Endless, None, ({"feed": "resident", "jit": True},
                     {"feed": "stream", "jit": True})),
):
    for how in ways:
        got, logs, told, slices = train(layer, AUTO, room, **how)
        rows = slices["effective"]
        # The feed makes no difference.
        if (layer, rows) not in rights:
            rights[layer, rows] = train(layer, Microbatch(rows), None, **how)
        want, right = rights[layer, rows][:2]
        apart = max(np.abs(a - b).max() for a, b in zip(got, want))
        logs_apart = max(
            np.abs(np.subtract(logs[k], right[k])).max() for k in right
        )
        found.append([float(apart), float(logs_apart), rows, told, slices])
print(json.dumps(found))
"""


@pytest.mark.slow
def test_allocations_that_fail_halve_the_slices_and_change_nothing():
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        # The allocator for oneDNN waits 10 s before it gives up.
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "TF_ENABLE_ONEDNN_OPTS": "0",
        },
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    found = json.loads(ran.stdout.splitlines()[-1])
    assert len(found) == 4
    for apart, logs_apart, rows, told, slices in found:
        assert apart < 1e-6
        assert logs_apart < 1e-6
        assert rows < 512
        # One line a failure.
        assert told and f"in slices of {rows} rows" in told[-1]
        assert slices["reason"] == f"memory ran out with {2 * rows}"
