"""A launch that runs out of memory is run again, in smaller parts.

What it has changed by then is put back first: steps of a loop that were done,
a half of an update, buffers that XLA has taken over from variables.
"""

import functools
import gc

import tensorflow as tf

from fastkeras._lib import randomness
from fastkeras._lib.variables import of_notes
from fastkeras._lib.variables import of_step
from fastkeras._lib.warn import warn

#: The second is what an eager step may get from Python.
_EXHAUSTED = (tf.errors.ResourceExhaustedError, MemoryError)


def within_memory(method):
    """Makes a method of `Calls` run again for as long as features shrink.

    The method gets an argument `trial`, which says that another tier stands
    by, so that this one is not worth smaller parts.
    """

    @functools.wraps(method)
    def run(calls, *args, trial=False, **kwargs):
        model, said = calls.model, None
        while True:
            before = None
            if calls.shrinks and not trial:
                before = _Before(model)
            try:
                result = method(calls, *args, **kwargs)
            except _EXHAUSTED as error:
                if before is None:
                    raise
                before.put_back()
                said = _shrunk(model, error)
            else:
                break
            calls.forget_all()
            # What a traceback held of the failed step.
            gc.collect()
        if said:
            warn(said)
        return result

    return run


class _Before:
    """The state before a launch.

    A value is read, not copied: TensorFlow writes to another place for as
    long as the old one is held.

    Args:
        model: The model.
    """

    def __init__(self, model):
        local = model.distribute_strategy.experimental_local_results
        variables = [v.value for v in of_step(model)] + of_notes(model)
        self._values = [
            (copy, copy.read_value())
            for variable in variables
            for copy in local(variable)
        ]
        self._random = randomness.step_state()

    def put_back(self):
        """Makes it as if the launch had not been."""
        for variable, value in self._values:
            variable.assign(value)
        randomness.set_step_state(self._random)


def _shrunk(model, error):
    """Lets the features shrink; returns what they say."""
    said = [
        feature.shrink(state, error)
        for feature, state in model._step.pairs
        if feature.shrinks
    ]
    return " ".join(said)
