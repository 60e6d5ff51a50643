"""Sizes as Docker writes them. Pure."""

import re
from typing import Final

import attrs

LARGEST_SIZE: Final = 1 << 62
"""Bytes that are no size any more: daemons count in 63 bits."""

_SIZE = re.compile(r"(\d+(?:\.\d+)?)([bkmgt]?)", flags=re.IGNORECASE)
_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def size_of(text: str) -> int:
    """Read a size such as ``512m`` or ``1.5g``, in bytes.

    Raises:
        ValueError: It is none.
    """
    found = _SIZE.fullmatch(text)
    size = float(found[1]) * _UNITS[found[2].lower()] if found else LARGEST_SIZE
    if not size < LARGEST_SIZE:
        raise ValueError('a size such as "512m" or "2g"')
    return int(size)


def is_size(_: object, __: "attrs.Attribute[str | None]", value: str | None) -> None:
    """Refuse, as a validator, what is no size above zero."""
    if value is not None and size_of(value) < 1:
        raise ValueError("a size above zero")


def in_words(size: int) -> str:
    """Write a size for people: ``64 MiB``."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= factor:
            return f"{size / factor:.4g} {unit}"
    return f"{size} bytes"
