"""Measures a row: who runs when, within a budget of time.

First epochs of fresh models; warm-up; a search for the best stock setting;
then turns of all sides, one after the other, until the time is up. Works on
anything with `first`, `warm` and `turn`, so tests run it on sides that only
move a clock.

Example:

>>> len(order(["a", "b"], 0) + order(["a", "b"], 1))
4
"""

import collections
import statistics

from fastkeras.bench import results
from fastkeras.bench.jax_client import JaxError

#: Shares of the row's time: a second pair of first epochs only if the first
#: took less; the warm-up of FastModel; when no further stock setting is tried
#: (late: a best that leaves out the better ones would flatter FastModel).
SECOND_PAIR = 0.1
WARM = 0.35
SEARCH = 1.25
#: More time for a row that JAX is measured in too.
JAX_SHARE = 0.4
#: Rows may take so many times their time on average; those of a bench that is
#: late are cut, but not below this share.
OVERRUN, LEAST_SHARE = 2.5, 0.2
LEAST_TURNS, MOST_TURNS = 3, 15
_BEST = {"best_stock": "stock", "jax_best": "jax"}


def order(names, turn):
    """The sides in the order of a turn: each comes first equally often.

    Args:
        names: List of strings.
        turn: Integer, from 0.

    Returns:
        List of strings.

    Example:

    >>> order(["a", "b", "c"], 1)
    ['c', 'b', 'a']
    """
    return list(names) if turn % 2 == 0 else list(reversed(names))


def fair_share(seconds, rows, done, elapsed):
    """The time of the next row, so that all rows end about when they should.

    A row may take more than its time: what has to be compiled is compiled.
    Rows that come after such rows have less.

    Args:
        seconds: Float, the time of a row that was asked for.
        rows: Integer, how many rows there are.
        done: Integer, how many have been measured.
        elapsed: Float, seconds that they took.

    Returns:
        Float.

    Example:

    >>> fair_share(20.0, rows=4, done=2, elapsed=60.0)
    20.0
    >>> fair_share(20.0, rows=4, done=2, elapsed=150.0)
    10.0
    """
    left = OVERRUN * seconds * rows - elapsed
    share = left / (OVERRUN * (rows - done))
    return max(LEAST_SHARE * seconds, min(seconds, share))


