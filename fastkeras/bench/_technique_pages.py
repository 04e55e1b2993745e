"""The techniques as text and as a chart.

Example:

>>> bars({"rows": []})
[]
"""

from fastkeras.bench import charts
from fastkeras.bench import tables

_HEAD = ("technique", "ms/batch alone", "gain", "ms/batch added", "gain", "all")


def table(report):
    """Header, a table for each row, and what does not help.

    Args:
        report: Dict with the keys of `techniques.run` and of a bench.

    Returns:
        String.
    """
    parts = [tables.header(report)]
    for row in report["rows"]:
        parts.append(f"{row['title']}\n{tables.aligned(_lines(row))}")
    parts.append(
        "Alone: with the traced step, gain over it. Added: with all above it, "
        "gain over the line\nabove; all: over the eager loop. Turn by turn, "
        "± half the distance between the quartiles.\n"
        "Mixed precision, accumulation (4 batches an update) and watching (the "
        "last layer is\ntrained) change what is computed; the others do not."
    )
    for row in report["rows"]:
        if row["notes"]:
            heading = f"What does not help, {row['title']}:"
            notes = [f"- {note}" for note in row["notes"]]
            parts.append("\n".join([heading, *notes]))
    return "\n\n".join(parts)


def _lines(row):
    alone = {way["name"]: way for way in row["alone"]}
    lines = [
        _HEAD,
        ("eager loop", "", "", tables.duration(row["eager"]["median"]), "", ""),
    ]
    for way in row["ordered"]:
        name = way["name"].removeprefix("+ ")
        one = alone.get(name)
        lines.append(
            (
                name,
                tables.duration(one["median"]) if one else "",
                tables.times(one["gain"]) if one else "",
                tables.duration(way["median"]),
                tables.times(way["gain"]),
                tables.times(way["total"]),
            )
        )
    return lines


def bars(report):
    """What is drawn: title of a row, names, and times as fast as eager."""
    return [
        (
            row["title"],
            [way["name"] for way in row["ordered"]],
            [way["total"]["median"] for way in row["ordered"]],
        )
        for row in report["rows"]
    ]


def plot(report, path):
    """Draws what was added in order, a panel for each row.

    Args:
        report: Dict as for `table`.
        path: String or `pathlib.Path`, the file; its ending is the format.

    Raises:
        ImportError: If Matplotlib is not installed.
    """
    charts.check_plot(path)
    from matplotlib.figure import Figure

    panels = bars(report)
    figure = Figure(figsize=(9, 1 + 2.6 * len(panels)), layout="constrained")
    grid = figure.subplots(max(1, len(panels)), 1, squeeze=False)[:, 0]
    for axes, (title, names, values) in zip(grid, panels, strict=False):
        drawn = axes.barh(names, values, color="#1f77b4")
        axes.bar_label(drawn, [f"{v:.1f}x" for v in values], padding=3)
        axes.axvline(1, color="black", linewidth=1)
        axes.invert_yaxis()
        axes.margins(x=0.12)
        axes.set_title(title, fontsize=9, loc="left")
        axes.set_xlabel("times as fast as the eager loop")
    figure.savefig(path, dpi=120)
