"""A profile as a page that opens with no network, and as a figure."""

import html
import importlib.util

from fastkeras._lib import checks
from fastkeras.measure import _profile_text

#: Colours of the parts, told apart also by those who see no red or green.
COLOURS = {
    "compute": "#0072b2",
    "copies": "#cc79a7",
    "input": "#d55e00",
    "dispatch": "#e69f00",
    "idle": "#bbbbbb",
}
_WIDTH = 960

_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2em auto;
 max-width: {width}px; color: #222; }}
table {{ border-collapse: collapse; width: 100%; }}
th, td {{ text-align: left; padding: .2em .6em;
 border-bottom: 1px solid #ddd; }}
td.n, th.n {{ text-align: right; font-variant-numeric: tabular-nums; }}
td.path {{ font-size: 85%; overflow-wrap: anywhere; }}
svg {{ width: 100%; display: block; }}
i {{ display: inline-block; width: .8em; height: .8em; margin: 0 .3em 0 1em; }}
</style></head><body>
<h1>{title}</h1>
{body}
</body></html>
"""


def page(found):
    """The profile as a page of HTML, styles and drawings in it.

    Args:
        found: `Profile`.

    Returns:
        String.
    """
    title = f"{found['model']}: {found.time('step')} a step"
    how = f"{_profile_text.way(found)}; {_profile_text.basis(found)}"
    body = [
        f"<p>{html.escape(how)}</p>",
        _list([*found.findings, *found["notes"]]),
        _title(_profile_text.SPLIT),
        _legend(found),
        _svg(_stacked(found), 40),
        _table(("part", "ms", "±", "share", "what"), _parts(found)),
        _title(f"timeline: the first {_shown(found)} of the traced steps"),
        "<p>White: between epochs.</p>",
        _svg(_timeline(found), 60),
        _title("control runs"),
        _table(
            ("of", "median"),
            [
                (name, str(found.time(name)))
                for name in found["seconds"]
                if name != "metrics"
            ],
        ),
        _title(_profile_text.PHASES),
        f"<p>{_profile_text.LIMITS}</p>",
        _table(("phase", "ms", "±", "share", "what"), _phases(found)),
        _title("dearest operations of a step, divided likewise"),
        _table(
            ("operation", "ms", "count", "phase", "name"),
            [_operation(op) for op in found["ops"]],
        ),
        _title("metrics of a step, timed apart"),
        _table(
            ("of", "ms"), [(k, _ms(v)) for k, v in found["metrics"].items()]
        ),
    ]
    return _PAGE.format(
        title=html.escape(title), width=_WIDTH, body="\n".join(body)
    )


def _parts(found):
    return [
        (*_time(found, "split", k), f"{share:.1%}", _profile_text.PARTS[k])
        for k, share in found.shares.items()
    ]


def _phases(found):
    phases = found["phases"]
    words = dict(_profile_text.phase_words(phases))
    total = sum(phases.values()) or 1.0
    return [
        (*_time(found, "phases", k), f"{v / total:.1%}", words.get(k, ""))
        for k, v in _profile_text.by_cost(phases)
    ]


def _time(found, section, name):
    time = found.time(name, section)
    half = _ms(time.spread / 2) if time.n > 1 else ""
    return name, _ms(time.median), half


def _title(text):
    return f"<h2>{text[0].upper()}{text[1:]}</h2>"


def _shown(found):
    """How long the timeline is, in words."""
    start, seconds, _ = found["timeline"][-1]
    return _profile_text.milliseconds(start + seconds)


def _operation(op):
    count = f"{op['count']:.3g}"
    return op["kind"], _ms(op["seconds"]), count, op["phase"], op["name"]


def _ms(seconds):
    return f"{seconds * 1e3:.3f}"


def _list(texts):
    items = "".join(f"<li>{html.escape(text)}</li>" for text in texts)
    return f"<ul>{items}</ul>"


def _legend(found):
    return "<p>" + "".join(
        f'<i style="background:{COLOURS[name]}"></i>{name}'
        for name in found["split"]
    )


def _svg(boxes, height):
    drawn = "".join(
        f'<rect x="{x:.2f}" width="{width:.2f}" height="{height}" '
        f'fill="{COLOURS[part]}"><title>{part}: {text}</title></rect>'
        for x, width, part, text in boxes
    )
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" '
        f'preserveAspectRatio="none" height="{height}">{drawn}</svg>'
    )


def _stacked(found):
    """Yields the parts of a step side by side: x, width, part, text."""
    place = 0.0
    for name, share in found.shares.items():
        yield place, share * _WIDTH, name, f"{share:.1%}"
        place += share * _WIDTH


def _timeline(found):
    pieces = found["timeline"]
    scale = _WIDTH / (pieces[-1][0] + pieces[-1][1])
    for start, seconds, part in pieces:
        text = _profile_text.milliseconds(seconds)
        yield start * scale, seconds * scale, part, text


def _table(head, rows):
    def row(tag, cells):
        return "<tr>" + "".join(
            f"<{tag}{_class(title)}>{html.escape(cell)}</{tag}>"
            for title, cell in zip(head, cells, strict=True)
        )

    lines = [row("th", head), *(row("td", cells) for cells in rows)]
    return "<table>" + "\n".join(lines) + "</table>"


def _class(title):
    kinds = dict.fromkeys(("ms", "±", "share", "count"), "n")
    kinds["name"] = "path"
    return f' class="{kinds[title]}"' if title in kinds else ""


def check_plot(path):
    """Refuses to plot where Matplotlib is missing."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ImportError(
            checks.message(
                "A plot needs Matplotlib",
                f"path={str(path)!r}",
                "Install the extra: pip install 'fastkeras[recipes]'.",
            )
        )


def plot(found, path):
    """Draws the split of a step as a bar, and the timeline below it.

    Args:
        found: `Profile`.
        path: String or `pathlib.Path`; its ending is the format.

    Raises:
        ImportError: If Matplotlib is not installed.
    """
    check_plot(path)
    # Optional: only a plot needs it.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    bar, line = figure.subplots(2)
    place = 0.0
    for name, value in found["split"].items():
        label = f"{name} {found.shares[name]:.0%}"
        bar.barh(0, value * 1e3, left=place, color=COLOURS[name], label=label)
        place += value * 1e3
    bar.set_title(
        f"{found['model']}: {found.time('step')} a step, "
        f"{_profile_text.way(found)}",
        fontsize=9,
        loc="left",
    )
    for part, colour in COLOURS.items():
        spans = [
            (s * 1e3, t * 1e3) for s, t, p in found["timeline"] if p == part
        ]
        line.broken_barh(spans, (-0.4, 0.8), facecolors=colour)
    line.set_xlabel("ms of the traced steps; white: between epochs")
    bar.set_xlabel("ms of a step")
    for axes in (bar, line):
        axes.set_yticks([])
        axes.margins(x=0)
    figure.legend(loc="outside lower center", ncols=5, fontsize=8)
    figure.savefig(path, dpi=120)
