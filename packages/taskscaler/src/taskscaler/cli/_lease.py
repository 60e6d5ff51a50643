"""``taskscaler lease``: a command that has a slot of a daemon's fleet for as long as it runs, here or there."""

import os
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from secrets import token_hex
from typing import TYPE_CHECKING

import anyio
from anyio.abc import Process, TaskStatus
from attrs import define, field, frozen

from fleeting import FleetingError
from fleeting.cli import SIGNALLED, WRONG, outcome, report_errors
from fleeting.cli.streaming import UNABLE, Arriving, run_through
from fleeting.errors import WrongArguments
from taskscaler._errors import LeaseLost
from taskscaler._socket import Place, check_ours, find_socket, is_ours
from taskscaler.cli._ask import check_installed

if TYPE_CHECKING:
    from taskscaler import Lease, remote

LOST = 254
"""The exit status if the slot was lost while the command ran."""

FIRST_WORD = 2.0
"""Seconds of waiting after which it is said what for."""

LONGEST_SILENCE = 60.0
"""Seconds of waiting between two words at most: the second comes after twice as long as the first, and so on."""

GRACE = 10.0
"""Seconds that a command has to end by itself once its slot is lost."""

GONE_YET = 0.1
"""Seconds between two looks whether what a command has started has ended, too."""

_PASSED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)

_NAMES = tuple(
    f"TASKSCALER_{name}"
    for name in (
        *("KEY", "POOL", "INSTANCE", "SLOT", "SOCKET"),
        *("PROTOCOL", "INTERNAL_ADDR", "EXTERNAL_ADDR", "PORT", "USER"),  # for those who may connect to it
    )
)
"""The variables that say which slot a command has. Those of a slot that we run with ourselves are not passed on."""


def run_leased(
    command: str | Sequence[str],
    *,
    key: str | None,
    timeout: float | None,
    there: bool,
    stdin: bool,
    socket: Place | None,
) -> int:
    """Wait for a slot, run the command and give the slot back; returns the exit status.

    Args:
        command: A line for a shell, or a program and its arguments.
        key: What the slot is acquired under. None: a fresh one.
        timeout: Seconds to wait for it; None: as the fleet has it.
        there: Whether it runs on the slot's instance, not here.
        stdin: Whether standard input is passed on to a command there.
        socket: The daemon's. None: where `find_socket` finds it.
    """
    if key == "":  # an unset variable of a script, which would exclude nobody
        return report_errors([WrongArguments("--key is empty; give it a name, or leave it out")], WRONG)
    if not there and not isinstance(command, str) and shutil.which(command[0]) is None:
        return report_errors([WrongArguments(f"there is no program {command[0]!r} on this machine")], WRONG)

    def run() -> int:
        check_installed()
        place = find_socket(socket).absolute()
        if there:
            check_ours(place, "run the command here, without --remote")

        async def run_command() -> int:
            leased = _Leased(command, key or f"lease-{token_hex(4)}", timeout, place, there=there, stdin=stdin)
            return await leased.run()

        return anyio.run(run_command)

    return outcome(run, failed=UNABLE)


