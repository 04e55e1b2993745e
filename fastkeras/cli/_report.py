"""`python -m fastkeras report`."""

import logging
import sys

import keras

from fastkeras import measure
from fastkeras._lib import checks
from fastkeras.cli import _common
from fastkeras.cli import _target
from fastkeras.model import FastModel


def add(commands):
    """Adds the command to the parser."""
    parser = _common.add_command(
        commands,
        "report",
        _report,
        "train for a few epochs and say what ran, how fast, and why; a "
        "keras.Model is trained as a FastModel",
    )
    parser.add_argument("target", metavar="TARGET", help=_target.HELP)
    parser.add_argument(
        "--epochs",
        type=int,
        default=3,
        metavar="N",
        help="epochs to train for; default: 3",
    )
    parser.add_argument(
        "--batch-size",
        type=int,
        default=32,
        metavar="N",
        help="rows of a batch, where the data are arrays; default: 32",
    )
    parser.add_argument("--json", metavar="FILE", help="write the receipt")
    parser.add_argument(
        "--against", metavar="FILE", help="compare with an earlier --json"
    )


def _report(args):
    _check(args)
    earlier = _common.earlier(args.against)
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    say = _common.progress(sys.stderr)
    say(f"loading {args.target}")
    model, data = _target.load(args.target)
    model = _fast(model)
    model.fit(
        **_arguments(data, args.batch_size),
        epochs=args.epochs,
        verbose=0,
        callbacks=[
            keras.callbacks.LambdaCallback(
                on_epoch_begin=lambda epoch, logs: say(
                    f"{model.name}: epoch {epoch + 1} of {args.epochs}"
                )
            )
        ],
    )
    _common.end_progress(sys.stderr)
    receipt = model.perf_report()
    print(receipt)
    if earlier is not None:
        print(f"\nagainst {args.against}\n{measure.compare(earlier, receipt)}")
    if args.json:
        receipt.save(args.json)
        print(f"\njson: {args.json}")
    return _common.DONE


def _check(args):
    try:
        for name in ("epochs", "batch_size"):
            checks.positive_int(getattr(args, name), name, "Give 1 or more.")
    except ValueError as error:
        raise _common.UsageError(str(error)) from None
    _common.check_folders(args, "json")


def _fast(model):
    """The model, or one that shares its layers, compiled as it was."""
    if isinstance(model, FastModel):
        return model
    fast = FastModel.from_keras(model)
    fast.compile_from_config(model.get_compile_config())
    return fast


def _arguments(data, batch_size):
    """The arguments of `fit`; whole batches come from elsewhere."""
    if not isinstance(data, tuple):
        return {"x": data}
    names = ("x", "y", "sample_weight")
    return {**dict(zip(names, data)), "batch_size": batch_size}
