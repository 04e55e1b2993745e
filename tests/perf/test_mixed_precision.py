"""Half precision: policies, the loss scale, and what is left out."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import fastkeras as fk
from fastkeras import perf
from fastkeras.perf import MixedPrecision
from fastkeras.perf import clip as clip_module
from tests.perf import _tools

START = 2.0**15


def data(rows):
    """Small enough for gradients that a scale of 2**15 leaves finite."""
    x, y = _tools.real_data(rows)
    return 0.2 * x, 0.1 * y


def policies(model):
    return {
        layer.name: layer.dtype_policy.name
        for layer in model.layers
        if not isinstance(layer, keras.layers.InputLayer)
    }


def real_twins():
    return _tools.twins(_tools.dense_graph, (5,), 1, None)


def sgd(rate=0.1):
    return keras.optimizers.SGD(rate)


def fit(model, x, y, batch=4, epochs=1):
    return model.fit(
        x, y, batch_size=batch, epochs=epochs, shuffle=False, verbose=0
    ).history


def states(model):
    """The saved variables of the features, as numbers."""
    return {
        name: float(variable.numpy())
        for s in model._step.states
        for name, variable in s.variables.items()
    }


def relative(a, b, start):
    """The largest difference of two updates, over the size of the first."""
    a, b = (
        np.concatenate([np.ravel(w - s) for w, s in zip(m, start, strict=True)])
        for m in (a.get_weights(), b.get_weights())
    )
    return np.max(np.abs(a - b)) / np.max(np.abs(a))


# Policies.


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_policies_are_set_and_restored(policy):
    model = fk.FastModel(*_tools.dense_graph((5, 4)))
    original = policies(model)
    assert set(original.values()) == {"float32"}
    model.compile("sgd", "mse", perf=policy)
    assert policies(model) == {
        "hidden_0": policy,
        "hidden_1": policy,
        "head": "float32",
    }
    assert {v.dtype for v in model.variables} == {"float32"}
    x = np.zeros((2, 4), "float32")
    seen = keras.Model(model.inputs, model.get_layer("hidden_1").output)(x)
    assert seen.dtype == policy.removeprefix("mixed_")
    assert model(x).dtype == "float32"
    model.compile("sgd", "mse", perf="auto")
    assert policies(model) == original


def test_a_bare_compile_keeps_policies_and_scale():
    _, model = real_twins()
    model.compile(sgd(), "mse", perf=MixedPrecision(growth_steps=1))
    fit(model, *data(8))
    before = states(model)
    assert before["loss_scale"] == 4 * START
    model.compile()
    assert states(model) == before
    assert policies(model)["hidden_0"] == "mixed_float16"


def test_the_saved_config_has_the_policies_of_the_user(tmp_path):
    model = fk.FastModel(*_tools.dense_graph())
    original = policies(model)
    model.compile("sgd", "mse", perf="mixed_float16")
    model.save(tmp_path / "m.keras")
    assert policies(model)["hidden_0"] == "mixed_float16"
    loaded = keras.saving.load_model(tmp_path / "m.keras")
    assert policies(loaded)["hidden_0"] == "mixed_float16"
    loaded.compile("sgd", "mse", perf="auto")
    assert policies(loaded) == original
    plain = keras.saving.load_model(tmp_path / "m.keras", compile=False)
    assert policies(plain) == original


class Half(fk.FastModel):
    """A subclassed model, whose last layer fastkeras can't know."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.hidden = keras.layers.Dense(5, "tanh")
        self.head = keras.layers.Dense(1)

    def call(self, x):
        return {"y": self.head(self.hidden(x))}


def test_a_subclassed_model_gives_float32():
    model = Half()
    model.compile("sgd", {"y": "mse"}, perf="mixed_float16")
    x = np.zeros((2, 4), "float32")
    assert model(x)["y"].dtype == "float32"
    assert model.head.dtype_policy.name == "mixed_float16"
    assert model.predict(x, verbose=0)["y"].dtype == np.float32
    model.compile("sgd", {"y": "mse"}, perf="auto")
    assert model.head.dtype_policy.name == "float32"


