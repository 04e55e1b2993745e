"""What the state of a training is made of: taken, compared, put back."""

import inspect
import json
import re

import keras
import numpy as np
import tensorflow as tf

from fastkeras._lib import randomness
from fastkeras._lib.variables import of_step
from fastkeras.callbacks import _resume_files

#: Keras's callbacks whose attributes decide how a training goes on.
_STATEFUL = (
    keras.callbacks.EarlyStopping,
    keras.callbacks.History,
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.ReduceLROnPlateau,
)
#: Differences that are listed.
_LISTED = 8


def take(model, place):
    """All of a training that goes on, as plain values and arrays.

    Args:
        model: `FastModel` in a `fit`.
        place: `Place`, where it stands.

    Returns:
        Dict.
    """
    return {
        "place": (place.epoch, place.done),
        "logs": _host(place.logs),
        "stops": model.stop_training,
        "feed": place.feed.state(),
        "pilots": {
            k: p.state() for k, p in model.train_function.pilots.items()
        },
        "variables": [_components(v) for v in of_step(model)],
        "random": randomness.state(),
        "callbacks": _callbacks_state(place.callbacks.callbacks),
    }


def put_back(model, place, state):
    """Puts back all that `take` took, but for the feed and the place."""
    for variable, arrays in zip(
        of_step(model), state["variables"], strict=True
    ):
        for local, array in zip(_locals(variable), arrays, strict=True):
            local.assign(array)
    pilots = state["pilots"]
    if place.feed.name in pilots:
        pilot = model.train_function.pilot(place.feed)
        pilot.restore(pilots[place.feed.name])
    place.logs = state["logs"]
    model.stop_training = state["stops"]
    _set_callbacks_state(place.callbacks.callbacks, state["callbacks"])
    randomness.set_state(state["random"])


def is_finite(model, logs):
    """Whether the last loss and the weights are finite."""
    if not np.all(np.isfinite(_host(logs).get("loss", 0.0))):
        return False
    return all(
        np.all(np.isfinite(_locals(v)[0].numpy()))
        for v in model.trainable_variables
    )


def _host(logs):
    return {k: np.asarray(v)[()] for k, v in (logs or {}).items()}


def _locals(variable):
    """The variables of the replicas, or the one."""
    value = variable.value
    if isinstance(value, tf.distribute.DistributedValues):
        return value.values
    return (value,)


def _components(variable):
    return [local.numpy() for local in _locals(variable)]


# What must be the same.


def identity(model, feed, optimizer):
    """What a state can only go on with, as text.

    Args:
        model: `FastModel`, all of whose variables are made.
        feed: The feed.
        optimizer: String, `config_of` it when the training began.

    Returns:
        Dict of name to string, or to a list of strings.
    """
    return {
        "keras": keras.__version__,
        "tensorflow": tf.__version__,
        "model": type(model).__name__,
        "perf": str(model.perf),
        "optimizer": optimizer,
        "data": str((feed.name, feed.spec, feed.steps)),
        "rows": str(getattr(feed, "rows", None)),
        "replicas": str(model.distribute_strategy.num_replicas_in_sync),
        "variables": [
            f"{_plain(v.path)} {tuple(v.shape)} {v.dtype}"
            for v in of_step(model)
        ],
    }


def config_of(optimizer):
    """The configuration of an optimizer, as text."""
    config = keras.saving.serialize_keras_object(optimizer)
    if config is not None:
        config["config"].pop("name", None)
    return json.dumps(config, sort_keys=True, default=str)


def _plain(path):
    """A path without the counters that tell models of a process apart."""
    return re.sub(r"_\d+(?=[/_]|$)", "", path)


def _one_line(value):
    return " ".join(str(value).split())


def differences(old, new):
    """What two results of `identity` differ in.

    Returns:
        List of strings; the first few, and how many more there are.
    """
    found = []
    for name in old:
        if name != "variables":
            if old[name] != new[name]:
                one, two = (_one_line(x[name]) for x in (old, new))
                found.append(f"{name}: {one} was kept, now {two}")
            continue
        for k in range(max(len(old[name]), len(new[name]))):
            one, two = (
                names[k] if k < len(names) else "none"
                for names in (old[name], new[name])
            )
            if one != two:
                found.append(f"variable {k}: {one} was kept, now {two}")
    more = len(found) - _LISTED
    return found[:_LISTED] + ([f"{more} more"] if more > 0 else [])


# Callbacks.


def _callbacks_state(callbacks):
    """List of the class name and the plain attributes of each callback."""
    return [
        (type(c).__name__, {k: v for k, v in _attributes(c) if _is_plain(v)})
        for c in callbacks
        if _is_kept(c)
    ]


def _set_callbacks_state(callbacks, states):
    """Gives each callback the attributes of the same one of its class."""
    left = list(states)
    for callback in filter(_is_kept, callbacks):
        for entry in left:
            if entry[0] == type(callback).__name__:
                # Copies: the state may be put back twice.
                arrays = []
                plain = _resume_files.encode(entry[1], arrays)
                vars(callback).update(_resume_files.decode(plain, arrays))
                left.remove(entry)
                break


def _is_kept(callback):
    """Whether its attributes are a state: the user's own, and some of Keras.

    Others hold files, progress bars and times of this process.
    """
    ours = type(callback).__module__.split(".")[0] in ("keras", "fastkeras")
    return isinstance(callback, _STATEFUL) or not ours


def _attributes(callback):
    """The attributes that are not arguments of the constructor."""
    given = inspect.signature(type(callback).__init__).parameters
    for name, value in vars(callback).items():
        if name not in given and name not in ("params", "_model"):
            yield name, value


def _is_plain(value):
    try:
        _resume_files.encode(value, [])
    except TypeError:
        return False
    return True
