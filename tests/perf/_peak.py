"""The memory of a training step, each measured in a process of its own.

Run as `python _peak.py TIER KIND FEATURE:DEPTH...`; prints bytes, a line each.
In the graph they are the peak of the process above what it held before; under
XLA, whose compiler needs more memory than a small model, what the compiled
step asks for. The processes are forks of one, which has only imported: that
takes longer than a step.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).parents[2]
WIDTH = 64
# What a compiled step asks for is known to the byte for any batch; the peak
# of a process needs one that is large beside Python.
BATCH = {"graph": 16384, "xla": 1024}


def measure(tier, kind, *cases):
    """Starts the processes; returns the bytes of each `"FEATURE:DEPTH"`."""
    run = subprocess.run(
        [sys.executable, __file__, tier, kind, *cases],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "TF_CPP_MIN_LOG_LEVEL": "3",
        },
        check=True,
        capture_output=True,
        text=True,
    )
    sizes = [int(line) for line in run.stdout.splitlines()]
    assert len(sizes) == len(cases)
    return sizes


def main(tier, kind, *cases):
    # Before the fork: see above.
    import keras  # noqa: F401

    import fastkeras as fk  # noqa: F401

    for case in cases:
        child = os.fork()
        if not child:
            step = compiled_step if tier == "xla" else graph_step
            print(step(kind, *case.split(":")), flush=True)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status:
            sys.exit(f"{case} ended with {status}")


def graph_step(kind, feature, depth):
    from fastkeras._lib import process

    model, data = prepared("graph", kind, feature, depth)
    model.fit(*(a[:2] for a in data), batch_size=2, verbose=0)
    held = process.held()
    model.fit(*data, batch_size=BATCH["graph"], verbose=0)
    return process.peak() - held


def compiled_step(kind, feature, depth):
    with tempfile.TemporaryDirectory() as folder:
        flags = f"--xla_dump_to={folder} --xla_dump_hlo_as_text"
        os.environ["XLA_FLAGS"] = flags
        model, data = prepared("xla", kind, feature, depth)
        model.fit(*data, batch_size=BATCH["xla"], verbose=0)
        files = pathlib.Path(folder).glob("*buffer-assignment.txt")
        texts = [f.read_text() for f in files]
    found = r"allocation \d+: size (\d+), preallocated-temp"
    return max(int(n) for text in texts for n in re.findall(found, text))


def prepared(tier, kind, feature, depth):
    """A compiled model, and what to fit it on."""
    import keras
    import numpy as np

    import fastkeras as fk

    x = inputs = keras.Input((WIDTH,))
    for k in range(int(depth)):
        x = keras.layers.Dense(WIDTH, "relu")(x)
        if kind == "noise":
            x = keras.layers.BatchNormalization()(x)
            # Each takes XLA some time to compile.
            x = keras.layers.Dropout(0.1)(x) if k % 4 == 0 else x
    model = fk.FastModel(inputs, keras.layers.Dense(1)(x))
    perf = [fk.perf.Execution(feed="stream", jit=tier == "xla")]
    if feature != "none":
        perf.append(fk.perf.Rematerialize(mode=feature))
    model.compile(keras.optimizers.SGD(1e-6), "mse", perf=perf)
    rows = BATCH[tier]
    data = np.ones((rows, WIDTH), "float32"), np.ones((rows, 1), "float32")
    return model, data


if __name__ == "__main__":
    main(*sys.argv[1:])
