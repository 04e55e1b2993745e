"""Private names of pipelines.

Part of `private.py`, see there.
"""


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


def functions(dataset):
    """The graphs of the functions of a stage, as `GraphDef`.

    Args:
        dataset: `tf.data.Dataset`, up to the stage.

    Returns:
        List of `GraphDef`, none where the stage has no function of the user's.
    """
    return [f.function.graph.as_graph_def() for f in dataset._functions()]


def shuffle_buffer(dataset):
    """Elements that a `shuffle` keeps; None for a stage of another kind.

    Args:
        dataset: `tf.data.Dataset`, up to the stage.
    """
    size = getattr(dataset, "_buffer_size", None)
    name = type(dataset).__name__
    return int(size) if "Shuffle" in name and size is not None else None
