"""What replicas give: the figures that hand-made times come to."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

from fastkeras import measure
from fastkeras import perf
from fastkeras.distribute import _scaling
from fastkeras.distribute import scaling
from tests.distribute import _same


class Scripted(measure.Clock):
    """Each stopwatch shows the next of these seconds."""

    def __init__(self, seconds):
        self._seconds = itertools.cycle(seconds)
        self._time, self._runs = 0.0, False

    def now(self):
        if self._runs:
            self._time += next(self._seconds)
        self._runs = not self._runs
        return self._time


def make(plan="auto"):
    model = _same.mlp()
    model.compile("sgd", "mse", jit_compile=False, perf=plan)
    return model


def report(strategy, seconds, **arguments):
    arguments = {"batch_size": 16, "steps": 2, **arguments}
    data = _same.data()
    return scaling(make, data, strategy, clock=Scripted(seconds), **arguments)


def test_figures_of_two_replicas(mirrored):
    # A step alone, a step of both, with the exchange and without.
    found = report(mirrored, [0.004, 0.005, 0.003, 0.001])
    *advice, cores = found["advice"]
    assert "CPU devices: those of one machine share its" in cores
    (large,) = advice
    assert "the all-reduce takes 40% of a step: perf.Accumulate(K)" in large
    values = found.to_dict()
    del values["advice"]
    assert values == {
        "strategy": "MirroredStrategy, 2 replicas",
        "replicas": 2,
        "rows": {"per replica": 16, "of an update": 32},
        "step on one device": "4.00 ms (±0.00, n=2)",
        "step on each replica": "5.00 ms (±0.00, n=2)",
        "all-reduce": "2.00 ms (±0.00, n=2)",
        "share of the all-reduce": 0.4,
        "efficiency": 0.8,
        "throughput": 1.6,
    }


def test_a_model_too_small_is_told(mirrored):
    small, *_ = _scaling.advice(mirrored, 3, efficiency=0.25, share=0.7)
    assert small.startswith(
        "the model is too small for 2 replicas of 3 rows: 0.50 times"
    )
    # The control: a large one is not.
    (cores,) = _scaling.advice(mirrored, 3, efficiency=0.9, share=0.1)
    assert "share its" in cores


def test_windows_and_guards_on_one_replica():
    def windows():
        return make([perf.Accumulate(3), perf.SkipNonFinite()])

    one = tf.distribute.OneDeviceStrategy("CPU:1")
    found = scaling(windows, _same.data(), one, batch_size=4, steps=1)
    assert found["rows"] == {"per replica": 4, "of an update": 12}
    assert found["share of the all-reduce"] == 0
    assert found["advice"] == []
    assert found["efficiency"] > 0


@pytest.mark.parametrize(
    ("made", "arguments", "error", "told"),
    [
        (make, {"batch_size": 0}, ValueError, "`batch_size` must be >= 1"),
        (make, {"steps": 1.5}, TypeError, "`steps` must be an integer"),
        (lambda: _same.mlp(keras.Model), {}, TypeError, "compiled FastModel"),
        (_same.mlp, {}, TypeError, "`make` must return a compiled"),
    ],
)
def test_what_can_not_be_is_refused(made, arguments, error, told):
    one = tf.distribute.OneDeviceStrategy("CPU:0")
    with pytest.raises(error, match=told):
        scaling(made, np.ones((4, 4)), one, **arguments)
