"""Numbers in the headers of archives, as each format writes them. Pure."""

import re

from fleeting.archives._members import ArchiveRefused

_MOST_DIGITS = 20
"""Digits of the largest number that 64 bits hold; more would only cost time."""

_SECOND = 10**9
_DECIMAL = re.compile(rb"(-?)([0-9]{1,20})(?:\.([0-9]*))?")
_NEGATIVE, _POSITIVE = 0xFF, 0x80
"""First bytes of a number in base 256, which GNU tar writes where eight octal digits do not suffice."""


def from_field(field: bytes, what: str) -> int:
    """Read a field of a header: octal digits, or base 256."""
    if field[0] in (_NEGATIVE, _POSITIVE):
        number = int.from_bytes(field[1:], "big")
        return number if field[0] == _POSITIVE else number - (1 << 8 * (len(field) - 1))
    digits = field.partition(b"\0")[0].strip(b" ")
    if digits.strip(b"01234567"):
        raise ArchiveRefused(f"the archive is broken: {what} is not a number")
    return int(digits or b"0", 8)


def from_record(value: bytes, what: str) -> int:
    """Read a whole number as extended headers write it: decimal digits."""
    if not (value.isdigit() and len(value) <= _MOST_DIGITS):
        raise ArchiveRefused(f"the archive is broken: {what} is not a number")
    return int(value)


def time_from_record(value: bytes) -> int:
    """Read a time as extended headers write it, as nanoseconds: decimal seconds, maybe with a fraction."""
    match = _DECIMAL.fullmatch(value)
    if match is None:
        raise ArchiveRefused("the archive is broken: a time is not a number")
    sign, seconds, fraction = match.groups()
    nanoseconds = int(seconds) * _SECOND + int((fraction or b"").ljust(9, b"0")[:9])
    return within_64_bits(-nanoseconds if sign else nanoseconds)


def time_from_field(field: bytes) -> int:
    """Read a time as a header's field has it, as nanoseconds."""
    return within_64_bits(from_field(field, "a time") * _SECOND)


def within_64_bits(number: int) -> int:
    """Bring a number into the range of a signed one of 64 bits."""
    return max(-(1 << 63), min(number, (1 << 63) - 1))
