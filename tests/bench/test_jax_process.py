"""The process with JAX, whose interpreter need not have TensorFlow."""

import ast
import pathlib

ROOT = pathlib.Path(__file__).parents[2]

STARTS = ["fastkeras.bench.sides", "fastkeras.bench.jax_scan"]


def file_of(module):
    return ROOT / (module.replace(".", "/") + ".py")


def imported(module):
    """What the file of a module imports, as full names."""
    text = file_of(module).read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield name if file_of(name).exists() else node.module


def reached(starts):
    """All modules that the starts lead to; packages' fronts are stand-ins."""
    found, todo = set(), list(starts)
    while todo:
        module = todo.pop()
        if module not in found:
            found.add(module)
            if file_of(module).exists():
                todo += imported(module)
    return {module.partition(".")[0] for module in found}


def test_nothing_that_the_process_runs_needs_tensorflow():
    assert "numpy" in reached(STARTS)
    assert not reached(STARTS) & {"tensorflow", "tf"}
    # The walk finds it where it is.
    assert "tensorflow" in reached(["fastkeras.bench.fast"])
