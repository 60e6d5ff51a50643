"""OpenSSH's file of known hosts, read as OpenSSH reads it: patterns, hashed names, ports, revoked keys."""

import base64
import binascii
import hmac
from collections.abc import Iterator
from fnmatch import fnmatchcase

from attrs import frozen

DEFAULT_PORT = 22


@frozen
class KnownKeys:
    """Keys that the file has for a host, each as ``type base64``."""

    trusted: frozenset[str]
    revoked: frozenset[str]


def known_keys(text: str, host: str, port: int) -> KnownKeys:
    """Look a host up; lines that cannot be read, and those about certificates, have no say."""
    name = host.lower() if port == DEFAULT_PORT else f"[{host.lower()}]:{port}"
    found = [(marker, key) for marker, names, key in _entries(text) if _matches(names, name)]
    return KnownKeys(
        trusted=frozenset(key for marker, key in found if not marker),
        revoked=frozenset(key for marker, key in found if marker == "@revoked"),
    )


def _entries(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield marker, names and key of each line."""
    for line in text.splitlines():
        fields = line.split()
        if not fields or fields[0].startswith("#"):
            continue
        marker = fields.pop(0) if fields[0].startswith("@") else ""
        if len(fields) >= 3:  # noqa: PLR2004  (names, type, key; then a comment)
            yield marker, fields[0], f"{fields[1]} {fields[2]}"


def _matches(names: str, name: str) -> bool:
    if names.startswith("|"):
        return _is_hash_of(names, name)
    patterns = [pattern.lower() for pattern in names.split(",")]
    if any(pattern.startswith("!") and _fits(pattern[1:], name) for pattern in patterns):
        return False
    return any(_fits(pattern, name) for pattern in patterns)


def _fits(pattern: str, name: str) -> bool:
    """Match ``*`` and ``?``; brackets stand for themselves, they are part of ``[host]:port``."""
    return fnmatchcase(name, pattern.replace("[", "[[]"))


def _is_hash_of(names: str, name: str) -> bool:
    """Compare with a hashed name, ``|1|salt|hash``."""
    _, version, *rest = names.split("|")
    if version != "1" or len(rest) != 2:  # noqa: PLR2004  (salt and hash)
        return False
    try:
        salt, hashed = (base64.b64decode(part, validate=True) for part in rest)
    except binascii.Error:
        return False
    return hmac.compare_digest(hmac.digest(salt, name.encode(), "sha1"), hashed)
