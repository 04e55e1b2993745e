"""A profile in words."""

_BAR = 30
_OPS = 8
# From these shares of a step on, something is worth a sentence.
_MUCH = 0.3
_SOME = 0.1
# Phases that need a word.
_PHASES = {
    "feed": "rows taken from arrays",
    "replicas": "sums and copies between the replicas",
    "runtime": "XLA between its operations, as in a loop over steps",
    "eager": "run one by one from Python",
    "other": "in no scope of a layer, a loss, the optimizer or a metric",
}
#: What the parts of a step are.
PARTS = {
    "compute": "operations of the step",
    "copies": "between host and device, where nothing computes",
    "input": "waits for a batch",
    "dispatch": "Python and TensorFlow's runtime, before an operation begins",
    "idle": "nothing that a trace shows, such as a thread that is put off",
}
#: What the figures are; a page says the same.
SPLIT = "a step, divided as the middle half of the traced steps were"
PHASES = "compute by phase; what runs at once shares the time"
#: Where phases differ from times of the parts of a step run alone.
LIMITS = (
    "What lies between operations, such as making room for what they give, is "
    "of no phase. A trace leaves out cheap operations that have run often, as "
    "in loops of a graph: they count as dispatch or idle. A forward pass run "
    "alone takes less than here: it keeps nothing for the gradient."
)

#: Of what is not in every step.
LOOP = (
    "The step holds a loop of a layer, as of an LSTM. A trace leaves out its "
    "cheap operations once they have run often: shares of phases were seen to "
    "be off by 8 to 33 points, and part of it counts as dispatch."
)
_CACHE = (
    "The pipeline keeps what it reads in a cache, which holds only once all of "
    "it is read: the steps looked at ran as in a first epoch, later ones wait "
    "less. With `steps` of at least the batches of the data they run as later."
)


def milliseconds(seconds):
    """Seconds as text, in milliseconds."""
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def findings(found):
    """Yields a sentence for each thing that stands out."""
    seconds = found["seconds"]
    if found["run"]["eager"]:
        yield (
            "THE STEPS RUN EAGERLY: every operation is called from Python. "
            "Compile without run_eagerly, and leave "
            "tf.config.run_functions_eagerly alone."
        )
    ready = found.time("step on one batch")
    alone = found.time("pipeline alone")
    if found["input"]["bound"]:
        yield (
            f"Input-bound: the pipeline takes {alone} for a batch, the model "
            f"{ready} for a step whose batch is at hand."
        )
    else:
        yield (
            f"Not input-bound: the pipeline alone takes {alone} for a batch, "
            f"a step whose batch is at hand {ready}."
        )
    if ready.lower > found.time("step").upper:
        yield (
            "A step whose batch is at hand took longer than one on the data: "
            "the machine was busy with something else in one of the runs."
        )
    yield from _of_epochs(found)
    if seconds["metrics"] > _SOME * found.step:
        name, cost = next(iter(found["metrics"].items()))
        yield (
            f"Metrics take {milliseconds(seconds['metrics'])} of a step, "
            f"most of it {name}, {milliseconds(cost)}."
        )


def _of_epochs(found):
    """What an epoch costs beside its steps, if surely much."""
    length = found["run"]["batches in the data"]
    beside, step = found.time("epoch beside its steps"), found.time("step")
    if length and beside.lower > _MUCH * length * step.upper:
        steps = "its one step" if length == 1 else f"its {length} steps"
        yield (
            f"An epoch takes {beside} beside {steps}: repeat the data, so that "
            "an epoch holds more of them."
        )


def limits(has_loop, tier, lacks_cache):
    """Yields what the figures of a step can't tell.

    Args:
        has_loop: Bool, whether a layer computes in a loop.
        tier: String, how the steps ran.
        lacks_cache: Bool, whether a cache of the pipeline never filled.
    """
    if lacks_cache:
        yield _CACHE
    if has_loop and "xla" not in tier.lower():
        yield LOOP


def way(found):
    """How the steps ran, in the words of a receipt."""
    run = found["run"]
    calls = run["steps per launch"]
    calls = "one step" if calls == 1 else f"{calls:.3g} steps"
    return f"{calls} a call, {run['tier']}"


def basis(found):
    """What the figures of a step rest on."""
    text = f"the median of {found.time('step').n} stretches without a trace"
    steps, traced = found["run"]["steps"], milliseconds(found["traced step"])
    count = found.time("compute", "split").n
    return (
        f"{text}; {steps} steps traced in {count}, {traced} each; ±: half of "
        "what lies between the quartiles"
    )


def lines(found):
    """Yields the lines of the text."""
    step, eager = found.time("step"), found["run"]["eager"]
    yield f"{found['model']}: {step} a step, {way(found)}, run_eagerly={eager}"
    yield f"({basis(found)})"
    yield SPLIT
    for name, share in found.shares.items():
        yield _row(name, found.time(name, "split"), share)
    yield PHASES
    total = sum(found["phases"].values()) or 1.0
    for name, value in by_cost(found["phases"]):
        yield _row(name, found.time(name, "phases"), value / total)
    yield from (
        f"  {name}: {text}" for name, text in phase_words(found["phases"])
    )
    metrics = found["seconds"]["metrics"]
    yield "model and metrics, timed apart"
    yield f"  model+optimizer {milliseconds(max(0.0, found.step - metrics))}"
    yield f"  metrics         {milliseconds(metrics)}"
    for name, value in found["metrics"].items():
        yield f"    {name}: {milliseconds(value)}"
    yield "dearest operations of a step"
    for op in found["ops"][:_OPS]:
        yield (
            f"  {milliseconds(op['seconds']):>10} {op['count']:6.3g}× "
            f"{op['kind']:24} {op['phase']:10} {op['name'][-60:]}"
        )
    yield f"eager calls: {found['eager share']:.0%} of the time in calls"
    yield from (f"- {text}" for text in (*found.findings, *found["notes"]))


def by_cost(values):
    """The pairs of a dict of numbers, the largest first."""
    return sorted(values.items(), key=lambda pair: -pair[1])


def phase_words(phases):
    """Pairs of name and meaning of the phases that need a word."""
    return [(k, text) for k, text in _PHASES.items() if k in phases]


def half(time):
    """Half of the spread of a `Summary`, in its unit; "" if there is none."""
    scale = 1e3 if time.median < 1 else 1
    return f"±{time.spread / 2 * scale:.2g}" if time.n > 1 else ""


def _row(name, time, share):
    value, bar = milliseconds(time.median), "#" * round(_BAR * share)
    return f"  {name:10} {value:>9} {half(time):8} {share:6.1%} {bar}"
