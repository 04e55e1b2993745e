"""What every feature promises, asked of each one in `perf.FEATURES`.

A new feature joins with one line in `SETTINGS`.
"""

import dataclasses
import importlib
import itertools
import pathlib
import re
import warnings

import keras
import numpy as np
import pytest

import fastkeras as fk
from fastkeras import perf
from tests.perf import _tools

HERE = pathlib.Path(__file__).parent


@dataclasses.dataclass(frozen=True)
class Setting:
    """How a feature is tried here.

    Attributes:
        feature: The feature.
        reason: String, why these arguments.
        batch: Rows of the batch that plain Keras is given for one update.
        options: Dict, arguments of the optimizer of plain Keras.
        frozen: Names of layers that plain Keras does not train.
        tolerance: Between two ways to run the same thing.
        plain: Tolerance to plain Keras.
    """

    feature: perf.Feature
    reason: str
    batch: int = 4
    options: dict = dataclasses.field(default_factory=dict)
    frozen: tuple = ()
    tolerance: float = 1e-6
    plain: float = 1e-6


SETTINGS = {
    "Accumulate": Setting(
        perf.Accumulate(2), "the last window holds one batch of 3", batch=8
    ),
    "AdaptiveClip": Setting(
        perf.AdaptiveClip(1e6), "Keras has none to compare with; never clips"
    ),
    "ClipByGlobalNorm": Setting(
        perf.ClipByGlobalNorm(0.1), "clips", options=dict(global_clipnorm=0.1)
    ),
    "ClipByNorm": Setting(
        perf.ClipByNorm(0.1), "clips", options=dict(clipnorm=0.1)
    ),
    "ClipByValue": Setting(
        perf.ClipByValue(0.02), "clips", options=dict(clipvalue=0.02)
    ),
    "Microbatch": Setting(perf.Microbatch(3), "3 divides no batch of 4"),
    "MixedPrecision": Setting(
        perf.MixedPrecision("mixed_float16", initial_scale=64.0),
        "float16 is the harder; the scale grows and falls by its own tests; "
        "half precision rounds to 1e-3 whatever runs it",
        tolerance=2e-3,
        plain=1e-2,
    ),
    "PadBatches": Setting(
        perf.PadBatches(), "the last batch holds 3 rows and is filled up to 4"
    ),
    "Rematerialize": Setting(
        perf.Rematerialize("hidden_0"),
        "it is there whether the model is built or not",
    ),
    "SkipNonFinite": Setting(perf.SkipNonFinite(), "it has no argument"),
    "Watch": Setting(
        perf.Watch(exclude="hidden_0"),
        "it can't be made without an argument",
        frozen=("hidden_0",),
    ),
}
BY_NAME = {**perf.NAMES}
FEATURES = list(SETTINGS)
ROWS = 19
EPOCHS = 2


def optimizer(**options):
    return keras.optimizers.Adam(0.01, **options)


def new_model(cls=fk.FastModel):
    keras.utils.set_random_seed(5)
    return cls(*_tools.dense_graph((5, 4)))


def compiled(feature, **options):
    model = new_model()
    model.compile(
        optimizer(), "sparse_categorical_crossentropy", perf=feature, **options
    )
    return model


def fit(model, epochs=EPOCHS, batch=4, rows=ROWS):
    x, y = _tools.classes_data(rows)
    return model.fit(
        x, y, batch_size=batch, epochs=epochs, shuffle=False, verbose=0
    ).history


def state(model):
    """The features' saved variables."""
    return {
        name: np.asarray(variable)
        for s in model._step.states
        for name, variable in s.variables.items()
    }


@pytest.fixture(scope="module")
def graph_runs():
    """Feature name to a model that was trained in the graph, and its logs."""
    runs = {}

    def run(name):
        if name not in runs:
            model = compiled(SETTINGS[name].feature, jit_compile=False)
            logs = fit(model)
            runs[name] = (
                model.get_weights(),
                _tools.slots(model.optimizer),
                logs,
            )
        return runs[name]

    return run


