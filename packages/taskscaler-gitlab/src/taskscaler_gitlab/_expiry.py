"""Tokens that end: when to have one replaced, and the file that it stands in. GitLab Runner does it at 75 %, too."""

import json
import os
import re
import tomllib
from datetime import UTC, datetime
from pathlib import Path

from fleeting.plugins import write_whole

SHARE = 0.75
"""How much of a token's life passes before it is replaced."""

_LARGEST = 4096

LEAST = 60.0
"""Seconds between two tries to replace it, and two tokens."""


def parse_time(text: str | None) -> float | None:
    """Read a time as GitLab writes it, in seconds since the epoch; None: it is none, or is GitLab Runner's "never"."""
    try:
        found = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    if found.year <= 1:
        return None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def renew_at(obtained: float, expires: float | None) -> float | None:
    """When to replace a token; None: never."""
    return None if expires is None else obtained + max(0.0, expires - obtained) * SHARE


def with_token(text: str, old: str, new: str) -> str:
    """A ``config.toml`` with another token in place of one; everything else is as it was.

    Raises:
        ValueError: The token does not stand in it as one would write it.
    """
    written = re.compile(rf"""^(\s*token\s*=\s*)(["']){re.escape(old)}\2""", flags=re.MULTILINE)
    changed, times = written.subn(lambda found: f"{found[1]}{json.dumps(new)}", text)  # TOML's strings are JSON's
    if times != 1 or not _is_toml(changed):
        raise ValueError("the token does not stand in it once, on a line of its own")
    return changed


def keep_token(path: Path, old: str, new: str) -> None:
    """Put a new token into a file in place of an old one, whole or not at all.

    Raises:
        OSError: It cannot be written.
        ValueError: As `with_token`.
    """
    mode = path.stat().st_mode & 0o7777
    target = path.resolve()
    write_whole(target, with_token(path.read_text(encoding="utf-8"), old, new).encode())
    target.chmod(mode)


def keep_alone(path: Path, old: str, new: str) -> None:
    """Put a new token into a file that has nothing else than an old one, whole or not at all.

    Raises:
        OSError: It cannot be written.
        ValueError: It has something else by now.
    """
    with path.open("rb") as file:
        if file.read(_LARGEST).strip() != old.encode():
            raise ValueError("it has another token by now")
    mode = path.stat().st_mode & 0o7777
    target = path.resolve()
    write_whole(target, f"{new}\n".encode())
    target.chmod(mode)


def may_keep_alone(path: Path) -> str:
    """Why a new token could not be put into a file of its own; empty if it could."""
    return "" if _is_writable(path.resolve()) else f"{path} cannot be written"


def may_keep(path: Path, token: str) -> str:
    """Why a new token could not be put into a file; empty if it could."""
    if not _is_writable(path.resolve()):
        return f"{path} cannot be written"
    try:
        with_token(path.read_text(encoding="utf-8"), token, token)
    except (OSError, ValueError) as error:
        return f"{path}: {error}"
    return ""


def _is_writable(target: Path) -> bool:
    return os.access(target, os.W_OK) and os.access(target.parent, os.W_OK)


def _is_toml(text: str) -> bool:
    try:
        tomllib.loads(text)
    except ValueError:
        return False
    return True
