"""A runner: one step of a model in all its tiers, and the pilot above them."""

import itertools
import time

import tensorflow as tf

from fastkeras._lib import private
from fastkeras._lib import private_measure
from fastkeras._lib.warn import warn
from fastkeras.engine import _cache
from fastkeras.engine import _parity
from fastkeras.engine import _tiers
from fastkeras.engine._build import build
from fastkeras.engine._calls import Calls
from fastkeras.engine._calls import loop_key
from fastkeras.engine._launch import LOOPS
from fastkeras.engine._launch import Rows
from fastkeras.engine._pilot import Call
from fastkeras.engine._pilot import Pilot
from fastkeras.engine._refusals import REFUSALS
from fastkeras.engine._refusals import why
from fastkeras.engine._resident import Resident


class StepFunction:
    """Runs `train_step` or `test_step` of a model.

    Called with an iterator it runs one step, as a Keras train function does;
    the loops hand it launches.

    Args:
        model: The model.
        name: String, `"train_step"` or `"test_step"`.

    Attributes:
        pilots: Dict of the name of a feed to its `Pilot`.
        ledger: `Ledger` of what was traced and compiled.
        eager: Bool, whether steps run without being compiled.
        fixed: String, the tier that runs what no loop can.
    """

    def __init__(self, model, name):
        self._model = model
        self._name = name
        self._built = False
        self._checked = False
        self._keys = {}
        self._profiled = False
        self.pilots = {}
        self.eager = model.run_eagerly or tf.config.functions_run_eagerly()
        self.fixed = _tiers.fixed_step(model)
        self._calls = Calls(model, name, self.eager)
        self.reset = self._calls.reset
        self.ledger = self._calls.ledger

    # For Keras's own callers.

    def __call__(self, iterator):
        """Runs one step on the next batch."""
        logs = None
        # In this order: a batch beyond the last step stays in the iterator.
        for _, data in zip(range(self._model.steps_per_execution), iterator):
            self._build(data)
            logs = self._calls.batch(self.fixed, data)
        if logs is None:
            raise StopIteration
        return logs

    def _build(self, data):
        """Makes variables before the first batch, as Keras under a strategy."""
        if not self._built and not private.has_strategy(self._model):
            spec = private.tree.map_structure(_spec, data)
            build(self._model, spec)
        self._built = True

    # For the loops.

    def pilot(self, feed):
        """The pilot for a kind of feed."""
        if feed.name not in self.pilots:
            tiers, reasons = _tiers.available(self._model, self._name, feed)
            pilot = Pilot(
                tiers,
                _tiers.pinned_steps(self._model),
                self._model.perf.execution.warmup_launches,
                self._calls.window,
            )
            pilot.reasons += reasons
            self.pilots[feed.name] = pilot
        return self.pilots[feed.name]

    def next(self, feed, ahead, every_batch):
        """Tier and number of updates of the next launch."""
        pilot = self.pilot(feed)
        window = self._calls.window
        left = None if feed.left is None else -(-feed.left // window)
        tier, updates = pilot.next(self._estimate, left, ahead)
        if every_batch and pilot.steps is None:
            updates = 1
        if tier in LOOPS and isinstance(feed, Resident):
            tier = self._prepare_loop(pilot, tier, feed)
        return tier, updates

    def run(self, feed, launch, tier):
        """Runs a launch; returns the logs of its last step."""
        start, known = time.perf_counter(), len(self.ledger.entries)
        if tier in LOOPS and isinstance(launch, Rows):
            logs = self._loops(tier, feed, launch)
        elif tier in LOOPS and launch.asked:
            tier, logs = self._pulls(tier, feed, launch)
        else:
            ran = self.fixed if tier in LOOPS else tier
            logs = self._steps(ran, feed, launch)
            # A short batch in a loop's place says nothing of the loop.
            tier = None if tier in LOOPS else tier
        if not self._checked:
            self._checked = True
            self._check_features()
        if tier is not None:
            seconds = time.perf_counter() - start
            traced = len(self.ledger.entries) > known
            compared = self.pilot(feed).note(
                tier, launch.updates, seconds, traced
            )
            self._keep(feed, compared)
        return logs

    def _keep(self, feed, compared):
        """Keeps what a comparison measured for the next process."""
        pilot = self.pilot(feed)
        self._profiled |= private_measure.is_profiled()
        if len(pilot.tiers) == 1 or not self._model.perf.execution.cache:
            return
        if feed.name not in self._keys:
            # Not before the first step: it makes the variables.
            key = _cache.signature(self._model, self._name, feed)
            self._keys[feed.name] = key
            pilot.known = _cache.load(key)
        if compared and not self._profiled:
            figures = {
                t: (s, pilot.cost.get(t, 0)) for t, s in compared.items()
            }
            _cache.save(self._keys[feed.name], figures)
        # What a profiler slows down is compared, but tells later runs nothing.
        self._profiled &= not compared

    def _steps(self, tier, feed, launch):
        """Runs a launch step by step."""
        logs, window = None, self._calls.window
        if isinstance(launch, Rows) and not self._calls.takes_batches:
            end = launch.start + launch.batches
            for k in range(launch.start, end, window):
                logs = self._calls.row(tier, feed, k, self.reset.take())
            return logs
        self.reset.if_due()
        if isinstance(launch, Rows):
            data = feed.batches(launch, window)
        else:
            data = launch.data
        for one in data:
            logs = self._calls.batch(tier, one)
        return logs

    def _pulls(self, tier, feed, launch):
        """Runs a launch in a loop that pulls its batches.

        Returns:
            Tuple of the tier it ran in and the logs; no tier if it was the
            launch that compiled the loop.
        """
        data = iter(launch.data)
        first = next(data)
        compiled = self._calls.has(loop_key(tier, feed))
        if not compiled and not self._prepare_pulls(tier, feed, first):
            logs = self._calls.batch(self.fixed, first)
            for one in data:
                logs = self._calls.batch(self.fixed, one)
            return None, logs
        done, call = 0, Call(self.pilot(feed).median(tier))
        for first in itertools.chain([first], data):
            count = min(call.steps, launch.asked - done)
            with call.of(count):
                ran, logs = self._pull(tier, feed, first, count)
            done += ran
            launch.batches = launch.updates = done
        return (tier if compiled else None), logs

    def _pull(self, tier, feed, first, count):
        """Runs a loop that pulls all batches but the first."""
        try:
            done, logs = self._calls.pulls(tier, feed, first, count)
        except tf.errors.OpError as error:
            raise feed.cause(error) from None
        feed.pulled(done - 1)
        return done, logs

    def _loops(self, tier, feed, launch):
        """Runs a launch in a loop over resident rows."""
        window, call = self._calls.window, Call(self.pilot(feed).median(tier))
        start, left = launch.start, launch.updates
        while left:
            count = min(call.steps, left)
            with call.of(count):
                logs = self._calls.loop(
                    tier, feed, start, count, self.reset.take()
                )
            start += count * window
            left -= count
        return logs

    def _prepare_loop(self, pilot, tier, feed):
        """Compiles a loop through a launch of no step at all."""
        if self._calls.has(loop_key(tier, feed)):
            return tier
        start = time.perf_counter()
        try:
            trial = self.fixed != "xla-step"
            self._calls.loop(tier, feed, 0, 0, trial=trial)
        except REFUSALS as error:
            if self.fixed == "xla-step" or pilot.tiers == [tier]:
                raise
            self._drop(
                feed, tier, f"does not compile: {why(error, self._model)}"
            )
            return pilot.tier
        pilot.cost[tier] = time.perf_counter() - start
        parting = None
        if feed.full >= self._calls.window:
            parting = self._parting(
                tier,
                lambda: self._calls.loop(tier, feed, 0, 1),
                lambda: self._calls.row("graph-step", feed, 0),
            )
        if parting:
            self._drop(feed, tier, parting)
        return pilot.tier if parting else tier

    def _prepare_pulls(self, tier, feed, first):
        """Compiles a loop over a stream; returns whether it is of use."""
        start = time.perf_counter()
        try:
            self._calls.trace_pulls(tier, feed)
            parting = self._parting(
                tier,
                lambda: self._calls.pulls(tier, feed, first, 1),
                lambda: self._calls.batch("graph-step", first),
            )
        except REFUSALS as error:
            if self.fixed == "xla-step":
                raise
            parting = f"does not compile: {why(error, self._model)}"
        self.pilot(feed).cost[tier] = time.perf_counter() - start
        if parting:
            self._drop(feed, tier, parting)
        return not parting

    def _parting(self, tier, one, reference):
        """How XLA's numbers part from the graph's, or None."""
        if tier != "xla-loop" or self.fixed != "graph-step":
            return None
        return _parity.parting(self._model, one, reference)

    def _drop(self, feed, tier, reason):
        self._calls.forget(loop_key(tier, feed))
        self.pilot(feed).drop(tier, reason)

    def _estimate(self, tier):
        loops = [c for p in self.pilots.values() for c in p.cost.values()]
        traces = [e.seconds for e in self.ledger.entries]
        return _tiers.estimate(tier, loops or traces)

    def reset_metrics(self, feed, seen):
        """Resets the metrics, or has the next launch do it: a call less.

        Args:
            feed: The feed.
            seen: Bool, whether something may look at them before the launch.
        """
        resident = isinstance(feed, Resident) and not self._calls.takes_batches
        self.reset.begin(waits=resident and not seen)

    def _check_features(self):
        model = self._model
        features = list(model.perf.features)
        if self._name == "train_step" and features and not model._step.ran:
            warn(
                f"{features} of `perf` are not in effect: "
                f"{type(model).__name__}.train_step does not call "
                "FastModel's. Call `super().train_step(data)`, or override "
                "`compute_loss` or `compute_metrics` instead."
            )


def _spec(value):
    return None if value is None else tf.type_spec_from_value(value)