class Late(fk.FastModel):
    """Makes its layers when it is built."""

    def build(self, shape):
        self.hidden = keras.layers.Dense(5)
        self.hidden.build(shape)
        self.built = True

    def call(self, x):
        return self.hidden(x)


def test_a_model_that_has_no_layer_yet_is_told():
    model = Late(name="late")
    text = "No layer of 'late' will run in half precision"
    with pytest.warns(UserWarning, match=text) as seen:
        model.compile("sgd", "mse", perf="mixed_float16")
    assert seen[0].filename == __file__
    model.build((None, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        model.compile("sgd", "mse", perf="mixed_float16")
    assert model.hidden.compute_dtype == "float16"


# The scale changes nothing.


def one_update(scale, clip):
    """The gradients that the optimizer is given."""
    keras.utils.set_random_seed(0)
    _, model = real_twins()
    optimizer = _tools.spy(keras.optimizers.SGD, 0.1)
    mixed = MixedPrecision(initial_scale=scale)
    model.compile(optimizer, "mse", perf=[*clip, mixed], run_eagerly=True)
    fit(model, *data(8), 8)
    (gradients,) = optimizer.seen
    return np.concatenate([_tools.dense(g).ravel() for g in gradients])


@pytest.mark.parametrize(
    "clip", [[], [perf.ClipByGlobalNorm(0.1)], [perf.AdaptiveClip(0.01)]]
)
def test_two_scales_give_the_same_update(clip):
    small, large = (one_update(2.0**k, clip) for k in (3, 15))
    assert np.max(np.abs(small - large)) < 1e-3 * np.max(np.abs(small))
    if clip == [perf.ClipByGlobalNorm(0.1)]:
        np.testing.assert_allclose(np.linalg.norm(large), 0.1, rtol=1e-5)


def test_clipped_before_the_scale_is_undone_nothing_is_left(monkeypatch):
    clip = perf.ClipByGlobalNorm(0.1)
    right = clip_module._gradients.global_norm
    # What a clip sees that comes before the division by the scale.
    monkeypatch.setattr(
        clip_module._gradients, "global_norm", lambda g: right(g) * 2.0**15
    )
    assert np.linalg.norm(one_update(2.0**15, [clip])) < 1e-5


def test_the_first_update_is_that_of_float32():
    x, y = data(8)
    plain, fast = real_twins()
    start = plain.get_weights()
    plain.compile(sgd(), "mse")
    fast.compile(sgd(), "mse", perf="mixed_float16")
    a, b = fit(plain, x, y, 8), fit(fast, x, y, 8)
    assert relative(plain, fast, start) < 1e-2
    # Half precision was at work.
    assert relative(plain, fast, start) > 1e-6
    np.testing.assert_allclose(a["loss"], b["loss"], rtol=1e-2)


class OwnLoss(fk.FastModel):
    """Computes its loss itself, and never scales it."""

    def compute_loss(self, x, y, y_pred, sample_weight=None, training=True):
        return tf.reduce_mean((y - y_pred) ** 2)


def test_an_own_loss_is_scaled_once():
    x, y = data(8)
    plain, _ = real_twins()
    own = OwnLoss(*_tools.dense_graph((5,), 1, None))
    own.set_weights(plain.get_weights())
    start = plain.get_weights()
    plain.compile(sgd(), "mse")
    own.compile(sgd(), perf="mixed_float16")
    a, b = fit(plain, x, y, 8), fit(own, x, y, 8)
    assert relative(plain, own, start) < 1e-2
    np.testing.assert_allclose(a["loss"], b["loss"], rtol=1e-2)


@pytest.mark.parametrize("scale", [2.0**3, 2.0**15])
@pytest.mark.parametrize("k", [1, 3])
def test_the_logged_loss_is_not_scaled(scale, k):
    x, y = data(12)
    plain, fast = real_twins()
    plain.compile(sgd(0.0), "mse", run_eagerly=True)
    mixed = MixedPrecision(initial_scale=scale)
    fast.compile(
        sgd(0.0), "mse", perf=[perf.Accumulate(k), mixed], run_eagerly=True
    )
    a, b = fit(plain, x, y), fit(fast, x, y)
    np.testing.assert_allclose(a["loss"], b["loss"], rtol=1e-2)


def test_accumulation_and_clip_equal_float32():
    x, y = data(12)
    plain, fast = real_twins()
    start = plain.get_weights()
    plain.compile(keras.optimizers.SGD(0.1, global_clipnorm=0.1), "mse")
    fast.compile(
        sgd(),
        "mse",
        perf=[
            perf.Accumulate(3),
            perf.ClipByGlobalNorm(0.1),
            "mixed_float16",
        ],
    )
    fit(plain, x, y, 12)
    fit(fast, x, y, 4)
    assert relative(plain, fast, start) < 1e-2


# Small gradients.


def tiny_update(mixed):
    """The error of the update of a kernel whose gradients are about 1e-7."""
    x, y = data(48)
    plain, fast = real_twins()
    start = plain.get_weights()
    rate = 5e4
    plain.compile(sgd(rate), "mse", loss_weights=[2e-6])
    fast.compile(sgd(rate), "mse", loss_weights=[2e-6], perf=mixed)
    fit(plain, x, y, 48)
    fit(fast, x, y, 48)
    right, got = (m.get_weights()[0] - start[0] for m in (plain, fast))
    assert 1e-8 < np.abs(right).max() / rate < 1e-6
    return np.max(np.abs(right - got)) / np.max(np.abs(right))


def test_small_gradients_survive():
    assert tiny_update(MixedPrecision()) < 1e-2


def test_small_gradients_die_without_a_scale():
    assert tiny_update(MixedPrecision(initial_scale=1.0)) > 0.1


# Left out.


def poisoned(x, batch, size=4):
    x = x.copy()
    x[batch * size, 0] = np.inf
    return x


def trained(x, y, features, batches, epochs=1):
    _, model = real_twins()
    keras.utils.set_random_seed(0)
    model.set_weights(
        [np.random.normal(size=w.shape) * 0.3 for w in model.get_weights()]
    )
    model.compile(keras.optimizers.Adam(0.01), "mse", perf=features)
    rows = np.concatenate([np.arange(4 * b, 4 * b + 4) for b in batches])
    logs = fit(model, x[rows], y[rows], epochs=epochs)
    return model, logs


@pytest.mark.parametrize(
    ("features", "bad", "rest", "left"),
    [
        ([], 1, [0, 2, 3], 3),
        # The window (2, 3) is left out whole.
        ([perf.Accumulate(2)], 3, [0, 1, 4, 5], 2),
        ([perf.Accumulate(2), perf.ClipByGlobalNorm(0.1)], 2, [0, 1, 4, 5], 2),
    ],
)
def test_a_poisoned_update_is_left_out_whole(features, bad, rest, left):
    x, y = data(24)
    features = [*features, "mixed_float16"]
    every = sorted({*rest, bad, bad ^ 1} if len(features) > 1 else {*rest, bad})
    model, logs = trained(poisoned(x, bad), y, features, every)
    clean, _ = trained(x, y, features, rest)
    # Half the scale is an exact factor of 2.
    assert _tools.difference(model, clean) < 1e-6
    slots = [_tools.slots(m.optimizer) for m in (model, clean)]
    assert _tools.difference(*slots) < 1e-6
    assert int(model.optimizer.iterations) == left
    assert logs["skipped_steps"] == [1]
    assert logs["loss_scale"] == [START / 2]
    assert states(model)["skipped_total"] == 1
    assert np.all(np.isfinite(logs["loss"]))


def test_without_the_guard_the_weights_are_lost():
    x, y = data(16)
    model, _ = trained(poisoned(x, 1), y, "auto", [0, 1, 2, 3])
    assert not np.all(np.isfinite(model.get_weights()[0]))


def test_the_scale_has_a_floor_and_twenty_in_a_row_are_told():
    x, y = data(22)
    x[:, 0] = np.nan
    _, model = real_twins()
    start = model.get_weights()
    mixed = MixedPrecision(initial_scale=64.0, min_scale=4.0)
    model.compile(sgd(), "mse", perf=mixed)
    with pytest.warns(UserWarning) as caught:
        logs = fit(model, x, y, batch=1)
    assert str(caught[0].message) == (
        "22 updates in a row were skipped because their gradients were not "
        "finite; nothing was learnt from them. Look for NaN or Inf in the "
        "data, lower the learning rate, or clip the gradients "
        '(`perf=["clip_by_global_norm"]`).'
    )
    assert caught[0].filename == __file__
    assert logs["loss_scale"] == [4.0]
    assert logs["skipped_steps"] == [22]
    assert _tools.difference(start, model) == 0
    assert int(model.optimizer.iterations) == 0


def test_the_scale_grows_after_good_steps_in_a_row():
    x, y = data(28)
    x[4 * 4, 0] = np.inf
    _, model = real_twins()
    model.compile(
        sgd(0.01), "mse", perf=MixedPrecision(initial_scale=8, growth_steps=3)
    )
    scales = []

    class Watcher(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            scales.append(states(self.model)["loss_scale"])

    model.fit(
        x, y, batch_size=4, shuffle=False, verbose=0, callbacks=[Watcher()]
    )
    # Three good ones double it, the bad one halves it and starts anew.
    assert scales == [8, 8, 16, 16, 8, 8, 8]


def test_the_scale_stays_finite():
    x, y = data(8)
    _, model = real_twins()
    model.compile(
        sgd(0.0),
        lambda y, p: 0.0 * p[:, 0],
        perf=MixedPrecision(initial_scale=2.0**126, growth_steps=1),
    )
    fit(model, x, y, batch=1)
    assert states(model)["loss_scale"] == 2.0**127


def test_an_overflow_does_not_hide_the_loss():
    x, y = _tools.real_data(4)
    plain, fast = real_twins()
    plain.compile(sgd(0.0), "mse")
    mixed = MixedPrecision(initial_scale=2.0**40)
    fast.compile(sgd(0.0), "mse", metrics=["mae"], perf=mixed)
    right, logs = fit(plain, x, y), fit(fast, x, y)
    assert logs["skipped_steps"] == [1]
    np.testing.assert_allclose(logs["loss"], right["loss"], rtol=1e-2)


def test_a_loss_that_is_nowhere_finite_is_no_zero():
    x, y = data(8)
    x[:] = np.nan
    _, model = real_twins()
    model.compile(sgd(), "mse", perf="mixed_float16")
    assert np.isnan(fit(model, x, y)["loss"]).all()
    # It is forgotten with the epoch, and with the first good batch.
    x[4:] = 0
    _, clean = real_twins()
    clean.set_weights(model.get_weights())
    clean.compile(sgd(), "mse", perf="mixed_float16")
    logs, right = fit(model, x, y), fit(clean, x[4:], y[4:])
    np.testing.assert_allclose(logs["loss"], right["loss"], rtol=1e-5)


# Models that are mixed already.


@pytest.fixture
def global_policy(request):
    keras.config.set_dtype_policy(request.param)
    yield request.param
    keras.config.set_dtype_policy("float32")


@pytest.mark.parametrize("global_policy", ["mixed_float16"], indirect=True)
def test_a_mixed_model_keeps_the_loss_scale_of_keras(global_policy):
    model = fk.FastModel(*_tools.dense_graph((5,), 1, None))
    inner = sgd(0.05)
    model.compile(inner, "mse", perf="auto")
    wrapper = keras.optimizers.LossScaleOptimizer
    assert isinstance(model.optimizer, wrapper)
    assert model.optimizer.inner_optimizer is inner
    model.compile(model.optimizer, "mse", perf="auto")
    assert model.optimizer.inner_optimizer is inner
    x, y = data(8)
    fit(model, x, y)
    assert int(inner.iterations) == 2
    # The rate is that of the inner one, from both ends.
    model.optimizer.learning_rate = 0.01
    assert np.isclose(float(inner.learning_rate), 0.01)
    assert np.isclose(float(model.optimizer.learning_rate), 0.01)
    plateau = keras.callbacks.ReduceLROnPlateau("loss", 0.5, 0, min_delta=1e9)
    logs = model.fit(x, y, epochs=2, callbacks=[plateau], verbose=0).history
    np.testing.assert_allclose(logs["learning_rate"], [0.01, 0.01])
    assert np.isclose(float(inner.learning_rate), 0.005)


@pytest.mark.parametrize("global_policy", ["mixed_float16"], indirect=True)
def test_beside_a_feature_the_scale_is_ours(global_policy):
    model = fk.FastModel(*_tools.dense_graph((5,), 1, None))
    optimizer = sgd()
    model.compile(optimizer, "mse", perf=perf.ClipByGlobalNorm(0.1))
    assert model.optimizer is optimizer
    assert model.perf.features == (
        MixedPrecision(),
        perf.ClipByGlobalNorm(0.1),
    )
    logs = fit(model, *data(8))
    assert logs["loss_scale"] == [START]
    # Seen by the clip, the gradients are not scaled.
    assert logs["grad_norm_max"][0] < 10


@pytest.mark.parametrize("global_policy", ["mixed_bfloat16"], indirect=True)
def test_bfloat16_is_never_scaled(global_policy):
    for value in ("auto", "skip_non_finite"):
        model = fk.FastModel(*_tools.dense_graph((5,), 1, None))
        optimizer = sgd()
        model.compile(optimizer, "mse", perf=value)
        assert model.optimizer is optimizer
        assert "loss_scale" not in fit(model, *data(8))


def test_our_bfloat16_has_no_scale_and_no_guard():
    x, y = data(8)
    plain, fast = real_twins()
    start = plain.get_weights()
    plain.compile(sgd(), "mse")
    fast.compile(sgd(), "mse", perf="mixed_bfloat16")
    fit(plain, x, y, 8)
    assert set(fit(fast, x, y, 8)) == {"loss"}
    # Eight bits of mantissa.
    assert 1e-5 < relative(plain, fast, start) < 5e-2
    assert states(fast) == {}


@pytest.mark.parametrize("global_policy", ["mixed_float16"], indirect=True)
def test_a_layer_that_was_left_float32_stays_so(global_policy):
    inputs = keras.Input((4,))
    x = keras.layers.Dense(5, name="half")(inputs)
    x = keras.layers.Softmax(dtype="float32", name="wide")(x)
    model = fk.FastModel(inputs, keras.layers.Dense(1, name="head")(x))
    before = policies(model)
    for policy in ("mixed_float16", "mixed_bfloat16"):
        model.compile("sgd", "mse", perf=policy)
        assert policies(model) == {
            "half": policy,
            "wide": "float32",
            "head": "float32",
        }
    model.compile("sgd", "mse", perf="auto")
    assert policies(model) == before


# Where float16 is known to fail.


def test_attention_with_padding_is_finite_and_right():
    def graph():
        inputs = keras.Input((5,), dtype="int32")
        x = keras.layers.Embedding(6, 4, mask_zero=True)(inputs)
        x = keras.layers.MultiHeadAttention(2, 2)(x, x)
        return inputs, keras.layers.Dense(1)(x)

    plain, fast = _tools.twins(graph)
    x, y = _tools.ids_data(8)
    x[0], y = 0, 0.1 * y
    plain.compile(sgd(), "mse", run_eagerly=True)
    fast.compile(sgd(), "mse", perf="mixed_float16", run_eagerly=True)
    outputs = [np.asarray(m(x))[1:] for m in (plain, fast)]
    np.testing.assert_allclose(*outputs, atol=1e-2)
    logs = fit(fast, x, y)
    assert logs["skipped_steps"] == [0]
    assert all(np.all(np.isfinite(w)) for w in fast.get_weights())


def test_a_softmax_behind_a_convolution_stays_finite():
    inputs = keras.Input((6, 6, 1))
    x = keras.layers.Conv2D(2, 3, activation="tanh")(inputs)
    x = keras.layers.Dense(3)(keras.layers.Flatten()(x))
    model = fk.FastModel(inputs, keras.layers.Softmax()(x))
    rng = np.random.default_rng(0)
    x, y = 50 * rng.normal(size=(20, 6, 6, 1)), rng.integers(0, 3, 20)
    model.compile(
        sgd(), "sparse_categorical_crossentropy", perf="mixed_float16"
    )
    logs = fit(model, x, y, batch=1)
    assert np.isfinite(logs["loss"][0])
    assert all(np.all(np.isfinite(w)) for w in model.get_weights())
    assert logs["loss_scale"][0] >= 2.0**10


def test_an_epsilon_that_float16_loses_is_told():
    def run(dtype, **options):
        layer = keras.layers.Dense(1, dtype=dtype)
        model = fk.FastModel.from_keras(
            keras.Sequential([keras.Input((4,), dtype="float16"), layer])
        )
        model.compile(keras.optimizers.Adam(0.1, **options), "mse")
        # The gradient of a weight is 0, of which Adam makes 0 / 0.
        fit(model, np.zeros((8, 4), "float16"), np.ones((8, 1), "float16"))
        return model.get_weights()[0]

    with pytest.warns(UserWarning, match="epsilon=1e-08 is lost"):
        assert np.isnan(run("float16", epsilon=1e-8)).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert np.isfinite(run("float16", epsilon=1e-3)).all()
        assert np.isfinite(run("mixed_float16", epsilon=1e-8)).all()


def test_fifty_runs_of_one_row_hold_no_nan():
    inputs = keras.Input((4,))
    model = fk.FastModel(inputs, keras.layers.Dense(1, "sigmoid")(inputs))
    model.compile(
        keras.optimizers.Adam(0.1),
        "binary_crossentropy",
        perf="mixed_float16",
        jit_compile=False,
    )
    for seed in range(50):
        rng = np.random.default_rng(seed)
        model.set_weights([rng.normal(size=(4, 1)), np.zeros(1)])
        x = 20 * rng.normal(size=(1, 4)).astype("float32")
        for label in (0.0, 1.0):
            loss = model.train_on_batch(x, np.full((1, 1), label, "float32"))
            assert np.all(np.isfinite(loss))
        assert all(np.all(np.isfinite(w)) for w in model.get_weights())
    assert states(model)["skipped_total"] == 0


# Errors.


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            dict(policy="mixed_float_16"),
            "`policy` must be one of 'mixed_float16', 'mixed_bfloat16'. "
            "Received: policy='mixed_float_16'. Did you mean 'mixed_float16'?",
        ),
        (
            dict(min_scale=0.5),
            "`min_scale` must be >= 1 and <= `initial_scale`. Received: "
            "min_scale=0.5, initial_scale=32768.0. Leave it out for the "
            "default.",
        ),
        (
            dict(initial_scale=2.0, min_scale=4.0),
            "`min_scale` must be >= 1 and <= `initial_scale`. Received: "
            "min_scale=4.0, initial_scale=2.0. Leave it out for the default.",
        ),
        (
            dict(growth_steps=0),
            "`growth_steps` must be >= 1. Received: growth_steps=0. Leave it "
            "out for the default.",
        ),
        (
            dict(initial_scale=float("inf")),
            "`initial_scale` must be finite and > 0. Received: "
            "initial_scale=inf. Leave it out for the default.",
        ),
    ],
)
def test_bad_arguments(arguments, text):
    with pytest.raises(ValueError) as error:
        MixedPrecision(**arguments)
    assert str(error.value) == text
