"""The bench: its figures from made-up times, its schedule on a made-up clock,
its command in a process of its own. No test looks at a wall time."""

import json
import subprocess
import sys

import pytest

from fastkeras import bench
from fastkeras import cli
from fastkeras import measure
from fastkeras.bench import charts
from fastkeras.bench import fast
from fastkeras.bench import jax_client
from fastkeras.bench import jax_server
from fastkeras.bench import results
from fastkeras.bench import rows
from fastkeras.bench import runner
from fastkeras.bench import sides
from fastkeras.bench import tables
from fastkeras.bench.schedule import LEAST_TURNS
from fastkeras.bench.schedule import MOST_TURNS
from fastkeras.bench.schedule import Schedule
from fastkeras.bench.schedule import fair_share
from fastkeras.bench.schedule import order

# Made-up sides: what each takes for a step, by kind and options.
STEP = {
    ("stock", 1, "auto"): 0.008,
    ("stock", 32, False): 0.002,
    ("stock", 32, True): 0.003,
    ("stock", 1, True): 0.005,
    ("fast", 1, "auto"): 0.001,
    ("jax", 1, "auto"): 0.004,
    ("jax", 32, "auto"): 0.0005,
    ("floor", 1, "auto"): 0.00025,
}


class MadeUp:
    """A side that only moves a clock, and notes its turns."""

    def __init__(self, kind, options, clock, log, drift):
        steps = options.get("steps_per_execution", 1)
        key = (kind, steps, options.get("jit_compile", "auto"))
        self.step = STEP[key]
        self.options, self.clock, self.log = options, clock, log
        self.drift = drift
        self.name = key
        self.loss = 2.3

    def _spend(self, seconds):
        self.clock.advance(seconds)
        return seconds

    def first(self):
        self.log.append(("first", *self.name))
        return self._spend(1000 * self.step)

    def warm(self, seconds):
        self._spend(min(seconds, 10 * self.step))

    def turn(self):
        self.log.append(("turn", *self.name))
        self.clock.advance(0.4)
        return self.step * self.drift(self.clock.now())

    def describe(self):
        return {"tier": "xla-loop", "settled": True}


def measured(
    seconds=60.0, kinds=("stock", "fast"), drift=lambda now: 1.0, **given
):
    """The record of a row of made-up sides, and what ran in which order."""
    clock, log = measure.ManualClock(), []

    def make(kind, options):
        if kind not in kinds:
            return None
        return MadeUp(kind, options, clock, log, drift)

    row = given.pop("row", rows.ROWS["mlp"])
    return Schedule(row, make, seconds, clock, **given).run(), log


def report_of(*records, **changes):
    report = {
        "fastkeras": "0",
        "date": "2026-01-02T03:04:05+00:00",
        "machine": {
            "processor": "P",
            "cores": 2,
            "gpus": 0,
            "system": "S",
            "load": 0.1,
        },
        "versions": {"python": "3", "tensorflow": "2", "keras": "3"},
        "suite": "all",
        "seconds_per_row": 1.0,
        "quick": False,
        "jax": {"left_out": "JAX is not installed here", "versions": None},
        "rows": list(records),
    }
    return {**report, **changes}


# Figures.


def test_ratios_are_taken_pair_by_pair():
    # The machine slows down tenfold for the last turn, for both sides.
    found = results.figures([4.0, 6.0, 40.0], [1.0, 2.0, 10.0])
    assert found["ratio"]["median"] == 4.0
    assert found["median"] == 6.0
    # The control: the ratio of the medians would say 3.
    assert measure.summarize([4.0, 6.0, 40.0]).median / 2.0 == 3.0


def test_a_side_that_missed_a_turn_is_refused():
    with pytest.raises(ValueError, match="same length"):
        results.figures([1.0, 2.0], [1.0])


def test_the_figures_of_a_row_follow_from_its_times():
    record, _ = measured()
    assert tuple(record) == results.ROW_KEYS
    assert record["stock"]["median"] == pytest.approx(0.008)
    assert record["fast"]["ratio"]["median"] == 1.0
    assert record["stock"]["ratio"]["median"] == pytest.approx(8.0)
    assert record["best_stock"]["ratio"]["median"] == pytest.approx(2.0)
    assert record["best_stock"]["options"] == {
        "steps_per_execution": 32,
        "jit_compile": False,
    }
    assert record["first_epoch"]["ratio"]["median"] == pytest.approx(8.0)
    assert record["jax"] is record["floor"] is record["error"] is None
    json.dumps(record)


def test_a_machine_that_slows_down_leaves_the_ratios_alone():
    record, _ = measured(drift=lambda now: 1.0 if now < 30 else 3.0)
    times = record["stock"]["times"]
    assert max(times) > 2.5 * min(times)
    assert record["stock"]["ratio"]["median"] == pytest.approx(8.0)


