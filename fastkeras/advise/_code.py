"""What the user's own step does, read from its source.

Looked at are `call`, `train_step`, `compute_loss` and `compute_metrics` of the
model and its layers, its losses and metrics, and the methods they call on
`self`. Code of Keras, TensorFlow and this package is left out.
"""

import ast
import inspect
import textwrap
import types

import keras
import tensorflow as tf

from fastkeras._lib import private

_ENTRIES = ("call", "train_step", "compute_loss", "compute_metrics")
_LIBRARIES = ("keras", "tensorflow", "fastkeras")
_MAKERS = {"Variable", "add_weight", "add_variable"}


class Code:
    """The calls in the user's functions that are part of a step.

    Args:
        model: A compiled model.
    """

    def __init__(self, model):
        self.functions, self._model = {}, model
        for owner in private.flat_layers(model):
            for name in _ENTRIES:
                self._add_method(type(owner), name)
        for loss in private.tree.flatten(getattr(model, "loss", None)):
            if inspect.isfunction(loss):
                self._add(loss.__qualname__, loss)
            elif isinstance(loss, keras.losses.Loss):
                self._add_method(type(loss), "call")
        for metric in model.metrics:
            for each in (metric, *getattr(metric, "metrics", ())):
                self._add_method(type(each), "update_state")
        self._lists = _lists(model, self.functions.values())

    def _add_method(self, cls, name):
        function = getattr(cls, name, None)
        if inspect.isfunction(function):
            self._add(f"{cls.__name__}.{name}", function, cls)

    def _add(self, name, function, cls=None):
        function = inspect.unwrap(function)
        package = (function.__module__ or "").partition(".")[0]
        if name in self.functions or package in _LIBRARIES:
            return
        self.functions[name] = function
        for call in _calls(function):
            if cls is not None and _written(call).startswith(_own(function)):
                method = _written(call).removeprefix(_own(function))
                self._add_method(cls, method)

    @property
    def lists(self):
        """Dict of name to the Python lists these functions can add to."""
        return self._lists

    def scales(self):
        """Where the loss is scaled, or left to the `train_step` of Keras."""
        names = ("optimizer.scale_loss", "super().train_step")
        return self._where(lambda call: _written(call).endswith(names))

    def prints(self):
        """Where plain `print` is called."""
        return self._where(lambda call: _written(call) == "print")

    def counts(self):
        """Where an attribute of `self` is added to, or the like."""
        return [
            _place(name, function, node)
            for name, function in self.functions.items()
            for node in _nodes(function, ast.AugAssign)
            if ast.unparse(node.target).startswith(_own(function))
        ]

    def fetches(self):
        """Where `.numpy()` is called."""
        return self._where(
            lambda call: (
                isinstance(call.func, ast.Attribute)
                and call.func.attr == "numpy"
                and not call.args
            )
        )

    def makes_variables(self):
        """Where a variable is made."""
        return self._where(
            lambda call: _written(call).rpartition(".")[2] in _MAKERS,
            _makes_layer,
        )

    def compiled(self):
        """Dict of name to the `tf.function`s of the user's that are called."""
        found = {}
        for function in self.functions.values():
            seen = inspect.getclosurevars(function)
            found.update({**seen.globals, **seen.nonlocals})
        cls = type(self._model)
        own = {f"{cls.__name__}.{k}": k for k in dir(cls)}
        found.update(
            {
                name: getattr(self._model, k)
                for name, k in own.items()
                if _is_compiled(inspect.getattr_static(cls, k))
            }
        )
        return {k: v for k, v in found.items() if _is_compiled(v)}

    def _where(self, is_one, is_other=lambda function, call: False):
        found = []
        for name, function in self.functions.items():
            found += [
                _place(name, function, call)
                for call in _calls(function)
                if is_one(call) or is_other(function, call)
            ]
        return found


def _own(function):
    """How an attribute of its owner begins in a method, such as `self.`."""
    return f"{next(iter(inspect.signature(function).parameters), '')}."


def _place(name, function, node):
    """Where in the user's code a node of a function stands."""
    first = function.__code__.co_firstlineno
    return f"{name} (line {first + node.lineno - 1})"


def _calls(function):
    return _nodes(function, ast.Call)


def _nodes(function, kind):
    """The nodes of a kind in a function's source, if there is one."""
    try:
        source = textwrap.dedent(inspect.getsource(function))
        nodes = ast.walk(ast.parse(source))
    except (OSError, SyntaxError):
        # Typed into a prompt, or a lambda in the middle of an expression.
        return []
    return [node for node in nodes if isinstance(node, kind)]


def _is_compiled(value):
    return isinstance(value, tf.types.experimental.PolymorphicFunction)


def _makes_layer(function, call):
    """Whether a call makes a layer of Keras that has weights."""
    root, *names = _written(call).split(".")
    seen = inspect.getclosurevars(function)
    found = {**seen.globals, **seen.nonlocals}.get(root)
    for name in names:
        if not isinstance(found, (types.ModuleType, type)):
            return False
        found = getattr(found, name, None)
    if not isinstance(found, type) or not issubclass(found, keras.Layer):
        return False
    return issubclass(found, keras.layers.RNN) or (
        "add_weight" in inspect.getsource(found.build)
    )


def _written(call):
    return ast.unparse(call.func)


def _lists(model, functions):
    # What Keras itself keeps; with a name, as Keras counts those it gives.
    bare = keras.Model(name="bare"), keras.Sequential(name="bare")
    of_keras = {name for one in bare for name in vars(one)}
    places = {}
    for layer in private.flat_layers(model):
        name, cls = type(layer).__name__, type(layer)
        if cls.__module__.partition(".")[0] in _LIBRARIES:
            continue
        own = {**vars(cls), **vars(layer)}
        places.update(
            {f"{name}.{k}": v for k, v in own.items() if k not in of_keras}
        )
    for function in functions:
        seen = inspect.getclosurevars(function)
        places.update({**seen.globals, **seen.nonlocals})
    found = {}
    for name, value in places.items():
        if isinstance(value, list):
            found[name] = value
        elif isinstance(value, dict) and not name.startswith("__"):
            inner = ((k, v) for k, v in value.items() if isinstance(v, list))
            found.update({f"{name}[{k!r}]": v for k, v in inner})
    return found
