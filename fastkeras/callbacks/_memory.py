"""The lists of this process that hold tensors."""

import collections
import gc

import numpy as np
import tensorflow as tf

_ARRAYS = (tf.Tensor, np.ndarray)


def largest_list(least):
    """The list or deque with most bytes of tensors or arrays in it.

    Args:
        least: Integer, bytes below which a list is left out.

    Returns:
        Tuple of its name, its length and its bytes; None if there is none.
    """
    best = None, least
    for one in gc.get_objects():
        if type(one) not in (list, collections.deque):
            continue
        # Not by index: a list that another thread is still filling has holes.
        members = gc.get_referents(one)
        # The first alone is looked at, as there are many lists.
        if members and issubclass(type(members[0]), _ARRAYS):
            size = sum(map(_size, members))
            if size > best[1]:
                best = one, size
    if best[0] is None:
        return None
    return _name(best[0]), len(best[0]), best[1]


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
