"""`python -m fastkeras profile`."""

import logging
import sys

from fastkeras import bench
from fastkeras import measure
from fastkeras._lib import checks
from fastkeras.cli import _common
from fastkeras.cli import _target


def add(commands):
    """Adds the command to the parser."""
    parser = _common.add_command(
        commands,
        "profile",
        _profile,
        "measure where the time of a training step goes",
    )
    parser.add_argument("target", metavar="TARGET", help=_target.HELP)
    parser.add_argument(
        "--steps",
        type=int,
        default=30,
        metavar="N",
        help="batches to measure; default: 30",
    )
    parser.add_argument(
        "--batch-size",
        type=int,
        default=32,
        metavar="N",
        help="rows of a batch, where the data are arrays; default: 32",
    )
    parser.add_argument("--json", metavar="FILE", help="write all numbers")
    parser.add_argument(
        "--html", metavar="FILE", help="write a page that opens offline"
    )
    parser.add_argument(
        "--plot", metavar="FILE", help="draw a chart (.png, .svg, .pdf)"
    )
    parser.add_argument(
        "--log-dir", metavar="FOLDER", help="keep the trace for TensorBoard"
    )
    parser.add_argument(
        "--against", metavar="FILE", help="compare with an earlier --json"
    )


def _profile(args):
    _check(args)
    earlier = _common.earlier(args.against)
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    say = _common.progress(sys.stderr)
    say(f"loading {args.target}")
    model, data = _target.load(args.target)
    found = measure.profile(
        model, data, args.steps, args.batch_size, args.log_dir, say
    )
    _common.end_progress(sys.stderr)
    print(found)
    if earlier is not None:
        print(f"\nagainst {args.against}\n{measure.compare(earlier, found)}")
    for name, write in (
        ("json", found.save),
        ("html", found.save_html),
        ("plot", found.plot),
    ):
        path = getattr(args, name)
        if path:
            write(path)
            print(f"\n{name}: {path}")
    return _common.DONE


def _check(args):
    """Finds before the first second is spent what can't work at the end."""
    try:
        for name in ("steps", "batch_size"):
            checks.positive_int(getattr(args, name), name, "Give 1 or more.")
        if args.plot:
            bench.check_plot(args.plot)
    except (ValueError, ImportError) as error:
        raise _common.UsageError(str(error)) from None
    _common.check_folders(args, "json", "html", "plot")
