"""Recomputed blocks: the same numbers in each tier, for each kind of layer."""

import gc
import re
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

import fastkeras as fk
from fastkeras import perf
from fastkeras.engine import _parity
from fastkeras.perf import Rematerialize
from fastkeras.perf import _segments
from tests.perf import _peak
from tests.perf import _tools

WIDTH = 6
ROWS = 12


def data(rows=ROWS):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, WIDTH)).astype("float32")
    return x, x.sum(1, keepdims=True)


def block(name, *layers):
    return keras.Sequential([keras.Input((WIDTH,)), *layers], name=name)


def dense(**kwargs):
    return keras.layers.Dense(WIDTH, "tanh", **kwargs)


def plain_blocks():
    """Blocks of Dense layers alone."""
    x = inputs = keras.Input((WIDTH,))
    for k in range(3):
        x = block(f"block_{k}", dense(), dense())(x)
    return inputs, keras.layers.Dense(1, name="head")(x)


def stateful_blocks():
    """Blocks with random numbers, moving statistics and added losses."""
    x = inputs = keras.Input((WIDTH,))
    for k in range(2):
        x = block(
            f"block_{k}",
            dense(activity_regularizer="l2"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.3),
            keras.layers.GaussianNoise(0.1),
            dense(kernel_regularizer="l2"),
        )(x)
    return inputs, keras.layers.Dense(1, name="head")(x)


def shared_block():
    """A block used twice, and a layer shared by two blocks."""
    x = inputs = keras.Input((WIDTH,))
    shared = dense()
    twice = block("block_0", shared, keras.layers.Dropout(0.3))
    x = block("block_1", dense(), shared)(twice(twice(x)))
    return inputs, keras.layers.Dense(1, name="head")(x)


def skips():
    """A graph whose tensors cross several cuts."""
    x = first = inputs = keras.Input((WIDTH,))
    for _ in range(6):
        x = keras.layers.add([dense()(x), x])
    x = keras.layers.concatenate([x, first, keras.ops.tanh(x)])
    return inputs, keras.layers.Dense(1, name="head")(x)


@keras.saving.register_keras_serializable("tests")
class Gate(keras.Layer):
    """Takes `training`, a mask and a keyword argument; noise of its own."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.inner = dense()
        self.drop = keras.layers.Dropout(0.4)
        self.seed = keras.random.SeedGenerator(3)
        self.supports_masking = True

    def build(self, shape):
        self.inner.build(shape)

    def call(self, x, context=None, scale=1.0, training=False, mask=None):
        # `training` of the inner layers comes from the call in progress.
        out = self.drop(self.inner(x)) * scale
        if context is not None:
            out = out + context
        if training:
            out = out + 0.1 * keras.random.normal((WIDTH,), seed=self.seed)
            # Drawn from Keras's own global seed: no variable of this layer.
            out = out + 0.1 * keras.random.normal((WIDTH,))
        if mask is not None:
            out = out * keras.ops.cast(mask[..., None], out.dtype)
        return out


def keywords():
    inputs = keras.Input((WIDTH,))
    other = dense()(inputs)
    x = Gate(name="block_0")(inputs, context=other, scale=2.0)
    x = Gate(name="block_1")(x, scale=0.5)
    return inputs, keras.layers.Dense(1, name="head")(x)


GRAPHS = [plain_blocks, stateful_blocks, shared_block, skips, keywords]
FEATURES = {
    "named": Rematerialize("block_*"),
    "sqrt": Rematerialize(),
    "all": Rematerialize(mode="all"),
}


def compiled(graph, feature, optimizer="adam", **options):
    if not tf.distribute.has_strategy():
        # Equal names, and a new global seed.
        keras.backend.clear_session(free_memory=False)
    keras.utils.set_random_seed(1)
    model = fk.FastModel(*graph())
    features = [f for f in np.atleast_1d(feature) if f is not None]
    model.compile(optimizer, "mse", perf=features or "auto", **options)
    return model


def fit(model, epochs=2, batch=4, xy=None):
    x, y = xy or data()
    return model.fit(
        x, y, batch_size=batch, epochs=epochs, shuffle=False, verbose=0
    ).history


def trained(graph, feature, **options):
    keras.utils.set_random_seed(1)
    model = compiled(graph, feature, **options)
    # Three steps eagerly, and in a graph three more.
    logs = fit(model, epochs=1 if options.get("run_eagerly") else 2)
    return [v.numpy() for v in model.variables], logs


def same(graph, features, tolerance=0.0, beside=(), **options):
    """The differences of each feature's run to the run without it."""
    right, logs = trained(graph, list(beside), **options)
    for feature in features:
        got, own = trained(graph, [feature, *beside], **options)
        assert _tools.difference(right, got) <= tolerance
        assert _tools.logs_difference(logs, own) <= max(tolerance, 1e-6)


