"""Each rule on a model where it must fire, and on its neighbour."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import fastkeras as fk
from fastkeras.advise import _compute
from fastkeras.advise import _input
from fastkeras.advise import _memory
from fastkeras.advise import _shapes
from fastkeras.advise import _tracing
from fastkeras.advise._facts import Facts
from fastkeras.advise._rules import RULES
from fastkeras.advise._ways import as_fast
from tests.advise._models import ROWS
from tests.advise._models import Collecting
from tests.advise._models import Counting
from tests.advise._models import Fetching
from tests.advise._models import InPython
from tests.advise._models import Making
from tests.advise._models import NoJit
from tests.advise._models import Printing
from tests.advise._models import Proper
from tests.advise._models import Scaled
from tests.advise._models import Tensors
from tests.advise._models import Unscaled
from tests.advise._models import arrays
from tests.advise._models import calling
from tests.advise._models import calls
from tests.advise._models import dense
from tests.advise._models import facts
from tests.advise._models import fast
from tests.advise._models import growth
from tests.advise._models import profile

Execution = fk.perf.Execution


def quiet_compile(make):
    """Keras warns of what these models do on purpose."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make()


def narrow(count):
    return [keras.layers.Dense(4) for _ in range(count)]


def lengths(*sizes):
    """A dataset of batches of sequences of these lengths."""

    def batches():
        for size in sizes:
            yield np.ones((ROWS, size), "float32"), np.ones((ROWS, 1))

    return tf.data.Dataset.from_generator(
        batches,
        output_signature=(
            tf.TensorSpec((ROWS, None)),
            tf.TensorSpec((ROWS, 1), tf.float64),
        ),
    )


def pooled(cls=keras.Model, **options):
    inputs = keras.Input((None,))
    total = keras.layers.Lambda(
        lambda x: keras.ops.sum(x, 1, keepdims=True), output_shape=(1,)
    )(inputs)
    model = cls(inputs, keras.layers.Dense(1)(total))
    model.compile("sgd", "mse", **options)
    return model


def table(optimizer, rows=125_000):
    inputs = keras.Input((2,), dtype="int32")
    rows = keras.layers.Embedding(rows, 8, name="table")(inputs)
    model = keras.Model(
        inputs, keras.layers.Dense(1)(keras.layers.Flatten()(rows))
    )
    model.compile(optimizer, "mse")
    data = np.ones((2 * ROWS, 2), "int32"), np.ones((2 * ROWS, 1), "float32")
    return facts(model, data)


def frozen(cls=keras.Model, late=False, **options):
    prefix = keras.layers.Dense(4, name="prefix")
    prefix.build((None, 4))
    prefix.trainable = late
    model = dense(cls, [prefix], **options)
    prefix.trainable = False
    return facts(model)


def half(dtype, optimizer="sgd", head="float32"):
    layer = keras.layers.Dense(4, dtype=dtype)
    inputs = keras.Input((4,))
    outputs = keras.layers.Dense(1, dtype=head, name="half")(layer(inputs))
    model = keras.Model(inputs, outputs)
    model.compile(optimizer, "mse")
    return facts(model)


def rows(count=2 * ROWS):
    return tf.data.Dataset.from_tensors(
        tuple(part[0] for part in arrays())
    ).repeat(count)


def scaling():
    return keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())


ADAM = keras.optimizers.Adam
BUSY, IDLE = profile(), profile(python=0.75)

