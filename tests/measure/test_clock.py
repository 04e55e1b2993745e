"""The clock against times made by hand, and the real one against order."""

import pytest

from fastkeras.measure import Clock
from fastkeras.measure import ManualClock


def test_a_manual_clock_reads_exactly_what_it_was_told():
    clock = ManualClock(start=3.0)
    assert clock.now() == 3.0
    clock.advance(0.25)
    clock.advance(0)
    assert clock.now() == 3.25


@pytest.mark.parametrize("seconds", [-1e-9, float("nan"), float("inf")])
def test_a_manual_clock_refuses_to_leave_monotonic_time(seconds):
    clock = ManualClock()
    with pytest.raises(ValueError, match="`seconds` must be finite and >= 0"):
        clock.advance(seconds)
    assert clock.now() == 0.0


def test_a_stopwatch_times_its_block_and_nothing_after_it():
    clock = ManualClock(start=100.0)
    with clock.stopwatch() as watch:
        clock.advance(1.5)
        assert watch.seconds == 1.5
        clock.advance(0.5)
    clock.advance(40.0)
    watch.stop()
    assert watch.seconds == 2.0


def test_stopwatches_nest():
    clock = ManualClock()
    with clock.stopwatch() as outer:
        clock.advance(1.0)
        with clock.stopwatch() as inner:
            clock.advance(2.0)
    assert (inner.seconds, outer.seconds) == (2.0, 3.0)


def test_a_block_that_fails_is_timed_and_its_exception_passes():
    clock = ManualClock()
    with pytest.raises(KeyError):
        with clock.stopwatch() as watch:
            clock.advance(1.0)
            raise KeyError("the user's own")
    clock.advance(1.0)
    assert watch.seconds == 1.0


def test_the_real_clock_never_goes_back():
    clock = Clock()
    readings = [clock.now() for _ in range(1000)]
    assert readings == sorted(readings)
    assert readings[-1] > readings[0]
