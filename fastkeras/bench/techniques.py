"""What each technique gives by itself, and added to those before it.

`python -m fastkeras bench --suite techniques`, for an MLP and a CNN.

Example:

>>> [technique.name for technique in TECHNIQUES][:3]
['traced step', 'pinned signature', 'launches']
"""

import collections
import dataclasses

import keras

from fastkeras import measure
from fastkeras._lib import checks
from fastkeras.bench import _technique_reasons as reasons
from fastkeras.bench import results
from fastkeras.bench._technique_pages import plot
from fastkeras.bench._technique_pages import table
from fastkeras.bench.rows import ROWS
from fastkeras.bench.runner import header
from fastkeras.bench.schedule import order
from fastkeras.bench.sides import Side
from fastkeras.model import FastModel
from fastkeras.perf import NAMES
from fastkeras.perf import Execution

SUITE, SECONDS = "techniques", 60.0
NAMES_OF_ROWS = ("mlp", "cnn")
LEAST_TURNS, MOST_TURNS = 3, 15


__all__ = ["TECHNIQUES", "Technique", "plot", "record", "run", "table", "ways"]


@dataclasses.dataclass(frozen=True)
class Technique:
    """One thing that is said to make training faster.

    Attributes:
        name: String.
        execution: Dict of arguments of `Execution`.
        feature: Function of a model's layer names to a feature, or None.

    Example:

    >>> TECHNIQUES[2].execution
    {'steps_per_launch': 32, 'signature': 'relax'}
    """

    name: str
    execution: dict = dataclasses.field(default_factory=dict)
    feature: object = None


EAGER = "eager loop"
TECHNIQUES = (
    Technique("traced step"),
    Technique("pinned signature", {"signature": "pin"}),
    Technique(
        "launches",
        # A pinned step is called one by one, so the loop replaces the pin.
        {"steps_per_launch": 32, "signature": "relax"},
    ),
    Technique("XLA", {"jit": True}),
    Technique(
        "mixed precision",
        feature=lambda layers: NAMES["mixed_float16"](),
    ),
    Technique(
        "gradient accumulation",
        feature=lambda layers: NAMES["accumulate"](4),
    ),
    Technique(
        "watching a part",
        feature=lambda layers: NAMES["watch"](exclude=layers[:-1]),
    ),
    Technique(
        "gradient checkpointing",
        feature=lambda layers: NAMES["rematerialize"](mode="all"),
    ),
)


def ways():
    """All ways of running a step, by name.

    Returns:
        Dict of name to a list of techniques; None for the eager loop. A name
        that begins with `"+ "` has all techniques before it as well.

    Example:

    >>> [t.name for t in ways()["+ launches"]]
    ['traced step', 'pinned signature', 'launches']
    """
    traced = TECHNIQUES[0]
    found = {EAGER: None, traced.name: [traced]}
    for k, technique in enumerate(TECHNIQUES[1:], 1):
        found[technique.name] = [traced, technique]
        found[f"+ {technique.name}"] = list(TECHNIQUES[: k + 1])
    # Alone or added to the first, the second is the same.
    del found[f"+ {TECHNIQUES[1].name}"]
    return found


def options(techniques, layers):
    """The arguments of `compile` for a way.

    Args:
        techniques: List of `Technique`, or None for the eager loop.
        layers: List of names of the model's layers that have weights.

    Returns:
        Dict.
    """
    pinned = {"jit": False, "steps_per_launch": 1, "cache": False}
    if techniques is None:
        return {"perf": [Execution(**pinned)], "run_eagerly": True}
    for technique in techniques:
        pinned.update(technique.execution)
    features = [t.feature(layers) for t in techniques if t.feature]
    return {"perf": [Execution(**pinned), *features]}


