"""The clips against NumPy: what the optimizer is given, and what is logged."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import fastkeras as fk
from fastkeras import perf
from fastkeras.perf import _gradients
from fastkeras.perf import clip as module
from tests.perf import _tools


class Two(keras.layers.Layer):
    """Two vectors whose gradients are what the data says."""

    def build(self, _):
        self.a = self.add_weight(shape=(2,), name="a", initializer="ones")
        self.b = self.add_weight(shape=(2,), name="b", initializer="ones")

    def call(self, x):
        return tf.reduce_sum(x[:, :2] * self.a + x[:, 2:] * self.b, -1)


def plain_mean(y_true, y_pred):
    return tf.reduce_mean(y_pred, -1)


def two(clip, x, eager=True, rate=1.0, **fit):
    """Trains on rows whose mean is the gradient; returns model and spy."""
    inputs = keras.Input((4,))
    model = fk.FastModel(inputs, Two()(inputs))
    optimizer = _tools.spy(keras.optimizers.SGD, rate)
    model.compile(optimizer, plain_mean, perf=clip, run_eagerly=eager)
    history = model.fit(
        x,
        np.zeros((len(x), 1), "float32"),
        shuffle=False,
        verbose=0,
        **fit,
    )
    return model, optimizer, history.history


# Gradients of norm 3 and 4: their joint norm is 5.
THREE_FOUR = np.array([[0, 3, 4, 0]], "float32")


def numpy_global(a, b, c):
    joint = np.sqrt(np.sum(a**2) + np.sum(b**2))
    return a * min(1, c / joint), b * min(1, c / joint)


def numpy_norm(a, b, c):
    return tuple(g * min(1, c / np.linalg.norm(g)) for g in (a, b))


def numpy_value(a, b, c):
    return np.clip(a, -c, c), np.clip(b, -c, c)


def numpy_adaptive(a, b, c):
    # Both weights are (1, 1).
    return numpy_norm(a, b, c * np.sqrt(2))


PAIRS = [
    (perf.ClipByGlobalNorm, numpy_global),
    (perf.ClipByNorm, numpy_norm),
    (perf.ClipByValue, numpy_value),
    (perf.AdaptiveClip, numpy_adaptive),
]


@pytest.mark.parametrize(("cls", "reference"), PAIRS)
@pytest.mark.parametrize("limit", [1.0, 3.5, 10.0])
def test_equal_to_numpy(cls, reference, limit):
    _, optimizer, _ = two(cls(limit), THREE_FOUR)
    ((a, b),) = optimizer.seen
    right = reference(THREE_FOUR[0, :2], THREE_FOUR[0, 2:], limit)
    np.testing.assert_allclose(_tools.dense(a), right[0], atol=1e-6)
    np.testing.assert_allclose(_tools.dense(b), right[1], atol=1e-6)


@pytest.mark.parametrize(
    ("cls", "norms"),
    [(perf.ClipByGlobalNorm, (0.6, 0.8)), (perf.ClipByNorm, (1.0, 1.0))],
)
def test_norms_three_and_four(cls, norms):
    model, _, _ = two(cls(1.0), THREE_FOUR, eager=False)
    moved = [1 - np.asarray(w) for w in model.get_weights()]
    np.testing.assert_allclose(
        [np.linalg.norm(m) for m in moved], norms, atol=1e-6
    )


def test_without_a_clip_they_stay_three_and_four():
    model, _, _ = two("auto", THREE_FOUR, eager=False)
    moved = [1 - np.asarray(w) for w in model.get_weights()]
    np.testing.assert_allclose([np.linalg.norm(m) for m in moved], [3, 4])


@pytest.mark.parametrize(("cls", "_"), PAIRS)
def test_logs_of_an_epoch(cls, _):
    sizes = np.array([0.1, 1, 0.2, 2], "float32")[:, None]
    _, _, logs = two(
        cls(0.6),
        THREE_FOUR * sizes,
        eager=False,
        rate=0.0,
        batch_size=1,
        epochs=2,
    )
    norms = 5 * sizes
    np.testing.assert_allclose(logs["grad_norm"], [norms.mean()] * 2, rtol=1e-6)
    np.testing.assert_allclose(logs["grad_norm_max"], [10, 10], rtol=1e-6)
    # At 0.2 only (0.8, 0) and the joint norm of 1 are above 0.6; weights of
    # norm sqrt(2) allow AdaptiveClip 0.85.
    hits = {perf.AdaptiveClip: 2 / 4}.get(cls, 3 / 4)
    assert logs["clipped_fraction"][0] == hits


def test_the_largest_norm_is_of_this_epoch():
    inputs = keras.Input((4,))
    model = fk.FastModel(inputs, Two()(inputs))
    model.compile("sgd", plain_mean, perf="clip_by_global_norm")
    y = np.zeros((1, 1), "float32")
    first = model.fit(THREE_FOUR * 2, y, verbose=0).history
    second = model.fit(THREE_FOUR, y, verbose=0).history
    assert first["grad_norm_max"] == [10]
    assert second["grad_norm_max"] == [5]


def test_a_zero_gradient_is_no_division_by_zero():
    for cls, _ in PAIRS:
        model, _, logs = two(cls(1.0), 0 * THREE_FOUR)
        assert all(np.all(w == 1) for w in model.get_weights())
        assert logs["clipped_fraction"] == [0]


def test_a_variable_without_gradient_passes():
    for cls, _ in PAIRS:
        inputs = keras.Input((4,))
        used, idle = Two(), keras.layers.Dense(1, name="idle")
        model = fk.FastModel(inputs, [used(inputs), idle(inputs)])
        model.compile("sgd", [plain_mean, None], perf=cls(1.0))
        before = idle.get_weights()
        with pytest.warns(UserWarning, match="No gradient reaches .*idle"):
            model.fit(THREE_FOUR, np.zeros((1, 1)), verbose=0)
        assert _tools.difference(before, idle) == 0
        assert not np.allclose(used.get_weights()[0], 1)


# Sparse gradients.

IDS = np.array([[1, 1, 2], [1, 3, 3]])


def table_model(clip, optimizer, eager):
    inputs = keras.Input((3,), dtype="int32")
    table = keras.layers.Embedding(6, 2, name="table")
    model = fk.FastModel(inputs, table(inputs))
    model.compile(optimizer, "mse", perf=clip, run_eagerly=eager)
    return model, table


def dense_gradient(table, targets):
    """The gradient of the mean squared error of the table, in NumPy."""
    weights = np.asarray(table.embeddings)
    out = np.zeros_like(weights)
    values = 2 * (weights[IDS] - targets) / targets.size
    np.add.at(out, IDS, values)
    return out


@pytest.mark.parametrize(("cls", "_"), PAIRS)
def test_rows_of_repeated_ids_are_summed_first(cls, _):
    targets = np.random.default_rng(0).normal(size=(2, 3, 2))
    optimizer = _tools.spy(keras.optimizers.SGD, 0.0)
    model, table = table_model(cls(0.05), optimizer, eager=True)
    right = dense_gradient(table, targets)
    logs = model.fit(IDS, targets, verbose=0).history
    np.testing.assert_allclose(
        logs["grad_norm"], [np.linalg.norm(right)], rtol=1e-5
    )
    ((given,),) = optimizer.seen
    assert isinstance(given, tf.IndexedSlices)
    weights = np.asarray(table.embeddings)
    if cls is perf.AdaptiveClip:
        rows = np.linalg.norm(right, axis=1, keepdims=True)
        largest = 0.05 * np.linalg.norm(weights, axis=1, keepdims=True)
        largest = np.maximum(largest, 0.05 * 1e-3)
        right = right * np.minimum(1, largest / np.maximum(rows, 1e-9))
    elif cls is perf.ClipByValue:
        right = np.clip(right, -0.05, 0.05)
    else:
        right = right * min(1, 0.05 / np.linalg.norm(right))
    np.testing.assert_allclose(_tools.dense(given), right, atol=1e-6)


def test_unsummed_rows_would_give_another_norm(monkeypatch):
    monkeypatch.setattr(_gradients, "sum_duplicates", lambda g: g)
    targets = np.random.default_rng(0).normal(size=(2, 3, 2))
    model, table = table_model(
        perf.ClipByGlobalNorm(0.05), keras.optimizers.SGD(0.0), eager=True
    )
    right = np.linalg.norm(dense_gradient(table, targets))
    logs = model.fit(IDS, targets, verbose=0).history
    assert abs(logs["grad_norm"][0] - right) > 0.01 * right


@pytest.mark.parametrize("cls", [None, *(cls for cls, _ in PAIRS)])
def test_the_gradient_stays_sparse_in_the_graph(cls):
    optimizer = _tools.spy(keras.optimizers.SGD, 0.1)
    model, table = table_model(cls() if cls else "auto", optimizer, eager=False)
    before = np.asarray(table.embeddings)
    model.fit(IDS, np.ones((2, 3, 2)), verbose=0)
    assert all(isinstance(g, tf.IndexedSlices) for (g,) in optimizer.seen)
    moved = np.any(np.asarray(table.embeddings) != before, axis=1)
    np.testing.assert_array_equal(
        moved, [False, True, True, True] + [False] * 2
    )


# Units of AdaptiveClip.


def test_units_of_each_kind_of_variable():
    table = keras.layers.Embedding(5, 3)
    table.build()
    kernel = keras.layers.Dense(4)
    kernel.build((None, 3))
    image = keras.layers.Conv2D(6, (2, 2))
    image.build((None, 8, 8, 3))
    units = [
        (table.embeddings, (5, 1)),
        (kernel.kernel, (1, 4)),
        (kernel.bias, (1,)),
        (image.kernel, (1, 1, 1, 6)),
        (image.bias, (1,)),
    ]
    for variable, shape in units:
        axes = module._unit_axes(variable)
        norms = module._unit_norm(tf.ones(variable.shape), axes)
        assert tuple(norms.shape) == shape
        count = np.prod(variable.shape) / np.prod(shape)
        np.testing.assert_allclose(norms, np.sqrt(count), rtol=1e-6)


def test_adaptive_clip_of_a_convolution_equals_numpy():
    inputs = keras.Input((4, 4, 2))
    x = keras.layers.Conv2D(3, 2, name="conv")(inputs)
    x = keras.layers.Dense(2, name="dense")(keras.layers.Flatten()(x))
    model = fk.FastModel(inputs, x)
    optimizer = _tools.spy(keras.optimizers.SGD, 0.0)
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(6, 4, 4, 2)), rng.normal(size=(6, 2))
    model.compile(optimizer, "mse", perf="auto", run_eagerly=True)
    model.fit(x, y, verbose=0)
    model.compile(
        optimizer, "mse", perf=perf.AdaptiveClip(0.1), run_eagerly=True
    )
    model.fit(x, y, verbose=0)
    free, clipped = optimizer.seen
    changed = 0
    for before, after, weight in zip(
        free, clipped, model.get_weights(), strict=True
    ):
        g = _tools.dense(before)
        axes = tuple(range(g.ndim - 1)) if g.ndim > 1 else None
        own = np.sqrt(np.sum(g**2, axes, keepdims=True))
        largest = 0.1 * np.maximum(
            np.sqrt(np.sum(weight**2, axes, keepdims=True)), 1e-3
        )
        right = np.where(own > largest, g * largest / own, g)
        np.testing.assert_allclose(_tools.dense(after), right, atol=1e-6)
        changed += int(np.any(right != g))
    assert changed == 4


# Errors.


@pytest.mark.parametrize("option", ["clipnorm", "global_clipnorm", "clipvalue"])
@pytest.mark.parametrize(("cls", "_"), PAIRS)
def test_both_places_are_named(cls, _, option):
    model = fk.FastModel(*_tools.dense_graph())
    with pytest.raises(ValueError) as error:
        model.compile(keras.optimizers.SGD(**{option: 1.0}), "mse", perf=cls())
    text = str(error.value)
    assert f"`{cls.__name__}` in `perf`" in text
    assert f"`{option}` of the optimizer" in text
    assert f"{option}=1.0" in text


@pytest.mark.parametrize(
    ("cls", "name"),
    [
        (perf.ClipByGlobalNorm, "max_norm"),
        (perf.ClipByNorm, "max_norm"),
        (perf.ClipByValue, "max_value"),
        (perf.AdaptiveClip, "factor"),
        (perf.AdaptiveClip, "epsilon"),
    ],
)
def test_bad_limits(cls, name):
    for value in (0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError) as error:
            cls(**{name: value})
        assert str(error.value) == (
            f"`{name}` must be finite and > 0. Received: {name}={value!r}. "
            "To switch clipping off, leave it out of `perf`."
        )
    for value in ("1", None, True, [1.0]):
        with pytest.raises(TypeError, match=f"`{name}` must be a number > 0"):
            cls(**{name: value})
