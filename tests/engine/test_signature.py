"""One signature or few: batch sizes in turn, and what `signature` pins."""

import keras
import numpy as np
import pytest

import fastkeras as fk


def new_model(cls=fk.FastModel):
    keras.utils.set_random_seed(3)
    inputs = keras.Input((4,))
    x = keras.layers.Dense(5, "tanh")(inputs)
    return cls(inputs, keras.layers.Dense(3, "softmax")(x))


def data(rows=23):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 4)).astype("float32")
    return x, rng.integers(0, 3, rows)


@pytest.mark.parametrize("steps", [1, 3])
def test_a_second_fit_takes_its_own_batch_size(steps):
    x, y = data(24)

    def run(cls):
        model = new_model(cls)
        model.compile(
            keras.optimizers.Adam(0.01),
            "sparse_categorical_crossentropy",
            jit_compile=False,
            steps_per_execution=steps,
        )
        for size in (4, 2, 8, 4):
            model.fit(x, y, batch_size=size, shuffle=False, verbose=0)
        return int(model.optimizer.iterations), model.get_weights()

    (ours, weights), (stock, right) = run(fk.FastModel), run(keras.Model)
    assert ours == stock == 6 + 12 + 3 + 6
    for a, b in zip(weights, right, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
