"""What a StepTimer has found, as one value that prints."""

import dataclasses

from fastkeras._lib import figures
from fastkeras.measure import Summary

_INSIDE = "not known: Keras pulls the data inside its step"


@dataclasses.dataclass(frozen=True)
class StepTimes:
    """The figures of a `StepTimer`; None stands for what is not known.

    Attributes:
        step: `Summary` of the seconds of a step, over the windows.
        samples_per_second: Float, rows that the loss has seen in a second,
            the median over the windows.
        input_wait: `Summary` of the seconds a step waited for its data; a
            part of `step`.
        epoch_overhead: `Summary` of the seconds of an epoch outside its steps
            and its validation.
        validation: `Summary` of the seconds of a validation.
        steps_per_epoch: Integer, of the last epoch.
        reason: String, why there is no figure, or `""`.
    """

    step: Summary | None
    samples_per_second: float | None
    input_wait: Summary | None
    epoch_overhead: Summary | None
    validation: Summary | None
    steps_per_epoch: int
    reason: str

    def __str__(self):
        if self.step is None:
            return f"no figure: {self.reason}"
        rate = self.samples_per_second
        lines = [
            f"step {self.step}"
            + (f", {figures.count(rate)} samples/s" if rate else ""),
            f"input wait per step {self.input_wait or _INSIDE}",
            f"overhead per epoch {self.epoch_overhead or 'not known'}",
            f"validation {self.validation or 'none'}",
        ]
        if self.overhead_share > 0.5:
            lines.append(
                f"{self.overhead_share:.0%} of an epoch is spent outside its "
                f"{self.steps_per_epoch} step(s): make epochs longer (repeat "
                "the data), and train for fewer of them."
            )
        return "\n".join(lines)

    @property
    def overhead_share(self):
        """Share of the time of an epoch that is outside its steps."""
        if self.step is None or self.epoch_overhead is None:
            return 0.0
        steps = self.step.median * self.steps_per_epoch
        return self.epoch_overhead.median / (self.epoch_overhead.median + steps)
