"""The floor: the MLP's epoch written by hand as one `jax.lax.scan`.

What Keras's `fit` does for this model and nothing else: rows in a new order,
Adam, the mean of the loss, the accuracy. Works only where JAX is installed.
"""

import numpy as np

from fastkeras.bench import sides
from fastkeras.measure.clock import Clock

try:
    import jax
    import jax.numpy as jnp
except ImportError:
    # Most users don't have it, and nothing here is called then.
    jax = jnp = None

RATE, BETA1, BETA2, EPSILON = 1e-3, 0.9, 0.999, 1e-7


class ScanSide:
    """A hand-written epoch with the interface of a `Side`.

    Args:
        row: `Row` of the MLP.
        clock: `fastkeras.measure.Clock`.
    """

    def __init__(self, row, clock=None):
        self.row = row
        self.options = {}
        self.loss = None
        self.clock = clock or Clock()
        x, y = row.data()
        self._data = jnp.asarray(x), jnp.asarray(y)
        self._random = np.random.default_rng(0)
        weights = _weights([64, 128, 128, 10], self._random)
        slots = jax.tree.map(jnp.zeros_like, weights)
        self._state = (weights, slots, slots, jnp.zeros(()))
        self._epoch = jax.jit(_epoch, static_argnums=4)

    def first(self):
        """Runs a first epoch; returns its seconds."""
        return self._run(1)

    def warm(self, seconds):
        """Runs a second epoch."""
        del seconds
        self._each = self._run(1)

    def turn(self):
        """Runs a turn; returns seconds per step."""
        units = sides.units_for(sides.TURN_SECONDS, self._each)
        self._each = self._run(units) / units
        return self._each / self.row.steps

    def describe(self):
        """Nothing to add."""
        return {}

    def _run(self, units):
        with self.clock.stopwatch() as watch:
            for _ in range(units):
                rows = self.row.steps * self.row.batch
                order = self._random.permutation(rows).astype("int32")
                self._state, loss, accuracy = self._epoch(
                    self._state, *self._data, order, self.row.batch
                )
                loss, _ = float(loss), float(accuracy)
                self.loss = loss if self.loss is None else self.loss
        return watch.seconds


def _weights(widths, rng):
    found = []
    for rows, columns in zip(widths[:-1], widths[1:], strict=True):
        limit = np.sqrt(6 / (rows + columns))
        kernel = rng.uniform(-limit, limit, (rows, columns))
        found.append((jnp.asarray(kernel, "float32"), jnp.zeros(columns)))
    return found


def _loss(weights, x, y):
    for kernel, bias in weights[:-1]:
        x = jax.nn.relu(x @ kernel + bias)
    kernel, bias = weights[-1]
    logits = x @ kernel + bias
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], 1)
    return -chosen.mean(), (logits.argmax(-1) == y).mean()


def _update(state, gradients):
    weights, first, second, count = state
    count = count + 1
    rate = RATE * jnp.sqrt(1 - BETA2**count) / (1 - BETA1**count)
    first = jax.tree.map(
        lambda m, g: m + (g - m) * (1 - BETA1), first, gradients
    )
    second = jax.tree.map(
        lambda v, g: v + (g * g - v) * (1 - BETA2), second, gradients
    )
    weights = jax.tree.map(
        lambda w, m, v: w - rate * m / (jnp.sqrt(v) + EPSILON),
        weights,
        first,
        second,
    )
    return weights, first, second, count


def _epoch(state, x, y, order, batch):
    x = x[order].reshape(-1, batch, x.shape[-1])
    y = y[order].reshape(-1, batch)

    def step(state, data):
        gradient = jax.value_and_grad(_loss, has_aux=True)
        values, gradients = gradient(state[0], *data)
        return _update(state, gradients), values

    state, (losses, accuracies) = jax.lax.scan(step, state, (x, y))
    return state, losses.mean(), accuracies.mean()
