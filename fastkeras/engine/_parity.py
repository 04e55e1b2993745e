"""Whether a tier computes what the graph computes."""

import tensorflow as tf

#: Largest difference of an update, as a share of the update itself. The order
#: of additions explains less, also where Adam divides a gradient by itself.
SHARE = 0.05
#: The same as a share of the variable, for updates near the rounding error.
ROUNDING = 1e-5


def parting(model, tier, reference):
    """Runs one step both ways from the same state, and puts the state back.

    Args:
        model: The model.
        tier: Function that runs one step in the tier.
        reference: Function that runs the same step in the graph.

    Returns:
        String that names the variable whose update differs, or None.
    """
    variables = _state(model)
    before = [tf.identity(v) for v in variables]

    def run(step):
        step()
        after = [tf.identity(v) for v in variables]
        for variable, value in zip(variables, before, strict=True):
            variable.assign(value)
        return after

    pairs = zip(variables, before, run(tier), run(reference), strict=True)
    for variable, old, got, want in pairs:
        if not variable.dtype.is_floating or not bool(_differ(old, got, want)):
            continue
        return f"its update of {variable.name!r} differs from the graph's"
    return None


def _differ(old, got, want):
    def norm(tensor):
        return tf.norm(tf.cast(tensor, tf.float64))

    allowed = SHARE * norm(want - old) + ROUNDING * norm(want)
    # What is no number in the graph is no standard to compare with.
    near = norm(got - want) <= allowed
    return tf.math.is_finite(norm(want)) & ~near


def _state(model):
    found = {}
    lists = [model.variables, model.metrics_variables]
    if model.optimizer is not None:
        lists.append(model.optimizer.variables)
    for state in model._step.states:
        lists.append(state.variables.values())
        lists += [t.variables for t in state.trackers.values()]
    for variables in lists:
        for variable in variables:
            value = getattr(variable, "value", variable)
            found[id(value)] = value
    return list(found.values())
