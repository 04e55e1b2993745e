"""fk.advise as a whole: order, state, times, and trying what it advises."""

import logging
import random
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

import fastkeras as fk
from fastkeras.advise import _input
from fastkeras.advise import _tracing
from fastkeras.advise._data import Data
from fastkeras.advise._facts import Facts
from fastkeras.advise._graph import step_function
from fastkeras.advise._rules import RULES
from fastkeras.measure import ManualClock
from tests.advise._models import ROWS
from tests.advise._models import MakingALayer
from tests.advise._models import arrays
from tests.advise._models import dense
from tests.advise._models import fast


class Slowed(ManualClock):
    """Time passes by what the model's settings are said to cost."""

    def __init__(self, model, seconds):
        super().__init__()
        self.model, self.seconds = model, seconds

    def now(self):
        self.advance(self.seconds(self.model))
        return super().now()


def eager_is_slow(model):
    return 1.0 if model.run_eagerly else 0.1


def random_model(cls=keras.Model, **options):
    return dense(
        cls,
        [keras.layers.Dropout(0.5, seed=3)],
        optimizer="adam",
        metrics=["mae"],
        **options,
    )


#: Steps run in one way, whatever is measured.
ONE_TIER = fk.perf.Execution(jit=False, steps_per_launch=1)
#: As many batches as are profiled: of fewer, more epochs are trained.
TEN = arrays(10 * ROWS)


def snapshot(model):
    lists = [model.variables, model.metrics_variables]
    lists.append(model.optimizer.variables)
    for state in getattr(getattr(model, "_step", None), "states", ()):
        lists.append(state.variables.values())
        lists += [tracker.variables for tracker in state.trackers.values()]
    arrays_ = [v.numpy() for variables in lists for v in variables]
    return arrays_, random.getstate(), np.random.get_state()[1].tolist()


def same(one, other):
    pairs = zip(one[0], other[0], strict=True)
    return all((a == b).all() for a, b in pairs) and one[1:] == other[1:]


def trained(model):
    model.fit(*arrays(), batch_size=ROWS, epochs=1, verbose=0)
    return model


# What it leaves behind.


@pytest.mark.parametrize(
    ("cls", "options"),
    [
        (keras.Model, {}),
        (fk.FastModel, {"perf": ["mixed_float16", ONE_TIER]}),
        (keras.Model, {"run_eagerly": True}),
    ],
    ids=["keras", "fast", "eager"],
)
def test_the_state_is_as_before_and_so_is_what_is_trained(cls, options):
    seen = []

    def loss(y, y_pred):
        seen.append(y_pred)
        return keras.ops.mean(keras.ops.square(y - y_pred), -1)

    def made():
        keras.utils.set_random_seed(7)
        model = random_model(cls)
        model.compile("adam", loss, metrics=["mae"], **options)
        return trained(model)

    model, twin = made(), made()
    before, kept = snapshot(model), list(seen)
    found = fk.advise(model, TEN, ROWS)
    assert same(before, snapshot(model))
    # A list of the user's grows in the trace, and is cut again.
    assert "Python list in the graph" in [a.rule for a in found]
    assert list(map(id, seen)) == list(map(id, kept))
    found = []
    for each in model, twin:
        # The rows are shuffled alike.
        keras.utils.set_random_seed(8)
        found.append(trained(each).get_weights())
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_without_putting_back_the_state_would_differ():
    model = trained(random_model())
    before = snapshot(model)
    step_function(model)(Data(arrays(), ROWS).batch)
    assert not same(before, snapshot(model))


# What it says.


def test_advice_comes_in_the_order_of_practice():
    model = dense(
        layers=[keras.layers.Dense(2) for _ in range(50)],
        optimizer="sgd",
        run_eagerly=True,
    )
    found = fk.advise(model, arrays(2 * ROWS + 1), ROWS, steps=1)
    rules = [advice.rule for advice in found]
    assert rules == ["eager", "many small variables", "last batch"]
    names = [rule.__name__ for rule in RULES]
    order = ["eager", "last_batch", "dispatch", "xla", "mixed_precision"]
    order.append("activations")
    assert sorted(order, key=names.index) == order


def test_advice_prints_and_becomes_a_dict():
    (advice, *_) = fk.advise(dense(run_eagerly=True), arrays(), ROWS, 1)
    assert str(advice).startswith("eager: every operation is run from Python")
    assert advice.to_dict()["settings"] == {"run_eagerly": False}


def test_an_unbuilt_model_is_advised():
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse", run_eagerly=True)
    fk.advise(model, arrays(), ROWS, steps=1)
    assert model.built


