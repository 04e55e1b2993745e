"""TensorBoard summaries written without the `tensorboard` package.

`tf.summary.scalar` needs that package; the files themselves do not: a tensor,
and metadata that name the plugin it is for.
"""

import numbers
import os
import struct

import numpy as np
import tensorflow as tf

from fastkeras._lib import checks


def check_folder(folder):
    """Refuses a folder that can't be written to, before any step is run."""
    try:
        tf.io.gfile.makedirs(folder)
        probe = os.path.join(folder, "probe")
        with tf.io.gfile.GFile(probe, "w") as file:
            # The file is made by the first write to it.
            file.write("")
        tf.io.gfile.remove(probe)
    except tf.errors.OpError as error:
        raise ValueError(
            checks.message(
                "`log_dir` must be a folder that can be written to",
                f"{folder}: {error.message}",
                "Give another one.",
            )
        ) from error


def check_hparams(values):
    """Refuses what TensorBoard has no type for."""
    if not isinstance(values, dict):
        raise TypeError(
            checks.message(
                "`hparams` must be a dict of names to values",
                f"hparams={values!r}",
                'Give a dict, such as {"rate": 0.01}.',
            )
        )
    for name, value in values.items():
        if not isinstance(name, str) or not isinstance(
            value, (bool, np.bool_, str, numbers.Real)
        ):
            raise TypeError(
                checks.message(
                    "Each of `hparams` must be a name, and a number, a bool "
                    "or a string",
                    f"{name!r}: {value!r}",
                    f"Give hparams={{{str(name)!r}: str(...)}}.",
                )
            )


def scalars(values, step):
    """Writes numbers, all in one operation.

    Args:
        values: Dict of name to number, or to an array or a dict of them: each
            of its elements has a name of its own, `name/0`.
        step: Integer, the place on the horizontal axis.

    Returns:
        List of the names of what holds no number.
    """
    metadata, left_out = _metadata("scalars"), []
    summary = tf.compat.v1.Summary(
        value=[
            tf.compat.v1.Summary.Value(
                tag=name,
                metadata=metadata,
                tensor=tf.make_tensor_proto(value, tf.float32),
            )
            for name, value in _numbers(values, left_out)
        ]
    )
    tf.summary.experimental.write_raw_pb(summary.SerializeToString(), step)
    return left_out


def _numbers(values, left_out):
    """Yields the name and the value of each number; notes what is none."""
    for name, value in values.items():
        if isinstance(value, dict):
            parts = {f"{name}/{k}": v for k, v in value.items()}
            yield from _numbers(parts, left_out)
            continue
        if isinstance(value, tf.Tensor):
            # NumPy makes no array of a scalar in bfloat16.
            value = value.numpy()
        array = np.asarray(value)
        if not np.can_cast(array.dtype, "float32", "same_kind"):
            left_out.append(name)
            continue
        for index in np.ndindex(array.shape):
            yield "/".join([name, *map(str, index)]), array[index]


def text(name, value, step):
    """Writes a text, which is shown as Markdown."""
    _write("text", name, tf.constant(value), step)


def hparams(values, start):
    """Writes the hyperparameters of a run.

    Args:
        values: Dict of name to number, bool or string.
        start: Float, seconds since the epoch.
    """
    # `HParamsPluginData` of TensorBoard, whose field 3 is the start of a
    # session: field 1 is a map to `google.protobuf.Value`, 5 is the time.
    session = b"".join(
        _part(1, _part(1, name.encode()) + _part(2, _value(value)))
        for name, value in values.items()
    )
    content = _part(3, session + _double(5, start))
    name = "_hparams_/session_start_info"
    _write("hparams", name, tf.constant(0.0), 0, content)


def _write(plugin, name, tensor, step, content=b""):
    metadata = _metadata(plugin, content)
    tf.summary.write(name, tensor, step=step, metadata=metadata)


def _metadata(plugin, content=b""):
    return tf.compat.v1.SummaryMetadata(
        plugin_data=tf.compat.v1.SummaryMetadata.PluginData(
            plugin_name=plugin, content=content
        ),
        # The constants of `summary.proto`: 1 for a scalar, 2 for a tensor.
        data_class=1 if plugin == "scalars" else 2,
    )


# The wire format of protocol buffers, as far as it is needed.


def _value(value):
    if isinstance(value, (bool, np.bool_)):
        return bytes([4 << 3, value])
    if isinstance(value, str):
        return _part(3, value.encode())
    return _double(2, value)


def _double(field, value):
    return bytes([field << 3 | 1]) + struct.pack("<d", value)


def _part(field, content):
    return bytes([field << 3 | 2]) + _varint(len(content)) + content


def _varint(number):
    out = []
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])
