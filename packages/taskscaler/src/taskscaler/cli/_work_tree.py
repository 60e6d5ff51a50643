"""The working tree around a directory, as git knows it: which files are to be brought along, and which are not."""

import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from stat import S_ISDIR, S_ISLNK, S_ISREG
from typing import Final

from attrs import frozen

from fleeting.config import harmless
from fleeting.errors import WrongArguments
from fleeting.plugins import in_units, one_line

LARGEST: Final = 4 << 30
"""Bytes of all files."""

MOST_FILES: Final = 200_000

DEEPEST: Final = 10
"""Repositories within repositories."""

GIT_TIMEOUT: Final = 120.0
"""Seconds that git may take to list a tree."""


@frozen(kw_only=True)
class WorkTree:
    """A working tree, changes included."""

    root: Path
    prefix: str
    """Where in it the command was started: empty at its root, else with a slash at the end."""

    files: Mapping[str, Path]
    """What belongs to it, by the path from its root: tracked files, changed or not, and new ones that git does not
    ignore; files and links only. What was deleted is not there."""

    size: int
    """Bytes of all of them."""


def find_work_tree(here: Path) -> WorkTree:
    """Find the working tree around a directory.

    Raises:
        WrongArguments: There is no git, no working tree, or too much in it.
    """
    root = Path(os.fsdecode(_git(here, "rev-parse", "--show-toplevel").removesuffix(b"\n")))
    prefix = os.fsdecode(_git(here, "rev-parse", "--show-prefix").removesuffix(b"\n"))
    files: dict[str, Path] = {}
    size = 0
    for name in _names(root):
        path = root / name
        status = _look_at(path)
        if status is not None and (S_ISREG(status.st_mode) or S_ISLNK(status.st_mode)) and name not in files:
            files[name] = path
            size += status.st_size
            if len(files) > MOST_FILES:
                raise WrongArguments(f"{_shown(root)} has more than {MOST_FILES:,} files; {_IGNORE}")
    if size > LARGEST:
        raise WrongArguments(
            f"{_shown(root)} has {in_units(size)} in {len(files):,} files, more than the limit of {in_units(LARGEST)};"
            f" {_IGNORE}"
        )
    return WorkTree(root=root, prefix=prefix, files=files, size=size)


_IGNORE = "have git ignore what is not needed, or copy that separately"


def _names(directory: Path, inside: str = "", depth: int = 0) -> Iterator[str]:
    """Yield what belongs to a working tree, and to those of submodules and of other repositories in it."""
    listed = _git(directory, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--full-name")
    for name in sorted({os.fsdecode(each) for each in listed.split(b"\0") if each}):
        status = _look_at(directory / name)
        if status is None or not S_ISDIR(status.st_mode):
            yield inside + name
        elif depth < DEEPEST and _look_at(directory / name / ".git") is not None:
            yield from _names(directory / name, f"{inside}{name.rstrip('/')}/", depth + 1)


def _look_at(path: Path) -> os.stat_result | None:
    """Look at a file or a link; None: there is none."""
    try:
        return path.lstat()
    except OSError:
        return None


def _git(here: Path, *arguments: str) -> bytes:
    """Ask git about a directory.

    Raises:
        WrongArguments: There is no git, or it refuses.
    """
    command: Sequence[str] = ("git", "-C", str(here), *arguments)
    env = {**os.environ, "LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0"}
    try:
        done = subprocess.run(  # noqa: S603  (the arguments are ours)
            command, capture_output=True, check=False, env=env, stdin=subprocess.DEVNULL, timeout=GIT_TIMEOUT
        )
    except FileNotFoundError as error:
        raise WrongArguments(
            "--sync needs git, which is not installed here; install it, or leave --sync out"
        ) from error
    except subprocess.TimeoutExpired as error:
        why = f"git took longer than {GIT_TIMEOUT:g} s to list {_shown(here)}"
        raise WrongArguments(f"{why}; have it ignore what is not needed") from error
    except OSError as error:
        raise WrongArguments(f"git cannot be run ({error.strerror or error}); check the installation") from error
    if not done.returncode:
        return done.stdout
    said = done.stderr.decode(errors="replace")
    if "not a git repository" in said or "must be run in a work tree" in said:
        hint = "run the command in one, make one with `git init`, or leave --sync out"
        raise WrongArguments(f"--sync brings a git working tree along, and {_shown(here)} is not in one; {hint}")
    raise WrongArguments(f"git cannot list {_shown(here)} ({harmless(one_line(said))[:500]}); mend that first")


def _shown(path: Path) -> str:
    return harmless(str(path))
