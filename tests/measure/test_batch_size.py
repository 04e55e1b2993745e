"""The fastest batch size: by a clock of the test, and the model left alone."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import fastkeras as fk
from fastkeras import measure
from fastkeras.measure import BatchSizes
from fastkeras.measure import batch_size
from fastkeras.measure import find_batch_size
from fastkeras.measure import summarize
from tests.perf import _tools


def model_and_data(rows=40):
    model = fk.FastModel(*_tools.dense_graph((5,), 1, None))
    model.compile("adam", "mse", metrics=["mae"])
    return model, _tools.real_data(rows)


class Timed(measure.ManualClock):
    """Each block takes the next of the given times."""

    def __init__(self, times):
        super().__init__()
        self.times = iter(times)
        self.started = False

    def now(self):
        if self.started:
            self.advance(next(self.times))
        self.started = not self.started
        return super().now()


def test_the_fastest_is_not_the_largest():
    # Sizes 8, 16, 32 in turns: 100, 196, 192 rows a second. The first two
    # turns only warm up.
    turn = [8 / 100, 16 / 196, 32 / 192]
    model, data = model_and_data()
    found = find_batch_size(model, data, clock=Timed([9.0] * 6 + turn * 7))
    rates = {n: r.median for n, r in found.rates.items()}
    np.testing.assert_allclose([rates[n] for n in (8, 16, 32)], [100, 196, 192])
    assert found.best == found.knee == 16
    assert found.flat == [16, 32]
    assert all(r.n == 7 for r in found.rates.values())
    # What stopped it is said, where it is the data.
    assert found.left_out == {
        64: "not measured: the data has 40 rows, give more"
    }
    assert "64 not measured: the data has 40 rows" in str(found)


def test_it_is_saved_and_compared(tmp_path):
    rates = {n: summarize([n, n + 2.0, n + 4.0], "") for n in (8, 16)}
    found = BatchSizes(rates, {32: "too large"}, 64)
    found.save(tmp_path / "a.json")
    read = measure.Receipt.load(tmp_path / "a.json").to_dict()
    assert measure.Summary(**read["rates"]["16"]) == rates[16]
    assert (read["best"], read["knee"], read["update"]) == (16, 16, 64)
    assert str(rates[8]) in str(measure.Receipt.load(tmp_path / "a.json"))
    faster = {**rates, 16: summarize([36.0, 38.0], "")}
    pair = measure.compare(tmp_path / "a.json", BatchSizes(faster, {}, 64))
    assert pair.verdicts == {"rates.16": "more"}
    near = {**rates, 16: summarize([17.0, 19.5], "")}
    pair = measure.compare(found, BatchSizes(near, {}, 64))
    assert pair.verdicts == {"rates.16": "within the noise"}


def test_the_model_is_left_as_it_was():
    model, data = model_and_data()
    model.fit(*data, batch_size=8, verbose=0)
    before = [np.asarray(v) for v in model.variables]
    slots = _tools.slots(model.optimizer)
    find_batch_size(model, data)
    assert _tools.difference(before, model) == 0
    assert _tools.difference(slots, _tools.slots(model.optimizer)) == 0
    # The control: a step does change them.
    model.train_on_batch(*data)
    assert _tools.difference(before, model) > 0


def test_a_budget_leaves_sizes_out():
    model, data = model_and_data()
    peak = measure.memory(model, 16, measured=False).peak
    found = find_batch_size(model, data, budget_bytes=peak)
    assert sorted(found.rates) == [8, 16]
    assert list(found.left_out) == [32]
    assert "needs about" in str(found)
    with pytest.raises(ValueError, match="8 rows must be within data and bu"):
        find_batch_size(model, data, budget_bytes=10)


def test_a_model_that_accumulates_makes_the_same_updates_at_each_size():
    model, data = model_and_data()
    model.compile("adam", "mse", perf=fk.perf.Accumulate(2))
    model.optimizer.build(model.trainable_variables)
    start, weights = model.get_weights(), []
    # Each size warms up twice and is timed 7 times.
    turn = [32 / 100, 32 / 196, 32 / 192]
    found = find_batch_size(model, data, clock=Timed([9.0] * 6 + turn * 7))
    assert found.update == 32
    rates = {n: r.median for n, r in found.rates.items()}
    np.testing.assert_allclose([rates[n] for n in (8, 16, 32)], [100, 196, 192])
    assert "in updates of 32 rows" in str(found)
    for size in (8, 16, 32):
        model.set_weights(start)
        model.compile("sgd", "mse", perf=fk.perf.Accumulate(2))
        step, given = batch_size._step(model, data, size, 32)
        step(given)
        weights.append(model.get_weights())
    assert _tools.difference(weights[0], weights[1]) < 1e-6
    assert _tools.difference(weights[0], weights[2]) < 1e-6
    # The control: an update of half the rows is another.
    model.set_weights(start)
    model.train_on_batch(*(a[:16] for a in data))
    assert _tools.difference(weights[0], model) > 1e-4


def test_how_it_is_printed():
    rates = {n: summarize([float(n)], "") for n in (8, 16)}
    lines = str(BatchSizes(rates, {32: "too large"})).splitlines()
    assert lines[2].endswith("fastest knee")
    assert lines[-1] == "within 5% of the fastest: [16]"


def test_what_is_refused():
    model, data = model_and_data(4)
    with pytest.raises(ValueError, match="4 rows, budget_bytes=None"):
        find_batch_size(model, data)
    with pytest.raises(ValueError, match="`objective` must be one of"):
        find_batch_size(model, data, objective="size")
    with pytest.raises(TypeError, match="`budget_bytes` must be an integer"):
        find_batch_size(model, data, budget_bytes=1.5)
    bare = keras.Model(model.inputs, model.outputs)
    with pytest.raises(ValueError, match="compiled=False. Call it on a batch"):
        find_batch_size(bare, data)


def test_a_dataset_is_refused_with_what_to_give():
    inputs = keras.Input((2,))
    model = keras.Model(inputs, keras.layers.Dense(1)(inputs))
    model.compile("sgd", "mse")
    rows = np.ones((4, 2), "float32")
    data = tf.data.Dataset.from_tensor_slices((rows, rows[:, :1])).batch(2)
    with pytest.raises(TypeError, match="must be arrays.*Received.*Give"):
        find_batch_size(model, data)
