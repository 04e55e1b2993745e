"""FastModel against `keras.Model`: the same numbers, bit for bit or nearly.

`perf=None` is Keras itself, so everything is compared bit for bit. Under
`perf="auto"` float additions may come in another order: 1e-6.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

from fastkeras import FastModel

ROWS, BATCH = 19, 8


def draw(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


X, Y = draw(ROWS, 3), draw(ROWS, 2, seed=1)
CLASSES = np.arange(ROWS) % 3
WEIGHT = np.linspace(0.5, 2, ROWS).astype("float32")


def dense(base, width=2, **kwargs):
    inputs = keras.Input((3,))
    return base(inputs, keras.layers.Dense(width, **kwargs)(inputs))


def plain(**kwargs):
    return {"x": X, "y": Y, "batch_size": BATCH, **kwargs}


class Recorder(keras.callbacks.Callback):
    """Takes down every call with its number and its logs."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def _take(self, name, index, logs):
        self.seen.append((name, index, {} if logs is None else dict(logs)))

    def on_train_batch_begin(self, batch, logs=None):
        self._take("train batch begin", batch, logs)

    def on_train_batch_end(self, batch, logs=None):
        self._take("train batch end", batch, logs)

    def on_epoch_begin(self, epoch, logs=None):
        self._take("epoch begin", epoch, logs)

    def on_epoch_end(self, epoch, logs=None):
        self._take("epoch end", epoch, logs)

    def on_train_end(self, logs=None):
        self._take("train end", 0, logs)

    def on_test_end(self, logs=None):
        self._take("test end", 0, logs)


# A case takes the base class and returns a model, what to compile it with and
# what to fit it on. `CASES` finds them by their decorator.
CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


@case
def one_input_one_output(base):
    return (
        dense(base),
        {"optimizer": "adam", "loss": "mse", "metrics": ["mae"]},
        plain(epochs=2),
    )


@case
def unbuilt_subclass(base):
    class Net(base):
        def __init__(self):
            super().__init__()
            self.hidden = keras.layers.Dense(4, activation="tanh")
            self.top = keras.layers.Dense(2)

        def call(self, x):
            return self.top(self.hidden(x))

    return Net(), {"optimizer": "adam", "loss": "mse"}, plain(epochs=2)


@case
def lists_in_and_out(base):
    a, b = keras.Input((3,)), keras.Input((2,))
    joined = keras.layers.Concatenate()([a, b])
    outputs = [
        keras.layers.Dense(1, name="u")(joined),
        keras.layers.Dense(2, name="v")(joined),
    ]
    compiled = {
        "optimizer": keras.optimizers.SGD(0.1, momentum=0.9),
        "loss": ["mse", "mae"],
        "loss_weights": [0.5, 2.0],
        "metrics": [["mae"], ["mse"]],
    }
    # A partial batch has a test of its own: stock Keras logs it wrongly.
    x, y = X[:16], Y[:16]
    fitted = {"x": [x, y], "y": [x[:, :1], y], "batch_size": BATCH}
    return base([a, b], outputs), compiled, fitted


@case
def dicts_in_and_out(base):
    a, b = keras.Input((3,), name="a"), keras.Input((2,), name="b")
    joined = keras.layers.Concatenate()([a, b])
    model = base(
        {"a": a, "b": b},
        {
            "u": keras.layers.Dense(1, name="u")(joined),
            "v": keras.layers.Dense(2, name="v")(joined),
        },
    )
    compiled = {
        "optimizer": "adam",
        "loss": {"u": "mse", "v": "mae"},
        "loss_weights": {"u": 2.0, "v": 1.0},
        "metrics": {"v": ["mse"]},
    }
    x, y, weight = X[:16], Y[:16], WEIGHT[:16]
    fitted = {
        "x": {"a": x, "b": y},
        "y": {"u": x[:, :1], "v": y},
        "sample_weight": {"u": weight, "v": weight[::-1].copy()},
        "batch_size": BATCH,
    }
    return model, compiled, fitted


class Activity(keras.layers.Layer):
    def call(self, x):
        self.add_loss(keras.ops.mean(keras.ops.square(x)))
        return x


@case
def no_targets_but_add_loss(base):
    inputs = keras.Input((3,))
    outputs = Activity()(keras.layers.Dense(2)(inputs))
    fitted = {"x": X, "batch_size": BATCH, "epochs": 2}
    return base(inputs, outputs), {"optimizer": "adam"}, fitted


@case
def no_targets_but_compute_loss(base):
    class Net(base):
        def __init__(self):
            super().__init__()
            self.top = keras.layers.Dense(3)

        def call(self, x):
            return self.top(x)

        def compute_loss(self, x, y, y_pred, sample_weight, training=True):
            return keras.ops.mean(keras.ops.square(y_pred - x))

    fitted = {"x": X, "batch_size": BATCH, "epochs": 2}
    return Net(), {"optimizer": "adam"}, fitted


