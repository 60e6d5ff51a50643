"""How directories are removed that others have filled: jobs, repositories and images make them as deep as they like.

Python's own removal opens a file for each level, of which the whole program may have a thousand, and up to 3.12 ends
with an error at as many levels; `rm` does neither.
"""

import shutil
import subprocess
from contextlib import suppress
from pathlib import Path


def remove_tree(path: Path) -> None:
    """Remove a directory with all that is in it, as far as that can be done; nothing, if there is none."""
    try:
        _run("rm", "-rf", "--", str(path))
        if path.is_dir() and not path.is_symlink():  # directories in it could only be read, as in images of Nix
            _run("chmod", "-R", "u+rwX", "--", str(path))
            _run("rm", "-rf", "--", str(path))
    except OSError:  # a container may have no such program
        with suppress(RecursionError):
            shutil.rmtree(path, ignore_errors=True)


def _run(*command: str) -> None:
    nothing = subprocess.DEVNULL
    subprocess.run(command, stdin=nothing, stdout=nothing, stderr=nothing, check=False)  # noqa: S603  (those above)
