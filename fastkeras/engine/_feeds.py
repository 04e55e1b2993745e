"""From the arguments of `fit` to a feed."""

import keras
import tensorflow as tf

from fastkeras._lib import checks
from fastkeras._lib import private
from fastkeras._lib.warn import warn
from fastkeras.engine import _resident
from fastkeras.engine._options import limited
from fastkeras.engine._per_worker import per_worker
from fastkeras.engine._signature import check_spec
from fastkeras.engine._stream import NO_DATA
from fastkeras.engine._stream import Stream
from fastkeras.engine._workers import is_asynchronous


def make_feed(model, steps=None, class_weight=None, **data):
    """Chooses a feed for data of any kind that Keras takes.

    Args:
        model: The model the batches are for.
        steps: Integer, batches in an epoch, or None for all.
        class_weight: Dict of class to weight, or None.
        **data: x, y, sample_weight, batch_size and shuffle, as for `fit`.

    Returns:
        Tuple of a feed and a string: why it is this one.

    Raises:
        ValueError: If there is no data, or no row of it.
    """
    x = data["x"]
    if x is None:
        raise ValueError(
            checks.message(
                "`x` must hold the input data",
                "x=None",
                "Give arrays, a `tf.data.Dataset`, a generator or a "
                "`keras.utils.PyDataset`.",
            )
        )
    steps = limited(steps, "steps_per_epoch")
    if callable(x) and is_asynchronous(model):
        return per_worker(model, x, steps, class_weight)
    if class_weight is not None and isinstance(x, tf.data.Dataset):
        data["x"] = x.map(_weigher(class_weight), tf.data.AUTOTUNE)
        class_weight = None
    # True is the default of `fit`; Keras would warn of it.
    data["shuffle"] = private.can_shuffle(data) and data["shuffle"]
    adapter = private.data_adapters.get_data_adapter(
        steps_per_epoch=steps, class_weight=class_weight, **data
    )
    if adapter.num_batches == 0:
        raise ValueError(NO_DATA)
    wanted = model.perf.execution.feed
    arrays, rows, batch_size = private.resident_arrays(adapter)
    reason = _resident.refusal(arrays, rows)
    if private.has_strategy(model):
        reason = "a strategy distributes the batches"
    if wanted == "resident" and reason is not None:
        raise ValueError(
            checks.message(
                "`feed='resident'` needs dense arrays that fit on the device",
                reason,
                "Leave `feed` out of `Execution`, or give such arrays.",
            )
        )
    if wanted == "stream":
        reason = "asked for"
    if reason is not None:
        feed, reason = _stream(model, adapter, steps, reason)
    else:
        reason = "the arrays fit on the device"
        feed = _resident.Resident(
            arrays, rows, batch_size, steps, data["shuffle"], model.perf.pad
        )
    check_spec(model, feed.spec)
    return feed, f"{feed.name}: {reason}"


def _stream(model, adapter, steps, reason):
    strategy = model.distribute_strategy
    if is_asynchronous(model):
        strategy = private.default_strategy()
        reason = "the chief reads the batches and hands them out"
    feed = Stream(strategy, adapter, steps, model.perf.pad)
    if feed.sharding:
        reason += f", auto-shard policy {feed.sharding}"
    return feed, reason


def ordered_feed(model, data, batch_size=None, steps=None):
    """The feed of data that is gone through in its own order.

    Args:
        model: The model the batches are for.
        data: x, or a tuple `(x, y)` or `(x, y, sample_weight)`.
        batch_size: Integer, rows of a batch, or None.
        steps: Integer, batches in an epoch, or None for all.

    Returns:
        A feed, as of `make_feed`.
    """
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    feed, _ = make_feed(
        model,
        steps,
        x=x,
        y=y,
        sample_weight=sample_weight,
        batch_size=batch_size,
        shuffle=False,
    )
    return feed


def check_length(feed, epochs):
    """Says before the first step if the data can't last."""
    length, steps = feed.length, feed.steps
    if not length or not steps or length % steps == 0:
        return
    if steps * epochs > length:
        warn(
            f"The training needs {steps * epochs} batches "
            f"(steps_per_epoch={steps}, epochs={epochs}), the data has "
            f"{length}. Epochs that run out of data are cut short. Leave "
            "`steps_per_epoch` out, or repeat the dataset (`.repeat()`)."
        )


def _weigher(class_weight):
    """Maps (x, y) to (x, y, weight); a class that is missing counts as 1."""
    size = max(class_weight) + 1
    table = tf.constant([float(class_weight.get(c, 1.0)) for c in range(size)])

    def weigh(*data):
        if len(data) != 2 or isinstance(data[1], (dict, list, tuple)):
            raise ValueError(
                checks.message(
                    "`class_weight` needs data of the form (x, y) with a "
                    "single y",
                    f"{len(data)} parts",
                    "Give sample weights instead.",
                )
            )
        x, y = data
        classes = y
        if y.shape.rank and y.shape.rank > 1:
            if y.shape[-1] == 1:
                classes = tf.squeeze(y, -1)
            else:
                classes = tf.argmax(y, -1)
        classes = tf.cast(tf.round(tf.cast(classes, tf.float32)), tf.int32)
        known = tf.logical_and(classes >= 0, classes < size)
        weights = tf.gather(table, tf.where(known, classes, 0))
        return x, y, tf.where(known, weights, 1.0)

    return weigh
