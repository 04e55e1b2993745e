"""Warnings that point at the user's line, not at ours."""

import os
import sys
import warnings

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_OURS = (_PACKAGE, os.sep + os.path.join("site-packages", ""))


class FastKerasWarning(UserWarning):
    """A warning of this package: a setting not in effect, a risk, a loss."""


def warn(text, category=FastKerasWarning, told=None):
    """Warns at the nearest frame outside this package and its dependencies.

    Args:
        text: String, the warning.
        category: Warning class. Defaults to `FastKerasWarning`.
        told: Set of the texts that were said already, which are not said
            again; this one is added. Defaults to `None`: say it.
    """
    if told is not None:
        if text in told:
            return
        told.add(text)
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and _is_library(frame.f_code.co_filename):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, category, stacklevel=level)


def _is_library(filename):
    return any(part in filename for part in _OURS)