@define
class _Leased:
    """One command, from the wait for its slot on."""

    command: str | Sequence[str]
    key: str
    timeout: float | None
    socket: Place
    there: bool
    stdin: bool
    _process: "_Process | None" = field(default=None, init=False)
    """The command, while it runs here."""

    _all: anyio.CancelScope = field(factory=anyio.CancelScope, init=False)
    _ended_by: int = field(default=0, init=False)
    """The signal that ended the wait, or a command there; 0: none."""

    async def run(self) -> int:
        """Run it all."""
        from taskscaler import remote

        status = UNABLE
        async with anyio.create_task_group() as tasks:
            await tasks.start(self._heed_signals)
            with self._all:
                try:
                    async with remote.connect(self.socket) as scaler:
                        status = await self._run_with(scaler)
                except LeaseLost as error:
                    status = report_errors([error], LOST)
            tasks.cancel_scope.cancel()
        return SIGNALLED + self._ended_by if self._ended_by else status

    async def _run_with(self, scaler: "remote.Taskscaler") -> int:
        async with anyio.create_task_group() as waiting:
            waiting.start_soon(self._say_what_for, scaler)
            lease = await scaler.acquire_lease(self.key, timeout=self.timeout)
            waiting.cancel_scope.cancel()
        async with lease.hold():
            return await (self._run_there(lease) if self.there else self._run_here(lease))

    async def _say_what_for(self, scaler: "remote.Taskscaler") -> None:
        """Say on standard error why there is no slot yet, more and more seldom."""
        pause = FIRST_WORD
        while True:
            await anyio.sleep(pause)
            with suppress(FleetingError):  # it is said if it ends the wait
                why = (await scaler.explain(key=self.key)).answer
                print(f"taskscaler lease: {why}", file=sys.stderr, flush=True)  # noqa: T201  (for who waits)
            pause = min(2 * pause, LONGEST_SILENCE)

    async def _run_there(self, lease: "Lease") -> int:
        async with lease.dial() as connection:
            return await run_through(connection, self.command, Arriving(sys.stdin.fileno()) if self.stdin else None)

    async def _run_here(self, lease: "Lease") -> int:
        """Run it here; one whose slot is lost has a little time to end."""
        others = {name: value for name, value in os.environ.items() if name not in _NAMES}
        variables = {**others, **await _variables(lease, self.socket)}
        alone = not _has_terminal()
        process = await anyio.open_process(
            self.command, stdin=None, stdout=None, stderr=None, env=variables, start_new_session=alone
        )
        self._process = _Process(process, alone=alone)
        try:
            status = await process.wait()
        finally:
            with anyio.CancelScope(shield=True):
                await self._process.end()
            self._process = None
        return status if status >= 0 else SIGNALLED - status

    async def _heed_signals(self, *, task_status: TaskStatus[None]) -> None:
        """Pass signals on to a command here; they end the wait for a slot, and a command there."""
        with anyio.open_signal_receiver(*_PASSED_ON) as received:
            task_status.started()
            async for number in received:
                if self._process is None:
                    self._ended_by = self._ended_by or number
                    self._all.cancel()
                elif not (number == signal.SIGINT and _is_in_foreground()):  # the terminal has sent it to both
                    self._process.send(number)


@frozen
class _Process:
    """A command that runs here.

    Without a terminal it has a session of its own, so that what it has started is reached, too, as `timeout` does it:
    a shell that is ended does not end what it waits for. At a terminal that would cost it Ctrl-C and the keyboard.
    """

    _process: Process
    _alone: bool

    def send(self, number: signal.Signals) -> None:
        """Send a signal, if somebody is there."""
        if self._alone:
            self._reaches(number)
        else:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    def _reaches(self, number: int) -> bool:
        """Send a signal to all of them; returns whether somebody was there."""
        try:
            os.killpg(self._process.pid, number)
        except (ProcessLookupError, PermissionError):  # the latter: what is left has become another user's
            return False
        return True

    async def end(self) -> None:
        """End what still runs, in good order if it is willing; nothing if the command has ended by itself."""
        if self._process.returncode is not None:
            return
        self.send(signal.SIGTERM)
        with anyio.move_on_after(GRACE):
            await self._process.wait()
            while self._alone and self._reaches(0):  # noqa: ASYNC110  (of what is not our child, the kernel gives no word)
                await anyio.sleep(GONE_YET)
            return
        self.send(signal.SIGKILL)
        await self._process.wait()


def _has_terminal() -> bool:
    """Whether a terminal sends signals to us, or would if we were in its foreground."""
    with suppress(OSError):
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
        return True
    return False


def _is_in_foreground() -> bool:
    """Whether what is typed at the terminal is for us; where our standard input comes from does not matter."""
    with suppress(OSError):
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
        try:
            return os.tcgetpgrp(terminal) == os.getpgrp()
        finally:
            os.close(terminal)
    return False


async def _variables(lease: "Lease", socket: Place) -> Mapping[str, str]:
    """What a command learns of its slot; where the instance is, only who may connect to it. Never a credential."""
    found: list[object] = [lease.key, lease.pool, lease.instance, lease.slot, socket]
    if is_ours(socket):
        info = await lease.connect_info()
        found += [info.protocol, info.internal_addr, info.external_addr, info.port, info.user]
    return {name: str(value) for name, value in zip(_NAMES, found, strict=False) if value is not None}
