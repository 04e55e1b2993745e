"""The forms of a FastModel, and what a user may override in each."""

import functools
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import fastkeras as fk
from fastkeras import FastModel
from fastkeras._lib.warn import FastKerasWarning


def draw(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


X, Y = draw(12, 3), draw(12, 2, seed=1)
FIT = {"batch_size": 4, "shuffle": False, "verbose": 0}


class Subclass(FastModel):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.top = keras.layers.Dense(2)

    def call(self, x):
        return self.top(x)


def functional(base=FastModel, **kwargs):
    inputs = keras.Input((3,))
    return base(inputs, keras.layers.Dense(2)(inputs), **kwargs)


def sequential(built=True):
    first = [keras.Input((3,))] if built else []
    return keras.Sequential([*first, keras.layers.Dense(2)])


def trains(model, **compiled):
    model(X)
    before = model.get_weights()
    model.compile("sgd", "mse", **compiled)
    model.fit(X, Y, **FIT)
    assert np.abs(model.get_weights()[0] - before[0]).max() > 0
    return model


def loss_of(model, **compiled):
    model.compile(keras.optimizers.SGD(0.1), "mse", **compiled)
    return model.fit(X, Y, epochs=2, **FIT).history["loss"]


# Side by side.


@pytest.mark.parametrize("functional_first", [True, False])
def test_functional_and_subclass_forms_live_side_by_side(functional_first):
    bases = FastModel.__bases__

    class Middle(FastModel):
        pass

    def graph_of_middle():
        class Graph(Middle):
            pass

        return functional(Graph)

    def made_in_call():
        class Late(Middle):
            def __init__(self):
                super().__init__()
                self.top = keras.layers.Dense(2)

            def call(self, x):
                return self.top(x)

        return Late()

    makers = [
        functional,
        Subclass,
        graph_of_middle,
        made_in_call,
        lambda: FastModel.from_keras(sequential()),
        functional,
        Subclass,
        graph_of_middle,
        made_in_call,
    ]
    for make in makers if functional_first else makers[::-1]:
        model = trains(make())
        assert isinstance(model, FastModel)
    assert FastModel.__bases__ == bases
    assert Middle.__bases__ == (FastModel,)


def test_stock_keras_falls_into_the_trap():
    """The control: one functional instance spoils a class of stock Keras."""

    class Base(keras.Model):
        pass

    class Net(Base):
        def __init__(self):
            super().__init__()
            self.top = keras.layers.Dense(2)

        def call(self, x):
            return self.top(x)

    functional(Base)
    with pytest.raises(TypeError):
        Net()


def test_a_class_can_take_both_forms_at_once():
    class Both(FastModel):
        pass

    class Called(Both):
        def __init__(self):
            super().__init__()
            self.top = keras.layers.Dense(2)

        def call(self, x):
            return self.top(x)

    trains(Called())
    trains(functional(Both))
    # The functional class has joined the bases of `Both` itself, as the user
    # made an instance of it; a class beside it is not touched.
    trains(Subclass())


def test_inputs_and_outputs_by_name_and_nested():
    inputs = keras.Input((3,))
    inner = FastModel(
        inputs=inputs, outputs=keras.layers.Dense(2)(inputs), name="inner"
    )
    outer_inputs = keras.Input((3,))
    outer = FastModel(
        inputs=[outer_inputs], outputs={"y": inner(outer_inputs)}, name="outer"
    )
    assert (inner.name, outer.name) == ("inner", "outer")
    assert outer.get_layer("inner") is inner
    outer.compile("sgd", {"y": "mse"})
    outer.fit([X], {"y": Y}, **FIT)
    np.testing.assert_allclose(
        outer.predict([X], verbose=0)["y"], inner.predict(X, verbose=0)
    )


def test_an_unbuilt_sequential_inside_a_subclass():
    class Net(FastModel):
        def __init__(self):
            super().__init__()
            self.body = keras.Sequential([keras.layers.Dense(2)])

        def call(self, x):
            return self.body(x)

    loss = loss_of(Net())
    assert loss[1] < loss[0]


# from_keras.


class Stock(keras.Model):
    """A subclass of stock Keras with all that a user can override."""

    def __init__(self, factor=2.0, **kwargs):
        super().__init__(**kwargs)
        self.factor = factor
        self.drop = keras.layers.Dropout(0.5)
        self.top = keras.layers.Dense(2)

    def call(self, x, training=False, mask=None, scale=1.0):
        y = self.top(self.drop(x, training=training)) * scale
        return y if mask is None else y * mask

    def compute_loss(self, x, y, y_pred, sample_weight=None, training=True):
        loss = super().compute_loss(x, y, y_pred, sample_weight)
        return loss * self.factor

    def test_step(self, data):
        return {**super().test_step(data), "tested": tf.constant(5.0)}

    def get_config(self):
        return {"factor": self.factor}


class StockStep(Stock):
    def train_step(self, data):
        logs = dict(super().train_step(data))
        logs["stepped"] = tf.constant(7.0)
        return logs


SOURCES = {
    "sequential": sequential,
    "unbuilt sequential": lambda: sequential(built=False),
    "functional": lambda: functional(keras.Model),
    "subclass": Stock,
    "subclass with a train_step": StockStep,
}


def twins(make):
    """A stock model and a FastModel that shares with another, equal one."""
    keras.utils.set_random_seed(3)
    stock = make()
    stock(X)
    keras.utils.set_random_seed(3)
    source = make()
    model = FastModel.from_keras(source)
    model(X)
    model.set_weights(stock.get_weights())
    return stock, source, model


@pytest.mark.parametrize("name", SOURCES)
def test_from_keras_shares_layers_and_trains_as_the_source_would(name):
    stock, source, model = twins(SOURCES[name])
    assert isinstance(model, FastModel)
    assert not model.compiled and not source.compiled
    assert type(source) is type(stock)
    for ours, theirs in zip(model.layers[::-1], source.layers[::-1]):
        assert ours is theirs
    np.testing.assert_array_equal(model(X), stock(X))
    np.testing.assert_array_equal(source(X), stock(X))
    options = {"loss": "mse", "metrics": ["mae"]}
    stock.compile(keras.optimizers.SGD(0.1), run_eagerly=True, **options)
    model.compile(keras.optimizers.SGD(0.1), **options)
    keras.utils.set_random_seed(4)
    expected = stock.fit(X, Y, epochs=2, **FIT).history
    keras.utils.set_random_seed(4)
    got = model.fit(X, Y, epochs=2, **FIT).history
    assert got.keys() == expected.keys()
    if "subclass" not in name:
        # Dropout draws from a seed that each layer was given when it was made.
        for key in got:
            np.testing.assert_allclose(got[key], expected[key], atol=1e-6)
        np.testing.assert_allclose(
            model.get_weights()[0], stock.get_weights()[0], atol=1e-6
        )
    # The source trains along, and its own compiled state is its own.
    np.testing.assert_array_equal(
        source.get_weights()[0], model.get_weights()[0]
    )
    assert not source.compiled
    assert getattr(source, "optimizer", None) is None
    source.compile("adam", "mse")
    assert type(model.optimizer).__name__ == "SGD"
    evaluated = model.evaluate(X, Y, verbose=0, return_dict=True)
    expected = stock.evaluate(X, Y, verbose=0, return_dict=True)
    assert evaluated.keys() == expected.keys()


def test_from_keras_keeps_further_arguments_of_call():
    source = Stock()
    model = FastModel.from_keras(source)
    plain = model(X)
    np.testing.assert_allclose(model(X, scale=3.0), 3 * plain, rtol=1e-6)
    np.testing.assert_allclose(model(X, mask=tf.zeros(())), 0 * plain)
    assert np.abs(model(X, training=True) - plain).max() > 1e-3
    assert isinstance(model, Stock)
    assert model.factor == 2.0


def test_from_keras_of_a_nested_model():
    def make():
        inner = sequential()
        inputs = keras.Input((3,))
        hidden = inner(inputs)
        return keras.Model(inputs, functional2(hidden))

    def functional2(hidden):
        inputs = keras.Input((2,))
        model = keras.Model(inputs, keras.layers.Dense(2)(inputs))
        return model(hidden)

    stock, source, model = twins(make)
    np.testing.assert_array_equal(model(X), stock(X))
    np.testing.assert_allclose(loss_of(model), loss_of(stock), atol=1e-6)


def test_from_keras_of_a_fast_model_is_that_model():
    model = functional()
    assert FastModel.from_keras(model) is model


def test_from_keras_of_a_functional_subclass_with_a_step_of_its_own():
    class Net(keras.Model):
        def train_step(self, data):
            return {**super().train_step(data), "mine": tf.constant(1.0)}

    model = FastModel.from_keras(functional(Net))
    model.compile("sgd", "mse")
    assert model.fit(X, Y, **FIT).history["mine"] == [1.0]


def test_from_keras_of_a_model_that_is_built_later():
    layers = [keras.layers.Dense(3), keras.layers.Dense(2)]
    model = FastModel.from_keras(keras.Sequential(layers))
    model.build((None, 3))
    assert model.built and all(layer.built for layer in layers)
    model.compile("sgd", "mse")
    model.fit(X, Y, batch_size=5, verbose=0)
    assert model.optimizer.iterations == -(-len(X) // 5)


def test_from_keras_twice_of_one_source():
    source = Stock()
    a, b = FastModel.from_keras(source), FastModel.from_keras(source)
    assert a.top is b.top
    trains(a)
    trains(b)


# Overrides, in each form.


class Calls(FastModel):
    def train_step(self, data):
        return {**super().train_step(data), "mine": tf.constant(1.0)}


class Fully(FastModel):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x=x, y=y, y_pred=y_pred)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, y_pred)
        return {m.name: m.result() for m in self.metrics}


