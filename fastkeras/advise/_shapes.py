"""Rules on the shapes of batches: what they have traced and compiled anew.

In `fit`, fastkeras traces a step for a batch and once more, with all that
varies left open, for any other. Keras leaves it open from the start, and
traces once. XLA compiles each shape, whoever runs the steps.
"""

import math

from fastkeras.advise._advice import PIN
from fastkeras.advise._advice import Advice
from fastkeras.advise._advice import offered
from fastkeras.advise._advice import times
from fastkeras.advise._data import without_rows
from fastkeras.perf import PadBatches

#: What padding adds to sequences is told from so many times their length on.
MUCH = 1.1
_DROP = "`batch(n, drop_remainder=True)`, which leaves some rows out", None


def retraces(facts):
    """Lengths, dtypes or structures that differ from batch to batch."""
    kinds = facts.data.kinds
    if len(kinds) == 1 or not facts.traces_shapes:
        return None
    if len({tuple(dtype for _, dtype in spec) for spec in kinds}) > 1:
        return Advice(
            "retraces",
            _vary(facts),
            "one trace",
            "cast in the pipeline, so that all batches have one dtype",
        )
    spec = facts.data.open_spec
    options = [
        (
            "`dataset.bucket_by_sequence_length(..., "
            "pad_to_bucket_boundary=True)`",
            None,
        ),
        _padding(facts, PadBatches(multiple_of=16)),
    ]
    if spec is not None:
        pin = {"signature": spec, "steps_per_launch": "auto"}
        text = f"Execution(signature={_code(spec)})"
        options.insert(1, (text, {"execution": pin}))
    return Advice(
        "retraces",
        f"{_vary(facts)}: a step is traced for the first, and again with "
        f"what varies left open{_price(facts)}",
        f"one trace instead of two, {_once(facts)}",
        **offered(facts, *_as_it_is(facts), *options),
        aim="traces",
    )


def last_batch(facts):
    """A last batch that is traced, or compiled by XLA, for itself."""
    compiled = facts.is_compiled
    if not _is_short(facts) or not (facts.traces_shapes or compiled):
        return None
    made = ["trace"] * facts.traces_shapes + ["XLA compilation"] * compiled
    evidence = f"{_short(facts)}: one more {' and one more '.join(made)}"
    options = [_DROP, _padding(facts, PadBatches())]
    if compiled:
        gain = "one shape in all epochs; the time of that compilation, once"
    else:
        evidence += _price(facts)
        gain = f"one trace less, {_once(facts)}"
        text = "Execution(signature='pin'), with the number of rows left open"
        options = [*_as_it_is(facts), *options, (text, PIN)]
    return Advice(
        "last batch",
        evidence,
        gain,
        **offered(facts, *options),
        aim="traces",
    )


def shapes_under_xla(facts):
    """XLA compiles each concrete shape, also where a dimension is open."""
    shapes, vary = set(facts.data.specs), facts.varies
    if not facts.is_compiled or facts.pads or len(shapes) == 1:
        return None
    if not vary and len(set(facts.data.specs[:-1])) == 1:
        # It is the last batch alone, of which there is a rule.
        return None
    more = "" if facts.data.is_whole else "at least "
    return Advice(
        "shapes under XLA",
        f"{more}{len(shapes)} shapes of batches: XLA compiles each, whatever "
        "the signature leaves open",
        f"1 compilation or few instead of {len(shapes)}",
        **offered(
            facts,
            _padding(facts, PadBatches(multiple_of=16 if vary else None)),
            ("batches padded to a few lengths", None) if vary else _DROP,
        ),
        aim="traces",
    )


def open_shapes(facts):
    """Shapes that differ, where a step is not made anew for them."""
    if facts.is_compiled or (facts.is_fast and not facts.is_eager):
        return None
    kinds = facts.data.kinds
    if len(kinds) == 1 and not _is_short(facts):
        return None
    why = (
        "run eagerly, no step is traced for them"
        if facts.is_eager
        else "`fit` of Keras leaves them open and traces its step once"
    )
    rule, evidence = (
        ("retraces", _vary(facts))
        if len(kinds) > 1
        else ("last batch", _short(facts))
    )
    return Advice(
        rule,
        f"{evidence}; {why}, but XLA, `train_on_batch` and functions of your "
        "own are made anew",
        "nothing in `fit` as it is compiled",
        "where one of these is used: perf=[perf.PadBatches()], or "
        "`batch(n, drop_remainder=True)`; buckets where lengths vary",
    )


def _once(facts):
    return f"{facts.trace_seconds:.2g} s, once; no faster a step"


def _price(facts):
    """What a step costs that no loop runs, in words."""
    seconds = _loop_saves(facts)
    if not seconds:
        return ""
    return (
        "; with a pinned signature, or a dataset that is padded, no loop runs "
        f"the steps: {seconds * 1e3:.2g} ms more each"
    )


def _as_it_is(facts):
    """To change nothing, where a step would lose more than a trace takes."""
    seconds = _loop_saves(facts)
    if not seconds:
        return []
    steps = math.ceil(facts.trace_seconds / seconds)
    epochs = times(steps / facts.data.count)
    text = f"nothing, for a training of more than {steps} steps"
    return [(f"{text} ({epochs} epochs)", None)]


def _loop_saves(facts):
    """Seconds that a loop takes off a step; 0 where none runs, or none."""
    if not facts.runs_loops or facts.calls is None:
        return 0.0
    alone, looped = facts.calls
    return max(0.0, alone.lower - looped.upper)


def _is_short(facts):
    """Whether the last batch differs in its rows alone."""
    first, last = facts.data.specs[0], facts.data.last
    if last is None or facts.pads:
        return False
    alike = without_rows(first) == without_rows(last)
    return alike and _rows(first) != _rows(last)


def _rows(spec):
    return spec[0][0][:1]


def _vary(facts):
    kinds = facts.data.kinds
    first, second = (_text(kind) for kind in sorted(kinds, key=str)[:2])
    return (
        f"{len(kinds)} kinds of batch in the first {len(facts.data.specs)}, "
        f"such as {first} and {second}"
    )


def _short(facts):
    (of_last,), (rows,) = _rows(facts.data.last), _rows(facts.data.specs[0])
    return f"the last batch has {of_last} rows, the others {rows}"


def _padding(facts, feature):
    """The change that pads batches, and its settings."""
    of = feature.multiple_of
    text = f"perf=[perf.PadBatches({f'multiple_of={of}' if of else ''})]"
    longer = _padded(facts.data.specs, of) if of else 1.0
    if longer >= MUCH:
        text += f", which makes sequences {times(longer)} times as long"
    return text, {"perf": [feature]}


def _padded(specs, multiple):
    """How many times their steps batches have when they are padded."""
    real = padded = 0
    for leaf in zip(*specs, strict=False):
        lengths = [shape[1] for shape, _ in leaf if len(shape) > 1]
        if len(set(lengths)) > 1:
            real += sum(lengths)
            padded += sum(-(-n // multiple) * multiple for n in lengths)
    return padded / real if real else 1.0


def _code(spec):
    """A structure of `tf.TensorSpec` as it is written."""
    return (
        repr(spec)
        .replace("TensorSpec", "tf.TensorSpec")
        .replace(", name=None", "")
    )


def _text(spec):
    return ", ".join(f"{dtype} {str((None, *shape))}" for shape, dtype in spec)
