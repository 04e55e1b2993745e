"""A runner: one step of a model in all its tiers, and the pilot above them."""

import time

import tensorflow as tf

from fastkeras._lib import private
from fastkeras._lib.warn import warn
from fastkeras.engine import _cache
from fastkeras.engine import _launch
from fastkeras.engine import _parity
from fastkeras.engine import _report
from fastkeras.engine import _tiers
from fastkeras.engine._launch import Rows
from fastkeras.engine._ledger import Ledger
from fastkeras.engine._pilot import Pilot


class StepFunction:
    """Runs `train_step` or `test_step` of a model.

    Called with an iterator it runs one step, as a Keras train function does;
    the loops hand it launches.

    Args:
        model: The model.
        name: String, `"train_step"` or `"test_step"`.
    """

    def __init__(self, model, name):
        self._model = model
        self._name = name
        self._strategy = model.distribute_strategy
        self._step = getattr(model, name)
        self._checked = False
        self._functions = {}
        self._pilots = {}
        self._keys = {}
        self._reset = None
        self.ledger = Ledger()
        self.eager = model.run_eagerly or tf.config.functions_run_eagerly()
        self.fixed = _tiers.fixed_step(model)

    # For Keras's own callers.

    def __call__(self, iterator):
        """Runs one step on the next batch."""
        logs = None
        for data, _ in zip(iterator, range(self._model.steps_per_execution)):
            logs = self._one(self.fixed, data)
        if logs is None:
            raise StopIteration
        return logs

    # For the loops.

    def pilot(self, feed):
        """The pilot for a kind of feed."""
        if feed.name not in self._pilots:
            tiers, reasons = _tiers.available(self._model, self._name, feed)
            pilot = Pilot(tiers, _tiers.pinned_steps(self._model))
            pilot.reasons += reasons
            self._pilots[feed.name] = pilot
        return self._pilots[feed.name]

    def next(self, feed, ahead, every_batch):
        """Tier and number of updates of the next launch."""
        pilot = self.pilot(feed)
        window = self._window
        left = None if feed.left is None else -(-feed.left // window)
        tier, updates = pilot.next(self._estimate, left, ahead)
        if every_batch and pilot.steps is None:
            updates = 1
        if tier not in self._functions and tier in _launch.LOOPS:
            tier = self._prepare(pilot, tier, feed)
        return tier, updates

    def run(self, feed, launch, tier):
        """Runs a launch; returns the logs of its last step."""
        start = time.perf_counter()
        if isinstance(launch, Rows) and tier in _launch.LOOPS:
            logs = self._loop(tier, feed, launch.start, launch.updates)
        else:
            logs = self._steps(tier, feed, launch)
        if not self._checked:
            self._checked = True
            self._check_features()
        if isinstance(launch, Rows) or tier not in _launch.LOOPS:
            self._note(feed, tier, launch.updates, time.perf_counter() - start)
        return logs

    def _note(self, feed, tier, updates, seconds):
        pilot = self.pilot(feed)
        compared = pilot.note(tier, updates, seconds)
        if len(pilot.tiers) == 1 or not self._model.perf.execution.cache:
            return
        if feed.name not in self._keys:
            # Not before the first step: it makes the variables.
            key = _cache.signature(self._model, self._name, feed)
            self._keys[feed.name] = key
            pilot.known = _cache.load(key)
        if compared:
            figures = {
                t: (s, pilot.cost.get(t, 0)) for t, s in compared.items()
            }
            _cache.save(self._keys[feed.name], figures)

    def _steps(self, tier, feed, launch):
        if tier in _launch.LOOPS:
            tier = self.fixed
        logs = None
        if isinstance(launch, Rows) and not self.eager:
            end = launch.start + launch.batches
            for k in range(launch.start, end, self._window):
                logs = self._row(tier, feed, k)
            return logs
        if isinstance(launch, Rows):
            data = feed.batches(launch, self._window)
        else:
            data = launch.data
        for one in data:
            logs = self._one(tier, one)
        return logs

    def _row(self, tier, feed, start):
        """Runs one step of a resident feed."""
        name = f"{self._name} ({tier}, resident)"
        jit = tier == "xla-step"
        if name not in self._functions:
            self._functions[name] = _launch.rows_function(
                self._step, feed.batch_size, self._window, jit
            )
        return self.ledger.call(
            name,
            self._functions[name],
            jit,
            feed.data,
            feed.order,
            tf.constant(start),
        )

    def _one(self, tier, data):
        data = _without_optionals(data)
        if self.eager:
            return _launch.one_step(self._strategy, self._step, data)
        jit = tier == "xla-step"
        if tier not in self._functions:
            several = self._strategy.num_replicas_in_sync > 1
            self._functions[tier] = _launch.step_function(
                self._strategy,
                self._step,
                jit,
                relax=not (self._model.perf.cuts and several),
            )
        name = f"{self._name} ({tier})"
        return self.ledger.call(name, self._functions[tier], jit, data)

    def _loop(self, tier, feed, start, updates):
        name = f"{self._name} ({tier})"
        return self.ledger.call(
            name,
            self._functions[tier],
            tier == "xla-loop",
            feed.data,
            feed.order,
            tf.constant(start),
            tf.constant(updates),
        )

    def _prepare(self, pilot, tier, feed):
        """Compiles a loop through a launch of no step at all."""
        self._functions[tier] = _launch.loop_function(
            self._step, feed.batch_size, self._window, tier == "xla-loop"
        )
        start = time.perf_counter()
        try:
            self._loop(tier, feed, 0, 0)
        except (tf.errors.OpError, ValueError, TypeError) as error:
            if self.fixed == "xla-step" or pilot.tier == tier:
                raise
            return self._drop(pilot, tier, f"does not compile: {_line(error)}")
        pilot.cost[tier] = time.perf_counter() - start
        known = feed.full >= self._window and self.fixed == "graph-step"
        if tier == "xla-loop" and known:
            parting = _parity.parting(
                self._model,
                lambda: self._loop(tier, feed, 0, 1),
                lambda: self._row("graph-step", feed, 0),
            )
            if parting:
                return self._drop(pilot, tier, parting)
        return tier

    def _drop(self, pilot, tier, reason):
        del self._functions[tier]
        pilot.drop(tier, reason)
        return pilot.tier

    @property
    def _window(self):
        return self._model.perf.window if self._name == "train_step" else 1

    def _estimate(self, tier):
        """Seconds that compiling a tier is thought to take.

        The time to trace the step tells both the size of its graph and the
        speed of this machine at the moment.
        """
        loops = [c for p in self._pilots.values() for c in p.cost.values()]
        traces = loops or [e.seconds for e in self.ledger.entries] or [0.5]
        factor = _tiers.XLA_FACTOR if tier.startswith("xla") else 1
        return factor * min(traces)

    def reset_metrics(self):
        """Resets the metrics in one call, once they are built."""
        model = self._model
        if self._reset is None:
            self._reset = False
            if not self.eager and private.metrics_are_plain(model):
                self._reset = _launch.quiet(model.reset_metrics)
        elif self._reset:
            return self._reset()
        return model.reset_metrics()

    # For the report.

    def tiers(self):
        """The tiers that are in use now."""
        return [p.tier for p in self._pilots.values()]

    def describe(self):
        """What ran and why, as nested plain values."""
        feeds = {}
        for feed, pilot in self._pilots.items():
            feeds[feed] = {
                "tier": pilot.tier,
                "time per step": _report.step_times(pilot),
                "compile seconds": {
                    t: round(s, 3) for t, s in pilot.cost.items()
                },
                "choices": pilot.reasons,
            }
        return {
            self._name: {
                **feeds,
                "traces": self.ledger.traces(),
                "xla compiles": self.ledger.compiles,
                "events": [str(e) for e in self.ledger.entries],
            }
        }

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


def _line(error):
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def _without_optionals(data):
    """Generators that yield None bring it as an empty optional."""
    return private.tree.map_structure(
        lambda t: None if isinstance(t, tf.experimental.Optional) else t, data
    )
