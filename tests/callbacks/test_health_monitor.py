"""HealthMonitor against plain gradients, and against faults put in."""

import copy
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import fastkeras as fk
from fastkeras._lib.variables import of_notes
from fastkeras._lib.warn import FastKerasWarning
from fastkeras.callbacks import HealthMonitor
from fastkeras.callbacks import health_monitor
from fastkeras.engine import _parity

X = np.random.RandomState(0).randn(32, 3).astype("float32")
Y = X @ np.ones((3, 1), "float32")
# One tier, so that two trainings run alike.
ONE = fk.perf.Execution(steps_per_launch=1)


def network(base=fk.FastModel, activation="tanh"):
    keras.utils.set_random_seed(4)
    inputs = keras.Input((3,))
    hidden = keras.layers.Dense(8, activation, name="hidden")(inputs)
    return base(inputs, keras.layers.Dense(1, name="head")(hidden))


def train(model, *callbacks, x=X, epochs=2):
    model.fit(
        x,
        Y,
        8,
        epochs=epochs,
        shuffle=False,
        verbose=0,
        callbacks=list(callbacks),
    )
    return model


def by_hand(epochs=2):
    """Norms of gradients and update ratios of the last epoch, step by step."""
    model = network(keras.Model)
    found = []
    for k in range(0, 32 * epochs, 8):
        rows = slice(k % 32, k % 32 + 8)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(X[rows]) - Y[rows]) ** 2)
        gradients = tape.gradient(
            loss, [v.value for v in model.trainable_variables]
        )
        row = []
        for layer in range(2):
            own = slice(2 * layer, 2 * layer + 2)
            norm = tf.linalg.global_norm(gradients[own])
            weights = [v.value for v in model.trainable_variables[own]]
            row += [norm, 0.1 * norm / tf.linalg.global_norm(weights)]
        found.append(row)
        for v, g in zip(model.trainable_variables, gradients, strict=True):
            v.assign_sub(0.1 * g)
    return np.array(found)[-4:]


@pytest.mark.parametrize(
    ("options", "perf"),
    [
        ({}, []),
        ({"steps_per_execution": 4}, []),
        ({"jit_compile": True, "steps_per_execution": 4}, []),
        ({}, [fk.perf.Execution(feed="stream")]),
        ({"run_eagerly": True}, []),
        ({}, [fk.perf.Microbatch(4)]),
    ],
)
def test_norms_and_ratios_are_those_of_plain_gradients(options, perf):
    model = network()
    model.compile(keras.optimizers.SGD(0.1), "mse", perf=perf, **options)
    monitor = HealthMonitor(every=1)
    train(model, monitor)
    plain = by_hand()
    for k, layer in enumerate(("hidden", "head")):
        norms, ratios = plain[:, 2 * k], plain[:, 2 * k + 1]
        np.testing.assert_allclose(
            monitor.layers[layer],
            (norms.mean(), norms.max(), ratios.mean(), ratios.max()),
            rtol=1e-4,
        )
    assert monitor.first_non_finite is None


