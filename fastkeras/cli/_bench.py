"""`python -m fastkeras bench`."""

import json
import logging
import sys

from fastkeras import bench
from fastkeras._lib import checks
from fastkeras._lib.interrupts import INTERRUPTED
from fastkeras.bench import techniques
from fastkeras.bench.rows import SUITES
from fastkeras.cli import _common


def add(commands):
    """Adds the command to the parser."""
    parser = _common.add_command(
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
        help="overhead, compute, all, or techniques: what each technique "
        "gives; default: all",
    )
    parser.add_argument(
        "--rows", metavar="NAME,...", help=f"only these rows, of {rows}"
    )
    parser.add_argument(
        "--json", metavar="FILE", help="write all numbers; -: to stdout"
    )
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
    _check(args, rows)
    # Compilers log what they do; the progress line is enough here.
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    say = _common.progress(sys.stderr)
    kind = techniques if args.suite == techniques.SUITE else bench
    if kind is techniques:
        report = techniques.run(rows, args.seconds, args.quick, say=say)
    else:
        report = bench.run(
            args.suite,
            rows,
            args.seconds,
            args.quick,
            args.jax_python,
            say=say,
        )
    _common.end_progress(sys.stderr)
    print(kind.table(report))
    _common.write_json(args, json.dumps(report, indent=1))
    if args.plot:
        kind.plot(report, args.plot)
        print(f"chart: {args.plot}", file=sys.stderr)
    if report.get("interrupted"):
        return INTERRUPTED
    failed = any(row["error"] for row in report["rows"])
    return _common.FAILED if failed else _common.DONE


def _check(args, rows):
    """Finds before the first second is spent what can't work at the end."""
    try:
        checks.one_of(args.suite, "suite", ("all", *SUITES, techniques.SUITE))
        if args.suite == techniques.SUITE:
            techniques.select(rows)
        else:
            bench.select(args.suite, rows)
        if args.seconds is not None:
            checks.positive_number(
                args.seconds, "seconds", "Give some seconds, as in 20."
            )
        if args.plot:
            bench.check_plot(args.plot)
    except (ValueError, ImportError) as error:
        raise _common.UsageError(str(error)) from None
    _common.check_folders(args, "json", "plot")
