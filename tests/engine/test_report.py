"""The receipt: where the time of an epoch went, and what `predict` ran."""

import time
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from fastkeras import FastModel
from fastkeras import measure
from fastkeras.engine import _epochs
from fastkeras.engine._epochs import EpochTimes
from fastkeras.engine._feed import Feed
from fastkeras.perf import Execution

X = np.ones((40, 2), "float32")
pytestmark = pytest.mark.usefixtures("no_trials")


def compiled():
    inputs = keras.Input((2,))
    model = FastModel(inputs, keras.layers.Dense(1)(inputs))
    model.compile("sgd", "mse")
    return model


class Pause(keras.callbacks.Callback):
    """Takes its time at the end of each epoch, and of each validation."""

    def on_epoch_end(self, epoch, logs=None):
        time.sleep(0.03)

    def on_test_end(self, logs=None):
        time.sleep(0.05)


def slow(seconds):
    def wait(x, y):
        return tf.numpy_function(
            lambda a: (time.sleep(seconds), a)[1], [x], tf.float32
        ), y

    data = tf.data.Dataset.from_tensor_slices((X, X[:, :1])).batch(10)
    data = data.map(wait).map(lambda x, y: (tf.ensure_shape(x, (None, 2)), y))
    # Otherwise a slow step hides some of the wait.
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    return data.with_options(options)


def test_the_parts_of_an_epoch_add_up_and_each_has_its_own():
    model = compiled()
    model.fit(
        slow(0.02),
        epochs=3,
        verbose=0,
        validation_data=(X, X[:, :1]),
        callbacks=[Pause()],
    )
    for epoch in list(model.epoch_times.epochs)[1:]:
        parts = (epoch.steps, epoch.wait, epoch.validation, epoch.overhead)
        assert min(parts) > 0
        np.testing.assert_allclose(sum(parts), epoch.total, rtol=1e-9)
        # Sleeping takes as long at least.
        assert epoch.wait > 0.06
        assert epoch.validation > 0.05
        assert epoch.overhead > 0.03
    figures = model.perf_report()["time per epoch"]
    assert "n=2" in figures["wait"]
    assert "advice" not in figures


@pytest.fixture
def clock(monkeypatch):
    """Moves by hand, for the times of epochs."""
    made = measure.ManualClock()
    time = types.SimpleNamespace(perf_counter=made.now)
    monkeypatch.setattr(_epochs, "time", time)
    return made


def test_one_step_epochs_are_advised_to_be_longer(clock):
    model = compiled()
    pause = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: clock.advance(0.03)
    )
    model.fit(X, X[:, :1], batch_size=40, epochs=4, verbose=0, callbacks=pause)
    assert "repeat the data" in model.perf_report()["time per epoch"]["advice"]
    # With epochs that are all steps there is nothing to advise.
    times = EpochTimes(Feed(1, None))
    for _ in range(3):
        with times.epoch(), times.span("steps"):
            times.batches = 1
            clock.advance(0.002)
    assert "advice" not in times.describe()
    model.fit(X, X[:, :1], epochs=1, verbose=0)
    assert "warm-up" in model.perf_report()["time per epoch"]


def test_epochs_without_validation_are_not_in_its_figure(clock):
    times = EpochTimes(Feed(1, None))
    for epoch in range(5):
        with times.epoch(), times.span("steps"):
            clock.advance(0.001)
            if epoch % 2:
                with times.span("validation"):
                    clock.advance(0.02)
    figures = times.describe()
    assert "n=4" in figures["steps"] and "n=2" in figures["validation"]
    assert float(figures["validation"].split()[0]) == 20


def test_predict_is_in_the_report():
    model = compiled()
    assert "predict_step" not in model.perf_report().to_dict()
    for _ in range(3):
        model.predict(X, batch_size=2, verbose=0)
    section = model.perf_report()["predict_step"]
    assert section["traces"]["graph-step"] == 1
    assert section["time per batch"]
    assert section["tier"] in section["time per batch"]
    assert section["which is"] and "choices" in section


def test_a_later_jit_compile_is_not_said_to_be_in_effect():
    model = compiled()
    model.fit(X, X[:, :1], verbose=0)
    model.jit_compile = True
    jit = model.perf_report()["settings"]["jit"]
    assert jit["effective"] is False and "compile again" in jit["reason"]
    model.compile("sgd", "mse", jit_compile=True)
    jit = model.perf_report()["settings"]["jit"]
    assert jit["effective"] is True and jit["reason"] == "asked for"


class EachBatch(keras.callbacks.Callback):
    """Asks for every batch, so that each is a launch."""

    def on_predict_batch_end(self, batch, logs=None):
        pass


def test_a_launch_of_predict_that_traces_is_in_no_time():
    model = compiled()
    for warm in (2, 6):
        # Three whole batches and a short one, which is traced when it is new.
        model.predict(X, batch_size=12, verbose=0, callbacks=[EachBatch()])
        section = model.perf_report()["predict_step"]
        assert f"n={warm})" in section["time per batch"]["graph-step"]
    assert section["traces"]["graph-step"] == 2


def test_the_report_of_keras_itself_claims_nothing_of_the_engine():
    model = compiled()
    model.compile("sgd", "mse", perf=None)
    model.fit(X, X[:, :1], verbose=0)
    settings = model.perf_report()["settings"]
    assert settings["feed"] == "Keras's own loop"
    assert settings["jit"]["reason"] == "Keras itself runs the steps"


def test_a_tier_that_was_not_tried_is_said_to_be_so():
    model = compiled()
    model.fit(X, X[:, :1], batch_size=20, verbose=0)
    choices = model.perf_report()["train_step"]["resident"]["choices"]
    assert choices == [
        f"{tier} not tried: the time ahead did not pay for compiling it"
        for tier in ("graph-loop", "xla-loop")
    ]
    # Nor is a loop where a step a launch is asked for.
    for jit, tiers in ((False, []), ("auto", ["xla-loop"])):
        model.compile("sgd", "mse", perf=Execution(jit=jit, steps_per_launch=1))
        model.fit(X, X[:, :1], batch_size=20, verbose=0)
        choices = model.perf_report()["train_step"]["resident"]["choices"]
        assert [c.partition(" ")[0] for c in choices] == tiers


def test_a_plan_without_features_and_a_tier_are_told_in_words():
    model = compiled()
    model.fit(X, X[:, :1], batch_size=20, verbose=0)
    found = model.perf_report()
    assert found["plan"] == [
        "no feature: what Keras computes, run as measured faster"
    ]
    feed = found["train_step"]["resident"]
    assert feed["which is"] == "one step a call, a graph"
    assert all(feed.values())
    model.compile("sgd", "mse", run_eagerly=True)
    model.fit(X, X[:, :1], batch_size=20, verbose=0)
    feed = model.perf_report()["train_step"]["resident"]
    assert "called from Python" in feed["which is"]


def test_a_model_that_is_not_compiled_is_refused_by_name():
    inputs = keras.Input((1,))
    model = FastModel(inputs, inputs, name="bare")
    with pytest.raises(ValueError, match="Received: 'bare'.*`compile`"):
        model.perf_report()
    model.compile()
    assert model.perf_report()["plan"]
