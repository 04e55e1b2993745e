"""Private names of Keras about what it leaves on tensors and layers.

A part of `private.py`, under the same rule: `tests/_lib/test_private.py` fails
by name when one of them moves.
"""

# Predictions of sequences of several lengths are put together as Keras does.
from keras.src.backend.tensorflow.trainer import convert_to_np_if_not_ragged
from keras.src.backend.tensorflow.trainer import potentially_ragged_concat

from fastkeras._lib import private


def mask_of(tensor):
    """The mask attached to a tensor, or None: losses read it there."""
    return getattr(tensor, "_keras_mask", None)


def set_mask(tensor, mask):
    """Attaches a mask to a tensor."""
    tensor._keras_mask = mask


def concat(tensors):
    """Predictions of batches as one array; ragged where lengths differ."""
    return convert_to_np_if_not_ragged(potentially_ragged_concat(tensors))


def layers_with_added_losses(model):
    """Names of the layers that added a loss in the last call.

    `model.losses` holds the penalties on weights as well, without a name.
    """
    layers = private.flat_layers(model)
    return [layer.name for layer in layers if layer._losses]
