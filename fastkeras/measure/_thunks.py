"""XLA's programs in a trace: where their instructions come from, how long
they ran.

On the host an instruction may go on, on threads of its own, when its event
has ended; an event named `end: ` says when it was done. A loop's event holds
those of its body.
"""

import bisect
import collections
from typing import NamedTuple

from tensorflow.compiler.xla.service import hlo_pb2

# Runs instructions that are ready, one after the other; what is done between
# them is its own.
_EXECUTOR = "ThunkExecutor::Execute"
_DONE = "end: "
# Instructions that only run others.
_CONTROL = ("while", "conditional", "call")
# Stands for an argument of the program, whatever it is used for.
_ARGUMENT = "XLA_Args"


class Instruction(NamedTuple):
    """What is known of an instruction.

    Attributes:
        name: String, TensorFlow's, scopes between slashes.
        phase: String.
        control: Bool, whether it only runs others.
    """

    name: str
    phase: str
    control: bool


def instructions(space, phase, programs):
    """What the instructions of the programs of a trace belong to.

    Args:
        space: XSpace.
        phase: Function of a name to the phase of a step.
        programs: Set of the numbers of the programs that ran: a trace tells
            of all that the process has compiled.

    Returns:
        Dict of program's number and name and the instruction's name to
        `Instruction`.
    """
    found = {}
    for plane in space.planes:
        if plane.name != "/host:metadata":
            continue
        for number in programs & set(plane.event_metadata):
            for stat in plane.event_metadata[number].stats:
                proto = hlo_pb2.HloProto.FromString(stat.bytes_value)
                module = proto.hlo_module
                for name, value in _of_module(module, phase):
                    found[number, module.name, name] = value
    return found


def programs(lines):
    """Set of the numbers of the programs that ran; lines as in `times`."""
    return {
        key(stats)[0]
        for spans in lines
        for *_, stats in spans
        if "hlo_op" in stats
    }


def key(stats):
    """The key of an event's instruction in `instructions`."""
    number = stats.get("program_id", 0)
    return number, stats.get("hlo_module"), stats["hlo_op"]


def _of_module(module, phase):
    """Yields name and `Instruction` of each instruction of a program."""
    callers = {
        number: instruction
        for computation in module.computations
        for instruction in computation.instructions
        for number in instruction.called_computation_ids
    }
    for computation in module.computations:
        caller = callers.get(computation.id)
        outside = _own(caller) if caller else ""
        near = _Near(computation, phase)
        for instruction in computation.instructions:
            path = _own(instruction)
            name = path
            if not path:
                path = near.path(instruction) or outside
                name = f"{instruction.name} (near {path})" if path else ""
            control = instruction.opcode in _CONTROL
            yield instruction.name, Instruction(name, phase(path), control)


def _own(instruction):
    path = instruction.metadata.op_name
    return "" if path == _ARGUMENT else path


class _Near:
    """Names for instructions that XLA made itself, which have none.

    They go with the last phase they are computed from; what is computed from
    arguments or from the forward pass alone, with the first that uses it: the
    gradient of a pooling looks for its maxima in what the layer was given.
    """

    _ORDER = ("feed", "forward", "backward", "metrics", "optimizer")
    _EARLY = ("feed", "forward")

    def __init__(self, computation, phase):
        self._phase = phase
        self._byid = {i.id: i for i in computation.instructions}
        self._users = collections.defaultdict(list)
        for instruction in computation.instructions:
            for number in instruction.operand_ids:
                self._users[number].append(instruction.id)

    def path(self, instruction):
        """The name of a neighbour, or ""."""
        before = max(
            self._named(instruction, lambda i: i.operand_ids),
            key=self._rank,
            default="",
        )
        if before and self._phase(before) not in self._EARLY:
            return before
        after = self._named(instruction, lambda i: self._users[i.id])
        return min(after, key=self._rank, default=before)

    def _rank(self, path):
        return self._ORDER.index(self._phase(path))

    def _named(self, instruction, step):
        """The first names with a phase on each way from an instruction."""
        seen, found, ahead = {instruction.id}, [], [instruction]
        while ahead:
            numbers = set(step(ahead.pop())) - seen
            seen |= numbers
            for other in (self._byid[n] for n in sorted(numbers)):
                if self._phase(_own(other)) in self._ORDER:
                    found.append(_own(other))
                else:
                    ahead.append(other)
        return found


