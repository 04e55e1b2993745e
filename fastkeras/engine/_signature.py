"""A pinned signature: one spec of the batches, one trace, no other shape."""

import weakref

import tensorflow as tf

from fastkeras._lib import checks
from fastkeras._lib.private import tree
from fastkeras.engine._traces import TraceOfFeed
from fastkeras.perf._padding import Padded
from fastkeras.perf._parts import Window

_NAMES = ("x", "y", "sample_weight")


class Signature:
    """The spec that the batches of a step are held to.

    Args:
        spec: Structure of `tf.TensorSpec` like the batches, or None to take
            that of the first batch, with an open number of rows.
        whole: Bool, False if a batch may leave out what comes last (the
            sample weights).
    """

    def __init__(self, spec, whole):
        self._spec = None if spec is None else _by_path(spec)
        self._whole = whole

    def check(self, data):
        """Refuses a batch, or window of batches, that does not fit.

        Raises:
            ValueError: If it does not; the message names the argument.
        """
        if isinstance(data, Window):
            for batch in data.batches:
                self.check(batch)
            return
        if isinstance(data, Padded):
            data = data.data
        found = _by_path(tree.map_structure(_open_spec, data))
        if self._spec is None:
            self._spec = found
        for path in self._spec.keys() | found.keys():
            pinned, given = self._spec.get(path), found.get(path)
            if path not in found and not self._whole:
                continue
            if not _fits(given, pinned):
                raise ValueError(_message(path, given, pinned))

    def like(self, data):
        """The spec in the structure of a batch, or window, that fits."""
        if isinstance(data, Window):
            return Window(tuple(map(self.like, data.batches)))
        if isinstance(data, Padded):
            rows, steps = tree.map_structure(_open_spec, data[1:])
            return Padded(self.like(data.data), rows, steps)
        paths = _by_path(data)
        return tree.pack_sequence_as(data, [self._spec[p] for p in paths])


class PinnedFunction:
    """A `tf.function` of one batch, traced once for the spec of a signature.

    A window of fewer batches, at the end of an epoch, has a trace of its own.

    Args:
        function: `tf.function`.
        signature: `Signature`, which has checked what the function is given.
    """

    def __init__(self, function, signature):
        self._function = function
        self._signature = signature
        self._sizes = set()
        self.check = signature.check

    def __call__(self, data):
        self.get_concrete_function(data)
        return self._function(data)

    def get_concrete_function(self, data):
        """Traces it for the spec of the signature, if it has not been."""
        size = len(data.batches) if isinstance(data, Window) else 1
        if size not in self._sizes:
            self._function.get_concrete_function(self._signature.like(data))
            self._sizes.add(size)

    def experimental_get_tracing_count(self):
        """How often the function was traced, as of a `tf.function`."""
        return self._function.experimental_get_tracing_count()


class PinnedRows:
    """A `PinnedFunction` on batches of resident data, gathered in its call.

    Args:
        pinned: `PinnedFunction`.
        function: `tf.function` of resident data that calls it, as
            `rows_function` makes it.
    """

    def __init__(self, pinned, function):
        self._pinned = pinned
        self._rows = TraceOfFeed(function, relax=True)
        self._checked = weakref.WeakSet()

    def __call__(self, spec, feed, *tensors):
        del spec
        if feed not in self._checked:
            self._pinned.check(feed.data)
            self._checked.add(feed)
        return self._rows(feed, *tensors)

    def experimental_get_tracing_count(self):
        """How often the step was traced: the gathering is not a trace of it."""
        return self._pinned.experimental_get_tracing_count()


def signature_of(model, name):
    """The signature that a model's `Execution` pins for a step, or None."""
    wanted = model.perf.execution.signature
    if wanted == "relax":
        return None
    spec = None if wanted == "pin" else wanted
    return Signature(spec, whole=name == "train_step")


def check_spec(model, spec):
    """Refuses data that a given signature excludes, before anything changes.

    Args:
        model: The model.
        spec: Structure of `tf.TypeSpec` of the batches.

    Raises:
        ValueError: If the data can't fit.
    """
    wanted = model.perf.execution.signature
    if not isinstance(wanted, str):
        Signature(wanted, whole=False).check(spec)


def _by_path(structure):
    """Leaves by their path; a batch of inputs alone is one of (x,)."""
    if not isinstance(structure, tuple):
        structure = (structure,)
    return dict(tree.flatten_with_path(structure))


def _open_spec(value):
    """The spec of a value, with an open number of rows."""
    if isinstance(value, (tf.RaggedTensor, tf.SparseTensor)):
        raise ValueError(
            checks.message(
                "A step whose `signature` is pinned takes dense tensors",
                f"a {type(value).__name__}",
                "Make it dense in the dataset, or leave `signature` out of "
                "`Execution`.",
            )
        )
    if not hasattr(value, "shape"):
        # No value, or what `tf.data` has in its place.
        return None
    shape = tf.TensorShape(value.shape)
    if shape.rank:
        shape = [None, *shape[1:]]
    return tf.TensorSpec(shape, value.dtype)


def _fits(given, pinned):
    if given is None or pinned is None:
        return given is pinned
    same = given.dtype == pinned.dtype
    return same and pinned.shape.is_compatible_with(given.shape)


def _message(path, given, pinned):
    name = dict(enumerate(_NAMES)).get(path[0], f"part {path[0]}")
    name += "".join(f"[{key!r}]" for key in path[1:])
    return checks.message(
        "A step whose `signature` is pinned takes one shape and dtype of each "
        "argument",
        f"{name}: {_text(given)}, where {_text(pinned)} is pinned",
        "Pad or cast the data (`perf.PadBatches`), or leave `signature` out "
        "of `Execution`.",
    )


def _text(spec):
    if spec is None:
        return "nothing"
    return f"{spec.dtype.name} {tuple(spec.shape)}"
