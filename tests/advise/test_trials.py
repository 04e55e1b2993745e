"""Trying features: what is kept, what is not, and what stays of a trial."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import fastkeras as fk
from fastkeras import measure
from fastkeras.advise import Advice
from fastkeras.advise import _memory
from fastkeras.advise._data import Data
from fastkeras.advise._facts import Facts
from fastkeras.advise._trials import Comparison
from fastkeras.advise._trials import try_all
from fastkeras.advise._ways import Batches
from fastkeras.advise._ways import Way
from fastkeras.advise._ways import _Timer
from fastkeras.measure import ManualClock
from tests.advise._models import ROWS
from tests.advise._models import Eager
from tests.advise._models import arrays
from tests.advise._models import dense
from tests.advise._models import facts
from tests.advise._models import fast
from tests.advise.test_advise import same
from tests.advise.test_advise import snapshot
from tests.advise.test_advise import trained

Microbatch = fk.perf.Microbatch
UNEVEN = arrays(2 * ROWS + 3)


class Turns(ManualClock):
    """The base takes a second a run, the way that is tried so many."""

    def __init__(self, seconds):
        super().__init__()
        self.seconds, self.count = seconds, 0

    def now(self):
        run, self.count = self.count // 2, self.count + 1
        # One of each to warm up, three of the base to count steps.
        tried = run == 1 or (run >= 5 and run % 2 == 0)
        self.advance(self.seconds if tried else 1.0)
        return super().now()


def advice(rule="rule", aim="speed", **settings):
    return Advice(rule, "", "", "", settings=settings, aim=aim)


def tried(model, *found, seconds=0.5, data=None, **known):
    known = {"clock": Turns(seconds), **known}
    return try_all(facts(model, data, **known), list(found))


def wide(perf="auto"):
    """A model whose activations are larger than its weights."""
    return dense(
        fk.FastModel,
        [keras.layers.Dense(64, activation="relu") for _ in range(3)],
        optimizer="sgd",
        perf=perf,
    )


def test_what_computes_something_else_is_not_kept():
    model = Eager()
    model.compile("sgd", "mse", run_eagerly=True)
    (found,) = tried(model, advice("eager", run_eagerly=False))
    assert not found.kept and model.run_eagerly
    assert "the numbers do not agree" in found.receipt


def test_padding_that_saves_a_trace_is_kept():
    model = trained(fast())
    before = snapshot(model)
    found = advice("last batch", "traces", perf=[fk.perf.PadBatches()])
    (receipt,) = tried(model, found, seconds=1.0, data=UNEVEN)
    assert receipt.kept, receipt.receipt
    # A step is traced for 8 rows and for 3, or for 8 alone.
    assert "2 → 1 traces and compilations" in receipt.receipt
    assert model.perf.pads
    assert same(before, snapshot(model))
    history = model.fit(*UNEVEN, batch_size=ROWS, verbose=0)
    assert np.isfinite(history.history["loss"][0])


def test_padding_that_costs_steps_is_not_kept():
    found = [
        advice(rule, "traces", perf=[fk.perf.PadBatches()])
        for rule in ("one", "other")
    ]
    model = fast()
    one, other = tried(model, *found, seconds=1.5, data=UNEVEN)
    assert not one.kept and not other.kept
    assert one.receipt.endswith("not kept, the step takes 1.50 times as long")
    # Nobody waits for the same trial again.
    assert other.receipt == "other: as for one"
    assert not model.perf.features


def test_less_memory_is_kept_at_the_price_that_was_said():
    model = wide()
    known = Facts(model, arrays(512), 256, free_memory=100, clock=Turns(1.4))
    (found,) = try_all(known, [_memory.activations(known)])
    assert found.kept, found.receipt
    assert model.perf.features == (Microbatch(64),)
    before, _, after = found.receipt.split(": ")[1].split(" MB")[0].split()
    assert float(after) < 0.9 * float(before)


@pytest.mark.parametrize(
    ("ratio", "after", "refusal"),
    [
        (1 / 1.4, 80, ""),
        (1 / 1.6, 80, "the step takes 1.60 times as long"),
        (1.0, 95, "it saves no memory"),
    ],
)
def test_the_price_of_memory_and_what_it_must_save(ratio, after, refusal):
    seconds, times = measure.summarize([1.0]), measure.summarize([ratio])
    found = Comparison(
        seconds, seconds, times, 7, 0.0, True, "memory", (100, after)
    )
    assert found.refusal == refusal


def test_where_batches_are_normalised_blocks_are_tried_not_slices():
    norm = keras.layers.BatchNormalization()
    model = dense(fk.FastModel, [keras.layers.Dense(64), norm], perf="auto")
    found = _memory.activations(facts(model, free_memory=100))
    assert found.settings == {"perf": [fk.perf.Rematerialize()]}


@pytest.mark.slow
def test_nothing_stays_of_blocks_that_are_not_kept():
    model = trained(wide())
    function, before = model.train_function, snapshot(model)
    found = advice("memory", "memory", perf=[fk.perf.Rematerialize("dense*")])
    (receipt,) = tried(model, found, seconds=9.0)
    assert not receipt.kept
    assert not any("call" in vars(layer) for layer in model.layers)
    assert model.train_function is function
    assert same(before, snapshot(model))


@pytest.mark.slow
def test_features_of_the_model_are_in_place_after_a_trial():
    model = trained(wide(perf=[fk.perf.Rematerialize("dense*")]))
    tried(model, advice(perf=[Microbatch(2)]), seconds=9.0)
    assert sum("call" in vars(layer) for layer in model.layers) == 3
    model.compile("sgd", "mse", perf="auto")
    assert not any("call" in vars(layer) for layer in model.layers)


def test_what_the_model_refuses_is_said():
    (receipt,) = tried(fast(), advice(perf=[fk.perf.Watch(exclude="nobody")]))
    assert not receipt.kept
    assert "not kept, it is refused: Each entry of `exclude`" in receipt.receipt


def test_a_keras_model_is_tried_as_a_fast_one_and_stays_what_it_is():
    model = dense(metrics=["mae"])
    model.compile("adam", lambda y, p: keras.ops.mean((y - p) ** 2, -1))
    before, optimizer = snapshot(trained(model)), model.optimizer
    (receipt,) = tried(model, advice("frozen", perf=[]))
    assert receipt.receipt.endswith("it takes a FastModel")
    assert "1000 → 500 ms/step" in receipt.receipt
    assert not receipt.kept and model.optimizer is optimizer
    assert same(before, snapshot(model))


@pytest.mark.slow
def test_perf_none_becomes_auto_if_that_is_faster():
    model = fast(perf=None)
    assert model.perf.is_keras
    (receipt,) = tried(model, advice("dispatch", perf=[]))
    assert receipt.kept and not model.perf.is_keras
    trained(model)


def test_replicas_are_as_before_and_so_is_the_place_in_their_data(mirrored):
    def shuffled():
        rows = tf.data.Dataset.from_tensor_slices(arrays())
        return rows.shuffle(2 * ROWS, seed=1).batch(ROWS)

    def order(data):
        return np.concatenate([x for x, _ in data])

    with mirrored.scope():
        model = dense(layers=[keras.layers.Dropout(0.5, seed=3)])
        model.optimizer.build(model.trainable_variables)
    data, twin = shuffled(), shuffled()
    before = snapshot(model)
    known = facts(model, data)
    base, batches = Way(known, {}), Batches(known.data)
    for way in base, Way(known, {"perf": []}, base):
        _, logs = way.run(batches, batches.shown)
        assert np.isfinite(logs["loss"])
        assert same(before, snapshot(model))
    np.testing.assert_array_equal(order(data), order(twin))
    # Gone through once, it would be in another place.
    assert (order(twin) != order(shuffled())).any()


# The batches of a trial.


@pytest.mark.parametrize("data", [arrays(), UNEVEN], ids=["even", "uneven"])
def test_arrays_stay_arrays_with_the_last_batch_of_the_data(data):
    given = Batches(Data(data, ROWS)).of(5)
    last = len(data[0]) % ROWS or ROWS
    assert len(given["x"]) == 4 * ROWS + last
    np.testing.assert_array_equal(given["x"][:ROWS], data[0][:ROWS])
    np.testing.assert_array_equal(given["y"], 2 * given["x"][:, :1])


def test_a_stream_gives_batches_of_all_its_shapes():
    rows = tf.data.Dataset.from_tensor_slices(UNEVEN).batch(ROWS)
    given = Batches(Data(rows, ROWS)).of(4)["x"]
    assert [len(x) for x, _ in given] == [ROWS, ROWS, 3, ROWS]


# The data.


def test_the_place_in_a_dataset_is_as_before():
    def order(looks):
        rows = tf.data.Dataset.range(8).shuffle(8, seed=1).batch(2)
        for look in looks:
            look(rows)
        return [int(x[0]) for x in rows]

    untouched = order([])
    assert order([lambda rows: Data(rows, 2).batches]) == untouched
    # To go through the dataset itself is what must not happen.
    assert order([list]) != untouched


def test_arrays_in_a_list_and_none_for_weights_are_read():
    for data in (list(arrays()), (*arrays(), None)):
        assert [len(part) for part in Data(data, ROWS).source] == [16, 16]
        assert len(Data(data, ROWS).batch) == 2


def test_settings_are_plain_values_as_a_dict():
    assert advice(perf=[Microbatch(2)]).to_dict()["settings"] == {
        "perf": ["Microbatch(size=2, budget_bytes=None)"]
    }


class Failing(Turns):
    """Raises when the way that is tried has been timed once."""

    def __init__(self, error):
        super().__init__(0.5)
        self.error = error

    def now(self):
        if self.count == 5:
            raise self.error
        return super().now()


@pytest.mark.parametrize("error", [RuntimeError("boom"), KeyboardInterrupt()])
def test_what_ends_a_trial_leaves_the_model_as_it_was(error):
    model = trained(dense(fk.FastModel))
    before, plan = snapshot(model), model.perf
    pinned = advice(execution={"signature": "pin"})
    if isinstance(error, KeyboardInterrupt):
        with pytest.raises(KeyboardInterrupt):
            tried(model, pinned, clock=Failing(error))
    else:
        (found,) = tried(model, pinned, clock=Failing(error))
        assert "not kept, it fails: RuntimeError: boom" in found.receipt
        assert not found.kept
    assert same(before, snapshot(model))
    assert model.perf == plan


def test_a_pinned_signature_is_tried_and_kept_where_it_is_faster():
    model = trained(dense(fk.FastModel))
    pinned = advice(execution={"signature": "pin"})
    (found,) = tried(model, pinned)
    assert found.kept and model.perf.execution.signature == "pin"
    model = trained(dense(fk.FastModel))
    (found,) = tried(model, pinned, seconds=2.0)
    assert not found.kept and model.perf.execution.signature != "pin"
    assert found.receipt.endswith("it is not faster beyond the noise")


def test_steps_are_timed_without_what_an_epoch_begins_and_ends_with():
    clock = ManualClock()
    timer = _Timer(clock, steps=4)
    timer.set_model(dense())
    clock.advance(5.0)
    for batch in (1, 3):
        timer.on_train_batch_begin(batch - 1)
        clock.advance(2.0)
        timer.on_train_batch_end(batch)
    clock.advance(7.0)
    assert timer.seconds == 4.0


@pytest.mark.slow
def test_what_xla_compiles_for_keras_is_counted():
    model = dense(jit_compile=True)
    padded = advice("last batch", "traces", perf=[fk.perf.PadBatches()])
    (found,) = tried(model, padded, seconds=1.0, data=UNEVEN)
    # 8 rows and 3, or 8 alone.
    assert "2 → 1 traces and compilations" in found.receipt
    assert found.receipt.endswith("it takes a FastModel")
