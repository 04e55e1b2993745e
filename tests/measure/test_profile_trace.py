"""Traces made by hand: where each instant goes, and the phases."""

import dataclasses

import pytest
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from fastkeras.measure import ManualClock
from fastkeras.measure import _instants
from fastkeras.measure import _pipeline
from fastkeras.measure import _profile_text
from fastkeras.measure import _runs
from fastkeras.measure import _xplane
from fastkeras.measure import summarize

MS = 10**9  # picoseconds


def space(lines, plane="/host:CPU"):
    """A trace of lines: name -> list of (name, start ms, end ms, stats)."""
    made = xplane_pb2.XSpace()
    plane = made.planes.add(name=plane)
    for key, (line_name, events) in enumerate(lines.items()):
        # Lines begin at times of their own; half a second apart here.
        line = plane.lines.add(name=line_name, timestamp_ns=5 * 10**8 * key)
        for name, start, end, *stats in events:
            number = len(plane.event_metadata) + 1
            plane.event_metadata[number].name = name
            event = line.events.add(
                metadata_id=number,
                offset_ps=int(start * MS) - 500 * MS * key,
                duration_ps=int((end - start) * MS),
            )
            for stat, value in dict(*stats).items():
                number = len(plane.stat_metadata) + 1
                plane.stat_metadata[number].name = stat
                event.stats.add(metadata_id=number, str_value=value)
    return made


STEP = {"_r": "1"}
LINES = {
    "python": [
        ("train", 500, 520, STEP),
        ("EagerLocalExecute: __inference_step_1", 502, 518),
        ("EagerLocalExecute: Mul", 519, 520),
    ],
    "tf_Compute/1": [
        ("ExecutorState::Process", 503, 509),
        ("net/dense/MatMul:MatMul", 504, 508),
        ("gradient_tape/net/dense/MatMul:MatMul", 512, 514),
    ],
    "tf_Compute/2": [
        ("while/body/_1/while/net/dense/Relu:Relu", 506, 510),
        ("StatefulPartitionedCall/adam/Mul_3:Mul", 514, 515),
        ("ThreadpoolListener::Record", 500, 520),
    ],
    "tf_data_iterator_get_next": [
        ("IteratorGetNextOp::DoCompute", 509, 512),
    ],
    "tf_data_private_threadpool": [("Decode:DecodeRaw", 515, 518)],
}


def parts(found):
    sums = dict.fromkeys(_xplane.PARTS, 0.0)
    for start, end, part in _instants.split(found, found.launches):
        sums[part] += (end - start) * 1e3
    return sums


def test_each_instant_counts_once_as_the_first_of_what_is_under_way():
    found = _xplane.parse(space(LINES), ("adam",))
    # compute 504-510, 512-515, 519-520; input 510-512, for 509-510 computes;
    # dispatch 500-502, 503-504, 518-519; Python waits with no work for
    # 502-503 and 515-518, as the pipeline's own work is none of the step.
    assert parts(found) == pytest.approx(
        {"compute": 10, "copies": 0, "input": 2, "dispatch": 4, "idle": 4}
    )


def test_operations_that_run_at_once_share_the_time():
    found = _xplane.parse(space(LINES), ("adam",))
    (shares,) = _instants.shared(found, found.launches)
    times = {found.events[k].name: 1e3 * share for k, share in shares.items()}
    # 506 to 508 is of two.
    assert times == pytest.approx(
        {
            "net/dense/MatMul": 3,
            "while/body/_1/while/net/dense/Relu": 3,
            "gradient_tape/net/dense/MatMul": 2,
            "StatefulPartitionedCall/adam/Mul_3": 1,
            "Mul": 1,
        }
    )
    assert sum(times.values()) == pytest.approx(parts(found)["compute"])
    # Of what lies outside of the windows, nothing.
    shares = _instants.shared(found, [(0.5, 0.507), (0.5085, 0.5095)])
    sums = [sum(share.values()) for share in shares]
    assert sums == pytest.approx([3e-3, 1e-3])


def test_parts_and_phases_have_the_spread_of_the_stretches():
    # Steps of 10 s, of which the forward pass takes 2, 4, 6; one of 90 s.
    windows, events = [], []
    for start, end, taken in (
        (0, 10, 2),
        (100, 110, 4),
        (200, 210, 6),
        (300, 390, 1),
    ):
        windows.append((start, end))
        of = ("dot", "compute", "", "forward", taken)
        events.append(_xplane.Event(start, start + taken, *of))

    class Runs:
        step = summarize([5.0])

        def windows(self, marks, calls):
            return [(*mark, 1) for mark in marks]

    trace = _xplane.Trace(windows, events, 0.0, 0.0, [])
    found, spread = _instants.divided(trace, Runs())
    # Of the two that are nearest; without a trace a step takes half.
    assert found["phases"] == pytest.approx({"forward": 1.5})
    quartiles = summarize([1.0, 2.0, 3.0, 0.5])
    for name, section in (("forward", "phases"), ("compute", "split")):
        assert spread[section][name] == pytest.approx(
            {**dataclasses.asdict(quartiles), "median": 1.5}
        )
    assert spread["split"]["copies"]["upper"] == 0


