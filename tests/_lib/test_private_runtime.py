"""The private names of pipelines and random states still mean the same."""

import keras
import tensorflow as tf

from fastkeras._lib import private_runtime


def test_stages_go_from_the_source_on():
    dataset = tf.data.Dataset.range(8).map(lambda k: k).batch(2).prefetch(1)
    stages = private_runtime.stages(dataset)
    assert [name for name, _ in stages] == ["Range", "Map", "Batch", "Prefetch"]
    assert stages[-1][1] is dataset
    assert [len(d) for _, d in stages] == [8, 8, 4, 4]


def test_stages_end_where_several_sources_meet():
    zipped = tf.data.Dataset.zip((tf.data.Dataset.range(2),) * 2)
    assert [name for name, _ in private_runtime.stages(zipped)] == ["Zip"]


def test_the_eager_seeds_are_what_operations_draw_from():
    tf.random.set_seed(1)
    first = tf.random.uniform((2,))
    seeds = private_runtime.eager_seeds()
    before = seeds.getstate()
    second = tf.random.uniform((2,))
    seeds.setstate(before)
    # The kernel of an operation counts on by itself: another one is asked.
    drawn = private_runtime.eager_seeds().getstate()
    assert drawn == before
    assert (first.numpy() != second.numpy()).all()


def test_the_global_seed_is_what_draws_without_a_seed():
    keras.utils.set_random_seed(1)
    first = keras.random.normal((2,))
    (variable,) = private_runtime.global_seed()
    before = variable.value.numpy()
    second = keras.random.normal((2,))
    variable.assign(before)
    again = keras.random.normal((2,))
    assert (again.numpy() == second.numpy()).all()
    assert (first.numpy() != second.numpy()).all()
