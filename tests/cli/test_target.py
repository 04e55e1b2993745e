"""TARGET: what is loaded, what is made up, and the errors in one line."""

import json
import pathlib
import sys

import keras
import numpy as np
import pytest

import fastkeras as fk
from fastkeras import cli
from fastkeras.cli import _target

SOURCE = """
import keras
import numpy as np
import width

class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.head = keras.layers.Dense(width.WIDTH)

    def call(self, x):
        return self.head(x)

def make():
    model = Net()
    model.compile("sgd", "mse")
    return model, (np.ones((8, 4)), np.ones((8, width.WIDTH)))

def bare():
    return Net(), None

def alone():
    return Net()

def sized(rows, width=2):
    return Net(), rows

def unequal():
    return make()[0], (np.ones((8, 4)), np.ones((7, 3)))

def nothing():
    return make()[0], None

def leaves():
    raise SystemExit(3)

def talks():
    print("something")
    return make()
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.path", [*sys.path])
    (tmp_path / "width.py").write_text("WIDTH = 3\n")
    path = tmp_path / "job.py"
    path.write_text(SOURCE)
    return path


def test_a_function_gives_its_model_and_data(file):
    model, (x, y) = _target.load(f"{file}:make")
    assert model.fit(x, y, verbose=0).history["loss"]
    assert y.shape == (8, 3)


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (":mke", "Did you mean 'make'?"),
        (":bare", "must be a compiled keras.Model"),
        (":alone", "must return a tuple of model and data"),
        (":sized", "takes no argument. Received: one that takes rows."),
        (":unequal", "Received: arrays of [7, 8] rows"),
        (":nothing", "Received: None"),
        (":leaves", "load without an error. Received: SystemExit: 3 in"),
        ("", "must be file.py:function or a .keras file"),
    ],
)
def test_a_wrong_target_says_what_is_wrong(file, end, words):
    with pytest.raises(cli.UsageError, match="Received: ") as caught:
        _target.load(f"{file}{end}")
    assert words in str(caught.value)


def test_with_json_on_stdout_there_is_nothing_else(file, capsys):
    command = ["report", f"{file}:talks", "--epochs", "1"]
    assert cli.main([*command, "--json", "-"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["model"]["parameters"] == 15
    assert "something" in err and "train_step" in err
    # The control: without it, stdout holds them.
    assert cli.main(["report", f"{file}:talks", "--epochs", "1"]) == 0
    out, err = capsys.readouterr()
    assert "something" in out and "something" not in err


def test_files_of_all_kinds_are_read_and_of_one_kind_compared(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    fk.measure.MemoryPlan(8, 40, 40, 0, 0, {"a": 60}, 8, 120).save("m.json")
    fk.measure.Receipt({"settings": {"feed": "stream"}}).save("r.json")
    pathlib.Path("other.json").write_text('{"name": "x"}')
    assert cli.main(["report", "m.json"]) == 0
    assert "peak: 168" in capsys.readouterr().out
    assert cli.main(["report", "m.json", "--json", "copy.json"]) == 0
    copy, file = pathlib.Path("copy.json"), pathlib.Path("m.json")
    assert json.loads(copy.read_text()) == json.loads(file.read_text())
    for arguments, words in (
        (["m.json", "--against", "r.json"], "must be of one kind"),
        (["other.json"], "must hold a receipt, a profile or another"),
        (["none.py:make", "--against", "m.json"], "which holds a memory plan"),
        (["none.py:make", "--json", "."], "`--json` must be a file"),
    ):
        assert cli.main(["report", *arguments]) == 2
        assert words in capsys.readouterr().err.splitlines()[-1]


def test_alone_it_tells_its_commands(capsys):
    assert cli.main([]) == 0
    assert "profile" in capsys.readouterr().out
    with pytest.raises(SystemExit) as end:
        cli.main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"fastkeras {fk.__version__}\n"


def test_a_missing_file_is_named():
    with pytest.raises(cli.UsageError, match="must exist.*'no.keras'"):
        _target.load("no.keras")


def two_inputs():
    ids = keras.Input((None,), dtype="int32", name="ids")
    row = keras.Input((3,), name="row")
    words = keras.layers.Embedding(11, 4)(ids)
    words = keras.layers.GlobalAveragePooling1D()(words)
    joined = keras.layers.Concatenate()([words, row])
    outputs = {
        "kind": keras.layers.Dense(5, activation="softmax", name="kind")(
            joined
        ),
        "one": keras.layers.Dense(1, name="one")(joined),
    }
    model = fk.FastModel({"ids": ids, "row": row}, outputs)
    model.compile(
        "sgd",
        {"kind": "sparse_categorical_crossentropy", "one": "mse"},
        perf=None,
    )
    return model


def test_a_keras_file_is_given_data_of_its_specs(tmp_path):
    path = tmp_path / "model.keras"
    two_inputs().save(path)
    model, (x, y) = _target.load(str(path))
    assert isinstance(model, fk.FastModel) and model.perf.is_keras
    assert x["ids"].dtype == np.int32 and x["ids"].max() == 10
    assert y["kind"].max() == 4 and y["kind"].ndim == 1
    assert set(y["one"].ravel()) == {0, 1}
    assert np.isfinite(model.fit(x, y, verbose=0).history["loss"])


def test_a_loss_that_takes_rows_of_ones_and_zeros_gets_them():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    model.compile("sgd", keras.losses.CategoricalCrossentropy())
    _, y = _target.synthetic(model)
    assert y.shape == (1024, 3) and (y.sum(1) == 1).all()


def test_words_and_open_sizes_are_made_up_as_the_model_needs_them():
    kind = keras.Input((), dtype="string")
    known = keras.layers.StringLookup(vocabulary=["cat", "dog"])(kind)
    seen = keras.Input((None, 3))
    steps = keras.layers.Conv1D(2, 3, strides=2)(seen)
    model = keras.Model([kind, seen], [known, steps])
    model.compile("sgd", [None, "mse"])
    x, y = _target.synthetic(model)
    assert set(x[0].numpy()) == {b"cat", b"dog"}
    # A stride of two over 32 steps, whose length the symbol does not know.
    assert y[1].shape == model.predict(x, verbose=0)[1].shape == (1024, 15, 2)


def test_a_subclass_that_is_saved_without_inputs_is_refused():
    class Net(keras.Model):
        def call(self, x):
            return x

    with pytest.raises(cli.UsageError, match="knows its inputs"):
        _target.synthetic(Net())
