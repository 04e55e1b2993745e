"""Starts the workers of a training as processes of this machine."""

import contextlib
import itertools
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import threading
import time

from fastkeras._lib import checks

#: Seconds between two looks at the processes.
_LOOK = 0.05
#: Ports that no outgoing connection is given while the processes start.
_PORTS = range(15_000, 32_768)
_SERVER = str(pathlib.Path(__file__).with_name("_server.py"))


def launch(script, workers=2, args=(), grace=10.0, out=None, ps=0):
    """Runs a script in several processes that train together.

    For trying out on one machine what a `MultiWorkerMirroredStrategy` does on
    several: each process gets a `TF_CONFIG` with all addresses and its rank.
    When one fails, it is named and the others are ended. SIGTERM is passed on
    to all. Where `TF_CONFIG` is set already, by the scheduler of a cluster, it
    is used as it is, for the one process that this machine is to run.

    With `ps` it is for a `tf.distribute.ParameterServerStrategy`: the script
    runs in one process more, the chief, and its end is the end of all. The
    workers and parameter servers run TensorFlow's server, which needs no
    script; one of them may be lost while the chief goes on.

    Args:
        script: Path of a Python file.
        workers: Integer >= 1, the processes. Defaults to `2`.
        args: Sequence of strings, the arguments of the script.
        grace: Float > 0, seconds from SIGTERM to SIGKILL for those that are
            ended. Defaults to `10.0`.
        out: Text stream for what the processes print, each line after the
            name of its process. Defaults to `None`: `sys.stdout`.
        ps: Integer >= 0, the parameter servers. Defaults to `0`.

    Returns:
        Integer, 0 or the exit code of the first process that failed; 128 and
        the number of the signal, if a signal ended it.

    Raises:
        FileNotFoundError: If `script` does not exist.
        TypeError: If an argument has the wrong type.
        ValueError: If `workers`, `grace` or `ps` is too small.

    Example:

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     script = pathlib.Path(folder, "train.py")
    ...     _ = script.write_text("raise SystemExit(3)")
    ...     launch(script, workers=1)
    3
    """
    checks.positive_int(workers, "workers", "Leave it out for 2.")
    checks.positive_number(grace, "grace", "Leave it out for 10 seconds.")
    if ps:
        checks.positive_int(ps, "ps", "Leave it out for none.")
    if not pathlib.Path(script).is_file():
        raise FileNotFoundError(
            checks.message(
                "`script` must be a Python file",
                f"script={str(script)!r}",
                "Check the path.",
            )
        )
    command = [sys.executable, "-u", str(script), *map(str, args)]
    group = _Group(out or sys.stdout, grace)
    with group, _passing_on(group):
        configs = _configs(workers, ps)
        for config in configs:
            serves = _serves(config)
            group.start(
                _name(config),
                [sys.executable, "-u", _SERVER] if serves else command,
                {**os.environ, "TF_CONFIG": json.dumps(config)},
                helps=serves and len(configs) > 1,
            )
        return group.wait()


def _configs(workers, ps):
    """The `TF_CONFIG` of each process of this machine."""
    if "TF_CONFIG" in os.environ:
        return [json.loads(os.environ["TF_CONFIG"])]
    counts = {"worker": workers}
    if ps:
        counts |= {"ps": ps, "chief": 1}
    ports = iter(_free_ports(sum(counts.values())))
    cluster = {
        job: [f"localhost:{next(ports)}" for _ in range(count)]
        for job, count in counts.items()
    }
    return [
        {"cluster": cluster, "task": {"type": job, "index": index}}
        for job, addresses in cluster.items()
        for index in range(len(addresses))
    ]


def _name(config):
    task = config.get("task", {})
    return f"{task.get('type', 'worker')} {task.get('index', 0)}"


def _serves(config):
    """Whether a process works for the chief, and runs no script."""
    task = config.get("task", {}).get("type")
    return "ps" in config.get("cluster", {}) and task in ("worker", "ps")


def _free_ports(count):
    # By chance, whatever seed is set: two launches at a time want others.
    order = iter(random.SystemRandom().sample(_PORTS, len(_PORTS)))
    return list(itertools.islice(filter(_is_free, order), count))


def _is_free(port):
    with socket.socket() as one:
        return one.connect_ex(("localhost", port)) != 0


@contextlib.contextmanager
def _passing_on(group):
    """Passes SIGTERM on to the processes, while open."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(
        signal.SIGTERM, lambda *_: group.signal(signal.SIGTERM)
    )
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _Group:
    """Processes that end together.

    Args:
        out: Text stream.
        grace: Float, seconds.
    """

    def __init__(self, out, grace):
        self._out = out
        self._grace = grace
        self._lock = threading.Lock()
        self._processes = []
        self._names = {}
        self._helpers = []
        self._readers = []

    def __enter__(self):
        return self

    def __exit__(self, *error):
        """Ends those that still run: also at an interrupt."""
        self._helpers.clear()
        self.signal(signal.SIGTERM)
        end = time.monotonic() + self._grace
        while self._running() and time.monotonic() < end:
            time.sleep(_LOOK)
        self.signal(signal.SIGKILL)
        for process in self._processes:
            process.wait()
        for reader in self._readers:
            reader.join()

    def start(self, name, command, environment, helps):
        """Starts a process, in a group that its own children belong to.

        Args:
            name: String.
            command: List of strings.
            environment: Dict.
            helps: Bool, whether it runs for as long as the others do.
        """
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._processes.append(process)
        self._names[process.pid] = name
        if helps:
            self._helpers.append(process)
        reader = threading.Thread(target=self._read, args=(name, process))
        reader.start()
        self._readers.append(reader)

    def wait(self):
        """Waits for the first that fails, or for all; its exit code."""
        while True:
            running = self._running()
            for process in self._processes:
                code = process.returncode
                if code and process not in self._helpers:
                    code = code if code > 0 else 128 - code
                    if len(self._processes) > 1:
                        name = self._names[process.pid]
                        text = f"{name} failed: exit code {code}"
                        self._print("launch", text)
                    return code
            if not running:
                return 0
            time.sleep(_LOOK)

    def signal(self, number):
        """Sends a signal to those that run, and to their children.

        Not to those that help: the others may need them until they end.
        """
        for process in self._running():
            os.killpg(process.pid, number)

    def _running(self):
        running = [p for p in self._processes if p.poll() is None]
        return [p for p in running if p not in self._helpers]

    def _read(self, name, process):
        with process.stdout as lines:
            for line in lines:
                self._print(name, line.rstrip("\n"))

    def _print(self, name, text):
        with self._lock:
            self._out.write(f"[{name}] {text}\n")
            self._out.flush()
