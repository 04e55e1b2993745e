"""`python -m fastkeras report`."""

import sys

import keras
import tensorflow as tf

from fastkeras import measure
from fastkeras._lib import checks
from fastkeras.advise._ways import as_fast
from fastkeras.cli import _common
from fastkeras.cli import _target


def add(commands):
    """Adds the command to the parser."""
    parser = _common.add_command(
        commands,
        "report",
        _report,
        "train for a few epochs and say what ran, how fast, and why; a "
        "keras.Model is trained as a FastModel",
    )
    _target.add_arguments(parser)
    parser.add_argument(
        "--epochs",
        type=int,
        default=3,
        metavar="N",
        help="epochs to train for; default: 3",
    )
    parser.add_argument("--json", metavar="FILE", help="write the receipt")
    _common.add_against(parser)


def _report(args):
    _common.check_counts(args, "epochs", "batch_size")
    _common.check_folders(args, "json")
    if args.target.endswith(".json"):
        return _common.saved(args, measure.Receipt.load)
    against = _common.against(args)
    say = _common.progress(sys.stderr)
    model, data = _target.begin(args.target, say)
    _check_that_it_ends(data)
    model = as_fast(model)
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
    against(receipt)
    if args.json:
        receipt.save(args.json)
        print(f"\njson: {args.json}")
    return _common.DONE


def _check_that_it_ends(data):
    endless = (
        hasattr(data, "__next__")
        or getattr(data, "num_batches", 0) is None
        or isinstance(data, tf.data.Dataset)
        and data.cardinality() == tf.data.INFINITE_CARDINALITY
    )
    if endless:
        raise _common.UsageError(
            checks.message(
                "The data of TARGET must have an end, at which an epoch ends",
                f"{type(data).__name__}",
                "Give arrays, or a Dataset cut with `.take(n)`.",
            )
        )


def _arguments(data, batch_size):
    """The arguments of `fit`; whole batches come from elsewhere."""
    if not isinstance(data, tuple):
        return {"x": data}
    names = ("x", "y", "sample_weight")
    return {**dict(zip(names, data)), "batch_size": batch_size}
