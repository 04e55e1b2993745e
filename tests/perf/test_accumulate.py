"""Windows of batches: how many updates, from which rows, and what is left."""

import keras
import numpy as np
import pytest

import fastkeras as fk
from fastkeras import perf
from fastkeras.perf import Accumulate
from tests.perf import _tools


def model_of(optimizer, feature, cls=fk.FastModel, **options):
    keras.utils.set_random_seed(1)
    model = cls(*_tools.dense_graph((5,), 1, None))
    if cls is fk.FastModel:
        options["perf"] = feature
    model.compile(optimizer, "mse", **options)
    return model


def sgd():
    return keras.optimizers.SGD(0.05)


def fit(model, x, y, batch=2, epochs=1, **kwargs):
    return model.fit(
        x,
        y,
        batch_size=batch,
        epochs=epochs,
        shuffle=False,
        verbose=0,
        **kwargs,
    ).history


def reference(x, y, slices, epochs=1, optimizer=None):
    """Plain Keras that is given these rows, one update each."""
    model = model_of(optimizer or sgd(), None, keras.Model, run_eagerly=True)
    for _ in range(epochs):
        for rows in slices:
            model.train_on_batch(x[rows], y[rows])
    return model


@pytest.mark.parametrize("steps_per_execution", [1, 3])
@pytest.mark.parametrize(("remainder", "updates"), [("flush", 6), ("drop", 4)])
def test_the_last_window_of_an_epoch(remainder, updates, steps_per_execution):
    # Ten batches in an epoch, windows of four, two epochs.
    x, y = _tools.real_data(20)
    model = model_of(
        sgd(),
        Accumulate(4, remainder=remainder),
        steps_per_execution=steps_per_execution,
    )
    fit(model, x, y, epochs=2)
    assert int(model.optimizer.iterations) == updates
    slices = [slice(0, 8), slice(8, 16), slice(16, 20)]
    right = reference(x, y, slices[: updates // 2], epochs=2)
    assert _tools.difference(right, model) < 1e-6


def test_a_short_window_over_its_full_length_is_another_update():
    x, y = _tools.real_data(20)
    model = model_of(sgd(), Accumulate(4))
    fit(model, x, y)
    right = reference(x, y, [slice(0, 8), slice(8, 16)])
    gradient_over_four = model_of(
        keras.optimizers.SGD(0.025), None, keras.Model, run_eagerly=True
    )
    gradient_over_four.set_weights(right.get_weights())
    gradient_over_four.train_on_batch(x[16:], y[16:])
    assert _tools.difference(gradient_over_four, model) > 1e-3


@pytest.mark.parametrize(
    ("steps", "remainder", "updates"),
    [(1, "flush", 3), (7, "flush", 1), (7, "drop", 0), (3, "drop", 1)],
)
def test_windows_longer_and_shorter_than_the_epoch(steps, remainder, updates):
    x, y = _tools.real_data(6)
    model = model_of(sgd(), Accumulate(steps, remainder=remainder))
    start = model.get_weights()
    fit(model, x, y)
    assert int(model.optimizer.iterations) == updates
    if updates == 0:
        assert _tools.difference(start, model) == 0
        return
    size = 6 // updates
    slices = [slice(k, k + size) for k in range(0, 6, size)]
    right = reference(x, y, slices)
    assert _tools.difference(right, model) < 1e-6


def test_the_schedule_counts_updates():
    x, y = _tools.real_data(24)
    schedule = keras.optimizers.schedules.CosineDecay(0.1, decay_steps=4)
    rates = []

    class Spy(keras.optimizers.SGD):
        def update_step(self, gradient, variable, learning_rate):
            rates.append(float(learning_rate))
            super().update_step(gradient, variable, learning_rate)

    model = model_of(Spy(schedule), Accumulate(3), run_eagerly=True)
    fit(model, x, y)
    # Four updates of four variables.
    right = [float(schedule(u)) for u in range(4) for _ in range(4)]
    np.testing.assert_allclose(rates, right, rtol=1e-6)
    assert int(model.optimizer.iterations) == 4


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        (
            dict(learning_rate=keras.optimizers.schedules.CosineDecay(0.05, 4)),
            12,
        ),
        (dict(learning_rate=0.05, use_ema=True, ema_momentum=0.5), 12),
        (dict(learning_rate=0.05), 10),
    ],
    ids=["schedule", "ema", "short window"],
)
def test_what_keras_gets_wrong(options, rows):
    """Three windows of two batches: ours equals one big batch, Keras's not."""
    x, y = _tools.real_data(rows)
    right = model_of(
        keras.optimizers.SGD(**options), None, keras.Model, run_eagerly=True
    )
    fit(right, x, y, batch=4)
    ours = model_of(keras.optimizers.SGD(**options), Accumulate(2))
    fit(ours, x, y)
    theirs = model_of(
        keras.optimizers.SGD(gradient_accumulation_steps=2, **options),
        None,
        keras.Model,
        run_eagerly=True,
    )
    fit(theirs, x, y)
    assert _tools.difference(right, ours) < 1e-6
    assert _tools.difference(right, theirs) > 1e-3


