"""The connector: who is dialled, over what, and what is remembered of host keys."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from attrs import define, evolve, field

from fleeting._protocols import Connection
from fleeting._types import ConnectInfo, ConnectorConfig
from fleeting.connectors.ssh._connect import connect, jump, while_alive
from fleeting.connectors.ssh._connection import SshConnection
from fleeting.connectors.ssh._dial import Connect, Target, dial
from fleeting.connectors.ssh._host_keys import HostKeys, default_host_keys
from fleeting.connectors.ssh._shared import Shared, shared
from fleeting.connectors.ssh._transport import SshTransport

LINGER = 5.0
"""Seconds for which a connection that nobody uses is kept for the next one."""


@define(eq=False)
class SshConnector:
    """Speaks SSH."""

    host_keys: HostKeys = field(factory=default_host_keys)
    """Where the key of a host that is seen for the first time is pinned."""

    linger: float = LINGER
    """Seconds for which a connection that nobody uses is kept for the next one."""

    @asynccontextmanager
    async def dial(
        self, info: ConnectInfo, config: ConnectorConfig, *, over: Connection | None = None
    ) -> AsyncIterator[Connection]:
        """Connect, or share the connection that others have to the same instance in the same way.

        Args:
            info: Host, port, user, credentials; the host key if it could be learnt.
            config: How long to try, how to supervise.
            over: Another connection, through which this one is made; it is then shared with nobody.
        """
        target = Target.of(info, config)
        async with self._shared(target) if over is None else self._through(target, over) as used:
            connection = SshConnection(used)
            try:
                yield connection
            finally:
                connection.close()

    @asynccontextmanager
    async def _shared(self, target: Target) -> AsyncIterator[Shared]:
        key = self, evolve(target.info, expires_at=None), target.config
        async with shared(key, lambda: self._make(target, connect), target.config.timeout) as used:
            yield used

    @asynccontextmanager
    async def _through(self, target: Target, over: Connection) -> AsyncIterator[Shared]:
        async with jump(over) as through:
            used = await while_alive(over, lambda: self._make(target, through))
            try:
                yield used
            finally:
                used.give_up("it was closed locally")

    async def _make(self, target: Target, by: Connect) -> Shared:
        async def again() -> SshTransport:
            return await dial(target, self.host_keys, by, linger=self.linger)

        return Shared(target.info.id, await again(), again)
