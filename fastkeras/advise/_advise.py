"""fk.advise: what to change in a model, its data and how they are trained."""

from fastkeras.advise import _trials
from fastkeras.advise._facts import LOG
from fastkeras.advise._facts import Facts
from fastkeras.advise._rules import RULES

# What advice takes: so many seconds, and so many times that of a trace.
_SELF, _TRACES = 2, 5


def advise(model, data, batch_size=32, steps=10, apply=False, clock=None):
    """Says what would make training faster, with the figures that say so.

    The model is read, one step of it is traced and a few are run; weights,
    optimizer, metrics, random states and the place in the data are as before
    afterwards. How long it will take, what is being done and each receipt are
    logged to `logging.getLogger("fastkeras.advise")`, at level INFO.

    Args:
        model: A compiled `keras.Model`, a `FastModel` or not.
        data: `(x, y)` or `(x, y, sample_weight)` of arrays (each may be a
            structure), a `tf.data.Dataset` of batches, or a
            `keras.utils.PyDataset`.
        batch_size: Integer >= 1, rows of a batch, of arrays. Defaults to
            `32`.
        steps: Integer >= 1, steps that are timed a turn. Defaults to `10`.
        apply: Bool, whether each advice that leaves the mathematics alone
            and is a setting of `compile`, features of `perf` among them, is
            tried: measured in turns after warm-up, and kept if the numbers
            agree and it is faster beyond the noise (saves traces at no
            slower a step; saves memory for at most 1.5 times the step). The
            model is left with what was kept; a line for each stands in
            `receipt`.
            What needs a FastModel is tried on one that shares the layers of
            a `keras.Model`, which itself stays as it is. Defaults to `False`.
        clock: `fastkeras.measure.Clock`. Defaults to `None`: the real one.

    Returns:
        List of `Advice`, in the order in which to follow them, and in which
        they are tried: tracing, input signature, launches, XLA, half
        precision, memory.

    Raises:
        TypeError: If `data` is of another kind.
        ValueError: If the model is not compiled, or there is no batch.

    Example:

    >>> import keras, numpy as np
    >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse", run_eagerly=True)
    >>> for advice in advise(model, (np.ones((5, 2)), np.ones(5)), 4):
    ...     print(advice.rule)
    eager
    last batch
    """
    facts = Facts(model, data, batch_size, steps, clock)
    _tell_cost(facts)
    found = [advice for rule in RULES if (advice := rule(facts)) is not None]
    if not apply:
        return found
    _trials.tell_cost(facts, found)
    return _trials.try_all(facts, found)


def _tell_cost(facts):
    """Says how long it takes, as far as the first trace tells."""
    LOG.info("a step is traced")
    seconds = facts.trace_seconds
    LOG.info(
        "a trace takes %.2g s; about %.2g s in all",
        seconds,
        _SELF + _TRACES * seconds,
    )
