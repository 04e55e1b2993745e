"""Rules on Python around and inside the step: it should be traced once.

A rule is a function of `Facts` that returns an `Advice` or None.
"""

import math
import statistics

import tensorflow as tf

from fastkeras._lib import figures
from fastkeras.advise._advice import FAST
from fastkeras.advise._advice import PIN
from fastkeras.advise._advice import Advice
from fastkeras.advise._advice import offered
from fastkeras.advise._advice import times
from fastkeras.engine._tiers import xla_refusal
from fastkeras.model import FastModel

#: Share of a step in Python and dispatch above which it is worth a change.
DISPATCH = 0.3
#: So many times as fast is told as a gain.
LEAST = 1.1
#: From so many variables on, of so few entries in the middle, an update is
#: made of small operations.
MANY, SMALL = 100, 4096


def eager(facts):
    if not facts.is_eager:
        return None
    where = (
        "run_eagerly=True in compile"
        if facts.model.run_eagerly
        else "tf.config.run_functions_eagerly(True)"
    )
    name, size = facts.traced.largest
    activation = (
        f"; the largest activation, {name}, takes {figures.memory(size)}, and "
        "every one of them lives as a tensor of Python's"
        if size
        else ""
    )
    by_compile = not tf.config.functions_run_eagerly()
    change = (
        "compile(run_eagerly=False)"
        if by_compile
        else "tf.config.run_functions_eagerly(False)"
    )
    if facts.traced.error:
        change += ", once nothing below keeps the step from being traced"
    can_be_tried = by_compile and not facts.traced.error
    ratio = facts.in_graph
    gain = "calls of operations from Python fall away"
    if ratio is not None:
        gain = f"{times(ratio.median)} times as fast"
    gain += "; ask again then: input and device are looked at in a graph"
    return Advice(
        "eager",
        f"every operation is run from Python: {where}"
        + ("" if ratio is None else f"; it takes {ratio} the time of a graph")
        + activation,
        gain,
        change,
        ground="not measured" if ratio is None else "measured",
        settings={"run_eagerly": False} if can_be_tried else {},
    )


def sync_points(facts):
    found = [f".numpy() in {where}" for where in facts.code.fetches()]
    if facts.traced.python:
        found.append(
            f"{facts.traced.python} py_function or numpy_function in the graph"
        )
    if facts.traced.error and not found and not facts.is_eager:
        if facts.code.makes_variables():
            # That is why, and there is a rule for it.
            return None
        return Advice(
            "step that fails",
            f"the step can't be traced: {facts.traced.error}",
            "a `fit` that does not stop with this error",
            "make the shapes and dtypes of the data those that the model and "
            "its loss take; is the dataset batched?",
        )
    if facts.traced.error:
        found.append(f"the step can't be traced ({facts.traced.error})")
    if not found:
        return None
    return Advice(
        "sync points",
        "; ".join(found),
        "the device no longer waits for Python in each step, and XLA becomes "
        "possible",
        "write it with TensorFlow operations, or move it to a callback or "
        "into `dataset.map`",
    )


def python_print(facts):
    where = facts.code.prints()
    if not where:
        return None
    return Advice(
        "plain print",
        f"print in {', '.join(where)}: in a graph it runs while the step is "
        "traced and never again; run eagerly it waits for the device",
        "output that means what it seems to",
        "take it out; to look at values, `tf.print` or a callback",
    )


def python_count(facts):
    """Attributes that are counted up by Python, once a trace."""
    where = facts.code.counts()
    if not where:
        return None
    return Advice(
        "Python count in the graph",
        f"an attribute is counted up in {', '.join(where)}: in a graph that "
        "runs while the step is traced and never again",
        "a value of every step instead of the first",
        "keep it in a variable, with `self.add_weight` and `assign_add`, or "
        "count in a callback",
    )


def grown_list(facts):
    if not facts.traced.grown:
        return None
    return Advice(
        "Python list in the graph",
        f"{', '.join(facts.traced.grown)} grew while the step was traced: it "
        "holds symbolic tensors, gets nothing in later steps, and keeps the "
        "graph alive",
        "no leak of graphs; values of every step instead of the first",
        "keep the value in a `keras.metrics.Metric` or a variable, or return "
        "it from `train_step` among the logs",
    )


