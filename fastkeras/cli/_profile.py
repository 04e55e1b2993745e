"""`python -m fastkeras profile`."""

import os
import pathlib
import sys

from fastkeras import bench
from fastkeras import measure
from fastkeras._lib import checks
from fastkeras.cli import _common
from fastkeras.cli import _target
from fastkeras.measure import _pipeline


def add(commands):
    """Adds the command to the parser."""
    parser = _common.add_command(
        commands,
        "profile",
        _profile,
        "measure where the time of a training step goes",
    )
    _target.add_arguments(parser)
    parser.add_argument(
        "--steps",
        type=int,
        default=30,
        metavar="N",
        help="batches to measure; default: 30",
    )
    parser.add_argument(
        "--json", metavar="FILE", help="write all numbers; -: to stdout"
    )
    parser.add_argument(
        "--html", metavar="FILE", help="write a page that opens offline"
    )
    parser.add_argument(
        "--plot", metavar="FILE", help="draw a chart (.png, .svg, .pdf)"
    )
    parser.add_argument(
        "--log-dir", metavar="FOLDER", help="keep the trace for TensorBoard"
    )
    _common.add_against(parser)


def _profile(args):
    _check(args)
    if args.target.endswith(".json"):
        _draw(args, _common.saved(args, measure.Profile.load))
        return _common.DONE
    against = _common.against(args, measure.Profile.load)
    say = _common.progress(sys.stderr)
    model, data = _target.begin(args.target, say)
    _check_again(data)
    found = measure.profile(
        model, data, args.steps, args.batch_size, args.log_dir, say
    )
    _common.end_progress(sys.stderr)
    print(found)
    against(found)
    _common.write_json(args, found.to_json())
    _draw(args, found)
    return _common.DONE


def _draw(args, found):
    """Writes the page and the chart asked for."""
    for name, write in (("html", found.save_html), ("plot", found.plot)):
        path = getattr(args, name)
        if path:
            write(path)
            print(f"{name}: {path}", file=sys.stderr)


def _check_again(data):
    try:
        _pipeline.check_again(data)
    except TypeError as error:
        raise _common.UsageError(str(error)) from None


def _check(args):
    """Finds before the first second is spent what can't work at the end."""
    _common.check_counts(args, "steps", "batch_size")
    if args.plot:
        try:
            bench.check_plot(args.plot)
        except (ValueError, ImportError) as error:
            raise _common.UsageError(str(error)) from None
    _common.check_folders(args, "json", "html", "plot")
    if args.log_dir:
        _check_log_dir(args.target, args.log_dir)


def _check_log_dir(target, path):
    """Refuses a folder for the trace that can't be made, or has none."""
    folder = pathlib.Path(path).resolve()
    there = next(p for p in (folder, *folder.parents) if p.exists())
    if target.endswith(".json"):
        rule, fix = "`--log-dir` needs a run", "Give file.py:function."
    elif not (there.is_dir() and os.access(there, os.W_OK)):
        rule = "`--log-dir` must be a folder that can be written to"
        fix = "Give another place."
    else:
        return
    raise _common.UsageError(checks.message(rule, f"log_dir={path!r}", fix))
