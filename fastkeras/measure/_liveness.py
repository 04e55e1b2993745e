"""What a traced training step holds in memory, read from its graph.

The operations are gone through in the order they become ready. A tensor lives
from the operation that makes it to the last one that reads it; an operation
that changes a tensor entry by entry writes over it where nobody reads it any
more, as TensorFlow's kernels do.
"""

import collections
import math
import re

# Their result is the memory of their first input, or of a variable.
_VIEWS = frozenset(
    "Identity IdentityN Reshape Squeeze ExpandDims StopGradient Placeholder "
    "ReadVariableOp PreventGradient Const Shape ShapeN".split()
)
# May write their result over an input.
_IN_PLACE = frozenset(
    "Add AddV2 AddN Sub Mul RealDiv DivNoNan Maximum Minimum BiasAdd Relu "
    "ReluGrad Relu6 Tanh TanhGrad Sigmoid SigmoidGrad Elu EluGrad Selu Exp "
    "Neg Square Sqrt Rsqrt Erf Softmax LogSoftmax Cast SelectV2 MulNoNan "
    "Softplus Reciprocal Pow Abs Sign SoftmaxCrossEntropyWithLogits".split()
)
# What changes a variable.
_CHANGES = re.compile("Assign|Apply|Scatter")
#: In the name of every operation that a tape's backward pass makes.
_BACKWARD = "gradient_tape"


def peak(graph):
    """The most bytes that the tensors of a step hold at once.

    Args:
        graph: The graph of a concrete function, of known shapes.

    Returns:
        Integer, bytes; without variables and inputs.
    """
    operations = _needed(graph)
    owner, readers = _owners(operations)
    # What is returned outlives the step.
    readers.update(owner[t.ref()] for t in graph.outputs)
    bytes_by_ref = _bytes_by_ref(operations)
    sizes, held, most = {}, 0, 0
    for op in operations:
        if op.type in _VIEWS:
            continue
        inputs = {owner[t.ref()] for t in op.inputs}
        outputs = [t.ref() for t in op.outputs]
        for ref in outputs:
            size = bytes_by_ref[ref]
            over = _written_over(op, inputs, readers, sizes, size)
            held -= sizes.pop(over, 0)
            sizes[ref] = size
            held += size
        scratch = 0
        if op.type == "MaxPoolGrad":
            # The kernel pools again: values, and places as 64-bit integers.
            scratch = 3 * bytes_by_ref[op.inputs[1].ref()]
        most = max(most, held + scratch)
        readers.subtract(inputs)
        for ref in [*inputs, *outputs]:
            if not readers[ref]:
                held -= sizes.pop(ref, 0)
    return most


def _written_over(op, inputs, readers, sizes, size):
    """The input whose memory a result of `size` bytes takes, or None."""
    if op.type not in _IN_PLACE:
        return None
    last = [t for t in inputs if readers[t] == 1 and sizes.get(t) == size]
    return last[0] if last else None


def kept(graph, names):
    """The bytes of the forward pass that the backward pass reads, by layer.

    Args:
        graph: The graph of a concrete function.
        names: Iterable of the names of layers.

    Returns:
        Dict of layer name (or `"other"`) to bytes, in the order of the graph.
    """
    operations = _needed(graph)
    owner, _ = _owners(operations)
    sizes = _bytes_by_ref(operations)
    names = set(names)
    found, seen = collections.Counter(), set()
    for op in operations:
        if _BACKWARD not in op.name:
            continue
        for tensor in op.inputs:
            ref = owner[tensor.ref()]
            maker = ref.deref().op
            own = _BACKWARD in maker.name or maker.type in _VIEWS
            if own or ref in seen:
                continue
            seen.add(ref)
            found[_layer(maker.name, names)] += sizes[ref]
    order = [_layer(op.name, names) for op in operations]
    return {n: found[n] for n in dict.fromkeys(order) if found[n]}


def bytes_of(tensor):
    """Bytes of a tensor; a dimension that is not known counts once."""
    if tensor.shape.rank is None or not tensor.dtype.size:
        return 0
    return math.prod(d or 1 for d in tensor.shape) * tensor.dtype.size


def _bytes_by_ref(operations):
    """Bytes of each tensor, also where tracing has lost a part of its shape.

    A reshape to a shape that is computed leaves no static one, but it has the
    elements of its input; so has what is computed from it entry by entry.
    """
    elements = {}
    for op in operations:
        known = [elements[t.ref()] for t in op.inputs]
        for tensor in op.outputs:
            if tensor.shape.is_fully_defined():
                count = tensor.shape.num_elements()
            elif op.type == "MatMul" and _inner(op) and tensor.shape[-1]:
                count = known[0] // _inner(op) * tensor.shape[-1]
            else:
                count = max(
                    known[:1] if op.type in _VIEWS else known, default=0
                )
            elements[tensor.ref()] = count
    return {ref: n * ref.deref().dtype.size for ref, n in elements.items()}


def _inner(op):
    """The dimension that a product sums over, or None."""
    over = op.inputs[1].shape
    return None if over.rank is None else over[int(op.get_attr("transpose_b"))]


def _needed(graph):
    """The operations that what the function returns or changes depends on."""
    operations = graph.get_operations()
    ends = {t.op for t in graph.outputs}
    ends |= {op for op in operations if _CHANGES.search(op.type)}
    found, stack = set(), list(ends)
    while stack:
        op = stack.pop()
        if op not in found:
            found.add(op)
            stack += [t.op for t in op.inputs]
    return _as_ready([op for op in operations if op in found])


def _as_ready(operations):
    """In the order in which they become ready, first come, first served."""
    missing = {op: len({t.op for t in op.inputs}) for op in operations}
    readers = collections.defaultdict(list)
    for op in operations:
        for maker in {t.op: None for t in op.inputs}:
            readers[maker].append(op)
    queue = collections.deque(op for op in operations if not missing[op])
    order = []
    while queue:
        op = queue.popleft()
        order.append(op)
        for reader in readers[op]:
            missing[reader] -= 1
            if not missing[reader]:
                queue.append(reader)
    return order


def _owners(operations):
    """Which tensor's memory each tensor is in, and how many read it."""
    owner, readers = {}, collections.Counter()
    for op in operations:
        for k, tensor in enumerate(op.outputs):
            view = op.type in _VIEWS and len(op.inputs) > 0
            source = op.inputs[min(k, len(op.inputs) - 1)] if view else tensor
            owner[tensor.ref()] = owner.get(source.ref(), source.ref())
        if op.type not in _VIEWS:
            readers.update({owner[t.ref()] for t in op.inputs})
    return owner, readers


def _layer(name, names):
    for part in reversed(name.split("/")):
        if part in names:
            return part
        if part.rpartition("_")[0] in names:
            return part.rpartition("_")[0]
    return "other"
