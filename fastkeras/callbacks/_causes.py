"""The known causes of a retrace, and the fix for each."""

from fastkeras.engine._specs import NOTHING
from fastkeras.engine._specs import SIZE
from fastkeras.engine._specs import WINDOW
from fastkeras.perf.pad_batches import PadBatches

LAST_BATCH = "the last batch is smaller"
LAST_WINDOW = "the last update has fewer batches"
ROWS = "the number of rows varies"
ARRAYS = "the arrays have another number of rows"
BATCH_SIZE = "the batch size changed"
LENGTH = "the length varies"
RANK = "the number of dimensions changed"
DTYPE = "the dtype changed"
PYTHON = "a Python number was passed"
STRUCTURE = "the structure of the data changed"
REBUILT = "the function was rebuilt"
CONTEXT = "its arguments are as before, the setting it is called in is not"
VARIABLES = "variables were made in the call"

FIXES = {
    LAST_BATCH: "Drop the last batch (`dataset.batch(n, drop_remainder=True)`)"
    ", take a batch size that divides the number of rows, or have a FastModel "
    "fill it up (`perf=[PadBatches()]`): the same update.",
    ROWS: "Give all batches one size, with `drop_remainder=True` and the same "
    "in each call, or have a FastModel fill them up (`perf=[PadBatches()]`).",
    LAST_WINDOW: "Give an epoch a number of batches that `Accumulate(steps)` "
    "divides, or let it be: it is traced once, and weighs what it holds.",
    ARRAYS: "Nothing is to be done for a few lengths: each is traced once.",
    BATCH_SIZE: "Give each call the same `batch_size`, where it can be.",
    LENGTH: "Pad to a few lengths, such as the next multiple of 16. Where the "
    "model has a mask, a FastModel does it: "
    "`perf=[PadBatches(multiple_of=16)]`. Else take "
    "`keras.utils.pad_sequences`, or `dataset.bucket_by_sequence_length` "
    "with `pad_to_bucket_boundary=True`.",
    RANK: "Give all batches one number of dimensions: `(rows, 1)` and "
    "`(rows,)` are two.",
    DTYPE: "Cast in the data pipeline, so that all batches have one dtype.",
    PYTHON: "Pass a tensor, such as `tf.constant(value)`: each new Python "
    "number is a new trace.",
    STRUCTURE: "Give each batch the same parts: x, y and sample weights.",
    REBUILT: "Compile once, before `fit`; what changes later (a learning rate)"
    " belongs in a variable. After a change of `trainable` it has to be.",
    CONTEXT: "Call it under one strategy and with one dtype policy; a value "
    "from outside that the step reads should be a `tf.Variable`.",
    VARIABLES: "Build the model before `fit`: give it a `keras.Input`, call "
    "`model.build(input_shape)`, make variables in `__init__` or `build`, and "
    "call `model.optimizer.build(model.trainable_variables)`.",
}


#: The fix where a model has had variables of its own before.
BUILT = (
    "They are those of the optimizer and of metrics, once for each `compile`: "
    "let it be, or before `fit` call "
    "`model.optimizer.build(model.trainable_variables)` and, with metrics, "
    "`model.test_on_batch(x, y)` on a few rows."
)


#: The fix where a plan pads sequences already.
PADDED = (
    "Each length that `PadBatches` fills up to is traced once: let it be, or "
    "take fewer of them, by a larger `multiple_of` or fewer `buckets`."
)


def fix(cause, model):
    """What to do about a cause, in a model as it is compiled."""
    if cause == LENGTH and hasattr(model, "perf"):
        for feature in model.perf.features:
            pads = isinstance(feature, PadBatches)
            if pads and (feature.multiple_of or feature.buckets):
                return PADDED
    return FIXES[cause]


def cause(entry, last):
    """The known cause of an entry of the ledger.

    Args:
        entry: `Entry` that is not a first call.
        last: Bool, whether it happened in the last launch of an epoch.
    """
    changes = entry.changes
    if not changes:
        return CONTEXT
    if any(new.path == WINDOW for _, new in changes):
        return LAST_WINDOW
    dtypes = {leaf.dtype for pair in changes for leaf in pair}
    if NOTHING in dtypes:
        return STRUCTURE
    if any(new.dtype.startswith("Python") for _, new in changes):
        return PYTHON
    if any(old.dtype != new.dtype for old, new in changes):
        return DTYPE
    if any(new.path == SIZE for _, new in changes):
        return BATCH_SIZE
    found = _cause_of_shapes([(a.shape, b.shape) for a, b in changes], last)
    # Its data are whole arrays, not batches.
    is_whole = any(leaf.path == SIZE for leaf in entry.new)
    return ARRAYS if is_whole and found in (ROWS, LAST_BATCH) else found


def _cause_of_shapes(shapes, last):
    if any(len(old) != len(new) for old, new in shapes):
        return RANK
    if any(old[1:] != new[1:] for old, new in shapes):
        return LENGTH
    known = all(None not in old[:1] + new[:1] for old, new in shapes)
    if last and known and all(new[:1] < old[:1] for old, new in shapes):
        return LAST_BATCH
    return ROWS
