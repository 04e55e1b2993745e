"""What comes back after saving, loading, copying, and after an interruption."""

import copy
import dataclasses
import gc
import os
import pickle
import warnings
import weakref
from typing import ClassVar

import keras
import numpy as np
import pytest

import fastkeras as fk
from fastkeras import FastModel

P = fk.perf


def draw(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


X, Y = draw(40, 3), draw(40, 1, seed=1)
FIT = {"batch_size": 4, "shuffle": False, "verbose": 0}


@keras.saving.register_keras_serializable("fastkeras_tests")
@dataclasses.dataclass(frozen=True)
class Damp(P.Feature):
    """A user's own feature: multiplies the gradients."""

    factor: float = 0.5
    stage: ClassVar[P.Stage] = P.Stage.CLIP

    def clip(self, gradients, variables, state, ok):
        return [None if g is None else g * self.factor for g in gradients]


@keras.saving.register_keras_serializable("fastkeras_tests")
class Net(FastModel):
    def __init__(self, extra=0, **kwargs):
        super().__init__(**kwargs)
        self.extra = extra
        self.top = keras.layers.Dense(1)

    def call(self, x):
        return self.top(x)

    def get_config(self):
        return {**super().get_config(), "extra": self.extra}


@keras.saving.register_keras_serializable("fastkeras_tests")
class Graph(FastModel):
    def __init__(self, inputs, outputs, extra=0, **kwargs):
        super().__init__(inputs, outputs, **kwargs)
        self.extra = extra


@keras.saving.register_keras_serializable("fastkeras_tests")
class Stock(keras.Model):
    def __init__(self, extra=0, **kwargs):
        super().__init__(**kwargs)
        self.extra = extra
        self.top = keras.layers.Dense(1)

    def call(self, x):
        return self.top(x)

    def get_config(self):
        return {**super().get_config(), "extra": self.extra}


def functional(base=FastModel, **kwargs):
    inputs = keras.Input((3,))
    hidden = keras.layers.Dense(2, name="hidden")(inputs)
    return base(inputs, keras.layers.Dense(1, name="top")(hidden), **kwargs)


def built(model):
    model(X)
    return model


FORMS = {
    "functional": functional,
    "functional subclass": lambda: functional(Graph, extra=3),
    "subclass": lambda: built(Net(extra=3)),
    "sequential": lambda: FastModel.from_keras(
        keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    ),
    "shared subclass": lambda: FastModel.from_keras(built(Stock(extra=3))),
}

PERF = {
    "None": None,
    "auto": "auto",
    "accumulate": P.Accumulate(2),
    "microbatch": P.Microbatch(3),
    "global norm": P.ClipByGlobalNorm(0.5),
    "norm": P.ClipByNorm(0.5),
    "value": P.ClipByValue(0.1),
    "adaptive": P.AdaptiveClip(0.1),
    "watch": P.Watch(include="*kernel"),
    "skip": P.SkipNonFinite(),
    "float16": P.MixedPrecision(initial_scale=2.0**9, growth_steps=3),
    "bfloat16": P.MixedPrecision("mixed_bfloat16"),
    "own": Damp(0.25),
    "execution": [P.Execution(jit=False, steps_per_launch=2), Damp(0.25)],
    "together": [
        P.Accumulate(2),
        P.Microbatch(3),
        P.MixedPrecision(initial_scale=2.0**5, growth_steps=2),
        P.ClipByGlobalNorm(0.5),
    ],
}


# Three batches, for what is run eagerly.
FEW = {"rows": X[:12], "targets": Y[:12]}


def adam(**kwargs):
    return keras.optimizers.Adam(0.05, **kwargs)


def fit(model, rows=X, targets=Y, **kwargs):
    return model.fit(rows, targets, **{**FIT, **kwargs})


def state(model):
    """Weights, optimizer, and what the features keep, as flat arrays."""
    out = [
        *model.get_weights(),
        *(v.numpy() for v in model.optimizer.variables),
    ]
    for one in model._step.states:
        out += [v.numpy() for _, v in sorted(one.variables.items())]
    return out


def same(a, b, tolerance=1e-6):
    assert len(a) == len(b)
    for first, second in zip(a, b, strict=True):
        np.testing.assert_allclose(first, second, atol=tolerance)


# The whole model.


@pytest.mark.parametrize("form", FORMS)
def test_each_form_comes_back_with_class_arguments_and_perf(form, tmp_path):
    perf = [P.Accumulate(2), Damp(0.25)]
    model = FORMS[form]()
    model.compile(adam(), "mse", metrics=["mae"], perf=perf)
    fit(model)
    path = tmp_path / "model.keras"
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        model.save(path)
        loaded = keras.saving.load_model(path)
    assert type(loaded) is type(model) or form == "shared subclass"
    assert isinstance(loaded, FastModel)
    assert getattr(loaded, "extra", None) == getattr(model, "extra", None)
    assert ("subclass" in form) == (getattr(loaded, "extra", 0) == 3)
    assert loaded.perf == model.perf
    np.testing.assert_allclose(
        loaded.predict(X, verbose=0), model.predict(X, verbose=0), atol=1e-6
    )
    same(state(loaded), state(model))
    fit(loaded)
    fit(model)
    same(state(loaded), state(model))


SLOW = {"None", "norm", "value", "adaptive", "bfloat16", "microbatch"}


# Each feature by itself: `tests/perf/test_every_feature.py`.
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("None", marks=pytest.mark.slow),
        "auto",
        pytest.param("bfloat16", marks=pytest.mark.slow),
        "own",
        "execution",
        "together",
    ],
)
def test_ten_steps_saved_and_ten_more_are_twenty(name, tmp_path):
    keras.utils.set_random_seed(2)
    model = functional()
    model.compile(adam(), "mse", perf=PERF[name])
    fit(model)
    path = tmp_path / "model.keras"
    model.save(path)
    loaded = keras.saving.load_model(path)
    assert loaded.perf == model.perf
    assert loaded.get_layer("hidden").dtype_policy.name == (
        model.get_layer("hidden").dtype_policy.name
    )
    same(state(loaded), state(model))
    fit(model)
    fit(loaded)
    same(state(loaded), state(model))
    updates = 10 if name == "together" else 20
    assert int(loaded.optimizer.iterations) == updates


