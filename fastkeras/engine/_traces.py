"""Traces of functions of resident data, for any number of rows."""

import weakref

import tensorflow as tf

from fastkeras._lib import private


class TraceOfFeed:
    """A function of resident data, called by its trace for a feed.

    To look for the trace takes a `tf.function` as long as a small step.

    Args:
        function: `tf.function` of data, permutation, further tensors, and rows
            of a batch.
        relax: Bool, whether a trace is for any number of rows.
    """

    def __init__(self, function, relax):
        self._function = function
        self._relax = relax
        self._traces = weakref.WeakKeyDictionary()

    def __call__(self, feed, *tensors):
        arguments = (feed.data, feed.order, *tensors, feed.batch_size)
        trace = self._traces.get(feed)
        if trace is None:
            specs = arguments
            if self._relax:
                specs = private.tree.map_structure(any_rows, arguments)
            trace = self._function.get_concrete_function(*specs)
            self._traces[feed] = trace
        return trace(*arguments)

    def experimental_get_tracing_count(self):
        """How often the function was traced, as of a `tf.function`."""
        return self._function.experimental_get_tracing_count()


def any_rows(value):
    """The spec of an array of any length; other values as they are."""
    if not isinstance(value, tf.Tensor) or not value.shape.rank:
        return value
    return tf.TensorSpec([None, *value.shape[1:]], value.dtype)
