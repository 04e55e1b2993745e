"""Two replicas equal one device: each feature, and all of them together."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import fastkeras as fk
from fastkeras import perf
from fastkeras._lib import private
from fastkeras.perf._parts import Window
from tests.distribute import _same

slow = pytest.mark.slow
L = keras.layers
CLIP = perf.ClipByGlobalNorm(0.5)
TWO, THREE = perf.Accumulate(2), perf.Accumulate(3)
FLOAT16 = perf.MixedPrecision(initial_scale=256.0)


def glorot(seed):
    return keras.initializers.GlorotUniform(seed)


def check(mirrored, plan, tolerance=1e-6, **arguments):
    """Trains on one device and on two; asserts that nothing differs."""
    one = _same.trained(None, plan, **arguments)
    two = _same.trained(mirrored, plan, **arguments)
    _same.check_same(one, two, tolerance, max(tolerance, 1e-5))
    assert _same.gap(one.weights, arguments.get("make", _same.mlp)().weights)
    return one, two


FEATURES = [
    pytest.param("auto", _same.sgd, id="auto"),
    pytest.param(CLIP, _same.adam, id="global-norm"),
    pytest.param(THREE, _same.adam, id="accumulate-3", marks=slow),
    pytest.param(perf.Microbatch(3), _same.sgd, id="microbatch", marks=slow),
    pytest.param(
        [TWO, perf.Microbatch(3), perf.Watch(exclude="*/bias")]
        + [perf.SkipNonFinite(), CLIP],
        _same.sgd,
        id="all",
    ),
    pytest.param("auto", _same.adam, id="auto-adam", marks=slow),
    pytest.param(CLIP, _same.sgd, id="global-norm-sgd", marks=slow),
    pytest.param(perf.ClipByNorm(0.3), _same.sgd, id="norm-sgd", marks=slow),
    pytest.param(perf.ClipByNorm(0.3), _same.adam, id="norm-adam", marks=slow),
    pytest.param(perf.ClipByValue(0.1), _same.sgd, id="value-sgd", marks=slow),
    pytest.param(
        perf.ClipByValue(0.1), _same.adam, id="value-adam", marks=slow
    ),
    pytest.param(
        perf.AdaptiveClip(0.5), _same.sgd, id="adaptive-sgd", marks=slow
    ),
    pytest.param(
        perf.AdaptiveClip(0.5), _same.adam, id="adaptive-adam", marks=slow
    ),
    pytest.param(TWO, _same.sgd, id="accumulate-2", marks=slow),
    pytest.param(TWO, _same.adam, id="accumulate-2-adam", marks=slow),
    pytest.param(THREE, _same.sgd, id="accumulate-3-sgd", marks=slow),
    pytest.param(perf.Accumulate(3, "drop"), _same.sgd, id="drop", marks=slow),
    pytest.param(
        perf.Microbatch(3), _same.adam, id="microbatch-adam", marks=slow
    ),
    pytest.param(
        perf.Watch(exclude="*/bias"), _same.sgd, id="watch", marks=slow
    ),
    pytest.param(perf.SkipNonFinite(), _same.sgd, id="skip", marks=slow),
    pytest.param(perf.SkipNonFinite(), _same.adam, id="skip-adam", marks=slow),
]


@pytest.mark.parametrize("plan, optimizer", FEATURES)
def test_a_feature_equals_one_device(mirrored, plan, optimizer):
    # Four batches of 8, 8, 8 and 1 rows: the last leaves a replica none.
    one, _ = check(mirrored, plan, optimizer=optimizer)
    if "clipped_fraction" in one.history:
        # A clip that never clips would prove nothing.
        assert max(one.history["clipped_fraction"]) > 0


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param([TWO, perf.Microbatch(2), FLOAT16, CLIP], id="all"),
        pytest.param([FLOAT16], id="float16", marks=slow),
        pytest.param(["mixed_bfloat16"], id="bfloat16", marks=slow),
    ],
)
def test_mixed_precision_equals_one_device(mirrored, plan):
    # Its own rounding, not the replicas, sets the tolerance; the updates are
    # small so that what is rounded is the gradient of the same weights.
    check(
        mirrored,
        plan,
        1e-3,
        optimizer=lambda: keras.optimizers.SGD(0.005),
        compiled={"loss": "mse"},
    )


def test_stock_keras_differs_with_an_uneven_last_batch(mirrored):
    def make():
        return _same.mlp(keras.Model)

    one = _same.trained(None, "keras", make)
    two = _same.trained(mirrored, "keras", make)
    ours = _same.trained(mirrored, "auto")
    assert _same.gap(one.weights, two.weights) > 1e-3
    assert _same.gap(one.weights, ours.weights) < 1e-6
    # `perf=None` is Keras, with that fault.
    none = _same.trained(mirrored, None)
    assert _same.gap(two.weights, none.weights) == 0


@slow
def test_keras_clips_before_the_sum_and_we_after(mirrored):
    x, y = (np.concatenate([part[:4]] * 2) for part in _same.data())
    clipped = {
        "xy": (x, y),
        "optimizer": lambda: _same.sgd(global_clipnorm=0.5),
    }

    def make():
        return _same.mlp(keras.Model)

    one = _same.trained(None, "keras", make, **clipped)
    two = _same.trained(mirrored, "keras", make, **clipped)
    assert _same.gap(one.weights, two.weights) > 1e-2
    for plan, optimizer in (
        (CLIP, _same.sgd),
        ("auto", clipped["optimizer"]),
    ):
        ours = _same.trained(mirrored, plan, xy=(x, y), optimizer=optimizer)
        assert _same.gap(one.weights, ours.weights) < 1e-6


def test_keras_cannot_accumulate_and_we_can(mirrored):
    def accumulating():
        return _same.sgd(gradient_accumulation_steps=3)

    with pytest.raises(RuntimeError, match="merge_call"):
        _same.trained(
            mirrored, "keras", lambda: _same.mlp(keras.Model), accumulating
        )
    with pytest.raises(ValueError, match="MirroredStrategy.*Accumulate") as e:
        _same.trained(mirrored, "auto", optimizer=accumulating)
    assert "gradient_accumulation_steps=3" in str(e.value)
    # What it is told to use equals one big batch.
    big = _same.trained(None, "auto", xy=_same.data(48), batch_size=24)
    ours = _same.trained(mirrored, THREE, xy=_same.data(48))
    assert _same.gap(big.weights, ours.weights) < 1e-6


WEIGHTS = np.random.default_rng(3).uniform(0, 2, _same.ROWS).astype("float32")
WEIGHTS[3] = 0
LABELS = (np.arange(_same.ROWS) % 3).astype("int32")
IDS = np.random.default_rng(1).integers(0, 7, (_same.ROWS, 5)).astype("int32")
IDS[:, 0] = 1


@slow
def test_sample_weights_and_validation(mirrored):
    x, y = _same.data()
    check(
        mirrored,
        [THREE, CLIP],
        sample_weight=WEIGHTS,
        validation_data=(x[:9], y[:9], WEIGHTS[:9]),
        compiled={"metrics": ["mae"], "weighted_metrics": ["mse"]},
    )


@slow
def test_validation_without_a_row_for_a_replica(mirrored):
    check(mirrored, "auto", validation_split=0.36, sample_weight=WEIGHTS)


@slow
def test_class_weights(mirrored):
    def make():
        inputs = keras.Input((4,))
        outputs = L.Dense(
            3, activation="softmax", kernel_initializer=glorot(3)
        )(inputs)
        return _same.FastModel(inputs, outputs)

    check(
        mirrored,
        TWO,
        make=make,
        xy=(_same.data()[0], LABELS),
        class_weight={0: 0.5, 1: 2.0, 2: 3.0},
        compiled={
            "loss": "sparse_categorical_crossentropy",
            "metrics": ["accuracy"],
        },
    )


def tokens(mask_zero):
    """A value per token, or of all tokens together."""
    inputs = keras.Input((5,), dtype="int32")
    h = L.Embedding(
        7,
        3,
        mask_zero=mask_zero,
        embeddings_initializer=keras.initializers.RandomUniform(-1, 1, 4),
    )(inputs)
    if not mask_zero:
        h = L.Flatten()(h)
    outputs = L.Dense(1, kernel_initializer=glorot(5))(h)
    return _same.FastModel(inputs, outputs)


@pytest.mark.parametrize(
    "plan, fitted",
    [
        pytest.param("auto", {}, id="auto", marks=slow),
        pytest.param(
            [perf.SkipNonFinite(), CLIP],
            {
                "sample_weight": WEIGHTS,
                "compiled": {"weighted_metrics": ["mae"]},
            },
            id="weights",
            marks=slow,
        ),
        pytest.param(
            THREE,
            {},
            id="accumulate",
            marks=[
                slow,
                pytest.mark.filterwarnings("ignore:.*sparse gradient"),
            ],
        ),
    ],
)
def test_masks(mirrored, plan, fitted):
    y = np.random.default_rng(2).normal(size=(_same.ROWS, 5, 1))
    check(
        mirrored,
        plan,
        make=lambda: tokens(True),
        xy=(IDS, y.astype("float32")),
        **fitted,
    )


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param([perf.SkipNonFinite(), CLIP], id="clip", marks=slow),
        pytest.param("auto", id="auto", marks=slow),
        pytest.param([TWO, perf.AdaptiveClip(0.5)], id="all", marks=slow),
    ],
)
def test_an_embedding_with_repeated_ids(mirrored, plan):
    check(
        mirrored,
        plan,
        make=lambda: tokens(False),
        xy=(IDS, _same.data()[1]),
        optimizer=_same.adam,
    )


@slow
def test_several_outputs(mirrored):
    def make():
        inputs = keras.Input((4,))
        h = L.Dense(5, "tanh", kernel_initializer=glorot(1))(inputs)
        return _same.FastModel(
            inputs,
            {
                "a": L.Dense(1, name="a", kernel_initializer=glorot(2))(h),
                "b": L.Dense(
                    3, "softmax", name="b", kernel_initializer=glorot(3)
                )(h),
            },
        )

    x, y = _same.data()
    check(
        mirrored,
        TWO,
        make=make,
        xy=(x, {"a": y, "b": LABELS}),
        compiled={
            "loss": {"a": "mse", "b": "sparse_categorical_crossentropy"},
            "loss_weights": {"a": 0.3, "b": 2.0},
            "metrics": {"b": ["accuracy"]},
        },
    )


def test_a_penalty_counts_once(mirrored):
    check(mirrored, TWO, make=lambda: _same.mlp(l2=0.1))


def cosine(**kwargs):
    return keras.optimizers.AdamW(
        keras.optimizers.schedules.CosineDecay(0.05, 8),
        weight_decay=0.1,
        epsilon=1e-3,
        **kwargs,
    )


@pytest.mark.parametrize(
    "plan, average",
    [
        pytest.param(
            [TWO, perf.SkipNonFinite()],
            {
                "use_ema": True,
                "ema_momentum": 0.8,
                "ema_overwrite_frequency": 3,
            },
            id="overwrites",
            marks=slow,
        ),
        pytest.param(
            "auto",
            {"use_ema": True, "ema_momentum": 0.8},
            id="at-the-end",
            marks=slow,
        ),
    ],
)
def test_schedules_averages_and_decay(mirrored, plan, average):
    _, two = check(mirrored, plan, optimizer=lambda: cosine(**average))
    updates = 4 if plan != "auto" else 8
    assert int(two.model.optimizer.iterations.numpy()) == updates


@slow
def test_averages_that_overwrite_respect_a_constraint(mirrored):
    def make():
        inputs = keras.Input((4,))
        outputs = L.Dense(
            1,
            kernel_initializer=glorot(2),
            kernel_constraint=keras.constraints.MaxNorm(0.4),
        )(inputs)
        return _same.FastModel(inputs, outputs)

    def averaging():
        return _same.sgd(
            use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2
        )

    check(mirrored, "auto", make=make, optimizer=averaging, epochs=1)


@pytest.mark.parametrize(
    "plan, tolerance, skipped",
    [
        pytest.param([perf.SkipNonFinite()], 1e-6, 1, id="skip"),
        pytest.param([TWO, FLOAT16], 1e-3, 1, id="float16", marks=slow),
    ],
)
def test_an_infinity_on_the_second_replica(mirrored, plan, tolerance, skipped):
    x, y = _same.data()
    x[12, 1] = np.inf  # The first row that the second replica is given.
    _, two = check(
        mirrored,
        plan,
        tolerance,
        xy=(x, y),
        optimizer=lambda: keras.optimizers.SGD(0.01),
    )
    assert two.history["skipped_steps"] == [skipped, skipped]
    (state,) = two.model._step.states[-1:]
    assert int(state.total.numpy()) == 2 * skipped
    assert int(state.in_a_row.numpy()) == 0
    if len(plan) == 2:
        assert two.history["loss_scale"] == [128.0, 64.0]
    # Both replicas hold the same weights, and the optimizer ticked for the
    # other updates alone.
    for variable in two.model.trainable_variables:
        first, second = mirrored.experimental_local_results(variable.value)
        np.testing.assert_array_equal(first.numpy(), second.numpy())
    done = 2 * (4 // (2 if len(plan) == 2 else 1) - skipped)
    assert int(two.model.optimizer.iterations.numpy()) == done
    # The control: without the guard the weights are lost.
    lost = _same.trained(mirrored, "auto", xy=(x, y), epochs=1)
    assert not all(np.all(np.isfinite(w)) for w in lost.weights)


@slow
def test_what_a_replica_poisons_moves_no_statistics_and_no_metric(mirrored):
    def make():
        inputs = keras.Input((4,))
        h = L.Dense(6, "tanh", kernel_initializer=glorot(1))(inputs)
        h = L.BatchNormalization(momentum=0.7)(h)
        return _same.FastModel(
            inputs, L.Dense(1, kernel_initializer=glorot(2))(h)
        )

    def run(plan, *xy):
        compiled = {"metrics": ["mae"]}
        return _same.trained(mirrored, plan, make, xy=xy, compiled=compiled)

    x, y = _same.data(24)
    rest = np.r_[0:8, 16:24]
    clean = run("auto", x[rest], y[rest])
    x[12, 1] = np.nan
    left = run([perf.SkipNonFinite()], x, y)
    assert left.history.pop("skipped_steps") == [1, 1]
    _same.check_same(clean, left)
    assert np.isnan(run("auto", x, y).history["mae"]).all()


@slow
def test_batch_normalization_is_as_in_keras(mirrored):
    def make(cls=_same.FastModel):
        inputs = keras.Input((4,))
        h = L.Dense(6, "tanh", kernel_initializer=glorot(1))(inputs)
        h = L.BatchNormalization(momentum=0.7)(h)
        return cls(inputs, L.Dense(1, kernel_initializer=glorot(2))(h))

    xy = _same.data(24)
    ours = _same.trained(mirrored, "auto", make, xy=xy)
    stock = _same.trained(mirrored, "keras", lambda: make(keras.Model), xy=xy)
    _same.check_same(ours, stock)
    # Each replica normalises its own rows: one device differs.
    one = _same.trained(None, "auto", make, xy=xy)
    assert _same.gap(one.weights, ours.weights) > 1e-3


@slow
def test_dropout_trains(mirrored):
    def make():
        inputs = keras.Input((4,))
        h = L.Dense(16, "relu", kernel_initializer=glorot(1))(inputs)
        h = L.Dropout(0.2, seed=1)(h)
        return _same.FastModel(inputs, L.Dense(1)(h))

    x, _ = _same.data()
    xy = (x, x.sum(1, keepdims=True))
    result = _same.trained(
        mirrored, [TWO, CLIP], make, _same.adam, xy, epochs=15
    )
    assert result.history["loss"][-1] < 0.5 * result.history["loss"][0]


@slow
def test_evaluate_predict_save_and_load(mirrored, tmp_path):
    plan = [TWO, perf.SkipNonFinite(), CLIP]
    x, y = _same.data()
    one, half = (
        _same.trained(
            strategy,
            plan,
            optimizer=_same.adam,
            epochs=1,
            compiled={"metrics": ["mae"]},
        )
        for strategy in (None, mirrored)
    )
    for weights in (None, WEIGHTS):
        values = [
            r.model.evaluate(
                x, y, 8, verbose=0, sample_weight=weights, return_dict=True
            )
            for r in (one, half)
        ]
        _same.check_logs(*values)
    predicted = [r.model.predict(x, 8, verbose=0) for r in (one, half)]
    np.testing.assert_allclose(*predicted, atol=1e-6)
    half.model.save(tmp_path / "m.keras")
    with mirrored.scope():
        loaded = keras.saving.load_model(tmp_path / "m.keras")
    assert list(loaded.perf.features) == plan
    for model in (half.model, loaded):
        model.fit(x, y, 8, shuffle=False, verbose=0)
    assert _same.gap(half.model.get_weights(), loaded.get_weights()) <= 1e-6
    slots = [
        [v.numpy() for v in model.optimizer.variables]
        for model in (half.model, loaded)
    ]
    assert _same.gap(*slots) <= 1e-6
    # The control: what is equal has moved on.
    assert _same.gap(half.weights, loaded.get_weights()) > 1e-3


@slow
def test_a_model_saved_under_a_strategy_goes_on_without(mirrored, tmp_path):
    plan = [TWO, FLOAT16]
    x, y = _same.data()
    half = _same.trained(mirrored, plan, optimizer=_same.adam, epochs=1)
    half.model.save(tmp_path / "m.keras")
    loaded = keras.saving.load_model(tmp_path / "m.keras")
    for model in (half.model, loaded):
        model.fit(x, y, 8, shuffle=False, verbose=0)
    assert _same.gap(half.model.get_weights(), loaded.get_weights()) <= 1e-3
    # The control: what is equal has moved on.
    assert _same.gap(half.weights, loaded.get_weights()) > 1e-2


@slow
def test_a_loss_scale_of_keras_works(mirrored):
    def make():
        keras.config.set_dtype_policy("mixed_float16")
        try:
            return _same.mlp()
        finally:
            keras.config.set_dtype_policy("float32")

    # Small targets: at its first scale, 2**15, whether float16 overflows
    # depends on how many rows a device sums.
    x, y = _same.data()
    _, two = check(
        mirrored, "auto", 1e-3, make=make, optimizer=_same.adam, xy=(x, y / 30)
    )
    assert int(two.model.optimizer.iterations.numpy()) == 8
    assert type(two.model.optimizer).__name__ == "LossScaleOptimizer"


@pytest.mark.parametrize("make", [_same.mlp, lambda: tokens(False)])
@pytest.mark.parametrize("ask", ["jit_compile", "Execution"])
def test_xla_is_refused_at_compile(mirrored, make, ask):
    given = {"jit_compile": True}
    if ask == "Execution":
        given = {"perf": ["mixed_float16", perf.Execution(jit=True)]}
    with mirrored.scope():
        model = make()
        with pytest.raises(ValueError, match="XLA.*MirroredStrategy") as error:
            model.compile("sgd", "mse", **given)
    names = [x.name for x in model.layers if isinstance(x, L.Embedding)]
    assert all(name in str(error.value) for name in names)
    assert ("Embedding" in str(error.value)) == bool(names)
    assert not model.compiled


def reductions(strategy, plan, batches, updates=1):
    """How many collective sums a traced step of so many batches holds."""
    x, y = _same.data(4)
    with strategy.scope():
        model = _same.mlp()
        model.compile(_same.sgd(), "mse", perf=plan)
        model.optimizer.build(model.trainable_variables)
        private.symbolic_build(model, (x, y))
    batch = (tf.constant(x), tf.constant(y))
    if batches > 1:
        batch = Window((batch,) * batches)

    def run():
        for _ in range(updates):
            strategy.run(model.train_step, args=(batch,))

    graph = tf.function(run, autograph=False).get_concrete_function().graph
    kinds = [op.type for op in graph.get_operations()]
    return sum("Reduce" in kind and "Collective" in kind for kind in kinds)


def test_the_replicas_are_summed_once_per_update(mirrored):
    once = reductions(mirrored, "auto", 1)
    assert once > 0
    assert reductions(mirrored, THREE, 3) == once
    assert reductions(mirrored, perf.Microbatch(1), 1) == once
    # The control: three updates are three sums.
    assert reductions(mirrored, "auto", 1, updates=3) == 3 * once


class Launches(keras.callbacks.Callback):
    """Counts the launches, and asks for none of its own."""

    per_launch = True
    count = 0

    def on_train_batch_end(self, batch, logs=None):
        self.count += 1


def test_several_steps_a_launch_and_what_is_left_out(mirrored):
    one = _same.trained(None)
    counter = Launches()
    two = _same.trained(
        mirrored,
        perf.Execution(steps_per_launch=4),
        compiled={"jit_compile": "auto"},
        callbacks=[counter],
    )
    _same.check_same(one, two)
    assert counter.count == 2, "an epoch of four batches is a launch"
    report = two.model.perf_report()
    loops, xla = report["train_step"]["stream"]["choices"][-2:]
    assert loops.startswith("loops left out: the strategy takes one batch")
    assert xla.startswith("XLA left out: the replicas of a MirroredStrategy")
    settings = report["settings"]
    assert settings["strategy"] == "MirroredStrategy, 2 replicas"
    assert settings["jit"]["effective"] is False
    assert settings["jit"]["reason"] in xla
    # The controls: on one device neither is left out for that reason.
    assert one.model.perf_report()["settings"]["strategy"] == "none"


@pytest.mark.parametrize(
    "inside",
    [("model",), ("model", "compile"), ("optimizer", "compile")],
    ids="-".join,
)
def test_a_part_made_outside_the_scope_is_named(mirrored, inside):
    def made(part, make):
        if part not in inside:
            return make()
        with mirrored.scope():
            return make()

    model = made("model", _same.mlp)
    optimizer = made("optimizer", _same.sgd)
    with pytest.raises(ValueError, match="scope of one strategy") as error:
        made("compile", lambda: model.compile(optimizer, "mse"))
    assert "MirroredStrategy" in str(error.value)
    assert "no strategy" in str(error.value)


@slow
def test_fit_inside_the_scope(mirrored):
    one = _same.trained(None, TWO, epochs=1)
    with mirrored.scope():
        model = _same.mlp()
        model.compile(_same.sgd(), "mse", perf=TWO)
        model.fit(*_same.data(), 8, shuffle=False, verbose=0)
    assert _same.gap(one.weights, model.get_weights()) < 1e-6


@slow
def test_float64_beside_what_is_counted_in_float32(mirrored):
    weights = []
    for strategy in (tf.distribute.get_strategy(), mirrored):
        with strategy.scope():
            inputs = keras.Input((3,), dtype="float64")
            ones = {"kernel_initializer": "ones", "dtype": "float64"}
            model = fk.FastModel(inputs, L.Dense(1, **ones)(inputs))
            loss = keras.losses.MeanSquaredError(dtype="float64")
            model.compile(keras.optimizers.SGD(0.1), loss)
        x = np.random.default_rng(0).normal(size=(10, 3))
        model.fit(x, x[:, :1], batch_size=7, shuffle=False, verbose=0)
        weights.append(model.get_weights()[0])
    assert np.abs(weights[0] - 1).max() > 0.01
    np.testing.assert_allclose(*weights, rtol=0, atol=1e-14)
