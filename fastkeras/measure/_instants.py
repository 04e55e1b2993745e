"""What each instant of a trace belongs to: parts of a step, operations."""

import bisect
import collections
import statistics

from fastkeras.measure._xplane import PARTS

_TOP = 15
# Pieces of the timeline that are kept: a page with more is slow to open.
_PIECES = 2000


def divided(trace, runs):
    """The sections of a profile that come of its trace.

    Args:
        trace: `Trace`.
        runs: `Runs`, in which it was made.
    """
    windows = runs.windows(trace.launches)
    middle = _middle(windows)
    steps = sum(batches for *_, batches in middle)
    spans = [window[:2] for window in middle]
    pieces = split(trace, [window[:2] for window in windows])
    parts = collections.Counter(dict.fromkeys(PARTS, 0.0))
    for start, end, part in pieces:
        for first, last in _overlaps(start, end, spans):
            parts[part] += last - first
    total = sum(parts.values())
    # The trace slows the steps down: its shares of the step without it.
    scale = runs.step.median / total
    called = trace.eager + trace.graph
    phases, ops = _operations(trace, spans, scale, steps)
    origin = pieces[0][0]
    return {
        "split": {name: value * scale for name, value in parts.items()},
        "phases": phases,
        "ops": ops,
        "eager share": trace.eager / called if called else 0.0,
        "traced step": total / steps,
        "timeline": [
            [start - origin, end - start, part]
            for start, end, part in pieces[:_PIECES]
        ],
    }


def _middle(windows):
    """The half of the stretches that took least more or less than the median.

    A thread that was put off for long is in the others.
    """
    rates = {w: (w[1] - w[0]) / w[2] for w in windows}
    median = statistics.median(rates.values())
    near = sorted(windows, key=lambda window: abs(rates[window] - median))
    return sorted(near[: (len(near) + 1) // 2])


def _operations(trace, windows, scale, steps):
    """Seconds by phase, and the dearest operations; both for a step.

    Scaled as the split is: all phases together are its compute.
    """
    phases = collections.Counter()
    seconds, counts = collections.Counter(), collections.Counter()
    shares = shared(trace, windows)
    for event, share in zip(trace.events, shares, strict=True):
        if share:
            phases[event.phase] += share * scale
            if event.kind:
                key = (event.name, event.kind, event.phase)
                seconds[key] += share * scale
                counts[key] += 1
    ops = [
        {
            "name": name,
            "kind": kind,
            "phase": phase,
            "seconds": value,
            "count": counts[name, kind, phase] / steps,
        }
        for (name, kind, phase), value in seconds.most_common(_TOP)
    ]
    return dict(phases), ops


def split(trace, windows):
    """Divides the time in the windows among the parts.

    Args:
        trace: `Trace`.
        windows: List of pairs of start and end, none overlapping.

    Returns:
        List of tuples `(start, end, part)` that fill the windows.
    """
    edges = [(e.start, 1, e) for e in trace.events]
    edges += [(e.end, -1, e) for e in trace.events]
    edges += [(s, 2, None) for s, _ in windows]
    edges += [(e, -2, None) for _, e in windows]
    edges.sort(key=lambda edge: edge[:2])
    active, pieces = collections.Counter(), []
    inside, last = False, 0.0
    for time, change, event in edges:
        if inside and time > last:
            part = next((p for p in PARTS if active[p]), "dispatch")
            _append(pieces, last, time, part)
        last = time
        if event is None:
            inside = change > 0
        else:
            active[event.part] += change
    return pieces


def shared(trace, windows):
    """Divides the time of the operations in the windows among them.

    What runs at once shares it, so that together they take what `split` calls
    compute. What runs others has the share that its own time is of its event;
    XLA's own time is that in which no instruction, nor a loop, is under way.

    Args:
        trace: `Trace`.
        windows: List of pairs of start and end, in order.

    Returns:
        List of floats, the seconds of each event of the trace.
    """
    edges = []
    for number, event in enumerate(trace.events):
        if event.part == "compute":
            for start, end in _overlaps(event.start, event.end, windows):
                edges += [(start, True, number), (end, False, number)]
    seconds, active, last = [0.0] * len(trace.events), {}, 0.0
    for time, begins, number in sorted(edges):
        total = sum(active.values())
        for other, weight in active.items():
            seconds[other] += (time - last) * weight / total
        last = time
        if begins:
            active[number] = _weight(trace.events[number])
        else:
            del active[number]
    return seconds


def _overlaps(start, end, windows):
    """Yields the parts of a span that lie in windows, which are in order."""
    place = max(0, bisect.bisect(windows, (start,)) - 1)
    for begin, finish in windows[place:]:
        if begin >= end:
            break
        if start < finish:
            yield max(start, begin), min(end, finish)


def _weight(event):
    # Just so much that it counts where nothing else is.
    if event.phase == "runtime":
        return 1e-9
    return max(event.own / (event.end - event.start), 1e-6)


def _append(pieces, start, end, part):
    """Adds a piece, to the last one where it goes on."""
    if pieces and pieces[-1][2] == part and pieces[-1][1] == start:
        start = pieces.pop()[0]
    pieces.append((start, end, part))
