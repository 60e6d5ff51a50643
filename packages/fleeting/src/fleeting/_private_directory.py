"""A directory that belongs to one group, and to one manager of it at a time."""

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from attrs import define, field

from fleeting._directories import make_private
from fleeting._errors import GroupRefused

TRIES = 100
"""How often a directory that is not there any more is made again. Some file systems say that of each."""


@define
class PrivateDirectory:
    """A private directory, to be held by one process; the lock is the kernel's and goes with its holder."""

    root: Path
    """Where it is."""

    what: str
    """What lies in it, in the plural, such as ``the instances``: for the message to the process that comes second."""

    setting: str
    """Key of the setting that would put it elsewhere."""

    _lock: int | None = field(default=None, init=False)
    """Its descriptor, locked."""

    def claim(self) -> None:
        """Make and lock it, unless we hold the one that is there.

        Somebody may remove it at any moment until it is locked; then it is made again.

        Raises:
            GroupRefused: Another process holds it, it is not ours alone, or it cannot be made.
        """
        for _ in range(TRIES):
            if self._is_held():
                return
            self.let_go()
            try:
                self._make()
                self._lock = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except FileNotFoundError:
                continue
            except BlockingIOError:
                self.let_go()
                holder = f" ({self._holder()})" if self._holder() else ""
                raise GroupRefused(
                    f"{self.what} in {self.root} are managed by another process or pool; end that one first{holder},"
                    " or set another plugin_config.name"
                ) from None
        self.let_go()
        raise GroupRefused(f"{self.root} cannot be made: it disappears at once; set {self.setting} to another one")

    def check(self) -> None:
        """Make sure that nobody else can put anything into it.

        Raises:
            GroupRefused: It is not ours alone.
            FileNotFoundError: There is none.
        """
        status = self.root.lstat()
        if self.root.is_symlink() or status.st_uid != os.getuid() or status.st_mode & 0o022:
            raise GroupRefused(
                f"{self.root} belongs to or can be written by another user, or is a link;"
                " the group needs a directory of its own with mode 0700"
            )

    def let_go(self) -> None:
        """Let the next process have it."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _make(self) -> None:
        try:
            with suppress(FileNotFoundError):
                self.check()
            make_private(self.root)
        except FileNotFoundError:  # its last user has removed it just now
            raise
        except OSError as error:
            raise GroupRefused(
                f"{self.root} cannot be made: {error.strerror}; set {self.setting} to another one"
            ) from error
        self.check()

    def _holder(self) -> str:
        """Who holds it, as far as Linux says so."""
        try:
            status = self.root.stat()
            locks = Path("/proc/locks").read_text(encoding="ascii").splitlines()
        except (OSError, ValueError):
            return ""
        place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
        fields = (line.split() for line in locks)
        pids = [each[4] for each in fields if len(each) > 5 and each[1] == "FLOCK" and each[5] == place]  # noqa: PLR2004  (columns)
        return f"process {pids[0]}" if pids and pids[0].isdecimal() else ""

    def _is_held(self) -> bool:
        try:
            return self._lock is not None and os.path.samestat(os.fstat(self._lock), self.root.stat())
        except FileNotFoundError:
            return False
