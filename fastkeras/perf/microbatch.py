"""One update from the slices of one batch.

Does: cuts each batch into slices of `size` rows inside the step, adds their
gradients up with the true weight of each slice, and updates once. With
`"auto"`, the slice is the largest that fits into a budget, by an estimate from
the graph of its forward and backward pass when the step is traced. If memory
runs out all the same, the slice is halved and the launch run again from the
state before it, down to one row.
When it helps: the batch fits in memory as data, its activations do not.
Mathematics: same as the whole batch; see `Accumulate` for what that covers.
`BatchNormalization` that trains normalises each slice by itself and so can't
be equal; a warning says so once.
Cost: the slices run one after the other; one more copy of the trainable
variables. The gradient of an embedding table becomes dense in the loop. With
`"auto"`, the forward and backward pass are traced twice more; the values of
variables and slots before a launch are held until it ends, and batches of a
stream are run one by one, so that either can be gone back to. Allocators may
wait before they give up: TensorFlow's for oneDNN 10 s.
Conflicts: a `train_step` of your own that does not call FastModel's. What a
`tf.random` operation inside the step draws starts over when it is run again.
An allocation inside XLA's compiler, or of a thread, ends the process itself.
Measured: equal to the whole batch within 1e-6 (tests/perf/test_exactness.py);
equal to a run in small slices from the start after real failures
(tests/perf/test_out_of_memory.py).
Reference: Huang et al. 2019, arXiv:1811.06965 (micro-batches).
"""

import dataclasses
from typing import ClassVar

import keras
import tensorflow as tf

from fastkeras._lib import checks
from fastkeras.perf import _fit_slice
from fastkeras.perf import _parts
from fastkeras.perf._feature import Feature
from fastkeras.perf._feature import Stage
from fastkeras.perf._feature import State


class Slices(State):
    """What is known of the slices of one model.

    Attributes:
        rows: Dict of the shapes of a row to the rows that fit the budget.
        need: `Need` of the batches seen last, or None.
        used: Integer, the rows of the largest slice since the last halving.
        limit: Integer, the rows of a slice that memory may have room for, or
            None while it has not run out.
        reason: String, why a slice has the rows it has.
    """

    def __init__(self):
        super().__init__()
        self.rows = {}
        self.need = None
        self.used = 0
        self.limit = None
        self.reason = None


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
            number of rows; at the first step, if one row does not fit.
        tf.errors.ResourceExhaustedError: At a step, if `"auto"` has come down
            to one row and memory runs out.

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

    @property
    def shrinks(self):
        return self.size == "auto"

    def new_state(self):
        return Slices() if self.shrinks else State()

    def slices(self, model, batch, state):
        size = self._fitted(model, batch, state) if self.shrinks else self.size
        return _parts.slices(batch, size)

    def _fitted(self, model, batch, state):
        """The rows of a slice: what the budget and the memory allow."""
        leaves, shapes = _fit_slice.leaves_and_shapes(batch)
        if shapes not in state.rows:
            state.need = _fit_slice.need(model, batch)
            budget = self.budget_bytes or _fit_slice.half_of_free()
            state.rows[shapes] = state.need.rows(budget)
            reason = (
                f"by the estimate, {budget} bytes hold {state.rows[shapes]}"
            )
            state.reason = state.reason or reason
        size = min(state.rows[shapes], state.limit or state.rows[shapes])
        whole = leaves[0].shape[0]
        size = size if whole is None else min(size, whole)
        state.used = max(state.used, size)
        state.settings["rows of a slice"] = {
            "requested": "auto",
            "effective": state.used,
            "reason": state.reason,
        }
        return size

    def shrink(self, state, error):
        rows = state.used or state.limit or 1
        if rows == 1:
            least = f"about {state.need.least} bytes" if state.need else "more"
            raise tf.errors.ResourceExhaustedError(
                None,
                None,
                checks.message(
                    "A slice of one row must fit in memory",
                    f"a batch whose row takes {least} beside variables, slots "
                    "and data",
                    "Give the process that much, add `Rematerialize()` to "
                    "`perf`, or train a smaller model.",
                ),
            ) from error
        state.limit, state.used = rows // 2, 0
        state.reason = f"memory ran out with {rows}"
        return (
            "A step ran out of memory. It was run again from the state before "
            f"it, in slices of {state.limit} rows, and so are all from now on."
        )
