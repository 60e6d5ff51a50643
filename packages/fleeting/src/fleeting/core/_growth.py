"""Growing: what is asked of the cloud, how fast, and what has come of it. Pure.

`Growth` owns the open intents, the throttle, the backoffs of requests and of problems, what waits for the cloud to
answer the call under way, and what is being withdrawn.

The ceiling is kept here and nowhere else: at every `Increase`, known instances plus what open intents may still bring
stay at or below `max_instances`. Instances that are being deleted count until they are gone.
"""

from collections.abc import Iterable
from itertools import chain
from math import inf

from fleeting._types import Observed, Problem
from fleeting.core import messages
from fleeting.core._chance import Chance
from fleeting.core._context import Context
from fleeting.core._due import ANSWERED, Due, Timer
from fleeting.core._intents import Candidates, Intent, IntentRecord, Intents, MatchByTime, Numbered
from fleeting.core._pacing import OURS, UNANSWERED, Backoffs, Limits, TokenBucket
from fleeting.core._plan_config import PlanConfig
from fleeting.core._views import Views

UNFILLED = 60.0
"""Seconds after which a cloud that has a problem with one offering only does not seem to deliver others, either."""


class Growth:
    """What one group is asked for."""

    def __init__(
        self,
        context: Context,
        views: Views,
        *,
        now: float,
        token: str,
        chance: Chance,
        max_size: int | None,
        max_size_is: str,
        named: bool,
        withdraws: bool,
    ) -> None:
        """Start with no intents; for the arguments see `Plan`."""
        self._context = context
        self._views = views
        self._timers = context.timers
        self._ids = Numbered(token)
        self._named = named
        self._withdraws = withdraws
        self._max_size_is = max_size_is
        self.limit_to(max_size)
        config = context.config
        self._bucket = _bucket(config, now)
        self._backoffs = Backoffs.of(config.backoff_initial, config.backoff_cap, chance)
        self._backoff = self._backoffs.requests
        self.intents = Intents()
        self.problems: tuple[Problem, ...] = ()
        """Why the cloud says that capacity is not coming."""

        self.queued = 0
        """Instances that are asked for once the cloud has answered the call under way."""

        self.crowded = False
        """Whether the consumer sees more than there may be; then no request is repeated, either."""

        self._by_time: MatchByTime | None = None
        """Of the view that is being looked through, if instances carry nothing."""

        self._withdrawing: Candidates = ()
        self._withdrawable = withdraws

    def limit_to(self, max_size: int | None) -> None:
        """Set the ceiling: the lower one of ours and the cloud's own."""
        ours = self._context.config.max_instances or None
        self.ceiling = min((each for each in (ours, max_size) if each is not None), default=None)
        self.ceiling_is = OURS if ours == self.ceiling else self._max_size_is
        """Which of the two it is, in words."""

    # --- what may be asked for ---------------------------------------------------------------------------

    @property
    def outstanding(self) -> int:
        """Instances that open intents may still bring, and those that the next call asks for."""
        return self.intents.outstanding + self.queued

    @property
    def total(self) -> int:
        """What counts against the ceiling. O(1)."""
        return len(self._context.table.by_id) + self.outstanding

    @property
    def asking(self) -> bool:
        """Whether a call for more instances is under way: what is asked for meanwhile goes into the next one."""
        return self.intents.asked_since is not None

    @property
    def last_failure(self) -> tuple[float, str] | None:
        """When and why growing failed last, whatever has succeeded since; None: it never did."""
        return self._backoffs.last

    @property
    def withdrawable(self) -> int:
        """Unfilled requests that can be taken back now, as far as is known."""
        if not self._withdrawable or self._withdrawing:
            return 0
        return self.intents.unfilled

    def stranded(self, now: float) -> int:
        """Unfilled requests that can be taken back, and are not likely to be filled: growing is failing."""
        unfilled = self.withdrawable
        return unfilled if unfilled and self._views.viewed and self._blocked(now)[0] is not None else 0

    def dropped(self, now: float) -> int:
        """So many of those queued will not be asked for, if the cloud does not answer the call under way before."""
        return self.queued if self.queued and self.blocked(now) else 0

    @property
    def _may_grow(self) -> bool:
        """Whether what the group holds is known, and ours."""
        return self._views.viewed and not (self._views.refused or self._context.disowned)

    @property
    def room(self) -> int | None:
        """How many more the ceiling allows; None: any number. 0 while nothing may be asked for at all."""
        if not self._may_grow:
            return 0
        return None if self.ceiling is None else max(0, self.ceiling - self.total)

    def blocked(self, now: float) -> bool:
        """Whether nothing may be asked for now."""
        return not self._may_grow or self._blocked(now)[0] is not None

    def limits(self, now: float) -> Limits:
        """What stands between a wish for more instances and asking for them. O(1)."""
        if not self._may_grow:
            why = "the group was refused" if self._views.refused else "what the group holds is not known yet"
            why = self._context.disowned or why
            return Limits(room=0, tokens=0, tokens_at=None, blocked_until=inf, blocked_why=why)
        blocked_until, blocked_why = self._blocked(now)
        tokens, tokens_at = self._bucket.outlook(now)
        return Limits(self.room, tokens, tokens_at, blocked_until, blocked_why, self.ceiling_is)

    def _blocked(self, now: float) -> tuple[float | None, str]:
        """Until when failures, or a call that hangs, keep more from being asked for, and why; None: they do not."""
        asked = self.intents.asked_since
        if asked is not None and asked + UNANSWERED <= now:
            return inf, f"the cloud has not answered the last request within {UNANSWERED:g} s"
        holding = self._backoffs.holding
        return holding.until if holding.active(now) else None, holding.reason

    # --- asking, and taking back -------------------------------------------------------------------------

    def request(self, count: int, now: float) -> None:
        """Ask for so many more, or for as many of them as `limits` allow now."""
        granted = self.limits(now).allowed(count) if count else 0
        if granted:
            self._bucket.take(granted, now)
            self.queued += granted
            if not self.asking:
                self._increase(now)

    def take_back(self, count: int, now: float) -> None:
        """What is queued first, which costs no call."""
        self._withdraw(count - self._unqueue(count, now), self.intents.withdrawable)

    def give_up_queued(self, now: float) -> None:
        """No call is to ask for it any more."""
        self._unqueue(self.queued, now)

    def drop_blocked(self, now: float) -> None:
        """Give up what is queued while nothing may be asked for: a decision that still wants it asks another group.

        Were it kept until the call under way is answered, it would count as coming, and no other group be asked.
        """
        self._unqueue(self.dropped(now), now)

    def _increase(self, now: float) -> None:
        """Ask for all that is queued, in one call."""
        intent = Intent(self._ids.another(), self.queued, now, now)
        self.queued = 0
        self.intents.open(intent)
        self._context.turn.write_intent(intent.id)
        self._ask(intent, now)
        self._withdrawable = self._withdraws
        self._views.expect(now)

    def _unqueue(self, count: int, now: float) -> int:
        """Give up so many of what is queued, or all; returns how many there were."""
        count = min(count, self.queued)
        if not count:
            return 0
        self.queued -= count
        self._bucket.take(-count, now)
        return count

    def _withdraw(self, count: int, intents: Candidates) -> None:
        """Take back up to *count* unfilled requests of these."""
        count = min(count, self.withdrawable)
        if count > 0:
            self._withdrawing = intents
            self._context.turn.actions.append(messages.Withdraw(self._context.pool, count))

    def _ask(self, intent: Intent, now: float) -> None:
        """Ask the cloud; also again, where that is idempotent."""
        self.intents.asked(intent, now)
        self._timers.set(Timer(Due.APPEARED, intent.id), now + self._context.config.intent_timeout)
        self._timers.cancel(Timer(Due.ASK, intent.id))
        self._await_answer()
        self._context.turn.actions.append(messages.Increase(self._context.pool, intent.id, intent.count))

    def _await_answer(self) -> None:
        """Wait for the oldest call under way as long as nothing is wrong with that."""
        asked = self.intents.asked_since
        if asked is None:
            self._timers.cancel(ANSWERED)
        else:
            self._timers.set(ANSWERED, asked + UNANSWERED)

    # --- the cloud's answers -----------------------------------------------------------------------------

    def increased(self, answer: messages.Increased, now: float) -> None:
        """The cloud answered; less than asked for is a failure to grow."""
        intent = self.intents.get(answer.intent)
        if intent is not None:
            self._accepted(intent, answer.accepted, now)
        self._call_ended(now)

    def _accepted(self, intent: Intent, accepted: int, now: float) -> None:
        """It accepted so many for it."""
        if intent.unanswered and not accepted:  # none now; but the earlier try may still be carried out
            self._not_answered(intent, now)
            self._backoff.failed("the group accepted none", now)
            return
        self.intents.accepted(intent, accepted, now)
        if accepted < intent.count:
            self._backoff.failed(f"the group accepted {accepted} of {intent.count}", now)
        self._timers.set(Timer(Due.APPEARED, intent.id), now + self._context.config.intent_timeout)
        self._settle(intent)
        self._views.expect(now)

    def increase_failed(self, answer: messages.IncreaseFailed, now: float) -> None:
        """Refused, or nobody knows."""
        self._backoff.failed(answer.error, now, answer.retry_after)
        intent = self.intents.get(answer.intent)
        if intent is not None:
            if answer.outcome_known and not intent.unanswered:
                self.intents.accepted(intent, intent.matched, now)
                self._settle(intent)
            else:
                self._not_answered(intent, now)
        self._call_ended(now)

    def not_asked(self, name: str, now: float) -> None:
        """Nothing will come of it, unless an earlier try is still carried out; what is wanted now is a new request."""
        intent = self.intents.get(name)
        if intent is not None and intent.unanswered:
            self._not_answered(intent, now)
        elif intent is not None:
            self._bucket.take(-intent.outstanding, now)
            self.intents.accepted(intent, intent.matched, now)
            self._settle(intent)
        self._call_ended(now)

    def _call_ended(self, now: float) -> None:
        """The cloud has answered: what was queued meanwhile goes into the next call, if it may be asked for still.

        What may not is forgotten: a decision that wants it then asks again.
        """
        self._await_answer()
        if not self.asking:
            self.request(self._unqueue(self.queued, now), now)

    def _not_answered(self, intent: Intent, now: float) -> None:
        """Nobody knows what will come of it; ask again where that is idempotent."""
        self.intents.not_answered(intent, now)
        self._settle(intent)
        if self._named and intent.outstanding:
            self._ask_after_backoff(intent)
        self._views.expect(now)

    def _ask_after_backoff(self, intent: Intent) -> None:
        """Repeat the request when the cloud may be asked again, if that is not too late for it."""
        if intent.whole and self._backoff.until < intent.requested_at + self._context.config.intent_timeout:
            self._timers.set(Timer(Due.ASK, intent.id), self._backoff.until)

    @property
    def may_ask_again(self) -> bool:
        """Whether there is room for what a repeated request may bring, and nothing speaks against asking.

        What is being taken back is not asked for meanwhile: nobody would know what is left of it.
        """
        room = self.ceiling is None or self.total <= self.ceiling
        forbidden = self._context.shutting_down or self._context.disowned or self.crowded or self._withdrawing
        return self._views.viewed and room and not forbidden

    def ask_again(self, intent: Intent, now: float) -> None:
        """Repeat a request that was never answered, once there is room for what it may bring."""
        if self._backoff.active(now):  # another request has failed since
            self._ask_after_backoff(intent)
        elif self.may_ask_again:
            self._ask(intent, now)
            self._context.turn.write_intent(intent.id)
        else:
            self._timers.set(Timer(Due.ASK, intent.id), now + self._context.config.update_interval_when_expecting)

    def withdrawn(self, asked: int, taken: int, now: float) -> None:
        """Unfilled requests were taken back; if not all, the rest cannot be, and is not asked for again."""
        candidates, self._withdrawing = self._withdrawing, ()
        self._withdrawable = taken >= asked
        for intent in self.intents.take_back(min(taken, asked), candidates):
            self._repeat_no_more(intent)
            self._settle(intent)
        if self.intents.any_overdue:
            self._views.fetch(now)

    # --- what views show of it ---------------------------------------------------------------------------

    def begin_view(self) -> None:
        """The instances that are matched from now on are those of another view."""
        self._by_time = None

    def match(self, observed: Observed) -> Intent | None:
        """The intent that explains a new instance: the one it carries, else one that fits by count and time."""
        if self._named or observed.intent is not None:
            return self.intents.match_carried(observed.intent)
        if self._by_time is None:
            self._by_time = MatchByTime(self.intents)
        return self._by_time.match(observed.created_at)

    def matched(self, intent: Intent) -> None:
        """An instance is known that it explains."""
        self.intents.matched(intent)
        self._settle(intent)

    def gone(self, name: str | None) -> None:
        """An instance is no more that this intent explains, if it is open still: the cloud is not asked for it again.

        Some clouds would make the instance once more, as if nobody had seen it.
        """
        intent = self.intents.get(name or "")
        if intent is not None:
            self._repeat_no_more(intent)

    def _repeat_no_more(self, intent: Intent) -> None:
        """A part of it is over: the cloud, asked for all of it again, might bring that part once more."""
        intent.whole = False
        self._timers.cancel(Timer(Due.ASK, intent.id))

    def intent_due(self, intent: Intent, now: float) -> None:
        """It should have appeared by now: see whether it has."""
        timeout = self._context.config.intent_timeout
        expires_at = intent.asked_at + timeout
        if intent.in_flight:  # the call is bounded by its own time-outs and will be heard of
            self._timers.set(Timer(Due.APPEARED, intent.id), now + timeout)
        elif now < expires_at:
            self._timers.set(Timer(Due.APPEARED, intent.id), expires_at)
        else:
            self._views.fetch(now)  # without a view from after that time nobody knows what has appeared

    def expire(self, now: float) -> None:
        """Give up what should have appeared by the time for which this view was fetched, and the one before.

        What can be taken back is: it might appear when something else has taken its place.
        """
        seen_until = self._views.started - self._context.config.intent_timeout
        late = [each for each in self.intents if not each.in_flight and each.asked_at <= seen_until]
        withdrawing = {intent.id for intent in chain.from_iterable(self._withdrawing)}
        expired = [each for each in late if each.overdue and each.id not in withdrawing]
        for intent in expired:
            self._backoff.failed(f"{intent.outstanding} requested instances never appeared", now)
            self._close(intent)
        first_missed = [each for each in late if not each.overdue]
        for intent in first_missed:
            self.intents.missed(intent)
            self._views.fetch_again()
        self._withdraw(sum(each.outstanding for each in first_missed), [first_missed])

    def note_problems(self, problems: Iterable[Problem], now: float) -> None:
        """A problem not met before is a failure to grow; so is one that lasts, once more was asked for in spite of it.

        One that is over holds nothing back any longer.
        """
        before, self.problems = self.problems, tuple(problems)
        known, unfilled = {_identity(problem) for problem in before}, self._unfilled_for
        for problem in self.problems:
            backoff, group = self._backoffs.of_problems(problem.offering), self._backoffs.group
            if _identity(problem) not in known or (unfilled > 0 and not backoff.active(now)):
                backoff.failed(problem.message, now)
            if unfilled >= UNFILLED and not group.active(now):
                group.failed(problem.message, now)
        standing = {_identity(problem) for problem in self.problems}
        for over in (problem for problem in before if _identity(problem) not in standing):
            self._backoffs.group.lift(over.message, now)
            self._backoffs.of_problems(over.offering).lift(over.message, now)

    @property
    def _unfilled_for(self) -> float:
        """Seconds for which the oldest request had been open when the last view was fetched."""
        return self._views.started - self.intents.unfilled_since

    def failed(self, why: str, now: float) -> None:
        """An instance that was asked for came to be of no use."""
        self._backoff.failed(why, now)

    def succeeded(self, offering: str | None) -> None:
        """One of that offering came to be of use: that it came this far ends any backoff."""
        self._backoffs.succeeded(offering)

    # --- bookkeeping -------------------------------------------------------------------------------------

    def _settle(self, intent: Intent) -> None:
        """Store the intent, or close it if nothing can come of it any more."""
        if intent.in_flight or intent.outstanding:
            self._context.turn.write_intent(intent.id)
        else:
            self._close(intent)

    def _close(self, intent: Intent) -> None:
        """Forget the intent."""
        self.intents.close(intent)
        self._timers.cancel(Timer(Due.APPEARED, intent.id))
        self._timers.cancel(Timer(Due.ASK, intent.id))
        self._context.turn.write_intent(intent.id)

    def restore(self, intent_id: str, record: IntentRecord, known: int, now: float) -> None:
        """An open intent of an earlier manager, and how many known instances it explains.

        Whether the cloud ever heard it may not be known. Only what may have been under way is waited for anew: where
        instances carry no intent, the one that expires next is taken for what one of them came of, and were it waited
        for longer than others after that, these would be given up in its place.
        """
        may_be_asked = record.accepted is None and record.in_flight
        intent = Intent(
            intent_id,
            record.count,
            record.requested_at,
            now if may_be_asked else record.asked_at,  # long after it was decided
            record.accepted,
            record.matched,
            in_flight=False,
            unanswered=record.accepted is None,
            whole=record.matched <= known,
        )
        self.intents.open(intent)
        again = self._named and record.accepted is None and intent.whole
        self._timers.set(Timer(Due.APPEARED, intent_id), intent.asked_at + self._context.config.intent_timeout)
        if again:
            self._timers.set(Timer(Due.ASK, intent_id), now)
        if intent.record(self._context.pool) != record:
            self._context.turn.write_intent(intent.id)


def _bucket(config: PlanConfig, now: float) -> TokenBucket:
    throttle = config.scale_throttle
    burst = throttle.burst if throttle.burst is not None else config.max_instances
    return TokenBucket.full(throttle.limit, burst or max(1.0, throttle.limit), now)


def _identity(problem: Problem) -> tuple[object, ...]:
    """What distinguishes one problem from another; its words may change while it lasts."""
    return problem.kind, problem.offering, problem.since
