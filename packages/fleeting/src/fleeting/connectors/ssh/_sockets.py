"""Pure: where a host listens, as Linux shows it in ``/proc/net/tcp`` and ``tcp6``."""

import re
from typing import Final

COMMAND: Final = "cat /proc/net/tcp /proc/net/tcp6 2>/dev/null || :"
"""Prints both."""

_LISTENS: Final = "0A"
_STATE: Final = 3
"""Which word of a line is the state; the second is the address."""

_PLACE: Final = re.compile("([0-9A-F]{8}|[0-9A-F]{32}):([0-9A-F]{4})")

_IPV6_LOOPBACK: Final = ("00000000000000000000000001000000", "00000000000000000000000000000001")
"""``::1`` as the two kinds of processors have it in memory."""


def listens(shown: str, port: int) -> bool | None:
    """Whether anything listens at a port, whatever the address; None where nothing is shown of any port."""
    found = _listening(shown)
    return any(number == port for _, number in found) if found else None


def listens_on_loopback_only(shown: str, port: int) -> bool:
    """Whether all that listens at a port does so at loopback addresses; False where nothing is shown of the port."""
    addresses = [address for address, number in _listening(shown) if number == port]
    return bool(addresses) and all(map(_is_loopback, addresses))


def _listening(shown: str) -> list[tuple[str, int]]:
    """Addresses in hexadecimal, and ports; lines that say something else are passed over."""
    found = []
    for words in map(str.split, shown.splitlines()):
        place = _PLACE.fullmatch(words[1]) if len(words) > _STATE and words[_STATE] == _LISTENS else None
        if place is not None:
            found.append((place[1], int(place[2], 16)))
    return found


def _is_loopback(address: str) -> bool:
    return address.endswith("7F") or address == "7F000001" or address in _IPV6_LOOPBACK
