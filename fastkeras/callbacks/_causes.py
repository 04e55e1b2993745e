"""The known causes of a retrace, and the fix for each."""

LAST_BATCH = "the last batch is smaller"
ROWS = "the number of rows varies"
LENGTH = "the length varies"
DTYPE = "the dtype changed"
PYTHON = "a Python number was passed"
STRUCTURE = "the structure of the data changed"
REBUILT = "the function was rebuilt"
CONTEXT = "its arguments are as before, what is around them is not"

FIXES = {
    LAST_BATCH: "Drop the last batch (`dataset.batch(n, drop_remainder=True)`)"
    ", take a batch size that divides the number of rows, or have a FastModel "
    "fill it up (`perf=[PadBatches()]`): the same update.",
    ROWS: "Batch all the data alike, with `drop_remainder=True`, or have a "
    "FastModel fill the batches up (`perf=[PadBatches()]`).",
    LENGTH: "Pad to a few lengths, such as the next multiple of 16. Where the "
    "model has a mask, a FastModel does it: "
    "`perf=[PadBatches(multiple_of=16)]`. Else take "
    "`keras.utils.pad_sequences`, or `dataset.bucket_by_sequence_length` "
    "with `pad_to_bucket_boundary=True`.",
    DTYPE: "Cast in the data pipeline, so that all batches have one dtype.",
    PYTHON: "Pass a tensor, such as `tf.constant(value)`: each new Python "
    "number is a new trace.",
    STRUCTURE: "Give each batch the same parts: x, y and sample weights.",
    REBUILT: "Compile once, before `fit`; what changes later (a learning rate)"
    " belongs in a variable.",
    CONTEXT: "Train under one strategy and with one setting of the policies; "
    "what the step reads from outside should be a variable.",
}


def cause(entry, last):
    """The known cause of an entry of the ledger.

    Args:
        entry: `Entry` that is not a first call.
        last: Bool, whether it happened in the last launch of an epoch.
    """
    if len(entry.old) != len(entry.new):
        return STRUCTURE
    changes = entry.changes
    if not changes:
        return CONTEXT
    if any(leaf.dtype.startswith("Python") for _, leaf in changes):
        return PYTHON
    if any(old.dtype != new.dtype for old, new in changes):
        return DTYPE
    if any(old.shape[1:] != new.shape[1:] for old, new in changes):
        return LENGTH
    if last and all(new.shape[:1] < old.shape[:1] for old, new in changes):
        return LAST_BATCH
    return ROWS
