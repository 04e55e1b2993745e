"""The reset of the metrics at the start of an epoch."""

from fastkeras._lib import private
from fastkeras.engine import _launch


class Reset:
    """Resets the metrics of a model: within a launch where that is the same.

    Args:
        model: The model.
        eager: Bool, whether steps run without being compiled.

    Attributes:
        function: `tf.function` that resets them in a call of its own, or None
            while there was no need.
    """

    def __init__(self, model, eager):
        self._model = model
        self._eager = eager
        self._plain = None
        self._due = False
        self._count = 0
        self._within = set()
        self.function = None

    def begin(self, waits):
        """Begins an epoch.

        Args:
            waits: Bool, whether the first launch may do it.
        """
        self._due = waits and self._is_plain() and self._knows_all()
        if not self._due:
            self._now()

    def within(self):
        """Does it as a part of the launch that is traced, where it can be."""
        if private.metrics_are_plain(self._model):
            self._model.reset_metrics()
            self._within.add(self._variables())

    def take(self):
        """Whether the launch that begins now is to do it."""
        due, self._due = self._due, False
        return due

    def if_due(self):
        """Does it if no launch has."""
        if self.take():
            self._now()

    def _is_plain(self):
        """Whether it only assigns variables, all of which are there."""
        if self._plain is None and private.metrics_are_built(self._model):
            plain = private.metrics_are_plain(self._model)
            self._plain = plain and not self._eager
        return bool(self._plain)

    def _knows_all(self):
        """Whether no metric was made after a trace that resets the others."""
        return self._within <= {self._variables()}

    def _now(self):
        if not self._is_plain():
            return self._model.reset_metrics()
        count = self._variables()
        # The first step may make more: the losses of several outputs.
        if self.function is None or count != self._count:
            self.function = _launch.quiet(self._model.reset_metrics)
            self._count = count
        return self.function()

    def _variables(self):
        return sum(len(metric.variables) for metric in self._model.metrics)