class Evaluated(FastModel):
    def test_step(self, data):
        x, y = data
        return {"sum": tf.reduce_sum(self(x, training=False) - y) * 0 + 3.0}


class LossWithTraining(FastModel):
    def compute_loss(self, x, y, y_pred, sample_weight, training=True):
        y_pred = keras.ops.cast(y_pred, "float32")
        loss = keras.ops.mean((y_pred - y) ** 2)
        return loss if training else 100 * loss


class LossWithoutTraining(FastModel):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None):
        return keras.ops.mean((y_pred - y) ** 2) + 1


class Metrics(FastModel):
    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        logs = super().compute_metrics(x, y, y_pred, sample_weight)
        return {**logs, "mine": logs["loss"] * 0 + 2.0}


class MetricsProperty(FastModel):
    resets = 0

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        if not hasattr(self, "own"):
            raise AssertionError
        self.own.update_state(keras.ops.mean(y_pred) * 0 + 4.0)
        return {m.name: m.result() for m in self.metrics}

    @property
    def metrics(self):
        found = [m for m in super().metrics if m.name != "compile_metrics"]
        return found

    def reset_metrics(self):
        type(self).resets += 1
        super().reset_metrics()


PERF = [None, "auto", fk.perf.Microbatch(3), fk.perf.Accumulate(2)]


