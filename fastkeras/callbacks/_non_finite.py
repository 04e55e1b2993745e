"""The first update that was not finite, in words."""

import dataclasses

#: What stands for a layer where what the model was given was not finite.
DATA = "the data"


@dataclasses.dataclass(frozen=True)
class NonFinite:
    """The first update with an infinity or NaN.

    Attributes:
        step: Integer, updates since the monitor was there, from 1.
        layer: String, the layer that turned first, `"loss"` or `"the data"`.
        operation: String, the type of the operation; `""` if the forward
            pass was finite; None if it can't be known.
        layers: Tuple of strings, the layers whose gradient was not finite.
        in_weights: Bool, whether only the weights told, some updates later:
            `step` is then the last of these, `layers` are theirs.
    """

    step: int
    layer: str
    operation: str
    layers: tuple
    in_weights: bool = False

    def __str__(self):
        if self.in_weights:
            return (
                f"By update {self.step} weights were not finite, though each "
                f"loss was: first those of {self.layer!r}."
            )
        if self.layer == DATA:
            where = "NaN or Inf in its data"
        elif self.operation:
            where = f"first in {self.operation} of {self.layer!r}"
        elif self.operation is None:
            where = (
                f"met in the gradient of {self.layer!r} (operations can't be "
                "looked at when steps run eagerly or on several replicas)"
            )
        else:
            where = (
                "the forward pass was finite; in the backward pass first at "
                f"{self.layer!r}"
            )
        return f"Update {self.step} was not finite: {where}."
