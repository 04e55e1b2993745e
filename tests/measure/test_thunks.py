"""XLA's events made by hand: when they ended, what they belong to."""

import pytest
from tensorflow.compiler.xla.service import hlo_pb2
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from fastkeras.measure import _thunks
from fastkeras.measure import _xplane

EXECUTE = "ThunkExecutor::Execute"


def thunk(name, start, end, number):
    return (start, end, name, {"hlo_op": name, "_p": number})


def done(moment, number):
    return (moment, moment, "end: it", {"_c": number})


def own(lines, known=None):
    """Names of events to their own time and end."""
    found = _thunks.times(lines, known or {})
    return {
        lines[n][i][2]: (value.seconds, value.end)
        for (n, i), value in found.items()
    }


def test_what_goes_on_after_its_event_counts_where_nothing_else_is_told():
    lines = [
        [(0, 12, EXECUTE, {}), thunk("conv", 1, 2, 7), thunk("copy", 5, 9, 8)],
        [(20, 30, EXECUTE, {}), thunk("add", 20, 29, 9), done(31, 7)],
    ]
    found = own(lines)
    # What waited for it ran from 20 to 30, before its end was noted: 1 of its
    # event, 3 up to the copy, 11 from there to 20.
    assert found["conv"] == (15, 20)
    assert found["copy"] == (4, 9) and found["add"] == (9, 29)
    # Of the executor, what no instruction has, up to the last; the other is
    # of the second thread, put off after it.
    assert _thunks.times(lines, {})[0, 0].seconds == 1
    assert found[EXECUTE] == (0, 29)
    # Control: with no word of its end it lasts as long as its event.
    lines[1].pop()
    assert own(lines)["conv"] == (1, 2)


def test_a_loop_has_no_time_of_what_it_runs():
    body = [thunk("while", 0, 10, 1), thunk("dot", 1, 8, 2)]
    assert own([body])["while"][0] == 3
    known = {(0, None, "while"): _thunks.Instruction("", "other", True)}
    # Not done before 20: that is its body's, on other threads.
    assert own([[*body, done(20, 1)]], known)["while"] == (3, 20)
    assert own([[*body, done(20, 1)]])["while"] == (13, 20)


@pytest.mark.parametrize(
    ("of", "control", "phase"),
    [
        ("other", True, "runtime"),
        ("other", False, "other"),
        ("forward", True, "forward"),
    ],
)
def test_the_loop_over_the_steps_of_a_launch_is_of_no_phase(of, control, phase):
    known = {(0, None, "while.3"): _thunks.Instruction("", of, control)}
    stats = {"hlo_op": "while.3"}
    found = _xplane._classify("while.3", stats, False, False, known, ())
    assert found == ("while.3", "compute", "while", phase)


def program(*instructions):
    """A trace with a program of instructions: name, TensorFlow's, operands."""
    proto = hlo_pb2.HloProto()
    proto.hlo_module.name = "step"
    computation = proto.hlo_module.computations.add(id=1)
    numbers = {name: k for k, (name, *_) in enumerate(instructions)}
    for name, path, *operands in instructions:
        made = computation.instructions.add(id=numbers[name], name=name)
        made.metadata.op_name = path
        made.operand_ids.extend(numbers[o] for o in operands)
    made = xplane_pb2.XSpace()
    plane = made.planes.add(name="/host:metadata")
    plane.event_metadata[3].stats.add(bytes_value=proto.SerializeToString())
    return made


def test_what_xla_made_itself_goes_with_what_it_is_computed_from():
    space = program(
        ("x", "XLA_Args"),
        ("turned", "", "x"),
        ("relu", "net/conv/Relu", "turned"),
        ("slope", "gradient_tape/net/conv/ReluGrad", "relu"),
        ("filter", "", "x", "relu", "slope"),
        ("kept", "", "x"),
        ("late", "", "kept"),
        ("moved", "", "x"),
        ("weights", "adam/Sub", "filter", "moved"),
        ("sum", "AddN_1"),
        # What a pooling's gradient makes of the layer's input.
        ("places", ""),
        ("pair", "", "relu", "places"),
        ("maxima", "", "pair"),
        ("spread", "gradient_tape/net/pool/MaxPoolGrad", "maxima", "slope"),
        # The same, used by the next layer too.
        ("copied", "", "relu"),
        ("next", "net/dense/MatMul", "copied"),
        ("back", "gradient_tape/net/dense/MatMul", "copied"),
    )

    def read(programs):
        return _thunks.instructions(
            space, lambda name: _xplane.phase(name, ("adam",)), programs
        )

    ran = {"hlo_op": "relu", "program_id": 3, "hlo_module": "step"}
    found = read(_thunks.programs([[(0, 1, "relu", ran)], []]))
    assert read({4}) == {}
    phases = {key[2]: value.phase for key, value in found.items()}
    del phases["x"]
    assert phases == {
        "turned": "forward",
        "relu": "forward",
        "slope": "backward",
        "filter": "backward",
        "kept": "other",
        "late": "other",
        "moved": "optimizer",
        "weights": "optimizer",
        "sum": "backward",
        "places": "backward",
        "pair": "backward",
        "maxima": "backward",
        "spread": "backward",
        "copied": "forward",
        "next": "forward",
        "back": "backward",
    }
    name = found[3, "step", "filter"].name
    assert name == "filter (near gradient_tape/net/conv/ReluGrad)"


@pytest.mark.parametrize(
    ("path", "phase"),
    [
        ("metric_updates/accuracy/ArgMax", "metrics"),
        ("while/body/_1/feed_rows/GatherV2", "feed"),
        ("while/body/_1/ArgMax", "other"),
    ],
)
def test_metrics_and_rows_are_told_by_scopes_of_ours(path, phase):
    assert _xplane.phase(path, ()) == phase
