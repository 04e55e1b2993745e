"""TARGET, what a command looks at: a model and data to train it on.

`file.py:function` names a function that takes nothing and returns a compiled
model and its data; a `.keras` file is loaded, and its data made up from the
shapes of its inputs and outputs.
"""

import contextlib
import importlib.util
import inspect
import logging
import pathlib
import sys

import keras
import numpy as np
import tensorflow as tf

from fastkeras._lib import checks
from fastkeras._lib import private
from fastkeras._lib import private_calls
from fastkeras.cli._common import UsageError

_HELP = (
    "file.py:function, a function that returns (model, data), or a .keras "
    "file, which is given made-up data"
)
_ROWS = 1024
_BYTES = 2**27
# Of a dimension that is not known.
_LENGTH = 32


def add_arguments(parser):
    """Adds TARGET, and the option that goes with its data."""
    parser.add_argument("target", metavar="TARGET", help=_HELP)
    parser.add_argument(
        "--batch-size",
        type=int,
        default=32,
        metavar="N",
        help="rows of a batch, where the data are arrays; default: 32",
    )


def begin(target, say):
    """Loads a TARGET for a command, whose output is its own from here on."""
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    say(f"loading {target}")
    return load(target)


def load(target):
    """Loads the model and the data of a TARGET.

    Args:
        target: String.

    Returns:
        Tuple of the compiled model and its data: `(x, y)`, or whatever the
        function returned.

    Raises:
        UsageError: If there is no such file or function, or it does not give
            a compiled model.
    """
    path, colon, name = target.rpartition(":")
    if target.endswith(".keras"):
        with _told(target, "For classes of its own, give file.py:function."):
            model = keras.saving.load_model(_file(target))
        return _compiled(model, target), synthetic(model)
    if not (colon and path.endswith(".py")):
        raise UsageError(
            checks.message(
                "TARGET must be file.py:function or a .keras file",
                f"{target!r}",
                "The function returns (model, data).",
            )
        )
    with _told(target, "Call it in Python, or see --debug."):
        function = _function(_file(path), name)
        _check_takes_nothing(function, name)
        pair = function()
    if not (isinstance(pair, tuple) and len(pair) == 2):
        raise UsageError(
            checks.message(
                f"`{name}` must return a tuple of model and data",
                f"{type(pair).__name__}"
                + (f" of {len(pair)}" if isinstance(pair, tuple) else ""),
                "End it with `return model, (x, y)`.",
            )
        )
    model, data = pair
    _compiled(model, target)
    _check_data(data, target)
    return model, data


def _check_data(data, target):
    """Refuses arrays of which no batch can be made."""
    leaves = [data]
    if isinstance(data, tuple | list | dict):
        leaves = keras.tree.flatten(data)
    rows = {len(a) for a in leaves if getattr(a, "shape", ())}
    if len(rows) > 1 or all(leaf is None for leaf in leaves):
        found = f"arrays of {sorted(rows)} rows" if rows else repr(data)
        raise UsageError(
            checks.message(
                "The data of TARGET must be arrays of as many rows, or batches",
                f"{found} from {target}",
                "Return (x, y), a tf.data.Dataset or a PyDataset.",
            )
        )


@contextlib.contextmanager
def _told(target, fix):
    """What fails in the user's own file is an error of TARGET."""
    try:
        yield
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        raise UsageError(
            checks.message(
                "TARGET must load without an error",
                f"{type(error).__name__}: {checks.gist(error)} in {target}",
                fix,
            )
        ) from error


