"""The main job as a user runs it, and what it compares, checked."""

import gzip
import os
import pathlib
import re
import subprocess
import sys

import keras
import numpy as np
import pytest

from fastkeras.measure import ManualClock
from recipes import quickstart

SCRIPT = pathlib.Path(quickstart.__file__)
EPOCHS = quickstart.WARMUP + 3


def run(folder, *arguments):
    """Runs the script from another folder and returns what it printed."""
    # The progress bar and the table hold characters outside ASCII.
    env = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        cwd=folder,
        env=env,
        capture_output=True,
        encoding="utf-8",
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def check_table(text, timed):
    """The table is whole, and its two accuracies are the same."""
    rows = re.findall(
        r"^(keras\.Model|fastkeras\.FastModel) +[\d.]+ m?s \(±[\d.]+, n=(\d+)\)"
        r" +([\d.]+) +([\d.]+)%$",
        text,
        re.MULTILINE,
    )
    assert [(name, n) for name, n, _, _ in rows] == [
        ("keras.Model", str(timed)),
        ("fastkeras.FastModel", str(timed)),
    ]
    (_, _, loss, accuracy), (_, _, our_loss, our_accuracy) = rows
    assert float(our_loss) == pytest.approx(float(loss), abs=2e-4)
    assert float(our_accuracy) == pytest.approx(float(accuracy), abs=0.5)
    assert re.search(rf"^ratio .*: [\d.]+× \(±.*n={timed}\)$", text, re.M)
    return float(accuracy)


def test_the_script_prints_its_table_and_draws_its_picture(tmp_path):
    text = run(tmp_path, f"--epochs={EPOCHS}", "--plot=picture.png")
    assert "/step - accuracy" in text, "Keras's progress bar is missing"
    assert check_table(text, timed=EPOCHS - quickstart.WARMUP) > 85
    picture = (tmp_path / "picture.png").read_bytes()
    assert picture.startswith(b"\x89PNG")


def write_fashion_mnist(folder):
    """Files in the format of Fashion-MNIST, which is not downloaded here."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    garments = rng.integers(0, 200, (10, 28, 28))
    for name, rows in (("train", 2048), ("t10k", 512)):
        labels = rng.integers(0, 10, rows).astype("uint8")
        noise = rng.integers(0, 55, (rows, 28, 28))
        images = (garments[labels] + noise).astype("uint8")
        for kind, header, array in (
            ("labels-idx1", 8, labels),
            ("images-idx3", 16, images),
        ):
            path = folder / f"{name}-{kind}-ubyte.gz"
            path.write_bytes(gzip.compress(bytes(header) + array.tobytes()))


@pytest.mark.slow
def test_the_script_takes_fashion_mnist(tmp_path, monkeypatch):
    write_fashion_mnist(tmp_path / "datasets" / "fashion-mnist")
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    text = run(tmp_path, "--data=fashion_mnist", "--epochs=4", "--verbose=0")
    assert check_table(text, timed=4 - quickstart.WARMUP) > 80


def test_both_sides_start_equal_and_learn_alike():
    data = quickstart.load_digits()
    start = quickstart.compiled_sides(data.train[0].shape[1], ManualClock())
    for ours, keras_own in zip(
        *(side.model.get_weights() for side in start), strict=True
    ):
        np.testing.assert_array_equal(ours, keras_own)
    stock, fast = quickstart.compare(data, EPOCHS)
    assert type(stock.model) is not type(fast.model)
    np.testing.assert_allclose(fast.losses, stock.losses, rtol=1e-4)
    assert fast.accuracy == pytest.approx(stock.accuracy, abs=0.005)
    assert stock.losses[-1] < stock.losses[0] / 2


def test_the_comparison_sees_a_side_that_learns_otherwise(monkeypatch):
    # The control: another seed for one side, and the curves part.
    seeds = iter([quickstart.SEED, quickstart.SEED + 1])
    build = quickstart.build

    def build_otherwise(model_class, columns):
        monkeypatch.setattr(quickstart, "SEED", next(seeds))
        return build(model_class, columns)

    monkeypatch.setattr(quickstart, "build", build_otherwise)
    data = quickstart.load_digits()
    stock, fast = quickstart.compare(data, 1)
    assert not np.allclose(fast.losses, stock.losses, rtol=1e-4)


def test_the_timer_reads_epochs_and_nothing_between_them():
    clock = ManualClock()
    timer = quickstart.EpochTimer(clock)
    for seconds in [1.0, 2.0]:
        clock.advance(10.0)
        timer.on_epoch_begin(0)
        clock.advance(seconds)
        timer.on_epoch_end(0)
    assert timer.seconds == [1.0, 2.0]


def test_the_table_leaves_warm_up_out_and_divides_keras_by_ours():
    def side(name, seconds):
        timer = quickstart.EpochTimer(ManualClock())
        timer.seconds = [99.0] * quickstart.WARMUP + seconds
        return quickstart.Side(name, None, timer, [0.5], 0.9)

    data = quickstart.Data("made", ([0] * 8,), ([0] * 2,), 4, 1)
    text = quickstart.table(
        data, [side("a", [3.0, 3.0]), side("b", [1.0, 1.5])]
    )
    assert "a                     3.00 s (±0.00, n=2)" in text
    assert "ratio of the times, epoch by epoch: 2.50× (±0.25, n=2)" in text
    assert "made: 8 rows to train, 2 to test, batch 4" in text


def test_too_few_epochs_are_refused_before_any_work(capsys):
    with pytest.raises(SystemExit):
        quickstart.main([f"--epochs={quickstart.WARMUP}"])
    assert "`--epochs` must be > 2. Received" in capsys.readouterr().err


def test_keras_is_the_plain_class():
    stock, _ = quickstart.compiled_sides(4, ManualClock())
    assert "fastkeras" not in {
        cls.__module__.partition(".")[0] for cls in type(stock.model).__mro__
    }
    assert isinstance(stock.model, keras.Model)
