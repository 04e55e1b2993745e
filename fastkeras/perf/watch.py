"""Following only chosen variables with the gradient tape.

Does: chooses, once at `compile`, which trainable variables are trained. The
tape follows these alone, so a frozen prefix of the model runs outside it: no
activation is kept for it and the backward pass has no operation of it. A
layer with `trainable=False` gets the same without this feature.
When it helps: fine-tuning a head, training by parts, freezing by name.
Mathematics: same for the chosen variables; the others stay as they are, also
under weight decay.
Cost: none. The optimizer still holds slots for all trainable variables, so
that checkpoints can be exchanged; to save these too, set `trainable=False`.
Conflicts: a `train_step` of your own that does not call FastModel's. A
`BatchNormalization` whose gamma and beta are left out still updates its moving
statistics and normalises by batch; `trainable=False` runs it in inference mode.
Measured: no operation of the prefix in the backward graph
(tests/perf/test_watch.py).
Reference: https://www.tensorflow.org/guide/autodiff ("Controlling what the
tape watches").
"""

import dataclasses
import fnmatch
from typing import ClassVar

import keras

from fastkeras._lib import checks
from fastkeras._lib import private
from fastkeras.perf._feature import Feature
from fastkeras.perf._feature import Stage


@keras.saving.register_keras_serializable("fastkeras")
@dataclasses.dataclass(frozen=True)
class Watch(Feature):
    """Trains only the chosen variables.

    Each entry of `include` and `exclude` is a layer, the name of a layer, a
    pattern for variable paths (`"*/bias"`, as in `fnmatch`), or a function of
    a variable that returns a bool. To be saved with the model, a function
    must be registered with `keras.saving.register_keras_serializable`.

    Args:
        include: An entry or a list of them. Defaults to `None`: all.
        exclude: An entry or a list of them, taken away from `include`.
            Defaults to `None`: nothing.

    Raises:
        TypeError: If an entry is none of the above.
        ValueError: If both are left out; at `compile`, if an entry matches
            nothing or nothing is left to train.

    Example:

    >>> Watch(exclude="embedding")
    Watch(include=(), exclude=('embedding',))

    Reference: https://www.tensorflow.org/guide/autodiff
    """

    include: object = None
    exclude: object = None

    stage: ClassVar[Stage] = Stage.WATCH

    def __post_init__(self):
        for field in ("include", "exclude"):
            entries = _entries(getattr(self, field), field)
            object.__setattr__(self, field, entries)
        if not self.include and not self.exclude:
            raise ValueError(
                checks.message(
                    "`Watch` needs `include` or `exclude`",
                    "neither",
                    "To train everything, leave Watch out of `perf`.",
                )
            )

    def get_config(self):
        return {
            field: [
                entry
                if isinstance(entry, str)
                else keras.saving.serialize_keras_object(entry)
                for entry in getattr(self, field)
            ]
            for field in ("include", "exclude")
        }

    @classmethod
    def from_config(cls, config):
        return cls(
            **{
                field: [
                    entry
                    if isinstance(entry, str) or callable(entry)
                    else keras.saving.deserialize_keras_object(entry)
                    for entry in entries
                ]
                for field, entries in config.items()
            }
        )

    def watch(self, model, variables):
        include = _matched(self.include, "include", model, variables)
        exclude = _matched(self.exclude, "exclude", model, variables)
        chosen = [
            v
            for v in variables
            if (not self.include or id(v) in include) and id(v) not in exclude
        ]
        if not chosen:
            raise ValueError(
                checks.message(
                    "`Watch` must leave at least one trainable variable",
                    repr(self),
                    "Widen `include` or narrow `exclude`.",
                )
            )
        return chosen


def _entries(value, field):
    if value is None:
        return ()
    if not isinstance(value, (list, tuple)):
        value = [value]
    out = []
    for entry in value:
        if isinstance(entry, keras.Layer):
            entry = entry.name
        if not isinstance(entry, str) and not callable(entry):
            raise TypeError(
                checks.message(
                    f"`{field}` takes layers, names, patterns and functions",
                    f"{field}={entry!r}",
                    "Give a layer of the model or its name.",
                )
            )
        out.append(entry)
    return tuple(out)


def _matched(entries, field, model, variables):
    """Ids of the variables that any entry matches."""
    layers = {layer.name: layer for layer in private.flat_layers(model)}
    found = set()
    for entry in entries:
        ids = {id(v) for v in variables if _matches(entry, v, layers)}
        if not ids:
            names = [*layers, *(v.path for v in variables)]
            raise ValueError(
                checks.message(
                    f"Each entry of `{field}` must match a trainable variable",
                    f"{field}={entry!r}",
                    checks.nearest(entry, names)
                    + "Variables are named by path, such as "
                    f"{variables[0].path!r}.",
                )
            )
        found |= ids
    return found


def _matches(entry, variable, layers):
    if not isinstance(entry, str):
        return bool(entry(variable))
    if entry in layers and any(
        variable is v for v in layers[entry].trainable_variables
    ):
        return True
    return fnmatch.fnmatchcase(variable.path, entry)
