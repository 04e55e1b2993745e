"""An observing feature: it changes nothing and notes what goes by.

`HealthMonitor` puts it before the features of a step. It sees the gradients
before they are clipped, and the weights before and after the update.
"""

from typing import NamedTuple

import tensorflow as tf

from fastkeras.callbacks._only_if import only_if
from fastkeras.perf import _gradients
from fastkeras.perf._feature import Feature

#: Operations that hand on what others made.
_PASSIVE = {"Const", "Identity", "Placeholder", "ReadVariableOp", "Reshape"}
_RELUS = {"Relu", "Relu6"}


class LayerHealth(NamedTuple):
    """Figures of one layer over the sampled updates of an epoch.

    Attributes:
        gradient_norm: Float, mean L2 norm of its gradient, before clipping.
        gradient_norm_max: Float, the largest.
        update_ratio: Float, mean L2 norm of an update over that of the
            weights.
        update_ratio_max: Float, the largest.
    """

    gradient_norm: float
    gradient_norm_max: float
    update_ratio: float
    update_ratio_max: float


class Probe(Feature):
    """Gathers figures in variables of its own, which no model saves.

    Args:
        every: Integer, figures are taken in one update of so many.
        strategy: `tf.distribute.Strategy` of the model.
    """

    def __init__(self, every, strategy):
        self.operations = []
        self.layers = None
        self._alive = {}
        self._strategy = strategy
        # No condition may hold an assignment on several replicas.
        self._several = strategy.num_replicas_in_sync > 1
        self._every = 1 if self._several else every
        self._forward = None, 0
        # Of each replica in turn: all clip before the first is updated.
        self._pending = []

    def prepare(self, variables, is_old=False):
        """Makes the variables, outside of the function that is traced.

        Args:
            variables: List of the variables that are trained.
            is_old: Bool, whether they have the values of before the first
                update.
        """
        if self.layers is not None:
            return
        paths = [v.path.rpartition("/")[0] for v in variables]
        self.layers = list(dict.fromkeys(paths))
        self._ids = [self.layers.index(path) for path in paths]
        self._variables = list(variables)
        with tf.init_scope(), self._strategy.scope():
            self._step = _variable(tf.zeros([], tf.int64))
            # Few variables: each is one more argument of the step.
            # Bad updates, the first of them, its operation, the update of
            # the old weights, the updates of earlier epochs; then by variable.
            head = [0, 0, -1, 0 if is_old else -1, 0]
            self._counts = _variable(
                tf.constant(head + [1] * len(paths), tf.int64)
            )
            self._figures = _variable(tf.zeros([1 + 4 * len(self.layers)]))
            self._old = _variable(_flat(variables))

    # Hooks of a feature.

    def scale(self, loss, state):
        self._loss = loss
        if not tf.executing_eagerly():
            graph = tf.compat.v1.get_default_graph()
            self._forward = graph, len(graph.get_operations())
        return loss

    def clip(self, gradients, variables, state, ok):
        self.prepare(variables)
        self._pending.append(gradients)
        return gradients

    def settle(self, state, ok):
        gradients = self._pending.pop(0)
        operations = [] if self._several else self._operations()
        self._step.assign_add(1)
        bad = tf.logical_not(self._is_finite(gradients, bool(operations)))
        if self._every == 1:
            self._note(gradients, operations, bad)
            return

        # Two steps from the start of each epoch on: the first may only take
        # down the weights that the second changes.
        due = (self._step - 1) % self._every < 2
        only_if(
            tf.logical_or(bad, due),
            lambda: self._note(gradients, operations, bad),
        )

    # In the graph.

    def _operations(self):
        """The operations of the forward pass and the loss in this graph."""
        graph, count = self._forward
        if tf.executing_eagerly() or graph is None:
            return []
        if graph is not tf.compat.v1.get_default_graph():
            return []
        return [
            o
            for o in graph.get_operations()[:count]
            if o.type not in _PASSIVE
            and o.outputs
            and o.outputs[0].dtype.is_floating
        ]

    def _is_finite(self, gradients, with_loss):
        """Whether an update is finite, by little: the loss, the biases.

        A gradient that is not finite goes on to all layers before it, so the
        smallest variable of each layer tells as much as all of them.
        """
        smallest = {}
        triples = zip(gradients, self._variables, self._ids, strict=True)
        for g, variable, layer in triples:
            size = variable.shape.num_elements()
            if g is not None and size < smallest.get(layer, (1 << 62,))[0]:
                smallest[layer] = size, g
        sums = [_sum(g) for _, g in smallest.values()]
        if with_loss:
            sums.append(_sum(self._loss))
        return tf.math.is_finite(tf.add_n(sums))

    def _note(self, gradients, operations, bad):
        self._note_alive(operations)
        new = _flat(self._variables)
        sizes = [v.shape.num_elements() for v in self._variables]
        old, changed = (
            self._by_layer(list(map(_square, tf.split(t, sizes))))
            for t in (self._old + 0.0, new - self._old)
        )
        norms = self._by_layer([_square_norm(g) for g in gradients])
        was_old = tf.equal(self._counts[3], self._steps() - 1)
        self._note_figures(norms, changed / (old + 1e-12), was_old)
        self._note_counts(gradients, operations, bad)
        self._old.assign(new)

    def _note_figures(self, norms, ratios, was_old):
        new = tf.concat([norms, ratios], 0)
        fine = tf.logical_and(was_old, tf.reduce_all(tf.math.is_finite(new)))
        new = tf.where(fine, new, tf.zeros_like(new))
        samples = self._figures[:1] + tf.cast(fine, tf.float32)
        sums, largest = tf.split(self._figures[1:], 2)
        self._figures.assign(
            tf.concat([samples, sums + new, tf.maximum(largest, new)], 0)
        )

    def _note_counts(self, gradients, operations, bad):
        bad = tf.cast(bad, tf.int64)
        before = self._counts + 0
        first = tf.constant(-1, tf.int64)
        if operations:
            first = self._first_bad(operations)
        sums = [tf.zeros([]) if g is None else _sum(g) for g in gradients]
        finite = tf.cast(tf.math.is_finite(tf.stack(sums)), tf.int64)
        steps = self._steps()
        now = tf.concat([[0, steps, first, 0, 0], finite], 0)
        is_first = tf.logical_and(bad > 0, before[1] == 0)
        kept = tf.where(is_first, now, before)
        head = [before[0] + bad, kept[1], kept[2], steps, before[4]]
        self._counts.assign(tf.concat([head, kept[5:]], 0))

    def _steps(self):
        """Updates so far: of the earlier epochs and of this one."""
        return self._counts[4] + self._step

    def _first_bad(self, operations):
        """Number of the first operation with a non-finite output, or -1."""
        before = len(self.operations)
        # Each tier traces the step, and may number its operations otherwise.
        self.operations += [(o.name, o.type) for o in operations]
        sums = tf.stack([_sum(o.outputs[0]) for o in operations])
        bad = tf.logical_not(tf.math.is_finite(sums))
        first = tf.argmax(tf.cast(bad, tf.int32))
        return tf.where(tf.reduce_any(bad), before + first, -1)

    def _note_alive(self, operations):
        relus = [o for o in operations if o.type in _RELUS]
        for o in relus:
            output = o.outputs[0]
            width = output.shape[-1]
            if width is None:
                continue
            if (o.name, width) not in self._alive:
                with tf.init_scope():
                    self._alive[o.name, width] = _variable(tf.zeros([width]))
            axes = list(range(output.shape.rank - 1))
            largest = tf.cast(tf.reduce_max(output, axes), tf.float32)
            seen = self._alive[o.name, width]
            seen.assign(tf.maximum(seen, largest))

    def _by_layer(self, squares):
        return tf.sqrt(
            tf.math.unsorted_segment_sum(
                tf.stack(squares), tf.constant(self._ids), len(self.layers)
            )
        )

    # Outside.

    def bad_steps(self):
        """Number of updates that were not finite; waits for the device."""
        return 0 if self.layers is None else int(self._counts[0])

    def health(self):
        """Dict of layer to `LayerHealth`, of the updates since `reset`."""
        samples, *figures = self._figures.numpy().tolist()
        if not samples:
            return {}
        count = len(self.layers)
        norms, ratios, norms_max, ratios_max = (
            figures[k * count : (k + 1) * count] for k in range(4)
        )
        return {
            layer: LayerHealth(
                norms[k] / samples,
                norms_max[k],
                ratios[k] / samples,
                ratios_max[k],
            )
            for k, layer in enumerate(self.layers)
        }

    def dead(self):
        """Dict of operation name to the fraction of its units that is dead."""
        return {
            name: float((seen.numpy() <= 0).mean())
            for (name, _), seen in self._alive.items()
        }

    def first(self):
        """Step, operation (name, type) or None, and layers of the first."""
        _, step, number, _, _, *finite = self._counts.numpy().tolist()
        bad = {i for i, f in zip(self._ids, finite, strict=True) if not f}
        operation = self.operations[number] if number >= 0 else None
        return step, operation, [self.layers[i] for i in sorted(bad)]

    def reset(self):
        """Begins an epoch."""
        self._counts[4].assign(self._steps())
        for variable in (self._step, self._figures, *self._alive.values()):
            variable.assign(tf.zeros_like(variable))


def _flat(variables):
    return tf.concat(
        [tf.reshape(tf.cast(v.value, tf.float32), [-1]) for v in variables], 0
    )


def _square_norm(gradient):
    if gradient is None:
        return tf.zeros([])
    square = _gradients.square_norm(_gradients.sum_duplicates(gradient))
    return tf.cast(square, tf.float32)


def _variable(value):
    return tf.Variable(
        value,
        trainable=False,
        aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
    )


def _sum(gradient):
    """A scalar that is finite if all values are; half precision can't add."""
    (tensor,) = _gradients.values([gradient])
    if tensor.dtype in (tf.float16, tf.bfloat16):
        tensor = tensor * 0
    return tf.cast(tf.reduce_sum(tensor), tf.float32)


def _square(tensor):
    return tf.cast(tf.reduce_sum(tf.square(tensor)), tf.float32)