def test_a_model_that_forgets_its_slots_is_seen(tmp_path):
    """The control for the test above."""
    model = functional()
    model.compile(adam(), "mse", perf=P.MixedPrecision(growth_steps=3))
    fit(model)
    again = functional()
    again.compile(adam(), "mse", perf=model.perf.features)
    fit(again, X[:4], Y[:4])
    again.set_weights(model.get_weights())
    with pytest.raises(AssertionError):
        same(state(again), state(model))


def test_moving_averages_and_schedules_go_on(tmp_path):
    def start():
        keras.utils.set_random_seed(2)
        model = functional()
        schedule = keras.optimizers.schedules.CosineDecay(0.1, 12)
        optimizer = keras.optimizers.AdamW(schedule, use_ema=True)
        optimizer.ema_overwrite_frequency = None
        model.compile(optimizer, "mse", perf=P.Accumulate(2))
        return model

    def epochs(model, count):
        for _ in range(count):
            for k in range(0, 40, 8):
                model.train_on_batch(X[k : k + 8], Y[k : k + 8])

    straight, model = start(), start()
    epochs(straight, 2)
    epochs(model, 1)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    epochs(loaded, 1)
    same(state(loaded), state(straight))


@pytest.mark.parametrize(
    ("form", "how"),
    [
        ("functional", "clone"),
        ("functional", "copy"),
        ("functional", "pickle"),
        ("functional", "config"),
        ("functional subclass", "clone"),
        ("functional subclass", "copy"),
        ("functional subclass", "pickle"),
        ("functional subclass", "config"),
        ("sequential", "clone"),
        ("subclass", "copy"),
        ("subclass", "pickle"),
        ("subclass", "clone"),
        ("shared subclass", "pickle"),
        ("shared subclass", "copy"),
        ("shared subclass", "clone"),
    ],
)
def test_copies_are_of_the_same_class_and_train(form, how):
    model = FORMS[form]()
    perf = [P.ClipByGlobalNorm(0.5), P.SkipNonFinite()]
    # Eagerly: how steps run is no part of a copy, and tracing takes longest.
    model.compile(adam(), "mse", perf=perf, run_eagerly=True)
    fit(model, **FEW)
    make = {
        "clone": keras.models.clone_model,
        "copy": copy.deepcopy,
        "pickle": lambda m: pickle.loads(pickle.dumps(m)),
        "config": lambda m: type(m).from_config(m.get_config()),
    }[how]
    other = make(model)
    assert type(other) is type(model) or form == "shared subclass"
    assert isinstance(other, FastModel)
    assert getattr(other, "extra", None) == getattr(model, "extra", None)
    assert other.layers[-1] is not model.layers[-1]
    if how == "clone":
        assert other.perf == model.perf
        fit(other, **FEW)
    elif how in ("copy", "pickle"):
        assert other.perf == model.perf
        same(state(other), state(model))
        fit(other, **FEW)
        fit(model, **FEW)
        same(state(other), state(model))
    else:
        other.compile(adam(), "mse", perf=model.perf.features, run_eagerly=True)
        fit(other, **FEW)


