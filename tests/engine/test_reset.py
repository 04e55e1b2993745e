"""Metrics are reset at the start of an epoch, within its first launch."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from fastkeras import FastModel
from fastkeras.engine import _tiers

X = np.random.default_rng(0).normal(size=(10, 3)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


class Batches(keras.metrics.Metric):
    """Counts batches; a number in Python counts its resets."""

    resets = 0

    def __init__(self, name="batches"):
        super().__init__(name=name)
        self.total = self.add_weight(name="total", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.total.assign_add(1.0)

    def result(self):
        return self.total.value

    def reset_state(self):
        self.resets += 1
        super().reset_state()


def fit(base, metric="mae", callbacks=None):
    keras.utils.set_random_seed(3)
    inputs = keras.Input((3,))
    model = base(inputs, keras.layers.Dense(1)(inputs))
    model.compile("sgd", "mse", metrics=[metric])
    history = model.fit(
        X,
        Y,
        batch_size=5,
        epochs=3,
        shuffle=False,
        verbose=0,
        validation_data=(X[:5], Y[:5]),
        callbacks=callbacks,
    )
    return model, history.history


def apart(logs, others):
    """The largest difference, of values above 1 by their size."""
    return max(
        np.max(np.abs(np.subtract(v, others[k])) / np.maximum(1, np.abs(v)))
        for k, v in logs.items()
    )


@pytest.mark.parametrize(
    "tier", ["graph-step", "graph-loop", "xla-step", "xla-loop"]
)
def test_a_launch_resets_the_metrics_itself(tier, monkeypatch):
    monkeypatch.setattr(_tiers, "available", lambda *_: ([tier], []))
    _, stock = fit(keras.Model)
    model, logs = fit(FastModel)
    assert apart(stock, logs) < 1e-6
    for runner in (model.train_function, model.test_function):
        # No call of its own, and one trace with the reset and without.
        assert runner.reset.function is None
        assert set(runner.ledger.traces().values()) == {1}


def test_without_a_reset_the_logs_would_be_others(monkeypatch):
    monkeypatch.setattr("fastkeras.engine._reset.Reset.take", lambda _: False)
    assert apart(fit(keras.Model)[1], fit(FastModel)[1]) > 1e-3


def test_a_metric_with_a_reset_of_its_own_keeps_its_call():
    metric = Batches()
    _, logs = fit(FastModel, metric)
    assert logs["batches"] == [2, 2, 2]
    assert logs["val_batches"] == [1, 1, 1]
    assert metric.resets == 6


def test_a_callback_before_the_first_launch_sees_the_metrics_reset():
    seen = []

    class Look(keras.callbacks.Callback):
        """Reads a metric before the first step."""

        def on_epoch_begin(self, epoch, logs=None):
            seen.append(float(self.model.metrics[0].result()))

    fit(FastModel, callbacks=[Look()])
    assert seen == [0, 0, 0]


@pytest.mark.parametrize("feed", ["resident", "stream"])
def test_the_losses_of_several_outputs_are_of_one_epoch(feed):
    def logs(base):
        keras.utils.set_random_seed(3)
        inputs = keras.Input((3,))
        outputs = [keras.layers.Dense(1, name=name)(inputs) for name in "ab"]
        model = base(inputs, outputs)
        model.compile("sgd", ["mse", "mae"])
        data = tf.data.Dataset.from_tensor_slices((X, (Y, Y))).batch(5)
        given = (X, [Y, Y]) if feed == "resident" else (data,)
        options = {"batch_size": 5, "shuffle": False} if len(given) > 1 else {}
        return model.fit(*given, epochs=3, verbose=0, **options).history

    stock = logs(keras.Model)
    assert apart(stock, logs(FastModel)) < 1e-6
    # An epoch's loss is not the mean of those so far.
    means = np.cumsum(stock["a_loss"]) / [1, 2, 3]
    assert np.abs(means - stock["a_loss"]).max() > 1e-3


def test_a_metric_made_after_the_first_trace_is_reset_too():
    def seen(base):
        values = []

        class Late(keras.callbacks.Callback):
            """Keeps a mean of its own on the model, from epoch 0 on."""

            def on_epoch_end(self, epoch, logs=None):
                if epoch == 0:
                    self.model.late = keras.metrics.Mean(name="late")
                self.model.late.update_state(epoch)
                values.append(float(self.model.late.result()))

        fit(base, callbacks=[Late()])
        return values

    assert seen(FastModel) == seen(keras.Model) == [0, 1, 2]


@pytest.mark.parametrize("of", ["metric", "model"])
def test_a_reset_put_on_an_instance_is_called(of):
    metric = keras.metrics.MeanAbsoluteError(name="mae")
    model, _ = fit(FastModel, metric)
    resets = []
    # As a tracer or a wrapper of the user's does it.
    if of == "metric":
        metric.reset_state = lambda: resets.append(1)
    else:
        model.reset_metrics = lambda: resets.append(1)
    model.compile()
    model.evaluate(X, Y, verbose=0)
    assert resets == [1]
