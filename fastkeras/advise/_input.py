"""Rules on the data: input that is late, arrays, buffers, short epochs."""

import itertools
import math

from fastkeras._lib import figures
from fastkeras._lib import private_datasets
from fastkeras._lib.private import tree
from fastkeras.advise._advice import FAST
from fastkeras.advise._advice import Advice
from fastkeras.advise._advice import times
from fastkeras.advise._graph import python_calls
from fastkeras.engine._resident import MEMORY_SHARE
from fastkeras.measure._pipeline import copied

#: Bytes of arrays from which on Keras's copy of them counts.
LARGE = 2**26
#: Bytes in the buffer of a shuffle from which on it counts.
BUFFER = 2**25

_PYTHON_STAGE = (
    "it runs Python, whose lock lets parallel calls gain nothing: write it "
    "with TensorFlow operations, or `.cache()` after it, or write the rows as "
    "TFRecord once"
)
_ITEMS = (
    "super().__init__(workers={}) if it waits for files; if it computes in "
    "Python, with use_multiprocessing=True, as threads share Python's lock"
)
_FIXES = {
    "Map": "`.map(f, num_parallel_calls=tf.data.AUTOTUNE)`, after `.batch` "
    "if f can take a batch, then `.prefetch(tf.data.AUTOTUNE)`",
    "ParallelMap": "`.cache()` after it if its output fits in memory; map "
    "batches instead of rows",
    "Shuffle": "a smaller buffer, and shuffle before the rows are decoded",
    "TensorSlice": "give `fit` the arrays themselves, or slice whole batches",
    "Filter": "filter once and store the result, or `.cache()`",
}
_FIX = "`.cache()` after it, and `.prefetch(tf.data.AUTOTUNE)` at the end"


def input_wait(facts):
    if facts.profile is None or not facts.profile["input"]["bound"]:
        return None
    if facts.data.is_arrays:
        return _wait_for_arrays(facts)
    # What waits for the stages before it is not what takes the time.
    stages = [stage for stage in facts.stages if stage[0] != "Prefetch"]
    name, seconds = max(stages, key=lambda stage: stage[1])
    share, step = facts.profile["input"]["share"], facts.profile.step
    return Advice(
        "input wait",
        f"a step of {step * 1e3:.3g} ms waits {share:.0%} of it for its "
        f"batch; the stage {name} takes most, {seconds * 1e3:.3g} ms a batch",
        f"about {times(1 / (1 - share))} times as fast, as with a batch at "
        "hand",
        f"{name}: {_fix(facts, name)}",
        ground="estimate",
    )


def _fix(facts, name):
    """What makes a stage of the input faster."""
    stages = facts.pipeline
    if not stages:
        return _ITEMS.format(max(4, 2 * facts.data.dataset.workers))
    functions = [
        graph
        for stage, dataset in stages
        if stage == name
        for graph in private_datasets.functions(dataset)
    ]
    if any(map(python_calls, functions)):
        return _PYTHON_STAGE
    return _FIXES.get(name, _FIX)


def _wait_for_arrays(facts):
    """Keras gathers the rows of each batch, which fastkeras need not do."""
    if facts.is_fast or len(facts.data.specs) == 1:
        return None
    share, step = facts.profile["input"]["share"], facts.profile.step
    return Advice(
        "input wait",
        f"a step of {step * 1e3:.3g} ms waits {share:.0%} of it while the rows "
        "of its batch are gathered from the arrays",
        f"about {times(1 / (1 - share))} times as fast, as with a batch at "
        "hand",
        f"{facts.way_to_fast}, which keeps arrays that fit on the device",
        ground="estimate",
        settings=FAST,
    )


def shuffle_buffer(facts):
    """A shuffle that keeps many megabytes of rows at hand."""
    for (_, source), (_, dataset) in itertools.pairwise(facts.pipeline):
        rows = private_datasets.shuffle_buffer(dataset)
        if rows is None:
            continue
        there = int(source.cardinality())
        rows = rows if there < 0 else min(rows, there)
        element = next(iter(copied(source)))
        row = sum(
            math.prod(t.shape) * t.dtype.size for t in tree.flatten(element)
        )
        if rows * row >= BUFFER:
            return Advice(
                "shuffle buffer",
                f"`shuffle` keeps {rows} elements of {figures.memory(row)}, "
                f"{figures.memory(rows * row)} in all, and fills them before "
                "the first batch of an epoch",
                f"{figures.memory(rows * row)} of memory, and epochs that "
                "begin at once",
                "give `fit` the arrays themselves: it shuffles their indices"
                if facts.pipeline[0][0] == "TensorSlice"
                else "shuffle what is small, such as file names, and read, "
                "decode and batch after it",
            )
    return None


def large_arrays(facts):
    """Arrays that are copied, where a pipeline would read a part at a time."""
    size, limit = facts.data.array_bytes, LARGE
    if facts.is_fast:
        limit = MEMORY_SHARE * facts.free_memory
    if size < limit:
        return None
    return Advice(
        "large arrays",
        f"{figures.memory(size)} of arrays, of which `fit` holds a second copy"
        + (
            ": too large for a device with "
            f"{figures.memory(facts.free_memory)} free, so that each batch is "
            "gathered on the host"
            if facts.is_fast
            else ", and gathers the rows of each batch from it"
        ),
        "no second copy, and batches that are read ahead",
        "a tf.data.Dataset that reads files, such as TFRecord, with "
        "`.batch(n).prefetch(tf.data.AUTOTUNE)`",
    )


def one_step_epochs(facts):
    if len(facts.data.specs) > 1:
        return None
    evidence, gain = "", "what is done once an epoch is done k times less"
    ground = "not measured"
    if facts.profile is not None:
        beside = facts.profile["seconds"]["epoch beside its steps"]
        step = facts.profile.step
        evidence = (
            f": {beside * 1e3:.3g} ms beside a step of {step * 1e3:.3g} ms"
        )
        ratio = times(1 + beside / step)
        gain = f"up to {ratio} times as fast, for a large k"
        ground = "bound"
    data = (
        "tf.data.Dataset.from_tensors(data)"
        if facts.data.is_arrays
        else "dataset"
    )
    return Advice(
        "epochs of one step",
        "an epoch is one step, so what is done once an epoch (metrics, logs, "
        "callbacks) is done every step" + evidence,
        gain,
        f"{data}.repeat(k) and k times fewer epochs"
        + ("" if facts.is_fast else ", with steps_per_execution=k"),
        ground=ground,
    )
