"""Cut at random places and taken up, a training ends as one left alone."""

import contextlib
import itertools
import json
import os
import random
import signal

import keras
import numpy as np
import pytest
import tensorflow as tf

import fastkeras as fk
from fastkeras._lib.warn import FastKerasWarning
from fastkeras.callbacks import Resume
from fastkeras.callbacks import resume as resume_module
from fastkeras.callbacks._resume_files import Files
from fastkeras.callbacks._resume_files import decode
from fastkeras.callbacks._resume_files import encode

EPOCHS, ROWS, BATCH = 3, 40, 4
BATCHES = 10
# One tier: what a run is compared with must be run alike, bit for bit.
ONE = fk.perf.Execution(steps_per_launch=1)


class Cut(BaseException):
    """Ends a training as a signal would: nothing of ours expects it."""


class Killer(keras.callbacks.Callback):
    """Raises at one of the calls of its hooks; keeps numbers of its own."""

    def __init__(self, at=None):
        super().__init__()
        self.at = at
        self.losses = []
        self.best = (None, np.inf)

    def set_model(self, model):
        super().set_model(model)
        self.calls = itertools.count()

    def on_train_batch_end(self, batch, logs=None):
        self.count()

    def on_test_begin(self, logs=None):
        self.count()

    def on_epoch_begin(self, epoch, logs=None):
        self.count()

    def on_epoch_end(self, epoch, logs=None):
        self.losses.append(logs["loss"])
        self.best = min(self.best, (epoch, logs["loss"]), key=lambda p: p[1])
        self.count()

    def count(self):
        if next(self.calls) == self.at:
            raise Cut


def rows():
    draw = np.random.default_rng(0)
    x = draw.normal(size=(ROWS, 3)).astype("float32")
    return x, (2 * x[:, :1] - x[:, 1:2] + 1).astype("float32")


class Shuffled(keras.utils.PyDataset):
    """Batches whose order its owner draws anew after each epoch."""

    def __init__(self):
        super().__init__()
        self.order = np.random.permutation(BATCHES)

    def __len__(self):
        return BATCHES

    def __getitem__(self, k):
        part = slice(self.order[k] * BATCH, (self.order[k] + 1) * BATCH)
        return tuple(a[part] for a in rows())

    def on_epoch_end(self):
        self.order = np.random.permutation(self.order)


def pipeline():
    data = tf.data.Dataset.from_tensor_slices(rows())
    options = tf.data.Options()
    # Its thread takes long to end.
    options.autotune.enabled = False
    return data.shuffle(20).batch(BATCH).prefetch(2).with_options(options)


def noisy():
    """A pipeline that TensorFlow can't save: it draws random numbers."""
    return pipeline().map(
        lambda x, y: (x + tf.random.normal(tf.shape(x), seed=3), y)
    )


def generated():
    x, y = rows()
    while True:
        for k in range(BATCHES):
            part = slice(k * BATCH, (k + 1) * BATCH)
            yield x[part], y[part]


def net(*layers):
    inputs = keras.Input((3,))
    h = keras.layers.Dense(4, "relu")(inputs)
    for layer in layers or [keras.layers.Dropout(0.3)]:
        h = layer(h)
    return fk.FastModel(inputs, keras.layers.Dense(1)(h))


def normalised():
    return net(keras.layers.BatchNormalization(), keras.layers.Dropout(0.3))


