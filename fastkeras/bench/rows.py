"""What is measured: a model, its data, and what is counted, for each row.

Keras and NumPy only, so that a process with another Keras backend and without
fastkeras can build the same models from the same numbers. Nothing is loaded
before a row is built, so the names can be listed at once.

Example:

>>> ROWS["mlp"].title
'MLP 64-128-128-10'
"""

import dataclasses
import functools

from fastkeras.bench import models

SEED = 7
SUITES = ("overhead", "compute")


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        name: String, for `--rows`.
        title: String, for the table.
        suite: String, one of `SUITES`.
        build: Function of a model class to a model that isn't compiled.
        arrays: Function of a NumPy generator and a number of rows to x and y.
        steps: Integer, batches in an epoch (or in a call).
        batch: Integer, rows in a batch.
        method: String, `"fit"`, `"evaluate"` or `"predict"`.
        per: String, what a time is of: `"step"`, `"epoch"` or `"call"`.
        validation: Integer, rows to validate on after each epoch.
        convolves: Bool, whether the model has convolutions.

    Example:

    >>> ROWS["mlp"].quick().steps
    32
    """

    name: str
    title: str
    suite: str
    build: object
    arrays: object
    steps: int
    batch: int = 32
    method: str = "fit"
    per: str = "step"
    validation: int = 0
    convolves: bool = False

    def quick(self):
        """The same with shorter epochs."""
        return dataclasses.replace(self, steps=min(self.steps, 32))

    def data(self):
        """The arrays `(x, y)`, the same ones each time."""
        return self._draw(self.steps * self.batch, SEED)

    def validation_data(self):
        """Arrays `(x, y)` to validate on, or None."""
        if not self.validation:
            return None
        return self._draw(self.validation, SEED + 1)

    def _draw(self, rows, seed):
        import numpy as np

        return self.arrays(np.random.default_rng(seed), rows)

    def compiled(self, model_class, **options):
        """A new model, compiled; the same weights each time.

        Args:
            model_class: `keras.Model` or a class derived from it.
            **options: Further arguments of `compile`.
        """
        import keras

        keras.utils.set_random_seed(SEED)
        model = self.build(model_class)
        outputs = len(model.outputs)
        loss = [
            keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            for _ in range(outputs)
        ]
        metrics = [["accuracy"] for _ in range(outputs)]
        one = outputs == 1
        model.compile(
            keras.optimizers.Adam(),
            loss[0] if one else loss,
            metrics=metrics[0] if one else metrics,
            **options,
        )
        return model

    def stock_options(self, gpu=False):
        """The settings of stock Keras to search, beside its default.

        Args:
            gpu: Bool, whether the models run on a GPU.

        Returns:
            Tuple of a list of dicts of arguments of `compile`, and a list of
            notes on what is left out.
        """
        steps = min(32, self.steps)
        skips_jit = self.convolves and not gpu
        found = [
            {"steps_per_execution": size, "jit_compile": jit}
            for jit in ([False] if skips_jit else [False, True])
            for size in ([1] if steps == 1 else [steps, 1])
        ]
        # What "auto" comes to for these models: XLA on a GPU only.
        found.remove({"steps_per_execution": 1, "jit_compile": gpu})
        if not skips_jit:
            return found, []
        return found, [
            "stock jit_compile=True is left out: on a CPU, XLA takes minutes "
            "to compile convolutions"
        ]


_DROPOUT = functools.partial(models.mlp, rate=0.5)
_DEEP = functools.partial(models.mlp, widths=(64,) * 49)
_TINY = functools.partial(models.mlp, widths=(16,))
_OVERHEAD, _COMPUTE = SUITES
_64, _IMAGES = models.floats(64), models.floats(28, 28, 1)

_ALL = [
    Row("mlp", "MLP 64-128-128-10", _OVERHEAD, models.mlp, _64, 320),
    Row("mlp_dropout", "MLP + 2 Dropout", _OVERHEAD, _DROPOUT, _64, 320),
    Row("deep", "50 Dense layers", _OVERHEAD, _DEEP, _64, 96),
    Row(
        "wide",
        "8 inputs, 8 outputs",
        _OVERHEAD,
        models.wide,
        models.many_floats,
        64,
    ),
    Row(
        "one_step",
        "100 rows, one-step epochs",
        _OVERHEAD,
        _TINY,
        _64,
        1,
        batch=100,
        per="epoch",
    ),
    Row(
        "validation",
        "validation each epoch",
        _OVERHEAD,
        _TINY,
        _64,
        4,
        per="epoch",
        validation=32,
    ),
    Row(
        "evaluate",
        "evaluate (MLP, 96 batches)",
        _OVERHEAD,
        models.mlp,
        _64,
        96,
        method="evaluate",
        per="call",
    ),
    Row(
        "predict",
        "predict (MLP, 96 batches)",
        _OVERHEAD,
        models.mlp,
        _64,
        96,
        method="predict",
        per="call",
    ),
    Row(
        "lstm",
        "LSTM(32), 60 steps",
        _COMPUTE,
        models.lstm,
        models.tokens(60, 1000),
        64,
    ),
    Row(
        "transformer",
        "2-layer transformer, 64 tokens",
        _COMPUTE,
        models.transformer,
        models.tokens(64, 1000),
        32,
    ),
    Row("cnn", "CNN 28x28", _COMPUTE, models.cnn, _IMAGES, 32, convolves=True),
    Row(
        "resnet",
        "ResNet of 9 blocks, 32x32",
        _COMPUTE,
        models.resnet,
        models.floats(32, 32, 3),
        16,
        convolves=True,
    ),
    Row(
        "embedding",
        "Embedding 50,000x32",
        _COMPUTE,
        models.embedding,
        models.tokens(20, 50_000),
        64,
    ),
]
#: Dict of name to `Row`, in the order of the table.
ROWS = {row.name: row for row in _ALL}
