"""Where to cut a chain of calls so that recomputing it needs least memory.

Pure numbers. A chain of n units is cut into segments. Of each segment but the
last, the forward pass keeps what crosses the cut behind it; the backward pass
computes a segment again and holds all of its activations. The last one is
still held when the backward pass begins, so it is never computed twice:

    peak = bytes across all cuts + bytes of the largest segment

For a chain of equal units that is least with about sqrt(n) segments.
Reference: Chen et al. 2016, https://arxiv.org/abs/1604.06174
"""

import itertools

# Bounds of a segment's bytes that are tried, between one unit and all.
_BOUNDS = 48


def least_memory(costs, crossing):
    """The cuts with the lowest peak.

    Args:
        costs: List of n numbers, the bytes that each unit's activations take.
        crossing: List of n numbers: entry j, the bytes that units from j on
            need of those before; entry 0 is not used.

    Returns:
        Tuple of the starts of all segments but the first (ascending; none if
        cutting saves nothing) and of the peak.
    """
    best = ([], sum(costs))
    for bound in _bounds(costs):
        starts, _ = _cheapest(costs, crossing, bound)
        total = peak(costs, crossing, starts)
        if total < best[1]:
            best = (starts, total)
    return best


def fewest_recomputed(costs, crossing, budget):
    """The cuts that stay within a budget and compute least a second time.

    Args:
        costs, crossing: As for `least_memory`.
        budget: Number, the highest peak allowed.

    Returns:
        As `least_memory`; the peak is above the budget if no cuts meet it.
    """
    if sum(costs) <= budget:
        return [], sum(costs)
    for last in range(1, len(costs)):
        if sum(costs[last:]) + crossing[last] > budget:
            continue
        for bound in _bounds(costs[:last]):
            starts, _ = _cheapest(costs[:last], crossing, bound)
            starts = [*starts, last]
            total = peak(costs, crossing, starts)
            if total <= budget:
                return starts, total
    return least_memory(costs, crossing)


def peak(costs, crossing, starts):
    """The bytes that a chain cut at `starts` needs."""
    edges = [0, *starts, len(costs)]
    segments = [sum(costs[a:b]) for a, b in itertools.pairwise(edges)]
    return sum(crossing[s] for s in starts) + max(segments, default=0)


def _bounds(costs):
    """Sizes of a segment worth trying, ascending by a constant factor."""
    low, high = max(costs, default=0), sum(costs)
    if low <= 0:
        return []
    factor = (high / low) ** (1 / _BOUNDS)
    return sorted({low * factor**k for k in range(_BOUNDS)} | {high})


def _cheapest(costs, crossing, bound):
    """The cuts with the fewest bytes across them, no segment above `bound`."""
    # Entry b: the best way to cut the units before b; its last start.
    least = [(0, 0)]
    for b in range(1, len(costs) + 1):
        options, size = [], 0
        for a in range(b - 1, -1, -1):
            size += costs[a]
            # A single unit can't be cut, whatever the rounding of a bound.
            if size > bound and a < b - 1:
                break
            options.append((least[a][0] + (crossing[a] if a else 0), a))
        least.append(min(options))
    starts, b = [], len(costs)
    while b > 0:
        b = least[b][1]
        starts.append(b)
    return starts[::-1][1:], least[-1][0]