def test_a_clone_has_new_layers_and_the_policies_that_perf_sets():
    made = []

    def new(layer):
        made.append(type(layer).from_config(layer.get_config()))
        return made[-1]

    model = functional(Graph, extra=3)
    model.compile(adam(), "mse", perf="mixed_bfloat16")
    inputs = keras.Input((3,))
    clone = keras.models.clone_model(model, inputs, clone_function=new)
    assert (type(clone), clone.extra, clone.name) == (Graph, 3, model.name)
    assert all(layer in clone.layers for layer in made) and made
    assert clone.input is inputs
    assert clone.get_layer("hidden").dtype_policy.name == "mixed_bfloat16"
    assert model.get_layer("hidden").dtype_policy.name == "mixed_bfloat16"
    clone.compile(adam(), "mse", perf="auto")
    assert clone.get_layer("hidden").dtype_policy.name == "float32"


def test_a_clone_of_a_model_that_is_not_compiled_is_not_either():
    clone = keras.models.clone_model(functional(Graph, extra=3))
    assert type(clone) is Graph and not clone.compiled


def test_the_clone_of_a_model_of_keras_is_as_ever():
    class Stock(keras.Model):
        def __init__(self, inputs, outputs, extra=0, **kwargs):
            super().__init__(inputs, outputs, **kwargs)

    clone = keras.models.clone_model(functional(Stock, extra=3))
    assert isinstance(clone, keras.Model) and type(clone) is not Stock
    assert not isinstance(clone, FastModel)


def test_mixed_precision_leaves_no_trace_in_the_layers_of_a_config(tmp_path):
    model = functional()
    model.compile(adam(), "mse", perf="mixed_float16")
    assert model.get_layer("hidden").dtype_policy.name == "mixed_float16"
    again = FastModel.from_config(model.get_config())
    assert again.get_layer("hidden").dtype_policy.name == "float32"
    assert model.get_layer("hidden").dtype_policy.name == "mixed_float16"


@keras.saving.register_keras_serializable("fastkeras_tests")
class Plain(FastModel):
    """A subclass that leaves its config to Keras."""

    def __init__(self, extra=0, options=None, **kwargs):
        super().__init__(**kwargs)
        self.extra = extra
        self.sizes = options and options.pop("sizes")
        self.top = keras.layers.Dense(1)

    def call(self, x):
        return self.top(x)


def test_a_subclass_without_a_config_keeps_its_arguments(tmp_path):
    model = built(Plain(3, {"sizes": [4, 8]}, name="mine"))
    model.compile(adam(), "mse", perf="clip_by_value")
    fit(model)
    model.save(tmp_path / "m.keras")
    loaded = keras.saving.load_model(tmp_path / "m.keras")
    assert (type(loaded), loaded.extra, loaded.name) == (Plain, 3, "mine")
    assert loaded.sizes == [4, 8]
    same(state(loaded), state(model))
    # The control: Keras itself writes down the default.
    assert model.get_config()["extra"] == 3
    assert keras.Model.get_config(model)["extra"] == 0


# `compile` again.


def test_a_bare_compile_keeps_perf_and_an_explicit_one_replaces_it():
    model = functional()
    model.compile(adam(), "mse", perf="mixed_bfloat16")
    fit(model)
    before = state(model)
    optimizer = model.optimizer
    model.compile()
    assert model.perf.features == (P.MixedPrecision("mixed_bfloat16"),)
    assert model.optimizer is optimizer
    same(state(model), before)
    model.compile(adam(), "mse")
    assert model.perf.features == (P.MixedPrecision("mixed_bfloat16"),)
    model.compile(adam(), "mse", perf=P.ClipByValue(1.0))
    assert model.perf.features == (P.ClipByValue(1.0),)
    assert model.get_layer("hidden").dtype_policy.name == "float32"
    model.compile(adam(), "mse", perf=None)
    assert model.perf.is_keras
    fit(model)


# Weights alone.


def weights_file(model, path):
    model.save_weights(path)
    return path


