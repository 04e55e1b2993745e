"""Noticing half precision that learns nothing, without an error.

A `LossScaleOptimizer` divides every gradient by its scale. A step that never
multiplied the loss by it then learns 32768 times too little. And in a variable
of float16 an optimizer's small `epsilon` is lost.
"""

import contextlib
import functools

from fastkeras._lib import private
from fastkeras._lib.warn import warn

#: The smallest `epsilon` that still counts beside a float16 slot.
LEAST_EPSILON = 1e-4


def warn_of_lost_epsilon(model, optimizer):
    """Warns of float16 variables whose optimizer divides by next to nothing.

    Args:
        model: The model that is compiled.
        optimizer: Its `keras.Optimizer`, or None.
    """
    epsilon = getattr(private.inner_optimizer(optimizer), "epsilon", None)
    layers = private.flat_layers(model)
    half = any(x.dtype_policy.variable_dtype == "float16" for x in layers)
    if half and epsilon is not None and epsilon < LEAST_EPSILON:
        warn(
            f"The optimizer's epsilon={epsilon:g} is lost beside variables of "
            "float16, so an update may be NaN. Keep the variables float32 "
            '(`perf="mixed_float16"`), or give `epsilon=1e-4` or more.'
        )


@contextlib.contextmanager
def noticing_unscaled_loss(model):
    """While a train function is made, hands it a step that is looked at.

    Args:
        model: The model. Nothing happens unless it has a `train_step` of its
            own and an optimizer that scales.
    """
    scales = isinstance(model.optimizer, private.LossScaleOptimizer)
    if not (scales and model.has_own_train_step) or "train_step" in vars(model):
        yield
        return
    name = f"{type(model).__name__}.train_step"
    vars(model)["train_step"] = functools.partial(
        _looked_at, model.train_step, model.optimizer, name, model._step.told
    )
    try:
        yield
    finally:
        del vars(model)["train_step"]


def _looked_at(step, optimizer, name, told, data):
    with _calls_noted(optimizer, ("scale_loss", "apply")) as called:
        logs = step(data)
    if called == {"apply"}:
        warn(
            f"{name} applies gradients through a LossScaleOptimizer but never "
            "scales the loss, so each gradient is divided by the loss scale "
            f"(at first {optimizer.initial_scale:g}). Inside the tape, write "
            "`loss = self.optimizer.scale_loss(loss)` before the gradients "
            "are taken.",
            told=told,
        )
    return logs


@contextlib.contextmanager
def _calls_noted(optimizer, names):
    """Gives a set that holds those of the named methods that were called."""
    called = set()

    def noting(name, method):
        def call(*args, **kwargs):
            called.add(name)
            return method(*args, **kwargs)

        return call

    for name in names:
        # Past Keras's tracking of attributes, as it is only for a moment.
        vars(optimizer)[name] = noting(name, getattr(optimizer, name))
    try:
        yield called
    finally:
        for name in names:
            vars(optimizer).pop(name, None)
