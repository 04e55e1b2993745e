"""Operations of a graph, run once more inside a branch of it.

A branch that is given what a step computes keeps all of it alive, unfused and
never overwritten, in each step: 0.65 us for each of 40 small operations, 2 us
for each gradient. A branch that is given the variables and the data costs
next to nothing until it is taken, and computes the rest again.
"""

import tensorflow as tf


def again(operations):
    """Runs operations anew in the graph at hand.

    What may differ the second time (random numbers, counters) and what calls
    other functions is taken as it was.

    Args:
        operations: List of operations of an outer graph, in their order.

    Returns:
        Function of a tensor of the outer graph to the same in this one.
    """
    graph = tf.compat.v1.get_default_graph()
    made = {}
    for o in operations:
        if not _is_pure(o):
            continue
        copy = graph.create_op(
            o.type,
            [made.get(t.ref(), t) for t in o.inputs],
            [t.dtype for t in o.outputs],
            attrs=_attributes(o),
        )
        pairs = zip(o.outputs, copy.outputs, strict=True)
        made.update((old.ref(), new) for old, new in pairs)
    return lambda tensor: made.get(tensor.ref(), tensor)


def _is_pure(operation):
    if operation.type == "ReadVariableOp":
        return operation.outputs[0].dtype.is_floating
    if not operation.outputs or operation.type == "Placeholder":
        return False
    return not operation.op_def.is_stateful and not any(
        value.HasField("func") or value.list.func
        for value in operation.node_def.attr.values()
    )


def _attributes(operation):
    # Private ones speak of other nodes (`_class`) or of passes that are over.
    attributes = operation.node_def.attr
    return {k: v for k, v in attributes.items() if not k.startswith("_")}
