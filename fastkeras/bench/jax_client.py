"""This end of the process that runs Keras on JAX.

Example:

>>> why_not(None) is None or "JAX" in why_not(None)
True
"""

import importlib.util
import itertools
import json
import os
import pathlib
import subprocess
import sys
import threading

from fastkeras._lib import checks

#: A request that takes longer than this ends the process.
PATIENCE = 240.0


def why_not(python):
    """Why JAX is not measured; None if it can be.

    Args:
        python: String, another interpreter that was asked for, or None.

    Returns:
        String or None.
    """
    if python is None and importlib.util.find_spec("jax") is None:
        return (
            "JAX is not installed here; `--jax-python PATH` takes another "
            "interpreter that has Keras and JAX"
        )
    return None


class JaxError(RuntimeError):
    """The process with JAX ended, or could not do what was asked."""


class Jax:
    """A process that runs rows with Keras on JAX, and can be closed.

    Args:
        python: String, its interpreter; this one if None.
        patience: Float, seconds a request may take.

    Raises:
        JaxError: If it does not start with Keras on JAX.

    Example:

    >>> Jax("/no/such/python")
    Traceback (most recent call last):
    ...
    fastkeras.bench.jax_client.JaxError: `--jax-python` must ...
    """

    def __init__(self, python=None, patience=PATIENCE):
        python = str(python or sys.executable)
        self._patience = patience
        self._numbers = itertools.count()
        script = pathlib.Path(__file__).with_name("jax_server.py")
        # -P: the folder of the script must not hide other packages.
        try:
            self._process = subprocess.Popen(
                [python, "-P", str(script)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env={**os.environ, "KERAS_BACKEND": "jax"},
            )
            self.versions = self._read()
        except (OSError, JaxError) as error:
            raise JaxError(
                checks.message(
                    "`--jax-python` must be an interpreter that has Keras and "
                    "JAX",
                    f"jax_python={python!r} ({error})",
                    "Install `keras` and `jax` there, or leave it out.",
                )
            ) from None

    def side(self, kind, row, options, quick=False):
        """Makes a side there.

        Args:
            kind: String, `"jax"` or `"floor"`.
            row: `Row`.
            options: Dict of arguments of `compile`.
            quick: Bool, whether the row is the quick one.

        Returns:
            A `RemoteSide`.
        """
        number = next(self._numbers)
        self.ask(
            do="make",
            side=number,
            kind=kind,
            row=row.name,
            options=options,
            quick=quick,
        )
        return RemoteSide(self, number, options)

    def ask(self, **request):
        """Sends a request and waits for its answer.

        Returns:
            Dict.

        Raises:
            JaxError: If the process has ended or could not do it.
        """
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except OSError:
            raise JaxError("the process with JAX has ended") from None
        answer = self._read()
        if "error" in answer:
            raise JaxError(answer["error"])
        return answer

    def _read(self):
        timer = threading.Timer(self._patience, self._process.kill)
        timer.start()
        try:
            line = self._process.stdout.readline()
        finally:
            timer.cancel()
        if not line:
            raise JaxError("the process with JAX has ended")
        return json.loads(line)

    def close(self):
        """Ends the process."""
        self._process.stdin.close()
        try:
            self._process.wait(10.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


class RemoteSide:
    """A side in the other process, with the interface of a `Side`.

    Args:
        jax: `Jax`.
        number: Integer, its name there.
        options: Dict of arguments of `compile`.
    """

    def __init__(self, jax, number, options):
        self.options = options
        self.loss = None
        self._jax = jax
        self._number = number

    def first(self):
        """Runs a first epoch (or call); returns the seconds to its end."""
        return self._timed("first")

    def warm(self, seconds):
        """Runs a second epoch (or call)."""
        del seconds
        self._jax.ask(do="warm", side=self._number)

    def turn(self):
        """Runs a turn; returns seconds per step, epoch or call."""
        return self._timed("turn")

    def describe(self):
        """Nothing to add."""
        return {}

    def _timed(self, do):
        answer = self._jax.ask(do=do, side=self._number)
        self.loss = answer["loss"]
        return answer["seconds"]
