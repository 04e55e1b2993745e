"""Why a technique does not help in a row, from what was measured there.

Example:

>>> gain = {"median": 0.5, "lower": 0.4, "upper": 0.6, "n": 3, "unit": "x"}
>>> sentences([{"name": "XLA", "gain": gain}], [], {})
['XLA: 0.50 ±0.10 times the traced step; no reason was measured']
"""

import keras
import tensorflow as tf

from fastkeras import measure
from fastkeras._lib import figures
from fastkeras.bench import tables

#: A technique that is not so many times as fast is spoken of.
NO_GAIN = 1.05
#: A share of the memory from which on hardly any is saved.
_LESS = 0.97
_SIZE, _TIMES, _CALLS = 512, 15, 100


def sentences(alone, ordered, facts):
    """One for each technique that does not help, or not for sure.

    Args:
        alone: List of dicts of the ways with one technique: name and gain.
        ordered: The same, of those with all techniques before them.
        facts: Dict as of `facts`, or with fewer keys.

    Returns:
        List of strings.
    """
    added = {way["name"]: way["gain"] for way in ordered}
    found = []
    for way in alone:
        name, gain = way["name"], way["gain"]
        more = added.get(f"+ {name}")
        if gain["lower"] >= NO_GAIN and not (more and more["upper"] < 1):
            continue
        text = f"{name}: {tables.times(gain)} times the traced step"
        if more:
            text += f", {tables.times(more)} added to those before it"
        found.append(f"{text}; {_why(name, gain, more, facts)}")
    return found


def _why(name, gain, added, facts):
    if added and added["lower"] >= NO_GAIN:
        return "it helps for sure only together with those before it"
    if gain["lower"] < NO_GAIN <= gain["median"]:
        return "the gain is within the noise of the run"
    why = _REASONS.get(name, lambda *_: None)(facts, gain, added)
    if gain["lower"] <= 1 <= gain["upper"]:
        why = f"alone within the noise{f': {why}' if why else ''}"
    return why or "no reason was measured"


def _pinned(facts, gain, added):
    traces = facts.get("traces")
    return traces and (
        "it saves traces where shapes vary, and here the count of traces is "
        f"{traces['relax']} without it and {traces['pin']} with it"
    )


def _launches(facts, gain, added):
    if not {"call", "step"} <= facts.keys():
        return None
    call, step = (tables.duration(facts[name]) for name in ("call", "step"))
    return f"it saves calls from Python, each about {call}, of a step of {step}"


def _xla(facts, gain, added):
    if not added:
        return None
    return (
        "in launches too, where calls from Python hardly count, what XLA makes "
        "of these operations is no faster than TensorFlow's kernels"
    )


def _half(facts, gain, added):
    if "half" not in facts:
        return None
    name, ratio = facts["half"]
    return (
        f"a {name} and its gradients take {ratio:.1f} times as long in "
        "float16 as in float32 on this device, and "
        + ("casts are added" if ratio > 0.9 else "casts outweigh that")
    )


def _checkpointing(facts, gain, added):
    peaks = facts.get("memory")
    if not peaks:
        return None
    plain, less = map(figures.memory, peaks)
    saves = peaks[1] < _LESS * peaks[0]
    return (
        "it makes the forward pass twice to hold less, and here "
        + ("does" if saves else "hardly does")
        + f": the tensors of a step take {less}, {plain} without it"
    )


def _accumulated(facts, gain, added):
    parts = facts.get("parts")
    return parts and (
        f"it saves three updates of four, each {_share(parts, 'update')}, and "
        "adds up gradients instead"
    )


def _watched(facts, gain, added):
    parts = facts.get("parts")
    return parts and (
        "it leaves out the gradients of all layers but the last: all gradients "
        f"are {_share(parts, 'gradients')}, those of the last alone "
        f"{_share(parts, 'last')}"
    )