def features_of(graph):
    names = ["sqrt", "all"] if graph is skips else FEATURES
    return [FEATURES[n] for n in names]


def tolerance(graph):
    """Gradients of a block used twice are added in another order."""
    return 1e-7 if graph is shared_block else 0.0


@pytest.mark.parametrize("graph", GRAPHS)
def test_bit_equal_in_the_graph(graph):
    same(graph, features_of(graph), tolerance(graph), jit_compile=False)


@pytest.mark.parametrize("graph", GRAPHS)
def test_bit_equal_eagerly(graph):
    same(graph, features_of(graph), tolerance(graph), run_eagerly=True)


@pytest.mark.parametrize(
    "graph",
    [
        pytest.param(g, marks=[] if g is stateful_blocks else pytest.mark.slow)
        for g in GRAPHS
    ],
)
def test_equal_under_xla(graph):
    same(graph, features_of(graph)[:1], 1e-6, jit_compile=True)


# Beside other features, and under a strategy.


@pytest.mark.parametrize(
    ("beside", "tolerance"),
    [
        ([perf.Accumulate(2), perf.Microbatch(3)], 1e-7),
        ([perf.MixedPrecision(initial_scale=64.0)], 2e-3),
        ([perf.Watch(exclude="block_0*")], 1e-7),
    ],
    ids=["parts", "mixed", "watch"],
)
def test_beside_other_features(beside, tolerance):
    same(plain_blocks, [FEATURES["sqrt"]], tolerance, beside)


def test_under_a_strategy(mirrored):
    def weights(feature):
        with mirrored.scope():
            model = compiled(plain_blocks, feature, optimizer="sgd")
        fit(model)
        return model.get_weights()

    assert _tools.difference(weights(None), weights(Rematerialize())) < 1e-6


# Nested models, several inputs, attention.


def nested():
    """A model called twice in another one, of two inputs, with attention."""
    inner_inputs = keras.Input((WIDTH,))
    x = keras.layers.Dropout(0.3)(dense()(inner_inputs))
    inner = keras.Model(inner_inputs, x, name="inner")
    first, second = keras.Input((WIDTH,)), keras.Input((3, WIDTH))
    x = inner(inner(first))[:, None]
    attention = keras.layers.MultiHeadAttention(2, 3, dropout=0.2, name="look")
    x = attention(x, value=keras.layers.Masking()(second))
    middle = keras.Model([first, second], x[:, 0], name="middle")
    a, b = keras.Input((WIDTH,), name="a"), keras.Input((3, WIDTH), name="b")
    x = middle([a, b])
    return {"a": a, "b": b}, keras.layers.Dense(1, name="head")(x)


def test_nested_models_and_several_inputs():
    a, y = data()
    xy = {"a": a, "b": np.stack([a, a[::-1], 0 * a], 1)}, y
    runs = []
    for feature in (
        None,
        Rematerialize(["inner", "look"]),
        Rematerialize(mode="all"),
    ):
        model = compiled(nested, feature, "sgd", jit_compile=False)
        start = model.get_weights()
        fit(model, xy=xy)
        runs.append([v.numpy() for v in model.variables])
    # The control: what is equal has moved.
    assert _tools.difference(start, model.get_weights()) > 1e-3
    assert all(_tools.difference(runs[0], run) < 1e-7 for run in runs[1:])


# Masks, recurrent layers, sparse gradients.


def padded():
    """Embedding, masked recurrent layers with states of their own."""
    inputs = keras.Input((5,), batch_size=4, dtype="int32")
    x = keras.layers.Embedding(6, WIDTH, mask_zero=True, name="table")(inputs)
    x = Gate(name="gate")(x)
    x = keras.layers.LSTM(
        WIDTH, return_sequences=True, stateful=True, name="first"
    )(x)
    x = keras.layers.GRU(WIDTH, dropout=0.2, name="second")(x)
    return inputs, keras.layers.Dense(1, name="head")(x)


