"""Two receipts or profiles side by side.

Example:

>>> found = compare({"seconds": {"step": 0.004}}, {"seconds": {"step": 0.002}})
>>> print(found)
seconds.step: 4.00 ms → 2.00 ms (0.50 times)
"""

import re

from fastkeras.measure.receipt import Receipt
from fastkeras.measure.stats import summarize

# A time as `Summary` prints it.
_TIME = re.compile(r"^(-?[\d.]+) (s|ms|µs) \(")
_UNITS = {"s": 1.0, "ms": 1e-3, "µs": 1e-6}
# Single moments of one run, which have no counterpart in another.
_LEFT_OUT = {"timeline", "ops"}
# The sections of a profile that hold seconds.
_SECONDS = {"seconds", "split", "phases", "metrics"}


class Comparison:
    """What differs between two runs.

    Printed with a line for each value that differs.

    Attributes:
        changes: Dict of dotted name to the pair of values; `None` stands for
            one that is not there.
        ratios: Dict of dotted name to second / first, where both are numbers
            or times, and the first is not 0.

    Example:

    >>> Comparison({"a": 1, "b": 2}, {"a": 1, "b": 3}).changes
    {'b': (2, 3)}
    """

    def __init__(self, first, second):
        first, second = _flat(first), _flat(second)
        names = [*first, *(name for name in second if name not in first)]
        self.changes = {
            name: (first.get(name), second.get(name))
            for name in names
            if first.get(name) != second.get(name)
        }
        self.ratios = {}
        for name, pair in self.changes.items():
            before, after = map(_number, pair)
            if before and after is not None:
                self.ratios[name] = after / before

    def __str__(self):
        return "\n".join(map(self._line, self.changes)) or "no difference"

    def _line(self, name):
        before, after = (_short(name, v) for v in self.changes[name])
        ratio = self.ratios.get(name)
        more = "" if ratio is None else f" ({ratio:.2f} times)"
        return f"{name}: {before} → {after}{more}"


def compare(first, second):
    """Compares two receipts, two profiles, or files of them.

    Args:
        first: `Receipt`, `Profile`, dict, or the path that one was saved to.
        second: The same.

    Returns:
        A `Comparison`; print it.

    Raises:
        ValueError: If a file holds no receipt.

    Example:

    >>> print(compare({"plan": "auto"}, {"plan": "auto"}))
    no difference
    """
    return Comparison(_values(first), _values(second))


def _values(given):
    if isinstance(given, Receipt):
        return given.to_dict()
    if isinstance(given, dict):
        return given
    return Receipt.load(given).to_dict()


def _flat(values, path=()):
    found = {}
    for name, value in values.items():
        if name in _LEFT_OUT:
            continue
        if isinstance(value, dict):
            found.update(_flat(value, (*path, name)))
        else:
            found[".".join((*path, name))] = value
    return found


def _number(value):
    """A number, that of a time in words, or None."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return value
    match = _TIME.match(value) if isinstance(value, str) else None
    return match and float(match[1]) * _UNITS[match[2]]


def _short(name, value):
    if value is None:
        return "not there"
    if not isinstance(value, float):
        return str(value)
    if name.partition(".")[0] in _SECONDS:
        return str(summarize([value])).partition(" (")[0]
    return f"{value:.4g}"
