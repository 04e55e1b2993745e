"""Training chosen variables: which, and that no gradient is taken of others."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import fastkeras as fk
from fastkeras.perf import Watch
from tests.perf import _tools

ALL = [
    "hidden_0/kernel",
    "hidden_0/bias",
    "hidden_1/kernel",
    "hidden_1/bias",
    "head/kernel",
    "head/bias",
]


def is_bias(variable):
    return variable.path.endswith("bias")


@keras.saving.register_keras_serializable("tests_of_watch")
def is_kernel(variable):
    return variable.path.endswith("kernel")


def new_model(perf="auto", optimizer="sgd", **options):
    keras.utils.set_random_seed(4)
    model = fk.FastModel(*_tools.dense_graph((5, 4), 1, None))
    model.compile(optimizer, "mse", perf=perf, **options)
    return model


def fit(model, rows=8):
    x, y = _tools.real_data(rows)
    return model.fit(x, y, batch_size=4, shuffle=False, verbose=0).history


def moved(model):
    """Paths of the variables that training changes."""
    before = model.get_weights()
    fit(model)
    return [
        v.path
        for v, old in zip(model.variables, before, strict=True)
        if np.any(np.asarray(v) != old)
    ]


@pytest.mark.parametrize(
    ("arguments", "paths"),
    [
        (dict(include="head"), ["head/kernel", "head/bias"]),
        (dict(exclude="hidden_0"), ALL[2:]),
        (dict(exclude=["hidden_0", "head"]), ALL[2:4]),
        (dict(include="*/bias"), ALL[1::2]),
        (dict(include="hidden_*", exclude="*/bias"), [ALL[0], ALL[2]]),
        (dict(include="head/kernel"), ["head/kernel"]),
        (dict(include=is_bias), ALL[1::2]),
        (dict(include=["hidden_1", is_kernel]), [ALL[0], *ALL[2:5]]),
    ],
)
def test_what_is_chosen_is_trained_and_nothing_else(arguments, paths):
    assert moved(new_model()) == ALL
    assert moved(new_model(Watch(**arguments))) == paths


def test_a_layer_stands_for_its_name():
    model = new_model()
    layer = model.get_layer("head")
    assert Watch(layer) == Watch("head")
    assert Watch(exclude=[layer, "hidden_0"]) == Watch(
        exclude=["head", "hidden_0"]
    )
    model.compile("sgd", "mse", perf=Watch(layer))
    assert moved(model) == ["head/kernel", "head/bias"]


def test_a_nested_model_is_a_layer():
    inner = keras.Sequential(
        [keras.layers.Dense(3), keras.layers.Dense(2)], name="inner"
    )
    inputs = keras.Input((4,))
    model = fk.FastModel(inputs, keras.layers.Dense(1)(inner(inputs)))
    model.compile("sgd", "mse", perf=Watch(exclude="inner"))
    head = model.layers[-1].name
    assert moved(model) == [f"{head}/kernel", f"{head}/bias"]


def test_the_chosen_train_as_if_the_rest_were_frozen():
    model = new_model(Watch(exclude="hidden_0"), keras.optimizers.Adam(0.01))
    plain = keras.Model(*_tools.dense_graph((5, 4), 1, None))
    plain.set_weights(model.get_weights())
    plain.get_layer("hidden_0").trainable = False
    plain.compile(keras.optimizers.Adam(0.01), "mse")
    for m in (plain, model):
        fit(m)
    by_path = {v.path: np.asarray(v) for v in plain.variables}
    for variable in model.variables:
        right = by_path[variable.path]
        np.testing.assert_allclose(np.asarray(variable), right, atol=1e-6)


@pytest.mark.parametrize("run", ["graph", "eager"])
def test_weight_decay_leaves_the_rest_alone(run):
    optimizer = keras.optimizers.AdamW(0.1, weight_decay=0.5)
    eager = run == "eager"
    watched = new_model(Watch("head"), optimizer, run_eagerly=eager)
    assert moved(watched) == ["head/kernel", "head/bias"]


# The backward pass.


def backward_layers(model, rows=4):
    """Names of the layers that have an operation in the backward pass."""
    x, y = _tools.real_data(rows)
    step = tf.function(model.train_step, autograph=False)
    graph = step.get_concrete_function((tf.constant(x), tf.constant(y))).graph
    parts = [op.name.split("/") for op in graph.get_operations()]
    backward = [p for p in parts if p[0].startswith("gradient_tape")]
    # A layer's second call has a number behind its name.
    scopes = {re.sub(r"_1$", "", n) for p in backward for n in p[1:]}
    return sorted(scopes & {"hidden_0", "hidden_1", "head"})


def test_the_whole_model_is_in_the_backward_pass():
    assert backward_layers(new_model()) == ["head", "hidden_0", "hidden_1"]


def test_a_prefix_that_is_not_watched_is_outside_the_backward_pass():
    model = new_model(Watch(exclude="hidden_0"))
    assert backward_layers(model) == ["head", "hidden_1"]
    assert backward_layers(new_model(Watch("head"))) == ["head"]


def test_a_frozen_prefix_is_outside_the_backward_pass_too():
    model = new_model()
    model.get_layer("hidden_0").trainable = False
    model.get_layer("hidden_1").trainable = False
    model.compile("sgd", "mse", perf="auto")
    assert backward_layers(model) == ["head"]


def test_a_frozen_layer_in_the_middle_is_passed_through():
    model = new_model(Watch(exclude="hidden_1"))
    assert backward_layers(model) == ["head", "hidden_0", "hidden_1"]
    paths = moved(new_model(Watch(exclude="hidden_1")))
    assert paths == [*ALL[:2], *ALL[4:]]


# BatchNormalization.


def norm_model(perf, trainable=True):
    inputs = keras.Input((4,))
    norm = keras.layers.BatchNormalization(name="norm", trainable=trainable)
    x = norm(inputs)
    model = fk.FastModel(inputs, keras.layers.Dense(1, name="head")(x))
    model.compile("sgd", "mse", perf=perf)
    return model


def test_batch_norm_left_out_still_moves_and_frozen_does_not():
    moving = ["norm/moving_mean", "norm/moving_variance"]
    head = ["head/kernel", "head/bias"]
    left_out = moved(norm_model(Watch(exclude="norm")))
    assert sorted(left_out) == sorted([*moving, *head])
    assert moved(norm_model("auto", trainable=False)) == head


# Saving.


def test_a_registered_function_is_saved(tmp_path):
    model = new_model(Watch(is_kernel, exclude=["head"]))
    model.save(tmp_path / "m.keras")
    loaded = keras.saving.load_model(tmp_path / "m.keras")
    assert loaded.perf.features == (Watch(is_kernel, exclude=["head"]),)
    assert moved(loaded) == [ALL[0], ALL[2]]


# Changes after compile.


def test_a_later_change_of_trainable_is_told():
    model = new_model()
    model.get_layer("hidden_1").trainable = False
    x, y = _tools.real_data(4)
    text = r"`trainable` of \['hidden_1'\] has changed since `compile`"
    for run in (
        lambda: fit(model),
        lambda: model.evaluate(x, y, verbose=0),
        lambda: model.train_on_batch(x, y),
    ):
        with pytest.warns(UserWarning, match=text) as seen:
            run()
        assert seen[0].filename == __file__
    with pytest.warns(UserWarning, match=text):
        assert moved(model) == ALL


# Errors.


def test_a_wrong_name_is_answered_with_the_nearest():
    for wrong, right in (
        ("hiden_0", "hidden_0"),
        ("head/kernell", "head/kernel"),
    ):
        with pytest.raises(ValueError) as error:
            new_model(Watch(wrong))
        assert str(error.value) == (
            "Each entry of `include` must match a trainable variable. "
            f"Received: include={wrong!r}. Did you mean {right!r}? Variables "
            "are named by path, such as 'hidden_0/kernel'."
        )


def test_a_function_that_matches_nothing_is_named():
    with pytest.raises(ValueError, match="exclude=<function .*nothing"):
        new_model(Watch(exclude=lambda nothing: False))


def test_nothing_left_to_train_is_refused():
    with pytest.raises(ValueError) as error:
        new_model(Watch("head", exclude="*"))
    assert str(error.value) == (
        "`Watch` must leave at least one trainable variable. Received: "
        "Watch(include=('head',), exclude=('*',)). Widen `include` or narrow "
        "`exclude`."
    )


@pytest.mark.parametrize("entry", [3, ["head", None], object()])
def test_wrong_types(entry):
    with pytest.raises(TypeError, match="`include` takes layers, names"):
        Watch(entry)