def test_jax_and_its_best_and_the_floor_stand_beside():
    kinds = ("stock", "fast", "jax", "floor")
    record, _ = measured(kinds=kinds)
    assert record["jax"]["ratio"]["median"] == pytest.approx(4.0)
    assert record["jax_best"]["ratio"]["median"] == pytest.approx(0.5)
    assert record["floor"]["ratio"]["median"] == pytest.approx(0.25)
    text = tables.table(
        report_of(record, jax={"left_out": None, "versions": {"jax": "0.1"}})
    )
    assert "Keras on JAX (jax 0.1)" in text
    assert "0.50x Keras on JAX at its best" in text


def test_the_default_is_the_best_setting_where_nothing_beats_it(monkeypatch):
    monkeypatch.setitem(STEP, ("stock", 1, "auto"), 0.0001)
    record, _ = measured()
    assert record["best_stock"] == record["stock"]
    assert "0.10x stock `fit`" in tables.table(report_of(record))


def test_a_choice_of_the_search_that_does_not_last_gives_way():
    # Once 12 things have been run, the search is over.
    clock, log = measure.ManualClock(), []

    def make(kind, options):
        tires = kind == "stock" and options
        return MadeUp(
            kind,
            options,
            clock,
            log,
            lambda now: 10.0 if tires and len(log) > 12 else 1.0,
        )

    record = Schedule(rows.ROWS["mlp"], make, 60.0, clock).run()
    assert record["best_stock"] == record["stock"]
    assert any("by one turn" in note for note in record["notes"])


# The schedule.


def test_sides_take_turns_and_each_comes_first_equally_often():
    _, log = measured()
    turns = [name for what, *name in log if what == "turn"][-12:]
    sides_seen = {tuple(name) for name in turns}
    assert len(sides_seen) == 3
    blocks = [turns[k : k + 3] for k in range(0, 12, 3)]
    assert all({tuple(n) for n in block} == sides_seen for block in blocks)
    assert blocks[0] == blocks[1][::-1]
    assert [order("ab", k) for k in (0, 1)] == [["a", "b"], ["b", "a"]]


def test_first_epochs_are_of_fresh_models_in_pairs_of_both_orders():
    record, log = measured(seconds=1000.0)
    firsts = [name for what, name, *_ in log if what == "first"][:4]
    assert firsts == ["stock", "fast", "fast", "stock"]
    assert len(record["first_epoch"]["stock"]) == 2
    # The control: a slow row has no time for a second pair.
    record, _ = measured(seconds=10.0)
    assert len(record["first_epoch"]["stock"]) == 1


def test_a_short_time_cuts_turns_and_search_but_not_below_the_least():
    record, _ = measured(seconds=0.001)
    assert len(record["fast"]["times"]) == LEAST_TURNS
    assert any("no time left" in note for note in record["notes"])
    assert len(record["candidates"]) == 2
    record, _ = measured(seconds=1e6)
    assert len(record["fast"]["times"]) == MOST_TURNS
    assert len(record["candidates"]) == 4
    assert record["notes"] == []


def test_rows_of_a_bench_that_is_late_have_less_time():
    assert fair_share(20.0, rows=13, done=0, elapsed=0.0) == 20.0
    assert fair_share(20.0, rows=13, done=12, elapsed=600.0) == 20.0
    # All rows so far took four times their time.
    late = fair_share(20.0, rows=13, done=6, elapsed=480.0)
    assert 4.0 < late < 20.0
    assert fair_share(20.0, rows=13, done=12, elapsed=1e4) == 4.0
    # A bench whose rows all take 2.5 times what they are given ends in time.
    elapsed = 0.0
    for done in range(13):
        elapsed += 2.5 * fair_share(20.0, 13, done, elapsed)
    assert elapsed < 12 * 60


def test_a_quick_row_tries_one_setting():
    record, _ = measured(search=False)
    assert len(record["candidates"]) == 2
    assert len(record["first_epoch"]["fast"]) == 1


def test_a_process_with_jax_that_fails_costs_only_the_rows_of_jax():
    clock, log = measure.ManualClock(), []

    def make(kind, options):
        if kind == "floor":
            raise jax_client.JaxError("it has ended")
        return MadeUp(kind, options, clock, log, lambda now: 1.0)

    record = Schedule(rows.ROWS["mlp"], make, 60.0, clock).run()
    assert record["jax"] is record["jax_best"] is record["floor"] is None
    assert record["stock"]["ratio"]["median"] == pytest.approx(8.0)
    assert record["notes"] == ["Keras on JAX left out: it has ended"]


