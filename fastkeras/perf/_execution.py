"""The part of a plan that says how steps run."""

import dataclasses

import keras
import tensorflow as tf

from fastkeras._lib import checks
from fastkeras._lib.private import tree


@keras.saving.register_keras_serializable("fastkeras")
@dataclasses.dataclass(frozen=True)
class Execution:
    """Pins any part of how steps run; what they compute stays the same.

    Args:
        jit: `"auto"`, True or False: whether XLA compiles the step. Defaults
            to `"auto"`.
        steps_per_launch: `"auto"` or an integer >= 1, steps in one call.
            Defaults to `"auto"`.
        feed: `"auto"`, `"resident"` (arrays live on the device; data that
            can't is refused) or `"stream"` (through `tf.data`). Defaults to
            `"auto"`.
        cache: Bool, whether measured times are kept for the next process, in
            the folder that `FASTKERAS_CACHE_DIR` names. Defaults to True.
        signature: `"relax"` (a step takes any batch; what varies becomes
            open), `"pin"` (one trace: the number of rows is open, all else is
            as in the first batch, and another shape or dtype is an error), or
            what is pinned: a structure of `tf.TensorSpec` or
            `keras.InputSpec` like the batches. Steps are then run one by one;
            a short last window of `Accumulate` has a trace of its own.
            Defaults to `"relax"`.
        warmup_launches: Integer >= 1, the first launches of each tier, which
            `perf_report()` leaves out of the time per step; the first of all
            compiles. Defaults to `1`.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If an argument is out of range.

    Example:

    >>> Execution(jit=False).jit
    False
    """

    jit: object = "auto"
    steps_per_launch: object = "auto"
    feed: str = "auto"
    cache: bool = True
    signature: object = "relax"
    warmup_launches: int = 1

    def __post_init__(self):
        if not isinstance(self.jit, bool) and self.jit != "auto":
            raise ValueError(
                checks.message(
                    "`jit` must be 'auto', True or False",
                    f"jit={self.jit!r}",
                    "Leave it out for 'auto'.",
                )
            )
        if self.steps_per_launch != "auto":
            checks.positive_int(
                self.steps_per_launch,
                "steps_per_launch",
                "Leave it out for 'auto'.",
            )

        checks.one_of(self.feed, "feed", ("auto", "resident", "stream"))
        checks.one_of(self.cache, "cache", (True, False))
        if isinstance(self.signature, str):
            checks.one_of(
                self.signature,
                "signature",
                ("relax", "pin"),
                "Or give the `tf.TensorSpec`s of a batch.",
            )
        else:
            specs = tree.map_structure(_spec, self.signature)
            # Lists come back from a config; batches are tuples.
            specs = tree.lists_to_tuples(specs)
            object.__setattr__(self, "signature", specs)
        checks.positive_int(
            self.warmup_launches, "warmup_launches", "Leave it out for 1."
        )

    @property
    def pins(self):
        """Whether the signature of the batches is pinned."""
        return self.signature != "relax"

    def get_config(self):
        """The constructor arguments, as Keras serialises them."""
        config = {
            f.name: getattr(self, f.name) for f in dataclasses.fields(self)
        }
        if not isinstance(self.signature, str):
            # Keras can read back its own specs, not those of TensorFlow.
            config["signature"] = keras.saving.serialize_keras_object(
                tree.map_structure(
                    lambda s: keras.KerasTensor(s.shape, s.dtype.name),
                    self.signature,
                )
            )
        return config

    @classmethod
    def from_config(cls, config):
        """Makes the value again from `get_config()`."""
        return cls(**keras.saving.deserialize_keras_object(config))


def _spec(leaf):
    """A spec of any kind as a `tf.TensorSpec`."""
    shape, dtype = (getattr(leaf, name, None) for name in ("shape", "dtype"))
    if shape is None or dtype is None:
        raise TypeError(
            checks.message(
                "`signature` must be 'relax', 'pin', or specs with a shape "
                "and a dtype in the structure of the batches",
                f"{leaf!r}",
                "Write, for example, signature=(tf.TensorSpec([None, 4]), "
                "tf.TensorSpec([None, 1])) for batches (x, y).",
            )
        )
    return tf.TensorSpec(shape, dtype)