# rule -> it fires, a word of its evidence, it does not
CASES = [
    (
        _tracing.eager,
        lambda: facts(dense(run_eagerly=True)),
        "run_eagerly=True",
        lambda: facts(),
    ),
    (
        _tracing.sync_points,
        lambda: calling(Fetching(), run_eagerly=True),
        ".numpy() in Fetching.call",
        lambda: calling(Proper()),
    ),
    (
        _tracing.sync_points,
        lambda: calling(InPython()),
        "1 py_function",
        lambda: calling(keras.layers.Dense(4)),
    ),
    (
        _tracing.python_print,
        lambda: calling(Printing()),
        "Printing.helper",
        lambda: calling(Proper()),
    ),
    (
        _tracing.python_count,
        lambda: facts(dense(Counting)),
        "counted up in Counting.train_step",
        lambda: calling(Proper()),
    ),
    (
        _tracing.grown_list,
        lambda: calling(Collecting()),
        "Collecting.seen",
        lambda: calling(Proper()),
    ),
    (
        _tracing.variables_in_call,
        lambda: calling(Making()),
        "Making.call",
        lambda: calling(Proper()),
    ),
    (
        _tracing.many_small_variables,
        lambda: facts(dense(layers=narrow(50))),
        "102 trainable variables",
        lambda: facts(dense(layers=narrow(20))),
    ),
    (
        _tracing.dispatch,
        lambda: facts(profile=IDLE),
        "75%",
        lambda: facts(profile=BUSY),
    ),
    (
        _tracing.dispatch,
        lambda: facts(fast(Execution(steps_per_launch=1)), profile=IDLE),
        "75%",
        lambda: facts(fast(), profile=IDLE),
    ),
    (
        _input.one_step_epochs,
        lambda: facts(data=arrays(ROWS)),
        "30 ms beside a step of 4 ms",
        lambda: facts(data=arrays(2 * ROWS)),
    ),
    (
        _shapes.retraces,
        lambda: facts(pooled(fk.FastModel), lengths(4, 5, 6)),
        "3 kinds of batch",
        # Keras leaves the lengths open.
        lambda: facts(pooled(), lengths(4, 5, 6)),
    ),
    (
        _shapes.last_batch,
        lambda: facts(fast(), arrays(2 * ROWS + 3)),
        "has 3 rows, the others 8: one more trace",
        lambda: facts(fast(), arrays(3 * ROWS)),
    ),
    (
        _shapes.last_batch,
        lambda: facts(dense(jit_compile=True), arrays(2 * ROWS + 3)),
        "has 3 rows, the others 8: one more XLA compilation",
        lambda: facts(data=arrays(2 * ROWS + 3)),
    ),
    (
        _shapes.open_shapes,
        lambda: facts(data=arrays(2 * ROWS + 3)),
        "has 3 rows, the others 8; `fit` of Keras leaves them open",
        lambda: facts(fast(), arrays(2 * ROWS + 3)),
    ),
    (
        _shapes.open_shapes,
        lambda: facts(pooled(), lengths(4, 5, 6)),
        "3 kinds of batch",
        lambda: facts(pooled(), lengths(4, 4, 4)),
    ),
    (
        _shapes.shapes_under_xla,
        lambda: facts(pooled(jit_compile=True), lengths(4, 5, 6, 4)),
        "3 shapes",
        lambda: facts(pooled(jit_compile=False), lengths(4, 5, 6, 4)),
    ),
    (
        _input.input_wait,
        lambda: facts(
            data=rows().map(lambda x, y: (x, y)).batch(ROWS),
            profile=profile(waits=0.5),
            stages=[("Map", 0.003), ("Batch", 0.001), ("Prefetch", 0.004)],
        ),
        "the stage Map takes most",
        lambda: facts(profile=profile(waits=0.05)),
    ),
    (
        _input.input_wait,
        lambda: facts(profile=profile(waits=0.5)),
        "gathered from the arrays",
        # The start of an epoch is what such a step waits for.
        lambda: facts(data=arrays(ROWS), profile=profile(waits=0.5)),
    ),
    (
        _input.shuffle_buffer,
        lambda: facts(data=rows(2**21).shuffle(2**23).batch(ROWS)),
        "keeps 2097152 elements of 20 bytes, 40.0 MB in all",
        lambda: facts(data=rows().shuffle(2**23).batch(ROWS)),
    ),
    (
        _input.large_arrays,
        lambda: facts(data=(np.zeros((16, 2**20), "float32"), np.zeros(16))),
        "64.0 MB of arrays, of which",
        lambda: facts(),
    ),
    (
        _input.large_arrays,
        lambda: facts(fast(), free_memory=1000),
        "too large for a device with 1000 bytes",
        lambda: facts(fast(), free_memory=2**40),
    ),
    (
        _compute.xla_requested,
        lambda: facts(
            quiet_compile(
                lambda: dense(
                    fk.FastModel, [NoJit(name="lookup")], jit_compile=True
                )
            )
        ),
        "layers ['lookup'] have supports_jit=False",
        lambda: facts(fast(jit_compile=True)),
    ),
    (
        _compute.xla_requested,
        lambda: facts(
            quiet_compile(
                lambda: dense(layers=[NoJit(name="lookup")], jit_compile=True)
            )
        ),
        "requested True, effective False",
        lambda: facts(dense(jit_compile=True)),
    ),
    (
        _compute.xla_layers,
        lambda: calling(NoJit(name="lookup")),
        "lookup",
        lambda: calling(Proper()),
    ),
    (
        _compute.xla,
        lambda: facts(profile=BUSY),
        "100% computing",
        lambda: facts(profile=IDLE),
    ),
    (
        _compute.xla,
        lambda: facts(fast(Execution(jit=False))),
        "XLA is off",
        lambda: facts(fast()),
    ),
    (
        _compute.xla,
        lambda: facts(without_xla=growth(1.2)),
        "takes 1.20×",
        lambda: facts(without_xla=growth(1.0)),
    ),
    (
        _compute.costly_metrics,
        lambda: facts(profile=profile(metric=1e-3)),
        "take 1 ms, auc: AUC (200 thresholds) most",
        lambda: facts(profile=profile(metric=1e-4)),
    ),
    (
        _compute.augmentation,
        lambda: facts(random_images={"flip": 3e-4, "zoom": 2e-4}),
        "alone flip 0.3 ms, zoom 0.2 ms a batch, beside a step of 4 ms",
        lambda: facts(random_images={"flip": 3e-4}),
    ),
    (
        _compute.unscaled_loss,
        lambda: facts(dense(Unscaled, optimizer=scaling())),
        "divides the gradients by 32768",
        lambda: facts(dense(Scaled, optimizer=scaling())),
    ),
    (
        _tracing.python_values,
        lambda: facts(dense(Counting, run_eagerly=True)),
        "Counting.inner: traced again",
        lambda: facts(dense(Tensors, run_eagerly=True)),
    ),
    (
        _compute.pure_half,
        lambda: half("float16", "adam"),
        "epsilon=1e-07",
        lambda: half("mixed_float16", "adam"),
    ),
    (
        _compute.pure_half,
        lambda: half("float16", ADAM(epsilon=1e-5)),
        "epsilon=1e-05",
        lambda: half("float16", ADAM(epsilon=1e-4)),
    ),
    (
        _compute.pure_half,
        lambda: half("float16", keras.optimizers.Adafactor()),
        "epsilon=1e-30",
        lambda: half("float16", keras.optimizers.Adafactor(epsilon_1=1e-4)),
    ),
    (
        _compute.half_outputs,
        lambda: half("mixed_float16", head="mixed_float16"),
        "half are float16",
        lambda: half("mixed_float16"),
    ),
    (
        _compute.mixed_precision,
        lambda: facts(gpus=1),
        "1 GPU",
        lambda: facts(gpus=0),
    ),
    (
        _compute.larger_batch,
        lambda: facts(data=arrays(20 * ROWS), growth=growth(1.1)),
        "1.10×",
        lambda: facts(data=arrays(20 * ROWS), growth=growth(1.7)),
    ),
    (
        _compute.larger_batch,
        lambda: facts(data=rows(20).batch(1), growth=growth(1.1)),
        "1.10×",
        # Twice the rows are half the updates of an epoch.
        lambda: facts(data=arrays(19 * ROWS), growth=growth(1.1)),
    ),
    (
        _memory.activations,
        lambda: facts(dense(layers=narrow(2)), free_memory=200),
        "288 bytes of activations, with 200 bytes free",
        lambda: facts(dense(layers=narrow(2)), free_memory=2**30),
    ),
    (
        _memory.frozen_prefix,
        lambda: frozen(),
        "prefix: frozen after",
        lambda: frozen(fk.FastModel),
    ),
    (
        _memory.frozen_prefix,
        lambda: frozen(fk.FastModel, late=True),
        "'prefix'",
        lambda: facts(fast()),
    ),
    (
        _memory.dense_table,
        lambda: table("adam"),
        "3 whole update(s) of table and slots for 16 rows",
        lambda: table("sgd"),
    ),
    (
        _memory.dense_table,
        lambda: table("rmsprop"),
        "1 whole update(s)",
        lambda: table("rmsprop", rows=12),
    ),
]


