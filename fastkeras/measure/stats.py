"""Medians and quartiles: figures that one slow step can't move.

Times of training steps have a hard floor and a long tail (another process, a
garbage collection), so a mean and a standard deviation describe the tail. The
median and the quartiles describe the step.

Example:

>>> print(summarize([0.0012, 0.0013, 0.0013, 0.0014, 0.9]))
1.30 ms (±0.05, n=5)
"""

import dataclasses
import math
import statistics

from fastkeras._lib import checks

# Largest first; the last one also takes what is smaller still.
_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))


@dataclasses.dataclass(frozen=True)
class Summary:
    """The middle of a series and how far it spreads.

    Printed as the median, half the distance between the quartiles (half of
    all values lie within about that distance of the median), and the count.
    One value has no spread, so none is printed.

    Attributes:
        median: Float, half of the values lie below it.
        lower: Float, the first quartile.
        upper: Float, the third quartile.
        n: Int, how many values there were.
        unit: String, `"s"` for seconds, `"×"` for a ratio, or `""`.

    Example:

    >>> Summary(2.0, lower=1.5, upper=2.5, n=50).spread
    1.0
    >>> print(Summary(0.00129, lower=0.00124, upper=0.00134, n=50))
    1.29 ms (±0.05, n=50)
    """

    median: float
    lower: float
    upper: float
    n: int
    unit: str = "s"

    @property
    def spread(self):
        """The distance between the quartiles, in the unit of the values."""
        return self.upper - self.lower

    def __str__(self):
        scale, name = self._scale()
        value = self.median / scale
        # Three significant digits where there is room for them.
        decimals = max(0, 2 - _exponent(value))
        half = (
            f"±{self.spread / 2 / scale:.{decimals}f}, " if self.n > 1 else ""
        )
        return f"{value:.{decimals}f}{name} ({half}n={self.n})"

    def _scale(self):
        if self.unit != "s":
            return 1.0, self.unit
        size = abs(self.median)
        scale, name = next((s for s in _SECONDS if size >= s[0]), _SECONDS[-1])
        return scale, f" {name}"


def summarize(values, unit="s"):
    """Summarises a series by its median and quartiles.

    The quartiles interpolate between the sorted values, as NumPy's do.

    Args:
        values: Iterable of finite numbers, at least one.
        unit: String, `"s"` (the default), `"×"` or `""`.

    Returns:
        A `Summary`.

    Raises:
        ValueError: If there is no value, or one of them is not finite.

    Example:

    >>> print(summarize([1.0, 2.0, 3.0, 4.0, 100.0]))
    3.00 s (±1.00, n=5)
    """
    values = _checked(values, "values")
    if len(values) == 1:
        # One value is its own quartile; `quantiles` asks for two.
        lower = median = upper = values[0]
    else:
        lower, median, upper = statistics.quantiles(
            values, n=4, method="inclusive"
        )
    return Summary(median, lower, upper, len(values), unit)


def ratio(numerator, denominator):
    """Divides two series measured in turns, pair by pair.

    The two values of a pair were taken next to each other, so a machine that
    slows down in between pairs slows both and leaves their ratio alone. The
    ratio of the two medians has no such protection, and no spread.

    Args:
        numerator: Sequence of numbers, the times of the slower side by custom,
            so that the ratio reads as a speed-up.
        denominator: Sequence of numbers > 0, as many.

    Returns:
        A `Summary` of the ratios, in the unit `"×"`.

    Raises:
        ValueError: If the lengths differ, a series is empty, a value is not
            finite, or a denominator is not > 0.

    Example:

    >>> print(ratio([3.0, 6.0, 3.2], [1.0, 2.0, 1.0]))
    3.00× (±0.05, n=3)
    """
    numerator = _checked(numerator, "numerator")
    denominator = _checked(denominator, "denominator")
    if len(numerator) != len(denominator):
        raise ValueError(
            checks.message(
                "`numerator` and `denominator` must have the same length",
                f"{len(numerator)} and {len(denominator)} values",
                "Measure the two in turns and give one value of each a turn.",
            )
        )
    if min(denominator) <= 0:
        raise ValueError(
            checks.message(
                "`denominator` must hold only values > 0",
                f"smallest value={min(denominator)!r}",
                "A time of zero was too short for the clock: time more steps "
                "at once.",
            )
        )
    pairs = zip(numerator, denominator, strict=True)
    return summarize([a / b for a, b in pairs], unit="×")


def _checked(values, name):
    values = [float(value) for value in values]
    if not values:
        raise ValueError(
            checks.message(
                f"`{name}` must hold at least one value",
                f"{name}=[]",
                "Measure at least one step after warm-up.",
            )
        )
    for value in values:
        if not math.isfinite(value):
            raise ValueError(
                checks.message(
                    f"`{name}` must hold only finite values",
                    f"{value!r} in {name}",
                    "Leave out what was not measured.",
                )
            )
    return values


def _exponent(value):
    return math.floor(math.log10(abs(value))) if value else 0
