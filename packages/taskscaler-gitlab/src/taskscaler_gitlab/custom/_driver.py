"""What each call of the custom executor does. Pure parts say what that is; here it is done.

Whatever goes wrong is one line in the job's log, and the exit status that gitlab-runner has named for whose fault it
is. Anything else than these two statuses would be a system failure of an unknown kind.
"""

import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from pathlib import Path
from typing import Final

import anyio
import click
from anyio.abc import TaskStatus
from attrs import define, field

from fleeting.cli import SUCCEEDED, outcome, report_errors
from fleeting.config import harmless
from fleeting.errors import WrongArguments
from taskscaler.cli.job_slot import GivenBack, JobSlot, Where, place_for
from taskscaler_gitlab.custom._contract import (
    SHELL_VARIABLE,
    Codes,
    JobsMistake,
    called_for,
    check_directory,
    choose,
    codes_of,
    configuration,
    ending,
    fleets_of,
    response_file,
    shell_for,
)
from taskscaler_gitlab.custom._moves import Move, Part, decide, why_not
from taskscaler_gitlab.custom._reader import reader_gone

LARGEST: Final = 64 << 20
"""Bytes of a script, and of what GitLab says of a job."""

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class _Interrupted(WrongArguments):
    """We were asked to end, or nobody is there any more for whom we work."""


def configure(*, socket: str | None, fleets: tuple[str, ...], builds_dir: str, cache_dir: str, shell: str) -> int:
    """Print what gitlab-runner is to know before it begins; returns the exit status."""

    def run(_: Codes) -> int:
        _key()
        check_directory("--builds-dir", builds_dir)
        check_directory("--cache-dir", cache_dir)
        place = place_for(choose(os.environ, fleets_of(fleets), socket))
        click.echo(
            json.dumps(
                configuration(
                    socket=place,
                    builds_dir=builds_dir,
                    cache_dir=cache_dir,
                    shell=shell,
                    version=version("taskscaler-gitlab"),
                )
            )
        )
        return SUCCEEDED

    return _ended(run)


def prepare(*, socket: str | None, patience: float, timeout: float, ttl: float) -> int:
    """Wait for a slot, and leave it to the job; returns the exit status."""

    async def work(slot: JobSlot, _: anyio.Event) -> int:
        standing = await slot.look()
        shell = os.environ.get(SHELL_VARIABLE)
        programs = (shell,) if shell else ()
        match decide(Part.PREPARE, standing):
            case Move.ACQUIRE:
                where = await slot.acquire(timeout=timeout, ttl=ttl, programs=programs)
            case Move.TAKE_UP:
                where = await slot.take_up(ttl=ttl, programs=programs)
            case _:
                raise WrongArguments(why_not(Part.PREPARE, standing))
        _say_where(where)
        return SUCCEEDED

    return _ended(lambda _: _attended(work, _slot(socket, patience), is_script=False))


def run(*, script: Path, stage: str, socket: str | None, patience: float) -> int:
    """Run a script of the job on its instance; returns the exit status."""

    def run_it(codes: Codes) -> int:
        written = _read(script)
        shell = shell_for(written)

        async def work(slot: JobSlot, asked: anyio.Event) -> int:
            standing = await slot.look()
            if decide(Part.RUN, standing) is not Move.WORK:
                raise WrongArguments(why_not(Part.RUN, standing))
            return await slot.run((shell,), written, asked)

        status = _attended(work, _slot(socket, patience), is_script=True)
        code, said = ending(status, codes)
        if said is not None and codes.file is not None:
            codes.file.write_text(f"{said}\n", encoding="ascii")
        return code

    del stage  # for people, in lists of processes
    return _ended(run_it)


def clean_up(*, socket: str | None, patience: float) -> int:
    """Give the job's slot back, whatever has become of it; returns the exit status."""

    def clean(_: Codes) -> int:
        slot = _slot(socket, patience)
        given = anyio.run(_given_back, slot)
        if given is GivenBack.REMOVED:
            _say("the instance of this job is removed, because what ran there could not be ended")
        return SUCCEEDED

    return _ended(clean)


async def _given_back(slot: JobSlot) -> GivenBack:
    if decide(Part.CLEANUP, await slot.look()) is Move.GIVE_BACK:
        return await slot.give_back()
    return GivenBack.NOTHING


