"""The same random numbers under XLA as without it."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from fastkeras._lib.philox import philox
from fastkeras._lib.philox import uniform

SEED = (3, 5)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("shape", [(1,), (3, 7), (32, 33)])
def test_uniform_draws_what_the_cpu_draws(shape, dtype):
    def theirs():
        return tf.random.stateless_uniform(shape, SEED, dtype=dtype)

    want = theirs().numpy()
    under_xla = tf.function(
        lambda: uniform(shape, SEED, dtype=dtype), jit_compile=True
    )
    np.testing.assert_array_equal(under_xla().numpy(), want)
    # XLA's own floats are other ones (but for float16).
    other = tf.function(theirs, jit_compile=True)().numpy()
    assert (other != want).any() == (dtype != "float16")


@pytest.mark.parametrize("draw", ["dropout", "uniform"])
def test_keras_draws_the_same_under_xla(draw):
    def call():
        if draw == "uniform":
            return keras.random.uniform((9, 9), -1.0, 2.0, seed=4)
        return keras.random.dropout(tf.ones((9, 9)), 0.3, seed=4)

    def ours():
        with philox():
            return call()

    want = call().numpy()
    got = tf.function(ours, jit_compile=True)().numpy()
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)
    plain = tf.function(call, jit_compile=True)().numpy()
    assert np.abs(plain - want).max() > 0.1


def test_outside_the_scope_nothing_changes():
    a = keras.random.normal((4,), seed=1).numpy()
    with philox():
        b = keras.random.normal((4,), seed=1).numpy()
    np.testing.assert_array_equal(a, b)
