"""What a profile holds; see `profiling.py`.

Example:

>>> Profile({"split": {"input": 0.001}})["split"]
{'input': 0.001}
"""

from fastkeras._lib import checks
from fastkeras.measure import _profile_page
from fastkeras.measure import _profile_text
from fastkeras.measure import comparison
from fastkeras.measure.receipt import Receipt
from fastkeras.measure.stats import Summary
from fastkeras.measure.stats import summarize


class Profile(Receipt):
    """Where the time of a training step went. Times are seconds.

    Printed as a text with a bar for each part. Sections:

    - `machine` and `versions`: dicts, of what it was made on.
    - `run`: dict, steps traced, steps per epoch and per launch (one call of
      the function that runs them), tier, feeds, whether eager.
    - `seconds`: dict of medians of the control runs, without a trace: a `step`
      on its data, a `step on one batch`, a batch of the `pipeline alone`, an
      `epoch beside its steps`, the `metrics` of a step.
    - `spread`: dict of the first four of these to the fields of a `Summary`,
      and so for each of `split` and of `phases`, over the stretches of a few
      steps that were traced; see `time`.
    - `split`: dict of `compute`, `copies`, `input`, `dispatch` and `idle`;
      together they are the step, divided as the middle half of the traced
      steps were, those that took about the median.
    - `traced step`: float, what a step took of these: more, for the trace.
    - `input`: dict, whether the input is the `bound`, and its `share`.
    - `phases`: dict of phase to the seconds of its operations in a step;
      together they are `compute` of the split, as what runs at once shares
      the time, and what lies between operations is of no phase. `forward` (the
      loss with it), `backward`, `optimizer`, `metrics`; `feed` takes rows from
      arrays; `replicas` sums over them; `runtime` is XLA between its
      operations; `eager` is run one by one from Python; `other` is in no scope
      of a layer, a loss or these.
    - `ops`: list of dicts, the dearest operations, each with its `count` and
      `seconds` in a step, divided likewise.
    - `metrics`: dict of metric to the seconds of its update.
    - `eager share`: float, of the time in calls of operations and functions.
    - `timeline`: list of `[start, seconds, part]`, as traced.
    - `notes`: list of strings.

    Args:
        values: Dict of these sections.

    Example:

    >>> Profile({"run": {"tier": "graph-loop"}})["run"]["tier"]
    'graph-loop'
    """

    @classmethod
    def load(cls, path):
        """Reads what `save` wrote.

        Args:
            path: String or `pathlib.Path`.

        Returns:
            A `Profile`.

        Raises:
            ValueError: If the file holds no profile.
        """
        found = super().load(path)
        if "split" not in found.to_dict():
            raise ValueError(
                checks.message(
                    "The file must hold a profile",
                    f"{str(path)!r} with {', '.join(found.to_dict())}",
                    "Give a file that `Profile.save` wrote.",
                )
            )
        return found

    @property
    def step(self):
        """Float, median seconds of a step on its data."""
        return self["seconds"]["step"]

    def time(self, name, section="seconds"):
        """One of the times, with its spread where there is one.

        Args:
            name: String, such as `"step"`.
            section: String, `"split"` or `"phases"` for one of those. Defaults
                to `"seconds"`.

        Returns:
            A `Summary`.
        """
        spread = self.to_dict().get("spread", {})
        if section != "seconds":
            spread = spread.get(section, {})
        if name in spread:
            return Summary(**spread[name])
        return summarize([self[section][name]])

    @property
    def shares(self):
        """Dict of part to its share of the step."""
        return {k: v / self.step for k, v in self["split"].items()}

    @property
    def findings(self):
        """List of sentences: what stands out."""
        return list(_profile_text.findings(self))

    def compare(self, other):
        """Compares with another profile; see `fastkeras.measure.compare`.

        Args:
            other: A `Profile` or the path of one.

        Returns:
            A `Comparison`.
        """
        return comparison.compare(self, other)

    def save_html(self, path):
        """Writes a page that opens with no network.

        Args:
            path: String or `pathlib.Path`.
        """
        with open(path, "w", encoding="utf-8") as file:
            file.write(_profile_page.page(self))

    def plot(self, path):
        """Draws the split and the timeline. Needs Matplotlib.

        Args:
            path: String or `pathlib.Path`; its ending is the format.

        Raises:
            ImportError: If Matplotlib is not installed.
        """
        _profile_page.plot(self, path)

    def __str__(self):
        return "\n".join(_profile_text.lines(self))

    def __repr__(self):
        step = _profile_text.milliseconds(self.step)
        return f"<Profile of {self['model']}: {step} a step>"
