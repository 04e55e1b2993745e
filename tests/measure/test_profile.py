"""`profile`: figures of real models, all left bit for bit as they were."""

import contextlib
import dataclasses
import html.parser
import json
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

import fastkeras as fk
from fastkeras import measure
from fastkeras._lib import private_measure
from fastkeras.measure import _metric_cost
from fastkeras.measure import _pipeline
from fastkeras.measure import _runs
from fastkeras.measure import _state
from fastkeras.measure import _xplane
from fastkeras.measure import profiling

# Epochs of ten steps: one to warm up, one to trace, one for each turn.
STEPS, ROWS = 10, 320


def arrays(rows=64):
    random = np.random.default_rng(0)
    x = random.normal(size=(rows, 4)).astype("float32")
    return x, (x.sum(1, keepdims=True) > 0).astype("float32")


def make(kind=keras.Model, metrics=("AUC",), width=8, **options):
    inputs = keras.Input((4,))
    hidden = keras.layers.Dense(width, activation="relu")(inputs)
    hidden = keras.layers.Dropout(0.2)(hidden)
    outputs = keras.layers.Dense(1, activation="sigmoid")(hidden)
    model = kind(inputs, outputs, name="net")
    model.compile(
        "adam", "binary_crossentropy", metrics=list(metrics), **options
    )
    return model


def loop(steps=4):
    return [fk.perf.Execution(jit=False, steps_per_launch=steps)]


def about(seconds, half=0.0):
    return measure.Summary(seconds, seconds - half, seconds + half, 9)


def values(model):
    found = [*model.variables, *model.optimizer.variables]
    return [v.numpy() for v in found]


def shuffled():
    data = tf.data.Dataset.from_tensor_slices(arrays(160))
    return data.shuffle(64, seed=3).batch(16)


def train(model, data):
    """What a fit gives, then the metrics' state, the next random numbers."""
    history = model.fit(data, verbose=0, shuffle=False).history
    after = [
        keras.random.normal((2,)).numpy(),
        tf.random.normal((2,)).numpy(),
        np.random.normal(size=2),
    ]
    return [*values(model), *after, np.array(list(history.values()))]


def fits(kind, options, look):
    """Two fits; `look` looks at model and data between them."""
    keras.utils.set_random_seed(7)
    model, data = make(kind, **options), shuffled()
    first = train(model, data)
    look(model, data)
    return first + train(model, data)


@pytest.mark.parametrize(
    ("kind", "options"),
    [(keras.Model, {}), (fk.FastModel, {"perf": loop()})],
    ids=["keras", "fast"],
)
def test_nothing_has_happened_also_for_the_next_fit(kind, options, monkeypatch):
    def look(model, data):
        before = values(model), dict(vars(model))
        profiling.profile(model, data, STEPS)
        after = values(model), dict(vars(model))
        assert all(map(np.array_equal, before[0], after[0]))
        assert before[1] == after[1]

    expected = fits(kind, options, lambda model, data: None)
    found = fits(kind, options, look)
    assert all(map(np.array_equal, expected, found))
    if kind is keras.Model:
        # Control: with nothing put back, the same check fails.
        monkeypatch.setattr(
            profiling, "as_before", lambda model: contextlib.nullcontext()
        )
        found = fits(
            kind,
            options,
            lambda model, data: profiling.profile(model, data, STEPS),
        )
        assert not all(map(np.array_equal, expected, found))


@pytest.mark.slow
def test_a_model_of_several_replicas_is_left_as_it_was(mirrored):
    with mirrored.scope():
        model = make(fk.FastModel, perf=loop())
    model.fit(*arrays(), verbose=0)
    before = values(model)
    found = profiling.profile(model, arrays(ROWS), STEPS)
    assert all(map(np.array_equal, before, values(model)))
    assert found["phases"]["optimizer"] > 0
    # Control: a step would have moved them.
    model.fit(*arrays(), verbose=0)
    assert not all(map(np.array_equal, before, values(model)))


def test_a_model_not_built_yet_trains_as_if_it_had_not_been_looked_at():
    class Net(keras.Model):
        def __init__(self):
            super().__init__()
            self.drop = keras.layers.Dropout(0.5)
            self.head = keras.layers.Dense(1)

        def call(self, x, training=False):
            return self.head(self.drop(x, training=training))

    results = []
    for looks in (False, True):
        keras.utils.set_random_seed(3)
        model = Net()
        model.compile("adam", "mse")
        if looks:
            profiling.profile(model, arrays(ROWS), STEPS)
        results.append(train(model, shuffled()))
    assert all(map(np.array_equal, *results))


