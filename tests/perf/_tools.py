"""Small models, data and comparisons shared by the tests of the features."""

import collections
import itertools

import keras
import numpy as np
import tensorflow as tf

import fastkeras as fk

#: Rows of the data below, if not said otherwise: 8 + 8 + 3.
UNEVEN = 19
EVEN = 24
PART = 8


def classes_data(rows=UNEVEN, seed=0):
    """Rows of 4 features, and integer classes 0 to 2."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 4)).astype("float32")
    return x, rng.integers(0, 3, rows)


def real_data(rows=UNEVEN, seed=0):
    """Rows of 4 features, and one real target."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 4)).astype("float32")
    y = x.sum(1, keepdims=True) + rng.normal(size=(rows, 1))
    return x, y.astype("float32")


def ids_data(rows=UNEVEN, seed=0, steps=5):
    """Rows of ids padded with 0 to very different lengths, one real a step."""
    rng = np.random.default_rng(seed)
    x = rng.integers(1, 6, (rows, steps))
    # The first rows are short, so parts differ in what they hold.
    lengths = np.clip(np.arange(rows) * steps // rows + 1, 1, steps)
    x[np.arange(steps) >= lengths[:, None]] = 0
    return x, rng.normal(size=(rows, steps, 1)).astype("float32")


def dense_graph(units=(5,), outputs=3, activation="softmax", **kwargs):
    """Inputs and outputs of Dense layers on 4 features."""
    x = inputs = keras.Input((4,))
    for k, n in enumerate(units):
        x = keras.layers.Dense(n, "tanh", name=f"hidden_{k}", **kwargs)(x)
    return inputs, keras.layers.Dense(outputs, activation, name="head")(x)


def ids_graph():
    """Inputs and outputs of an embedding whose mask reaches the loss."""
    x = inputs = keras.Input((5,), dtype="int32")
    x = keras.layers.Embedding(6, 3, mask_zero=True, name="table")(x)
    x = keras.layers.Dense(3, "tanh", name="hidden")(x)
    return inputs, keras.layers.Dense(1, name="head")(x)


def twins(graph, *args, **kwargs):
    """A plain Keras model and a FastModel with equal weights, no layer shared.

    Returns:
        Tuple of `keras.Model` and `fk.FastModel`.
    """
    plain = keras.Model(*graph(*args, **kwargs))
    fast = fk.FastModel(*graph(*args, **kwargs))
    fast.set_weights(plain.get_weights())
    return plain, fast


def difference(a, b):
    """The largest absolute difference between two models or lists of arrays."""
    a, b = (m.get_weights() if hasattr(m, "get_weights") else m for m in (a, b))
    pairs = list(zip(a, b, strict=True))
    return max(float(np.max(np.abs(np.subtract(*p)))) for p in pairs)


def slots(optimizer):
    """The values of all variables of an optimizer."""
    return [np.asarray(v) for v in optimizer.variables]


def slots_difference(a, b):
    """The largest difference of the variables of two optimizers.

    Values above 1 are compared by their size: float32 holds no more.
    """
    pairs = zip(slots(a), slots(b), strict=True)
    return max(
        float(np.max(np.abs(x - y) / np.maximum(1, np.abs(x))))
        for x, y in pairs
    )


def logs_difference(a, b):
    """The largest difference of two dicts of logs, which have the same keys.

    Values above 1 are compared by their size.
    """
    assert a.keys() == b.keys()
    return max(
        float(np.max(np.abs(np.subtract(a[k], b[k])) / np.maximum(1, a[k])))
        for k in a
    )


def dense(gradient):
    """A gradient as an array."""
    return np.asarray(tf.convert_to_tensor(gradient))


def spy(base, *args, **kwargs):
    """An optimizer of class `base` that keeps the gradients it is given.

    Use it with `run_eagerly=True` to read their values from `.seen`; in a
    graph they are symbolic, and only their kind can be read.
    """

    class Spy(base):
        def apply(self, grads, trainable_variables=None):
            self.seen.append(list(grads))
            return super().apply(grads, trainable_variables)

    optimizer = Spy(*args, **kwargs)
    optimizer.seen = []
    return optimizer


def covering(factors):
    """A few rows of values in which every pair of values stands together.

    Greedy and deterministic: each new row begins with a pair that is still
    missing and takes, factor by factor, the value that covers the most; among
    equals the one that was taken least often.

    Args:
        factors: Dict of name to list of values.

    Returns:
        List of dicts of name to value.
    """
    names = list(factors)
    missing = all_pairs(factors)
    rows = []
    used = collections.Counter()
    while missing:
        row = dict(next(iter(missing)))
        for name in names:
            if name not in row:
                row[name] = max(
                    factors[name],
                    key=lambda v: (
                        sum(pair(name, v, n, row[n]) in missing for n in row),
                        -used[name, v],
                    ),
                )
        for a, b in itertools.combinations(names, 2):
            missing.pop(pair(a, row[a], b, row[b]), None)
        used.update(row.items())
        rows.append({name: row[name] for name in names})
    return rows


def pair(a, value_a, b, value_b):
    """Two factors with their values, the same whichever comes first."""
    return tuple(sorted([(a, value_a), (b, value_b)]))


def all_pairs(factors):
    """Every pair of values of two factors, as the keys of a dict."""
    return {
        pair(a, v, b, w): None
        for a, b in itertools.combinations(factors, 2)
        for v in factors[a]
        for w in factors[b]
    }
