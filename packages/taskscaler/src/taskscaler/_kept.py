"""Keeps a connection to each instance that leases use, so that the next one need not make it.

Connectors share what is dear among all who are connected to an instance at one time. So all it takes is one who stays.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from math import inf

import anyio
from attrs import define, field

from fleeting import ConnectInfo, Connection

KEPT = 5.0
"""Seconds for which a connection that nobody uses is kept."""

log = logging.getLogger("taskscaler")


@define(eq=False)
class _Kept:
    """Somebody who stays."""

    users: int = 0
    scope: "anyio.CancelScope" = field(factory=lambda: anyio.CancelScope())  # noqa: PLW0108  (loads it)


@define(eq=False)
class KeptConnections:
    """Those of all instances."""

    _start_soon: Callable[..., object]
    """Runs a task for as long as there are leases at all."""

    _kept: dict[tuple[str, str], _Kept] = field(factory=dict, init=False)
    """By pool and instance."""

    @contextmanager
    def used(
        self, pool: str, info: ConnectInfo, dial: Callable[[ConnectInfo], AbstractAsyncContextManager[Connection]]
    ) -> Iterator[None]:
        """Use a connection to an instance, which was just made; from now on another one is kept, too."""
        key = pool, info.id
        kept = self._kept.get(key)
        if kept is None:
            kept = self._kept[key] = _Kept()
            self._start_soon(self._keep, key, kept, dial(info))
        kept.users += 1
        kept.scope.deadline = inf
        try:
            yield
        finally:
            kept.users -= 1
            if not kept.users:
                kept.scope.deadline = anyio.current_time() + KEPT

    async def _keep(self, key: tuple[str, str], kept: _Kept, dialled: AbstractAsyncContextManager[Connection]) -> None:
        """Stay until the connection is dead, or has not been used for a while."""
        try:
            with kept.scope:
                async with dialled as connection:
                    await connection.wait_closed()
        except Exception as error:  # noqa: BLE001  (those who use it meet it themselves; nobody needs this one)
            log.debug("not_kept", extra={"pool": key[0], "instance": key[1], "error": str(error)})
        finally:
            del self._kept[key]
