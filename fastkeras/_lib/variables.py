"""What a training step reads and changes."""


def of_step(model):
    """The variables of layers, metrics, seeds, optimizer and features.

    Args:
        model: A compiled `keras.Model` or `FastModel`.

    Returns:
        List of variables, each once.
    """
    found = [*model.variables, *model.metrics_variables]
    if model.optimizer is not None:
        found += model.optimizer.variables
    for state in getattr(vars(model).get("_step"), "states", ()):
        found += state.variables.values()
        for tracker in state.trackers.values():
            found += tracker.variables
    # By identity: variables can't be compared.
    return list({id(v): v for v in found}.values())