def _check_takes_nothing(function, name):
    needed = [
        p.name
        for p in inspect.signature(function).parameters.values()
        if p.default is p.empty
        and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if needed:
        raise UsageError(
            checks.message(
                f"`{name}` must be a function that takes no argument",
                f"one that takes {', '.join(needed)}",
                "Give them defaults, or name a function that calls it.",
            )
        )


def _file(path):
    if not pathlib.Path(path).is_file():
        raise UsageError(
            checks.message(
                "The file of TARGET must exist",
                f"{path!r}",
                "Give its path from this folder.",
            )
        )
    return path


def _function(path, name):
    # As `python file.py` does, so that it finds the modules beside it.
    sys.path.insert(0, str(pathlib.Path(path).resolve().parent))
    spec = importlib.util.spec_from_file_location(pathlib.Path(path).stem, path)
    module = importlib.util.module_from_spec(spec)
    # Keras finds the classes of a model by the name of their module.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        names = [k for k, v in vars(module).items() if callable(v)]
        raise UsageError(
            checks.message(
                f"{path} must hold the function that TARGET names",
                f"{name!r}",
                checks.nearest(name, names) + "Give the name of one in it.",
            )
        )
    return function


def _compiled(model, target):
    if not isinstance(model, keras.Model) or not model.compiled:
        kind = "one" if isinstance(model, keras.Model) else repr(type(model))
        raise UsageError(
            checks.message(
                "The model of TARGET must be a compiled keras.Model",
                f"{kind} that is not, from {target}",
                "Call `compile` before it is returned or saved.",
            )
        )
    return model


def synthetic(model):
    """Makes up arrays to train a model on.

    Args:
        model: A compiled `keras.Model` with known inputs.

    Returns:
        Tuple of `x` and `y`, in the structures of inputs and outputs: random
        numbers; integers below the size of the smallest vocabulary; words of
        the vocabularies; classes for losses that take classes, else zeros and
        ones.

    Raises:
        UsageError: If the model does not know its inputs.
    """
    graph = private_calls.graph_of_layers(model)
    if graph is None:
        raise UsageError(
            checks.message(
                "Data can be made up only for a model that knows its inputs",
                f"{model.name!r}, a subclass with its own `call`",
                "Give file.py:function, which returns model and data.",
            )
        )
    random = np.random.default_rng(0)
    row = sum(np.prod(_shape(s, 1)) for s in (*graph.inputs, *graph.outputs))
    rows = int(np.clip(_BYTES // (4 * row), 1, _ROWS))
    layers = private.flat_layers(model)
    sizes = [
        layer.input_dim
        for layer in layers
        if isinstance(layer, keras.layers.Embedding)
    ]
    size, words = min(sizes, default=2), _words(layers)
    x = keras.tree.map_structure(
        lambda s: _values(random, s, rows, size, words), graph.input
    )
    losses = _losses(model.loss, graph)
    y = [
        _targets(random, spec.shape, loss)
        for spec, loss in zip(_outputs(graph, rows), losses, strict=True)
    ]
    return x, keras.tree.pack_sequence_as(graph.output, y)


def _words(layers):
    """What the lookups of a model know, or something that none does."""
    found = [
        word
        for layer in layers
        if hasattr(layer, "get_vocabulary")
        for word in layer.get_vocabulary()
        if isinstance(word, str) and word not in ("", "[UNK]")
    ]
    return found or ["a", "b"]


def _outputs(graph, rows):
    """The specs of the outputs for the inputs that are made up."""
    inputs = keras.tree.map_structure(
        lambda s: keras.KerasTensor(_shape(s, rows), s.dtype), graph.input
    )
    return keras.tree.flatten(private_calls.compute_output_spec(graph, inputs))


def _shape(symbol, rows):
    return (rows, *(size or _LENGTH for size in symbol.shape[1:]))


def _values(random, symbol, rows, size, words):
    shape = _shape(symbol, rows)
    if symbol.dtype == "string":
        # Keras takes no array of objects beside one of numbers.
        return tf.constant(random.choice(np.array(words, object), shape))
    if "int" in symbol.dtype or symbol.dtype == "bool":
        return random.integers(0, size, shape).astype(symbol.dtype)
    return random.normal(size=shape).astype(symbol.dtype)


def _losses(loss, graph):
    """The loss of each output: by name, by position, or one for all."""
    if isinstance(loss, dict):
        names = graph.output_names
        if isinstance(graph.output, dict):
            names = sorted(graph.output)
        return [loss.get(name) for name in names]
    if isinstance(loss, list | tuple):
        return list(loss)
    return [loss] * len(graph.outputs)


def _targets(random, shape, loss):
    # A name, a function or an object.
    name = loss if isinstance(loss, str) else getattr(loss, "name", None)
    name = name or getattr(loss, "__name__", "")
    if name.startswith("sparse"):
        return random.integers(0, shape[-1], shape[:-1])
    if shape[-1] == 1:
        return random.integers(0, 2, shape).astype("float32")
    return np.eye(shape[-1], dtype="float32")[
        random.integers(0, shape[-1], shape[:-1])
    ]
