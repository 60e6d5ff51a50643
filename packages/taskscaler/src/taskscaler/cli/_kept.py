"""``taskscaler leases``, ``attach`` and ``stop``: leases that outlive the shell that began them."""

import os
import shlex
import signal
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

import anyio
from anyio.abc import TaskStatus
from attrs import define, field

from fleeting.cli import SIGNALLED, WRONG, outcome, report_errors
from fleeting.cli.streaming import UNABLE
from fleeting.config import harmless
from fleeting.errors import WrongArguments
from fleeting.plugins import span
from taskscaler._errors import DaemonRefused, KeyInUse, LeaseLost, NotDetached
from taskscaler._socket import Place, check_ours, find_socket
from taskscaler._url import DaemonUrl
from taskscaler.cli._ask import ask, check_installed, show
from taskscaler.cli._lease_there import There
from taskscaler.cli._paragraphs import Row

if TYPE_CHECKING:
    from taskscaler import Lease, remote
    from taskscaler._wire import KeptFacts

LOST = 254
"""The exit status if the slot was lost while the command ran."""

TTL = 5.0
"""Seconds after which somebody else may attach, if this process is killed. It loses nothing if it was only slow."""

NOTICED = 60.0
"""Seconds within which the daemon has noticed that a command of ours was killed."""

PAUSE = 0.5
"""Seconds between two looks whether it has."""

STOP_TIMEOUT = 900.0
"""Seconds that stopping may take: the instance may be getting ready, and the command may take a minute to end."""


def list_leases(socket: Place | None, *, as_json: bool) -> int:
    """List the leases of a daemon."""
    return show(partial(ask, socket, "GET", "/leases"), _lease_rows, as_json=as_json)


def stop(key: str, socket: Place | None, *, as_json: bool) -> int:
    """End a lease that is kept, and the command in it."""
    if status := _refused(key):
        return status

    def rows(data: Mapping[str, Any]) -> Iterator[Row]:
        if data["removed"]:
            yield "stop", f"{key} has ended, and its slot was given back"
        else:
            yield "stop", f"{key} has ended; its instance is removed, because what ran there could not be ended"

    stopped = partial(ask, socket, "POST", "/stop", json={"key": key}, timeout=STOP_TIMEOUT)
    return show(stopped, rows, as_json=as_json)


def attach(key: str, socket: Place | None, *, offset: int) -> int:
    """Follow the command that was left running in a lease, to its end; returns its exit status.

    Args:
        key: Of the lease.
        socket: The daemon's. None: where `find_socket` finds it.
        offset: How many bytes of its output not to print.
    """
    if status := _refused(key):
        return status

    def run() -> int:
        check_installed()
        place = find_socket(socket).absolute()
        check_ours(place, "ask that user")

        async def follow() -> int:
            return await _Attached(key, place, offset).run()

        return anyio.run(follow)

    return outcome(run, failed=UNABLE)


def is_kept(place: Place, key: str) -> bool:
    """Whether a lease is kept under a key that no client has, or one that was killed."""
    held = lease_under(place, key)
    return held is not None and _is_free(place, held)


async def take_up(scaler: "remote.Taskscaler", place: Place, key: str, timeout: float) -> "Lease":
    """Take up a lease that is kept. If its client was killed, wait until the daemon has noticed.

    Args:
        scaler: A client.
        place: Where its daemon is.
        key: Of the lease.
        timeout: Seconds to wait for the instance.

    Raises:
        NotDetached: There is none.
        DaemonRefused: Somebody else has it.
    """
    deadline = anyio.current_time() + NOTICED
    while True:
        try:
            return await scaler.reattach(key, timeout=timeout)
        except (KeyInUse, NotDetached) as error:
            held = await anyio.to_thread.run_sync(lease_under, place, key)
            if held is None:
                raise
            if not _is_free(place, held) or anyio.current_time() > deadline:
                raise DaemonRefused(_why_held(held)) from error
        await anyio.sleep(PAUSE)


def bounds_of(kept: "KeptFacts") -> str:
    """Say for how long a lease is kept: ``for 8h``."""
    idle = f", or for {span(kept.idle_timeout)} with nothing running" if kept.idle_timeout is not None else ""
    return f"for {span(kept.ttl)}{idle}"


