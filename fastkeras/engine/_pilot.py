"""The pilot: chooses a tier by measuring real steps.

Training starts at once in the cheapest tier. A dearer one is tried only when
the time still ahead pays for its compilation several times; then launches of
both are interleaved and the faster is kept. Nothing is thrown away: each trial
is steps of the training itself.
"""

import collections
import contextlib
import statistics
import time

#: A launch aims at this many seconds, so that callbacks stay live.
LAUNCH_SECONDS = 0.2
#: A launch that was asked to be longer is run in calls of so many seconds.
CALL_SECONDS = 0.5
#: Launches of each tier in a comparison, after one that warms up; where the
#: times overlap, up to three times as many.
SAMPLES = 3
#: Share of the time ahead that a trial compilation may cost.
SHARE = 0.08
#: Seconds a trial may cost in any case.
FREE = 0.15
#: How many times the gain in the time ahead must be the cost of a trial, where
#: an earlier run has measured both.
PAYBACK = 3
#: Share of the time ahead that compiling a tier may cost which an earlier run
#: has measured to be slower: that may have been the machine of that hour.
AGAIN = 0.01
#: A tier must be faster by this factor to be worth changing to.
MARGIN = 0.97


class Call:
    """How many steps the next call of a launch runs.

    An interrupt is heard between two calls, so none of them is long, however
    many steps a launch has.

    Args:
        step: Float, the seconds of a step, or None if that is not known.

    Attributes:
        steps: Integer >= 1.
    """

    def __init__(self, step):
        self._fit(step)

    def _fit(self, step):
        self.steps = max(1, int(CALL_SECONDS / step)) if step else 1

    @contextlib.contextmanager
    def of(self, steps):
        """Measures a call of so many steps."""
        start = time.perf_counter()
        yield
        self._fit((time.perf_counter() - start) / steps)


class Times:
    """The seconds of launches, without the first ones and those that trace.

    Args:
        warmup: Integer, how many are left out.

    Attributes:
        seconds: Deque of floats, the last 64.
    """

    def __init__(self, warmup):
        self._left_out = warmup
        self.seconds = collections.deque(maxlen=64)

    def add(self, seconds, traced=False):
        """Takes in a launch."""
        if self._left_out:
            self._left_out -= 1
        elif not traced:
            self.seconds.append(seconds)


