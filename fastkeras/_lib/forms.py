"""The forms a model comes in: functional, subclassed, shared with another.

Functions here take the base class as an argument, so that nothing below
`model.py` knows FastModel.
"""

import contextlib
import copy
import functools
import inspect

import keras

from fastkeras._lib import checks
from fastkeras._lib import private
from fastkeras._lib import private_forms

_GRAPH = ("layers", "input_layers", "output_layers")


def from_graph(args, kwargs):
    """True if a model is made from inputs and outputs."""
    return private_forms.functional_init_arguments(args, kwargs)


def init_functional(model, *args, **kwargs):
    """Initialises a model from inputs and outputs.

    The functional class joins the bases of the model's own class, if it is
    not among them; base classes between it and `keras.Model` stay as they
    are, and can go on to make models with a `call` of their own.
    """
    cls = type(model)
    if not issubclass(cls, private.Functional):
        cls.__bases__ = (*cls.__bases__, private.Functional)
        cls.__new__(cls)
    private_forms.init_trainer(model)
    private.Functional.__init__(model, *args, **kwargs)


def is_functional(model):
    """True if the model was made from inputs and outputs."""
    return isinstance(model, private.Functional)


def keep_arguments(model, args, kwargs):
    """Keeps the plain constructor arguments of a subclass."""
    names = list(inspect.signature(type(model).__init__).parameters)[1:]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    # Copies: a constructor may change what it is given.
    vars(model)["_plain_arguments"] = {
        name: copy.deepcopy(value)
        for name, value in given.items()
        if name not in ("inputs", "outputs", "name", "trainable")
        and _is_plain(value)
    }


def _is_plain(value):
    if isinstance(value, dict):
        return all(isinstance(k, str) for k in value) and _is_plain(
            list(value.values())
        )
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return isinstance(value, (bool, int, float, str, type(None)))


def plain_arguments(model, base):
    """The plain constructor arguments of a subclass that writes no config.

    Keras makes a config of these for layers; for models it writes down the
    defaults, whatever was given.
    """
    if type(model).get_config is not base.get_config:
        return {}
    return vars(model)["_plain_arguments"]


@contextlib.contextmanager
def before_perf(model):
    """What `perf` has set, such as policies, is no part of a config."""
    model._uninstall()
    try:
        yield
    finally:
        model._install(model.perf)


def functional_config(model, functional):
    """The config of a model of any functional class: its graph and the rest.

    Args:
        model: The model.
        functional: A class with the plain functional constructor.

    Returns:
        Dict of the graph of layers, name, trainable, and the constructor's
        further plain arguments.
    """
    config = private.Functional.get_config(_seen_as(functional, model))
    return {**vars(model)["_plain_arguments"], **config}


def _seen_as(functional, model):
    view = object.__new__(functional)
    vars(view).update(vars(model))
    return view


def clone_functional(functional, stock, model, *args, **kwargs):
    """Clones a model of any functional class, for `clone_model`.

    Args:
        functional: A class with the plain functional constructor.
        stock: Keras's function, which clones a graph of layers.
        model: The model.
        *args: Further arguments of `stock`.
        **kwargs: Likewise.

    Returns:
        A model of the same class with new layers, compiled alike.
    """
    view = _seen_as(functional, model)
    vars(view)["compiled"] = False
    with before_perf(model):
        graph = stock(view, *args, **kwargs)
    clone = type(model)(
        inputs=graph.input,
        outputs=graph.output,
        name=model.name,
        **_further(model.get_config()),
    )
    if model.compiled:
        clone.compile_from_config(model.get_compile_config())
    return clone


def is_functional_config(config):
    """True if the config holds a graph of layers."""
    return all(key in config for key in _GRAPH)


def _further(config):
    """The constructor's arguments beside those of every functional model."""
    known = (*_GRAPH, "name", "trainable")
    return {k: v for k, v in config.items() if k not in known}


def functional_from_config(cls, config, custom_objects):
    """Makes a model of a functional class, with its further arguments."""
    further = _further(config)
    config = {k: v for k, v in config.items() if k not in further}

    def make(inputs, outputs, name, trainable):
        model = cls(inputs=inputs, outputs=outputs, name=name, **further)
        if trainable is not None:
            model.trainable = trainable
        return model

    return private_forms.functional_from_config(make, config, custom_objects)


class Shared:
    """Config of a model that shares the layers of a subclassed one."""

    make = None

    def get_config(self):
        """Holds the config of the model whose layers are shared."""
        source = vars(self)["_source"].model
        return {"source": keras.saving.serialize_keras_object(source)}

    def __reduce__(self):
        # This class was made at run time: pickle must not look for its name.
        unpickle, arguments = super().__reduce__()
        return getattr(self.make.__self__, unpickle.__name__), arguments

    @classmethod
    def from_config(cls, config, custom_objects=None):
        """Makes the source, and shares it."""
        return cls.make(
            keras.saving.deserialize_keras_object(
                config["source"], custom_objects=custom_objects
            )
        )


class _Source:
    """Holds the source model out of sight of Keras's tracking and saving."""

    def __init__(self, model):
        self.model = model


@functools.cache
def _shared_class(cls, base):
    class SharedFastModel(Shared, cls, base):
        make = base.from_keras

    made = SharedFastModel
    made.__name__ = made.__qualname__ = cls.__name__
    register = keras.saving.register_keras_serializable
    return register("fastkeras", "SharedFastModel")(made)


def from_keras(model, base, functional):
    """Makes a model of class `base` that shares the layers of another.

    Args:
        model: A `keras.Model`.
        base: The class to make it a model of.
        functional: The subclass of `base` that is made from a graph.

    Returns:
        An instance of `base`; the model itself if it is one already.

    Raises:
        TypeError: If `model` is not a `keras.Model`.
    """
    if not isinstance(model, keras.Model):
        raise TypeError(
            checks.message(
                "`model` must be a `keras.Model`",
                f"{model!r} of type {type(model).__name__}",
                "Give a Sequential, functional or subclassed model.",
            )
        )
    if isinstance(model, base):
        return model
    graph = private.graph_of(model)
    if graph is not None:
        return functional(*graph, name=model.name)
    return share(model, base)


def share(model, base):
    """Makes a model of class `base` out of a subclassed one.

    The methods of the subclass come first. The two objects hold the same
    layers and the same tracking lists; what the trainer keeps (the compiled
    state) is each one's own.

    Args:
        model: A subclassed `keras.Model`.
        base: Subclass of `keras.Model` to join.

    Returns:
        An instance of both classes.
    """
    cls = _shared_class(type(model), base)
    shared = cls.__new__(cls)
    # Keras wraps these for each object: those of `model` would build it.
    own = {name: vars(shared)[name] for name in ("build", "quantize")}
    vars(shared).update({**vars(model), **own})
    private_forms.init_trainer(shared)
    vars(shared)["_source"] = _Source(model)
    return shared