@pytest.mark.parametrize(
    ("rule", "fires", "evidence", "is_quiet"),
    CASES,
    ids=[f"{rule.__name__}-{k}" for k, (rule, *_) in enumerate(CASES)],
)
def test_a_rule_fires_where_it_must_and_nowhere_else(
    rule, fires, evidence, is_quiet, capsys
):
    advice = rule(fires())
    assert evidence in advice.evidence
    assert advice.gain and advice.change
    assert advice.mathematics in ("same", "changed")
    assert rule(is_quiet()) is None


def test_where_xla_is_off_all_the_same_no_shape_is_compiled():
    model = quiet_compile(
        lambda: dense(fk.FastModel, [NoJit(name="lookup")], jit_compile=True)
    )
    uneven = facts(model, arrays(2 * ROWS + 3))
    assert _compute.xla_requested(uneven) is not None
    assert _shapes.shapes_under_xla(uneven) is None


def test_every_rule_has_a_case():
    assert {rule for rule, *_ in CASES} == set(RULES)


def test_nothing_is_advised_for_a_model_that_lacks_nothing():
    found = facts(fast(), free_memory=2**40)
    assert [rule(found) for rule in RULES if rule(found)] == []


def test_a_global_switch_to_eager_is_seen():
    tf.config.run_functions_eagerly(True)
    try:
        advice = _tracing.eager(facts())
    finally:
        tf.config.run_functions_eagerly(False)
    assert "run_functions_eagerly(True)" in advice.evidence
    assert not advice.settings


