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
    turns = ", ".join(str(row["turns"]) for row in report["rows"])
    parts.append(
        "Alone: with the traced step, gain over it. Added: with all above it, "
        "gain over the line\nabove; all: over the eager loop. Medians turn by "
        f"turn ({turns} turns), ± half the distance\nbetween the quartiles. "
        "How each way runs is pinned: nothing is chosen while it is timed.\n"
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
    """What is drawn: a dict of names to figures for each panel of each row.

    Returns:
        List of a tuple for each row: title, the gains alone over the traced
        step, the gains in order over the eager loop.
    """
    return [
        (
            row["title"],
            {way["name"]: way["gain"] for way in row["alone"]},
            {
                f"{'+ ' if k else ''}{way['name'].removeprefix('+ ')}": way[
                    "total"
                ]
                for k, way in enumerate(row["ordered"])
            },
        )
        for row in report["rows"]
    ]


def plot(report, path):
    """Draws each technique alone and all in order, side by side.

    Args:
        report: Dict as for `table`.
        path: String or `pathlib.Path`, the file; its ending is the format.

    Raises:
        ImportError: If Matplotlib is not installed.
    """
    charts.check_plot(path)
    from matplotlib.figure import Figure

    panels = bars(report)
    figure = Figure(figsize=(12, 1 + 2.6 * len(panels)), layout="constrained")
    grid = figure.subplots(max(1, len(panels)), 2, squeeze=False)
    for pair, (title, alone, ordered) in zip(grid, panels, strict=False):
        _panel(pair[0], f"{title}: each alone", alone, "the traced step")
        _panel(pair[1], f"{title}: added in order", ordered, "the eager loop")
    figure.suptitle(charts.title(report), fontsize=9)
    figure.savefig(path, dpi=120)


def _panel(axes, title, figures, base):
    """Bars with the quartiles; the line at 1 is what they are compared with."""
    values = [figure["median"] for figure in figures.values()]
    around = [
        [f["median"] - f["lower"] for f in figures.values()],
        [f["upper"] - f["median"] for f in figures.values()],
    ]
    names = list(figures)
    drawn = axes.barh(
        names,
        values,
        xerr=around,
        color=["#1f77b4" if v >= 1 else "#c44e52" for v in values],
        error_kw={"elinewidth": 1, "capsize": 2},
    )
    labels = [f"{v:.2f}x" if v < 10 else f"{v:.0f}x" for v in values]
    # On white: the line at 1 would go through the label of a bar just below.
    axes.bar_label(
        drawn,
        labels,
        padding=3,
        fontsize=8,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
    )
    axes.axvline(1, color="black", linewidth=1)
    axes.invert_yaxis()
    axes.margins(x=0.14)
    axes.set_title(title, fontsize=9, loc="left")
    axes.set_xlabel(f"times as fast as {base} (line: as fast)", fontsize=8)