@pytest.mark.parametrize("eager", [True, False])
def test_masks_states_and_tables(eager):
    x, _ = _tools.ids_data(8)
    xy = x, x.sum(1, keepdims=True).astype("float32")
    runs = []
    for feature in (
        None,
        Rematerialize(["table", "gate", "first", "second"]),
        Rematerialize(mode="all"),
    ):
        model = compiled(padded, feature, run_eagerly=eager, jit_compile=False)
        fit(model, xy=xy)
        runs.append([v.numpy() for v in model.variables])
    assert _tools.difference(runs[0], runs[1]) < 1e-6
    assert _tools.difference(runs[0], runs[2]) < 1e-6
    # The control: the state of the first layer is a variable that has moved.
    states = [v for v in model.variables if "first" in v.path][3:]
    assert all(np.abs(v.numpy()).max() > 0 for v in states)


def test_a_table_keeps_its_sparse_gradient():
    inputs = keras.Input((5,), dtype="int32")
    x = keras.layers.Embedding(50, WIDTH, name="table")(inputs)
    model = fk.FastModel(inputs, keras.layers.Dense(1)(x))
    optimizer = _tools.spy(keras.optimizers.SGD, 0.1)
    model.compile(optimizer, "mse", perf=Rematerialize("table"))
    model.fit(*_tools.ids_data(8), verbose=0)
    assert isinstance(optimizer.seen[0][0], tf.IndexedSlices)


# What a user sees of the model stays.


def test_weights_names_and_saving(tmp_path):
    model = compiled(stateful_blocks, Rematerialize("block_*"))
    plain = compiled(stateful_blocks, None)
    for kind in ("trainable_variables", "variables"):
        paths = [[v.path for v in getattr(m, kind)] for m in (model, plain)]
        assert paths[0] == paths[1]
    # Keras itself loads no seeds.
    model = compiled(plain_blocks, Rematerialize("block_*"))
    fit(model)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.perf.features == (Rematerialize("block_*"),)
    x, _ = data()
    np.testing.assert_array_equal(
        model.predict(x, verbose=0), loaded.predict(x, verbose=0)
    )
    fit(model)
    fit(loaded)
    assert _tools.difference(model, loaded) < 1e-6


def test_a_later_compile_without_it_takes_it_away():
    model = compiled(plain_blocks, Rematerialize("block_*"))
    layer = model.get_layer("block_0")
    assert "call" in vars(layer)
    model.compile("sgd", "mse", perf="auto")
    assert "call" not in vars(layer)
    model.compile("sgd", "mse", perf=Rematerialize())
    assert "_run_through_graph" in vars(model)
    model.compile("sgd", "mse", perf="auto")
    assert "_run_through_graph" not in vars(model)


class Owner(fk.FastModel):
    """A subclass whose blocks are attributes."""

    def __init__(self):
        super().__init__()
        self.blocks = [Gate(name=f"block_{k}") for k in range(2)]
        self.head = keras.layers.Dense(1)

    def call(self, x, training=False):
        for layer in self.blocks:
            x = layer(x, training=training)
        return self.head(x)


def test_a_class_of_layers_in_a_subclass():
    runs = []
    for feature in ("auto", Rematerialize(Gate)):
        keras.backend.clear_session(free_memory=False)
        keras.utils.set_random_seed(2)
        model = Owner()
        model.compile("sgd", "mse", perf=feature)
        fit(model)
        runs.append(model)
    assert runs[1].perf.features[0].layers == ("Gate",)
    assert all("call" in vars(layer) for layer in model.blocks)
    assert _tools.difference(*runs) == 0


# The work is done twice: counted in the graph.


def gradient_graph(feature):
    model = compiled(plain_blocks, feature, jit_compile=False)
    step = tf.function(model.train_step, autograph=False)
    graph = step.get_concrete_function(tuple(map(tf.constant, data()))).graph
    return [op.type for op in graph.get_operations()]


@pytest.mark.parametrize(
    ("feature", "again"),
    [
        (None, 0),
        # Three blocks of two layers; the last segment is not run again.
        (Rematerialize("block_*"), 6),
        (Rematerialize(), 4),
        (Rematerialize("head"), 0),
    ],
)
def test_what_runs_twice(feature, again):
    assert gradient_graph(feature).count("Tanh") == 6 + again


def test_a_frozen_prefix_is_not_run_again():
    features = [Rematerialize("block_*"), perf.Watch(include="head")]
    assert gradient_graph(features).count("Tanh") == 6


def test_predict_and_evaluate_run_once():
    model = compiled(plain_blocks, Rematerialize("block_*"))
    graph = tf.function(model).get_concrete_function(tf.ones((2, WIDTH))).graph
    types = [op.type for op in graph.get_operations()]
    assert types.count("Tanh") == 6


