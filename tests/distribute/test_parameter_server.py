"""Parameter servers: processes, steps that count apart, and what is refused."""

import io
import json
import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf

from fastkeras import FastModel
from fastkeras import perf
from fastkeras.distribute import launch
from fastkeras.engine import _counts
from fastkeras.perf._feature import Max

CHIEF = pathlib.Path(__file__).with_name("_chief.py")


# The fast ones: what surrounds the steps, without a cluster.


def test_the_script_runs_as_the_chief_of_servers(tmp_path, monkeypatch):
    script = tmp_path / "train.py"
    script.write_text(
        "import json, os, sys, time\n"
        "print(os.environ['TF_CONFIG'])\n"
        "time.sleep(0.5)\n"
        "sys.exit(int(sys.argv[1]))\n"
    )
    out = io.StringIO()
    # In place of TensorFlow's server, whose import alone takes seconds.
    serve = tmp_path / "serve.py"
    serve.write_text("import time\nprint('serves')\ntime.sleep(600)\n")
    monkeypatch.setattr("fastkeras.distribute._launcher._SERVER", str(serve))
    assert launch(script, 2, [7], out=out, ps=1) == 7
    lines = out.getvalue().splitlines()
    (told,) = [line for line in lines if line.startswith("[chief 0]")]
    config = json.loads(told.removeprefix("[chief 0] "))
    assert config["task"] == {"type": "chief", "index": 0}
    counts = {job: len(v) for job, v in config["cluster"].items()}
    assert counts == {"worker": 2, "ps": 1, "chief": 1}
    helpers = [x for x in lines if x.startswith(("[worker", "[ps"))]
    assert helpers and all("serves" in x for x in helpers)


