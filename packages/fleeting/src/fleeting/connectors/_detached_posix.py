"""Commands that outlive the connection, on hosts that have a POSIX shell and the usual tools, and nothing of ours.

What is done there is in `_detached_scripts`, what it reports in `_detached_report`.
"""

import os
import re
import secrets
import shlex
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from math import inf
from typing import ClassVar, Final, NoReturn

import anyio
from attrs import define, field

from fleeting._errors import CommandLost, ConnectError, NameTaken, Unreachable
from fleeting._protocols import KEPT_OUTPUT, Detached, Sink, Source
from fleeting._types import Completed
from fleeting._wording import one_line
from fleeting.connectors._base import BaseConnection, Invocation
from fleeting.connectors._detached_report import Report, checked_name, ended, listed, reported
from fleeting.connectors._detached_scripts import ATTACH, FORGET, KILL, LIST, START, START_ATTACHED
from fleeting.connectors._stdin import arriving, reading

LONGEST_ENVIRONMENT: Final = 120_000
"""Bytes: what `run` over SSH takes, and Linux takes no variable above 128 KiB."""

SHORT_INPUT: Final = 1 << 20
"""Bytes that a command may read which is started and attached to at once."""

_BLOCK: Final = 512
"""Bytes in which a shell counts the size of a file that it limits."""

_IN_A_SESSION: Final = """
command -v setsid >/dev/null ||
    { echo "the instance has no setsid; install it (util-linux), or connect over SSH" >&2; exit 1; }
setsid /bin/sh -c "$1"
exit $?
"""
"""What follows keeps the shell from becoming `setsid`, which would not wait if it were a leader already."""

_KILLED: Final = 128 + 9
"""How a shell says that what it waited for was killed."""

