"""PadBatches: few shapes, and the numbers of the batches that were not padded.

The reference is plain Keras on the data as it is.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

import fastkeras as fk
from fastkeras import perf
from fastkeras.perf import _padding
from tests.perf import _tools

ROWS, BATCH = 103, 10
LENGTHS = (5, 9, 6, 7, 14, 8, 10, 12, 13, 11)
layers = keras.layers
pytestmark = pytest.mark.usefixtures("no_trials")


@keras.saving.register_keras_serializable("tests")
def spread(y_true, y_pred):
    """A metric of the whole batch: no weight could take a row out of it."""
    return keras.ops.max(y_pred) - keras.ops.mean(y_pred)


def rows_data():
    x, y = _tools.classes_data(ROWS)
    weight = np.random.default_rng(1).uniform(0.5, 2, ROWS).astype("float32")
    return x, y, weight


def rows_model(cls, loss="sparse_categorical_crossentropy", **options):
    keras.utils.set_random_seed(4)
    model = cls(*_tools.dense_graph((5,), kernel_regularizer="l2"))
    if not issubclass(cls, fk.FastModel):
        # Quicker here than a trace.
        options = {"run_eagerly": True}
    model.compile(
        keras.optimizers.Adam(0.01),
        loss,
        metrics=["accuracy", spread],
        weighted_metrics=["sparse_categorical_crossentropy"],
        **options,
    )
    return model


class Sequences(keras.utils.PyDataset):
    """Batches at hand."""

    def __init__(self, batches):
        super().__init__()
        self.batches = batches

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, k):
        return self.batches[k]


def row_batches():
    data = rows_data()
    return [
        tuple(a[k : k + BATCH] for a in data) for k in range(0, ROWS, BATCH)
    ]


def feed(kind, batches=None):
    """Arguments of `fit` and `evaluate` for the rows in a kind of data."""
    x, y, weight = rows_data()
    batches = batches or row_batches()
    if kind == "arrays":
        return {"x": x, "y": y, "sample_weight": weight, "batch_size": BATCH}
    if kind == "dataset":
        return {
            "x": tf.data.Dataset.from_tensor_slices((x, y, weight)).batch(BATCH)
        }
    if kind == "sequence":
        return {"x": Sequences(batches)}
    return {"x": (b for b in batches), "steps": len(batches)}


def trained(model, kind="arrays", epochs=2):
    """Logs of the training, logs of an evaluation, weights."""
    data = feed(kind)
    if kind == "generator":
        data = {"x": (b for _ in range(epochs) for b in row_batches())}
        data["steps_per_epoch"] = len(row_batches())
    if kind in ("arrays", "sequence"):
        data["shuffle"] = False
    logs = model.fit(**data, epochs=epochs, verbose=0).history
    tested = model.evaluate(**feed(kind), verbose=0, return_dict=True)
    return logs, tested, model.get_weights()


@pytest.fixture(scope="module")
def plain():
    """What plain Keras makes of the rows."""
    model = rows_model(keras.Model)
    return trained(model), model.predict(rows_data()[0], verbose=0)


def assert_same(got, right, tolerance=1e-6):
    for ours, theirs in zip(got[:2], right[:2], strict=True):
        assert ours.keys() == theirs.keys()
        for name in theirs:
            np.testing.assert_allclose(ours[name], theirs[name], rtol=tolerance)
    assert _tools.difference(got[2], right[2]) < tolerance


def counts(model, name="train_step"):
    """Traces of a step, and shapes that XLA compiled."""
    report = model.perf_report()[name]
    return sum(report["traces"].values()), report["xla compiles"]


# Rows.


@pytest.mark.parametrize(
    ("kind", "jit"),
    [
        ("arrays", False),
        ("dataset", True),
        ("sequence", False),
        ("generator", False),
    ],
)
def test_a_short_batch_has_its_own_numbers_in_one_shape(kind, jit, plain):
    model = rows_model(fk.FastModel, perf=perf.PadBatches(), jit_compile=jit)
    assert_same(trained(model, kind), plain[0], 1e-5 if jit else 1e-6)
    assert counts(model) == (1, int(jit))
    assert counts(model, "test_step") == (1, int(jit))
    data = feed(kind)
    outputs = model.predict(
        data["x"], batch_size=data.get("batch_size"), verbose=0
    )
    np.testing.assert_allclose(outputs, plain[1], atol=1e-5)
    assert model.predictor._one.experimental_get_tracing_count() == 1


def test_a_generator_may_yield_none_for_the_weights():
    x, y, _ = rows_data()
    batches = [
        (x[k : k + BATCH], y[k : k + BATCH], None)
        for k in range(0, ROWS, BATCH)
    ]
    losses = []
    for feature in (perf.PadBatches(), "auto"):
        model = rows_model(fk.FastModel, perf=feature, jit_compile=False)
        losses.append(
            model.fit((b for b in batches), verbose=0).history["loss"]
        )
        assert counts(model)[0] == (1 if feature != "auto" else 3)
    np.testing.assert_allclose(*losses, rtol=1e-6)


def test_without_it_a_short_batch_is_a_shape_of_its_own(plain):
    model = rows_model(fk.FastModel, jit_compile=True)
    logs = model.fit(**feed("dataset"), verbose=0).history
    right = {name: values[:1] for name, values in plain[0][0].items()}
    assert _tools.logs_difference(right, logs) < 1e-5
    assert counts(model) == (2, 2)


def test_padding_that_counts_is_noticed(plain, monkeypatch):
    monkeypatch.setattr(_padding, "_cut", lambda tensor, rows, steps: tensor)
    model = rows_model(fk.FastModel, perf=perf.PadBatches(), jit_compile=False)
    with pytest.raises(AssertionError):
        assert_same(trained(model), plain[0])


@pytest.mark.parametrize(
    "tier", ["graph-loop", pytest.param("xla-loop", marks=pytest.mark.slow)]
)
def test_a_loop_runs_the_padded_batch_too(tier, plain, monkeypatch):
    monkeypatch.setattr(
        "fastkeras.engine._tiers.available", lambda *_: ([tier], [])
    )
    model = rows_model(fk.FastModel, perf=perf.PadBatches())
    assert_same(trained(model), plain[0], 1e-5)
    assert f"train_step ({tier})" in model.perf_report()["train_step"]["traces"]


def test_shuffled_rows_are_a_permutation_with_padding_that_does_not_count():
    x = np.arange(23, dtype="float32")[:, None]
    inputs = keras.Input((1,))
    top = layers.Dense(1, use_bias=False, kernel_initializer="ones")
    model = fk.FastModel(inputs, top(inputs))
    model.compile(keras.optimizers.SGD(0.0), "mae", perf=perf.PadBatches())
    for shuffle in (True, "batch"):
        logs = model.fit(x, 0 * x, 5, 3, verbose=0, shuffle=shuffle).history
        np.testing.assert_allclose(logs["loss"], x.mean(), rtol=1e-6)


def test_a_loss_that_is_summed_sums_what_is_real():
    loss = keras.losses.SparseCategoricalCrossentropy(reduction="sum")
    right = trained(rows_model(keras.Model, loss), epochs=1)
    model = rows_model(
        fk.FastModel, loss, perf=perf.PadBatches(), jit_compile=False
    )
    assert_same(trained(model, "dataset", epochs=1), right)


class OwnLoss(fk.FastModel):
    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, training=True
    ):
        # Sees rows, and divides by their number itself.
        rows = keras.ops.cast(keras.ops.shape(x)[0], "float32")
        return keras.ops.sum(y_pred**2) / rows


class PlainOwnLoss(keras.Model):
    compute_loss = OwnLoss.compute_loss


def test_a_loss_of_your_own_sees_the_real_rows():
    right = trained(rows_model(PlainOwnLoss), epochs=1)
    model = rows_model(OwnLoss, perf=perf.PadBatches(), jit_compile=False)
    assert_same(trained(model, "dataset", epochs=1), right)


TOGETHER = {
    "Accumulate": ([perf.Accumulate(4)], 4 * BATCH, {}),
    "Microbatch": ([perf.Microbatch(4)], BATCH, {}),
    "both, clipped": (
        [perf.Accumulate(4), perf.Microbatch(7), perf.ClipByGlobalNorm(0.1)],
        4 * BATCH,
        {"global_clipnorm": 0.1},
    ),
}


@pytest.mark.parametrize("name", TOGETHER)
@pytest.mark.parametrize("kind", ["arrays", "dataset"])
def test_with_other_features_it_equals_one_big_batch(name, kind):
    features, batch, options = TOGETHER[name]
    x, y, weight = rows_data()
    runs = []
    for cls in (keras.Model, fk.FastModel):
        keras.utils.set_random_seed(4)
        model = cls(*_tools.dense_graph((5,)))
        more = {"run_eagerly": True} if cls is keras.Model else {}
        if cls is fk.FastModel:
            more = {
                "perf": [*features, perf.PadBatches()],
                "jit_compile": False,
            }
            options = {}
        model.compile(
            keras.optimizers.Adam(0.01, **options),
            "sparse_categorical_crossentropy",
            **more,
        )
        if cls is keras.Model:
            model.fit(
                x, y, batch, shuffle=False, verbose=0, sample_weight=weight
            )
        else:
            data = feed(kind)
            model.fit(**data, shuffle=False, verbose=0)
        runs.append(model)
    assert _tools.difference(*runs) < 1e-6


def test_class_weights_and_mixed_precision():
    x, y, _ = rows_data()
    right = rows_model(keras.Model)
    model = rows_model(
        fk.FastModel,
        perf=[perf.PadBatches(), perf.MixedPrecision("mixed_bfloat16")],
    )
    start = right.get_weights()
    for one in (right, model):
        one.fit(
            x,
            y,
            BATCH,
            class_weight={0: 1.0, 1: 3.0},
            shuffle=False,
            verbose=0,
        )
    # Half precision rounds to 1e-2; each weight has moved by about 0.1.
    assert _tools.difference(right, model) < 2e-2
    assert _tools.difference(start, model) > 5e-2


# Lengths.


def ids_batches(lengths=LENGTHS, per_step=False, rows=4):
    """Batches of ids, with some steps of their own masked, and targets."""
    rng = np.random.default_rng(2)
    batches = []
    for length in lengths:
        x = rng.integers(1, 6, (rows, length))
        x[0, 3:] = 0
        shape = (rows, length, 1) if per_step else (rows, 1)
        batches.append((x, rng.normal(size=shape).astype("float32")))
    return batches


def ids_model(cls, kind, **options):
    keras.utils.set_random_seed(4)
    x = inputs = keras.Input((None,), dtype="int32")
    x = layers.Embedding(6, 4, mask_zero=True)(x)
    if kind == "lstm":
        x = layers.LSTM(3)(x)
    elif kind == "attention":
        x = layers.LayerNormalization()(layers.MultiHeadAttention(2, 2)(x, x))
    elif kind == "mean":
        x = layers.GlobalAveragePooling1D()(x)
    model = cls(inputs, layers.Dense(1)(x))
    model.compile(
        keras.optimizers.SGD(0.1),
        "mse",
        metrics=["mae"],
        **options,
    )
    return model


@pytest.mark.parametrize(
    ("kind", "per_step", "given"),
    [
        ("lstm", False, {"multiple_of": 8}),
        ("steps", True, {"buckets": [8, 20]}),
        pytest.param(
            "attention", True, {"buckets": [8, 16]}, marks=pytest.mark.slow
        ),
    ],
)
def test_sequences_have_their_own_numbers_in_a_shape_for_each_bucket(
    kind, per_step, given
):
    batches = ids_batches(per_step=per_step)
    right = ids_model(keras.Model, kind)
    ours = ids_model(
        fk.FastModel, kind, perf=perf.PadBatches(**given), jit_compile=False
    )
    logs = [
        m.fit(Sequences(batches), shuffle=False, verbose=0).history
        for m in (right, ours)
    ]
    assert _tools.logs_difference(*logs) < 1e-6
    assert _tools.difference(right, ours) < 1e-6
    # Two buckets are met, and nothing between them.
    assert counts(ours) == (2, 0)
    if not per_step:
        return
    tested = [m.evaluate(Sequences(batches), verbose=0) for m in (right, ours)]
    np.testing.assert_allclose(*tested, rtol=1e-6)
    outputs = [m.predict(Sequences(batches), verbose=0) for m in (right, ours)]
    # Where the model masks a step, nothing reads what it returns.
    longest = max(LENGTHS)
    ids = [np.pad(x, [(0, 0), (0, longest - len(x[0]))]) for x, _ in batches]
    read = np.concatenate(ids) != 0
    outputs = [o.to_tensor().numpy()[read] for o in outputs]
    np.testing.assert_allclose(*outputs, atol=1e-6)


@pytest.mark.parametrize("feature", [perf.PadBatches(multiple_of=16), "auto"])
def test_xla_compiles_a_bucket_once_and_each_length_without(feature):
    model = ids_model(fk.FastModel, "mean", perf=feature, jit_compile=True)
    lengths = LENGTHS if feature != "auto" else LENGTHS[:3]
    for _ in range(2):
        model.fit(Sequences(ids_batches(lengths)), shuffle=False, verbose=0)
    right = ids_model(keras.Model, "mean")
    for _ in range(2):
        right.fit(Sequences(ids_batches(lengths)), shuffle=False, verbose=0)
    assert _tools.difference(right, model) < 1e-5
    assert counts(model)[1] == (1 if feature != "auto" else len(lengths))


def test_rows_and_lengths_of_a_dataset_under_other_features():
    batches = ids_batches((5, 7, 3), per_step=True)
    batches[-1] = tuple(a[:3] for a in batches[-1])
    data = tf.data.Dataset.from_generator(
        lambda: iter(batches),
        output_signature=(
            tf.TensorSpec([None, None], tf.int32),
            tf.TensorSpec([None, None, 1], tf.float32),
        ),
    )
    runs = []
    for features in (
        [perf.Accumulate(3)],
        [
            perf.Accumulate(3),
            perf.Microbatch(3),
            perf.PadBatches(multiple_of=8),
        ],
    ):
        model = ids_model(
            fk.FastModel, "steps", perf=features, jit_compile=False
        )
        logs = model.fit(data, verbose=0).history
        runs.append((model, logs["loss"], logs["mae"]))
    for model, loss, mae in runs[1:]:
        assert _tools.difference(runs[0][0], model) < 1e-6
        np.testing.assert_allclose(loss, runs[0][1], rtol=1e-6)
        np.testing.assert_allclose(mae, runs[0][2], rtol=1e-6)


def test_another_value_is_masked_by_masking():
    rng = np.random.default_rng(3)
    batches = [
        (
            rng.normal(size=(4, n, 2)).astype("float32"),
            np.ones((4, 1), "float32"),
        )
        for n in (3, 5, 4)
    ]

    def run(cls, **options):
        keras.utils.set_random_seed(4)
        inputs = keras.Input((None, 2))
        x = layers.Masking(-9.0)(inputs)
        x = layers.Dense(1)(layers.GlobalAveragePooling1D()(x))
        model = cls(inputs, x)
        model.compile(keras.optimizers.Adam(0.01), "mse", **options)
        model.fit(Sequences(batches), shuffle=False, verbose=0)
        return model

    feature = perf.PadBatches(multiple_of=8, value=-9.0)
    right = run(keras.Model)
    assert _tools.difference(right, run(fk.FastModel, perf=feature)) < 1e-6
    with pytest.raises(ValueError, match="no layer that masks 0"):
        run(fk.FastModel, perf=perf.PadBatches(multiple_of=8))


def test_an_output_over_steps_of_its_own_is_not_cut():
    def build(cls, **options):
        keras.utils.set_random_seed(4)
        inputs = [keras.Input((n,), dtype="int32") for n in (None, 9)]
        table = layers.Embedding(6, 4, mask_zero=True)
        varying, fixed = (table(x) for x in inputs)
        pooled = layers.GlobalAveragePooling1D()(varying)
        outputs = [layers.Dense(1)(pooled), layers.Dense(1)(fixed)]
        model = cls(inputs, outputs)
        model.compile("sgd", ["mse", "mse"], **options)
        return model

    rng = np.random.default_rng(5)
    batches = [
        (
            (rng.integers(1, 6, (4, n)), rng.integers(0, 6, (4, 9))),
            (np.ones((4, 1)), np.ones((4, 9, 1))),
        )
        for n in (5, 7, 3)
    ]
    runs = []
    for model in (
        build(keras.Model),
        build(fk.FastModel, perf=perf.PadBatches(multiple_of=8)),
    ):
        model.fit(Sequences(batches), shuffle=False, verbose=0)
        outputs = model.predict(Sequences(batches), verbose=0)
        assert outputs[1].shape == (12, 9, 1)
        runs.append(model)
    assert _tools.difference(*runs) < 1e-6


# Refused, and warned of.


def refused(model, feature=None):
    with pytest.raises(ValueError) as error:
        model.compile("sgd", "mse", perf=feature or perf.PadBatches())
    assert str(error.value).startswith("`PadBatches` ")
    return str(error.value)


def test_a_batch_normalization_that_trains_is_refused_by_name():
    inputs = keras.Input((4,))
    x = layers.BatchNormalization(name="normal")(inputs)
    model = fk.FastModel(inputs, layers.Dense(1)(x))
    assert "['normal']" in refused(model)
    model.get_layer("normal").trainable = False
    model.compile("sgd", "mse", perf=perf.PadBatches())


class LateNorm(fk.FastModel):
    def build(self, shape):
        self.norm = layers.BatchNormalization(name="late")

    def call(self, x, training=False):
        return self.norm(x, training=training)


def test_a_batch_normalization_that_is_made_late_is_refused_in_its_step():
    model = LateNorm()
    model.compile("sgd", "mse", perf=perf.PadBatches())
    x, _ = _tools.real_data(6)
    with pytest.raises(ValueError, match=r"layers \['late'\]"):
        model.fit(x, x, batch_size=4, verbose=0)
    assert int(model.optimizer.iterations) == 0


class OwnSteps(fk.FastModel):
    def train_step(self, data):
        return super().train_step(data)

    def predict_step(self, data):
        return super().predict_step(data)


def test_steps_of_your_own_are_refused_by_name():
    text = refused(OwnSteps(*_tools.dense_graph()))
    assert "OwnSteps with ['train_step', 'predict_step']" in text


def test_a_model_that_masks_nothing_is_refused():
    inputs = keras.Input((None,), dtype="int32")
    x = layers.GlobalAveragePooling1D()(layers.Embedding(6, 4)(inputs))
    model = fk.FastModel(inputs, layers.Dense(1)(x))
    assert "no layer that masks 0" in refused(
        model, perf.PadBatches(buckets=[8])
    )
    model.compile("sgd", "mse", perf=perf.PadBatches())


def test_several_replicas_are_refused(mirrored):
    with mirrored.scope():
        model = fk.FastModel(*_tools.dense_graph())
        assert "runs on one device" in refused(model)


def test_a_layer_without_support_for_masks_is_warned_of_by_name():
    inputs = keras.Input((None,), dtype="int32")
    x = layers.Embedding(6, 4, mask_zero=True)(inputs)
    x = layers.Bidirectional(layers.LSTM(2, return_sequences=True))(x)
    x = layers.Conv1D(3, 3, padding="same", name="convolution")(x)
    model = fk.FastModel(inputs, layers.GlobalMaxPooling1D()(x))
    with pytest.warns(UserWarning, match=r"Layers \['convolution', 'global_m"):
        model.compile("sgd", "mse", perf=perf.PadBatches(multiple_of=8))


class Adds(layers.Layer):
    def call(self, x):
        self.add_loss(keras.ops.mean(x**2))
        return x


@pytest.mark.parametrize(
    "layer",
    [
        Adds(name="adds"),
        layers.Dense(3, name="adds", activity_regularizer="l2"),
    ],
    ids=["add_loss", "activity_regularizer"],
)
def test_a_loss_that_a_layer_adds_is_refused_before_anything_changes(layer):
    inputs = keras.Input((4,))
    model = fk.FastModel(inputs, layers.Dense(1)(layer(inputs)))
    model.compile("adam", "mse", perf=perf.PadBatches())
    before = model.get_weights()
    x, y = _tools.real_data(6)
    for method in (model.fit, model.evaluate):
        with pytest.raises(ValueError, match=r"layers \['adds'\]"):
            method(x, y, batch_size=4, verbose=0)
    assert _tools.difference(before, model) == 0
    assert int(model.optimizer.iterations) == 0


def test_ragged_data_and_a_bucket_that_is_too_short_are_refused():
    model = ids_model(fk.FastModel, "mean", perf=perf.PadBatches(buckets=[8]))
    with pytest.raises(ValueError, match="a sequence of 9 steps, buckets=.8,."):
        model.fit(Sequences(ids_batches((5, 9))), shuffle=False, verbose=0)
    ragged = tf.ragged.constant([[1, 2], [3]])
    data = tf.data.Dataset.from_tensor_slices((ragged, [[1.0], [2.0]]))
    with pytest.raises(TypeError, match="pads dense tensors.*RaggedTensor"):
        model.fit(data.batch(2), verbose=0)


def test_inputs_of_two_lengths_in_one_batch_are_refused():
    inputs = [keras.Input((None,), dtype="int32") for _ in range(2)]
    table = layers.Embedding(6, 4, mask_zero=True)
    pooled = [layers.GlobalAveragePooling1D()(table(x)) for x in inputs]
    model = fk.FastModel(inputs, layers.Dense(1)(layers.Add()(pooled)))
    model.compile("sgd", "mse", perf=perf.PadBatches(multiple_of=8))
    y = np.ones((2, 1), "float32")
    batches = [
        ((np.ones((2, n), "int32"), np.ones((2, n + 1), "int32")), y)
        for n in (3, 4)
    ]
    with pytest.raises(ValueError, match=r"one length.*lengths \[3, 4\]"):
        model.fit(Sequences(batches), shuffle=False, verbose=0)


@pytest.mark.parametrize(
    ("given", "wrong", "text"),
    [
        ({"to": "rows"}, ValueError, "`to` must be one of 'batch', None"),
        ({"to": None}, ValueError, "needs rows or lengths to pad"),
        ({"multiple_of": 0}, ValueError, "`multiple_of` must be >= 1"),
        ({"buckets": []}, ValueError, "at least one length"),
        ({"buckets": 8}, TypeError, "a list of lengths. Received: buckets=8"),
        ({"buckets": [8, 0]}, ValueError, "`buckets` must be >= 1"),
        ({"buckets": [8.5]}, TypeError, "`buckets` must be an integer"),
        (
            {"buckets": [8], "multiple_of": 8},
            ValueError,
            "either `multiple_of` or `buckets`",
        ),
    ],
    ids=str,
)
def test_arguments_without_sense_are_refused(given, wrong, text):
    with pytest.raises(wrong, match=text):
        perf.PadBatches(**given)


def test_buckets_are_sorted_and_come_back_from_a_config():
    feature = perf.PadBatches(buckets=[32, 8, 8])
    assert feature.buckets == (8, 32)
    config = keras.saving.serialize_keras_object(feature)
    assert keras.saving.deserialize_keras_object(config) == feature


def test_a_generator_is_predicted_whole():
    x = rows_data()[0]
    for feature in ("auto", perf.PadBatches()):
        model = rows_model(fk.FastModel, perf=feature)
        batches = ((x[k : k + BATCH],) for k in range(0, ROWS, BATCH))
        outputs = model.predict(batches, verbose=0)
        np.testing.assert_allclose(
            outputs, model.predict(x, verbose=0), atol=1e-6
        )
