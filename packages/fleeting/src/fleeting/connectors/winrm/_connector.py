"""The connector: who is dialled, and who shares what."""

from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

import anyio
from anyio.lowlevel import RunVar
from attrs import define, evolve, field

from fleeting._durations import format_duration
from fleeting._errors import Unreachable
from fleeting._protocols import Connection
from fleeting._types import ConnectInfo, ConnectorConfig
from fleeting.connectors.winrm._connection import WinrmConnection
from fleeting.connectors.winrm._dial import Target, dial
from fleeting.connectors.winrm._shells import END_TIMEOUT, SHELLS, Shells

OPERATION_TIMEOUT = 20.0
"""Seconds after which a host answers a request for output even if there is none; whole, at least 1."""

PATIENCE = 15.0
"""Seconds that any answer may take beyond that."""


@define(eq=False)
class WinrmConnector:
    """Speaks WinRM: ``winrm`` over HTTP, ``winrm+https`` over HTTPS."""

    shells: int = SHELLS
    """Shells at once on one host as one user; more commands wait for their turn."""

    operation_timeout: float = OPERATION_TIMEOUT
    """Seconds after which the host answers a question for output that has not come."""

    patience: float = PATIENCE
    """Seconds to wait for any one answer."""

    @asynccontextmanager
    async def dial(self, info: ConnectInfo, config: ConnectorConfig) -> AsyncIterator[Connection]:
        """Log in, or share the shells that others have on the same instance with the same credentials."""
        target = Target.of(info, config, operation_timeout=self.operation_timeout, patience=self.patience)
        async with self._shared(target) as shells:
            connection = WinrmConnection(shells)
            try:
                async with connection.supervised(config):
                    yield connection
            finally:
                connection.close()

    @asynccontextmanager
    async def _shared(self, target: Target) -> AsyncIterator[Shells]:
        slot = _slot((self, evolve(target.info, expires_at=None), target.config))
        used = await self._taken(slot, target)
        try:
            yield used
        finally:
            used.users -= 1
            if not used.users:
                slot.shells = None if slot.shells is used else slot.shells
                with anyio.move_on_after(END_TIMEOUT, shield=True):
                    await used.close()
                used.calls.close()

    async def _taken(self, slot: "_Slot", target: Target) -> Shells:
        try:
            with anyio.fail_after(target.config.timeout):
                await slot.lock.acquire()
        except TimeoutError:
            patience = format_duration(target.config.timeout)
            raise Unreachable(f"{target} could not be reached within {patience}: other calls are dialling it") from None
        try:
            if slot.shells is None or slot.shells.calls.is_suspect:
                slot.shells = await dial(target, self.shells)
            slot.shells.users += 1
            return slot.shells
        finally:
            slot.lock.release()


@define(eq=False, weakref_slot=True)
class _Slot:
    """The place of one instance among those that are connected."""

    lock: anyio.Lock = field(factory=anyio.Lock)
    """Held by the one who dials; the others wait."""

    shells: Shells | None = None


_SLOTS: RunVar["WeakValueDictionary[Hashable, _Slot]"] = RunVar("shared WinRM shells")


def _slot(key: Hashable) -> _Slot:
    try:
        slots = _SLOTS.get()
    except LookupError:
        _SLOTS.set(slots := WeakValueDictionary())
    return slots.setdefault(key, _Slot())
