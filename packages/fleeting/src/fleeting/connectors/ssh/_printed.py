"""Pure: host keys as a machine prints them when it boots."""

import re
from collections.abc import Mapping

_BLOCK = re.compile(r"-----BEGIN SSH HOST KEY KEYS-----(.*?)-----END SSH HOST KEY KEYS-----", re.DOTALL)
_TYPES = ("ssh-ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521", "ssh-rsa")


def best_host_key(keys: Mapping[str, str]) -> str | None:
    """Choose among public keys, given by type; returns one ``type base64`` line, None if there is none to choose."""
    return next((f"{kind} {keys[kind]}" for kind in _TYPES if kind in keys), None)


def printed_host_key(console: str) -> str | None:
    """Find the host key that cloud-init prints on a machine's console.

    The first block counts: it is the boot's own, later ones may have been written by whoever works there.
    """
    block = _BLOCK.search(console)
    lines = [line.split() for line in block[1].splitlines()] if block else []
    return best_host_key({words[0]: words[1] for words in lines if len(words) > 1})
