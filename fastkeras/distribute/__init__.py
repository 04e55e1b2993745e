"""Training on several replicas, in one process or several."""

from fastkeras.distribute._batch_size import global_batch_size
from fastkeras.distribute._batch_size import scale_learning_rate
from fastkeras.distribute._launcher import launch
from fastkeras.distribute._scaling import scaling

__all__ = ["global_batch_size", "launch", "scale_learning_rate", "scaling"]
