"""Keras's random numbers by Philox while an XLA function is traced.

TensorFlow's automatic choice of the algorithm is Philox on CPU and GPU, but
under XLA another one, which on a CPU takes a hundred times as long and draws
other numbers. With Philox asked for by name, a step draws the same numbers in
every tier.
"""

import contextlib
import threading

from fastkeras._lib import private

_local = threading.local()


class _Proxy:
    """A module with some of its names replaced."""

    def __init__(self, module, **replaced):
        self._module = module
        vars(self).update(replaced)

    def __getattr__(self, name):
        return getattr(self._module, name)


def _asking(function, argument):
    def call(*args, **kwargs):
        if getattr(_local, "on", False):
            kwargs.setdefault(argument, "philox")
        return function(*args, **kwargs)

    return call


def _install():
    module = private.random_module
    tf = module.tf
    random = _Proxy(
        tf.random,
        **{
            name: _asking(getattr(tf.random, name), "alg")
            for name in (
                "stateless_uniform",
                "stateless_normal",
                "stateless_truncated_normal",
            )
        },
    )
    experimental = _Proxy(
        tf.nn.experimental,
        stateless_dropout=_asking(
            tf.nn.experimental.stateless_dropout, "rng_alg"
        ),
    )
    module.tf = _Proxy(
        tf, random=random, nn=_Proxy(tf.nn, experimental=experimental)
    )


@contextlib.contextmanager
def philox(on=True):
    """While open, Keras traced by this thread draws by Philox."""
    before = getattr(_local, "on", False)
    _local.on = on
    try:
        yield
    finally:
        _local.on = before


_install()