def test_a_pydataset_with_workers_is_advised():
    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return 10

        def __getitem__(self, index):
            return tuple(a[:ROWS] for a in arrays())

    facts = Facts(dense(), Batches(workers=2))
    assert facts.data.rows == ROWS and facts.data.is_whole
    # Two passes of all batches: none of a pass that was left.
    assert facts.profile["run"]["steps per epoch"] == 10


@pytest.mark.parametrize(
    ("data", "error", "text"),
    [
        ((k for k in range(2)), TypeError, "from_generator"),
        (tf.data.Dataset.range(0).batch(2), ValueError, "at least one batch"),
    ],
)
def test_data_that_can_not_be_read_is_refused(data, error, text):
    with pytest.raises(error, match=text):
        fk.advise(dense(), data)


def test_a_model_that_is_not_compiled_is_refused():
    model = keras.Sequential([keras.layers.Dense(1)])
    with pytest.raises(ValueError, match=r"Call `model.compile\(...\)` first"):
        fk.advise(model, arrays())


# What it measures.


def test_growth_is_a_ratio_of_turns():
    class Rising(ManualClock):
        """Of each two stopwatches the first takes twice as long."""

        count = 0

        def now(self):
            self.count += 1
            self.advance({2: 2.0, 0: 1.0}.get(self.count % 4, 0.0))
            return super().now()

    growth = Facts(dense(), arrays(), ROWS, 2, clock=Rising()).growth
    assert (growth.median, growth.n) == (2.0, 2)


def test_the_slow_stage_of_a_real_pipeline_is_named():
    def slow(x):
        return tf.numpy_function(_sleep, [x], tf.float32)

    dataset = tf.data.Dataset.from_tensor_slices(arrays(64, 1)[0])
    slow_map = dataset.map(slow).batch(4).prefetch(1)
    quick_map = dataset.map(lambda x: x * 2).shuffle(8).batch(4).map(slow)
    for pipeline, name in ((slow_map, "Map"), (quick_map, "Map")):
        stages = Facts(dense(), pipeline).stages
        assert max(stages, key=lambda stage: stage[1])[0] == name
    assert max(range(5), key=lambda k: stages[k][1]) == 4


def test_a_real_pipeline_that_is_slower_than_the_step_is_told():
    def slow(x):
        return tf.numpy_function(_sleep, [x], tf.float32)

    def told(model, data):
        return _input.input_wait(Facts(model, data.batch(ROWS)))

    rows = tf.data.Dataset.from_tensor_slices(TEN)
    late = rows.map(lambda x, y: (tf.ensure_shape(slow(x), (4,)), y))
    assert "the stage Map takes most" in told(dense(), late.take(40)).evidence
    # A step that takes far longer than a batch.
    long = dense(layers=[keras.layers.Dense(512) for _ in range(2)])
    assert told(long, rows) is None


def _sleep(x):
    time.sleep(0.003)
    return x


# Trying it.


def test_what_is_faster_is_kept_with_a_receipt(caplog):
    model = trained(random_model(run_eagerly=True))
    before = snapshot(model)
    clock = Slowed(model, eager_is_slow)
    with caplog.at_level(logging.INFO, "fastkeras.advise"):
        (advice,) = fk.advise(model, arrays(), ROWS, 2, apply=True, clock=clock)
    assert advice.kept and advice.receipt in caplog.messages
    before_all, before_trials = (caplog.messages[k] for k in (1, -2))
    assert before_all.startswith("a trace takes ")
    assert before_trials.startswith("1 changes to try, about ")
    assert advice.receipt.startswith("eager: 1000 → 100 ms/step (±0, n=7)")
    assert advice.receipt.endswith("loss differs by 0e+00: kept")
    assert not model.run_eagerly
    assert same(before, snapshot(model))


def test_a_fast_model_is_compiled_anew_and_trains_the_same():
    def pinned_is_slow(model):
        return 1.0 if model.perf.execution.steps_per_launch == 1 else 0.1

    def run(advised):
        keras.utils.set_random_seed(1)
        model = fast(ONE_TIER)
        if advised:
            clock = Slowed(model, pinned_is_slow)
            found = fk.advise(model, arrays(), ROWS, 2, apply=True, clock=clock)
            assert [a.rule for a in found if a.kept] == ["dispatch"]
            assert model.perf.execution.steps_per_launch == "auto"
        return trained(model).get_weights()

    for one, other in zip(run(True), run(False), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("cls", [keras.Model, fk.FastModel])
def test_a_layer_made_in_call_is_told_though_the_step_fails(cls):
    told = fk.advise(dense(cls, [MakingALayer()]), arrays())
    assert "variables made in the step" in [a.rule for a in told]
    spared = Facts(dense(cls, [keras.layers.Dense(4)]), arrays())
    assert _tracing.variables_in_call(spared) is None
