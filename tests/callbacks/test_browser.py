"""The pages as a person sees them: opened in a real browser, without a screen.

These tests are collected where Chromium (or Chrome) is installed, since no
other program here runs the scripts of a page; that of TensorBoard's page where
`tensorboard` can be imported as well.
"""

import html
import importlib.util
import re
import shutil
import subprocess
import sys

import keras
import numpy as np
import pytest

import fastkeras as fk
from fastkeras.callbacks import PerfTensorBoard

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "google-chrome"))), None
)
X = np.random.RandomState(0).randn(80, 3).astype("float32")
Y = X[:, :1]

pytestmark = pytest.mark.slow


def network():
    inputs = keras.Input((3,))
    model = fk.FastModel(inputs, keras.layers.Dense(1)(inputs), name="net")
    model.compile("sgd", "mse")
    return model


def seen(address, folder, milliseconds):
    """The text of a page after its scripts have run."""
    flags = "headless no-sandbox disable-gpu disable-quic no-first-run "
    flags += "disable-background-networking disable-component-update "
    flags += "disable-sync dump-dom"
    command = [BROWSER, *(f"--{flag}" for flag in flags.split())]
    command += [
        f"--user-data-dir={folder / 'profile'}",
        "--window-size=1600,8000",
        f"--virtual-time-budget={milliseconds}",
        address,
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=True
    )
    body = re.sub(r"(?s)<(style|script).*?</\1>", " ", done.stdout)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", body)).split())


def check_profile_page(tmp_path):
    found = fk.measure.profile(network(), (X, Y), steps=8)
    page = tmp_path / "profile.html"
    found.save_html(page)
    text = seen(page.as_uri(), tmp_path, 1000)
    milliseconds = f"{found['split']['compute'] * 1e3:.3f}"
    share = f"{found.shares['compute']:.1%}"
    # Its spread stands between them.
    assert re.search(rf"compute {milliseconds} [\d.]+ {share} ", text)
    assert found["ops"][0]["kind"] in text
    # The same check where the figures are gone.
    figures = re.sub(r"\d", "?", page.read_text())
    page.write_text(figures)
    text = seen(page.as_uri(), tmp_path, 1000)
    assert milliseconds not in text and share not in text


def check_tensorboard_page(tmp_path):
    board = PerfTensorBoard(tmp_path / "logs", monitors=[])
    history = network().fit(X, Y, 4, epochs=3, verbose=0, callbacks=[board])
    loss = history.history["loss"][-1]
    with serving(tmp_path / "logs") as address:
        text = seen(f"{address}/#timeseries", tmp_path, 20000)
    # Run, smoothed value, value, batches seen.
    (value,) = re.findall(r"/loss .*? Relative perf \S+ (\S+) 60 ", text)
    assert float(value) == pytest.approx(loss, rel=1e-3)
    with serving(tmp_path / "none") as address:
        text = seen(f"{address}/#timeseries", tmp_path, 5000)
    assert "Relative perf" not in text


class serving:
    """TensorBoard on a free port of this machine, while it is open."""

    def __init__(self, folder):
        folder.mkdir(exist_ok=True)
        self._command = [sys.executable, "-m", "tensorboard.main"]
        self._command += ["--logdir", str(folder), "--port", "0"]
        self._command += ["--host", "localhost", "--load_fast", "false"]

    def __enter__(self):
        self._process = subprocess.Popen(
            self._command, stderr=subprocess.PIPE, text=True
        )
        for line in self._process.stderr:
            found = re.search(r"http://localhost:\d+", line)
            if found:
                return found.group()
        raise RuntimeError("TensorBoard did not start")

    def __exit__(self, *error):
        self._process.terminate()
        self._process.communicate()


if BROWSER:
    test_profile_page = check_profile_page
if BROWSER and importlib.util.find_spec("tensorboard"):
    test_tensorboard_page = check_tensorboard_page
