"""Several parts, one update: equal to one big batch in plain Keras.

The reference is always a `keras.Model` that is given all rows at once (with
Keras's own clips; NumPy for the one Keras lacks). Float32 sums come in another
order, so the tolerance is 1e-6 on weights of size 1, after 4 updates.
"""

import dataclasses
import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

import fastkeras as fk
from fastkeras.perf import Accumulate
from fastkeras.perf import AdaptiveClip
from fastkeras.perf import ClipByGlobalNorm
from fastkeras.perf import ClipByNorm
from fastkeras.perf import ClipByValue
from fastkeras.perf import Feature
from fastkeras.perf import Microbatch
from fastkeras.perf import Stage
from tests.perf import _tools

UPDATES = 4
TOLERANCE = 1e-6

OPTIMIZERS = {
    "SGD": dict(learning_rate=0.1),
    "SGD+momentum": dict(learning_rate=0.05, momentum=0.9, nesterov=True),
    "Adam": dict(learning_rate=0.01),
    "AdamW": dict(learning_rate=0.01, weight_decay=0.1),
    "RMSprop": dict(learning_rate=0.01),
    "Adagrad": dict(learning_rate=0.05),
    "Adadelta": dict(learning_rate=1.0),
    "Adamax": dict(learning_rate=0.01),
    "Nadam": dict(learning_rate=0.01),
    "Ftrl": dict(learning_rate=0.05),
    "Lion": dict(learning_rate=0.005),
    "Adafactor": dict(learning_rate=0.01),
    "Lamb": dict(learning_rate=0.01),
    "Muon": dict(learning_rate=0.01),
}

FACTOR = 0.02

# Feature, and the option of a Keras optimizer that does the same on one batch.
CLIPS = {
    "none": ([], {}),
    "global": ([ClipByGlobalNorm(0.05)], dict(global_clipnorm=0.05)),
    "norm": ([ClipByNorm(0.04)], dict(clipnorm=0.04)),
    "value": ([ClipByValue(0.01)], dict(clipvalue=0.01)),
    "adaptive": ([AdaptiveClip(FACTOR)], None),
}

FACTORS = {
    "feature": ["accumulate", "microbatch"],
    "optimizer": list(OPTIMIZERS),
    "schedule": ["constant", "cosine"],
    "ema": ["no_ema", "ema"],
    "rows": ["8+8+8", "8+8+3"],
    "weights": ["plain", "sample_weight", "class_weight", "mask"],
    "clip": list(CLIPS),
    "tier": ["graph", "eager"],
}


def make_optimizer(name, schedule="constant", ema="no_ema", **options):
    settings = {**OPTIMIZERS[name], **options}
    if schedule == "cosine":
        settings["learning_rate"] = keras.optimizers.schedules.CosineDecay(
            settings["learning_rate"], decay_steps=6
        )
    if ema == "ema":
        # Overwritten at update 3: a count of anything but updates shows.
        settings.update(
            use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=3
        )
    return getattr(keras.optimizers, name.split("+")[0])(**settings)


def numpy_adaptive_clip(gradient, weight, name, factor, epsilon=1e-3):
    """AGC of one variable, as in the paper, in NumPy."""
    rank = weight.ndim
    axes = tuple(range(rank - 1)) if rank > 1 else None
    if name == "embeddings":
        axes = tuple(range(1, rank))

    def norm(a):
        return np.sqrt(np.sum(np.square(a), axes, keepdims=True))

    largest = factor * np.maximum(norm(weight), epsilon)
    own = norm(gradient)
    return np.where(
        own > largest, gradient * largest / np.maximum(own, 1e-12), gradient
    )


