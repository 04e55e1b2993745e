"""Private names of Keras about the forms a model comes in.

A part of `private.py`, under the same rule: the reason stands beside each
name, and `tests/_lib/test_private.py` fails by name when it moves.
"""

import functools

import keras

# `clone_model` leaves functional models to a function of this module.
from keras.src.models import cloning

# `Model.__init__` would swap the bases of FastModel itself for these.
from keras.src.models.functional import functional_from_config
from keras.src.models.model import Trainer as ModelTrainer
from keras.src.models.model import functional_init_arguments

__all__ = ["functional_from_config", "functional_init_arguments"]


def init_trainer(model):
    """Sets up the trainer's attributes, as `Model.__init__` does first."""
    ModelTrainer.__init__(model)


def is_no_override(method):
    """Marks a `get_config` of ours as one that no user has written.

    Only then does Keras leave out the name where a constructor takes none.
    """
    return keras.src.utils.python_utils.default(method)


def clone_with(cls, clone):
    """Has `keras.models.clone_model` hand functional models of a class over.

    Where a constructor takes more than inputs and outputs Keras makes a plain
    functional model, and compiles that with options it does not know.

    Args:
        cls: Class of models.
        clone: Function of Keras's own function, the model and its further
            arguments to a model.
    """
    stock = cloning._clone_functional_model

    @functools.wraps(stock)
    def dispatch(model, *args, **kwargs):
        if isinstance(model, cls):
            return clone(stock, model, *args, **kwargs)
        return stock(model, *args, **kwargs)

    cloning._clone_functional_model = dispatch
