"""Requests from tasks: each has a protocol object for itself, a worker thread, a deadline, and can be cut short."""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import anyio
from anyio.lowlevel import checkpoint_if_cancelled
from attrs import define, field
from winrm.protocol import Protocol

from fleeting._errors import Unreachable
from fleeting._offload import Offload
from fleeting.connectors.winrm._faults import Fault, OperationTimeout, translated
from fleeting.connectors.winrm._wire import Auth, RequestSettings, Stale, Wire, ask_for_schemes

T = TypeVar("T")

THREADS = 64
"""Requests at once to one host as one user: a command has one under way for its output, and one for its input."""

FRESH = 30.0
"""Seconds for which a connection that nobody uses is worth keeping; services close them after a minute or two."""


@define(eq=False)
class Calls:
    """The way to one host as one user."""

    host: str
    """Names it, for errors."""

    settings: RequestSettings
    auth: Auth = "ntlm"
    heard_at: float = field(factory=anyio.current_time, init=False)
    """When the host last said something, by the event loop's clock."""

    is_suspect: bool = field(default=False, init=False)
    """Whether the last that was heard of the host is that it cannot be reached."""

    _idle: list[Wire] = field(factory=list, init=False)
    _busy: set[Wire] = field(factory=set, init=False)
    _offload: Offload = field(factory=lambda: Offload(THREADS), init=False)

    async def __call__(self, action: Callable[[Protocol], T], *, grace: float = 0.0) -> T:
        """Let *action* make its request; it runs in a worker thread.

        Args:
            action: Gets a protocol object of its own.
            grace: Seconds that it may go on when it is cancelled.

        Raises:
            OperationTimeout: Nothing happened; ask again.
            Fault: The host refuses.
            Unreachable, LoginRejected, HostKeyMismatch: As always.
        """
        while True:
            wire = self._take()
            try:
                return await self._use(wire, action, grace)
            except Stale:
                wire.close()

    async def ask_for_schemes(self) -> str:
        """Learn how one may log in; see `_wire.ask_for_schemes`."""
        wire = Wire.to(self.settings, self.auth)
        try:
            return await self._watched(wire, partial(ask_for_schemes, self.settings, wire.line), 0.0)
        finally:
            wire.close()

    def give_up(self) -> None:
        """Cut all requests short: the host is dead."""
        self.is_suspect = True
        for wire in self._busy:
            wire.line.cut()

    def close(self) -> None:
        """Close the connections that nobody uses."""
        while self._idle:
            self._idle.pop().close()

    def _take(self) -> Wire:
        while self._idle:
            wire = self._idle.pop()
            if anyio.current_time() < wire.used_at + FRESH:
                return wire
            wire.close()
        return Wire.to(self.settings, self.auth)

    async def _use(self, wire: Wire, action: Callable[[Protocol], T], grace: float) -> T:
        usable = False
        try:
            result = await self._watched(wire, partial(action, wire.protocol), grace)
            usable = True
        except (Fault, OperationTimeout):
            usable = True
            raise
        finally:
            if usable and not wire.line.is_cut:
                wire.used_at = anyio.current_time()
                self._idle.append(wire)
            else:
                wire.close()
        return result

    async def _watched(self, wire: Wire, work: Callable[[], T], grace: float) -> T:
        """Do it in a thread; whoever is cancelled or waits for too long cuts the line, and the thread returns."""
        outcome: list[T] = []
        failure: Exception | None = None
        over = anyio.Event()
        self._busy.add(wire)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._watch, wire, over, grace)
            try:
                outcome.append(await self._offload(_guarded, work, self.host))
            except Exception as error:  # noqa: BLE001  (raised below: the task group would wrap it)
                failure = error
            over.set()
            self._busy.discard(wire)
            tasks.cancel_scope.cancel()
        await checkpoint_if_cancelled()
        if wire.line.is_cut and isinstance(failure, Unreachable):
            failure = Unreachable(f"{self.host} does not answer")
        self._note(failure)
        if failure is not None:
            raise failure
        return outcome[0]

    def _note(self, failure: Exception | None) -> None:
        """Remember whether the host was heard."""
        if isinstance(failure, Stale):
            return
        self.is_suspect = isinstance(failure, Unreachable)
        if not self.is_suspect:
            self.heard_at = anyio.current_time()

    async def _watch(self, wire: Wire, over: anyio.Event, grace: float) -> None:
        try:
            await anyio.sleep(self.settings.operation_timeout + self.settings.patience)
        except anyio.get_cancelled_exc_class():
            with anyio.move_on_after(grace, shield=True):
                await over.wait()
            raise
        finally:
            if not over.is_set():
                wire.line.cut()


def _guarded(work: Callable[[], T], host: str) -> T:
    """Raise nothing but ours; what is raised here crosses to the event loop, and not everything can."""
    try:
        return work()
    except Stale:
        raise
    except Exception as error:
        raise translated(error, host) from error
