"""The memory of a training step, measured in a process of its own.

Run as `python _peak.py FEATURE TIER DEPTH NOISE`; prints bytes. In the graph
they are the peak of the process above what it held before; under XLA, whose
compiler needs more memory than a small model, what the compiled step asks for.
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


def measure(feature, tier, depth, noise):
    """Starts the process; returns the bytes."""
    with tempfile.TemporaryDirectory() as folder:
        flags = f"--xla_dump_to={folder} --xla_dump_hlo_as_text"
        run = subprocess.run(
            [sys.executable, __file__, feature, tier, str(depth), noise],
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "XLA_FLAGS": flags if tier == "xla" else "",
                "TF_CPP_MIN_LOG_LEVEL": "3",
            },
            check=True,
            capture_output=True,
            text=True,
        )
        if tier == "graph":
            return int(run.stdout.split()[-1])
        files = pathlib.Path(folder).glob("*buffer-assignment.txt")
        texts = [f.read_text() for f in files]
    found = r"allocation \d+: size (\d+), preallocated-temp"
    return max(int(n) for text in texts for n in re.findall(found, text))


def main(feature, tier, depth, noise):
    import keras
    import numpy as np

    import fastkeras as fk
    from fastkeras._lib import process

    x = inputs = keras.Input((WIDTH,))
    for k in range(int(depth)):
        x = keras.layers.Dense(WIDTH, "relu")(x)
        if noise == "noise":
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
    if tier == "graph":
        model.fit(*(a[:2] for a in data), batch_size=2, verbose=0)
    held = process.held()
    model.fit(*data, batch_size=rows, verbose=0)
    print(process.peak() - held)


if __name__ == "__main__":
    main(*sys.argv[1:])
