"""Keeps the requests in files, one for each, and other managers out."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Self

from attrs import define, field

from fleeting import ProviderError
from fleeting.plugins import PrivateDirectory, write_whole
from fleeting_exec._requests import Fate, Request, Requests

_SUFFIX = ".json"


@define(eq=False)
class Store:
    """Files in a directory that one manager at a time may hold."""

    root: Path
    _directory: PrivateDirectory = field(init=False)

    @_directory.default
    def _its_directory(self) -> PrivateDirectory:
        return PrivateDirectory(self.root, "the requests", "plugin_config.state_dir")

    def open(self) -> Self:
        """Make the directory and lock it.

        Raises:
            GroupRefused: It cannot be made, is not ours alone, or somebody else manages the group.
        """
        self._directory.claim()
        return self

    def close(self) -> None:
        """Let the next manager in."""
        self._directory.let_go()

    def check(self) -> None:
        """Make sure that nobody else can put anything into the directory, if there is one.

        Raises:
            GroupRefused: It is not ours alone.
        """
        with suppress(FileNotFoundError):
            self._directory.check()

    def read(self, group: str) -> Requests:
        """Read all requests; there are none if nothing was ever asked for.

        Raises:
            ProviderError: A file is not ours, or cannot be read.
        """
        requests = Requests(group)
        for path in sorted(self.root.glob(f"*{_SUFFIX}")):
            with suppress(FileNotFoundError):  # an observer may look while the manager forgets
                requests = requests.put(_read(path))
        return requests

    def write(self, request: Request) -> None:
        """Store a request as it is now, whole or not at all.

        Raises:
            ProviderError: It cannot be written.
        """
        fates = [fate.value for fate in request.fates]
        record = json.dumps({"intent": request.intent, "asked_at": request.asked_at, "fates": fates})
        path = self.root / f"{request.digest}{_SUFFIX}"
        try:
            write_whole(path, record.encode())
        except OSError as error:
            raise ProviderError(f"{path} cannot be written: {error.strerror}") from error

    def replace(self, old: Requests, new: Requests) -> None:
        """Store what has changed from the one to the other."""
        for digest in old.by_digest.keys() - new.by_digest.keys():
            (self.root / f"{digest}{_SUFFIX}").unlink(missing_ok=True)
        for digest, request in new.by_digest.items():
            if old.by_digest.get(digest) != request:
                self.write(request)


def _read(path: Path) -> Request:
    try:
        record = json.loads(path.read_bytes())
        fates = tuple(Fate(fate) for fate in record["fates"])
        return Request(intent=str(record["intent"]), asked_at=float(record["asked_at"]), fates=fates)
    except FileNotFoundError:
        raise
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ProviderError(f"{path} is not a record of this group ({error}); remove it") from error
