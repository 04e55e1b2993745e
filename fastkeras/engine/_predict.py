"""The loop of `predict`: batches of resident rows in one call."""

import contextlib
import functools
import threading
import time

import numpy as np
import tensorflow as tf

from fastkeras._lib import private
from fastkeras._lib import private_marks
from fastkeras.engine import _outputs
from fastkeras.engine import _tiers
from fastkeras.engine._feeds import ordered_feed
from fastkeras.engine._launch import LOOPS
from fastkeras.engine._launch import Rows
from fastkeras.engine._launch import quiet
from fastkeras.engine._ledger import Ledger
from fastkeras.engine._loop import callback_list
from fastkeras.engine._pilot import Pilot
from fastkeras.engine._refusals import REFUSALS
from fastkeras.engine._refusals import why
from fastkeras.engine._signature import PinnedFunction
from fastkeras.engine._signature import signature_of
from fastkeras.engine._specs import spec_of


class Predictor:
    """The compiled functions of one model's `predict_step`.

    Args:
        model: The model.

    Attributes:
        ledger: `Ledger` of what was traced and compiled.
        latest: The `Pilot` of what was predicted last, or None.
    """

    def __init__(self, model):
        self._model = model
        self._jit = bool(model.compiled and model.jit_compile)
        self.fixed = "xla-step" if self._jit else "graph-step"
        self._signature = signature_of(model, "predict_step")
        self._one = quiet(
            model.predict_step,
            reduce_retracing=self._signature is None,
            jit_compile=self._jit,
        )
        if self._signature:
            self._one = PinnedFunction(self._one, self._signature)
        self._loops = {}
        self._pilots = {}
        self.latest = None
        # A model may be asked by several threads at once.
        self._lock = threading.Lock()
        self.ledger = Ledger()

    def pilot(self, feed, whole):
        """The pilot for a feed.

        Args:
            feed: The feed.
            whole: Bool, whether a call may run many of its batches.
        """
        key = spec_of(feed.spec) if whole else None
        if key not in self._pilots:
            tiers, reasons = [self.fixed], []
            if whole:
                tiers, reasons = _tiers.available(
                    self._model, "predict_step", feed
                )
            warmup = self._model.perf.execution.warmup_launches
            self._pilots[key] = Pilot(tiers, None, warmup)
            self._pilots[key].reasons += reasons
        self.latest = self._pilots[key]
        return self.latest

    def batch(self, pilot, data):
        """Predicts one batch of any size."""
        if self._signature:
            self._signature.check(data)
        with self._noted(pilot, self.fixed, 1):
            return self.ledger.call(self.fixed, self._one, self._jit, data)

    def at(self, pilot, feed, k):
        """Predicts the k-th batch of a resident feed, padded if it has to."""
        pad = self._model.perf.pad
        data = pad(feed.at(k), feed.batch_size, feed.spec)
        return self.batch(pilot, data)

    def next(self, pilot, left):
        """Tier and number of batches of the next launch."""
        with self._lock:
            return pilot.next(self._estimate, left, left)

    def _estimate(self, tier):
        return _tiers.estimate(tier, [e.seconds for e in self.ledger.entries])

    @contextlib.contextmanager
    def _noted(self, pilot, tier, count):
        """Tells the pilot how long a launch of so many batches takes."""
        start, known = time.perf_counter(), len(self.ledger.entries)
        yield
        seconds = time.perf_counter() - start
        traced = len(self.ledger.entries) > known
        with self._lock:
            pilot.note(tier, count, seconds, traced)

    def many(self, pilot, tier, feed, start, count):
        """Predicts full batches of a resident feed.

        Returns:
            Tuple of a list of outputs and how many batches they are of.
        """
        loop = None
        if tier in LOOPS:
            loop = self._prepared(pilot, tier, feed, start)
        if loop:
            with self._noted(pilot, tier, count):
                return self._run(tier, loop, feed, start, count), count
        outs = [self.at(pilot, feed, start + k) for k in range(count)]
        return outs, count

    def _run(self, tier, loop, feed, start, count):
        """Predicts by a loop, in as many calls as it takes."""
        jit = tier.startswith("xla")
        room = loop.room or count
        return [
            self.ledger.call(
                tier,
                loop,
                jit,
                feed.spec,
                feed.arrays,
                tf.constant(k),
                tf.constant(min(room, start + count - k)),
            )
            for k in range(start, start + count, room)
        ]

    def _prepared(self, pilot, tier, feed, start):
        """The loop of a tier, compiled by one batch; None if of no use."""
        key = (tier, spec_of(feed.spec))
        if key in self._loops:
            return self._loops[key]
        begin = time.perf_counter()
        jit = tier.startswith("xla")
        loop = _outputs.Loop(self._model.predict_step, jit, feed)
        try:
            (got,) = self._run(tier, loop, feed, start, 1)
            pilot.cost[tier] = time.perf_counter() - begin
            reason = None
            if tier == "xla-loop" and not self._jit:
                loop.put_back()
                want = self.ledger.call(
                    self.fixed, self._one, self._jit, feed.at(start)
                )
                reason = _outputs.parting(got, want)
        except REFUSALS as error:
            reason = f"does not compile: {why(error, self._model)}"
        loop.put_back()
        loop.before.clear()
        if reason:
            with self._lock:
                pilot.drop(tier, reason)
            return None
        # Not before it is known to be right: another thread may look it up.
        self._loops[key] = loop
        return loop


