"""The largest output of a layer, from what the layers of a model know."""

import keras
import tensorflow as tf

from fastkeras._lib import private


def largest_activation(model):
    """The layer with the largest output.

    Args:
        model: A model that is built.

    Returns:
        Tuple of the name of a layer and of bytes per row; None if no layer
        has an output of known shape.
    """
    found = [
        (size, layer.name)
        for layer in private.flat_layers(model)
        if not isinstance(layer, (keras.Model, keras.layers.InputLayer))
        for size in _sizes(layer)
    ]
    size, name = max(found, default=(0, None))
    return (name, size) if name else None


def _sizes(layer):
    """Yields the bytes per row of the outputs that are known."""
    for shape, dtype in _outputs(layer):
        if None not in shape[1:]:
            size = tf.TensorShape(shape[1:]).num_elements()
            yield size * tf.as_dtype(dtype).size


def _outputs(layer):
    """Pairs of shape and dtype."""
    output = getattr(layer, "output", None)
    if output is not None:
        return [(t.shape, t.dtype) for t in private.tree.flatten(output)]
    # In the `call` of a model layers have no outputs, but were built.
    config = layer.get_build_config()
    if not config or private.is_default_hook(layer.compute_output_shape):
        return []
    shapes = config.get("shapes_dict") or {"input_shape": config["input_shape"]}
    shape = layer.compute_output_shape(*shapes.values())
    if not isinstance(shape, tuple) or isinstance(shape[0], tuple):
        # Of several outputs it is not known which is which.
        return []
    return [(shape, layer.compute_dtype)]