def test_the_runtime_has_the_time_in_which_nothing_else_is_under_way():
    events = [
        _xplane.Event(0.0, 10.0, "run", "compute", "", "runtime", own=10.0),
        _xplane.Event(2.0, 8.0, "loop", "compute", "while", "forward", own=2.0),
        _xplane.Event(3.0, 7.0, "dot", "compute", "dot", "forward", own=4.0),
    ]
    trace = _xplane.Trace([], events, 0.0, 0.0, [])
    (found,) = _instants.shared(trace, [(0.0, 10.0)])
    # Of 3 to 7 the loop has the share that its own 2 of 6 has beside 4 of 4.
    assert found == pytest.approx({0: 4, 1: 3, 2: 3})


def test_the_same_work_without_its_events_is_idle():
    lines = {"python": LINES["python"]}
    assert parts(_xplane.parse(space(lines)))["idle"] == pytest.approx(16)


def test_phases_are_told_by_scope():
    events = _xplane.parse(space(LINES), ("adam",)).events
    phases = {e.name: e.phase for e in events if e.part == "compute"}
    assert phases == {
        "Mul": "eager",
        "net/dense/MatMul": "forward",
        "gradient_tape/net/dense/MatMul": "backward",
        "while/body/_1/while/net/dense/Relu": "forward",
        "StatefulPartitionedCall/adam/Mul_3": "optimizer",
    }
    # Control: an optimizer whose name is not known.
    other = {e.name: e.phase for e in _xplane.parse(space(LINES)).events}
    assert other["StatefulPartitionedCall/adam/Mul_3"] == "forward"
    assert _xplane.phase("while/body/_1/Less", ()) == "other"
    assert _xplane.phase("replica_1/CollectiveReduceV2_1", ()) == "replicas"


@pytest.mark.parametrize(
    ("path", "is_of_a_loop"),
    [
        ("net/lstm/while/lstm_cell/MatMul", True),
        ("while/body/_1/gradient_tape/net/lstm_2/while_grad/body/Mul", True),
        # The loop over the steps of a launch.
        ("while/body/_1/net/dense/MatMul", False),
        ("net/dense/MatMul", False),
    ],
)
def test_a_loop_of_a_layer_is_told_from_that_of_a_launch(path, is_of_a_loop):
    assert _xplane.is_of_a_loop(path) is is_of_a_loop


def test_a_loop_of_a_layer_is_spoken_of():
    limits = _profile_text.limits(True, "graph-step", False)
    assert list(limits) == [_profile_text.LOOP]
    # The controls: no loop; XLA's instructions, which are all traced.
    assert not list(_profile_text.limits(False, "graph-step", False))
    assert not list(_profile_text.limits(True, "Keras, XLA", False))


def test_eager_and_compiled_calls_are_told_apart():
    found = _xplane.parse(space(LINES))
    assert (found.eager, found.graph) == pytest.approx((1e-3, 16e-3))


def test_copies_and_kernels_of_a_device_count():
    host = space({"python": [("train", 0, 10, STEP)]})
    host.MergeFrom(
        space(
            {
                "stream": [
                    ("MemcpyH2D", 1, 3),
                    ("gemm", 3, 7, {"tf_op": "net/dense/MatMul:MatMul"}),
                ]
            },
            "/device:GPU:0",
        )
    )
    found = _xplane.parse(host)
    assert parts(found) == pytest.approx(
        {"compute": 4, "copies": 2, "input": 0, "dispatch": 4, "idle": 0}
    )
    assert [e.name for e in found.events] == ["MemcpyH2D", "net/dense/MatMul"]


def test_a_trace_without_marks_is_refused():
    lines = {"python": [("train", 0, 10)]}
    with pytest.raises(ValueError, match="marked steps. Received: 1 events"):
        _xplane.parse(space(lines))


