"""Sizes as people write them. Pure."""

import re

_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)([bkmgt]?)", flags=re.IGNORECASE)
_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def size_of(text: str) -> int:
    """Read a size such as ``512m`` or ``1.5g``, in bytes.

    Raises:
        ValueError: It is none.
    """
    found = _SIZE.fullmatch(text)
    if not found:
        raise ValueError('a size such as "512m" or "2g"')
    return int(float(found[1]) * _UNITS[found[2].lower()])


def in_units(size: int) -> str:
    """Write a size for people: ``64 MiB``."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= factor:
            return f"{size / factor:.4g} {unit}"
    return f"{size} bytes"
