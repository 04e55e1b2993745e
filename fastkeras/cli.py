"""The command line: `python -m fastkeras COMMAND`.

Exit codes: 0, done; 1, something failed while it ran; 2, it was asked wrongly
and nothing ran; 130, interrupted. An error is one line on stderr; `--debug`
shows where it came from.

Example:

>>> main(["bench", "--rows", "mlpp"])
2
"""

import argparse
import json
import logging
import pathlib
import sys

from fastkeras import bench
from fastkeras._lib import checks

DONE, FAILED, MISUSED, INTERRUPTED = 0, 1, 2, 130


class UsageError(ValueError):
    """What was asked can't be done; found before anything ran."""


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message):
        raise UsageError(f"{message}. `{self.prog} --help` lists the options.")


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
    try:
        args = _parser().parse_args(argv)
        return args.command(args)
    except KeyboardInterrupt:
        _complain("interrupted")
        return INTERRUPTED
    except Exception as error:
        # The last stop: whatever it is, one line and an exit code; --debug
        # shows where it came from.
        if "--debug" in argv:
            raise
        first = (str(error).splitlines() or [""])[0]
        is_ours = isinstance(error, UsageError) or "Received: " in first
        name = "" if is_ours else f"{type(error).__name__}: "
        _complain(f"error: {name}{first}")
        return MISUSED if isinstance(error, UsageError) else FAILED


def _complain(text):
    print(f"fastkeras: {text}", file=sys.stderr)


def _parser():
    parser = _Parser(
        prog="python -m fastkeras",
        description="Trains the Keras model you have, faster, and says why.",
    )
    commands = parser.add_subparsers(
        required=True, metavar="COMMAND", parser_class=_Parser
    )
    _add_bench(commands)
    return parser


def _add_command(commands, name, command, text):
    parser = commands.add_parser(name, help=text, description=text)
    parser.add_argument(
        "--debug", action="store_true", help="show the traceback of an error"
    )
    parser.set_defaults(command=command)
    return parser


# bench


def _add_bench(commands):
    parser = _add_command(
        commands,
        "bench",
        _bench,
        "measure stock keras.Model against FastModel on this machine",
    )
    rows = ", ".join(row.name for row in bench.select())
    parser.add_argument(
        "--suite",
        default="all",
        metavar="NAME",
        help="overhead, compute or all; default: all",
    )
    parser.add_argument(
        "--rows", metavar="NAME,...", help=f"only these rows, of {rows}"
    )
    parser.add_argument("--json", metavar="FILE", help="write all numbers")
    parser.add_argument(
        "--plot", metavar="FILE", help="draw a chart (.png, .svg, .pdf)"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        metavar="S",
        help="about the time of a row; default: 20",
    )
    parser.add_argument(
        "--quick", action="store_true", help="see that it works, no more"
    )
    parser.add_argument(
        "--jax-python",
        metavar="PATH",
        help="an interpreter with Keras and JAX to measure beside",
    )


def _bench(args):
    rows = None if args.rows is None else args.rows.split(",")
    _check_bench(args, rows)
    # Compilers log what they do; the progress line is enough here.
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    report = bench.run(
        args.suite,
        rows,
        args.seconds,
        args.quick,
        args.jax_python,
        say=_progress(sys.stderr),
    )
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    print(bench.table(report))
    if args.json:
        text = json.dumps(report, indent=1)
        pathlib.Path(args.json).write_text(text + "\n", encoding="utf-8")
        print(f"\nnumbers: {args.json}")
    if args.plot:
        bench.plot(report, args.plot)
        print(f"\nchart: {args.plot}")
    if report.get("interrupted"):
        return INTERRUPTED
    return FAILED if any(row["error"] for row in report["rows"]) else DONE


def _check_bench(args, rows):
    """Finds before the first second is spent what can't work at the end."""
    try:
        bench.select(args.suite, rows)
        if args.seconds is not None:
            checks.positive_number(
                args.seconds, "seconds", "Give some seconds, as in 20."
            )
        if args.plot:
            bench.check_plot(args.plot)
    except (ValueError, ImportError) as error:
        raise UsageError(str(error)) from None
    for name in ("json", "plot"):
        path = getattr(args, name)
        if path and not pathlib.Path(path).resolve().parent.is_dir():
            raise UsageError(
                checks.message(
                    f"The folder of `--{name}` must exist",
                    f"{name}={path!r}",
                    "Make the folder first.",
                )
            )


def _progress(stream):
    """A function that shows what is being done: on a terminal, one line."""
    if stream.isatty():
        return lambda text: print(
            f"\r\033[K{text[:79]}", end="", file=stream, flush=True
        )
    return lambda text: print(text, file=stream, flush=True)
