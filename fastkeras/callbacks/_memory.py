"""What this process holds: containers of tensors, and graphs of functions."""

import collections
import gc

import numpy as np
import tensorflow as tf

_ARRAYS = (tf.Tensor, np.ndarray)
_CONTAINERS = (list, tuple, dict, set, collections.deque)


class Held:
    """The containers of tensors or arrays that are alive at a moment.

    Attributes:
        sizes: Dict of the id of a container to its bytes.
        graphs: Integer, graphs of functions that are alive.
    """

    def __init__(self):
        self.graphs = 0
        self.sizes = {}
        for one in _objects():
            size = _held(one)
            if size:
                self.sizes[id(one)] = size
            self.graphs += issubclass(type(one), tf.Graph)

    def grown(self, least):
        """The container that has grown most since then.

        Args:
            least: Integer, bytes of growth below which one is left out.

        Returns:
            Tuple of its name, its length and its bytes; None if there is none.
        """
        found = None
        for one in _objects():
            size = _held(one)
            growth = size - self.sizes.get(id(one), 0)
            if size and growth >= least:
                found, least = (one, size), growth
        if found is None:
            return None
        return _name(found[0]), len(found[0]), found[1]


def _objects():
    """All objects that hold others."""
    for one in gc.get_objects():
        yield one
        # Python leaves out dicts of numbers and NumPy's arrays.
        for member in gc.get_referents(one):
            if type(member) is dict and not gc.is_tracked(member):
                yield member


def _held(container, deep=True):
    """Bytes of the arrays in a container, and in those that are its members.

    Of many members the first tells the kind of all, as there are many
    containers.
    """
    kind = type(container)
    if kind not in _CONTAINERS or (deep and kind is tuple):
        return 0
    # Not by index: a list that another thread is still filling has holes.
    members = gc.get_referents(container)
    # Those of a dict are its keys too.
    if not any(_is_of_arrays(m, deep) for m in members[:2]):
        return 0
    return sum(
        _size(m) + (_held(m, deep=False) if deep else 0) for m in members
    )


def _is_of_arrays(member, deep):
    if issubclass(type(member), _ARRAYS):
        return True
    if not deep or type(member) not in _CONTAINERS:
        return False
    return any(
        issubclass(type(m), _ARRAYS) for m in gc.get_referents(member)[:2]
    )


def _size(value):
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, tf.Tensor):
        return (value.shape.num_elements() or 0) * value.dtype.size
    return 0


def _name(one):
    """`"Class.attribute"` or a variable's name, as far as it can be found."""
    kind = type(one).__name__
    for holder in gc.get_referrers(one):
        names = holder if isinstance(holder, dict) else None
        if names is None:
            names = getattr(holder, "__dict__", None) or {}
        for key, value in list(names.items()):
            if value is one and isinstance(key, str):
                owner = f"{type(holder).__name__}."
                if isinstance(holder, dict):
                    owner = _owner(holder)
                return f"the {kind} `{owner}{key}`"
    return f"a {kind}"


def _owner(names):
    for holder in gc.get_referrers(names):
        if getattr(holder, "__dict__", None) is names:
            return f"{type(holder).__name__}."
    return ""