def test_it_changes_no_number_and_traces_nothing_the_second_time():
    plain, watched = network(), network()
    for model in (plain, watched):
        model.compile("adam", "mse", perf=ONE)
    train(plain)
    train(watched, HealthMonitor())
    for a, b in zip(plain.get_weights(), watched.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    before = watched.train_function.ledger.traces()
    monitor = HealthMonitor(every=7)
    train(watched, monitor)
    assert watched.train_function.ledger.traces() == before
    assert set(monitor.layers) == {"hidden", "head"}
    assert "Probe" not in str(watched.get_compile_config())


def test_a_step_that_only_tries_a_tier_is_not_counted():
    model = network(activation="relu")
    model.compile("sgd", "mse", perf=ONE)
    train(model, HealthMonitor(every=1), epochs=1)

    def step():
        model.train_on_batch(X[:8] + 9, Y[:8])

    def noted():
        return [note.numpy() for note in of_notes(model)]

    before = noted()
    assert _parity.parting(model, step, step) is None
    np.testing.assert_equal(noted(), before)
    step()
    with pytest.raises(AssertionError):
        np.testing.assert_equal(noted(), before)


def test_a_gradient_is_seen_before_it_is_clipped():
    model = network()
    model.compile(
        keras.optimizers.SGD(0.1), "mse", perf=fk.perf.ClipByNorm(1e-3)
    )
    monitor = HealthMonitor(every=1)
    train(model, monitor, epochs=1)
    assert monitor.layers["head"].gradient_norm > 0.1
    assert monitor.layers["head"].update_ratio < 1e-3
    assert monitor.logs["clipped_fraction"] == 1.0
    assert monitor.scalars()["clipped_fraction"] == 1.0


def thresholded(x):
    return keras.activations.relu(x, threshold=0.5)


def bounded(x):
    return keras.activations.relu(x, max_value=200.0)


def largest(x):
    return keras.ops.maximum(x, 0.0)


@pytest.mark.parametrize("activation", ["relu", thresholded, bounded, largest])
def test_dead_units_are_counted_and_told(activation):
    model = network(activation=activation)
    # A hinge that is 0 everywhere is no dead unit.
    model.compile(
        keras.optimizers.SGD(1e-9), lambda y, p: keras.ops.maximum(p - 1e9, 0.0)
    )
    kernel, _ = model.get_layer("hidden").get_weights()
    bias = np.float32([-100] * 5 + [100] * 3)
    model.get_layer("hidden").set_weights([kernel, bias])
    monitor = HealthMonitor(every=1)
    with pytest.warns(FastKerasWarning, match="hidden 62%.*leaky_relu"):
        train(model, monitor)
    assert monitor.dead == {"hidden": 5 / 8}
    model.get_layer("hidden").set_weights([kernel, abs(bias)])
    train(model, monitor)
    assert monitor.dead == {"hidden": 0.0}


def poisoned(function, name="odd"):
    """A model in which a layer applies a function of its own."""

    class Odd(keras.layers.Layer):
        def call(self, x):
            return function(x)

    keras.utils.set_random_seed(4)
    inputs = keras.Input((3,))
    hidden = keras.layers.Dense(3, name="hidden")(inputs)
    return fk.FastModel(
        inputs, keras.layers.Dense(1, name="head")(Odd(name=name)(hidden))
    )


@pytest.mark.parametrize("steps", [1, 4])
def test_the_first_operation_that_turns_is_named(steps):
    """The square root of a negative, from the third batch on alone."""
    x = X.copy()
    x[20] = 1e4
    model = poisoned(lambda h: keras.ops.sqrt(2e3 - keras.ops.sum(h * h)) * h)
    model.compile(keras.optimizers.SGD(1e-9), "mse", steps_per_execution=steps)
    monitor = HealthMonitor()
    with pytest.warns(FastKerasWarning, match="Update 3 .* Sqrt of 'odd'"):
        train(model, monitor, x=x)
    first = monitor.first_non_finite
    assert (first.step, first.layer, first.operation) == (3, "odd", "Sqrt")
    # The weights are lost from then on.
    assert monitor.non_finite_steps == 6


def test_a_gradient_that_turns_by_itself_is_told_from_the_forward_pass():
    """sqrt(0): the value is 0, its derivative is not finite."""
    model = poisoned(lambda h: keras.ops.sqrt(keras.ops.abs(h) * 0.0) + h)
    model.compile("sgd", "mse")
    monitor = HealthMonitor(action="raise")
    with pytest.raises(RuntimeError, match="forward pass was finite.*hidden"):
        train(model, monitor)
    assert monitor.first_non_finite.step == 1
    assert monitor.first_non_finite.layers == ("hidden",)


def test_what_a_feature_leaves_out_is_noted_and_not_warned_of():
    x = X.copy()
    x[9] = np.nan
    model = network()
    model.compile("sgd", "mse", perf="skip_non_finite")
    monitor = HealthMonitor(action="raise")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        train(model, monitor, x=x, epochs=1)
    assert monitor.non_finite_steps == 1
    assert monitor.first_non_finite.step == 2
    assert monitor.logs["skipped_steps"] == 1.0


def test_two_devices_have_the_norms_of_one(mirrored):
    with mirrored.scope():
        model = network()
        model.compile(keras.optimizers.SGD(0.1), "mse")
    monitor = HealthMonitor()
    train(model, monitor)
    plain = by_hand()
    np.testing.assert_allclose(
        monitor.layers["hidden"][:2],
        (plain[:, 0].mean(), plain[:, 0].max()),
        rtol=1e-4,
    )


def test_a_model_without_our_step_is_refused():
    model = network(keras.Model)
    model.compile("sgd", "mse")
    with pytest.raises(TypeError, match="FastModel.from_keras"):
        train(model, HealthMonitor())
    model = network()
    model.compile("sgd", "mse", perf=None)
    with pytest.raises(TypeError, match="`perf` is not None"):
        train(model, HealthMonitor())
    with pytest.raises(ValueError, match="`every` must be >= 1"):
        HealthMonitor(0)
    assert copy.deepcopy(HealthMonitor(3)).every == 3


def test_a_train_step_that_bypasses_ours_is_told():
    class Own(fk.FastModel):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, x):
            return self.dense(x)

        def train_step(self, data):
            return {"loss": tf.reduce_mean(self(data[0]))}

    model = Own()
    model.compile("sgd", "mse")
    with pytest.warns(FastKerasWarning, match="Own.train_step does not call"):
        train(model, HealthMonitor())


