"""What this process holds: arrays and numbers by holder, graphs of functions.

Python's garbage collector knows what refers to others, but not arrays, strings
and numbers: their bytes are counted where they are referred to. What grows may
be a holder itself, such as a list of arrays, or hold new holders, such as a
list of objects with an array each.
"""

import collections
import gc
import sys
import types

import numpy as np
import tensorflow as tf

from fastkeras.callbacks._holders import described

#: Bytes below which a holder is left out: most hold a few names.
SMALL = 1024
#: Bytes from which on an array is told from the others of its holder.
LARGE = 2**16
#: How far up from a holder to look for what holds many of its kind.
LEVELS = 3
_PLAIN = (str, bytes, bytearray, int, float, complex, np.generic)
_CONTAINERS = {list, dict, set, collections.deque}
#: What a function refers to is there since it was defined.
_SKIPPED = {
    type,
    types.FrameType,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.GetSetDescriptorType,
}


class Held:
    """The holders that are alive at a moment.

    Attributes:
        sizes: Dict of the id of a holder to the bytes it alone refers to.
        large: Set of pairs of the id and the bytes of an array.
        graphs: Integer, graphs of functions that are alive.
    """

    def __init__(self):
        self.graphs = 0
        self.sizes = {}
        sizes = _Sizes()
        self.large = sizes.large
        for one in gc.get_objects():
            size = sizes.own(one)
            if size >= SMALL:
                self.sizes[id(one)] = size
            self.graphs += issubclass(type(one), tf.Graph)

    def grown(self, least):
        """What has grown most since then.

        Args:
            least: Integer, bytes of growth below which it is left out.

        Returns:
            Tuple of its name, its length and its bytes; None if there is none.
        """
        sizes, before = _Sizes(), self.sizes.get
        holders, growths = [], {}
        for one in gc.get_objects():
            growth = sizes.own(one) - before(id(one), 0)
            if growth >= SMALL:
                holders.append(one)
                growths[id(one)] = growth

        def growth_of(one):
            size = sizes.leaf(one)
            return 0 if (id(one), size) in self.large else size

        for _ in range(LEVELS):
            if not holders:
                return None
            most = max(holders, key=lambda one: growths[id(one)])
            if growths[id(most)] >= least:
                return described(most, growth_of, sizes.whole)
            growth_of = _by_id(growths)
            holders, growths = _parents(holders, growths)
        return None


def _by_id(growths):
    return lambda one: growths.get(id(one), 0)


def _parents(holders, growths):
    """What refers to holders, and by how much these have grown in all."""
    parents, sums = [], {}
    for one in gc.get_objects():
        if type(one) in _SKIPPED or one is holders or one is parents:
            continue
        found = growths.keys() & set(map(id, gc.get_referents(one)))
        if found:
            parents.append(one)
            sums[id(one)] = sum(growths[key] for key in found)
    return parents, sums


class _Sizes:
    """Bytes of objects, whose kinds are told apart once."""

    def __init__(self):
        self._leaves = {}
        self.large = set()

    def own(self, one):
        """Bytes that an object and the leaves it refers to take."""
        kind = type(one)
        if kind in _SKIPPED:
            return 0
        size = sys.getsizeof(one) if kind in _CONTAINERS else 0
        leaves, large = self._leaves, {}
        # Not by index: a list that another thread is still filling has holes.
        for member in gc.get_referents(one):
            kind = type(member)
            if kind not in leaves:
                leaves[kind] = self._leaf(kind)
            if leaves[kind]:
                part = leaves[kind](member)
                if part >= LARGE:
                    # One array may be in a list many times.
                    large[id(member)] = part
                else:
                    size += part
        self.large.update(large.items())
        return size + sum(large.values())

    def leaf(self, one):
        """Bytes of an object that holds no others, 0 for one that may."""
        leaf = self._leaf(type(one))
        return leaf(one) if leaf else 0

    def whole(self, one, levels=LEVELS):
        """Bytes of an object and of what it holds, some levels down."""
        size = self.leaf(one) or self.own(one)
        for member in gc.get_referents(one) if levels else ():
            if type(member) not in _SKIPPED and not self.leaf(member):
                size += self.whole(member, levels - 1)
        return size

    def _leaf(self, kind):
        """Function of an object to its bytes, if its kind holds no others."""
        if issubclass(kind, _PLAIN):
            return sys.getsizeof
        if issubclass(kind, np.ndarray):
            return lambda array: array.nbytes
        if issubclass(kind, (tf.Tensor, tf.Variable)):
            return _elements
        return self._untracked if kind in (dict, tuple) else None

    def _untracked(self, one):
        """Bytes of what Python leaves out, as it holds nothing but leaves."""
        return 0 if gc.is_tracked(one) else self.own(one)


def _elements(tensor):
    if tf.is_symbolic_tensor(tensor):
        return 0
    return (tensor.shape.num_elements() or 0) * tensor.dtype.size
