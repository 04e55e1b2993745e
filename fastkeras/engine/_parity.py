"""Whether a tier computes what the graph computes, in as little memory."""

import tensorflow as tf

from fastkeras._lib.variables import of_notes
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
#: The memory of a step as a multiple of the graph's, where a feature is there
#: to save it: more says that the compiler keeps what was to be dropped. XLA
#: takes its memory in one piece, and TensorFlow's allocator counts a piece as
#: up to twice what was asked for (17 MB as 32): less than that says nothing.
MEMORY = 2.2
#: Bytes of the graph below which nothing is said: on a CPU, small tensors are
#: not counted.
_LITTLE = 2**22


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
        String that names the variable whose update differs, or says how much
        more memory the tier takes where a feature is to save it; or None.
    """
    variables = [v.value for v in of_step(model)]
    before = [tf.identity(v) for v in variables]
    notes = of_notes(model)
    noted = [tf.identity(v) for v in notes]
    # Variables are told apart by identity: they can't be compared.
    weights = {id(v.value) for v in model.trainable_variables}
    saves = any(f.saves_memory for f in model.perf.features)
    peaks = []

    def updates(step, nudge=0.0):
        start = before
        if nudge:
            start = [
                b * (1 + nudge) if id(v) in weights else b
                for v, b in zip(variables, before, strict=True)
            ]
        _assign(variables, start)
        if saves:
            peaks.append(_peak(step))
        else:
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
        _assign(notes, noted)
    rows = zip(variables, before, got, want, noise, strict=True)
    for variable, old, *changes in rows:
        if variable.dtype.is_floating and bool(_differ(old, *changes)):
            return f"its update of {variable.name!r} differs from the graph's"
    return _excess(peaks)


def _peak(step):
    """Bytes that a step takes at most; None where the device counts none."""
    kinds = {d.device_type for d in tf.config.list_logical_devices()}
    device = "GPU:0" if "GPU" in kinds else "CPU:0"
    statistics = tf.config.experimental
    try:
        statistics.reset_memory_stats(device)
        held = statistics.get_memory_info(device)["current"]
    except ValueError:
        step()
        return None
    step()
    return statistics.get_memory_info(device)["peak"] - held


def _excess(peaks):
    """Says how much more memory a tier takes than the graph, or None."""
    if not peaks or None in peaks:
        return None
    # What a busy machine makes the graph hold at once can only be too much.
    tier, graph = peaks[0], min(peaks[1:])
    if graph < _LITTLE or tier <= MEMORY * graph:
        return None
    return (
        f"a step takes {tier / 1e6:.0f} MB in it and {graph / 1e6:.0f} in the "
        "graph: what is to be computed again is kept"
    )


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
