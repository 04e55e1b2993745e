"""OneDeviceStrategy, and what needs a process of its own."""

import json
import os
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from fastkeras import perf
from tests.distribute import _same

slow = pytest.mark.slow
ROOT = pathlib.Path(__file__).parents[2]
ALL = [
    perf.Accumulate(2),
    perf.Microbatch(3),
    perf.Watch(exclude="*/bias"),
    perf.SkipNonFinite(),
    perf.ClipByGlobalNorm(0.5),
]


@pytest.fixture(scope="module")
def strategy():
    return tf.distribute.OneDeviceStrategy("CPU:0")


# Each feature with one of the two optimizers, all of them with both.
@pytest.mark.parametrize(
    ("plan", "optimizer"),
    [
        pytest.param(ALL, _same.adam, id="all-adam"),
        pytest.param(ALL, _same.sgd, id="all-sgd", marks=slow),
        pytest.param("auto", _same.adam, id="auto", marks=slow),
        pytest.param(perf.Accumulate(3), _same.sgd, id="window", marks=slow),
        pytest.param(perf.ClipByNorm(0.3), _same.adam, id="norm", marks=slow),
        pytest.param(perf.ClipByValue(0.1), _same.sgd, id="value", marks=slow),
        pytest.param(perf.AdaptiveClip(0.5), _same.adam, id="agc", marks=slow),
        pytest.param(perf.Microbatch(3), _same.sgd, id="slices", marks=slow),
        pytest.param(perf.SkipNonFinite(), _same.adam, id="skip", marks=slow),
    ],
)
def test_a_feature_equals_no_strategy(strategy, plan, optimizer):
    none, one = (
        _same.trained(s, plan, optimizer=optimizer, validation_split=0.2)
        for s in (None, strategy)
    )
    _same.check_same(none, one)
    assert _same.gap(one.weights, _same.mlp().weights) > 1e-3


@pytest.mark.parametrize(
    "policy",
    ["mixed_float16", pytest.param("mixed_bfloat16", marks=slow)],
)
def test_mixed_precision_equals_no_strategy(strategy, policy):
    plan = [perf.Accumulate(2), perf.MixedPrecision(policy, 256.0)]
    # Half precision rounds in other places where a graph fuses operations.
    graph = {"run_eagerly": False}
    none, one = (
        _same.trained(s, plan, compiled=graph) for s in (None, strategy)
    )
    _same.check_same(none, one, 1e-3, 1e-3)


@slow
def test_schedules_and_averages_under_a_guard(strategy):
    def optimizer():
        return keras.optimizers.AdamW(
            keras.optimizers.schedules.CosineDecay(0.05, 8),
            weight_decay=0.1,
            epsilon=1e-3,
            use_ema=True,
            ema_momentum=0.8,
            ema_overwrite_frequency=3,
        )

    plan = [perf.Accumulate(2), perf.SkipNonFinite()]
    x, y = _same.data()
    x[12, 1] = np.inf
    none, one = (
        _same.trained(s, plan, optimizer=optimizer, xy=(x, y))
        for s in (None, strategy)
    )
    _same.check_same(none, one)
    assert one.history["skipped_steps"] == [1, 1]


def test_the_loss_of_a_skipped_batch_does_not_count(strategy):
    x, y = _same.data()
    y[12] = np.inf
    for plan in (perf.SkipNonFinite(), "mixed_float16"):
        result = _same.trained(strategy, plan, xy=(x, y), epochs=1)
        assert result.history["skipped_steps"][0] >= 1
        assert np.isfinite(result.history["loss"][0])
    # The control: Keras's loss of that epoch is infinite.
    stock = _same.trained(
        strategy, "keras", lambda: _same.mlp(keras.Model), xy=(x, y), epochs=1
    )
    assert not np.isfinite(stock.history["loss"][0])


@slow
def test_save_load_evaluate_predict(strategy, tmp_path):
    half = _same.trained(strategy, ALL, optimizer=_same.adam, epochs=1)
    half.model.save(tmp_path / "m.keras")
    with strategy.scope():
        loaded = keras.saving.load_model(tmp_path / "m.keras")
    x, y = _same.data()
    for model in (half.model, loaded):
        model.fit(x, y, 8, shuffle=False, verbose=0)
    assert _same.gap(half.model.get_weights(), loaded.get_weights()) <= 1e-6
    # The control: what is equal has moved on.
    assert _same.gap(half.weights, loaded.get_weights()) > 1e-3
    np.testing.assert_allclose(
        loaded.predict(x, 8, verbose=0), loaded(x), atol=1e-6
    )
    np.testing.assert_allclose(
        loaded.evaluate(x, y, 8, verbose=0),
        np.mean(np.square(y - loaded(x))),
        1e-5,
    )


def test_the_report_says_that_xla_is_not_tried(strategy):
    auto = {"jit_compile": "auto"}
    none, one = (
        _same.trained(s, "auto", compiled=auto, epochs=1).model.perf_report()
        for s in (None, strategy)
    )
    assert one["settings"]["strategy"] == "OneDeviceStrategy, 1 replica"
    reason = one["settings"]["jit"]["reason"]
    assert reason == "XLA is tried in loops alone, and these are left out"
    assert "until XLA is measured" in none["settings"]["jit"]["reason"]


@slow
def test_xla_is_allowed_on_one_device(strategy):
    none, one = (
        _same.trained(s, "auto", compiled={"jit_compile": True}, epochs=1)
        for s in (None, strategy)
    )
    _same.check_same(none, one)


@slow
def test_determinism_mixed_precision_and_a_sum_in_call():
    script = pathlib.Path(__file__).with_name("_deterministic.py")
    ran = subprocess.run(
        [sys.executable, str(script), "CPU:0", "CPU:0,CPU:1"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    (one, _), (two, again) = map(json.loads, ran.stdout.splitlines())
    assert two == again
    assert _same.gap(one, two) < 1e-3