class Held(keras.layers.Layer):
    """Draws from TensorFlow's generator, and counts in its variables."""

    def __init__(self):
        super().__init__()
        self.generator = tf.random.Generator.from_seed(3)
        self.counts = [tf.Variable(0)]

    def call(self, x):
        self.counts[0].assign_add(1)
        return x + self.generator.normal((4,))


def test_variables_of_tensorflow_are_put_back_too():
    held = Held()
    model = keras.Sequential([keras.Input((4,)), held, keras.layers.Dense(1)])
    model.compile("sgd", "mse", run_eagerly=True)
    model.fit(*arrays(16), verbose=0)

    def state():
        return held.counts[0].numpy(), *held.generator.state.numpy()

    before = state()
    with _state.as_before(model):
        model.fit(*arrays(16), verbose=0)
        # Control: a step moves them.
        assert state() != before
    assert state() == before


class Two(keras.Model):
    """Has an optimizer for each of two layers, and a step of its own."""

    def __init__(self):
        super().__init__()
        self.parts = [keras.layers.Dense(4), keras.layers.Dense(1)]
        self.own = [keras.optimizers.Adam(0.1) for _ in self.parts]

    def call(self, x):
        return self.parts[1](self.parts[0](x))

    def train_step(self, data):
        x, y, *_ = data
        with tf.GradientTape(persistent=True) as tape:
            loss = keras.ops.mean((self(x) - y) ** 2)
        for part, own in zip(self.parts, self.own, strict=True):
            weights = part.trainable_variables
            own.apply(tape.gradient(loss, weights), weights)
        return {"loss": loss}


@pytest.mark.parametrize("is_trained", [False, True])
def test_optimizers_of_a_step_of_its_own_are_put_back_too(is_trained):
    results, data = [], arrays(32)
    for looks in (False, True):
        keras.utils.set_random_seed(3)
        model = Two()
        model.compile(run_eagerly=True)
        model(data[0])
        if is_trained:
            model.train_on_batch(*data)
        assert model.own[1].built is is_trained
        if looks:
            with _state.as_before(model):
                model.train_on_batch(*data)
                # Control: a step moves them.
                assert model.own[1].built and model.own[1].iterations > 0
        model.train_on_batch(*data)
        held = [*model.variables, *(v for o in model.own for v in o.variables)]
        results.append([v.numpy() for v in held])
    assert len(results[0]) > 8
    assert all(map(np.array_equal, *results))
    assert {o.name for o in model.own} < profiling._optimizers(model)


def slowly(x, y):
    def wait(a):
        time.sleep(0.03)
        return a

    x.set_shape((None, 4))
    return tf.ensure_shape(tf.py_function(wait, [x], tf.float32), (16, 4)), y


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (keras.Model, {}),
        (keras.Model, {"steps_per_execution": 4}),
        (fk.FastModel, {"perf": loop()}),
    ],
    ids=["one step", "four steps", "fast"],
)
def test_a_slow_pipeline_is_named_at_any_steps_per_launch(kind, options):
    data = tf.data.Dataset.from_tensor_slices(arrays(64)).batch(16)
    found = profiling.profile(
        make(kind, (), **options), data.map(slowly), steps=4
    )
    assert found["input"]["bound"] and found.shares["input"] > 0.5
    assert found["run"]["steps per launch"] == (4 if options else 1)
    assert found.findings[0].startswith("Input-bound")
    # The control of the test of metrics: there are none.
    assert found["metrics"] == {} and found["seconds"]["metrics"] == 0
    assert sum(found.shares.values()) == pytest.approx(1)


@pytest.mark.parametrize(("most", "reads"), [(3, 6), (4, 4), (9, 4)])
def test_a_cache_is_filled_or_it_is_said_that_it_is_not(most, reads):
    seen = []
    data = tf.data.Dataset.range(4)
    data = data.map(
        lambda k: tf.py_function(lambda a: seen.append(1) or a, [k], tf.int64)
    )
    pipeline = _pipeline.Pipeline(data.cache(), None, most)
    for _ in range(2):
        list(pipeline.arguments["x"])
    assert len(seen) == reads
    assert pipeline.leaves_cache is (most < 4)
    # Control: one that keeps nothing.
    assert not _pipeline.Pipeline(data, None, 3).leaves_cache


