"""Private names that show what runs beside a model: pipelines, random states.

Part of `private.py`, see there.
"""

from keras.src.backend.common import global_state

# Operations without a seed draw one here; there is no public name for it.
from tensorflow.python.eager import context


def stages(dataset):
    """The stages of a pipeline, from the source on.

    What a dataset was made from has no public name.

    Args:
        dataset: `tf.data.Dataset`.

    Returns:
        List of pairs: the name of the stage, and the dataset up to it.
    """
    found = []
    while dataset is not None:
        name = type(dataset).__name__.strip("_").removesuffix("Dataset")
        found.append((name, dataset))
        inputs = dataset._inputs()
        # A stage of several sources is looked into no further.
        dataset = inputs[0] if len(inputs) == 1 else None
    found.reverse()
    return found


def eager_seeds():
    """The `random.Random` that seeds operations run eagerly, or None."""
    return context.context()._rng


def global_seed():
    """The variable behind `keras.random` without a seed, if it was used."""
    generator = global_state.get_global_attribute("global_seed_generator")
    return [] if generator is None else [generator.state]
