"""One update, from data to logs, with every hook of every feature in place.

`FastModel.train_step` reads: parts, add up, reduce, apply, logs. Each of
these is a method here. With a plan of no features and one part, the same
operations run as in Keras's own step.
"""

import contextlib
from typing import NamedTuple

import tensorflow as tf

from fastkeras._lib import private
from fastkeras._lib.warn import warn
from fastkeras.perf import _apply
from fastkeras.perf import _gradients
from fastkeras.perf import _part
from fastkeras.perf import _parts
from fastkeras.perf import _sums


class Update(NamedTuple):
    """What the optimizer is given.

    Attributes:
        gradients: List of gradients, one per variable.
        ok: Scalar bool, or None where nothing guards the update.
        logs: Dict of scalars.
    """

    gradients: list
    ok: object
    logs: dict


class Step:
    """The update of one compiled model.

    Args:
        plan: `Plan`, whose features say what the update does.
        model: The model; it is read here and handed to each method, never
            kept.
        states: The features' states of an earlier step of the same plan, to
            go on from. Defaults to `None`: new ones.
    """

    def __init__(self, plan, model, states=None):
        self.plan = plan
        self.ran = False
        self.told = set()
        self._chosen = None
        self._trainable = None
        self.states = states
        if states is None:
            with model.distribute_strategy.scope():
                self.states = [f.new_state() for f in plan.features]
        self.pairs = list(zip(plan.features, self.states, strict=True))
        if self.is_ready(model) and not plan.is_keras:
            self.variables(model)

    @staticmethod
    def is_ready(model):
        """Whether all variables are there.

        `model.built` alone does not say so: after `model.build(shape)` a
        subclass without a `build` of its own counts as built, its layers do
        not.
        """
        return all(layer.built for layer in private.flat_layers(model))

    def variables(self, model):
        """The variables that are trained: taken down once per `compile`."""
        if self.plan.is_keras:
            return list(model.trainable_variables)
        if self._chosen is None:
            self._trainable = list(model.trainable_variables)
            chosen = self._trainable
            for feature in self.plan.features:
                chosen = feature.watch(model, chosen)
            self._chosen = chosen
        return self._chosen

    def trainable(self, model):
        """The variables that were trainable at `compile`, trained or not."""
        self.variables(model)
        return self._trainable

    def changed_layers(self, model):
        """Names of the layers whose `trainable` changed since `compile`."""
        if self._trainable is None:
            return []
        then = {id(v) for v in self._trainable}
        now = {id(v) for v in model.trainable_variables}
        return [
            layer.name
            for layer in private.flat_layers(model)
            if layer is not model
            and any(id(v) in then ^ now for v in private.own_weights(layer))
        ]

    # The sentence of `train_step`.

    def parts(self, data):
        """The batches of a window, or the one batch, as runs of equal shape."""
        self.ran = True
        if isinstance(data, _parts.Window):
            return data.runs(stack=_sums.replicas() == 1)
        return [_parts.single(data)]

    def add_up(self, model, parts):
        """Forward, loss, scale, gradients, unscale: summed over the parts."""

        def total():
            return _sums.over(parts, lambda batch: self._batch(model, batch))

        if not self.plan.guards:
            return total()
        if not private.metrics_are_built(model):
            # Traced for the variables that it makes; they are read below.
            tf.function(
                lambda: total().logs, autograph=False
            ).get_concrete_function()
        before = _part.before(model)
        return total()._replace(before=before)

    def reduce(self, model, total):
        """Sum over the replicas, finite?, divide by the true weight, clip."""
        sums = total.sums
        if not self._whole():
            sums = _sums.over_replicas(sums)
        gradients = _sums.divided(sums)
        if self.plan.cuts:
            # Keras's optimizers square the rows of repeated ids one by one.
            gradients = [_gradients.sum_duplicates(g) for g in gradients]
        ok = None
        if self.plan.guards and _gradients.values(gradients):
            ok = _gradients.all_finite(gradients)
        if not self._logs_itself():
            _part.log_window(model, sums, ok, total.before)
        if ok is not None:
            _part.go_back(total.before.layers, ok)
        if _gradients.values(gradients):
            for feature, state in self.pairs:
                gradients = feature.clip(
                    gradients, self.variables(model), state, ok
                )
        return Update(gradients, ok, total.logs)

    def apply(self, model, update):
        """The optimizer, once; not at all if the update is not finite."""
        variables = self.variables(model)
        if not variables:
            warn(
                "The model has no trainable variable, so nothing is trained. "
                "Set `trainable = True` on a layer and compile again.",
                told=self.told,
            )
            return
        gradients, variables = _apply.with_gradient(
            update.gradients, variables, self.told
        )
        optimizer = _apply.needed(model.optimizer)
        if self.plan.is_keras:
            optimizer.apply(gradients, variables)
            return
        # Also one replica of a strategy: its optimizer merges the replicas,
        # which no condition may hold.
        apply = _apply.across if tf.distribute.has_strategy() else _apply.alone
        apply(optimizer, gradients, variables, update.ok)
        for feature, state in self.pairs:
            feature.settle(state, update.ok)

    def logs(self, model, update):
        """The step's logs: the metrics, then what the features report."""
        logs = update.logs
        if not self._logs_itself():
            fresh = model.get_metrics_result()
            logs = {k: fresh.get(k, v) for k, v in logs.items()}
        for state in self.states:
            logs = {**logs, **state.logs()}
        return logs

    # Between steps.

    def reset(self):
        """At the start of an epoch: resets the features' trackers."""
        for state in self.states:
            for tracker in state.trackers.values():
                tracker.reset_state()

    def epoch_logs(self):
        """The features' logs of the epoch so far, as Python floats."""
        return {
            name: float(value)
            for state in self.states
            for name, value in state.logs().items()
        }

    def complain(self):
        """At the end of an epoch: warns of what the features found."""
        for feature, state in self.pairs:
            text = feature.complaint(state)
            if text:
                warn(text)

    # Parts.

    def _whole(self):
        """Whether a part is the whole update: nothing to weigh or to sum."""
        return self.plan.is_keras or not (
            self.plan.cuts or _sums.replicas() > 1
        )

    def _logs_itself(self):
        """Whether a part logs its loss: it is all there is, and never left out.

        Logged before the finite test, one batch that is left out would make
        the loss of its whole epoch infinite.
        """
        return self._whole() and not self.plan.guards

    def _batch(self, model, batch):
        for feature, state in self.pairs:
            runs = feature.slices(model, batch, state)
            if runs is not None:
                return _sums.over(runs, lambda part: self._one(model, part))
        return self._one(model, batch)

    def _one(self, model, data):
        part = _part.unpack(data)
        rows = part.rows
        whole, replicas = self._whole(), _sums.replicas()
        with self._tape(model) as tape:
            loss, y_pred, records = _part.loss_and_predictions(
                model, part, True, self._logs_itself()
            )
            shares = [_part.Objective(loss, None, 1)]
            if not whole:
                shares = _part.objectives(model, loss, records, rows, replicas)
            targets = [self._scaled(model, s.target) for s in shares]
        gradients = [
            _part.weighed(self._unscaled(tape, model, target), share)
            for target, share in zip(targets, shares, strict=True)
        ]
        weights = [s.weight for s in shares]
        sums = _part.Sums(gradients, weights, None, None, rows)
        if self._logs_itself():
            private.log_loss(model, loss, rows)
        else:
            terms = _part.log_terms(loss, records, rows, replicas)
            sums = sums._replace(losses=terms[0], divisors=terms[1])
        logs = model.compute_metrics(
            part.x, part.y, y_pred, sample_weight=part.sample_weight
        )
        return _part.Total(sums, dict(logs))

    def _tape(self, model):
        """A tape that follows the chosen variables alone.

        Before the first call there are none to follow; then it follows what
        is made during the call.
        """
        ready = self.is_ready(model)
        variables = self.variables(model) if ready else []
        # One of several parts may have several losses to differentiate.
        return _tape(variables, not ready, persistent=not self._whole())

    def _scaled(self, model, loss):
        for feature, state in self.pairs:
            loss = feature.scale(loss, state)
        if model.optimizer is not None:
            loss = model.optimizer.scale_loss(loss)
        return loss

    def _unscaled(self, tape, model, target):
        variables = [v.value for v in self.variables(model)]
        gradients = tape.gradient(target, variables) if variables else []
        if not self._whole() or self.pairs:
            gradients = _gradients.map_values(_gradients.widen, gradients)
        for feature, state in self.pairs:
            gradients = feature.unscale(gradients, state)
        return gradients


@contextlib.contextmanager
def _tape(variables, follow_all, persistent):
    """A gradient tape that follows given variables.

    A persistent one has every loop and function keep what second derivatives
    would need: an LSTM twice as much as the gradient reads.
    """
    with tf.GradientTape(persistent, follow_all) as tape:
        for variable in variables:
            tape.watch(variable.value)
        yield tape
