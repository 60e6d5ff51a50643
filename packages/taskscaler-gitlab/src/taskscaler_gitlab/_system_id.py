"""What tells this machine's runner from others with the same token: GitLab shows it, and keeps its jobs apart."""

import re
import secrets
import string
from pathlib import Path

from fleeting.plugins import make_private, write_whole

_VALID = re.compile(r"[sr]_[A-Za-z0-9]{12}")
_LETTERS = string.ascii_letters + string.digits
_FILE = "system_id"
_STRAYS = "may_have_strays"


def may_have_strays(directory: Path) -> bool:
    """Whether jobs may run that an earlier runner has noted down in another directory; stays so until `has_no_strays`.

    Raises:
        OSError: The directory cannot be used.
    """
    if not (directory / _FILE).exists():  # no runner has had it before
        make_private(directory)
        (directory / _STRAYS).touch()
    return (directory / _STRAYS).exists()


def has_no_strays(directory: Path) -> None:
    """Note down that there are none any more.

    Raises:
        OSError: That could not be done.
    """
    (directory / _STRAYS).unlink(missing_ok=True)


def system_id(directory: Path) -> str:
    """Read the system id from a directory, or make one that stays there.

    Raises:
        OSError: The directory cannot be used.
    """
    make_private(directory)
    path = directory / _FILE
    if path.is_file() and _VALID.fullmatch(found := path.read_text(errors="replace").strip()):
        return found
    made = "r_" + "".join(secrets.choice(_LETTERS) for _ in range(12))
    write_whole(path, made.encode())
    return made
