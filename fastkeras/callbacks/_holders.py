"""How a user calls what holds memory: the names that lead to it."""

import collections
import gc
import types

_CONTAINERS = (list, tuple, dict, set, collections.deque)
#: How many keys and indices a name may have.
LEVELS = 4


def described(holder, growth, size):
    """Says what a holder is.

    Args:
        holder: A container, or what has attributes.
        growth: Function of one of its members to the bytes it grew by.
        size: Function of an object to its bytes.

    Returns:
        Tuple of a name, a number of members and bytes.
    """
    names = _attributes(holder)
    if names:
        # Of attributes it is the one that has grown most.
        key = max(names, key=lambda name: growth(names[name]))
        value = names[key]
        name = f"the {type(value).__name__} `{_owner(holder)}{key}`"
    else:
        value, found = holder, _path(holder, LEVELS)
        kind = type(value).__name__
        name = f"the {kind} {found}" if found else f"a {kind}"
    length = len(value) if isinstance(value, _CONTAINERS) else 1
    return name, length, size(value)


def _attributes(holder):
    """Dict of name to value of what has attributes; {} for a container."""
    if isinstance(holder, dict):
        return holder if _of_namespace(holder) is not None else {}
    if isinstance(holder, _CONTAINERS):
        return {}
    return getattr(holder, "__dict__", {})


def _of_namespace(names):
    """The module, class or object whose attributes a dict holds, or None."""
    for one in gc.get_referrers(names):
        # That of a class is handed out as a copy.
        if isinstance(one, type) or getattr(one, "__dict__", None) is names:
            return one
    return None


def _owner(holder):
    if isinstance(holder, dict):
        holder = _of_namespace(holder)
    if isinstance(holder, types.ModuleType):
        return ""
    kind = holder if isinstance(holder, type) else type(holder)
    return f"{kind.__name__}."


def _path(one, levels):
    """What stands in the source for an object; `""` if none is found."""
    for holder in gc.get_referrers(one) if levels else ():
        found = _step(holder, one, levels)
        if found:
            return found
    return ""


def _step(holder, one, levels):
    if isinstance(holder, types.CellType):
        return _variable(holder)
    if isinstance(holder, tuple):
        return _default(holder, one)
    if isinstance(holder, types.GeneratorType):
        frame = holder.gi_frame
        names = frame.f_locals if frame else {}
        owner = f" of `{holder.__qualname__}`"
        return _key(names, one, "`{}`" + owner)
    names = _attributes(holder)
    wrapper = _of_namespace(names) if names else None
    if isinstance(wrapper, _CONTAINERS):
        # A list that TensorFlow has put in the place of a user's.
        return _path(wrapper, levels - 1)
    if names:
        return _key(names, one, f"`{_owner(holder)}{{}}`")
    if isinstance(holder, dict):
        found = _path(holder, levels - 1)
        return found and _key(holder, one, f"{found[:-1]}[{{!r}}]`")
    return ""


def _key(names, one, form):
    for key, value in list(names.items()):
        if value is one:
            return form.format(key)
    return ""


def _variable(cell):
    """The variable of a function that an inner function goes on to use."""
    for closure in gc.get_referrers(cell):
        if not isinstance(closure, tuple):
            continue
        for one in gc.get_referrers(closure):
            if isinstance(one, types.FunctionType):
                index = [c is cell for c in closure].index(True)
                name = one.__code__.co_freevars[index]
                return f"`{name}` of `{one.__qualname__}`"
    return ""


def _default(values, one):
    """The argument that an object is the default of."""
    for function in gc.get_referrers(values):
        if getattr(function, "__defaults__", None) is values:
            code = function.__code__
            names = code.co_varnames[: code.co_argcount][-len(values) :]
            form = f"`{{}}` of `{function.__qualname__}`"
            return _key(dict(zip(names, values, strict=True)), one, form)
    return ""
