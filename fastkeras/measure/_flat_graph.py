"""A traced graph as a flat list of operations, with the size of each tensor.

Functions that are called are written out in place of the call. A loop stays
one operation: what it piles up for its backward pass, turn by turn, is the
size of its results, and the peak of its body comes on top while it runs.
"""

import collections
import re
from typing import NamedTuple

import tensorflow as tf

from fastkeras._lib.private_graphs import function_graph

# Their result is the memory of their first input.
_VIEWS = frozenset(
    "Identity IdentityN Reshape Squeeze ExpandDims StopGradient "
    "ReadVariableOp PreventGradient TensorListFromTensor TensorListGetItem "
    "TensorListPopBack".split()
)
# Their memory is not that of the step.
_OUTSIDE = frozenset("Placeholder Const".split())
_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_LOOPS = ("While", "StatelessWhile")
_PILES = ("TensorListPushBack", "TensorListSetItem")
# What changes a variable.
_CHANGES = re.compile("Assign|Apply|Scatter")


class Node(NamedTuple):
    """One operation.

    Attributes:
        type: String.
        name: String, within the names of the calls it is written out from.
        inputs: Tuple of keys of tensors; a view has the key of its source.
        outputs: Tuple of keys.
        body: `FlatGraph` of a turn where it is a loop, or None.
    """

    type: str
    name: str
    inputs: tuple
    outputs: tuple
    body: object = None


class FlatGraph:
    """The operations of a function that its results and changes depend on.

    Args:
        graph: The graph of a concrete function.

    Attributes:
        nodes: List of `Node`, in the order they become ready.
        sizes: Dict of key to bytes.
        makers: Dict of key to `Node`.
        inputs: List of keys.
        outputs: List of keys.
    """

    def __init__(self, graph):
        self.nodes = []
        self.sizes = {}
        self.makers = {}
        self._elements = {}
        self._lengths = {}
        self.inputs = [self._new(t, 0) for t in graph.inputs]
        self.outputs = self._write(graph, self.inputs, "")

    def _new(self, tensor, elements):
        key = len(self.sizes)
        self._elements[key] = elements
        self.sizes[key] = elements * max(1, tensor.dtype.size or 0)
        return key

    def _write(self, graph, inputs, path):
        """Writes a function out; returns the keys of its results."""
        keys = {t.ref(): k for t, k in zip(graph.inputs, inputs, strict=True)}
        for op in _needed(graph):
            outputs = [t.ref() for t in op.outputs]
            if outputs and all(ref in keys for ref in outputs):
                continue
            given = [keys[t.ref()] for t in op.inputs]
            if op.type in _CALLS:
                inner = function_graph(graph, op.get_attr("f").name)
                found = self._write(inner, given, f"{path}{op.name}/")
            elif op.type in _LOOPS:
                inner = function_graph(graph, op.get_attr("body").name)
                found = self._loop(op, given, inner, path)
            elif op.type in _VIEWS and given:
                found = [
                    given[min(k, len(given) - 1)]
                    if op.type == "IdentityN"
                    else given[0]
                    for k in range(len(outputs))
                ]
                self._measure_list(op, found)
            else:
                found = self._plain(op, given, path)
            keys.update(zip(outputs, found, strict=True))
        return [keys[t.ref()] for t in graph.outputs]

    def _plain(self, op, given, path):
        outside = op.type in _OUTSIDE
        found = [
            self._new(t, 0 if outside else self._count(op, t, given))
            for t in op.outputs
        ]
        self._measure_list(op, found)
        self._add(Node(op.type, path + op.name, tuple(given), tuple(found)))
        return found

    def _add(self, node):
        self.nodes.append(node)
        self.makers.update(dict.fromkeys(node.outputs, node))

    def _count(self, op, tensor, given):
        """Elements of a tensor, also where tracing lost a part of its shape.

        A reshape to a shape that is computed leaves no static one, but it has
        the elements of its input; so has what is computed from it entry by
        entry.
        """
        if tensor.dtype == tf.variant or tensor.dtype == tf.resource:
            return 0
        if tensor.shape.is_fully_defined():
            return tensor.shape.num_elements()
        known = [self._elements[k] for k in given]
        if op.type == "MatMul" and _inner(op) and tensor.shape[-1]:
            return known[0] // _inner(op) * tensor.shape[-1]
        if op.type == "TensorListStack":
            return self.sizes[given[0]] // tensor.dtype.size
        return max(known, default=0)

    def _measure_list(self, op, found):
        """Notes how many tensors a list is made for."""
        length = None
        if op.type == "TensorListReserve":
            length = tf.get_static_value(op.inputs[1])
        elif op.type == "TensorListFromTensor":
            length = op.inputs[0].shape[0]
        if length is not None:
            self._lengths[found[0]] = int(length)

    def _loop(self, op, given, graph, path):
        """Adds a loop; returns the keys of its results."""
        body = FlatGraph(graph)
        turns = max((self._lengths.get(k, 1) for k in given), default=1)
        piled = body.piled()
        found = []
        for k, tensor in enumerate(op.outputs):
            if body.outputs[k] == body.inputs[k]:
                found.append(given[k])
                continue
            size = body.sizes[body.outputs[k]]
            if tensor.dtype == tf.variant:
                size = turns * piled.get(body.outputs[k], 0)
            key = self._new(tensor, 0)
            self.sizes[key] = size
            self._elements[key] = size // max(1, tensor.dtype.size or 0)
            self._lengths[key] = turns
            found.append(key)
        made = [k for k in found if k not in given]
        self._add(
            Node(op.type, path + op.name, tuple(given), tuple(made), body)
        )
        return found

    def piled(self):
        """Bytes that a turn adds to each list, if this is a loop's body.

        A state that is read as it came from the last turn is the memory of
        the result that it was; each memory counts once.
        """
        carried = dict(zip(self.inputs, self.outputs, strict=False))
        found, seen = collections.Counter(), set()
        for node in self.nodes:
            if node.type not in _PILES:
                continue
            value = node.inputs[-1]
            value = carried.get(value, value)
            if value not in seen:
                seen.add(value)
                found[node.outputs[0]] += self.sizes[value]
        return found


def _inner(op):
    """The dimension that a product sums over, or None."""
    over = op.inputs[1].shape
    return None if over.rank is None else over[int(op.get_attr("transpose_b"))]


def _needed(graph):
    """The operations that what the function returns or changes depends on."""
    operations = graph.get_operations()
    ends = {t.op for t in graph.outputs}
    ends |= {
        op
        for op in operations
        if _CHANGES.search(op.type) or op.type in ("While", _CALLS[1])
    }
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
