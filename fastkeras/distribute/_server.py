"""Run by itself, by each worker and parameter server: works for the chief.

It imports TensorFlow alone: the chief sends whole graphs.
"""

import os
import time

import tensorflow as tf

#: Seconds between two looks for the process that started this one.
_LOOK = 0.5


def main():
    """Serves until this process, or the one that started it, is ended."""
    parent = os.getppid()
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    server = tf.distribute.Server(
        resolver.cluster_spec(),
        job_name=resolver.task_type,
        task_index=resolver.task_id,
        protocol=resolver.rpc_layer or "grpc",
    )
    # Held here, it serves in threads of its own.
    while server and os.getppid() == parent:
        time.sleep(_LOOK)
    # A server can't be stopped from Python.
    os._exit(0)


if __name__ == "__main__":
    main()
