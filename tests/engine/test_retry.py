"""A launch that runs out of memory is run again, as if it had not been.

The memory is that of a layer which refuses slices above some rows, from some
call on; `test_out_of_memory.py` has allocations that fail.
"""

import contextlib
import re
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import fastkeras as fk
from fastkeras._lib.variables import of_step
from fastkeras.engine import _feeds
from fastkeras.engine import _retry
from fastkeras.engine._build import build
from fastkeras.perf import Execution
from fastkeras.perf import Microbatch
from tests.perf import _tools

ROWS, BATCH = 24, 8
AUTO = Microbatch("auto", budget_bytes=10**9)


class Hungry(keras.layers.Layer):
    """Has no memory for more than `room` rows, after `calls` calls."""

    def __init__(self, room, calls):
        super().__init__()
        self.room, self.left = room, calls

    def call(self, x):
        def take(rows):
            self.left -= 1
            if self.left < 0 and rows > self.room:
                raise MemoryError(f"no room for {rows} rows")
            return rows

        rows = tf.numpy_function(take, [tf.shape(x)[0]], tf.int32)
        with tf.control_dependencies([rows]):
            return tf.identity(x)


def made(feature, room=BATCH, calls=0, noise=False, eager=False, feed="auto"):
    keras.utils.set_random_seed(1)
    inputs = keras.Input((4,))
    x = keras.layers.Dense(5, "tanh")(inputs)
    if noise:
        x = keras.layers.BatchNormalization()(x)
        x = keras.layers.Dropout(0.5)(x)
    x = Hungry(room, calls)(x)
    model = fk.FastModel(inputs, keras.layers.Dense(1)(x))
    perf = [feature]
    if not eager:
        perf += [Execution(feed=feed, steps_per_launch=3, cache=False)]
    model.compile("adam", "mse", metrics=["mae"], run_eagerly=eager, perf=perf)
    return model


def values(model):
    """Everything that a step changes."""
    return [np.asarray(v) for v in of_step(model)]


def first_loop(model):
    """Runs the first three steps in one loop."""
    data = _tools.real_data(ROWS)
    feed = _feeds.ordered_feed(model, data, BATCH)
    build(model, feed.spec)
    model.make_train_function()
    feed.begin()
    model.train_function._calls.loop("graph-loop", feed, 0, 3)
    return values(model)


# Batches of 8 rows, whole or in slices of 4.
@pytest.mark.filterwarnings("ignore:BatchNormalization")
def test_a_loop_that_fails_in_its_third_step_is_as_if_it_had_not_been():
    failing = made(AUTO, room=4, calls=2, noise=True)
    with pytest.warns(UserWarning, match="in slices of 4 rows, and so are"):
        got = first_loop(failing)
    want = first_loop(made(Microbatch(4), noise=True))
    assert int(failing.optimizer.iterations) == 3
    # Weights, statistics, seeds of the masks, slots, metrics.
    assert _tools.difference(got, want) < 1e-6
    setting = failing.perf_report()["settings"]["rows of a slice"]
    assert setting == {
        "requested": "auto",
        "effective": 4,
        "reason": "memory ran out with 8",
    }


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_control_what_the_failed_launch_left_is_seen(monkeypatch):
    monkeypatch.setattr(_retry._Before, "put_back", lambda _: None)
    got = first_loop(made(AUTO, room=4, calls=2, noise=True))
    want = first_loop(made(Microbatch(4), noise=True))
    assert _tools.difference(got, want) > 1e-2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "calls"),
    [
        # In a loop of a later epoch.
        ({"feed": "resident"}, 17),
        # In the first step.
        ({"eager": True}, 0),
    ],
)
def test_any_feed_at_any_time(how, calls):
    x, y = _tools.real_data(ROWS + 3)
    models, logs = [], []
    for feature, room in ((AUTO, 4), (Microbatch(4), BATCH)):
        model = made(feature, room, calls, **how)
        with contextlib.ExitStack() as stack:
            if feature is AUTO:
                text = "It was run again .* in slices of 4 rows"
                stack.enter_context(pytest.warns(UserWarning, match=text))
            logs.append(
                model.fit(x, y, batch_size=BATCH, epochs=6, verbose=0).history
            )
        models.append(model)
    assert _tools.difference(*map(values, models)) < 1e-6
    assert _tools.logs_difference(*logs) < 1e-6


@pytest.mark.slow
def test_a_batch_by_itself():
    x, y = _tools.real_data(BATCH)
    fast, right = made(AUTO, room=1), made(Microbatch(1))
    with pytest.warns(UserWarning, match="in slices of 1 rows"):
        got = fast.train_on_batch(x, y)
    np.testing.assert_allclose(got, right.train_on_batch(x, y), atol=1e-6)
    assert _tools.difference(values(fast), values(right)) < 1e-6


@pytest.mark.slow
def test_a_compile_keeps_what_was_learnt():
    model = made(AUTO, room=2)
    data = _tools.real_data(BATCH)
    with pytest.warns(UserWarning, match="in slices of 2 rows"):
        model.train_on_batch(*data)
    model.compile()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.train_on_batch(*data)


def test_one_row_too_many_says_what_it_takes():
    model = made(AUTO, room=0)
    before = model.get_weights()
    text = "A slice of one row must fit in memory.*takes about (\\d+) bytes"
    with pytest.raises(tf.errors.ResourceExhaustedError, match=text) as caught:
        model.fit(*_tools.real_data(BATCH), verbose=0)
    assert _tools.difference(before, model) == 0
    least = int(re.search(text, str(caught.value)).group(1))
    # The gradients of 31 weights, and a row of activations.
    assert 4 * 31 <= least < 4 * 31 * 3


def test_a_given_size_is_not_changed():
    model = made(Microbatch(4), room=2)
    with pytest.raises(tf.errors.ResourceExhaustedError, match="for 4 rows"):
        model.fit(*_tools.real_data(BATCH), verbose=0)
