"""Numbers in words, by hand."""

import doctest

from fastkeras._lib import figures


def test_the_examples_of_the_docstrings():
    assert doctest.testmod(figures) == (0, 2)


def test_units_begin_where_they_are_at_least_one():
    sizes = [0, 1023, 1024, 2**20 - 1, 2**20, 3 * 2**30]
    assert [figures.memory(n) for n in sizes] == [
        "0 bytes",
        "1023 bytes",
        "1.0 KB",
        "1,024.0 KB",
        "1.0 MB",
        "3.0 GB",
    ]
    assert figures.count(999.96) == "1,000"
