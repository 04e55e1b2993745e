"""`python -m fastkeras advise`."""

import contextlib
import json
import logging
import sys

from fastkeras import advise
from fastkeras.cli import _common
from fastkeras.cli import _target


def add(commands):
    """Adds the command to the parser."""
    parser = _common.add_command(
        commands,
        "advise",
        _advise,
        "say what would make a model train faster, with the evidence",
    )
    _target.add_arguments(parser)
    parser.add_argument(
        "--apply",
        action="store_true",
        help="try what leaves the mathematics alone, and say what it gives",
    )
    parser.add_argument(
        "--json", metavar="FILE", help="write all of it; -: to stdout"
    )


def _advise(args):
    _common.check_counts(args, "batch_size")
    _common.check_folders(args, "json")
    say = _common.progress(sys.stderr)
    model, data = _target.begin(args.target, say)
    say(f"looking at {model.name}")
    with _told(say):
        found = advise(model, data, args.batch_size, apply=args.apply)
    _common.end_progress(sys.stderr)
    for number, advice in enumerate(found, 1):
        print(f"{number}. {advice}")
    if not found:
        print(f"No rule has anything against {model.name}.")
    values = [advice.to_dict() for advice in found]
    _common.write_json(args, json.dumps(values, indent=1))
    return _common.DONE


@contextlib.contextmanager
def _told(say):
    """Shows each receipt as it is made: a trial takes seconds."""
    log, handler = logging.getLogger("fastkeras.advise"), logging.Handler()
    level = log.level
    handler.emit = lambda record: say(record.getMessage())
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
