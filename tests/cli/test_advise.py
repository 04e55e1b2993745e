"""`python -m fastkeras advise TARGET`."""

import json

import pytest

from fastkeras.cli import main

SOURCE = """
import keras
import numpy as np

def make():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", run_eagerly={eager})
    return model, (np.ones((64, 2)), np.ones((64, 1)))
"""


@pytest.fixture
def target(tmp_path):
    def write(eager):
        file = tmp_path / f"made_{eager}.py".lower()
        file.write_text(SOURCE.format(eager=eager), encoding="utf-8")
        return f"{file}:make"

    return write


def test_advice_is_printed_and_written(target, tmp_path, capsys):
    file = tmp_path / "advice.json"
    assert main(["advise", target(True), "--json", str(file)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("1. eager: every operation is run from Python")
    (advice,) = json.loads(file.read_text(encoding="utf-8"))
    assert advice["rule"] == "eager" and advice["receipt"] == ""


def test_what_was_tried_is_printed(target, capsys):
    assert main(["advise", target(True), "--apply"]) == 0
    out, err = capsys.readouterr()
    assert "  tried: eager: " in out and "ms/step" in out
    # Each as soon as it is known.
    assert "eager: " in err and "ms/step" in err


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["no.py:make"], 2, "The file of TARGET must exist"),
        ([], 2, "TARGET"),
    ],
)
def test_a_wrong_call_is_one_line(arguments, code, words, capsys):
    assert main(["advise", *arguments]) == code
    (line,) = capsys.readouterr().err.strip().splitlines()[-1:]
    assert words in line


def test_a_batch_of_no_rows_is_refused(target, capsys):
    assert main(["advise", target(False), "--batch-size", "0"]) == 2
    assert "`batch_size` must be >= 1" in capsys.readouterr().err
