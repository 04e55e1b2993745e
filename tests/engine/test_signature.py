"""One signature or few: batch sizes in turn, and what `signature` pins."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import fastkeras as fk
from fastkeras import perf
from fastkeras.engine._pilot import Pilot


def new_model(cls=fk.FastModel):
    keras.utils.set_random_seed(3)
    inputs = keras.Input((4,))
    x = keras.layers.Dense(5, "tanh")(inputs)
    return cls(inputs, keras.layers.Dense(3, "softmax")(x))


def data(rows=23):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 4)).astype("float32")
    return x, rng.integers(0, 3, rows)


@pytest.mark.parametrize("steps", [1, 3])
def test_a_second_fit_takes_its_own_batch_size(steps):
    x, y = data(24)

    def run(cls):
        model = new_model(cls)
        model.compile(
            keras.optimizers.Adam(0.01),
            "sparse_categorical_crossentropy",
            jit_compile=False,
            steps_per_execution=steps,
        )
        for size in (4, 2, 8, 4):
            model.fit(x, y, batch_size=size, shuffle=False, verbose=0)
        return int(model.optimizer.iterations), model.get_weights()

    (ours, weights), (stock, right) = run(fk.FastModel), run(keras.Model)
    assert ours == stock == 6 + 12 + 3 + 6
    for a, b in zip(weights, right, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


# Pinned.

SPECS = (tf.TensorSpec([None, 4]), tf.TensorSpec([None], tf.int64))


def compiled(execution, model=None, **options):
    model = model or new_model()
    model.compile(
        keras.optimizers.Adam(0.01),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
        perf=execution,
        **options,
    )
    return model


def fit(model, kind, rows=23, **kwargs):
    x, y = data(rows)
    if kind == "arrays":
        kwargs.update(y=y, batch_size=5, shuffle=False)
    else:
        x = tf.data.Dataset.from_tensor_slices((x, y)).batch(5)
    return model.fit(x, epochs=2, verbose=0, **kwargs)


def traces(model, name):
    return sum(model.perf_report()[name]["traces"].values())


@pytest.mark.parametrize("kind", ["arrays", "dataset"])
@pytest.mark.parametrize("signature", ["pin", SPECS], ids=["first", "given"])
def test_a_pinned_step_is_traced_once(signature, kind):
    plain = new_model(keras.Model)
    plain.compile(
        keras.optimizers.Adam(0.01),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    right = fit(plain, "arrays").history
    model = compiled(perf.Execution(signature=signature))
    logs = fit(model, kind).history
    for name in ("loss", "accuracy"):
        np.testing.assert_allclose(logs[name], right[name], rtol=1e-6)
    x, y = data()
    for size in (5, 7, 23):
        model.fit(x, y, batch_size=size, verbose=0)
        model.evaluate(x, y, batch_size=size, verbose=0)
        model.predict(x, batch_size=size, verbose=0)
    report = model.perf_report()
    for name in ("train_step", "test_step", "predict_step"):
        assert sum(report[name]["traces"].values()) == 1
    assert report["train_step"]["xla compiles"] == 0
    assert "pinned" in str(report)


def test_a_step_that_is_not_pinned_is_traced_for_each_shape():
    model = compiled(perf.Execution(jit=False))
    fit(model, "dataset")
    assert traces(model, "train_step") > 1


def test_pinned_windows_of_arrays_are_gathered_in_the_step():
    logs, report = {}, {}
    for signature in ("relax", "pin"):
        execution = perf.Execution(
            jit=False, steps_per_launch=1, signature=signature
        )
        model = compiled([perf.Accumulate(2), execution])
        logs[signature] = fit(model, "arrays").history["loss"]
        report[signature] = model.perf_report()["train_step"]["traces"]
    np.testing.assert_allclose(logs["pin"], logs["relax"], rtol=1e-6)
    # Windows of two batches, and at the end one of the last batch alone.
    assert report["pin"] == {"train_step (graph-step)": 2}
    assert len(report["relax"]) > 1


BAD = {
    "shape": (lambda x, y: (x[:, :3], y), "x: float32 (None, 3)"),
    "dtype": (
        lambda x, y: (x, y.astype("float32")),
        "y: float32 (None,)",
    ),
    "rank": (lambda x, y: (x, y[:, None]), "y: int64 (None, 1)"),
    "weights": (
        lambda x, y: (x, y, np.ones(len(y), "float32")),
        "sample_weight: float32 (None,), where nothing is pinned",
    ),
}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("signature", ["pin", SPECS], ids=["first", "given"])
def test_another_shape_or_dtype_is_refused_before_anything_changes(
    bad, signature
):
    change, text = BAD[bad]
    model = compiled(perf.Execution(signature=signature))
    fit(model, "dataset")
    before = model.get_weights()
    steps = int(model.optimizer.iterations)
    with pytest.raises(ValueError) as error:
        model.fit(
            tf.data.Dataset.from_tensors(change(*data())), epochs=1, verbose=0
        )
    assert text in str(error.value)
    assert "pinned" in str(error.value)
    assert int(model.optimizer.iterations) == steps
    for a, b in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(a, b)
    # What fits still runs, on the same trace.
    fit(model, "arrays")
    assert traces(model, "train_step") == 1


def test_the_message_names_a_nested_argument_and_both_specs():
    inputs = {"a": keras.Input((4,)), "b": keras.Input((None,))}
    top = keras.layers.Dense(3, "softmax")(inputs["a"])
    pooled = keras.layers.Lambda(lambda b: keras.ops.mean(b, 1, keepdims=True))
    outputs = keras.layers.Multiply()([top, pooled(inputs["b"])])
    model = compiled(
        perf.Execution(signature="pin"), fk.FastModel(inputs, outputs)
    )
    x, y = data()
    model.fit({"a": x, "b": x[:, :2]}, y, verbose=0)
    with pytest.raises(ValueError) as error:
        model.fit({"a": x, "b": x[:, :3]}, y, verbose=0)
    assert str(error.value).startswith(
        "A step whose `signature` is pinned takes one shape and dtype of each "
        "argument. Received: x['b']: float32 (None, 3), where float32 (None, "
        "2) is pinned."
    )


class Unbuilt(fk.FastModel):
    def __init__(self):
        super().__init__()
        self.head = keras.layers.Dense(3, "softmax")

    def call(self, x):
        return self.head(x)


def test_a_given_signature_refuses_before_the_model_is_built():
    specs = (
        keras.InputSpec(shape=(None, 4), dtype="float32"),
        keras.InputSpec(shape=(None,), dtype="int64"),
    )
    model = compiled(perf.Execution(signature=specs), Unbuilt())
    x, y = data()
    with pytest.raises(ValueError, match="x: float32 .None, 3."):
        model.fit(x[:, :3], y, verbose=0)
    assert not model.head.built
    fit(model, "arrays")
    assert model.head.kernel.shape == (4, 3)
    assert traces(model, "train_step") == 1


def test_a_pinned_signature_and_padded_batches_go_together():
    model = compiled([perf.PadBatches(), perf.Execution(signature="pin")])
    logs = fit(model, "dataset").history
    right = fit(compiled("auto"), "arrays").history
    np.testing.assert_allclose(logs["loss"], right["loss"], rtol=1e-6)
    assert traces(model, "train_step") == 1


@pytest.mark.parametrize("signature", ["pin", SPECS], ids=["first", "given"])
def test_an_execution_comes_back_with_the_model(signature, tmp_path):
    execution = perf.Execution(signature=signature, warmup_launches=3)
    model = compiled(execution)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.perf.execution == execution
    assert loaded.perf.execution != perf.Execution(warmup_launches=3)
    text = str(loaded.perf)
    assert "warmup_launches=3" in text
    assert f"signature={execution.signature!r}" in text
    fit(loaded, "arrays")
    settings = loaded.perf_report()["settings"]
    assert settings["signature"] == str(execution.signature)
    assert settings["warm-up launches"] == 3


@pytest.mark.parametrize(
    ("given", "wrong", "text"),
    [
        ({"signature": "pinned"}, ValueError, "Did you mean 'pin'"),
        ({"signature": (4, 3)}, TypeError, "specs with a shape and a dtype"),
        (
            {"signature": keras.InputSpec(shape=(None, 4))},
            TypeError,
            "specs with a shape and a dtype",
        ),
        ({"warmup_launches": 0}, ValueError, "`warmup_launches` must be >= 1"),
        ({"warmup_launches": 1.5}, TypeError, "`warmup_launches` must be an"),
    ],
)
def test_what_an_execution_refuses(given, wrong, text):
    with pytest.raises(wrong, match=text):
        perf.Execution(**given)


def test_a_pinned_signature_is_for_one_device(mirrored):
    with mirrored.scope():
        model = new_model()
        with pytest.raises(ValueError, match="pinned `signature` is for one"):
            compiled(perf.Execution(signature="pin"), model)


# Warm-up.


def test_warm_up_launches_are_not_in_the_times():
    for warmup in (1, 3):
        pilot = Pilot(["graph-step"], warmup=warmup)
        for seconds in (9.0, 5.0, 5.0, 2.0, 2.0):
            pilot.note("graph-step", 1, seconds)
        right = [5.0, 5.0, 2.0, 2.0][warmup - 1 :]
        assert pilot.times("graph-step") == right
        # What the pilot compares does not depend on it.
        assert pilot.median("graph-step") == 3.5


@pytest.mark.parametrize("warmup", [1, 4])
def test_the_report_counts_the_launches_after_the_warm_up(warmup):
    execution = perf.Execution(
        jit=False, feed="stream", signature="pin", warmup_launches=warmup
    )
    model = compiled(execution, steps_per_execution=1)
    x, y = data(40)
    model.fit(x, y, batch_size=5, epochs=1, verbose=0, callbacks=[EachBatch()])
    times = model.perf_report()["train_step"]["stream"]["time per step"]
    assert f"n={8 - warmup})" in times["graph-step"]
    model.predict(x, batch_size=5, verbose=0)
    times = model.perf_report()["predict_step"]["time per batch"]
    assert f"n={8 - warmup})" in times["graph-step"]


class EachBatch(keras.callbacks.Callback):
    """Asks for every batch, so that each launch is one step."""

    def on_train_batch_end(self, batch, logs=None):
        pass
