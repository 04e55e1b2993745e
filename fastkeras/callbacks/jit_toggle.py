"""JitToggle: XLA on or off in mid-fit, or whichever is measured faster."""

from fastkeras import measure
from fastkeras._lib import checks
from fastkeras._lib import private
from fastkeras.callbacks._monitor import Monitor
from fastkeras.callbacks._monitor import check_count
from fastkeras.callbacks._monitor import synchronise
from fastkeras.callbacks._traces import made_so_far
from fastkeras.callbacks._traces import make_intended
from fastkeras.engine._options import refuse_xla
from fastkeras.engine._tiers import xla_refusal

#: Warm steps of each kind below which nothing is decided.
ENOUGH = 10


class JitToggle(Monitor):
    """Turns `jit_compile` on or off at the beginning of an epoch.

    The step is made anew, and traced once more. Weights, optimizer, metrics,
    loss scale, history and counters go on as they were. A FastModel draws the
    same random numbers with XLA and without; a `keras.Model` with Dropout and
    the like draws others from there on.

    Args:
        at_epoch: Integer >= 0, the epoch as `fit` counts them.
        to: Bool, True for XLA.

    Raises:
        TypeError: If `to` is not a bool or `at_epoch` is not an integer.
        ValueError: If `at_epoch` is negative; at the start of `fit`, if XLA
            can't compile the model.

    Example:

    >>> import keras, numpy as np
    >>> model = keras.Sequential([keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse", jit_compile=False)
    >>> x = np.ones((8, 2))
    >>> toggle = JitToggle(at_epoch=1, to=True)
    >>> _ = model.fit(x, x[:, 0], epochs=2, verbose=0, callbacks=[toggle])
    >>> model.jit_compile
    True

    Reference: https://www.tensorflow.org/xla
    """

    def __init__(self, at_epoch, to):
        super().__init__()
        check_count(at_epoch, "at_epoch", "Count epochs from 0, as `fit` does.")
        if not isinstance(to, bool):
            raise TypeError(
                checks.message(
                    "`to` must be True (XLA) or False",
                    f"to={to!r}",
                    "To have the faster one chosen, use `JitToggle.compare`.",
                )
            )
        self.at_epoch = at_epoch
        self.to = to

    @staticmethod
    def compare(epochs=8, clock=None):
        """Makes a callback that measures both in turns and keeps the faster.

        Epochs without XLA and with it take turns, so that what slows the
        machine slows both. The first epoch of each, and any in which
        something was traced, are left out together with their neighbour: the
        numbers of warm steps are equal.

        Args:
            epochs: Even integer >= 4, the epochs to compare in. Defaults to
                `8`.
            clock: `fastkeras.measure.Clock`. Defaults to `None`: the real
                one.

        Returns:
            A callback with the attributes `graph` and `xla` (`Summary` of the
            seconds of a step, or None), `ratio` (`Summary` of the one over
            the other, pair by pair), `kept` (True for XLA) and `reason`.

        Raises:
            TypeError: If `epochs` is not an integer.
            ValueError: If `epochs` is odd or < 4.
        """
        return _JitComparison(epochs, clock or measure.Clock())

    def __str__(self):
        to = "XLA" if self.to else "the graph without XLA"
        return f"at the beginning of epoch {self.at_epoch}: {to}"

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        _check(self.model, self.to)

    def on_epoch_begin(self, epoch, logs=None):
        super().on_epoch_begin(epoch, logs)
        if epoch == self.at_epoch and self.model.jit_compile != self.to:
            _switch(self.model, self.to)


class _JitComparison(Monitor):
    """What `JitToggle.compare` makes."""

    def __init__(self, epochs, clock):
        super().__init__()
        fix = "Half of them are run without XLA, half with it."
        checks.positive_int(epochs, "epochs", fix)
        if epochs < 4 or epochs % 2:
            raise ValueError(
                checks.message(
                    "`epochs` must be even and >= 4", f"epochs={epochs}", fix
                )
            )
        self.epochs = epochs
        self.clock = clock
        self._begin_anew()

    def _begin_anew(self):
        self.graph = self.xla = self.ratio = self.kept = None
        self.reason = "the comparison is not over"
        self._runners = {}
        self._times = []
        self._made = {}

    def __str__(self):
        if self.ratio is None:
            return f"no figure: {self.reason}"
        return (
            f"step without XLA {self.graph}, with XLA {self.xla}, ratio "
            f"{self.ratio}: {self.reason}"
        )

    def scalars(self):
        if self.ratio is None:
            return {}
        return {
            "graph_step_ms": self.graph.median * 1e3,
            "xla_step_ms": self.xla.median * 1e3,
        }

    # Hooks.

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        _check(self.model, True)
        self._begin_anew()
        self._before = self.model.jit_compile

    def on_epoch_begin(self, epoch, logs=None):
        super().on_epoch_begin(epoch, logs)
        count = len(self._times)
        if count < self.epochs:
            self._take(count % 2 == 1)
        elif self.kept is None:
            self._decide()
        self._start = None

    def before_launch(self):
        if self._start is None:
            synchronise(self.model)
            self._start = self.clock.now()

    def after_batches(self):
        synchronise(self.model)
        self._stop = self.clock.now()

    def after_epoch(self, epoch, logs):
        if self.kept is not None or not self.done:
            return
        jit = len(self._times) % 2 == 1
        before = self._made.get(jit)
        made = self._made[jit] = made_so_far(self.model.train_function)
        seconds = (self._stop - self._start) / self.done
        self._times.append((seconds, self.done, made == before))

    def on_train_end(self, logs=None):
        if self.kept is None:
            self._decide()
        self._runners = {}

    # Deciding.

    def _take(self, jit):
        if jit in self._runners:
            _switch(self.model, jit, self._runners[jit])
        else:
            self._runners[jit] = _switch(self.model, jit)

    def _decide(self):
        pairs = [
            (a, b)
            for a, b in zip(self._times[::2], self._times[1::2], strict=False)
            if a[2] and b[2]
        ]
        steps = sum(graph[1] for graph, _ in pairs)
        if steps < ENOUGH:
            self.kept = self._before
            self.reason = (
                f"{steps} warm steps of each, and {ENOUGH} are needed; "
                f"jit_compile={self.kept} as before. Compare for more epochs."
            )
        else:
            graph = [a[0] for a, _ in pairs]
            xla = [b[0] for _, b in pairs]
            self.graph, self.xla = map(measure.summarize, (graph, xla))
            self.ratio = measure.ratio(graph, xla)
            self.kept = self.ratio.median > 1
            which = "XLA" if self.kept else "the graph without XLA"
            self.reason = f"{which} is kept, {steps} warm steps of each"
        self._take(self.kept)


def _check(model, jit):
    if not jit:
        return
    refuse_xla(model, model.run_eagerly)
    if not private.model_supports_jit(model):
        raise ValueError(
            checks.message(
                "XLA must be able to compile the model",
                xla_refusal(model),
                "Leave JitToggle out, or replace these layers.",
            )
        )


def _switch(model, jit, runner=None):
    """Gives a model the train function of a kind; makes it if need be."""
    model.jit_compile = jit
    if hasattr(model, "requested_jit"):
        # A FastModel keeps what was asked for beside what it came to.
        model.requested_jit = jit
    if runner is None:
        make_intended(model)
    else:
        model.train_function = runner
    return model.train_function
