"""Leaving out an update whose gradient is not finite.

Does: tests the summed gradient of an update and, if any value is an infinity
or NaN, leaves the whole update out: weights, optimizer slots, iterations,
schedule, moving averages and the moving statistics of layers stay as they
were. A loss that is not finite does not count in the logs, nor do the metrics
of its window. Logs `skipped_steps`.
When it helps: rare bad batches, unstable losses, long runs nobody watches.
Mathematics: same, for every update that is finite.
Cost: one pass over the gradients, one condition around the optimizer, a copy
of the metrics' and layers' small variables.
Conflicts: a `LossScaleOptimizer`, which has a guard of its own.
`MixedPrecision("mixed_float16")` brings the same guard; the two get on.
Measured: equal to a run without the poisoned batch
(tests/perf/test_skip_non_finite.py).
Reference: https://www.tensorflow.org/guide/mixed_precision ("Loss scaling").
"""

import dataclasses
from typing import ClassVar

import keras
import tensorflow as tf

from fastkeras.perf._feature import Feature
from fastkeras.perf._feature import Stage
from fastkeras.perf._feature import State

#: Skipped updates in a row after which a user is told.
PATIENCE = 20


class SkipState(State):
    """Counts skipped updates: in this epoch, in a row, and ever."""

    def __init__(self):
        super().__init__()
        self.trackers["skipped_steps"] = keras.metrics.Sum(name="skipped_steps")
        self.in_a_row = self.add_variable("skipped_in_a_row", 0, "int32")
        self.longest = self.add_variable("skipped_longest", 0, "int32")
        self.total = self.add_variable("skipped_total", 0, "int32")

    def count(self, ok):
        """Takes in one update; `ok` is a scalar bool tensor."""
        skipped = 1 - tf.cast(ok, tf.int32)
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        self.trackers["skipped_steps"].update_state(
            tf.cast(skipped, tf.float32) / replicas
        )
        row = (self.in_a_row.value + 1) * skipped
        self.in_a_row.assign(row)
        self.longest.assign(tf.maximum(self.longest.value, row))
        self.total.assign(self.total.value + skipped)

    def complaint(self):
        """Text for an epoch in which so many followed each other, or None."""
        longest = int(self.longest.numpy())
        self.longest.assign(0)
        if longest < PATIENCE:
            return None
        return (
            f"{longest} updates in a row were skipped because their gradients "
            "were not finite; nothing was learnt from them. Look for NaN or "
            "Inf in the data, lower the learning rate, or clip the gradients "
            '(`perf=["clip_by_global_norm"]`).'
        )


@keras.saving.register_keras_serializable("fastkeras")
@dataclasses.dataclass(frozen=True)
class SkipNonFinite(Feature):
    """Leaves out every update whose gradient holds an infinity or NaN.

    Example:

    >>> SkipNonFinite()
    SkipNonFinite()

    Reference: https://www.tensorflow.org/guide/mixed_precision
    """

    stage: ClassVar[Stage] = Stage.GUARD
    guards: ClassVar[bool] = True
    owns: ClassVar[tuple[str, ...]] = ("LossScaleOptimizer",)

    def new_state(self):
        return SkipState()

    def settle(self, state, ok):
        state.count(ok)

    def complaint(self, state):
        return state.complaint()
