"""Small models that a rule fires on, or does not."""

import keras
import numpy as np
import tensorflow as tf

import fastkeras as fk
from fastkeras.advise._facts import Facts
from fastkeras.measure import Profile
from fastkeras.measure import Summary

ROWS = 8


def profile(
    python=0.0, step=4e-3, waits=0.0, beside=0.03, metric=0.0, pipeline=0
):
    """A profile of a step: shares of Python and of waiting for the input."""
    return Profile(
        {
            "seconds": {
                "step": step,
                "step on one batch": step * (1 - waits),
                "epoch beside its steps": beside,
                "pipeline alone": pipeline,
            },
            "split": {
                "compute": step * (1 - python - waits),
                "dispatch": step * python / 2,
                "idle": step * python / 2,
                "input": step * waits,
                "copies": 0.0,
            },
            "input": {"bound": waits > 0.1, "share": waits},
            "metrics": {"auc: AUC (200 thresholds)": metric},
            "phases": {"metrics": metric},
        }
    )


def growth(ratio):
    return Summary(ratio, ratio, ratio, 9, "×")


def calls(looped, alone=3e-3):
    """Seconds of a step called alone, and in a loop."""
    return tuple(Summary(s, s, s, 5, "s") for s in (alone, looped))


def arrays(rows=2 * ROWS, width=4):
    draw = np.random.default_rng(0)
    x = draw.normal(size=(rows, width)).astype("float32")
    return x, x[:, :1] * 2


def dense(cls=keras.Model, layers=(), width=4, optimizer="adam", **options):
    """A model of the layers and a head, compiled."""
    inputs = hidden = keras.Input((width,))
    for layer in layers:
        hidden = layer(hidden)
    model = cls(inputs, keras.layers.Dense(1, name="head")(hidden))
    model.compile(optimizer, "mse", **options)
    return model


def fast(perf="auto", **options):
    return dense(fk.FastModel, perf=perf, **options)


def facts(model=None, data=None, **known):
    known = {
        "profile": profile(),
        "growth": growth(2.0),
        "without_xla": growth(1.5),
        "in_graph": growth(20.0),
        "calls": calls(1e-3),
        **known,
    }
    model = dense() if model is None else model
    data = arrays() if data is None else data
    return Facts(model, data, ROWS, **known)


def calling(layer, **options):
    """Facts of a model with a layer of the user's."""
    return facts(dense(layers=[layer], **options))


class Fetching(keras.layers.Layer):
    def compute_output_shape(self, shape):
        return shape

    def call(self, x):
        return x * float(tf.reduce_sum(x).numpy())


class InPython(keras.layers.Layer):
    def call(self, x):
        out = tf.numpy_function(lambda a: a, [x], tf.float32)
        out.set_shape(x.shape)
        return out


class Printing(keras.layers.Layer):
    def call(self, x):
        return self.helper(x)

    def helper(self, x):
        print("shape", x.shape)
        return x


class Collecting(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.seen = []

    def call(self, x):
        self.seen.append(x)
        return x


class Making(keras.layers.Layer):
    scale = None

    def call(self, x):
        if self.scale is None:
            self.scale = tf.Variable(1.0)
        return x * self.scale


class Proper(keras.layers.Layer):
    """Does none of the above: what looks like it happens outside the step."""

    def __init__(self):
        super().__init__()
        self.sizes = [1, 2]

    def build(self, shape):
        self.scale = self.add_weight(shape=(), initializer="ones")
        print("", end="")

    def call(self, x):
        return x * self.scale


class Eager(keras.Model):
    """Computes one thing run eagerly, and another in a graph."""

    def __init__(self):
        super().__init__()
        self.head = keras.layers.Dense(1)

    def call(self, x):
        return self.head(x) * (1.0 if tf.executing_eagerly() else 2.0)


class Counting(keras.Model):
    """Passes a Python number to a function of its own; `self` has any name."""

    count = 0

    def train_step(me, data):
        me.count += 1
        return me.inner(data, me.count)

    @tf.function
    def inner(self, data, count):
        return {"loss": tf.reduce_mean(self(data[0])) * count}


class Tensors(Counting):
    def train_step(self, data):
        self.count += 1
        return self.inner(data, tf.constant(float(self.count)))


class Unscaled(keras.Model):
    def train_step(self, data):
        return {"loss": self.loss_of(data)}

    def loss_of(self, data):
        return tf.reduce_mean(self(data[0]))


class Scaled(Unscaled):
    def loss_of(self, data):
        return self.optimizer.scale_loss(super().loss_of(data))


class MakingALayer(keras.layers.Layer):
    def compute_output_shape(self, shape):
        return shape

    def call(self, x):
        return keras.layers.Dense(4)(x)


class NoJit(keras.layers.Layer):
    def __init__(self, **options):
        super().__init__(**options)
        self.supports_jit = False

    def call(self, x):
        return x
