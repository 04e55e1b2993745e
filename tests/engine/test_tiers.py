"""Every tier, feed and launch length against Keras's own step."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from fastkeras import FastModel
from fastkeras import perf
from fastkeras.engine import _calls
from fastkeras.engine import _launch
from fastkeras.engine import _tiers
from fastkeras.engine import _traces

TIERS = [*_launch.STEPS, *_launch.LOOPS]
ROWS = np.random.RandomState(0)
X = ROWS.randn(42, 6).astype("float32")
Y = ROWS.randint(0, 3, 42)


def network(base, dropout=0.0):
    keras.utils.set_random_seed(1)
    inputs = keras.Input((6,))
    hidden = keras.layers.Dense(8, activation="tanh")(inputs)
    if dropout:
        hidden = keras.layers.Dropout(dropout, seed=3)(hidden)
    outputs = keras.layers.Dense(3, activation="softmax")(hidden)
    return base(inputs, outputs)


def train(base, steps=1, dropout=0.0, rows=42, batch=8, epochs=3, **options):
    model = network(base, dropout)
    model.compile(
        keras.optimizers.SGD(0.1, momentum=0.9),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
        steps_per_execution=steps,
        **options,
    )
    history = model.fit(
        X[:rows],
        Y[:rows],
        batch_size=batch,
        epochs=epochs,
        shuffle=False,
        verbose=0,
        validation_data=(X, Y),
    )
    return model, history.history


@functools.cache
def keras_own(**options):
    """What plain Keras comes to: its model and its logs."""
    return train(keras.Model, **options)


def pin(monkeypatch, tier):
    monkeypatch.setattr(_tiers, "available", lambda *_: ([tier], []))


def apart(first, second):
    pairs = zip(first.get_weights(), second.get_weights(), strict=True)
    return max(np.abs(a - b).max() for a, b in pairs)


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "steps", [pytest.param(1, marks=SLOW), 4, pytest.param(32, marks=SLOW)]
)
@pytest.mark.parametrize("tier", TIERS)
def test_each_tier_has_the_numbers_of_keras(tier, steps, monkeypatch):
    stock, logs = keras_own()
    pin(monkeypatch, tier)
    fast, fast_logs = train(FastModel, steps)
    assert apart(stock, fast) < (1e-5 if "xla" in tier else 1e-6)
    assert list(logs) == list(fast_logs)
    for name, values in logs.items():
        np.testing.assert_allclose(values, fast_logs[name], atol=1e-5)
    assert fast.optimizer.iterations.numpy() == 18
    # The same comparison sees a step less.
    assert apart(keras_own(rows=34)[0], fast) > 1e-4


@pytest.mark.parametrize("tier", TIERS)
def test_dropout_draws_the_same_numbers_in_each_tier(tier, monkeypatch):
    pin(monkeypatch, tier)
    fast, _ = train(FastModel, 4, dropout=0.5)
    assert apart(keras_own(dropout=0.5)[0], fast) < 1e-5
    assert apart(keras_own()[0], fast) > 1e-3


@pytest.mark.parametrize(
    "tier",
    [pytest.param(t, marks=SLOW if t == "xla-step" else []) for t in TIERS],
)
@pytest.mark.parametrize(
    "batches", [pytest.param(1, marks=SLOW), 7, pytest.param(10, marks=SLOW)]
)
def test_windows_in_each_tier(tier, batches, monkeypatch):
    rows, feature = 4 * batches, perf.Accumulate(3)
    pin(monkeypatch, tier)
    fast, _ = train(FastModel, 6, rows=rows, batch=4, epochs=2, perf=feature)
    assert apart(keras_own(rows=rows, batch=12, epochs=2)[0], fast) < 1e-5
    assert fast.optimizer.iterations.numpy() == 2 * -(-batches // 3)
    if batches > 1:
        # Without windows there are three times the updates.
        single = keras_own(rows=rows, batch=4, epochs=2)[0]
        assert apart(single, fast) > 1e-4


def stream(kind="known", rows=42):
    data = tf.data.Dataset.from_tensor_slices((X[:rows], Y[:rows])).batch(8)
    if kind == "endless":
        return data.repeat()
    return data if kind == "known" else data.filter(lambda *_: True)


@pytest.mark.parametrize("tier", _launch.LOOPS)
def test_a_stream_in_each_loop_has_the_numbers_of_keras(tier, monkeypatch):
    stock, logs = keras_own()
    pin(monkeypatch, tier)
    fast = network(FastModel)
    fast.compile(
        keras.optimizers.SGD(0.1, momentum=0.9),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
        steps_per_execution=4,
    )
    ends = []
    fast_logs = fast.fit(
        stream("unknown"),
        epochs=3,
        verbose=0,
        validation_data=stream(),
        callbacks=keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: ends.append(batch)
        ),
    ).history
    assert apart(stock, fast) < (1e-5 if "xla" in tier else 1e-6)
    for name, values in logs.items():
        np.testing.assert_allclose(values, fast_logs[name], atol=1e-5)
    assert fast.optimizer.iterations.numpy() == 18
    assert ends == [3, 5] * 3
    traces = fast.train_function.ledger.traces()
    assert traces[f"train_step ({tier}, stream)"] == 1
    fast.fit(stream("endless"), steps_per_epoch=7, epochs=2, verbose=0)
    assert fast.optimizer.iterations.numpy() == 18 + 14


@pytest.mark.parametrize("tier", _launch.LOOPS)
def test_data_that_raises_in_a_loop(tier, monkeypatch):
    def batches(fails):
        for k in range(5):
            if k == 3 and fails:
                raise KeyError("no fourth batch")
            yield X[8 * k : 8 * k + 8], Y[8 * k : 8 * k + 8]

    pin(monkeypatch, tier)
    models = []
    for fails in (True, False):
        model = network(FastModel)
        model.compile(
            "sgd", "sparse_categorical_crossentropy", steps_per_execution=8
        )
        models.append(model)
        if fails:
            with pytest.raises(KeyError, match="no fourth batch"):
                model.fit(batches(True), verbose=0)
        else:
            model.fit(batches(False), steps_per_epoch=3, verbose=0)
    assert models[0].optimizer.iterations.numpy() == 3
    assert apart(*models) < 1e-6


@pytest.mark.parametrize("feed", ["resident", "stream"])
def test_feeds_agree(feed):
    fast, _ = train(FastModel, perf=perf.Execution(feed=feed))
    assert apart(keras_own()[0], fast) < 1e-6
    assert fast.perf_report()["settings"]["feed"].startswith(feed)


def test_resident_data_that_can_not_be_is_refused():
    model = network(FastModel)
    model.compile(
        "sgd",
        "sparse_categorical_crossentropy",
        perf=perf.Execution(feed="resident"),
    )
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(8)
    with pytest.raises(ValueError, match="feed='resident'.*Received.*Leave"):
        model.fit(data, verbose=0)


LENGTHS = [
    (steps, window, kind)
    for steps in ("auto", 1, 4, 32)
    for window in (1, 3)
    for kind in ("arrays", "known", "unknown", "endless")
]


@pytest.mark.parametrize(
    ("steps", "window", "kind"),
    # Each value meets each other within the first share; the rest is slow.
    [
        pytest.param(*case, marks=[] if k % 5 == 0 else SLOW)
        for k, case in enumerate(LENGTHS)
    ],
)
def test_exactly_the_asked_number_of_updates(steps, window, kind):
    inputs = keras.Input((1,))
    model = FastModel(inputs, keras.layers.Dense(1)(inputs))
    chosen = [perf.Execution(steps_per_launch=steps)]
    if window > 1:
        chosen.append(perf.Accumulate(window))
    model.compile("sgd", "mse", perf=chosen)
    seen, expected = [], 0
    ends = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append(batch)
    )
    for batches in (1, 7, 10, 33):
        x, y = np.ones((batches * 2, 1), "float32"), np.ones((batches * 2, 1))
        data, rest = (x, y), {"batch_size": 2}
        if kind != "arrays":
            data = (tf.data.Dataset.from_tensor_slices(data).batch(2),)
            rest = {}
        if kind == "unknown":
            data = (data[0].filter(lambda *_: True),)
        if kind == "endless":
            data, rest = (data[0].repeat(),), {"steps_per_epoch": batches}
        seen.clear()
        calls = [] if steps == "auto" else [ends]
        model.fit(*data, epochs=2, verbose=0, callbacks=calls, **rest)
        expected += 2 * -(-batches // window)
        assert model.optimizer.iterations.numpy() == expected
        if calls:
            assert seen[-1] == batches - 1
            assert seen == sorted(seen[: len(seen) // 2]) * 2


@pytest.mark.parametrize("feed", ["resident", "stream"])
@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.usefixtures("no_trials")
def test_pinned_steps_run_in_a_loop_from_the_first(steps, feed):
    execution = perf.Execution(jit=False, steps_per_launch=steps, feed=feed)
    fast, _ = train(FastModel, rows=32, epochs=1, perf=execution)
    tier = "graph-step" if steps == 1 else "graph-loop"
    assert list(fast.train_function.pilots[feed].cost) == [tier][steps == 1 :]
    assert fast.train_function.pilots[feed].tier == tier
    assert fast.optimizer.iterations.numpy() == 4


@pytest.mark.parametrize("feed", ["resident", "stream"])
def test_a_long_launch_is_several_calls(feed, monkeypatch):
    """Between them an interrupt is heard; the launch is one all the same."""
    execution = perf.Execution(jit=False, steps_per_launch=4, feed=feed)
    once, _ = train(FastModel, perf=execution)
    calls = []
    loop, pulls = _calls.Calls.loop, _calls.Calls.pulls

    def counted(run):
        return lambda *args, **given: calls.append(args) or run(*args, **given)

    monkeypatch.setattr(_calls.Calls, "loop", counted(loop))
    monkeypatch.setattr(_calls.Calls, "pulls", counted(pulls))
    monkeypatch.setattr("fastkeras.engine._pilot.CALL_SECONDS", 1e-9)
    fast, _ = train(FastModel, perf=execution)
    assert apart(once, fast) < 1e-6
    assert fast.optimizer.iterations.numpy() == 18
    assert len(calls) > 3 * 5


def test_windows_of_convolutions_are_unrolled_for_xla():
    traced = []

    class Loss(keras.losses.MeanSquaredError):
        """Counts how often it is traced."""

        def call(self, y_true, y_pred):
            traced.append(1)
            return super().call(y_true, y_pred)

    def weights(jit):
        traced.clear()
        keras.utils.set_random_seed(1)
        inputs = keras.Input((6, 1))
        hidden = keras.layers.Flatten()(keras.layers.Conv1D(2, 2)(inputs))
        model = FastModel(inputs, keras.layers.Dense(1)(hidden))
        windows = [perf.Execution(jit=jit), perf.Accumulate(3)]
        model.compile("sgd", Loss(), perf=windows)
        model.fit(X[..., None], Y, batch_size=14, shuffle=False, verbose=0)
        return model.get_weights(), len(traced)

    looped, once = weights(False)
    unrolled, times = weights(True)
    # Once it is built, apart from the step.
    assert times - 1 == 3 * (once - 1) > 0
    for a, b in zip(looped, unrolled, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_a_shuffled_epoch_is_a_permutation():
    seen = []

    class Recorder(FastModel):
        def call(self, x):
            tf.py_function(
                lambda t: seen.extend(t.numpy().ravel().tolist()), [x], []
            )
            return x * self.w

        def build(self, _):
            self.w = self.add_weight(shape=(1,))

    def epochs(shuffle):
        seen.clear()
        keras.utils.set_random_seed(7)
        model = Recorder()
        model.build((None, 1))
        model.compile("sgd", "mse", jit_compile=False)
        rows = np.arange(20, dtype="float32")[:, None]
        model.fit(
            rows, rows * 0, batch_size=6, epochs=3, shuffle=shuffle, verbose=0
        )
        return [seen[k * 20 : (k + 1) * 20] for k in range(3)]

    shuffled = epochs(True)
    assert all(sorted(e) == list(range(20)) for e in shuffled)
    assert shuffled[0] != shuffled[1]
    assert shuffled == epochs(True)
    assert epochs(False) == [list(range(20))] * 3
    within = epochs("batch")[0]
    assert within != list(range(20))
    assert [sorted(within[k : k + 6]) for k in (0, 6, 12)] == [
        list(range(k, k + 6)) for k in (0, 6, 12)
    ]


@pytest.mark.parametrize(
    ("tier", "relaxed"),
    [("graph-step", True), ("graph-loop", True), ("graph-loop", False)],
)
def test_a_graph_tier_has_one_trace_for_arrays_of_any_length(
    tier, relaxed, monkeypatch
):
    monkeypatch.setattr(_tiers, "available", lambda *_: ([tier], []))
    if not relaxed:
        monkeypatch.setattr(_traces, "any_rows", lambda value: value)

    def losses(base):
        model = network(base)
        model.compile("sgd", "sparse_categorical_crossentropy")
        got = []
        for rows in (16, 24, 40):
            data = {"x": X[:rows], "y": Y[:rows], "batch_size": 8}
            fit = model.fit(**data, shuffle=False, verbose=0)
            got += fit.history["loss"]
            got.append(model.evaluate(**data, verbose=0))
        return model, got

    model, got = losses(FastModel)
    np.testing.assert_allclose(got, losses(keras.Model)[1], rtol=1e-5)
    for runner in (model.train_function, model.test_function):
        (traces,) = runner.ledger.traces().values()
        assert traces == (1 if relaxed else 3)
