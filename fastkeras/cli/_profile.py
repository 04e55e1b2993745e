"""`python -m fastkeras profile`."""

import sys

from fastkeras import bench
from fastkeras import measure
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
        return _common.saved(args, measure.Profile.load)
    against = _common.against(args, measure.Profile.load)
    say = _common.progress(sys.stderr)
    model, data = _target.begin(args.target, say)
    found = measure.profile(
        model, data, args.steps, args.batch_size, args.log_dir, say
    )
    _common.end_progress(sys.stderr)
    print(found)
    against(found)
    _common.write_json(args, found.to_json())
    for name, write in (("html", found.save_html), ("plot", found.plot)):
        path = getattr(args, name)
        if path:
            write(path)
            print(f"{name}: {path}", file=sys.stderr)
    return _common.DONE


def _check(args):
    """Finds before the first second is spent what can't work at the end."""
    _common.check_counts(args, "steps", "batch_size")
    if args.plot:
        try:
            bench.check_plot(args.plot)
        except (ValueError, ImportError) as error:
            raise _common.UsageError(str(error)) from None
    _common.check_folders(args, "json", "html", "plot")
