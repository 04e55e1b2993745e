"""What each instant of a trace belongs to: parts of a step, operations."""

import bisect
import collections

from fastkeras.measure._xplane import PARTS


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
            for start, end in _overlaps(event, windows):
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


def _overlaps(event, windows):
    """Yields the parts of an event that lie in windows."""
    place = bisect.bisect(windows, (event.start,)) - 1
    for begin, finish in windows[max(0, place) : place + 2]:
        start, end = max(event.start, begin), min(event.end, finish)
        if start < end:
            yield start, end


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
