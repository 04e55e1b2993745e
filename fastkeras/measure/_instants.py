"""What each instant of a trace belongs to: parts of a step, operations."""

import bisect
import collections
import dataclasses
import itertools
import statistics

from fastkeras.measure._xplane import PARTS
from fastkeras.measure.stats import summarize

_TOP = 15
# Pieces of the timeline that are kept: a page with more is slow to open.
_PIECES = 2000


def divided(trace, runs):
    """The sections of a profile that come of its trace.

    Args:
        trace: `Trace`.
        runs: `Runs`, in which it was made.

    Returns:
        Tuple of a dict of the sections, and a dict of those that hold seconds
        to the fields of a `Summary` of each.
    """
    windows = runs.windows(trace.launches, trace.calls)
    spans = [window[:2] for window in windows]
    batches = [window[2] for window in windows]
    middle = [windows.index(window) for window in _middle(windows)]
    steps = sum(batches[k] for k in middle)
    pieces = split(trace, spans)
    # The trace slows the steps down: its shares of the step without it.
    traced = sum(spans[k][1] - spans[k][0] for k in middle) / steps
    scale = runs.step.median / traced
    called = trace.eager + trace.graph
    shares = shared(trace, spans)
    sums = {
        "split": _of_parts(pieces, spans),
        "phases": [_of_phases(trace, found) for found in shares],
    }
    sections, spread = {}, {}
    for name, found in sums.items():
        sections[name], spread[name] = _a_step(found, batches, middle, scale)
    # What was only in the stretches that do not count.
    sections["phases"] = {k: v for k, v in sections["phases"].items() if v}
    origin = pieces[0][0]
    return {
        **sections,
        "ops": _operations(trace, [shares[k] for k in middle], scale, steps),
        "eager share": trace.eager / called if called else 0.0,
        "traced step": traced,
        "timeline": [
            [start - origin, end - start, part]
            for start, end, part in pieces[:_PIECES]
        ],
    }, spread


def _of_parts(pieces, windows):
    """For each window, a dict of part to seconds."""
    found = [dict.fromkeys(PARTS, 0.0) for _ in windows]
    for start, end, part in pieces:
        for place, first, last in _overlaps(start, end, windows):
            found[place][part] += last - first
    return found


def _of_phases(trace, shares):
    """Dict of phase to seconds; of one window."""
    phases = collections.Counter()
    for number, seconds in shares.items():
        phases[trace.events[number].phase] += seconds
    return phases


def _a_step(sums, batches, middle, scale):
    """Seconds in a step, and how they differ among the windows.

    Args:
        sums: List of dicts of name to seconds, one for each window.
        batches: List of integers, the batches of each.
        middle: List of integers, the windows that count.
        scale: Float, what a second of the trace takes without it.

    Returns:
        Two dicts: of name to float, and to the fields of a `Summary`.
    """
    found, spread = {}, {}
    steps = sum(batches[k] for k in middle)
    for name in dict.fromkeys(name for window in sums for name in window):
        seconds = [window.get(name, 0.0) for window in sums]
        value = sum(seconds[k] for k in middle) * scale / steps
        each = [s * scale / b for s, b in zip(seconds, batches, strict=True)]
        found[name] = value
        quartiles = dataclasses.replace(summarize(each), median=value)
        spread[name] = dataclasses.asdict(quartiles)
    return found, spread


def _middle(windows):
    """The half of the stretches that took least more or less than the median.

    A thread that was put off for long is in the others.
    """
    rates = {w: (w[1] - w[0]) / w[2] for w in windows}
    median = statistics.median(rates.values())
    near = sorted(windows, key=lambda window: abs(rates[window] - median))
    return sorted(near[: (len(near) + 1) // 2])


def _operations(trace, shares, scale, steps):
    """The dearest operations of a step, as dicts.

    Scaled as the split is: all together are its compute.
    """
    seconds, counts = collections.Counter(), collections.Counter()
    for number, share in itertools.chain(*(found.items() for found in shares)):
        event = trace.events[number]
        if event.kind:
            key = (event.name, event.kind, event.phase)
            seconds[key] += share * scale / steps
            counts[key] += 1
    return [
        {
            "name": name,
            "kind": kind,
            "phase": phase,
            "seconds": value,
            "count": counts[name, kind, phase] / steps,
        }
        for (name, kind, phase), value in seconds.most_common(_TOP)
    ]


def split(trace, windows):
    """Divides the time in the windows among the parts.

    Args:
        trace: `Trace`.
        windows: List of pairs of start and end, none overlapping.

    Returns:
        List of tuples `(start, end, part)` that fill the windows.
    """
    edges = [(e.start, 1, e.part) for e in trace.events]
    edges += [(e.end, -1, e.part) for e in trace.events]
    edges += [(s, 2, "") for s, _ in windows]
    edges += [(e, -2, "") for _, e in windows]
    edges.sort()
    active, pieces = collections.Counter(), []
    inside, last = False, 0.0
    for time, change, of in edges:
        if inside and time > last:
            part = next((p for p in PARTS if active[p]), "dispatch")
            _append(pieces, last, time, part)
        last = time
        if of:
            active[of] += change
        else:
            inside = change > 0
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
        List of dicts, one for each window: the number of an event of the trace
        to its seconds.
    """
    edges = []
    for number, event in enumerate(trace.events):
        if event.part == "compute":
            for place, start, end in _overlaps(event.start, event.end, windows):
                edges.append((start, True, number, place))
                edges.append((end, False, number, place))
    edges.sort()
    seconds = [collections.defaultdict(float) for _ in windows]
    active, last = {}, 0.0
    for time, begins, number, place in edges:
        total = sum(active.values())
        for other, weight in active.items():
            seconds[place][other] += (time - last) * weight / total
        last = time
        if begins:
            active[number] = _weight(trace.events[number])
        else:
            del active[number]
    return seconds


def _overlaps(start, end, windows):
    """Yields the parts of a span that lie in windows, which are in order.

    Each with the place of its window.
    """
    place = max(0, bisect.bisect(windows, (start,)) - 1)
    for number in range(place, len(windows)):
        begin, finish = windows[number]
        if begin >= end:
            break
        if start < finish:
            yield number, max(start, begin), min(end, finish)


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
