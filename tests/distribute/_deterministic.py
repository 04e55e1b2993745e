"""Run by itself: op determinism is set once per process and stays.

A layer sums over the replicas in its call, under mixed precision. Takes the
names of the devices, as often as is wanted; for each trains twice and prints
the weights of both, in a process forked once all is imported.
"""

import json
import os
import sys

os.environ["KERAS_BACKEND"] = "tensorflow"

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

import fastkeras as fk  # noqa: E402

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0],
    [tf.config.LogicalDeviceConfiguration() for _ in range(2)],
)


class Sum(keras.layers.Layer):
    """Divides by a sum of squares over all replicas."""

    def call(self, x):
        total = tf.reduce_sum(tf.square(tf.cast(x, tf.float32)))
        context = tf.distribute.get_replica_context()
        # None while the model is put together, outside any replica.
        if context is not None:
            total = context.all_reduce(tf.distribute.ReduceOp.SUM, total)
        return x / tf.cast(tf.sqrt(tf.stop_gradient(total)), x.dtype)


def main(*names):
    for devices in names:
        child = os.fork()
        if not child:
            print(json.dumps(trained_twice(devices.split(","))), flush=True)
            os._exit(0)
        if os.waitpid(child, 0)[1]:
            sys.exit(f"{devices} failed")


def trained_twice(devices):
    tf.config.experimental.enable_op_determinism()
    strategy = tf.distribute.MirroredStrategy(devices)
    return train(strategy), train(strategy)


def train(strategy):
    """The weights of a model that is made and trained anew."""
    keras.utils.set_random_seed(1)
    keras.backend.clear_session()
    with strategy.scope():
        inputs = keras.Input((4,))
        h = keras.layers.Dense(
            3, kernel_initializer=keras.initializers.GlorotUniform(1)
        )(inputs)
        outputs = keras.layers.Dense(
            1, kernel_initializer=keras.initializers.GlorotUniform(2)
        )(Sum()(h))
        model = fk.FastModel(inputs, outputs)
        model.compile(
            keras.optimizers.SGD(0.1),
            "mse",
            perf=[fk.perf.MixedPrecision(initial_scale=64.0)],
        )
    draw = np.random.default_rng(0)
    x = draw.normal(size=(16, 4)).astype("float32")
    y = draw.normal(size=(16, 1)).astype("float32")
    model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
    return [w.tolist() for w in model.get_weights()]


if __name__ == "__main__":
    main(*sys.argv[1:])
