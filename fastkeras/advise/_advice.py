"""Advice: what to change, why, and what it is expected to give."""

import dataclasses

#: Settings that have fastkeras run the steps, as it finds best.
FAST = {"perf": [], "execution": {"steps_per_launch": "auto"}}
#: Settings that trace a step once, for any number of rows.
PIN = {"execution": {"signature": "pin", "steps_per_launch": "auto"}}


@dataclasses.dataclass(frozen=True)
class Advice:
    """One piece of advice, with the evidence for it.

    Attributes:
        rule: String, the name of the rule that fired.
        evidence: String, the figures that fired it.
        gain: String, what to expect.
        ground: What the gain rests on: `"measured"` on this model and data,
            `"bound"` (no more than that, computed from what was measured),
            `"estimate"` (computed from it, and may be passed), or
            `"not measured"`.
        change: String, the change in code.
        mathematics: `"same"` or `"changed"`: whether training computes
            something else afterwards.
        settings: Dict of the arguments of `compile` that make the change;
            `"perf"` lists the features to add, `"execution"` is a dict of
            arguments of `Execution`. Empty if it has to be made by hand.
        alternatives: Tuple of dicts like `settings`: the other changes that
            `change` names.
        aim: `"speed"`, `"memory"` or `"traces"`: what it is to improve.
        receipt: String, a line for each that was tried, with what it gave;
            empty if none was.
        kept: Bool, whether one of them was kept.

    Example:

    >>> advice = Advice("eager", "run_eagerly=True", "10 times",
    ...                 "compile(run_eagerly=False)")
    >>> print(advice)
    eager: run_eagerly=True
      do: compile(run_eagerly=False)
      expect: 10 times (not measured; mathematics: same)
    """

    rule: str
    evidence: str
    gain: str
    change: str
    mathematics: str = "same"
    ground: str = "not measured"
    settings: dict = dataclasses.field(default_factory=dict)
    alternatives: tuple = ()
    aim: str = "speed"
    receipt: str = ""
    kept: bool = False

    @property
    def ways(self):
        """List of the settings that make a change, `settings` first."""
        return [way for way in (self.settings, *self.alternatives) if way]

    def to_dict(self):
        """The values, as a new dict of plain values; features as text."""
        return {
            **vars(self),
            "settings": _plain(self.settings),
            "alternatives": [_plain(way) for way in self.alternatives],
        }

    def __str__(self):
        lines = [
            f"{self.rule}: {self.evidence}",
            f"  do: {self.change}",
            f"  expect: {self.gain} ({self.ground}; mathematics: "
            f"{self.mathematics})",
        ]
        lines += [f"  tried: {line}" for line in self.receipt.splitlines()]
        return "\n".join(lines)


def times(value):
    """So many times, with two digits, or all of them."""
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"


def offered(facts, *options):
    """Of some changes those that a model takes, as arguments of `Advice`.

    Args:
        facts: `Facts`.
        *options: Pairs of a change in words and its settings, which are None
            where it is made by hand.

    Returns:
        Dict of `change`, `settings` and `alternatives`.
    """
    taken = [
        (text, settings)
        for text, settings in options
        if settings is None or facts.takes(settings)
    ]
    ways = [settings for _, settings in taken if settings]
    return {
        "change": ", or ".join(text for text, _ in taken),
        "settings": ways[0] if ways else {},
        "alternatives": tuple(ways[1:]),
    }


def _plain(value):
    """Settings as values that JSON can hold."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value if isinstance(value, (bool, int, str)) else repr(value)