def run(rows=None, seconds=None, quick=False, say=None, make=None):
    """Measures all ways of each row in turns.

    Args:
        rows: List of names among `"mlp"` and `"cnn"`, or None for both.
        seconds: Float, about the time of the turns of a row. Defaults to
            `None`, which is 60.
        quick: Bool, whether to use short epochs and three turns only.
        say: Function of a string that is told what is being done.
        make: Function of a row and `compile` arguments to a side; for tests.

    Returns:
        Dict with the header of a bench, and `rows` as `record` gives them.

    Raises:
        ValueError: If a row is unknown, or `seconds` is not > 0.
        TypeError: If `seconds` is not a number.

    Example:

    >>> run(rows=[])["rows"]
    []
    """
    say = say or (lambda text: None)
    names = select(rows)
    seconds = SECONDS if seconds is None else seconds
    checks.positive_number(seconds, "seconds", "Give some seconds, as in 60.")
    report = header(SUITE, seconds, quick)
    report["rows"] = [
        _measured(ROWS[name], seconds, quick, say, make or _side)
        for name in names
    ]
    return report


def select(rows=None):
    """The names of the rows to measure.

    Args:
        rows: List of names, or None for all.

    Raises:
        ValueError: If a name is unknown; the message names the nearest.

    Example:

    >>> select()
    ['mlp', 'cnn']
    """
    for name in rows or ():
        checks.one_of(name, "rows", NAMES_OF_ROWS)
    return list(NAMES_OF_ROWS) if rows is None else list(rows)


def _side(row, given):
    return Side(row, FastModel, given)


def _measured(row, seconds, quick, say, make):
    row = row.quick() if quick else row
    sides, failed = {}, {}
    for name, techniques in ways().items():
        say(f"{row.name}: {name}")
        # The names of layers begin anew, so that each side has the same.
        keras.backend.clear_session()
        layers = [x.name for x in row.build(FastModel).layers if x.weights]
        keras.backend.clear_session()
        try:
            side = make(row, options(techniques, layers))
            side.first()
            side.warm(0.0)
        except (ValueError, RuntimeError) as error:
            failed[name] = str(error).splitlines()[0]
            continue
        sides[name] = side
    times = _turns(row, sides, 0.0 if quick else seconds, say)
    say(f"{row.name}: reasons")
    return record(row, times, failed, reasons.facts(row, sides))


def _turns(row, sides, seconds, say):
    clock = measure.Clock()
    times, start = collections.defaultdict(list), clock.now()
    for turn in range(MOST_TURNS):
        if turn >= LEAST_TURNS and clock.now() - start >= seconds:
            break
        say(f"{row.name}: turn {turn + 1}")
        for name in order(list(sides), turn):
            times[name].append(sides[name].turn())
    return times


def record(row, times, failed, facts):
    """Figures of a row from its times.

    Args:
        row: `Row`.
        times: Dict of way to seconds, one a turn.
        failed: Dict of way to the first line of its error.
        facts: Dict, what reasons are drawn from.

    Returns:
        Dict of name, title, `alone` and `ordered` (lists of dicts: name,
        median, `gain` over the traced step or over the way before, `total`
        over the eager loop), `turns`, `facts` and `notes`.
    """
    names = [technique.name for technique in TECHNIQUES]
    alone = [(name, names[0]) for name in names[1:]]
    ordered, before = [], EAGER
    for k, name in enumerate(names):
        way = name if k < 2 else f"+ {name}"
        ordered.append((way, before))
        before = way if way in times else before
    figures = {
        kind: [
            _figures(times, way, base)
            for way, base in pairs
            if way in times and base in times
        ]
        for kind, pairs in (("alone", alone), ("ordered", ordered))
    }
    if names[0] in times:
        step = results.summary(times[names[0]])["median"]
        facts = {**facts, "step": step}
    return {
        "name": row.name,
        "title": row.title,
        "error": None,
        "eager": results.summary(times[EAGER]),
        "turns": len(times[EAGER]),
        "facts": facts,
        **figures,
        "notes": [
            *reasons.sentences(figures["alone"], figures["ordered"], facts),
            *(f"{way.strip('+ ')} fails: {why}" for way, why in failed.items()),
        ],
    }


def _figures(times, way, base):
    return {
        "name": way,
        **results.summary(times[way]),
        "gain": _ratio(times[base], times[way]),
        "total": _ratio(times[EAGER], times[way]),
    }


def _ratio(one, other):
    return dataclasses.asdict(measure.ratio(one, other))
