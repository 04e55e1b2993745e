"""A side: one compiled model that runs its turns of a row and times them.

Keras and `fastkeras.measure` only, like `rows`. Every side has `first`, `warm`
and `turn`, whatever is behind it, so that all are treated alike.

Example:

>>> units_for(seconds=0.4, each=0.1)
4
"""

from fastkeras.measure.clock import Clock

#: A turn lasts about this long: many launches, and yet many turns.
TURN_SECONDS = 0.4
#: Most epochs (or calls) in a turn.
MOST_UNITS = 200


def units_for(seconds, each):
    """How many epochs (or calls) of a known length make up a turn.

    Args:
        seconds: Float, how long the turn should be.
        each: Float, seconds of one.

    Example:

    >>> units_for(seconds=0.4, each=3.0)
    1
    """
    if each <= 0:
        return MOST_UNITS
    return max(1, min(MOST_UNITS, round(seconds / each)))


class Side:
    """A model of `keras.Model`'s class, or one derived from it, on a row.

    Args:
        row: `Row`.
        model_class: Class of the model.
        options: Dict of further arguments of `compile`.
        data: Tuple `(x, y)`; drawn anew if None.
        clock: `fastkeras.measure.Clock`.

    Attributes:
        loss: Float, of the first epoch (or call): the sides train alike.

    Example:

    >>> import keras
    >>> from fastkeras.bench.rows import ROWS
    >>> side = Side(ROWS["one_step"], keras.Model)
    >>> side.first() > 0 and side.warm(1.0) is None
    True
    >>> side.turn() > 0
    True
    """

    def __init__(self, row, model_class, options=None, data=None, clock=None):
        self.row = row
        self.options = dict(options or {})
        self.clock = clock or Clock()
        self.x, self.y = data or row.data()
        self.validation = row.validation_data()
        self.model = row.compiled(model_class, **self.options)
        self.loss = None
        self._each = None

    def first(self):
        """Runs a first epoch (or call); returns the seconds to its end."""
        with self.clock.stopwatch() as watch:
            self._run(1)
        return watch.seconds

    def warm(self, seconds):
        """Runs a second epoch (or call), after which a turn may be timed.

        Args:
            seconds: Float, the most it may take, where it can be less.
        """
        del seconds
        self._each = self._run(1)

    def turn(self):
        """Runs a turn; returns seconds per step, epoch or call."""
        units = units_for(TURN_SECONDS, self._each)
        self._each = self._run(units) / units
        steps = self.row.steps if self.row.per == "step" else 1
        return self._each / steps

    def describe(self):
        """What Keras made of the options, as plain values."""
        return {"jit_compile": bool(self.model.jit_compile)}

    def _run(self, units, *callbacks):
        """Runs so many epochs or calls; returns the seconds they took."""
        if self.row.method == "fit":
            return self._fit(units, *callbacks)
        with self.clock.stopwatch() as watch:
            for _ in range(units):
                self._call()
        return watch.seconds

    def _fit(self, units, *callbacks):
        import keras

        clock = self.clock

        class Timer(keras.callbacks.Callback):
            """Leaves out what `fit` does before its first epoch."""

            def on_train_begin(self, logs=None):
                self.begin = clock.now()

            def on_epoch_end(self, epoch, logs=None):
                self.end = clock.now()

        timer = Timer()
        history = self.model.fit(
            self.x,
            self.y,
            batch_size=self.row.batch,
            epochs=units,
            verbose=0,
            validation_data=self.validation,
            callbacks=[timer, *callbacks],
        )
        if self.loss is None:
            self.loss = history.history["loss"][0]
        return timer.end - timer.begin

    def _call(self, **more):
        arguments = {"batch_size": self.row.batch, "verbose": 0, **more}
        if self.row.method == "evaluate":
            scores = self.model.evaluate(self.x, self.y, **arguments)
            self.loss = self.loss or scores[0]
        else:
            self.model.predict(self.x, **arguments)
