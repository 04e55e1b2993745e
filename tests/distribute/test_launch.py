"""Processes that are started together, and end together."""

import io
import json
import os
import random
import signal
import socket
import threading
import time

import pytest

from fastkeras import cli
from fastkeras.distribute import _launcher
from fastkeras.distribute import launch
from tests.distribute import _same

RANK = """
import json, os, sys, time
config = json.loads(os.environ["TF_CONFIG"])
rank = config["task"]["index"]
"""


def script(folder, text):
    path = folder / "train.py"
    path.write_text(RANK + text)
    return path


def test_each_worker_is_told_all_addresses_and_its_rank(tmp_path):
    out = io.StringIO()
    text = "print(json.dumps([config, sys.argv[1:]]))"
    assert launch(script(tmp_path, text), 3, ["--a", 1], out=out) == 0
    lines = sorted(out.getvalue().splitlines())
    assert [line[:10] for line in lines] == [f"[worker {k}]" for k in range(3)]
    told = [json.loads(line[11:]) for line in lines]
    assert [c["task"] for c, _ in told] == [
        {"type": "worker", "index": k} for k in range(3)
    ]
    (addresses,) = {tuple(c["cluster"]["worker"]) for c, _ in told}
    assert len(set(addresses)) == 3
    assert all(args == ["--a", "1"] for _, args in told)


@pytest.mark.parametrize(
    ("end", "code"), [("sys.exit(7)", 7), ("os.kill(os.getpid(), 9)", 137)]
)
def test_when_one_fails_all_are_ended(end, code, tmp_path):
    out = io.StringIO()
    text = f"if rank == 1: {end}\nprint('waits')\ntime.sleep(600)"
    assert launch(script(tmp_path, text), out=out) == code
    assert f"[launch] worker 1 failed: exit code {code}\n" in out.getvalue()


def test_one_that_does_not_listen_is_killed(tmp_path):
    out = io.StringIO()
    text = (
        "import signal\n"
        "if rank == 0:\n"
        "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"    open({str(tmp_path / 'ready')!r}, 'w')\n"
        "    time.sleep(600)\n"
        f"while not os.path.exists({str(tmp_path / 'ready')!r}):\n"
        "    time.sleep(0.01)\n"
        "sys.exit(2)\n"
    )
    assert launch(script(tmp_path, text), grace=0.1, out=out) == 2


def test_the_config_of_a_scheduler_is_used_as_it_is(tmp_path, monkeypatch):
    config = {
        "cluster": {"worker": ["a:1", "b:1"]},
        "task": {"type": "worker", "index": 1},
    }
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    out = io.StringIO()
    assert launch(script(tmp_path, "print(json.dumps(config))"), out=out) == 0
    assert out.getvalue() == f"[worker 1] {json.dumps(config)}\n"


def test_sigterm_is_passed_on(tmp_path):
    text = (
        "import signal\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))\n"
        f"open({str(tmp_path / 'ready')!r} + str(rank), 'w')\n"
        "time.sleep(600)\n"
    )
    path = script(tmp_path, text)

    def terminate():
        while not all((tmp_path / f"ready{k}").exists() for k in range(2)):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    sender = threading.Thread(target=terminate)
    before = signal.getsignal(signal.SIGTERM)
    sender.start()
    assert launch(path, out=io.StringIO()) == 75
    sender.join()
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(
    ("arguments", "error", "told"),
    [
        (("none.py",), FileNotFoundError, "`script` must be a Python file"),
        ((__file__, 0), ValueError, "`workers` must be >= 1"),
        ((__file__, 2.5), TypeError, "`workers` must be an integer"),
        ((__file__, 2, (), 0), ValueError, "`grace` must be finite and > 0"),
    ],
)
def test_what_can_not_be_is_refused(arguments, error, told):
    with pytest.raises(error, match=told):
        launch(*arguments)


def test_the_command_passes_on_the_exit_code(tmp_path, capsys):
    path = script(tmp_path, "sys.exit(len(sys.argv))")
    argv = ["launch", "--workers", "1", str(path), "--x", "--y"]
    assert cli.main(argv) == 3
    assert cli.main(["launch", str(tmp_path / "none.py")]) == 2
    assert "none.py" in capsys.readouterr().err


def worker(kind):
    """What `launch`, or a scheduler, tells one of two workers."""
    cluster = {"worker": ["a:1", "b:1"]}
    return json.dumps({"cluster": cluster, "task": {"type": kind, "index": 0}})


def test_a_worker_that_trains_alone_is_told(monkeypatch, recwarn):
    def alone():
        _same.trained(None, epochs=1)
        texts = [str(w.message) for w in recwarn]
        recwarn.clear()
        return [text for text in texts if "TF_CONFIG names 2 workers" in text]

    assert not alone()
    monkeypatch.setenv("TF_CONFIG", worker("worker"))
    (text,) = alone()
    assert "MultiWorkerMirroredStrategy()" in text
    # One that evaluates what others train is meant to be alone.
    monkeypatch.setenv("TF_CONFIG", worker("evaluator"))
    assert not alone()


def test_ports_are_free_and_by_chance():
    draws = []
    for _ in range(2):
        random.seed(0)
        draws.append(_launcher._free_ports(4))
    assert len(set(draws[0])) == 4
    # The control: one seed gives the same numbers twice.
    assert draws[0] != draws[1]
    with socket.socket() as one:
        one.bind(("localhost", 0))
        one.listen()
        port = one.getsockname()[1]
        assert not _launcher._is_free(port)
    assert _launcher._is_free(port)
