"""Sets the environment of every test and brings in their hygiene."""

import os
import tempfile

import pytest

# All must stand before TensorFlow and Keras are first imported.
os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["FASTKERAS_CACHE_DIR"] = tempfile.mkdtemp()


def pytest_configure(config):
    # A process that only hands out tests to others (`-n`) needs no TensorFlow:
    # they start when it has imported.
    if not getattr(config.option, "numprocesses", None):
        config.pluginmanager.import_plugin("tests.hygiene")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Gives each process whole files, but for the last: fixtures are made once.

    Which is `--dist worksteal`; unlike it, this is no error without `-n`.
    """
    from xdist.scheduler import WorkStealingScheduling

    if config.option.dist == "load":
        return WorkStealingScheduling(config, log)
