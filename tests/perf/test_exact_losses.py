"""Every kind of loss, output and data: parts equal one big batch.

As in `test_exactness.py` the reference is plain Keras on all rows at once;
here the optimizer is SGD, and what varies is the objective.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

import fastkeras as fk
from fastkeras.perf import Accumulate
from fastkeras.perf import Microbatch
from fastkeras.perf import SkipNonFinite
from fastkeras.perf import _part
from tests.perf import _tools

UPDATES = 3
TOLERANCE = 1e-6

# Each feature in the graph, where parts are walked by a loop, and eagerly.
FORMS = {
    "accumulate": (Accumulate(3), False),
    "microbatch": (Microbatch(_tools.PART), False),
    "accumulate-eager": (Accumulate(3), True),
    "microbatch-eager": (Microbatch(_tools.PART), True),
}


def mean_log_cosh(y_true, y_pred):
    """A loss function that has reduced its values to one number."""
    return tf.reduce_mean(tf.math.log(tf.math.cosh(y_true - y_pred)))


class OwnLoss(keras.layers.Layer):
    """Adds a loss of what goes through it: a mean over the rows."""

    def call(self, x):
        self.add_loss(0.3 * tf.reduce_mean(tf.abs(x)))
        return x


def own_loss_graph():
    inputs = keras.Input((4,))
    x = keras.layers.Dense(5, "tanh")(inputs)
    return inputs, keras.layers.Dense(1)(OwnLoss()(x))


def activity_graph():
    inputs = keras.Input((4,))
    x = keras.layers.Dense(5, activity_regularizer=keras.regularizers.L2(0.1))(
        inputs
    )
    return inputs, keras.layers.Dense(1)(x)


def real_graph(**kwargs):
    return _tools.dense_graph((5,), 1, None, **kwargs)


def two_heads(x, inputs):
    a = keras.layers.Dense(1, name="a")(x)
    b = keras.layers.Dense(3, "softmax", name="b")(x)
    return inputs, [a, b]


def two_outputs_graph():
    inputs = keras.Input((4,))
    return two_heads(keras.layers.Dense(5, "tanh")(inputs), inputs)


def dict_outputs_graph():
    inputs, (a, b) = two_outputs_graph()
    return inputs, {"a": a, "b": b}


def two_masks_graph():
    """Two outputs per step, each with the mask of its own input."""
    inputs, outputs = [], []
    for name in ("a", "b"):
        i = keras.Input((5,), dtype="int32", name=f"in_{name}")
        x = keras.layers.Embedding(6, 3, mask_zero=True)(i)
        inputs.append(i)
        outputs.append(keras.layers.Dense(1, name=name)(x))
    return inputs, outputs


def lstm_graph():
    inputs = keras.Input((5, 1))
    x = keras.layers.Masking(0.0)(inputs)
    x = keras.layers.LSTM(3, return_sequences=True)(x)
    return inputs, keras.layers.Dense(1)(x)


def penalised_ids_graph():
    inputs, x = _tools.ids_graph()
    layer = keras.layers.Dense(1, kernel_regularizer="l2", name="penalised")
    return inputs, layer(x)


def ids(rows=_tools.UNEVEN, seed=0):
    return _tools.ids_data(rows, seed)


def steps_data():
    x, y = ids()
    return (x[..., None] / 3).astype("float32"), y


def two_targets():
    x, a = _tools.real_data()
    return x, [a, _tools.classes_data()[1]]


def dict_targets():
    x, (a, b) = two_targets()
    return x, {"a": a, "b": b}


def two_masks_data():
    (x, a), (z, b) = ids(), ids(seed=1)
    # The second input is long where the first is short.
    return [x, z[::-1].copy()], [a, b]


def weighted(data, per_step=False):
    x, y = data
    rng = np.random.default_rng(7)
    shape = y.shape[:2] if per_step else y.shape[:1]
    return x, y, rng.uniform(0.1, 3, shape).astype("float32")


def masked_out(data):
    """The rows of the first part hold padding alone."""
    x, y = data
    x[: _tools.PART] = 0
    return x, y


def weightless(data):
    """The rows of the first part weigh nothing."""
    x, y, w = weighted(data)
    w[: _tools.PART] = 0
    return x, y, w


def mse(reduction):
    return lambda: keras.losses.MeanSquaredError(reduction=reduction)


BOTH = {"a": "mse", "b": "sparse_categorical_crossentropy"}

# name: graph, data, loss, and more arguments of `compile`
CASES = {
    "two outputs": (
        two_outputs_graph,
        two_targets,
        lambda: list(BOTH.values()),
        dict(loss_weights=[0.5, 2.0], metrics=["mae", "accuracy"]),
    ),
    "outputs in a dict": (dict_outputs_graph, dict_targets, BOTH.copy, {}),
    "two masks": (two_masks_graph, two_masks_data, lambda: ["mse", "mae"], {}),
    "l2": (
        lambda: real_graph(kernel_regularizer=keras.regularizers.L2(0.1)),
        _tools.real_data,
        lambda: "mse",
        {},
    ),
    "l2 beside a mask": (penalised_ids_graph, ids, lambda: "mse", {}),
    "add_loss": (own_loss_graph, _tools.real_data, lambda: "mse", {}),
    "activity": (activity_graph, _tools.real_data, lambda: "mse", {}),
    "sum": (real_graph, _tools.real_data, mse("sum"), {}),
    "sum, weighted": (
        real_graph,
        lambda: weighted(_tools.real_data()),
        mse("sum"),
        {},
    ),
    "none": (real_graph, _tools.real_data, mse("none"), {}),
    "mean_with_sample_weight": (
        real_graph,
        lambda: weighted(_tools.real_data()),
        mse("mean_with_sample_weight"),
        {},
    ),
    "mean_with_sample_weight, no weight": (
        real_graph,
        _tools.real_data,
        mse("mean_with_sample_weight"),
        {},
    ),
    "mean_with_sample_weight beside l2": (
        lambda: real_graph(kernel_regularizer="l2"),
        lambda: weighted(_tools.real_data()),
        mse("mean_with_sample_weight"),
        {},
    ),
    "mean_with_sample_weight, a part without": (
        real_graph,
        lambda: weightless(_tools.real_data()),
        mse("mean_with_sample_weight"),
        {},
    ),
    "mask and mean_with_sample_weight": (
        _tools.ids_graph,
        lambda: weighted(ids(), per_step=True),
        mse("mean_with_sample_weight"),
        {},
    ),
    "mask and a weight per row": (
        _tools.ids_graph,
        lambda: weighted(ids()),
        lambda: "mse",
        {},
    ),
    "mask and a weight per step": (
        _tools.ids_graph,
        lambda: weighted(ids(), per_step=True),
        lambda: "mse",
        {},
    ),
    "mask and sum": (_tools.ids_graph, ids, mse("sum"), {}),
    "a part that is masked out": (
        _tools.ids_graph,
        lambda: masked_out(ids()),
        lambda: "mse",
        {},
    ),
    "lstm": (lstm_graph, steps_data, lambda: "mse", {}),
    "a function to one number": (
        real_graph,
        _tools.real_data,
        lambda: mean_log_cosh,
        {},
    ),
    "one number beside l2": (
        lambda: real_graph(kernel_regularizer="l2"),
        _tools.real_data,
        lambda: mean_log_cosh,
        {},
    ),
}


def fit_parts(model, feature, data, epochs=UPDATES, **kwargs):
    x, y, w = (*data, None, None)[:3]
    size = _tools.PART if isinstance(feature, Accumulate) else _tools.UNEVEN
    history = model.fit(
        x,
        y,
        sample_weight=w,
        batch_size=size,
        epochs=epochs,
        shuffle=False,
        verbose=0,
        **kwargs,
    )
    return history.history


def train_whole(model, data, updates=UPDATES):
    x, y, w = (*data, None, None)[:3]
    if w is not None and w.ndim < np.ndim(y) - 1:
        # Keras would put a weight per row along the steps.
        w = w[:, None]
    logs = {}
    for _ in range(updates):
        model.reset_metrics()
        values = model.train_on_batch(x, y, w, return_dict=True)
        for name, value in values.items():
            logs.setdefault(name, []).append(float(np.mean(value)))
    return logs


def differences(case, form):
    """Largest difference of weights and of logs, parts against one batch."""
    graph, data, loss, options = CASES[case]
    feature, eager = FORMS[form]
    plain, fast = _tools.twins(graph)
    start = plain.get_weights()
    options = {**options, "run_eagerly": eager}
    fast.compile(sgd(case), loss(), perf=feature, **options)
    plain.compile(sgd(case), loss(), **{**options, "run_eagerly": True})
    big = train_whole(plain, data())
    small = fit_parts(fast, feature, data())
    assert _tools.difference(start, plain) > 1e-3
    return _tools.difference(plain, fast), _tools.logs_difference(big, small)


def sgd(case):
    # Gradients of a sum are some 19 times those of a mean.
    return keras.optimizers.SGD(0.001 if "sum" in case else 0.02)


# Loops and objectives meet here: every form of these, two of the others.
ALL_FORMS = {"two outputs", "l2 beside a mask", "a part that is masked out"}


@pytest.mark.parametrize(
    ("case", "form"),
    [
        # Now the graph for one feature, now for the other; eager is slow.
        pytest.param(case, form, marks=[] if j == k % 2 else pytest.mark.slow)
        for k, case in enumerate(CASES)
        for j, form in enumerate(FORMS)
        if case in ALL_FORMS or j in ((0, 3), (1, 2))[k % 2]
    ],
)
def test_parts_equal_one_big_batch(case, form):
    weights, logs = differences(case, form)
    assert weights < TOLERANCE
    assert logs < TOLERANCE


# Each rule of the sum, broken on purpose: the comparison has to see it.


def mean_of_means(monkeypatch):
    """Each part counts the same, however many rows or weights it holds."""
    right = _part.objectives

    def objectives(*args):
        return [o._replace(weight=tf.ones(())) for o in right(*args)]

    monkeypatch.setattr(_part, "objectives", objectives)


def by_rows(monkeypatch):
    """Each part counts by its rows, whatever its loss divides by."""
    right = _part.objectives

    def objectives(model, loss, records, rows, replicas):
        found = right(model, loss, records, rows, replicas)
        return [o._replace(weight=rows) for o in found]

    monkeypatch.setattr(_part, "objectives", objectives)


def penalty_in_each_part(monkeypatch):
    """What the layers add is summed over the parts, not averaged."""
    right = _part.objectives

    def objectives(model, loss, records, rows, replicas):
        data = sum(r.total for r in records)
        penalty = _part.Objective(tf.add_n(model.losses), None, 1)
        found = right(model, data, records, rows, replicas)
        return [*found, penalty]

    monkeypatch.setattr(_part, "objectives", objectives)


@pytest.mark.parametrize(
    ("case", "breaks"),
    [
        ("two outputs", mean_of_means),
        ("sum", mean_of_means),
        ("mask and a weight per step", by_rows),
        ("mean_with_sample_weight", by_rows),
        ("two masks", by_rows),
        ("l2", penalty_in_each_part),
    ],
)
def test_a_broken_rule_is_seen(case, breaks, monkeypatch):
    breaks(monkeypatch)
    weights, _ = differences(case, "accumulate-eager")
    assert weights > 1e-4


@pytest.mark.parametrize(
    ("feature", "size"),
    [(Accumulate(3), _tools.PART), (SkipNonFinite(), _tools.UNEVEN)],
    ids=["parts", "guarded"],
)
def test_float64_stays_float64(feature, size):
    x, y = (rows.astype("float64") for rows in _tools.real_data())
    weights = []
    for perf, rows in ((None, _tools.UNEVEN), (feature, size)):
        keras.utils.set_random_seed(0)
        inputs = keras.Input((4,), dtype="float64")
        outputs = keras.layers.Dense(1, dtype="float64")(inputs)
        model = fk.FastModel(inputs, outputs)
        loss = keras.losses.MeanSquaredError(dtype="float64")
        model.compile(keras.optimizers.SGD(0.1), loss, perf=perf)
        model.fit(
            x, y, batch_size=rows, epochs=UPDATES, shuffle=False, verbose=0
        )
        weights.append(model.get_weights())
    for a, b in zip(*weights, strict=True):
        assert a.dtype == b.dtype == np.float64
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-14)
