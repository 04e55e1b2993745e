"""Times beside those of a profile: a larger batch, a stage of a pipeline."""

import statistics

import tensorflow as tf

from fastkeras import measure
from fastkeras._lib.private import tree
from fastkeras.advise._graph import eager_step
from fastkeras.advise._graph import step_function

#: Batches of a PyDataset that are timed.
_ITEMS = 5
# Turns in which calls and loops are timed.
_CALLS = 5
# Seconds after which turns end, if there were so many.
_SECONDS, _TURNS = 5.0, 3


def growth(step, batch, steps, clock):
    """How many times as long a step on twice the rows takes.

    Args:
        step: `tf.function` of a step of a model, whose state is changed; it
            is traced for twice the rows.
        batch: Structure of tensors.
        steps: Integer, steps of each, in turns.
        clock: `Clock`.

    Returns:
        `Summary` of the ratio.
    """
    twice = tree.map_structure(
        lambda t: None if t is None else tf.concat([t, t], 0), batch
    )
    return _in_turns([(step, twice), (step, batch)], steps, clock)


def without_xla(model, step, batch, steps, clock):
    """How many times as long a step takes without XLA as with it.

    Args:
        model: A built, compiled model, whose state is changed.
        step: `tf.function` of a step of it, without XLA.
        batch: Structure of tensors.
        steps: Integer, steps of each, in turns.
        clock: `Clock`.

    Returns:
        `Summary` of the ratio.
    """
    # Traced anew: loops are traced in another way for XLA.
    compiled = step_function(model, True)
    return _in_turns([(step, batch), (compiled, batch)], steps, clock)


def in_graph(model, step, batch, steps, clock):
    """How many times as long a step takes run eagerly as in a graph.

    See `without_xla`.
    """
    return _in_turns([(eager_step(model), batch), (step, batch)], steps, clock)


def in_loop(step, batch, steps, clock):
    """Seconds of a step called from Python, and of one in a graph's loop.

    Args:
        step: `tf.function` of a step of a model, whose state is changed.
        batch: Structure of tensors.
        steps: Integer, steps of a call.
        clock: `Clock`.

    Returns:
        Tuple of the `Summary` of each, measured in turns.
    """
    traced = step.get_concrete_function(batch)

    def body(k):
        traced(batch)
        return k + 1

    run = tf.function(
        lambda: tf.while_loop(lambda k: k < steps, body, [0]), autograph=False
    )

    def alone():
        for _ in range(steps):
            logs = step(batch)
        _wait_for(logs)

    ways, found = (alone, lambda: run()[0].numpy()), ([], [])
    for turn in range(_CALLS + 1):
        for way, times in zip(ways, found, strict=True):
            with clock.stopwatch() as watch:
                way()
            # The first of each is made ready to run.
            if turn:
                times.append(watch.seconds / steps)
    return tuple(map(measure.summarize, found))


def _in_turns(ways, steps, clock):
    """`Summary` of the ratio of the seconds of two steps."""
    found = [], []
    for turn in range(steps + 1):
        for (step, batch), times in zip(ways, found, strict=True):
            with clock.stopwatch() as watch:
                _wait_for(step(batch))
            # The first of each is traced.
            if turn:
                times.append(watch.seconds)
        if turn >= _TURNS and sum(map(sum, found)) > _SECONDS:
            break
    return measure.ratio(*found)


def stage_seconds(stages, rows, clock):
    """What each stage of a pipeline adds to the seconds of a batch.

    Args:
        stages: Pairs of name and dataset, from the source on.
        rows: Integer, rows of a batch.
        clock: `Clock`.

    Returns:
        List of pairs of name and seconds.
    """
    batching = [k for k, (name, _) in enumerate(stages) if "Batch" in name]
    first = batching[0] if batching else 0
    found = []
    before = _pull(tf.data.Dataset.range(1), rows if first else 1, clock)
    for k, (name, dataset) in enumerate(stages):
        total = _pull(dataset, 1 if k >= first else rows, clock)
        found.append((name, max(0.0, total - before)))
        before = total
    return found


def of_items(dataset, clock):
    """Median seconds to get a batch of a `keras.utils.PyDataset`."""
    found = []
    for k in range(min(_ITEMS, dataset.num_batches or _ITEMS)):
        with clock.stopwatch() as watch:
            dataset[k]
        found.append(watch.seconds)
    return statistics.median(found)


def _pull(dataset, count, clock):
    """Median seconds to pull so many elements, after the first."""
    # In the pipeline: a call from Python takes longer than many an element.
    last = dataset.repeat().enumerate().filter(lambda k, _: k % count == 0)
    iterator, found = iter(last), []
    next(iterator)
    for _ in range(4):
        with clock.stopwatch() as watch:
            next(iterator)
        found.append(watch.seconds)
    return statistics.median(found[1:])


def _wait_for(logs):
    for value in tree.flatten(logs):
        if tf.is_tensor(value):
            value.numpy()
