"""Pure: host keys as a machine prints them when it boots."""

import re
from base64 import b64decode
from collections.abc import Mapping

_BEGIN, _END = (f"-----{word} SSH HOST KEY KEYS-----" for word in ("BEGIN", "END"))
_TYPES = ("ssh-ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521", "ssh-rsa")
"""The best first."""

_KEY = re.compile(rf"({'|'.join(_TYPES)})[ \t]+([A-Za-z0-9+/]+=*)")


def best_host_key(keys: Mapping[str, str]) -> str | None:
    """Choose among public keys, given by type; returns one ``type base64`` line, None if there is none to choose.

    What is no key of its type, such as a line that the kernel wrote into, is passed over.
    """
    return next((f"{kind} {keys[kind]}" for kind in _TYPES if names_its_type(kind, keys.get(kind, ""))), None)


def printed_host_key(console: str) -> str | None:
    """Find the host key that cloud-init prints on a machine's console.

    The first block counts, and only once it is complete: it is the boot's own, later ones may have been written by
    whoever works there. A console keeps only its end, so the first block that is left may be a later one: report the
    key with `ConnectInfo.pin_host_key`.
    """
    _, _, rest = console.partition(_BEGIN)
    block, end, _ = rest.partition(_END)
    keys: dict[str, str] = {}
    for kind, key in _KEY.findall(block if end else ""):
        keys.setdefault(kind, key)
    return best_host_key(keys)


def names_its_type(kind: str, base64: str) -> bool:
    """Whether a public key begins with its own type, as every key of SSH's does."""
    try:
        return b64decode(base64, validate=True).startswith(len(kind).to_bytes(4, "big") + kind.encode())
    except ValueError:
        return False