def run(runs, clock, seconds, batches, launch, start=0.0):
    """Drives the hooks as `fit` does, with times of choice."""
    runs.on_train_begin()
    for epoch in range(len(seconds)):
        runs.on_epoch_begin(epoch)
        clock.advance(0.2)
        for batch in range(0, batches, launch):
            runs.on_train_batch_begin(batch)
            last = min(batch + launch, batches)
            clock.advance(seconds[epoch] * (last - batch))
            # The pipeline begins.
            clock.advance(0.0 if batch else start)
            runs.on_train_batch_end(last - 1)
        runs.on_epoch_end(epoch)
        clock.advance(0.1)
    runs.on_train_end()


def runs_of(count, clock):
    runs = _runs.Runs(count, epochs=1, clock=clock)
    runs.set_model(type("Bare", (), {"optimizer": None}))
    return runs


def test_data_that_end_after_their_first_batch_are_timed_all_the_same():
    clock = ManualClock()
    runs = runs_of(12, clock)
    run(runs, clock, (0.05, 0.02), batches=1, launch=1)
    assert runs.turns == [pytest.approx(0.02)]


@pytest.mark.parametrize(
    ("launch", "stretches"), [(1, 2), (4, 2), (5, 2), (12, 1)]
)
def test_steps_and_what_is_beside_them_are_timed_apart(launch, stretches):
    clock = ManualClock()
    runs = runs_of(12, clock)
    # The first epoch, warm-up, takes five times as long; then turns begin.
    for seconds in ((0.05, 0.01), (0.02,), (0.01,)):
        run(runs, clock, seconds, batches=12, launch=launch)
    assert runs.step.median == pytest.approx(0.01)
    assert runs.turns == pytest.approx([0.01, 0.02, 0.01])
    assert runs.step.n == 3 * stretches
    assert runs.beside.median == pytest.approx(0.3)
    assert runs.beside.n == 3
    # A slow start of an epoch is no time of its steps, if there are others.
    alone = runs_of(12, clock)
    for seconds in ((0.05, 0.01), (0.01,), (0.01,)):
        run(alone, clock, seconds, 12, launch, start=0.6)
    more = 0.6 if launch == 12 else 0.0
    assert alone.step.median == pytest.approx(0.01 + more / 12)
    assert alone.beside.median == pytest.approx(0.3 + 0.6 - more)
    assert runs.batches_per_launch == 12 / len(range(0, 12, launch))


def test_windows_are_stretches_of_an_epoch_not_what_is_between():
    runs = _runs.Runs(count=15, epochs=2, clock=ManualClock())
    # Stretches of 6; the fourth launch found no more data.
    runs.marked = [[4, 0, 4], [4, 4, 8], [4, 8, 12], [4, 12, 12], [5, 0, 6]]
    marks = [(1.0, 2.0), (3.0, 4.0), (4.5, 5.0), (5.0, 6.0), (8.0, 9.0)]
    found = [(1.0, 4.5, 8), (4.5, 5.0, 4), (8.0, 9.0, 6)]
    # Of three calls in the first, nobody knows whose they are.
    assert runs.windows(marks, [1.1, 1.2, 1.3, 7.0]) == found


def test_a_launch_that_calls_its_function_for_each_step_holds_stretches():
    runs = _runs.Runs(count=15, epochs=1, clock=ManualClock())
    # The second starts 0.1 in: it is of the first piece.
    runs.marked = [[1, 0, 1], [1, 1, 15]]
    calls = [1.5, *(2.1 + 0.5 * k for k in range(14))]
    found = runs.windows([(1.0, 2.0), (2.0, 9.0)], calls)
    assert found == [(1.0, calls[6], 6), (calls[6], 9.0, 9)]
    # Control: a launch in the graph is one call.
    assert runs.windows([(1.0, 2.0), (2.0, 9.0)], calls[:2]) == [(1.0, 9.0, 15)]


def test_steps_that_were_put_off_are_not_of_the_middle():
    windows = [(0.0, 4.0, 4), (4.0, 5.0, 1), (5.0, 95.0, 1), (95.0, 97.0, 2)]
    windows.append((97.0, 97.5, 1))
    assert _instants._middle(windows) == [windows[0], windows[1], windows[3]]
    assert _instants._middle(windows[2:3]) == windows[2:3]


@pytest.mark.parametrize(("count", "seconds"), [(1, 0.5), (2, 0.01), (6, 0.01)])
def test_the_pipeline_alone_is_timed_without_its_start(count, seconds):
    clock = ManualClock()

    class Made:
        def whole_pass(self):
            for k in range(count):
                clock.advance(0.01 if k else 0.5)
                yield k

    alone = _pipeline.Alone(Made(), 6, clock)
    for _ in range(2):
        alone.run()
    assert alone.step.median == pytest.approx(seconds)
    assert alone.turns == pytest.approx([seconds, seconds])
    assert alone.step.n == 4
