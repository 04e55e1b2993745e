"""The files of callbacks, where several workers run the same script."""

import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from fastkeras import FastModel
from fastkeras.engine._apart import apart

X = np.random.default_rng(0).normal(size=(8, 2)).astype("float32")


def worker(index):
    """What is asked of the strategy of one of two workers."""
    cluster = tf.train.ClusterSpec({"worker": ["a:1", "b:1"]})
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        cluster, task_type="worker", task_id=index
    )
    return types.SimpleNamespace(cluster_resolver=resolver)


def fitted(strategy, callbacks, epochs):
    """The epochs that a training runs as this worker, and its weights."""
    keras.utils.set_random_seed(1)
    inputs = keras.Input((2,))
    model = FastModel(inputs, keras.layers.Dense(1)(inputs))
    model.compile("sgd", "mse", run_eagerly=True)
    with apart(strategy, callbacks):
        history = model.fit(
            X, X[:, :1], epochs=epochs, verbose=0, callbacks=callbacks
        )
    return history.epoch, model.get_weights()


def writers(folder):
    return [
        keras.callbacks.ModelCheckpoint(
            folder / "{epoch}.keras", "loss", save_best_only=True
        ),
        keras.callbacks.BackupAndRestore(
            f"{folder}/backup/", delete_checkpoint=False
        ),
        keras.callbacks.CSVLogger(folder / "log.csv"),
    ]


def test_the_first_worker_alone_writes(tmp_path):
    other = writers(tmp_path)
    paths = [c.filepath for c in other[:1]] + [c.filename for c in other[2:]]
    _, weights = fitted(worker(1), other, 2)
    assert not list(tmp_path.iterdir())
    assert [other[0].filepath, other[2].filename] == paths
    assert other[1].backup_dir == f"{tmp_path}/backup/"
    assert 0 < other[0].best < np.inf, "what it has seen stays"

    epochs, same = fitted(worker(0), writers(tmp_path), 2)
    names = ["1.keras", "2.keras", "backup", "log.csv"]
    assert sorted(p.name for p in tmp_path.iterdir()) == names
    np.testing.assert_array_equal(weights[0], same[0])
    assert epochs == [0, 1]


def test_all_workers_go_on_from_a_backup(tmp_path):
    fitted(worker(0), writers(tmp_path), 1)
    files = sorted(tmp_path.rglob("*"))
    before = [p.read_bytes() for p in files if p.is_file()]
    epochs, weights = fitted(worker(1), writers(tmp_path), 3)
    assert epochs == [1, 2]
    assert sorted(tmp_path.rglob("*")) == files
    assert before == [p.read_bytes() for p in files if p.is_file()]
    epochs, same = fitted(worker(0), writers(tmp_path), 3)
    assert epochs == [1, 2]
    np.testing.assert_array_equal(weights[0], same[0])


def test_paths_are_put_back_after_an_exception(tmp_path):
    checkpoint = keras.callbacks.ModelCheckpoint(tmp_path / "m.keras")
    path = checkpoint.filepath
    with pytest.raises(KeyboardInterrupt):
        with apart(worker(1), [checkpoint]):
            assert checkpoint.filepath != path
            raise KeyboardInterrupt
    assert checkpoint.filepath == path