def _key() -> str:
    """Which job we are called for."""
    return called_for(os.environ, _read(response_file(os.environ))).key


def _slot(socket: str | None, patience: float) -> JobSlot:
    return JobSlot(key=_key(), place=place_for(socket), patience=patience, say=_say)


def _read(path: Path) -> bytes:
    """Read a file of gitlab-runner's.

    Raises:
        OSError: It cannot be read.
        WrongArguments: It is too large.
    """
    with path.open("rb") as file:
        found = file.read(LARGEST + 1)
    if len(found) > LARGEST:
        raise WrongArguments(f"{path} has more than {LARGEST >> 20} MiB; make the job smaller")
    return found


def _say(what: str) -> None:
    click.echo(f"taskscaler: {harmless(what)}", err=True)


def _say_where(where: Where) -> None:
    click.echo(f"Running in slot {where.slot} of {harmless(where.instance)}...")


def _ended(run: Callable[[Codes], int]) -> int:
    """Do it, and end as gitlab-runner wants it; what nobody foresaw is for `DriverCommands`."""
    codes = codes_of(os.environ)

    def run_it() -> int:
        try:
            return run(codes)
        except JobsMistake as error:
            return report_errors([error], codes.build)
        except WrongArguments as error:
            return report_errors([error], codes.system)
        except KeyboardInterrupt:  # before the event loop heeds signals
            return report_errors([_Interrupted("SIGINT has ended this; nothing was started")], codes.system)

    return outcome(run_it, failed=codes.system)


def _attended(work: Callable[[JobSlot, anyio.Event], Awaitable[int]], slot: JobSlot, *, is_script: bool) -> int:
    """Work on a slot for as long as somebody wants it; returns the status.

    Raises:
        WrongArguments: Nobody does any more.
    """

    async def attend() -> int:
        return await _Attended(slot, is_script).run(work)

    return anyio.run(attend)


@define
class _Attended:
    """Work on a slot, and those who may end it."""

    slot: JobSlot
    is_script: bool
    """Whether it is a script's, which is asked to end first; a second signal ends it."""

    _asked: anyio.Event = field(factory=anyio.Event, init=False)
    _scope: anyio.CancelScope = field(factory=anyio.CancelScope, init=False)
    _why: str = field(default="", init=False)
    """Why the work was cut short; empty: it was not."""

    _is_gone: bool = field(default=False, init=False)
    """Whether gitlab-runner is: nobody calls the cleanup then."""

    async def run(self, work: Callable[[JobSlot, anyio.Event], Awaitable[int]]) -> int:
        """Do it."""
        status: int | None = None
        try:
            async with anyio.create_task_group() as tasks:
                await tasks.start(self._heed_signals)
                tasks.start_soon(self._heed_reader)
                with self._scope:
                    status = await work(self.slot, self._asked)
                tasks.cancel_scope.cancel()
        except ExceptionGroup as group:
            if group.split(BrokenPipeError)[1] is not None:
                raise group.exceptions[0] from None
            self._is_gone, self._why = True, _GONE
        if self._is_gone:
            _print_nowhere()
            with anyio.CancelScope(shield=True):
                await _given_back(self.slot)
        if status is None:
            raise _Interrupted(self._why)
        return status

    async def _heed_signals(self, *, task_status: TaskStatus[None]) -> None:
        with anyio.open_signal_receiver(*_SIGNALS) as received:
            task_status.started()
            async for number in received:
                name = signal.Signals(number).name
                if self.is_script and not self._asked.is_set():
                    _say(f"{name}: asking the script to end")
                    self._asked.set()
                else:
                    self._cut_short(f"{name} has ended this; the slot goes back")

    async def _heed_reader(self) -> None:
        await reader_gone(sys.stdout)
        self._is_gone = True
        self._cut_short(_GONE)

    def _cut_short(self, why: str) -> None:
        self._why = self._why or why
        self._scope.cancel()


def _print_nowhere() -> None:
    """Whatever is still printed is for nobody, and no error."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(nowhere, stream.fileno())


_GONE = "gitlab-runner is gone; the job's script was ended, and its slot goes back"
