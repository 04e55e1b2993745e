"""What a feature is: a frozen value with neutral hooks.

`FastModel.train_step` calls every hook of every feature while it is traced,
without asking which features there are. A hook that a feature leaves alone
returns its input, so an absent feature leaves no operation in the graph.
"""

import dataclasses
import enum
from typing import ClassVar

import keras
import tensorflow as tf


class Stage(enum.IntEnum):
    """The place of a feature in an update. A plan holds each stage once.

    Example:

    >>> Stage.WINDOW < Stage.SLICE < Stage.CLIP
    True
    """

    PAD = 0
    WINDOW = 1
    SLICE = 2
    WATCH = 3
    FORWARD = 4
    SCALE = 5
    GUARD = 6
    CLIP = 7


class Max(keras.metrics.Metric):
    """The largest value seen since the last reset (a scalar).

    Keras has no such metric. Every replica sees the same value, since it is
    taken after the sum over the replicas: hence the aggregation by mean.
    """

    def __init__(self, name="max", dtype=None):
        super().__init__(name=name, dtype=dtype)
        self.value = self.add_variable(
            (), "zeros", aggregation="mean", name="value"
        )

    def update_state(self, value, sample_weight=None):
        """Takes in one scalar; a `sample_weight` of 0 leaves it out."""
        value = tf.cast(value, self.value.dtype)
        if sample_weight is not None:
            value = tf.where(tf.cast(sample_weight, "bool"), value, 0)
        self.value.assign(tf.maximum(self.value.value, value))

    def result(self):
        """The largest value, a scalar tensor."""
        return self.value.value + 0.0


class State:
    """What a feature keeps between steps.

    Attributes:
        trackers: Dict of log name to metric; reset at each epoch's start.
        variables: Dict of name to `keras.Variable`; saved with the model.
        settings: Dict of name to a dict of `"requested"`, `"effective"` and
            `"reason"`: what was left to the feature, for the receipt.
    """

    def __init__(self):
        self.trackers = {}
        self.variables = {}
        self.settings = {}

    def add_variable(self, name, value, dtype):
        """Makes a scalar variable that is saved with the model."""
        self.variables[name] = keras.Variable(
            value,
            dtype=dtype,
            trainable=False,
            aggregation="only_first_replica",
            name=name,
        )
        return self.variables[name]

    def logs(self):
        """Dict of log name to scalar tensor."""
        return {name: t.result() for name, t in self.trackers.items()}


class Feature:
    """Base of all features: every hook does the neutral thing.

    A concrete feature is a frozen dataclass whose fields are its whole
    configuration, and overrides the few hooks it needs.

    Attributes:
        stage: `Stage`, its place in the update.
        mathematics: `"same"` or `"changed"`: whether the update differs from
            that of plain Keras on the same (big) batch.
        owns: Names of optimizer arguments that would do the same thing a
            second time; given together they are refused at `compile`.

    Example:

    >>> @dataclasses.dataclass(frozen=True)
    ... class Halve(Feature):
    ...     stage = Stage.CLIP
    ...     def clip(self, gradients, variables, state, ok):
    ...         return [None if g is None else g / 2 for g in gradients]
    >>> Halve().get_config()
    {}
    """

    stage: ClassVar[Stage]
    mathematics: ClassVar[str] = "same"
    owns: ClassVar[tuple[str, ...]] = ()

    #: Number of successive batches one update is made of.
    window: ClassVar[int] = 1
    #: Whether a window with a non-finite gradient is left out whole.
    guards: ClassVar[bool] = False
    #: What happens to a last window that is not full.
    keeps_remainder: ClassVar[bool] = True
    #: Whether a step that runs out of memory can be run again with less.
    shrinks: ClassVar[bool] = False
    #: Whether it is there so that a step takes less memory than without it.
    saves_memory: ClassVar[bool] = False
    #: The `tf.Variable`s in which it notes what goes by.
    notes: ClassVar[tuple] = ()

    def get_config(self):
        """The constructor arguments, as Keras serialises them."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}

    @classmethod
    def from_config(cls, config):
        """Makes the feature again from `get_config()`."""
        return cls(**config)

    def check(self, model, optimizer):
        """Refuses what can't work, before anything has changed."""

    def install(self, model):
        """Changes the model at `compile`; returns a function that undoes it."""
        return lambda: None

    def new_state(self):
        """Makes the variables and trackers the hooks below are given."""
        return State()

    def pad(self, batch, rows, spec):
        """Pads a batch on its way to the step.

        Args:
            batch: Nested structure of tensors, or None at a leaf.
            rows: Integer, the rows of a full batch; None for whole arrays,
                which get no further row.
            spec: The same structure of `tf.TypeSpec`: what is open in it
                varies from batch to batch.

        Returns:
            The batch, or a `Padded`.
        """
        return batch

    def output(self, y_pred):
        """Changes what the model returns from a call."""
        return y_pred

    def slices(self, model, batch, state):
        """Cuts a batch into a list of `Run`; None leaves it whole."""
        return None

    def shrink(self, state, error):
        """Makes steps traced from now on need less memory.

        Args:
            state: The feature's `State`.
            error: The exception of the step that ran out of memory.

        Returns:
            String that says what has changed.

        Raises:
            tf.errors.ResourceExhaustedError: If they can't need less.
        """
        raise error

    def watch(self, model, variables):
        """Chooses among the trainable variables."""
        return variables

    def scale(self, loss, state):
        """Scales the loss before the gradients are taken."""
        return loss

    def unscale(self, gradients, state):
        """Undoes `scale` on the gradients (float32 or wider)."""
        return gradients

    def clip(self, gradients, variables, state, ok):
        """Clips the gradients of the whole update."""
        return gradients

    def settle(self, state, ok):
        """Follows an update; `ok` is False if it was left out."""

    def complaint(self, state):
        """At the end of an epoch: a warning's text, or None."""
        return None