def test_the_largest_activation_of_an_eager_step_is_named():
    wide = keras.layers.Dense(1024, name="wide")
    advice = _tracing.eager(
        facts(dense(layers=[wide], run_eagerly=True), free_memory=2**40)
    )
    # 8 rows of 1024 floats of 4 bytes.
    assert "wide" in advice.evidence and "32.0 KB" in advice.evidence


def test_a_step_that_can_not_be_traced_is_told_with_the_error():
    advice = _tracing.sync_points(calling(Fetching(), run_eagerly=True))
    assert "can't be traced" in advice.evidence


def test_data_that_does_not_fit_the_model_is_no_sync_point():
    rows = tf.data.Dataset.from_tensor_slices(arrays())
    advice = _tracing.sync_points(facts(data=rows))
    assert advice.rule == "step that fails"
    assert "Expected shape (None, 4)" in advice.evidence


def test_an_eager_step_of_many_variables_is_told_so():
    advice = _tracing.many_small_variables(
        facts(dense(layers=narrow(50), run_eagerly=True))
    )
    assert "runs eagerly" in advice.evidence
    assert advice.settings == {"jit_compile": True, "run_eagerly": False}


def test_arrays_are_better_shuffled_by_fit():
    arrays_ = np.zeros((2**21, 5), "float32"), np.zeros((2**21, 1))
    slices = tf.data.Dataset.from_tensor_slices(arrays_).shuffle(2**21)
    changes = [
        _input.shuffle_buffer(facts(data=data.batch(ROWS))).change
        for data in (slices, rows(2**21).shuffle(2**23))
    ]
    assert ["the arrays themselves" in each for each in changes] == [
        True,
        False,
    ]


