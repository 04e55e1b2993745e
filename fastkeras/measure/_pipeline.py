"""The data of a profile: a few batches, taken where it can't be noticed."""

import itertools
import statistics

import keras
import numpy as np
import tensorflow as tf

from fastkeras._lib import checks
from fastkeras._lib import private
from fastkeras.measure import _runs
from fastkeras.measure.stats import summarize

# What is outside of the graph (a Python function) stays shared.
_IGNORE = 1
# Of a batch, where Keras is told nothing.
_ROWS = 32


class Pipeline:
    """At most so many batches of the data, as often as they are asked for.

    Args:
        data: A `tf.data.Dataset`, a `keras.utils.PyDataset`, or arrays: `x`
            or a tuple `(x, y)` or `(x, y, sample_weight)`.
        batch_size: Integer, rows of a batch, for arrays.
        most: Integer, the most batches.

    Attributes:
        arguments: Dict, of the data for `fit`.
        length: Integer, the batches of all the data, or None if not known.
        leaves_cache: Bool, whether the data keep in a cache what they have
            read, which they can't for want of their last batches.
    """

    def __init__(self, data, batch_size, most):
        check_again(data)
        self.leaves_cache = False
        if isinstance(data, tf.data.Dataset):
            graph, length = _graph(data), int(data.cardinality())
            # To its very end: `take` stops before a cache knows that it is.
            is_whole = 0 <= length <= most
            copy = _read(graph, data)
            copy = copy if is_whole else copy.take(most)
            self.arguments = {"x": copy, "shuffle": False}
            self.length = length if length >= 0 else None
            self.leaves_cache = not is_whole and _caches(graph)
        elif isinstance(data, keras.utils.PyDataset):
            self.arguments = {"x": _Part(data, most), "shuffle": False}
            self.length = data.num_batches
        else:
            self.arguments = _arrays(data, batch_size or _ROWS, most)
            rows = len(keras.tree.flatten(data)[0])
            self.length = -(-rows // (batch_size or _ROWS))
        self._dataset = self._made(one_by_one=True)

    @property
    def spec(self):
        """Nested `tf.TensorSpec` of a batch."""
        return self._dataset.element_spec

    def batches(self):
        """Yields the batches; no model takes part."""
        return iter(self._dataset)

    def whole_pass(self):
        """Yields all batches as the steps get them, all of them to be taken.

        The workers of a PyDataset go on with a pass that was left, and the
        next would wait for ever for the batches that were taken.
        """
        return iter(self._made())

    def count(self):
        """The batches there are."""
        size = int(self._dataset.cardinality())
        if size >= 0:
            return size
        count = sum(1 for _ in self.batches())
        if count and next(self.batches(), None) is None:
            raise TypeError(_runs.once("a Dataset that is empty by now"))
        return count

    def frozen(self, count, are_resident):
        """Its first batch, again and again.

        Args:
            count: Integer, how often.
            are_resident: Bool, whether the steps took their rows from arrays
                on the device, as they are to do here too.

        Returns:
            The batch, and the arguments for `fit`.
        """
        batch = next(self.batches())
        if not are_resident:
            again = tf.data.Dataset.from_tensors(batch).cache().repeat(count)
            return batch, {"x": again, "shuffle": False}
        parts = keras.tree.map_structure(
            lambda part: np.concatenate([part.numpy()] * count), batch
        )
        x, y, weight = keras.utils.unpack_x_y_sample_weight(parts)
        size = self.arguments["batch_size"]
        return batch, {
            "x": x,
            "y": y,
            "sample_weight": weight,
            "batch_size": size,
        }

    def _made(self, one_by_one=False):
        """The dataset that Keras makes of the data, or one without workers."""
        x = self.arguments["x"]
        if isinstance(x, tf.data.Dataset):
            return x
        if isinstance(x, _Part):
            x = x.one_by_one() if one_by_one else x
            return private.data_adapters.PyDatasetAdapter(
                x, shuffle=False
            ).get_tf_dataset()
        return private.data_adapters.ArrayDataAdapter(
            **self.arguments, shuffle=True
        ).get_tf_dataset()


def check_again(data):
    """Refuses data that can be gone through only once."""
    if hasattr(data, "__next__"):
        raise TypeError(_runs.once(f"data={data!r}"))


def copied(dataset):
    """The same pipeline with a state of its own.

    A seeded `shuffle` counts how often it was gone through.
    """
    return _read(_graph(dataset), dataset)


def _graph(dataset):
    """The graph of a pipeline, whose `shuffle`s count apart from its own."""
    graph = tf.raw_ops.DatasetToGraphV2(
        input_dataset=tf.data.experimental.to_variant(dataset),
        external_state_policy=_IGNORE,
    )
    graph = tf.compat.v1.GraphDef.FromString(graph.numpy())
    for node in graph.node:
        if "value" not in node.attr:
            continue
        handles = node.attr["value"].tensor.resource_handle_val
        if any("SeedGenerator" in h.maybe_type_name for h in handles):
            node.op = "DummySeedGenerator"
            node.attr.clear()
    return graph


def _read(graph, dataset):
    """The pipeline of a graph, with the options of another."""
    made = tf.raw_ops.DatasetFromGraph(graph_def=graph.SerializeToString())
    copy = tf.data.experimental.from_variant(made, dataset.element_spec)
    return copy.with_options(dataset.options())


def _caches(graph):
    functions = (f.node_def for f in graph.library.function)
    nodes = itertools.chain(graph.node, *functions)
    return any(node.op.startswith("CacheDataset") for node in nodes)


class _Part(keras.utils.PyDataset):
    """The first batches of a PyDataset, whose end of epoch stays unknown."""

    def __init__(self, data, most):
        super().__init__(
            workers=data.workers,
            use_multiprocessing=data.use_multiprocessing,
            max_queue_size=data.max_queue_size,
        )
        self._data = data
        self._most = most

    @property
    def num_batches(self):
        size = self._data.num_batches
        return self._most if size is None else min(size, self._most)

    def __getitem__(self, index):
        return self._data[index]

    def one_by_one(self):
        """The same batches without workers."""
        part = _Part(self._data, self._most)
        part.workers, part.use_multiprocessing = 1, False
        return part


def _arrays(data, batch_size, most):
    parts = data if isinstance(data, tuple) else (data,)
    if not 1 <= len(parts) <= 3:
        raise ValueError(
            checks.message(
                "`data` must be x, (x, y) or (x, y, sample_weight)",
                f"a tuple of {len(parts)}",
                "Put several inputs into a list or a dict.",
            )
        )
    rows = most * batch_size
    parts = keras.tree.map_structure(
        lambda a: None if a is None else a[:rows], list(parts)
    )
    names = ("x", "y", "sample_weight")
    return {**dict(zip(names, parts)), "batch_size": batch_size}


class Alone:
    """Times the batches of the pipeline, without a model.

    The start of a pass, up to its first batch, is time of the epoch, not of a
    batch, unless there is no other.

    Args:
        pipeline: `Pipeline`.
        passes: Integer, how often to go through it in all turns, or more.
        clock: `Clock`.

    Attributes:
        turns: List of floats, the median seconds of a batch in each turn.
    """

    def __init__(self, pipeline, passes, clock):
        self.turns, self._times = [], []
        self._pipeline = pipeline
        self._passes = -(-passes // _runs.TURNS)
        self._clock = clock

    @property
    def step(self):
        """`Summary` of the seconds of a batch, over the stretches."""
        return summarize(self._times)

    def run(self):
        """A turn."""
        times = []
        for _ in range(self._passes):
            batches = self._pipeline.whole_pass()
            moments = [self._clock.now()]
            moments += [self._clock.now() for _ in batches]
            if len(moments) > 2:
                del moments[0]
            places = [0, *_runs.ends(len(moments) - 1)]
            times += [
                (moments[end] - moments[begin]) / (end - begin)
                for begin, end in itertools.pairwise(places)
            ]
        self.turns.append(statistics.median(times))
        self._times += times