@pytest.mark.parametrize("name", FEATURES)
def test_a_model_that_is_dropped_is_gone(name):
    model = compiled(plain_blocks, FEATURES[name], jit_compile=False)
    fit(model)
    gone = weakref.ref(model)
    del model
    keras.backend.clear_session()
    gc.collect()
    assert gone() is None


# Where to cut.


@pytest.mark.parametrize("n", [16, 64, 256])
def test_memory_grows_as_the_root_of_the_depth(n):
    starts, peak = _segments.least_memory([1] * n, [1] * n)
    assert len(starts) == n**0.5 - 1
    assert peak == 2 * n**0.5 - 1


def by_hand(costs, crossing, budget):
    """Every way to cut, tried: the lowest peak, and the fewest units again."""
    n = len(costs)
    found = []
    for bits in range(2 ** (n - 1)):
        starts = [k + 1 for k in range(n - 1) if bits >> k & 1]
        peak = _segments.peak(costs, crossing, starts)
        found.append((peak, starts[-1] if starts else 0))
    within = [again for peak, again in found if peak <= budget]
    return min(found)[0], min(within, default=None)


def test_no_way_to_cut_is_better():
    rng = np.random.default_rng(0)
    met = 0
    for _ in range(20):
        costs = rng.integers(1, 9, 9).tolist()
        crossing = rng.integers(1, 6, 10).tolist()
        least, _ = by_hand(costs, crossing, 0)
        _, peak = _segments.least_memory(costs, crossing)
        assert peak <= 1.1 * least
        budget = 0.7 * sum(costs)
        _, again = by_hand(costs, crossing, budget)
        starts, peak = _segments.fewest_recomputed(costs, crossing, budget)
        if again is not None:
            met += 1
            assert peak <= budget
            assert (starts[-1] if starts else 0) <= again + 1
    assert met > 10


def test_a_budget_recomputes_only_what_it_must():
    def tanhs(budget):
        return gradient_graph(
            Rematerialize(mode="budget", budget_bytes=budget)
        ).count("Tanh")

    # 12 rows of 6 blocks' outputs, two layers each, and the head.
    everything = ROWS * 4 * (6 * WIDTH + 1)
    assert tanhs(everything) == 6
    assert 6 < tanhs(everything - 1) <= 8
    least = ROWS * 4 * (2 * WIDTH + 2 * WIDTH + 1)
    assert tanhs(least) == 10


# Refused, or of no effect.


def test_bad_arguments():
    with pytest.raises(TypeError, match="`layers` takes layers, their names"):
        Rematerialize(3)
    with pytest.raises(ValueError, match="must name at least one layer"):
        Rematerialize([])
    with pytest.raises(ValueError, match="Did you mean 'sqrt'"):
        Rematerialize(mode="sqr")
    with pytest.raises(ValueError, match="`budget_bytes` and mode='budget' go"):
        Rematerialize(budget_bytes=10)
    with pytest.raises(ValueError, match="`budget_bytes` and mode='budget' go"):
        Rematerialize(mode="budget")
    with pytest.raises(ValueError, match="only where `layers` names none"):
        Rematerialize("block_0", mode="all")
    with pytest.raises(ValueError, match="Did you mean 'block_1'"):
        compiled(plain_blocks, Rematerialize("blok_1"))


def test_a_scope_of_keras_beside_it_is_refused():
    inputs = keras.Input((WIDTH,))
    with keras.RematScope("full"):
        x = dense(name="scoped")(inputs)
    model = fk.FastModel(inputs, keras.layers.Dense(1)(x))
    for feature in FEATURES["sqrt"], Rematerialize("dense*"):
        with pytest.raises(ValueError, match="and its mode: {'scoped': 'full'"):
            model.compile("sgd", "mse", perf=feature)
    model.compile("sgd", "mse")


def test_a_model_without_a_graph_is_refused():
    model = Owner()
    with pytest.raises(ValueError, match="Segments are chosen in a functional"):
        model.compile("sgd", "mse", perf=Rematerialize())


def test_a_budget_below_the_least_says_the_least():
    model = compiled(
        plain_blocks, Rematerialize(mode="budget", budget_bytes=100)
    )
    with pytest.raises(
        ValueError,
        match="budget_bytes=100, where a batch of 4"
        r" rows needs (\d+). Give at least \1, or a smaller",
    ):
        fit(model)