def test_data_at_hand_is_no_bottleneck_and_the_phases_are_there():
    x, y = arrays(160)
    model = make(width=2**15)
    found = profiling.profile(model, (x, y, None), STEPS)
    assert not found["input"]["bound"]
    assert found.findings[0].startswith("Not input-bound")
    assert {"forward", "backward", "optimizer"} <= found["phases"].keys()
    matmuls = [op for op in found["ops"] if "MatMul" in op["kind"]]
    assert matmuls and all(op["count"] == 1 for op in matmuls)
    # What an epoch does beside its steps is no operation of a step.
    assert not any(op["kind"] == "MakeIterator" for op in found["ops"])
    assert found["eager share"] < 0.5
    assert found["run"]["steps"] == STEPS
    assert found["run"]["batches in the data"] == 5
    assert "model+optimizer" in str(found)
    # Metrics are told apart, and the dear one is named.
    (name,) = found["metrics"]
    assert name == "AUC: AUC (200 thresholds)"
    assert found["seconds"]["metrics"] == found["metrics"][name]
    assert name in str(found)


def test_cheap_operations_are_traced_before_they_are_left_out(monkeypatch):
    model, data = make(metrics=()), arrays(40 * 8)
    found = profiling.profile(model, data, steps=40, batch_size=8)
    assert found["run"]["steps"] == 40
    assert {"forward", "backward", "optimizer"} <= found["phases"].keys()
    total = sum(found["phases"].values())
    assert total == pytest.approx(found["split"]["compute"])
    # Control: TensorFlow leaves them out once they have run 90 times.
    monkeypatch.setattr(_runs, "WARM_UP", 200)
    later = profiling.profile(model, data, steps=40, batch_size=8)["phases"]
    assert later.get("optimizer", 0) < found["phases"]["optimizer"] / 2


def test_the_instructions_of_xla_have_phases_too():
    model = make(metrics=("accuracy",), jit_compile=True)
    found = profiling.profile(model, arrays(ROWS), STEPS)
    assert found["run"]["tier"] == "Keras, XLA"
    known = {"forward", "backward", "optimizer", "metrics"}
    assert known <= found["phases"].keys()
    assert not any("update_state" in vars(m) for m in model.metrics)
    assert sum(op["phase"] == "other" for op in found["ops"]) <= 3
    # Control: instructions whose program is not known have no scope.
    path = found["ops"][0]["name"]
    assert _xplane.phase(path.split("/")[-1], ()) == "other"


@pytest.mark.parametrize(
    ("still", "alone", "waits", "bound"),
    [
        (0.001, 0.0099, 0.9, True),
        # A slow machine alone, a fast pipeline, no wait in the trace.
        (0.010, 0.0099, 0.9, False),
        (0.001, 0.0005, 0.9, False),
        (0.001, 0.0099, 0.0, False),
    ],
)
def test_the_input_is_the_bound_if_all_runs_say_so(still, alone, waits, bound):
    # While the second turn ran, the machine was slow.
    runs = [[t, 5 * t, t] for t in (0.010, still, alone)]
    verdict = profiling._verdict(*runs, waits)
    assert verdict["bound"] is bound
    assert verdict["share"] == pytest.approx(
        min(1 - still / 0.010, alone / 0.010)
    )
    # Where the turns do not agree nothing is certain.
    runs[0] = [0.010, 0.003, 0.0012]
    assert not profiling._verdict(*runs, waits)["bound"]


@pytest.mark.parametrize("everywhere", [False, True])
def test_functions_that_are_run_eagerly_make_eager_steps(everywhere):
    tf.config.run_functions_eagerly(everywhere)
    try:
        runs = type("Runs", (), {"batches_per_launch": 4.0, "traced": 8})
        way = profiling._way(make(), runs)
    finally:
        tf.config.run_functions_eagerly(False)
    assert way["eager"] is everywhere
    assert way["steps per launch"] == (1 if everywhere else 4)
    assert way["tier"] == ("eager" if everywhere else "Keras, graph")


