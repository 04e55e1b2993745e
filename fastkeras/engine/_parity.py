"""Whether a tier computes what the graph computes."""

import tensorflow as tf

from fastkeras._lib.variables import of_step

#: Largest difference of an update, as a share of the update itself. The order
#: of additions explains less, also where Adam divides a gradient by itself.
SHARE = 0.05
#: The same as a share of the variable, for updates near the rounding error.
ROUNDING = 1e-5
#: The same as a multiple of what rounding errors change in the graph itself.
NOISE = 10.0
#: How far apart the weights are then, as a share: two units in the last place.
_NUDGE = 2.0**-22


def parting(model, tier, reference):
    """Runs one step both ways from the same state, and puts the state back.

    Some gradients are nothing but rounding errors (that of a bias before a
    softmax over it), and Adam makes full steps of them. So the graph runs once
    more from weights that are apart by such errors: what that changes, a tier
    may change too.

    Args:
        model: The model.
        tier: Function that runs one step in the tier.
        reference: Function that runs the same step in the graph.

    Returns:
        String that names the variable whose update differs, or None.
    """
    variables = [v.value for v in of_step(model)]
    before = [tf.identity(v) for v in variables]
    # Variables are told apart by identity: they can't be compared.
    weights = {id(v.value) for v in model.trainable_variables}

    def updates(step, nudge=0.0):
        start = before
        if nudge:
            start = [
                b * (1 + nudge) if id(v) in weights else b
                for v, b in zip(variables, before, strict=True)
            ]
        _assign(variables, start)
        step()
        return [
            v - s if v.dtype.is_floating else None
            for v, s in zip(variables, start, strict=True)
        ]

    try:
        got, want = updates(tier), updates(reference)
        noise = updates(reference, _NUDGE)
    finally:
        _assign(variables, before)
    rows = zip(variables, before, got, want, noise, strict=True)
    for variable, old, *changes in rows:
        if variable.dtype.is_floating and bool(_differ(old, *changes)):
            return f"its update of {variable.name!r} differs from the graph's"
    return None


def _assign(variables, values):
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def _differ(old, got, want, nudged):
    def norm(tensor):
        return tf.norm(tf.cast(tensor, tf.float64))

    allowed = SHARE * norm(want) + ROUNDING * norm(old)
    allowed += NOISE * norm(nudged - want)
    # What is no number in the graph is no standard to compare with.
    near = norm(got - want) <= allowed
    return tf.math.is_finite(norm(want)) & ~near
