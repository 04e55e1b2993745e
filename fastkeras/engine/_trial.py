"""A runner on trial: another takes its place if XLA can't compile it."""

import itertools

import tensorflow as tf

from fastkeras.engine._function import StepFunction
from fastkeras.engine._launch import Batches
from fastkeras.engine._refusals import xla_refusal


class TrialFunction(StepFunction):
    """A `StepFunction` that may turn out not to compile at its first call.

    Args:
        model: The model.
        name: String, `"train_step"` or `"test_step"`.
        plain: `StepFunction` that runs in its place then.
        refused: Function of the reason, called once.
    """

    def __init__(self, model, name, plain, refused):
        super().__init__(model, name)
        self._plain = plain
        self._refused = refused
        self._is_over = False

    def next(self, feed, ahead, every_batch):
        """Tier and number of updates of the next launch."""
        try:
            return super().next(feed, ahead, every_batch)
        except tf.errors.OpError as error:
            self._end(error)
        return self._plain.next(feed, ahead, every_batch)

    def run(self, feed, launch, tier):
        """Runs a launch; returns the logs of its last step."""
        if self._is_over:
            return self._plain.run(feed, launch, tier)
        again = None
        if isinstance(launch, Batches) and not self.ledger.calls:
            launch.data, again = itertools.tee(launch.data)
        try:
            return super().run(feed, launch, tier)
        except tf.errors.OpError as error:
            self._end(error)
        if again is not None:
            launch.data = again
        return self._plain.run(feed, launch, self._plain.fixed)

    def _end(self, error):
        reason = xla_refusal(error, self._model)
        if reason is None or self.ledger.calls:
            raise error
        self._is_over = True
        self._refused(reason)
