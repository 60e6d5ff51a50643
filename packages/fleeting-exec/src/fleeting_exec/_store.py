"""Keeps the book in files, one for each request, and other managers out."""

import fcntl
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Self

from attrs import define, field

from fleeting import GroupRefused, ProviderError
from fleeting.plugins import make_private
from fleeting_exec._book import Book, Fate, Request

_SUFFIX = ".json"


@define(eq=False)
class Store:
    """A directory of our own, 0700; locked by the one who manages the group."""

    root: Path
    _lock: int | None = field(default=None, init=False)

    def open(self) -> Self:
        """Make the directory and lock it.

        Raises:
            GroupRefused: It cannot be made, is not ours alone, or somebody else manages the group.
        """
        try:
            self.check()
            make_private(self.root)
        except OSError as error:
            raise GroupRefused(f"{self.root} cannot be made: {error.strerror}; set state_dir to another one") from error
        self.check()
        self._lock = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise GroupRefused(
                f"the group in {self.root} is managed by another process or pool;"
                " end that one first, or set another plugin_config.name"
            ) from None
        return self

    def close(self) -> None:
        """Let the next manager in."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def check(self) -> None:
        """Make sure that nobody else can put anything into the directory, if there is one.

        Raises:
            GroupRefused: It is not ours alone.
        """
        with suppress(FileNotFoundError):
            status = self.root.lstat()
            if not self.root.is_dir() or status.st_uid != os.getuid() or status.st_mode & 0o022:
                raise GroupRefused(
                    f"{self.root} is no directory, or belongs to or can be written by another user;"
                    " the group needs a directory of its own with mode 0700"
                )

    def read(self, group: str) -> Book:
        """Read the book; it is empty if nothing was ever asked for.

        Raises:
            ProviderError: A file is not ours, or cannot be read.
        """
        book = Book(group)
        for path in sorted(self.root.glob(f"*{_SUFFIX}")):
            with suppress(FileNotFoundError):  # an observer may look while the manager forgets
                book = book.put(_read(path))
        return book

    def write(self, request: Request) -> None:
        """Store a request as it is now, whole or not at all.

        Raises:
            ProviderError: It cannot be written.
        """
        fates = [fate.value for fate in request.fates]
        record = json.dumps({"intent": request.intent, "asked_at": request.asked_at, "fates": fates})
        path = self.root / f"{request.digest}{_SUFFIX}"
        fresh = path.with_suffix(".new")
        try:
            fresh.write_text(record)
            fresh.rename(path)
        except OSError as error:
            raise ProviderError(f"{path} cannot be written: {error.strerror}") from error

    def replace(self, old: Book, new: Book) -> None:
        """Store what has changed between two books."""
        for digest in old.requests.keys() - new.requests.keys():
            (self.root / f"{digest}{_SUFFIX}").unlink(missing_ok=True)
        for digest, request in new.requests.items():
            if old.requests.get(digest) != request:
                self.write(request)


def _read(path: Path) -> Request:
    try:
        record = json.loads(path.read_bytes())
        fates = tuple(Fate(fate) for fate in record["fates"])
        return Request(intent=str(record["intent"]), asked_at=float(record["asked_at"]), fates=fates)
    except FileNotFoundError:
        raise
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ProviderError(f"{path} is no record of this group ({error}); remove it") from error