class Thunk(NamedTuple):
    """An event of XLA on the host.

    Attributes:
        end: Float, when what it began was done.
        seconds: Float, its own.
        control: Bool, whether it only runs others.
    """

    end: float
    seconds: float
    control: bool


def times(lines, known):
    """When XLA's events on the host really ended, and their own time.

    Args:
        lines: List of lists of spans `(start, end, name, statistics)`, a list
            for each thread.
        known: Dict, of `instructions`.

    Returns:
        Dict of index of line and index of span to `Thunk`. The executor's own
        is the time in which no instruction is under way, up to its last: its
        thread may be put off before it notes that it has ended.
    """
    done = _done(lines)
    own = {
        (number, index): seconds
        for number, spans in enumerate(lines)
        for index, seconds in _own_seconds(spans).items()
    }
    found, executors = {}, []
    for place, seconds in own.items():
        span = lines[place[0]][place[1]]
        _, end, name, stats = span
        if name == _EXECUTOR:
            executors.append((*span[:2], place))
        else:
            last = max(end, done.get(stats.get("_p"), end))
            found[place] = Thunk(last, seconds, _runs(span, known))
    work = [
        (lines[n][i][0], lines[n][i][1], thunk.end)
        for (n, i), thunk in found.items()
        if not thunk.control
    ]
    seen = _Busy((start, end) for start, end, _ in work)
    for place, thunk in found.items():
        end = lines[place[0]][place[1]][1]
        if not thunk.control and thunk.end > end:
            # Of the time after its event, what no other has.
            late = seen.free(end, thunk.end)
            found[place] = thunk._replace(seconds=thunk.seconds + late)
    busy, until = _Busy((start, last) for start, _, last in work), 0.0
    ran = [sorted(s[:2] for s in spans if "hlo_op" in s[3]) for spans in lines]
    for start, end, place in sorted(executors):
        end = _last(ran[place[0]], start, end)
        seconds = busy.free(max(start, until), end) if end > until else 0.0
        found[place] = Thunk(end, seconds, True)
        until = max(end, until)
    return found


def is_executor(name):
    """Whether an event is that of the executor."""
    return name == _EXECUTOR


def _runs(span, known):
    """Whether a span only runs others."""
    found = known.get(key(span[3]))
    return found is not None and found.control


def _last(spans, start, end):
    """The end of the last of sorted spans between two moments, or `start`."""
    place = bisect.bisect_left(spans, (end,)) - 1
    is_inside = place >= 0 and spans[place][0] >= start
    return min(end, spans[place][1]) if is_inside else start


def _own_seconds(spans):
    """Index of each event of XLA to its seconds without those inside."""
    order = sorted(
        (
            index
            for index, (_, _, name, stats) in enumerate(spans)
            if name == _EXECUTOR or "hlo_op" in stats
        ),
        key=lambda index: (spans[index][0], -spans[index][1]),
    )
    own, open_ = {}, []
    for index in order:
        start, end = spans[index][:2]
        while open_ and spans[open_[-1]][1] <= start:
            open_.pop()
        if open_:
            own[open_[-1]] -= end - start
        own[index] = end - start
        open_.append(index)
    return own


def _done(lines):
    """Number of each instruction's run to the moment it was done."""
    found = {}
    for spans in lines:
        previous = None
        for span in sorted(spans, key=lambda s: (s[1], -s[0])):
            start, _, name, stats = span
            if name.startswith(_DONE) and "_c" in stats:
                # Those that waited for it are run before its end is noted.
                waited = previous and previous[2] == _EXECUTOR
                found[stats["_c"]] = previous[0] if waited else start
            previous = span
    return found


class _Busy:
    """The union of spans."""

    def __init__(self, spans):
        self._starts, self._ends, self._sums = [], [], [0.0]
        for start, end in sorted(spans):
            if self._ends and start <= self._ends[-1]:
                self._ends[-1] = max(end, self._ends[-1])
            else:
                self._starts.append(start)
                self._ends.append(end)
        for start, end in zip(self._starts, self._ends, strict=True):
            self._sums.append(self._sums[-1] + end - start)

    def free(self, start, end):
        """Seconds between two moments that no span covers."""
        return end - start - (self._until(end) - self._until(start))

    def _until(self, moment):
        place = bisect.bisect(self._starts, moment)
        if not place:
            return 0.0
        over = max(0.0, self._ends[place - 1] - moment)
        return self._sums[place] - over
