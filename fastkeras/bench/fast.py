"""The side of FastModel: warm when its pilot has made its choices.

Example:

>>> part = {"tier": "graph-step", "choices": [],
...     "compile seconds": {"graph-loop": 0.4}, "time per step": {}}
>>> open_trials({"resident": part, "traces": {}})
['graph-loop']
"""

import json

import keras

from fastkeras.bench.sides import Side
from fastkeras.model import FastModel
from fastkeras.perf import Execution

#: No change of any choice for so long counts as settled.
QUIET_SECONDS = 1.5
#: The report is read no more often than this.
LOOK_SECONDS = 0.1


def feeds_of(section):
    """The part of each feed in a section of `perf_report`."""
    return {
        name: part
        for name, part in section.items()
        if isinstance(part, dict) and "tier" in part
    }


def open_trials(section):
    """Tiers that are being compared: measured or compiled, not yet judged.

    Args:
        section: Dict, `train_step` or `test_step` of `perf_report`.

    Returns:
        List of names of tiers.

    Example:

    >>> open_trials({"resident": {"tier": "graph-step", "choices": ["No."]}})
    []
    """
    found = []
    for part in feeds_of(section).values():
        seen = {
            *part.get("compile seconds", ()),
            *part.get("time per step", ()),
        }
        words = " ".join(part["choices"])
        found += sorted(t for t in seen - {part["tier"]} if t not in words)
    return found


class Settling:
    """Tells from report after report whether the choices have been made.

    Args:
        clock: `fastkeras.measure.Clock`.
        seconds: Float, for how long nothing must change.

    Example:

    >>> from fastkeras import measure
    >>> clock = measure.ManualClock()
    >>> settling = Settling(clock, seconds=1.0)
    >>> part = {"tier": "graph-loop", "choices": []}
    >>> settling.look({"resident": part})
    False
    >>> clock.advance(1.0)
    >>> settling.look({"resident": part})
    True
    """

    def __init__(self, clock, seconds=QUIET_SECONDS):
        self._clock = clock
        self._seconds = seconds
        self._last = None
        self._since = clock.now()

    def look(self, section):
        """Takes in a section of the report; returns whether it is settled."""
        state = json.dumps(
            {
                name: [
                    part["tier"],
                    part["choices"],
                    sorted(part.get("compile seconds", ())),
                ]
                for name, part in feeds_of(section).items()
            }
        )
        now = self._clock.now()
        if state != self._last or open_trials(section):
            self._last, self._since = state, now
        return now - self._since >= self._seconds


class FastSide(Side):
    """`FastModel(perf="auto")` on a row.

    Args:
        row: `Row`.
        data: Tuple `(x, y)`; drawn anew if None.
        clock: `fastkeras.measure.Clock`.

    Example:

    >>> from fastkeras.bench.rows import ROWS
    >>> side = FastSide(ROWS["one_step"])
    >>> side.first() > 0
    True
    >>> sorted(side.describe())
    ['choices', 'compile_seconds', 'report', 'settled', 'tier']
    """

    def __init__(self, row, data=None, clock=None):
        super().__init__(
            row, FastModel, {"perf": Execution(cache=False)}, data, clock
        )
        # Nothing of it is searched, and a plan is no plain value.
        self.options = {}
        self.settled = False

    def warm(self, seconds):
        """Runs until the pilot has settled.

        Args:
            seconds: Float, the most it may take.
        """
        settling = Settling(self.clock)
        end = self.clock.now() + seconds
        if self.row.method == "fit":
            # As a long training: what pays there is what is measured.
            self._fit(10**6, _Until(self, settling, end))
        else:
            # As many evaluations, for the same reason.
            many = {"_passes": 10**6} if self.row.method == "evaluate" else {}
            while not self._is_done(settling, end):
                self._call(**many)
        self._each = self._run(1)

    def _is_done(self, settling, end):
        over = self.clock.now() >= end
        if self.row.method == "predict":
            # What it tries depends on nothing but the time spent in it.
            self.settled = over and not open_trials(self._section())
        else:
            self.settled = settling.look(self._section())
        return self.settled or over

    def _section(self):
        name = {"fit": "train_step", "evaluate": "test_step"}
        report = self.model.perf_report().to_dict()
        if self.row.method == "predict":
            # It has one feed, which is not named.
            return {"predict": report.get("predict_step", {})}
        return report.get(name.get(self.row.method), {})

    def describe(self):
        """What the engine chose, from `perf_report`, as plain values."""
        feeds = feeds_of(self._section())
        return {
            "tier": ", ".join(p["tier"] for p in feeds.values()) or None,
            "settled": self.settled,
            "choices": [c for p in feeds.values() for c in p["choices"]],
            "compile_seconds": {
                tier: seconds
                for p in feeds.values()
                for tier, seconds in p.get("compile seconds", {}).items()
            },
            "report": self.model.perf_report().to_dict(),
        }


class _Until(keras.callbacks.Callback):
    """Ends a `fit` whose pilot has settled, or whose time is up."""

    def __init__(self, side, settling, end):
        super().__init__()
        self._side = side
        self._settling = settling
        self._end = end
        self._next = 0.0

    def on_epoch_end(self, epoch, logs=None):
        now = self._side.clock.now()
        if now < self._next:
            return
        self._next = now + LOOK_SECONDS
        if self._side._is_done(self._settling, self._end):
            self.model.stop_training = True
