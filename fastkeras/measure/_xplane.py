"""Reads a trace of TensorFlow's profiler: where the time of its steps went.

Each instant of the steps counts as one thing, the first of these that is
under way: an operation of the step, a copy between host and device, a wait
for the pipeline, Python and the runtime's dispatch. The rest is idle.
"""

import collections
import itertools
import pathlib
import re
from typing import NamedTuple

from tensorflow.tsl.profiler.protobuf import xplane_pb2

from fastkeras._lib import checks
from fastkeras._lib import scopes
from fastkeras.measure import _thunks

#: The parts of a step, an earlier one hides a later one.
PARTS = ("compute", "copies", "input", "dispatch", "idle")
#: Packages that bring the Profile page to TensorBoard.
PAGES = ("xprof", "tensorboard_plugin_profile")
#: What marks a launch: its name, and the statistic that makes it a step.
MARK = "train"

# An operation is logged as "path/of/scopes:Kind".
_OP = re.compile(r"^(?!.*::)(?P<name>.+):(?P<kind>_?[A-Z]\w*)$")
_EAGER = "EagerLocalExecute: "
_COPY = re.compile(r"memcpy|CopyHostToDevice|CopyDeviceToHost", re.IGNORECASE)
_NEXT = re.compile(
    rf"^({_EAGER})?IteratorGetNext(AsOptional)?(Op::DoCompute)?$"
)
_RUNTIME = ("ExecutorState::Process", "ExecutorDoneCallback")
_PIPELINE = "tf_data"
# The statistics of an event that are read, and those that say what it is.
_NAMES = ("tf_op", "hlo_op", "hlo_module", "program_id")
_STATS = {"_r", "_p", "_c", *_NAMES}


class Event(NamedTuple):
    """Something that took a time, in seconds since the start of the trace.

    Attributes:
        own: Float, seconds without those of the events inside it.
    """

    start: float
    end: float
    name: str
    part: str
    kind: str = ""
    phase: str = ""
    own: float = 0.0


class Trace(NamedTuple):
    """What a file holds.

    Attributes:
        launches: List of pairs: start and end of each launch.
        events: List of `Event`.
        eager: Float, seconds in operations run one by one from Python.
        graph: Float, seconds in compiled functions.
        calls: List of floats, when each of these was called, in order.
    """

    launches: list
    events: list
    eager: float
    graph: float
    calls: list


def read(folder, optimizers=()):
    """Reads the profile in a folder.

    Args:
        folder: String or path, as given to `tf.profiler.experimental.start`.
        optimizers: Names of the optimizers, which scope their operations.

    Returns:
        A `Trace`.

    Raises:
        ValueError: If there is no profile, or no launch in it.
    """
    space = xplane_pb2.XSpace()
    for path in sorted(
        pathlib.Path(folder).glob("plugins/profile/*/*.xplane.pb")
    ):
        space.MergeFromString(path.read_bytes())
    return parse(space, optimizers)


def parse(space, optimizers=()):
    """Reads a profile; see `read`."""
    events, calls, spent = [], [], collections.Counter()
    lines = [
        (plane, line, list(_spans(plane, line)))
        for plane in space.planes
        for line in plane.lines
    ]
    threads = [spans for *_, spans in lines]
    marked = _marked(threads)
    launches = sorted(itertools.chain(*marked))
    known = _thunks.instructions(
        space,
        lambda name: phase(name, optimizers),
        _thunks.programs(threads),
    )
    thunks = _thunks.times(threads, known)
    for number, (plane, line, spans) in enumerate(lines):
        device = plane.name.startswith("/device:")
        pipeline = line.name.startswith(_PIPELINE) and not device
        main, classes = bool(marked[number]), {}
        for index, (start, end, name, stats) in enumerate(spans):
            if pipeline and not _NEXT.match(name):
                continue
            # Few are not like an earlier one.
            like = (name, *map(stats.get, _NAMES)) if stats else name
            if like not in classes:
                classes[like] = _classify(
                    name, stats, device, main, known, optimizers
                )
            event = classes[like]
            if event:
                thunk = thunks.get((number, index))
                end, own = thunk[:2] if thunk else (end, end - start)
                events.append(Event(start, end, *event, own))
            if main and name.startswith(_EAGER) and not _NEXT.match(name):
                traced = name.startswith(_EAGER + "__")
                spent[traced] += _inside((start, end), launches)
                if traced:
                    calls.append(start)
    return Trace(launches, events, spent[False], spent[True], sorted(calls))


