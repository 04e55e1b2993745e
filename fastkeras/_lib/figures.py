"""Numbers as a person reads them."""

_UNITS = ((2**30, "GB"), (2**20, "MB"), (2**10, "KB"))


def count(value):
    """A number without an exponent, four digits of it told.

    >>> count(50562.3), count(12.3456), count(0.01234)
    ('50,560', '12.35', '0.01234')
    """
    rounded = float(f"{value:.4g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 1000 else f"{rounded:.4g}"


def memory(size):
    """Bytes in the unit in which they are at least 1.

    >>> memory(512), memory(2048), memory(45 * 2**20)
    ('512 bytes', '2.0 KB', '45.0 MB')
    """
    for unit, name in _UNITS:
        if abs(size) >= unit:
            return f"{size / unit:,.1f} {name}"
    return f"{size:.0f} bytes"
