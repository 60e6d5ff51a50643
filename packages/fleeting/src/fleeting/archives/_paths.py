"""Where members belong, and where links lead. Pure: nothing here asks the file system.

A link is judged by its text and by the directory that it is in, which is a real one, since no member lies below a
link. Let that directory be d levels below the target. The text may go up at its beginning, at most d times, and after
that only from directories of the archive; so each step up starts in a real directory inside the target and ends in
one. A step down stays inside too, for it meets a file, a real directory, or another link, of which the same holds. So
no link leads out, whichever other links there are, in this archive or in one that is put over it later.
"""

from collections.abc import Callable, Iterator
from typing import TypeAlias

from fleeting.archives._members import ArchiveRefused, shown

Path: TypeAlias = tuple[bytes, ...]
"""Names from the target down; empty: the target itself."""

DEEPEST = 128
"""Directories that a path may go through. Each is opened on the way, so this bounds the work per member."""

LONGEST_PART = 255
"""Bytes of one name in a path, on every file system that is in use."""

MOST_LINKS = 40
"""Links that a path may go through; a system that meets more refuses the path, and so do loops.

Source: path_resolution(7).
"""

_UP = b".."


def parts_of(text: bytes) -> Path:
    """Split a path; what means nothing in it is left out."""
    return tuple([part for part in text.split(b"/") if part not in (b"", b".")])


def place_of(name: bytes, longest: int) -> Path:
    """Find where a member belongs. A leading slash means nothing, as for all tars.

    Args:
        name: As the archive has it.
        longest: Bytes that the path may have.

    Raises:
        ArchiveRefused: That is outside the target, or too far below.
    """
    path = parts_of(name)
    if _UP in path:
        raise ArchiveRefused(f"the path {shown(name)} leads outside its directory")
    if len(path) > DEEPEST:
        raise ArchiveRefused(f"the path {shown(name)} goes through more than {DEEPEST} directories; leave them out")
    if len(name) > longest or any(len(part) > LONGEST_PART for part in path):
        raise ArchiveRefused(f"the path {shown(name)} is too long here; leave it out, or use a shorter directory")
    return path


def directories_left_by(link: Path, text: bytes) -> Iterator[Path]:
    """Yield the directories that a link's text goes up from, after it has gone down to them.

    The link is safe if each of them is a real directory; see the top of the module.

    Args:
        link: Where the link is.
        text: What it points to.

    Raises:
        ArchiveRefused: It leads outside the target, whatever there is.
    """
    at = link[:-1]
    has_gone_down = False
    if text.startswith(b"/"):
        raise _leads_out(link)
    parts = parts_of(text)
    if not text or len(parts) > 2 * DEEPEST:
        raise ArchiveRefused(f"the link {shown(b'/'.join(link))} points to an impossible path")
    for part in parts:
        if part == _UP:
            if not at:
                raise _leads_out(link)
            if has_gone_down:
                yield at
            at = at[:-1]
        else:
            has_gone_down = True
            at = (*at, part)


def refuse_detour(link: Path, text: bytes, read: Callable[[Path], bytes | None]) -> None:
    """Refuse a link that leads outside through links that are there already, and not of the archive.

    Args:
        link: Where it will be.
        text: What it points to.
        read: Returns what the link at a path points to, None if there is no link; paths go through real directories.
    """
    at, left, passed = link[:-1], list(reversed(parts_of(text))), 0
    while left:
        part = left.pop()
        if part == _UP:
            if not at:
                raise _leads_out(link)
            at = at[:-1]
            continue
        at = (*at, part)
        further = read(at)
        if further is not None:
            passed += 1
            if passed == MOST_LINKS:
                return
            if further.startswith(b"/"):
                raise _leads_out(link)
            at = at[:-1]
            left += reversed(parts_of(further))


def _leads_out(link: Path) -> ArchiveRefused:
    return ArchiveRefused(f"the link {shown(b'/'.join(link))} leads outside its directory")
