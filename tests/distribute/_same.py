"""What both files of this folder share: train twice, compare everything."""

import contextlib
from typing import NamedTuple

import keras
import numpy as np

from fastkeras import FastModel

#: Rows of the small problem: global batches of 8, 8, 8 and one single row,
#: which leaves the second of two replicas with none.
ROWS, BATCH = 25, 8


class Result(NamedTuple):
    """What a training leaves behind."""

    weights: list
    history: dict
    slots: list
    model: object


def data(rows=ROWS, features=4, seed=0):
    """Features and targets of a regression whose gradients are not small."""
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(rows, features)).astype("float32")
    y = 3 * draw.normal(size=(rows, 1)).astype("float32")
    return x, y


def mlp(cls=FastModel, l2=None):
    """A small regression model of class `cls`."""
    inputs = keras.Input((4,))
    h = keras.layers.Dense(
        6,
        "tanh",
        kernel_initializer=keras.initializers.GlorotUniform(1),
        kernel_regularizer=keras.regularizers.L2(l2) if l2 else None,
    )(inputs)
    outputs = keras.layers.Dense(
        1, kernel_initializer=keras.initializers.GlorotUniform(2)
    )(h)
    return cls(inputs, outputs)


def sgd(**kwargs):
    """SGD with momentum: every difference of a gradient shows."""
    return keras.optimizers.SGD(0.05, momentum=0.9, **kwargs)


def adam(**kwargs):
    """Adam with an epsilon that keeps it from magnifying rounding."""
    return keras.optimizers.Adam(0.02, epsilon=1e-3, **kwargs)


def trained(
    strategy,
    perf="auto",
    make=mlp,
    optimizer=sgd,
    xy=None,
    compiled=None,
    **fitted,
):
    """Makes, compiles and fits a model in the scope of a strategy, or of none.

    Args:
        strategy: A `tf.distribute.Strategy`, or None.
        perf: As for `compile`; the string `"keras"` leaves the argument out.
        make: Function that makes the model.
        optimizer: Function that makes the optimizer.
        xy: Tuple of what `fit` takes by position. Defaults to `data()`.
        compiled: Dict of further arguments of `compile`.
        **fitted: Further arguments of `fit`.

    Returns:
        A `Result`.
    """
    keras.utils.set_random_seed(3)
    keras.backend.clear_session(free_memory=False)
    with strategy.scope() if strategy else contextlib.nullcontext():
        model = make()
        # The numbers are the same without XLA, whose compiling takes longer,
        # and on one device without a graph.
        arguments = {"loss": "mse", "jit_compile": False, **(compiled or {})}
        if strategy is None and not arguments["jit_compile"]:
            arguments.setdefault("run_eagerly", True)
        if perf != "keras":
            arguments["perf"] = perf
        model.compile(optimizer(), **arguments)
    arguments = {"batch_size": BATCH, "epochs": 2, "shuffle": False}
    history = model.fit(
        *(xy or data()), verbose=0, **{**arguments, **fitted}
    ).history
    slots = [v.numpy() for v in model.optimizer.variables]
    return Result(model.get_weights(), history, slots, model)


def gap(a, b):
    """The largest difference between two lists of arrays."""
    assert len(a) == len(b)
    return max(np.max(np.abs(np.subtract(p, q))) for p, q in zip(a, b))


def check_same(one, two, weights=1e-6, logs=1e-5):
    """Asserts that two trainings left the same weights, slots and history."""
    moved = gap(one.weights, two.weights)
    assert moved <= weights, f"weights differ by {moved:.2e}"
    moved = gap(one.slots, two.slots)
    assert moved <= 10 * weights, f"optimizer variables differ by {moved:.2e}"
    check_logs(one.history, two.history, logs)


def check_logs(one, two, tolerance=1e-5):
    """Asserts that two histories hold the same numbers."""
    assert set(one) == set(two)
    for name in one:
        np.testing.assert_allclose(
            one[name], two[name], tolerance, tolerance, err_msg=name
        )
    assert all(np.all(np.isfinite(v)) for v in one.values())
