"""Rows of an update and learning rates: the rules in numbers."""

import math

import pytest

from fastkeras.distribute import global_batch_size
from fastkeras.distribute import scale_learning_rate
from fastkeras.perf import Accumulate
from tests.distribute import _same


def test_rows_multiply(mirrored):
    assert global_batch_size(32) == 32
    assert global_batch_size(32, mirrored) == 64
    assert global_batch_size(32, mirrored, accumulate=3) == 192
    with mirrored.scope():
        assert global_batch_size(32) == 64


def test_an_update_holds_so_many_rows():
    """One batch of them trains as the accumulated ones do."""
    rows = global_batch_size(4, accumulate=2)
    parts, whole, half = (
        _same.trained(None, perf, xy=_same.data(16), batch_size=size)
        for perf, size in ((Accumulate(2), 4), ("auto", rows), ("auto", 4))
    )
    assert _same.gap(parts.weights, whole.weights) < 1e-6
    assert _same.gap(half.weights, whole.weights) > 1e-3


@pytest.mark.parametrize(
    ("rule", "expected"), [("linear", 0.8), ("sqrt", 0.1 * math.sqrt(8))]
)
def test_learning_rates(rule, expected):
    rate = scale_learning_rate(0.1, 2048, 256, rule)
    assert rate == pytest.approx(expected)
    assert scale_learning_rate(0.1, 256, 256, rule) == 0.1


@pytest.mark.parametrize(
    ("call", "error", "told"),
    [
        (
            lambda: global_batch_size(0),
            ValueError,
            "`per_replica_batch_size` must be >= 1",
        ),
        (
            lambda: global_batch_size(8, accumulate=1.5),
            TypeError,
            "`accumulate` must be an integer",
        ),
        (
            lambda: scale_learning_rate(-1, 8, 8),
            ValueError,
            "`learning_rate` must be finite and > 0",
        ),
        (
            lambda: scale_learning_rate(0.1, 8, 0),
            ValueError,
            "`base_batch_size` must be >= 1",
        ),
        (
            lambda: scale_learning_rate(0.1, 8, 8, "square"),
            ValueError,
            "`rule` must be one of 'linear', 'sqrt'",
        ),
    ],
)
def test_what_can_not_be_is_refused(call, error, told):
    with pytest.raises(error, match=told):
        call()