class Schedule:
    """The measurement of one row.

    Args:
        row: `Row`.
        make: Function of a kind (`"stock"`, `"fast"`, `"jax"`, `"floor"`) and
            a dict of options to a side, or None where there is no such side.
        seconds: Float, the time it may take; what has to be done is done.
        clock: `fastkeras.measure.Clock`.
        say: Function of a string: what is being done.
        gpu: Bool, whether the models run on a GPU.
        search: Bool, whether to search all stock settings.

    Attributes:
        record: Dict with the keys `results.ROW_KEYS`.

    Example:

    >>> from fastkeras import measure
    >>> from fastkeras.bench.rows import ROWS
    >>> Schedule(ROWS["mlp"], None, 1.0, measure.Clock()).record["name"]
    'mlp'
    """

    def __init__(
        self, row, make, seconds, clock, say=None, gpu=False, search=True
    ):
        self.row = row
        self.record = results.blank(row)
        self._make = make
        self._seconds = seconds
        self._clock = clock
        self._start = clock.now()
        self._say = say or (lambda text: None)
        self._gpu = gpu
        self._search = search
        self._early = {}
        self._first = collections.defaultdict(list)
        self._sides = {}

    def run(self):
        """Measures the row.

        Returns:
            The record.
        """
        self._pair()
        self._warm_up()
        self._search_stock()
        self._add_jax()
        self._take_turns()
        return self.record

    def _is_over(self, share):
        return self._clock.now() - self._start >= share * self._seconds

    def _pair(self):
        self._say("first epochs")
        for kind in ("stock", "fast"):
            side = self._sides[kind] = self._make(kind, {})
            self._first[kind].append(side.first())
        # What the engine had done by then explains that time.
        self._early = self._sides["fast"].describe()
        if self._search and not self._is_over(SECOND_PAIR):
            # In the other order: what comes second may find things ready.
            for kind in ("fast", "stock"):
                self._first[kind].append(self._make(kind, {}).first())

    def _warm_up(self):
        self._say("warm-up")
        self._sides["stock"].warm(0.0)
        self._sides["fast"].warm(WARM * self._seconds)

    def _search_stock(self):
        stock = self._sides["stock"]
        options, notes = self.row.stock_options(self._gpu)
        self.record["notes"] += notes
        sides = [stock]
        for given in options if self._search else options[:1]:
            words = ", ".join(f"{k}={v}" for k, v in given.items())
            if self._is_over(SEARCH) and len(sides) > 1:
                self.record["notes"].append(f"stock {words}: no time left")
                continue
            self._say(f"stock {words}")
            sides.append(self._ready("stock", given))
        found = self._judge(sides)
        self.record["candidates"] = [
            {"options": s.options, "seconds": t} for s, t in found
        ]
        chosen = min(found, key=lambda pair: pair[1])[0]
        if chosen is not stock:
            self._sides["best_stock"] = chosen
        self.record["best_stock"] = {"options": chosen.options}

    def _judge(self, sides):
        """Pairs of side and seconds; the warm side is judged like the rest."""
        return [(side, side.turn()) for side in sides]

    def _ready(self, kind, options):
        side = self._make(kind, options)
        if side is not None:
            side.first()
            side.warm(0.0)
        return side

    def _add_jax(self):
        try:
            self._search_jax()
        except JaxError as error:
            self.record["notes"].append(f"Keras on JAX left out: {error}")
            for name in ("jax", "jax_best", "floor"):
                self._sides.pop(name, None)
                self.record[name] = None

    def _search_jax(self):
        jax = self._ready("jax", {})
        if jax is None:
            return
        self._say("Keras on JAX")
        self._seconds *= 1 + JAX_SHARE
        self._sides["jax"] = jax
        sides = [jax]
        steps = min(32, self.row.steps)
        if steps > 1:
            sides.append(self._ready("jax", {"steps_per_execution": steps}))
        found = self._judge(sides)
        chosen = min(found, key=lambda pair: pair[1])[0]
        if chosen is not jax:
            self._sides["jax_best"] = chosen
        self.record["jax_best"] = {"options": chosen.options}
        floor = self._ready("floor", {})
        if floor is not None:
            self._sides["floor"] = floor

    def _settle_best(self, times):
        """The default is the best where the search's choice did not last."""
        for best, default in _BEST.items():
            if default not in times:
                continue
            if best in times and statistics.median(
                times[best]
            ) >= statistics.median(times[default]):
                del self._sides[best]
                self.record["notes"].append(
                    f"{best}: the search chose other settings by one turn; "
                    "in all turns the default was faster"
                )
            if best not in self._sides:
                times[best] = times[default]

    def _take_turns(self):
        # The others have had a turn in their search; FastModel has not.
        self._sides["fast"].turn()
        times = collections.defaultdict(list)
        for turn in range(MOST_TURNS):
            if turn >= LEAST_TURNS and self._is_over(1.0):
                break
            self._say(f"turn {turn + 1}")
            for name in order(list(self._sides), turn):
                times[name].append(self._sides[name].turn())
        self._settle_best(times)
        for name, side in self._sides.items():
            self.record[name] = {
                "options": side.options,
                "loss": side.loss,
                **side.describe(),
            }
        for best, default in _BEST.items():
            if default in self._sides and best not in self._sides:
                self.record[best] = dict(self.record[default])
        results.fill(self.record, times, self._first)
        self.record["first_epoch"]["fast_did"] = {
            name: self._early.get(name)
            for name in ("tier", "choices", "compile_seconds")
        }
        self.record["seconds"] = self._clock.now() - self._start
