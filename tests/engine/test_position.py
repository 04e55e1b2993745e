"""The position of a stream: put back, and let go of."""

import gc
import types
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

from fastkeras import FastModel
from fastkeras import measure
from fastkeras import perf
from fastkeras.engine import _iterators
from fastkeras.engine import _stream
from fastkeras.engine._feeds import make_feed
from fastkeras.engine._stream import Stream


def stream():
    model = FastModel.from_keras(keras.Sequential([keras.Input((1,))]))
    model.compile(loss="mse", perf=perf.Execution(feed="stream"))
    x = np.arange(12.0).reshape(12, 1)
    arrays = {"x": x, "y": x, "sample_weight": None, "batch_size": 4}
    feed, _ = make_feed(model, shuffle=True, **arrays)
    feed.is_kept = True
    return feed


def epoch(feed, updates):
    feed.begin()
    return list(feed.take(updates, 1, True).data)


@pytest.mark.parametrize(("asked", "rest"), [(9, 0), (3, 0), (1, 2)])
def test_the_rest_of_an_epoch(asked, rest):
    feed = stream()
    epoch(feed, 9)
    feed.end()
    seen = epoch(feed, asked)
    state = feed.state()
    again = stream()
    again.restore(state)
    left = again.take(9, 1, True)
    left = [] if left is None else list(left.data)
    assert len(left) == rest
    rows = np.concatenate([x for x, _ in seen + left])
    np.testing.assert_array_equal(np.sort(rows[:, 0]), np.arange(12))


@pytest.mark.parametrize("method", ["fit", "evaluate"])
def test_an_error_leaves_no_iterator_open(method, monkeypatch):
    class Stop(keras.callbacks.Callback):
        """Raises after the first batch."""

        def on_train_batch_end(self, batch, logs=None):
            raise RuntimeError

        on_test_batch_end = on_train_batch_end

    def left_open():
        x = np.ones((8, 1), "float32")
        data = tf.data.Dataset.from_tensor_slices((x, x)).batch(2)
        inputs = keras.Input((1,))
        model = FastModel(inputs, keras.layers.Dense(1)(inputs))
        model.compile("sgd", "mse")
        kind = type(iter(data))
        gc.collect()
        # Held, so that none of them is dropped in between.
        others = [o for o in gc.get_objects() if type(o) is kind]
        with pytest.raises(RuntimeError) as error:
            getattr(model, method)(data, verbose=0, callbacks=[Stop()])
        # The traceback holds the feed.
        assert error.traceback
        found = sum(type(o) is kind for o in gc.get_objects())
        return found - len(others)

    assert left_open() == 0
    monkeypatch.setattr(Stream, "rewind", lambda _: None)
    assert left_open() == 1


def test_iterators_of_short_epochs_are_held_while_they_are_young(monkeypatch):
    clock, seen = measure.ManualClock(), []
    for module in (_iterators, _stream):
        time = types.SimpleNamespace(monotonic=clock.now)
        monkeypatch.setattr(module, "time", time)
    feed = stream()

    def held_after_an_epoch():
        feed.begin()
        seen.append(weakref.ref(feed.iterator))
        list(feed.take(9, 1, True).data)
        feed.end()
        assert feed.iterator is None
        return held()

    def held():
        gc.collect()
        return sum(ref() is not None for ref in seen)

    assert [held_after_an_epoch() for _ in range(3)] == [1, 2, 3]
    clock.advance(_iterators._YOUNG)
    assert held_after_an_epoch() == 1
    feed.rewind()
    assert held() == 0
