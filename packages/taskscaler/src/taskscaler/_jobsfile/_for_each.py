"""A job for each file that a pattern matches."""

import os
import re
from collections.abc import Iterator, Sequence
from fnmatch import translate
from glob import has_magic
from itertools import islice
from pathlib import Path, PurePosixPath

MOST_LOOKED_AT = 4_000_000
"""Files and directories, by all patterns of a file together: a minute or so on a slow disk."""

_ANY_DEPTH = "**"


class TooManyToLookAt(Exception):
    """A search would not end in a reasonable time."""


def files_for(pattern: str, directory: Path, *, most: int, looks: Iterator[object]) -> Sequence[str]:
    """Find the files that a pattern matches, as a shell does: relative to the directory, sorted, no hidden ones.

    Args:
        pattern: Relative to the directory; ``**`` stands for any number of directories, but for no links to some.
        directory: Where to look.
        most: After so many and one more, the search ends.
        looks: One is taken for each file and directory that is looked at.

    Raises:
        TooManyToLookAt: There were not enough.
    """
    matches = _matches(_parts(pattern), directory, looks)
    files = (match for match in matches if os.path.isfile(directory / match))  # noqa: PTH113  (raises for long names)
    return sorted(set(islice(files, most + 1)))


def _parts(pattern: str) -> Sequence[str]:
    """Take a pattern apart; at its end, ``**`` stands for all files, and a slash for none."""
    parts = [*PurePosixPath(pattern).parts, *(["*"] if PurePosixPath(pattern).name == _ANY_DEPTH else [])]
    pairs = zip(parts, [*parts[1:], ""], strict=True)
    return [] if pattern.endswith("/") else [part for part, after in pairs if not part == after == _ANY_DEPTH]


def _matches(parts: Sequence[str], directory: Path, looks: Iterator[object]) -> Iterator[str]:
    """Give what may match: a name at the end of it need not be there."""
    left = [("", 0)] if parts else []
    while left:
        at, done = left.pop()
        _take(looks)
        if done == len(parts):
            yield at
            continue
        part, after = parts[done], done + 1
        if part == _ANY_DEPTH:
            left.append((at, after))
            left += ((_below(at, each.name), done) for each in _entries(directory / at, looks) if _is_own(each))
        elif has_magic(part):
            fits = re.compile(translate(part)).match
            names = (each.name for each in _entries(directory / at, looks))
            found = (_below(at, name) for name in names if fits(name) and (part[0] == "." or name[0] != "."))
            if after == len(parts):
                yield from found  # there may be a million, which need not wait for their turn
            else:
                left += ((each, after) for each in found)
        else:
            left.append((_below(at, part), after))


def _entries(directory: Path, looks: Iterator[object]) -> Iterator["os.DirEntry[str]"]:
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                _take(looks)
                yield entry
    except OSError:  # it is no directory, or nobody may read it
        return


def _is_own(entry: "os.DirEntry[str]") -> bool:
    """Whether an entry is a directory below which ``**`` looks: a link may lead back to where it is."""
    return not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False)


def _below(directory: str, name: str) -> str:
    return f"{directory}/{name}" if directory else name


def _take(looks: Iterator[object]) -> None:
    if next(looks, None) is None:
        raise TooManyToLookAt


def short_names(pattern: str, files: Sequence[str]) -> Sequence[str]:
    """Name files by what distinguishes them: without the directories that the pattern names, and without suffixes."""
    fixed = PurePosixPath(*_until_magic(PurePosixPath(pattern).parts))
    return [PurePosixPath(file).relative_to(fixed).with_suffix("").as_posix() for file in files]


def _until_magic(parts: Sequence[str]) -> Sequence[str]:
    """Take the directories of a pattern before the first one with a wildcard; never the last part."""
    return next((parts[:number] for number, part in enumerate(parts) if has_magic(part)), parts[:-1])