@pytest.fixture(scope="module")
def plain_runs():
    """Weights by path and logs of plain Keras; several settings share one."""
    runs = {}

    def run(setting):
        key = setting.batch, setting.frozen, repr(setting.options)
        if key not in runs:
            plain = new_model(keras.Model)
            for layer in setting.frozen:
                plain.get_layer(layer).trainable = False
            plain.compile(
                optimizer(**setting.options),
                "sparse_categorical_crossentropy",
                run_eagerly=True,
            )
            logs = fit(plain, batch=setting.batch)
            by_path = {v.path: np.asarray(v) for v in plain.variables}
            runs[key] = by_path, logs
        return runs[key]

    return run


def test_every_feature_has_a_setting_with_a_reason():
    assert SETTINGS.keys() == perf.FEATURES.keys()
    assert all(s.reason for s in SETTINGS.values())
    assert all(type(s.feature).__name__ == n for n, s in SETTINGS.items())


# The value.


@pytest.mark.parametrize("name", FEATURES)
def test_defaults_construct(name):
    cls = perf.FEATURES[name]
    if name == "Watch":
        with pytest.raises(ValueError, match="`Watch` needs `include` or"):
            cls()
    else:
        assert isinstance(cls(), perf.Feature)


@pytest.mark.parametrize("name", FEATURES)
def test_it_is_a_value(name):
    feature = SETTINGS[name].feature
    again = eval(repr(feature), vars(perf).copy())
    assert again == feature
    assert again is not feature
    assert hash(again) == hash(feature)
    assert feature != object()
    for field in dataclasses.fields(feature):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(feature, field.name, None)
    with pytest.raises(dataclasses.FrozenInstanceError):
        feature.something_new = 1


@pytest.mark.parametrize("name", FEATURES)
def test_another_argument_makes_another_value(name):
    feature = SETTINGS[name].feature
    for field in dataclasses.fields(feature):
        value = getattr(feature, field.name)
        changes = {
            "policy": {"policy": "mixed_bfloat16"},
            "remainder": {"remainder": "drop"},
            "include": {"include": "head"},
            "exclude": {"exclude": "head"},
            "to": {"to": None, "multiple_of": 8},
            "multiple_of": {"multiple_of": 8},
            "buckets": {"buckets": (8,)},
            "layers": {"layers": "head"},
            "mode": {"layers": None, "mode": "all"},
            "budget_bytes": {"budget_bytes": 1}
            | {
                "Microbatch": {"size": "auto"},
                "Rematerialize": {"layers": None, "mode": "budget"},
            }.get(name, {}),
        }.get(field.name) or {field.name: value + 1}
        assert dataclasses.replace(feature, **changes) != feature


@pytest.mark.parametrize("name", FEATURES)
def test_it_comes_back_from_its_config(name):
    feature = SETTINGS[name].feature
    assert type(feature).from_config(feature.get_config()) == feature
    config = keras.saving.serialize_keras_object(feature)
    assert config["registered_name"] == f"fastkeras>{name}"
    assert keras.saving.deserialize_keras_object(config) == feature


def test_each_name_makes_its_feature():
    for text, make in BY_NAME.items():
        if text == "watch":
            with pytest.raises(ValueError, match="`Watch` needs"):
                make()
            continue
        model = new_model()
        model.compile("sgd", "mse", perf=text)
        assert model.perf.features == (make(),)
    made = {type(m()).__name__ for t, m in BY_NAME.items() if t != "watch"}
    assert made | {"Watch"} == perf.FEATURES.keys()


# The card.


@pytest.mark.parametrize("name", FEATURES)
def test_the_card_says_what_the_class_says(name):
    cls = perf.FEATURES[name]
    card = importlib.import_module(cls.__module__).__doc__
    headings = (
        "Does|When it helps|Mathematics|Cost|Conflicts|Measured|Reference"
    )
    assert len(re.findall(rf"^({headings}): \S", card, re.MULTILINE)) == 7
    (claim,) = re.findall(r"^Mathematics: (same|changed)\b", card, re.MULTILINE)
    assert claim == cls.mathematics
    # Every optimizer option it refuses is in the card.
    assert all(option in card for option in cls.owns)


@pytest.mark.parametrize("name", FEATURES)
def test_it_has_a_test_file(name):
    module = perf.FEATURES[name].__module__.rpartition(".")[2]
    assert (HERE / f"test_{module}.py").is_file()


# The numbers.


