"""Activations dropped in the forward pass and computed again in the backward.

Does: runs chosen parts of the model, the blocks, so that only their inputs are
kept until the backward pass, which computes the inside of one block at a time
a second time (gradient checkpointing).
When it helps: the activations of a batch do not fit in memory, or leave no
room for a larger one. Parameters, slots and data are not made smaller.
Mathematics: same. A random layer draws the same numbers again and its seed
advances once; moving statistics, losses and states are taken over once.
Cost: the forward pass of the blocks a second time: 1.24 times the processor
time of a step of 64 Dense(512) in 16 blocks, 1.23 in chosen segments, whose
last is not run again; under XLA 1.29 and 1.23 (batch of 512, in turns).
Conflicts: a layer whose call does something else the second time (random
numbers that are not Keras's, Python callbacks, variables that are not Keras's)
is refused by name, and so is one made in a `keras.RematScope`. A `train_step`
of your own keeps it in effect. A tier that takes much more memory than the
graph is left out: its compiler keeps what is to be computed again.
Measured: the tensors of a step, as TensorFlow's allocator counts them on a
CPU. Chains of 16, 64 and 256 layers of 1 MB: 10, 18 and 34 MB in the graph, 18,
34 and 66 under XLA (64 layers without it: 67 in the graph); on one core, which
puts the gradients of weights off, 36 layers of 0.5 MB: 10 instead of 21; 64
layers of 1 MB with BatchNormalization and Dropout: 30 instead of 150. 16 blocks
of 4 layers of 1 MB, with 17 MB of weights: 24 instead of 72, most of it the
inputs of the blocks; in chosen segments 21; with Dropout 29 instead of 156,
with BatchNormalization 28 instead of 138, under XLA 25 instead of 169. Four
LSTM of 40 steps, each a block: 136 instead of 366.
Reference: Chen et al. 2016, arXiv:1604.06174.
"""

import dataclasses
import fnmatch
import inspect
import weakref
from typing import ClassVar

import keras

from fastkeras._lib import checks
from fastkeras._lib import private
from fastkeras._lib import private_calls
from fastkeras._lib.warn import warn
from fastkeras.perf import _chain
from fastkeras.perf._feature import Feature
from fastkeras.perf._feature import Stage
from fastkeras.perf._recompute import Block

_MODES = ("sqrt", "all", "budget")


@keras.saving.register_keras_serializable("fastkeras")
@dataclasses.dataclass(frozen=True)
class Rematerialize(Feature):
    """Computes activations again in the backward pass, to save memory.

    Args:
        layers: A layer, the name of a layer, a pattern for names
            (`"block_*"`), a class of layers or its name, or a list of these:
            each such layer is a block. Defaults to `None`: blocks are segments
            of a functional or Sequential model, chosen by `mode`.
        mode: `"sqrt"`: the segments that need least memory, of a chain of n
            equal layers about sqrt(n); `"all"`: each layer is a segment;
            `"budget"`: the segments that stay within `budget_bytes` and
            compute least a second time. Defaults to `"sqrt"`.
        budget_bytes: Integer >= 1, bytes that the activations of a batch (with
            `Microbatch`, of a slice) may take at once, as estimated from
            their shapes. For `mode="budget"` only. Defaults to `None`.

    Raises:
        TypeError: If an entry of `layers` is none of the above.
        ValueError: If an argument is out of range; at `compile`, if an entry
            matches no layer, or there is no graph to choose segments in; at
            the first step, if a block is not built or can't be run twice, or
            the budget is too small.

    Example:

    >>> Rematerialize("block_*").layers
    ('block_*',)

    Reference: Chen et al. 2016, https://arxiv.org/abs/1604.06174
    """

    layers: object = None
    mode: str = "sqrt"
    budget_bytes: int | None = None

    stage: ClassVar[Stage] = Stage.FORWARD
    saves_memory: ClassVar[bool] = True

    def __post_init__(self):
        if self.layers is not None:
            object.__setattr__(self, "layers", _entries(self.layers))
        checks.one_of(self.mode, "mode", _MODES)
        if self.budget_bytes is not None:
            fix = "To save as much as can be saved, use mode='sqrt'."
            checks.positive_int(self.budget_bytes, "budget_bytes", fix)
        if (self.mode == "budget") != (self.budget_bytes is not None):
            raise ValueError(
                checks.message(
                    "`budget_bytes` and mode='budget' go together",
                    f"mode={self.mode!r}, budget_bytes={self.budget_bytes}",
                    "Give both, or leave both out.",
                )
            )
        if self.layers is not None and self.mode != "sqrt":
            raise ValueError(
                checks.message(
                    "`mode` chooses blocks only where `layers` names none",
                    f"layers={self.layers}, mode={self.mode!r}",
                    "Leave one of them out.",
                )
            )

    def check(self, model, optimizer):
        _check_scopes(model)
        if self.layers is not None:
            for entry in self.layers:
                _check_entry(entry, model)
        elif _chain.main_graph(model) is None:
            raise ValueError(
                checks.message(
                    "Segments are chosen in a functional model, or in a "
                    "Sequential one that is built",
                    f"{model.name!r} of type {type(model).__name__}, and no "
                    "such model in it that holds most of its layers",
                    "Name the blocks, for example "
                    "`Rematerialize(layers='block_*')`.",
                )
            )

    def install(self, model):
        if self.layers is None:
            return self._install_chain(model)
        undo = [_install_block(layer) for layer in self._blocks(model)]
        return lambda: [each() for each in undo]

    def _install_chain(self, model):
        functional = _chain.main_graph(model)
        chain = _chain.Chain(functional, self.mode, self.budget_bytes)
        if not chain.saves:
            warn(
                f"Rematerialize has no effect on {functional.name!r}: it is "
                "too short to be cut into segments."
            )
            return lambda: None
        return private_calls.replace_run(functional, chain.run)

    def _blocks(self, model):
        """The matched layers that are not inside another one."""
        matched = [
            layer
            for layer in _candidates(model)
            if any(_matches(entry, layer) for entry in self.layers)
        ]
        inside = {
            id(inner)
            for layer in matched
            for inner in private.flat_layers(layer)
            if inner is not layer
        }
        return [layer for layer in matched if id(layer) not in inside]


