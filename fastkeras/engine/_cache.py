"""What earlier runs measured, kept in a small file for the next process.

A model that trained here before need not be compared again from nothing: the
seconds of a step in each tier, and what the tier took to compile, are kept by
a signature of the model, its data, its plan and this machine. They decide
which tier is tried and when, never what is computed: the launches of the new
run are compared as always before a tier is taken.
"""

import datetime
import hashlib
import json
import os
import pathlib
import tempfile

import keras
import tensorflow as tf

from fastkeras._lib import private
from fastkeras._lib.machine import machine
from fastkeras._lib.warn import warn

#: The variable that names the folder of the file.
FOLDER = "FASTKERAS_CACHE_DIR"
_FORMAT = 1
_MOST = 500


def path():
    """The file, which need not exist."""
    folder = os.environ.get(FOLDER)
    if folder is None:
        folder = pathlib.Path.home() / ".cache" / "fastkeras"
    return pathlib.Path(folder) / "choices.json"


def signature(model, name, feed):
    """What the time of a step depends on, as a short string.

    Args:
        model: A model that has run one step.
        name: String, `"train_step"` or `"test_step"`.
        feed: The feed.

    Returns:
        String of hexadecimal digits.
    """
    parts = [
        name,
        feed.name,
        str(feed.spec),
        [type(layer).__name__ for layer in private.flat_layers(model)],
        [(tuple(v.shape), str(v.dtype)) for v in model.variables],
        type(model.optimizer).__name__,
        repr(model.perf),
        model.requested_jit,
        (tf.__version__, keras.__version__),
        machine(),
    ]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def load(key):
    """What was measured under a signature.

    Args:
        key: String of `signature`.

    Returns:
        Dict of tier to a tuple of seconds: of a step, and to compile.
    """
    return _read().get(key, {}).get("tiers", {})


def save(key, tiers):
    """Keeps what was measured; a file that can't be written is said once.

    Args:
        key: String of `signature`.
        tiers: Dict as `load` returns it.
    """
    entries = _read()
    old = entries.pop(key, {}).get("tiers", {})
    today = datetime.date.today().isoformat()
    entries[key] = {"date": today, "tiers": {**old, **tiers}}
    kept = dict(list(entries.items())[-_MOST:])
    target = path()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # Renamed into place: a reader never sees half of it.
        with tempfile.NamedTemporaryFile(
            "w", dir=target.parent, delete=False, encoding="utf-8"
        ) as file:
            json.dump({"format": _FORMAT, "entries": kept}, file)
        os.replace(file.name, target)
    except OSError as error:
        warn(
            f"{target} can't be written ({error}); choices are not "
            f"remembered. Set {FOLDER}, or `Execution(cache=False)`.",
            told=_TOLD,
        )


_TOLD = set()


def _read():
    """The entries of the file; none if it is missing or not ours."""
    target = path()
    try:
        text = target.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        return _ignored(target, error)
    try:
        return _parsed(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return _ignored(target, f"{type(error).__name__}: {error}")


def _parsed(content):
    if content["format"] != _FORMAT:
        raise ValueError(f"format {content['format']!r}")
    return {
        key: {
            "date": entry["date"],
            "tiers": {
                tier: (float(step), float(compiled))
                for tier, (step, compiled) in entry["tiers"].items()
            },
        }
        for key, entry in content["entries"].items()
    }


def _ignored(target, why):
    warn(
        f"{target} is not read ({why}); what it remembers of earlier runs is "
        "measured again. Delete it to be rid of this line.",
        told=_TOLD,
    )
    return {}
