"""The report as text.

Example:

>>> print(duration(0.00129), duration(2.5))
1.29 ms 2.50 s
"""

import math

from fastkeras.bench import results

_HEAD = (
    "row, per",
    "stock fit",
    "best stock",
    "FastModel",
    "x stock",
    "x best",
    "tier",
    "first: stock",
    "FastModel",
)
_JAX_HEAD = (
    "row, per",
    "Keras-JAX fit",
    "best Keras-JAX",
    "FastModel",
    "x JAX",
    "x best",
    "lax.scan",
)


def duration(seconds):
    """Seconds with three digits and a unit."""
    scale, unit = next(
        (s, u)
        for s, u in ((1.0, "s"), (1e-3, "ms"), (0.0, "us"))
        if seconds >= s
    )
    value = seconds / (scale or 1e-6)
    digits = 2 - math.floor(math.log10(value)) if value > 0 else 0
    return f"{value:.{max(0, digits)}f} {unit}"


def table(report):
    """Header, table and what follows from it, as text.

    Args:
        report: Dict as `run` returns it.

    Returns:
        String.

    Example:

    >>> from fastkeras.bench.runner import run
    >>> print(table(run(rows=[])))
    fastkeras ...
    """
    good = [row for row in report["rows"] if not row["error"]]
    parts = [header(report)]
    if good:
        parts.append(aligned([_HEAD, *map(_cells, good)]))
        parts.append(_legend())
    parts += _jax_part(report, good)
    slow = results.slow_rows(report)
    if good:
        heading = "Where it does not help:"
        parts.append("\n".join([heading, *(f"- {x}" for x in slow)]))
        if not slow:
            parts[-1] = f"{heading} in none of these rows"
    parts += _notes(report)
    return "\n\n".join(parts)


def header(report):
    machine, versions = report["machine"], report["versions"]
    load = machine.get("load")
    lines = [
        f"fastkeras {report['fastkeras']} bench, {report['date']}",
        f"{machine['processor']}, {machine['cores']} cores, "
        f"{machine['gpus']} GPUs, {machine['system']}"
        + ("" if load is None else f", load {load:.1f} at the start"),
        ", ".join(f"{name} {v}" for name, v in versions.items()),
    ]
    if load is not None and load > machine["cores"]:
        lines.append("the machine was busy with other work: measure again")
    if report["quick"]:
        lines.append("--quick: shows that it works, not how fast it is")
    if report.get("interrupted"):
        lines.append("interrupted: the rows that were done")
    return "\n".join(lines)


def _cells(row):
    first = row["first_epoch"]
    return (
        f"{row['title']}, {row['per']}",
        duration(row["stock"]["median"]),
        duration(row["best_stock"]["median"]) + _options(row["best_stock"]),
        duration(row["fast"]["median"]),
        times(row["stock"]["ratio"]),
        times(row["best_stock"]["ratio"]),
        row["fast"].get("tier") or "-",
        duration(min(first["stock"])),
        duration(min(first["fast"])),
    )


def _jax_part(report, good):
    jax = report["jax"]
    if jax["left_out"]:
        return [f"Keras on JAX: left out. {jax['left_out']}."]
    rows = [row for row in good if row["jax"]]
    if not rows:
        return []
    versions = ", ".join(f"{k} {v}" for k, v in jax["versions"].items())
    cells = [
        (
            f"{row['title']}, {row['per']}",
            duration(row["jax"]["median"]),
            duration(row["jax_best"]["median"]) + _options(row["jax_best"]),
            duration(row["fast"]["median"]),
            times(row["jax"]["ratio"]),
            times(row["jax_best"]["ratio"]),
            duration(row["floor"]["median"]) if row["floor"] else "-",
        )
        for row in rows
    ]
    return [f"Keras on JAX ({versions}), in the same turns:"] + [
        aligned([_JAX_HEAD, *cells])
    ]


def _legend():
    return (
        "Medians of turns taken one after the other; x: how many times as "
        "fast FastModel is,\nturn by turn, ± half the distance between the "
        "quartiles. Best stock: (steps_per_execution, j = jit_compile).\n"
        "First: from a fresh model to the end of its first epoch or call, "
        "the best of one or two."
    )


def _options(side):
    steps = side["options"].get("steps_per_execution", 1)
    jit = ", j" if side["options"].get("jit_compile") is True else ""
    return f" ({steps}{jit})"


def times(ratio):
    digits = 2 if ratio["median"] < 10 else 1
    half = (ratio["upper"] - ratio["lower"]) / 2
    return f"{ratio['median']:.{digits}f} ±{half:.{digits}f}"


def aligned(rows):
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if k == 0 else cell.rjust(width)
            for k, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    lines.insert(1, "-" * max(map(len, lines)))
    return "\n".join(lines)


def _notes(report):
    lines = []
    for row in report["rows"]:
        lines += [f"- {row['title']}: {note}" for note in row["notes"]]
        if row["error"]:
            lines.append(f"- {row['title']} FAILED: {row['error']}")
        elif not row["fast"].get("settled", True) and row["fast"].get("tier"):
            lines.append(
                f"- {row['title']}: FastModel had not settled when its time "
                "to warm up was over"
            )
    return ["\n".join(["Notes:", *lines])] if lines else []
