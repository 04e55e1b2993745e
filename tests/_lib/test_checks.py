"""The house form of errors."""

import numpy as np
import pytest

from fastkeras._lib import checks


def test_a_message_has_three_parts():
    text = checks.message("`a` must be b", "a=1", "Give b.")
    assert text == "`a` must be b. Received: a=1. Give b."


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("acumulate", "Did you mean 'accumulate'? "),
        ("ACC", ""),
        ("zzz", ""),
        (None, ""),
    ],
)
def test_nearest(name, text):
    assert checks.nearest(name, ["accumulate", "clip"]) == text


@pytest.mark.parametrize("value", [1, 7, np.int64(3), 10**30])
def test_integers_that_pass(value):
    checks.positive_int(value, "n", "Leave it out.")


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (0, ValueError, "`n` must be >= 1. Received: n=0. Leave it out."),
        (-1, ValueError, "`n` must be >= 1. Received: n=-1. Leave it out."),
        (1.0, TypeError, "`n` must be an integer >= 1. Received: n=1.0. Leave"),
        (True, TypeError, "`n` must be an integer >= 1. Received: n=True. "),
        (None, TypeError, "`n` must be an integer >= 1. Received: n=None. "),
        ("1", TypeError, "`n` must be an integer >= 1. Received: n='1'. "),
    ],
)
def test_integers_that_do_not(value, error, text):
    with pytest.raises(error) as caught:
        checks.positive_int(value, "n", "Leave it out.")
    assert str(caught.value).startswith(text)


@pytest.mark.parametrize("value", [1, 0.5, 1e-30, np.float32(2), np.int32(1)])
def test_numbers_that_pass(value):
    checks.positive_number(value, "r", "Leave it out.")


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (0, ValueError, "`r` must be finite and > 0. Received: r=0. Leave"),
        (-2.5, ValueError, "`r` must be finite and > 0. Received: r=-2.5. "),
        (float("inf"), ValueError, "`r` must be finite and > 0. Received: r="),
        (float("nan"), ValueError, "`r` must be finite and > 0. Received: r="),
        (True, TypeError, "`r` must be a number > 0. Received: r=True. Leave"),
        ("1", TypeError, "`r` must be a number > 0. Received: r='1'. Leave it"),
        (1j, TypeError, "`r` must be a number > 0. Received: r=1j. Leave it"),
    ],
)
def test_numbers_that_do_not(value, error, text):
    with pytest.raises(error) as caught:
        checks.positive_number(value, "r", "Leave it out.")
    assert str(caught.value).startswith(text)


def test_one_of():
    checks.one_of("drop", "remainder", ("flush", "drop"))
    with pytest.raises(ValueError) as caught:
        checks.one_of("dorp", "remainder", ("flush", "drop"), "Leave it out.")
    assert str(caught.value) == (
        "`remainder` must be one of 'flush', 'drop'. Received: "
        "remainder='dorp'. Did you mean 'drop'? Leave it out."
    )
    with pytest.raises(ValueError) as caught:
        checks.one_of(3, "remainder", ("flush", "drop"))
    assert str(caught.value) == (
        "`remainder` must be one of 'flush', 'drop'. Received: remainder=3."
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("wrong\nmore", "wrong"),
        ("in user code:\n  File x\n\n  wrong", "wrong"),
        (
            "Exception encountered when calling A.call().\n\n\x1b[1mwrong"
            "\x1b[0m\n\nArguments received by A.call():\n  • x=1",
            "wrong",
        ),
        ("", "ValueError"),
        ("{{function_node __wrapped__Next_device_/job:a/0}} wrong", "wrong"),
        (
            "Graph execution error:\n\nDetected at node a defined at (most "
            'recent call last):\n  File "a.py", line 4, in f\n\nindices[0] = '
            "9 is not in [0, 3)\n\t [[{{node a}}]] [Op:f]",
            "indices[0] = 9 is not in [0, 3)",
        ),
    ],
)
def test_the_gist_of_an_error_is_the_line_that_says_what_is_wrong(text, said):
    assert checks.gist(ValueError(text)) == said
