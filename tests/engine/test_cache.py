"""What one run measured and the next one knows."""

import contextlib
import json
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import fastkeras as fk
from fastkeras._lib.warn import FastKerasWarning
from fastkeras.engine import _cache
from fastkeras.engine._feeds import ordered_feed
from fastkeras.engine._pilot import SAMPLES
from fastkeras.engine._pilot import Pilot

TIERS = {"graph-step": (0.004, 0.0), "graph-loop": (0.001, 0.5)}
X = np.random.default_rng(0).normal(size=(64, 3)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


@pytest.fixture
def file(monkeypatch, tmp_path):
    monkeypatch.setenv("FASTKERAS_CACHE_DIR", str(tmp_path / "new"))
    monkeypatch.setattr(_cache, "_TOLD", set())
    return tmp_path / "new" / "choices.json"


def compiled(width=4, perf="auto"):
    inputs = keras.Input((3,))
    hidden = keras.layers.Dense(width)(inputs)
    model = fk.FastModel(inputs, keras.layers.Dense(1)(hidden))
    model.compile("sgd", "mse", perf=perf)
    return model


def key(model, batch_size=8):
    feed = ordered_feed(model, (X, Y), batch_size)
    return _cache.signature(model, "train_step", feed)


def test_a_model_made_again_has_its_key_and_another_model_another():
    assert key(compiled()) == key(compiled())
    others = {key(compiled()), key(compiled(5)), key(compiled(), 16)}
    others.add(key(compiled(perf=fk.perf.ClipByNorm(1.0))))
    assert len(others) == 4


def test_what_is_saved_is_loaded_and_tiers_are_joined(file):
    assert _cache.load("k") == {}
    _cache.save("k", TIERS)
    _cache.save("k", {"xla-loop": (0.0002, 2.0)})
    _cache.save("other", TIERS)
    assert _cache.load("k") == {**TIERS, "xla-loop": (0.0002, 2.0)}
    assert [p.name for p in file.parent.iterdir()] == ["choices.json"]


def test_a_known_tier_is_tried_at_once_if_the_time_ahead_pays():
    def second(ahead, known):
        pilot = Pilot(["graph-step", "graph-loop"])
        pilot.note("graph-step", 1, 1.0)
        pilot.known = known
        return pilot.next(lambda _: 0.5, None, ahead)[0]

    # It gains 3 ms a step, and its 0.5 s count three times.
    assert second(501, TIERS) == "graph-loop"
    assert second(499, TIERS) == "graph-step"
    assert second(501, {}) == "graph-step"


def test_what_was_slower_is_measured_again_where_that_costs_next_to_nothing():
    """A busy hour must not keep a tier from all runs to come."""

    def third(ahead, step):
        pilot = Pilot(["graph-step", "graph-loop"])
        for _ in range(1 + SAMPLES):
            pilot.note("graph-step", 1, 0.001)
        pilot.known = {**TIERS, "graph-loop": (step, 0.5)}
        return pilot.next(lambda _: 0.1, None, ahead)[0]

    # Its 0.5 s are a hundredth of 50,000 steps of 1 ms.
    assert third(50_100, 0.005) == "graph-loop"
    assert third(49_900, 0.005) == "graph-step"
    # What is known to be faster is not kept waiting for so long.
    assert third(49_900, 0.001) == "graph-loop"


@pytest.mark.parametrize(
    "content",
    [
        "{ half of it",
        '{"format": 99, "entries": {}}',
        '{"format": 1, "entries": {"k": {"date": "", "tiers": {"a": 3}}}}',
        "[]",
        "\x00\xff",
    ],
)
def test_a_file_that_is_not_ours_is_ignored_with_one_line(file, content):
    file.parent.mkdir()
    file.write_text(content, encoding="latin-1")
    with pytest.warns(FastKerasWarning, match="is not read") as told:
        assert _cache.load("k") == {}
        assert _cache.load("other") == {}
    assert len(told) == 1
    _cache.save("k", TIERS)
    assert _cache.load("k") == TIERS


def test_a_folder_that_can_not_be_written_costs_one_line(monkeypatch, file):
    monkeypatch.setenv("FASTKERAS_CACHE_DIR", "/proc/no/such")
    with pytest.warns(FastKerasWarning, match="can't be written") as told:
        _cache.save("k", TIERS)
        _cache.save("k", TIERS)
    assert len(told) == 1


def test_fit_writes_what_it_compared_unless_told_not_to(monkeypatch, file):
    monkeypatch.setattr("fastkeras.engine._pilot.FREE", 1e9)
    off = fk.perf.Execution(steps_per_launch=2, cache=False)
    on = fk.perf.Execution(steps_per_launch=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled(perf=off).fit(X, Y, batch_size=2, epochs=8, verbose=0)
        assert not file.exists()
        model = compiled(perf=on)
        model.fit(X, Y, batch_size=2, epochs=8, verbose=0)
    entries = json.loads(file.read_text())["entries"]
    tiers = entries[key(model, 2)]["tiers"]
    assert {"graph-loop", "xla-loop"} <= tiers.keys()
    assert all(step > 0 for step, _ in tiers.values())
    assert tiers["graph-loop"][1] > 0


@pytest.mark.parametrize("profiled", [True, False])
def test_what_a_profiler_slowed_down_is_not_kept(
    profiled, monkeypatch, file, tmp_path
):
    monkeypatch.setattr("fastkeras.engine._pilot.FREE", 1e9)
    # Steps one by one, so that a comparison is soon over.
    monkeypatch.setattr("fastkeras.engine._pilot.LAUNCH_SECONDS", 0)
    model = compiled(perf=fk.perf.Execution(feed="stream", jit=False))
    profiler = tf.profiler.experimental.Profile(str(tmp_path))
    with profiler if profiled else contextlib.nullcontext():
        model.fit(X, Y, batch_size=1, verbose=0)
    assert file.exists() != profiled


def test_what_is_known_to_be_faster_is_tried_no_later_than_what_is_not():
    """Short fits, one after the other: no time ahead pays a compilation."""

    def steps_before(known):
        pilot = Pilot(["graph-step", "graph-loop"])
        pilot.known = known
        for done in range(1000):
            tier, _ = pilot.next(lambda _: 0.17, 45, 45 - done % 45)
            if tier == "graph-loop":
                return done
            pilot.note(tier, 1, 0.001)
        return None

    step = {"graph-step": (1e-3, 0.0)}
    faster = steps_before({**step, "graph-loop": (5e-4, 0.3)})
    assert 0 < faster <= steps_before({})
    assert steps_before({**step, "graph-loop": (2e-3, 0.3)}) is None
