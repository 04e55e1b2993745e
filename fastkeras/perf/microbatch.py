"""One update from the slices of one batch.

Does: cuts each batch into slices of `size` rows inside the step, adds their
gradients up with the true weight of each slice, and updates once.
When it helps: the batch fits in memory as data, its activations do not.
Mathematics: same as the whole batch; see `Accumulate` for what that covers.
`BatchNormalization` that trains normalises each slice by itself and so can't
be equal; a warning says so once.
Cost: the slices run one after the other; one more copy of the trainable
variables. The gradient of an embedding table becomes dense in the loop.
Conflicts: a `train_step` of your own that does not call FastModel's.
Measured: equal to the whole batch within 1e-6 (tests/perf/test_exactness.py).
Reference: Huang et al. 2019, arXiv:1811.06965 (micro-batches).
"""

import dataclasses
from typing import ClassVar

import keras

from fastkeras._lib import checks
from fastkeras.perf import _parts
from fastkeras.perf._feature import Feature
from fastkeras.perf._feature import Stage


@keras.saving.register_keras_serializable("fastkeras")
@dataclasses.dataclass(frozen=True)
class Microbatch(Feature):
    """Computes each batch in slices of `size` rows, with one update.

    Args:
        size: Integer >= 1, rows in a slice; the last slice may hold fewer.
            Defaults to `32`.

    Raises:
        TypeError: If `size` is not an integer.
        ValueError: If `size` is < 1.

    Example:

    >>> Microbatch(8)
    Microbatch(size=8)

    Reference: Huang et al. 2019, https://arxiv.org/abs/1811.06965
    """

    size: int = 32

    stage: ClassVar[Stage] = Stage.SLICE

    def __post_init__(self):
        checks.positive_int(
            self.size,
            "size",
            "To run a batch whole, leave Microbatch out of `perf`.",
        )

    def slices(self, batch):
        return _parts.slices(batch, self.size)
