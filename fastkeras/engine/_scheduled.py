"""Asynchronous steps: each is handed to a worker, which updates by itself.

Under a `ParameterServerStrategy` the weights are on parameter servers. A
worker reads them, computes the gradient of its batch, and applies it, while
the others do the same: a gradient may be of weights that every other worker
has updated once or more since (its staleness), and two updates of one weight
may mix. It trains as one device does where such updates commute well enough,
not to the same numbers.

A launch hands out so many steps and waits for them all: between launches, when
callbacks run, nothing changes. A call whose worker is lost is run again on
another; what it had applied by then stays applied.
"""

import functools

from fastkeras._lib import checks
from fastkeras._lib import private_marks
from fastkeras._lib import replicas
from fastkeras._lib.private import tree
from fastkeras._lib.warn import warn
from fastkeras.engine import _counts
from fastkeras.engine import _launch
from fastkeras.engine._calls import Calls
from fastkeras.engine._feeds import ordered_feed
from fastkeras.engine._function import StepFunction
from fastkeras.engine._launch import Batches
from fastkeras.engine._loop import callback_list
from fastkeras.engine._per_worker import PerWorker
from fastkeras.engine._per_worker import pulled
from fastkeras.engine._workers import Scheduled
from fastkeras.engine._workers import Workers

#: The steps of a launch, for each worker, so that few wait at its end.
PER_WORKER = 8


class ScheduledCalls(Calls):
    """Runs each step on a worker; a call returns before it has run."""

    #: What a step has changed can't be put back while others run.
    shrinks = False

    def __init__(self, model, name, workers):
        super().__init__(model, name, eager=False)
        self._workers = workers
        trains = name == "train_step"
        self._apart = functools.partial(_counts.apart, model, trains)

    def _step_function(self, jit):
        del jit

        def call(data):
            data = pulled(data)
            with self._apart() as counted:
                logs = self._strategy.run(self._step, args=(data,))
                return logs, counted()

        function = _launch.quiet(call, reduce_retracing=True)
        return Scheduled(self._workers, function)


class ScheduledFunction(StepFunction):
    """A `StepFunction` whose steps run on the workers."""

    def __init__(self, model, name):
        super().__init__(model, name)
        self._workers = Workers(replicas.strategy_of(model))
        self._calls = ScheduledCalls(model, name, self._workers)
        self.ledger = self._calls.ledger

    def __call__(self, iterator):
        """Runs one step on the next batch."""
        launch = Batches(0, ())
        launch.data = [next(iterator)]
        return self._steps(self.fixed, None, launch)

    def pilot(self, feed):
        """The pilot for a kind of feed; it says what the workers do."""
        new = feed.name not in self.pilots
        pilot = super().pilot(feed)
        if new:
            others = self._workers.count - 1
            pilot.reasons.append(
                f"asynchronous: {others + 1} workers, one update in each call "
                "that is handed out; while a gradient is computed, each of "
                f"the other {others} may update the weights"
            )
        return pilot

    def next(self, feed, ahead, every_batch):
        """Tier and number of updates of the next launch."""
        tier, updates = super().next(feed, ahead, every_batch)
        if every_batch and not self._model.stop_training:
            warn(
                "A callback acts on each batch (`on_train_batch_*`), so that "
                "one worker trains at a time and the others wait. Act on "
                "epochs, or leave it out.",
                told=self._model._step.told,
            )
        elif self.pilot(feed).steps is None:
            updates = max(updates, PER_WORKER * self._workers.count)
        if feed.left is not None:
            updates = min(updates, -(-feed.left // self._calls.window))
        return tier, max(1, updates)

    def _steps(self, tier, feed, launch):
        """Hands a launch out and waits for it."""
        calls = []
        try:
            for data in launch.data:
                calls.append(self._calls.batch(tier, data))
        finally:
            self._workers.wait()
        results = [call.fetch() for call in calls]
        _counts.collect(self._model, [counted for _, counted in results])
        return self._logs(results[-1][0])

    def _logs(self, last):
        """The logs of the last step; what is counted is of all."""
        model = self._model
        fresh = dict(model.get_metrics_result())
        for state in model._step.states:
            fresh.update(state.logs())
        return {name: fresh.get(name, value) for name, value in last.items()}


def predict(model, x, batch_size, verbose, steps, callbacks):
    """Predicts on the workers; the arguments are those of `predict`."""
    feed = ordered_feed(model, (x,), batch_size, steps)
    if isinstance(feed, PerWorker):
        raise ValueError(
            checks.message(
                "`predict` needs data in an order",
                "a function of datasets that each worker calls",
                "Give arrays or a dataset.",
            )
        )
    callbacks = callback_list(model, callbacks, verbose, 1, feed)
    model.stop_predicting = False
    callbacks.on_predict_begin()
    feed.begin()
    try:
        parts = _predict_batches(model, feed, callbacks)
    finally:
        feed.end()
    callbacks.on_predict_end()
    return tree.map_structure(lambda *p: private_marks.concat(p), *parts)


def _predict_batches(model, feed, callbacks):
    """The predictions of each batch, in order."""
    workers = Workers(replicas.strategy_of(model))
    if model.predict_function is None:
        run, step = model.distribute_strategy.run, model.predict_step
        model.predict_function = Scheduled(
            workers, _launch.quiet(lambda data: run(step, args=(data,)))
        )
    parts = []
    while not model.stop_predicting:
        launch = feed.take(PER_WORKER * workers.count, 1, True)
        if launch is None:
            break
        callbacks.on_predict_batch_begin(len(parts))
        calls = [model.predict_function(batch) for batch in launch.data]
        workers.wait()
        parts += [call.get() for call in calls]
        callbacks.on_predict_batch_end(len(parts) - 1, {"outputs": parts[-1]})
    return parts