@pytest.mark.parametrize("name", FEATURES)
def test_it_equals_plain_keras(name, graph_runs, plain_runs):
    setting = SETTINGS[name]
    by_path, logs = plain_runs(setting)
    weights, _, own = graph_runs(name)
    new = new_model()
    right = [by_path[v.path] for v in new.variables]
    assert _tools.difference(new, weights) > 1e-2
    assert _tools.difference(right, weights) < setting.plain
    np.testing.assert_allclose(logs["loss"], own["loss"], rtol=setting.plain)


@pytest.mark.parametrize("name", FEATURES)
def test_it_runs_eagerly(name, graph_runs):
    model = compiled(SETTINGS[name].feature, run_eagerly=True)
    logs = fit(model)
    weights, slots, right = graph_runs(name)
    tolerance = SETTINGS[name].tolerance
    assert _tools.difference(weights, model) < tolerance
    assert _tools.difference(slots, _tools.slots(model.optimizer)) < tolerance
    assert _tools.logs_difference(right, logs) < tolerance


# XLA takes seconds to compile each; these three differ from ClipByGlobalNorm
# in a few elementwise operations.
LONG = ("AdaptiveClip", "ClipByNorm", "ClipByValue")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=[pytest.mark.slow] if n in LONG else [])
        for n in FEATURES
    ],
)
def test_xla_gives_the_same(name):
    # Equal batches: XLA would compile the step again for the last.
    eager = compiled(SETTINGS[name].feature, run_eagerly=True)
    right = fit(eager, rows=16)
    model = compiled(SETTINGS[name].feature, jit_compile=True)
    logs = fit(model, rows=16)
    tolerance = max(1e-5, SETTINGS[name].tolerance)
    assert _tools.difference(eager, model) < tolerance
    assert _tools.logs_difference(right, logs) < tolerance


@pytest.mark.parametrize("name", FEATURES)
def test_four_steps_in_one_execution_give_the_same(name, graph_runs):
    model = compiled(SETTINGS[name].feature, steps_per_execution=4)
    logs = fit(model)
    weights, slots, right = graph_runs(name)
    tolerance = SETTINGS[name].tolerance
    assert _tools.difference(weights, model) < tolerance
    assert _tools.difference(slots, _tools.slots(model.optimizer)) < tolerance
    assert _tools.logs_difference(right, logs) < tolerance


class Subclass(fk.FastModel):
    """Not built before the first batch."""

    def __init__(self):
        super().__init__()
        self.hidden_0 = keras.layers.Dense(5, "tanh", name="hidden_0")
        self.head = keras.layers.Dense(3, "softmax", name="head")

    def call(self, x):
        return self.head(self.hidden_0(x))


@pytest.mark.parametrize("name", FEATURES)
def test_a_model_that_is_not_built_trains_the_same(name):
    x, _ = _tools.classes_data(4)
    runs = []
    for built in (True, False):
        keras.utils.set_random_seed(6)
        model = Subclass()
        if built:
            model(x)
        model.compile(
            optimizer(),
            "sparse_categorical_crossentropy",
            # The reference needs no graph.
            run_eagerly=built,
            perf=SETTINGS[name].feature,
        )
        assert model.built is built
        # Another shape for the last batch, and a second epoch.
        runs.append((model, fit(model, rows=7)))
    (first, right), (second, logs) = runs
    assert _tools.difference(first, second) < SETTINGS[name].tolerance
    assert _tools.logs_difference(right, logs) < SETTINGS[name].tolerance


def test_a_model_that_only_says_that_it_is_built_trains():
    model = Subclass()
    with pytest.warns(UserWarning, match="despite not being actually built"):
        model.build((None, 4))
    assert model.built and not model.variables
    model.compile(optimizer(), "sparse_categorical_crossentropy")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        fit(model, epochs=1)
    start = model.get_weights()
    fit(model, epochs=1)
    assert _tools.difference(start, model) > 1e-3


# Saved and loaded.