@pytest.mark.parametrize("name", ["auto", "accumulate", "float16", "together"])
def test_weights_go_to_a_stock_model_and_back(name, tmp_path):
    ours = functional()
    ours.compile(adam(), "mse", perf=PERF[name], run_eagerly=True)
    fit(ours, **FEW)
    stock = functional(keras.Model)
    stock.compile(adam(), "mse", run_eagerly=True)
    fit(stock, X[:4], Y[:4])
    path = weights_file(ours, tmp_path / "ours.weights.h5")
    stock.load_weights(path)
    same(stock.get_weights(), ours.get_weights())
    same(
        [v.numpy() for v in stock.optimizer.variables],
        [v.numpy() for v in ours.optimizer.variables],
    )
    fit(stock, **FEW)
    back = weights_file(stock, tmp_path / "stock.weights.h5")
    scale = [v.numpy() for s in ours._step.states for v in s.variables.values()]
    ours.load_weights(back)
    same(ours.get_weights(), stock.get_weights())
    same(
        [v.numpy() for v in stock.optimizer.variables],
        [v.numpy() for v in ours.optimizer.variables],
    )
    same(
        [v.numpy() for s in ours._step.states for v in s.variables.values()],
        scale,
    )
    fit(ours, **FEW)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (P.Accumulate(4), "auto"),
        ("auto", P.Accumulate(4)),
        (P.MixedPrecision(), "auto"),
        ("auto", P.MixedPrecision()),
        (P.MixedPrecision(), P.ClipByValue(1.0)),
        ([P.Accumulate(4), P.MixedPrecision()], P.MixedPrecision()),
    ],
    ids=str,
)
def test_weights_go_from_one_plan_to_another(first, second, tmp_path):
    models = []
    for perf in (first, second):
        model = functional()
        model.compile(adam(), "mse", perf=perf, run_eagerly=True)
        fit(model, **FEW)
        models.append(model)
    a, b = models
    b.load_weights(weights_file(a, tmp_path / "a.weights.h5"))
    same(b.get_weights(), a.get_weights())
    same(
        [v.numpy() for v in a.optimizer.variables],
        [v.numpy() for v in b.optimizer.variables],
    )
    fit(b, **FEW)


# Callbacks that save.


class Stop(Exception):
    pass


class StopsAt(keras.callbacks.Callback):
    def __init__(self, epoch, batch=None):
        super().__init__()
        self.when = epoch, batch

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch
        if self.when == (epoch, None):
            raise Stop

    def on_train_batch_end(self, batch, logs=None):
        if self.when == (self.epoch, batch):
            raise Stop


@pytest.mark.parametrize("name", ["auto", "together"])
@pytest.mark.parametrize("weights", [False, True])
def test_a_checkpoint_of_the_best_epoch(name, weights, tmp_path):
    path = str(tmp_path / ("m.weights.h5" if weights else "m.keras"))
    model = functional()
    model.compile(adam(), "mse", perf=PERF[name])
    best = keras.callbacks.ModelCheckpoint(
        path, "loss", save_best_only=True, save_weights_only=weights
    )
    fit(model, epochs=2, callbacks=[best])
    if weights:
        other = functional()
        other.compile(adam(), "mse", perf=PERF[name])
        other.load_weights(path)
    else:
        other = keras.saving.load_model(path)
    same(other.get_weights(), model.get_weights())


@pytest.mark.parametrize(
    ("perf", "steps", "freq", "saved"),
    [
        ("auto", 16, 16, [16, 32]),
        ("auto", 1, 16, [16, 32]),
        (P.Accumulate(4), 1, 16, [16, 32]),
        (P.Accumulate(4), 8, 16, [16, 32]),
        (P.Execution(steps_per_launch=16), 1, 16, [16, 32]),
        ("auto", 1, 10, [10, 20, 30]),
    ],
    ids=str,
)
def test_a_checkpoint_every_so_many_batches(perf, steps, freq, saved, tmp_path):
    x, y = draw(32, 3), draw(32, 1)
    model = functional()
    model.compile("sgd", "mse", steps_per_execution=steps, perf=perf)
    path = str(tmp_path / "{batch:02d}.weights.h5")
    save = keras.callbacks.ModelCheckpoint(
        path, save_weights_only=True, save_freq=freq
    )
    fit(model, x, y, batch_size=1, callbacks=[save])
    names = sorted(os.listdir(tmp_path))
    assert names == [f"{n:02d}.weights.h5" for n in saved]


def test_a_checkpoint_of_an_unbuilt_model_says_to_build_it(tmp_path):
    model = Net()
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="(?i)build"):
        model.load_weights(
            weights_file(functional(), tmp_path / "m.weights.h5")
        )
    with pytest.raises(ValueError, match="(?i)buil"):
        fit(compiled_net(), callbacks=[backup(tmp_path)])


