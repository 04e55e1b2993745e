"""Sets the environment of every test and brings in their hygiene."""

import os
import tempfile

# All must stand before TensorFlow and Keras are first imported.
os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["FASTKERAS_CACHE_DIR"] = tempfile.mkdtemp()


def pytest_configure(config):
    # A process that only hands out tests to others (`-n`) needs no TensorFlow:
    # they start when it has imported.
    if not getattr(config.option, "numprocesses", None):
        config.pluginmanager.import_plugin("tests.hygiene")
