"""A runner's token at one GitLab: whether it is good, and its successor in time if it ends one day."""

import logging
from collections.abc import Callable
from pathlib import Path

import anyio
from anyio import to_thread
from attrs import define, evolve, field

from fleeting import Clock
from fleeting.errors import SystemRefused
from fleeting.plugins import one_line, span, write_whole
from gitlab_jobs import GitLabJobsError, Refused
from taskscaler_gitlab._expiry import LEAST, keep_alone, keep_token, may_keep, may_keep_alone, parse_time, renew_at
from taskscaler_gitlab._gitlab import said
from taskscaler_gitlab._unforeseen import FORGIVEN, Unforeseen
from taskscaler_gitlab.cells._cell import Cell

log = logging.getLogger("taskscaler.gitlab")


@define(eq=False)
class TokenCare:
    """Keeps it good, whatever goes wrong with it, and each that a reload brings."""

    cell: Cell
    path: Path
    """The configuration."""

    directory: Path
    """Where a token is kept that cannot be written where it belongs."""

    system_id: str
    clock: Clock
    say: Callable[[str], object]
    unforeseen: Unforeseen
    changing: anyio.Lock
    """Held while tokens are read from files or written to them: a reload that had read the old one would go back to
    it."""

    _looking_after: anyio.CancelScope = field(factory=anyio.CancelScope, init=False)
    """For as long as the token is the same in the file."""

    @property
    def place(self) -> Path:
        """The file with the token."""
        return self.cell.token_file or self.path

    async def look_after(self) -> None:
        """Do so until cancelled."""
        while True:
            with anyio.CancelScope() as self._looking_after:
                with self.unforeseen.contained("token_not_looked_after"):
                    await self._keep_good()
                    await anyio.sleep_forever()  # until there is another
                await anyio.sleep(FORGIVEN)

    def begin_again(self) -> None:
        """There is another token, or another time at which it ends."""
        self._looking_after.cancel()

    async def _keep_good(self) -> None:
        """See whether GitLab knows the token, and have it replaced in time if it ends one day."""
        obtained = parse_time(self.cell.settings.token_obtained_at) or self.clock.now()
        expires, earliest = await self._expiry(), 0.0
        while (at := renew_at(obtained, expires)) is not None:
            await self.clock.sleep_until(max(at, earliest))
            if why := await to_thread.run_sync(self._may_keep):
                self.say(
                    f"warning: {self._whose} token ends, and is not replaced: {why}; use taskscaler-gitlab reset-token"
                )
                return
            obtained = self.clock.now()
            earliest = obtained + LEAST  # a token may have ended when it comes, by our clock or by GitLab's
            expires = await self._renewed(expires)

    @property
    def _whose(self) -> str:
        return f"the runner's {self.cell.name}".rstrip() if self.cell.name else "the runner's"

    async def _expiry(self) -> float | None:
        """When the token ends, as GitLab or else the file has it."""
        shop, is_known = self.cell.shop, False
        while True:
            settings = self.cell.settings
            try:
                answer = await shop.client.verify(settings.token, system_id=self.system_id, info=shop.info)
            except Refused as error:
                self.say(f"warning: {one_line(str(error))}; check {self._whose} token")
                return None
            except GitLabJobsError as error:
                if not is_known:
                    self.say(f"warning: {self._whose} token could not be checked: {said(error)}")
                is_known = True
                await anyio.sleep(LEAST)
            else:
                return parse_time(answer.token_expires_at) or parse_time(settings.token_expires_at)

    async def _renewed(self, expires: float | None) -> float | None:
        """Have the token replaced, and keep the new one; returns when that ends."""
        old = self.cell.settings.token
        try:
            with anyio.CancelScope(shield=True):
                answer = await self.cell.client.reset_token(old)
                async with self.changing:
                    if self.cell.settings.token != old:
                        self.say(
                            f"note: {self._whose} token was replaced, but a reload has brought another: that stays"
                        )
                        return expires
                    self.cell.runner.use_token(answer.token)
                    self.cell.settings = evolve(self.cell.settings, token=answer.token)
                    problem = await to_thread.run_sync(self._keep, answer.token)
        except GitLabJobsError as error:
            log.warning("token_not_replaced", extra={"reason": one_line(str(error))})
            await anyio.sleep(LEAST)
            return expires
        if problem:
            self.say(
                f"warning: {self._whose} token was replaced, and the new one cannot be kept ({problem}): it is lost"
                f" when the runner stops; it is tried again every {span(LEAST)}"
            )
        while problem:
            await anyio.sleep(LEAST)
            with anyio.CancelScope(shield=True):
                async with self.changing:
                    is_in_use = self.cell.settings.token == answer.token
                    problem = await to_thread.run_sync(self._keep, answer.token) if is_in_use else ""
        return parse_time(answer.token_expires_at)

    def _may_keep(self) -> str:
        alone = self.cell.token_file
        return may_keep(self.path, self.cell.token_in_file) if alone is None else may_keep_alone(alone)

    def _keep(self, new: str) -> str:
        """Keep a new token for the next start, in the file if that is possible: the old one is good for nothing.

        Returns:
            Why it cannot be kept anywhere; empty: it is kept.
        """
        old = self.cell.token_in_file
        try:
            if self.cell.token_file is None:
                keep_token(self.path, old, new)
            else:
                keep_alone(self.cell.token_file, old, new)
        except (OSError, ValueError) as error:
            kept = self.directory / (f"token-{self.cell.name}" if self.cell.name else "token")
            try:
                write_whole(kept, new.encode())
            except OSError as other:
                return str(SystemRefused(other))
            self.say(
                f"warning: {self._whose} token was replaced, and {self.place} could not be changed ({error});"
                f" the new one is in {kept}"
            )
        else:
            self.cell.token_in_file = new
            self.say(f"{self._whose} token was replaced, and is kept in {self.place}")
        return ""
