"""The plan: what a group should hold, against what the cloud shows. Pure.

`Plan.handle` takes facts about one group and answers with a `Step`. It knows instances and intents,
nothing of slots or jobs: whoever sits on top tells it how many more to `request` and which to `remove`,
and hears through events which instances may be given work.

The stages of an instance, what each of them knows and which may follow which, are in `_stages`; what is to be done once
its time has come, in `_due`. Where the group can suspend, one that is READY may be put to sleep: it is ASLEEP from the
moment at which that is decided, and WAITING again once it is woken, by us or by somebody else; so it passes the
readiness steps once more. One that cannot be suspended is woken at once; one that cannot be resumed is ASLEEP again.

One that is retained is never asked to be deleted, whatever the reason: where it would be REMOVING it is HELD, as
long as it is retained, and like any other it is gone once the view no longer shows it.

What the cloud shows decides, but one bad read kills nothing: an instance that is missing once gets no
new work and the view is fetched again at once; missing twice, or missing once with a dead connection,
it is lost. A lost instance that comes back is deleted, never used. A dead connection asks for a heartbeat
at once, and if that fails no others are waited for: not every cloud knows when an instance is gone.

The ceiling is kept here and nowhere else: at every `Increase`, known instances plus what open intents
may still bring stay at or below `max_instances`. Instances that are being deleted count until they are
gone.
"""

from collections.abc import Iterable, Iterator, Mapping
from math import inf
from typing import Any, NamedTuple, assert_never

from attrs import evolve

from fleeting._types import Notice, NoticeKind, Observation, Observed, Problem, State
from fleeting.core import messages
from fleeting.core._chance import Chance
from fleeting.core._deletions import Deletions
from fleeting.core._due import DECREASE, OF_A_LIFE, VIEW, Due, Timer
from fleeting.core._early_notices import EarlyNotices
from fleeting.core._instance import SUSPECT, Instance, InstanceRecord, LostRecord, Origin
from fleeting.core._intents import Intent, IntentRecord, Intents, MatchByTime, Numbered
from fleeting.core._last_view import LastView
from fleeting.core._pacing import Backoff, Backoffs, Limits, TokenBucket
from fleeting.core._plan_config import PlanConfig, Preexisting
from fleeting.core._stages import (
    Asleep,
    Boot,
    Deletion,
    Held,
    Preparing,
    Ready,
    Removing,
    Sleep,
    Stage,
    Start,
    Unhealthy,
    Waiting,
)
from fleeting.core._step import NOTHING, Drop, Put, Step, Write
from fleeting.core._table import InstanceTable
from fleeting.core._timers import Timers
from fleeting.core._turn import Turn

REMEMBER_LOST = 3600.0
"""Seconds for which a gone instance is remembered, so that a stale view cannot bring it back to work."""

ROUNDS = 60
"""Rounds of heartbeats in a `heartbeat_interval`: every second, if that is a minute."""

UNANSWERED = 30.0
"""Seconds after which nothing more is asked of a cloud that has not answered the last request yet."""

REST = 4.0
"""A view is fetched no sooner than this many times what the last one took after it, so that a large group is not read
without end; at once all the same if something is odd."""

UNFILLED = 60.0
"""Seconds after which a cloud that has a problem with one offering only does not seem to deliver others, either."""

RESTING = frozenset({State.SUSPENDING, State.SUSPENDED})
"""How the cloud shows what sleeps."""

AWAITING = frozenset({Stage.WAITING, Stage.ASLEEP})
"""Instances with which something may be done in each view, and that of one that has not changed."""

LEAVING = frozenset({Stage.REMOVING, Stage.HELD})
"""Instances that are done for; nothing else is done with them."""

INTENT, INSTANCE, LOST = "intent", "instance", "lost"
"""The journal's kinds of records that belong to the plan."""


PLAN_RECORDS: Mapping[str, type] = {INTENT: IntentRecord, INSTANCE: InstanceRecord, LOST: LostRecord}
"""What the plan keeps in the journal: the records' classes, by kind."""


class Departure(NamedTuple):
    """How an instance went that is no more."""

    at: float
    why: str


