"""An observing feature: it changes nothing and notes what goes by.

`HealthMonitor` puts it before the features of a step. It sees the gradients
before they are clipped, and the weights before and after the update.
"""

import keras
import numpy as np
import tensorflow as tf

from fastkeras._lib import philox
from fastkeras.callbacks._finite import are_finite
from fastkeras.callbacks._finite import check_sum
from fastkeras.callbacks._finite import seem_finite
from fastkeras.callbacks._forward import Forward
from fastkeras.callbacks._forward import variable as new_variable
from fastkeras.callbacks._layer_health import by_layer
from fastkeras.callbacks._replay import again
from fastkeras.callbacks._unless import unless
from fastkeras.perf import _gradients
from fastkeras.perf._feature import Feature


class Probe(Feature):
    """Gathers figures in variables of its own, which no model saves.

    All is taken before the update: what an update did is seen in the weights
    when the next one begins, or at the end of the epoch.

    Args:
        every: Integer, figures are taken in one update of so many.
        strategy: `tf.distribute.Strategy` of the model.
        cuts: Bool, whether an update is made of several parts.
    """

    def __init__(self, every, strategy, cuts):
        self.forward = Forward()
        self.layers = None
        self._strategy = strategy
        # No condition may hold an assignment on several replicas.
        self._several = strategy.num_replicas_in_sync > 1
        self.every = every
        self.in_use = False
        self._every = 1 if self._several else every
        self._cuts = cuts
        self._operations = []
        self._data = []

    def prepare(self, variables):
        """Makes the variables, outside of the function that is traced."""
        if self.layers is not None:
            return
        paths = [v.path.rpartition("/")[0] for v in variables]
        self.layers = list(dict.fromkeys(paths))
        self._ids = [self.layers.index(path) for path in paths]
        self._variables = list(variables)
        size = sum(v.shape.num_elements() for v in variables)
        count = len(self.layers)
        # Few variables: each is one more argument of the step.
        with tf.init_scope(), self._strategy.scope():
            # Updates of this epoch, less one.
            self._step = new_variable(tf.constant(-1, tf.int64))
            # Bad updates, the first of them, the update the old weights go
            # into, the updates of earlier epochs; then, by variable, whether
            # its gradient was finite in the first bad update.
            head = [0, 0, -1, 0]
            self._counts = new_variable(
                tf.constant(head + [1] * len(paths), tf.int64)
            )
            # Norms, ratios: each a number of samples, sums, the largest.
            self._figures = new_variable(tf.zeros([2, 1 + 2 * count]))
            self._old = new_variable(tf.zeros([size]))

    @property
    def notes(self):
        """Its variables, which a trial of a tier puts back."""
        if self.layers is None:
            return self.forward.notes
        own = [self._step, self._counts, self._figures, self._old]
        return own + self.forward.notes

    # Hooks of a feature.

    def slices(self, model, batch, state):
        x, _, _ = keras.utils.unpack_x_y_sample_weight(batch)
        found = tf.nest.flatten(x, expand_composites=True)
        self._data = [t for t in found if t.dtype.is_floating]

    def scale(self, loss, state):
        self._loss = loss
        operations = self._operations = self._made_so_far()
        if self._cuts and operations and self.layers is not None:
            # The parts of an update are computed in graphs of their own.
            finite = tf.math.is_finite(check_sum(loss))
            sums = [check_sum(t) for t in (loss, *self._data)]
            unless(
                tf.math.is_finite(tf.add_n(sums))
                & self._is_idle(self._step + 1),
                lambda: self._note_forward(
                    operations, again(operations), finite, self._steps() + 1
                ),
            )
        return loss

    def clip(self, gradients, variables, state, ok):
        self.prepare(variables)
        operations = self._in_this_graph()
        loss = [self._loss] if operations else []
        step = self._step.assign_add(1)
        if self._every == 1:
            self._note(gradients, loss, operations, tf.convert_to_tensor)
            return gradients

        # XLA keeps little for a branch, and compiles each operation twice.
        copied = self._made_so_far() if operations else []
        if philox.is_on():
            copied = operations
        unless(
            seem_finite(gradients, self._ids, len(self._data), loss, ok)
            & self._is_idle(step),
            lambda: self._note(gradients, loss, operations, again(copied)),
        )
        return gradients

    # In the graph.

    def _is_idle(self, done):
        # Two steps from the start of each epoch on are not: the first takes
        # down the weights that the second finds changed.
        return done % self._every > 1

    def _made_so_far(self):
        """The operations of the forward pass and the loss in this graph."""
        if tf.executing_eagerly() or self._several:
            return []
        return tf.compat.v1.get_default_graph().get_operations()

    def _in_this_graph(self):
        """The operations of the forward pass that were not looked at yet."""
        operations, self._operations = self._operations, []
        if self._cuts or not operations:
            return []
        graph = tf.compat.v1.get_default_graph()
        return operations if operations[0].graph is graph else []

    def _note(self, gradients, loss, operations, output):
        gradients = _gradients.map_values(output, gradients)
        sums = [tf.zeros([]) if g is None else check_sum(g) for g in gradients]
        finite = tf.math.is_finite(tf.stack(sums))
        parts = [tf.math.is_finite(check_sum(output(t))) for t in loss]
        good = tf.reduce_all([tf.reduce_all(finite), *parts])
        if operations:
            self._note_forward(operations, output, good, self._steps())
        norms = self._by_layer([_square_norm(g) for g in gradients])
        fine = tf.reduce_all(tf.math.is_finite(norms))
        self._add_sample(0, norms, fine)
        self._note_update(self._steps())
        self._note_counts(finite, ~good, fine)

    def _note_forward(self, operations, output, good, step):
        # Of the first bad update, which is known at its end.
        wanted = tf.equal(self._counts[1], 0)
        self.forward.note(operations, output, good, wanted, step)

    def _note_update(self, step):
        """Notes what the update before this one did to the weights."""
        new = _flat(self._variables)
        sizes = [v.shape.num_elements() for v in self._variables]
        old, changed = (
            self._by_layer(list(map(_square, tf.split(t, sizes))))
            for t in (self._old + 0.0, new - self._old)
        )
        ratios = changed / (old + 1e-12)
        fine = tf.logical_and(
            tf.equal(self._counts[2], step - 1),
            tf.reduce_all(tf.math.is_finite(ratios)),
        )
        self._add_sample(1, ratios, fine)
        self._old.assign(new)

    def _note_counts(self, finite, bad, fine):
        bad = tf.cast(bad, tf.int64)
        finite = tf.cast(finite, tf.int64)
        before = self._counts + 0
        is_first = tf.logical_and(bad > 0, before[1] == 0)
        step = self._steps()
        now = tf.concat([[0, step, 0, 0], finite], 0)
        kept = tf.where(is_first, now, before)
        # An update that is not finite may be left out.
        noted = tf.where(fine, step, -1)
        head = [before[0] + bad, kept[1], noted, before[3]]
        self._counts.assign(tf.concat([head, kept[4:]], 0))

    def _steps(self):
        """Updates so far: of the earlier epochs and of this one."""
        return self._counts[3] + self._step + 1

    def _add_sample(self, row, new, fine):
        """Adds figures by layer to their number, sums and largest."""
        before = self._figures + 0.0
        new = tf.where(fine, new, tf.zeros_like(new))
        sums, largest = tf.split(before[row, 1:], 2)
        count = before[row, :1] + tf.cast(fine, tf.float32)
        now = tf.concat([count, sums + new, tf.maximum(largest, new)], 0)
        rows = [now, before[1]] if row == 0 else [before[0], now]
        self._figures.assign(tf.stack(rows))

    def _by_layer(self, squares):
        return tf.sqrt(
            tf.math.unsorted_segment_sum(
                tf.stack(squares), tf.constant(self._ids), len(self.layers)
            )
        )

    # Outside: few eager operations, each of which costs 20 to 100 us.

    def _steps_done(self):
        return int(self._counts.numpy()[3] + self._step.numpy()) + 1

    def bad_steps(self):
        """Number of updates that were not finite; waits for the device."""
        return 0 if self.layers is None else int(self._counts.numpy()[0])

    def spoilt(self):
        """Pair of the updates so far and the layers with weights not finite.

        NaN in the data may reach the gradient of a kernel and no other: an
        activation that turns it to 0 keeps the loss and the biases finite.
        """
        pairs = zip(self._ids, are_finite(self._variables), strict=True)
        found = {self.layers[i]: None for i, fine in pairs if not fine}
        return self._steps_done(), tuple(found)

    def health(self):
        """Dict of layer to `LayerHealth`, of the updates since `reset`."""
        counts = self._counts.numpy()
        if counts[2] == self._steps_done():
            # No later update will look at what the last one did.
            self._note_update(self._steps() + 1)
            counts[2] = -1
            self._counts.assign(counts)
        return by_layer(self.layers, self._figures.numpy().tolist())

    def first(self):
        """Step, operation and layers of the first update that was not finite.

        The operation is a tuple of name and type, `()` if all of them were
        finite, None if they could not be looked at.
        """
        _, step, _, _, *finite = self._counts.numpy().tolist()
        bad = {i for i, f in zip(self._ids, finite, strict=True) if not f}
        return (
            step,
            self.forward.first(step),
            [self.layers[i] for i in sorted(bad)],
        )

    def reset(self):
        """Begins an epoch."""
        counts = self._counts.numpy()
        counts[2:4] = -1, self._steps_done()
        self._counts.assign(counts)
        self._step.assign(-1)
        self._figures.assign(np.zeros(self._figures.shape, "float32"))
        self.forward.reset()


def _flat(variables):
    return tf.concat(
        [tf.reshape(tf.cast(v.value, tf.float32), [-1]) for v in variables], 0
    )


def _square_norm(gradient):
    if gradient is None:
        return tf.zeros([])
    square = _gradients.square_norm(_gradients.sum_duplicates(gradient))
    return tf.cast(square, tf.float32)


def _square(tensor):
    return tf.cast(tf.reduce_sum(tf.square(tensor)), tf.float32)
