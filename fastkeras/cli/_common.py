"""What the commands share: exit codes, options, errors, the progress line."""

import argparse
import os
import pathlib
import sys

from fastkeras import measure
from fastkeras._lib import checks
from fastkeras.measure import comparison

DONE, FAILED, MISUSED = 0, 1, 2


class UsageError(ValueError):
    """What was asked can't be done; found before anything ran."""


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message):
        raise UsageError(f"{message}. `{self.prog} --help` lists the options.")


def add_command(commands, name, command, text):
    """Adds a command, with the options that all commands have.

    Args:
        commands: What `add_subparsers` returned.
        name: String.
        command: Function of the parsed arguments that returns an exit code.
        text: String, what the command does.

    Returns:
        The parser of the command.
    """
    parser = commands.add_parser(name, help=text, description=text)
    parser.add_argument(
        "--debug", action="store_true", help="show the traceback of an error"
    )
    parser.set_defaults(command=command)
    return parser


def check_folders(args, *names):
    """Refuses a file that can't be written, before anything runs."""
    for name in names:
        path = getattr(args, name)
        if not path or (name, path) == ("json", "-"):
            continue
        file = pathlib.Path(path).resolve()
        if not file.parent.is_dir():
            rule, fix = "The folder of `--{}` must exist", "Make it first."
        elif file.is_dir():
            rule, fix = "`--{}` must be a file", "Add the name of one."
        elif not os.access(file if file.exists() else file.parent, os.W_OK):
            rule, fix = "`--{}` must be writable", "Give another place."
        else:
            continue
        raise UsageError(
            checks.message(rule.format(name), f"{name}={path!r}", fix)
        )


def write_json(args, text):
    """Writes JSON where `--json` says, if it does: `-` is stdout."""
    if args.json == "-":
        print(text, file=args.stdout)
    elif args.json:
        pathlib.Path(args.json).write_text(text + "\n", encoding="utf-8")
        print(f"json: {args.json}", file=sys.stderr)


def check_counts(args, *names):
    """Refuses options that are to be integers >= 1 and are not."""
    for name in names:
        try:
            checks.positive_int(getattr(args, name), name, "Give 1 or more.")
        except ValueError as error:
            raise UsageError(str(error)) from None


def add_against(parser):
    """Adds the option to compare with what an earlier `--json` wrote."""
    parser.add_argument(
        "--against",
        metavar="FILE",
        help="compare with an earlier --json; TARGET may be one as well, and "
        "then nothing is run",
    )


def against(args, load=measure.Receipt.load):
    """A function of a receipt that prints the comparison asked for.

    The file is read at once: one that can't be is found before anything runs.

    Args:
        args: The parsed arguments.
        load: Function of a path that returns what is compared.
    """
    path = args.against
    if path is None:
        return lambda receipt: None
    try:
        earlier = load(path)
    except (OSError, ValueError) as error:
        raise UsageError(
            checks.message(
                "The file of `--against` must be one that `--json` wrote",
                f"against={path!r} ({error})",
                "Write one first.",
            )
        ) from None
    return lambda receipt: print(
        f"\nagainst {path} (before → now)\n{measure.compare(earlier, receipt)}"
    )


def saved(args, load):
    """Prints what an earlier `--json` wrote, or how another differs from it.

    `--json` writes it again: as another file, or to stdout.

    Args:
        args: The parsed arguments, whose TARGET is that file.
        load: Function of a path that returns a `Receipt`.

    Returns:
        That `Receipt`.
    """
    show = against(args, load)
    try:
        found = load(args.target)
    except (OSError, ValueError) as error:
        raise UsageError(
            checks.message(
                "A TARGET that ends in .json must be one that `--json` wrote",
                f"{args.target!r} ({error})",
                "Write one first, or give file.py:function.",
            )
        ) from None
    if args.against is None:
        print(found)
    try:
        show(found)
    except ValueError as error:
        # Of two files, none was made here.
        raise UsageError(str(error)) from None
    write_json(args, found.to_json())
    return found


def load_any(path):
    """Loads what any command or function of this package has saved.

    Raises:
        ValueError: If the file holds something else.
    """
    found = measure.Receipt.load(path)
    kind = comparison.kind_of(found.to_dict())
    if kind is None:
        raise ValueError(
            checks.message(
                "The file must hold a receipt, a profile or another report",
                f"{path!r} with {', '.join(found.to_dict())}",
                "Give one that `--json` or `save` wrote.",
            )
        )
    return measure.Profile.load(path) if kind == "a profile" else found


def progress(stream):
    """A function that shows what is being done: on a terminal, one line."""
    if stream.isatty():
        return lambda text: print(
            f"\r\033[K{text[:79]}", end="", file=stream, flush=True
        )
    return lambda text: print(text, file=stream, flush=True)


def end_progress(stream):
    """Clears the line that shows what is being done."""
    if stream.isatty():
        print("\r\033[K", end="", file=stream)