def _marked(threads):
    """For each thread, the starts and ends of the launches in it."""
    marked = [
        [s[:2] for s in spans if s[2] == MARK and "_r" in s[3]]
        for spans in threads
    ]
    if not any(marked):
        raise ValueError(
            checks.message(
                "A trace must hold marked steps",
                f"{sum(map(len, threads))} events, no step",
                "Profile a `fit` of at least one batch after warm-up.",
            )
        )
    return marked


def _spans(plane, line):
    """Yields start, end, name and statistics of the events of a line."""
    # A trace may hold a million: what is looked up for each costs seconds.
    names = {key: found.name for key, found in plane.event_metadata.items()}
    texts = {key: found.name for key, found in plane.stat_metadata.items()}
    wanted = {key: name for key, name in texts.items() if name in _STATS}
    begin = line.timestamp_ns * 1e-9
    for event in line.events:
        start = begin + event.offset_ps * 1e-12
        stats = {}
        for stat in event.stats:
            key = wanted.get(stat.metadata_id)
            if key:
                # Only what has none of these has 0 here.
                text = stat.ref_value
                stats[key] = texts[text] if text else _value(stat)
        end = start + event.duration_ps * 1e-12
        yield start, end, names[event.metadata_id], stats


def _value(stat):
    return getattr(stat, stat.WhichOneof("value"))


def _classify(name, stats, device, main, known, optimizers):
    """Name, part, kind and phase of an event; None for one of no interest."""
    if _COPY.search(name):
        return name, "copies", "", ""
    if _NEXT.match(name):
        return name, "input", "", ""
    if "hlo_op" in stats:
        found = known.get(_thunks.key(stats))
        kind = re.sub(r"[._\d]+$", "", stats["hlo_op"])
        if found is None:
            return name, "compute", kind, "other"
        # The loop over the steps of a launch is of no phase of a step.
        is_launch = found.control and found.phase == "other"
        of = "runtime" if is_launch else found.phase
        return found.name or name, "compute", kind, of
    if _thunks.is_executor(name):
        return name, "compute", "", "runtime"
    operation = _OP.match(name)
    if operation and not main or device:
        path = stats.get("tf_op", name)
        operation = _OP.match(path)
        found = operation.groupdict() if operation else {"name": path}
        kind = found.get("kind", name)
        return found["name"], "compute", kind, phase(found["name"], optimizers)
    if main and name.startswith(_EAGER):
        kind = name.removeprefix(_EAGER)
        if kind.startswith("__"):
            # Python waits for a compiled function.
            return kind, "idle", "", ""
        return kind, "compute", kind, "eager"
    if name in _RUNTIME:
        return name, "dispatch", "", ""
    return None


def phase(path, optimizers):
    """The phase of a step, by the scopes of an operation.

    Args:
        path: String, scopes and name between slashes.
        optimizers: Names of the optimizers.
    """
    *around, name = path.split("/")
    if scopes.METRICS in around:
        return "metrics"
    if scopes.FEED in around:
        return "feed"
    if _COLLECTIVE.match(name):
        return "replicas"
    if "gradient_tape" in around:
        return "backward"
    if any(scope in optimizers for scope in around):
        return "optimizer"
    if not all(map(_WRAPPER.match, around)):
        return "forward"
    # The tape adds up what reaches a value by several ways.
    return "backward" if _SUM.match(name) else "other"


def is_of_a_loop(path):
    """Whether an operation is of a loop in a layer, such as that of an LSTM.

    Args:
        path: String, scopes and name between slashes.
    """
    around = path.split("/")
    inner = list(itertools.dropwhile(_WRAPPER.match, around))
    return any(scope.startswith("while") for scope in inner)


_COLLECTIVE = re.compile(r"^(Collective|Nccl)")
_SUM = re.compile(r"^AddN(_\d+)?$")
_WRAPPER = re.compile(
    r"^(StatefulPartitionedCall|PartitionedCall|while|cond|body|then|else"
    r"|loop_body|_\d+)(_\d+)?$"
)


def _inside(span, windows):
    return sum(
        max(0.0, min(span[1], end) - max(span[0], start))
        for start, end in windows
    )
