"""Trying advice: measured in turns after warm-up, kept only if it pays."""

import dataclasses
import math

import numpy as np

from fastkeras import measure
from fastkeras._lib import checks
from fastkeras.advise._facts import LOG
from fastkeras.advise._ways import Batches
from fastkeras.advise._ways import Way

#: Turns of each of the two ways, after one that warms up.
TURNS = 7
#: Seconds of a turn, and the steps that it may have for it.
_SECONDS, _MOST_STEPS = 0.2, 200
#: Largest difference of the losses, as a share of the loss.
TOLERANCE = 1e-3
#: How many times as long a step may take that saves memory, and the share of
#: it that it must save.
PRICE, SAVED = 1.5, 0.1
#: The same for one that saves traces.
SLOWER = 1.1


def try_all(facts, found):
    """Tries each advice that has settings and leaves mathematics alone.

    Each is tried on top of what was kept before it. The model is left with
    what was kept; its state is as before. If it is interrupted, nothing is
    kept.

    Args:
        facts: `Facts`.
        found: List of `Advice`.

    Returns:
        The same list, with `receipt` and `kept` of those that were tried.
    """
    base = start = Way(facts, {})
    batches, done, known = Batches(facts.data, facts.window), [], []
    for advice in found:
        lines, kept = [], False
        for settings in advice.ways if advice.mathematics == "same" else ():
            name = _name(advice, settings)
            alike = [k for k in known if k[1:3] == (settings, advice.aim)]
            if alike:
                text, is_kept = f"as for {alike[0][0]}", alike[0][3]
            else:
                way, text = _tried(facts, settings, advice.aim, base, batches)
                base, is_kept = way or base, way is not None
                known.append((name, settings, advice.aim, is_kept))
            lines.append(f"{name}: {text}")
            kept = kept or is_kept
            LOG.info("%s", lines[-1])
        done.append(
            dataclasses.replace(advice, receipt="\n".join(lines), kept=kept)
        )
    if base is not start:
        base.keep()
    return done


def tell_cost(facts, found):
    """Says how long `try_all` takes, as far as a trace tells."""
    count = sum(len(each.ways) for each in found if each.mathematics == "same")
    # The turns of both, and a trace or two of each.
    seconds = 2 * (TURNS + 3) * _SECONDS + 4 * facts.trace_seconds
    LOG.info("%d changes to try, about %.2g s each", count, seconds)


def _name(advice, settings):
    """The name of what is tried; of one of several, with its settings."""
    if len(advice.ways) == 1:
        return advice.rule
    given = {**settings, **settings.get("execution", {})}
    given.pop("execution", None)
    if given.get("perf") == []:
        given["perf"] = "auto"
    shown = ", ".join(f"{k}={v!r}" for k, v in given.items())
    return f"{advice.rule}, {shown}"


