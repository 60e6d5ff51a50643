"""Where it is remembered which hosts are taken: one small file, replaced as a whole by each change."""

import json
from pathlib import Path

import attrs
from attrs import define, field

from fleeting import GroupRefused, ProviderError
from fleeting.groups.static._assignments import Assignments, Record
from fleeting.plugins import PrivateDirectory, write_whole

VERSION = 1


@define
class Store:
    """The assignments of one group, in a directory that one manager at a time may hold."""

    _root: Path
    _directory: PrivateDirectory = field(init=False)

    @_directory.default
    def _its_directory(self) -> PrivateDirectory:
        return PrivateDirectory(self._root, "the hosts whose state is", "plugin_config.state_dir")

    @property
    def path(self) -> Path:
        """The file."""
        return self._root / "hosts.json"

    def open(self) -> Assignments:
        """Keep other managers out, and read what is there.

        Raises:
            GroupRefused: Another manager has the directory, or what is there cannot be used.
        """
        self._directory.claim()
        try:
            return self._read()
        except BaseException:
            self.close()
            raise

    def look(self) -> Assignments:
        """Read what is there, beside whoever manages it. Raises as `open`."""
        try:
            self._directory.check()
        except FileNotFoundError:
            return Assignments({})
        return self._read()

    def write(self, assignments: Assignments) -> None:
        """Replace what is there; once this returns, it outlives the machine's end.

        Raises:
            ProviderError: Nothing was changed.
        """
        records = {name: attrs.asdict(record) for name, record in assignments.records.items()}
        try:
            write_whole(self.path, json.dumps({"version": VERSION, "hosts": records}, indent=1).encode())
        except OSError as error:
            raise ProviderError(
                f"{self.path} cannot be written: {error.strerror}; check disk space and permissions"
            ) from error

    def close(self) -> None:
        """Let the next manager have it."""
        self._directory.let_go()

    def _read(self) -> Assignments:
        try:
            content = json.loads(self.path.read_bytes())
            version, hosts = content["version"], content["hosts"]
            if version == VERSION:
                return Assignments({name: Record(**record) for name, record in hosts.items()})
        except FileNotFoundError:
            return Assignments({})
        except OSError as error:
            raise GroupRefused(f"{self.path} cannot be read: {error.strerror}; check its permissions") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise GroupRefused(f"{self.path} is damaged; if the hosts run nothing any more, move it away") from error
        raise GroupRefused(
            f"{self.path} was written by a newer fleeting (format {version}); install that release again"
        )