@pytest.mark.parametrize("perf", PERF, ids=str)
@pytest.mark.parametrize(
    "cls",
    [
        Evaluated,
        LossWithTraining,
        LossWithoutTraining,
        Metrics,
        MetricsProperty,
    ],
)
def test_overrides_are_used(cls, perf):
    model = functional(cls)
    if cls is MetricsProperty:
        model.own = keras.metrics.Mean(name="own")
        cls.resets = 0
    before = model.get_weights()[0].copy()
    model.compile(keras.optimizers.SGD(0.1), "mse", perf=perf)
    right = np.mean((model.predict(X, verbose=0) - Y) ** 2)
    history = model.fit(X[:8], Y[:8], batch_size=8, verbose=0).history
    assert np.abs(model.get_weights()[0] - before).max() > 0
    evaluated = model.evaluate(X, Y, verbose=0, return_dict=True)
    if cls is Evaluated:
        assert evaluated == {"sum": 3.0}
    if cls is LossWithTraining:
        after = np.mean((model.predict(X, verbose=0) - Y) ** 2)
        assert evaluated["loss"] == pytest.approx(100 * after, rel=1e-5)
        assert history["loss"][0] < 10 * right
    if cls is LossWithoutTraining:
        assert history["loss"][0] > 1
    if cls is Metrics:
        assert history["mine"] == [2.0]
    if cls is MetricsProperty:
        assert history["own"] == [4.0]
        assert cls.resets == 2


@pytest.mark.parametrize("perf", [None, "auto", fk.perf.Microbatch(3)], ids=str)
def test_a_step_that_calls_ours_adds_to_it(perf):
    keras.utils.set_random_seed(1)
    expected = loss_of(functional(), perf=perf)
    keras.utils.set_random_seed(1)
    model = functional(Calls)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FastKerasWarning)
        got = loss_of(model, perf=perf)
    assert got == expected
    assert model.history.history["mine"] == [1.0, 1.0]


