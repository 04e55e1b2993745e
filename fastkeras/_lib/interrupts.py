"""An interrupt while a command is still loading.

`python -m fastkeras` imports the package, and TensorFlow with it, before any
code of the command runs: there is no `try` yet in which an interrupt could be
taken, and in those seconds nothing has to be put away.
"""

import contextlib
import os
import signal
import sys

#: The exit code of an interrupted command.
INTERRUPTED = 130


def loads_a_command():
    """Whether Python imports this package in order to run it with `-m`."""
    # Python has this in place of the path until the module is found.
    if sys.argv[:1] != ["-m"]:
        return False
    given = sys.orig_argv[: len(sys.orig_argv) - len(sys.argv) + 1]
    return given[-1].removeprefix("-m") == "fastkeras"


@contextlib.contextmanager
def end_quietly(really=True):
    """Ends the process with one line where it is interrupted inside.

    Args:
        really: Bool, False to change nothing.
    """
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not (really and ours):
        yield
        return
    signal.signal(signal.SIGINT, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(number, frame):
    del number, frame
    os.write(2, b"fastkeras: interrupted\n")
    os._exit(INTERRUPTED)
