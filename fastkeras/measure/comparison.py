"""Two receipts, profiles or other saved reports side by side.

Example:

>>> old, new = "4.0 ms (±0.1, n=9)", "2.0 ms (±0.1, n=9)"
>>> print(compare({"step": old}, {"step": new}))
step: 4.0 ms (±0.1, n=9) → 2.0 ms (±0.1, n=9) (0.50 times, faster)
Faster, slower: by more than both spreads; a machine that was busier in one of
the runs shows as well.
"""

import re

from fastkeras._lib import checks
from fastkeras.measure.receipt import Receipt
from fastkeras.measure.receipt import is_summary
from fastkeras.measure.stats import Summary
from fastkeras.measure.stats import summarize

# A figure as `Summary` prints it.
_FIGURE = re.compile(r"^(-?[\d.]+)( s| ms| µs|×|) \((?:±([\d.]+), )?n=(\d+)\)$")
# What an event took.
_TOOK = re.compile(r", [\d.]+ s(?=:|$)")
_UNITS = {" s": 1.0, " ms": 1e-3, " µs": 1e-6}
# Single moments of one run, which have no counterpart in another.
_LEFT_OUT = {"timeline", "ops", "spread"}
# The sections of a profile that hold seconds.
_SECONDS = {"seconds", "split", "phases", "metrics", "traced step"}
# Those of them whose spreads have a section of their own.
_WITHIN = ("split", "phases")
# What a report is, by a section that no other has.
_KINDS = {
    "split": "a profile",
    "plan": "a receipt",
    "settings": "a receipt",
    "activations": "a memory plan",
    "rates": "batch sizes",
}
_LEGEND = (
    "Faster, slower: by more than both spreads; a machine that was busier in "
    "one of\nthe runs shows as well."
)
_UNSURE = (
    "A time without ± is of one run: whether it differs by more than the noise "
    "is not known."
)


class Comparison:
    """What differs between two runs.

    Printed with a line for each value that differs, after what keeps the runs
    from being alike: another model, machine or version.

    Attributes:
        changes: Dict of dotted name to the pair of values; `None` stands for
            one that is not there.
        ratios: Dict of dotted name to second / first, where both are numbers
            or figures, and the first is not 0.
        verdicts: Dict of dotted name to `"faster"`, `"slower"`, `"more"`,
            `"less"` or `"within the noise"`, where both have a spread.
        warnings: List of strings, how the runs are not alike.

    Example:

    >>> Comparison({"a": 1, "b": 2}, {"a": 1, "b": 3}).changes
    {'b': (2, 3)}
    """

    def __init__(self, first, second):
        self.warnings = list(_warnings(first, second))
        first, second = _flat(_spread_out(first)), _flat(_spread_out(second))
        names = [*first, *(name for name in second if name not in first)]
        self.changes = {
            name: (first.get(name), second.get(name))
            for name in names
            if _timeless(first.get(name)) != _timeless(second.get(name))
        }
        self.ratios, self.verdicts = {}, {}
        self._has_unsure = False
        for name, pair in self.changes.items():
            figures = [_figure(name, value) for value in pair]
            if None not in figures:
                self._judge(name, *figures)

    def _judge(self, name, before, after):
        if before.median:
            self.ratios[name] = after.median / before.median
        if before.n > 1 and after.n > 1:
            self.verdicts[name] = _verdict(before, after)
        elif "s" in (before.unit, after.unit):
            self._has_unsure = True

    def __str__(self):
        if not self.changes:
            return "no difference"
        lines = [*self.warnings, *map(self._line, self.changes)]
        if {"faster", "slower"} & set(self.verdicts.values()):
            lines.append(_LEGEND)
        if self._has_unsure:
            lines.append(_UNSURE)
        return "\n".join(lines)

    def _line(self, name):
        before, after = self.changes[name]
        if isinstance(before, list) and isinstance(after, list):
            gone = [f"\n  - {item}" for item in _missing(before, after)]
            come = [f"\n  + {item}" for item in _missing(after, before)]
            return f"{name}:{''.join(gone + come) or ' in another order'}"
        more = []
        if name in self.ratios:
            more.append(f"{self.ratios[name]:.2f} times")
        if name in self.verdicts:
            more.append(self.verdicts[name])
        before, after = _short(name, before), _short(name, after)
        return f"{name}: {before} → {after}" + (
            f" ({', '.join(more)})" if more else ""
        )


