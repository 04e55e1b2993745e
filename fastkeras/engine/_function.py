"""A step as one callable: traced, distributed, its logs reduced."""

import functools

import tensorflow as tf

from fastkeras._lib import private
from fastkeras._lib.warn import warn


class StepFunction:
    """Runs `train_step` or `test_step` of a model on one batch.

    Args:
        model: The model.
        name: String, `"train_step"` or `"test_step"`.
    """

    def __init__(self, model, name):
        self._model = model
        self._strategy = model.distribute_strategy
        self._is_train = name == "train_step"
        self._checked = False
        step = getattr(model, name)
        run = functools.partial(_one_step, self._strategy, step)
        if not model.run_eagerly:
            cuts = model.perf.cuts and self._strategy.num_replicas_in_sync > 1
            run = tf.function(
                run, reduce_retracing=not cuts, jit_compile=model.jit_compile
            )
        self._run = run

    def run(self, data):
        """Runs one step; `data` is a batch or a window of batches."""
        logs = self._run(_without_optionals(data))
        if not self._checked:
            self._checked = True
            self._check_features()
        return logs

    def __call__(self, iterator):
        """Runs one step on the next batch, as a Keras train function does."""
        logs = None
        for data, _ in zip(iterator, range(self._model.steps_per_execution)):
            logs = self.run(data)
        if logs is None:
            raise StopIteration
        return logs

    def _check_features(self):
        model = self._model
        features = list(model.perf.features)
        if self._is_train and features and not model._step.ran:
            warn(
                f"{features} of `perf` are not in effect: "
                f"{type(model).__name__}.train_step does not call "
                "FastModel's. Call `super().train_step(data)`, or override "
                "`compute_loss` or `compute_metrics` instead."
            )


@tf.autograph.experimental.do_not_convert
def _one_step(strategy, step, data):
    logs = strategy.run(step, args=(data,))
    return private.tree.map_structure(
        lambda value: _mean_over_replicas(strategy, value), logs
    )


def _mean_over_replicas(strategy, value):
    if not isinstance(value, tf.distribute.DistributedValues):
        return value
    return tf.reduce_mean(strategy.experimental_local_results(value), axis=0)


def _without_optionals(data):
    """Generators that yield None bring it as an empty optional."""
    return private.tree.map_structure(
        lambda t: None if isinstance(t, tf.experimental.Optional) else t, data
    )
