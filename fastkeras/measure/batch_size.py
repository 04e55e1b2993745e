"""The fastest batch size of a model, by measurement.

Example:

>>> rates = {8: summarize([100.0], ""), 16: summarize([198.0], ""),
...          32: summarize([200.0], "")}
>>> BatchSizes(rates, {}).knee
16
"""

import dataclasses

import tensorflow as tf

from fastkeras._lib import checks
from fastkeras._lib.private import tree
from fastkeras.measure._state import as_before
from fastkeras.measure.clock import Clock
from fastkeras.measure.memory_plan import check_ready
from fastkeras.measure.memory_plan import memory
from fastkeras.measure.receipt import Saved
from fastkeras.measure.stats import summarize

#: Sizes are as good as the fastest from this share of its rate on.
FLAT = 0.95
#: Measured steps of each size, in turns, after two that warm it up.
ROUNDS = 7
_SMALLEST = 8


@dataclasses.dataclass(frozen=True)
class BatchSizes(Saved):
    """How fast a model trains at each batch size.

    Attributes:
        rates: Dict of batch size to `Summary` of rows per second.
        left_out: Dict of batch size to the reason it was not measured.
        update: Integer, the rows of an update, made of as many batches as it
            takes; None where each batch is an update.

    Example:

    >>> BatchSizes({8: summarize([2.0], "")}, {16: "too large"}).best
    8
    """

    rates: dict
    left_out: dict
    update: int | None = None

    @property
    def best(self):
        """The size with the highest median rate."""
        return max(self.rates, key=lambda n: self.rates[n].median)

    @property
    def flat(self):
        """The sizes that are about as fast, ascending."""
        least = FLAT * self.rates[self.best].median
        return [n for n in sorted(self.rates) if self.rates[n].median >= least]

    @property
    def knee(self):
        """The smallest size that is about as fast as the fastest."""
        return self.flat[0]

    def to_dict(self):
        """The values, as a new dict."""
        return {
            **dataclasses.asdict(self),
            "best": self.best,
            "flat": self.flat,
            "knee": self.knee,
        }

    def __str__(self):
        lines = ["rows per second by batch size"]
        if self.update:
            lines[0] += f", in updates of {self.update} rows"
        for size, rate in sorted(self.rates.items()):
            mark = " fastest" if size == self.best else ""
            mark += " knee" if size == self.knee else ""
            lines.append(f"  {size:>8} {rate}{mark}")
        lines += [f"  {n:>8} {why}" for n, why in self.left_out.items()]
        lines.append(f"within {1 - FLAT:.0%} of the fastest: {self.flat}")
        return "\n".join(lines)


def find_batch_size(
    model,
    data,
    budget_bytes=None,
    objective="samples_per_second",
    clock=None,
):
    """Measures training steps of growing batches and compares them.

    Sizes are powers of two. Each is compiled and warmed up, then all take
    steps in turns, so that a slower machine slows all alike. The model is left
    as it was: its variables, its optimizer and its metrics are put back.

    A model that accumulates (`Accumulate`) makes updates of the same rows at
    each size, the largest that the data allows: so sizes differ in speed
    alone. For a size n, give `Accumulate(update // n)`.

    Args:
        model: A compiled and built `keras.Model`.
        data: Tuple of arrays, x and y (rows, ...); the largest batch is the
            largest power of two up to their rows.
        budget_bytes: Integer >= 1, bytes that the estimated peak of a step
            (`memory`) may take. Defaults to `None`: no limit.
        objective: `"samples_per_second"`, the one there is.
        clock: `Clock`. Defaults to `None`: the real one.

    Returns:
        A `BatchSizes`; take its `knee`, or its `best`.

    Raises:
        TypeError: If `budget_bytes` is not an integer.
        ValueError: If the model is not built and compiled, `objective` is
            unknown, `budget_bytes` is < 1, or no size of at least 8 rows is
            within data and budget.

    Example:

    >>> import keras, numpy as np
    >>> inputs = keras.Input((2,))
    >>> model = keras.Model(inputs, keras.layers.Dense(1)(inputs))
    >>> model.compile("sgd", "mse")
    >>> sizes = find_batch_size(model, (np.ones((16, 2)), np.ones((16, 1))))
    >>> sorted(sizes.rates)
    [8, 16]
    """
    checks.one_of(objective, "objective", ("samples_per_second",))
    if isinstance(data, tf.data.Dataset):
        raise TypeError(
            checks.message(
                "`data` must be arrays, which can be cut into any batch",
                type(data).__name__,
                "Give `(x, y)` of some rows, such as one large batch of it.",
            )
        )
    check_ready(model)
    sizes, left_out = _candidates(model, data, budget_bytes)
    model.optimizer.build(model.trainable_variables)
    update = _update_rows(model, data)
    with as_before(model):
        steps = {n: _step(model, data, n, update) for n in sizes}
        rates = _measure(steps, update, clock or Clock())
    return BatchSizes(rates, left_out, update)


def _candidates(model, data, budget):
    fix = "Leave it out for no limit."
    if budget is not None:
        checks.positive_int(budget, "budget_bytes", fix)
    rows = len(tree.flatten(data)[0])
    sizes, left_out = [], {}
    size = _SMALLEST
    while size <= rows:
        peak = 0
        if budget is not None:
            plan = memory(model, size, measured=False, data=data)
            others = (_update_rows(model, data) or size) // size - 1
            peak = plan.peak + others * plan.data
        if budget is not None and peak > budget:
            left_out[size] = (
                f"not measured: needs about {peak} bytes of {budget}"
            )
            break
        sizes.append(size)
        size *= 2
    if not sizes:
        raise ValueError(
            checks.message(
                f"A batch of {_SMALLEST} rows must be within data and budget",
                f"{rows} rows, budget_bytes={budget}"
                + "".join(
                    f", {_SMALLEST} rows: {w}" for w in left_out.values()
                ),
                "Give more rows or a larger budget.",
            )
        )
    if size > rows:
        left_out[size] = f"not measured: the data has {rows} rows, give more"
    return sizes, left_out


def _update_rows(model, data):
    """The rows of each update of a model that accumulates, else None."""
    if getattr(getattr(model, "perf", None), "window", 1) == 1:
        return None
    return 2 ** (len(tree.flatten(data)[0]).bit_length() - 1)


def _step(model, data, size, update):
    """A compiled step of batches of a size, and what it is called with."""

    def batch(first):
        rows = slice(first, first + size)
        return tree.map_structure(lambda a: tf.constant(a[rows]), data)

    given = batch(0)
    if update:
        given = model.perf.joined(map(batch, range(0, update, size)))
    train = tf.function(model.train_step, autograph=False)
    return train.get_concrete_function(given), given


def _measure(steps, update, clock):
    rates = {size: [] for size in steps}
    for turn in range(ROUNDS + 2):
        for size, (train, batch) in steps.items():
            with clock.stopwatch() as watch:
                # Reading a value waits for the step to be done.
                [float(v) for v in tree.flatten(train(batch))]
            if turn >= 2:
                rates[size].append((update or size) / watch.seconds)
    return {size: summarize(r, unit="") for size, r in rates.items()}
