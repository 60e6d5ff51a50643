"""Secrets that are planted for a test, and the search for them in whatever is written, however they are spelled."""

import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from urllib.parse import quote
from zlib import crc32

from fleeting.testing._overhearing import spellings

Found = tuple[str, bytes]
"""A place, and what is there."""


def planted(*names: str) -> Mapping[str, str]:
    """Make a secret for each: no two alike, and each is written otherwise in JSON, in URLs and in base64."""
    return {name: f's3c+ret/"{name}"%{crc32(name.encode())}' for name in names}


def in_url(secret: str) -> str:
    """As it stands before the ``@`` of an address."""
    return quote(secret, safe="")


def leaks(secrets: Mapping[str, str], places: Iterable[Found]) -> list[str]:
    """Where which secret is: as it is, quoted, in base64 or hexadecimal digits, also if it is broken into lines."""
    wanted = [
        (name, written) for name, secret in secrets.items() for written, _ in spellings([secret]) if len(written) > 1
    ]
    found = []
    for where, data in places:
        text = data.decode("latin-1")
        for version in (text, re.sub(r"\s+|\\[nr]", "", text)):
            found += [f"{name} in {where} ({written})" for name, written in wanted if written in version]
    return found


def files(root: Path, is_own: Callable[[Path], bool]) -> Iterator[Found]:
    """All files below a directory but those that are for their user alone, and meant to have the secrets."""
    for path in sorted(root.rglob("*")):
        if path.is_symlink() or not path.is_file():
            continue
        if is_own(path):
            assert not stat.S_IMODE(path.stat().st_mode) & 0o077, f"others can read {path}"
        else:
            yield str(path), path.read_bytes()


def command_lines() -> Iterator[Found]:
    """What every process was started with, as each user of the host can see."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield str(path), path.read_bytes()
        except OSError:  # it has ended
            continue
