"""The private names of graphs: each fails here by name when it moves."""

import tensorflow as tf

from fastkeras._lib import private_graphs


def test_the_graph_of_a_function_that_is_called():
    inner = tf.function(lambda x: tf.sin(x), autograph=False)
    outer = tf.function(lambda x: inner(x), autograph=False)
    graph = outer.get_concrete_function(tf.TensorSpec((3,))).graph
    (call,) = (op for op in graph.get_operations() if "f" in op.node_def.attr)
    found = private_graphs.function_graph(graph, call.get_attr("f").name)
    assert "Sin" in [op.type for op in found.get_operations()]
    assert found.inputs[0].shape == (3,)