def _tried(facts, settings, aim, base, batches):
    """Tries settings on top of a base.

    Returns:
        Tuple of the `Way` to keep, or None, and what was found, in words.
    """
    try:
        way = Way(facts, settings, base)
        comparison = compare(base, way, batches, aim)
    except ValueError as error:
        return None, f"not kept, it is refused: {checks.gist(error)}"
    except Exception as error:
        # Whatever the user's code or XLA raises in a way that it was not run
        # in before: that is what trying it gave.
        return None, (
            f"not kept, it fails: {type(error).__name__}: {checks.gist(error)}"
        )
    if comparison.is_kept and not way.is_own:
        return None, f"{comparison.figures}: it takes a FastModel"
    return way if comparison.is_kept else None, str(comparison)


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Two ways of running steps, measured in turns.

    Attributes:
        before: `Summary`, seconds of a step.
        after: `Summary`.
        ratio: `Summary` of before over after, turn by turn.
        steps: Integer, steps of each that were timed.
        difference: Float, between the losses.
        agrees: Bool, whether that is the order of additions at most.
        aim: String as in `Advice`.
        amounts: Pair of what is to be less, before and after: bytes of a
            step, or traces; None where the aim is speed.
    """

    before: measure.Summary
    after: measure.Summary
    ratio: measure.Summary
    steps: int
    difference: float
    agrees: bool
    aim: str = "speed"
    amounts: tuple | None = None

    @property
    def refusal(self):
        """Why it is not kept, or `""`."""
        if not self.agrees:
            return "the numbers do not agree"
        if self.aim == "speed":
            if self.ratio.lower <= 1.02:
                return "it is not faster beyond the noise"
            return ""
        before, after = self.amounts
        least = 1 - SAVED if self.aim == "memory" else 1
        if after > least * before or after == before:
            return f"it saves no {self.aim}"
        price = PRICE if self.aim == "memory" else SLOWER
        if self.ratio.median * price < 1:
            return f"the step takes {1 / self.ratio.median:.2f} times as long"
        return ""

    @property
    def is_kept(self):
        """Whether it gives what it is for, with the same numbers."""
        return not self.refusal

    @property
    def figures(self):
        """What was measured, in words."""
        before, after, half = (
            seconds * 1e3
            for seconds in (
                self.before.median,
                self.after.median,
                self.after.spread / 2,
            )
        )
        digits = max(0, 1 - math.floor(math.log10(after)))
        amounts = ""
        if self.aim == "memory":
            one, other = (size / 2**20 for size in self.amounts)
            amounts = f"{one:.3g} → {other:.3g} MB a step by its graph, "
        elif self.aim == "traces":
            amounts = "{} → {} traces and compilations, ".format(*self.amounts)
        return (
            f"{amounts}{before:.{digits}f} → {after:.{digits}f} ms/step "
            f"(±{half:.{digits}f}, n={self.steps}), loss differs by "
            f"{self.difference:.0e}"
        )

    def __str__(self):
        verdict = f"not kept, {self.refusal}" if self.refusal else "kept"
        return f"{self.figures}: {verdict}"


def compare(base, way, batches, aim="speed"):
    """Runs two ways in turns, after a turn of each that warms up.

    Args:
        base: `Way`.
        way: `Way`.
        batches: `Batches`.
        aim: String as in `Advice`.

    Returns:
        A `Comparison`.
    """
    steps = batches.shown
    for each in (base, way):
        each.run(batches, steps)
    # Again: what the first step takes more counts for much in a short run.
    for _ in range(3):
        seconds, _ = base.run(batches, steps)
        steps = max(1, min(_MOST_STEPS, int(_SECONDS / seconds)))
    times, logs = ([], []), ([], [])
    # A launch of another length may be compiled in the first turn.
    for turn in range(TURNS + 1):
        for each, found, log in zip((base, way), times, logs, strict=True):
            second, values = each.run(batches, steps)
            log.append(values)
            if turn:
                found.append(second)
    difference, agrees = _difference(*logs)
    return Comparison(
        measure.summarize(times[0]),
        measure.summarize(times[1]),
        measure.ratio(*times),
        TURNS * steps,
        difference,
        agrees,
        aim,
        _amounts(base, way, aim),
    )


def _difference(old, new):
    """The largest difference of the losses, and whether it is small.

    Of a step of the user's that logs no loss, of all it logs.
    """
    names = ["loss"] if "loss" in old[0] else sorted(old[0])
    if not names or set(names) - new[0].keys():
        return float("nan"), False
    one, other = (
        np.array([[log[name] for name in names] for log in logs])
        for logs in (old, new)
    )
    difference = np.abs(one - other)
    allowed = TOLERANCE * np.maximum(np.abs(one).max(0), 1e-6)
    return float(difference.max()), bool((difference <= allowed).all())


def _amounts(base, way, aim):
    if aim == "memory":
        return base.step_bytes(), way.step_bytes()
    if aim == "traces":
        return base.traces, way.traces
    return None
