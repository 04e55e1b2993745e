"""The pilot's choices, from times made by hand."""

from fastkeras.engine._pilot import SAMPLES
from fastkeras.engine._pilot import Pilot


def drive(seconds, ahead, compile_seconds=0.5):
    """Runs a pilot over launches whose steps take the given seconds."""
    pilot = Pilot(list(seconds))
    sizes = []
    while ahead > 0:
        tier, steps = pilot.next(lambda _: compile_seconds, None, ahead)
        steps = min(steps, ahead)
        pilot.note(tier, steps, steps * seconds[tier])
        sizes.append((tier, steps))
        ahead -= steps
    return pilot, sizes


def test_the_faster_tier_is_taken_and_the_reason_gives_both_figures():
    pilot, _ = drive({"graph-step": 0.004, "graph-loop": 0.001}, 20_000)
    assert pilot.tier == "graph-loop"
    assert "graph-loop 1 ms a step against 4 in graph-step" in pilot.reasons[0]
    pilot, _ = drive({"graph-step": 0.001, "graph-loop": 0.004}, 20_000)
    assert pilot.tier == "graph-step"
    assert pilot.reasons[0].endswith("graph-step kept")


def test_a_slower_tier_costs_a_few_launches_only():
    _, sizes = drive({"graph-step": 0.001, "xla-loop": 0.5}, 20_000)
    slow = [steps for tier, steps in sizes if tier == "xla-loop"]
    assert 0 < len(slow) <= SAMPLES + 2


def test_no_compilation_that_the_time_ahead_does_not_pay_for():
    short = {"graph-step": 0.001, "graph-loop": 0.0001}
    pilot, sizes = drive(short, 100)
    assert {tier for tier, _ in sizes} == {"graph-step"}
    # The same model with more to do is worth it.
    assert drive(short, 100_000)[0].tier == "graph-loop"


def test_launches_are_short_enough_for_callbacks():
    seconds = {"graph-step": 0.002, "graph-loop": 0.0005}
    _, sizes = drive(seconds, 50_000)
    assert max(steps * seconds[tier] for tier, steps in sizes) <= 0.5
    assert sizes[-2][1] * seconds["graph-loop"] >= 0.1


def test_pinned_steps_stay_pinned():
    pilot = Pilot(["graph-step"], steps=7)
    assert pilot.next(lambda _: 0, None, 100) == ("graph-step", 7)
    assert pilot.next(lambda _: 0, 3, 100) == ("graph-step", 3)


def test_a_dropped_tier_is_named_and_not_tried():
    pilot = Pilot(["graph-step", "xla-loop"])
    pilot.drop("xla-loop", "does not compile: no kernel for Foo")
    for _ in range(20):
        tier, steps = pilot.next(lambda _: 0, None, 10**6)
        assert tier == "graph-step"
        pilot.note(tier, steps, 0.001 * steps)
    assert pilot.reasons == [
        "xla-loop left out: does not compile: no kernel for Foo"
    ]


def test_times_that_overlap_are_compared_for_longer():
    def samples(noise):
        pilot, noise = Pilot(["graph-step", "graph-loop"]), iter(noise)
        while not pilot.reasons:
            tier, steps = pilot.next(lambda _: 0, None, 10**6)
            slow = next(noise) if tier == "graph-loop" else 1.0
            pilot.note(tier, steps, 0.002 * slow * steps)
        return pilot.reasons[0], pilot.tier

    # The first launch of a tier warms it up. One slow spell, then faster.
    reason, tier = samples([9, 2, 2, 0.9, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8])
    assert "n=9 launches" in reason and tier == "graph-loop"
    # Slower each time: three launches tell.
    reason, tier = samples([9, 2, 2, 1.5])
    assert "n=3 launches" in reason and tier == "graph-step"


def test_a_step_reported_is_a_batch_also_where_updates_are_compared():
    pilot = Pilot(["graph-step", "graph-loop"], window=4)
    while not pilot.reasons:
        tier, steps = pilot.next(lambda _: 0, None, 10**6)
        pilot.note(tier, steps, steps * {"graph-step": 4}.get(tier, 2))
    assert set(pilot.times("graph-step")) == {1.0}
    assert set(pilot.times("graph-loop")) == {0.5}
    assert "2e+03 ms an update of 4 batches against" in pilot.reasons[0]


def test_a_launch_that_traces_is_not_in_the_times_reported():
    pilot = Pilot(["graph-step"])
    for seconds, traced in ((9.0, True), (1.0, False), (9.0, True)):
        pilot.note("graph-step", 1, seconds, traced)
    assert pilot.times("graph-step") == [1.0]
    # One that traces nothing counts, however slow it was.
    pilot.note("graph-step", 1, 9.0)
    assert pilot.times("graph-step") == [1.0, 9.0]
