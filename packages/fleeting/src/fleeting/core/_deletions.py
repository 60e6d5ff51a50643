"""Which deletions are asked for, and when. Pure.

What falls due while a call is under way goes into the next one: a fleet that shrinks would make as many calls as it has
instances, and the clouds' budgets are far below that. A call that is not answered for long is waited for no longer.
"""

from collections.abc import Iterable
from math import inf

from fleeting.core import messages
from fleeting.core._context import Context
from fleeting.core._due import DECREASE, Due, Timer
from fleeting.core._instance import Instance
from fleeting.core._pacing import UNANSWERED
from fleeting.core._stages import Deletion, Removing, Stage
from fleeting.core._views import Views


class Deletions:
    """The queue, and the calls under way."""

    def __init__(self, context: Context, views: Views) -> None:
        """Nothing is queued, and no call under way."""
        self._context = context
        self._views = views
        self._queued: dict[str, None] = {}
        self._under_way = 0
        self._until = -inf
        """Until when an answer is waited for."""

    @property
    def queued(self) -> tuple[str, ...]:
        """What the next call asks for: an instance may be gone, or retained, before its turn comes."""
        return tuple(each.id for each in self._context.table.known(self._queued) if each.stage is Stage.REMOVING)

    def is_queued(self, instance: str) -> bool:
        """Whether the next call asks for it."""
        return instance in self._queued

    def waits_until(self, now: float) -> float | None:
        """Until when the next call waits for an answer; None: it does not."""
        return self._until if self._under_way and now < self._until else None

    def ask(self, known: Instance, now: float) -> None:
        """Ask the cloud, together with all others until the next call, and again if that has no effect."""
        if not isinstance(known.phase, Removing):
            return
        if known.id not in self._queued:
            self._queued[known.id] = None
            before = known.phase.deletion
            known.phase.deletion = Deletion(now) if before is None else Deletion(now, before.tries + 1, before.sent)
        self.ask_later(known, now)
        self._views.expect(now)

    def ask_later(self, known: Instance, now: float, at_least: float = 0.0) -> None:
        """Ask (again) if it is still there after the interval."""
        config = self._context.config
        shutting_down = self._context.shutting_down
        interval = config.shutdown_deletion_interval if shutting_down else config.deletion_retry_interval
        self._context.timers.set(Timer(Due.DELETE, known.id), now + max(interval, at_least))

    def send(self, now: float) -> None:
        """Ask for all that are queued, in one call, unless the cloud is about to answer the last one."""
        if not self._queued:
            return
        waits_until = self.waits_until(now)
        if waits_until is not None:
            self._context.timers.set(DECREASE, waits_until)
            return
        self._context.timers.cancel(DECREASE)
        asked = self.queued
        self._queued = {}
        if asked:
            self._until = now + UNANSWERED
            self._under_way += 1
            self._context.turn.actions.append(messages.Decrease(self._context.pool, asked))

    def answered(self, asked: Iterable[str]) -> None:
        """The cloud was asked: from now on their absence is what is to be expected.

        What was not accepted is asked for again when its timer is due.
        """
        self._under_way -= 1
        for known in self._context.table.known(asked):
            deletion = known.deletion
            if deletion is not None:
                deletion.sent = True

    def failed(self, answer: messages.DecreaseFailed, now: float) -> None:
        """Wait as long as the cloud wants, if that is longer than we would."""
        self.answered(answer.asked)
        for known in self._context.table.known(answer.asked):
            self.ask_later(known, now, at_least=answer.retry_after or 0.0)

    def hasten(self, now: float) -> None:
        """The group shuts down: all are asked for again at the shutdown's own interval."""
        for known in self._context.table.by_id.values():
            if known.stage is Stage.REMOVING:
                self.ask_later(known, now)
