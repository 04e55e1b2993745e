"""The commands `profile` and `report`: what they write, and exit codes."""

import contextlib
import json
import os
import pathlib
import sys

import pytest

from fastkeras import cli
from fastkeras import measure

SOURCE = """
import keras
import numpy as np

def make():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=["mae"])
    return model, (np.ones((320, 4)), np.ones((320, 1)))

def lambdas():
    model, data = make()
    model.compile("sgd", lambda y, p: (y - p) ** 2)
    return model, data

def endless():
    model, (x, y) = make()
    return model, iter([(x, y)])

class Torn(keras.utils.PyDataset):
    def __len__(self):
        return 1

    def __getitem__(self, index):
        raise BrokenPipeError("gone")

def torn():
    return make()[0], Torn()

def broken():
    raise RuntimeError("No disk.\\nMore words.")
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    (tmp_path / "job.py").write_text(SOURCE)
    return "job.py"


def test_a_profile_is_printed_written_and_compared(file, capsys):
    command = ["profile", f"{file}:make", "--steps", "10", "--json", "a.json"]
    assert cli.main([*command, "--html", "a.html", "--plot", "a.svg"]) == 0
    out, err = capsys.readouterr()
    found = measure.Profile.load("a.json")
    assert str(found) in out and "the pipeline alone" in err
    for name in ("a.html", "a.svg"):
        assert "<svg" in pathlib.Path(name).read_text(encoding="utf-8")
    assert cli.main([*command, "--against", "a.json"]) == 0
    out = capsys.readouterr().out
    assert "against a.json" in out and "seconds.step: " in out
    # Of a saved one, without a run.
    command = ["profile", "a.json", "--html", "b.html", "--plot", "b.svg"]
    assert cli.main(command) == 0
    for name in ("b.html", "b.svg"):
        assert "<svg" in pathlib.Path(name).read_text(encoding="utf-8")


def test_two_files_are_compared_and_nothing_is_run(file, capsys):
    for name, plan in (("a", "none"), ("b", "Accumulate(2)")):
        measure.Receipt({"plan": plan}).save(f"{name}.json")
    assert cli.main(["report", "b.json"]) == 0
    assert capsys.readouterr().out == "plan: Accumulate(2)\n"
    assert cli.main(["report", "b.json", "--against", "a.json"]) == 0
    out, err = capsys.readouterr()
    assert "plan: none → Accumulate(2)" in out and not err
    # A receipt is no profile.
    assert cli.main(["profile", "b.json"]) == 2
    assert "must hold a profile" in capsys.readouterr().err


@contextlib.contextmanager
def piped():
    """A pipe in place of stdout, of which the end to be read is given."""
    reads, writes = os.pipe()
    before = os.dup(1)
    os.dup2(writes, 1)
    os.close(writes)
    try:
        with os.fdopen(reads) as reader, os.fdopen(1, "w", closefd=False) as w:
            with contextlib.redirect_stdout(w):
                yield reader
    finally:
        os.dup2(before, 1)
        os.close(before)


@pytest.mark.parametrize("size", [9, 10**5])
def test_a_reader_that_goes_is_no_error(file, capsys, size):
    for name, length in (("short", 9), ("long", size)):
        measure.Receipt({"plan": "x" * length}).save(f"{name}.json")
    with piped() as reader:
        # The control: one that stays.
        assert cli.main(["report", "short.json"]) == 0
        assert reader.readline() == f"plan: {'x' * 9}\n"
        reader.close()
        assert cli.main(["report", "long.json"]) == 141
    assert capsys.readouterr().err == ""


def test_a_pipe_of_the_data_that_breaks_is_one(file, capsys):
    assert cli.main(["report", f"{file}:torn", "--epochs", "1"]) == 1
    assert "error: BrokenPipeError: gone" in capsys.readouterr().err


def test_a_model_of_a_lambda_is_reported_and_xla_was_not_ruled_out(
    file, capsys
):
    assert cli.main(["report", f"{file}:lambdas", "--epochs", "1"]) == 0
    assert "jit: requested auto" in capsys.readouterr().out


def test_a_report_trains_and_prints_the_receipt(file, capsys):
    command = ["report", f"{file}:make", "--epochs", "2", "--json", "a.json"]
    assert cli.main(command) == 0
    out, err = capsys.readouterr()
    assert "epoch 2 of 2" in err and "time per epoch" in out
    receipt = json.loads(pathlib.Path("a.json").read_text())
    assert receipt["settings"]["run_eagerly"]["effective"] is False
    assert str(measure.Receipt(receipt)) in out
    assert cli.main([*command, "--against", "a.json"]) == 0
    assert "against a.json (before → now)\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["profile", "job.py:mke"], 2, "Did you mean 'make'?"),
        (["profile", "job.py:make", "--steps", "0"], 2, "must be >= 1"),
        (["profile", "job.py:make", "--html", "no/a"], 2, "of `--html` must"),
        (["report", "job.py:make", "--against", "b"], 2, "`--json` wrote"),
        (["report", "job.py:make", "--epochs", "x"], 2, "invalid int"),
        (["profile", "job.py:make", "--plot", "a.xyz"], 2, "ending of a"),
        (["profile", "job.py:make", "--log-dir", "job.py/a"], 2, "written to"),
        (["profile", "a.json", "--log-dir", "a"], 2, "needs a run"),
        (["profile", "job.py:endless"], 2, "gone through again"),
        (["bench", "--suite", "tech"], 2, "'techniques'"),
        (["report", "job.py:endless"], 2, "must have an end"),
        (["report", "none.json"], 2, "ends in .json must be one"),
        (["report", "job.py:broken"], 2, "RuntimeError: No disk. in job.py"),
        (["profile"], 2, "TARGET"),
    ],
)
def test_an_error_is_one_line_and_a_code(file, capsys, arguments, code, words):
    assert cli.main(arguments) == code
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("fastkeras: error: ") and words in last
    assert "More words" not in last


def test_debug_shows_where_it_came_from(file, capsys):
    assert cli.main(["profile", f"{file}:broken", "--debug"]) == 2
    err = capsys.readouterr().err
    assert "Traceback" in err and 'raise RuntimeError("No disk' in err
