"""The part of a plan that says how steps run."""

import dataclasses

import keras

from fastkeras._lib import checks


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

    def get_config(self):
        """The constructor arguments, as Keras serialises them."""
        return dataclasses.asdict(self)

    @classmethod
    def from_config(cls, config):
        """Makes the value again from `get_config()`."""
        return cls(**config)
