"""What the layers of a model are like."""

import keras

from fastkeras._lib import private


def trained_batch_norms(model):
    """Names of the `BatchNormalization` layers that train."""
    return [
        layer.name
        for layer in private.flat_layers(model)
        if isinstance(layer, keras.layers.BatchNormalization)
        and layer.trainable
    ]
