"""One update from the slices of one batch.

Does: cuts each batch into slices of `size` rows inside the step, adds their
gradients up with the true weight of each slice, and updates once. With
`"auto"`, the slice is the largest that fits into a budget, by an estimate from
the graph of its forward and backward pass when the step is traced.
When it helps: the batch fits in memory as data, its activations do not.
Mathematics: same as the whole batch; see `Accumulate` for what that covers.
`BatchNormalization` that trains normalises each slice by itself and so can't
be equal; a warning says so once.
Cost: the slices run one after the other; one more copy of the trainable
variables. The gradient of an embedding table becomes dense in the loop. With
`"auto"`, the forward and backward pass are traced twice more.
Conflicts: a `train_step` of your own that does not call FastModel's.
Measured: equal to the whole batch within 1e-6 (tests/perf/test_exactness.py).
Reference: Huang et al. 2019, arXiv:1811.06965 (micro-batches).
"""

import dataclasses
from typing import ClassVar

import keras

from fastkeras._lib import checks
from fastkeras.perf import _fit_slice
from fastkeras.perf import _parts
from fastkeras.perf._feature import Feature
from fastkeras.perf._feature import Stage


@keras.saving.register_keras_serializable("fastkeras")
@dataclasses.dataclass(frozen=True)
class Microbatch(Feature):
    """Computes each batch in slices of `size` rows, with one update.

    Args:
        size: Integer >= 1, rows in a slice; the last slice may hold fewer. Or
            `"auto"`: as many as fit into `budget_bytes`. Defaults to `32`.
        budget_bytes: Integer >= 1, bytes that activations and gradients of a
            slice may take at once, without variables, slots and data. For
            `"auto"` only. Defaults to `None`: half of what the process may
            still take, by the free memory and by its own limit.

    Raises:
        TypeError: If a number is not an integer.
        ValueError: If a number is < 1, or `budget_bytes` is given beside a
            number of rows; at the first step, if one row does not fit or the
            rows of a batch are not known.

    Example:

    >>> Microbatch("auto", budget_bytes=2**30).size
    'auto'

    Reference: Huang et al. 2019, https://arxiv.org/abs/1811.06965
    """

    size: int | str = 32
    budget_bytes: int | None = None

    stage: ClassVar[Stage] = Stage.SLICE

    def __post_init__(self):
        whole = "To run a batch whole, leave Microbatch out of `perf`."
        if self.size != "auto":
            checks.positive_int(self.size, "size", whole)
        if self.budget_bytes is None:
            return
        checks.positive_int(self.budget_bytes, "budget_bytes", whole)
        if self.size != "auto":
            raise ValueError(
                checks.message(
                    "`budget_bytes` chooses the rows of a slice, so `size` "
                    "must be 'auto'",
                    f"size={self.size}, budget_bytes={self.budget_bytes}",
                    "Leave one of them out.",
                )
            )

    def slices(self, model, batch):
        size = self.size
        if size == "auto":
            budget = self.budget_bytes or _fit_slice.free_bytes() // 2
            size = _fit_slice.fitted_rows(model, batch, budget)
        return _parts.slices(batch, size)
