"""Times beside those of a profile: a larger batch, a stage of a pipeline."""

import statistics

import tensorflow as tf

from fastkeras import measure
from fastkeras._lib.private import tree
from fastkeras.advise._graph import step_function


def growth(model, batch, steps, clock):
    """How many times as long a step on twice the rows takes.

    Args:
        model: A built, compiled model, whose state is changed.
        batch: Structure of tensors.
        steps: Integer, steps of each, in turns.
        clock: `Clock`.

    Returns:
        `Summary` of the ratio.
    """
    twice = tree.map_structure(
        lambda t: None if t is None else tf.concat([t, t], 0), batch
    )
    step = step_function(model, model.jit_compile or None)
    found = [], []
    for turn in range(steps + 1):
        for each, times in zip((twice, batch), found, strict=True):
            with clock.stopwatch() as watch:
                _wait_for(step(each))
            # The first of each is traced.
            if turn:
                times.append(watch.seconds)
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
    found, before = [], 0.0
    for k, (name, dataset) in enumerate(stages):
        total = _pull(dataset, 1 if k >= first else rows, clock)
        found.append((name, total - before))
        before = total
    return found


def _pull(dataset, count, clock):
    """Median seconds to pull so many elements, after the first."""
    iterator, found = iter(dataset.repeat()), []
    for _ in range(4):
        with clock.stopwatch() as watch:
            for _ in range(count):
                next(iterator)
        found.append(watch.seconds)
    return statistics.median(found[1:])


def _wait_for(logs):
    for value in tree.flatten(logs):
        if tf.is_tensor(value):
            value.numpy()
