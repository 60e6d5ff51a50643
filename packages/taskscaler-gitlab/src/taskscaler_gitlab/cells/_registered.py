"""Calls of runners that have registered with the router, which asks the cells with tokens of its own for them."""

import logging
from collections.abc import Callable, Mapping
from hmac import compare_digest
from secrets import token_bytes
from typing import Any

from anyio import to_thread
from attrs import define, field

from fleeting import ConfigError
from fleeting.plugins import one_line
from gitlab_jobs.coordinator import Reply
from taskscaler_gitlab.cells._registry import FORBIDDEN, Registry, is_of_a_router
from taskscaler_gitlab.cells._registry_file import RegistryFile

_RANDOM = 16
_UNREADABLE = (OSError, ValueError, ConfigError)
_UNAVAILABLE = Reply(status=503, body={"message": "503 the list of runners cannot be used"})

log = logging.getLogger("taskscaler.gitlab")


@define(eq=False)
class RegisteredRunners:
    """All of them."""

    file: RegistryFile
    registration_token: str = field(repr=False)
    tokens: Mapping[str, str] = field(repr=False)
    """What to ask the cells for jobs with, by their names."""

    def refusal(self, token: str, now: int) -> Reply | None:
        """What to answer who asks for a job with a token of a router, which is no cell's business; None: it is good."""
        try:
            return None if self.file.read().find(token, now) is not None else FORBIDDEN
        except _UNREADABLE as error:
            log.warning("runners_unreadable", extra={"error": one_line(str(error))})
            return _UNAVAILABLE

    async def seen(self, token: str, system: object, now: int) -> None:
        """Note that a runner has called, if that is news."""
        try:
            known = self.file.read()
        except _UNREADABLE:
            return
        found = known.find(token, now)
        if found is None or not known.is_news(found, system, now):
            return

        def note(registry: Registry) -> Reply:
            if (found := registry.find(token, now)) is not None:
                registry.note(found, system, now)
            return FORBIDDEN

        await self._change(note)

    async def answer(self, method: str, path: str, token: str, body: Mapping[str, Any], now: int) -> Reply | None:
        """The answer to a call of a runner; None: it is none of ours."""
        given, ours = token.encode(errors="replace"), self.registration_token.encode()
        if (method, path) == ("POST", "runners"):
            registers = compare_digest(given, ours)
            return (
                await self._change(lambda all_: all_.register(body, now, token_bytes(_RANDOM))) if registers else None
            )
        return await self._change(_call(method, path, token, body, now)) if is_of_a_router(token) else None

    async def _change(self, do: Callable[[Registry], Reply]) -> Reply:
        try:
            return await to_thread.run_sync(self.file.change, do)
        except _UNREADABLE as error:
            log.warning("runners_unreadable", extra={"error": one_line(str(error))})
            return _UNAVAILABLE


def _call(method: str, path: str, token: str, body: Mapping[str, Any], now: int) -> Callable[[Registry], Reply]:
    """What a call does."""
    system = body.get("system_id")
    match method, path:
        case "POST", "runners/verify":
            return lambda registry: registry.verify(token, system, now)
        case "POST", "runners/reset_authentication_token":
            return lambda registry: registry.reset(token, now, token_bytes(_RANDOM))
        case "DELETE", "runners":
            return lambda registry: registry.unregister(token, now)
        case "DELETE", "runners/managers":
            return lambda registry: registry.unregister(token, now, system=system or "")
    return lambda _: FORBIDDEN