def _entries(value):
    if not isinstance(value, (list, tuple)):
        value = [value]
    out = []
    for entry in value:
        if isinstance(entry, keras.Layer):
            entry = entry.name
        elif inspect.isclass(entry) and issubclass(entry, keras.Layer):
            entry = entry.__name__
        if not isinstance(entry, str):
            raise TypeError(
                checks.message(
                    "`layers` takes layers, their names, patterns and classes",
                    f"{entry!r}",
                    "Give a layer of the model, its name or its class.",
                )
            )
        out.append(entry)
    if not out:
        raise ValueError(
            checks.message(
                "`layers` must name at least one layer",
                f"layers={value!r}",
                "Leave it out to have segments chosen.",
            )
        )
    return tuple(out)


def _candidates(model):
    return [
        layer
        for layer in private.flat_layers(model)
        if layer is not model and not isinstance(layer, keras.layers.InputLayer)
    ]


def _matches(entry, layer):
    classes = [cls.__name__ for cls in type(layer).__mro__]
    return fnmatch.fnmatchcase(layer.name, entry) or entry in classes


def _check_entry(entry, model):
    layers = _candidates(model)
    if any(_matches(entry, layer) for layer in layers):
        return
    names = [layer.name for layer in layers]
    raise ValueError(
        checks.message(
            "Each entry of `layers` must match a layer of the model",
            f"layers={entry!r}, where the layers are {names}",
            checks.nearest(entry, names)
            + "Build a model that makes its layers late before you compile it.",
        )
    )


def _check_scopes(model):
    found = {
        layer.name: private_calls.scope_mode(layer)
        for layer in _candidates(model)
        if private_calls.scope_mode(layer) is not None
    }
    if found:
        raise ValueError(
            checks.message(
                "Either `Rematerialize` or `keras.RematScope` chooses what is "
                "computed again",
                f"layers made in a scope, and its mode: {found}",
                "Make the layers outside of `keras.RematScope`, or leave "
                "Rematerialize out of `perf`.",
            )
        )


def _install_block(layer):
    """Has a layer called as a block; returns a function that undoes it."""
    before = vars(layer).get("call")
    vars(layer)["call"] = Block(
        f"the layer {layer.name!r}",
        layer.call,
        private.flat_layers(layer),
        layer,
    )
    layer = weakref.ref(layer)

    def undo():
        if layer() is None:
            return
        if before is None:
            del vars(layer())["call"]
        else:
            vars(layer())["call"] = before

    return undo
