"""What more replicas give: step time, all-reduce, efficiency, measured."""

import os

import tensorflow as tf

from fastkeras import measure
from fastkeras._lib import checks
from fastkeras._lib import private
from fastkeras._lib import replicas
from fastkeras.engine._launch import step_function
from fastkeras.model import FastModel
from fastkeras.perf import _sums
from fastkeras.perf._parts import Window

#: Turns before any is timed: the first is traced.
_WARM_UP = 2
#: The share of the all-reduce from which on it is worth a word.
_LARGE_SHARE = 0.25


def scaling(make, data, strategy, batch_size=32, steps=20, clock=None):
    """Measures what a strategy gives over one of its devices.

    The same step is timed in turns on one device, and on all replicas with as
    many rows each (weak scaling), without the input; then a call that sums
    its gradients over the replicas, less one that does not. Of several
    workers all call it, and each reports the times that it saw. All runs step
    by step in the graph; one device may be faster still by loops and XLA,
    which several replicas can't use.

    Args:
        make: Function without arguments that makes and compiles a
            `FastModel`. It is called outside and inside the scope; the models
            are thrown away.
        data: Array x, or tuple `(x, y)` or `(x, y, sample_weight)`; of too
            few rows the first come again.
        strategy: `tf.distribute.Strategy`.
        batch_size: Integer >= 1, rows of a replica. Defaults to `32`.
        steps: Integer >= 1, updates of each that are timed. Defaults to `20`.
        clock: `fastkeras.measure.Clock`. Defaults to `None`: the real one.

    Returns:
        A `fastkeras.measure.Receipt`; print it, or take `to_dict()`. Times
        are medians with their spread; `"share of the all-reduce"` is of a
        step, `"efficiency"` the time of one device over that of the replicas,
        `"throughput"` how many times the rows a second of one device,
        `"advice"` what to change.

    Raises:
        TypeError: If `make` does not return a compiled FastModel, or a number
            is not an integer.
        ValueError: If a number is < 1.

    Example:

    >>> import keras, numpy as np
    >>> def make():
    ...     model = FastModel.from_keras(keras.Sequential([
    ...         keras.Input((4,)), keras.layers.Dense(1)]))
    ...     model.compile("sgd", "mse")
    ...     return model
    >>> strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    >>> report = scaling(make, (np.ones((8, 4)), np.ones(8)), strategy, steps=2)
    >>> report["replicas"], report["share of the all-reduce"]
    (1, 0.0)
    """
    checks.positive_int(batch_size, "batch_size", "Leave it out for 32.")
    checks.positive_int(steps, "steps", "Leave it out for 20.")
    clock = clock or measure.Clock()
    first = tf.DeviceSpec.from_string(strategy.extended.worker_devices[0])
    device = f"{first.device_type}:{first.device_index}"
    alone = _Timed(make, data, tf.distribute.OneDeviceStrategy(device), clock)
    several = _Timed(make, data, strategy, clock)
    alone.prepare(batch_size)
    several.prepare(batch_size)
    for turn in range(_WARM_UP + steps):
        if turn == _WARM_UP:
            alone.clear()
            several.clear()
        alone.turn()
        several.turn()
    return measure.Receipt(_report(strategy, batch_size, alone, several))


