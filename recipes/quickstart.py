"""Trains one model twice on real data: by Keras, and by fastkeras.

Both sides start from the same weights and see the same batches in the same
order. Their epochs alternate, so that a machine that slows down slows both.
Prints the time per epoch after warm-up, the ratio, and both accuracies.

    python recipes/quickstart.py
    python recipes/quickstart.py --data fashion_mnist --plot comparison.png
"""

import argparse
import dataclasses

import keras

import fastkeras as fk
from fastkeras import measure

SEED = 7
# Tracing, compiling and the first choice of how to run take this many epochs.
WARMUP = 2


@dataclasses.dataclass(frozen=True)
class Data:
    """Arrays of one data set, and how long and in what batches to train."""

    name: str
    train: tuple
    test: tuple
    batch_size: int
    epochs: int


class EpochTimer(keras.callbacks.Callback):
    """Collects the seconds of each epoch, without what `fit` does around it."""

    def __init__(self, clock):
        super().__init__()
        self.clock = clock
        self.seconds = []

    def on_epoch_begin(self, epoch, logs=None):
        self.start = self.clock.now()

    def on_epoch_end(self, epoch, logs=None):
        self.seconds.append(self.clock.now() - self.start)


@dataclasses.dataclass
class Side:
    """One of the two models and what was seen of it."""

    name: str
    model: keras.Model
    timer: EpochTimer
    losses: list = dataclasses.field(default_factory=list)
    accuracy: float = float("nan")

    def run_epoch(self, data, epoch, verbose):
        history = self.model.fit(
            *data.train,
            batch_size=data.batch_size,
            initial_epoch=epoch,
            epochs=epoch + 1,
            # The rows were shuffled once, on loading: both sides see the same.
            shuffle=False,
            callbacks=[self.timer],
            verbose=verbose,
        )
        self.losses += history.history["loss"]

    @property
    def time(self):
        return measure.summarize(self.timer.seconds[WARMUP:])


def load_digits():
    # Here, not at the top: only this data set needs scikit-learn.
    from sklearn import datasets
    from sklearn import model_selection

    images, labels = datasets.load_digits(return_X_y=True)
    x, x_test, y, y_test = model_selection.train_test_split(
        (images / 16).astype("float32"),
        labels.astype("int32"),
        test_size=0.2,
        random_state=SEED,
        stratify=labels,
    )
    return Data("digits", (x, y), (x_test, y_test), batch_size=32, epochs=20)


def load_fashion_mnist():
    parts = [
        ((images / 255).reshape(len(images), -1).astype("float32"), labels)
        for images, labels in keras.datasets.fashion_mnist.load_data()
    ]
    return Data("fashion_mnist", *parts, batch_size=128, epochs=6)


LOADERS = {"digits": load_digits, "fashion_mnist": load_fashion_mnist}


def build(model_class, columns):
    """The same network, from the same seed, as either class of model."""
    keras.utils.set_random_seed(SEED)
    inputs = keras.Input((columns,))
    hidden = keras.layers.Dense(128, activation="relu")(inputs)
    hidden = keras.layers.Dense(128, activation="relu")(hidden)
    outputs = keras.layers.Dense(10)(hidden)
    return model_class(inputs, outputs)


def compiled_sides(columns, clock):
    """Both models, ready to train."""
    stock = build(keras.Model, columns)
    fast = build(fk.FastModel, columns)
    options = {
        "optimizer": "adam",
        "loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        "metrics": ["accuracy"],
    }
    stock.compile(**options)
    fast.compile(**options, perf="auto")
    return [
        Side("keras.Model", stock, EpochTimer(clock)),
        Side("fastkeras.FastModel", fast, EpochTimer(clock)),
    ]


def compare(data, epochs, verbose=0, clock=None):
    """Trains both sides in turns and tests them.

    Returns:
        A list of two `Side`s: Keras's, then ours.
    """
    sides = compiled_sides(data.train[0].shape[1], clock or measure.Clock())
    for epoch in range(epochs):
        # Who goes first alternates too: the second may find a warmer cache.
        for side in sides if epoch % 2 == 0 else reversed(sides):
            side.run_epoch(data, epoch, verbose)
    for side in sides:
        scores = side.model.evaluate(*data.test, verbose=0, return_dict=True)
        side.accuracy = scores["accuracy"]
    return sides


def table(data, sides):
    """The outcome in words and columns."""
    rows = [("", "time per epoch", "last loss", "test accuracy")]
    rows += [
        (s.name, str(s.time), f"{s.losses[-1]:.4f}", f"{s.accuracy:.2%}")
        for s in sides
    ]
    lines = ["{:<20}  {:<22}  {:>9}  {:>13}".format(*row) for row in rows]
    speedup = measure.ratio(*(s.timer.seconds[WARMUP:] for s in sides))
    return "\n".join(
        [
            f"{data.name}: {len(data.train[0])} rows to train, "
            f"{len(data.test[0])} to test, batch {data.batch_size}, "
            f"{len(sides[0].losses)} epochs of which {WARMUP} warm-up",
            *(line.rstrip() for line in lines),
            f"ratio of the times, epoch by epoch: {speedup}",
            "(median, ± half the distance between the quartiles)",
        ]
    )


def plot(sides, path):
    """Draws both loss curves and the times of all epochs after warm-up."""
    # Here, not at the top: only --plot needs Matplotlib.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    curves, times = figure.subplots(1, 2)
    for side, style in zip(sides, ["-", "--"], strict=True):
        epochs = range(1, len(side.losses) + 1)
        curves.plot(epochs, side.losses, style, label=side.name)
    curves.set(xlabel="epoch", ylabel="training loss", yscale="log")
    curves.xaxis.get_major_locator().set_params(integer=True)
    curves.legend()
    times.boxplot(
        [[1e3 * t for t in s.timer.seconds[WARMUP:]] for s in sides],
        tick_labels=[s.name for s in sides],
    )
    times.set(ylabel="time per epoch after warm-up (ms)")
    times.set_ylim(bottom=0)
    figure.savefig(path, dpi=120)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--data", choices=LOADERS, default="digits", help="default: digits"
    )
    parser.add_argument(
        "--epochs", type=int, help="of each model; default: by data set"
    )
    parser.add_argument(
        "--plot", metavar="FILE.png", help="draw loss curves and times"
    )
    parser.add_argument(
        "--verbose",
        type=int,
        choices=(0, 1, 2),
        default=1,
        help="as in `fit`; default: 1, a progress bar",
    )
    args = parser.parse_args(argv)
    if args.epochs is not None and args.epochs <= WARMUP:
        parser.error(
            f"`--epochs` must be > {WARMUP}. Received: --epochs={args.epochs}. "
            f"The first {WARMUP} epochs warm up and are not timed."
        )
    data = LOADERS[args.data]()
    sides = compare(data, args.epochs or data.epochs, args.verbose)
    print(table(data, sides))
    if args.plot:
        plot(sides, args.plot)
        print(f"plot: {args.plot}")
    return sides


if __name__ == "__main__":
    main()
