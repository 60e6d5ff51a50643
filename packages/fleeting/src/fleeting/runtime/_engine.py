"""Drives a core: commits what must be durable, then performs what was decided.

Everything goes one way. Whoever learns a fact calls the core and hands the step to `Engine.take`;
one task commits all steps that have piled up in a single transaction and then performs their actions
in order. So a burst costs one commit, and no action ever precedes its writes.
"""

import logging
from collections.abc import Callable, Sequence
from math import inf
from typing import Any, Protocol

import anyio

from fleeting._errors import JournalError
from fleeting._types import Clock
from fleeting.core._step import Step, Write
from fleeting.journal._journal import Journal

RETRY_COMMIT = 1.0
"""Seconds between attempts while the journal cannot be written."""

CLOSING_TRIES = 3
"""How often the last writes are tried when the journal fails at the very end."""

log = logging.getLogger("fleeting.engine")


class Core(Protocol):
    """What the engine needs of a pure core, besides the facts that others hand to it."""

    @property
    def wake_at(self) -> float | None:
        """When `tick` has something to do, if nothing else happens."""
        ...

    def tick(self, now: float) -> Step:
        """Do what is due. Also called after every burst of steps, so that it decides once."""
        ...

    def journal_failed(self, error: str, now: float) -> Step:
        """The last writes are not durable yet and are being tried again; nothing may be handed out."""
        ...

    def journal_recovered(self, now: float) -> Step:
        """All is durable again."""
        ...


class Engine:
    """One task that commits and performs the steps of one core."""

    def __init__(
        self,
        core: Core,
        journal: Journal,
        clock: Clock,
        perform: Callable[[Any], None],
        urgent: Callable[[Any], bool] = lambda _: False,
    ) -> None:
        """Prepare; nothing runs yet.

        Args:
            core: What decides.
            journal: Open.
            clock: The same that the core's callers use.
            perform: Starts an action and returns at once; its outcome comes back as a fact.
            urgent: Whether an action depends on no write, and need not wait for a journal that fails.
        """
        self._core = core
        self._journal = journal
        self._clock = clock
        self._perform = perform
        self._urgent = urgent
        self._writes: list[Write] = []
        self._actions: list[Any] = []
        self._news = anyio.Event()
        self._settled: anyio.Event | None = None
        """Made by whoever waits for it; hardly anybody does."""

        self._failing = False
        self._retry_at = -inf

    def take(self, step: Step) -> None:
        """Queue a step of the core. Returns at once."""
        self._queue(step)
        self._news.set()

    async def run(self) -> None:
        """Commit and perform until cancelled."""
        while True:
            if self._news.is_set():
                self._news = anyio.Event()
            self._queue(self._core.tick(self._clock.now()))
            await self._flush()
            if self._settled is not None and not (self._writes or self._actions):
                self._settled.set()
                self._settled = None
            await self._wait()

    async def settle(self, timeout: float) -> None:
        """Wait until nothing is queued, at most *timeout* seconds."""
        with anyio.move_on_after(timeout):
            while self._writes or self._actions:
                self._settled = self._settled or anyio.Event()
                await self._settled.wait()

    async def close(self) -> None:
        """Make durable what is still queued, once `run` has ended. What it would have led to is not begun."""
        for _ in range(CLOSING_TRIES):
            if not self._writes or await self._commit(self._writes):
                return
            await anyio.sleep(RETRY_COMMIT)
        log.error("journal_behind", extra={"writes": len(self._writes)})

    async def _flush(self) -> None:
        """Make what is queued durable and perform it; while the journal fails, only when it is time to try again."""
        if self._clock.now() < self._retry_at:
            return
        writes, actions = len(self._writes), len(self._actions)
        if writes and not await self._commit(self._writes[:writes]):
            self._retry_at = self._clock.now() + RETRY_COMMIT
            queued, self._actions = self._actions, []
            for action in queued:
                self._perform_or_queue(action, urgent=self._urgent(action))
            return
        del self._writes[:writes]  # not before they are durable: a cancellation must not lose them
        ready, self._actions = self._actions[:actions], self._actions[actions:]
        for action in ready:
            self._perform(action)

    def _queue(self, step: Step) -> None:
        """Add to what is to be committed and performed; what is urgent does not wait for a journal that fails."""
        self._writes.extend(step.writes)
        for action in step.actions:
            self._perform_or_queue(action, urgent=self._failing and self._urgent(action))

    def _perform_or_queue(self, action: Any, *, urgent: bool) -> None:  # noqa: ANN401  (whatever the core decides)
        if urgent:
            self._perform(action)
        else:
            self._actions.append(action)

    async def _commit(self, writes: Sequence[Write]) -> bool:
        """Try once, and tell the core when that starts to fail or to succeed again."""
        try:
            await self._journal.commit(writes)
        except JournalError as error:
            if not self._failing:
                self._failing = True
                log.error("journal_failed", extra={"error": str(error)})  # noqa: TRY400  (expected; no traceback)
                self.take(self._core.journal_failed(str(error), self._clock.now()))
            return False
        if self._failing:
            self._failing = False
            log.warning("journal_recovered")
            self.take(self._core.journal_recovered(self._clock.now()))
        return True

    async def _wait(self) -> None:
        """Wait for a step, for the core's own time, or for the time to try the journal again."""
        times = [at for at in (self._core.wake_at, self._retry_at if self._failing else None) if at is not None]
        with anyio.move_on_after(max(0.0, min(times, default=inf) - self._clock.now())):
            await self._news.wait()