@case
def sample_weight(base):
    compiled = {"optimizer": "adam", "loss": "mse", "weighted_metrics": ["mae"]}
    return dense(base), compiled, plain(sample_weight=WEIGHT)


@case
def class_weight(base):
    compiled = {
        "optimizer": "adam",
        "loss": "sparse_categorical_crossentropy",
        "metrics": ["accuracy"],
    }
    fitted = plain(y=CLASSES, class_weight={0: 1.0, 1: 3.0, 2: 0.5})
    return dense(base, 3, activation="softmax"), compiled, fitted


@case
def masks(base):
    inputs = keras.Input((4, 3))
    hidden = keras.layers.Masking()(inputs)
    hidden = keras.layers.SimpleRNN(2, return_sequences=True)(hidden)
    outputs = keras.layers.Dense(1)(hidden)
    x = draw(ROWS, 4, 3)
    x[np.arange(ROWS) % 3 == 0, 2:] = 0
    fitted = plain(x=x, y=draw(ROWS, 4, 1))
    compiled = {"optimizer": "adam", "loss": "mse", "metrics": ["mae"]}
    return base(inputs, outputs), compiled, fitted


@case
def regularisers_and_batch_norm(base):
    inputs = keras.Input((3,))
    hidden = keras.layers.Dense(4, kernel_regularizer="l2")(inputs)
    hidden = keras.layers.BatchNormalization()(hidden)
    outputs = keras.layers.Dense(2, kernel_regularizer="l1")(hidden)
    compiled = {"optimizer": "adam", "loss": "mse"}
    return base(inputs, outputs), compiled, plain(epochs=2)


@case
def dropout(base):
    inputs = keras.Input((3,))
    hidden = keras.layers.Dropout(0.5)(keras.layers.Dense(16)(inputs))
    outputs = keras.layers.Dense(2)(hidden)
    compiled = {"optimizer": "adam", "loss": "mse"}
    return base(inputs, outputs), compiled, plain(epochs=2)


@case
def sequential(base):
    model = keras.Sequential(
        [keras.layers.Dense(4, "relu"), keras.layers.Dense(2)]
    )
    if base is FastModel:
        model = FastModel.from_keras(model)
    compiled = {"optimizer": "adam", "loss": "mse", "metrics": ["mae"]}
    return model, compiled, plain(epochs=2)


@case
def schedule_and_moving_average(base):
    optimizer = keras.optimizers.AdamW(
        keras.optimizers.schedules.CosineDecay(0.1, 6),
        use_ema=True,
        ema_overwrite_frequency=None,
        clipnorm=1.0,
    )
    return dense(base), {"optimizer": optimizer, "loss": "mse"}, plain(epochs=2)


@case
def optimizer_that_accumulates(base):
    optimizer = keras.optimizers.Adam(0.1, gradient_accumulation_steps=2)
    return dense(base), {"optimizer": optimizer, "loss": "mse"}, plain(epochs=2)


@case
def validation_data(base):
    fitted = plain(
        epochs=4,
        validation_data=(X[:5], Y[:5], WEIGHT[:5]),
        validation_batch_size=2,
        validation_freq=[1, 4],
    )
    compiled = {"optimizer": "adam", "loss": "mse", "metrics": ["mae"]}
    return dense(base), compiled, fitted


@case
def validation_split(base):
    compiled = {"optimizer": "adam", "loss": "mse"}
    fitted = plain(epochs=3, validation_split=0.4, validation_freq=2)
    return dense(base), compiled, fitted


@case
def four_steps_an_execution(base):
    compiled = {"optimizer": "adam", "loss": "mse", "steps_per_execution": 4}
    # Eight batches: of a number that 4 does not divide stock Keras calls the
    # last batch by a number that is too high.
    fitted = {"x": X[:16], "y": Y[:16], "batch_size": 2, "epochs": 2}
    fitted["validation_data"] = X[:5], Y[:5]
    return dense(base), compiled, fitted


@case
def generator(base):
    def batches():
        while True:
            for k in range(0, ROWS, 4):
                yield X[k : k + 4], Y[k : k + 4]

    fitted = {"x": batches(), "steps_per_epoch": 3, "epochs": 2}
    return dense(base), {"optimizer": "adam", "loss": "mse"}, fitted


class Sequence(keras.utils.PyDataset):
    def __len__(self):
        return 3

    def __getitem__(self, k):
        rows = slice(k * BATCH, (k + 1) * BATCH)
        return X[rows], Y[rows], WEIGHT[rows]


@case
def py_dataset(base):
    compiled = {"optimizer": "adam", "loss": "mse"}
    return dense(base), compiled, {"x": Sequence(), "epochs": 2}


@case
def dataset_of_known_length(base):
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH)
    fitted = {"x": data, "epochs": 2, "validation_data": data}
    return dense(base), {"optimizer": "adam", "loss": "mse"}, fitted


