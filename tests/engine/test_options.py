"""Options of Keras that say how steps run."""

import _thread
import signal
import threading

import keras
import numpy as np
import pytest

from fastkeras import FastModel
from fastkeras._lib.warn import FastKerasWarning
from fastkeras.engine import _tiers

X = np.random.default_rng(0).normal(size=(40, 3)).astype("float32")


def trained(base, unrolled, steps, perf=None):
    keras.utils.set_random_seed(0)
    inputs = keras.Input((3,))
    model = base(inputs, keras.layers.Dense(1)(inputs))
    options = {} if base is keras.Model else {"perf": perf}
    model.compile("adam", "mse", steps_per_execution=steps, **options)
    model.unrolled_steps_per_execution = unrolled
    model.fit(X, X[:, :1], batch_size=4, shuffle=False, verbose=0)
    return model.get_weights()


def test_unrolled_steps_leave_the_weights_alone():
    plain = trained(keras.Model, 1, 1)
    with pytest.warns(FastKerasWarning, match="unrolled.*not in effect"):
        unrolled = trained(FastModel, 4, 5, "auto")
    for a, b in zip(plain, unrolled, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    for a, b in zip(plain, trained(FastModel, 5, 5), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_more_steps_unrolled_than_run_are_refused():
    with pytest.raises(ValueError, match="must be <=.*Received.*Leave it"):
        trained(FastModel, 4, 2, "auto")


@pytest.mark.parametrize("gpu", [True, False])
def test_recurrent_layers_of_a_gpu_are_named_where_xla_is_left_out(
    gpu, monkeypatch
):
    # Not measured on a GPU: only the choice is tested here.
    monkeypatch.setattr(_tiers, "_has_gpu", lambda: gpu)
    inputs = keras.Input((4, 3))
    for use_cudnn in ("auto", False):
        layer = keras.layers.LSTM(2, use_cudnn=use_cudnn)
        model = FastModel(inputs, layer(inputs))
        model.compile("sgd", "mse")
        reason = _tiers.xla_refusal(model)
        if gpu and use_cudnn:
            assert layer.name in reason and "use_cudnn=False" in reason
        else:
            assert reason is None


@pytest.mark.parametrize("tier", ["graph-loop", "xla-loop"])
def test_an_interrupt_in_a_launch_leaves_whole_steps(tier, monkeypatch):
    monkeypatch.setattr(_tiers, "available", lambda *_: ([tier], []))
    # A job in the background ignores the signal, from its shell.
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    keras.utils.set_random_seed(0)
    inputs = keras.Input((3,))
    model = FastModel(inputs, keras.layers.Dense(1)(inputs))
    model.compile("adam", "mse")
    model.fit(X, X[:, :1], verbose=0)
    taken, ended = threading.Event(), [0]

    def interrupt():
        # Python drops one that falls into a destructor, as of a function: the
        # next is due where epochs still end, and not while fit is being left.
        heard = 0
        while not taken.wait(0.05):
            if ended[0] > heard + 2:
                heard = ended[0]
                _thread.interrupt_main()

    later = threading.Thread(target=interrupt, daemon=True)

    def count(epoch, logs):
        ended[0] = epoch + 1
        if epoch == 1:
            later.start()

    begin = keras.callbacks.LambdaCallback(on_epoch_end=count)
    try:
        with pytest.raises(KeyboardInterrupt):
            model.fit(
                X,
                X[:, :1],
                batch_size=4,
                epochs=10**4,
                verbose=0,
                callbacks=[begin],
            )
    finally:
        taken.set()
        later.join()
        signal.signal(signal.SIGINT, usual)
    before = int(model.optimizer.iterations)
    assert before > 20
    assert all(np.isfinite(w).all() for w in model.get_weights())
    history = model.fit(X, X[:, :1], batch_size=4, verbose=0)
    assert int(model.optimizer.iterations) == before + 10
    assert np.isfinite(history.history["loss"]).all()
