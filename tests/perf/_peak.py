"""The memory of a training step, each measured in a process of its own.

Run as `python _peak.py TIER:KIND:FEATURE:DEPTH...`; prints a line of JSON for
each. In the graph it is the bytes of tensors that the allocator had out at
most; under XLA what the compiled step asks for; as a verdict what the pilot
says of an XLA loop beside the graph. The processes are forks of one, which
has only imported: that takes longer than a step. What others left free in an
allocator decides how it rounds, and here there is nothing; what the graph
holds depends on which thread comes first, and here there is one.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).parents[2]
WIDTH = 64
#: A layer of these is 512 KB. TensorFlow counts no small tensors on a CPU.
ROWS = 2048


def measure(*cases):
    """Starts the processes; returns a dict of what each case printed."""
    run = subprocess.run(
        [sys.executable, __file__, *cases],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "TF_NUM_INTEROP_THREADS": "1",
            "TF_CPP_MIN_LOG_LEVEL": "3",
        },
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    values = map(json.loads, run.stdout.splitlines())
    return dict(zip(cases, values, strict=True))


def main(*cases):
    # Before the fork: see above.
    import keras  # noqa: F401

    import fastkeras as fk  # noqa: F401

    steps = {"graph": graph_step, "xla": compiled_step, "verdict": verdict}
    for case in cases:
        child = os.fork()
        if not child:
            tier, *rest = case.split(":")
            print(json.dumps(steps[tier](*rest)), flush=True)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status:
            sys.exit(f"{case} ended with {status}")


def graph_step(kind, feature, depth):
    from fastkeras.engine import _parity

    model, data = prepared(kind, feature, depth, jit=False)
    model.fit(*data, batch_size=ROWS, verbose=0)
    return _parity._peak(lambda: model.fit(*data, batch_size=ROWS, verbose=0))


def compiled_step(kind, feature, depth):
    with tempfile.TemporaryDirectory() as folder:
        flags = f"--xla_dump_to={folder} --xla_dump_hlo_as_text"
        os.environ["XLA_FLAGS"] = flags
        model, data = prepared(kind, feature, depth, jit=True)
        model.fit(*data, batch_size=ROWS, verbose=0)
        files = pathlib.Path(folder).glob("*buffer-assignment.txt")
        texts = [f.read_text() for f in files]
    found = r"allocation \d+: size (\d+), preallocated-temp"
    return max(int(n) for text in texts for n in re.findall(found, text))


def verdict(kind, feature, depth):
    """The choices of a pilot that tries the loop, `"merged"` unguarded."""
    import keras

    from fastkeras.engine import _pilot
    from fastkeras.engine import _tiers
    from fastkeras.perf import _recompute

    def unguard(epoch, logs):
        # Once the graph is traced: nothing holds XLA back.
        if kind == "merged":
            _recompute._after = lambda tensor, _: tensor

    _pilot.FREE = 1e9
    _tiers.available = lambda *_: (["graph-step", "xla-loop"], [])
    model, data = prepared("plain", feature, depth, jit="auto", feed="resident")
    model.fit(
        *data,
        batch_size=ROWS,
        epochs=6,
        verbose=0,
        callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=unguard)],
    )
    pilot = model.train_function.pilots["resident"]
    # It was compiled in any case.
    return [pilot.reasons, "xla-loop" in pilot.cost]


def prepared(kind, feature, depth, jit, feed="stream"):
    """A compiled model, and what to fit it on."""
    import keras
    import numpy as np

    import fastkeras as fk

    x = inputs = keras.Input((WIDTH,))
    for k in range(int(depth)):
        x = keras.layers.Dense(WIDTH, "tanh")(x)
        if kind == "noise":
            x = keras.layers.BatchNormalization()(x)
            # Each takes XLA some time to compile.
            x = keras.layers.Dropout(0.1)(x) if k % 4 == 0 else x
    model = fk.FastModel(inputs, keras.layers.Dense(1)(x))
    pinned = fk.perf.Execution(
        feed=feed, jit=jit, steps_per_launch=1, cache=False
    )
    perf = [pinned]
    if feature != "none":
        perf.append(fk.perf.Rematerialize(mode=feature))
    model.compile(keras.optimizers.SGD(1e-6), "mse", perf=perf)
    data = np.ones((ROWS, WIDTH), "float32"), np.ones((ROWS, 1), "float32")
    return model, data


if __name__ == "__main__":
    main(*sys.argv[1:])