# The rows.


def test_every_row_of_the_issue_is_there_and_draws_the_same_data_twice():
    assert len(rows.ROWS) == 13
    for row in rows.ROWS.values():
        quick = row.quick()
        (x, _), (again, _) = quick.data(), quick.data()
        first = x[0] if isinstance(x, list) else x
        other = again[0] if isinstance(again, list) else again
        assert (first == other).all()
        assert len(first) == quick.steps * quick.batch
        assert row.suite in rows.SUITES


@pytest.mark.parametrize("name", rows.ROWS)
def test_convolutions_are_kept_from_xla_on_a_cpu_and_the_row_says_so(name):
    row = rows.ROWS[name]
    options, notes = row.stock_options()
    has_jit = any(o["jit_compile"] for o in options)
    assert has_jit is not row.convolves
    assert any("jit_compile" in note for note in notes) is row.convolves
    on_gpu, notes = row.stock_options(gpu=True)
    assert not notes
    assert {"steps_per_execution": 1, "jit_compile": False} in on_gpu


def test_a_turn_holds_as_many_epochs_as_its_time_allows():
    assert sides.units_for(0.4, 0.001) == sides.MOST_UNITS
    assert sides.units_for(0.4, 0.1) == 4
    assert sides.units_for(0.4, 7.0) == 1
    assert sides.units_for(0.4, 0.0) == sides.MOST_UNITS


# Has the pilot settled?


def section(tier, choices=(), compiled=()):
    return {
        "resident": {
            "tier": tier,
            "choices": list(choices),
            "compile seconds": dict.fromkeys(compiled, 1.0),
            "time per step": {tier: "1 ms"},
        },
        "traces": {},
    }


def test_a_trial_that_is_not_judged_keeps_the_warm_up_going():
    clock = measure.ManualClock()
    settling = fast.Settling(clock, seconds=1.0)
    trial = section("graph-step", compiled=["graph-loop"])
    for _ in range(5):
        assert not settling.look(trial)
        clock.advance(1.0)
    judged = section(
        "graph-loop", ["graph-loop 1 ms ... taken"], ["graph-loop"]
    )
    assert not settling.look(judged)
    clock.advance(0.5)
    assert not settling.look(judged)
    # A new choice begins the wait anew.
    other = section("xla-loop", ["xla-loop 1 ms ... taken"], ["graph-loop"])
    other["resident"]["choices"] += judged["resident"]["choices"]
    clock.advance(0.5)
    assert not settling.look(other)
    clock.advance(1.0)
    assert settling.look(other)


# The table and the chart.


def test_the_table_has_each_row_its_tier_and_what_does_not_help():
    record, _ = measured()
    text = tables.table(report_of(record))
    assert "2026-01-02" in text and "JAX is not installed" in text
    assert "xla-loop" in text and "8.00 ±0.00" in text
    assert "Where it does not help: in none of these rows" in text
    slow = json.loads(json.dumps(record))
    slow["stock"]["ratio"]["median"] = 0.9
    slow["best_stock"]["ratio"]["median"] = 0.8
    slow["first_epoch"].update(stock=[1.0], fast=[2.0])
    text = tables.table(report_of(slow))
    assert "- MLP 64-128-128-10: 0.90x stock `fit`" in text
    assert "- MLP 64-128-128-10: 0.80x the best stock setting" in text
    assert "first epoch 2.00 s, stock 1.00 s" in text


def test_a_row_that_failed_is_named_and_the_others_stay():
    record, _ = measured()
    failed = {**results.blank(rows.ROWS["cnn"]), "error": "ValueError: No."}
    text = tables.table(report_of(record, failed))
    assert "CNN 28x28 FAILED: ValueError: No." in text
    assert "8.00 ±0.00" in text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(2.5, "2.50 s"), (0.0129, "12.9 ms"), (0.4, "400 ms"), (2e-6, "2.00 us")],
)
def test_durations_keep_three_digits(seconds, text):
    assert tables.duration(seconds) == text


