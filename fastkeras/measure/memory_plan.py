"""What training a model holds in memory, before it is run.

Example:

>>> import keras
>>> inputs = keras.Input((4,))
>>> model = keras.Model(inputs, keras.layers.Dense(3, name="head")(inputs))
>>> model.compile("adam", "mse")
>>> memory(model, batch_size=8, measured=False).parameters
60
"""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import tensorflow as tf

from fastkeras._lib import checks
from fastkeras._lib import private
from fastkeras.measure import _liveness

_BAR = 30


@dataclasses.dataclass(frozen=True)
class MemoryPlan:
    """The bytes of a training step.

    Printed as a table, a bar chart of the layers, and what features save.

    Attributes:
        batch_size: Integer, rows of the batch.
        parameters: Integer, bytes of the model's variables.
        gradients: Integer, bytes of one gradient for each trained variable.
        slots: Integer, bytes of the optimizer's variables.
        accumulators: Integer, bytes of the sums that an update of several
            parts is added up in.
        activations: Dict of layer name to the bytes the backward pass needs.
        data: Integer, bytes of the batch.
        step: Integer, the most bytes that the tensors of a step hold at once:
            activations, gradients, sums and what is passing.
        measured: Integer, the same as the process saw it, or None.
        savings: Dict of feature (string) to the bytes it would save.

    Example:

    >>> plan = MemoryPlan(2, 40, 40, 0, 0, {"a": 60, "b": 20}, 8, 120)
    >>> plan.peak
    168
    """

    batch_size: int
    parameters: int
    gradients: int
    slots: int
    accumulators: int
    activations: dict
    data: int
    step: int
    measured: int | None = None
    savings: dict = dataclasses.field(default_factory=dict)

    @property
    def peak(self):
        """Bytes of variables, slots, data and step together."""
        return self.parameters + self.slots + self.data + self.step

    def to_dict(self):
        """The values, as a new dict."""
        return {**dataclasses.asdict(self), "peak": self.peak}

    def __str__(self):
        rows = {
            "parameters": self.parameters,
            "optimizer slots": self.slots,
            "batch": self.data,
            "step": self.step,
            "  gradients": self.gradients,
            "  accumulators": self.accumulators,
            "  activations": sum(self.activations.values()),
            "peak": self.peak,
        }
        if self.measured is not None:
            rows["step, measured"] = self.measured
        lines = [f"memory of a step of {self.batch_size} rows"]
        lines += [f"  {name:24}{_text(n):>12}" for name, n in rows.items()]
        lines += ["activations", *_bars(self.activations)]
        lines.append("what features would save")
        lines += [f"  {n:24}{_text(b):>12}" for n, b in self.savings.items()]
        return "\n".join(lines)


def _text(size):
    return f"{size / 2**20:.1f} MB"


def _bars(values):
    most = max(values.values(), default=0)
    for name, size in values.items():
        bar = "#" * round(_BAR * size / most)
        yield f"  {name[:23]:24}{_text(size):>12} {bar}"


