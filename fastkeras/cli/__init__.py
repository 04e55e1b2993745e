"""The command line: `python -m fastkeras COMMAND`.

Exit codes: 0, done; 1, something failed while it ran; 2, it was asked wrongly
and nothing ran; 130, interrupted; 141, nobody reads on, as in `| head -1`;
`launch` passes on the code of the script. An error is one line on stderr;
`--debug` shows where it came from. An interrupt in the first moments, before
Python has come to this package, shows a traceback of Python's own. Progress
goes to stderr, the result to stdout; with `--json -` that is the JSON alone.

Example:

>>> main(["bench", "--rows", "mlpp"])
2
"""

import contextlib
import os
import select
import sys
import traceback

from fastkeras._lib import checks
from fastkeras._lib.interrupts import INTERRUPTED
from fastkeras.bench.runner import version
from fastkeras.cli import _advise
from fastkeras.cli import _bench
from fastkeras.cli import _launch
from fastkeras.cli import _profile
from fastkeras.cli import _report
from fastkeras.cli._common import DONE
from fastkeras.cli._common import FAILED
from fastkeras.cli._common import MISUSED
from fastkeras.cli._common import Parser
from fastkeras.cli._common import UsageError
from fastkeras.cli._common import end_progress

#: Each has a module, whose `add` adds it to the parser.
_COMMANDS = (_advise, _bench, _launch, _profile, _report)
# Of a command that writes to a pipe nobody reads, a shell says the same.
_UNREAD = 141
# The numbers of stdout and stderr.
_STREAMS = (1, 2)


def main(argv=None):
    """Runs a command.

    Args:
        argv: List of strings, or None for those of the process.

    Returns:
        Integer, the exit code.

    Example:

    >>> main(["bench", "--suite", "computer"])
    2
    """
    argv = sys.argv[1:] if argv is None else list(argv)
    parser, debug = _parser(), False
    if not argv:
        parser.print_help()
        return DONE
    try:
        args = parser.parse_args(argv)
        debug = args.debug
        args.stdout = sys.stdout
        with _aside(getattr(args, "json", None)):
            code = args.command(args)
        # What can't be written is known here, not when Python has ended.
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        _complain("interrupted")
        return INTERRUPTED
    except Exception as error:
        # The last stop: whatever it is, one line and an exit code.
        if isinstance(error, BrokenPipeError) and _is_unread():
            return _UNREAD
        return _failed(error, debug)


def _failed(error, debug):
    """Says what went wrong; returns the exit code."""
    if debug:
        traceback.print_exc()
    first = checks.gist(error)
    is_ours = isinstance(error, UsageError) or "Received: " in first
    name = "" if is_ours else f"{type(error).__name__}: "
    _complain(f"error: {name}{first}")
    return MISUSED if isinstance(error, UsageError) else FAILED


def _is_unread():
    """Whether nobody reads what is printed; the rest then goes nowhere."""
    streams = select.poll()
    for number in _STREAMS:
        streams.register(number, 0)
    broken = [n for n, event in streams.poll(0) if event & select.POLLERR]
    for number in broken:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, number)
        os.close(nowhere)
    return bool(broken)


@contextlib.contextmanager
def _aside(json):
    """With `--json -`, what is printed does not mix with the numbers."""
    if json != "-":
        yield
        return
    with contextlib.redirect_stdout(sys.stderr):
        yield


def _complain(text):
    end_progress(sys.stderr)
    print(f"fastkeras: {text}", file=sys.stderr)


def _parser():
    parser = Parser(
        prog="python -m fastkeras",
        description="Trains the Keras model you have, faster, and says why.",
    )
    parser.add_argument(
        "--version", action="version", version=f"fastkeras {version()}"
    )
    commands = parser.add_subparsers(
        required=True, metavar="COMMAND", parser_class=Parser
    )
    for module in _COMMANDS:
        module.add(commands)
    return parser
