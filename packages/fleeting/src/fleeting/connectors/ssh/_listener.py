"""Ports of the host by remote forwarding, and an explanation where the host forwards none.

A host only says yes or no. Why it says no is found out by asking it other things.
"""

import ipaddress
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import anyio
from anyio.abc import ByteStream
from attrs import define

from fleeting._errors import ConnectError, PortTaken, Unreachable, Unsupported
from fleeting._protocols import Connection
from fleeting.connectors._listening import PortListener
from fleeting.connectors.ssh._channel import PROHIBITED, Refused
from fleeting.connectors.ssh._forward import Forward
from fleeting.connectors.ssh._shared import Shared
from fleeting.connectors.ssh._sockets import COMMAND, listens, listens_on_loopback_only
from fleeting.connectors.ssh._streams import CLOSE_TIMEOUT, ChannelStream

_LOOPBACK = "127.0.0.1"

_LOOK_TIMEOUT = 10.0
"""Seconds for which a host is asked what listens on it."""

_FIRST_FREE_TO_ALL = 1024
_LAST_PORT = 65535


@asynccontextmanager
async def listening(
    shared: Shared, connection: Connection, host: str, port: int, closed: Callable[[], bool]
) -> AsyncIterator["SshListener"]:
    """Listen, as `ForwardsPorts.listen_tcp` says.

    Args:
        shared: The connections to the host.
        connection: A user's view of them, for questions.
        host: As there.
        port: As there.
        closed: Whether that user is done with the connection.
    """
    forward = await _granted(shared, connection, host, port)
    listener = SshListener(shared, forward, closed)
    try:
        await _check_place(shared.instance, connection, forward)
        yield listener
    finally:
        await listener.end()


@define(eq=False)
class SshListener(PortListener):
    """A port of the host, for as long as the connection lives."""

    _shared: Shared
    _forward: Forward
    _is_closed: Callable[[], bool]

    @property
    def port(self) -> int:
        """Its number."""
        return self._forward.port

    async def accept(self) -> ByteStream:
        """Wait for the next connection."""
        forward = self._forward
        while True:
            await self._shared.main.drained()
            await forward.wakeup.wait_for(lambda: forward.has_waiting or self._is_over)
            if forward.left:
                raise anyio.ClosedResourceError
            if self._is_closed():
                where = f"nothing listens at its port {self.port} any more"
                raise Unreachable(f"the connection to {self._shared.instance} is closed; {where}")
            if forward.broken:
                raise self._shared.lost(f"nothing listens at its port {self.port} any more")
            if forward.has_waiting:  # nothing is awaited from here on, so no cancellation loses it
                return ChannelStream(self._shared.main.accept_at(forward))

    def look(self) -> None:
        """Have who waits look again."""
        self._forward.wakeup.wake()

    async def end(self) -> None:
        """Listen no more, and end what is open."""
        for channel in self._shared.main.accepted(self._forward):
            channel.close()
            channel.wakeup.wake()
        await _leave(self._shared, self._forward)

    @property
    def _is_over(self) -> bool:
        return self._forward.left or self._forward.broken or self._is_closed()


async def _granted(shared: Shared, connection: Connection, host: str, port: int) -> Forward:
    if (forward := await _asked(shared, host, port)) is not None:
        return forward
    refusal = await _refusal(shared, connection, host, port)
    if isinstance(refusal, PortTaken | Unsupported):
        raise refusal
    if (forward := await _asked(shared, host, port)) is None:  # else it was given up while we looked who has it
        raise refusal
    return forward


async def _asked(shared: Shared, host: str, port: int) -> Forward | None:
    """Have the host listen; None if it does not."""
    forward = Forward(host, port)
    try:
        return forward if await shared.listen(forward) else None
    except BaseException:
        await _leave(shared, forward)
        raise


async def _leave(shared: Shared, forward: Forward) -> None:
    with anyio.move_on_after(CLOSE_TIMEOUT, shield=True):
        await shared.main.leave_port(forward)


async def _refusal(shared: Shared, connection: Connection, host: str, port: int) -> ConnectError | Unsupported:
    """Find out why the host does not listen."""
    name, place = shared.instance, f"{host or 'its'} port {port}"
    taken = await _is_taken(shared, connection, host, port) if port else False
    if taken:
        return PortTaken(name, host, port)
    if not port or not await _would_listen(shared, host):
        return Unsupported(
            f"{name} does not let this user listen at {place}; set AllowTcpForwarding to yes or remote in its sshd "
            f"settings, and see that PermitListen there and the options of the key in authorized_keys allow {place}"
            + ("" if _is_loopback(host) else f", and that {host or 'every address'} is an address of the host")
        )
    if taken is None:
        return PortTaken(name, host, port)
    if port < _FIRST_FREE_TO_ALL:
        return ConnectError(
            f"{name} lets only root listen at port {port}; ask for a port above 1023, or log in as root"
        )
    return ConnectError(
        f"{name} listens at other ports, but not at {place}; free it if something holds it, and see that PermitListen "
        "in its sshd settings and the options of the key in authorized_keys allow it"
    )


async def _is_taken(shared: Shared, connection: Connection, host: str, port: int) -> bool | None:
    """Whether something listens at a port of the host; None: nobody knows."""
    if (shown := listens(await _shown(connection), port)) is not None:
        return shown
    try:
        channel = await shared.tunnel("direct-tcpip", host or _LOOPBACK, port, _LOOPBACK, 0)
    except Refused as refused:
        return None if refused.reason == PROHIBITED else False
    channel.close()
    return True


async def _would_listen(shared: Shared, host: str) -> bool:
    """Whether the host listens at a port of its own choice."""
    forward = await _asked(shared, host, 0)
    if forward is not None:
        await _leave(shared, forward)
    return forward is not None


async def _check_place(name: str, connection: Connection, forward: Forward) -> None:
    """See that the host listens where it was asked to: sshd has its own mind about that, depending on GatewayPorts.

    Raises:
        Unsupported: It listens at more addresses, or at fewer.
        ConnectError: What it says of the port is none.
    """
    if not 0 < forward.port <= _LAST_PORT:
        raise ConnectError(f"{name} says that it listens at port {forward.port}; expected a number from 1 to 65535")
    if forward.widened and forward.host:
        raise Unsupported(
            f"{name} listens at all of its addresses when asked for {forward.host}; set GatewayPorts in its sshd "
            "settings to no or clientspecified, or ask for all of its addresses with an empty host"
        )
    if not _is_loopback(forward.host) and listens_on_loopback_only(await _shown(connection), forward.port):
        raise Unsupported(
            f"{name} listens at its loopback address when asked for {forward.host or 'all of its addresses'}; "
            "set GatewayPorts in its sshd settings to clientspecified, or ask for 127.0.0.1"
        )


async def _shown(connection: Connection) -> str:
    """What the host shows of the sockets that listen; nothing where it has another way of showing it."""
    with suppress(ConnectError), anyio.move_on_after(_LOOK_TIMEOUT):
        return (await connection.run(COMMAND)).stdout.decode("ascii", "replace")
    return ""


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