def test_xla_for_many_variables_is_advised_where_it_can_run():
    layers = [*narrow(50), NoJit(name="lookup")]
    advice = _tracing.many_small_variables(
        facts(quiet_compile(lambda: dense(layers=layers)))
    )
    assert not advice.settings
    assert advice.change.startswith("lookup into `dataset.map`")


def test_padded_batches_need_no_advice_on_shapes():
    padded = fast([fk.perf.PadBatches()])
    assert _shapes.last_batch(facts(padded, arrays(2 * ROWS + 3))) is None


def test_a_last_batch_beyond_what_is_looked_at_is_seen():
    advice = _shapes.last_batch(facts(fast(), arrays(100 * ROWS + 3)))
    assert "has 3 rows" in advice.evidence


def test_losses_and_metrics_of_the_users_are_looked_at():
    class Loss(keras.losses.Loss):
        def call(self, y, y_pred):
            print("loss")
            return keras.ops.mean(keras.ops.square(y - y_pred), -1)

    class Metric(keras.metrics.Mean):
        def update_state(self, y, y_pred, sample_weight=None):
            print("metric")
            super().update_state(y - y_pred)

    model = dense()
    model.compile("sgd", Loss(), metrics=[Metric()])
    model.train_on_batch(*arrays())
    evidence = _tracing.python_print(facts(model)).evidence
    assert "Loss.call" in evidence and "Metric.update_state" in evidence


def test_what_calls_cost_is_expected_from_a_loop_that_was_timed():
    def told(model=None, **known):
        return _tracing.dispatch(facts(model, **known))

    # Of 4 ms, 1 ms for the batches that Keras gathers; a third of the rest.
    late = profile(python=0.75, pipeline=1e-3)
    advice = told(profile=late)
    assert advice.gain.startswith("about 2 times") and "1.00 ms" in str(advice)
    assert advice.ground == "estimate"
    # On the device they are at hand.
    single = fast(Execution(steps_per_launch=1))
    assert told(single, profile=late).gain.startswith("about 3 times")
    without = told(profile=IDLE, calls=None)
    assert without.ground == "not measured" and "times" not in without.gain
    assert "none" in told(profile=IDLE, calls=calls(8e-3)).gain
    # Where steps wait for the input, that is to be told alone.
    waits = profile(python=0.75, waits=0.2, pipeline=4e-3)
    assert told(profile=waits) is None


def test_a_loop_that_is_timed_runs_its_steps_and_leaves_no_trace_of_them():
    model = fast()
    known = Facts(model, arrays(), ROWS, steps=3)
    before = model.get_weights()
    assert all(found.n == 5 and found.median > 0 for found in known.calls)
    for one, other in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_layers_that_draw_images_anew_are_timed():
    inputs = keras.Input((4, 4, 1))
    hidden = keras.layers.RandomFlip(name="flip")(inputs)
    hidden = keras.layers.Flatten()(keras.layers.Rescaling(2.0)(hidden))
    model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
    model.compile("sgd", "mse")
    images = np.ones((ROWS, 4, 4, 1), "float32"), np.ones((ROWS, 1))
    costs = facts(model, images).random_images
    assert list(costs) == ["flip"] and costs["flip"] > 0


def test_shapes_that_xla_compiles_are_no_dispatch():
    def told(*sizes):
        jitted = pooled(jit_compile=True)
        return _tracing.dispatch(facts(jitted, lengths(*sizes), profile=IDLE))

    assert told(4, 5, 6) is None
    # Calls and loops are timed without XLA.
    assert told(4, 4, 4).ground == "not measured"


def test_what_a_model_refuses_is_not_offered():
    class Own(fk.FastModel):
        def train_step(self, data):
            return super().train_step(data)

    uneven = arrays(2 * ROWS + 3)
    (own, other) = (
        _shapes.last_batch(facts(dense(cls), uneven, trace_seconds=0.5))
        for cls in (Own, fk.FastModel)
    )
    assert "drop_remainder" in own.change and "drop_remainder" in other.change
    assert "PadBatches" not in str(own.ways) + own.change
    assert "PadBatches" in other.change and len(other.ways) == 2


