"""Cut at random places and taken up, a training ends as one left alone."""

import itertools
import random

import keras
import numpy as np
import pytest
import tensorflow as tf

import fastkeras as fk
from fastkeras.callbacks import Resume

EPOCHS, ROWS, BATCH = 4, 42, 4
BATCHES = 11


class Cut(BaseException):
    """Ends a training as a signal would: nothing of ours expects it."""


class Killer(keras.callbacks.Callback):
    """Raises at one of the calls of its hooks; keeps numbers of its own."""

    def __init__(self, at=None):
        super().__init__()
        self.at = at
        self.losses = []
        self.best = (None, np.inf)

    def set_model(self, model):
        super().set_model(model)
        self.calls = itertools.count()

    def on_train_batch_end(self, batch, logs=None):
        self.count()

    def on_test_begin(self, logs=None):
        self.count()

    def on_epoch_begin(self, epoch, logs=None):
        self.count()

    def on_epoch_end(self, epoch, logs=None):
        self.losses.append(logs["loss"])
        self.best = min(self.best, (epoch, logs["loss"]), key=lambda p: p[1])
        self.count()

    def count(self):
        if next(self.calls) == self.at:
            raise Cut


def rows():
    draw = np.random.default_rng(0)
    x = draw.normal(size=(ROWS, 3)).astype("float32")
    return x, (2 * x[:, :1] - x[:, 1:2] + 1).astype("float32")


class Shuffled(keras.utils.PyDataset):
    """Batches whose order its owner draws anew after each epoch."""

    def __init__(self):
        super().__init__()
        self.order = np.random.permutation(BATCHES)

    def __len__(self):
        return BATCHES

    def __getitem__(self, k):
        part = slice(self.order[k] * BATCH, (self.order[k] + 1) * BATCH)
        return tuple(a[part] for a in rows())

    def on_epoch_end(self):
        self.order = np.random.permutation(self.order)


def pipeline():
    data = tf.data.Dataset.from_tensor_slices(rows())
    return data.shuffle(20).batch(BATCH).prefetch(2)


def noisy():
    """A pipeline that TensorFlow can't save: it draws random numbers."""
    return pipeline().map(
        lambda x, y: (x + tf.random.normal(tf.shape(x), seed=3), y)
    )


def generated():
    x, y = rows()
    while True:
        for k in range(BATCHES):
            part = slice(k * BATCH, (k + 1) * BATCH)
            yield x[part], y[part]


def net():
    inputs = keras.Input((3,))
    h = keras.layers.Dense(4, "relu")(inputs)
    h = keras.layers.BatchNormalization()(h)
    h = keras.layers.Dropout(0.3)(h)
    return fk.FastModel(inputs, keras.layers.Dense(1)(h))


class Own(fk.FastModel):
    """A model whose variables are made in its first call."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(4, "tanh")
        self.drop = keras.layers.Dropout(0.2)
        self.head = keras.layers.Dense(1)

    def call(self, x, training=False):
        return self.head(self.drop(self.dense(x), training=training))


def fitted(
    resume,
    killer=None,
    make=net,
    data=rows,
    perf="auto",
    optimizer=lambda: keras.optimizers.Adam(0.03),
    extra=lambda: [],
    **arguments,
):
    """What the command of a user does; returns weights and history."""
    keras.utils.set_random_seed(7)
    keras.backend.clear_session(free_memory=False)
    model = make()
    model.compile(
        optimizer(), "mse", metrics=["mae"], jit_compile=False, perf=perf
    )
    data = data()
    if data is not None and not isinstance(data, tuple):
        data = (data,)
    history = model.fit(
        *data,
        callbacks=[c for c in (*extra(), killer, resume) if c is not None],
        verbose=0,
        **{"epochs": EPOCHS, **arguments},
    )
    return model.get_weights(), history.history, model


def check_equal(one, two):
    """Bit for bit: weights, optimizer, history."""
    for a, b in zip(one[0], two[0], strict=True):
        np.testing.assert_array_equal(a, b)
    pairs = zip(
        one[2].optimizer.variables, two[2].optimizer.variables, strict=True
    )
    for a, b in pairs:
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    assert one[1] == two[1]


def schedulers():
    return [
        keras.callbacks.LearningRateScheduler(lambda epoch, lr: lr * 0.9),
        keras.callbacks.ReduceLROnPlateau(patience=1, monitor="loss"),
        keras.callbacks.EarlyStopping(
            patience=1, monitor="val_mae", restore_best_weights=True
        ),
    ]


def scaled():
    return fk.perf.MixedPrecision("float16", growth_interval=5)


CASES = {
    "resident": {"batch_size": BATCH},
    "own-class": {"batch_size": BATCH, "make": Own, "perf": "clip_by_norm"},
    "windows": {
        "batch_size": BATCH,
        "perf": [
            fk.perf.Accumulate(3),
            fk.perf.ClipByGlobalNorm(0.5),
            fk.perf.Execution(steps_per_launch=2),
        ],
    },
    "scheduled": {
        "batch_size": BATCH,
        "extra": schedulers,
        "validation_data": rows(),
        "epochs": 6,
    },
    "short-epochs": {"batch_size": BATCH, "steps_per_epoch": 7},
    "pipeline": {"data": pipeline},
    "repeated": {"data": lambda: pipeline().repeat(), "steps_per_epoch": 7},
    "unsaved": {"data": noisy},
    "py-dataset": {"data": Shuffled},
    "generator": {"data": generated, "steps_per_epoch": 9},
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore:The position in the data")
def test_a_training_that_was_cut_ends_as_one_that_was_not(name, tmp_path):
    arguments = CASES[name]
    whole = Killer()
    expected = fitted(None, whole, **arguments)
    draw = random.Random(name)
    every = {"every_steps": draw.randint(1, 4)}
    cuts = 3
    for _ in range(cuts):
        with pytest.raises(Cut):
            fitted(
                Resume(tmp_path, **every),
                Killer(draw.randint(4, 14)),
                **arguments,
            )
    last, resume = Killer(), Resume(tmp_path, **every)
    actual = fitted(resume, last, **arguments)
    assert resume.resumed > (0, 0)
    check_equal(expected, actual)
    assert last.losses == whole.losses
    assert last.best == whole.best
