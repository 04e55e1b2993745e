"""Every private name of Keras and TensorFlow in use still does what it did.

A name that has moved makes `fastkeras._lib.private` fail at import, so each is
looked up here by itself, in the source's own words: the failure names it.
"""

import ast
import importlib
import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.models import cloning

import fastkeras
from fastkeras._lib import private
from fastkeras._lib import private_forms
from fastkeras._lib import private_marks

FILES = pathlib.Path(fastkeras.__file__).parent.glob("_lib/private*.py")


def imported(text):
    """Yields `(module, name)` of what a source imports from private places."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            if node.module.startswith(("keras.src", "tensorflow.python")):
                for alias in node.names:
                    yield node.module, alias.name


def missing(module, name):
    """What is wrong with a private name, or None."""
    try:
        found = importlib.import_module(module)
    except ImportError:
        return f"{module} is gone"
    if hasattr(found, name):
        return None
    try:
        importlib.import_module(f"{module}.{name}")
    except ImportError:
        return f"{module}.{name} is gone"
    return None


IMPORTED = sorted(
    {name for f in FILES for name in imported(f.read_text(encoding="utf-8"))}
)


@pytest.mark.parametrize(("module", "name"), IMPORTED)
def test_the_name_is_there(module, name):
    assert missing(module, name) is None


def test_a_name_that_is_gone_is_named():
    assert missing("keras.src.losses.loss", "Lost") == (
        "keras.src.losses.loss.Lost is gone"
    )
    assert missing("keras.src.nowhere", "x") == "keras.src.nowhere is gone"
    source = "from keras.src.a import b\nfrom keras import ops"
    assert list(imported(source)) == [("keras.src.a", "b")]


@pytest.fixture
def model():
    inputs = keras.Input((3,))
    hidden = keras.layers.Dense(2, name="hidden")(inputs)
    model = keras.Model(inputs, keras.layers.Dense(1, name="head")(hidden))
    model.compile("sgd", "mse", metrics=["mae"])
    return model


X, Y = np.ones((4, 3), "float32"), np.zeros((4, 1), "float32")

# Attributes of Keras objects that the module reads: the owner, the name.
ATTRIBUTES = {
    "_call_has_training_arg": lambda m: m,
    "_compute_loss": lambda m: m,
    "_loss_tracker": lambda m: m,
    "_compile_loss": lambda m: m,
    "_flatten_layers": lambda m: m,
    "_distribute_strategy": lambda m: m,
    "_assert_compile_called": lambda m: m,
    "_get_metrics_result_or_logs": lambda m: m,
    "_should_eval": lambda m: m,
    "_initial_epoch": lambda m: m,
    "_flatten_metrics_in_order": lambda m: m,
    "_symbolic_build": lambda m: m,
    "_inputs_struct": lambda m: m,
    "_outputs_struct": lambda m: m,
    "_trainable_variables": lambda m: m.layers[-1],
    "_non_trainable_variables": lambda m: m.layers[-1],
    "_losses": lambda m: m.layers[-1],
    "_all_reduce_sum_gradients": lambda m: m.optimizer,
    "_trainable_variables_indices": lambda m: m.optimizer,
    "_var_key": lambda m: m.optimizer,
}


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_the_attribute_is_there(name, model):
    model.optimizer.build(model.trainable_variables)
    owner = ATTRIBUTES[name](model)
    assert hasattr(owner, name), f"{type(owner).__name__}.{name} is gone"


# And they behave.


def test_forward_passes_training_only_where_it_is_taken(model):
    class Plain(keras.Model):
        def call(self, x):
            return x

    assert private.forward(Plain(), tf.ones((1,)), training=True) == 1
    assert private.forward(model, X, training=True).shape == (4, 1)


def test_compute_loss_is_that_of_the_model(model):
    y_pred = model(X)
    loss = private.compute_loss(model, X, Y, y_pred, None, True)
    np.testing.assert_allclose(loss, np.mean(np.asarray(y_pred) ** 2), 1e-6)


def test_the_loss_container_can_be_replaced(model):
    container = private.compile_loss(model)
    assert isinstance(container, private.CompileLoss)
    private.set_compile_loss(model, private.CompileLoss("mae"))
    loss = private.compute_loss(model, X, Y, tf.ones((4, 1)) * 3, None, True)
    assert float(loss) == 3


def test_flat_layers_hold_the_model_and_nested_ones(model):
    outer = keras.Sequential([model])
    names = [layer.name for layer in private.flat_layers(outer)]
    assert {outer.name, model.name, "hidden", "head"} <= set(names)


def test_inner_optimizers(model):
    sgd = keras.optimizers.SGD()
    wrapped = keras.optimizers.LossScaleOptimizer(sgd)
    assert private.inner_optimizer(wrapped) is sgd
    assert private.inner_optimizer(sgd) is sgd
    assert private.unknown_variables(sgd, model.trainable_variables) == []
    known, *rest = model.trainable_variables
    sgd.build([known])
    unknown = private.unknown_variables(wrapped, model.trainable_variables)
    assert [v.path for v in unknown] == [v.path for v in rest]


def test_the_loss_is_logged_by_rows(model):
    private.log_loss(model, tf.constant(1.0), 1)
    private.log_loss(model, tf.constant(4.0), 2)
    assert float(private.loss_tracker(model).result()) == 3


def test_reduction_divides_by_what_the_records_say():
    values = tf.constant([[1.0, 2.0], [3.0, 4.0]])
    mask = tf.constant([[True, False], [True, True]])
    weight = tf.constant([[1.0, 1.0], [2.0, 2.0]])

    def reduced(reduction, **kwargs):
        return float(
            private.reduce_weighted_values(
                values, reduction=reduction, dtype="float32", **kwargs
            )
        )

    assert reduced("sum_over_batch_size") == 10 / 4
    assert reduced("sum") == 10
    np.testing.assert_allclose(
        reduced("sum_over_batch_size", mask=mask), 8 / 3, rtol=1e-6
    )
    np.testing.assert_allclose(
        reduced("sum_over_batch_size", mask=mask, sample_weight=weight),
        15 / 3,
        rtol=1e-6,
    )
    np.testing.assert_allclose(
        reduced("mean_with_sample_weight", mask=mask, sample_weight=weight),
        15 / 5,
        rtol=1e-6,
    )


def test_graphs_of_models(model):
    inputs, outputs = private.graph_of(model)
    assert keras.Model(inputs, outputs).layers == model.layers
    sequential = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    assert private.graph_of(sequential) is not None

    class Own(keras.Model):
        pass

    assert private.graph_of(Own()) is None
    assert private_forms.functional_init_arguments((inputs, outputs), {})
    assert not private_forms.functional_init_arguments((), {})


def test_clone_model_hands_models_of_one_class_over(monkeypatch):
    monkeypatch.setattr(cloning, "_clone_functional_model", None)
    seen = []

    class Own(keras.Model):
        pass

    def stock(model, **kwargs):
        seen.append(("stock", type(model)))

    cloning._clone_functional_model = stock
    private_forms.clone_with(
        Own, lambda stock, model, **kwargs: seen.append(("own", type(model)))
    )
    for cls in (keras.Model, Own):
        inputs = keras.Input((2,))
        model = cls(inputs, keras.layers.Dense(1)(inputs))
        keras.models.clone_model(model)
    assert seen == [("stock", type(keras.Model(inputs, inputs))), ("own", Own)]


def test_what_a_step_builds_and_layers_update(model):
    assert not private.metrics_are_built(model)
    norm = keras.layers.BatchNormalization()
    norm.build((None, 2))
    names = [v.name for v in private.own_state(norm)]
    assert names == ["moving_mean", "moving_variance"]
    assert private.own_state(model.get_layer("head")) == []
    model.train_on_batch(X, Y)
    assert private.metrics_are_built(model)
    container = private.CompileMetrics(["mae"], None)
    before = len(model.metrics)
    private.set_compile_metrics(model, container)
    assert container in model.metrics and len(model.metrics) == before
    container.build(Y, Y)
    assert private.per_output(container, [Y, Y]) == [Y, Y]


def test_own_weights_are_not_those_of_layers_below(model):
    assert private.own_weights(model) == []
    head = model.get_layer("head")
    assert [v.name for v in private.own_weights(head)] == ["kernel", "bias"]


def test_logs_and_metrics(model):
    logs = private.pythonify({"loss": tf.constant(1.5), "mae": np.float32(2)})
    assert logs == {"loss": 1.5, "mae": 2.0}
    assert all(type(v) is float for v in logs.values())
    assert private.in_metrics_order(model, logs) == [1.5, 2.0]
    model.train_on_batch(X, Y)
    assert set(private.metrics_or_logs(model, {"loss": 0, "mae": 0})) == {
        "loss",
        "mae",
    }
    assert private.metrics_or_logs(model, {"other": 1}) == {"other": 1}


def test_validation_epochs(model):
    assert [private.should_eval(model, e, 2) for e in range(4)] == [
        False,
        True,
        False,
        True,
    ]
    assert private.should_eval(model, 2, [3])


def test_a_model_that_is_not_compiled_is_refused():
    plain = keras.Sequential([keras.layers.Dense(1)])
    with pytest.raises(ValueError, match="compile"):
        private.assert_compiled(plain, "fit")


def test_only_empty_hooks_are_default():
    class Own(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            pass

    assert private.is_default_hook(Own().on_train_batch_end)
    assert not private.is_default_hook(Own().on_epoch_end)


def test_a_mask_travels_on_the_tensor():
    masked = keras.layers.Masking()(np.zeros((1, 2, 1), "float32"))
    assert private_marks.mask_of(masked).shape == (1, 2)
    other = tf.ones((1, 2, 1))
    assert private_marks.mask_of(other) is None
    private_marks.set_mask(other, tf.constant([[True, False]]))
    # Losses read it: the second step would make this 1.
    loss = keras.losses.MeanSquaredError()(tf.constant([[[1.0], [0.0]]]), other)
    assert float(loss) == 0
    squeezed, _ = private.squeeze_or_expand_to_same_rank(
        tf.ones((4, 1)), tf.ones((4,)), expand_rank_1=False
    )
    assert squeezed.shape == (4,)


def test_losses_that_layers_add_are_found_by_name():
    inputs = keras.Input((3,))
    dense = keras.layers.Dense
    x = dense(2, name="weights", kernel_regularizer="l2")(inputs)
    x = dense(2, name="activity", activity_regularizer="l2")(x)
    model = keras.Model(inputs, x)
    model(X)
    assert len(model.losses) == 2
    assert private_marks.layers_with_added_losses(model) == ["activity"]


def test_predictions_are_put_together_as_keras_does():
    parts = [tf.ones((2, 3)), tf.zeros((1, 3))]
    right = np.concatenate([np.ones((2, 3)), np.zeros((1, 3))])
    np.testing.assert_array_equal(private_marks.concat(parts), right)
    ragged = private_marks.concat([tf.ones((2, 3)), tf.ones((1, 2))])
    assert ragged.to_list() == [[1, 1, 1], [1, 1, 1], [1, 1]]