class Pilot:
    """Chooses how the next launch runs.

    Args:
        tiers: List of tier names, cheapest first.
        steps: Integer that pins the steps of a launch, or None.
        warmup: Integer >= 1, the first launches of each tier, whose times are
            not reported.
        window: Integer, batches in an update, which is what a launch counts.
    """

    def __init__(self, tiers, steps=None, warmup=1, window=1):
        self._window = window
        self.tiers = list(tiers)
        self.steps = steps
        self.tier = self.tiers[0]
        self.reasons = []
        self.cost = {}
        self.known = {}
        self._times = collections.defaultdict(
            lambda: collections.deque(maxlen=64)
        )
        self._reported = collections.defaultdict(lambda: Times(warmup))
        self._warm = set()
        self._trial = None
        self._tried = {self.tier}
        self._spent = 0.0

    @property
    def untried(self):
        """The tiers that were never run."""
        return [tier for tier in self.tiers if tier not in self._tried]

    def median(self, tier):
        """Median seconds of a step in a tier, or None."""
        times = self._times[tier]
        return statistics.median(times) if times else None

    def times(self, tier):
        """The seconds of a batch, launch by launch, after the warm-up."""
        return [s / self._window for s in self._reported[tier].seconds]

    def next(self, estimate, left, ahead):
        """The tier and the steps of the next launch.

        Args:
            estimate: Function of a tier to the seconds its compilation is
                thought to take.
            left: Integer, updates left in the epoch, or None.
            ahead: Integer, updates left in the whole run, or None.

        Returns:
            Tuple of tier and number of updates.
        """
        tier = self._tier(estimate, ahead)
        return tier, self._size(tier, left)

    def _tier(self, estimate, ahead):
        if self._trial:
            return min(self._rounds, key=lambda t: len(self._rounds[t]))
        if len(self._times[self.tier]) < SAMPLES and not self.known:
            return self.tier
        if ahead is None:
            # As much again as there was so far.
            ahead = self._spent / (self.median(self.tier) or 1.0)
        for tier in sorted(self.tiers, key=self._known_step):
            if tier not in self._tried and self._pays(tier, estimate, ahead):
                self._trial = tier
                self._tried.add(tier)
                self._rounds = {self.tier: [], tier: []}
                return tier
        return self.tier

    def _known_step(self, tier):
        return self.known.get(tier, (0.0, 0.0))[0]

    def _pays(self, tier, estimate, ahead):
        """Whether a trial of a tier is worth the time it may cost."""
        gain = None
        if {tier, self.tier} <= self.known.keys():
            gain = self._known_step(self.tier) - self._known_step(tier)
            if gain * ahead > PAYBACK * self.known[tier][1]:
                return True
        if len(self._times[self.tier]) < SAMPLES:
            return False
        # What was spent so far is a fair guess at what is to come.
        time = self._spent + ahead * self.median(self.tier)
        if gain is not None and gain <= 0:
            cost = max(self.known[tier][1], estimate(tier))
            return cost <= AGAIN * time
        return estimate(tier) <= SHARE * time + FREE

    def _size(self, tier, left):
        if self.steps is not None:
            size = self.steps
        else:
            step = self.median(tier) or self.median(self.tier)
            seconds = LAUNCH_SECONDS
            if len(self._times[tier]) < SAMPLES or self._trial:
                seconds = LAUNCH_SECONDS / 4
            size = 1 if step is None else max(1, int(seconds / step))
        return size if left is None else max(1, min(size, left))

    def note(self, tier, steps, seconds, traced=False):
        """Takes in a launch; the first of each tier only warms it up.

        Args:
            tier: String, the tier it ran in.
            steps: Integer, the updates in it.
            seconds: Float, what it took.
            traced: Bool, whether something was traced in it: such a launch
                counts in a comparison, but not in the times reported.

        Returns:
            The tiers whose comparison has just ended, and their medians: a
            dict, which is empty after most launches.
        """
        self._spent += seconds
        self._reported[tier].add(seconds / steps, traced)
        if tier not in self._warm:
            self._warm.add(tier)
            return {}
        self._times[tier].append(seconds / steps)
        if self._trial and tier in self._rounds:
            self._rounds[tier].append(seconds / steps)
            return self._decide()
        return {}

    def _decide(self):
        """Ends a comparison whose outcome is clear, or that took too long."""
        old, new = (self._rounds[t] for t in (self.tier, self._trial))
        samples = min(len(old), len(new))
        apart = samples and (max(old) < min(new) or max(new) < min(old))
        if samples < (SAMPLES if apart else 3 * SAMPLES):
            return {}
        before, after = map(statistics.median, (old, new))
        faster = after < MARGIN * before
        unit = f"an update of {self._window} batches"
        unit = "a step" if self._window == 1 else unit
        self.reasons.append(
            f"{self._trial} {after * 1e3:.3g} ms {unit} against "
            f"{before * 1e3:.3g} in {self.tier} (n={samples} launches each): "
            + ("taken" if faster else f"{self.tier} kept")
        )
        compared = dict(zip(self._rounds, (before, after), strict=True))
        if faster:
            self.tier = self._trial
        self._trial = None
        return compared

    def state(self):
        """What was chosen so far, as plain values."""
        return {"tier": self.tier, "tried": sorted(self._tried)}

    def restore(self, state):
        """Goes on from what `state` returned."""
        if state["tier"] in self.tiers:
            self.tier = state["tier"]
            self._tried |= set(state["tried"])
            self.reasons.append(f"{self.tier} taken up from a kept state")

    def drop(self, tier, reason):
        """Leaves a tier out from now on."""
        self.reasons.append(f"{tier} left out: {reason}")
        if tier in self.tiers:
            self.tiers.remove(tier)
        if self._trial == tier:
            self._trial = None
        if self.tier == tier:
            self.tier = self.tiers[0]
