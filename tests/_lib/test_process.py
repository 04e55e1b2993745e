"""The memory of a process against what it is known to hold."""

import subprocess
import sys

import numpy as np

from fastkeras._lib import process

MB = 2**20
# The file alone: importing the package would take most of the time.
SCRIPT = (
    "import runpy, sys; found = runpy.run_path(sys.argv[1]);"
    "print(found['held'](), found['peak']())"
)


def numbers_of(script):
    """What a process of its own prints."""
    ran = subprocess.run(
        [sys.executable, "-c", script, process.__file__],
        capture_output=True,
        text=True,
        check=True,
    )
    return map(int, ran.stdout.split())


def test_held_and_peak_follow_an_array():
    # In a process of its own: in this one other threads come and go.
    before, held, peak, after, highest = numbers_of(
        "import runpy, sys; found = runpy.run_path(sys.argv[1]);"
        "held, peak = found['held'], found['peak'];"
        "told = [held()]; data = bytearray(b'1') * (64 * 2**20);"
        "told += [held(), peak()]; del data; told += [held(), peak()];"
        "print(*told)"
    )
    assert abs(held - before - 64 * MB) < 16 * MB
    assert peak >= held - MB
    assert highest - after > 48 * MB


def test_a_child_does_not_begin_with_the_peak_of_its_parent():
    array = np.ones(256 * MB, "uint8")
    held, peak = numbers_of(SCRIPT)
    assert peak < array.nbytes
    assert 0 < held <= peak


def test_free_is_what_the_limit_of_the_process_leaves():
    limited = (
        "import resource, runpy, sys\n"
        "free = runpy.run_path(sys.argv[1])['free']\n"
        "whole, gigabyte = free(), 2**30\n"
        "resource.setrlimit(resource.RLIMIT_AS, (gigabyte, gigabyte))\n"
        "print(whole, free())"
    )
    whole, left = numbers_of(limited)
    assert 0 < left < 1024 * MB
    assert left < whole