class Plan:
    """The pure core of one group."""

    def __init__(
        self,
        config: PlanConfig,
        *,
        now: float,
        token: str,
        chance: Chance,
        max_size: int | None = None,
        named: bool = False,
        withdraws: bool = False,
        suspends: bool = False,
        recovered: Mapping[str, Mapping[str, Any]] | None = None,
        observing: bool = False,
    ) -> None:
        """Start from what the journal knows.

        Args:
            config: The group's settings.
            now: Seconds since the epoch.
            token: What intents are named after, with a number; another one for each life of a manager.
            chance: Gives the numbers for jitter.
            max_size: The cloud's own ceiling, if it has one.
            named: Whether a repeated increase is idempotent per intent (`NAMED_CREATE`).
            withdraws: Whether unfilled requests can be taken back (`WITHDRAW`).
            suspends: Whether instances can be suspended and resumed (`SUSPEND_RESUME`).
            recovered: Records by kind and key, of this pool only.
            observing: Whether to ask for views and nothing else, and to take what they show as ours and usable. What
                those on top request or remove would be believed to have been asked for: they must not, either.
        """
        self.config = evolve(config, preexisting=Preexisting.ADOPT) if observing else config
        self.pool = config.name
        self.observing = observing
        self._ids = Numbered(token)
        self._chance = chance
        self._named = named
        self._withdraws = withdraws
        self.suspends = suspends
        self._limit_to(max_size)
        self._bucket = _bucket(config, now)
        self._backoffs = Backoffs.of(config.backoff_initial, config.backoff_cap, chance)
        self._backoff = self._backoffs.requests
        self.suspending = Backoff(config.backoff_initial, config.backoff_cap, chance)
        """Whether suspending went wrong, so that it is not to be tried for a while; to be read."""

        self.resuming = Backoff(config.backoff_initial, config.backoff_cap, chance)
        """The same of resuming."""

        self.crowded = False
        """Whether the consumer sees more than there may be; then no request is repeated, either."""

        self._timers: Timers[Timer] = Timers()
        self._last_view = LastView()
        self._table = InstanceTable(self._last_view)
        self._by_time: MatchByTime | None = None
        """Of the view that is being looked through, if instances carry nothing."""

        self._queued = 0
        self._falling: set[str] = set()
        """Those ASLEEP that no view has shown as suspended yet."""

        self._asked_to_turn: set[str] = set()
        """Those of which the cloud has not answered yet whether they are suspended, or resumed."""

        self._lost: dict[str, float] = {}
        self._departures: dict[str, Departure] = {}
        self._intents = Intents()
        self._early_notices = EarlyNotices(config.intent_timeout)
        self._problems: tuple[Problem, ...] = ()
        self._update_started = self._began = self._now = self._rested_at = now
        self._updating = self._update_again = self._viewed = False
        self._refused: frozenset[str] = frozenset()
        self.disowned = ""
        """Why nothing may be changed at the cloud, as long as the group is not known to be ours; empty if it is."""

        self._deletions = Deletions()
        self._withdrawing: list[Intent] = []
        self._withdrawable = withdraws
        self._shutting_down = False
        self._turn = Turn()
        self._journal_was_empty = not any((recovered or {}).values())
        self._restore(recovered or {}, now)
        self._timers.set(VIEW, now)

    # --- what those on top ask ---------------------------------------------------------------------------

    @property
    def instances(self) -> Mapping[str, Instance]:
        """All known instances by id; to be read, not changed."""
        return self._table.by_id

    @property
    def intents(self) -> Iterable[Intent]:
        """The open intents, oldest first; to be read, not changed."""
        return self._intents

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Why the cloud says that capacity is not coming."""
        return self._problems

    @property
    def last_failure(self) -> tuple[float, str] | None:
        """When and why growing failed last, whatever has succeeded since; None: it never did."""
        return self._backoffs.last

    @property
    def outstanding(self) -> int:
        """Instances that open intents may still bring, and those that the next call asks for."""
        return self._intents.outstanding + self._queued

    @property
    def queued(self) -> int:
        """Instances that are asked for once the cloud has answered the call under way."""
        return self._queued

    @property
    def asking(self) -> bool:
        """Whether a call for more instances is under way: what is asked for meanwhile goes into the next one."""
        return self._intents.asked_since is not None

    @property
    def coming(self) -> int:
        """Instances on their way to being ready, the outstanding ones included. O(1)."""
        return self.outstanding + self._table.count(Stage.WAITING) + self._table.count(Stage.PREPARING)

    @property
    def asleep(self) -> int:
        """Instances that are suspended or about to be, which count against the ceiling. O(1)."""
        return self._table.count(Stage.ASLEEP)

    @property
    def removing(self) -> int:
        """Instances on their way out, which still count against the ceiling. O(1)."""
        return self._table.count(Stage.REMOVING)

    @property
    def retained(self) -> list[str]:
        """Ids of those that must not be deleted, sorted. O(such instances)."""
        return sorted(self._table.retained)

    @property
    def total(self) -> int:
        """What counts against the ceiling. O(1)."""
        return len(self._table.by_id) + self.outstanding

    @property
    def viewed(self) -> bool:
        """Whether the cloud's view has been seen at least once."""
        return self._viewed

    @property
    def withdrawable(self) -> int:
        """Unfilled requests that can be taken back now, as far as is known."""
        if not self._withdrawable or self._withdrawing:
            return 0
        return self._intents.unfilled

    def stranded(self, now: float) -> int:
        """Unfilled requests that can be taken back, and are not likely to be filled: growing is failing."""
        return self.withdrawable + self._queued if self._viewed and self._blocked(now)[0] is not None else 0

    def departed(self, instance: str) -> Departure | None:
        """How an instance went; None if it is there, was never known, or went long ago or in an earlier life."""
        return self._departures.get(instance)

    @property
    def wake_at(self) -> float | None:
        """When `tick` has something to do, if nothing else happens."""
        return self._timers.next

    def agenda(self) -> Iterator[tuple[float, messages.Action]]:  # noqa: C901  (an arm for each kind)
        """What `tick` will do and when, if nothing else happens; in no order. For people: O(n)."""
        for timer, at in self._timers.items():
            match timer.due:
                case Due.VIEW:
                    yield at, messages.Update(self.pool)
                case Due.SUSPENDED:
                    if not self._updating:
                        yield at, messages.Update(self.pool)
                case Due.APPEARED:
                    intent = self._intents[timer.id]
                    if not intent.in_flight and not self._updating:
                        yield max(at, intent.asked_at + self.config.intent_timeout), messages.Update(self.pool)
                case Due.DECREASE:
                    if queued := self._to_delete(self._deletions.queued):
                        yield at, messages.Decrease(self.pool, queued)
                case Due.DELETE if not self._deletions.may_queue(timer.id):
                    pass  # it is asked for with the next call
                case Due.READY | Due.DELETE if (later := self._deletions.waits_until(at)) is not None:
                    yield from ((later, action) for action in self._chore(timer))
                case _ if not self.observing:
                    yield from ((at, action) for action in self._chore(timer))

    def ageing(self) -> Iterator[tuple[float, str]]:
        """When which instances that the consumer knows of grow too old; in no order. For people: O(n)."""
        return self._when(Due.AGE)

    def turning(self) -> Iterator[tuple[float, str]]:
        """When calls to suspend or resume which instances count as failed, unless done by then; in no order. O(n)."""
        return self._when(Due.SUSPENDED, Due.RESUMED)

    def giving_up(self) -> Iterator[tuple[float, str]]:
        """When which instances are done for unless they are ready by then, retained or not; in no order. O(n)."""
        return self._when(Due.READY)

    def _when(self, *kinds: Due) -> Iterator[tuple[float, str]]:
        """The timers of these kinds."""
        return ((at, timer.id) for timer, at in self._timers.items() if timer.due in kinds)

    def _chore(self, timer: Timer) -> Iterator[messages.Action]:
        """What a timer leads to that is not about the view."""
        match timer.due:
            case Due.HEARTBEAT:
                yield messages.Heartbeat(self.pool, timer.id)
            case Due.PREPARE:
                yield messages.Prepare(self.pool, timer.id)
            case Due.READY | Due.DELETE if self._table.by_id[timer.id].retained is None:
                yield messages.Decrease(self.pool, (timer.id,))
            case Due.ASK if self._may_ask_again:
                yield messages.Increase(self.pool, timer.id, self._intents[timer.id].count)

    def limits(self, now: float) -> Limits:
        """What stands between a wish for more instances and asking for them. O(1)."""
        if not self._viewed or self._refused or self.disowned:
            why = "the group was refused" if self._refused else "what the group holds is not known yet"
            why = self.disowned or why
            return Limits(room=0, tokens=0, tokens_at=None, blocked_until=inf, blocked_why=why)
        blocked_until, blocked_why = self._blocked(now)
        return Limits(
            room=None if self.ceiling is None else max(0, self.ceiling - self.total),
            tokens=self._bucket.available(now),
            tokens_at=self._bucket.next_at(now),
            blocked_until=blocked_until,
            blocked_why=blocked_why,
        )

    def _blocked(self, now: float) -> tuple[float | None, str]:
        """Until when failures, or a call that hangs, keep more from being asked for, and why; None: they do not."""
        asked = self._intents.asked_since
        if asked is not None and asked + UNANSWERED <= now:
            return inf, f"the cloud has not answered the last request within {UNANSWERED:g} s"
        holding = self._backoffs.holding
        return holding.until if holding.active(now) else None, holding.reason

    def request(self, count: int, now: float) -> Step:
        """See `messages.Request`."""
        return self.handle(messages.Request(count), now)

    def withdraw(self, count: int) -> Step:
        """See `messages.TakeBack`."""
        return self.handle(messages.TakeBack(count), self._now)

    def remove(self, reasons: Mapping[str, str], now: float) -> Step:
        """See `messages.Remove`."""
        return self.handle(messages.Remove(dict(reasons)), now)

    def retain(self, instance: str, why: str) -> Step:
        """See `messages.Retain`."""
        return self.handle(messages.Retain(instance, why), self._now)

    def unretain(self, instance: str, now: float) -> Step:
        """See `messages.Unretain`."""
        return self.handle(messages.Unretain(instance), now)

    def suspend(self, reasons: Mapping[str, str], now: float) -> Step:
        """See `messages.PutToSleep`."""
        return self.handle(messages.PutToSleep(dict(reasons)), now)

    def may_suspend(self, instance: str) -> bool:
        """Whether it is in a state in which `suspend` has an effect."""
        known = self._table.by_id[instance]
        at_hand = known.stage is Stage.READY and self._may_turn(known)
        return self.suspends and at_hand and known.state in {State.RUNNING, *RESTING}

    def resume(self, instances: Iterable[str], now: float) -> Step:
        """See `messages.Wake`."""
        return self.handle(messages.Wake(tuple(instances)), now)

    def may_resume(self, instance: str) -> bool:
        """Whether it is in a state in which `resume` has an effect."""
        known = self._table.by_id[instance]
        return known.stage is Stage.ASLEEP and self._may_turn(known) and known.state is State.SUSPENDED

    def _may_turn(self, known: Instance) -> bool:
        """Whether the cloud can be asked to suspend or resume it: it is there and ours, and no answer is awaited."""
        return not (known.missed or known.id in self._asked_to_turn or self.disowned)

    def ask_heartbeat(self, instance: str) -> Step:
        """See `messages.AskHeartbeat`."""
        return self.handle(messages.AskHeartbeat(instance), self._now)

    def shut_down(self, now: float) -> Step:
        """See `messages.ShutDown`."""
        return self.handle(messages.ShutDown(), now)

    def tick(self, now: float) -> Step:
        """See `messages.Tick`."""
        return self.handle(messages.Tick(), now)

    def handle(self, message: messages.Command | messages.Fact, now: float) -> Step:
        """Take in what is wanted, or what happened: the only door. Equal messages at equal times give equal steps."""
        self._now = now
        if isinstance(message, messages.Command):
            self._take_command(message, now)
        else:
            self._take_fact(message, now)
        return self._end()

    def _take_command(self, command: messages.Command, now: float) -> None:  # noqa: C901, PLR0912  (an arm for each)
        """Do what the consumer wants."""
        match command:
            case messages.Tick():
                for timer in self._timers.due(now):
                    self._do(timer, now)
            case messages.Request(count):
                self._request(count, now)
            case messages.TakeBack(count):
                self._take_back(count, now)
            case messages.Remove(reasons):
                for known in self._table.known(reasons):
                    self._remove(known, reasons[known.id], now)
            case messages.Retain(instance, why):
                self._retain(self._table.by_id[instance], why)
            case messages.Unretain(instance):
                self._unretain(self._table.by_id[instance], now)
            case messages.PutToSleep(reasons):
                self._put_to_sleep(reasons, now)
            case messages.Wake(instances):
                self._wake(instances, now)
            case messages.AskHeartbeat(instance):
                self._hasten_heartbeat(instance)
            case messages.Crowded(crowded):
                self.crowded = crowded
            case messages.ShutDown():
                self._shut_down(now)

    def _do(self, timer: Timer, now: float) -> None:  # noqa: C901, PLR0912  (an arm for each kind of timer)
        """Do what is due."""
        match timer.due:
            case Due.VIEW:
                self._start_update(now)
            case Due.PREPARE:
                self._turn.actions.append(messages.Prepare(self.pool, timer.id))
            case Due.READY:
                known = self._table.by_id[timer.id]
                self._never_ready(known, self._late(known), now)
            case Due.HEARTBEAT:
                self._turn.actions.append(messages.Heartbeat(self.pool, timer.id))
            case Due.AGE:
                self._age(self._table.by_id[timer.id])
            case Due.SUSPENDED:
                self._not_suspended(self._table.by_id[timer.id], "it had no effect", now)
            case Due.RESUMED:
                known = self._table.by_id[timer.id]
                self._not_resumed(known, self._late(known), now)
            case Due.DELETE:
                self._delete(self._table.by_id[timer.id], now)
            case Due.DECREASE:
                pass  # each turn ends with it
            case Due.ASK:
                self._ask_again(self._intents[timer.id], now)
            case Due.APPEARED:
                self._intent_due(self._intents[timer.id], now)
            case Due.RETURNED:
                self._lost.pop(timer.id)
                self._departures.pop(timer.id, None)
                self._turn.write(LOST, timer.id)
            case _:
                assert_never(timer.due)

    def _take_fact(self, fact: messages.Fact, now: float) -> None:  # noqa: C901, PLR0912  (an arm for each kind)
        """Take in what happened."""
        match fact:
            case messages.Updated(observation):
                self._updated(observation, now)
            case messages.UpdateFailed(_, retry_after):
                self._update_ended(now, at_least=retry_after or 0.0)
            case messages.Increased(intent, accepted):
                self._increased(intent, accepted, now)
                self._call_ended(now)
            case messages.IncreaseFailed():
                self._increase_failed(fact, now)
                self._call_ended(now)
            case messages.Decreased(asked):
                self._removal_sent(asked)  # what was not accepted is asked for again when its timer is due
            case messages.DecreaseFailed(asked, _, retry_after):
                self._removal_sent(asked)
                self._decrease_failed(asked, retry_after, now)
            case messages.Withdrawn(asked, taken):
                self._withdrawn(asked, taken, now)
            case messages.SuspendAccepted() | messages.SuspendFailed():
                self._suspend_answered(fact, now)
            case messages.ResumeAccepted() | messages.ResumeFailed():
                self._resume_answered(fact, now)
            case messages.Prepared(instance):
                self._prepared(instance, now)
            case messages.PrepareFailed():
                self._prepare_failed(fact, now)
            case messages.HeartbeatPassed(instance):
                self._heartbeat_ended(instance, "", now)
            case messages.HeartbeatFailed(instance, error):
                self._heartbeat_ended(instance, error, now)
            case messages.Noticed(instance, deadline, kind):
                self._noticed(instance, deadline, kind, now)
            case messages.Disowned(error):
                self.disowned = error
                self._turn.events.append(fact)
            case messages.ConnectionDied(instance):
                self._connection_died(instance, now)

    # --- the cloud's view --------------------------------------------------------------------------------

    def _limit_to(self, max_size: int | None) -> None:
        """Set the ceiling: the lower one of ours and the cloud's own."""
        ceilings = [ceiling for ceiling in (self.config.max_instances or None, max_size) if ceiling is not None]
        self.ceiling = min(ceilings, default=None)

    def _updated(self, observation: Observation, now: float) -> None:
        """Compare the view with what we know; the only place that is O(n)."""
        if observation.max_size is not None:
            self._limit_to(observation.max_size)
        first, self._viewed = not self._viewed, True
        seen = observation.instances
        differing, missing = self._last_view.compare(seen)
        fresh = [instance for instance in differing if instance not in self._table.by_id]
        for known in self._table.known(differing):
            self._refresh(known, seen[known.id], now)
        for known in self._table.known(missing):
            self._absent(known, now)
        fresh.sort(key=lambda each: (seen[each].created_at or now, each))
        self._by_time = None
        refused = tuple(each for each in fresh if not self._appeared(each, seen[each], now, first=first))
        self._last_view.unknown(instance for instance in fresh if instance not in self._table.by_id)
        if refused:
            self._refused = frozenset(refused)
            self._turn.events.append(messages.Refused(refused))
        self._early_notices.forget(self._update_started, seen)
        self._expire_intents(now)
        self._note_problems(observation.problems, now)
        self._rest(now)
        self._update_ended(now)

    def _refresh(self, known: Instance, observed: Observed, now: float) -> None:
        """Take in what the view says of a known instance."""
        self._note_shown(known, observed)
        match observed.state:
            case State.RUNNING:
                self._shown_running(known, now)
            case State.DELETED:
                self._gone(known, messages.LossKind.DELETED, "the cloud reports it as deleted", now)
            case State.FAILED:
                self._failed(known, now)
            case State.DELETING:
                self._deleted_by_others(known, now)
            case State.SUSPENDING | State.SUSPENDED | State.RESUMING:
                self._shown_resting(known, now)
            case State.CREATING:
                pass
        if known.stage in AWAITING:
            self._last_view.look_at(known.id)

    def _note_shown(self, known: Instance, observed: Observed) -> None:
        """Remember what the view says, whatever it leads to."""
        if known.missed:
            known.missed = 0
            self._table.note_change(known)
        known.connection_dead = False
        if known.state is not observed.state:
            known.state = observed.state
            self._time_boot(known)
        known.offering = observed.offering or known.offering
        if observed.created_at not in {None, known.created_at}:
            known.created_at = observed.created_at
            self._watch_age(known)

    def _shown_running(self, known: Instance, now: float) -> None:
        """The view shows it running; as long as nobody knows what came of a call, only one fetched later counts."""
        about_to_sleep = known.id in self._asked_to_turn or Timer(Due.SUSPENDED, known.id) in self._timers
        if known.stage is Stage.ASLEEP and not about_to_sleep:
            self._wake_up(known, Boot(Start.WOKEN), now)  # somebody else did
        self._unpause(known, now)
        if isinstance(known.phase, Waiting) and known.phase.unsure_since <= self._update_started:
            self._prepare(known, known.phase, now)

    def _shown_resting(self, known: Instance, now: float) -> None:
        """The view shows it suspended, or on the way there or back; not all of that is our doing."""
        resting = known.state in RESTING
        waits = isinstance(known.phase, Waiting) and known.phase.boot.start is not Start.RESUMED
        boots = waits or known.stage is Stage.PREPARING
        if known.stage is Stage.ASLEEP:
            self._unpause(known, now)
            self._timers.cancel(Timer(Due.SUSPENDED, known.id))
            if known.state is State.SUSPENDED:
                self._note_fallen(known)
            elif not resting:
                self._wake_up(known, Boot(Start.WOKEN), now)
        elif self.suspends and resting and boots:
            self._fall_asleep(known, f"the cloud shows it as {known.state.value}", now)
        elif known.stage is not Stage.WAITING or not self.suspends:
            self._pause(known, f"it is {known.state.value}")

    def _note_fallen(self, known: Instance) -> None:
        """It has fallen asleep; that one sleeps on, as each view shows, says nothing of those that do not."""
        if known.id in self._falling:
            self._falling.discard(known.id)
            self.suspending.succeeded()

    def _absent(self, known: Instance, now: float) -> None:
        """It is not in the view: gone if that was to be expected, or if this is no single bad read."""
        known.missed += 1
        self._last_view.look_at(known.id)
        expected = (known.deletion is not None and known.deletion.sent) or known.state is State.DELETING
        if expected or known.missed > 1 or known.connection_dead:
            self._gone(known, messages.LossKind.VANISHED, "the cloud no longer shows it", now)
        else:
            self._pause(known, "the cloud's last view did not show it")
            self._update_again = True

    def _appeared(self, instance: str, observed: Observed, now: float, *, first: bool) -> bool:
        """A new one is in the view. Returns False if its presence is to be refused."""
        returned = instance in self._lost
        leaving = observed.state is State.DELETING
        if observed.state is State.DELETED or (leaving and returned) or instance in self._refused:
            return True
        intent = None if returned else self._match(observed)
        policy = self.config.preexisting
        if intent is not None:
            origin = Origin.REQUESTED
        else:
            origin = Origin.PREEXISTING if first else Origin.UNEXPECTED
            if first and policy is Preexisting.REFUSE and self._journal_was_empty and not leaving:
                return False
        known = self._know(instance, observed, origin, intent, now)
        if returned:
            self._remove(known, "it came back after it was gone", now)
        elif intent is None and policy is not Preexisting.ADOPT and not leaving:
            self._remove(known, "nothing of ours explains it", now)
        else:
            self._refresh(known, observed, now)
        early = self._early_notices.take(instance)
        if early is not None:  # be it overdue: the view may be later than that by as much as it lags
            self._noticed(*early, now)
        return True

    def _match(self, observed: Observed) -> Intent | None:
        """The intent that explains a new instance: the one it carries, else one that fits by count and time."""
        if self._named or observed.intent is not None:
            return self._intents.match_carried(observed.intent)
        if self._by_time is None:
            self._by_time = MatchByTime(self._intents)
        return self._by_time.match(observed.created_at)

    def _know(self, instance: str, observed: Observed, origin: Origin, intent: Intent | None, now: float) -> Instance:
        """Take in a new instance, and account for it in its intent."""
        known = Instance(
            instance,
            origin,
            now,
            observed.state,
            Waiting(Boot(Start.NEW, intent.requested_at if intent is not None else None)),
            intent=intent.id if intent is not None else None,
            offering=observed.offering,
            created_at=observed.created_at,
        )
        self._table.add(known)
        self._timers.set(Timer(Due.READY, instance), now + self.config.instance_ready_timeout)
        self._write_instance(known)
        if intent is not None:
            self._intents.matched(intent)
            self._settle(intent)
        return known

    def _deleted_by_others(self, known: Instance, now: float) -> None:
        """The cloud is deleting it. If that was not us, its work goes on until it is gone."""
        if known.announced:
            self._pause(known, "somebody else is deleting it")
        elif known.stage not in LEAVING:
            self._start_removing(known, "somebody else is deleting it")
            self._retry_deletion(known, now)

    def _failed(self, known: Instance, now: float) -> None:
        """The cloud gave up on it; work is broken, and what is left of it is deleted."""
        if known.stage in LEAVING:
            return
        if known.stage is Stage.WAITING:
            pace, what = (self.resuming, "resumed") if known.announced else (self._backoff, "created")
            pace.failed(f"instance {known.id} failed while it was {what}", now)
        why = "the cloud reports it as failed"
        self._remove(known, why, now, messages.Loss(messages.LossKind.FAILED, why))

    def _note_problems(self, problems: Iterable[Problem], now: float) -> None:
        """A problem not met before is a failure to grow; so is one that lasts, once more was asked for in spite of it.

        One that is over holds nothing back any longer.
        """
        before, self._problems = self._problems, tuple(problems)
        known, unfilled = {_identity(problem) for problem in before}, self._unfilled_for
        for problem in self._problems:
            backoff, group = self._backoffs.of_problems(problem.offering), self._backoffs.group
            if _identity(problem) not in known or (unfilled > 0 and not backoff.active(now)):
                backoff.failed(problem.message, now)
            if unfilled >= UNFILLED and not group.active(now):
                group.failed(problem.message, now)
        standing = {_identity(problem) for problem in self._problems}
        for over in (problem for problem in before if _identity(problem) not in standing):
            self._backoffs.group.lift(over.message, now)
            self._backoffs.of_problems(over.offering).lift(over.message, now)

    @property
    def _unfilled_for(self) -> float:
        """Seconds for which the oldest request had been open when the last view was fetched."""
        asked = (each.asked_at for each in self._intents if each.outstanding and not each.in_flight)
        return self._update_started - min(asked, default=inf)

    # --- fetching the view -------------------------------------------------------------------------------

    @property
    def _expecting(self) -> bool:
        """Whether the view should change soon."""
        waiting = self._table.count(Stage.WAITING) + self._table.count(Stage.REMOVING)
        return bool(self._intents.outstanding or waiting or self._table.paused or self._falling)

    def _start_update(self, now: float) -> None:
        """Fetch the view, unless that is under way: then once more after it."""
        if self._updating:
            self._update_again = True
            return
        self._updating = True
        self._update_started = now
        self._timers.cancel(VIEW)
        self._turn.actions.append(messages.Update(self.pool))

    def _update_ended(self, now: float, at_least: float = 0.0) -> None:
        """Fetch the next view at once if something is odd, else when it is time, or as late as the cloud wants."""
        self._updating = False
        if self._update_again and not at_least:
            self._update_again = False
            self._start_update(now)
            return
        expecting = self._expecting
        interval = self.config.update_interval_when_expecting if expecting else self.config.update_interval
        self._update_again = False
        rest = max(at_least, min(interval, self.config.update_interval))
        self._timers.set(VIEW, max(now + rest, self._rested_at))

    def _rest(self, now: float) -> None:
        """Let the cloud rest after a view, the longer the more that has cost: a large group's takes many calls.

        Never for longer than the usual interval: what seems to have taken an hour was a process that slept.
        """
        self._rested_at = now + min(REST * (now - self._update_started), self.config.update_interval)

    def _expect(self, now: float) -> None:
        """A change is coming: do not wait for the long interval."""
        if not self._updating:
            soon = now + min(self.config.update_interval_when_expecting, self.config.update_interval)
            self._timers.advance(VIEW, max(soon, self._rested_at))

    # --- becoming ready ----------------------------------------------------------------------------------

    def _prepare(self, known: Instance, waiting: Waiting, now: float) -> None:
        """Run the readiness steps; who only looks on takes them to pass."""
        self._table.move(known, Preparing(waiting.boot, waiting.slept))
        if self.observing:
            self._prepared(known.id, now)
        else:
            self._turn.actions.append(messages.Prepare(self.pool, known.id))

    def _prepared(self, instance: str, now: float) -> None:
        """It may be given work; that it came this far ends any backoff."""
        known = self._table.by_id.get(instance)
        if known is None or not isinstance(known.phase, Preparing):
            return
        known.phase.prepared = True
        if not known.paused:
            self._become_ready(known, known.phase, now)

    def _become_ready(self, known: Instance, preparing: Preparing, now: float) -> None:
        """It is prepared, and the view shows it running: from now on it may be given work."""
        self._timers.cancel(Timer(Due.READY, known.id))
        self._set_heartbeat(known.id, now + self.config.heartbeat_interval * self._chance.draw())
        too_old = self.too_old_at(known) <= now
        self._table.move(known, Ready(preparing.boot, too_old))
        if preparing.slept is not None:
            self._write_instance(known)
        known.ready_since = now
        known.resume_failures = 0
        if preparing.boot.start is not Start.NEW:
            if preparing.boot.start is Start.RESUMED:
                self.resuming.succeeded()
        elif not too_old:
            self._backoffs.succeeded(known.offering)
        elif known.origin is Origin.REQUESTED and known.first_seen >= self._began:  # its like would be no younger
            self._backoff.failed(f"instance {known.id} was older than max_instance_age before it was ready", now)
        if not too_old:
            self._watch_age(known)
        self._turn.events.append(messages.Ready(known.id, too_old))
        self._recall_notice(known)

    def too_old_at(self, known: Instance) -> float:
        """When it may be given no more work; infinite if there is no such time."""
        born = known.first_seen if known.created_at is None else known.created_at
        return born + (self.config.max_instance_age or inf)

    def _watch_age(self, known: Instance) -> None:
        """Those on top are told when it is too old, if they know of it."""
        if known.up and self.config.max_instance_age:
            self._timers.set(Timer(Due.AGE, known.id), self.too_old_at(known))

    def _age(self, known: Instance) -> None:
        """It has reached its age."""
        if isinstance(known.phase, Ready):
            known.phase.too_old = True
        self._table.note_change(known)
        self._turn.events.append(messages.Aged(known.id))

    def _prepare_failed(self, fact: messages.PrepareFailed, now: float) -> None:
        """Replace it, or try again a little later while there is time."""
        known = self._table.by_id.get(fact.instance)
        if known is None or not isinstance(known.phase, Preparing):
            return
        if fact.final:
            self._never_ready(known, f"it did not become ready: {fact.error}", now)
        else:
            known.phase.trouble = fact.error
            self._table.note_change(known)
            wait = max(self.config.update_interval_when_expecting, fact.retry_after or 0.0)
            self._timers.set(Timer(Due.PREPARE, known.id), now + wait)

    def _late(self, known: Instance) -> str:
        """Why it is given up that is not ready in time."""
        trouble = f": {known.trouble}" if known.trouble else ""
        return f"it was not ready within {self.config.instance_ready_timeout:g} s{trouble}"

    def _time_boot(self, known: Instance) -> None:
        """One that was to be resumed need not be lost as long as it sleeps on: which timer ends its try, views tell."""
        ready, resumed = Timer(Due.READY, known.id), Timer(Due.RESUMED, known.id)
        sleeps_on = self._sleeps_on(known)
        before, after = (ready, resumed) if sleeps_on else (resumed, ready)
        at = self._timers.at(before)
        if at is not None:
            self._timers.cancel(before)
            self._timers.set(after, at)

    def _sleeps_on(self, known: Instance) -> bool:
        """Whether it was to be resumed, and no view shows that it is."""
        resumed = isinstance(known.phase, Waiting) and known.phase.boot.start is Start.RESUMED
        return resumed and known.state in RESTING

    def _never_ready(self, known: Instance, reason: str, now: float) -> None:
        """It is of no use, and neither is what slept there."""
        (self.resuming if known.announced else self._backoff).failed(f"instance {known.id}: {reason}", now)
        self._remove(known, reason, now, messages.Loss(messages.LossKind.UNHEALTHY, reason))

    # --- health and notices ------------------------------------------------------------------------------

    def _heartbeat_ended(self, instance: str, failure: str, now: float) -> None:
        """Count failures in a row; at the threshold the instance is done for. Empty *failure*: it passed."""
        known = self._table.by_id.get(instance)
        if known is None or not isinstance(known.phase, Ready):
            return
        ready = known.phase
        ready.failures = ready.failures + 1 if failure else 0
        cut_off, ready.cut_off = ready.cut_off and bool(failure), False
        if cut_off or ready.failures >= self.config.failure_threshold:
            self._table.move(known, Unhealthy(failure))
            self._turn.events.append(messages.Unhealthy(instance, self.config.unhealthy_breaks_jobs, failure))
        else:
            self._set_heartbeat(instance, now + self.config.heartbeat_interval)
            if self.config.heartbeat_on_acquire:
                self._suspect(known, ready, failed=bool(failure))

    def _set_heartbeat(self, instance: str, at: float) -> None:
        """Ask for it at that time, or a little earlier: with others, because many at once cost little more than one."""
        step = self.config.heartbeat_interval / ROUNDS
        self._timers.set(Timer(Due.HEARTBEAT, instance), at // step * step)

    def _hasten_heartbeat(self, instance: str) -> None:
        """Ask for it now, unless it is being asked for."""
        timer = Timer(Due.HEARTBEAT, instance)
        if timer in self._timers:  # set but while the answer is awaited
            self._timers.cancel(timer)
            self._turn.actions.append(messages.Heartbeat(self.pool, instance))

    def _suspect(self, known: Instance, ready: Ready, *, failed: bool) -> None:
        """No new work from a heartbeat that fails to the next that passes: nobody is to be given a dead instance."""
        was, ready.suspect = ready.suspect, failed
        if was != failed:
            self._table.note_change(known)
        if not failed:
            self._turn.events.append(messages.Alive(known.id))
        if was != failed and not known.paused:
            self._turn.events.append(self._paused_as_suspect(known) if failed else messages.Resumed(known.id))

    def _paused_as_suspect(self, known: Instance) -> messages.Paused:
        return messages.Paused(known.id, SUSPECT, briefly=False)

    def _noticed(self, instance: str, deadline: float, kind: NoticeKind, now: float) -> None:
        """It goes at *deadline*; of several notices the earliest counts. One may come before the view that shows it."""
        known = self._table.by_id.get(instance)
        if known is None:
            self._early_notices.keep(messages.Noticed(instance, deadline, kind), now)
        if known is None or known.stage in LEAVING:
            return
        before = known.notice
        known.announce(Notice(instance=instance, deadline=deadline, kind=kind))
        if known.notice is before:
            return
        self._table.note_change(known)
        if known.up:
            self._turn.events.append(messages.Doomed(instance, deadline, kind))
        elif not known.announced:
            self._remove(known, "it goes before it was of use", now)

    def _recall_notice(self, known: Instance) -> None:
        """Tell of a notice that was given before it was ready, be it overdue by now."""
        if known.notice is not None:
            self._turn.events.append(messages.Doomed(known.id, known.notice.deadline, known.notice.kind))

    def _connection_died(self, instance: str, now: float) -> None:
        """See at once whether it is still there, and whether it is healthy: not every cloud knows when it is gone."""
        known = self._table.by_id.get(instance)
        if known is None or known.stage is Stage.ASLEEP:  # of which nothing else is to be expected
            return
        known.connection_dead = True
        self._last_view.look_at(known.id)
        if known.missed and known.stage not in LEAVING:
            self._gone(known, messages.LossKind.VANISHED, "not in the cloud's view, and its connection died", now)
        elif isinstance(known.phase, Ready) and not known.phase.cut_off:
            known.phase.cut_off = True
            self._hasten_heartbeat(instance)
        self._start_update(now)

    def _pause(self, known: Instance, reason: str) -> None:
        """No new work for now."""
        if known.paused != reason:
            self._table.pause(known, reason)
            if known.up:
                self._turn.events.append(messages.Paused(known.id, reason, briefly=known.missed > 0))

    def _unpause(self, known: Instance, now: float) -> None:
        """All is well (again)."""
        if known.paused:
            self._table.pause(known, "")
            if known.up:
                suspect = isinstance(known.phase, Ready) and known.phase.suspect
                self._turn.events.append(self._paused_as_suspect(known) if suspect else messages.Resumed(known.id))
            elif isinstance(known.phase, Preparing) and known.phase.prepared:
                self._become_ready(known, known.phase, now)

    # --- sleeping ----------------------------------------------------------------------------------------

    def _put_to_sleep(self, reasons: Mapping[str, str], now: float) -> None:
        """In one request; that of one that somebody else has suspended is only noted."""
        for known in self._table.known(reasons):
            if self.may_suspend(known.id):
                self._fall_asleep(known, reasons[known.id], now)
                if known.state is State.RUNNING:
                    self._asked_to_turn.add(known.id)
                    self._turn.suspensions.append(known.id)
                self._expect(now)

    def _wake(self, instances: Iterable[str], now: float) -> None:
        """In one request; passes over those that are not known to be suspended."""
        for known in self._table.known(instances):
            if self.may_resume(known.id):
                self._wake_up(known, Boot(Start.RESUMED, now), now)
                self._time_boot(known)
                self._asked_to_turn.add(known.id)
                self._turn.resumptions.append(known.id)
                self._expect(now)

    def _fall_asleep(self, known: Instance, why: str, now: float) -> None:
        """It sleeps, or is about to; nothing else is done with it."""
        sleep = known.sleep
        since = now if sleep is None or sleep.since is None else sleep.since
        sleep = Sleep(why if sleep is None else sleep.why, since)
        self._table.pause(known, "")  # unheard: what is reported says more than that
        self._stop(known)
        self._table.move(known, Asleep(sleep))
        if known.state is not State.SUSPENDED:
            self._falling.add(known.id)
        self._write_instance(known)
        self._turn.actions.append(messages.Forget(self.pool, known.id))
        self._turn.events.append(messages.Asleep(known.id, sleep.why))

    def _stop(self, known: Instance) -> None:
        """Nothing is due for it any more, but perhaps its deletion."""
        for due in OF_A_LIFE:
            self._timers.cancel(Timer(due, known.id))
        self._falling.discard(known.id)

    def _wake_up(self, known: Instance, boot: Boot, now: float, *, unsure_since: float = -inf) -> None:
        """It is to run; it has to become ready as if it were new."""
        self._stop(known)
        known.notices = tuple(each for each in known.notices if each.deadline > now)  # it slept through the others
        self._table.move(known, Waiting(boot, unsure_since))
        self._write_instance(known)
        self._timers.set(Timer(Due.READY, known.id), now + self.config.instance_ready_timeout)
        self._turn.events.append(messages.Waking(known.id))

    def _suspend_answered(self, fact: messages.SuspendAccepted | messages.SuspendFailed, now: float) -> None:
        """Those that the cloud did not take go on running; whether those that it took fall asleep, views tell."""
        accepted: tuple[str, ...] = ()
        error, retry_after = "the cloud did not accept it", None
        match fact:
            case messages.SuspendAccepted():
                accepted = fact.accepted
            case messages.SuspendFailed():
                error, retry_after = fact.error, fact.retry_after
        self._asked_to_turn.difference_update(fact.asked)
        for known in self._table.known(fact.asked):
            if known.id not in self._falling or known.state in RESTING:
                continue
            if known.id in accepted:
                self._timers.set(Timer(Due.SUSPENDED, known.id), now + self.config.deletion_retry_interval)
            else:
                self._not_suspended(known, error, now, retry_after)
        self._expect(now)

    def _not_suspended(self, known: Instance, error: str, now: float, retry_after: float | None = None) -> None:
        """It goes on running, as far as is known: a view tells."""
        self.suspending.failed(f"instance {known.id} could not be suspended: {error}", now, retry_after)
        self._wake_up(known, Boot(Start.WOKEN), now, unsure_since=now)
        self._start_update(now)

    def _resume_answered(self, fact: messages.ResumeAccepted | messages.ResumeFailed, now: float) -> None:
        """Those that the cloud did not take sleep on."""
        accepted: tuple[str, ...] = ()
        error, retry_after = "the cloud did not accept it", None
        match fact:
            case messages.ResumeAccepted():
                accepted = fact.accepted
            case messages.ResumeFailed():
                error, retry_after = fact.error, fact.retry_after
        self._asked_to_turn.difference_update(fact.asked)
        for known in self._table.known(fact.asked):
            if self._sleeps_on(known) and known.id not in accepted:
                self._not_resumed(known, error, now, retry_after)
        self._expect(now)

    def _not_resumed(self, known: Instance, error: str, now: float, retry_after: float | None = None) -> None:
        """It sleeps on, as far as is known."""
        self.resuming.failed(f"instance {known.id} could not be resumed: {error}", now, retry_after)
        known.resume_failures += 1
        self._fall_asleep(known, f"it could not be resumed: {error}", now)

    # --- growing -----------------------------------------------------------------------------------------

    def _request(self, count: int, now: float) -> None:
        """Ask for so many more, or for as many of them as `limits` allow now."""
        granted = self.limits(now).allowed(count)
        if granted:
            self._bucket.take(granted, now)
            self._queued += granted
            if not self.asking:
                self._increase(now)

    def _increase(self, now: float) -> None:
        """Ask for all that is queued, in one call."""
        intent = Intent(self._ids.another(), self._queued, now, now)
        self._queued = 0
        self._intents.open(intent)
        self._write_intent(intent)
        self._ask(intent, now)
        self._withdrawable = self._withdraws
        self._expect(now)

    def _unqueue(self, count: int, now: float) -> int:
        """Give up so many of what is queued, or all; returns how many there were."""
        count = min(count, self._queued)
        self._queued -= count
        self._bucket.take(-count, now)
        return count

    def _call_ended(self, now: float) -> None:
        """The cloud has answered: what was queued meanwhile goes into the next call, if it may be asked for still.

        What may not is forgotten: a decision that wants it then asks again.
        """
        if not self.asking:
            self._request(self._unqueue(self._queued, now), now)

    def _take_back(self, count: int, now: float) -> None:
        """What is queued first, which costs no call."""
        self._withdraw(count - self._unqueue(count, now), self._intents.withdrawable)

    def _withdraw(self, count: int, intents: list[Intent]) -> None:
        """Take back up to *count* unfilled requests of these."""
        count = min(count, self.withdrawable)
        if count > 0:
            self._withdrawing = intents
            self._turn.actions.append(messages.Withdraw(self.pool, count))

    def _ask(self, intent: Intent, now: float) -> None:
        """Ask the cloud; also again, where that is idempotent."""
        self._intents.asked(intent, now)
        self._timers.set(Timer(Due.APPEARED, intent.id), now + self.config.intent_timeout)
        self._timers.cancel(Timer(Due.ASK, intent.id))
        self._turn.actions.append(messages.Increase(self.pool, intent.id, intent.count))

    def _increased(self, intent_id: str, accepted: int, now: float) -> None:
        """The cloud answered; less than asked for is a failure to grow."""
        intent = self._intents.get(intent_id)
        if intent is None:
            return
        if intent.doubtful and not accepted:  # none now; but the earlier try may still be carried out
            self._doubt(intent, now)
            self._backoff.failed("the cloud accepted none", now)
            return
        self._intents.accepted(intent, accepted, now)
        if accepted < intent.count:
            self._backoff.failed(f"the cloud accepted {accepted} of {intent.count}", now)
        self._timers.set(Timer(Due.APPEARED, intent_id), now + self.config.intent_timeout)
        self._settle(intent)
        self._expect(now)

    def _increase_failed(self, fact: messages.IncreaseFailed, now: float) -> None:
        """Refused, or nobody knows."""
        self._backoff.failed(fact.error, now, fact.retry_after)
        intent = self._intents.get(fact.intent)
        if intent is None:
            return
        if fact.outcome_known and not intent.doubtful:
            self._intents.accepted(intent, intent.matched, now)
            self._settle(intent)
            return
        self._doubt(intent, now)

    def _doubt(self, intent: Intent, now: float) -> None:
        """Nobody knows what will come of it; ask again where that is idempotent."""
        self._intents.doubted(intent, now)
        self._settle(intent)
        if self._named and intent.outstanding:
            self._ask_after_backoff(intent)
        self._expect(now)

    def _ask_after_backoff(self, intent: Intent) -> None:
        """Repeat the request when the cloud may be asked again, if that is not too late for it."""
        if self._backoff.until < intent.requested_at + self.config.intent_timeout:
            self._timers.set(Timer(Due.ASK, intent.id), self._backoff.until)

    @property
    def _may_ask_again(self) -> bool:
        """Whether there is room for what a repeated request may bring, and a view does not show that it was heard."""
        room = self.ceiling is None or self.total <= self.ceiling
        return self._viewed and room and not (self._shutting_down or self.disowned or self.crowded)

    def _ask_again(self, intent: Intent, now: float) -> None:
        """Repeat a request that was never answered, once there is room for what it may bring."""
        if self._backoff.active(now):  # another request has failed since
            self._ask_after_backoff(intent)
        elif self._may_ask_again:
            self._ask(intent, now)
            self._write_intent(intent)
        else:
            self._timers.set(Timer(Due.ASK, intent.id), now + self.config.update_interval_when_expecting)

    def _intent_due(self, intent: Intent, now: float) -> None:
        """It should have appeared by now: see whether it has."""
        expires_at = intent.asked_at + self.config.intent_timeout
        if intent.in_flight:  # the call is bounded by its own time-outs and will be heard of
            self._timers.set(Timer(Due.APPEARED, intent.id), now + self.config.intent_timeout)
        elif now < expires_at:
            self._timers.set(Timer(Due.APPEARED, intent.id), expires_at)
        else:
            self._start_update(now)  # without a view from after that time nobody knows what has appeared

    def _expire_intents(self, now: float) -> None:
        """Give up what should have appeared by the time for which this view was fetched, and the one before.

        What can be taken back is: it might appear when something else has taken its place.
        """
        seen_until = self._update_started - self.config.intent_timeout
        late = [each for each in self._intents if not each.in_flight and each.asked_at <= seen_until]
        withdrawing = {intent.id for intent in self._withdrawing}
        expired = [each for each in late if each.overdue and each.id not in withdrawing]
        for intent in expired:
            self._backoff.failed(f"{intent.outstanding} requested instances never appeared", now)
            self._close(intent)
        first_missed = [each for each in late if not each.overdue]
        for intent in first_missed:
            self._intents.missed(intent)
            self._update_again = True
        self._withdraw(sum(each.outstanding for each in first_missed), first_missed)

    def _withdrawn(self, asked: int, taken: int, now: float) -> None:
        """Unfilled requests were taken back; if not all, the rest cannot be, and is not asked for again."""
        candidates, self._withdrawing = self._withdrawing, []
        self._withdrawable = taken >= asked
        for intent in self._intents.take_back(min(taken, asked), candidates):
            self._settle(intent)
        if self._intents.any_overdue:
            self._start_update(now)

    def _settle(self, intent: Intent) -> None:
        """Store the intent, or close it if nothing can come of it any more."""
        if intent.in_flight or intent.outstanding:
            self._write_intent(intent)
        else:
            self._close(intent)

    def _close(self, intent: Intent) -> None:
        """Forget the intent."""
        self._intents.close(intent)
        self._timers.cancel(Timer(Due.APPEARED, intent.id))
        self._timers.cancel(Timer(Due.ASK, intent.id))
        self._turn.write(INTENT, intent.id)

    # --- shrinking ---------------------------------------------------------------------------------------

    def _retain(self, known: Instance, why: str) -> None:
        """Ask no more for its deletion."""
        self._table.retain(known, why)
        self._write_instance(known)

    def _unretain(self, known: Instance, now: float) -> None:
        """If there was a reason to delete it meanwhile, that happens now."""
        self._table.retain(known, None)
        self._write_instance(known)
        if isinstance(known.phase, Held):
            self._table.move(known, Removing(known.phase.why))
            self._delete(known, now)

    def _shut_down(self, now: float) -> None:
        """From now on deletions are retried at the shutdown's own interval."""
        self._shutting_down = True
        for instance in self._table.by_id.values():
            if instance.stage is Stage.REMOVING:
                self._timers.set(Timer(Due.DELETE, instance.id), now + self.config.shutdown_deletion_interval)
        self._unqueue(self._queued, now)

    def _remove(self, known: Instance, reason: str, now: float, loss: messages.Loss | None = None) -> None:
        """Ask for its deletion, unless that was done before. *loss*: what befell it; None: nothing, it is given up."""
        if known.stage not in LEAVING:
            self._announce_loss(known, loss)
            self._start_removing(known, reason)
        if known.deletion is None:
            self._delete(known, now)

    def _start_removing(self, known: Instance, reason: str) -> None:
        """It is on its way out; nothing else is done with it."""
        self._table.move(known, Held(reason) if self.observing or known.retained is not None else Removing(reason))
        self._stop(known)
        self._write_instance(known)
        self._turn.actions.append(messages.Forget(self.pool, known.id))

    def _delete(self, known: Instance, now: float) -> None:
        """Ask the cloud, together with all others until the next call, and again if that has no effect."""
        if not isinstance(known.phase, Removing):
            return
        if self._deletions.queue(known.id):
            tries = known.deletion.tries + 1 if known.deletion is not None else 1
            known.phase.deletion = Deletion(now, tries, sent=known.deletion is not None and known.deletion.sent)
        self._retry_deletion(known, now)
        self._expect(now)

    def _send_deletions(self, now: float) -> None:
        """Ask for all deletions that are queued, in one call, unless the cloud is about to answer the last one."""
        waits_until = self._deletions.waits_until(now)
        if waits_until is not None:
            self._timers.set(DECREASE, waits_until)
            return
        self._timers.cancel(DECREASE)
        if asked := self._to_delete(self._deletions.take()):
            self._deletions.sent(now + UNANSWERED)
            self._turn.actions.append(messages.Decrease(self.pool, asked))

    def _to_delete(self, queued: Iterable[str]) -> tuple[str, ...]:
        """Those that are still there and to go: an instance may be gone, or retained, before its turn comes."""
        return tuple(each.id for each in self._table.known(queued) if each.stage is Stage.REMOVING)

    def _retry_deletion(self, known: Instance, now: float, at_least: float = 0.0) -> None:
        """Ask (again) if it is still there after the interval."""
        config = self.config
        interval = config.shutdown_deletion_interval if self._shutting_down else config.deletion_retry_interval
        self._timers.set(Timer(Due.DELETE, known.id), now + max(interval, at_least))

    def _removal_sent(self, asked: Iterable[str]) -> None:
        """The cloud was asked: from now on their absence is what is to be expected."""
        self._deletions.answered()
        for known in self._table.known(asked):
            if known.deletion is not None:
                known.deletion.sent = True

    def _decrease_failed(self, asked: Iterable[str], retry_after: float | None, now: float) -> None:
        """Wait as long as the cloud wants, if that is longer than we would."""
        for known in self._table.known(asked):
            self._retry_deletion(known, now, at_least=retry_after or 0.0)

    def _gone(self, known: Instance, kind: messages.LossKind, detail: str, now: float) -> None:
        """It is no more."""
        self._announce_loss(known, None if known.deletion is not None else messages.Loss(kind, detail))
        self._table.drop(known)
        self._stop(known)
        self._timers.cancel(Timer(Due.DELETE, known.id))
        self._asked_to_turn.discard(known.id)
        until = now + REMEMBER_LOST
        self._lost[known.id] = until
        self._departures[known.id] = Departure(now, known.removing or detail)
        self._timers.set(Timer(Due.RETURNED, known.id), until)
        self._turn.write(INSTANCE, known.id)
        self._turn.write(LOST, known.id)
        self._turn.actions.append(messages.Forget(self.pool, known.id))
        self._turn.events.append(messages.Ended(known.id))

    def _announce_loss(self, known: Instance, loss: messages.Loss | None) -> None:
        """Report that it is lost to work, if the consumer knows of it; it is to leave its stage at once."""
        if known.announced:
            self._turn.events.append(messages.Gone(known.id, loss))

    # --- bookkeeping -------------------------------------------------------------------------------------

    def _restore(self, recovered: Mapping[str, Mapping[str, Any]], now: float) -> None:
        """Take up what an earlier manager left; the first view tells what has become of it."""
        for key, intent in recovered.get(INTENT, {}).items():
            self._restore_intent(self._id(key), intent, now)
        for key, record in recovered.get(INSTANCE, {}).items():
            self._restore_instance(self._id(key), record, now)
        for key, lost in recovered.get(LOST, {}).items():
            self._lost[self._id(key)] = lost.until
            self._timers.set(Timer(Due.RETURNED, self._id(key)), lost.until)

    def _restore_intent(self, intent_id: str, record: IntentRecord, now: float) -> None:
        """An open intent: whether the cloud ever heard it may not be known."""
        intent = Intent(
            intent_id,
            record.count,
            record.requested_at,
            now if record.accepted is None else record.asked_at,  # the call may have begun long after it was decided
            record.accepted,
            record.matched,
            in_flight=False,
            doubtful=record.accepted is None,
        )
        self._intents.open(intent)
        again = self._named and record.accepted is None
        self._timers.set(Timer(Due.APPEARED, intent_id), intent.asked_at + self.config.intent_timeout)
        if again:
            self._timers.set(Timer(Due.ASK, intent_id), now)
        if intent.record(self.pool) != record:
            self._write_intent(intent)

    def _restore_instance(self, instance: str, record: InstanceRecord, now: float) -> None:
        """A known instance: it has to become ready again, or its removal goes on."""
        known = Instance(
            instance,
            record.origin,
            record.first_seen,
            State.CREATING,
            Waiting(Boot(), slept=Sleep(record.asleep, record.asleep_since) if record.asleep else None),
            intent=record.intent,
            retained=record.retained,
        )
        self._table.add(known)
        if record.removing:
            self._start_removing(known, record.removing)
            self._timers.set(Timer(Due.DELETE, instance), now)
        else:
            self._timers.set(Timer(Due.READY, instance), now + self.config.instance_ready_timeout)

    def _write_intent(self, intent: Intent) -> None:
        """Store it."""
        self._turn.write(INTENT, intent.id)

    def _write_instance(self, known: Instance) -> None:
        """Store it."""
        self._turn.write(INSTANCE, known.id)

    def _record(self, kind: str, id_: str) -> Write:
        """What the journal is to hold of it after this turn."""
        key = self._key(id_)
        if kind == LOST:
            until = self._lost.get(id_)
            return Drop(kind, key) if until is None else Put(kind, key, LostRecord(pool=self.pool, until=until))
        kept: Intent | Instance | None = self._intents.get(id_) if kind == INTENT else self._table.by_id.get(id_)
        return Drop(kind, key) if kept is None else Put(kind, key, kept.record(self.pool))

    def _key(self, id_: str) -> str:
        """Ids are unique within a pool; the journal holds several."""
        return f"{self.pool}/{id_}"

    def _id(self, key: str) -> str:
        """The id within the pool."""
        return key.removeprefix(f"{self.pool}/")

    def _end(self) -> Step:
        """Hand over what this turn led to.

        Every action and every write of a plan passes here, so this is where one that observes holds them back.
        """
        turn = self._turn
        if self._deletions:
            self._send_deletions(self._now)
        changed = self._table.take_changed()
        turn.events += [messages.Changed(id_) for id_ in changed]
        if turn.is_empty:
            return NOTHING
        self._turn = Turn()
        if self.observing:
            return Step((), [each for each in turn.actions if isinstance(each, messages.Update)], turn.events)
        if turn.suspensions:
            turn.actions.append(messages.Suspend(self.pool, tuple(turn.suspensions)))
        if turn.resumptions:
            turn.actions.append(messages.Resume(self.pool, tuple(turn.resumptions)))
        return Step([self._record(*each) for each in turn.writes], turn.actions, turn.events)


def _bucket(config: PlanConfig, now: float) -> TokenBucket:
    throttle = config.scale_throttle
    burst = throttle.burst if throttle.burst is not None else config.max_instances
    return TokenBucket.full(throttle.limit, burst or max(1.0, throttle.limit), now)


def _identity(problem: Problem) -> tuple[object, ...]:
    """What tells a problem from another; its words may change while it lasts."""
    return problem.kind, problem.offering, problem.since
