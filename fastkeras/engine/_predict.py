"""The loop of `predict`: batches of resident rows in one call."""

import time

import keras
import numpy as np
import tensorflow as tf

from fastkeras._lib import private
from fastkeras.engine._feeds import make_feed
from fastkeras.engine._pilot import LAUNCH_SECONDS

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
        self._one = quiet(
            tf.function(self._step, reduce_retracing=True, jit_compile=jit)
        )
        self._many = quiet(tf.function(self._loop, jit_compile=jit))
        self._seconds = None

    def batch(self, data):
        """Predicts one batch of any size."""
        return self._one(data)

    def count(self, left):
        """How many batches the next launch should take."""
        if self._seconds is None:
            return min(left, 4)
        return max(1, min(left, int(LAUNCH_SECONDS / self._seconds)))

    def batches(self, data, start, count, size):
        """Predicts `count` full batches of `size` rows in one call."""
        begin = time.perf_counter()
        out = self._many(data, tf.constant(start), tf.constant(count), size)
        self._seconds = (time.perf_counter() - begin) / count
        return out

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
    """Predicts resident arrays; returns None where Keras has to.

    Args:
        model: The model.
        x, batch_size, verbose, steps, callbacks: As for `predict`.

    Returns:
        NumPy array(s) of predictions, or None.
    """
    if private.has_strategy(model) or model.run_eagerly:
        return None
    if tf.config.functions_run_eagerly() or steps is not None:
        return None
    if not all(map(_is_lazy, keras.tree.flatten(callbacks or []))):
        return None
    feed, _ = make_feed(
        model,
        x=x,
        y=None,
        sample_weight=None,
        batch_size=batch_size,
        shuffle=False,
    )
    if feed.name != "resident":
        return None
    outputs = model.predictor.batch(feed.peek())
    if not all(map(_stacks, tf.nest.flatten(outputs))):
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
    return _run(model, feed, callbacks, outputs)


def _run(model, feed, callbacks, first):
    predictor, size = model.predictor, feed.batch_size
    model.stop_predicting = False
    callbacks.on_predict_begin()
    parts, done = [], 0
    while done < feed.length and not model.stop_predicting:
        callbacks.on_predict_batch_begin(done)
        if done == 0:
            out, count = first, 1
        elif done < feed.full:
            count = predictor.count(feed.full - done)
            out = predictor.batches(feed.data, done, count, size)
        else:
            out, count = predictor.batch(feed.last()), 1
        parts.append(tf.nest.map_structure(lambda t: t.numpy(), out))
        done += count
        callbacks.on_predict_batch_end(done - 1, {"outputs": out})
    callbacks.on_predict_end()
    return tf.nest.map_structure(lambda *p: np.concatenate(p), *parts)


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
