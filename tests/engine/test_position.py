"""The position of a stream, put back where its data has ended or has not."""

import keras
import numpy as np
import pytest

from fastkeras import FastModel
from fastkeras import perf
from fastkeras.engine._feeds import make_feed


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
