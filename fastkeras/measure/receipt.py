"""The receipt of a run: what was asked for, what ran, how fast, and why.

Pure: it holds plain values that the engine has gathered, and prints them.

Example:

>>> receipt = Receipt({"settings": {"jit": {"requested": True,
...     "effective": False, "reason": "no XLA device"}}})
>>> print(receipt)
settings
  jit: requested True, effective False (no XLA device)
"""

import dataclasses
import json
import pathlib

from fastkeras._lib import checks
from fastkeras.measure.stats import Summary

_SUMMARY = {field.name for field in dataclasses.fields(Summary)}


class Receipt:
    """A report of plain values, as text, dict and JSON.

    Args:
        values: Dict of sections; each a nested dict, a list or a plain value.

    Example:

    >>> Receipt({"plan": "auto"}).to_dict()
    {'plan': 'auto'}
    """

    def __init__(self, values):
        self._values = json.loads(json.dumps(values, default=str))

    def to_dict(self):
        """The values, as a new nested dict."""
        return json.loads(json.dumps(self._values))

    def to_json(self):
        """The values as a JSON string."""
        return json.dumps(self._values, indent=2)

    def save(self, path):
        """Writes the values to a JSON file.

        Args:
            path: String or `pathlib.Path`.
        """
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.to_json() + "\n")

    @classmethod
    def load(cls, path):
        """Reads what `save` wrote.

        Args:
            path: String or `pathlib.Path`.

        Returns:
            A receipt.

        Raises:
            ValueError: If the file holds none.
        """
        try:
            values = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
            found = f"a {type(values).__name__}" if values else "nothing"
        except ValueError as error:
            values, found = None, f"no JSON: {error}"
        if not (values and isinstance(values, dict)):
            raise ValueError(
                checks.message(
                    "The file must hold a receipt",
                    f"{str(path)!r}, which holds {found}",
                    "Give one that `save` wrote.",
                )
            )
        return cls(values)

    def __getitem__(self, key):
        return self._values[key]

    def __eq__(self, other):
        return isinstance(other, Receipt) and other._values == self._values

    __hash__ = None

    def __str__(self):
        return "\n".join(_lines(self._values, 0))

    def __repr__(self):
        return f"<Receipt of {', '.join(self._values)}>"


class Saved:
    """What has `to_dict`, saved as a receipt of it."""

    def save(self, path):
        """Writes the values to a JSON file, for `fastkeras.measure.compare`.

        Args:
            path: String or `pathlib.Path`.
        """
        Receipt(self.to_dict()).save(path)


def is_summary(value):
    """Whether a value is the dict of a `Summary`.

    Args:
        value: Any plain value.

    Example:

    >>> is_summary(dataclasses.asdict(Summary(2.0, 1.5, 2.5, 50)))
    True
    """
    return isinstance(value, dict) and set(value) == _SUMMARY


def _lines(values, depth):
    pad = "  " * depth
    for key, value in values.items():
        if isinstance(value, dict) and set(value) == {
            "requested",
            "effective",
            "reason",
        }:
            yield (
                f"{pad}{key}: requested {value['requested']}, effective "
                f"{value['effective']} ({value['reason']})"
            )
        elif is_summary(value):
            yield f"{pad}{key}: {Summary(**value)}"
        elif isinstance(value, dict):
            yield f"{pad}{key}"
            yield from _lines(value, depth + 1)
        elif isinstance(value, list):
            yield f"{pad}{key}" + ("" if value else ": none")
            yield from (f"{pad}  - {item}" for item in value)
        else:
            yield f"{pad}{key}: {value}"