def compiled_net():
    model = Net()
    model.compile("sgd", "mse")
    return model


def backup(path, freq="epoch"):
    return keras.callbacks.BackupAndRestore(path / "b", save_freq=freq)


@pytest.mark.parametrize(
    ("name", "freq"),
    [
        pytest.param("auto", "epoch", marks=pytest.mark.slow),
        pytest.param("accumulate", "epoch", marks=pytest.mark.slow),
        ("float16", "epoch"),
        ("together", "epoch"),
        ("auto", 7),
        ("accumulate", 7),
        pytest.param("float16", 7, marks=pytest.mark.slow),
        pytest.param("together", 7, marks=pytest.mark.slow),
    ],
)
def test_an_interrupted_training_goes_on_from_its_backup(name, freq, tmp_path):
    def start():
        keras.utils.set_random_seed(2)
        model = functional()
        model.compile(adam(), "mse", perf=PERF[name])
        model.optimizer.build(model.trainable_variables)
        return model

    straight = start()
    if freq == "epoch":
        fit(straight, epochs=2)
    else:
        # Keras's callback takes the first batch of an epoch for one, however
        # many a launch holds; then every seventh. The epoch is begun anew.
        seen = 6 if name in ("accumulate", "together") else 4
        fit(straight)
        fit(straight, X[: 4 * seen], Y[: 4 * seen])
    first = 2 if freq == "epoch" else 1
    with pytest.raises(Stop):
        stops = StopsAt(2)
        fit(start(), epochs=3, callbacks=[backup(tmp_path, freq), stops])
    model = start()
    model.load_weights(tmp_path / "b" / "latest.weights.h5")
    same(state(model), state(straight))
    fit(straight, epochs=3, initial_epoch=first)
    model = start()
    history = fit(model, epochs=3, callbacks=[backup(tmp_path, freq)])
    assert not (tmp_path / "b").exists()
    assert history.epoch == list(range(first, 3))
    same(state(model), state(straight))


def test_the_bar_shows_the_batches_of_an_epoch_after_a_restore(
    tmp_path, capsys
):
    def start():
        model = functional()
        model.compile(adam(), "mse")
        return model

    with pytest.raises(Stop):
        fit(start(), epochs=3, callbacks=[backup(tmp_path), StopsAt(2)])
    capsys.readouterr()
    model = start()
    fit(model, epochs=3, callbacks=[backup(tmp_path)], verbose=1)
    text = capsys.readouterr().out
    assert "10/10" in text
    assert "Epoch 3/3" in text and "Epoch 2/3" not in text
    assert int(model.optimizer.iterations) == 30


def test_a_guard_leaves_the_backup_in_place(tmp_path):
    y = Y.copy()
    y[20] = np.nan
    model = functional()
    model.compile(adam(), "mse")
    guard = keras.callbacks.TerminateOnNaN(raise_error=True)
    with pytest.raises(RuntimeError):
        fit(model, targets=y, callbacks=[guard, backup(tmp_path, 2)])
    assert (tmp_path / "b" / "latest.weights.h5").exists()
    again = functional()
    again.compile(adam(), "mse")
    fit(again, callbacks=[backup(tmp_path)])
    assert np.isfinite(again.get_weights()[0]).all()


# Nothing is kept.


def run_all(model, perf="auto"):
    """Trains, evaluates and predicts; returns weak references."""
    model.compile(adam(), "mse", metrics=["mae"], perf=perf)
    small = (X[:4], Y[:4])
    model.fit(*small, validation_data=small, verbose=0)
    model.predict(X[:4], verbose=0)
    return weakref.ref(model), weakref.ref(model.optimizer)


def alive(refs):
    """The names of those that are still there after a collection."""
    keras.backend.clear_session()
    gc.collect()
    return [name for name, pair in refs.items() if any(r() for r in pair)]


@pytest.mark.parametrize(
    "names",
    [PERF.keys() - SLOW, pytest.param(SLOW, marks=pytest.mark.slow)],
    ids=["most", "rest"],
)
def test_models_of_every_plan_are_collected(names):
    assert not alive({n: run_all(functional(), PERF[n]) for n in names})


def test_models_of_every_form_are_collected():
    refs = {name: run_all(make()) for name, make in FORMS.items()}
    # The control: one that is held.
    held = functional()
    refs["held"] = run_all(held)
    assert alive(refs) == ["held"]
