"""Puts a model back to where it was: weights, optimizer, metrics, random."""

import contextlib

from fastkeras._lib import private_seeds
from fastkeras._lib import randomness
from fastkeras._lib.variables import of_step


@contextlib.contextmanager
def as_before(model):
    """While open, the model may be trained; at the end nothing has happened.

    Variables, attributes of the model (its compiled functions among them) and
    random generators are put back. What is compiled while it is open is made
    anew, so that the state that kernels hold is that of other functions.

    Args:
        model: A `keras.Model` whose variables are all made.
    """
    random = randomness.state()
    variables = of_step(model)
    values = [v.numpy() for v in variables]
    attributes = dict(vars(model))

    def put_back():
        vars(model).clear()
        vars(model).update(attributes)
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
        randomness.set_state(random)

    try:
        vars(model)["train_function"] = None
        with private_seeds.another_series():
            yield
    finally:
        whole(put_back)


def whole(put_back):
    """Has something put back also where Ctrl-C falls into it.

    Args:
        put_back: Function that may be called again. The interrupt is raised
            when all is done.
    """
    try:
        put_back()
    except KeyboardInterrupt:
        whole(put_back)
        raise