def _share(parts, name):
    seconds, whole = parts[name], parts["gradients"] + parts["update"]
    return f"{tables.duration(seconds)} ({seconds / whole:.0%} of a step)"


_REASONS = {
    "pinned signature": _pinned,
    "launches": _launches,
    "XLA": _xla,
    "mixed precision": _half,
    "gradient accumulation": _accumulated,
    "watching a part": _watched,
    "gradient checkpointing": _checkpointing,
}


def facts(row, sides):
    """What the reasons are drawn from, measured after the turns of a row.

    Args:
        row: `Row`.
        sides: Dict of way to its `Side`.

    Returns:
        Dict of `call`, seconds of a call of a graph of nothing; `traces` of
        the step, relaxed and pinned; `half`, the name of
        an operation of the row and how many times as long it takes in
        float16; `parts`, seconds of the forward and backward pass for the
        `gradients` of all weights, for those of the `last` layer alone, and
        of an `update`; and `memory`,
        bytes of a step's tensors without checkpointing and with it.
    """
    ways = {"relax": "traced step", "pin": "pinned signature"}
    found = {"call": _call_time(), "half": _half_time(row.convolves)}
    if all(way in sides for way in ways.values()):
        found["traces"] = {
            key: _traces(sides[way].model) for key, way in ways.items()
        }
    if ways["relax"] in sides:
        found["parts"] = _parts(sides[ways["relax"]].model, row)
    model_of = {w: sides[w].model for w in _MEMORY if w in sides}
    if len(model_of) == len(_MEMORY):
        found["memory"] = [
            measure.memory(
                model, row.batch, measured=False, data=row.data()
            ).step
            for model in model_of.values()
        ]
    return found


_MEMORY = ("traced step", "gradient checkpointing")


def _traces(model):
    return sum(model.perf_report()["train_step"]["traces"].values())


def _parts(model, row):
    """Seconds of the parts of a step, each a graph of its own."""
    x, y = (tf.constant(array[: row.batch]) for array in row.data())
    weights, optimizer = model.trainable_variables, model.optimizer
    last = [x for x in model.layers if x.trainable_variables][-1]

    def gradients(weights):
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch([w.value for w in weights])
            loss = model.compute_loss(x, y, model(x, training=True))
        return tape.gradient(loss, [w.value for w in weights])

    # The turns are over: what these updates move counts no more.
    nothing = [tf.zeros(w.shape, w.dtype) for w in weights]
    parts = {
        "gradients": lambda: gradients(weights),
        "last": lambda: gradients(last.trainable_variables),
        "update": lambda: optimizer.apply(nothing, weights),
    }
    return {name: _seconds(tf.function(part)) for name, part in parts.items()}


def _call_time():
    nothing, number = tf.function(lambda t: t), tf.constant(1.0)
    return _seconds(lambda: nothing(number))


def _seconds(function):
    """The median of calls, after a first one that traces."""
    clock, seconds = measure.Clock(), []
    function()
    for _ in range(_CALLS):
        with clock.stopwatch() as watch:
            function()
        seconds.append(watch.seconds)
    return measure.summarize(seconds).median


def _half_time(convolves):
    """An operation with its gradients, and its times by those in float32."""
    clock, times = measure.Clock(), {"float32": [], "float16": []}
    name, shapes = "product of matrices", [(_SIZE, _SIZE)] * 2
    operation = keras.ops.matmul
    if convolves:
        name, shapes = "convolution", [(32, 28, 28, 32), (3, 3, 32, 32)]
        operation = keras.ops.conv
    for turn in range(_TIMES + 1):
        for dtype, seconds in times.items():
            given = [tf.ones(shape, dtype) for shape in shapes]
            with clock.stopwatch() as watch, tf.GradientTape() as tape:
                tape.watch(given)
                [t.numpy() for t in tape.gradient(operation(*given), given)]
            # The first has kernels made.
            if turn:
                seconds.append(watch.seconds)
    return name, measure.ratio(times["float16"], times["float32"]).median
