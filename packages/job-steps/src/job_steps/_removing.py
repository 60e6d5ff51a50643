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
    nothing = subprocess.DEVNULL
    try:
        subprocess.run(("rm", "-rf", "--", path), stdin=nothing, stdout=nothing, stderr=nothing, check=False)  # noqa: S603, S607  (the one that is first in PATH will do)
    except OSError:  # a container may have none
        with suppress(RecursionError):
            shutil.rmtree(path, ignore_errors=True)
