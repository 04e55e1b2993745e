"""What PerfTensorBoard writes, read back from its files."""

import copy
import pathlib
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import empty_pb2
from google.protobuf import struct_pb2
from google.protobuf import unknown_fields
from tensorflow.tsl.profiler.protobuf import xplane_pb2

import fastkeras as fk
from fastkeras._lib.warn import FastKerasWarning
from fastkeras.callbacks import HealthMonitor
from fastkeras.callbacks import PerfTensorBoard
from fastkeras.callbacks import StepTimer

X = np.random.RandomState(0).randn(80, 3).astype("float32")
Y = X[:, :1]


def network(base=fk.FastModel, **options):
    inputs = keras.Input((3,))
    model = base(inputs, keras.layers.Dense(1, name="head")(inputs))
    model.compile("sgd", "mse", **options)
    return model


def train(model, board, epochs=3, **options):
    return model.fit(
        X, Y, 4, epochs=epochs, verbose=0, callbacks=[board], **options
    )


def events(folder, plugin="scalars"):
    """Dict of tag to list of (step, value) of a plugin."""
    found, plugins = {}, {}
    for file in sorted(pathlib.Path(folder, "perf").glob("events*")):
        for record in tf.data.TFRecordDataset(str(file)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            for value in event.summary.value:
                data = value.metadata.plugin_data
                # Only the first event of a tag tells its plugin.
                plugins.setdefault(value.tag, data)
                if plugins[value.tag].plugin_name == plugin:
                    content = tf.make_ndarray(value.tensor).item()
                    found.setdefault(value.tag, []).append(
                        (event.step, content)
                    )
    return found, plugins


CASES = [
    (keras.Model, 1),
    (keras.Model, 4),
    (fk.FastModel, 1),
    (fk.FastModel, 4),
]


@pytest.mark.parametrize(("base", "steps"), CASES)
def test_the_axis_is_the_batches_seen(base, steps, tmp_path):
    model = network(base, steps_per_execution=steps)
    board = PerfTensorBoard(tmp_path, every=4)
    history = train(model, board, validation_data=(X, Y)).history
    scalars, _ = events(tmp_path)
    for name in ("loss", "val_loss"):
        assert [s for s, _ in scalars[f"epoch/{name}"]] == [20, 40, 60]
        np.testing.assert_allclose(
            [v for _, v in scalars[f"epoch/{name}"]], history[name], rtol=1e-5
        )
    points = [s for s, _ in scalars["batch/loss"]]
    assert points == sorted(set(points)) and points[-1] <= 60
    assert all(b - a >= 4 for a, b in zip(points, points[1:], strict=False))
    if base is keras.Model:
        assert points == list(range(4, 61, 4))
        ((_, text),) = events(tmp_path, "text")[0]["receipt"]
        assert f"steps per launch: {steps}" in text.decode()
        assert "a keras.Model keeps no record" in text.decode()
    # Steps a second, against the seconds of the same epoch.
    pairs = zip(
        scalars["epoch/steps_per_second"],
        scalars["epoch/seconds"],
        strict=True,
    )
    for (_, rate), (_, seconds) in pairs:
        assert rate * seconds == pytest.approx(20, rel=0.01)
    assert len(scalars["MemoryMonitor/host_mb"]) == 3
    assert scalars["RetraceMonitor/retraces"][-1][0] == 60


def test_launches_of_an_epoch_of_unknown_length_are_not_taken_for_full(
    tmp_path,
):
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(4)
    data = data.filter(lambda x, y: True)
    model = network(keras.Model, steps_per_execution=6)
    board = PerfTensorBoard(tmp_path, every=6, monitors=[])
    with warnings.catch_warnings():
        # Keras takes its end for a lack of data.
        warnings.simplefilter("ignore", UserWarning)
        model.fit(data, epochs=2, verbose=0, callbacks=[board])
    scalars, _ = events(tmp_path)
    assert [s for s, _ in scalars["epoch/loss"]] == [20, 40]
    points = [s for s, _ in scalars["batch/loss"]]
    assert points == [6, 12, 18, 26, 32, 38]


@pytest.mark.parametrize(
    "order",
    [
        "b0 e0 b1 e1 b2 e2 b3 e3",
        "b0 b1 e1 e0 b2 b3 e3 e2",
        "b0 e0 b1 b2 e2 e1 b3 e3",
    ],
)
def test_points_are_those_of_launches_told_in_any_order(order, tmp_path):
    """Keras has its hooks at the end of a batch run in several threads."""
    board = PerfTensorBoard(tmp_path, every=2, monitors=[])
    board.set_model(network())
    board.set_params({"steps": 4})
    board.on_train_begin()
    board.on_epoch_begin(0)
    for hook, batch in order.split():
        if hook == "b":
            board.on_train_batch_begin(int(batch))
        else:
            board.on_train_batch_end(int(batch), {"loss": float(batch)})
    board.on_epoch_end(0, {})
    assert board.done == 4
    assert events(tmp_path)[0]["batch/loss"] == [(2, 1.0), (4, 3.0)]


def test_receipt_and_hyperparameters(tmp_path):
    model = network()
    board = PerfTensorBoard(
        tmp_path,
        hparams={"rate": 0.25, "perf": "auto" * 50, "jit": True},
        monitors=[HealthMonitor(every=1)],
    )
    train(model, board)
    texts, plugins = events(tmp_path, "text")
    ((step, receipt),) = texts["receipt"]
    assert step == 60
    assert "train_step" in receipt.decode() and "traces" in receipt.decode()
    scalars, _ = events(tmp_path)
    assert "HealthMonitor/gradient_norm/head" in scalars
    data = plugins["_hparams_/session_start_info"]
    assert data.plugin_name == "hparams"
    assert hparams_of(data.content) == {
        "rate": {"number_value": 0.25},
        "perf": {"string_value": "auto" * 50},
        "jit": {"bool_value": True},
    }


def hparams_of(content):
    """Reads the map with the message class that TensorBoard uses in it."""
    session = field(field(content, 3)[0], 1)
    return {
        field(entry, 1)[0].decode(): {
            key.name: value
            for key, value in struct_pb2.Value.FromString(
                field(entry, 2)[0]
            ).ListFields()
        }
        for entry in session
    }


def field(content, number):
    """The contents of a field, found by Google's own decoder."""
    message = empty_pb2.Empty.FromString(content)
    return [
        f.data
        for f in unknown_fields.UnknownFieldSet(message)
        if f.field_number == number
    ]


@pytest.mark.parametrize(("base", "steps"), CASES[::3])
def test_a_profile_has_a_marker_for_each_launch(base, steps, tmp_path):
    model = network(base, steps_per_execution=steps)
    folder = tmp_path / "a run"
    # With 4 steps a launch it begins and ends inside of one.
    board = PerfTensorBoard(folder, profile=(23, 26), monitors=[])
    with pytest.warns(FastKerasWarning, match="`evaluate` is not profiled"):
        model.evaluate(X, Y, verbose=0, callbacks=[board])
    with pytest.warns(FastKerasWarning) as told:
        train(model, board)
    text = str(told[-1].message)
    assert f"tensorboard --logdir '{folder}/perf'" in text
    (file,) = board.profile_files
    assert file.parts[-4:-2] == ("plugins", "profile")
    expected = range(22, 26) if steps == 1 else (20, 24)
    assert markers(file) == list(expected)
    # The scalars do not depend on it.
    assert "epoch/loss" in events(folder)[0]
    with warnings.catch_warnings():
        warnings.simplefilter("error", FastKerasWarning)
        model.evaluate(X, Y, verbose=0, callbacks=[board])


def markers(file):
    """The step numbers of the markers in a profile."""
    space = xplane_pb2.XSpace.FromString(file.read_bytes())
    found = set()
    for plane in space.planes:
        names = {k: m.name for k, m in plane.stat_metadata.items()}
        for line in plane.lines:
            for event in line.events:
                if plane.event_metadata[event.metadata_id].name != "train":
                    continue
                stats = {names[s.metadata_id]: s for s in event.stats}
                assert "_r" in stats
                found.add(int(stats["step_num"].int64_value))
    return sorted(found)


def test_another_profiler_is_let_alone(tmp_path):
    """Such as that of Keras's TensorBoard callback."""
    tf.profiler.experimental.start(str(tmp_path / "other"))
    try:
        board = PerfTensorBoard(tmp_path, profile=(2, 5), monitors=[])
        with pytest.warns(FastKerasWarning, match="Another profiler is runn"):
            train(network(), board, epochs=1)
    finally:
        tf.profiler.experimental.stop(save=False)
    assert board.profile_files == []
    assert "epoch/loss" in events(tmp_path)[0]


def test_a_profile_that_is_not_reached_is_told(tmp_path):
    board = PerfTensorBoard(tmp_path, profile=(100, 110), monitors=[])
    with pytest.warns(FastKerasWarning, match="Batch 100 was not reached"):
        train(network(), board, epochs=1)


@pytest.mark.parametrize(
    "perf", ["skip_non_finite", pytest.param(None, marks=pytest.mark.slow)]
)
def test_a_second_training_goes_to_the_same_run(perf, tmp_path):
    board = PerfTensorBoard(tmp_path, monitors=[StepTimer(2, window=4)])
    rows = X.copy()
    rows[5] = np.nan if perf == "skip_non_finite" else 0
    halves = keras.optimizers.schedules.ExponentialDecay(0.1, 20, 0.5)
    sgd = keras.optimizers.SGD(halves)
    if perf is None:
        sgd = keras.optimizers.LossScaleOptimizer(sgd, initial_scale=2.0)
    model = network()
    model.compile(sgd, "mse", perf=perf)
    for epochs in (2, 1):
        model.fit(rows, Y, 4, epochs, verbose=0, callbacks=[board])
    scalars, _ = events(tmp_path)
    # It goes on where the first ended, whatever was left out of it.
    assert sorted(s for s, _ in scalars["epoch/loss"]) == [20, 40, 60]
    left_out = 3 if perf == "skip_non_finite" else 0
    assert sgd.iterations == 60 - left_out
    rates = [v for _, v in sorted(scalars["epoch/learning_rate"])]
    assert rates == pytest.approx([0.05, 0.025, 0.0125], rel=0.15)
    # A copy, and a model that was loaded, know what the optimizer knows.
    board = copy.deepcopy(board)
    board.folder = str(tmp_path / "loaded" / "perf")
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    train(loaded, board, epochs=1)
    axis = [s for s, _ in events(tmp_path / "loaded")[0]["epoch/loss"]]
    assert axis == [80 - left_out]


def test_arguments_are_checked_and_the_callback_copies(tmp_path):
    for wrong in (5, (3,), (7, 2)):
        with pytest.raises(ValueError, match="`profile` must"):
            PerfTensorBoard(tmp_path, profile=wrong)
    with pytest.raises(TypeError, match="must be an integer"):
        PerfTensorBoard(tmp_path, profile=("0", "3"))
    with pytest.raises(ValueError, match="`every` must be >= 1"):
        PerfTensorBoard(tmp_path, every=0)
    twin = copy.deepcopy(PerfTensorBoard(tmp_path, profile=(1, 2)))
    assert twin.profile == (1, 2) and len(twin.monitors) == 3


class Interrupts(keras.callbacks.Callback):
    per_launch = True

    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1:
            raise KeyboardInterrupt


@pytest.mark.parametrize("base", [keras.Model, fk.FastModel])
def test_an_interrupt_leaves_files_and_no_profiler(base, tmp_path):
    board = PerfTensorBoard(tmp_path, profile=(21, 1000), monitors=[])
    later = PerfTensorBoard(tmp_path / "b", profile=(1, 2), monitors=[])
    with pytest.warns(FastKerasWarning, match="has no page for it"):
        with pytest.raises(KeyboardInterrupt):
            network(base).fit(
                X, Y, 4, 9, verbose=0, callbacks=[board, Interrupts()]
            )
        # One that still ran would not let this one start.
        train(network(base), later, epochs=1)
    board.close()
    assert len(board.profile_files) == len(later.profile_files) == 1
    assert [s for s, _ in events(tmp_path)[0]["epoch/loss"]] == [20, 40]


def test_a_folder_that_can_not_be_written_to_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    model = network()
    for folder in (tmp_path / "file", "unknown://bucket/logs"):
        with pytest.raises(ValueError, match="`log_dir` must be a folder"):
            train(model, PerfTensorBoard(folder))
    assert model.optimizer.iterations.numpy() == 0


def test_names_and_values_of_any_kind_are_written(tmp_path):
    class Logs(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            logs["a b/ü%"] = np.nan
            logs["per class"] = np.array([1.0, 2.0])
            logs["nested"] = {"a": {"b": tf.constant(3.0, tf.bfloat16)}}
            logs["phase"], logs["best"] = "warm-up", None

    board = PerfTensorBoard(tmp_path, monitors=[])
    left_out = "No numbers, and so left out: epoch/phase, epoch/best"
    with pytest.warns(FastKerasWarning, match=left_out) as told:
        network().fit(X, Y, 4, 2, verbose=0, callbacks=[Logs(), board])
    assert len(told) == 1
    scalars, _ = events(tmp_path)
    assert np.isnan(scalars["epoch/a b/ü%"][0][1])
    assert scalars["epoch/per class/1"] == [(20, 2.0), (40, 2.0)]
    assert scalars["epoch/nested/a/b"] == [(20, 3.0), (40, 3.0)]
    for wrong in ({"rates": [1, 2]}, {1: 2}):
        with pytest.raises(TypeError, match="Each of `hparams` must be"):
            PerfTensorBoard(tmp_path, hparams=wrong)
    for wrong in (["rate"], []):
        with pytest.raises(TypeError, match="`hparams` must be a dict"):
            PerfTensorBoard(tmp_path, hparams=wrong)
    for wrong in (StepTimer(), [keras.callbacks.History()], "all"):
        with pytest.raises(TypeError, match="`monitors` must be a list of"):
            PerfTensorBoard(tmp_path, monitors=wrong)
    for wrong in (None, 5, b"logs"):
        with pytest.raises(TypeError, match="`log_dir` must be a string or"):
            PerfTensorBoard(wrong)
