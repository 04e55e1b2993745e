"""The arithmetic of batches and learning rates over several replicas.

    rows of an update = rows of a replica x replicas x accumulated batches

* The batch that `fit` and `Dataset.batch` are given is that of all replicas:
  rows of a replica x replicas. It is cut over them, and over the workers.
* `perf.Accumulate(K)` makes one update of K such batches, summed over the
  replicas once.
* `perf.Microbatch` cuts the rows of a replica into slices for the sake of
  memory; an update holds as many rows as without it.
* What a batch does not divide by is dealt out as far as it goes; the last
  replicas may get fewer rows, or none. Rows count alike all the same.
* An epoch has fewer updates, the more rows they hold. The learning rate that
  suits them is another one: it is never changed unasked.
"""

import math

import tensorflow as tf

from fastkeras._lib import checks

_RULES = {"linear": lambda ratio: ratio, "sqrt": math.sqrt}


def global_batch_size(per_replica_batch_size, strategy=None, accumulate=1):
    """Rows of an update: per replica, times replicas, times accumulation.

    Without `accumulate` it is the `batch_size` for `fit`.

    Args:
        per_replica_batch_size: Integer >= 1, the rows that one replica
            computes at a time.
        strategy: `tf.distribute.Strategy`. Defaults to `None`: that of the
            present scope, and one replica outside any.
        accumulate: Integer >= 1, the steps of `perf.Accumulate`. Defaults to
            `1`.

    Returns:
        Integer.

    Raises:
        TypeError: If a number is not an integer.
        ValueError: If a number is < 1.

    Example:

    >>> strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    >>> global_batch_size(32, strategy), global_batch_size(32, strategy, 4)
    (32, 128)
    """
    checks.positive_int(
        per_replica_batch_size,
        "per_replica_batch_size",
        "Give the rows that fit on one device.",
    )
    checks.positive_int(accumulate, "accumulate", "Leave it out for 1.")
    strategy = strategy or tf.distribute.get_strategy()
    return per_replica_batch_size * strategy.num_replicas_in_sync * accumulate


def scale_learning_rate(
    learning_rate, batch_size, base_batch_size, rule="linear"
):
    """The learning rate for an update of more rows than it was tuned for.

    With k = `batch_size` / `base_batch_size`: k times the rate (`"linear"`,
    for SGD), or the square root of k times (`"sqrt"`, for Adam and its kin).
    A rule of thumb, which holds up to some size and after a warm-up: see
    `warmup_target` of `keras.optimizers.schedules.CosineDecay`.

    Args:
        learning_rate: Number > 0, the rate tuned for `base_batch_size`.
        batch_size: Integer >= 1, rows of an update: `global_batch_size(...)`.
        base_batch_size: Integer >= 1, rows of an update it was tuned for.
        rule: `"linear"` (the default) or `"sqrt"`.

    Returns:
        Float.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If a number is out of range or the rule unknown.

    Example:

    >>> scale_learning_rate(0.1, 1024, 256)
    0.4
    >>> scale_learning_rate(0.001, 1024, 256, rule="sqrt")
    0.002

    Reference:
        Goyal et al., Accurate, Large Minibatch SGD: Training ImageNet in 1
        Hour, 2017, arXiv:1706.02677 (linear, with warm-up). Malladi et al.,
        On the SDEs and Scaling Rules for Adaptive Gradient Algorithms, 2022,
        arXiv:2205.10287 (square root).
    """
    checks.positive_number(
        learning_rate,
        "learning_rate",
        "Of a schedule, scale the numbers it is made of.",
    )
    for name, rows in (
        ("batch_size", batch_size),
        ("base_batch_size", base_batch_size),
    ):
        checks.positive_int(rows, name, "Give the rows of an update.")
    checks.one_of(rule, "rule", list(_RULES))
    return learning_rate * _RULES[rule](batch_size / base_batch_size)