def test_nothing_outlives_a_window():
    x, y = _tools.real_data(6)
    plain = model_of("adam", None, keras.Model, run_eagerly=True)
    model = model_of("adam", Accumulate(3))
    for m in (plain, model):
        fit(m, x, y)
    (ours, our_slots), (theirs, their_slots) = (
        [
            [(v.name, tuple(v.shape)) for v in owner.variables]
            for owner in (m, m.optimizer)
        ]
        for m in (model, plain)
    )
    assert ours == theirs
    assert our_slots == their_slots
    assert model._step.states[0].variables == {}


def test_checkpoints_fit_a_model_that_does_not_accumulate(tmp_path):
    x, y = _tools.real_data(6)
    a = model_of("adam", Accumulate(3))
    fit(a, x, y)
    b = model_of("adam", "auto")
    fit(b, x, y)
    a.save_weights(tmp_path / "a.weights.h5")
    b.save_weights(tmp_path / "b.weights.h5")
    first = [*a.get_weights(), *_tools.slots(a.optimizer)]
    second = [*b.get_weights(), *_tools.slots(b.optimizer)]
    b.load_weights(tmp_path / "a.weights.h5")
    a.load_weights(tmp_path / "b.weights.h5")
    for model, right in ((b, first), (a, second)):
        got = [*model.get_weights(), *_tools.slots(model.optimizer)]
        assert _tools.difference(right, got) == 0


# Batch normalisation.


def norm_graph(trainable):
    inputs = keras.Input((4,))
    norm = keras.layers.BatchNormalization(
        momentum=0.9, trainable=trainable, name="norm"
    )
    x = norm(keras.layers.Dense(3, "tanh")(inputs))
    return inputs, keras.layers.Dense(1)(x)


def test_batch_norm_is_warned_of_once_and_moves_batch_by_batch():
    inputs = keras.Input((4,))
    norm = keras.layers.BatchNormalization(momentum=0.9, name="norm")
    model = fk.FastModel(inputs, keras.layers.Dense(1)(norm(inputs)))
    with pytest.warns(UserWarning, match=r"\['norm'\] make the update") as seen:
        model.compile("sgd", "mse", perf=Accumulate(3))
        x, y = _tools.real_data(6)
        fit(model, x, y, epochs=2)
    assert len([w for w in seen if "BatchNorm" in str(w.message)]) == 1
    mean = np.zeros(4)
    for _ in range(2):
        for k in range(0, 6, 2):
            mean = 0.9 * mean + 0.1 * x[k : k + 2].mean(0)
    np.testing.assert_allclose(np.asarray(norm.moving_mean), mean, atol=1e-6)


@pytest.mark.parametrize("feature", [Accumulate(3), perf.Microbatch(2)])
@pytest.mark.parametrize("trainable", [False, True])
def test_frozen_batch_norm_equals_one_big_batch(feature, trainable):
    x, y = _tools.real_data(6)
    plain, fast = _tools.twins(norm_graph, trainable)
    plain.compile(sgd(), "mse", run_eagerly=True)
    fast.compile(sgd(), "mse", perf=feature, run_eagerly=True)
    moving = np.asarray(fast.get_layer("norm").moving_mean)
    fit(plain, x, y, batch=6)
    fit(fast, x, y, batch=2 if isinstance(feature, Accumulate) else 6)
    if trainable:
        assert _tools.difference(plain, fast) > 1e-4
    else:
        assert _tools.difference(plain, fast) < 1e-6
        after = np.asarray(fast.get_layer("norm").moving_mean)
        np.testing.assert_array_equal(moving, after)


# Errors.


def test_an_own_train_step_is_refused():
    class Own(fk.FastModel):
        def train_step(self, data):
            return super().train_step(data)

    model = Own(*_tools.dense_graph((5,), 1, None))
    with pytest.raises(ValueError) as error:
        model.compile("sgd", "mse", perf=Accumulate(4))
    assert str(error.value) == (
        "An update of several batches needs FastModel's own `train_step`, "
        "which is given them together. Received: "
        "perf=[Accumulate(steps=4, remainder='flush')], and Own.train_step. "
        "Override `compute_loss` or `compute_metrics` instead, or use "
        "`Microbatch`."
    )


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (
            dict(steps=0),
            ValueError,
            "`steps` must be >= 1. Received: steps=0. To update after each "
            "batch, leave Accumulate out of `perf`.",
        ),
        (
            dict(steps=2.0),
            TypeError,
            "`steps` must be an integer >= 1. Received: steps=2.0. To update "
            "after each batch, leave Accumulate out of `perf`.",
        ),
        (
            dict(remainder="flash"),
            ValueError,
            "`remainder` must be one of 'flush', 'drop'. Received: "
            "remainder='flash'. Did you mean 'flush'?",
        ),
    ],
)
def test_bad_arguments(arguments, error, text):
    with pytest.raises(error) as caught:
        Accumulate(**arguments)
    assert str(caught.value) == text