def test_eager_steps_are_said_loudly():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", run_eagerly=True)
    found = profiling.profile(model, arrays(ROWS), STEPS)
    assert found["run"]["eager"] and found["run"]["tier"] == "eager"
    assert found["eager share"] > 0.9
    assert found.findings[0].startswith("THE STEPS RUN EAGERLY")
    assert "run_eagerly=True" in str(found).splitlines()[0]


def made_up(length=1, noise=0.0, **seconds):
    seconds = {
        "step": 0.004,
        "step on one batch": 0.004,
        "pipeline alone": 0.001,
        "epoch beside its steps": 0.0,
        "metrics": 0.0,
        **seconds,
    }
    return measure.Profile(
        {
            "model": "net",
            "run": {
                "steps": 4,
                "steps per epoch": 1,
                "batches in the data": length,
                "steps per launch": 1.0,
                "eager": False,
                "tier": "<graph>",
            },
            "seconds": seconds,
            "spread": {
                name: dataclasses.asdict(about(value, noise * value))
                for name, value in seconds.items()
                if name != "metrics"
            },
            "input": {"bound": False, "share": 0.0},
            "split": {"compute": 0.003, "input": 0.001},
            "phases": {"forward": 0.003},
            "ops": [
                {
                    "name": "net/MatMul",
                    "kind": "MatMul",
                    "phase": "forward",
                    "seconds": 0.003,
                    "count": 2.0,
                }
            ],
            "eager share": 0.0,
            "traced step": 0.005,
            "timeline": [[0.0, 0.003, "compute"], [0.003, 0.001, "input"]],
            "metrics": {"AUC: AUC (200 thresholds)": 0.0},
            "notes": [],
        }
    )


def test_an_epoch_of_few_steps_is_spoken_of_where_it_costs():
    dear = {"epoch beside its steps": 0.03}
    one = "30.0 ms (±0.0, n=9) beside its one step: repeat"
    assert one in str(made_up(**dear))
    assert "beside its 8 steps" in str(made_up(8, **dear))
    for other in (
        made_up(),
        made_up(800, **dear),
        made_up(None, **dear),
        # On a machine that is busy with something else.
        made_up(noise=0.95, **dear),
    ):
        assert "beside its" not in str(other)


def test_a_busy_machine_is_spoken_of_where_the_runs_show_it():
    slow = {"step on one batch": 0.006}
    assert "busy with something else" in str(made_up(**slow))
    for other in (made_up(), made_up(noise=0.3, **slow)):
        assert "busy with something else" not in str(other)


def test_dear_metrics_are_spoken_of():
    assert "Metrics take 3 ms" in str(made_up(metrics=0.003))
    assert "Metrics take" not in str(made_up(metrics=0.0003))


class Page(html.parser.HTMLParser):
    """Counts boxes, and takes down whatever is to be loaded."""

    def __init__(self, text):
        super().__init__()
        self.boxes, self.loads = 0, []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.boxes += tag == "rect"
        names = dict(attributes)
        self.loads += [names[n] for n in ("src", "href") if n in names]


def test_the_page_needs_no_network(tmp_path):
    made_up().save_html(tmp_path / "a.html")
    text = (tmp_path / "a.html").read_text(encoding="utf-8")
    page = Page(text)
    assert page.boxes == 4 and not page.loads
    assert "://" not in text and "@import" not in text
    assert "&lt;graph&gt;" in text and 'width="720.00"' in text
    assert Page('<rect><img src="x">').loads == ["x"]


def test_the_figure_is_drawn_and_without_matplotlib_refused(
    tmp_path, monkeypatch
):
    made_up().plot(tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match="fastkeras.recipes"):
        made_up().plot(tmp_path / "b.png")


def test_profiles_and_receipts_are_compared_by_value_or_file(tmp_path):
    first, second = made_up(), made_up(step=0.002)
    first.save(tmp_path / "a.json")
    assert measure.Profile.load(tmp_path / "a.json") == first
    found = first.compare(second)
    assert found.ratios == {"seconds.step": 0.5}
    assert found.verdicts == {"seconds.step": "faster"}
    assert str(measure.compare(tmp_path / "a.json", second)) == str(found)
    assert str(found).splitlines()[0] == (
        "seconds.step: 4.00 ms (±0.00, n=9) → 2.00 ms (±0.00, n=9) "
        "(0.50 times, faster)"
    )
    noisy = made_up(noise=0.4).compare(made_up(noise=0.4, step=0.003))
    assert noisy.verdicts == {"seconds.step": "within the noise"}
    # What has no spread is said to be of one run.
    dear = made_up(metrics=0.002).compare(made_up(metrics=0.001))
    assert "A time without ± is of one run" in str(dear)
    assert str(measure.compare(first, first)) == "no difference"