_NO_FILES: Final = "its files could not be made on the instance; check the disk, and the permissions of the home"
_STARTED: Final = "that the command {!r} was started; it may run"
_LAST_WORDS: Final = 1 << 10  # characters
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class PosixConnection(BaseConnection):
    """A connection to a POSIX host, where commands can outlive it: a `RunsDetached`, and a `StartsAttached`."""

    __slots__ = ()

    lets_sessions_go: ClassVar[bool] = True
    """Whether `perform` ends no process that has a session of its own; if it does, `start_attached` saves nothing."""

    @property
    def detached_directory(self) -> str:
        """Where detached commands are kept on the host; empty: in ``~/.fleeting/detached``."""
        return ""

    async def launch(self, script: str, stdin: Source, said: Sink, complaint: Sink) -> Completed:
        """Run what starts a detached command: as `perform` does, but nothing that it leaves may be ended.

        The default puts it into a session of its own, for which the instance needs ``setsid``. A subclass whose
        `perform` can be asked to let go does so, and needs no more than a shell; in both, the process that runs the
        script is the leader of its process group, and of no other command's.
        """
        command = ("/bin/sh", "-c", _IN_A_SESSION, "sh", script)
        invocation = Invocation(command=command, stdin=stdin, stdout=said, stderr=complaint, env={}, cwd=None)
        return await self.perform(invocation)

    async def start(
        self,
        name: str,
        command: str | Sequence[str],
        *,
        stdin: Source | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        keep: int = KEPT_OUTPUT,
    ) -> None:
        """Start a command, as `RunsDetached.start` says."""
        mark = secrets.token_hex(16) if stdin else ""
        exports, arguments = self._to_start(name, command, stdin=stdin, env=env, cwd=cwd, keep=keep, mark=mark)
        script = f"set -- {shlex.join(arguments)}\n{START}"
        said, complaint = Report(), Report()
        async with reported(_STARTED.format(name)) as scope:
            if mark:
                patience, scope.deadline = scope.deadline - anyio.current_time(), inf

                async def arriving_marked() -> AsyncIterator[bytes]:
                    yield exports
                    async with reading(arriving(stdin)) as chunks:
                        async for chunk in chunks:
                            yield chunk
                    scope.deadline = anyio.current_time() + patience
                    yield b"" if isinstance(stdin, bytes) else mark.encode()

                begun = await self.launch(script, arriving_marked(), said, complaint)
            else:
                begun = await self.launch(script, exports, said, complaint)
        if said.last_line != "started" or not (begun.signal == "SIGKILL" or begun.exit_status == _KILLED):
            await self._not_started(name, said.last_line, complaint.last_line, begun)

    async def start_attached(
        self,
        name: str,
        command: str | Sequence[str],
        *,
        stdin: Source | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        keep: int = KEPT_OUTPUT,
        started: Callable[[], object],
        output: Sink,
    ) -> Completed:
        """Start a command and attach to it, as `StartsAttached.start_attached` says.

        This is one command where the host has ``setsid`` and the input is at hand and small; a stream could not be read
        again if the host had none, and against what a long input takes, a round trip is nothing.
        """
        given = stdin or b""
        if self.lets_sessions_go and isinstance(given, bytes) and len(given) <= SHORT_INPUT:
            mark = secrets.token_hex(16)
            exports, arguments = self._to_start(
                name, command, stdin=stdin, env=env, cwd=cwd, keep=keep, mark=mark if given else ""
            )
            script = f"set -- {shlex.join((mark, *arguments))}\n{START_ATTACHED}"
            complaint = Report()
            async with reported(_STARTED.format(name)) as scope:

                def begin() -> None:
                    scope.deadline = inf
                    started()

                marked = _Marked(f"{mark}\n".encode(), begin, output)
                invocation = Invocation(
                    command=script, stdin=exports + given, stdout=marked, stderr=complaint, env={}, cwd=None
                )
                over = await self.perform(invocation)
            word = complaint.last_line
            if marked.is_found:
                return ended(name, word or over.outcome)
            if not word and (over.signal or over.exit_status == _KILLED):
                raise Unreachable(f"it is unknown whether the command {name!r} was started: its shell {over.outcome}")
            if word != "unable":
                await self._not_started(name, word, word, over)
        await self.start(name, command, stdin=stdin, env=env, cwd=cwd, keep=keep)
        started()
        return await self.attach(name, output=output)

    async def attach(self, name: str, *, offset: int = 0, output: Sink) -> Completed:
        """Join a command, as `RunsDetached.attach` says."""
        if offset < 0:
            raise ConnectError(f"output cannot be read from byte {offset}; the first one is 0")
        return ended(name, await self._state(ATTACH, checked_name(name), str(offset + 1), output=output))

    async def list_detached(self) -> Sequence[Detached]:
        """Look at all, as `RunsDetached.list_detached` says."""
        report = Report()
        async with reported("which commands it has"):
            await self.run(("/bin/sh", "-c", LIST, "sh", self.detached_directory), stdout=report, check=True)
        return list(listed(report.data.decode(errors="replace")))

    async def kill(self, name: str) -> None:
        """End a command, as `RunsDetached.kill` says."""
        async with reported(f"that the command {name!r} was killed"):
            state = await self._state(KILL, checked_name(name))
        with suppress(CommandLost):
            ended(name, state)

    async def forget(self, name: str) -> None:
        """Remove what is kept of a command, as `RunsDetached.forget` says."""
        async with reported(f"that the command {name!r} was forgotten"):
            state = await self._state(FORGET, checked_name(name))
        if state == "running":
            raise ConnectError(f"the command {name!r} still runs, so it cannot be forgotten; kill it first")

    def _to_start(
        self,
        name: str,
        command: str | Sequence[str],
        *,
        stdin: Source | None,
        env: Mapping[str, str] | None,
        cwd: str | None,
        keep: int,
        mark: str,
    ) -> tuple[bytes, Sequence[str]]:
        """What `START` reads before the command's input, and its arguments; *mark* is that of the input."""
        exports, count = _exports(env or {})
        argv = ("/bin/sh", "-c", command) if isinstance(command, str) else command
        blocks = str(max(1, keep // _BLOCK))
        whole = str(len(stdin)) if isinstance(stdin, bytes) else ""
        return exports, (self.detached_directory, checked_name(name), mark, count, blocks, cwd or "", whole, *argv)

    async def _not_started(self, name: str, word: str, complaint: str, begun: Completed) -> NoReturn:
        """Raise what a start leads to that has failed; *word* is the host's for it, and *begun* how its shell ended."""
        match word:
            case "taken":
                raise NameTaken(name)
            case "refused":
                why = _NO_FILES
            case "started":  # not all of it: it may have no more processes
                with suppress(ConnectError):
                    await self.kill(name)
                    await self.forget(name)
                why = f"its shell {begun.outcome}; check how many processes the user may have"
            case _:
                why = complaint[-_LAST_WORDS:] or f"its shell {begun.outcome}"
        raise ConnectError(f"the command {name!r} could not be started: {one_line(why)}")

    async def _state(self, script: str, *arguments: str, output: Sink | None = None) -> str:
        """Have the host do something with a command, and return the word for how it is now."""
        report = Report()
        command = ("/bin/sh", "-c", script, "sh", self.detached_directory, *arguments)
        completed = await self.run(command, stdout=output, stderr=report)
        return report.last_line or completed.outcome


@define
class _Marked:
    """Passes on what comes after a mark, and says when that has come; what a login shell says before it is dropped."""

    _mark: bytes
    _begin: Callable[[], None]
    _output: Sink
    is_found: bool = field(default=False, init=False)
    _held: bytes = field(default=b"", init=False)
    """What may be the mark's beginning: never as much as all of it, whatever arrives."""

    async def __call__(self, chunk: bytes) -> None:
        """Take it in."""
        if not self.is_found:
            before, mark, chunk = (self._held + chunk).partition(self._mark)
            if not mark:
                self._held = before[1 - len(self._mark) :]
                return
            self.is_found = True
            self._begin()
        if chunk:
            await self._output(chunk)


def _exports(env: Mapping[str, str]) -> tuple[bytes, str]:
    """Write what a shell reads to have these variables, and how many lines that is.

    Raises:
        ConnectError: No shell can have them.
    """
    for name, value in env.items():
        if not _VARIABLE.fullmatch(name):
            raise ConnectError(f"{name!r} cannot be a shell variable, so it cannot be in a command's environment")
        if "\0" in value:
            raise ConnectError(f"the variable {name} of a command's environment cannot contain NUL characters")
    exports = os.fsencode("".join(f"export {name}={shlex.quote(value)}\n" for name, value in env.items()))
    if (size := len(exports)) > LONGEST_ENVIRONMENT:
        raise ConnectError(
            f"the command's environment has {size} bytes, more than the limit of {LONGEST_ENVIRONMENT};"
            " pass data on stdin"
        )
    return exports, str(exports.count(b"\n"))
