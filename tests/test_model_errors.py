"""What FastModel refuses, what it says then, and what it leaves as it was."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import fastkeras as fk
from fastkeras import FastModel

RULE = r"(?s)\S.*\. Received: \S.*\. \S.*[.?]$"


def draw(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


X, Y = draw(16, 3), draw(16, 1, seed=1)


def net(base=FastModel, **kwargs):
    inputs = keras.Input((3,))
    return base(inputs, keras.layers.Dense(1, **kwargs)(inputs))


def trained(**compiled):
    model = net()
    model.compile(keras.optimizers.Adam(0.1), "mse", **compiled)
    model.fit(X, Y, verbose=0)
    return model


def everything(model):
    """All that a refused `compile` must leave as it was."""
    return {
        "weights": [w.tolist() for w in model.get_weights()],
        "optimizer": id(model.optimizer),
        "slots": [v.numpy().tolist() for v in model.optimizer.variables],
        "policies": [layer.dtype_policy.name for layer in model.layers],
        "plan": str(model.perf),
        "step": id(model._step),
        "config": str(model.get_compile_config()),
        "train function": id(model.train_function),
        "metrics": [id(m) for m in model.metrics],
        "jit": model.jit_compile,
        "requested jit": model.requested_jit,
        "eagerly": model.run_eagerly,
        "steps": model.steps_per_execution,
    }


def sgd(**kwargs):
    return keras.optimizers.SGD(0.1, **kwargs)


def scaled():
    return keras.optimizers.LossScaleOptimizer(sgd())


P = fk.perf
CLASHES = {
    "clipnorm": (
        {"optimizer": lambda: sgd(clipnorm=1.0), "perf": P.ClipByNorm(1.0)},
        ("ClipByNorm", "clipnorm"),
    ),
    "global_clipnorm": (
        {
            "optimizer": lambda: sgd(global_clipnorm=1.0),
            "perf": P.ClipByGlobalNorm(1.0),
        },
        ("ClipByGlobalNorm", "global_clipnorm"),
    ),
    "clipvalue": (
        {"optimizer": lambda: sgd(clipvalue=1.0), "perf": P.ClipByValue(1.0)},
        ("ClipByValue", "clipvalue"),
    ),
    "another clip": (
        {"optimizer": lambda: sgd(clipvalue=1.0), "perf": P.AdaptiveClip()},
        ("AdaptiveClip", "clipvalue"),
    ),
    "gradient_accumulation_steps": (
        {
            "optimizer": lambda: sgd(gradient_accumulation_steps=2),
            "perf": P.Accumulate(2),
        },
        ("Accumulate", "gradient_accumulation_steps"),
    ),
    "loss_scale_factor": (
        {
            "optimizer": lambda: sgd(loss_scale_factor=2.0),
            "perf": P.MixedPrecision(),
        },
        ("MixedPrecision", "loss_scale_factor"),
    ),
    "LossScaleOptimizer and MixedPrecision": (
        {"optimizer": scaled, "perf": P.MixedPrecision()},
        ("MixedPrecision", "LossScaleOptimizer"),
    ),
    "LossScaleOptimizer and SkipNonFinite": (
        {"optimizer": scaled, "perf": P.SkipNonFinite()},
        ("SkipNonFinite", "LossScaleOptimizer"),
    ),
    "jit": (
        {"jit_compile": True, "perf": P.Execution(jit=False)},
        ("jit_compile=True", "jit=False"),
    ),
    "no jit": (
        {"jit_compile": False, "perf": P.Execution(jit=True)},
        ("jit_compile=False", "jit=True"),
    ),
    "steps": (
        {"steps_per_execution": 4, "perf": P.Execution(steps_per_launch=2)},
        ("steps_per_execution=4", "steps_per_launch=2"),
    ),
    "eager and jit": (
        {"run_eagerly": True, "perf": P.Execution(jit=True)},
        ("run_eagerly=True", "jit=True"),
    ),
    "two of a stage": (
        {"perf": [P.ClipByNorm(1.0), P.ClipByValue(1.0)]},
        ("CLIP", "ClipByNorm(", "ClipByValue("),
    ),
    "the same twice": (
        {"perf": [P.Accumulate(2), P.Accumulate(4)]},
        ("WINDOW", "steps=2", "steps=4"),
    ),
    "two executions": (
        {"perf": [P.Execution(), P.Execution(jit=False)]},
        ("Execution", "jit=False"),
    ),
    "unknown name": (
        {"perf": "mixed_flaot16"},
        ("Did you mean 'mixed_float16'?",),
    ),
    "unknown name in a list": (
        {"perf": ["acumulate"]},
        ("Did you mean 'accumulate'?",),
    ),
    "no steps": ({"steps_per_execution": 0}, ("steps_per_execution=0",)),
    "nothing to watch": (
        {"perf": P.Watch("nowhere")},
        ("nowhere", "include"),
    ),
}


@pytest.mark.parametrize("name", CLASHES)
def test_a_clash_is_refused_and_nothing_has_changed(name):
    given, places = CLASHES[name]
    given = dict(given)
    given["optimizer"] = given.get("optimizer", sgd)()
    model = trained(perf="mixed_bfloat16")
    before = everything(model)
    with pytest.raises(ValueError, match=RULE) as caught:
        model.compile(loss="mse", **given)
    for place in places:
        assert place in str(caught.value)
    assert everything(model) == before
    model.fit(X, Y, verbose=0)


@pytest.mark.parametrize("name", ["clipnorm", "jit", "nothing to watch"])
def test_a_model_that_was_never_compiled_stays_so(name):
    given = dict(CLASHES[name][0])
    given["optimizer"] = given.get("optimizer", sgd)()
    model = net()
    with pytest.raises(ValueError, match=RULE):
        model.compile(loss="mse", **given)
    assert not model.compiled
    assert getattr(model, "optimizer", None) is None


@pytest.mark.parametrize(
    "perf",
    [3, True, {"accumulate": 2}, [None], P.Accumulate, [["auto"]], sgd()],
    ids=lambda perf: type(perf).__name__,
)
def test_a_part_of_perf_of_a_wrong_type_is_refused(perf):
    model = trained()
    before = everything(model)
    with pytest.raises(TypeError, match=RULE):
        model.compile("sgd", "mse", perf=perf)
    assert everything(model) == before


def test_steps_per_execution_is_a_number():
    with pytest.raises(TypeError, match=RULE):
        net().compile("sgd", "mse", steps_per_execution="auto")


def test_a_class_in_place_of_a_feature_is_told_how_to_be_one():
    with pytest.raises(TypeError, match=r"Make an instance: Accumulate\(\)"):
        net().compile("sgd", "mse", perf=P.Accumulate)


@pytest.mark.parametrize("model", [None, "net", keras.layers.Dense(1)])
def test_from_keras_takes_models_alone(model):
    with pytest.raises(TypeError, match=RULE):
        FastModel.from_keras(model)


# Bad data.


def fit(model, **kwargs):
    given = {"x": X, "y": Y, "batch_size": 4, "verbose": 0, "shuffle": False}
    return model.fit(**{**given, **kwargs})


def poisoned(array, value):
    array = array.copy()
    array[5, 0] = value
    return array


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("where", ["x", "y"])
def test_a_value_that_is_not_a_number_is_as_in_keras_or_skipped(where, value):
    data = {"x": X, "y": Y}
    data[where] = poisoned(data[where], value)

    def run(base, **perf):
        keras.utils.set_random_seed(7)
        model = net(base)
        model.compile(sgd(), "mse", **perf)
        history = fit(model, **data).history
        return model.get_weights(), history

    stock, history = run(keras.Model)
    assert not np.isfinite(stock[0]).any()
    ours, same = run(FastModel)
    np.testing.assert_array_equal(np.isfinite(ours[0]), False)
    np.testing.assert_array_equal(same["loss"], history["loss"])
    # With the guard, the poisoned batch is left out and no other.
    ours, guarded = run(FastModel, perf="skip_non_finite")
    assert guarded["skipped_steps"] == [1]
    keras.utils.set_random_seed(7)
    clean = net()
    clean.compile(sgd(), "mse")
    keep = np.r_[0:4, 8:16]
    fit(clean, x=X[keep], y=Y[keep])
    np.testing.assert_allclose(ours[0], clean.get_weights()[0], atol=1e-6)


EMPTY = {
    "arrays": lambda: {"x": X[:0], "y": Y[:0]},
    "dataset": lambda: {
        "x": tf.data.Dataset.from_tensor_slices((X[:0], Y[:0])).batch(4),
        "y": None,
        "batch_size": None,
    },
    "filtered dataset": lambda: {
        "x": tf.data.Dataset.from_tensor_slices((X, Y))
        .batch(4)
        .filter(lambda x, y: False),
        "y": None,
        "batch_size": None,
    },
}


@pytest.mark.parametrize("kind", EMPTY)
@pytest.mark.parametrize("method", ["fit", "evaluate"])
def test_no_data_at_all_is_an_error(kind, method):
    model = net()
    model.compile(sgd(), "mse")
    before = model.get_weights()
    data = {k: v for k, v in EMPTY[kind]().items() if v is not None}
    with pytest.raises(ValueError, match="(?s)at least one batch.*Received: "):
        getattr(model, method)(**data, verbose=0)
    np.testing.assert_array_equal(model.get_weights()[0], before[0])


@pytest.mark.parametrize(
    "perf",
    ["auto", [P.Accumulate(2), P.ClipByGlobalNorm(1.0)], P.Microbatch(4)],
    ids=str,
)
def test_batches_of_one_row(perf):
    def run(base, rows, **perf):
        keras.utils.set_random_seed(7)
        model = net(base)
        model.compile(sgd(), "mse", **perf)
        fit(model, x=X[:rows], y=Y[:rows], batch_size=1)
        return model.get_weights()[0]

    for rows in (1, 5):
        got = run(FastModel, rows, perf=perf)
        assert np.isfinite(got).all()
        if perf == "auto":
            np.testing.assert_allclose(got, run(keras.Model, rows), atol=1e-6)


def test_no_trainable_variable_is_one_warning_and_still_evaluates():
    model = net()
    model.layers[-1].trainable = False
    before = model.get_weights()
    model.compile(sgd(), "mse")
    with pytest.warns(UserWarning, match="no trainable variable") as record:
        history = fit(model, epochs=2).history
    told = [w for w in record if "no trainable" in str(w.message)]
    assert len(told) == 1
    np.testing.assert_array_equal(model.get_weights()[0], before[0])
    right = np.mean((model.predict(X, verbose=0) - Y) ** 2)
    assert history["loss"][0] == pytest.approx(right, rel=1e-5)


def test_no_gradient_at_all_is_an_error_before_any_update():
    class Net(FastModel):
        def compute_loss(self, x, y, y_pred, sample_weight, training=True):
            return keras.ops.mean(keras.ops.stop_gradient(y_pred))

    model = net(Net)
    model.compile(keras.optimizers.Adam(weight_decay=0.1), "mse")
    before = model.get_weights()
    with pytest.raises(ValueError, match="must have a gradient.*Received: "):
        fit(model)
    np.testing.assert_array_equal(model.get_weights()[0], before[0])
    assert int(model.optimizer.iterations) == 0


@pytest.mark.parametrize(
    "perf",
    ["auto", [P.Accumulate(2), P.ClipByGlobalNorm(9.0), P.SkipNonFinite()]],
    ids=str,
)
def test_a_variable_without_a_gradient_is_named_once(perf):
    inputs = keras.Input((3,))
    used = keras.layers.Dense(1, name="used")(inputs)
    idle = keras.layers.Dense(1, name="idle")(inputs)
    model = FastModel(inputs, [used, idle])
    model.compile(sgd(), ["mse", None], perf=perf)
    before = model.get_layer("idle").get_weights()[0]
    with pytest.warns(UserWarning, match="idle/kernel") as record:
        fit(model, y=[Y, Y], epochs=2)
    assert len([w for w in record if "idle/" in str(w.message)]) == 1
    np.testing.assert_array_equal(
        model.get_layer("idle").get_weights()[0], before
    )
    assert int(model.optimizer.iterations) > 0


def test_labels_out_of_range_are_as_in_keras():
    """On a CPU the operation itself refuses them, naming the label."""
    for base in (keras.Model, FastModel):
        inputs = keras.Input((3,))
        model = base(inputs, keras.layers.Dense(2, "softmax")(inputs))
        model.compile(sgd(), "sparse_categorical_crossentropy")
        before = model.get_weights()
        with pytest.raises(tf.errors.InvalidArgumentError, match="label"):
            model.fit(X, np.full(16, 7), verbose=0)
        np.testing.assert_array_equal(model.get_weights()[0], before[0])


def test_labels_out_of_range_are_not_silent_under_xla():
    """XLA makes NaN of them; top-k accuracy of NaN may look fine there."""
    inputs = keras.Input((3,))
    model = FastModel(inputs, keras.layers.Dense(2, "softmax")(inputs))
    model.compile(
        sgd(),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
        jit_compile=True,
    )
    labels = np.arange(16) % 2
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        history = fit(model, y=labels).history
        model.evaluate(X, labels, verbose=0)
    assert np.isfinite(history["loss"]).all()
    for again in (model.evaluate, model.fit):
        model.compile()
        with pytest.warns(UserWarning, match="loss is not finite") as seen:
            again(X, np.full(16, 7), verbose=0)
            again(X, np.full(16, 7), verbose=0)
        assert len([w for w in seen if "not finite" in str(w.message)]) == 1


@pytest.mark.parametrize(
    "data",
    [
        {"x": np.array([["a"] * 3] * 16)},
        {"x": np.array([[object()] * 3] * 16)},
        {"y": np.array(["a"] * 16)},
        {"x": [[1.0, 2.0, 3.0]] * 15 + [[1.0]]},
        {"y": Y[:7]},
        {"sample_weight": np.ones(3)},
        {"x": draw(16, 5)},
        {"x": None},
        {"x": 3.0},
    ],
    ids=[
        "strings",
        "objects",
        "labels of strings",
        "ragged list",
        "fewer labels",
        "fewer weights",
        "too wide",
        "nothing",
        "a number",
    ],
)
def test_data_of_a_wrong_kind_is_refused_as_keras_does(data):
    caught = []
    for base in (keras.Model, FastModel):
        model = net(base)
        model.compile(sgd(), "mse")
        before = model.get_weights()
        with pytest.raises((ValueError, TypeError, tf.errors.OpError)) as info:
            fit(model, **data)
        caught.append(info.type)
        np.testing.assert_array_equal(model.get_weights()[0], before[0])
    assert caught[0] is caught[1] or issubclass(caught[1], ValueError)


@pytest.mark.parametrize("dtype", ["float64", "int32", "uint8", "float16"])
def test_data_of_another_number_type_trains_as_in_keras(dtype):
    x = (np.abs(X) * 3).astype(dtype)

    def run(base):
        keras.utils.set_random_seed(7)
        model = net(base)
        model.compile(sgd(), "mse")
        fit(model, x=x, y=Y.astype("float64"))
        return model.get_weights()[0]

    np.testing.assert_allclose(run(FastModel), run(keras.Model), atol=1e-6)


COUNTS = [
    ("batch_size", 0),
    ("batch_size", 2.5),
    ("steps_per_epoch", 0),
    ("steps_per_epoch", -1),
    ("validation_steps", 0),
    ("validation_batch_size", 0),
    ("validation_freq", 0),
    ("validation_freq", -2),
    ("validation_freq", None),
    ("epochs", -1),
    ("epochs", 1.5),
    ("initial_epoch", -1),
    ("initial_epoch", None),
]


def test_a_count_without_sense_is_refused_before_anything_changes():
    model = trained()
    before = everything(model)
    for name, value in COUNTS:
        with pytest.raises((ValueError, TypeError), match=RULE) as caught:
            fit(model, **{"validation_data": (X, Y), name: value})
        assert f"{name}={value!r}" in str(caught.value)
    for method in (model.evaluate, model.predict):
        for name in ("batch_size", "steps"):
            with pytest.raises(ValueError, match=f"{name}` must be >= 1.*=0"):
                method(X, verbose=0, **{name: 0})
    assert everything(model) == before


@pytest.mark.parametrize(
    "given",
    [
        {"epochs": 0},
        {"epochs": 2, "initial_epoch": 2},
        {"epochs": 1, "initial_epoch": 3},
        {"epochs": np.int64(2), "batch_size": np.int64(8)},
        {"epochs": 3, "validation_freq": [2], "validation_data": (X, Y)},
        {"epochs": 3, "validation_freq": 5, "validation_data": (X, Y)},
    ],
    ids=" ".join,
)
def test_a_count_that_keras_gives_a_meaning_keeps_it(given):
    def run(base):
        keras.utils.set_random_seed(7)
        model = net(base)
        model.compile(sgd(), "mse")
        history = fit(model, **given)
        return model.get_weights()[0], history.epoch, history.history

    ours, stock = run(FastModel), run(keras.Model)
    np.testing.assert_allclose(ours[0], stock[0], atol=1e-6)
    assert ours[1] == stock[1]
    assert {k: len(v) for k, v in ours[2].items()} == {
        k: len(v) for k, v in stock[2].items()
    }


class Stops(keras.callbacks.Callback):
    def __init__(self, hook):
        super().__init__()
        setattr(self, hook, self._stop)

    def _stop(self, *args, **kwargs):
        self.model.stop_training = self.model.stop_evaluating = True


@pytest.mark.parametrize(
    "hook", ["on_train_begin", "on_epoch_begin", "on_train_batch_begin"]
)
def test_a_stop_before_the_first_batch_trains_one_as_in_keras(hook):
    def run(base, callbacks):
        keras.utils.set_random_seed(7)
        model = net(base)
        model.compile(sgd(), "mse")
        history = fit(model, epochs=3, callbacks=callbacks).history
        return model, len(history["loss"])

    stock, epochs = run(keras.Model, [Stops(hook)])
    ours, same = run(FastModel, [Stops(hook)])
    assert int(ours.optimizer.iterations) == 1 and same == epochs == 1
    np.testing.assert_allclose(
        ours.get_weights()[0], stock.get_weights()[0], atol=1e-6
    )
    # Without it, all twelve run.
    assert int(run(FastModel, [])[0].optimizer.iterations) == 12


def test_a_stop_before_evaluating_sees_one_batch_as_in_keras():
    def loss(base):
        keras.utils.set_random_seed(7)
        model = net(base)
        model.compile(sgd(), "mse")
        stops = [Stops("on_test_begin")]
        return model.evaluate(X, Y, 4, verbose=0, callbacks=stops), (
            model.evaluate(X, Y, 4, verbose=0)
        )

    (ours, whole), (stock, _) = loss(FastModel), loss(keras.Model)
    assert ours == pytest.approx(stock, rel=1e-6)
    assert ours != pytest.approx(whole, rel=1e-3)


def test_the_limits_that_keras_sets_for_debugging_hold():
    def run(base):
        model = net(base)
        model.compile(sgd(), "mse")
        with pytest.warns(UserWarning, match="imit"):
            history = fit(model, epochs=3).history["loss"]
        model.predict(X, batch_size=4, verbose=0)
        return len(history), int(model.optimizer.iterations)

    keras.config.set_max_epochs(2)
    keras.config.set_max_steps_per_epoch(2)
    try:
        assert run(FastModel) == run(keras.Model) == (2, 4)
    finally:
        keras.config.set_max_epochs(None)
        keras.config.set_max_steps_per_epoch(None)


@pytest.mark.parametrize("share", [1.5, 1.0, -0.2])
def test_a_validation_split_without_sense_is_refused(share):
    model = net()
    model.compile(sgd(), "mse")
    with pytest.raises(ValueError, match="validation_split"):
        fit(model, validation_split=share)
    assert int(model.optimizer.iterations) == 0


def test_stock_keras_takes_a_split_above_one():
    model = net(keras.Model)
    model.compile(sgd(), "mse")
    fit(model, validation_split=1.5)


# Interrupted.


class Raises(keras.callbacks.Callback):
    def __init__(self, error, hook="on_train_batch_end"):
        super().__init__()
        self.error = error
        setattr(self, hook, self._raise)

    def _raise(self, index, logs=None):
        if index == 1:
            raise self.error


ERRORS = [KeyboardInterrupt(), StopIteration(), RuntimeError(), IndexError()]
HOOKS = ["on_train_batch_begin", "on_train_batch_end", "on_epoch_end"]


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_what_a_callback_raises_comes_out_and_training_can_go_on(error):
    for hook in HOOKS:
        model = net()
        model.compile(keras.optimizers.Adam(0.1), "mse", metrics=["mae"])
        with pytest.raises(type(error)):
            fit(model, epochs=3, callbacks=[Raises(error, hook)])
        steps = 8 if hook == "on_epoch_end" else 1 + (hook[-3:] == "end")
        assert int(model.optimizer.iterations) == steps
        history = fit(model).history
        assert int(model.optimizer.iterations) == steps + 4
        assert np.isfinite(history["loss"]).all()


def test_stock_keras_swallows_the_stop_iteration_of_a_callback():
    model = net(keras.Model)
    model.compile(sgd(), "mse")
    fit(model, epochs=3, callbacks=[Raises(StopIteration())])


@pytest.mark.parametrize(
    "perf",
    ["auto", [P.Accumulate(2), P.ClipByGlobalNorm(1.0)], "mixed_float16"],
    ids=str,
)
def test_after_an_interruption_the_epoch_can_be_trained_anew(perf):
    """Two steps, interrupted, then an epoch: as without the interruption."""

    def run(interrupt):
        keras.utils.set_random_seed(7)
        model = net()
        model.compile(keras.optimizers.Adam(0.1), "mse", perf=perf)
        if interrupt:
            with pytest.raises(KeyboardInterrupt):
                fit(
                    model,
                    batch_size=2,
                    callbacks=[Raises(KeyboardInterrupt())],
                )
        else:
            fit(model, x=X[:4], y=Y[:4], batch_size=2)
        fit(model, batch_size=2)
        return model.get_weights()[0], int(model.optimizer.iterations)

    got, expected = run(True), run(False)
    np.testing.assert_allclose(got[0], expected[0], atol=1e-6)
    assert got[1] == expected[1]


class Own(Exception):
    pass


SOURCE_ERRORS = [Own("mine"), ValueError("mine"), KeyError("mine")]


def generator(error, at=2):
    for k in range(100):
        if k == at:
            raise error
        yield X[:4], Y[:4]


class Sequence(keras.utils.PyDataset):
    def __init__(self, error, **kwargs):
        super().__init__(**kwargs)
        self.error = error

    def __len__(self):
        return 4

    def __getitem__(self, k):
        if k == 2:
            raise self.error
        return X[:4], Y[:4]


@pytest.mark.parametrize("error", SOURCE_ERRORS, ids=repr)
@pytest.mark.parametrize("source", [generator, Sequence])
def test_the_type_of_an_error_in_the_data_is_kept(error, source):
    model = net()
    model.compile(sgd(), "mse")
    with pytest.raises(type(error), match="mine"):
        fit(model, x=source(error), y=None, batch_size=None)
    assert int(model.optimizer.iterations) <= 2
    fit(model)
    if source is generator:
        stock = net(keras.Model)
        stock.compile(sgd(), "mse")
        with pytest.raises(tf.errors.OpError):
            fit(stock, x=source(error), y=None, batch_size=None)


def test_an_interrupt_in_a_generator_leaves_the_model_usable():
    model = net()
    model.compile(keras.optimizers.Adam(0.1), "mse")
    with pytest.raises(KeyboardInterrupt):
        fit(model, x=generator(KeyboardInterrupt()), y=None, batch_size=None)
    done = int(model.optimizer.iterations)
    assert done <= 2
    fit(model)
    assert int(model.optimizer.iterations) == done + 4


def test_an_error_at_the_first_batch_comes_out_too():
    model = net()
    model.compile(sgd(), "mse")
    with pytest.raises(Own):
        fit(model, x=generator(Own(), at=0), y=None, batch_size=None)


def test_a_model_that_was_not_compiled_says_so():
    for method in ("fit", "evaluate"):
        with pytest.raises(ValueError, match=r"call `compile\(\)`"):
            getattr(net(), method)(X, Y, verbose=0)
    with pytest.raises(ValueError, match=r"call `compile\(\)`"):
        net().train_on_batch(X, Y)
