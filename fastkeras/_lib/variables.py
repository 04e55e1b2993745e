"""What a training step reads and changes."""

import keras

from fastkeras._lib import private


def of_step(model):
    """The variables of layers, metrics, seeds, optimizer and features.

    Args:
        model: A compiled `keras.Model` or `FastModel`.

    Returns:
        List of variables, each once.
    """
    found = [*model.variables, *model.metrics_variables]
    for layer in private.flat_layers(model):
        found += _untracked(layer)
    if model.optimizer is not None:
        found += model.optimizer.variables
    for state in getattr(vars(model).get("_step"), "states", ()):
        found += state.variables.values()
        for tracker in state.trackers.values():
            found += tracker.variables
    # By identity: variables can't be compared.
    return list({id(v): v for v in found}.values())


def of_notes(model):
    """The `tf.Variable`s in which features note what goes by.

    They are no part of the training: no model saves them.

    Args:
        model: A compiled `keras.Model` or `FastModel`.
    """
    pairs = getattr(vars(model).get("_step"), "pairs", ())
    return [v for feature, _ in pairs for v in feature.notes]


def _untracked(layer):
    """Variables that Keras keeps on a layer alone: states of an RNN."""
    held = [v for v in vars(layer).values() if isinstance(v, (list, tuple))]
    held += [v for v in vars(layer).values() if isinstance(v, keras.Variable)]
    leaves = private.tree.flatten(held)
    return [v for v in leaves if isinstance(v, keras.Variable)]
