"""Noticing a user's `train_step` that forgets to scale the loss.

A `LossScaleOptimizer` divides every gradient by its scale. A step that never
multiplied the loss by it then learns 32768 times too little, without an error.
"""

import contextlib
import functools

from fastkeras._lib import private
from fastkeras._lib.warn import warn


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
        _looked_at, model.train_step, model.optimizer, name
    )
    try:
        yield
    finally:
        del vars(model)["train_step"]


def _looked_at(step, optimizer, name, data):
    with _calls_noted(optimizer, ("scale_loss", "apply")) as called:
        logs = step(data)
    if called == {"apply"}:
        warn(
            f"{name} applies gradients through a LossScaleOptimizer but never "
            "scales the loss, so each gradient is divided by the loss scale "
            f"(at first {optimizer.initial_scale:g}). Inside the tape, write "
            "`loss = self.optimizer.scale_loss(loss)` before the gradients "
            "are taken."
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
