"""The techniques: which ways are compared, and figures from made-up times."""

import pytest

import fastkeras as fk
from fastkeras.bench import _technique_reasons
from fastkeras.bench import sides
from fastkeras.bench import techniques
from fastkeras.bench.rows import ROWS
from fastkeras.bench.sides import Side
from fastkeras.bench.techniques import EAGER
from fastkeras.bench.techniques import TECHNIQUES
from fastkeras.bench.techniques import options
from fastkeras.bench.techniques import ways

# Seconds of a batch by what a way is made of: each halves it but the last,
# which doubles it.
NAMES = [technique.name for technique in TECHNIQUES]


def seconds(parts):
    if parts is None:
        return 0.064
    names = [technique.name for technique in parts]
    last = NAMES[-1] in names
    return 0.064 * 0.5 ** (len(names) - last) * (2 if last else 1)


def made_up(turns=3):
    return {way: [seconds(parts)] * turns for way, parts in ways().items()}


def test_each_technique_is_alone_and_added():
    found = ways()
    assert found[EAGER] is None
    for k, name in enumerate(NAMES[2:], 2):
        assert [t.name for t in found[name]] == [NAMES[0], name]
        assert [t.name for t in found[f"+ {name}"]] == NAMES[: k + 1]
    assert len(found) == 3 + 2 * len(NAMES[2:])


def test_the_figures_are_ratios_turn_by_turn():
    row = techniques.record(ROWS["mlp"], made_up(), {}, {})
    gains = {w["name"]: w["gain"]["median"] for w in row["alone"]}
    assert gains == {**dict.fromkeys(NAMES[1:-1], 2.0), NAMES[-1]: 0.5}
    added = [w["gain"]["median"] for w in row["ordered"]]
    assert added == [2.0] * (len(NAMES) - 1) + [0.5]
    assert row["ordered"][1]["total"]["median"] == 4.0


def test_what_does_not_help_has_a_sentence_and_what_helps_has_none():
    row = techniques.record(
        ROWS["mlp"], made_up(), {}, {"memory": [2**21, 2**20]}
    )
    assert row["notes"] == [
        "gradient checkpointing: 0.50 ±0.00 times the traced step, 0.50 ±0.00 "
        "added to those before it; it makes the forward pass twice to hold "
        "less, and here does: the tensors of a step take 1.0 MB, 2.0 MB "
        "without it"
    ]
    # What was not measured is not said.
    row = techniques.record(ROWS["mlp"], made_up(), {}, {})
    assert row["notes"][0].endswith("; no reason was measured")


def told(name, alone, added, facts):
    """The sentence on a technique that is so many times as fast."""
    times = made_up()
    before = NAMES[NAMES.index(name) - 1]
    base = times.get(f"+ {before}", times[before])[0]
    times[name] = [times[NAMES[0]][0] / gain for gain in alone]
    times[f"+ {name}"] = [base / gain for gain in added]
    notes = techniques.record(ROWS["mlp"], times, {}, facts)["notes"]
    (note,) = [n for n in notes if n.startswith(f"{name}: ")]
    return note.partition("; ")[2]


def test_the_reason_follows_what_was_measured():
    slower, same, faster = [0.5] * 3, [0.9, 1.0, 1.1], [2.0] * 3
    assert "TensorFlow's kernels" in told("XLA", slower, slower, {})
    together = told("XLA", slower, faster, {})
    assert together == "it helps for sure only together with those before it"
    half = told(
        "mixed precision", slower, slower, {"half": ("convolution", 4.0)}
    )
    assert (
        "a convolution and its gradients take 4.0 times as long in float16"
        in half
    )
    assert half.endswith("and casts are added")
    calls = told("launches", slower, slower, {"call": 5e-5})
    assert calls.endswith("each about 50.0 us, of a step of 32.0 ms")
    half = told("mixed precision", slower, slower, {"half": ("product", 0.5)})
    assert half.endswith("and casts outweigh that")
    parts = {"gradients": 8e-3, "last": 6e-3, "update": 2e-3}
    update = told("gradient accumulation", slower, slower, {"parts": parts})
    assert "each 2.00 ms (20% of a step)" in update
    watched = told("watching a part", slower, slower, {"parts": parts})
    assert "are 8.00 ms (80% of a step)" in watched
    assert watched.endswith("the last alone 6.00 ms (60% of a step)")
    half = told("mixed precision", same, slower, {})
    assert half == "alone within the noise"