@pytest.mark.parametrize("depth", [0, 1])
def test_a_model_of_almost_no_layers(depth):
    inputs = keras.Input((WIDTH,))
    outputs = inputs
    for _ in range(depth):
        outputs = keras.layers.Dense(1)(outputs)
    model = fk.FastModel(inputs, outputs)
    with pytest.warns(UserWarning, match="too short to be cut") as seen:
        model.compile("sgd", "mse", perf=Rematerialize())
    assert seen[0].filename == __file__
    if depth:
        fit(model)


class Late(keras.Layer):
    """Makes a layer that is not built before its own first call."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.inner = keras.layers.Dense(WIDTH, name="late_inner")

    def build(self, shape):
        self.built = True

    def call(self, x, training=False):
        return self.inner(x) if training else x


def test_an_unbuilt_block_is_refused_by_name():
    inputs = keras.Input((WIDTH,))
    x = Late(name="late")(inputs)
    model = fk.FastModel(inputs, keras.layers.Dense(1)(x))
    model.compile("sgd", "mse", perf=Rematerialize("late"))
    with pytest.raises(
        ValueError, match=r"\['late_inner'\] of the layer 'late'"
    ):
        fit(model)


@pytest.mark.parametrize("eager", [True, False])
@pytest.mark.parametrize(
    ("call", "operation"),
    [
        (lambda x: x * tf.random.uniform(tf.shape(x)), "RandomUniform"),
        (lambda x: x + tf.numpy_function(np.ones_like, [x], x.dtype), "PyFunc"),
    ],
)
def test_a_call_that_differs_the_second_time_is_refused(call, operation, eager):
    inputs = keras.Input((WIDTH,))
    x = keras.layers.Lambda(call, name="odd", output_shape=(WIDTH,))(inputs)
    model = fk.FastModel(inputs, keras.layers.Dense(1)(x))
    model.compile("sgd", "mse", perf=Rematerialize("odd"), run_eagerly=eager)
    with pytest.raises(ValueError, match=f"the layer 'odd', .*{operation}"):
        fit(model)


# A tier whose compiler merges both runs of a block.


@pytest.mark.parametrize("feature", [FEATURES["sqrt"], "auto"])
def test_a_tier_that_keeps_more_is_found(feature):
    model = compiled(plain_blocks, feature, jit_compile=False)

    def step(size):
        return lambda: tf.zeros([size]) + 1

    more, less, least = step(20_000_000), step(2_000_000), step(1000)
    said = _parity.parting(model, more, less)
    # The control: without the feature memory is no reason.
    assert (said is None) == (feature == "auto")
    assert said is None or "what is to be computed again is kept" in said
    assert _parity.parting(model, less, more) is None
    # A busy machine may have the graph hold more in one of its runs.
    assert _parity._excess([30e6, 30e6, 10e6])
    assert not _parity._excess([20e6, 30e6, 10e6])
    # Too small to be counted.
    assert _parity.parting(model, more, least) is None


# Memory, each in a process of its own.

GRAPH = ["graph:plain:none:36"] + [
    f"graph:plain:sqrt:{depth}" for depth in (9, 36, 144)
]
XLA = ["xla:noise:none:12", "xla:noise:sqrt:12"]
VERDICTS = ["verdict:kept:sqrt:36", "verdict:merged:sqrt:36"]


@pytest.fixture(scope="module")
def told():
    """What each case came to."""
    return _peak.measure(*GRAPH, *XLA, *VERDICTS)


@pytest.mark.slow
def test_a_compiler_that_merges_is_refused(told):
    kept, merged = (told[case] for case in VERDICTS)
    # XLA was compiled in any case.
    assert kept == [[], True]
    (reason,), compiled = merged
    assert compiled
    assert re.match(
        "xla-loop left out: a step takes .* computed again is kept", reason
    )


@pytest.mark.slow
@pytest.mark.parametrize("cases", [GRAPH[:3:2], XLA], ids=["graph", "xla"])
def test_the_memory_is_saved(told, cases):
    """A tier whose compiler merged both runs of a block would save nothing."""
    without, with_it = (told[case] for case in cases)
    assert with_it < 0.55 * without


@pytest.mark.slow
def test_a_chain_needs_the_root_of_its_depth(told):
    sizes = [told[case] for case in GRAPH[1:]]
    # Four times the depth, about twice the memory.
    assert sizes[1] < 2.5 * sizes[0]
    assert sizes[2] < 2.5 * sizes[1]
