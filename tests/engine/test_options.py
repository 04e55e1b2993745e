"""Options of Keras that say how steps run."""

import keras
import numpy as np
import pytest

from fastkeras import FastModel
from fastkeras._lib.warn import FastKerasWarning

X = np.random.default_rng(0).normal(size=(40, 3)).astype("float32")


def trained(base, unrolled, steps, perf=None):
    keras.utils.set_random_seed(0)
    inputs = keras.Input((3,))
    model = base(inputs, keras.layers.Dense(1)(inputs))
    options = {} if base is keras.Model else {"perf": perf}
    model.compile("adam", "mse", steps_per_execution=steps, **options)
    model.unrolled_steps_per_execution = unrolled
    model.fit(X, X[:, :1], batch_size=4, shuffle=False, verbose=0)
    return model.get_weights()


def test_unrolled_steps_leave_the_weights_alone():
    plain = trained(keras.Model, 1, 1)
    with pytest.warns(FastKerasWarning, match="unrolled.*not in effect"):
        unrolled = trained(FastModel, 4, 5, "auto")
    for a, b in zip(plain, unrolled, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    for a, b in zip(plain, trained(FastModel, 5, 5), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_more_steps_unrolled_than_run_are_refused():
    with pytest.raises(ValueError, match="must be <=.*Received.*Leave it"):
        trained(FastModel, 4, 2, "auto")
