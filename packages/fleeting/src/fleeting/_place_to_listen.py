"""Where to listen, as people write it."""

import re

_PLACE = re.compile(r"(?:\[([0-9A-Fa-f:.]+(?:%\w+)?)\]|([^\[\]:/@\s]*)):([0-9]{1,5})")
_LAST_PORT = 65535


def place_to_listen(given: str) -> tuple[str, int]:
    """Read ``HOST:PORT``; an address of IPv6 is in brackets, as URLs have it.

    Returns:
        The host, without brackets, and the port. An empty host means all addresses, port 0 one that is free.

    Raises:
        ValueError: It is none.
    """
    found = _PLACE.fullmatch(given)
    if found is None or int(found[3]) > _LAST_PORT:
        raise ValueError(f"{given!r} is not HOST:PORT, such as 127.0.0.1:8443 or [::1]:8443")
    return found[1] or found[2] or "", int(found[3])
