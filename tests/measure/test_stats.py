"""Medians, quartiles and ratios against NumPy and figures made by hand."""

import numpy as np
import pytest

from fastkeras.measure import ManualClock
from fastkeras.measure import Summary
from fastkeras.measure import ratio
from fastkeras.measure import summarize


@pytest.mark.parametrize("n", [2, 3, 4, 5, 50, 51])
def test_quartiles_are_numpys(n):
    values = np.random.default_rng(n).lognormal(size=n)
    found = summarize(values)
    assert [found.lower, found.median, found.upper] == pytest.approx(
        np.quantile(values, [0.25, 0.5, 0.75]), rel=1e-12
    )
    assert found.n == n
    assert found.spread == pytest.approx(found.upper - found.lower)


def test_order_does_not_matter_and_the_series_is_left_alone():
    values = [3.0, 1.0, 2.0]
    assert summarize(values) == summarize(sorted(values))
    assert values == [3.0, 1.0, 2.0]


def test_one_value_has_no_spread_and_prints_none():
    found = summarize([0.25])
    assert (found.median, found.spread, found.n) == (0.25, 0.0, 1)
    assert str(found) == "250 ms (n=1)"


def test_a_slow_step_moves_the_mean_but_not_the_median():
    clock, seconds = ManualClock(), []
    for step in [1.0, 1.1, 0.9, 1.0, 60.0]:
        with clock.stopwatch() as watch:
            clock.advance(step)
        seconds.append(watch.seconds)
    found = summarize(seconds)
    assert found.median == pytest.approx(1.0)
    assert found.spread == pytest.approx(0.1)
    # The control: the plain mean and deviation describe the one slow step.
    assert np.mean(seconds) > 10 and np.std(seconds) > 10


def test_a_ratio_of_pairs_cancels_a_machine_that_slows_down():
    drift = np.array([1.0, 2.0, 4.0, 8.0, 16.0])
    found = ratio(3.0 * drift, 1.0 * drift)
    assert (found.median, found.spread, found.unit) == (3.0, 0.0, "×")
    # The control: the same times in another order are no pairs any more.
    assert ratio(3.0 * drift, drift[::-1]).spread > 1.0


@pytest.mark.parametrize(
    ("seconds", "half", "text"),
    [
        (123.0, 4.0, "123 s (±4, n=9)"),
        (1.5, 0.25, "1.50 s (±0.25, n=9)"),
        (0.0429, 0.0011, "42.9 ms (±1.1, n=9)"),
        (0.00129, 0.00005, "1.29 ms (±0.05, n=9)"),
        (0.000179, 0.000003, "179 µs (±3, n=9)"),
        (2e-9, 1e-9, "0.00200 µs (±0.00100, n=9)"),
        (0.0, 0.0, "0.00 µs (±0.00, n=9)"),
    ],
)
def test_seconds_print_in_a_unit_a_person_reads(seconds, half, text):
    assert str(Summary(seconds, seconds - half, seconds + half, 9)) == text


@pytest.mark.parametrize(
    ("unit", "text"), [("×", "3.25× (±0.50, n=4)"), ("", "3.25 (±0.50, n=4)")]
)
def test_other_units_are_not_scaled(unit, text):
    assert str(Summary(3.25, 2.75, 3.75, 4, unit)) == text


def test_a_summary_can_be_neither_changed_nor_confused():
    found = summarize([1.0, 2.0])
    with pytest.raises(AttributeError):
        found.median = 0.0
    assert found == summarize([1.0, 2.0])
    assert found != summarize([1.0, 2.0], unit="×")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: summarize([]), r"`values` must hold at least one .*values=\["),
        (
            lambda: summarize([1.0, float("nan")]),
            "`values` must hold only finite values. Received: nan",
        ),
        (
            lambda: ratio([1.0, 2.0], [1.0]),
            "must have the same length. Received: 2 and 1 values",
        ),
        (
            lambda: ratio([1.0, 2.0], [1.0, 0.0]),
            "`denominator` must hold only values > 0. Received: .*0.0",
        ),
        (lambda: ratio([], []), "`numerator` must hold at least one"),
    ],
)
def test_what_can_not_be_measured_is_refused_in_words(call, message):
    with pytest.raises(ValueError, match=message):
        call()
