"""What a plan will do and when, if nothing else happens: read from its timers, for people. Pure; each is O(n)."""

from collections.abc import Iterator

from attrs import frozen

from fleeting.core import messages
from fleeting.core._context import Context
from fleeting.core._deletions import Deletions
from fleeting.core._due import ANSWERED, Due, Timer
from fleeting.core._growth import Growth
from fleeting.core._views import Views


@frozen
class Agenda:
    """The agenda of one plan. Nothing is in order."""

    _context: Context
    _views: Views
    _growth: Growth
    _deletions: Deletions
    _observing: bool

    def actions(self) -> Iterator[tuple[float, messages.Action]]:  # noqa: C901  (an arm for each kind)
        """What `Tick` will lead to."""
        context, pool = self._context, self._context.pool
        for timer, at in context.timers.items():
            match timer.due:
                case Due.VIEW:
                    yield at, messages.Update(pool)
                case Due.SUSPENDED:
                    if not self._views.under_way:
                        yield at, messages.Update(pool)
                case Due.APPEARED:
                    intent = self._growth.intents[timer.id]
                    if not intent.in_flight and not self._views.under_way:
                        yield max(at, intent.asked_at + context.config.intent_timeout), messages.Update(pool)
                case Due.DECREASE:
                    if queued := self._deletions.queued:
                        yield at, messages.Decrease(pool, queued)
                case Due.DELETE if self._deletions.is_queued(timer.id):
                    pass  # it is asked for with the next call
                case Due.READY | Due.DELETE if (later := self._deletions.waits_until(at)) is not None:
                    yield from ((later, action) for action in self._chore(timer))
                case _ if not self._observing:
                    yield from ((at, action) for action in self._chore(timer))

    def _chore(self, timer: Timer) -> Iterator[messages.Action]:
        """What a timer leads to that is not about the view."""
        pool = self._context.pool
        match timer.due:
            case Due.HEARTBEAT:
                yield messages.Heartbeat(pool, timer.id)
            case Due.PREPARE:
                yield messages.Prepare(pool, timer.id)
            case Due.READY | Due.DELETE if self._context.table.by_id[timer.id].retained is None:
                yield messages.Decrease(pool, (timer.id,))
            case Due.ASK if self._growth.may_ask_again:
                yield messages.Increase(pool, timer.id, self._growth.intents[timer.id].count)

    def unanswered_at(self) -> float | None:
        """When the request under way holds back others, unless it is answered before; None: there is none."""
        return self._context.timers.at(ANSWERED)

    def deletes_at(self, at: float) -> float:
        """When a deletion that is decided on then is asked for, unless the call under way is answered before."""
        waits_until = self._deletions.waits_until(at)
        return at if waits_until is None else waits_until

    def ageing(self) -> Iterator[tuple[float, str]]:
        """When which instances that the consumer knows of grow too old."""
        return self._when(Due.AGE)

    def turning(self) -> Iterator[tuple[float, str]]:
        """When calls to suspend or resume which instances count as failed, unless done by then."""
        return self._when(Due.SUSPENDED, Due.RESUMED)

    def giving_up(self) -> Iterator[tuple[float, str]]:
        """When which instances are done for unless they are ready by then, retained or not."""
        return self._when(Due.READY)

    def _when(self, *kinds: Due) -> Iterator[tuple[float, str]]:
        """The timers of these kinds."""
        return ((at, timer.id) for timer, at in self._context.timers.items() if timer.due in kinds)
