"""Connections to the instances of leases, wherever these come from: a scaler here, or a daemon."""

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager

import anyio
from attrs import define, field

from fleeting import ConnectInfo, Connection, Unreachable
from taskscaler._kept import KeptConnections
from taskscaler._lease import VERDICT_TIMEOUT, LeaseState, only_unreachable
from taskscaler.core._slots import LeaseId

DEATH_TIMEOUT = 1.0
"""Seconds within which a connection on which a call failed shows that it is dead."""


@define(eq=False)
class Connections:
    """Dials for leases, and reports connections that die."""

    _start_soon: Callable[..., object]
    """Runs a task for as long as there are leases at all."""

    _dial_of: Callable[[str], Callable[[ConnectInfo], AbstractAsyncContextManager[Connection]]]
    """What connects to the instances of a pool."""

    _connect_info: Callable[[LeaseId], Awaitable[ConnectInfo]]
    _note_death: Callable[[LeaseState, str], None]
    """Called when a connection died, or could not be made."""

    _note_dial: Callable[[str, float], None] | None = None
    """Called with what came of each attempt to connect, one of `taskscaler._meter.DIALS`, and how many seconds it
    took."""

    _now: Callable[[], float] | None = None
    """The time, if leases are followed."""

    _kept: KeptConnections = field(init=False)

    def __attrs_post_init__(self) -> None:
        """Keep none yet."""
        self._kept = KeptConnections(self._start_soon)

    @asynccontextmanager
    async def dial(self, state: LeaseState) -> AsyncIterator[Connection]:
        """Connect.

        Raises:
            Unreachable: It cannot be done, or the instance turned out unhealthy meanwhile.
        """
        info = await self._connect_info(state.id)
        dial = self._dial_of(state.id.pool)
        async with _unless_unhealthy(state) as connected, AsyncExitStack() as stack:
            try:
                with self._noting_dial(state):
                    connection = await stack.enter_async_context(dial(info))
            except Unreachable as error:
                self._note_death(state, str(error))
                raise
            connected()
            stack.enter_context(self._kept.used(state.id.pool, info, dial))
            watch = anyio.CancelScope()
            self._start_soon(self._watch, watch, state, connection)
            stack.callback(watch.cancel)
            try:
                yield connection
            except Exception as error:
                if only_unreachable(error):
                    with anyio.move_on_after(DEATH_TIMEOUT):  # whose connection it was shows when it is closed
                        self._note_death(state, await connection.wait_closed())
                raise

    @contextmanager
    def _noting_dial(self, state: LeaseState) -> Iterator[None]:
        """Note what comes of an attempt to connect."""
        begun, how = anyio.current_time(), "cancelled"
        is_followed = self._now is not None and state.trace is not None and state.trace.is_followed
        since = self._now() if is_followed and self._now is not None else 0.0
        try:
            yield
            how = "ok"
        except Exception as error:
            how = "unreachable" if isinstance(error, Unreachable) else "failed"
            raise
        finally:
            if self._note_dial is not None:
                self._note_dial(how, anyio.current_time() - begun)
            if is_followed and self._now is not None and state.trace is not None:
                state.trace.dialled(since, self._now(), "" if how == "ok" else how)

    async def _watch(self, scope: "anyio.CancelScope", state: LeaseState, connection: Connection) -> None:
        """Hear of a connection that dies, also while nothing runs on it."""
        with scope:
            why = await connection.wait_closed()
            if not scope.cancel_called:  # else it was closed by its user
                self._note_death(state, why)


@asynccontextmanager
async def _unless_unhealthy(state: LeaseState) -> AsyncIterator[Callable[[], None]]:
    """Run a body that dials, and is cancelled if the instance turns out unhealthy before it says that it connected.

    Yields what the body says so with: from then on it is safe. On an instance that is unhealthy already the first one
    has some time, because one that only fails its heartbeats may be reached all the same.

    Raises:
        Unreachable: On leaving, if the body was cancelled.
    """
    with anyio.CancelScope() as dial:

        def connected() -> None:
            state.dials.discard(dial)
            dial.deadline = math.inf

        if state.unhealthy:
            dial.deadline = anyio.current_time() + (0 if state.out_of_reach else VERDICT_TIMEOUT)
        state.dials.add(dial)
        try:
            yield connected
        finally:
            state.dials.discard(dial)
    if dial.cancelled_caught:
        state.cut_off = state.out_of_reach = True
        raise Unreachable(f"{state.id.instance} is unhealthy and cannot be reached")