@pytest.mark.parametrize("part", [fk.perf.Accumulate(2), fk.perf.Microbatch(2)])
def test_parts_of_an_update_tell_the_operation_and_dead_units(part):
    x = X.copy()
    x[20] = 1e4
    model = poisoned(
        lambda h: keras.ops.relu(
            keras.ops.sqrt(2e3 - keras.ops.sum(h * h)) * h - 1e3
        )
    )
    model.compile(keras.optimizers.SGD(1e-9), "mse", perf=part)
    monitor = HealthMonitor()
    with pytest.warns(FastKerasWarning, match=r"Sqrt of 'odd'|0 for each row"):
        train(model, monitor, x=x, epochs=1)
    first = monitor.first_non_finite
    # The third batch of 8 rows is in the second window of two.
    assert first.step == (2 if part.window == 2 else 3)
    assert (first.layer, first.operation) == ("odd", "Sqrt")
    assert set(monitor.dead) == {"odd"}


def test_what_can_not_be_looked_at_is_not_called_finite():
    x = X.copy()
    x[20] = np.nan
    model = network()
    model.compile("sgd", "mse", run_eagerly=True)
    monitor = HealthMonitor()
    with pytest.warns(FastKerasWarning, match="Update 3 .* run eagerly"):
        train(model, monitor, x=x, epochs=1)
    assert monitor.first_non_finite.operation is None


def test_nothing_is_printed_by_its_making(caplog):
    model = network()
    model.compile("sgd", "mse")
    with caplog.at_level("WARNING", logger="tensorflow"):
        train(model, HealthMonitor(), epochs=1)
        tf.get_logger().warning("heard")
    assert "heard" in caplog.text
    assert "valid node name" not in caplog.text


def positive(x):
    """As a ReLU does on some machines, makes 0 of NaN."""
    return tf.where(x > 0, x, 0.0)


def watched(model, x, perf="auto", monitor=None):
    health = monitor or HealthMonitor()
    model.compile("sgd", "mse", perf=perf)
    train(model, health, x=x, epochs=1)
    return health


@pytest.mark.parametrize(
    ("perf", "step"),
    [
        ("auto", 3),
        pytest.param("skip_non_finite", 3, marks=pytest.mark.slow),
        (fk.perf.Accumulate(2), 2),
        pytest.param(fk.perf.Microbatch(4), 3, marks=pytest.mark.slow),
    ],
)
def test_nan_in_the_data_is_told_though_an_activation_hides_it(perf, step):
    x = X.copy()
    x[20] = np.nan
    model = network(activation=positive)
    if perf == "auto":
        # As a recurrent layer does, its first slice is of the data.
        cut = keras.layers.Lambda(lambda x: tf.concat([x[:, :1], x[:, 1:]], 1))
        model = fk.FastModel(model.input, model(cut(model.input)))
    health = watched(model, x, perf)
    assert "NaN or Inf in its data" in str(health.first_non_finite)
    assert health.first_non_finite.step == step
    assert health.non_finite_steps == 1
    if perf == "auto":
        healthy = watched(network(activation=positive), X)
        assert healthy.first_non_finite is None


