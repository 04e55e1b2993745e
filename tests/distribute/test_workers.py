"""Three workers, and four replicas, equal one device; workers are killed.

The processes do all that needs several of them in one start.
"""

import io
import json
import pathlib
import re

import pytest

from fastkeras.distribute import launch
from tests.distribute import _same
from tests.distribute import _workers

pytestmark = pytest.mark.slow

SCRIPT = pathlib.Path(__file__).with_name("_workers.py")


def run(workers, *arguments):
    """The exit code of the script, and what its processes printed."""
    out = io.StringIO()
    code = launch(SCRIPT, workers, arguments, grace=2, out=out)
    return code, out.getvalue()


@pytest.fixture
def path(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(SCRIPT.parents[2]))
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "2")


@pytest.fixture(scope="module")
def references():
    """What one device comes to."""
    return {
        name: _same.trained(None, **arguments)
        for name, arguments in _workers.PLANS.items()
    }


def check_plans(found, references):
    for name in found:
        one = references[name]
        tolerance = 1e-3 if name == "float16" else 1e-6
        result = _same.Result(model=None, **found[name])
        _same.check_same(one, result, tolerance, max(tolerance, 1e-5))
        updates = int(one.model.optimizer.iterations.numpy())
        assert updates == 20
        # A clip that never clips would prove nothing.
        assert max(one.history["clipped_fraction"]) > 0
    # The control: another plan comes to something else.
    other = references["float16"].weights
    assert _same.gap(found["together"]["weights"], other) > 1e-3


def test_four_replicas_equal_one_device(path, references, tmp_path):
    code, told = run(1, tmp_path / "out", 4)
    assert code == 0, told
    found = json.loads((tmp_path / "out").read_text())
    assert found["replicas"] == 4
    assert found["plans"].keys() == {"together"}
    check_plans(found["plans"], references)


def test_three_workers(path, references, tmp_path):
    states, out = tmp_path / "states", tmp_path / "out"
    code, told = run(3, out, states, "chief")
    assert code in (137, 1), told
    one, two = (states / f"state-0000000{k}.npz" for k in (1, 2))
    partial = two.with_suffix(".partial")
    assert sorted(states.iterdir()) == [one, partial]
    assert not list(tmp_path.glob("out.*"))
    content = one.read_bytes()
    two.write_bytes(content[: len(content) // 2])

    code, told = run(3, out, states, "none")
    assert code == 0, told
    lines = re.findall(r".*the state before it is used.*", told)
    assert len(lines) == 3 and all(str(two) in line for line in lines)
    # Two trainings were watched, and of each one worker wrote.
    assert len(list(pathlib.Path(f"{out}-board", "perf").iterdir())) == 2
    whole = _same.trained(None, **_workers.RESUMED)
    for rank in range(3):
        found = json.loads(pathlib.Path(f"{out}.{rank}").read_text())
        check_resumed(found["resumed"], whole)
        assert found["replicas"] == 3
        assert found["plans"].keys() == _workers.PLANS.keys()
        check_plans(found["plans"], references)
        check_files(found["files"])
        # A file that all write at once can't be.
        model = _same.mlp()
        model.load_weights(f"{out}-AUTO.weights.h5")
        assert _same.gap(model.weights, found["files"]["AUTO"]["weights"]) == 0
        assert found["cut"] == ""
        assert found["scaling"]["rows"] == {
            "per replica": 4,
            "of an update": 12,
        }
        assert found["scaling"]["efficiency"] > 0


def check_resumed(found, whole):
    assert "every_steps=2, every_seconds=None, 3 work" in found.pop("refused")
    rows = whole.model(_same.data()[0]).numpy()
    assert _same.gap([rows], [found.pop("predicted")]) < 1e-6
    _same.check_same(whole, _same.Result(model=None, **found))


def check_files(found):
    one = _same.trained(None, epochs=5)
    auto, by_file = found["AUTO"], found["FILE"]
    assert auto["strategy"] == (
        "MultiWorkerMirroredStrategy, 3 replicas, 3 workers"
    )
    assert auto["feed"].endswith("auto-shard policy DATA")
    assert by_file["feed"].endswith("auto-shard policy FILE")
    _same.check_logs(one.history, auto["history"])
    assert _same.gap(one.weights, auto["weights"]) <= 1e-6
    # The control: shared by file the global batches are others.
    assert _same.gap(one.weights, by_file["weights"]) > 1e-3
    loops, xla = auto["choices"][-2:]
    assert loops.startswith("loops left out: the strategy")
    assert xla.startswith("XLA left out: the replicas of a MultiWorker")
