"""MemoryMonitor by a gauge of the test, and what it finds to be held.

What the system counts moves with all else that a process does.
"""

import copy
import gc
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import fastkeras as fk
from fastkeras._lib.warn import FastKerasWarning
from fastkeras.callbacks import MemoryMonitor
from fastkeras.callbacks import _memory
from fastkeras.callbacks import memory_monitor

X = np.ones((8, 3), "float32")
MB = 2**20


@pytest.fixture(scope="module", autouse=True)
def only_new():
    """What earlier tests have left need not be gone through."""
    gc.collect()
    gc.freeze()


class Gauge:
    """The memory of a process that takes what the test says, and no more."""

    held = 500 * MB

    def take(self, size):
        self.held += size


@pytest.fixture
def gauge(monkeypatch):
    one = Gauge()
    monkeypatch.setattr(memory_monitor.process, "held", lambda: one.held)
    return one


def network(base=fk.FastModel, **options):
    inputs = keras.Input((3,))
    hidden = keras.layers.Dense(100, name="wide")(inputs)
    model = base(inputs, keras.layers.Dense(1)(hidden))
    model.compile("sgd", "mse", **options)
    return model


def watch(model, *callbacks, limit_mb=10, epochs=6):
    monitor = MemoryMonitor(limit_mb)
    model.fit(X, X, epochs=epochs, verbose=0, callbacks=[*callbacks, monitor])
    return monitor


class Takes(keras.callbacks.Callback):
    """Takes 40 MB in each epoch."""

    def __init__(self, gauge):
        super().__init__()
        self.gauge = gauge

    def on_epoch_end(self, epoch, logs=None):
        self.gauge.take(40 * MB)


class Hoards(Takes):
    """Keeps what it takes."""

    def __init__(self, gauge):
        super().__init__(gauge)
        self.losses = []

    def on_epoch_end(self, epoch, logs=None):
        super().on_epoch_end(epoch)
        self.losses.append(np.empty([10 * MB], "float32"))


class Rebuilds(Takes):
    """Has the step traced in each epoch as well."""

    def on_epoch_end(self, epoch, logs=None):
        super().on_epoch_end(epoch)
        self.model.compile()


@pytest.mark.parametrize("base", [keras.Model, fk.FastModel])
def test_a_growth_is_measured_and_its_list_found_by_name(base, gauge):
    with pytest.warns(FastKerasWarning) as told:
        monitor = watch(network(base), Hoards(gauge))
    text = str(told[0].message)
    assert "the list `Hoards.losses`, which grows; it holds " in text
    # The first epoch is past, then three growths.
    assert "it holds 4 members of 160.0 MB" in text
    assert monitor.growth == 40 * MB
    assert monitor.host == [(540 + 40 * k) * MB for k in range(6)]
    assert len([w for w in told if "grows" in str(w.message)]) == 1


def zeros(count):
    return [tf.zeros([10_000]) for _ in range(count)]


class Keeps:
    def __init__(self, values=None):
        self.values = values


def hidden(values):
    """A function that keeps values as only a function can."""
    kept = values

    def keep(value):
        kept.append(value)

    return keep


KEPT = {
    "list": (lambda: zeros(50), "the list `Keeps.values`", 50),
    "behind others": (lambda: [0, None, *zeros(50)], "the list `Keep", 52),
    "dict": (lambda: dict(enumerate(zeros(50))), "the dict `Keeps.va", 50),
    "arrays": (
        lambda: {k: np.zeros(5000) for k in range(50)},
        "the dict `Keeps.values`",
        50,
    ),
    "pairs": (lambda: [(x, 1.0) for x in zeros(50)], "the list `Kee", 50),
    "dicts": (lambda: [{"loss": x} for x in zeros(50)], "the list `Kee", 50),
    "deep": (
        lambda: {"a": {"b": [[[x]] for x in zeros(50)]}},
        "the list `Keeps.values['a']['b']`",
        50,
    ),
    "objects": (
        lambda: [Keeps(x) for x in zeros(50)],
        "the list `Keeps.values`",
        50,
    ),
    "variables": (
        lambda: [keras.Variable(x) for x in zeros(50)],
        "the list `Keeps.values`",
        50,
    ),
    "tracked": (lambda: tracked(zeros(50)), "the list `Keeps.values`", 50),
    "an array": (lambda: np.zeros(250_000), "the ndarray `Keeps.values`", 1),
    "bytes": (
        lambda: [bytes(200_000) for _ in range(10)],
        "the list `Keeps.values`",
        10,
    ),
    "a class": (
        lambda: type("Keeper", (), {"kept": zeros(50)}),
        "the list `Keeper.kept`",
        50,
    ),
    "a generator": (
        lambda: started(drawn()),
        "the list `kept` of `drawn`",
        50,
    ),
    "a default": (lambda: by_default(zeros(50)), "the list `kept` of `", 50),
    "closure": (
        lambda: hidden(zeros(50)),
        "the list `kept` of `hidden.<locals>.keep`",
        50,
    ),
}


