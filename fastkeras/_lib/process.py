"""The memory of this process, as its system counts it."""

import sys

try:
    import resource
except ImportError:  # Windows has no such module.
    resource = None


def held():
    """Bytes of this process in memory; None where the system won't tell."""
    return _status("VmRSS:")


def peak():
    """The most bytes of this process so far; None where it is not known.

    Linux's `ru_maxrss` outlives `exec`: in a child it starts at what its
    parent held. `VmHWM` is of this process alone.
    """
    most = _status("VmHWM:")
    if most is not None or resource is None:
        return most
    # macOS counts bytes, other systems kilobytes.
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def free():
    """Bytes the process may still take: of the machine, and by its limit.

    None where the system won't tell.
    """
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            fields = dict(line.split(":") for line in lines)
        with open("/proc/self/statm", encoding="ascii") as file:
            taken = int(file.read().split()[0]) * resource.getpagesize()
    except FileNotFoundError:
        return None
    available = int(fields["MemAvailable"].split()[0]) * 1024
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return available
    return max(0, min(available, limit - taken))


def _status(name):
    try:
        with open("/proc/self/status", encoding="ascii") as lines:
            for line in lines:
                if line.startswith(name):
                    return int(line.split()[1]) * 1024
    except FileNotFoundError:
        pass
    return None