def test_a_trace_is_weighed_against_what_steps_cost_that_no_loop_runs():
    def told(model, **known):
        uneven = arrays(2 * ROWS + 3)
        return _shapes.last_batch(
            facts(model, uneven, trace_seconds=0.5, **known)
        )

    # 0.5 s for 2 ms a step; 3 steps are an epoch.
    advice = told(fast())
    assert "2 ms more each" in advice.evidence
    assert "0.5 s, once; no faster a step" in advice.gain
    assert advice.change.startswith(
        "nothing, for a training of more than 250 steps (83 epochs), or "
        "`batch(n, drop_remainder=True)`"
    )
    single = fast(Execution(steps_per_launch=1))
    for found in told(single), told(fast(), calls=calls(4e-3)):
        assert "more each" not in found.evidence
        assert found.change.startswith("`batch(n, drop_remainder=True)`")


def test_what_padding_adds_to_sequences_is_told():
    # 8 + 9 + 16 steps become 16 + 16 + 16; of the labels nothing varies.
    specs = [(((8, n), "float32"), ((8, 3), "float32")) for n in (8, 9, 16)]
    assert _shapes._padded(specs, 16) == 48 / 33
    assert _shapes._padded(specs[:1], 16) == 1.0


def test_lengths_are_padded_where_the_model_masks_them():
    inputs = keras.Input((None,), dtype="int32")
    for masks in (False, True):
        ids = keras.layers.Embedding(9, 2, mask_zero=masks)(inputs)
        pooled_ = keras.layers.GlobalAveragePooling1D()(ids)
        model = fk.FastModel(inputs, keras.layers.Dense(1)(pooled_))
        model.compile("sgd", "mse")
        change = _shapes.retraces(facts(model, lengths(4, 5, 6))).change
        assert ("PadBatches" in change) == masks
        assert "Execution(signature=" in change


def test_a_model_that_fails_as_it_is_built_is_advised():
    class Late(keras.Model):
        head = None

        def call(self, x):
            self.head = self.head or keras.layers.Dense(1)
            return self.head(x)

    model = Late()
    model.compile("sgd", "mse")
    (advice,) = [a for rule in RULES if (a := rule(facts(model, profile=None)))]
    assert advice.rule == "variables made in the step"
    assert "Late.call" in advice.evidence and "can't be traced" in str(advice)


def test_an_error_of_the_step_is_told_with_the_users_own_line():
    def loss(y, y_pred):
        return float(y_pred) * y

    model = dense()
    model.compile("sgd", loss, run_eagerly=True)
    line = loss.__code__.co_firstlineno + 1
    assert f"loss (line {line})" in _tracing.sync_points(facts(model)).evidence


@pytest.mark.slow
def test_a_metric_that_is_dear_is_told_and_one_that_is_not_is_not():
    def told(metric):
        inputs = keras.Input((32,))
        model = keras.Model(inputs, keras.layers.Dense(20)(inputs))
        model.compile("sgd", "mse", metrics=[metric])
        data = arrays(1280, 32)[0], np.ones((1280, 20), "float32")
        return _compute.costly_metrics(Facts(model, data, 128))

    areas = keras.metrics.AUC(multi_label=True, num_labels=20, name="areas")
    advice = told(areas)
    assert "areas: AUC (200 thresholds) most of it" in advice.evidence
    assert "thresholds" in advice.change and advice.ground == "bound"
    assert told("mae") is None


def test_replicas_are_offered_only_what_they_can_do(mirrored):
    with mirrored.scope():
        one, other = dense(), fast()
    change = _tracing.dispatch(facts(one, profile=IDLE)).change
    assert change.endswith("perf='auto' in the strategy's scope")
    assert not _shapes.last_batch(facts(other, arrays(2 * ROWS + 3))).ways
    assert as_fast(one).distribute_strategy is mirrored
    # Made elsewhere, it is refused.
    with pytest.raises(ValueError, match="in the scope of one strategy"):
        fk.FastModel.from_keras(one).compile(one.optimizer, "mse")