def drawn():
    kept = zeros(50)
    yield
    kept.clear()


def started(generator):
    next(generator)
    return generator


def by_default(values):
    def keep(value, kept=values):
        kept.append(value)

    return keep


def tracked(values):
    module = tf.Module()
    module.values = values
    return module.values


@pytest.mark.parametrize("kind", KEPT)
def test_what_grows_is_sized_and_named(kind):
    kept, name, length = KEPT[kind]
    one, data = Keeps(), [np.zeros(10**7)] * 3
    before = _memory.Held()
    one.values = kept()
    found = before.grown(least=1_500_000)
    assert found[0].startswith(name)
    assert found[1:] == (length, pytest.approx(2_000_000, rel=0.03))
    if kind in ("list", "deep"):
        assert before.grown(least=2_500_000) is None
        # The data are larger, but were there, and are counted once.
        data.extend(data)
        one.values = None
        assert before.grown(least=1_500_000) is None


class Traces(Takes):
    """Has a function of its own traced in each epoch.

    Python knows nothing of what a graph takes.
    """

    def __init__(self, gauge):
        super().__init__(gauge)
        self.functions = []

    def on_epoch_end(self, epoch, logs=None):
        super().on_epoch_end(epoch)
        function = tf.function(lambda x: x + 1.0)
        function(tf.zeros([]))
        self.functions.append(function)


def test_functions_that_a_callback_traces_are_suspected(gauge):
    model = network(perf=fk.perf.Execution(steps_per_launch=1))
    with pytest.warns(FastKerasWarning, match=r"\d+ more graphs are alive"):
        watch(model, Traces(gauge))


def test_what_neither_traces_nor_holds_more_is_left_to_the_data(gauge):
    model = network(perf=fk.perf.Execution(steps_per_launch=1))
    with pytest.warns(FastKerasWarning, match="what the data pipeline caches"):
        watch(model, Takes(gauge))


def test_traces_in_each_epoch_are_the_first_suspect(gauge):
    with pytest.warns(FastKerasWarning, match="cache of functions; 1 trace"):
        monitor = watch(network(), Rebuilds(gauge))
    assert monitor.traces == [1] * 6


def test_a_training_that_keeps_nothing_is_not_warned_of(gauge):
    with warnings.catch_warnings():
        warnings.simplefilter("error", FastKerasWarning)
        monitor = watch(own())
    assert monitor.suspect == ""
    assert monitor.largest_activation == ("wide", 400)
    assert monitor.traces[0] >= 1 and monitor.traces[-1] == 0
    assert monitor.growth == 0
    scalars = monitor.scalars()
    assert scalars["host_mb"] == monitor.host[-1] / MB
    assert scalars["host_growth_mb"] == monitor.growth / MB


def test_too_few_epochs_have_no_growth():
    monitor = watch(network(), epochs=3)
    assert monitor.growth is None
    assert "host_growth_mb" not in monitor.scalars()


class Own(keras.Model):
    """Has no shapes before its first batch."""

    def __init__(self):
        super().__init__()
        self.wide = keras.layers.Dense(100, name="wide")
        self.head = keras.layers.Dense(3)

    def call(self, x):
        return self.head(self.wide(x))


def own(**options):
    model = Own()
    model.compile("sgd", "mse", **options)
    return model


@pytest.mark.parametrize("make", [network, own])
def test_eager_steps_are_told_with_the_largest_activation(make):
    with pytest.warns(FastKerasWarning, match="'wide', 400 bytes a row"):
        monitor = watch(make(run_eagerly=True), epochs=1)
    assert monitor.largest_activation == ("wide", 400)


class TakesOnce(Takes):
    """Takes memory in the first epochs alone, as a copy of weights does."""

    def on_epoch_end(self, epoch, logs=None):
        if epoch < 3:
            super().on_epoch_end(epoch)


def test_what_is_kept_once_is_no_growth(gauge):
    with warnings.catch_warnings():
        warnings.simplefilter("error", FastKerasWarning)
        monitor = watch(network(), TakesOnce(gauge))
    # Two of them came after the first epoch.
    assert monitor.host[-1] - monitor.host[0] == 80 * MB


def test_the_gauge_is_that_of_the_system():
    monitor = watch(network(), epochs=1)
    # The system counts pages with some delay.
    assert 0 < monitor.host[0] < monitor.host_peak + MB


def test_arguments_are_checked_and_the_callback_copies():
    with pytest.raises(ValueError, match="`limit_mb` must be finite and > 0"):
        MemoryMonitor(0)
    assert copy.deepcopy(MemoryMonitor(3)).limit_mb == 3
