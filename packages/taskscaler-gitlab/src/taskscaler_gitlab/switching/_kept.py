"""What is on disk of a switch: where it stands, and who works on it."""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from attrs import asdict, define, field, frozen

from fleeting import ConfigError
from fleeting.plugins import make_private, one_line, open_private, structure, write_whole
from taskscaler_gitlab.switching._switch import Refused, Step, Switch

VERSION = 1
MOST = 1 << 16
"""Bytes."""


@frozen(kw_only=True)
class _Written:
    """A switch as JSON has it."""

    version: int
    old: str
    new: str
    step: Step
    reached: Step
    is_aborting: bool
    configs: dict[str, str] = field(factory=dict)
    begun_at: float
    changed_at: float


@define(eq=False)
class KeptSwitch:
    """The directory of the switches of one file."""

    directory: Path

    @property
    def path(self) -> Path:
        """The state of the last one."""
        return self.directory / "switch.json"

    def read(self) -> Switch | None:
        """The last one, which may be over; None: there was none.

        Raises:
            Refused: What is there cannot be read.
            OSError: Nothing can be read there.
        """
        try:
            with open(self.path, "rb", opener=open_private) as file:
                data = file.read(MOST + 1)
        except FileNotFoundError:
            return None
        try:
            found = json.loads(data)
            version = found.get("version") if isinstance(found, dict) else None
            if version != VERSION:
                raise ValueError(f"it is of version {version!r}, and this program writes version {VERSION}")
            read = structure(found, _Written)
            if {read.old, read.new} != {"blue", "green"}:
                raise ValueError(f"it is from {one_line(read.old)} to {one_line(read.new)}")
        except (ValueError, RecursionError, ConfigError) as error:
            what = f"{self.path} cannot be read ({str(error).splitlines()[0] if str(error) else 'it is damaged'})"
            raise Refused(
                f"{what}; see which colours run with `taskscaler status`, remove the file, and begin again"
            ) from error
        fields = {key: value for key, value in asdict(read).items() if key != "version"}
        return Switch(**fields)

    def write(self, switch: Switch) -> None:
        """Keep it, before anything follows from it.

        Raises:
            OSError: It is as it was before.
        """
        said = {"version": VERSION, **asdict(switch)}
        said |= {"step": switch.step.value, "reached": switch.reached.value, "configs": dict(switch.configs)}
        write_whole(self.path, json.dumps(said, indent=2).encode())

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Be the only one who works on it, until the context or this process ends.

        Raises:
            Refused: Somebody else does.
            OSError: The directory cannot be used.
        """
        make_private(self.directory, hide=True)
        descriptor = open_private(self.directory / "lock", os.O_RDWR | os.O_CREAT)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                other = os.pread(descriptor, 20, 0).decode(errors="replace") or "of another one"
                raise Refused(
                    f"another `switch` (process {other}) works on this; wait for it, or see how far it is with --status"
                ) from None
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
            yield
        finally:
            os.close(descriptor)
