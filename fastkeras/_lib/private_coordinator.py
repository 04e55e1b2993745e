"""Private names of TensorFlow and Keras about parameter servers.

A part of `private.py`, under the same rule: the reason stands beside each
name, and `tests/_lib/test_private.py` fails by name when it moves.
"""

import contextlib

import tensorflow as tf

# An anonymous resource lives for one call of a function; a `tf.Variable` made
# in a function outlives it, on the device that traced it.
from tensorflow.python.eager.context import anonymous_name

# A coordinator waits for lost workers without an end, and says nothing.
from tensorflow.python.eager.context import check_alive
from tensorflow.python.ops.resource_variable_ops import BaseResourceVariable

__all__ = ["check_alive"]


@contextlib.contextmanager
def standing_in(variables):
    """Lets variables of one call stand for Keras variables while it is traced.

    Args:
        variables: List of `keras.Variable`.

    Yields:
        List of the `tf.Variable`s they stand for.
    """
    real = [v._value for v in variables]
    for variable, value in zip(variables, real, strict=True):
        variable._value = _of_one_call(value)
    try:
        yield real
    finally:
        for variable, value in zip(variables, real, strict=True):
            variable._value = value


def _of_one_call(like):
    handle = tf.raw_ops.VarHandleOp(
        dtype=like.dtype, shape=like.shape, shared_name=anonymous_name()
    )
    return BaseResourceVariable(
        trainable=False,
        shape=like.shape,
        dtype=like.dtype,
        handle=handle,
        handle_name=like.name,
    )


def ends_without(coordinator):
    """Lets the process end while a worker is away.

    The coordinator would wait, when it is deleted, for a lock that is held
    until each worker that was lost is back.
    """
    handler = coordinator._cluster.failure_handler

    def stop():
        handler._should_preemption_thread_run = False
        handler._cluster_due_for_update_or_finish.set()

    handler.stop = stop


def has_partitioner(strategy):
    """Whether a strategy spreads single variables over parameter servers."""
    return strategy.extended._variable_partitioner is not None


def worker_names(strategy):
    """The names of the tasks that run the steps."""
    count = strategy.extended._num_workers
    return [f"/job:worker/replica:0/task:{k}" for k in range(count)]
