"""A profile of a range of batches, with a step marker for each launch."""

import importlib.util
import pathlib
import shlex
import weakref

import tensorflow as tf

from fastkeras._lib import checks
from fastkeras._lib.warn import warn
from fastkeras.measure._xplane import PAGES

#: TensorFlow lets one run at a time.
_RUNNING = weakref.WeakSet()
_RANGE = "Give two batches, counted from 1, such as profile=(20, 40)."


class Profiler:
    """Profiles the launches that hold the batches from `first` to `last`.

    Args:
        folder: String, where the profile goes.
        first: Integer, the first batch, counted from 1.
        last: Integer, the last batch.
        fit: Object that the callbacks of one `fit` share, and of no other.
    """

    def __init__(self, folder, first, last, fit):
        self.files = []
        self._fit = fit
        self._folder = pathlib.Path(folder)
        self._range = first, last
        self._state = "waits"
        self._marker = None

    def __del__(self):
        # A session that is left open keeps every later one from starting.
        if self._state == "runs":
            tf.profiler.experimental.stop(save=False)

    def before_launch(self, done, batches):
        """Before each launch.

        Args:
            done: Integer, batches of the training that are done.
            batches: Integer, the most that this launch may add.
        """
        self.end_launch()
        first, last = self._range
        if self._state == "runs" and done >= last:
            self.stop()
        if self._state == "waits" and done + batches >= first:
            self._start()
        if self._state == "runs":
            # Without `_r` no tool can tell the time of a step.
            self._marker = tf.profiler.experimental.Trace(
                "train", step_num=done, _r=1
            )
            self._marker.__enter__()

    def end_launch(self):
        """After the last launch of an epoch."""
        if self._marker is not None:
            self._marker.__exit__(None, None, None)
            self._marker = None

    def _start(self):
        for other in list(_RUNNING):
            # An error in Keras's own `fit` is told to no callback.
            if other._fit is not self._fit:
                other.stop()
        self._before = self._found()
        try:
            tf.profiler.experimental.start(str(self._folder))
        except tf.errors.AlreadyExistsError:
            self._state = "left out"
            warn(
                "Another profiler is running, so this profile is left out. "
                "Give `profile=` here or `profile_batch=` to Keras's "
                "TensorBoard, not both for the same batches."
            )
            return
        self._state = "runs"
        _RUNNING.add(self)

    def stop(self):
        """Writes the profile and looks whether it is there."""
        self.end_launch()
        if self._state != "runs":
            return
        self._state = "done"
        _RUNNING.discard(self)
        try:
            tf.profiler.experimental.stop()
        except tf.errors.UnavailableError:
            warn(
                "Something else has stopped the profiler, so there is no "
                "profile. Let one callback alone profile."
            )
            return
        new = self._found() - self._before
        self.files = sorted(file for file, _ in new)
        if not any(file.stat().st_size for file in self.files):
            warn(
                f"The profile in {self._folder} is empty. Profile more "
                "batches, or see whether the folder can be written to."
            )
        elif not any(map(importlib.util.find_spec, PAGES)):
            warn(
                "The profile is written, but TensorBoard has no page for it: "
                f"install `{PAGES[0]}`, then run `{self.command}`."
            )

    def finish(self):
        """At the end of the training."""
        self.stop()
        if self._state == "waits":
            warn(
                f"Batch {self._range[0]} was not reached, so there is no "
                "profile. Profile earlier batches or train for longer."
            )

    @property
    def command(self):
        """The command that shows the profile."""
        return f"tensorboard --logdir {shlex.quote(str(self._folder))}"

    def _found(self):
        """Pairs of a profile and when it was written.

        A second one within a second takes the place of the first.
        """
        files = self._folder.glob("plugins/profile/*/*.xplane.pb")
        return {(file, file.stat().st_mtime_ns) for file in files}


def warn_outside_of_fit(profile, method, told):
    """Says that the batches of another method are not profiled."""
    warn(
        f"`profile={profile}` counts the batches of `fit`: `{method}` is not "
        "profiled. Call `fastkeras.measure.profile(model, data)` for a "
        "profile of some steps, or give this callback to `fit`.",
        told=told,
    )


def check_range(profile):
    """Refuses what is neither None nor a first and a last batch."""
    if profile is None:
        return
    if not isinstance(profile, (tuple, list)) or len(profile) != 2:
        raise ValueError(
            checks.message(
                "`profile` must be the first and the last batch",
                f"profile={profile!r}",
                _RANGE,
            )
        )
    first, last = profile
    checks.positive_int(first, "profile", _RANGE)
    checks.positive_int(last, "profile", _RANGE)
    if last < first:
        raise ValueError(
            checks.message(
                "`profile` must not end before it begins",
                f"profile={profile!r}",
                _RANGE,
            )
        )
