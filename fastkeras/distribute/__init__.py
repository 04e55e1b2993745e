"""Training on several replicas, in one process or several.

When a worker dies, `launch` ends the others. On a cluster they end by
themselves, with an `UnavailableError` that names it, once TensorFlow misses
its heartbeat (23 seconds after it was killed, TensorFlow 2.21). The same
command started again goes on from the last state of `callbacks.Resume`.

All workers need the same seeds (`keras.utils.set_random_seed`): each shuffles
its own copy of the data, and takes its part of each batch.
"""

from fastkeras.distribute._batch_size import global_batch_size
from fastkeras.distribute._batch_size import scale_learning_rate
from fastkeras.distribute._launcher import launch
from fastkeras.distribute._scaling import scaling

__all__ = ["global_batch_size", "launch", "scale_learning_rate", "scaling"]
