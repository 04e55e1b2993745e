"""MemoryMonitor: what memory an epoch takes, whether it grows, and why."""

import statistics

import tensorflow as tf

from fastkeras._lib import checks
from fastkeras._lib import process
from fastkeras._lib.figures import memory
from fastkeras._lib.warn import warn
from fastkeras.callbacks import _memory
from fastkeras.callbacks._activations import largest_activation
from fastkeras.callbacks._monitor import Monitor
from fastkeras.callbacks._traces import made_so_far

MB = 2**20
#: So many growths, epoch by epoch, are told from what is allocated once.
ENOUGH = 3
#: The part of a growth that what is to blame has to explain.
MOST = 0.55


class MemoryMonitor(Monitor):
    """Reads the memory of the process and of the devices once an epoch.

    The first epoch makes variables and traces, so growth counts from its end:
    it is the median over the epochs, which one big allocation does not move.
    Where it goes on, all that Python holds is gone through once for what has
    grown since (1 to 3 s, 430,000 objects, 2-core CPU, 2026-11-30).

    Args:
        limit_mb: Float > 0, the growth of the host memory in MB per epoch
            above which a warning names the suspect. Defaults to `10`.

    Attributes:
        host: List of integers, bytes of the process at each epoch's end; empty
            on a system without `/proc`.
        host_peak: Integer, the most bytes of the process so far, or None.
        devices: Dict of GPU to a dict of `current` and `peak` bytes.
        traces: List of integers, traces and compilations in each epoch.
        largest_activation: Tuple of layer and bytes per row, or None if no
            layer has an output of known shape.
        suspect: String, the likely reason of a growth, or `""`.

    Raises:
        TypeError: If `limit_mb` is not a number.
        ValueError: If it is not > 0.

    Example:

    >>> import keras, numpy as np
    >>> model = keras.Sequential([keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse")
    >>> memory, x = MemoryMonitor(), np.ones((8, 2))
    >>> _ = model.fit(x, x[:, 0], epochs=2, verbose=0, callbacks=[memory])
    >>> len(memory.traces)
    2
    """

    def __init__(self, limit_mb=10):
        super().__init__()
        checks.positive_number(limit_mb, "limit_mb", "Leave it out for 10.")
        self.limit_mb = limit_mb
        self._begin_anew()

    def _begin_anew(self):
        self.host = []
        self.host_peak = None
        self.devices = {}
        self.traces = []
        self.largest_activation = None
        self.suspect = ""
        self._made = None, 0
        self._runner = None
        self._before = None
        self._since = 0
        self._eager = False
        self._unseen = True

    @property
    def growth(self):
        """Bytes of the host per epoch, from the end of the first epoch on."""
        steps = self._steps()
        return statistics.median(steps) if len(steps) >= ENOUGH else None

    def _steps(self):
        return [b - a for a, b in zip(self.host, self.host[1:], strict=False)]

    def __str__(self):
        lines = [f"traces by epoch: {self.traces or 'no epoch yet'}"]
        if self.host:
            lines.append(f"host {memory(self.host[-1])}")
        if self.host_peak is not None:
            lines.append(f"peak of the host {memory(self.host_peak)}")
        if self.growth is not None:
            lines.append(f"growth an epoch {memory(self.growth)}")
        for name, sizes in self.devices.items():
            lines += [f"{name} {k} {memory(v)}" for k, v in sizes.items()]
        if self.largest_activation:
            layer, size = self.largest_activation
            lines.append(f"largest activation {layer!r}, {memory(size)} a row")
        if self.suspect:
            lines.append(self.suspect)
        return "\n".join(lines)

    def scalars(self):
        found = {"traces_in_epoch": self.traces and self.traces[-1]}
        if self.host:
            found["host_mb"] = self.host[-1] / MB
        if self.host_peak is not None:
            found["host_peak_mb"] = self.host_peak / MB
        if self.growth is not None:
            found["host_growth_mb"] = self.growth / MB
        for name, sizes in self.devices.items():
            for key, size in sizes.items():
                found[f"{name}_{key}_mb"] = size / MB
        return {k: float(v) for k, v in found.items()}

    # Hooks.

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        self._begin_anew()
        self._made = made_so_far(self.model.train_function)
        self._eager = self.model.run_eagerly
        self._eager = self._eager or tf.config.functions_run_eagerly()
        self._look_at_activations(is_built=self.model.built)

    def before_launch(self):
        # At the end of an epoch another callback may have made it anew.
        self._runner = self.model.train_function
        self._look_at_activations(is_built=self.done > 0)

    def after_batches(self):
        if self._runner is None:
            # The data is spent: an epoch without a batch.
            self.traces.append(0)
            return
        runner, made = made_so_far(self._runner)
        self._runner = None
        old, before = self._made
        self._made = runner, made
        self.traces.append(made - before if runner == old else made)

    def after_epoch(self, epoch, logs):
        size, self.host_peak = process.held(), process.peak()
        if size is not None:
            self.host.append(size)
        self.devices = {
            device.name.removeprefix("/device:"): dict(
                tf.config.experimental.get_memory_info(
                    device.name.removeprefix("/device:")
                )
            )
            for device in tf.config.list_logical_devices("GPU")
        }
        self._look_at_activations(is_built=True)
        self._look_at_what_is_held()
        grown, limit = self.growth or 0, self.limit_mb * MB
        # What is kept once, such as the best weights, takes two epochs or so.
        often = sum(step > limit for step in self._steps()) >= ENOUGH
        if often and grown > limit and not self.suspect:
            self.suspect = self._find_suspect(grown)
            warn(
                f"The memory of the process grows by {memory(grown)} an "
                f"epoch, now {memory(size)}. {self.suspect}"
            )

    # Parts.

    def _look_at_what_is_held(self):
        """Notes it at the first growth: what has grown is the suspect."""
        if self._before is None and len(self.host) > 1:
            if self._steps()[-1] > self.limit_mb * MB:
                self._before = _memory.Held()
                self._since = len(self.traces)

    def _find_suspect(self, grown):
        later = self.traces[1:]
        if later and min(later[-ENOUGH:]) > 0:
            return (
                f"Suspect: the cache of functions; {later[-1]} trace(s) in "
                "this epoch, and each is kept. RetraceMonitor tells why."
            )
        total = self.host[-1] - self.host[self._since - 1]
        found = self._before.grown(MOST * max(total, grown))
        if found:
            name, count, size = found
            return (
                f"Suspect: {name}, which grows; it holds {count} "
                f"member{'s' * (count != 1)} of {memory(size)} in all. Keep "
                "numbers (`float(value)`) in place of tensors, or only the "
                "last few."
            )
        graphs = _memory.Held().graphs - self._before.graphs
        traces = self.traces[self._since :]
        if graphs >= len(traces) and not any(traces):
            return (
                "Suspect: the cache of functions outside of the model's steps; "
                f"{graphs} more graphs are alive than {len(traces)} epoch(s) "
                "before. "
                "Make a `tf.function` once, not in each epoch, and give it "
                "tensors in place of Python numbers."
            )
        return (
            "No function is traced again and nothing grows that Python holds: "
            "look at what the data pipeline caches (`cache()`, a large "
            "`shuffle` buffer)."
        )

    def _look_at_activations(self, is_built):
        """A model without an Input has no shapes before its first batch."""
        if not is_built or not self._unseen:
            return
        self._unseen = False
        self.largest_activation = largest_activation(self.model)
        if not self._eager:
            return
        text = "Steps run eagerly: each intermediate result is an allocation "
        text += "of its own, kept until the gradient is taken. "
        if self.largest_activation:
            layer, size = self.largest_activation
            text += (
                f"The largest is that of layer {layer!r}, {memory(size)} a "
                "row. "
            )
        warn(text + "Compile without `run_eagerly`.")