def test_nan_within_that_an_activation_hides_is_told_by_the_weights(
    monkeypatch,
):
    x = np.minimum(X, 2)
    x[20] = 3
    inputs = keras.Input((3,))
    first = keras.layers.Dense(4)(inputs)
    broken = keras.layers.Lambda(lambda x: tf.where(x > 2, np.nan, x))(inputs)
    both = keras.layers.Concatenate()([first, broken])
    hidden = keras.layers.Dense(8, positive, name="hidden")(both)
    model = fk.FastModel(inputs, keras.layers.Dense(1)(hidden))
    start = model.get_weights()
    with pytest.warns(FastKerasWarning, match="By update 4 weights"):
        health = watched(model, x)
    assert np.isnan(model.get_layer("hidden").get_weights()[0]).any()
    found = health.first_non_finite
    assert (found.step, found.layers) == (4, ("hidden",))
    assert "those of 'hidden'" in str(health)
    # Nor has it to wait for the end of a long epoch.
    monkeypatch.setattr(health_monitor, "LOOK", 3)
    monkeypatch.setattr(health_monitor, "WEIGH", 1)
    model.set_weights(start)
    with pytest.raises(RuntimeError, match="By update 3 weights"):
        watched(model, x, ONE, HealthMonitor(action="raise"))
    assert model.optimizer.iterations.numpy() == 3


@pytest.mark.parametrize("steps", [1, 4])
def test_nan_in_the_data_is_told_from_that_of_a_layer(steps):
    x = X.copy()
    x[20] = np.nan
    told, spared = HealthMonitor(every=1), HealthMonitor(every=1)
    for rows, monitor, features in (
        (x, told, ["skip_non_finite"]),
        (X, spared, []),
    ):
        model = network(activation="relu")
        execution = fk.perf.Execution(steps_per_launch=steps)
        model.compile("sgd", "mse", perf=[*features, execution])
        train(model, monitor, x=rows, epochs=1)
    # Rows 16 to 23 are of the third batch; its NaN kills no unit.
    assert told.first_non_finite.step == 3
    assert told.first_non_finite.layer == "the data"
    assert told.dead.keys() == spared.dead.keys() == {"hidden"}
    assert told.dead["hidden"] == spared.dead["hidden"] < 1
    assert spared.first_non_finite is None


def test_units_are_not_called_dead_where_no_update_was_finite():
    model = network(activation="relu")
    model.compile("sgd", "mse", perf=[fk.perf.Execution(jit=True)])
    monitor = HealthMonitor(every=1, action="ignore")
    train(model, monitor, x=X + np.nan, epochs=1)
    assert monitor.dead == {}
    assert monitor.non_finite_steps == 4


@pytest.mark.slow
def test_monitors_of_one_training_have_figures_of_their_own():
    def figures(*every):
        model = network()
        model.compile("sgd", "mse", perf=ONE)
        monitors = [HealthMonitor(k) for k in every]
        train(model, *monitors)
        return model, [monitor.layers for monitor in monitors]

    model, (often, too, seldom) = figures(1, 1, 4)
    assert often == too != seldom
    assert figures(4)[1] == [seldom]
    # Nor does one sample as an earlier one did: here two of two updates.
    model.set_weights(network().get_weights())
    later = HealthMonitor(2)
    train(model, later)
    assert later.layers == often


@pytest.mark.parametrize(("slope", "dead"), [(0.2, 0.0), (0.0, 1.0)])
def test_a_unit_is_dead_where_all_operations_of_its_layer_are(slope, dead):
    """Of a PReLU one of two operations is 0 everywhere."""

    def activation(x):
        x = -1 - tf.abs(x)
        return tf.nn.relu(slope * -x) + tf.nn.relu(x)

    health = HealthMonitor(1, action="ignore")
    watched(network(activation=activation), X, monitor=health)
    assert health.dead == {"hidden": dead}
