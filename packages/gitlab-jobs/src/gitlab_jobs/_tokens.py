"""Tokens of runners and jobs, read as hints: pure.

Nothing here decides whether a token is good; only GitLab does. What cannot be read is no error and no hint. The form of
routable tokens is that of GitLab's ``lib/authn/token_field/generator/routable_token.rb``.
"""

import base64
import binascii
import json
import re
import zlib
from collections.abc import Mapping
from typing import Any

from attrs import frozen

SHOWN = 9
"""Characters of a token that may be shown, as GitLab Runner does from 17 on."""

MAX_ROUTING = 159
"""Bytes that a routable token may hold beside its random ones."""

LONGEST = 4096
"""Characters of a token that are looked at; a job's has about a thousand, a routable one 300 and its prefix at most."""

_RANDOM = 16
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_ROUTABLE = re.compile(r"(?P<signed>(?P<body>[!-~]*)\.01\.(?P<length>[0-9a-z]{2}))(?P<crc>[0-9a-z]{7})")
_BODY = re.compile(r"[A-Za-z0-9_-]+")
_LINE = re.compile(r"(?P<key>[a-z]):(?P<number>[0-9a-z]{1,13})")
_PREFIX = re.compile(r"glrt-(?:t[0-9]_)?|t[0-9]_|glrtr-|glcbt-|GR[0-9]{7}")
_PART = re.compile(r"[\w-]+", re.ASCII)
_PARTS = 3
_JOBS = "-glcbt-"
_KEYS = {"c": "cell", "g": "group", "o": "organization", "p": "project", "u": "user", "t": "type"}


@frozen(kw_only=True)
class Hints:
    """What a token says about where it belongs; nothing of it is verified."""

    cell: int | None = None
    """The cell that issued it."""

    organization: int | None = None
    """The organization."""

    group: int | None = None
    """The group."""

    project: int | None = None
    """The project."""

    user: int | None = None
    """The user."""

    type: int | None = None
    """The kind of runner."""

    expires_at: float | None = None
    """When a job's token ends, in seconds since 1970."""


def shorten(token: str) -> str:
    """The part of a token that may be shown in logs: without what all tokens begin with, nine characters."""
    found = _PREFIX.match(token)
    return token[found.end() if found else 0 :][:SHOWN]


def read_token(token: str) -> Hints:
    """What a token says of itself; without hints if it is of another kind, or damaged."""
    if len(token) > LONGEST:
        return Hints()
    if (claims := _claims(token)) is not None:
        return _of_claims(claims)
    if found := _ROUTABLE.fullmatch(token):
        return _of_routable(found)
    return Hints()


def _claims(token: str) -> str | None:
    """The claims of a job's token, which is a JWT behind ``glcbt-``, and that behind a prefix or none; else None.

    By one expression, four kilobytes of ``glcbt-`` cost as many tries as they have pairs of them.
    """
    head, *rest = token.split(".", _PARTS)
    if len(rest) != _PARTS - 1 or not all(_PART.fullmatch(each) for each in (head, *rest)):
        return None
    begins = f"-{head}".find(_JOBS)
    return rest[0] if 0 <= begins <= len(head) - len(_JOBS) else None


def mint_routable(prefix: str, routing: Mapping[str, int], random: bytes) -> str:
    """Make a token that says where it belongs.

    Args:
        prefix: What it begins with, such as ``glrt-t2_``.
        routing: Numbers by their letters: ``c`` the cell, ``g`` the group, ``o`` the organization, ``p`` the project,
            ``u`` the user, ``t`` the kind of runner. GitLab's own tokens always have an organization.
        random: Sixteen bytes that nobody can guess.

    Raises:
        ValueError: GitLab would not make such a token.
    """
    if len(random) != _RANDOM:
        raise ValueError(f"expected {_RANDOM} random bytes, found {len(random)}")
    if unknown := routing.keys() - _KEYS.keys():
        raise ValueError(f"unknown parts of a routable token: {', '.join(sorted(unknown))}")
    if "o" not in routing:
        raise ValueError("expected o, the organization, which every routable token names")
    if any(number < 0 for number in routing.values()):
        raise ValueError("expected numbers from 0 on")
    payload = "\n".join(f"{key}:{_base36(number)}" for key, number in sorted(routing.items())).encode()
    if len(payload) > MAX_ROUTING:
        raise ValueError(f"expected at most {MAX_ROUTING} bytes of routing, found {len(payload)}")
    body = base64.urlsafe_b64encode(random + payload + bytes([len(payload)])).rstrip(b"=").decode()
    signed = f"{prefix}{body}.01.{_base36(len(body)).rjust(2, '0')}"
    return signed + _base36(zlib.crc32(signed.encode())).rjust(7, "0")


def _base36(number: int) -> str:
    digits = ""
    while number:
        number, digit = divmod(number, 36)
        digits = _DIGITS[digit] + digits
    return digits or "0"


def _of_routable(found: re.Match[str]) -> Hints:
    if zlib.crc32(found["signed"].encode()) != int(found["crc"], 36):
        return Hints()
    length = int(found["length"], 36)
    body = found["body"][-length:]  # whatever an administrator has chosen as the prefix of tokens
    decoded = _decode(body) if len(body) == length and _BODY.fullmatch(body) else None
    if decoded is None or len(decoded) <= _RANDOM or decoded[-1] != len(decoded) - _RANDOM - 1:
        return Hints()
    lines = [*map(_LINE.fullmatch, decoded[_RANDOM:-1].decode("ascii", "replace").split("\n"))]
    return _named({line["key"]: line["number"] for line in lines if line}) if all(lines) else Hints()


def _of_claims(text: str) -> Hints:
    decoded = _decode(text)
    try:
        claims = json.loads(decoded or b"")
    except (ValueError, RecursionError):
        return Hints()
    if not isinstance(claims, dict):
        return Hints()
    expiry = claims.get("exp")
    return _named(claims, float(expiry) if type(expiry) is int and 0 <= expiry < 1 << 53 else None)


def _named(parts: Mapping[str, Any], expires_at: float | None = None) -> Hints:
    known = {_KEYS[key]: _number(value) for key, value in parts.items() if key in _KEYS}
    return Hints(expires_at=expires_at, **known)


def _number(value: object) -> int | None:
    """A number of at most 64 bits in base 36; the claims of a job's token have it as a string too."""
    if not isinstance(value, str) or not re.fullmatch(r"[0-9a-z]{1,13}", value):
        return None
    return int(value, 36)


def _decode(text: str) -> bytes | None:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except binascii.Error:
        return None
