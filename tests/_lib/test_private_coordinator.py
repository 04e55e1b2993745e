"""The private names about parameter servers, without a cluster."""

import inspect

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.distribute import parameter_server_strategy_v2
from tensorflow.python.distribute.coordinator import cluster_coordinator

from fastkeras._lib import private_coordinator


def test_a_variable_of_one_call_stands_in():
    total = keras.Variable(np.float32(5), name="total")

    @tf.function(autograph=False)
    def call():
        with private_coordinator.standing_in([total]) as (real,):
            total.assign(1.0)
            total.assign_add(real.read_value())
            tf.while_loop(
                lambda k: k < 3,
                lambda k: total.assign_add(10.0) * 0 + k + 1,
                [0.0],
            )
            return total.value + 0

    assert [float(call()) for _ in range(2)] == [36.0, 36.0]
    assert total.numpy() == 5


def test_the_lock_that_a_coordinator_would_wait_for():
    stop = inspect.getsource(cluster_coordinator.WorkerPreemptionHandler.stop)
    assert "with self._cluster_update_lock" in stop
    assert "self._should_preemption_thread_run = False" in stop
    assert "self._cluster_due_for_update_or_finish.set()" in stop
    cluster = inspect.getsource(cluster_coordinator.Cluster)
    assert "self.failure_handler.stop()" in cluster
    coordinator = inspect.getsource(cluster_coordinator.ClusterCoordinator)
    assert "self._cluster = " in coordinator


def test_what_a_strategy_says_of_its_cluster():
    source = inspect.getsource(
        parameter_server_strategy_v2.ParameterServerStrategyV2Extended.__init__
    )
    assert "self._variable_partitioner = variable_partitioner" in source
    assert "self._num_workers = " in source