@define
class _Attached:
    """Somebody who follows a command."""

    key: str
    socket: Place
    offset: int
    _ended_by: int = field(default=0, init=False)
    """The signal that ended the following; 0: none."""

    _scope: anyio.CancelScope = field(factory=anyio.CancelScope, init=False)
    """What a signal ends."""

    async def run(self) -> int:
        """Follow it."""
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
        from taskscaler.remote._scaler import keep_for_command

        lease = await self._reattach(scaler)
        over = False
        kept: KeptFacts | None = None
        try:
            async with lease.unless_lost():
                kept = await keep_for_command(scaler, lease, there=True)
                status = await There(lease=lease, kept=kept, again=True).follow(self.offset)
                over = status != SIGNALLED + signal.SIGPIPE
                return status
        finally:
            self._let_go(lease, kept, over=over)

    async def _reattach(self, scaler: "remote.Taskscaler") -> "Lease":
        """Take the lease up.

        Raises:
            NotDetached: There is none.
            DaemonRefused: Somebody else has it.
        """
        try:
            return await take_up(scaler, self.socket, self.key, inf)
        except NotDetached as error:
            if "`detached`" in str(error):  # which is Python's
                hint = "is not kept; `taskscaler leases` lists those that are"
                raise NotDetached(self.key, hint, held=False) from error
            raise

    def _let_go(self, lease: "Lease", kept: "KeptFacts | None", *, over: bool) -> None:
        """Leave the lease to the daemon; one that was wanted for this command only ends with it."""
        if lease.ended:
            return
        if over and kept is not None and not kept.stays:
            lease.release()
            return
        lease.detach()
        if kept is None or over:
            return
        key = shlex.quote(self.key)
        hint = f"`taskscaler attach {key}` follows it again, `taskscaler stop {key}` ends it"
        _say(f"{self.key} is left as it is, and kept {bounds_of(kept)}; {hint}")

    async def _heed_signals(self, *, task_status: TaskStatus[None]) -> None:
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGHUP, signal.SIGINT) as received:
            task_status.started()
            async for number in received:
                self._ended_by = self._ended_by or number
                self._scope.cancel()


def _say(what: str) -> None:
    print(f"taskscaler attach: {harmless(what)}", file=sys.stderr, flush=True)  # noqa: T201  (for who follows)


def _refused(key: str) -> int:
    """Refuse a key that nobody can have; returns the exit status, 0 if it is in order."""
    if key:
        return 0
    return report_errors([WrongArguments("KEY is empty; `taskscaler leases` lists all leases")], WRONG)


def lease_under(place: Place, key: str) -> Mapping[str, Any] | None:
    """Give the lease under a key, as the daemon describes it; None: there is none."""
    leases = ask(place, "GET", "/leases")["leases"]
    return next((each for each in leases if each["key"] == key), None)


def _is_free(place: Place, lease: Mapping[str, Any]) -> bool:
    """Whether a lease is kept, and its client is gone, also if the daemon has not noticed that it was killed."""
    return bool(lease["kept"]) and is_left(place, lease)


def is_left(place: Place, lease: Mapping[str, Any]) -> bool:
    """Whether a lease has no client, or one that was killed, for all that can be seen from here."""
    if lease["pid"] is None:
        return True
    if not lease["pid"] or isinstance(place, DaemonUrl):  # it is not known, or is one of another machine
        return False
    try:
        os.kill(lease["pid"], 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def _why_held(held: Mapping[str, Any]) -> str:
    key, who = held["key"], f"process {held['pid']}" if held["pid"] else "another client"
    if held["kept"]:
        return f"{who} uses the lease {key!r}; end that first, or end both with `taskscaler stop {shlex.quote(key)}`"
    return f"the lease {key!r} is not kept: it ends with {who}; `taskscaler lease --keep` keeps one"


def _lease_rows(data: Mapping[str, Any]) -> Iterator[Row]:
    if not data["leases"]:
        yield "leases", "none"
    for each in data["leases"]:
        yield "leases", f"{each['key']}: slot {each['slot']} of {each['instance']}, {_standing(each)}"


def _standing(lease: Mapping[str, Any]) -> str:
    """Say who has a lease, and what is known of its end."""
    user = f"user {lease['uid']}"
    if lease["pid"] is None and lease["kept"]:
        return f"kept for {user} until {iso_of(lease['ends_at'])}"
    who = f"process {lease['pid']} of {user}" if lease["pid"] else user
    return f"used by {who}" + (f"; kept for {span(lease['ttl'])} after that" if lease["kept"] else "")


def iso_of(at: float | None) -> str:
    """Write a time."""
    from taskscaler._wording import iso

    return "somebody has used it" if at is None else iso(at)
