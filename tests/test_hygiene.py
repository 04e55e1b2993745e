"""The guards of hygiene.py and setup.cfg, shown to see what they guard."""

import os

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import hygiene


def _other(name, value):
    """A value for each setting that a test could leave behind."""
    return {
        "dtype policy": "mixed_bfloat16",
        "floatx": "float64",
        "epsilon": 1e-3,
        "image data format": "channels_first",
        "jit": "autoclustering",
        "environment": {**os.environ, "FASTKERAS_LEFT_BEHIND": "1"},
        "working directory": os.path.dirname(os.getcwd()),
    }.get(name, not value)


@pytest.mark.parametrize("name", hygiene.GLOBALS)
def test_a_setting_left_changed_is_named_and_put_back(name):
    before = hygiene.read_globals()
    _, write = hygiene.GLOBALS[name]
    write(_other(name, before[name]))
    assert hygiene.read_globals()[name] != before[name]
    (complaint,) = hygiene.restore_globals(before)
    assert complaint.startswith(f"{name}: ")
    assert hygiene.read_globals() == before


def test_nothing_changed_gives_no_complaint():
    assert hygiene.restore_globals(hygiene.read_globals()) == []


def test_a_changed_variable_is_named_without_its_value():
    before = hygiene.read_globals()
    os.environ["FASTKERAS_LEFT_BEHIND"] = "secret"
    (complaint,) = hygiene.restore_globals(before)
    assert complaint == "environment: FASTKERAS_LEFT_BEHIND"


@pytest.mark.parametrize("run", [1, 2])
def test_each_test_draws_from_the_same_seed(run):
    drawn = np.random.random(), float(keras.random.normal(()))
    keras.utils.set_random_seed(hygiene.SEED)
    assert drawn == (np.random.random(), float(keras.random.normal(())))


def test_a_warning_charged_to_this_package_is_an_error():
    code = "import warnings; warnings.warn('made up')"
    with pytest.raises(UserWarning, match="made up"):
        exec(code, {"__name__": "fastkeras.perf.made_up"})
    # The control: a warning charged to someone else stays a warning.
    with pytest.warns(UserWarning, match="made up"):
        exec(code, {"__name__": "fastkeras_of_another"})


def test_the_two_devices_hold_a_replica_each(mirrored):
    def place():
        context = tf.distribute.get_replica_context()
        return context.replica_id_in_sync_group

    assert mirrored.num_replicas_in_sync == 2
    places = mirrored.experimental_local_results(mirrored.run(place))
    assert [int(p) for p in places] == [0, 1]
