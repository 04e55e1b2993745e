"""FastModel against `keras.Model`: the same numbers, bit for bit or nearly.

`perf=None` is Keras itself, so everything is compared bit for bit. Under
`perf="auto"` float additions may come in another order: 1e-6.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

import fastkeras as fk
from fastkeras import FastModel

SLOW = pytest.mark.slow
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
    hidden = keras.layers.Dense(2, "tanh")(hidden)
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
    # Not Adam: the gradient of the first bias is zero but for rounding, which
    # Adam would divide by itself.
    compiled = {"optimizer": "sgd", "loss": "mse"}
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


def train(case, base, eagerly=False, **perf):
    """Runs a case; returns all that can be compared, by name."""
    keras.utils.set_random_seed(7)
    model, compiled, fitted = case(base)
    if eagerly and not compiled.keys() & {"steps_per_execution", "jit_compile"}:
        compiled["run_eagerly"] = True
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


# `perf=None` takes one path, whatever the case; these show it. The rest runs
# with the slow tests, as does every second case of "auto".
NONE = {
    "unbuilt_subclass",
    "dicts_in_and_out",
    "four_steps_an_execution",
    "own_train_step_and_its_keys",
}
AUTO = NONE | {"no_targets_but_compute_loss", "masks", *list(CASES)[1::2]}


@pytest.mark.parametrize(
    ("name", "plans"),
    [
        pytest.param(n, [None, "auto"] if n in NONE else ["auto"], id=n)
        for n in CASES
        if n in AUTO
    ]
    + [
        pytest.param(n, ["auto", None][n in AUTO :], id=f"{n}-rest", marks=SLOW)
        for n in CASES
        if n not in NONE
    ],
)
def test_the_numbers_are_those_of_keras(name, plans):
    # Bit for bit in the same graph alone; eagerly it is quicker than a trace.
    stock = train(CASES[name], keras.Model, eagerly=None not in plans)
    for perf in plans:
        ours = train(CASES[name], FastModel, perf=perf)
        # Keras itself: bit for bit.
        same(ours, stock, 0 if perf is None else 1e-6)


# Where stock Keras is at fault: the right value, and the fault as control.


def weights_of(base, data, epochs=2, loss="mse", **compiled):
    """Trains a Dense layer; returns its weights, its model and its history."""
    keras.utils.set_random_seed(7)
    model = dense(base, compiled.pop("width", 2))
    model.compile("adam", loss, **compiled)
    history = model.fit(**data, epochs=epochs, verbose=0)
    return (
        np.concatenate([w.ravel() for w in model.get_weights()]),
        model,
        (history.history),
    )


def batched(*arrays, size=BATCH):
    return tf.data.Dataset.from_tensor_slices(arrays).batch(size)


def test_a_dataset_of_unknown_length_updates_once_a_batch():
    unknown = batched(X, Y).filter(lambda x, y: True)
    expected, _, history = weights_of(keras.Model, {"x": batched(X, Y)})
    got, model, ours = weights_of(FastModel, {"x": unknown})
    np.testing.assert_allclose(got, expected, atol=1e-6)
    np.testing.assert_allclose(ours["loss"], history["loss"], atol=1e-6)
    assert int(model.optimizer.iterations) == 6
    # Stock Keras begins a step at the end of the data, which counts.
    _, model, _ = weights_of(keras.Model, {"x": unknown})
    assert int(model.optimizer.iterations) >= 6


@pytest.mark.parametrize("steps", [2, 33, 64])
def test_more_steps_an_execution_than_batches(steps):
    expected, _, _ = weights_of(keras.Model, {"x": batched(X, Y)})
    recorder = Recorder()
    got, model, _ = weights_of(
        FastModel,
        {
            "x": batched(X, Y),
            "validation_data": batched(X[:5], Y[:5], size=2),
            "callbacks": [recorder],
        },
        steps_per_execution=steps,
    )
    np.testing.assert_allclose(got, expected, atol=1e-6)
    assert int(model.optimizer.iterations) == 6
    # The number of a batch is that of the last one that has run.
    ends = [k for name, k, _ in recorder.seen if name == "train batch end"]
    assert ends == ([1, 2] if steps == 2 else [2]) * 2
    val_loss = recorder.seen[-1][2]["val_loss"]
    predicted = model.predict(X[:5], verbose=0)
    np.testing.assert_allclose(
        val_loss, np.mean((predicted - Y[:5]) ** 2), atol=1e-6
    )


def test_an_exhausted_generator_trains_on_its_batches_once():
    def batches():
        for k in range(0, ROWS, BATCH):
            yield X[k : k + BATCH], Y[k : k + BATCH]

    expected, _, _ = weights_of(keras.Model, {"x": batched(X, Y)}, epochs=1)
    with pytest.warns(UserWarning, match="spent after 1 epoch"):
        got, model, history = weights_of(FastModel, {"x": batches()}, epochs=3)
    np.testing.assert_allclose(got, expected, atol=1e-6)
    assert int(model.optimizer.iterations) == 3
    assert len(history["loss"]) == 1
    stock, _, history = weights_of(keras.Model, {"x": batches()}, epochs=3)
    assert np.abs(stock - expected).max() > 1e-4


def test_a_weight_per_row_goes_along_the_rows_of_a_square_mask():
    size = 4

    def build(base):
        inputs = keras.Input((size, 1))
        hidden = keras.layers.Masking()(inputs)
        outputs = keras.layers.Dense(1, kernel_initializer="ones", name="top")(
            hidden
        )
        model = base(inputs, outputs)
        model.compile("sgd", "mse")
        return model

    x = np.arange(1.0, 17.0).reshape(size, size, 1).astype("float32")
    x[0, 2:] = 0
    weight = np.array([1, 2, 3, 4], "float32")
    y = np.zeros_like(x)
    kept = (x[..., 0] != 0) * weight[:, None]
    ours = build(FastModel).evaluate(x, y, 4, 0, weight)
    stock = build(keras.Model).evaluate(x, y, 4, 0, weight)
    right = (x[..., 0] ** 2 * kept).sum() / (x != 0).sum()
    assert ours == pytest.approx(right, rel=1e-6)
    assert stock != pytest.approx(right, rel=1e-2)


@pytest.mark.parametrize("steps", [4, 3])
def test_a_weighted_metric_of_a_mask_goes_along_the_rows(steps):
    rows = 4
    x = np.random.default_rng(0).uniform(1, 2, (rows, steps, 1))
    x[0, 2:] = x[2, 1:] = 0
    weight = np.array([1, 2, 3, 4], "float32")
    kept = (x[..., 0] != 0) * weight[:, None]
    right = {
        "weighted_mae": (x[..., 0] * kept).sum() / kept.sum(),
        "q": (x[..., 0] ** 2 * kept).sum() / kept.sum(),
        "mae": x.sum() / (x != 0).sum(),
    }

    def run(base, **perf):
        inputs = keras.Input((steps, 1))
        top = keras.layers.Dense(1, kernel_initializer="ones")
        model = base(inputs, top(keras.layers.Masking()(inputs)))
        model.compile(
            keras.optimizers.SGD(0.0),
            "mse",
            metrics=["mae"],
            weighted_metrics=["mae", keras.metrics.MeanSquaredError("q")],
            **perf,
        )
        y = np.zeros_like(x)
        data = {"x": x, "y": y, "sample_weight": weight, "batch_size": rows}
        logs = model.fit(**data, shuffle=False, verbose=0).history
        again = model.evaluate(**data, verbose=0, return_dict=True)
        assert {k: v[0] for k, v in logs.items()} == pytest.approx(again)
        return again

    for perf in ("auto", fk.perf.Accumulate(2), fk.perf.Microbatch(3)):
        got = run(FastModel, perf=perf)
        assert {k: got[k] for k in right} == pytest.approx(right, rel=1e-5)
    if steps == rows:
        assert run(keras.Model)["q"] != pytest.approx(right["q"], rel=1e-3)
    else:
        with pytest.raises(ValueError, match="Dimensions must be equal"):
            run(keras.Model)


@pytest.mark.parametrize("kind", ["arrays", "dataset"])
def test_a_class_missing_from_class_weight_counts_as_one(kind):
    labels = CLASSES.astype("int32")
    compiled = {"loss": "sparse_categorical_crossentropy", "width": 3}
    weight = np.where(labels == 1, 3.0, 1.0).astype("float32")
    right, _, _ = weights_of(
        keras.Model, {"x": batched(X, labels, weight)}, **compiled
    )
    data = {"x": batched(X, labels)}
    if kind == "arrays":
        data = {"x": X, "y": labels, "batch_size": BATCH, "shuffle": False}
    data["class_weight"] = {1: 3.0}
    got, _, _ = weights_of(FastModel, data, **compiled)
    np.testing.assert_allclose(got, right, atol=1e-6)
    if kind == "dataset":
        with pytest.raises(tf.errors.OpError):
            weights_of(keras.Model, data, **compiled)


def test_the_end_of_an_epoch_of_a_py_dataset_comes_once():
    class Counting(Sequence):
        def __init__(self):
            super().__init__()
            self.ends = 0

        def on_epoch_end(self):
            self.ends += 1

    ours, stock = Counting(), Counting()
    weights_of(FastModel, {"x": ours}, epochs=2)
    weights_of(keras.Model, {"x": stock}, epochs=2)
    assert ours.ends == 2
    assert stock.ends > 2


@pytest.mark.parametrize(
    "perf", ["auto", fk.perf.Accumulate(2), fk.perf.Microbatch(1)], ids=str
)
def test_a_row_that_is_masked_out_whole_adds_nothing(perf):
    def weights(base, x, pooled=False, **perf):
        keras.utils.set_random_seed(7)
        inputs = keras.Input((2, 1))
        hidden = keras.layers.Masking()(inputs)
        if pooled:
            hidden = keras.layers.GlobalAveragePooling1D()(hidden)
        model = base(inputs, keras.layers.Dense(1)(hidden))
        model.compile("sgd", "mse", run_eagerly=True, **perf)
        y = x[:, 0] if pooled else x
        model.fit(x, y, batch_size=1, shuffle=False, verbose=0)
        return np.concatenate(model.get_weights(), None)

    x = np.ones((4, 2, 1), "float32")
    x[1] = 0
    # Alone in its batch it trains nothing, in a window it weighs nothing.
    without = x[[0, 0, 2, 3]] if perf == fk.perf.Accumulate(2) else x[[0, 2, 3]]
    got = weights(FastModel, x, perf=perf)
    np.testing.assert_allclose(
        got, weights(FastModel, without, perf=perf), atol=1e-6
    )
    # The control: a mean over no step is no number, in Keras as here, where it
    # is told, and left out on demand.
    assert not np.isfinite(weights(keras.Model, x, pooled=True)).any()
    with pytest.warns(UserWarning, match="loss is not finite"):
        weights(FastModel, x, pooled=True, perf=perf)
    perf = [perf, "skip_non_finite"]
    assert np.isfinite(weights(FastModel, x, pooled=True, perf=perf)).all()


def test_the_loss_of_each_output_is_the_mean_over_the_rows():
    def run(base):
        model, compiled, fitted = lists_in_and_out(base)
        model.compile(**compiled)
        fitted = {"x": [X, Y], "y": [X[:, :1], Y], "batch_size": BATCH}
        return model.fit(**fitted, shuffle=False, verbose=0).history

    def rest(history):
        parts = 0.5 * history["u_loss"][0] + 2.0 * history["v_loss"][0]
        return history["loss"][0] - parts

    assert abs(rest(run(FastModel))) < 1e-6
    assert abs(rest(run(keras.Model))) > 1e-3


# Field cases.


@pytest.mark.parametrize("form", ["x", "(x,)", "(x, y)", "(x, y, w)", "dict"])
def test_data_of_every_form(form):
    class Net(FastModel):
        def __init__(self):
            super().__init__()
            self.top = keras.layers.Dense(2, kernel_initializer="ones")

        def call(self, x):
            return self.top(x["a"] if isinstance(x, dict) else x)

        def compute_loss(self, x, y, y_pred, sample_weight, training=True):
            loss = keras.ops.mean(y_pred**2, -1)
            if sample_weight is not None:
                loss = loss * sample_weight
            return keras.ops.mean(loss)

    data = {
        "x": tf.data.Dataset.from_tensor_slices(X),
        "(x,)": tf.data.Dataset.from_tensor_slices((X,)),
        "(x, y)": tf.data.Dataset.from_tensor_slices((X, Y)),
        "(x, y, w)": tf.data.Dataset.from_tensor_slices((X, Y, WEIGHT)),
        "dict": tf.data.Dataset.from_tensor_slices({"a": X}),
    }[form].batch(ROWS)
    model = Net()
    model.compile("sgd")
    (loss,) = model.fit(data, verbose=0).history["loss"]
    weight = WEIGHT if form == "(x, y, w)" else 1.0
    right = np.mean(X.sum(1) ** 2 * weight)
    assert loss == pytest.approx(right, rel=1e-5)


def test_class_weight_equals_the_matching_sample_weight():
    compiled = {"loss": "sparse_categorical_crossentropy", "width": 3}
    data = {"x": X, "y": CLASSES, "batch_size": BATCH, "shuffle": False}
    by_class, _, _ = weights_of(
        FastModel, {**data, "class_weight": {0: 1, 1: 3, 2: 1}}, **compiled
    )
    weight = np.where(CLASSES == 1, 3.0, 1.0)
    by_row, _, _ = weights_of(
        FastModel, {**data, "sample_weight": weight}, **compiled
    )
    plainly, _, _ = weights_of(FastModel, data, **compiled)
    np.testing.assert_allclose(by_class, by_row, atol=1e-6)
    assert np.abs(by_class - plainly).max() > 1e-4


def test_the_logged_loss_is_the_mean_over_rows_not_that_of_the_last_batch():
    model = dense(FastModel)
    model.compile(keras.optimizers.SGD(0.0), "mse")
    rows = np.mean((model.predict(X, verbose=0) - Y) ** 2, 1)
    loss = model.fit(X, Y, batch_size=BATCH, shuffle=False, verbose=0).history
    assert loss["loss"][0] == pytest.approx(rows.mean(), rel=1e-6)
    assert loss["loss"][0] != pytest.approx(rows[16:].mean(), rel=1e-3)


def test_the_logged_loss_holds_the_penalty_and_the_gradient_twice_lambda_w():
    def step(perf):
        inputs = keras.Input((3,))
        model = FastModel(
            inputs,
            keras.layers.Dense(
                1, kernel_regularizer=keras.regularizers.L2(0.1)
            )(inputs),
        )
        before = model.get_weights()
        model.compile(keras.optimizers.SGD(1.0), "mse", perf=perf)
        history = model.fit(X[:8], Y[:8, :1], 2, shuffle=False, verbose=0)
        return before, model.get_weights(), history.history["loss"][0]

    (w, b), (after, _), loss = step([fk.perf.Accumulate(4)])
    error = X[:8] @ w + b - Y[:8, :1]
    penalty = 0.1 * np.sum(w**2)
    assert loss == pytest.approx(np.mean(error**2) + penalty, rel=1e-5)
    gradient = 2 * X[:8].T @ error / 8 + 2 * 0.1 * w
    np.testing.assert_allclose(w - after, gradient, atol=1e-5)
    four_times = gradient + 3 * 2 * 0.1 * w
    assert np.abs(w - after - four_times).max() > 1e-3


PERF = [
    "auto",
    None,
    fk.perf.Accumulate(2),
    fk.perf.Microbatch(3),
    "mixed_float16",
]


@pytest.mark.parametrize("perf", PERF, ids=str)
def test_no_targets_in_fit_and_evaluate(perf):
    model, _, fitted = no_targets_but_compute_loss(FastModel)
    model.build((None, 3))
    model.compile("sgd", perf=perf)
    history = model.fit(**fitted, verbose=0).history
    assert np.isfinite(history["loss"]).all()
    loss = model.evaluate(X, batch_size=BATCH, verbose=0)
    right = np.mean((model.predict(X, verbose=0) - X) ** 2)
    assert loss == pytest.approx(right, rel=1e-3)


def test_a_frozen_batch_norm_does_not_move():
    def moved(frozen):
        model, compiled, fitted = regularisers_and_batch_norm(FastModel)
        norm = model.layers[2]
        norm.trainable = not frozen
        before = norm.get_weights()
        model.compile(**compiled)
        model.fit(**fitted, verbose=0)
        after = norm.get_weights()
        return max(np.abs(a - b).max() for a, b in zip(before, after))

    assert moved(frozen=True) == 0
    assert moved(frozen=False) > 1e-3


def call(model, method):
    if method == "train_on_batch":
        return model.train_on_batch(X, Y)
    return getattr(model, method)(X, Y, verbose=0)


@pytest.mark.parametrize("method", ["fit", "evaluate", "train_on_batch"])
def test_trainable_changed_after_compile_is_named(method):
    model, compiled, _ = regularisers_and_batch_norm(FastModel)
    model.compile(**compiled)
    model.layers[1].trainable = False
    with pytest.warns(UserWarning, match=model.layers[1].name):
        call(model, method)
    # What was trainable at `compile` is what counts.
    before = model.layers[1].get_weights()[0]
    with pytest.warns(UserWarning, match=model.layers[1].name):
        model.fit(X, Y, verbose=0)
    assert np.abs(model.layers[1].get_weights()[0] - before).max() > 0


def test_an_optimizer_of_other_variables_is_refused_before_training():
    first = dense(FastModel)
    first.compile("adam", "mse")
    first.fit(X, Y, verbose=0)
    second = dense(FastModel)
    with pytest.raises(ValueError, match="new optimizer object"):
        second.compile(first.optimizer, "mse")
    assert not second.compiled


def test_evaluating_in_mid_epoch_leaves_the_logs_of_training_alone():
    class Evaluates(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 1:
                self.model.evaluate(X[:5], Y[:5], verbose=0)

    def loss(base, callbacks):
        data = plain(callbacks=callbacks, shuffle=False)
        return weights_of(base, data, metrics=["mae"])[2]

    expected = loss(FastModel, [])
    got = loss(FastModel, [Evaluates()])
    assert got.keys() == expected.keys()
    for key in got:
        np.testing.assert_allclose(got[key], expected[key], atol=1e-6)
    stock = loss(keras.Model, [Evaluates()])
    assert abs(stock["loss"][0] - expected["loss"][0]) > 1e-4


def test_steps_that_the_data_does_not_hold_are_told_before_training():
    class Early(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            assert len(record) == 1
            assert "needs 60 batches" in str(record[0].message)

    data = tf.data.Dataset.from_tensor_slices((X[:10], Y[:10])).batch(1)
    model = dense(FastModel)
    model.compile("sgd", "mse")
    with pytest.warns(UserWarning) as record:
        model.fit(
            data, steps_per_epoch=30, epochs=2, verbose=0, callbacks=[Early()]
        )


class ManyUnits(keras.layers.Layer):
    """The mean of 150 units with a kernel and a bias each."""

    def build(self, shape):
        self.kernels, self.biases = (
            [self.add_weight(shape[1:], "normal") for _ in range(150)]
            for _ in range(2)
        )

    def call(self, x):
        kernels, biases = (
            keras.ops.stack([w.value for w in weights])
            for weights in (self.kernels, self.biases)
        )
        return keras.ops.mean(keras.ops.tanh(x[:, None] * kernels + biases), 1)


@pytest.mark.slow
def test_three_hundred_small_variables_are_updated_as_one_by_one():
    def make(base):
        keras.utils.set_random_seed(7)
        inputs = keras.Input((4,))
        return base(inputs, ManyUnits()(inputs))

    x, y = draw(8, 4), draw(8, 4, seed=1)
    stock, ours = make(keras.Model), make(FastModel)
    start = stock.get_weights()
    weights = stock.trainable_weights
    assert len(weights) == 300
    first, second = np.zeros((2, 300, 4))
    for step in range(1, 6):
        with tf.GradientTape() as tape:
            loss = keras.ops.mean((stock(x, training=True) - y) ** 2)
        gradients = np.stack(tape.gradient(loss, [w.value for w in weights]))
        first = 0.9 * first + 0.1 * gradients
        second = 0.999 * second + 0.001 * gradients**2
        rate = 0.01 * np.sqrt(1 - 0.999**step) / (1 - 0.9**step)
        moves = rate * first / (np.sqrt(second) + 1e-3)
        for weight, move in zip(weights, moves, strict=True):
            weight.assign_sub(move)
    ours.compile(keras.optimizers.Adam(0.01, epsilon=1e-3), "mse")
    ours.fit(x, y, batch_size=8, epochs=5, verbose=0)
    pairs = zip(stock.get_weights(), ours.get_weights(), strict=True)
    for a, b in pairs:
        np.testing.assert_allclose(a, b, atol=1e-6)
    # An update less would be seen.
    moved = [np.abs(a - b).max() for a, b in zip(start, ours.get_weights())]
    assert min(moved) > 1e-4


def test_on_batch_methods_have_the_numbers_of_keras():
    def run(base, **perf):
        keras.utils.set_random_seed(7)
        model = dense(base)
        model.compile("adam", "mse", metrics=["mae"], **perf)
        out = [model.train_on_batch(X[:k], Y[:k]) for k in (8, 3, 8)]
        out.append(model.test_on_batch(X[:5], Y[:5], return_dict=True))
        out.append(model.predict_on_batch(X[:5]))
        return [*out, *model.get_weights()]

    expected = run(keras.Model)
    same(run(FastModel, perf=None), expected, 0)
    same(run(FastModel, perf="auto"), expected, 1e-6)
