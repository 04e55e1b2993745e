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

import keras
import tensorflow as tf

from fastkeras._lib import checks
from fastkeras._lib import figures
from fastkeras._lib import private
from fastkeras.measure import _liveness
from fastkeras.measure import _step_memory
from fastkeras.measure.receipt import Saved

_BAR = 30


@dataclasses.dataclass(frozen=True)
class MemoryPlan(Saved):
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
        lines += _rows(rows)
        lines += ["activations", *_bars(self.activations)]
        lines.append("what features would save")
        lines += _rows(self.savings)
        return "\n".join(lines)


def _rows(sizes):
    return [f"  {n:24}{figures.memory(s):>12}" for n, s in sizes.items()]


def _bars(values):
    most = max(values.values(), default=0)
    for name, size in values.items():
        bar = "#" * round(_BAR * size / most)
        yield f"  {name[:23]:24}{figures.memory(size):>12} {bar}"


def memory(model, batch_size=32, measured=True, data=None):
    """Estimates what a training step holds in memory, then measures it.

    The estimate goes through the graph of `model.train_step`, once traced;
    nothing is run. The measurement is the peak of a fresh process that loads
    the model and runs a step on zeros, above what it held after a step of two
    rows. XLA is not looked into.

    Args:
        model: A compiled and built `keras.Model`.
        batch_size: Integer >= 1, rows. Defaults to `32`.
        measured: Bool, whether to start the process. The model's classes
            must be such that `keras.saving.load_model` finds them there.
            Defaults to `True`.
        data: Tuple x, y (and sample weights) of arrays (rows, ...), of any
            number of rows: what the shapes are taken from. Defaults to
            `None`: inputs and outputs of a functional model, with targets
            shaped as its outputs; give data where they are not (integer
            classes), or where a length is open.

    Returns:
        A `MemoryPlan`.

    Raises:
        TypeError: If `batch_size` is not an integer.
        ValueError: If `batch_size` is < 1, the model is not compiled or not
            built, or a shape beside the rows is not known.
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
    check_ready(model)
    specs = _specs(model, batch_size, data)
    model.optimizer.build(model.trainable_variables)
    graph = _graph(model, specs)
    names = [layer.name for layer in private.flat_layers(model)]
    gradients = _bytes(model.trainable_variables)
    plan = MemoryPlan(
        batch_size=batch_size,
        parameters=_bytes(model.variables),
        gradients=gradients,
        slots=_bytes(model.optimizer.variables),
        accumulators=gradients if _adds_up(model) else 0,
        activations=_liveness.kept(graph, names),
        data=sum(map(_liveness.bytes_of, private.tree.flatten(specs))),
        step=_liveness.peak(graph),
        measured=_measured(model, specs) if measured else None,
    )
    slices = max(1, batch_size // 4)
    part = _liveness.peak(_graph(model, _specs(model, slices, data)))
    return dataclasses.replace(plan, savings=_savings(plan, slices, part))


def _graph(model, specs):
    step = tf.function(model.train_step, autograph=False)
    return step.get_concrete_function(specs).graph


def check_ready(model):
    """Refuses a model that no step can be made of."""
    if not (model.built and model.compiled and model.optimizer):
        raise ValueError(
            checks.message(
                "`model` must be built, and compiled with an optimizer",
                f"{model.name!r}: built={model.built}, "
                f"compiled={model.compiled}",
                "Call it on a batch, and compile it.",
            )
        )


def _ends(model):
    """Inputs and outputs of a model that knows them."""
    inputs = getattr(model, "inputs", None)
    if not inputs:
        raise ValueError(
            checks.message(
                "The shapes of a batch must be known",
                f"{model.name!r}, which is not made from inputs and outputs",
                "Give `data=(x, y)` of a few rows.",
            )
        )
    if isinstance(model, keras.Sequential):
        return inputs[0], model.outputs[0]
    return model.input, model.output


def _specs(model, batch_size, data):
    """The specs of a batch, as the step is given it."""
    if data is None:
        data = _ends(model)

    def spec(value):
        shape = (batch_size, *value.shape[1:])
        if None in shape:
            raise ValueError(
                checks.message(
                    "Every shape beside the rows must be known",
                    f"{model.name!r} with an input or output of shape "
                    f"{tuple(value.shape)}",
                    "Give `data=(x, y)` of a few rows.",
                )
            )
        dtype = tf.as_dtype(value.dtype)
        # As `fit` converts it.
        if dtype == tf.float64:
            dtype = keras.config.floatx()
        return tf.TensorSpec(shape, dtype)

    return private.tree.map_structure(
        lambda a: None if a is None else spec(a), tuple(data)
    )


def _bytes(variables):
    return sum(_liveness.bytes_of(v.value) for v in variables)


def _adds_up(model):
    plan = getattr(model, "perf", None)
    return getattr(plan, "cuts", False)


def _savings(plan, slices, part):
    """What features would save.

    Args:
        plan: `MemoryPlan`.
        slices: Integer, the rows of a slice.
        part: Integer, bytes of the step of a batch of so many rows.
    """
    kept = sum(plan.activations.values())
    # Chen et al. 2016: n equal layers keep 2 sqrt(n) instead of n.
    layers = max(1, len(plan.activations.keys() - {"other"}))
    savings = {
        f"Microbatch({slices})": plan.step - part - plan.gradients,
        "Rematerialize()": int(kept * (1 - 2 / layers**0.5)),
    }
    if tf.config.list_physical_devices("GPU"):
        # A CPU computes in float32 all the same, and saves next to nothing.
        halved = plan.step - plan.gradients - plan.parameters
        savings["MixedPrecision()"] = halved // 2
    return {name: max(0, size) for name, size in savings.items()}


def _measured(model, specs):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.keras")
        model.save(path)
        values = private.tree.map_structure(_step_memory.written, specs)
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
        lines = run.stderr.splitlines() or [f"exit code {run.returncode}"]
        # Keras adds the whole configuration of the model.
        last = lines[-1].partition(" Full object config")[0]
        raise RuntimeError(
            checks.message(
                "The process that measures must load and train the model",
                last.rstrip("."),
                "A class of your own is not known to it: give measured=False "
                "for the estimate alone.",
            )
        )
    return int(run.stdout.split()[-1])