def test_a_helper_that_is_lost_does_not_end_the_script(tmp_path, monkeypatch):
    script = tmp_path / "train.py"
    script.write_text("import time\ntime.sleep(0.3)\n")
    lost = tmp_path / "serve.py"
    lost.write_text("raise SystemExit(5)\n")
    monkeypatch.setattr("fastkeras.distribute._launcher._SERVER", str(lost))
    assert launch(script, 1, out=io.StringIO(), ps=1) == 0
    # The control: for a task of a scheduler it is all there is.
    config = {"cluster": {"ps": ["a:1"]}, "task": {"type": "ps", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    assert launch(script, 1, out=io.StringIO()) == 5


@pytest.mark.parametrize(
    ("ps", "error", "told"),
    [(-1, ValueError, "`ps` must be >= 1"), (0.5, TypeError, "`ps` must be")],
)
def test_a_number_of_servers_that_can_not_be(ps, error, told):
    with pytest.raises(error, match=told):
        launch(__file__, ps=ps)


def trained_apart(apart):
    """A step of a model; its metrics, and what came back from the step."""
    inputs = keras.Input((2,))
    model = FastModel(
        inputs, keras.layers.Dense(1, kernel_initializer="zeros")(inputs)
    )
    model.compile(
        "sgd",
        "mse",
        metrics=["mae"],
        perf=perf.SkipNonFinite(),
        run_eagerly=True,
    )
    x, y = np.ones((3, 2), "float32"), np.array([[2], [2], [5]], "float32")
    model.train_on_batch(x, y)
    before = [v.numpy() for m in model.metrics for v in m.variables]

    @tf.function(autograph=False)
    def step(data):
        if not apart:
            model.train_step(data)
            return None
        with _counts.apart(model, trains=True) as counted:
            model.train_step(data)
            return counted()

    counted = step((tf.constant(x), tf.zeros((3, 1))))
    return model, before, counted


def test_a_step_counts_apart():
    model, before, counted = trained_apart(True)
    after = [v.numpy() for m in model.metrics for v in m.variables]
    np.testing.assert_array_equal(before, after)
    # Weights after the first update: 0.01 * 2 * mean(y) in each.
    prediction = 3 * 0.01 * 2 * 3
    (total, rows), (error, also) = counted[:2]
    np.testing.assert_allclose(total / rows, prediction**2, rtol=1e-5)
    np.testing.assert_allclose(error / also, prediction, rtol=1e-5)
    assert rows == also == 3
    assert model.optimizer.iterations == 2
    _counts.collect(model, [counted, counted])
    loss = (before[0] + 2 * total) / (before[1] + 2 * rows)
    np.testing.assert_allclose(model.get_metrics_result()["loss"], loss, 1e-5)
    # The control: the same step, not apart, adds to what all share.
    model, before, _ = trained_apart(False)
    after = [v.numpy() for m in model.metrics for v in m.variables]
    assert np.any(np.array(before) != after)


def test_counts_are_put_together():
    mean, nan = keras.metrics.Mean(), float("nan")

    def joined(*counts, guards=False, metric=mean):
        total = [np.zeros(()) for _ in counts[0]]
        for count in counts:
            total = _counts.joined(
                metric, total, [np.asarray(c) for c in count], guards
            )
        return [float(t) for t in total]

    assert joined([6.0, 3.0], [2.0, 1.0]) == [8.0, 4.0]
    assert joined([3.0], [7.0], [5.0], metric=Max()) == [7.0]
    # A mean of nothing hides no other where updates are guarded, ...
    for order in ([0, 1, 2], [1, 0, 2], [1, 2, 0]):
        counts = [[nan, 1.0], [6.0, 3.0], [2.0, 1.0]]
        assert joined(*(counts[k] for k in order), guards=True) == [8.0, 4.0]
    assert np.isnan(joined([nan, 1.0], [nan, 1.0], guards=True)[0])
    # ... and a loss that is not a number shows where they are not.
    assert np.isnan(joined([nan, 1.0], [2.0, 1.0])[0])


def test_a_metric_that_does_not_add_up_is_refused():
    class Last(keras.metrics.Metric):
        def __init__(self):
            super().__init__(name="last")
            self.value = self.add_variable(
                (), "zeros", aggregation="mean", name="value"
            )

    model = FastModel.from_keras(keras.Sequential([keras.Input((1,))]))
    model.compile(loss="mse")
    model.seen = Last()
    with pytest.raises(ValueError, match="'last', whose .*'sum'.*Keep sums"):
        with _counts.apart(model, trains=False):
            pass


# The real one.


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What a chief, two workers and a parameter server came to."""
    path = tmp_path_factory.mktemp("ps") / "out.json"
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(CHIEF.parents[2]))
        code = launch(CHIEF, 2, [path], out=out, ps=1)
    assert code == 0, out.getvalue()[-3000:]
    return json.loads(path.read_text())


@pytest.mark.slow
def test_a_chief_two_workers_and_a_parameter_server(told):
    usual = told["usual"]
    assert usual["iterations"] == 4 * 12, "each batch made one update"
    assert set(usual["history"]) == {"loss", "mae", "val_loss", "val_mae"}
    assert usual["files"] == ["model.keras"] and usual["loaded"] == 0
    np.testing.assert_allclose(*usual["evaluate"], rtol=1e-5)
    assert usual["predict"] < 1e-5
    assert "2 workers, one update in each call" in usual["receipt"]
    # Asynchronous: the region of one device's loss, not its number.
    first, *_, last = usual["history"]["loss"]
    assert last < 2 * usual["stock"][-1] < 0.2 * first


@pytest.mark.slow
def test_what_two_workers_count_is_exact(told):
    still = told["still"]
    (loss,), (mae,) = still["history"]["loss"], still["history"]["mae"]
    np.testing.assert_allclose([loss, mae], [still["loss"], still["mae"]], 1e-5)
    (mean,), (most,) = (
        still["history"][k] for k in ("grad_norm", "grad_norm_max")
    )
    assert still["history"]["clipped_fraction"] == [1.0] and mean < most


@pytest.mark.slow
def test_features_are_exact_within_an_update(told):
    assert told["features"]["gap"] <= 1e-6
    assert told["features"]["control"] > 1e-2
    assert told["features"]["skipped"] == [1, 2]


@pytest.mark.slow
def test_workers_make_their_own_data(told):
    first, last = told["own_data"]["loss"]
    assert told["own_data"]["iterations"] == 20 and last < 0.5 * first


@pytest.mark.slow
def test_a_lost_worker_and_a_lost_server(told):
    # With weights that stand still, a batch left out or counted twice shows.
    np.testing.assert_allclose(
        told["losses"]["loss"], [told["still"]["loss"]] * 2, rtol=1e-5
    )
    told = told["losses"]
    assert "no connection to /job:ps/replica:0/task:0." in told["told"]
    assert told["seconds"] < 60


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "received", "remedy"),
    [
        ("keras", "perf=None", 'Leave `perf` at "auto"'),
        ("jit", "jit_compile=True", "Leave `jit_compile`"),
        ("eager", "run_eagerly=True", "Leave it out"),
        ("pin", "signature='pin'", "Leave `signature` out"),
        ("scale", "a LossScaleOptimizer", "Give the inner optimizer"),
        ("accumulate", "gradient_accumulation_steps=4", "perf.Accumulate(4)"),
        ("ema", "ema_overwrite_frequency=2", "Leave it out"),
        ("no steps", "None steps", "Give `steps_per_epoch`"),
        ("ends", "a dataset that has", "`.repeat()`"),
        ("health", "update at the same time", "Leave it out"),
        ("toggle", "jit_compile=True", "Leave `jit_compile`"),
        ("in order", "a function of datasets", "Give arrays or a dataset"),
    ],
)
def test_what_can_not_be_is_refused(told, name, received, remedy):
    assert received in told["refused"][name]
    assert remedy in told["refused"][name]
