"""The loop of `predict`: batches of resident rows in one call."""

import collections
import functools
import time

import keras
import numpy as np
import tensorflow as tf

from fastkeras._lib import private
from fastkeras._lib import private_marks
from fastkeras.engine._feeds import ordered_feed
from fastkeras.engine._ledger import Ledger
from fastkeras.engine._pilot import LAUNCH_SECONDS
from fastkeras.engine._pilot import Times
from fastkeras.engine._signature import PinnedFunction
from fastkeras.engine._signature import signature_of
from fastkeras.measure import stats

_HOOKS = ("on_predict_batch_begin", "on_predict_batch_end")


class Predictor:
    """The compiled functions of one model's `predict_step`.

    Args:
        model: The model.
    """

    def __init__(self, model):
        jit = bool(model.compiled and model.jit_compile)
        quiet = private.without_retrace_warning
        self._step = model.predict_step
        self._pad = model.perf.pad
        self._signature = signature_of(model, "predict_step")
        self._one = quiet(
            tf.function(
                self._step,
                reduce_retracing=self._signature is None,
                jit_compile=jit,
            )
        )
        if self._signature:
            self._one = PinnedFunction(self._one, self._signature)
        self._many = quiet(tf.function(self._loop, jit_compile=jit))
        self._jit = jit
        self._seconds = None
        self._calls = collections.deque([], maxlen=8)
        warmup = model.perf.execution.warmup_launches
        self._times = {n: Times(warmup) for n in ("one batch", "loop")}
        self.ledger = Ledger()

    def batch(self, data):
        """Predicts one batch of any size."""
        if self._signature:
            self._signature.check(data)
        begin = time.perf_counter()
        out = self.ledger.call("one batch", self._one, self._jit, data)
        seconds = time.perf_counter() - begin
        self._calls.append(seconds)
        self._times["one batch"].add(seconds)
        return out

    def at(self, feed, k):
        """Predicts the k-th batch of a resident feed, padded if it has to."""
        return self.batch(self._pad(feed.at(k), feed.batch_size, feed.spec))

    def count(self, left):
        """How many full batches the next launch should take.

        One, while tracing the loop would take longer than what is left, and
        where one trace is all that is wanted.
        """
        if self._signature:
            return 1
        if self._seconds is None:
            if len(self._calls) < 2 or min(self._calls) * left < self._calls[0]:
                return 1
            return min(left, 4)
        return max(1, min(left, int(LAUNCH_SECONDS / self._seconds)))

    def full(self, feed, start, count):
        """Predicts `count` full batches of a resident feed in one call."""
        if count == 1 and self._seconds is None:
            return self.at(feed, start)
        begin = time.perf_counter()
        out = self.ledger.call(
            "loop",
            self._many,
            self._jit,
            feed.arrays,
            tf.constant(start),
            tf.constant(count),
            feed.batch_size,
        )
        self._seconds = (time.perf_counter() - begin) / count
        self._times["loop"].add(self._seconds)
        return out

    def describe(self):
        """What ran, as nested plain values."""
        return {
            "time per batch": {
                name: str(stats.summarize(list(times.seconds)))
                for name, times in self._times.items()
                if times.seconds
            },
            **self.ledger.describe(),
        }

    def _loop(self, data, start, count, size):
        def one(k):
            first = (start + k) * size
            return self._step(
                private.tree.map_structure(
                    lambda a: None if a is None else _slice(a, first, size),
                    data,
                )
            )

        body = tf.function(one).get_concrete_function(
            tf.TensorSpec([], tf.int32)
        )
        spec = tf.nest.map_structure(
            lambda s: tf.TensorSpec(s.shape, s.dtype), body.structured_outputs
        )
        out = tf.map_fn(
            body,
            tf.range(count),
            fn_output_signature=spec,
            parallel_iterations=1,
        )
        return tf.nest.map_structure(
            lambda t: tf.reshape(t, [-1, *t.shape[2:]]), out
        )


def _slice(array, first, size):
    rest = array.shape[1:].as_list()
    return tf.slice(array, [first] + [0] * len(rest), [size, *rest])


def predict(model, x, batch_size, verbose, steps, callbacks):
    """Predicts resident arrays and padded data; None where Keras has to.

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
    data = {"x": x, "y": None, "sample_weight": None}
    whole = steps is None and not keras.config.max_steps_per_epoch()
    whole = whole and all(map(_is_lazy, keras.tree.flatten(callbacks or [])))
    # A feed of a generator would take its first batches away from Keras.
    own = model.perf.pads or model.perf.execution.pins
    if not (own or (whole and private.can_shuffle(data))):
        return None
    feed = ordered_feed(model, (x,), batch_size, steps)
    if whole and feed.name == "resident":
        outputs = model.predictor.at(feed, 0)
        if not all(map(_stacks, tf.nest.flatten(outputs))):
            return None
        run = functools.partial(_run, first=outputs)
    elif own and feed.name == "stream":
        run = _run_stream
    else:
        return None
    if not isinstance(callbacks, keras.callbacks.CallbackList):
        callbacks = keras.callbacks.CallbackList(
            callbacks,
            add_progbar=verbose != 0,
            verbose=verbose,
            epochs=1,
            steps=feed.num_batches,
            model=model,
        )
    model.stop_predicting = False
    callbacks.on_predict_begin()
    outputs = run(model, feed, callbacks)
    callbacks.on_predict_end()
    return outputs


def _run(model, feed, callbacks, first):
    predictor = model.predictor
    full = feed.rows // feed.batch_size
    parts, done = [], 0
    while done < feed.length and not model.stop_predicting:
        callbacks.on_predict_batch_begin(done)
        if done == 0:
            out, count = first, 1
        elif done < full:
            count = predictor.count(full - done)
            out = predictor.full(feed, done, count)
        else:
            out, count = predictor.at(feed, full), 1
        parts.append(tf.nest.map_structure(lambda t: t.numpy(), out))
        done += count
        callbacks.on_predict_batch_end(done - 1, {"outputs": out})
    return tf.nest.map_structure(lambda *p: np.concatenate(p), *parts)


def _run_stream(model, feed, callbacks):
    parts = []
    feed.begin()
    try:
        while not model.stop_predicting:
            launch = feed.take(1, 1, True)
            if launch is None:
                break
            callbacks.on_predict_batch_begin(len(parts))
            for batch in launch.data:
                parts.append(model.predictor.batch(batch))
            callbacks.on_predict_batch_end(
                len(parts) - 1, {"outputs": parts[-1]}
            )
    finally:
        feed.end()
    return tf.nest.map_structure(lambda *p: private_marks.concat(p), *parts)


def _stacks(tensor):
    """Whether the outputs of batches can be put one below the other."""
    return (
        isinstance(tensor, tf.Tensor)
        and tensor.shape.rank
        and tensor.shape.is_fully_defined()
    )


def _is_lazy(callback):
    if isinstance(callback, keras.callbacks.ProgbarLogger):
        return True
    return all(
        private.is_default_hook(getattr(callback, hook)) for hook in _HOOKS
    )
