"""JitToggle: XLA on or off in mid-fit, or whichever is measured faster."""

from fastkeras import measure
from fastkeras._lib import checks
from fastkeras._lib.warn import warn
from fastkeras.callbacks import _jit
from fastkeras.callbacks._monitor import Monitor
from fastkeras.callbacks._monitor import check_count
from fastkeras.callbacks._monitor import synchronise
from fastkeras.callbacks._traces import made_so_far
from fastkeras.engine._place import Closing

#: Warm steps of each kind below which nothing is decided.
ENOUGH = 10
#: Epochs of a comparison: the first two are cold, and one pair has no spread.
FEWEST = 6


class JitToggle(Monitor):
    """Turns `jit_compile` on or off at the beginning of an epoch.

    The training step is made anew, and traced once more. Weights, optimizer,
    metrics, loss scale, history and counters go on as they were, and it stays
    so after `fit`. A FastModel draws the same random numbers with XLA and
    without; a `keras.Model` with Dropout and the like draws others from there
    on. Where training is resumed after that epoch, it is turned at once.

    It goes before what `compile` of a FastModel was given (`jit_compile=`,
    `Execution(jit=)`), with a warning; `perf_report` says who asked. On a CPU,
    XLA is slow at convolutions, of which it warns. A FastModel never turns to
    it there by itself.

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
        self._told = set()

    @staticmethod
    def compare(epochs=8, clock=None):
        """Makes a callback that measures both in turns and keeps the faster.

        Epochs without XLA and with it take turns, so that what slows the
        machine slows both. The first epoch of each, and any in which
        something was traced, are left out together with their neighbour: the
        numbers of warm steps are equal. What `compile` was given is changed
        only where the other is faster beyond the noise: where the ratio is
        farther from 1 than its quartiles are from one another; of 2 pairs,
        than the two are.

        Args:
            epochs: Even integer >= 6, the epochs to compare in: two of them
                are a pair, and the first pair is left out. Defaults to `8`.
            clock: `fastkeras.measure.Clock`. Defaults to `None`: the real
                one.

        Returns:
            A callback with the attributes `graph` and `xla` (`Summary` of the
            seconds of a step, or None), `ratio` (`Summary` of the one over
            the other, pair by pair), `kept` (True for XLA, or `"auto"`
            where a FastModel chooses) and `reason`.

        Raises:
            TypeError: If `epochs` is not an integer.
            ValueError: If `epochs` is odd or < 6; at the start of `fit`, if
                XLA is known not to compile the model. Where that turns out
                when it is tried, the model is trained on as before, and
                `reason` names the operation.
        """
        return _JitComparison(epochs, clock or measure.Clock())

    def __str__(self):
        to = "XLA" if self.to else "the graph without XLA"
        return f"at the beginning of epoch {self.at_epoch}: {to}"

    def __repr__(self):
        return f"JitToggle(at_epoch={self.at_epoch}, to={self.to})"

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        if self.to:
            compare = ", or see what `JitToggle.compare()` measures"
            _jit.check(self.model, "JitToggle", compare)
        self._resumed = True
        pinned = _jit.pinned(self.model)
        if pinned and pinned[1] != self.to:
            warn(
                f"{self!r} goes before `{pinned[0]}` of `compile` from that "
                "epoch on. Leave one of them out.",
                told=self._told,
            )

    def on_epoch_begin(self, epoch, logs=None):
        super().on_epoch_begin(epoch, logs)
        due = epoch == self.at_epoch
        if self._resumed and epoch > self.at_epoch:
            due = True
        self._resumed = False
        if due and _jit.way_of(self.model).asked is not self.to:
            _jit.switch(self.model, self.to, repr(self))


class _JitComparison(Monitor, Closing):
    """What `JitToggle.compare` makes."""

    def __init__(self, epochs, clock):
        super().__init__()
        fix = "Half of them run without XLA; the first of each kind warms up."
        checks.positive_int(epochs, "epochs", fix)
        if epochs < FEWEST or epochs % 2:
            rule = f"`epochs` must be even and >= {FEWEST}"
            raise ValueError(checks.message(rule, f"epochs={epochs}", fix))
        self.epochs = epochs
        self.clock = clock
        self._begin_anew()

    def _begin_anew(self):
        self.graph = self.xla = self.ratio = self.kept = None
        self.reason = "the comparison is not over"
        self._before = self._pinned = None
        self._ways = {}
        self._times = []
        self._made = {}

    def __repr__(self):
        return f"JitToggle.compare(epochs={self.epochs})"

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
        _jit.check(self.model, repr(self))
        self._begin_anew()
        self._before = _jit.way_of(self.model)
        self._pinned = _jit.pinned(self.model)

    def on_epoch_begin(self, epoch, logs=None):
        super().on_epoch_begin(epoch, logs)
        self._start = None
        if self.kept is not None:
            return
        count = len(self._times)
        if count < self.epochs:
            self._take(count % 2 == 1)
        else:
            self._decide()

    def before_launch(self):
        if self._start is None:
            synchronise(self.model)
            self._start = self.clock.now()

    def on_train_batch_end(self, batch, logs=None):
        super().on_train_batch_end(batch, logs)
        self._stop = self.clock.now()

    def after_batches(self):
        asked = self.clock.now()
        synchronise(self.model)
        self._pending = self.clock.now() - asked

    def after_epoch(self, epoch, logs):
        if self.kept is not None or not self.done:
            return
        jit = len(self._times) % 2 == 1
        before = self._made.get(jit)
        made = self._made[jit] = made_so_far(self.model.train_function)
        seconds = (self._stop + self._pending - self._start) / self.done
        self._times.append((seconds, self.done, made == before))

    def on_train_end(self, logs=None):
        if self.kept is None:
            self._decide()
        self._before, self._ways = None, {}

    def close(self):
        """Puts all back as it was, where a `fit` ends in mid-comparison.

        A `keras.Model` tells no callback of an error: call it yourself there.
        """
        if self._before is not None:
            _jit.take(self.model, self._before)
            self._before, self._ways = None, {}

    # Deciding.

    def _take(self, jit):
        if jit in self._ways:
            _jit.take(self.model, self._ways[jit])
        elif self._before.asked is jit:
            # That of `compile`, traced or not.
            self._ways[jit] = self._before
        else:
            refused = self._refused
            self._ways[jit] = _jit.switch(self.model, jit, repr(self), refused)

    def _refused(self, reason):
        """Ends the comparison, as XLA can't compile the model."""
        self.kept = self._before.asked
        self.reason = f"{reason}, so jit_compile={self.kept} is kept as before"
        _jit.take(self.model, self._before)

    def _decide(self):
        pairs = [
            (a, b)
            for a, b in zip(self._times[::2], self._times[1::2], strict=False)
            if a[2] and b[2]
        ]
        steps = sum(graph[1] for graph, _ in pairs)
        before = self._before.asked
        if steps < ENOUGH or len(pairs) < 2:
            self.kept = before
            self.reason = (
                f"{steps} warm steps of each in {len(pairs)} pair(s) of "
                f"epochs, and {ENOUGH} in 2 are needed; jit_compile={before} "
                "as before. Compare for more epochs."
            )
        else:
            graph = [a[0] for a, _ in pairs]
            xla = [b[0] for _, b in pairs]
            self.graph, self.xla = map(measure.summarize, (graph, xla))
            self.ratio = measure.ratio(graph, xla)
            self._choose(steps)
        if self.kept is before:
            _jit.take(self.model, self._before)
        else:
            self._take(self.kept)

    def _choose(self, steps):
        """Keeps the faster, if it is so beyond the noise."""
        before, ratio = self._before.asked, self.ratio
        noise = ratio.spread * (2 if ratio.n < 3 else 1)
        steps = f"{steps} warm steps of each"
        if abs(ratio.median - 1) <= noise:
            self.kept = before
            self.reason = (
                f"within noise (to tell, it must be {noise:.2f} from 1), so "
                f"jit_compile={before} is kept as before, {steps}"
            )
            return
        self.kept = ratio.median > 1
        which = "XLA" if self.kept else "the graph without XLA"
        self.reason = f"{which} is kept, {steps}"
        if self._pinned and self._pinned[1] is not self.kept:
            warn(
                f"{self!r} goes before `{self._pinned[0]}` of `compile`: "
                f"{self}."
            )
