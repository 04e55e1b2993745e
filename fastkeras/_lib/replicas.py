"""What models and optimizers of Keras keep to themselves about strategies.

And what a cluster is made of: its workers, and how they share a dataset.
"""

import contextlib
import json
import os

import keras
import tensorflow as tf

from fastkeras._lib.private import default_strategy
from fastkeras._lib.private import inner_optimizer

_WORKERS = ("chief", "worker")


@contextlib.contextmanager
def without_sum(optimizer):
    """Keeps an optimizer from summing gradients over the replicas itself."""
    inner = inner_optimizer(optimizer)
    inner.__dict__["_all_reduce_sum_gradients"] = list
    try:
        yield inner
    finally:
        inner.__dict__.pop("_all_reduce_sum_gradients", None)


@contextlib.contextmanager
def gradients_already_summed(optimizer):
    """Keeps an optimizer from summing over the replicas a second time.

    Keras sums inside `apply`, after its own clipping. Here the sum comes
    first, since the finite test, the division by the true weight and every
    clip need it; without this the gradient would count once per replica.

    `ema_overwrite_frequency` is held back as well: Keras overwrites under a
    condition inside a replica, which a strategy refuses.

    Yields:
        Function of the strategy that overwrites the weights with their moving
        averages where it is time; call it outside the replicas, afterwards.
    """
    with without_sum(optimizer) as inner:
        frequency = inner.ema_overwrite_frequency
        inner.__dict__["ema_overwrite_frequency"] = None
        try:
            yield lambda strategy: _overwrite(strategy, inner, frequency)
        finally:
            inner.__dict__["ema_overwrite_frequency"] = frequency


def _overwrite(strategy, optimizer, frequency):
    if not optimizer.use_ema or not frequency:
        return
    averages = optimizer._model_variables_moving_average

    def overwrite():
        for variable, average in zip(
            optimizer._trainable_variables, averages, strict=True
        ):
            bound = variable.constraint or (lambda value: value)
            strategy.extended.update(
                variable.value,
                lambda v, a, bound=bound: v.assign(bound(a + 0.0)),
                args=(average.value,),
                group=False,
            )
        return True

    keras.ops.cond(
        optimizer.iterations % frequency == 0, overwrite, lambda: False
    )


def strategy_of(model):
    """The strategy a model was made under; the default one if under none.

    `model.distribute_strategy` would be that of the present scope, for a
    model made under none.
    """
    return model._distribute_strategy or default_strategy()


def optimizer_strategy(optimizer):
    """The strategy an optimizer was made under."""
    return optimizer._distribution_strategy


def is_default_strategy(strategy):
    """True if it stands for no strategy at all."""
    return strategy is default_strategy()


def workers(strategy):
    """How many processes train together."""
    cluster = strategy.cluster_resolver
    return _workers(cluster.cluster_spec().as_dict()) if cluster else 1


def _workers(jobs):
    return sum(len(jobs.get(job, ())) for job in _WORKERS) or 1


def is_first(strategy):
    """Whether this process is the one of the workers that writes."""
    if workers(strategy) == 1:
        return True
    cluster = strategy.cluster_resolver
    jobs = cluster.cluster_spec().as_dict()
    first = ("chief" if "chief" in jobs else "worker", 0)
    return (cluster.task_type, cluster.task_id) == first


def trains_alone(strategy):
    """Whether this process is one of several, and its model not.

    Args:
        strategy: The strategy of the model.

    Returns:
        Integer, the processes that `TF_CONFIG` names; 0 if all is well.
    """
    if not is_default_strategy(strategy):
        return 0
    config = json.loads(os.environ.get("TF_CONFIG") or "{}")
    count = _workers(config.get("cluster", {}))
    task = config.get("task", {}).get("type")
    return count if count > 1 and task in _WORKERS else 0


def distribute(strategy, dataset):
    """Cuts the batches of a dataset over the replicas.

    Several workers share each batch (DATA) where the dataset leaves it open:
    TensorFlow's AUTO shares the files where it can, and the global batches
    are then others than those of one device.

    Args:
        strategy: `tf.distribute.Strategy`.
        dataset: `tf.data.Dataset` of global batches.

    Returns:
        A `tf.distribute.DistributedDataset`, or `tf.data.Dataset`.
    """
    if sharding(strategy, dataset) == "DATA":
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = (
            tf.data.experimental.AutoShardPolicy.DATA
        )
        dataset = dataset.with_options(options)
    return strategy.experimental_distribute_dataset(dataset)


def sharding(strategy, dataset):
    """Name of the auto-shard policy in effect; None for one worker."""
    if workers(strategy) == 1:
        return None
    policy = dataset.options().experimental_distribute.auto_shard_policy
    return "DATA" if policy.name == "AUTO" else policy.name


def name(strategy):
    """The name under which `tf.distribute` offers a strategy."""
    if is_default_strategy(strategy):
        return "no strategy"
    # A MultiWorkerMirroredStrategy is a CollectiveAllReduceStrategy.
    own = type(strategy)
    public = (n for n, kind in vars(tf.distribute).items() if kind is own)
    return next(public, own.__name__)


def described(strategy):
    """A strategy in words."""
    if is_default_strategy(strategy):
        return "none"
    replicas, processes = strategy.num_replicas_in_sync, workers(strategy)
    text = f"{name(strategy)}, {replicas} replica{'s' * (replicas > 1)}"
    return f"{text}, {processes} workers" if processes > 1 else text
