"""One update from several successive batches.

Does: takes `steps` batches as one window, adds their gradients up with the
true weight of each batch, and updates once, as one big batch would.
When it helps: the batch you want does not fit in memory.
Mathematics: same as one big batch, for every Keras optimizer, also with
batches of unequal size, sample weights and masks; one update is one tick of
the optimizer, its schedule, its moving averages and its weight decay.
`BatchNormalization` that trains normalises each batch by itself and so can't
be equal; a warning says so once.
Cost: one more copy of the trainable variables while a window is added up. The
gradient of an embedding table becomes dense when batches are added in a loop.
Conflicts: the optimizer's `gradient_accumulation_steps`, which counts
schedules and moving averages per batch and carries a remainder over the end
of an epoch; and a `train_step` of your own.
Measured: equal to one big batch within 1e-6 for 14 optimizers
(tests/perf/test_exactness.py).
Reference: https://keras.io/api/optimizers/ (`gradient_accumulation_steps`).
"""

import dataclasses
from typing import ClassVar

import keras

from fastkeras._lib import checks
from fastkeras.perf._feature import Feature
from fastkeras.perf._feature import Stage


@keras.saving.register_keras_serializable("fastkeras")
@dataclasses.dataclass(frozen=True)
class Accumulate(Feature):
    """Makes one update out of `steps` successive batches.

    Args:
        steps: Integer >= 1, batches in an update. Defaults to `2`.
        remainder: `"flush"` or `"drop"`. What happens to a last window of an
            epoch with fewer batches: `"flush"` updates with their own weight,
            `"drop"` does not train on them. Nothing is carried into the next
            epoch. Defaults to `"flush"`.

    Raises:
        TypeError: If `steps` is not an integer.
        ValueError: If `steps` is < 1 or `remainder` is unknown.

    Example:

    >>> Accumulate(8)
    Accumulate(steps=8, remainder='flush')

    Reference: https://keras.io/api/optimizers/
    """

    steps: int = 2
    remainder: str = "flush"

    stage: ClassVar[Stage] = Stage.WINDOW
    owns: ClassVar[tuple[str, ...]] = ("gradient_accumulation_steps",)

    def __post_init__(self):
        checks.positive_int(
            self.steps,
            "steps",
            "To update after each batch, leave Accumulate out of `perf`.",
        )
        checks.one_of(self.remainder, "remainder", ("flush", "drop"))

    @property
    def window(self):
        """Batches in an update."""
        return self.steps

    @property
    def keeps_remainder(self):
        """Whether a last window that is not full makes an update."""
        return self.remainder == "flush"