def test_times_in_words_are_compared_as_times():
    found = measure.compare(
        {"t": "2.00 ms (±0.1, n=5)", "plan": "auto"},
        {"t": "500 µs (±1, n=5)", "plan": None, "more": True},
    )
    assert found.ratios == {"t": pytest.approx(0.25)}
    assert found.changes["plan"] == ("auto", None)
    assert found.changes["more"] == (None, True)
    assert "more: not there → True" in str(found)
    assert found.verdicts == {"t": "faster"}
    near = measure.compare(
        {"t": "2.00 ms (±0.3, n=5)"}, {"t": "1.50 ms (±0.3, n=5)"}
    )
    assert near.verdicts == {"t": "within the noise"}
    assert "faster" not in str(near)


def test_what_an_event_took_makes_it_no_other():
    first = {"events": ["step, call 1, 0.68 s: first call", "gone"]}
    second = {"events": ["step, call 1, 1 s: first call", "come"]}
    text = str(measure.compare(first, second))
    assert text == "events:\n  - gone\n  + come"
    found = measure.compare({"events": first["events"][:1]}, {"events": []})
    assert str(found) == "events:\n  - step, call 1, 0.68 s: first call"
    same = [{"events": x["events"][:1]} for x in (first, second)]
    assert str(measure.compare(*same)) == "no difference"


def test_runs_that_are_not_alike_are_said_to_be_so():
    first = {
        "model": {"name": "net_1", "parameters": 5},
        "machine": {"cores": 2},
        "settings": {"feed": "stream"},
    }
    same = {**first, "model": {"name": "net_4", "parameters": 5}}
    assert not measure.compare(first, {**same, "settings": {}}).warnings
    other = {
        "model": {"name": "net", "parameters": 6},
        "machine": {"cores": 4},
        "settings": {"feed": "stream"},
    }
    text = str(measure.compare(first, other))
    assert text.startswith("Not the same model: ")
    assert "\nNot the same machine: " in text
    with pytest.raises(ValueError, match="a receipt and a profile"):
        measure.compare(first, {"split": {}})


def test_a_file_that_is_none_is_refused(tmp_path):
    (tmp_path / "a.json").write_text("[1]")
    with pytest.raises(ValueError, match="must hold a receipt"):
        measure.compare(tmp_path / "a.json", {})
    (tmp_path / "a.json").write_text('{"plan": ')
    with pytest.raises(ValueError, match="no JSON: Expecting value"):
        measure.compare(tmp_path / "a.json", {})
    (tmp_path / "b.json").write_text(json.dumps({"plan": "auto"}))
    with pytest.raises(ValueError, match="must hold a profile"):
        measure.Profile.load(tmp_path / "b.json")


class Batches(keras.utils.PyDataset):
    """Counts what it is asked for."""

    ended = 0

    def __len__(self):
        return 20

    def __getitem__(self, index):
        return arrays(16)

    def on_epoch_end(self):
        self.ended += 1


@pytest.mark.parametrize("page", [None, object()])
def test_it_is_said_how_to_look_at_the_trace(page, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: page)
    said = profiling._where("a b")
    assert "tensorboard --logdir 'a b'" in said
    assert ("install `xprof`" in said) is (page is None)


def test_a_py_dataset_does_not_learn_of_it_and_the_trace_can_be_kept(tmp_path):
    data = Batches()
    found = profiling.profile(
        make(metrics=()), data, STEPS, log_dir=str(tmp_path)
    )
    assert data.ended == 0 and found["run"]["steps per epoch"] == STEPS
    assert found["run"]["batches in the data"] == 20
    (file,) = tmp_path.glob("plugins/profile/*/*.xplane.pb")
    assert file.stat().st_size > 0
    (note,) = found["notes"]
    assert f"tensorboard --logdir {tmp_path}" in note


def test_two_profilers_at_once_are_refused(tmp_path):
    model = make(metrics=())
    tf.profiler.experimental.start(str(tmp_path))
    try:
        with pytest.raises(ValueError, match="the only profiler"):
            profiling.profile(model, arrays(ROWS), STEPS)
    finally:
        tf.profiler.experimental.stop()