class DenseGradients(keras.Model):
    """Plain Keras with dense gradients, clipped in NumPy where `factor` is set.

    Keras clips and squares the gradient of an embedding before the rows of
    repeated ids are summed, so that what RMSprop or a clip sees is not the
    gradient of the table.
    """

    factor = None

    def train_step(self, data):
        x, y, w = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x, y, y_pred, w, training=True)
        variables = self.trainable_variables
        gradients = tape.gradient(loss, [v.value for v in variables])
        gradients = [_tools.dense(g) for g in gradients]
        if self.factor:
            gradients = [
                numpy_adaptive_clip(g, np.asarray(v), v.name, self.factor)
                for g, v in zip(gradients, variables, strict=True)
            ]
        self.optimizer.apply(
            [tf.convert_to_tensor(g) for g in gradients], variables
        )
        self._loss_tracker.update_state(loss, sample_weight=x.shape[0])
        return self.compute_metrics(x, y, y_pred, w)


def weighting(kind, rows):
    """Graph, loss, metrics, data and arguments of `fit` for one kind."""
    if kind == "mask":
        x, y = _tools.ids_data(rows)
        return _tools.ids_graph, "mse", "mae", (x, y), {}
    data = _tools.classes_data(rows)
    more = {}
    if kind == "sample_weight":
        weights = np.linspace(0.1, 3.0, rows).astype("float32")
        more["sample_weight"] = weights
    if kind == "class_weight":
        more["class_weight"] = {0: 0.5, 1: 1.0, 2: 4.0}
    loss = "sparse_categorical_crossentropy"
    return _tools.dense_graph, loss, "accuracy", data, more


def features_of(feature):
    if feature == "accumulate":
        return [Accumulate(3)]
    return [Microbatch(_tools.PART)]


def fit_parts(model, feature, data, **kwargs):
    """Fits with one update an epoch: from batches, or slices of one batch."""
    size = _tools.PART if feature == "accumulate" else len(data[0])
    return model.fit(
        *data,
        batch_size=size,
        epochs=UPDATES,
        shuffle=False,
        verbose=0,
        **kwargs,
    )


def train_whole(model, data, **kwargs):
    """One update an epoch from all rows at once; returns the logs of each."""
    logs = {}
    for _ in range(UPDATES):
        model.reset_metrics()
        values = model.train_on_batch(*data, return_dict=True, **kwargs)
        for name, value in values.items():
            logs.setdefault(name, []).append(float(value))
    # As at the end of `fit`: a moving average takes the place of the weights.
    model.optimizer.finalize_variable_values(model.trainable_variables)
    return logs


def reference(case):
    """One big batch in plain Keras: the model, where it started, its logs."""
    rows = _tools.EVEN if case["rows"] == "8+8+8" else _tools.UNEVEN
    graph, loss, metric, data, more = weighting(case["weights"], rows)
    options = CLIPS[case["clip"]][1]
    by_hand = options is None or case["weights"] == "mask"
    keras.utils.set_random_seed(3)
    model = (DenseGradients if by_hand else keras.Model)(*graph())
    if options is None:
        model.factor = FACTOR
    start = model.get_weights()
    model.compile(
        make_optimizer(
            case["optimizer"], case["schedule"], case["ema"], **options or {}
        ),
        loss,
        metrics=[metric],
        weighted_metrics=[metric],
        run_eagerly=True,
    )
    return model, start, train_whole(model, data, **more)


def parts(case, start, perf=None):
    """The same in parts, in a FastModel."""
    rows = _tools.EVEN if case["rows"] == "8+8+8" else _tools.UNEVEN
    graph, loss, metric, data, more = weighting(case["weights"], rows)
    model = fk.FastModel(*graph())
    model.set_weights(start)
    if perf is None:
        perf = features_of(case["feature"]) + CLIPS[case["clip"]][0]
    model.compile(
        make_optimizer(case["optimizer"], case["schedule"], case["ema"]),
        loss,
        metrics=[metric],
        weighted_metrics=[metric],
        run_eagerly=case["tier"] == "eager",
        perf=perf,
    )
    return model, fit_parts(model, case["feature"], data, **more).history


