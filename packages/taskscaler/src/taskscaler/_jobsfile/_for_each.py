"""A job for each file that a pattern matches."""

import os
from collections.abc import Sequence
from glob import has_magic, iglob
from itertools import islice
from pathlib import Path, PurePosixPath


def files_for(pattern: str, directory: Path, *, most: int) -> Sequence[str]:
    """Find the files that a pattern matches, as a shell does: relative to the directory, sorted, no hidden ones.

    Args:
        pattern: Relative to the directory; ``**`` stands for any number of directories.
        directory: Where to look.
        most: After so many and one more, the search ends.
    """
    matches = iglob(pattern, root_dir=directory, recursive=True)  # noqa: PTH207  (a Path's finds hidden files)
    files = (match for match in matches if os.path.isfile(directory / match))  # noqa: PTH113  (raises for long names)
    return sorted({PurePosixPath(file).as_posix() for file in islice(files, most + 1)})


def short_names(pattern: str, files: Sequence[str]) -> Sequence[str]:
    """Name files by what distinguishes them: without the directories that the pattern names, and without suffixes."""
    fixed = PurePosixPath(*_until_magic(PurePosixPath(pattern).parts))
    return [PurePosixPath(file).relative_to(fixed).with_suffix("").as_posix() for file in files]


def _until_magic(parts: Sequence[str]) -> Sequence[str]:
    """Take the directories of a pattern before the first one with a wildcard; never the last part."""
    return next((parts[:number] for number, part in enumerate(parts) if has_magic(part)), parts[:-1])
