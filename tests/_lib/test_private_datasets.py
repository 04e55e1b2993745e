"""The private names of pipelines still mean the same."""

import tensorflow as tf

from fastkeras._lib import private_datasets


def test_stages_go_from_the_source_on():
    dataset = tf.data.Dataset.range(8).map(lambda k: k).batch(2).prefetch(1)
    stages = private_datasets.stages(dataset)
    assert [name for name, _ in stages] == ["Range", "Map", "Batch", "Prefetch"]
    assert stages[-1][1] is dataset
    assert [len(d) for _, d in stages] == [8, 8, 4, 4]


def test_stages_end_where_several_sources_meet():
    zipped = tf.data.Dataset.zip((tf.data.Dataset.range(2),) * 2)
    assert [name for name, _ in private_datasets.stages(zipped)] == ["Zip"]


def test_the_functions_of_a_stage_are_graphs():
    dataset = tf.data.Dataset.range(4).map(tf.square)
    (graph,) = private_datasets.functions(dataset)
    assert "Square" in {node.op for node in graph.node}
    assert private_datasets.functions(tf.data.Dataset.range(4)) == []


def test_the_buffer_of_a_shuffle_is_read():
    dataset = tf.data.Dataset.range(4).shuffle(7)
    assert private_datasets.shuffle_buffer(dataset) == 7
    assert private_datasets.shuffle_buffer(dataset.batch(2)) is None
