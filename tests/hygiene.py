"""Hygiene for every test: same start, nothing left behind, two CPU devices."""

import gc
import math
import os
import pathlib

import keras
import pytest
import tensorflow as tf

SEED = 1337

# Two devices on a machine with one processor, so that whatever is summed over
# replicas can be tested anywhere. Has to come before any tensor is made.
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0],
    [tf.config.LogicalDeviceConfiguration() for _ in range(2)],
)


def _set_traceback_filtering(on):
    switch = keras.config.enable_traceback_filtering
    (switch if on else keras.config.disable_traceback_filtering)()


def _environment():
    # pytest itself rewrites its own variable in every phase of a test.
    return {k: v for k, v in os.environ.items() if k != "PYTEST_CURRENT_TEST"}


def _set_environment(values):
    for name in _environment().keys() - values.keys():
        del os.environ[name]
    os.environ.update(values)


# What a test, or the library under it, could leave changed for the next test:
# name -> (read it, put it back).
GLOBALS = {
    "dtype policy": (
        lambda: keras.config.dtype_policy().name,
        keras.config.set_dtype_policy,
    ),
    "floatx": (keras.config.floatx, keras.config.set_floatx),
    "epsilon": (keras.config.epsilon, keras.config.set_epsilon),
    "image data format": (
        keras.config.image_data_format,
        keras.config.set_image_data_format,
    ),
    "traceback filtering": (
        keras.config.is_traceback_filtering_enabled,
        _set_traceback_filtering,
    ),
    "functions run eagerly": (
        tf.config.functions_run_eagerly,
        tf.config.run_functions_eagerly,
    ),
    "jit": (tf.config.optimizer.get_jit, tf.config.optimizer.set_jit),
    "TF32": (
        tf.config.experimental.tensor_float_32_execution_enabled,
        tf.config.experimental.enable_tensor_float_32_execution,
    ),
    "environment": (_environment, _set_environment),
    "working directory": (os.getcwd, os.chdir),
}


def read_globals():
    """Returns the present value of everything in `GLOBALS`."""
    return {name: read() for name, (read, _) in GLOBALS.items()}


def restore_globals(before):
    """Puts back what differs from `before` and says what that was.

    Returns:
        A list of strings, one for each setting that had changed.
    """
    changed = []
    for name, (read, write) in GLOBALS.items():
        after = read()
        if after != before[name]:
            write(before[name])
            changed.append(f"{name}: {_difference(before[name], after)}")
    return changed


def _difference(before, after):
    if not isinstance(before, dict):
        return f"{before!r} became {after!r}"
    # Names only: the values of environment variables stay out of any log.
    keys = before.keys() | after.keys()
    return ", ".join(sorted(k for k in keys if before.get(k) != after.get(k)))


def pytest_collection_finish():
    # What was imported stays: no collection of garbage need go through it.
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def hygiene():
    """Starts each test from one seed; fails it if it leaves a setting changed.

    A test that means to change a setting puts it back itself (`monkeypatch`,
    `try`/`finally`, a fixture). What it forgets is put back here all the same,
    so that one careless test gives one failure.
    """
    keras.utils.set_random_seed(SEED)
    # What one test measured must not decide how another runs.
    remembered = pathlib.Path(os.environ["FASTKERAS_CACHE_DIR"], "choices.json")
    remembered.unlink(missing_ok=True)
    before = read_globals()
    yield
    # Read first: `clear_session` itself resets the dtype policy.
    changed = restore_globals(before)
    # Collecting garbage here would cost more than most tests do.
    keras.backend.clear_session(free_memory=False)
    still = [
        name for name, value in read_globals().items() if value != before[name]
    ]
    assert not still, f"could not be put back: {still}"
    assert not changed, "left changed by this test: " + "; ".join(changed)


@pytest.fixture
def no_trials(monkeypatch):
    """No tier is tried beside the first, however fast this machine is.

    For tests that count traces or launches: whether the pilot tries another
    tier in a short training is a matter of the machine's mood.
    """
    monkeypatch.setattr("fastkeras.engine._pilot.FREE", -math.inf)


@pytest.fixture(scope="session")
def mirrored():
    """A MirroredStrategy over the two logical CPU devices.

    One for all tests: a second one in a process begins to number its
    collective operations anew, and they clash with those of the first.
    """
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