def compare(case):
    """Largest differences of weights, optimizer slots and logs."""
    plain, start, big = reference(case)
    moved = _tools.difference(start, plain)
    fast, small = parts(case, start)
    own = ("grad_norm", "grad_norm_max", "clipped_fraction")
    for name in own:
        small.pop(name, None)
    assert int(fast.optimizer.iterations) == UPDATES
    assert moved > 100 * TOLERANCE
    return (
        _tools.difference(plain, fast),
        _tools.slots_difference(plain.optimizer, fast.optimizer),
        _tools.logs_difference(big, small),
    )


def id_of(case):
    return "-".join(case.values())


TABLE = _tools.covering(FACTORS)
PRODUCT = [
    dict(zip(FACTORS, values, strict=True))
    for values in itertools.product(*FACTORS.values())
]
# Every pair of values is in the table. Of the product one case takes about a
# second: every 149th of the 8,960 (a prime, so that no factor stands still).
SAMPLE = PRODUCT[::149]


def test_the_table_covers_every_pair_of_values():
    missing = _tools.all_pairs(FACTORS)
    for row in TABLE:
        for a, b in itertools.combinations(row, 2):
            missing.pop(_tools.pair(a, row[a], b, row[b]), None)
    assert not missing
    # Not by being the whole product.
    assert len(TABLE) < 2 * len(OPTIMIZERS) * len(CLIPS)


def test_the_sample_holds_every_value():
    for name, values in FACTORS.items():
        assert {row[name] for row in SAMPLE} == set(values)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=pytest.mark.slow if k % 3 else [])
        for k, case in enumerate(TABLE)
    ],
    ids=[id_of(case) for case in TABLE],
)
def test_parts_equal_one_big_batch(case):
    weights, slots, logs = compare(case)
    assert weights < TOLERANCE
    assert slots < TOLERANCE
    assert logs < TOLERANCE


@dataclasses.dataclass(frozen=True)
class ClipsEachPart(Feature):
    """As `ClipByGlobalNorm`, but before the parts are summed."""

    stage = Stage.CLIP

    def unscale(self, gradients, state):
        return tf.clip_by_global_norm(gradients, 0.05)[0]


@pytest.mark.parametrize("feature", FACTORS["feature"])
def test_a_clip_before_the_sum_is_seen(feature):
    case = {name: values[0] for name, values in FACTORS.items()}
    case.update(feature=feature, clip="global", tier="eager")
    plain, start, _ = reference(case)
    right, _ = parts(case, start)
    wrong, _ = parts(case, start, [*features_of(feature), ClipsEachPart()])
    assert _tools.difference(plain, right) < TOLERANCE
    assert _tools.difference(plain, wrong) > 100 * TOLERANCE


@pytest.mark.parametrize("feature", FACTORS["feature"])
def test_class_weights_of_a_dataset_count_in_every_part(feature):
    x, y = _tools.classes_data()
    class_weight = {0: 0.5, 1: 1.0, 2: 4.0}
    size = _tools.PART if feature == "accumulate" else len(x)
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(size)
    plain, fast = _tools.twins(_tools.dense_graph)
    loss = "sparse_categorical_crossentropy"
    plain.compile(make_optimizer("SGD"), loss, run_eagerly=True)
    start = plain.get_weights()
    logs = train_whole(plain, (x, y), class_weight=class_weight)

    def run(**given):
        fast.set_weights(start)
        fast.compile(make_optimizer("SGD"), loss, perf=features_of(feature))
        return fast.fit(data, epochs=UPDATES, verbose=0, **given).history

    history = run(class_weight=class_weight)
    assert _tools.difference(plain, fast) < TOLERANCE
    assert _tools.logs_difference(logs, history) < TOLERANCE
    run()
    assert _tools.difference(plain, fast) > 100 * TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("case", SAMPLE, ids=id_of)
def test_parts_equal_one_big_batch_in_the_product(case):
    weights, slots, logs = compare(case)
    assert weights < TOLERANCE
    assert slots < TOLERANCE
    assert logs < TOLERANCE
