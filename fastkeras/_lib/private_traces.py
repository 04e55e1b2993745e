"""Private names of TensorFlow that tell what a function was traced for.

A part of `private.py`, under the same rule: the reason stands beside each
name, and `tests/_lib/test_private_traces.py` fails by name when it moves.
"""

import tensorflow as tf


def traced_arguments(function):
    """The specs of the first argument of a `tf.function`, oldest trace first.

    TensorFlow publishes the number of the traces, and their signatures as a
    text alone. An iterator stands for its elements, whose spec it keeps under
    a private name in spite of its documentation.

    Args:
        function: `tf.function`.

    Returns:
        List of structures of `tf.TypeSpec`.
    """
    return [
        _elements(concrete.structured_input_signature[0][0])
        for concrete in function._list_all_concrete_functions()
    ]


def _elements(spec):
    if isinstance(spec, tf.data.IteratorSpec):
        return spec._element_spec
    return spec
