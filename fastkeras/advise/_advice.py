"""Advice: what to change, why, and what it is expected to give."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Advice:
    """One piece of advice, with the evidence for it.

    Attributes:
        rule: String, the name of the rule that fired.
        evidence: String, the figures that fired it.
        gain: String, what to expect.
        change: String, the change in code.
        mathematics: `"same"` or `"changed"`: whether training computes
            something else afterwards.
        settings: Dict of the arguments of `compile` that make the change;
            `"perf"` lists the features to add, `"execution"` is a dict of
            arguments of `Execution`. Empty if it has to be made by hand.
        aim: `"speed"`, `"memory"` or `"traces"`: what it is to improve.
        receipt: String, what trying it gave; empty if it was not tried.
        kept: Bool, whether it was tried and kept.

    Example:

    >>> advice = Advice("eager", "run_eagerly=True", "10 times",
    ...                 "compile(run_eagerly=False)")
    >>> print(advice)
    eager: run_eagerly=True
      do: compile(run_eagerly=False)
      expect: 10 times (mathematics: same)
    """

    rule: str
    evidence: str
    gain: str
    change: str
    mathematics: str = "same"
    settings: dict = dataclasses.field(default_factory=dict)
    aim: str = "speed"
    receipt: str = ""
    kept: bool = False

    def to_dict(self):
        """The values, as a new dict of plain values; features as text."""
        settings = {
            name: [repr(feature) for feature in value]
            if name == "perf"
            else value
            for name, value in self.settings.items()
        }
        values = dataclasses.asdict(dataclasses.replace(self, settings={}))
        return {**values, "settings": settings}

    def __str__(self):
        lines = [
            f"{self.rule}: {self.evidence}",
            f"  do: {self.change}",
            f"  expect: {self.gain} (mathematics: {self.mathematics})",
        ]
        if self.receipt:
            lines.append(f"  tried: {self.receipt}")
        return "\n".join(lines)
