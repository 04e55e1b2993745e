"""Keras's random numbers by Philox while an XLA function is traced.

TensorFlow's automatic choice of the algorithm is Philox on CPU and GPU, but
under XLA another one, which on a CPU takes a hundred times as long and draws
other numbers. XLA's own floats from Philox use other bits of the same draw;
so uniform numbers and dropout are made from the bits here, as the CPU and GPU
kernels make them, and every tier draws the same. Normal numbers come from
Philox too, but not the same ones.
"""

import contextlib
import threading

import tensorflow as tf

from fastkeras._lib import private

_local = threading.local()

# Per dtype: integer of its size, bits of its mantissa, bits of 1.0.
_BITS = {
    tf.float32: (tf.uint32, 0x7FFFFF, 0x3F800000),
    tf.float16: (tf.uint16, 0x3FF, 0x3C00),
    tf.bfloat16: (tf.uint16, 0x7F, 0x3F80),
}


def uniform(shape, seed, minval=0, maxval=None, dtype=tf.float32):
    """Uniform numbers in [minval, maxval), from the bits of Philox.

    Args:
        shape: Shape of the result.
        seed: Integer tensor of shape (2,).
        minval: Scalar. Defaults to `0`.
        maxval: Scalar, or None for 1.
        dtype: float32, float16 or bfloat16.

    Returns:
        Tensor of `shape` and `dtype`, equal to what `stateless_uniform` draws
        on a CPU outside XLA.
    """
    integer, mantissa, one = _BITS[tf.as_dtype(dtype)]
    bits = tf.cast(_bits(shape, seed) & mantissa, integer)
    drawn = tf.bitcast(bits | tf.constant(one, integer), dtype)
    drawn -= tf.cast(1, dtype)
    if maxval is None:
        return drawn
    minval = tf.cast(minval, dtype)
    return drawn * (tf.cast(maxval, dtype) - minval) + minval


def _bits(shape, seed):
    """The words that `stateless_uniform` draws with `alg="philox"` as uint32.

    Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1,
    2, 3"): the counter of a block gives four words. Each word is computed from
    its own index, all four and one selected, because XLA's own draw puts the
    four side by side by a concatenation: its processor time was five times
    this one's.
    """
    key, counter = tf.raw_ops.StatelessRandomGetKeyCounter(seed=seed)
    index = tf.range(tf.reduce_prod(tf.cast(shape, tf.int64)))
    block = tf.cast(tf.bitwise.right_shift(index, 2), tf.uint64)
    low = counter[0] + block
    high = counter[1] + tf.cast(low < block, tf.uint64)
    words = *_halves(low), *_halves(high)
    words = _rounds(*words, *_halves(key[0]))
    word = tf.cast(index, tf.uint32) & 3
    first, second, third, fourth = words
    drawn = tf.where(
        word < 2,
        tf.where(word < 1, first, second),
        tf.where(word < 3, third, fourth),
    )
    return tf.reshape(drawn, shape)


def _rounds(first, second, third, fourth, key, next_key):
    for _ in range(10):
        low, high = _halves(tf.cast(first, tf.uint64) * 0xD2511F53)
        next_low, next_high = _halves(tf.cast(third, tf.uint64) * 0xCD9E8D57)
        first, second = next_high ^ second ^ key, next_low
        third, fourth = high ^ fourth ^ next_key, low
        key, next_key = key + 0x9E3779B9, next_key + 0xBB67AE85
    return first, second, third, fourth


def _halves(number):
    """The low and the high 32 bits of a uint64."""
    high = tf.bitwise.right_shift(number, tf.constant(32, tf.uint64))
    return tf.cast(number, tf.uint32), tf.cast(high, tf.uint32)


def _keras_uniform(
    shape, seed, minval=0, maxval=None, dtype=tf.float32, **other
):
    if not is_on() or tf.as_dtype(dtype) not in _BITS:
        return tf.random.stateless_uniform(
            shape, seed, minval, maxval, dtype, **other
        )
    return uniform(shape, seed, minval, maxval, dtype)


def _keras_dropout(x, rate, seed, noise_shape=None, **other):
    if not is_on() or x.dtype not in _BITS:
        return tf.nn.experimental.stateless_dropout(
            x, rate, seed, noise_shape=noise_shape, **other
        )
    shape = tf.shape(x) if noise_shape is None else noise_shape
    keep = uniform(shape, seed, dtype=x.dtype) >= tf.cast(rate, x.dtype)
    return tf.where(keep, x * tf.cast(1 / (1 - rate), x.dtype), 0)


def _by_philox(function):
    def call(*args, **kwargs):
        if is_on():
            kwargs.setdefault("alg", "philox")
        return function(*args, **kwargs)

    return call


def is_on():
    """Whether a function for XLA is being traced in this thread."""
    return getattr(_local, "on", False)


class _Proxy:
    """A module with some of its names replaced."""

    def __init__(self, module, **replaced):
        self._module = module
        vars(self).update(replaced)

    def __getattr__(self, name):
        return getattr(self._module, name)


def _install():
    random = _Proxy(
        tf.random,
        stateless_uniform=_keras_uniform,
        stateless_normal=_by_philox(tf.random.stateless_normal),
        stateless_truncated_normal=_by_philox(
            tf.random.stateless_truncated_normal
        ),
    )
    experimental = _Proxy(tf.nn.experimental, stateless_dropout=_keras_dropout)
    private.random_module.tf = _Proxy(
        tf, random=random, nn=_Proxy(tf.nn, experimental=experimental)
    )


@contextlib.contextmanager
def philox(on=True):
    """While open, Keras traced by this thread draws by Philox."""
    before = is_on()
    _local.on = on
    try:
        yield
    finally:
        _local.on = before


_install()