@pytest.mark.parametrize("perf", [None, "auto"], ids=str)
def test_a_step_fully_of_the_users_own_trains_as_in_keras(perf):
    class StockFully(keras.Model):
        train_step = Fully.train_step

    keras.utils.set_random_seed(1)
    expected = loss_of(functional(StockFully))
    keras.utils.set_random_seed(1)
    got = loss_of(functional(Fully), perf=perf)
    np.testing.assert_allclose(got, expected, atol=1e-6)


def test_features_that_an_own_step_leaves_out_are_named_once():
    model = functional(Fully)
    model.compile("sgd", "mse", perf=fk.perf.ClipByGlobalNorm(1.0))
    with pytest.warns(UserWarning, match="ClipByGlobalNorm.*not in eff") as r:
        model.fit(X, Y, epochs=3, **FIT)
        model.fit(X, Y, epochs=1, **FIT)
    assert len([w for w in r if "not in effect" in str(w.message)]) == 1
    assert "Fully.train_step" in str(r[0].message)


@pytest.mark.parametrize("cls", [Calls, Fully])
def test_accumulate_with_an_own_step_is_refused_at_compile(cls):
    model = functional(cls)
    with pytest.raises(ValueError, match=f"Accumulate.*{cls.__name__}"):
        model.compile("sgd", "mse", perf=fk.perf.Accumulate(2))
    assert not model.compiled


# f1: a step that forgets the loss scale.


