"""What a traced training step holds in memory, read from its graph.

The operations are gone through in the order they become ready. A tensor lives
from the operation that makes it to the last one that reads it; an operation
that changes a tensor entry by entry writes over it where nobody reads it any
more, as TensorFlow's kernels do.
"""

import collections
import math

from fastkeras.measure._flat_graph import FlatGraph

# May write their result over an input.
_IN_PLACE = frozenset(
    "Add AddV2 AddN Sub Mul RealDiv DivNoNan Maximum Minimum BiasAdd Relu "
    "ReluGrad Relu6 Tanh TanhGrad Sigmoid SigmoidGrad Elu EluGrad Selu Exp "
    "Neg Square Sqrt Rsqrt Erf Softmax LogSoftmax Cast SelectV2 MulNoNan "
    "Softplus Reciprocal Pow Abs Sign SoftmaxCrossEntropyWithLogits".split()
)
#: In the name of every operation that a tape's backward pass makes.
_BACKWARD = ("gradient_tape", "while_grad")


def peak(graph):
    """The most bytes that the tensors of a step hold at once.

    Args:
        graph: The graph of a concrete function, of known shapes.

    Returns:
        Integer, bytes; without variables and inputs.
    """
    return _peak(FlatGraph(graph))


def _peak(flat):
    readers = collections.Counter(
        k for node in flat.nodes for k in set(node.inputs)
    )
    # What is returned outlives the step.
    readers.update(flat.outputs)
    sizes, held, most = {}, 0, 0
    for node in flat.nodes:
        scratch = _scratch(flat, node)
        most = max(most, held + scratch)
        for key in node.outputs:
            size = flat.sizes[key]
            over = _written_over(node, readers, sizes, size)
            held -= sizes.pop(over, 0)
            sizes[key] = size
            held += size
        if node.body is None:
            most = max(most, held + scratch)
        readers.subtract(set(node.inputs))
        for key in [*node.inputs, *node.outputs]:
            if not readers[key]:
                held -= sizes.pop(key, 0)
        # A loop takes apart what it reads while it piles its own results up.
        most = max(most, held)
    return most


def _scratch(flat, node):
    """Bytes that an operation needs while it runs, beside its results."""
    if node.body is not None:
        return _peak(node.body)
    if node.type == "MaxPoolGrad":
        # The kernel pools again: values, and places as 64-bit integers.
        return 3 * flat.sizes[node.inputs[1]]
    return 0


def _written_over(node, readers, sizes, size):
    """The input whose memory a result of `size` bytes takes, or None."""
    if node.type not in _IN_PLACE:
        return None
    last = [k for k in node.inputs if readers[k] == 1 and sizes.get(k) == size]
    return last[0] if last else None


def kept(graph, names):
    """The bytes of the forward pass that the backward pass reads, by layer.

    Args:
        graph: The graph of a concrete function.
        names: Iterable of the names of layers.

    Returns:
        Dict of layer name (or `"other"`) to bytes, in the order of the graph.
    """
    names, found = set(names), collections.Counter()
    flats = [FlatGraph(graph)]
    order = []
    for flat in flats:
        flats += [node.body for node in flat.nodes if node.body is not None]
        order += [_layer(node.name, names) for node in flat.nodes]
        for key in _read_backward(flat):
            found[_layer(flat.makers[key].name, names)] += flat.sizes[key]
    return {n: found[n] for n in dict.fromkeys(order) if found[n]}


def _read_backward(flat):
    """The keys of what is made forward and read backward, each once."""
    found = {}
    for node in flat.nodes:
        if _is_backward(node):
            found.update(dict.fromkeys(node.inputs))
    return [
        k
        for k in found
        if k in flat.makers and not _is_backward(flat.makers[k])
    ]


def _is_backward(node):
    return any(part in node.name for part in _BACKWARD)


def bytes_of(tensor):
    """Bytes of a tensor; a dimension that is not known counts once."""
    if tensor.shape.rank is None or not tensor.dtype.size:
        return 0
    return math.prod(d or 1 for d in tensor.shape) * tensor.dtype.size


def _layer(name, names):
    for part in reversed(name.split("/")):
        if part in names:
            return part
        if part.rpartition("_")[0] in names:
            return part.rpartition("_")[0]
    return "other"
