"""Our mark on a group: put there, renewed, taken away, and what is so while it is not known to be there."""

from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, cast

import anyio
from attrs import define, field

from fleeting._errors import GroupRefused, ProviderError
from fleeting._protocols import InstanceGroup, MarksOwner
from fleeting._types import Clock
from fleeting.core import messages
from fleeting.runtime._outcomes import READ_TIMEOUT, log, words

if TYPE_CHECKING:  # importing anyio.abc costs 20 ms more than all that a bare ``import fleeting`` needs of anyio
    from anyio.abc import TaskGroup

MARK_LASTS = 300.0
"""Seconds after which the mark of a manager that has died is no obstacle to another any more; renewed at half of it."""

MARK_RETRY = 10.0
"""Seconds before a mark is tried to be renewed once more that could not be."""


@define(eq=False)
class OwnerMark:
    """Keeps others from managing the group, where the cloud has a place for a mark; else it does nothing."""

    _group: InstanceGroup
    _pool: str
    _identity: str
    _clock: Clock
    in_use: bool
    """Whether the group carries a mark of ours."""

    disowned: str = field(default="", init=False)
    """Why nothing is changed: the group is not known to be ours."""

    _marked_until: float = field(default=-inf, init=False)
    _feed: Callable[[messages.Fact], None] = field(init=False)

    async def put(self) -> None:
        """Put it on the group, or renew it.

        Raises:
            GroupRefused: Somebody else manages it.
            ProviderError: Whether it is ours cannot be found out.
        """
        if self.in_use:
            now = self._clock.now()
            left = self._marked_until - now if self._is_marked else READ_TIMEOUT
            try:
                with anyio.fail_after(min(left, READ_TIMEOUT)):
                    await cast("MarksOwner", self._group).mark_owner(now + MARK_LASTS)
            except OSError as error:
                why = "it did not answer" if isinstance(error, TimeoutError) else words(error)
                raise ProviderError(f"{self._identity} could not be marked as owned by this manager: {why}") from error
            self._marked_until = now + MARK_LASTS

    async def remove(self) -> None:
        """Take it away, if it is there."""
        if self.in_use:
            await cast("MarksOwner", self._group).mark_owner(None)

    def heed_expiry(self) -> None:
        """See that nothing is changed once it has expired: others may have come."""
        if self.in_use and not (self.disowned or self._is_marked):
            self._disown("nobody knows whether the group is still ours: our mark on it has expired")

    def start(self, tasks: "TaskGroup", feed: Callable[[messages.Fact], None]) -> None:
        """From now on it is kept, in *tasks*, and what becomes of it is given to *feed*."""
        self._feed = feed
        if self.in_use:
            tasks.start_soon(self._keep, name=f"mark on {self._pool}")

    async def _keep(self) -> None:
        """Renew it. When it is lost, or may be, nothing is changed until we have it again."""
        wait = MARK_LASTS / 2
        while True:
            await anyio.sleep(wait)
            wait = MARK_LASTS / 2
            self.heed_expiry()
            try:
                await self.put()
            except GroupRefused as error:
                self._disown(f"the group is not ours any more: {error}")
            except ProviderError as error:
                log.warning("mark_failed", extra={"pool": self._pool, "error": words(error)})
                left = self._marked_until - self._clock.now()
                wait = min(MARK_RETRY, left) if left > 0 else MARK_RETRY
                if left <= 0:
                    self._disown(f"nobody knows whether the group is still ours: {words(error)}")
            else:
                self._disown("")

    @property
    def _is_marked(self) -> bool:
        """Whether a mark of ours that was put on the group has not expired."""
        return self._clock.now() < self._marked_until

    def _disown(self, error: str) -> None:
        """Note whether the group is ours, and report a change."""
        if error != self.disowned:
            self.disowned = error
            if error:
                log.error("group_lost", extra={"pool": self._pool, "error": error})
            else:
                log.warning("group_regained", extra={"pool": self._pool})
            self._feed(messages.Disowned(error))