class Forgets(FastModel):
    """As the guides of Keras write it."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=y, y_pred=self(x, training=True))
            loss = self.scaled(loss)
        weights = self.trainable_weights
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return {"loss": loss}

    def scaled(self, loss):
        return loss


class Remembers(Forgets):
    def scaled(self, loss):
        return self.optimizer.scale_loss(loss)


@pytest.fixture
def half():
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    yield
    keras.config.set_dtype_policy(before)


def seeded(cls, **compiled):
    keras.utils.set_random_seed(1)
    model = functional(cls)
    model.compile(keras.optimizers.SGD(0.1), "mse", **compiled)
    return model


def first_update(cls, **compiled):
    model = seeded(cls, **compiled)
    before = model.get_weights()[0].copy()
    model.fit(X[:4], Y[:4], batch_size=4, verbose=0)
    return model.get_weights()[0] - before


@pytest.mark.parametrize("perf", [None, "auto"], ids=str)
@pytest.mark.parametrize("eagerly", [False, True])
def test_a_step_that_never_scales_the_loss_is_named(half, perf, eagerly):
    given = {"perf": perf, "run_eagerly": eagerly}
    with warnings.catch_warnings():
        warnings.simplefilter("error", FastKerasWarning)
        right = first_update(Remembers, **given)
        ours = first_update(LossWithTraining, **given)
    with pytest.warns(UserWarning, match="Forgets.train_step.*never scales"):
        wrong = first_update(Forgets, **given)
    with pytest.warns(FastKerasWarning) as told:
        # Two shapes are traced apart.
        seeded(Forgets, **given).fit(X[:6], Y[:6], 4, verbose=0)
    assert len(told) == 1
    np.testing.assert_allclose(ours, right, atol=1e-3 * np.abs(right).max())
    ratio = np.abs(wrong).max() / np.abs(right).max()
    assert 0.5 / 32768 < ratio < 2 / 32768


def test_the_first_update_in_half_precision_is_that_of_float32():
    single = first_update(LossWithTraining)
    keras.config.set_dtype_policy("mixed_float16")
    try:
        half = first_update(LossWithTraining)
    finally:
        keras.config.set_dtype_policy("float32")
    np.testing.assert_allclose(half, single, atol=1e-2 * np.abs(single).max())


def test_no_word_of_scaling_without_a_scale():
    with warnings.catch_warnings():
        warnings.simplefilter("error", FastKerasWarning)
        first_update(Forgets)


# d11: compiling in mid-fit.


class Recompiles(keras.callbacks.Callback):
    def __init__(self, compile, epoch=1, batch=0):
        super().__init__()
        self.compile = compile
        self.when = epoch, batch
        self.epoch = None

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch
        if self.when == (epoch, None):
            self.compile(self.model)

    def on_train_batch_end(self, batch, logs=None):
        if self.when == (self.epoch, batch):
            self.compile(self.model)


def bare(model):
    model.compile()


def run_with(callbacks, perf, epochs=4):
    keras.utils.set_random_seed(1)
    model = functional()
    model.compile(keras.optimizers.Adam(0.1), "mse", metrics=["mae"], perf=perf)
    history = model.fit(X, Y, epochs=epochs, callbacks=callbacks, **FIT)
    slots = [v.numpy() for v in model.optimizer.variables]
    return model, history.history, slots


MID = [
    "auto",
    [fk.perf.Accumulate(2), fk.perf.ClipByGlobalNorm(0.1)],
    "mixed_float16",
]


@functools.cache
def undisturbed(plan):
    return run_with([Recompiles(bare, epoch=99)], MID[plan])


@pytest.mark.parametrize(
    ("perf", "batch"),
    [(MID[0], None), (MID[0], 1), (MID[1], 1), (MID[2], None)],
    ids=str,
)
def test_a_bare_compile_in_mid_fit_changes_nothing(perf, batch):
    expected, history, slots = undisturbed(MID.index(perf))
    model, got, ours = run_with([Recompiles(bare, 2, batch)], perf)
    assert got.keys() == history.keys()
    for key in got:
        np.testing.assert_allclose(got[key], history[key], atol=1e-5)
    for a, b in zip(ours, slots, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
    assert int(model.optimizer.iterations) == int(expected.optimizer.iterations)
    assert model.perf == expected.perf
    for a, b in zip(model._step.states, expected._step.states, strict=True):
        for name in a.variables:
            np.testing.assert_allclose(
                a.variables[name].numpy(), b.variables[name].numpy()
            )


def test_stock_keras_fails_after_a_compile_in_mid_fit():
    model = functional(keras.Model)
    model.compile("sgd", "mse")
    again = Recompiles(lambda m: m.compile("sgd", "mse"))
    with pytest.raises(TypeError, match="not callable"):
        model.fit(X, Y, epochs=3, callbacks=[again], **FIT)


@pytest.mark.parametrize("batch", [None, 1])
def test_a_full_compile_in_mid_fit_goes_on_with_the_new(batch):
    def full(model):
        model.compile(keras.optimizers.SGD(0.0), "mae", perf="clip_by_value")

    model, history, _ = run_with([Recompiles(full, 2, batch)], "auto")
    assert int(model.optimizer.iterations) == (6 if batch is None else 4)
    assert len(history["loss"]) == 4
    assert len(history["grad_norm"]) == 2


def test_unfreezing_in_mid_fit():
    def unfreeze(model):
        model.layers[-1].trainable = True
        model.compile(keras.optimizers.SGD(0.1), "mse")

    def with_the_old_optimizer(model):
        model.layers[-1].trainable = True
        model.compile(model.optimizer, "mse")

    def bare_with_the_old_optimizer(model):
        model.layers[-1].trainable = True
        model.compile()

    def make():
        inputs = keras.Input((3,))
        hidden = keras.layers.Dense(2)(inputs)
        model = FastModel(inputs, keras.layers.Dense(2)(hidden))
        model.layers[-1].trainable = False
        model.compile(keras.optimizers.SGD(0.1), "mse")
        return model, model.layers[-1].get_weights()[0].copy()

    model, before = make()
    model.fit(X, Y, epochs=3, callbacks=[Recompiles(unfreeze)], **FIT)
    assert np.abs(model.layers[-1].get_weights()[0] - before).max() > 0
    for again in (with_the_old_optimizer, bare_with_the_old_optimizer):
        model, before = make()
        with pytest.raises(ValueError, match="new optimizer object"):
            model.fit(X, Y, epochs=3, callbacks=[Recompiles(again)], **FIT)
        np.testing.assert_array_equal(model.layers[-1].get_weights()[0], before)


def test_handing_a_fit_over_to_keras_is_refused_in_words():
    def to_keras(model):
        model.compile("sgd", "mse", perf=None)

    for batch in (None, 1):
        with pytest.raises(ValueError, match="under way.*Received: perf=None"):
            run_with([Recompiles(to_keras, 1, batch)], "auto")
