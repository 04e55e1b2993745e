"""`python -m fastkeras report`."""

import sys

import keras

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
    against = _common.against(args)
    say = _common.progress(sys.stderr)
    model, data = _target.begin(args.target, say)
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
    against(receipt)
    if args.json:
        receipt.save(args.json)
        print(f"\njson: {args.json}")
    return _common.DONE


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