class _Timed:
    """A model, and the times of its step and of the all-reduce in it.

    Args:
        make: Function that makes and compiles a model.
        data: Structure of arrays.
        strategy: `tf.distribute.Strategy`.
        clock: `Clock`.
    """

    def __init__(self, make, data, strategy, clock):
        self._strategy = strategy
        self._clock = clock
        self._data = data
        with strategy.scope():
            self.model = make()
        if not isinstance(self.model, FastModel) or not self.model.compiled:
            raise TypeError(
                checks.message(
                    "`make` must return a compiled FastModel",
                    type(self.model).__name__,
                    "Use `FastModel.from_keras(model)`, and compile it.",
                )
            )
        self.clear()

    def clear(self):
        """Forgets the times so far."""
        self.steps, self.exchanges = [], []

    def prepare(self, rows):
        """Makes the batch, the variables and the functions that are timed.

        Args:
            rows: Integer, of one replica.
        """
        model, strategy = self.model, self._strategy
        window = model.perf.window
        dataset = tf.data.Dataset.from_tensor_slices(self._data).repeat()
        dataset = dataset.batch(
            rows * strategy.num_replicas_in_sync, drop_remainder=True
        ).take(window)
        with strategy.scope():
            private.symbolic_build(model, dataset.element_spec)
        batches = tuple(replicas.distribute(strategy, dataset))
        self._batch = Window(batches) if window > 1 else batches[0]
        self._step = step_function(strategy, model.train_step, False)
        self._sums = tf.function(
            lambda data: strategy.run(self._add_up, args=(data,)),
            autograph=False,
        )(self._batch)
        self._summed, self._apart = (
            tf.function(
                lambda sums, reduce=reduce: strategy.run(
                    lambda s: _pieces(reduce(_placed(s))), args=(sums,)
                ),
                autograph=False,
            )
            for reduce in (_sums.over_replicas, lambda sums: sums)
        )

    def _add_up(self, data):
        step = self.model._step
        return step.add_up(self.model, step.parts(data)).sums

    def turn(self):
        """Times one update, and one all-reduce."""
        self.steps.append(self._seconds(self._step, self._batch))
        if self._strategy.num_replicas_in_sync > 1:
            self.exchanges.append(
                self._seconds(self._summed, self._sums)
                - self._seconds(self._apart, self._sums)
            )

    def _seconds(self, function, given):
        with self._clock.stopwatch() as watch:
            for value in private.tree.flatten(function(given)):
                for local in self._strategy.experimental_local_results(value):
                    local.numpy()
        return watch.seconds


def _placed(sums):
    """The sums on the device of the replica: arguments have none."""
    return tf.nest.map_structure(
        lambda t: None if t is None else tf.identity(t), sums
    )


def _pieces(sums):
    """A number of each sum: it is there once the whole is."""
    leaves = tf.nest.flatten(sums, expand_composites=True)
    return [tf.reshape(t, [-1])[:1] for t in leaves if t is not None]


def _report(strategy, rows, alone, several):
    count = strategy.num_replicas_in_sync
    efficiency = measure.ratio(alone.steps, several.steps).median
    exchange, share = "none: one replica", 0.0
    if several.exchanges:
        exchange = str(measure.summarize(several.exchanges))
        ratio = measure.ratio(several.exchanges, several.steps)
        # What lies below the noise of the clock may come out as negative.
        share = max(0.0, ratio.median)
    return {
        "strategy": replicas.described(strategy),
        "replicas": count,
        "rows": {
            "per replica": rows,
            "of an update": rows * count * several.model.perf.window,
        },
        "step on one device": str(measure.summarize(alone.steps)),
        "step on each replica": str(measure.summarize(several.steps)),
        "all-reduce": exchange,
        "share of the all-reduce": round(share, 3),
        "efficiency": round(efficiency, 3),
        "throughput": round(count * efficiency, 3),
        "advice": advice(strategy, rows, efficiency, share),
    }


def advice(strategy, rows, efficiency, share):
    """What the figures say, as a list of strings."""
    count = strategy.num_replicas_in_sync
    shared = count > 1 and "CPU" in strategy.extended.worker_devices[0]
    large = share >= _LARGE_SHARE
    found = []
    # Where the replicas share cores it may not be the exchange that costs.
    if count > 1 and count * efficiency <= 1 and (large or not shared):
        found.append(
            f"the model is too small for {count} replicas of {rows} rows: "
            f"{count * efficiency:.2f} times the rows a second of one device. "
            "Train on one device, or give each replica more rows."
        )
    if large:
        found.append(
            f"the all-reduce takes {share:.0%} of a step: perf.Accumulate(K) "
            "does it once for K batches, and more rows per replica make it "
            "less of a step (both change the mathematics)."
        )
    if shared:
        found.append(
            "the replicas are CPU devices: those of one machine share its "
            f"{os.cpu_count()} cores, so the figures say what the strategy "
            "costs, not what separate devices would give."
        )
    return found
