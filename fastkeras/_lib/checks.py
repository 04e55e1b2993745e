"""The house form of an error: the rule, what was received, what to do."""

import difflib
import numbers
import re


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


def gist(error):
    """The line of an error that says what is wrong.

    Keras writes before it where it was, and after it the arguments of the
    call; TensorFlow, while it traces or runs a graph, the stack before it or
    the name of the function.

    Args:
        error: Exception.

    Returns:
        String, the name of its class where there is no text.
    """
    text = re.sub("\x1b\\[[0-9]*m", "", str(error))
    text = re.sub(r"\{\{function_node [^}]*\}\} ?", "", text)
    text = text.partition("Arguments received by")[0]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if lines and lines[0] == "Graph execution error:":
        stack = ("Detected at node", 'File "', "[[")
        lines = [x for x in lines[1:] if not x.startswith(stack)] or lines
    if lines and lines[0].startswith("Exception encountered when calling"):
        lines = lines[1:] or lines
    if not lines:
        return type(error).__name__
    return lines[-1] if lines[0] == "in user code:" else lines[0]


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
