"""Runs rows: this process for TensorFlow, another one for JAX.

Example:

>>> [row.name for row in select("compute", ["lstm", "cnn"])]
['lstm', 'cnn']
"""

import datetime
import gc
import importlib.metadata
import os

import keras
import numpy as np

from fastkeras import measure
from fastkeras._lib import checks
from fastkeras.bench import jax_client
from fastkeras.bench.fast import FastSide
from fastkeras.bench.results import blank
from fastkeras.bench.rows import ROWS
from fastkeras.bench.rows import SUITES
from fastkeras.bench.schedule import Schedule
from fastkeras.bench.schedule import fair_share
from fastkeras.bench.sides import Side
from fastkeras.model import FastModel

#: Time for a row, unless `--quick` or `--seconds` says otherwise.
SECONDS, QUICK_SECONDS = 20.0, 4.0


def select(suite="all", names=None):
    """Chooses rows.

    Args:
        suite: String, `"overhead"`, `"compute"` or `"all"`.
        names: List of names of rows of that suite, or None for all.

    Returns:
        List of `Row`s, in the order of the table.

    Raises:
        ValueError: If a name is unknown; the message names the nearest.

    Example:

    >>> len(select())
    13
    """
    checks.one_of(suite, "suite", (*SUITES, "all"))
    found = [r for r in ROWS.values() if suite in (r.suite, "all")]
    known = [row.name for row in found]
    for name in known if names is None else names:
        checks.one_of(name, "rows", known)
    return [r for r in found if names is None or r.name in names]


def run(
    suite="all",
    rows=None,
    seconds=None,
    quick=False,
    jax_python=None,
    say=None,
):
    """Measures stock Keras against FastModel, in turns, row by row.

    Args:
        suite: String, `"overhead"`, `"compute"` or `"all"`.
        rows: List of names of rows of that suite, or None for all.
        seconds: Float, about the time of a row. Defaults to 20, quick 4.
        quick: Bool, whether to use short epochs and try one stock setting
            only: to see that it works, not to learn a speed.
        jax_python: String, an interpreter with Keras and JAX, or None for
            this one, if it has JAX.
        say: Function of a string that is told what is being done.

    Returns:
        Dict with the keys `fastkeras.bench.results.KEYS`. A row that failed
        has its `error`; an interrupt ends the list early.

    Raises:
        ValueError: If a suite or a row is unknown, or `seconds` is not > 0.
        TypeError: If `seconds` is not a number.
        fastkeras.bench.jax_client.JaxError: If `jax_python` does not start.

    Example:

    >>> report = run(rows=[])
    >>> report["rows"], "tensorflow" in report["versions"]
    ([], True)
    """
    chosen = select(suite, rows)
    seconds = seconds or (QUICK_SECONDS if quick else SECONDS)
    checks.positive_number(seconds, "seconds", "Give some seconds, as in 20.")
    say = say or (lambda text: None)
    no_jax = jax_client.why_not(jax_python)
    jax = None if no_jax or not chosen else jax_client.Jax(jax_python)
    report = header(suite, seconds, quick)
    report["jax"] = {"left_out": no_jax, "versions": jax and jax.versions}
    watch = measure.Stopwatch(measure.Clock())
    try:
        for done, row in enumerate(chosen):
            place = f"[{done + 1}/{len(chosen)}] {row.name}"
            now = fair_share(seconds, len(chosen), done, watch.seconds)
            report["rows"].append(
                _measured(row, jax, now, quick, _prefixed(say, place))
            )
    except KeyboardInterrupt:
        report["interrupted"] = True
    finally:
        if jax:
            jax.close()
    return report


def _prefixed(say, place):
    return lambda text: say(f"{place}: {text}")


def _measured(row, jax, seconds, quick, say):
    row = row.quick() if quick else row
    gpu = bool(_machine()["machine"]["gpus"])
    clock = measure.Clock()
    keras.backend.clear_session()
    gc.collect()
    schedule = Schedule(
        row,
        _maker(row, jax, quick),
        seconds,
        clock,
        say=say,
        gpu=gpu,
        search=not quick,
    )
    try:
        return schedule.run()
    except Exception as error:
        # One row must not cost the others; the table and the exit code say so.
        text = (str(error).splitlines() or [""])[0]
        return {**blank(row), "error": f"{type(error).__name__}: {text}"}
    finally:
        if jax:
            _clear(jax)


def _clear(jax):
    try:
        jax.ask(do="clear")
    except jax_client.JaxError:
        # It has ended; each further row will say so.
        pass


def _maker(row, jax, quick):
    data = row.data()

    def make(kind, options):
        if kind == "fast":
            return FastSide(row, data)
        if kind == "stock":
            return Side(row, keras.Model, options, data)
        if jax is None or (kind == "floor" and row.name != "mlp"):
            return None
        return jax.side(kind, row, options, quick)

    return make


def header(suite, seconds, quick):
    """What ran where, with no rows yet: see `results.KEYS`."""
    now = datetime.datetime.now(datetime.timezone.utc)
    return {
        "fastkeras": version(),
        "date": now.isoformat(timespec="seconds"),
        **_machine(),
        "suite": suite,
        "seconds_per_row": seconds,
        "quick": quick,
        "jax": None,
        "rows": [],
    }


def version():
    """The version of the package, as installed.

    Example:

    >>> isinstance(version(), str)
    True
    """
    try:
        return importlib.metadata.version("fastkeras")
    except importlib.metadata.PackageNotFoundError:
        return "(a copy that is not installed)"


def _machine():
    """Machine and versions, by the report of a model that has been run.

    Both classes run once, so that the first row does not pay for what a
    process does only once.
    """
    if not _machine.known:
        for model_class in (keras.Model, FastModel):
            inputs = keras.Input((1,))
            model = model_class(inputs, keras.layers.Dense(1)(inputs))
            model.compile("adam", "mse")
            x = np.ones((4, 1), "float32")
            model.fit(x, x, verbose=0)
        report = model.perf_report().to_dict()
        load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
        _machine.known = {
            "machine": {**report["machine"], "load": load},
            "versions": report["versions"],
        }
    return _machine.known


_machine.known = {}
