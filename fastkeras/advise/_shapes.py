"""Rules on the shapes of batches: what they have traced and compiled anew.

In `fit`, fastkeras traces a step for a batch and once more, with all that
varies left open, for any other. Keras leaves it open from the start, and
traces once. XLA compiles each shape, whoever runs the steps.
"""

from fastkeras.advise._advice import PIN
from fastkeras.advise._advice import Advice
from fastkeras.advise._advice import offered
from fastkeras.advise._data import without_rows
from fastkeras.perf import PadBatches

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
        _padding(facts, PadBatches(multiple_of=16)),
        (
            "`dataset.bucket_by_sequence_length(..., "
            "pad_to_bucket_boundary=True)`",
            None,
        ),
    ]
    if spec is not None:
        pin = {"signature": spec, "steps_per_launch": "auto"}
        text = f"Execution(signature={_code(spec)})"
        options.insert(0, (text, {"execution": pin}))
    return Advice(
        "retraces",
        f"{_vary(facts)}: a step is traced for the first, and again with "
        "what varies left open",
        "one trace instead of two: the time of one, once",
        **offered(facts, *options),
        aim="traces",
    )


def last_batch(facts):
    """A last batch that is traced, or compiled by XLA, for itself."""
    compiled = facts.is_compiled
    if not _is_short(facts) or not (facts.traces_shapes or compiled):
        return None
    made = ["trace"] * facts.traces_shapes + ["XLA compilation"] * compiled
    options = [_padding(facts, PadBatches()), _DROP]
    if not compiled:
        text = "Execution(signature='pin'), with the number of rows left open"
        options.insert(1, (text, PIN))
    return Advice(
        "last batch",
        f"{_short(facts)}: one more {' and one more '.join(made)}",
        f"one shape in all epochs; the time of that {made[-1]}, once",
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
    if not facts.data.is_arrays:
        text += " (the steps of a dataset are then run one by one, in no loop)"
    return text, {"perf": [feature]}


def _code(spec):
    """A structure of `tf.TensorSpec` as it is written."""
    return (
        repr(spec)
        .replace("TensorSpec", "tf.TensorSpec")
        .replace(", name=None", "")
    )


def _text(spec):
    return ", ".join(f"{dtype} {str((None, *shape))}" for shape, dtype in spec)
