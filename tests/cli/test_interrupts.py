"""An interrupt is one line and exit code 130, from the first import on."""

import os
import pathlib
import signal
import subprocess
import sys

import pytest

import fastkeras
from fastkeras import cli

ROOT = pathlib.Path(fastkeras.__file__).parents[1]

# Loads for as long as it takes to be interrupted.
SLOW = """
import os, signal, time
os.kill(os.getpid(), signal.SIGINT)
time.sleep(60)
"""


def run(folder, *arguments):
    """Runs Python where the import of TensorFlow is interrupted."""
    (folder / "tensorflow.py").write_text(SLOW)
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"},
        stderr=subprocess.PIPE,
        text=True,
        # A test run in the background may have been told to ignore it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


@pytest.mark.parametrize(
    "arguments", [["-m", "fastkeras", "bench"], ["-mfastkeras"]]
)
def test_a_command_that_still_loads_ends_with_one_line(tmp_path, arguments):
    done = run(tmp_path, *arguments)
    assert done.stderr == "fastkeras: interrupted\n"
    assert done.returncode == 130


@pytest.mark.parametrize("arguments", [["-m", "other"], ["-c", "import other"]])
def test_only_a_command_is_ended(tmp_path, arguments):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "__init__.py").write_text("import fastkeras")
    done = run(tmp_path, *arguments)
    assert done.stderr.endswith("KeyboardInterrupt\n")
    assert done.returncode != 130


def test_a_command_that_runs_is_interrupted(tmp_path, capsys):
    (tmp_path / "stops.py").write_text(
        "def make():\n    raise KeyboardInterrupt"
    )
    assert cli.main(["report", f"{tmp_path}/stops.py:make"]) == 130
    *_, last = capsys.readouterr().err.splitlines()
    assert last == "fastkeras: interrupted"