@pytest.mark.parametrize(
    "kind", [keras.Model, pytest.param(fk.FastModel, marks=pytest.mark.slow)]
)
def test_an_error_of_the_data_ends_the_trace_and_changes_nothing(
    kind, tmp_path
):
    def batches():
        for k in range(8):
            if reads[0] == 30:
                was_traced.append(private_measure.is_profiled())
                raise OSError("The disk is gone.")
            reads[0] += 1
            yield tuple(a[8 * k : 8 * k + 8] for a in arrays(64))

    spec = tuple(tf.TensorSpec((8, n)) for n in (4, 1))
    data = tf.data.Dataset.from_generator(batches, output_signature=spec)
    model, reads, was_traced = make(kind, ()), [-100], []
    model.fit(data, verbose=0)
    before, reads[0] = values(model), 0
    with pytest.raises(tf.errors.OpError, match="The disk is gone"):
        profiling.profile(model, data, steps=8)
    assert was_traced == [True] and not private_measure.is_profiled()
    assert all(map(np.array_equal, before, values(model)))
    # Control: the data can be read, and the profiler started.
    reads[0] = -1000
    assert len(list(data)) == 8
    with tf.profiler.experimental.Profile(str(tmp_path)):
        assert private_measure.is_profiled()


def interrupted(undone, calls):
    """A function that is interrupted once, at a call of another."""

    def call(*args, **kwargs):
        calls.append(args)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return undone(*args, **kwargs)

    return call


def test_an_interrupt_of_the_putting_back_leaves_nothing_half_done(monkeypatch):
    model, calls = make(metrics=("mae",)), []
    model.fit(*arrays(), verbose=0)
    before = values(model)
    attributes = [dict(vars(m)) for m in model.metrics]
    with pytest.raises(KeyboardInterrupt), monkeypatch.context() as patch:
        with _state.as_before(model), _metric_cost.named(model):
            model.fit(*arrays(), verbose=0)
            assert not all(map(np.array_equal, before, values(model)))
            patch.setattr(
                keras.Variable,
                "assign",
                interrupted(keras.Variable.assign, calls),
            )
    assert len(calls) > 2
    assert all(map(np.array_equal, before, values(model)))
    assert [dict(vars(m)) for m in model.metrics] == attributes


def test_an_interrupt_among_the_metrics_names_leaves_them_as_they_were(
    monkeypatch,
):
    model, calls = make(metrics=("mae", "accuracy")), []
    model.fit(*arrays(), verbose=0)
    before = [dict(vars(m)) for m in model.metrics]
    scoped = interrupted(_metric_cost._scoped, calls)
    monkeypatch.setattr(_metric_cost, "_scoped", scoped)
    with pytest.raises(KeyboardInterrupt), _metric_cost.named(model):
        pass
    assert [dict(vars(m)) for m in model.metrics] == before
    with _metric_cost.named(model):
        # Control: while it is open they are others.
        assert [dict(vars(m)) for m in model.metrics] != before
    assert [dict(vars(m)) for m in model.metrics] == before


def test_data_that_is_gone_after_one_pass_is_refused():
    once = iter([tuple(a[:16] for a in arrays())] * 4)
    data = tf.data.Dataset.from_generator(
        lambda: once,
        output_signature=(tf.TensorSpec((16, 4)), tf.TensorSpec((16, 1))),
    )
    with pytest.raises(TypeError, match="a Dataset that is empty by now"):
        profiling.profile(make(), data, steps=4)


@pytest.mark.parametrize(
    ("data", "steps", "error", "words"),
    [
        ((b for b in [arrays()]), 2, TypeError, "gone through again"),
        (arrays(0), 2, ValueError, "at least one batch"),
        ((1, 2, 3, 4), 2, ValueError, "a tuple of 4"),
        (arrays(), 0, ValueError, "`steps` must be >= 1"),
    ],
)
def test_what_can_not_be_profiled_is_refused(data, steps, error, words):
    with pytest.raises(error, match=words):
        profiling.profile(make(), data, steps=steps)


def test_what_is_no_model_is_refused():
    with pytest.raises(TypeError, match="compiled `keras.Model`. Received: in"):
        profiling.profile(3, arrays())
