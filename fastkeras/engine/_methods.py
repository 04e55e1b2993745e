"""The methods of a model that say how steps run, as a class to inherit."""

import functools

import keras

from fastkeras.engine import _evaluate
from fastkeras.engine import _loop
from fastkeras.engine import _predict
from fastkeras.engine import _scheduled
from fastkeras.engine._function import StepFunction
from fastkeras.engine._options import check_counts
from fastkeras.engine._predict import Predictor
from fastkeras.engine._workers import is_asynchronous
from fastkeras.perf._scaling import noticing_unscaled_loss


def _runner(model, name):
    if is_asynchronous(model):
        return _scheduled.ScheduledFunction(model, name)
    return StepFunction(model, name)


class Loops:
    """Stands before `keras.Model` among the bases of a model with a plan.

    With `perf=None` each method is that of Keras.
    """

    epoch_times = None
    #: The callback that asked for `requested_jit` after `compile`, in words.
    jit_asked_by = None

    def make_train_function(self, force=False):
        with noticing_unscaled_loss(self):
            if self.perf.is_keras:
                super().make_train_function(force)
            elif force or self.train_function is None:
                self.train_function = _runner(self, "train_step")

    def make_test_function(self, force=False):
        if self.perf.is_keras:
            super().make_test_function(force)
        elif force or self.test_function is None:
            self.test_function = _runner(self, "test_step")

    @functools.wraps(keras.Model.fit)
    def fit(self, *args, **kwargs):
        if self.perf.is_keras:
            return super().fit(*args, **kwargs)
        return _loop.fit(self, *args, **kwargs)

    @functools.wraps(keras.Model.evaluate)
    def evaluate(self, *args, **kwargs):
        if self.perf.is_keras:
            return super().evaluate(*args, **kwargs)
        return _evaluate.evaluate(self, *args, **kwargs)

    @functools.wraps(keras.Model.predict)
    def predict(
        self, x, batch_size=None, verbose="auto", steps=None, callbacks=None
    ):
        out = None
        if not self.perf.is_keras:
            check_counts({"batch_size": batch_size, "steps": steps})
            if is_asynchronous(self):
                return _scheduled.predict(
                    self, x, batch_size, verbose, steps, callbacks
                )
            self.predictor = self.predictor or Predictor(self)
            out = _predict.predict(
                self, x, batch_size, verbose, steps, callbacks
            )
        if out is None:
            out = super().predict(x, batch_size, verbose, steps, callbacks)
        return out

    @functools.wraps(keras.Model.train_on_batch)
    def train_on_batch(self, *args, **kwargs):
        if not self.perf.is_keras and self.compiled:
            _loop.check_before_training(self)
        return super().train_on_batch(*args, **kwargs)
