"""`python -m fastkeras launch`."""

import argparse
import pathlib

from fastkeras import distribute
from fastkeras._lib import checks
from fastkeras.cli import _common


def add(commands):
    """Adds the command to the parser."""
    parser = _common.add_command(
        commands,
        "launch",
        _launch,
        "run a script in several processes that train together",
    )
    parser.add_argument(
        "--workers",
        type=int,
        default=2,
        metavar="N",
        help="the processes; default: 2",
    )
    parser.add_argument(
        "--ps",
        type=int,
        default=0,
        metavar="N",
        help="parameter servers; the script then runs as their chief",
    )
    parser.add_argument("script", metavar="SCRIPT", help="a Python file")
    parser.add_argument(
        "args",
        metavar="ARGS",
        nargs=argparse.REMAINDER,
        help="the arguments of the script",
    )


def _launch(args):
    counts = args.workers >= 1 and args.ps >= 0
    if not pathlib.Path(args.script).is_file() or not counts:
        raise _common.UsageError(
            checks.message(
                "`launch` takes a Python file and one worker or more",
                f"script={args.script!r}, workers={args.workers}, ps={args.ps}",
                "Check the path.",
            )
        )
    return distribute.launch(args.script, args.workers, args.args, ps=args.ps)
