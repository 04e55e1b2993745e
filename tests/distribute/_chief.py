"""Run by itself, by a chief: trains on its workers, and writes what came of it.

Takes the path of the file to write.
"""

import functools
import json
import os
import pathlib
import signal
import sys
import tempfile
import time

os.environ["KERAS_BACKEND"] = "tensorflow"

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

import fastkeras as fk  # noqa: E402

ROWS, BATCH = 90, 8
STEPS = -(-ROWS // BATCH)
DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(ROWS, 4)).astype("float32")
Y = (X @ DRAW.normal(size=(4, 1)) + 1).astype("float32")


class Each(keras.callbacks.Callback):
    """Acts on each batch: then one is trained at a time."""

    def on_train_batch_end(self, batch, logs=None):
        pass


class Kill(keras.callbacks.Callback):
    """Kills a task within an epoch, by a hook that leaves launches long."""

    per_launch = True

    def __init__(self, job, index):
        super().__init__()
        self.pid = pid_of(job, index)

    def on_train_batch_begin(self, batch, logs=None):
        if batch > 0 and self.pid:
            os.kill(self.pid, signal.SIGKILL)
            self.pid = None


def pid_of(job, index):
    """The process of a task, among those that the launcher has started."""
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rsplit(")")[-1].split()[1])
            values = (path / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        config = [v[10:] for v in values if v.startswith(b"TF_CONFIG=")]
        if parent == os.getppid() and config:
            if json.loads(config[0])["task"] == {"type": job, "index": index}:
                return int(path.name)
    raise LookupError((job, index))


def model(cls=fk.FastModel, rate=0.05, **compiled):
    """A small regression model, the same each time."""
    inputs = keras.Input((4,))
    h = keras.layers.Dense(
        6, "tanh", kernel_initializer=keras.initializers.GlorotUniform(1)
    )(inputs)
    outputs = keras.layers.Dense(
        1, kernel_initializer=keras.initializers.GlorotUniform(2)
    )(h)
    made = cls(inputs, outputs)
    optimizer = keras.optimizers.SGD(rate, momentum=0.5)
    made.compile(optimizer, "mse", metrics=["mae"], **compiled)
    return made


def fitted(made, **arguments):
    arguments = {"batch_size": BATCH, "verbose": 0, **arguments}
    return made.fit(X, Y, **arguments).history


def gap(one, two):
    pairs = zip(one.get_weights(), two.get_weights(), strict=True)
    return float(max(np.abs(a - b).max() for a, b in pairs))


def usual(strategy):
    """`fit`, `evaluate` and `predict`, with what a user has beside them."""
    with strategy.scope():
        made = model()
    with tempfile.TemporaryDirectory() as folder:
        saved = pathlib.Path(folder, "model.keras")
        history = fitted(
            made,
            epochs=4,
            validation_data=(X, Y),
            callbacks=[keras.callbacks.ModelCheckpoint(saved)],
        )
        files = sorted(os.listdir(folder))
        loaded = keras.saving.load_model(saved)
    stock = model(keras.Model, run_eagerly=True)
    stock_history = fitted(stock, epochs=4, shuffle=False)
    stock.set_weights(made.get_weights())
    return {
        "history": history,
        "stock": stock_history["loss"],
        "iterations": int(made.optimizer.iterations),
        "files": files,
        "loaded": gap(made, loaded),
        "evaluate": [m.evaluate(X, Y, BATCH, verbose=0) for m in (made, stock)],
        "predict": float(
            np.abs(made.predict(X, BATCH, verbose=0) - stock(X)).max()
        ),
        "receipt": str(made.perf_report()),
    }


def still(strategy):
    """Metrics of weights that stand still, counted by two workers."""
    with strategy.scope():
        made = model(rate=0.0, perf=["clip_by_global_norm"])
    history = fitted(made)
    stock = model(keras.Model, run_eagerly=True)
    loss, mae = stock.evaluate(X, Y, BATCH, verbose=0)
    return {"history": history, "loss": loss, "mae": mae}


def features(strategy):
    """One batch at a time: every feature as on one device."""
    x, y = X[:36].copy(), Y[:36]
    x[20] = np.inf
    plan = [
        fk.perf.Accumulate(2),
        fk.perf.Microbatch(3),
        fk.perf.Watch(exclude="*/bias"),
        fk.perf.SkipNonFinite(),
        fk.perf.ClipByGlobalNorm(0.5),
    ]
    with strategy.scope():
        ours = model(perf=plan)
    one = model(perf=plan, run_eagerly=True)
    other = model(perf=plan[:-1], run_eagerly=True)
    arguments = {"shuffle": False, "verbose": 0, "callbacks": [Each()]}
    history, *_ = (
        m.fit(x, y, BATCH, **arguments).history for m in (ours, one, other)
    )
    return {
        "gap": gap(ours, one),
        "control": gap(ours, other),
        "skipped": [
            history["skipped_steps"][0],
            int(ours.optimizer.iterations),
        ],
    }


def batches(context):
    """The data of a worker, in an order of its own, without an end."""
    del context
    data = tf.data.Dataset.from_tensor_slices((X, Y))
    return data.shuffle(ROWS).repeat().batch(BATCH)


def own_data(strategy):
    """Each worker makes its own batches."""
    with strategy.scope():
        made = model()
    history = made.fit(batches, steps_per_epoch=10, epochs=2, verbose=0).history
    return {
        "loss": history["loss"],
        "iterations": int(made.optimizer.iterations),
    }


def refused(strategy):
    """What can't be there, each with what is said of it."""
    sgd, loss_scale = keras.optimizers.SGD, keras.optimizers.LossScaleOptimizer
    with strategy.scope():
        made = model()
        options = {
            "keras": {"perf": None},
            "jit": {"jit_compile": True},
            "eager": {"run_eagerly": True},
            "pin": {"perf": fk.perf.Execution(signature="pin")},
            "scale": {"optimizer": loss_scale(sgd())},
            "accumulate": {"optimizer": sgd(gradient_accumulation_steps=4)},
            "ema": {"optimizer": sgd(use_ema=True, ema_overwrite_frequency=2)},
        }
        calls = {
            name: functools.partial(made.compile, loss="mse", **arguments)
            for name, arguments in options.items()
        }
    calls["no steps"] = functools.partial(made.fit, batches)
    calls["ends"] = functools.partial(
        made.fit, lambda _: batches(_).take(2), steps_per_epoch=9, verbose=0
    )
    for name, callback in (
        ("health", fk.callbacks.HealthMonitor()),
        ("toggle", fk.callbacks.JitToggle(1, True)),
    ):
        calls[name] = functools.partial(fitted, made, callbacks=[callback])
    calls["in order"] = functools.partial(made.predict, batches, steps=2)
    with strategy.scope():
        return {name: said(call) for name, call in calls.items()}


def said(call):
    try:
        call()
    except ValueError as error:
        return str(error)


def losses(strategy):
    """A worker is lost in mid-epoch, then the parameter server."""
    with strategy.scope():
        made = model(rate=0.0, steps_per_execution=4)
    loss = fitted(made, epochs=2, callbacks=[Kill("worker", 1)])["loss"]
    start, told = time.monotonic(), None
    try:
        fitted(made, epochs=2, callbacks=[Kill("ps", 0)])
    except ConnectionError as error:
        told = str(error)
    return {"loss": loss, "told": told, "seconds": time.monotonic() - start}


def main(path):
    strategy = tf.distribute.ParameterServerStrategy(
        tf.distribute.cluster_resolver.TFConfigClusterResolver()
    )
    results = {}
    for part in (usual, still, features, own_data, refused, losses):
        start = time.monotonic()
        results[part.__name__] = part(strategy)
        print(part.__name__, f"{time.monotonic() - start:.1f} s", flush=True)
        pathlib.Path(path).write_text(json.dumps(results), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
