"""What a run was made on, for reports that are compared."""

import os
import platform

import keras
import tensorflow as tf


def machine():
    """Processor, cores, GPUs and system, as a dict."""
    names = []
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            names = [x for x in lines if x.startswith("model name")]
    except FileNotFoundError:
        pass
    if names:
        name = names[0].split(":", 1)[1].strip()
    else:
        # This one may start a process.
        name = platform.processor() or platform.machine()
    gpus = tf.config.list_physical_devices("GPU")
    return {
        "processor": name,
        "cores": os.cpu_count(),
        "gpus": len(gpus),
        "system": platform.platform(terse=True),
    }


def versions():
    """Versions of Python, TensorFlow and Keras, as a dict."""
    return {
        "python": platform.python_version(),
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
    }
