"""``taskscaler lease``: a command that has a slot of a daemon's fleet for as long as it runs, here or there."""

import os
import shlex
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import inf
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING

import anyio
from anyio.abc import Process, TaskStatus
from attrs import define, field, frozen

from fleeting import FleetingError
from fleeting.cli import SIGNALLED, SUCCEEDED, WRONG, outcome, report_errors
from fleeting.cli.streaming import UNABLE, Arriving
from fleeting.config import harmless
from fleeting.errors import WrongArguments
from taskscaler._errors import DaemonRefused, LeaseLost, NotDetached
from taskscaler._kept_bounds import DEFAULT_TIME
from taskscaler._left_there import remove_all
from taskscaler._socket import Place, check_ours, find_socket, is_ours
from taskscaler.cli._ask import check_installed
from taskscaler.cli._console import PatientConsole
from taskscaler.cli._end_with_us import ended_with_us
from taskscaler.cli._kept import LOST, bounds_of, is_kept, take_up
from taskscaler.cli._lease_there import There
from taskscaler.cli._paragraphs import Paragraphs
from taskscaler.cli._work_tree import WorkTree, find_work_tree

if TYPE_CHECKING:
    from taskscaler import Lease, remote
    from taskscaler._wire import KeptFacts

FIRST_WORD = 2.0
"""Seconds of waiting after which it is said what for."""

LONGEST_SILENCE = 60.0
"""Seconds of waiting between two words at most: the second comes after twice as long as the first, and so on."""

TTL = 30.0
"""Seconds after which the daemon takes this process for dead if it hears nothing of it; its slot is lost then."""

GRACE = 10.0
"""Seconds that a command has to end by itself once its slot is lost."""

PASSING = 30.25
"""Seconds after which the daemon removes what runs there, and what was brought along, if this process was killed.

Nobody asks for as many by hand: a lease that has them was left by a command that was killed.
"""

CLEANING = 5.0
"""Seconds that a command's traces on its instance may take to be removed from here."""

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


@frozen(kw_only=True)
class Wish:
    """What is wanted of a lease, and what runs in it."""

    command: str | Sequence[str]
    """A line for a shell, or a program and its arguments."""

    key: str | None
    """What the slot is acquired under. None: a fresh one."""

    timeout: float | None
    """Seconds to wait for it; None: as the fleet has it."""

    there: bool = False
    """Whether the command runs on the slot's instance, not here."""

    stdin: bool = False
    """Whether standard input is passed on to a command there."""

    sync: bool = False
    """Whether the working tree is brought along."""

    leave: bool = False
    """Whether the command is only started, and runs on."""

    keep: bool = False
    """Whether the slot is kept when the command has ended."""

    ttl: float | None = None
    """Seconds for which the slot is kept that nobody uses. None: as before, or for the default."""

    idle_timeout: float | None = None
    """Seconds for which it is kept while nothing runs in it. None: as before, or as long as that."""


def run_leased(wish: Wish, socket: Place | None) -> int:
    """Wait for a slot, run the command and give the slot back, or keep it; returns the exit status.

    Args:
        wish: What is wanted.
        socket: The daemon's. None: where `find_socket` finds it.
    """
    command = wish.command
    if wish.key == "":  # an unset variable of a script, which would exclude nobody
        return report_errors([WrongArguments("--key is empty; give it a name, or leave it out")], WRONG)
    if not wish.there and not isinstance(command, str) and shutil.which(command[0]) is None:
        return report_errors([WrongArguments(f"there is no program {command[0]!r} on this machine")], WRONG)

    def run() -> int:
        check_installed()
        place = find_socket(socket).absolute()
        if wish.there:
            check_ours(place, "run the command here, without --remote")
        tree = find_work_tree(Path.cwd()) if wish.sync else None
        again = wish.key is not None and is_kept(place, wish.key)

        async def run_command() -> int:
            return await _Leased(wish, wish.key or f"lease-{token_hex(4)}", place, tree, again=again).run()

        return anyio.run(run_command)

    return outcome(run, failed=UNABLE)


