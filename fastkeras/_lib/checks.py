"""The house form of an error: the rule, what was received, what to do."""

import difflib
import numbers


def message(rule, received, remedy):
    """Joins the three parts of an error message.

    Args:
        rule: String, a sentence without its final stop.
        received: String, `"name=value"`.
        remedy: String, a full sentence that says what to do.

    Returns:
        A string in the house form.

    Example:

    >>> message("`steps` must be >= 1", "steps=0", "Leave it out.")
    '`steps` must be >= 1. Received: steps=0. Leave it out.'
    """
    return f"{rule}. Received: {received}. {remedy}"


def nearest(name, names):
    """Returns `"Did you mean 'x'? "`, or an empty string.

    Args:
        name: String that was received.
        names: Iterable of the strings that would be right.
    """
    close = difflib.get_close_matches(str(name), list(names), n=1, cutoff=0.5)
    return f"Did you mean {close[0]!r}? " if close else ""


def positive_int(value, name, remedy):
    """Refuses anything that is not an integer >= 1.

    Raises:
        TypeError: If `value` is not an integer.
        ValueError: If `value` is < 1.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(
            message(
                f"`{name}` must be an integer >= 1", f"{name}={value!r}", remedy
            )
        )
    if value < 1:
        raise ValueError(
            message(f"`{name}` must be >= 1", f"{name}={value!r}", remedy)
        )


def positive_number(value, name, remedy):
    """Refuses anything that is not a finite number > 0.

    Raises:
        TypeError: If `value` is not a real number.
        ValueError: If `value` is not finite or not > 0.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(
            message(
                f"`{name}` must be a number > 0", f"{name}={value!r}", remedy
            )
        )
    if not 0 < value < float("inf"):
        raise ValueError(
            message(
                f"`{name}` must be finite and > 0", f"{name}={value!r}", remedy
            )
        )


def one_of(value, name, allowed, remedy=""):
    """Refuses a value that is not in `allowed`.

    Raises:
        ValueError: If `value` is not one of `allowed`; the message names the
            nearest right one.
    """
    if value not in allowed:
        raise ValueError(
            message(
                f"`{name}` must be one of {', '.join(map(repr, allowed))}",
                f"{name}={value!r}",
                nearest(value, [a for a in allowed if isinstance(a, str)])
                + remedy,
            ).rstrip()
        )