@case
def dataset_without_end(base):
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH).repeat()
    compiled = {"optimizer": "adam", "loss": "mse", "steps_per_execution": 2}
    fitted = {
        "x": data,
        "epochs": 2,
        "steps_per_epoch": 4,
        "validation_data": data,
        "validation_steps": 2,
    }
    return dense(base), compiled, fitted


@case
def initial_epoch(base):
    compiled = {"optimizer": "adam", "loss": "mse"}
    return dense(base), compiled, plain(initial_epoch=2, epochs=4)


class StopAt(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 1:
            self.model.stop_training = True


@case
def stopped_in_an_epoch(base):
    fitted = plain(
        epochs=3, callbacks=[StopAt()], validation_data=(X[:5], Y[:5])
    )
    return dense(base), {"optimizer": "adam", "loss": "mse"}, fitted


@case
def stopped_early(base):
    stop = keras.callbacks.EarlyStopping(
        "loss", mode="max", patience=1, restore_best_weights=True
    )
    fitted = plain(epochs=9, callbacks=[stop])
    return dense(base), {"optimizer": "adam", "loss": "mse"}, fitted


@case
def eager(base):
    compiled = {"optimizer": "adam", "loss": "mse", "run_eagerly": True}
    return dense(base), compiled, plain()


@case
def compiled_by_xla(base):
    compiled = {"optimizer": "sgd", "loss": "mse", "jit_compile": True}
    return dense(base), compiled, plain()


@case
def own_train_step_and_its_keys(base):
    class Net(base):
        def train_step(self, data):
            logs = dict(super().train_step(data))
            logs["twice"] = 2 * logs["loss"]
            return logs

        def test_step(self, data):
            return {**super().test_step(data), "extra": tf.constant(3.0)}

    fitted = plain(epochs=2, validation_data=(X[:5], Y[:5]))
    return dense(Net), {"optimizer": "adam", "loss": "mse"}, fitted


@case
def own_metrics(base):
    class Net(base):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.size = keras.metrics.Mean(name="size")

        def compute_metrics(self, x, y, y_pred, sample_weight=None):
            self.size.update_state(keras.ops.mean(keras.ops.abs(y_pred)))
            return super().compute_metrics(x, y, y_pred, sample_weight)

        @property
        def metrics(self):
            return super().metrics

    compiled = {"optimizer": "adam", "loss": "mse", "metrics": ["mae"]}
    return dense(Net), compiled, plain(epochs=2)


def train(case, base, **perf):
    """Runs a case; returns all that can be compared, by name."""
    keras.utils.set_random_seed(7)
    model, compiled, fitted = case(base)
    model.compile(**compiled, **perf)
    recorder = Recorder()
    fitted["callbacks"] = [*fitted.get("callbacks", ()), recorder]
    if isinstance(fitted["x"], np.ndarray | list | dict):
        fitted["shuffle"] = False
    history = model.fit(verbose=0, **fitted)
    given = [fitted.get(k) for k in ("x", "y", "sample_weight")]
    out = {"history": history.history, "epochs": history.epoch}
    out["seen"] = recorder.seen
    out["weights"] = model.get_weights()
    out["optimizer"] = [v.numpy() for v in model.optimizer.variables]
    if case is not generator:
        data = {"steps": 2} if case is dataset_without_end else {}
        out["predict"] = model.predict(given[0], verbose=0, **data)
        out["evaluate"] = model.evaluate(
            *given[:2], sample_weight=given[2], verbose=0, **data
        )
        out["evaluate dict"] = model.evaluate(
            *given[:2], return_dict=True, verbose=0, **data
        )
    return out


def same(a, b, tolerance, path=""):
    """Compares two nested values, types and keys included."""
    assert type(a) is type(b), path
    if isinstance(a, dict):
        assert list(a) == list(b), path
        for key in a:
            same(a[key], b[key], tolerance, f"{path}/{key}")
    elif isinstance(a, list | tuple):
        assert len(a) == len(b), path
        for k, (first, second) in enumerate(zip(a, b, strict=True)):
            same(first, second, tolerance, f"{path}/{k}")
    elif isinstance(a, str | int):
        assert a == b, path
    else:
        np.testing.assert_allclose(
            a, b, rtol=tolerance, atol=tolerance, err_msg=path
        )


STOCK = {}


def stock(name):
    if name not in STOCK:
        STOCK[name] = train(CASES[name], keras.Model)
    return STOCK[name]


@pytest.mark.parametrize("name", CASES)
def test_perf_none_is_keras_bit_for_bit(name):
    same(train(CASES[name], FastModel, perf=None), stock(name), 0)


@pytest.mark.parametrize("name", CASES)
def test_auto_has_the_numbers_of_keras(name):
    same(train(CASES[name], FastModel, perf="auto"), stock(name), 1e-6)
