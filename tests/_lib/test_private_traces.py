"""The private names by which TensorFlow tells what a function is traced for."""

import tensorflow as tf

from fastkeras._lib import private_traces


def test_the_specs_of_each_trace_in_their_order():
    function = tf.function(lambda pair: pair[0])
    function((tf.zeros([2]), tf.zeros([3])))
    function((tf.zeros([4]), tf.zeros([3])))
    first, second = private_traces.traced_arguments(function)
    assert [spec.shape for spec in first] == [[2], [3]]
    assert [spec.shape for spec in second] == [[4], [3]]


def test_an_iterator_stands_for_its_elements():
    function = tf.function(lambda iterator: next(iterator))
    function(iter(tf.data.Dataset.from_tensors(tf.zeros([2], "float64"))))
    (spec,) = private_traces.traced_arguments(function)
    assert (spec.dtype, spec.shape) == ("float64", [2])
