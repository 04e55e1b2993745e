"""Run by itself, as one of several workers or with several replicas of its own.

Takes the path of the file to write what came of it to; then a directory for
states and the fault to cause ("chief" or "none"), or the number of replicas.
"""

import json
import os
import pathlib
import signal
import stat
import sys
import time

os.environ["KERAS_BACKEND"] = "tensorflow"

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

import fastkeras as fk  # noqa: E402
from fastkeras import perf  # noqa: E402
from tests.distribute import _same  # noqa: E402

CLIP = perf.ClipByGlobalNorm(0.5)
#: 20 updates of each, of batches of 8 and 8, and of 8 and 1 rows.
PLANS = {
    "together": {
        "perf": [
            perf.Accumulate(2),
            perf.Microbatch(2),
            perf.Watch(exclude="*/bias"),
            perf.Rematerialize("Dense"),
            perf.SkipNonFinite(),
            CLIP,
        ],
        "optimizer": _same.adam,
        "epochs": 10,
    },
    "float16": {
        "perf": [
            perf.MixedPrecision(initial_scale=256.0),
            perf.Accumulate(2),
            CLIP,
        ],
        "optimizer": lambda: keras.optimizers.SGD(0.005),
        "epochs": 10,
    },
}
#: What the workers train that are killed.
RESUMED = {
    "perf": [perf.Accumulate(2), CLIP],
    "epochs": 4,
    "compiled": {"metrics": ["mae"]},
    "validation_split": 0.2,
}


class DieWriting(keras.callbacks.Callback):
    """Ends the process when half of the second state is written."""

    def __init__(self, states):
        super().__init__()
        self.first = pathlib.Path(states, "state-00000001.npz")

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            while not self.first.exists():
                time.sleep(0.01)
            os.fsync = self.die

    @staticmethod
    def die(handle):
        if stat.S_ISREG(os.fstat(handle).st_mode):
            os.truncate(handle, os.fstat(handle).st_size // 2)
            os.kill(os.getpid(), signal.SIGKILL)


def resumed(strategy, states, fault):
    """Trains with states; causes a fault; refuses states within an epoch."""
    rank = strategy.cluster_resolver.task_id
    refused = None
    try:
        within = fk.callbacks.Resume(states, every_steps=2)
        _same.trained(strategy, **RESUMED, callbacks=[within])
    except ValueError as error:
        refused = str(error)
    callbacks = [fk.callbacks.Resume(states)]
    if (fault, rank) == ("chief", 0):
        callbacks.append(DieWriting(states))
    result = _same.trained(strategy, **RESUMED, callbacks=callbacks)
    predicted = result.model.predict(_same.data()[0], _same.BATCH, verbose=0)
    found = {"refused": refused, "predicted": predicted.tolist()}
    return {**as_json(result), **found}


def lines(folder, policy):
    """A dataset of three files, one row a line."""
    x, y = _same.data()
    table = np.concatenate([x, y], 1)
    for k, rows in enumerate(np.array_split(table, 3)):
        text = "\n".join(",".join(map(repr, map(float, r))) for r in rows)
        pathlib.Path(f"{folder}-{k}.csv").write_text(text)
    names = [f"{folder}-{k}.csv" for k in range(3)]
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = policy

    def parsed(line):
        row = tf.stack(tf.io.decode_csv(line, [0.0] * 5))
        return row[:4], row[4:]

    data = tf.data.TextLineDataset(names).map(parsed).batch(_same.BATCH)
    return data.with_options(options)


def files(strategy, out):
    """Trains on files as they are shared by default, and by FILE."""
    policies = tf.data.experimental.AutoShardPolicy
    found = {}
    for policy in (policies.AUTO, policies.FILE):
        result = _same.trained(
            strategy,
            perf.Execution(steps_per_launch=3),
            xy=(lines(out, policy),),
            batch_size=None,
            epochs=5,
            callbacks=[
                keras.callbacks.ModelCheckpoint(
                    f"{out}-{policy.name}.weights.h5", save_weights_only=True
                ),
                keras.callbacks.BackupAndRestore(f"{out}-backup"),
                fk.callbacks.PerfTensorBoard(f"{out}-board", every=5),
            ],
        )
        settings = result.model.perf_report()["settings"]
        report = result.model.perf_report()["train_step"]["stream"]
        found[policy.name] = {
            **as_json(result),
            "feed": settings["feed"],
            "strategy": settings["strategy"],
            "choices": report["choices"],
        }
    return found


def cut(strategy, folder):
    """Cuts a training at random places; "" if it ends as one left alone."""
    from tests.callbacks import test_resume

    try:
        test_resume.check_cuts(
            "workers",
            folder,
            scope=strategy.scope,
            make=test_resume.line,
            data=test_resume.pipeline,
            every={"every_epochs": 1},
            calls=(13, 23),
        )
    except AssertionError as error:
        return str(error)
    return ""


def compiled():
    model = _same.mlp()
    model.compile("sgd", "mse", jit_compile=False)
    return model


def as_json(result):
    return {
        "weights": [w.tolist() for w in result.weights],
        "slots": [s.tolist() for s in result.slots],
        "history": result.history,
    }


def workers(out, states, fault):
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    results = {"resumed": resumed(strategy, states, fault)}
    if fault == "none":
        results["replicas"] = strategy.num_replicas_in_sync
        results["plans"] = plans(strategy)
        results["files"] = files(strategy, out)
        results["scaling"] = fk.distribute.scaling(
            compiled, _same.data(), strategy, batch_size=4, steps=1
        ).to_dict()
        results["cut"] = cut(strategy, pathlib.Path(states, "cut"))
    rank = strategy.cluster_resolver.task_id
    pathlib.Path(f"{out}.{rank}").write_text(json.dumps(results))


def plans(strategy, names=PLANS):
    return {
        name: as_json(_same.trained(strategy, **PLANS[name])) for name in names
    }


def devices(out, count):
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration() for _ in range(int(count))],
    )
    names = [f"CPU:{k}" for k in range(int(count))]
    strategy = tf.distribute.MirroredStrategy(names)
    results = {
        "replicas": strategy.num_replicas_in_sync,
        "plans": plans(strategy, ["together"]),
    }
    pathlib.Path(out).write_text(json.dumps(results))


if __name__ == "__main__":
    (workers if len(sys.argv) == 4 else devices)(*sys.argv[1:])