def predict(model, x, batch_size, verbose, steps, callbacks):
    """Predicts data of any kind; None where Keras has to.

    Args:
        model: The model.
        x, batch_size, verbose, steps, callbacks: As for `predict`.

    Returns:
        NumPy array(s) of predictions, or None.
    """
    if private.has_strategy(model) or model.run_eagerly:
        return None
    if tf.config.functions_run_eagerly():
        return None
    feed = ordered_feed(model, (x,), batch_size, steps)
    callbacks = callback_list(model, callbacks, verbose, 1, feed)
    whole = (
        feed.name == "resident"
        and feed.steps is None
        and not model.perf.execution.pins
        and all(map(_tiers.is_lazy_in_predict, callbacks.callbacks))
    )
    pilot = model.predictor.pilot(feed, whole)
    run = _launches if whole else _one_by_one
    model.stop_predicting = False
    callbacks.on_predict_begin()
    with contextlib.closing(run(model.predictor, pilot, feed)) as launches:
        parts = _gathered(model, launches, callbacks)
    callbacks.on_predict_end()
    return tf.nest.map_structure(lambda *p: _joined(list(p)), *parts)


def _gathered(model, launches, callbacks):
    """The outputs of all launches, on the host."""
    parts, done = [], 0
    for launch in launches:
        callbacks.on_predict_batch_begin(done)
        outs, count = launch()
        done += count
        parts += [tf.nest.map_structure(_on_host, out) for out in outs]
        callbacks.on_predict_batch_end(done - 1, {"outputs": outs[-1]})
        if model.stop_predicting:
            break
    return parts


def _one_by_one(predictor, pilot, feed):
    """Yields a function for each batch, which predicts it."""
    feed.begin()
    try:
        while (launch := feed.take(1, 1, True)) is not None:
            if isinstance(launch, Rows):
                run = functools.partial(predictor.at, pilot, feed, launch.start)
            else:
                (data,) = launch.data
                run = functools.partial(predictor.batch, pilot, data)
            yield lambda run=run: ([run()], 1)
    finally:
        feed.end()


def _launches(predictor, pilot, feed):
    """Yields a function for each launch of resident data."""
    full = feed.rows // feed.batch_size
    done = 0
    while done < feed.length:
        tier, count = predictor.fixed, 1
        if done < full:
            tier, count = predictor.next(pilot, full - done)
        yield functools.partial(predictor.many, pilot, tier, feed, done, count)
        done += count


def _on_host(tensor):
    return tensor.numpy() if isinstance(tensor, tf.Tensor) else tensor


def _joined(parts):
    """The outputs of all batches as one: an array, if they are dense."""
    shapes = {p.shape[1:] if isinstance(p, np.ndarray) else None for p in parts}
    if len(shapes) == 1 and None not in shapes and parts[0].ndim:
        return np.concatenate(parts)
    if not isinstance(parts[0], (tf.RaggedTensor, tf.SparseTensor)):
        parts = [tf.convert_to_tensor(p) for p in parts]
    return private_marks.concat(parts)
