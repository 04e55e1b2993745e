"""The feed of data that each worker of a parameter-server strategy makes."""

import tensorflow as tf

from fastkeras._lib import checks
from fastkeras._lib import replicas
from fastkeras.engine._feed import Feed
from fastkeras.engine._launch import Batches
from fastkeras.engine._workers import Workers
from fastkeras.perf._parts import Window


class PerWorker(Feed):
    """Batches that each worker reads for itself.

    The chief counts them and sees none. As TensorFlow documents it, every
    worker goes through all of the data, in an order of its own if the dataset
    shuffles; the data must not end.

    Args:
        coordinator: `tf.distribute.coordinator.ClusterCoordinator`.
        strategy: The strategy.
        make: Function of a `tf.distribute.InputContext` to a
            `tf.data.Dataset` of batches.
        steps: Integer, batches in an epoch.
    """

    name = "per worker"

    def __init__(self, coordinator, strategy, make, steps):
        self._dataset = coordinator.create_per_worker_dataset(
            lambda: strategy.distribute_datasets_from_function(make)
        )
        self._iterator = None
        self.spec = self._dataset.element_spec
        super().__init__(None, steps)

    def begin(self):
        """Starts an epoch; the data goes on where it was."""
        self.left = self.steps
        if self._iterator is None:
            self._iterator = iter(self._dataset)

    def rewind(self):
        """Makes the next epoch begin with the first batches."""
        self._iterator = None

    def state(self):
        """No position: the workers' data can't be put back where it was."""
        return {}

    def restore(self, state):
        """Leaves the data at its beginning."""

    def take(self, updates, window, keeps_remainder):
        """The next launch, as of `Stream.take`.

        A batch stands in it as the iterator that yields it.
        """
        data = []
        while self.left and len(data) < updates:
            count = min(window, self.left)
            self.left -= count
            if count == window or keeps_remainder:
                data.append(self._next(count, window))
        if not data:
            return None
        launch = Batches(0, ())
        launch.data = data
        for one in data:
            launch.add(one, window)
        return launch

    def _next(self, count, window):
        if window == 1:
            return self._iterator
        return Window((self._iterator,) * count)


def per_worker(model, make, steps, class_weight):
    """The feed of a function that makes datasets.

    Args:
        model: The model, made under a `ParameterServerStrategy`.
        make: The function, as for `PerWorker`.
        steps: Integer, batches in an epoch, or None.
        class_weight: As for `fit`.

    Returns:
        Tuple of a `PerWorker` and a string: why it is this feed.

    Raises:
        ValueError: If there are no `steps`, or there is a `class_weight`.
    """
    if steps is None or class_weight is not None:
        raise ValueError(
            checks.message(
                "Data that the workers make has no length that the chief "
                "knows, nor does the chief weigh it",
                f"a function of datasets, {steps} steps, "
                f"class_weight={class_weight}",
                "Give `steps_per_epoch` (`steps`, `validation_steps`), and "
                "weights as a part of the batches.",
            )
        )
    strategy = replicas.strategy_of(model)
    feed = PerWorker(Workers(strategy).coordinator, strategy, make, steps)
    return feed, f"{feed.name}: each worker makes its own data"


def pulled(data):
    """A batch or window in which batches stand for their iterators."""
    return tf.nest.map_structure(
        lambda x: (
            next(x) if isinstance(x, tf.distribute.DistributedIterator) else x
        ),
        data,
    )
