"""Run by itself, by each worker: trains, and writes what came of it.

Takes the path of the file to write; the rows of a batch; "one" or "several";
and a directory for states, in which the second worker kills itself if it is
empty, or nothing.
"""

import contextlib
import json
import os
import pathlib
import signal
import sys

os.environ["KERAS_BACKEND"] = "tensorflow"

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

import fastkeras as fk  # noqa: E402


class Kill(keras.callbacks.Callback):
    """Kills the process within the second epoch."""

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if self.epoch == 1:
            os.kill(os.getpid(), signal.SIGKILL)


def main(path, batch_size, several, states=None):
    scope, rank = contextlib.nullcontext(), 0
    if several == "several":
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        scope = strategy.scope()
        rank = strategy.cluster_resolver.task_id
    keras.utils.set_random_seed(1)
    with scope:
        inputs = keras.Input((4,))
        h = keras.layers.Dense(6, "tanh")(inputs)
        model = fk.FastModel(inputs, keras.layers.Dense(1)(h))
        model.compile(
            keras.optimizers.SGD(0.05, momentum=0.9),
            "mse",
            metrics=["mae"],
            jit_compile=False,
            perf=[fk.perf.Accumulate(2), fk.perf.ClipByGlobalNorm(0.5)],
        )
    callbacks, refused = [], None
    if states:
        callbacks.append(fk.callbacks.Resume(states))
        if rank == 1 and not list(pathlib.Path(states).glob("*")):
            callbacks.append(Kill())
    draw = np.random.default_rng(0)
    x = draw.normal(size=(29, 4)).astype("float32")
    y = 3 * draw.normal(size=(29, 1)).astype("float32")
    if several == "several":
        within = fk.callbacks.Resume(states, every_steps=2)
        try:
            model.fit(x, y, batch_size=8, callbacks=[within], verbose=0)
        except ValueError as error:
            refused = str(error)
    history = model.fit(
        x,
        y,
        batch_size=int(batch_size),
        epochs=3,
        shuffle=False,
        verbose=0,
        validation_data=(x, y),
        callbacks=callbacks,
    ).history
    result = {
        "weights": [w.tolist() for w in model.get_weights()],
        "history": history,
        "refused": refused,
        "replicas": model.distribute_strategy.num_replicas_in_sync,
    }
    with open(f"{path}.{rank}", "w", encoding="utf-8") as file:
        json.dump(result, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
