"""The calls of a functional model, run in segments that are recomputed."""

import math

import keras
import tensorflow as tf

from fastkeras._lib import checks
from fastkeras._lib import private
from fastkeras._lib import private_calls
from fastkeras.perf import _segments
from fastkeras.perf._recompute import Block


class Chain:
    """The nodes of a functional model, in their order, and where to cut them.

    Args:
        functional: The functional model.
        mode: `"sqrt"`, `"all"` or `"budget"`, as in `Rematerialize`.
        budget_bytes: Integer or None.
    """

    def __init__(self, functional, mode, budget_bytes):
        self._nodes = private_calls.ordered_nodes(functional)
        self._inputs = list(functional.inputs)
        self._outputs = private_calls.output_structure(functional)
        self._functional = functional
        self._mode = mode
        self._budget = budget_bytes
        self._segments = {}

    @property
    def saves(self):
        """Whether there is anything to recompute."""
        return self._mode == "budget" or len(self._cut(1)) > 1

    def run(self, usual, inputs, operation_fn):
        """Runs the graph on a batch; stands for the model's own way."""
        if not private_calls.is_recording():
            return usual(inputs, operation_fn)
        inputs = private.tree.flatten(inputs)
        tensors = dict(zip(map(id, self._inputs), inputs, strict=True))
        for needs, gives, segment in self._segments_for(inputs):
            values = segment([tensors[k] for k in needs], operation_fn)
            tensors.update(zip(gives, values, strict=True))
        return private.tree.map_structure(
            lambda symbol: tensors[id(symbol)], self._outputs
        )

    def _segments_for(self, inputs):
        rows = inputs[0].shape[0] if self._mode == "budget" else 1
        if rows is None:
            raise ValueError(
                checks.message(
                    "A budget in bytes needs batches of a known size",
                    "a batch of an unknown number of rows",
                    "Batch the dataset with `drop_remainder=True`, or use "
                    "mode='sqrt'.",
                )
            )
        if rows not in self._segments:
            self._segments[rows] = self._made(self._cut(rows))
        return self._segments[rows]

    def _cut(self, rows):
        """Lists of nodes."""
        if self._mode == "all":
            return [[node] for node in self._nodes]
        costs = [_bytes(node.outputs) * _leaves(node) for node in self._nodes]
        crossing = self._crossing()
        if self._mode == "sqrt":
            starts, _ = _segments.least_memory(costs, crossing)
        else:
            starts, peak = _segments.fewest_recomputed(
                costs, crossing, self._budget / rows
            )
            self._check_budget(peak * rows, rows)
        edges = [0, *starts, len(self._nodes)]
        return [
            self._nodes[a:b] for a, b in zip(edges, edges[1:], strict=False)
        ]

    def _check_budget(self, least, rows):
        if least > self._budget:
            raise ValueError(
                checks.message(
                    "`budget_bytes` must hold the activations that no "
                    "recomputation can spare",
                    f"budget_bytes={self._budget}, where a batch of {rows} "
                    f"rows needs {math.ceil(least)}",
                    f"Give at least {math.ceil(least)}, or a smaller batch: a "
                    f"row needs {math.ceil(least / rows)}.",
                )
            )

    def _crossing(self):
        """Per node: the bytes that it and later ones need of earlier ones."""
        last = {}
        for k, node in enumerate(self._nodes):
            last.update((id(t), k) for t in node.input_tensors)
        crossing = [0] * (len(self._nodes) + 1)
        for k, node in enumerate(self._nodes):
            for tensor in node.outputs:
                for j in range(k + 1, last.get(id(tensor), k) + 1):
                    crossing[j] += _bytes([tensor])
        return crossing

    def _made(self, groups):
        """Triples: the symbols a segment needs, those it gives, how to run."""
        outputs = [id(t) for t in private.tree.flatten(self._outputs)]
        out = []
        for k, nodes in enumerate(groups):
            made = {id(t) for node in nodes for t in node.outputs}
            later = [n for group in groups[k + 1 :] for n in group]
            needed = _inputs_of(later) + outputs
            needs = [
                i for i in dict.fromkeys(_inputs_of(nodes)) if i not in made
            ]
            gives = [i for i in dict.fromkeys(needed) if i in made]
            out.append((needs, gives, self._runner(nodes, needs, gives)))
        # The last segment's activations are wanted at once.
        needs, gives, block = out[-1]
        if self._mode != "all":
            out[-1] = (needs, gives, block.call)
        return out

    def _runner(self, nodes, needs, gives):
        def run(values, operation_fn):
            tensors = dict(zip(needs, values, strict=True))
            for node in nodes:
                private_calls.run_node(node, tensors, operation_fn)
            return [tensors[k] for k in gives]

        operations = {id(n.operation): n.operation for n in nodes}.values()
        layers = [x for x in operations if isinstance(x, keras.Layer)]
        names = f"{nodes[0].operation.name} to {nodes[-1].operation.name}"
        return Block(
            f"the segment {names} of {self._functional.name}",
            run,
            [x for layer in layers for x in private.flat_layers(layer)],
            self._functional,
        )


def _inputs_of(nodes):
    return [id(t) for node in nodes for t in node.input_tensors]


def _bytes(symbols):
    """Bytes of a row; a dimension that is not known counts once."""
    return sum(
        math.prod(d or 1 for d in t.shape[1:]) * tf.as_dtype(t.dtype).size
        for t in symbols
    )


def _leaves(node):
    """How many layers a node runs."""
    return max(1, count_leaves(node.operation))


def count_leaves(operation):
    """The layers of an operation that have no layers below them."""
    if not isinstance(operation, keras.Layer):
        return 0
    return sum(
        len(private.flat_layers(layer)) == 1
        and not isinstance(layer, keras.layers.InputLayer)
        for layer in private.flat_layers(operation)
    )


def main_graph(model):
    """The functional model that holds most of a model's layers, or None.

    That is the model itself, or one nested in it with more than half of its
    layers: cut as one unit, that would be nearly all that is to be recomputed.
    """
    found = private_calls.graph_of_layers(model)
    inner = [
        layer
        for layer in private.flat_layers(model)
        if layer is not model
        and layer is not found
        and 2 * count_leaves(layer) > count_leaves(model)
        and private_calls.graph_of_layers(layer) is not None
    ]
    return main_graph(inner[0]) if inner else found
