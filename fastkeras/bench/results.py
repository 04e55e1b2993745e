"""From times to figures: pure, so that it is checked with made-up times.

The keys of the JSON file are those of `KEYS` and `ROW_KEYS`.

Example:

>>> figures([0.004, 0.004, 0.005], [0.001, 0.001, 0.001])["ratio"]["median"]
4.0
"""

from fastkeras import measure

#: The top of the file: what ran where, and a list of rows.
KEYS = (
    "fastkeras",
    "date",
    "machine",
    "versions",
    "suite",
    "seconds_per_row",
    "quick",
    "jax",
    "rows",
)
#: A row: sides with their times, and what follows from them. A side is a dict
#: of options, times (seconds per `per`, one a turn), median, lower, upper, n
#: and loss (of its first epoch); `ratio` is its time over FastModel's, turn by
#: turn. `fast` has tier, settled, choices, compile_seconds and report too.
ROW_KEYS = (
    "name",
    "title",
    "suite",
    "per",
    "steps",
    "batch_size",
    "fast",
    "stock",
    "best_stock",
    "candidates",
    "first_epoch",
    "jax",
    "jax_best",
    "floor",
    "notes",
    "seconds",
    "error",
)
#: Ratios below these are named under the table.
NO_GAIN = 1.05
SLOWER = 0.97


def summary(values, unit="s"):
    """A series as its median, quartiles and count.

    Args:
        values: Sequence of numbers.
        unit: String, as for `measure.summarize`.

    Returns:
        Dict with median, lower, upper and n.
    """
    return _plain(measure.summarize(values, unit))


def figures(times, fast):
    """The figures of a side beside those of FastModel.

    Args:
        times: Sequence of seconds, one a turn.
        fast: Sequence of seconds of FastModel in the same turns.

    Returns:
        Dict with times, median, lower, upper, n, and ratio, which is itself
        a dict: by how much FastModel is faster, pair by pair.
    """
    return {
        "times": list(times),
        **summary(times),
        "ratio": _plain(measure.ratio(times, fast)),
    }


def blank(row):
    """A row of which nothing has been measured yet.

    Args:
        row: `Row`.
    """
    known = {
        "name": row.name,
        "title": row.title,
        "suite": row.suite,
        "per": row.per,
        "steps": row.steps,
        "batch_size": row.batch,
        "notes": [],
        "candidates": [],
    }
    return {key: known.get(key) for key in ROW_KEYS}


def fill(record, times, first):
    """Puts times into a record, in place.

    Args:
        record: Dict that `blank` made.
        times: Dict of side (`"fast"`, `"stock"`, ...) to its seconds, one a
            turn, all of one length.
        first: Dict with the seconds of first epochs of `"stock"` and
            `"fast"`, each from a fresh model, in pairs.
    """
    for side, values in times.items():
        record[side] = {
            **(record[side] or {}),
            **figures(values, times["fast"]),
        }
    record["first_epoch"] = {
        **{side: list(values) for side, values in first.items()},
        "ratio": _plain(measure.ratio(first["stock"], first["fast"])),
    }


def slow_rows(report):
    """The rows where FastModel does not help.

    Args:
        report: Dict as `run` returns it.

    Returns:
        List of strings.

    Example:

    >>> slow_rows({"rows": []})
    []
    """
    found = []
    for row in report["rows"]:
        if row["error"]:
            continue
        stock = row["stock"]["ratio"]["median"]
        if stock < NO_GAIN:
            found.append(f"{row['title']}: {stock:.2f}x stock `fit`")
        for side, name in (
            ("best_stock", "the best stock setting"),
            ("jax_best", "Keras on JAX at its best"),
        ):
            if row[side] and row[side]["ratio"]["median"] < SLOWER:
                value = row[side]["ratio"]["median"]
                found.append(f"{row['title']}: {value:.2f}x {name}")
        first = row["first_epoch"]
        for old, new in zip(first["stock"], first["fast"], strict=True):
            if new > 1.1 * old + 0.5:
                found.append(
                    f"{row['title']}: first epoch {new:.2f} s, stock "
                    f"{old:.2f} s"
                )
                break
    return found


def _plain(made):
    return {
        "median": made.median,
        "lower": made.lower,
        "upper": made.upper,
        "n": made.n,
    }
