"""`python -m fastkeras report`."""

import sys

import keras
import tensorflow as tf

from fastkeras._lib import checks
from fastkeras.advise._ways import as_fast
from fastkeras.cli import _common
from fastkeras.cli import _target
from fastkeras.measure import comparison


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
    parser.add_argument(
        "--steps",
        type=int,
        metavar="N",
        help="steps of an epoch, which data without an end needs; default: "
        "all of the data",
    )
    parser.add_argument(
        "--json", metavar="FILE", help="write the receipt; -: to stdout"
    )
    _common.add_against(parser)


def _report(args):
    _common.check_counts(args, "epochs", "batch_size")
    if args.steps is not None:
        _common.check_counts(args, "steps")
    _common.check_folders(args, "json")
    if args.target.endswith(".json"):
        _common.saved(args, _common.load_any)
        return _common.DONE
    against = _common.against(args, _receipt)
    say = _common.progress(sys.stderr)
    model, data = _target.begin(args.target, say)
    if args.steps is None:
        _check_that_it_ends(data)
    model = as_fast(model)
    model.fit(
        **_arguments(data, args.batch_size),
        epochs=args.epochs,
        steps_per_epoch=args.steps,
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
    _common.write_json(args, receipt.to_json())
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
                "Give --steps, the steps of an epoch.",
            )
        )


def _receipt(path):
    """Loads a receipt, which is what a training is compared with."""
    found = _common.load_any(path)
    if comparison.kind_of(found.to_dict()) != "a receipt":
        raise ValueError(
            checks.message(
                "The file must hold a receipt",
                f"{path!r}, which holds {comparison.kind_of(found.to_dict())}",
                "Give one that `report --json` or its `save` wrote.",
            )
        )
    return found


def _arguments(data, batch_size):
    """The arguments of `fit`; whole batches come from elsewhere."""
    made = (tf.data.Dataset, keras.utils.PyDataset)
    if isinstance(data, made) or hasattr(data, "__next__"):
        return {"x": data}
    if not isinstance(data, tuple):
        data = (data,)
    names = ("x", "y", "sample_weight")
    return {**dict(zip(names, data)), "batch_size": batch_size}