@define
class _Leased:
    """One command, from the wait for its slot on."""

    wish: Wish
    key: str
    socket: Place
    tree: WorkTree | None
    again: bool
    """Whether the lease was kept, so that it is to be taken up again."""

    _process: "_Process | None" = field(default=None, init=False)
    """The command, while it runs here."""

    _lease: "Lease | None" = field(default=None, init=False)
    """While it is held."""

    _kept: "KeptFacts | None" = field(default=None, init=False)
    """How it is kept beyond this process; None: not at all."""

    _heard: int = field(default=0, init=False)
    """The last signal that the command here got; 0: none."""

    _stays: bool = field(default=False, init=False)
    """Whether it is left to the daemon to keep."""

    _scope: anyio.CancelScope = field(factory=anyio.CancelScope, init=False)
    """What a signal ends."""

    _ended_by: int = field(default=0, init=False)
    """The signal that ended the wait, or a command there; 0: none."""

    async def run(self) -> int:
        """Run it all."""
        from taskscaler import remote

        status = UNABLE
        async with anyio.create_task_group() as tasks:
            await tasks.start(self._heed_signals)
            with self._scope:
                try:
                    async with remote.connect(self.socket, ttl=TTL) as scaler:
                        with anyio.CancelScope() as self._scope:  # not the whole: the daemon is to hear of the end
                            status = await self._run_with(scaler)
                except LeaseLost as error:
                    status = report_errors([error], LOST)
            tasks.cancel_scope.cancel()
        return SIGNALLED + self._ended_by if self._ended_by else status

    async def _run_with(self, scaler: "remote.Taskscaler") -> int:
        async with anyio.create_task_group() as waiting:
            waiting.start_soon(self._say_what_for, scaler)
            lease = self._lease = await self._get(scaler)
            waiting.cancel_scope.cancel()
        try:
            async with lease.unless_lost():
                return await self._use(scaler, lease)
        finally:
            self._lease = None
            self._let_go(lease)

    async def _get(self, scaler: "remote.Taskscaler") -> "Lease":
        """Wait for the slot that was kept, or for any."""
        if self.again:
            self._stays = True
            try:
                timeout = inf if self.wish.timeout is None else self.wish.timeout
                return await take_up(scaler, self.socket, self.key, timeout)
            except NotDetached as error:
                if error.held:
                    raise
                self.again = self._stays = False  # it has just ended
        return await scaler.acquire_lease(self.key, timeout=self.wish.timeout)

    async def _use(self, scaler: "remote.Taskscaler", lease: "Lease") -> int:
        wish = self.wish
        if stays := self.again or wish.keep or wish.leave or wish.sync:
            self._kept = await self._keep(scaler, lease, as_before=self.again)
            self._stays = self._stays or wish.keep
            if self.again:
                self._kept = await self._go_on(scaler, lease, self._kept)
        if not wish.there:
            if self.again and self._kept is not None and self._kept.there:
                await There(lease=lease, kept=self._kept, again=True).end_left()
            return await self._run_here(lease)
        if not stays:
            return await self._run_there(scaler, lease)
        there = There(lease=lease, kept=self._kept, again=self.again)
        stdin = self._stdin
        if not wish.leave:
            return await there.run(wish.command, stdin, self.tree)
        await there.start(wish.command, stdin, self.tree)
        self._stays = True
        return SUCCEEDED

    @property
    def _stdin(self) -> Arriving | None:
        return Arriving(sys.stdin.fileno()) if self.wish.stdin else None

    async def _run_there(self, scaler: "remote.Taskscaler", lease: "Lease") -> int:
        """Run a command that leaves nothing: should this process be killed, the daemon ends it, as it does with all."""
        try:
            self._kept = await self._keep(scaler, lease)
        except DaemonRefused as error:
            self._say(f"the command may work on if this process is killed, because the slot is not kept: {error}")
        there = There(lease=lease, kept=self._kept, again=False)
        status = await there.run(self.wish.command, self._stdin, None)
        if self._kept is not None:
            with suppress(FleetingError), anyio.move_on_after(CLEANING):  # else the daemon does it
                await there.clean_up()
                self._kept = await self._keep(scaler, lease, there=False)
        return status

    async def _go_on(self, scaler: "remote.Taskscaler", lease: "Lease", left: "KeptFacts") -> "KeptFacts":
        """Go on with what was kept, for as long as is wanted now; its `ttl` until now says whether it was to be."""
        if left.ttl == PASSING:
            return await self._begin_anew(scaler, lease, left)
        return left if self.wish.ttl is None else await self._keep(scaler, lease)

    async def _begin_anew(self, scaler: "remote.Taskscaler", lease: "Lease", left: "KeptFacts") -> "KeptFacts":
        """Leave nothing of a command that was killed, which had not wanted to keep the slot."""
        if left.there:
            async with lease.dial() as connection:
                await remove_all(connection, left.name, noted=left.noted)
        self.again, self._stays = False, self.wish.keep
        return await self._keep(scaler, lease, ttl=DEFAULT_TIME)

    async def _keep(
        self,
        scaler: "remote.Taskscaler",
        lease: "Lease",
        *,
        there: bool | None = None,
        ttl: float | None = None,
        as_before: bool = False,
    ) -> "KeptFacts":
        """Have the daemon keep it if this process is killed, and remove what was left there.

        Args:
            scaler: Who has it.
            lease: What is kept.
            there: Whether something is left there. None: as before, or if the command runs there.
            ttl: For how long, where nobody has said.
            as_before: Whether it is kept for as long as until now, whatever is wanted.
        """
        from taskscaler.remote._scaler import keep_for_command

        wish = self.wish
        passing = not (self.again or wish.keep or wish.leave)
        return await keep_for_command(
            scaler,
            lease,
            ttl=PASSING if passing else None if as_before else ttl if wish.ttl is None else wish.ttl,
            idle_timeout=wish.idle_timeout,
            stays=True if wish.keep else None if self.again else False,
            there=True if wish.there and there is None else there,
        )

    def _let_go(self, lease: "Lease") -> None:
        """Give the slot back, or keep it, and say so."""
        if not self._stays:
            lease.release()
        if lease.ended:
            return
        lease.detach()
        if self._kept is None:
            return
        key, bounds = shlex.quote(self.key), bounds_of(self._kept)
        if self.wish.leave and not self._ended_by:
            shown = Paragraphs(PatientConsole())
            shown.add(("lease", f"{self.key}: the command runs in slot {lease.slot} of {lease.instance}"))
            shown.go_on(("kept", bounds), ("next", f"taskscaler attach {key}, taskscaler stop {key}"))
        else:
            hint = f"`taskscaler lease --key {key}` uses it again, `taskscaler stop {key}` gives it back"
            self._say(f"{self.key} is kept {bounds}; {hint}")

    def _say(self, what: str) -> None:
        """Say something that is not the command's."""
        print(f"taskscaler lease: {harmless(what)}", file=sys.stderr, flush=True)  # noqa: T201  (for who waits)

    async def _say_what_for(self, scaler: "remote.Taskscaler") -> None:
        """Say on standard error why there is no slot yet, more and more seldom."""
        pause = FIRST_WORD
        while True:
            await anyio.sleep(pause)
            with suppress(FleetingError):  # it is said if it ends the wait
                why = (await scaler.explain(key=self.key)).answer
                self._say(why)
            pause = min(2 * pause, LONGEST_SILENCE)

    async def _run_here(self, lease: "Lease") -> int:
        """Run it here; one whose slot is lost has a little time to end."""
        others = {name: value for name, value in os.environ.items() if name not in _NAMES}
        variables = {**others, **await _variables(lease, self.socket)}
        alone = not _has_terminal()
        given = self.wish.command
        command = ("/bin/sh", "-c", given) if isinstance(given, str) else given
        async with ended_with_us(GRACE, group=alone) as watched:
            process = await anyio.open_process(
                watched(command), stdin=None, stdout=None, stderr=None, env=variables, start_new_session=alone
            )
            self._process = _Process(process, alone=alone)
            try:
                status = await process.wait()
            finally:
                with anyio.CancelScope(shield=True):
                    await self._process.end()
                self._process = None
        if status < 0 and status == -self._heard:
            self._say_what_ended(signal.Signals(-status).name)
        return status if status >= 0 else SIGNALLED - status

    async def _heed_signals(self, *, task_status: TaskStatus[None]) -> None:
        """Pass signals on to a command here; they end the wait for a slot, and a command there."""
        with anyio.open_signal_receiver(*_PASSED_ON) as received:
            task_status.started()
            async for number in received:
                if self._process is None:
                    if not self._ended_by:
                        self._ended_by = number
                        self._say_what_ends(signal.Signals(number).name)
                    self._scope.cancel()
                    continue
                self._heard = number
                if not (number == signal.SIGINT and _is_in_foreground()):  # the terminal has sent it to both
                    self._process.send(number)

    def _say_what_ended(self, name: str) -> None:
        """Say what a signal has done that the command here got."""
        self._say(f"{name} has ended the command" + ("" if self._stays else ", and its slot is given back"))

    def _say_what_ends(self, name: str) -> None:
        """Say what a signal does, where this process and not the command gets it."""
        if self._lease is None:
            self._say(f"{name}: no longer waiting for a slot")
        elif self.again and not self.wish.leave:
            self._say(f"{name}: ending the command")
        else:
            after = "" if self._stays else ", and giving back the slot"
            self._say(f"{name}: ending the command{after}")


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
