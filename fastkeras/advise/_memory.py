"""Rules on memory: activations, the tape, large tables."""

import math

import keras

from fastkeras._lib import figures
from fastkeras._lib.layers import trained_batch_norms
from fastkeras.advise._advice import FAST
from fastkeras.advise._advice import Advice
from fastkeras.advise._advice import offered
from fastkeras.perf import Microbatch
from fastkeras.perf import Rematerialize

#: Share of the free memory above which activations are told.
ACTIVATIONS = 0.5
#: Entries of a table, and share of it in a batch, at which an update of all
#: of it is a waste.
LARGE, FEW = 1_000_000, 0.1


def activations(facts):
    size, free = facts.traced.activations, facts.free_memory
    if size <= ACTIVATIONS * free:
        return None
    rows = max(1, facts.data.rows // 4)
    options = [
        (f"perf=[perf.Microbatch({rows})]", {"perf": [Microbatch(rows)]}),
        ("perf=[perf.Rematerialize()]", {"perf": [Rematerialize()]}),
        ("a smaller batch_size, which makes another update", None),
    ]
    if trained_batch_norms(facts.model):
        # Normalised slice by slice, an update would be another one.
        del options[0]
    return Advice(
        "memory",
        f"the backward pass keeps {figures.memory(size)} of activations, with "
        f"{figures.memory(free)} free",
        "activations of one slice or one block at a time, for a step that "
        "takes up to half as long again",
        **offered(facts, *options),
        aim="memory",
    )


def frozen_prefix(facts):
    """Frozen variables that the tape of the step follows all the same."""
    if facts.is_fast and not facts.has_own_train_step:
        return _frozen_late(facts)
    followed = [
        layer
        for layer in facts.layers
        if layer.weights
        and not layer.trainable_weights
        and any(v.value.trainable for v in layer.weights)
    ]
    if not followed or not facts.model.trainable_variables:
        return None
    own = facts.has_own_train_step
    return Advice(
        "frozen layers on the tape",
        f"{', '.join(x.name for x in followed)}: frozen after they were made, "
        "so TensorFlow's tape still follows their variables",
        "a shorter trace; run eagerly, no activation of them is kept",
        "tf.GradientTape(watch_accessed_variables=False) in `train_step`, and "
        "watch `self.trainable_variables`"
        if own
        else f"{facts.way_to_fast}, whose tape follows what is trained alone",
        settings={} if own else FAST,
    )


def _frozen_late(facts):
    names = facts.model._step.changed_layers(facts.model)
    if not names:
        return None
    return Advice(
        "frozen layers on the tape",
        f"`trainable` of {names} has changed since compile, and what was "
        "trainable then is still trained",
        "no backward pass through a frozen prefix",
        "compile again, or perf=[perf.Watch(exclude=...)]",
        mathematics="changed",
    )


def dense_table(facts):
    """An optimizer that touches every row of a table for a few ids."""
    found = []
    for layer in facts.layers:
        if not isinstance(layer, keras.layers.Embedding) or not layer.trainable:
            continue
        shape = tuple(layer.embeddings.shape)
        read = sum(n for o, n in facts.traced.gathered if layer.name in o)
        whole = facts.traced.assigned.count(shape)
        size = math.prod(shape)
        if size >= LARGE and whole and read < FEW * size:
            found.append(
                f"{layer.name} {shape}: {whole} whole update(s) of table and "
                f"slots for {read // shape[1]} rows"
            )
    if not found:
        return None
    name = type(facts.optimizer).__name__
    return Advice(
        "dense update of a table",
        f"{name} updates all of {'; '.join(found)}",
        "a step that no longer grows with the table",
        "an optimizer that leaves unused rows alone: Adagrad, or SGD without "
        "momentum",
        mathematics="changed",
    )
