"""Rules on the data: shapes that vary, epochs that end, input that is late."""

from fastkeras._lib import figures
from fastkeras.advise._advice import Advice
from fastkeras.engine._resident import MEMORY_SHARE
from fastkeras.perf import PadBatches

#: Bytes of arrays from which on Keras's copy of them counts.
LARGE = 2**26

_PYTHON_STAGE = "runs Python, whose lock lets parallel calls gain nothing: "
_FIXES = {
    "FlatMap": _PYTHON_STAGE + "write the rows as TFRecord once, or `.cache()`",
    "Generator": _PYTHON_STAGE
    + "write the rows as TFRecord once, or `.cache()`",
    "Map": "`.map(f, num_parallel_calls=tf.data.AUTOTUNE)`, after `.batch` "
    "if f can take a batch, then `.prefetch(tf.data.AUTOTUNE)`",
    "ParallelMap": "`.cache()` after it if its output fits in memory; map "
    "batches instead of rows",
    "Shuffle": "a smaller buffer, and shuffle before the rows are decoded",
    "Filter": "filter once and store the result, or `.cache()`",
}
_FIX = "`.cache()` after it, and `.prefetch(tf.data.AUTOTUNE)` at the end"


def retraces(facts):
    """Lengths, dtypes or structures that differ from batch to batch."""
    kinds = {_without_rows(spec) for spec in facts.data.specs}
    if len(kinds) == 1:
        return None
    first, second = sorted(kinds, key=str)[:2]
    dtypes = {tuple(dtype for _, dtype in spec) for spec in kinds}
    compiled = facts.requested_jit is True and not facts.is_eager
    change = (
        "cast in the pipeline, so that all batches have one dtype"
        if len(dtypes) > 1
        else "`dataset.bucket_by_sequence_length(..., "
        "pad_to_bucket_boundary=True)`, or perf=[perf.PadBatches("
        f"multiple_of=16)]{_price(facts)}; `Execution(signature='pin')` makes "
        "a new shape an error"
    )
    return Advice(
        "retraces",
        f"{len(kinds)} kinds of batch in the first {len(facts.data.specs)}, "
        f"such as {_text(first)} and {_text(second)}",
        "one trace" + (", and few compilations" if compiled else ""),
        change,
        **_padding(facts, len(dtypes) == 1 and compiled, multiple_of=16),
    )


def last_batch(facts):
    first, last = facts.data.specs[0], facts.data.last
    if last is None or _without_rows(first) != _without_rows(last):
        return None
    rows, of_last = first[0][0][:1], last[0][0][:1]
    pads = facts.is_fast and facts.model.perf.pads
    if rows == of_last or pads:
        return None
    compiled = facts.model.jit_compile and not facts.is_eager
    return Advice(
        "last batch",
        f"the last batch has {of_last[0]} rows, the others {rows[0]}: one more "
        + ("trace and one more XLA compilation" if compiled else "trace"),
        "one shape in all epochs; the time of that trace, once",
        f"perf=[perf.PadBatches()] trains on the same rows{_price(facts)}; "
        "`batch(n, drop_remainder=True)` leaves some out",
        **_padding(facts, facts.data.is_arrays or compiled),
    )


def shapes_under_xla(facts):
    """XLA compiles each concrete shape, also where a dimension is open."""
    asked = facts.requested_jit is True or facts.model.jit_compile
    shapes = set(facts.data.specs)
    if not asked or len(shapes) == 1 or facts.is_eager:
        return None
    if facts.is_fast and facts.model.perf.pads:
        return None
    more = "" if facts.data.is_whole else "at least "
    vary = len({_without_rows(spec) for spec in shapes}) > 1
    of = "multiple_of=16" if vary else ""
    return Advice(
        "shapes under XLA",
        f"{more}{len(shapes)} shapes of batches: XLA compiles each, whatever "
        "the signature leaves open",
        f"1 compilation or few instead of {len(shapes)}",
        f"perf=[perf.PadBatches({of})]{_price(facts)}, or pad to buckets; "
        "`drop_remainder=True`",
        **_padding(facts, True, **({"multiple_of": 16} if vary else {})),
    )


def _price(facts):
    """What PadBatches costs where the steps could run in loops."""
    if facts.data.is_arrays:
        return ""
    return " (the steps of a dataset are then run one by one, in no loop)"


def _padding(facts, pays, **options):
    """The settings that pad, where that may pay."""
    if not (facts.is_fast and pays):
        return {}
    return {"settings": {"perf": [PadBatches(**options)]}, "aim": "traces"}


def input_wait(facts):
    if facts.profile is None or not facts.profile["input"]["bound"]:
        return None
    name, seconds = max(facts.stages, key=lambda stage: stage[1])
    share, step = facts.profile["input"]["share"], facts.profile.step
    return Advice(
        "input wait",
        f"a step of {step * 1e3:.3g} ms waits {share:.0%} of it for its "
        f"batch; the stage {name} takes most, {seconds * 1e3:.3g} ms a batch",
        f"up to {1 / (1 - share):.2g} times as fast",
        f"{name}: {_FIXES.get(name, _FIX)}",
    )


def large_arrays(facts):
    """Arrays that are copied, where a pipeline would read a part at a time."""
    size, limit = facts.data.array_bytes, LARGE
    if facts.is_fast:
        limit = MEMORY_SHARE * facts.free_memory
    if size < limit:
        return None
    return Advice(
        "large arrays",
        f"{figures.memory(size)} of arrays, of which `fit` holds a second copy"
        + (
            ": too large for a device with "
            f"{figures.memory(facts.free_memory)} free, so that each batch is "
            "gathered on the host"
            if facts.is_fast
            else ", and gathers the rows of each batch from it"
        ),
        "no second copy, and batches that are read ahead",
        "a tf.data.Dataset that reads files, such as TFRecord, with "
        "`.batch(n).prefetch(tf.data.AUTOTUNE)`",
    )


def one_step_epochs(facts):
    if len(facts.data.specs) > 1:
        return None
    beside = ""
    if facts.profile is not None:
        seconds = facts.profile["seconds"]
        beside = (
            f": {seconds['epoch beside its steps'] * 1e3:.3g} ms beside a "
            f"step of {facts.profile.step * 1e3:.3g} ms"
        )
    return Advice(
        "epochs of one step",
        "an epoch is one step, so what is done once an epoch (metrics, logs, "
        "callbacks) is done every step" + beside,
        "several times as fast for a small model",
        "dataset.repeat(k) (k times the arrays) and k times fewer epochs"
        + ("" if facts.is_fast else ", with steps_per_execution=k"),
    )


def _without_rows(spec):
    return tuple((shape[1:], dtype) for shape, dtype in spec)


def _text(spec):
    return ", ".join(f"{dtype} (None, {str(s)[1:]}" for s, dtype in spec)
