"""Private names of TensorFlow about graphs.

A part of `private.py`, under the same rule: the reason stands beside each
name, and `tests/_lib/test_private_graphs.py` fails by name when it moves.
"""


def function_graph(graph, name):
    """The graph of a function that an operation of a graph calls.

    An operation names its function; the public way from there goes through a
    serialised library, which loses the shapes that tracing has found.

    Args:
        graph: The graph of the operation.
        name: String, as in the operation's attribute.

    Returns:
        A `FuncGraph`.
    """
    return graph._get_function(name).graph