@pytest.mark.parametrize("name", FEATURES)
def test_ten_steps_saved_and_ten_more_are_twenty(name, tmp_path):
    setting = SETTINGS[name]
    first = compiled(setting.feature, run_eagerly=True)
    fit(first, 2)
    first.save(tmp_path / "model.keras")
    second = keras.saving.load_model(tmp_path / "model.keras")
    assert second.perf == first.perf
    assert second.perf.features == (setting.feature,)
    assert state(second) == state(first)
    assert _tools.difference(first, second) == 0
    between = second.get_weights()
    second.run_eagerly = True
    for model in (first, second):
        fit(model, 2)
    assert _tools.difference(between, second) > 1e-3
    assert _tools.difference(first, second) < 1e-6
    slots = [_tools.slots(m.optimizer) for m in (first, second)]
    assert _tools.difference(*slots) < 1e-6
    assert int(second.optimizer.iterations) == int(first.optimizer.iterations)
    assert state(second) == state(first)


# Refused.


@pytest.mark.parametrize(
    ("name", "option"),
    [(n, o) for n, cls in perf.FEATURES.items() for o in cls.owns],
)
def test_what_it_owns_is_refused_elsewhere(name, option):
    value = {"gradient_accumulation_steps": 2}.get(option, 1.0)
    if option == "LossScaleOptimizer":
        given = keras.optimizers.LossScaleOptimizer(optimizer())
    else:
        given = optimizer(**{option: value})
    model = new_model()
    model.compile("sgd", "mse", perf="auto")
    before = model.perf
    with pytest.raises(ValueError) as error:
        model.compile(given, "mse", perf=SETTINGS[name].feature)
    text = str(error.value)
    assert f"`{name}` in `perf` and `{option}` of the optimizer" in text
    assert f"perf={SETTINGS[name].feature!r}" in text
    assert model.perf is before


@pytest.mark.parametrize("name", FEATURES)
def test_twice_the_same_stage_is_refused(name):
    feature = SETTINGS[name].feature
    stage = feature.stage.name
    with pytest.raises(ValueError) as error:
        new_model().compile("sgd", "mse", perf=[feature, feature])
    assert str(error.value) == (
        f"`perf` takes one feature of stage {stage}. Received: {feature!r} and "
        f"{feature!r}. Leave one of them out."
    )


# Together.


def pairs():
    for a, b in itertools.combinations(FEATURES, 2):
        if perf.FEATURES[a].stage != perf.FEATURES[b].stage:
            yield a, b


@pytest.mark.parametrize(("a", "b"), list(pairs()))
def test_two_together_train(a, b):
    features = [SETTINGS[n].feature for n in (b, a)]
    model = compiled(features, run_eagerly=True)
    start = model.get_weights()
    # A window of a whole batch and a short one.
    logs = fit(model, epochs=1, rows=7)
    assert all(np.all(np.isfinite(w)) for w in model.get_weights())
    assert _tools.difference(start, model) > 1e-3
    assert all(np.all(np.isfinite(values)) for values in logs.values())
    stages = [f.stage for f in model.perf.features]
    assert stages == sorted(stages)


ALL = [
    perf.PadBatches(),
    perf.Accumulate(2),
    perf.Microbatch(3),
    perf.Watch(exclude="hidden_0"),
    perf.Rematerialize("hidden_0"),
    perf.MixedPrecision(initial_scale=64.0),
    perf.SkipNonFinite(),
    perf.ClipByGlobalNorm(0.1),
]


@pytest.mark.parametrize(
    "jit", [False, pytest.param(True, marks=pytest.mark.slow)]
)
def test_all_together_equal_plain_keras(jit):
    assert {f.stage for f in ALL} == set(perf.Stage)
    model = compiled(ALL[::-1], jit_compile=jit)
    plain = new_model(keras.Model)
    plain.get_layer("hidden_0").trainable = False
    plain.compile(
        optimizer(global_clipnorm=0.1),
        "sparse_categorical_crossentropy",
        run_eagerly=True,
    )
    right = fit(plain, batch=8)
    logs = fit(model)
    by_path = {v.path: np.asarray(v) for v in plain.variables}
    assert (
        _tools.difference(
            [by_path[v.path] for v in model.variables if v.path in by_path],
            [v.numpy() for v in model.variables if v.path in by_path],
        )
        < 1e-2
    )
    np.testing.assert_allclose(logs["loss"], right["loss"], rtol=1e-2)
    assert logs["grad_norm_max"][0] > 0.1