def compare(first, second):
    """Compares two receipts, two profiles, or files of them.

    Args:
        first: `Receipt`, `Profile`, `MemoryPlan`, `BatchSizes`, dict, or the
            path that one was saved to.
        second: Another of the same kind.

    Returns:
        A `Comparison`; print it.

    Raises:
        ValueError: If a file holds no receipt, or the two are not of one kind.

    Example:

    >>> print(compare({"plan": "auto"}, {"plan": "auto"}))
    no difference
    """
    first, second = _values(first), _values(second)
    kinds = [kind_of(values) or "a dict" for values in (first, second)]
    if kinds[0] != kinds[1] and first and second:
        raise ValueError(
            checks.message(
                "What is compared must be of one kind",
                " and ".join(kinds),
                "Give two that the same command or function saved.",
            )
        )
    return Comparison(first, second)


def kind_of(values):
    """What the values of a report are, in words, or None.

    Args:
        values: Dict.

    Example:

    >>> kind_of({"split": {}})
    'a profile'
    """
    return next((k for name, k in _KINDS.items() if name in values), None)


def _values(given):
    if isinstance(given, dict):
        return given
    if not hasattr(given, "to_dict"):
        given = Receipt.load(given)
    return Receipt(given.to_dict()).to_dict()


def _warnings(first, second):
    """How two runs are not alike, a sentence for each."""
    models = [_model(values.get("model")) for values in (first, second)]
    if None not in models and models[0] != models[1]:
        yield "Not the same model: what differs may come of that alone."
    for name, noun in (("machine", "machine"), ("versions", "versions")):
        pair = first.get(name), second.get(name)
        if None not in pair and pair[0] != pair[1]:
            yield f"Not the same {noun}: times may differ by that alone."


def _model(model):
    """What tells one model from another: Keras numbers the names anew."""
    if isinstance(model, str):
        model = {"name": model}
    return model and {**model, "name": re.sub(r"_\d+$", "", model["name"])}


def _timeless(value):
    """A value, of a list of events without the seconds each took."""
    if not isinstance(value, list):
        return value
    return [_TOOK.sub("", str(item)) for item in value]


def _missing(items, others):
    """The items that are not among others, whatever they took."""
    others = _timeless(others)
    return [x for x in items if _timeless([x])[0] not in others]


def _spread_out(values):
    """The values of a report, with the spreads of a profile at its times."""
    spreads = dict(values.get("spread", {}))
    within = {name: spreads.pop(name) for name in _WITHIN if name in spreads}
    seconds = {**values.get("seconds", {}), **spreads}
    return {**values, "seconds": seconds, **within}


def _flat(values, path=()):
    found = {}
    for name, value in values.items():
        if name in _LEFT_OUT:
            continue
        if isinstance(value, dict) and not is_summary(value):
            found.update(_flat(value, (*path, name)))
        else:
            found[".".join(map(str, (*path, name)))] = value
    return found


def _figure(name, value):
    """A value as a `Summary`, with n = 1 if it has no spread, or None."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        in_seconds = name.partition(".")[0] in _SECONDS
        return summarize([value], "s" if in_seconds else "")
    if is_summary(value):
        return Summary(**value)
    match = _FIGURE.match(value) if isinstance(value, str) else None
    if not match:
        return None
    scale = _UNITS.get(match[2], 1.0)
    unit = "s" if match[2] in _UNITS else match[2]
    middle, half = float(match[1]) * scale, float(match[3] or 0) * scale
    return Summary(middle, middle - half, middle + half, int(match[4]), unit)


def _verdict(before, after):
    if after.lower <= before.upper and before.lower <= after.upper:
        return "within the noise"
    words = ("slower", "faster") if after.unit == "s" else ("more", "less")
    return words[after.median < before.median]


def _short(name, value):
    if value is None:
        return "not there"
    if is_summary(value):
        return str(Summary(**value))
    if not isinstance(value, float):
        return str(value)
    if name.partition(".")[0] in _SECONDS:
        return str(summarize([value])).partition(" (")[0]
    return f"{value:.4g}"