def python_values(facts):
    """Python numbers that have a `tf.function` traced in each step."""
    if not facts.traced_again:
        return None
    return Advice(
        "traced in every step",
        f"{', '.join(facts.traced_again)}: traced again in every step on the "
        "same batch: a Python number (or another Python value) among the "
        "arguments changes",
        "one trace instead of one a step",
        "pass it as `tf.constant(value)`, or keep it in a variable of the "
        "model",
    )


def variables_in_call(facts):
    where = facts.code.makes_variables()
    if not where:
        return None
    error = facts.traced.error
    then = (
        f"the step can't be traced ({error})"
        if error
        else "the first step is traced twice, and Keras trains and saves no "
        "`tf.Variable`"
    )
    return Advice(
        "variables made in the step",
        f"a variable is made in {', '.join(where)}: {then}",
        "a step that can be traced" if error else "one trace",
        "make it in `build` or `__init__` with `self.add_weight`",
    )


def many_small_variables(facts):
    variables = facts.model.trainable_variables
    sizes = [math.prod(v.shape) for v in variables]
    if len(sizes) < MANY or statistics.median(sizes) > SMALL:
        return None
    if facts.model.jit_compile or (
        facts.is_fast and facts.requested_jit == "auto"
    ):
        return None
    how = (
        "the optimizer's update runs eagerly, operation by operation"
        if facts.is_eager
        else "the optimizer's update is thousands of small operations"
    )
    refusal = xla_refusal(facts.model)
    if refusal and not facts.without_jit:
        # Nothing else makes fewer operations of it.
        return None
    change, settings = "compile(jit_compile=True)", {"jit_compile": True}
    if refusal:
        names = ", ".join(facts.without_jit)
        change, settings = f"{names} into `dataset.map`, then {change}", {}
    elif facts.is_eager:
        change, settings["run_eagerly"] = change + ", run_eagerly=False", False
    return Advice(
        "many small variables",
        f"{len(sizes)} trainable variables, half of them of at most "
        f"{statistics.median(sizes):.0f} entries: {how}",
        "XLA fuses the update into few operations",
        change,
        settings=settings,
    )


def dispatch(facts):
    share = facts.python_share
    if share <= DISPATCH or facts.runs_loops:
        return None
    if facts.is_compiled and facts.varies:
        # What XLA takes for each of the shapes is in it.
        return None
    evidence = (
        f"{share:.0%} of a step of {facts.profile.step * 1e3:.3g} ms is "
        "Python and dispatch, and no operation runs"
    )
    gain, options = "that share falls away", _fewer_calls(facts)
    # They are timed without XLA.
    calls = None if facts.is_compiled else facts.calls
    if calls is not None:
        alone, looped = calls
        evidence += (
            f"; on one batch a call takes {alone}, inside a graph's loop "
            f"{looped}"
        )
        feed = 0.0
        if not facts.data.is_arrays or "steps_per_execution" in options[0][1]:
            # Else the rows are taken from arrays on the device.
            feed = facts.profile["seconds"]["pipeline alone"]
        # By their ratio: the profile is of another moment.
        rest = max(0.0, facts.profile.step - feed)
        after = feed + rest * looped.median / alone.median
        ratio = facts.profile.step / after
        gain = f"about {times(ratio)} times as fast; XLA may add to it"
        if ratio < LEAST and facts.profile["input"]["bound"]:
            return None
        if ratio < LEAST:
            gain = "none in a loop; XLA may give some"
    return Advice(
        "dispatch",
        evidence,
        gain,
        **offered(facts, *options),
        ground="not measured" if calls is None else "estimate",
    )


def _fewer_calls(facts):
    """Changes after which Python calls a graph less often."""
    pin = "Execution(signature='pin') for one trace, step by step", PIN
    if facts.is_fast:
        relax = {"steps_per_launch": "auto", "signature": "relax"}
        text = "Execution(steps_per_launch='auto', signature='relax')"
        pins = facts.model.perf.execution.pins
        return [(text, {"execution": relax}), *([] if pins else [pin])]
    options = [(facts.way_to_fast, FAST), pin]
    if len(facts.data.specs) > 1:
        # More steps a call are of no use in an epoch of one; what a
        # keras.Model can be kept with comes first.
        more = "compile(steps_per_execution=32)", {"steps_per_execution": 32}
        options.insert(isinstance(facts.model, FastModel), more)
    return options
