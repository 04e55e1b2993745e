"""The guard by itself: a bad update is left out whole, and counted."""

import keras
import numpy as np
import pytest

import fastkeras as fk
from fastkeras import perf
from tests.perf import _tools


def fit(x, y, features, metrics=(), epochs=1):
    keras.utils.set_random_seed(2)
    model = fk.FastModel(*_tools.dense_graph((5,), 1, None))
    model.compile(
        keras.optimizers.AdamW(0.01, use_ema=True),
        "mse",
        metrics=list(metrics),
        perf=features,
    )
    logs = model.fit(
        x, y, batch_size=4, epochs=epochs, shuffle=False, verbose=0
    ).history
    return model, logs


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", ["x", "y"])
def test_the_run_is_that_without_the_bad_batch(value, where):
    x, y = _tools.real_data(16)
    clean, right = fit(
        np.delete(x, slice(4, 8), 0), np.delete(y, slice(4, 8), 0), "auto"
    )
    {"x": x, "y": y}[where][5, 0] = value
    model, logs = fit(x, y, perf.SkipNonFinite())
    assert _tools.difference(clean, model) < 1e-6
    slots = [_tools.slots(m.optimizer) for m in (clean, model)]
    assert _tools.difference(*slots) < 1e-6
    assert int(model.optimizer.iterations) == 3
    assert logs["skipped_steps"] == [1]
    assert np.isfinite(logs["loss"]).all()
    if where == "y" or np.isnan(value):
        np.testing.assert_allclose(logs["loss"], right["loss"], rtol=1e-6)
    # Else tanh made a finite loss of it, which counts.


def norm_graph():
    inputs, hidden = _tools.dense_graph((5,), 3, None)
    hidden = keras.layers.BatchNormalization(momentum=0.5)(hidden)
    return inputs, keras.layers.Dense(1)(hidden)


@pytest.mark.parametrize(
    ("features", "bad"),
    [
        ("skip_non_finite", 0),
        ("skip_non_finite", 9),
        ([perf.Accumulate(2), "skip_non_finite"], 9),
        ([perf.Microbatch(2), "skip_non_finite"], 5),
        (perf.MixedPrecision(initial_scale=8.0), 0),
    ],
    ids=str,
)
def test_moving_statistics_and_metrics_leave_it_out_too(features, bad):
    def run(x, y, features):
        keras.utils.set_random_seed(2)
        model = fk.FastModel(*norm_graph())
        model.compile(
            "sgd",
            "mse",
            metrics=["mae"],
            weighted_metrics=["mse"],
            perf=features,
        )
        return model, model.fit(x, y, 4, shuffle=False, verbose=0).history

    x, y = _tools.real_data(24)
    size = 8 if "Accumulate" in str(features) else 4
    first = bad // size * size
    gone = slice(first, first + size)
    clean, right = run(np.delete(x, gone, 0), np.delete(y, gone, 0), features)
    x[bad, 1] = np.nan
    model, logs = run(x, y, features)
    assert _tools.difference(clean, model) < 1e-6
    assert logs.pop("skipped_steps") == [1]
    for name in ("loss", "mae", "mse"):
        np.testing.assert_allclose(logs[name], right[name], rtol=1e-5)
    # Left in, it is in all that follows.
    model, logs = run(x, y, "auto")
    assert np.isnan(logs["mae"]).all()
    norm = model.layers[-2]
    assert np.isnan(np.asarray(norm.moving_mean)).any()


def test_without_it_the_weights_are_lost():
    x, y = _tools.real_data(16)
    x[5, 0] = np.nan
    model, _ = fit(x, y, "auto")
    assert not np.isfinite(model.get_weights()[0]).any()


def test_a_finite_run_is_that_of_keras():
    x, y = _tools.real_data(14)
    plain, right = fit(x, y, None)
    model, logs = fit(x, y, "skip_non_finite")
    assert _tools.difference(plain, model) < 1e-6
    assert logs["skipped_steps"] == [0]
    np.testing.assert_allclose(logs["loss"], right["loss"], rtol=1e-6)


def test_the_count_is_of_each_epoch():
    x, y = _tools.real_data(12)
    x[0, 0] = x[9, 0] = np.inf
    model, logs = fit(x, y, "skip_non_finite", epochs=3)
    assert logs["skipped_steps"] == [2, 2, 2]
    (state,) = model._step.states
    assert int(state.total.numpy()) == 6
    assert int(model.optimizer.iterations) == 3


def test_a_run_of_skips_is_told_once_over_the_epochs():
    x, y = _tools.real_data(12)
    y[:] = np.nan
    with pytest.warns(UserWarning, match="updates in a row were") as seen:
        fit(x, y, "skip_non_finite", epochs=9)
    # Three in an epoch: 20 in a row are reached in the seventh.
    said = [str(w.message) for w in seen if "in a row" in str(w.message)]
    assert said[0].startswith("21 ")


def test_nineteen_are_not_told(recwarn):
    x, y = _tools.real_data(76)
    y[:] = np.nan
    fit(x, y, "skip_non_finite")
    assert not [w for w in recwarn if "in a row" in str(w.message)]


def test_a_window_is_left_out_whole():
    x, y = _tools.real_data(24)
    keep = np.r_[0:8, 16:24]
    clean, _ = fit(x[keep], y[keep], perf.Accumulate(2))
    x[9, 1] = np.nan
    model, logs = fit(x, y, [perf.Accumulate(2), "skip_non_finite"])
    assert _tools.difference(clean, model) < 1e-6
    assert logs["skipped_steps"] == [1]
    assert int(model.optimizer.iterations) == 2
