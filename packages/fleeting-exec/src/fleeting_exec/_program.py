"""Runs executables: bounded in time and in output, in a process group of their own, never left behind.

They get pipes of ours, read for as long as the process lives and no longer: a child of its that keeps a pipe open
holds up nobody.
"""

import logging
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from errno import ENOEXEC
from io import FileIO
from pathlib import PurePath

import anyio
from anyio.abc import Process
from attrs import define, field, frozen

from fleeting import ProviderError
from fleeting.connectors import Ending, PipeOutput
from fleeting.plugins import format_duration
from fleeting_exec._contract import OUTPUT_LIMIT, ExitCode, failure, last_words

GRACE = 5.0
"""Seconds between SIGTERM and SIGKILL for a program that has to end."""

STDERR_KEPT = 64 << 10
"""Bytes of the error output that are kept: its end."""

PASSED_ON = ("HOME", "LANG", "LOGNAME", "PATH", "SHELL", "TMPDIR", "TZ", "USER", "XDG_CONFIG_HOME")
"""What programs see of the manager's environment, and ``LC_*``; the rest may hold its secrets."""

log = logging.getLogger("fleeting.exec")


class NoSuchThing(ProviderError):
    """A program exited with `ExitCode.NOT_FOUND`. Never seen outside."""


class NoSuchCommand(ProviderError):
    """A program exited with `ExitCode.UNKNOWN_COMMAND`. Never seen outside."""


@frozen(kw_only=True)
class Program:
    """The user's program, with the environment that it gets."""

    command: Sequence[str]
    env: Mapping[str, str] = field(repr=False)
    secrets: Collection[str] = field(repr=False)
    """What no message may show."""

    async def run(self, *arguments: str, limit: float, env: Mapping[str, str] | None = None) -> bytes:
        """Run it to its end, at most *limit* seconds, and return what it printed. Cancelling kills it.

        Raises:
            ProviderError: It could not be started, took too long, printed too much, or failed; says which, with the
                end of its error output.
        """
        name = self.describe(*arguments)
        ended = await self._run([*self.command, *arguments], {**self.env, **(env or {})}, limit, name)
        words = last_words(ended.stderr, self.secrets)
        if ended.overflowed:
            raise ProviderError(f"{name} printed more than {OUTPUT_LIMIT >> 20} MiB and was killed")
        if ended.code is None:
            late = f"{name} did not end within {format_duration(limit)} and was killed"
            raise ProviderError(late + (f": {words}" if words else ""))
        if ended.code != ExitCode.DONE:
            raise _error(name, ended.code, words)
        if words:
            log.info("exec_said", extra={"command": name, "text": words})
        return ended.stdout

    def describe(self, *arguments: str) -> str:
        """Name a call in messages: without the program's own first arguments, which may be secret."""
        return " ".join([PurePath(self.command[0]).name, *arguments])

    async def _run(self, argv: Sequence[str], env: Mapping[str, str], limit: float, name: str) -> "_Ended":
        try:
            async with _started(argv, env) as running:
                return await running.attend(limit)
        except (OSError, ValueError) as error:
            words = getattr(error, "strerror", None) or str(error)
            no_format = isinstance(error, OSError) and error.errno == ENOEXEC  # a shell would run it all the same
            do = "begin the script with a line such as #!/bin/sh" if no_format else "try to run it by hand"
            raise ProviderError(f"{name} could not be started: {words}; {do}") from error


def environment(names: Collection[str], added: Mapping[str, str]) -> dict[str, str]:
    """Put together what programs see: little of our own environment, what is allowed by name, and what is added."""
    allowed = {*PASSED_ON, *names}
    passed = {name: value for name, value in os.environ.items() if name in allowed or name.startswith("LC_")}
    return {**passed, **added}


def secrets_in(arguments: Collection[str]) -> set[str]:
    """What in a program's arguments may be secret, by itself or behind ``--token=``: all but names of files.

    Interpreters are given their scripts as arguments, and begin their messages with them.
    """
    values = {value for argument in arguments for value in (argument, argument.partition("=")[2]) if value}
    return {value for value in values if not os.path.lexists(value)}


def _error(name: str, code: int, words: str) -> ProviderError:
    error = failure(name, code, words)
    special = {ExitCode.NOT_FOUND: NoSuchThing, ExitCode.UNKNOWN_COMMAND: NoSuchCommand}
    return special[ExitCode(code)](str(error)) if code in special else error


@frozen(kw_only=True)
class _Ended:
    """What came of a run."""

    code: int | None
    """Exit status; negative: a signal; None: it had not ended by then."""

    stdout: bytes
    stderr: bytes
    overflowed: bool


@define(eq=False)
class _Running:
    """A process that runs, and what it has written so far."""

    _process: Process
    _sources: Sequence[FileIO]
    _stdout: bytearray = field(factory=bytearray, init=False)
    _stderr: Ending = field(factory=lambda: Ending(STDERR_KEPT), init=False)
    _patience: anyio.CancelScope = field(factory=anyio.CancelScope, init=False)

    async def attend(self, limit: float) -> _Ended:
        """Wait for its end, at most *limit* seconds."""
        out, err = self._sources
        outputs = PipeOutput(out, self._take_out), PipeOutput(err, self._stderr)
        with anyio.CancelScope(deadline=anyio.current_time() + limit) as self._patience:
            async with anyio.create_task_group() as tasks:
                for output in outputs:
                    tasks.start_soon(output.pump)
                await self._process.wait()
                for output in outputs:
                    output.end()
        return _Ended(
            code=self._process.returncode,
            stdout=bytes(self._stdout),
            stderr=bytes(self._stderr.data),
            overflowed=self._overflowed,
        )

    async def end(self) -> None:
        """If it still runs, ask it and its whole process group to end, and kill what is left of it soon."""
        if self._process.returncode is None:
            self._signal(signal.SIGTERM)
            with anyio.move_on_after(GRACE):
                await self._process.wait()
            self._signal(signal.SIGKILL)
            await self._process.wait()

    @property
    def _overflowed(self) -> bool:
        return len(self._stdout) > OUTPUT_LIMIT

    async def _take_out(self, chunk: bytes) -> None:
        self._stdout += chunk
        if self._overflowed:
            self._patience.cancel()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)


@asynccontextmanager
async def _started(argv: Sequence[str], env: Mapping[str, str]) -> AsyncIterator[_Running]:
    """Start a process; in the end nothing of it is left running, unless it has ended by itself before."""
    with ExitStack() as ends:
        sources, theirs = [], []
        for _ in range(2):
            reader, writer = os.pipe()
            sources.append(ends.enter_context(FileIO(reader, "r")))
            theirs.append(ends.enter_context(FileIO(writer, "w")))
            os.set_blocking(reader, False)
        with anyio.CancelScope(shield=True):  # a cancellation in here would lose sight of its children
            out, err = theirs
            process = await anyio.open_process(
                list(argv), stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=env, start_new_session=True
            )
        for end in theirs:
            end.close()
        running = _Running(process, sources)
        try:
            yield running
        finally:
            with anyio.CancelScope(shield=True):
                await running.end()