class Own(fk.FastModel):
    """A model whose variables are made in its first call."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(4, "tanh")
        self.drop = keras.layers.Dropout(0.2)
        self.head = keras.layers.Dense(1)

    def call(self, x, training=False):
        return self.head(self.drop(self.dense(x), training=training))


def fitted(
    resume,
    killer=None,
    make=net,
    data=rows,
    perf=(),
    optimizer=lambda: keras.optimizers.Adam(0.03),
    extra=lambda: [],
    scope=contextlib.nullcontext,
    **arguments,
):
    """What the command of a user does; returns weights and history."""
    keras.utils.set_random_seed(7)
    keras.backend.clear_session(free_memory=False)
    with scope():
        model = make()
        model.compile(
            optimizer(),
            "mse",
            metrics=["mae"],
            jit_compile=False,
            perf=[*perf, ONE] if isinstance(perf, (list, tuple)) else perf,
        )
    data = data()
    if data is not None and not isinstance(data, tuple):
        data = (data,)
    history = model.fit(
        *data,
        callbacks=[c for c in (*extra(), killer, resume) if c is not None],
        verbose=0,
        **{"epochs": EPOCHS, **arguments},
    )
    return model.get_weights(), history.history, model


def check_equal(one, two):
    """Bit for bit: weights, optimizer, history."""
    for a, b in zip(one[0], two[0], strict=True):
        np.testing.assert_array_equal(a, b)
    pairs = zip(
        one[2].optimizer.variables, two[2].optimizer.variables, strict=True
    )
    for a, b in pairs:
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    assert one[1] == two[1]


def schedulers():
    return [
        keras.callbacks.LearningRateScheduler(lambda epoch, lr: lr * 0.9),
        keras.callbacks.ReduceLROnPlateau(patience=1, monitor="loss"),
        keras.callbacks.EarlyStopping(
            patience=1, monitor="val_mae", restore_best_weights=True
        ),
    ]


def averaged():
    return keras.optimizers.AdamW(0.03, use_ema=True)


CASES = {
    "resident": {"batch_size": BATCH, "make": normalised},
    "own-class": {"batch_size": 6, "make": Own, "perf": ["clip_by_norm"]},
    "windows": {
        "batch_size": BATCH,
        "perf": [
            fk.perf.Accumulate(3),
            fk.perf.ClipByGlobalNorm(0.5),
        ],
    },
    "scaled": {
        "batch_size": BATCH,
        "perf": [fk.perf.MixedPrecision(growth_steps=5)],
    },
    "averaged": {
        "batch_size": BATCH,
        "perf": [fk.perf.Microbatch(2), fk.perf.SkipNonFinite()],
        "optimizer": averaged,
        "shuffle": False,
    },
    "scheduled": {
        "batch_size": BATCH,
        "extra": schedulers,
        "validation_data": rows(),
        "epochs": 5,
    },
    "short-epochs": {"batch_size": BATCH, "steps_per_epoch": 7},
    "pipeline": {"data": pipeline},
    "repeated": {"data": lambda: pipeline().repeat(), "steps_per_epoch": 7},
    "unsaved": {"data": noisy},
    "py-dataset": {"data": Shuffled},
    "generator": {"data": generated, "steps_per_epoch": 9},
}


#: Cases that are cut again after they were taken up.
TWICE = {"resident", "windows", "pipeline"}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore:The position in the data")
def test_a_training_that_was_cut_ends_as_one_that_was_not(name, tmp_path):
    check_cuts(name, tmp_path, 1 + (name in TWICE), **CASES[name])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The position in the data")
@pytest.mark.parametrize("perf", [(), (fk.perf.Accumulate(2),)])
def test_under_a_strategy(mirrored, perf, tmp_path):
    scope = mirrored.scope
    check_cuts("m", tmp_path, data=pipeline, scope=scope, perf=perf)


@pytest.mark.slow
def test_on_one_device(tmp_path):
    one = tf.distribute.OneDeviceStrategy("CPU:1")
    check_cuts("one", tmp_path, batch_size=BATCH, scope=one.scope)


def check_cuts(seed, folder, cuts=1, every=None, calls=(5, 12), **arguments):
    """Cuts a training, and compares its end with that of a whole one."""
    whole = Killer()
    expected = fitted(None, whole, **arguments)
    draw = random.Random(seed)
    every = every or {"every_steps": draw.randint(1, 4)}
    for _ in range(cuts):
        killer = Killer(draw.randint(*calls))
        with pytest.raises(Cut):
            fitted(Resume(folder, **every), killer, **arguments)
    last, resume = Killer(), Resume(folder, **every)
    actual = fitted(resume, last, **arguments)
    assert resume.resumed > (0, 0)
    check_equal(expected, actual)
    assert last.losses == whole.losses
    assert last.best == whole.best


# A model that is made and trained in no time.


def line():
    inputs = keras.Input((3,))
    return fk.FastModel(inputs, keras.layers.Dense(1)(inputs))


def wide():
    inputs = keras.Input((3,))
    h = keras.layers.Dense(2)(inputs)
    return fk.FastModel(inputs, keras.layers.Dense(1)(h))


def quick(resume, killer=None, **arguments):
    return fitted(
        resume,
        killer,
        **{"make": line, "batch_size": 10, "epochs": 2, **arguments},
    )


def names(folder):
    return sorted(p.name for p in folder.iterdir())


CONTROL = {
    "batch_size": BATCH,
    "perf": "auto",
    "extra": schedulers,
    "validation_data": rows(),
}
BROKEN = {
    "variables": lambda all: [[a * 0 for a in arrays] for arrays in all],
    "feed": lambda state: {**state, "next": 0},
    "random": lambda state: {**state, "operations": (3, (1,) * 625, None)},
    "callbacks": lambda states: [],
}


@pytest.fixture(scope="module")
def cut(tmp_path_factory):
    """A whole training, and the state of one that was cut."""
    folder = tmp_path_factory.mktemp("cut")
    expected = fitted(None, **CONTROL)
    with pytest.raises(Cut):
        fitted(Resume(folder, every_steps=1), Killer(18), **CONTROL)
    return expected, Files(folder, 1).load()


@pytest.mark.parametrize("part", BROKEN)
def test_each_part_of_a_state_is_needed(part, cut, tmp_path, monkeypatch):
    """The negative control: with one part broken the ends differ."""
    expected, state = cut
    state = {**state, part: BROKEN[part](state[part])}
    monkeypatch.setattr(Files, "load", lambda files: state)
    actual = fitted(Resume(tmp_path), **CONTROL)
    with pytest.raises(AssertionError):
        check_equal(expected, actual)


def test_a_tier_that_was_chosen_is_taken_up(cut, tmp_path, monkeypatch):
    expected, state = cut
    assert state["pilots"].keys() == {"resident"}
    tried = ["graph-loop", "graph-step"]
    state["pilots"] = {"resident": {"tier": "graph-loop", "tried": tried}}
    monkeypatch.setattr(Files, "load", lambda files: state)
    actual = fitted(Resume(tmp_path), **CONTROL)
    names = {e.function for e in actual[2].train_function.ledger.entries}
    assert names == {"train_step (graph-loop)"}
    check_equal(expected, actual)


def test_a_training_that_has_ended_ends_at_once(tmp_path):
    expected = quick(Resume(tmp_path))
    killer = Killer(0)
    again = quick(Resume(tmp_path), killer)
    check_equal(expected, again)
    assert next(killer.calls) == 0
    longer = quick(Resume(tmp_path), epochs=3)
    check_equal(quick(None, epochs=3), longer)


def test_a_file_that_was_cut_short_is_left_out(tmp_path):
    expected = quick(None)
    with pytest.raises(Cut):
        quick(Resume(tmp_path, every_steps=1), Killer(4))
    older, newer = sorted(tmp_path.iterdir())
    newer.write_bytes(newer.read_bytes()[:-100])
    (tmp_path / "state-00000009.partial").write_bytes(b"PK")
    resume = Resume(tmp_path)
    with pytest.warns(FastKerasWarning, match="can't be read") as told:
        actual = quick(resume)
    assert [str(newer) in str(w.message) for w in told] == [True]
    assert resume.resumed == (0, 2)
    assert not list(tmp_path.glob("*.partial"))
    check_equal(expected, actual)


def test_a_byte_that_changed_is_seen(tmp_path):
    quick(Resume(tmp_path))
    last = sorted(tmp_path.iterdir())[-1]
    content = bytearray(last.read_bytes())
    content[len(content) // 2] ^= 255
    last.write_bytes(content)
    with pytest.warns(FastKerasWarning, match="can't be read"):
        quick(Resume(tmp_path))


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"make": wide}, "variable 0: dense/kernel .3, 1. float32 was kept"),
        ({"perf": ["clip_by_norm"]}, "perf: .*ClipByNorm"),
        ({"optimizer": keras.optimizers.SGD}, "optimizer: .*SGD"),
        ({"optimizer": keras.optimizers.Adam}, "optimizer: .*learning_rate"),
        ({"batch_size": 5}, "data: .*shape=.5, 3."),
    ],
)
def test_another_training_is_refused(changed, told, tmp_path):
    quick(Resume(tmp_path))
    before = {p: p.read_bytes() for p in tmp_path.iterdir()}
    with pytest.raises(
        ValueError, match=f"must be of this training.*{told}.*begin anew"
    ):
        quick(Resume(tmp_path), **changed)
    assert before == {p: p.read_bytes() for p in tmp_path.iterdir()}


def test_another_version_is_refused(tmp_path, monkeypatch):
    quick(Resume(tmp_path))
    monkeypatch.setattr(keras, "__version__", "3.99.0")
    with pytest.raises(ValueError, match="keras: 3.15.* was kept, now 3.99.0"):
        quick(Resume(tmp_path))


class Spoil(keras.callbacks.Callback):
    """Makes a weight infinite after some batches."""

    def on_train_batch_end(self, batch, logs=None):
        if self.model.optimizer.iterations == 6:
            self.model.layers[-1].bias.assign([np.inf])


def test_what_is_not_finite_is_not_kept(tmp_path):
    guard = keras.callbacks.TerminateOnNaN()
    with pytest.warns(FastKerasWarning, match="not finite") as told:
        quick(
            Resume(tmp_path, every_steps=1),
            extra=lambda: [Spoil(), guard],
            epochs=9,
        )
    assert sum("No state is kept" in str(w.message) for w in told) == 1
    resume = Resume(tmp_path)
    quick(resume)
    assert resume.resumed == (1, 1)


def test_an_interrupt_leaves_the_last_state(tmp_path):
    class Interrupt(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quick(Resume(tmp_path, every_steps=1), extra=lambda: [Interrupt()])
    resume = Resume(tmp_path)
    quick(resume)
    assert resume.resumed == (0, 2)


def test_sigterm_keeps_a_state_and_has_its_own_exit_code(tmp_path):
    class Terminate(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 1:
                os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended:
        quick(Resume(tmp_path), extra=lambda: [Terminate()])
    assert ended.value.code == Resume.EXIT_CODE == 75
    assert signal.getsignal(signal.SIGTERM) is before
    resume = Resume(tmp_path)
    quick(resume)
    assert resume.resumed == (0, 2)


def test_so_many_states_stay(tmp_path):
    quick(Resume(tmp_path, every_steps=1, keep=3), Killer())
    kept = [f"state-{k:08d}.npz" for k in (7, 8, 9)]
    assert names(tmp_path) == kept


def test_seconds_are_counted(tmp_path, monkeypatch):
    clock = itertools.count(step=10)
    monkeypatch.setattr(resume_module.time, "monotonic", lambda: next(clock))
    quick(Resume(tmp_path, every_seconds=25, keep=99), Killer())
    assert len(names(tmp_path)) == 4


def test_a_full_disk_is_told_and_training_goes_on(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.warns(FastKerasWarning, match="can't be written"):
        actual = quick(Resume(tmp_path / "file" / "below"))
    check_equal(quick(None), actual)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"every_steps": 0}, "`every_steps` must be >= 1"),
        ({"every_epochs": -1}, "`every_epochs` must be >= 1"),
        ({"every_seconds": 0}, "`every_seconds` must be finite and > 0"),
        ({"keep": 0}, "`keep` must be >= 1"),
    ],
)
def test_what_can_not_be_is_refused(arguments, error, tmp_path):
    with pytest.raises(ValueError, match=error):
        Resume(tmp_path, **arguments)


def test_a_folder_is_a_string_or_a_path():
    with pytest.raises(TypeError, match="`directory` must be a string or a"):
        Resume(None)


def test_a_plain_model_is_refused(tmp_path):
    with pytest.raises(TypeError, match="Resume needs a FastModel"):
        quick(Resume(tmp_path), perf=None)
    assert not names(tmp_path)


def test_values_come_back_as_they_were():
    value = {
        "a": (1, [2.5, None, True, "x"], float("inf")),
        3: np.float32(0.1),
        "n": {"array": np.arange(3, dtype="int8")},
    }
    arrays = []
    text = json.dumps(encode(value, arrays))
    back = decode(json.loads(text), arrays)
    np.testing.assert_equal(back, value)
    assert type(back[3]) is np.float32
    with pytest.raises(TypeError):
        encode({"f": print}, [])
