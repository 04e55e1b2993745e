"""The report as a bar chart. Needs Matplotlib, of the extra `recipes`.

Example:

>>> bars({"rows": []})
{}
"""

import importlib.util
import pathlib

from fastkeras._lib import checks

_SIDES = {
    "fast": ("FastModel", "#1f77b4"),
    "best_stock": ("best stock setting", "#bbbbbb"),
    "jax_best": ("Keras on JAX, best", "#ff9d4d"),
    "floor": ("hand-written lax.scan", "#555555"),
}


def check_plot(path):
    """Refuses a chart that could not be written.

    Args:
        path: String, as given to `--plot`.

    Raises:
        ImportError: If Matplotlib is not installed; the message names the
            extra that brings it.
        ValueError: If it ends in what is no format of a chart.

    Example:

    >>> check_plot("chart.png")  # doctest: +SKIP
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise ImportError(
            checks.message(
                "`--plot` needs Matplotlib",
                f"plot={str(path)!r}",
                "Install the extra: pip install 'fastkeras[recipes]'.",
            )
        )
    ending = pathlib.PurePath(path).suffix
    checks.one_of(ending, "ending of a chart", (".png", ".svg", ".pdf"))


def bars(report):
    """What is drawn: how many times as fast as stock `fit` each side is.

    Args:
        report: Dict as `run` returns it.

    Returns:
        Dict of side to a list of pairs of title and ratio.

    Example:

    >>> row = {"title": "A", "error": None, "jax_best": None, "floor": None,
    ...     "stock": {"ratio": {"median": 6.0}},
    ...     "best_stock": {"ratio": {"median": 2.0}}}
    >>> bars({"rows": [row]})
    {'fast': [('A', 6.0)], 'best_stock': [('A', 3.0)]}
    """
    found = {}
    for row in report["rows"]:
        if row["error"]:
            continue
        fast = row["stock"]["ratio"]["median"]
        found.setdefault("fast", []).append((row["title"], fast))
        for side in ("best_stock", "jax_best", "floor"):
            if row[side]:
                value = fast / row[side]["ratio"]["median"]
                found.setdefault(side, []).append((row["title"], value))
    return found


def plot(report, path):
    """Draws the chart.

    Args:
        report: Dict as `run` returns it.
        path: String or `pathlib.Path`, the file; its ending is the format.

    Raises:
        ImportError: If Matplotlib is not installed.

    Example:

    >>> import os, tempfile
    >>> from fastkeras.bench.runner import run
    >>> path = os.path.join(tempfile.mkdtemp(), "bench.png")
    >>> plot(run(rows=[]), path)  # doctest: +SKIP
    """
    check_plot(path)
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator
    from matplotlib.ticker import NullFormatter
    from matplotlib.ticker import ScalarFormatter

    found = bars(report)
    titles = [title for title, _ in found.get("fast", [])]
    height = 1.6 + 0.22 * len(titles) * (len(found) + 1)
    figure = Figure(figsize=(9, height), layout="constrained")
    axes = figure.subplots()
    thick = 0.8 / max(1, len(found))
    for k, (side, pairs) in enumerate(found.items()):
        name, colour = _SIDES[side]
        places = [titles.index(t) + (k + 0.5) * thick - 0.4 for t, _ in pairs]
        values = [value for _, value in pairs]
        drawn = axes.barh(
            places,
            [value - 1 for value in values],
            height=thick,
            left=1,
            label=name,
            color=colour,
        )
        axes.bar_label(
            drawn,
            [f"{v:.1f}x" if v < 10 else f"{v:.0f}x" for v in values],
            padding=3,
            fontsize=8,
        )
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.axvline(1, color="black", linewidth=1)
    axes.set_yticks(range(len(titles)), titles)
    axes.invert_yaxis()
    axes.margins(x=0.1)
    axes.set_xlabel("times as fast as keras.Model.fit with its defaults (log)")
    axes.set_title(title(report), fontsize=9, loc="left")
    if found:
        figure.legend(loc="outside lower center", ncols=4, fontsize=8)
    figure.savefig(path, dpi=120)


def title(report):
    """Machine, versions and date in a line.

    Args:
        report: Dict as `run` returns it.
    """
    machine, versions = report["machine"], report["versions"]
    return (
        f"{machine['processor']}, {machine['cores']} cores; "
        f"TensorFlow {versions['tensorflow']}, Keras {versions['keras']}; "
        f"{report['date'][:10]}" + (" (--quick)" if report["quick"] else "")
    )