def test_a_gain_within_the_noise_is_called_that():
    times = made_up(turns=5)
    for turn in (1, 3):
        times["launches"][turn] *= 3
    notes = techniques.record(ROWS["mlp"], times, {}, {})["notes"]
    assert notes[0] == (
        "launches: 2.00 ±0.67 times the traced step, 2.00 ±0.00 added to those "
        "before it; it helps for sure only together with those before it"
    )


def test_a_way_that_fails_is_left_out_and_told():
    times = made_up()
    del times["XLA"], times["+ XLA"]
    row = techniques.record(ROWS["cnn"], times, {"+ XLA": "no device"}, {})
    assert "XLA" not in [way["name"] for way in row["alone"]]
    assert "XLA fails: no device" in row["notes"]
    # The next one is compared with what was there before.
    mixed = next(w for w in row["ordered"] if w["name"] == f"+ {NAMES[4]}")
    assert mixed["gain"]["median"] == 4.0


def test_the_table_and_the_chart_show_all_of_them():
    report = techniques.run(rows=[])
    report["rows"] = [techniques.record(ROWS["mlp"], made_up(), {}, {})]
    text = techniques.table(report)
    for name in [EAGER, *NAMES]:
        assert name in text
    assert "What does not help, MLP 64-128-128-10:" in text


def test_the_chart_is_drawn(tmp_path):
    report = techniques.run(rows=[])
    report["rows"] = [techniques.record(ROWS["mlp"], made_up(), {}, {})]
    techniques.plot(report, tmp_path / "chart.png")
    assert (tmp_path / "chart.png").stat().st_size > 1000


def test_the_ways_are_made_of_the_features_of_perf():
    row = ROWS["mlp"].quick()
    layers = [x.name for x in row.build(fk.FastModel).layers if x.weights]
    plans = [options(parts, layers)["perf"] for parts in ways().values()]
    assert all(fk.perf.Execution is type(plan[0]) for plan in plans)
    names = {type(f).__name__ for plan in plans for f in plan}
    assert names == {
        "Accumulate",
        "Execution",
        "MixedPrecision",
        "Rematerialize",
        "Watch",
    }


def test_an_unknown_row_is_refused():
    with pytest.raises(ValueError, match="Did you mean 'mlp'"):
        techniques.run(rows=["mlpp"])


def test_the_parts_of_a_step_hold_each_other(monkeypatch):
    # The operations of each graph, in place of the seconds.
    monkeypatch.setattr(_technique_reasons, "_seconds", operations)
    row = ROWS["mlp"].quick()
    side = Side(row, fk.FastModel)
    parts = _technique_reasons._parts(side.model, row)
    assert 0 < parts["last"] < parts["gradients"] and parts["update"] > 0


def operations(function):
    graph = function.get_concrete_function().graph
    return len(graph.get_operations())


@pytest.mark.slow
def test_every_way_of_a_row_runs(monkeypatch):
    # Shorter turns and smaller products; no figure is looked at.
    monkeypatch.setattr(sides, "TURN_SECONDS", 1e-3)
    monkeypatch.setattr(_technique_reasons, "_SIZE", 32)
    report = techniques.run(rows=["mlp"], quick=True)
    (row,) = report["rows"]
    facts = row["facts"]
    assert facts["traces"] == {"relax": 1, "pin": 1}
    assert facts["step"] == row["ordered"][0]["median"]
    assert facts["parts"].keys() == {"gradients", "last", "update"}
    for seconds in (facts["call"], facts["step"], *facts["parts"].values()):
        assert seconds > 0
    assert facts["half"][1] > 0 and min(facts["memory"]) > 0
    assert not [note for note in row["notes"] if "fails" in note]
    assert len(row["ordered"]) == len(NAMES)
