"""What all monitors promise."""

import copy
import pickle

import keras
import numpy as np
import pytest

import fastkeras as fk
from fastkeras import callbacks
from fastkeras.callbacks._monitor import Monitor
from fastkeras.engine import _pilot

NAMES = [
    name
    for name in callbacks.__all__
    if issubclass(getattr(callbacks, name), Monitor)
]
X = np.random.RandomState(0).randn(256, 3).astype("float32")
Y = X[:, :1]


def network(base=fk.FastModel, **options):
    keras.utils.set_random_seed(5)
    inputs = keras.Input((3,))
    model = base(inputs, keras.layers.Dense(1, name="head")(inputs))
    model.compile(keras.optimizers.SGD(0.1), "mse", **options)
    return model


def make(name, folder):
    return {
        "compare": lambda: callbacks.JitToggle.compare(6),
        "HealthMonitor": lambda: callbacks.HealthMonitor(),
        "JitToggle": lambda: callbacks.JitToggle(at_epoch=9, to=True),
        "MemoryMonitor": lambda: callbacks.MemoryMonitor(),
        "PerfTensorBoard": lambda: callbacks.PerfTensorBoard(folder),
        "RetraceMonitor": lambda: callbacks.RetraceMonitor(),
        "StepTimer": lambda: callbacks.StepTimer(),
    }[name]()


class Launches(keras.callbacks.Callback):
    """Notes after which batch each launch ended."""

    per_launch = True

    def __init__(self):
        super().__init__()
        self.ends = []

    def on_train_batch_end(self, batch, logs=None):
        self.ends.append(batch)


class EachBatch(keras.callbacks.Callback):
    """Asks for every batch."""

    def on_train_batch_end(self, batch, logs=None):
        pass


def test_none_asks_for_one_step_per_launch(tmp_path, monkeypatch):
    # However slow the machine: a launch may hold what is left of an epoch.
    monkeypatch.setattr(_pilot, "LAUNCH_SECONDS", 1e6)

    def launches(*others):
        seen, watched = Launches(), all_of(fk.FastModel, tmp_path)
        watched += [*others, seen]
        network().fit(X[:64], Y[:64], 1, 2, verbose=0, callbacks=watched)
        # Each epoch ends with its last batch.
        assert seen.ends.count(63) == 2
        return len(seen.ends)

    assert launches() < 64
    assert launches(EachBatch()) == 128


def test_a_copy_watches_a_training_of_its_own(tmp_path):
    ones = all_of(fk.FastModel, tmp_path)
    twins = copy.deepcopy(ones)
    for watched in (ones, twins):
        network().fit(X, Y, 64, verbose=0, callbacks=watched)
    for one, twin in zip(ones, twins, strict=True):
        assert twin.model is not one.model
        assert one.scalars().keys() == twin.scalars().keys()
        assert (one.done, one.seen) == (twin.done, twin.seen) == (4, 4)


class Fails(keras.callbacks.Callback):
    """Ends the second epoch of a training with an error of its own."""

    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1:
            raise KeyError("mine")


def all_of(base, folder):
    needs_ours = {"HealthMonitor"} if base is keras.Model else set()
    return [make(name, folder) for name in NAMES if name not in needs_ours]


@pytest.mark.parametrize(
    ("base", "verbose"), [(keras.Model, 0), (keras.Model, 2), (fk.FastModel, 1)]
)
def test_an_error_in_mid_fit_goes_through_and_the_next_fit_is_right(
    base, verbose, tmp_path
):
    model, watched = network(base), all_of(base, tmp_path)
    with pytest.raises(KeyError, match="mine"):
        model.fit(X, Y, 64, 3, verbose=verbose, callbacks=[*watched, Fails()])
    seen = [str(one) for one in watched]
    model.evaluate(X, Y, verbose=verbose, callbacks=watched)
    model.predict(X, verbose=verbose, callbacks=watched)
    # Neither trains: what is reported stays.
    assert [str(one) for one in watched] == seen
    model.fit(X, Y, 64, 2, verbose=verbose, callbacks=watched)
    assert {(one.done, one.seen) for one in watched} == {(4, 8)}


@pytest.mark.parametrize("names", [NAMES, ["compare"]])
def test_each_prints_a_report_and_survives_pickling(names, tmp_path):
    ones = [make(name, tmp_path) for name in names]
    fresh = pickle.loads(pickle.dumps(ones))
    network().fit(X, Y, 16, 4, verbose=0, callbacks=[*ones, *fresh])
    twins = pickle.loads(pickle.dumps(ones))
    for one, twin in zip(ones, twins, strict=True):
        assert " object at 0x" not in str(one)
        assert str(one) != repr(one)
        assert one.async_safe
        assert twin.model is None
        if not isinstance(one, callbacks.RetraceMonitor):
            # It reads the counts of its model.
            assert str(twin) == str(one)
            assert twin.scalars() == one.scalars()
    network().fit(X, Y, 16, 4, verbose=0, callbacks=twins)
    assert {one.seen for one in (*ones, *twins)} == {64}


def test_numbers_are_printed_as_a_person_reads_them():
    timer = callbacks.StepTimer(4, window=8)
    model = network(perf=fk.perf.Execution(steps_per_launch=1))
    model.fit(X, Y, 16, 10, verbose=0, callbacks=[timer])
    rate = timer.times().samples_per_second
    assert f"{float(f'{rate:.4g}'):,.0f} samples/s" in str(timer)
    assert "e+" not in str(timer)


@pytest.mark.parametrize("base", [keras.Model, fk.FastModel])
def test_batches_are_counted_by_index(base):
    """With 3 steps a launch, the last of 10 batches is alone."""
    launched, totals = [], []

    class Counts(Monitor):
        def before_launch(self):
            launched.append(self.done)

        def after_epoch(self, epoch, logs):
            totals.append((self.seen, self.done))

    network(base, steps_per_execution=3).fit(
        X[:80], Y[:80], 8, epochs=2, verbose=0, callbacks=[Counts()]
    )
    assert launched == 2 * [0, 3, 6, 9]
    assert totals == [(0, 10), (10, 10)]


@pytest.mark.parametrize("name", NAMES)
def test_an_epoch_without_a_batch_is_no_error(name, tmp_path):
    one = make(name, tmp_path)
    one.set_params({"steps": 4})
    model = network()
    one.set_model(model)
    model.make_train_function()
    one.on_train_begin()
    for epoch in range(2):
        one.on_epoch_begin(epoch)
        one.on_epoch_end(epoch, {"loss": 1.0})
    one.on_train_end()
    assert (one.done, one.seen) == (0, 0)
    assert not [k for k, v in one.scalars().items() if v != v]


def test_all_of_them_together_change_no_number(tmp_path):
    plain, watched = network(), network()
    plain.fit(X, Y, 64, epochs=3, shuffle=False, verbose=0)
    everything = [make(n, tmp_path) for n in NAMES]
    watched.fit(
        X, Y, 64, epochs=3, shuffle=False, verbose=0, callbacks=everything
    )
    for a, b in zip(plain.get_weights(), watched.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    assert watched.optimizer.iterations.numpy() == 12
