"""The few times that advice needs: a step, its device part, its input."""

import dataclasses
import statistics

import tensorflow as tf

from fastkeras import measure
from fastkeras._lib.private import tree
from fastkeras.advise._graph import step_function

#: Turns of single steps and of steps in a loop.
_TURNS = 3


@dataclasses.dataclass(frozen=True)
class Times:
    """Seconds of one training step.

    Attributes:
        step: `Summary`, called from Python on one batch that stands still.
        device: Float, the same in a loop in the graph: no Python in between.
        wait: Float, what it waits for the next batch.

    Example:

    >>> from fastkeras.measure import Summary
    >>> Times(Summary(0.004, 0.004, 0.004, 9), device=0.001, wait=0.0).dispatch
    0.75
    """

    step: measure.Summary
    device: float
    wait: float

    @property
    def dispatch(self):
        """Share of a step that is Python and dispatch."""
        return max(0.0, 1 - self.device / self.step.median)

    @property
    def input(self):
        """Share of the time with its input that is waiting."""
        return self.wait / (self.wait + self.step.median)


def measure_times(model, data, steps, clock):
    """Measures `Times`, in turns and after warm-up.

    Args:
        model: A built, compiled model, whose state is changed.
        data: `Data`.
        steps: Integer, steps a turn.
        clock: `Clock`.
    """
    one = step_function(model, model.jit_compile or None)
    many = tf.function(
        lambda batch, count: _loop(one, batch, count), autograph=False
    )
    batch, count = data.batch, tf.constant(steps)
    _wait_for(one(batch))
    many(batch, tf.constant(1))
    singles, loops = [], []
    for _ in range(_TURNS):
        for _ in range(steps):
            with clock.stopwatch() as watch:
                _wait_for(one(batch))
            singles.append(watch.seconds)
        with clock.stopwatch() as watch:
            many(batch, count).numpy()
        loops.append(watch.seconds / steps)
    wait = 0.0 if data.is_arrays else _input_wait(one, data, steps, clock)
    return Times(measure.summarize(singles), statistics.median(loops), wait)


def seconds_of_rows(model, batch, times, steps, clock):
    """Median seconds of a step on a batch repeated so many times."""
    larger = tree.map_structure(
        lambda t: None if t is None else tf.concat([t] * times, 0), batch
    )
    one = step_function(model, model.jit_compile or None)
    _wait_for(one(larger))
    found = []
    for _ in range(steps):
        with clock.stopwatch() as watch:
            _wait_for(one(larger))
        found.append(watch.seconds)
    return statistics.median(found)


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


def _input_wait(one, data, steps, clock):
    """Median seconds that a step waits for its batch, after the first two."""
    found, batch = [], data.batch
    iterator = iter(data)
    for _ in range(steps):
        with clock.stopwatch() as watch:
            pulled = next(iterator, None)
        if pulled is None:
            break
        found.append(watch.seconds)
        # On a batch that stands still: another shape would be a new trace.
        _wait_for(one(batch))
    return statistics.median(found[2:] or found)


def _loop(one, batch, count):
    def body(k):
        one(batch)
        return k + 1

    return tf.while_loop(lambda k: k < count, body, [0])[0]


def _wait_for(logs):
    for value in tree.flatten(logs):
        if tf.is_tensor(value):
            value.numpy()