def test_the_chart_is_drawn_from_the_ratios(tmp_path):
    record, _ = measured(kinds=("stock", "fast", "jax", "floor"))
    report = report_of(record)
    found = {side: pairs[0][1] for side, pairs in charts.bars(report).items()}
    assert found == pytest.approx(
        {"fast": 8.0, "best_stock": 4.0, "jax_best": 16.0, "floor": 32.0}
    )
    path = tmp_path / "chart.png"
    bench.plot(report, path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_the_error_names_the_extra(monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert cli.main(["bench", "--rows", "mlp", "--plot", "a.png"]) == 2
    assert "fastkeras[recipes]" in capsys.readouterr().err


# The server of the other process, in this one.


def test_the_server_makes_runs_and_forgets_sides():
    clock, log = measure.ManualClock(), []
    makers = {
        "jax": lambda row, options: MadeUp(
            "jax", options, clock, log, lambda now: 1.0
        )
    }
    server = jax_server.Server(makers, rows.ROWS)
    make = {"do": "make", "side": 0, "kind": "jax", "row": "mlp"}
    server.answer({**make, "options": {}, "quick": True})
    assert server.answer({"do": "first", "side": 0})["seconds"] == 4.0
    assert server.answer({"do": "warm", "side": 0}) == {}
    answer = server.answer({"do": "turn", "side": 0})
    assert answer == {"seconds": 0.004, "loss": 2.3}
    server.answer({"do": "clear"})
    with pytest.raises(KeyError):
        server.answer({"do": "turn", "side": 0})


def test_another_interpreter_that_has_no_jax_is_an_error_that_says_so(
    tmp_path,
):
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\nexit 1\n")
    script.chmod(0o755)
    with pytest.raises(jax_client.JaxError, match="must be an interpreter"):
        jax_client.Jax(script)


# The command.


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--rows", "mlpp"], "Did you mean 'mlp'?"),
        (["--suite", "computer"], "Did you mean 'compute'?"),
        (["--suite", "compute", "--rows", "mlp"], "Received: rows='mlp'"),
        (["--seconds", "0"], "`seconds` must be finite and > 0"),
        (["--seconds", "soon"], "invalid float value"),
        (["--json", "/no/such/folder/a.json"], "folder of `--json`"),
        (["--quik", "--rows", "mlp"], "--quik"),
    ],
)
def test_what_is_asked_wrongly_is_one_line_and_code_2(
    arguments, words, capsys, monkeypatch
):
    monkeypatch.setattr(bench, "run", lambda *a, **k: pytest.fail("it ran"))
    assert cli.main(["bench", *arguments]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert len(err.splitlines()) == 1
    assert words in err


def test_debug_shows_where_an_error_came_from(capsys):
    assert cli.main(["bench", "--rows", "mlpp", "--debug"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("Traceback") and "Did you mean 'mlp'" in err


@pytest.mark.parametrize(
    ("changes", "code"),
    [({}, 0), ({"error": "ValueError: No."}, 1)],
)
def test_the_exit_code_says_whether_all_rows_ran(
    changes, code, monkeypatch, capsys
):
    record, _ = measured()
    report = report_of({**record, **changes})
    monkeypatch.setattr(bench, "run", lambda *a, **k: report)
    assert cli.main(["bench", "--rows", "mlp"]) == code
    assert "MLP 64-128-128-10" in capsys.readouterr().out


@pytest.fixture
def no_jax(monkeypatch):
    """Whose process takes long to start, where it is installed."""
    monkeypatch.setattr(jax_client, "why_not", lambda _: "not asked for")


def test_a_row_that_raises_does_not_stop_the_bench(monkeypatch, no_jax):
    def fail(self):
        raise ValueError("Rule.\nMore.")

    monkeypatch.setattr(runner.Schedule, "run", fail)
    report = bench.run(rows=["mlp", "cnn"], quick=True)
    assert [r["error"] for r in report["rows"]] == ["ValueError: Rule."] * 2


def test_an_interrupt_keeps_the_rows_that_were_done(monkeypatch, no_jax):
    done, _ = measured()

    def next_row(self):
        if self.row.name == "cnn":
            raise KeyboardInterrupt
        return done

    monkeypatch.setattr(runner.Schedule, "run", next_row)
    report = bench.run(rows=["mlp", "cnn"], quick=True)
    assert report["interrupted"] and report["rows"] == [done]


@pytest.mark.slow
def test_a_quick_row_in_a_process_writes_every_key(tmp_path):
    path = tmp_path / "bench.json"
    command = [sys.executable, "-m", "fastkeras", "bench", "--quick"]
    command += ["--rows", "mlp", "--seconds", "0.5", "--json", str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    report = json.loads(path.read_text())
    assert set(report) == set(results.KEYS)
    assert report["quick"] is True
    (row,) = report["rows"]
    assert set(row) == set(results.ROW_KEYS)
    assert row["error"] is None
    # Every figure is what its own times give.
    for side in ("fast", "stock", "best_stock"):
        again = results.figures(row[side]["times"], row["fast"]["times"])
        assert {k: row[side][k] for k in again} == again
    # Both sides train the same model on the same data.
    assert row["stock"]["loss"] == pytest.approx(row["fast"]["loss"], rel=0.1)
    assert row["fast"]["report"]["train_step"]
    assert "MLP 64-128-128-10, step" in done.stdout
    assert "[1/1] mlp: warm-up" in done.stderr
