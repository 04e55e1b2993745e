"""Slices of a batch: every size, every kind of data, and both features."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import fastkeras as fk
from fastkeras import perf
from fastkeras.perf import Microbatch
from tests.perf import _tools

ROWS = 7


def sgd():
    return keras.optimizers.SGD(0.05)


def twins():
    plain, fast = _tools.twins(_tools.dense_graph, (5,), 1, None)
    plain.compile(sgd(), "mse", metrics=["mae"], run_eagerly=True)
    return plain, fast


def fit(model, *data, **kwargs):
    return model.fit(*data, shuffle=False, verbose=0, **kwargs).history


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 6, 7, 8, 100])
def test_every_size_equals_the_whole_batch(size, eager):
    plain, fast = twins()
    fast.compile(
        sgd(),
        "mse",
        metrics=["mae"],
        perf=Microbatch(size),
        run_eagerly=eager,
    )
    x, y = _tools.real_data(ROWS + 2)
    # A whole batch, and a last one of 2 rows.
    right = fit(plain, x, y, batch_size=ROWS)
    logs = fit(fast, x, y, batch_size=ROWS)
    assert _tools.difference(plain, fast) < 1e-6
    assert _tools.logs_difference(right, logs) < 1e-6
    assert int(fast.optimizer.iterations) == 2


@pytest.mark.parametrize("size", [1, 3, 7, 8])
def test_a_batch_of_unknown_size(size):
    x, y = _tools.real_data(ROWS)
    data = tf.data.Dataset.from_generator(
        lambda: iter([(x, y), (x[:2], y[:2])]),
        output_signature=tuple(
            tf.TensorSpec((None, a.shape[1]), tf.float32) for a in (x, y)
        ),
    )
    plain, fast = twins()
    fast.compile(sgd(), "mse", metrics=["mae"], perf=Microbatch(size))
    right, logs = fit(plain, data), fit(fast, data)
    assert _tools.difference(plain, fast) < 1e-6
    assert _tools.logs_difference(right, logs) < 1e-6


def test_both_features_together():
    x, y = _tools.real_data(19)
    plain, fast = twins()
    fast.compile(
        sgd(),
        "mse",
        metrics=["mae"],
        perf=[Microbatch(3), perf.Accumulate(3)],
    )
    right = fit(plain, x, y, batch_size=19)
    logs = fit(fast, x, y, batch_size=8)
    assert _tools.difference(plain, fast) < 1e-6
    assert _tools.logs_difference(right, logs) < 1e-6
    assert int(fast.optimizer.iterations) == 1


def test_an_own_train_step_gets_the_slices_too():
    class Own(fk.FastModel):
        def train_step(self, data):
            logs = super().train_step(data)
            return {**logs, "own": tf.constant(1.0)}

    plain, _ = twins()
    fast = Own(*_tools.dense_graph((5,), 1, None))
    fast.set_weights(plain.get_weights())
    fast.compile(sgd(), "mse", perf=Microbatch(2))
    x, y = _tools.real_data(ROWS)
    fit(plain, x, y)
    assert fit(fast, x, y)["own"] == [1]
    assert _tools.difference(plain, fast) < 1e-6


def test_a_step_that_passes_it_by_is_told():
    class Own(fk.FastModel):
        def train_step(self, data):
            return {"loss": tf.constant(0.0)}

    model = Own(*_tools.dense_graph((5,), 1, None))
    model.compile(sgd(), "mse", perf=Microbatch(2))
    with pytest.warns(UserWarning, match="Own.train_step does not call"):
        fit(model, *_tools.real_data(4))


def test_rows_are_taken_once_and_in_order():
    seen = []

    class Seen(keras.layers.Layer):
        def call(self, x):
            if tf.executing_eagerly():
                seen.append(np.asarray(x)[:, 0].tolist())
            return x

    inputs = keras.Input((1,))
    model = fk.FastModel(inputs, keras.layers.Dense(1)(Seen()(inputs)))
    model.compile("sgd", "mse", perf=Microbatch(3), run_eagerly=True)
    seen.clear()
    x = np.arange(ROWS, dtype="float32")[:, None]
    fit(model, x, x)
    assert seen[-3:] == [[0, 1, 2], [3, 4, 5], [6]]


# A table in a loop.


def table(perf, size=6):
    inputs = keras.Input((3,), dtype="int32")
    x = keras.layers.Embedding(size, 2)(inputs)
    model = fk.FastModel(inputs, keras.layers.Dense(1)(x))
    model.compile("sgd", "mse", perf=perf)
    return model


def test_a_sparse_gradient_made_dense_is_told():
    x, y = np.ones((8, 3), "int32"), np.ones((8, 3, 1))
    text = (
        r"1 sparse gradient\(s\) are added up as dense tensors of 1\.0 MB in "
        "all, because the parts of an update are walked by a loop"
    )
    # 131,072 rows of 2 floats.
    with pytest.warns(UserWarning, match=text) as seen:
        fit(table(Microbatch(2), 2**17), x, y)
    assert seen[0].filename == __file__


def test_two_slices_stay_sparse():
    x, y = np.ones((4, 3), "int32"), np.ones((4, 3, 1))
    optimizer = _tools.spy(keras.optimizers.SGD, 0.1)
    model = table("auto")
    model.compile(optimizer, "mse", perf=Microbatch(3))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        fit(model, x, y)
    assert isinstance(optimizer.seen[0][0], tf.IndexedSlices)


# The size that fits a budget.


def deep():
    keras.utils.set_random_seed(0)
    x = inputs = keras.Input((4,))
    for _ in range(4):
        x = keras.layers.Dense(32, "tanh")(x)
    return fk.FastModel(inputs, keras.layers.Dense(1)(x))


def sizes_in(model, rows):
    """The rows of the slices that a step on a batch is traced with."""
    seen = []

    class Seen(keras.losses.MeanSquaredError):
        def call(self, y_true, y_pred):
            seen.append(y_pred.shape[0])
            return super().call(y_true, y_pred)

    model.compile("sgd", Seen(), perf=list(model.perf.features))
    fit(model, *_tools.real_data(rows), batch_size=rows)
    return seen


@pytest.mark.parametrize(
    ("budget", "least", "most"),
    [
        # A row needs the 4 hidden layers of 32 floats, and a gradient of one or
        # two of them; the gradients of the weights take 13 kB.
        (100_000, 64, 170),
        (40_000, 20, 52),
        (10**9, 256, 256),
    ],
)
def test_the_slice_fits_the_budget(budget, least, most):
    model = deep()
    model.compile(sgd(), "mse", perf=Microbatch("auto", budget_bytes=budget))
    found = sizes_in(model, 256)
    assert any(least <= n <= most for n in found if n not in (1, 256)) or (
        256 in found and least == 256
    )


def test_a_fitted_slice_equals_the_whole_batch():
    x, y = _tools.real_data(64)
    runs = []
    for feature in ("auto", Microbatch("auto", budget_bytes=40_000)):
        model = deep()
        model.compile(sgd(), "mse", perf=feature)
        fit(model, x, y, batch_size=64)
        runs.append(model)
    assert _tools.difference(*runs) < 1e-6


def test_without_a_budget_the_batch_of_a_small_model_is_whole():
    model = deep()
    model.compile(sgd(), "mse", perf=Microbatch("auto"))
    assert 64 in sizes_in(model, 64)


def test_a_budget_below_one_row_says_the_least():
    model = deep()
    model.compile(sgd(), "mse", perf=Microbatch("auto", budget_bytes=1000))
    text = r"budget_bytes=1000. Give at least (\d+)\."
    with pytest.raises(ValueError, match=text) as caught:
        fit(model, *_tools.real_data(64), batch_size=64)
    least = int(str(caught.value).split("at least ")[1].rstrip("."))
    model.compile(sgd(), "mse", perf=Microbatch("auto", budget_bytes=least))
    fit(model, *_tools.real_data(64), batch_size=64)


def test_a_budget_goes_with_auto_alone():
    with pytest.raises(ValueError, match="`size` must be 'auto'"):
        Microbatch(8, budget_bytes=100)
    with pytest.raises(ValueError, match="`budget_bytes` must be >= 1"):
        Microbatch("auto", budget_bytes=0)


# Errors.


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda x: tf.RaggedTensor.from_tensor(x, padding=0), "RaggedTensor"),
        (tf.sparse.from_dense, "SparseTensor"),
    ],
)
def test_ragged_and_sparse_batches_are_refused(make, name):
    class Summed(fk.FastModel):
        def __init__(self):
            super().__init__()
            self.head = keras.layers.Dense(1)

        def call(self, x):
            if isinstance(x, tf.RaggedTensor):
                x = x.to_tensor(shape=(None, 2))
            if isinstance(x, tf.SparseTensor):
                x = tf.sparse.to_dense(x)
            return self.head(tf.reshape(x, (-1, 2)))

    x = make(tf.constant([[1.0, 2], [3, 0], [4, 0]]))
    data = tf.data.Dataset.from_tensors((x, tf.ones((3, 1))))
    model = Summed()
    model.compile("sgd", "mse", perf="auto")
    fit(model, data)
    model.compile("sgd", "mse", perf=Microbatch(2))
    with pytest.raises(TypeError) as error:
        fit(model, data)
    assert str(error.value) == (
        "A batch that is cut into slices must hold dense tensors. Received: a "
        f"{name}. Make it dense in the dataset, or use `Accumulate` with "
        "smaller batches."
    )
    # Whole batches are no trouble.
    model.compile("sgd", "mse", perf=perf.Accumulate(2))
    assert np.isfinite(fit(model, data.repeat(3))["loss"]).all()


@pytest.mark.parametrize(
    ("size", "error", "text"),
    [
        (0, ValueError, "`size` must be >= 1. Received: size=0."),
        (-3, ValueError, "`size` must be >= 1. Received: size=-3."),
        (2.5, TypeError, "`size` must be an integer >= 1. Received: size=2.5."),
        (True, TypeError, "`size` must be an integer >= 1. Received: size=Tr"),
        ("8", TypeError, "`size` must be an integer >= 1. Received: size='8'"),
    ],
)
def test_bad_sizes(size, error, text):
    with pytest.raises(error) as caught:
        Microbatch(size)
    assert str(caught.value).startswith(text)
    assert str(caught.value).endswith(
        "To run a batch whole, leave Microbatch out of `perf`."
    )
