"""What is said of detached commands: their names, and the words in which a host reports how they are.

The host names a file after the end of a command, so that this needs no room on a full disk: ``NAME:ended:0::0:``, with
the exit status, the signal if there was one, and how many bytes of output were not kept. The report adds what the
command has used: ``ended 0::0:_t3`` (see `_usage`), of which earlier releases said nothing.
"""

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Final

import anyio
from attrs import define, field

from fleeting._durations import format_duration
from fleeting._errors import CommandLost, ConnectError, NameUnknown, Unreachable
from fleeting._protocols import Detached
from fleeting._types import Completed
from fleeting.connectors._usage import LONGEST_USAGE, read_usage

LONGEST_REPORT: Final = 1 << 21
"""Bytes: eight thousand commands, each with as much to say as there can be, or the signs of life of half a year."""

PATIENCE: Final = 120.0
"""Seconds for a report; a host whose `sleep` takes whole seconds only may take eighty to kill a command."""

LONGEST_NAME: Final = 100
"""Characters; a file system allows 255 bytes."""

_NAME: Final = re.compile(rf"[A-Za-z0-9_][A-Za-z0-9_.-]{{0,{LONGEST_NAME - 1}}}")
_ENDED: Final = re.compile(
    r"ended ([0-9]{1,3}):(?:([A-Z][A-Z0-9+-]{0,15})|[0-9]{1,3})?:([0-9]{1,18})"
    rf"(?::([a-z0-9_.,]{{0,{LONGEST_USAGE}}}))?"
)
"""A shell that has no name for a signal may write its number."""

_LOST: Final = {
    "rebooted": "the host has rebooted since it began",
    "killed": "what watched over it was killed",
    "removed": "what was kept of it was removed while it ran",
    "unborn": "it was never begun",
}
"""Why nobody knows how a command ended, by the word for it."""

UNREADABLE: Final = "what was kept of its end cannot be read"


@define
class Report:
    """The sink for what a host says of its commands; one that goes on and on is not listened to."""

    data: bytearray = field(factory=bytearray, init=False)
    """What has arrived so far."""

    async def __call__(self, chunk: bytes) -> None:
        """Keep it.

        Raises:
            ConnectError: It is more than any report.
        """
        if len(self.data) + len(chunk) > LONGEST_REPORT:
            raise ConnectError(f"the instance reports more than {LONGEST_REPORT >> 10} KiB about its detached commands")
        self.data += chunk

    @property
    def last_line(self) -> str:
        """The word for how a command is; a login shell may have said something before it, and shown signs of life."""
        return self.data.decode(errors="replace").rstrip("\n").rpartition("\n")[2]


@asynccontextmanager
async def reported(what: str) -> AsyncIterator["anyio.CancelScope"]:
    """Give the host a while to report; *what* it was asked, for the error.

    Raises:
        Unreachable: It has not.
    """
    with anyio.move_on_after(PATIENCE) as scope:
        yield scope
    if scope.cancelled_caught:
        raise Unreachable(f"the instance did not report {what} within {format_duration(PATIENCE)}")


def checked_name(name: str) -> str:
    """Return the name of a detached command.

    Raises:
        ConnectError: It cannot be one.
    """
    if not _NAME.fullmatch(name):
        raise ConnectError(
            f"a detached command cannot be named {name!r:.120}; use at most {LONGEST_NAME} letters, digits, '_', '-'"
            " and '.', and begin with none of the last two"
        )
    return name


def ended(name: str, state: str) -> Completed:
    """How a command ended, as its host reports it.

    Raises:
        NameUnknown: There is no such command.
        CommandLost: Nobody knows.
        ConnectError: No host of ours reports such a thing.
    """
    if state == "absent":
        raise NameUnknown(name)
    if state in _LOST:
        raise CommandLost(name, _LOST[state])
    if not (found := _ENDED.fullmatch(state)):
        raise ConnectError(
            f"the instance reports something else than the state of the command {name!r}: {state!r:.200}"
        )
    status, signal, cut, used = found.groups()
    usage = read_usage((used or "").split("_"))
    if signal:
        return Completed(exit_status=None, signal=f"SIG{signal}", cut=int(cut), usage=usage)
    return Completed(exit_status=int(status), cut=int(cut), usage=usage)


def listed(report: str) -> Iterator[Detached]:
    """Read a line for each command: its name, and its state. What cannot be one of ours is passed over."""
    for line in report.splitlines():
        name, _, state = line.partition(" ")
        if not _NAME.fullmatch(name) or state in ("absent", "beginning"):
            continue  # it was forgotten meanwhile, or is just about to begin
        if state == "running":
            yield Detached(name=name)
        elif state in _LOST:
            yield Detached(name=name, lost=_LOST[state])
        elif _ENDED.fullmatch(state):
            yield Detached(name=name, completed=ended(name, state))
        elif state.startswith("ended "):
            yield Detached(name=name, lost=UNREADABLE)
