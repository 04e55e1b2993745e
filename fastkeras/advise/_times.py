"""Times beside those of a profile: a larger batch, a stage of a pipeline."""

import itertools
import statistics

import tensorflow as tf

from fastkeras import measure
from fastkeras._lib.private import tree
from fastkeras.advise._graph import eager_step
from fastkeras.advise._graph import step_function

#: Batches of a PyDataset that are timed.
_ITEMS = 5
# Turns in which each stage of a pipeline is timed, and batches of each.
_PULLS, _AT_ONCE = 3, 2
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

    # One function for both: to make a large graph ready takes seconds.
    run = tf.function(
        lambda count: tf.while_loop(lambda k: k < count, body, [0]),
        autograph=False,
    )
    one, all_of_them = tf.constant(1), tf.constant(steps)

    def alone():
        for _ in range(steps):
            found = run(one)
        found[0].numpy()

    def looped():
        run(all_of_them)[0].numpy()

    ways, found = (alone, looped), ([], [])
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
    pulls = [(tf.data.Dataset.range(1), rows if first else 1)]
    pulls += [
        (dataset, 1 if k >= first else rows)
        for k, (_, dataset) in enumerate(stages)
    ]
    # Turn by turn, and the least: what disturbs a turn is none of a stage.
    turns = [[_pull(*each, clock) for each in pulls] for _ in range(_PULLS)]
    totals = [min(times) for times in zip(*turns, strict=True)]
    return [
        (name, max(0.0, total - before))
        for (name, _), (before, total) in zip(
            stages, itertools.pairwise(totals), strict=True
        )
    ]


def of_layers(layers, rows, clock):
    """Seconds of each layer of a functional model on a batch, in training.

    Args:
        layers: Layers, whose random states are changed.
        rows: Integer, rows of a batch.
        clock: `Clock`.

    Returns:
        Dict of name to seconds of those whose input has a known shape.
    """
    found = {}
    for layer in layers:
        _, *sizes = getattr(
            getattr(layer, "input", None), "shape", (None, None)
        )
        if None not in sizes:
            batch = tf.random.uniform((rows, *sizes))
            found[layer.name] = _of_layer(layer, batch, clock)
    return found


def _of_layer(layer, batch, clock):
    call, found = tf.function(lambda: layer(batch, training=True)), []
    call()
    for _ in range(_CALLS):
        with clock.stopwatch() as watch:
            _wait_for(call())
        found.append(watch.seconds)
    return statistics.median(found)


def of_items(dataset, clock):
    """Median seconds to get a batch of a `keras.utils.PyDataset`."""
    found = []
    for k in range(min(_ITEMS, dataset.num_batches or _ITEMS)):
        with clock.stopwatch() as watch:
            dataset[k]
        found.append(watch.seconds)
    return statistics.median(found)


def _pull(dataset, count, clock):
    """Seconds to pull so many elements, after the first."""
    # In the pipeline: a call from Python takes longer than many an element.
    last = dataset.repeat().enumerate().filter(lambda k, _: k % count == 0)
    options = tf.data.Options()
    # Else a thread goes on between the pulls.
    options.experimental_optimization.inject_prefetch = False
    iterator = iter(last.with_options(options))
    next(iterator)
    with clock.stopwatch() as watch:
        # At once, so that none is made ready in a time that does not count.
        for _ in range(_AT_ONCE):
            next(iterator)
    return watch.seconds / _AT_ONCE


def _wait_for(logs):
    for value in tree.flatten(logs):
        if tf.is_tensor(value):
            value.numpy()
