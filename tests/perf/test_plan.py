"""From `perf=` to a plan, through `compile`."""

import keras
import pytest

import fastkeras as fk
from fastkeras import perf
from tests.perf import _tools


def plan_of(value, **options):
    model = fk.FastModel(*_tools.dense_graph())
    model.compile("sgd", "mse", perf=value, **options)
    return model.perf


A = perf.Accumulate
C = perf.ClipByGlobalNorm


@pytest.mark.parametrize(
    ("value", "features"),
    [
        ("auto", ()),
        ([], ()),
        ((), ()),
        (["auto"], ()),
        ("accumulate", (A(),)),
        (A(4), (A(4),)),
        ([A(4)], (A(4),)),
        ((A(4), "auto"), (A(4),)),
        ("clip_by_global_norm", (C(),)),
        ("mixed_precision", (perf.MixedPrecision(),)),
        ("mixed_float16", (perf.MixedPrecision("mixed_float16"),)),
        ("mixed_bfloat16", (perf.MixedPrecision("mixed_bfloat16"),)),
        # By stage, whatever the order.
        (["clip_by_global_norm", A(4)], (A(4), C())),
        ([A(4), "clip_by_global_norm"], (A(4), C())),
        (
            ["skip_non_finite", "mixed_float16", "microbatch"],
            (perf.Microbatch(), perf.MixedPrecision(), perf.SkipNonFinite()),
        ),
    ],
)
def test_values(value, features):
    plan = plan_of(value)
    assert plan.features == features
    assert not plan.is_keras
    assert plan.execution == perf.Execution()


def test_none_is_keras_itself():
    plan = plan_of(None)
    assert plan.is_keras
    assert plan.features == ()
    assert str(plan) == "Plan: Keras itself (perf=None)"


def test_the_default_is_auto_and_stays_what_it_was():
    model = fk.FastModel(*_tools.dense_graph())
    assert model.perf == plan_of("auto")
    model.compile("sgd", "mse")
    assert model.perf == plan_of("auto")
    model.compile("sgd", "mse", perf=A(4))
    model.compile("adam", "mse")
    assert model.perf.features == (A(4),)
    model.compile("adam", "mse", perf=None)
    model.compile("adam", "mse")
    assert model.perf.is_keras


def test_a_plan_says_what_it_does():
    plan = plan_of([C(0.5), A(8), perf.Execution(jit=False)])
    assert str(plan) == (
        "Plan:\n"
        "  Accumulate(steps=8, remainder='flush'): mathematics same\n"
        "  ClipByGlobalNorm(max_norm=0.5): mathematics changed\n"
        f"  {perf.Execution(jit=False)!r}"
    )


@pytest.mark.parametrize(
    "value", [None, "auto", A(3), [C(2.0), A(3), perf.Execution(jit=False)]]
)
def test_a_plan_is_made_again_from_its_config(value):
    plan = plan_of(value)
    config = keras.saving.deserialize_keras_object(plan.get_config())
    assert plan_of(config) == plan


@pytest.mark.parametrize(
    ("value", "nearest"),
    [
        ("acumulate", "accumulate"),
        ("mixed_float_16", "mixed_float16"),
        ("clip_global_norm", "clip_by_global_norm"),
        ("Microbatch", "microbatch"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(value, nearest):
    for given in (value, ["auto", value]):
        with pytest.raises(ValueError) as error:
            plan_of(given)
        text = str(error.value)
        assert text.startswith("`perf` must be one of 'auto', 'accumulate', ")
        assert text.endswith(
            f"Received: perf={value!r}. Did you mean {nearest!r}?"
        )


def test_a_name_like_no_other_gets_no_guess():
    with pytest.raises(ValueError, match=r"Received: perf='zzzzzz'\.$"):
        plan_of("zzzzzz")


@pytest.mark.parametrize(
    "value", [3, True, {"accumulate": 4}, [None], [[A(2)]], object(), 1.5]
)
def test_wrong_types(value):
    with pytest.raises(TypeError) as error:
        plan_of(value)
    text = str(error.value)
    assert text.startswith(
        "`perf` takes None, 'auto', features, their names, `Execution`, or a "
        "list of these. Received: "
    )
    assert text.endswith(
        'Write, for example, perf="auto" or perf=[perf.Accumulate(4)].'
    )


def test_a_class_is_not_an_instance():
    for cls in (A, perf.Execution):
        with pytest.raises(TypeError) as error:
            plan_of([cls])
        assert str(error.value).endswith(f"Make an instance: {cls.__name__}().")


def test_one_stage_once():
    with pytest.raises(ValueError) as error:
        plan_of(["clip_by_norm", A(2), C(2.0)])
    assert str(error.value) == (
        "`perf` takes one feature of stage CLIP. Received: "
        "ClipByNorm(max_norm=1.0) and ClipByGlobalNorm(max_norm=2.0). Leave "
        "one of them out."
    )


def test_one_execution():
    with pytest.raises(ValueError, match="`perf` takes one `Execution`"):
        plan_of([perf.Execution(), perf.Execution(jit=True)])


def test_what_is_refused_changes_nothing():
    model = fk.FastModel(*_tools.dense_graph())
    optimizer = keras.optimizers.SGD(0.25)
    model.compile(optimizer, "mse", perf="mixed_float16")
    plan, policy = model.perf, model.get_layer("hidden_0").dtype_policy
    for bad in ("nothing", [A(2), A(3)], perf.Watch("nothing"), 3):
        with pytest.raises((TypeError, ValueError)):
            model.compile("adam", "mae", perf=bad)
        assert model.perf is plan
        assert model.optimizer is optimizer
        assert model.get_layer("hidden_0").dtype_policy is policy
        x, y = _tools.classes_data(4)
        model.evaluate(x, y[:, None] * [1.0, 1, 1], verbose=0)


@pytest.mark.parametrize(
    ("option", "execution"),
    [
        (dict(jit_compile=True), perf.Execution(jit=False)),
        (dict(steps_per_execution=3), perf.Execution(steps_per_launch=2)),
    ],
)
def test_keras_options_and_execution_must_agree(option, execution):
    with pytest.raises(ValueError) as error:
        plan_of(execution, **option)
    (name,) = option
    assert f"`{name}` of `compile` and `" in str(error.value)
    assert "of `Execution` must agree" in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (dict(jit="yes"), ValueError, "`jit` must be 'auto', True or False"),
        (
            dict(steps_per_launch=0),
            ValueError,
            "`steps_per_launch` must be >= 1. Received: steps_per_launch=0",
        ),
        (
            dict(steps_per_launch=1.5),
            TypeError,
            "`steps_per_launch` must be an integer >= 1",
        ),
    ],
)
def test_bad_executions(arguments, error, text):
    with pytest.raises(error) as caught:
        perf.Execution(**arguments)
    assert str(caught.value).startswith(text)


def test_an_execution_is_a_value():
    value = perf.Execution(jit=True, steps_per_launch=4)
    assert eval(repr(value), vars(perf).copy()) == value
    config = keras.saving.serialize_keras_object(value)
    assert keras.saving.deserialize_keras_object(config) == value
    assert hash(value) == hash(perf.Execution.from_config(value.get_config()))
