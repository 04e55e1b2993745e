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
LEAST_TURNS, MOST_TURNS = 3, 15


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

    def _take_turns(self):
        times = collections.defaultdict(list)
        for turn in range(MOST_TURNS):
            if turn >= LEAST_TURNS and self._is_over(1.0):
                break
            self._say(f"turn {turn + 1}")
            for name in order(list(self._sides), turn):
                times[name].append(self._sides[name].turn())
        # Where the default is the best setting, it is measured once.
        for best, default in (("best_stock", "stock"), ("jax_best", "jax")):
            if default in times and best not in times:
                times[best] = times[default]
        for name, side in self._sides.items():
            self.record[name] = {
                "options": side.options,
                "loss": side.loss,
                **side.describe(),
            }
        for best, default in (("best_stock", "stock"), ("jax_best", "jax")):
            if best not in self._sides and default in self._sides:
                self.record[best] = dict(self.record[default])
        results.fill(self.record, times, self._first)
        self.record["seconds"] = self._clock.now() - self._start