def memory(model, batch_size=32, measured=True):
    """Estimates what a training step holds in memory, then measures it.

    The estimate goes through the graph of `model.train_step`, once traced;
    nothing is run. The measurement is the peak of a fresh process that loads
    the model and runs a step on zeros, above what it held after a step of two
    rows. XLA is not looked into.

    Args:
        model: A compiled `keras.Model` with one input and known shapes.
        batch_size: Integer >= 1, rows. Defaults to `32`.
        measured: Bool, whether to start the process. The model's classes
            must be such that `keras.saving.load_model` finds them there.
            Defaults to `True`.

    Returns:
        A `MemoryPlan`.

    Raises:
        TypeError: If `batch_size` is not an integer.
        ValueError: If `batch_size` is < 1, the model is not compiled or not
            built, or a dimension beside the rows is not known.
        RuntimeError: If the process fails.

    Example:

    >>> import keras
    >>> inputs = keras.Input((4,))
    >>> model = keras.Model(inputs, keras.layers.Dense(3, name="d")(inputs))
    >>> model.compile("sgd", "mse")
    >>> print(memory(model, batch_size=2**16, measured=False).gradients)
    60
    """
    checks.positive_int(batch_size, "batch_size", "Give the rows of a batch.")
    specs = _specs(model, batch_size)
    model.optimizer.build(model.trainable_variables)
    step = tf.function(model.train_step, autograph=False)
    graph = step.get_concrete_function(tuple(specs)).graph
    names = [layer.name for layer in private.flat_layers(model)]
    gradients = _bytes(model.trainable_variables)
    plan = MemoryPlan(
        batch_size=batch_size,
        parameters=_bytes(model.variables),
        gradients=gradients,
        slots=_bytes(model.optimizer.variables),
        accumulators=gradients if _adds_up(model) else 0,
        activations=_liveness.kept(graph, names),
        data=sum(_liveness.bytes_of(s) for s in specs),
        step=_liveness.peak(graph),
        measured=_measured(model, specs) if measured else None,
    )
    return dataclasses.replace(plan, savings=_savings(plan))


def _specs(model, batch_size):
    if not (model.built and model.compiled and model.optimizer):
        raise ValueError(
            checks.message(
                "`model` must be built, and compiled with an optimizer",
                f"{model.name!r}: built={model.built}, "
                f"compiled={model.compiled}",
                "Call it on a batch, and compile it.",
            )
        )
    symbols = [*private.tree.flatten(model.inputs)]
    outputs = [*private.tree.flatten(model.outputs)]
    specs = []
    for symbol in (symbols[0], outputs[0]):
        shape = (batch_size, *symbol.shape[1:])
        if None in shape or len(symbols) + len(outputs) > 2:
            raise ValueError(
                checks.message(
                    "`model` must have one input and one output, of known "
                    "shape",
                    f"{model.name!r} with inputs {symbols} and outputs "
                    f"{outputs}",
                    "Make the model for one length of its sequences.",
                )
            )
        specs.append(tf.TensorSpec(shape, symbol.dtype))
    return specs


def _bytes(variables):
    return sum(_liveness.bytes_of(v.value) for v in variables)


def _adds_up(model):
    plan = getattr(model, "perf", None)
    return getattr(plan, "cuts", False)


def _savings(plan):
    """What features would save, by what they do to the activations."""
    kept = sum(plan.activations.values())
    most = max(plan.activations.values(), default=0)
    # Chen et al. 2016: n equal layers keep 2 sqrt(n) instead of n.
    least = 2 * (kept * most) ** 0.5
    slices = max(1, plan.batch_size // 4)
    return {
        f"Microbatch({slices})": max(
            0,
            kept * (plan.batch_size - slices) // plan.batch_size
            - plan.gradients,
        ),
        "Rematerialize()": max(0, int(kept - least)),
        "MixedPrecision()": kept // 2,
    }


def _measured(model, specs):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.keras")
        model.save(path)
        values = [[s.shape.as_list(), s.dtype.name] for s in specs]
        run = subprocess.run(
            [
                sys.executable,
                "-c",
                "import fastkeras, json, sys\n"
                "from fastkeras.measure import _step_memory\n"
                "print(_step_memory.run(sys.argv[1], json.loads(sys.argv[2])))",
                path,
                json.dumps(values),
            ],
            capture_output=True,
            text=True,
            env={
                **os.environ,
                "PYTHONPATH": str(pathlib.Path(__file__).parents[2]),
            },
        )
    if run.returncode:
        raise RuntimeError(
            checks.message(
                "The process that measures must load and train the model",
                "\n" + "\n".join(run.stderr.splitlines()[-3:]),
                "Give measured=False for the estimate alone.",
            )
        )
    return int(run.stdout.split()[-1])
