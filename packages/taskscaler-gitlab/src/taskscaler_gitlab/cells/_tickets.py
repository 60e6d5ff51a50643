"""What a runner brings back with its next request: the tickets of all its cells, as one value that only we can make.

A router that has forgotten everything knows from it which cells have the runner, and what the runner has seen of each.
Pure but for the key, which is a file.
"""

import base64
import binascii
import hmac
import json
import os
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from secrets import token_bytes

from attrs import field, frozen

from fleeting.plugins import make_private, open_private, write_whole

LONGEST = 8192
"""Characters of a ticket."""

LONGEST_OF_CELL = 256
"""Characters of a cell's own; one that is longer is not kept, which costs no more than an answer too early."""

_KEY = 32
_MAC = 16
_PREFIX = "cells1."


@frozen
class Ticket:
    """What is known of a runner."""

    cells: Mapping[str, str]
    """The cells that know it, with the tickets that they gave; empty: a cell gave none yet."""

    surveyed_at: int
    """When all cells were asked whether they know it, in seconds since 1970."""


@frozen
class Tickets:
    """Seals tickets, and opens its own."""

    _key: bytes = field(repr=False)

    def seal(self, ticket: Ticket, token: str) -> str:
        """Write a ticket for the runner with this token; the same ticket is the same text."""
        kept = {cell: given if len(given) <= LONGEST_OF_CELL else "" for cell, given in sorted(ticket.cells.items())}
        sealed = self._sealed(ticket.surveyed_at, kept, token)
        return sealed if len(sealed) <= LONGEST else self._sealed(ticket.surveyed_at, dict.fromkeys(kept, ""), token)

    def _sealed(self, surveyed_at: int, cells: Mapping[str, str], token: str) -> str:
        said = json.dumps([surveyed_at, cells], separators=(",", ":")).encode()
        return _PREFIX + base64.urlsafe_b64encode(self._mac(said, token) + said).decode().rstrip("=")

    def open(self, text: object, token: str) -> Ticket | None:
        """Read a ticket; None: it is none of ours, or another runner's."""
        if not isinstance(text, str) or len(text) > LONGEST or not text.startswith(_PREFIX):
            return None
        body = text.removeprefix(_PREFIX)
        try:
            raw = base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            return None
        mac, said = raw[:_MAC], raw[_MAC:]
        if not hmac.compare_digest(mac, self._mac(said, token)):
            return None
        surveyed_at, cells = json.loads(said)  # it is our own
        return Ticket(cells, surveyed_at)

    def _mac(self, said: bytes, token: str) -> bytes:
        whose = sha256(token.encode(errors="replace")).digest()
        return hmac.digest(self._key, whose + said, "sha256")[:_MAC]


def key_in(directory: Path) -> bytes:
    """Read the key that a router signs with, or make one that stays there, for our user alone.

    Raises:
        OSError: The directory cannot be used, or somebody else's key is there.
    """
    make_private(directory)
    path = directory / "key"
    try:
        with os.fdopen(open_private(path, os.O_RDONLY), "rb") as file:
            found = file.read(_KEY + 1)
    except FileNotFoundError:
        found = b""
    if len(found) == _KEY:
        return found
    made = token_bytes(_KEY)
    write_whole(path, made)
    return made
