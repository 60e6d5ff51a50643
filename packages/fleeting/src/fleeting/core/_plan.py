"""The plan: what a group should hold, against what the cloud shows. Pure.

`Plan.handle` takes facts about one group and answers with a `Step`. It knows instances and intents,
nothing of slots or jobs: whoever sits on top tells it how many more to `request` and which to `remove`,
and hears through events which instances may be given work.

The way of an instance::

    request ── Increase ──► intent ── seen in the view ──► WAITING ── running ──► PREPARING
                                                              │                       │ Prepared
                                          too long, or failed │                       ▼
                                  ┌───────────────────────────┴──── unhealthy ◄──── READY
                                  ▼                                     │             │
      gone ◄── not in the view ── REMOVING ◄── remove ──────────────────┴─────────────┘

Where the group can suspend, one that is READY may be put to sleep: it is ASLEEP from the moment at which that is
decided, and WAITING again once it is woken, by us or by somebody else; so it passes the readiness steps once more. One
that cannot be suspended is woken at once; one that cannot be resumed is ASLEEP again.

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

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import inf
from typing import Any, NamedTuple

from attrs import define, evolve, field, frozen

from fleeting._types import NoticeKind, Observation, Observed, Problem, State
from fleeting.core import messages
from fleeting.core._instance import Instance, InstanceRecord, LostRecord, Origin, Stage
from fleeting.core._intents import Intent, IntentRecord, Intents
from fleeting.core._pacing import Backoff, Backoffs, TokenBucket
from fleeting.core._plan_config import PlanConfig, Preexisting
from fleeting.core._step import Drop, Put, Step, Write
from fleeting.core._timers import Timers

REMEMBER_LOST = 3600.0
"""Seconds for which a gone instance is remembered, so that a stale view cannot bring it back to work."""

UNANSWERED = 30.0
"""Seconds after which nothing more is asked of a cloud that has not answered the last request yet."""

UNFILLED = 60.0
"""Seconds after which a cloud that has a problem with one offering only does not seem to deliver others, either."""

RESTING = frozenset({State.SUSPENDING, State.SUSPENDED})
"""How the cloud shows what sleeps."""

LEAVING = frozenset({Stage.REMOVING, Stage.HELD})
"""Instances that are done for; nothing else is done with them."""

INTENT, INSTANCE, LOST = "intent", "instance", "lost"
"""The journal's kinds of records that belong to the plan."""


PLAN_RECORDS: Mapping[str, type] = {INTENT: IntentRecord, INSTANCE: InstanceRecord, LOST: LostRecord}
"""What the plan keeps in the journal: the records' classes, by kind."""


@frozen(kw_only=True)
class Limits:
    """What stands between a wish for more instances and asking for them."""

    room: int | None
    """How many more the ceiling allows; None: any number."""

    tokens: int | None
    """How many more the throttle allows now; None: any number."""

    tokens_at: float | None
    """When the throttle allows one more than now; None: never, or it does not limit."""

    blocked_until: float | None
    """Nothing is asked for before this time; None: not backing off."""

    blocked_why: str = ""

    def allowed(self, wanted: int) -> int:
        """How many of *wanted* may be asked for now."""
        if self.blocked_until is not None:
            return 0
        bounds = [bound for bound in (self.room, self.tokens) if bound is not None]
        return max(0, min([wanted, *bounds]))


class Departure(NamedTuple):
    """How an instance went that is no more."""

    at: float
    why: str


class _EarlyNotice(NamedTuple):
    """A notice of an instance that no view has shown yet."""

    notice: messages.Noticed
    until: float
    """A view that was fetched at this time or later, and does not show the instance, lets it be forgotten."""


@define
class _Turn:
    """What the current fact has led to so far."""

    writes: list[Write] = field(factory=list)
    actions: list[messages.Action] = field(factory=list)
    events: list[messages.Event] = field(factory=list)
    deletions: list[str] = field(factory=list)
    """Asked for in one `Decrease` at the end."""

    suspensions: list[str] = field(factory=list)
    resumptions: list[str] = field(factory=list)


class Plan:
    """The pure core of one group."""

    def __init__(
        self,
        config: PlanConfig,
        *,
        now: float,
        new_intent: Callable[[], str],
        random: Callable[[], float],
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
            new_intent: Gives ids for intents, never one twice, also over restarts.
            random: Gives numbers from 0 to 1, for jitter.
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
        self._new_intent = new_intent
        self._random = random
        self._named = named
        self._withdraws = withdraws
        self.suspends = suspends
        self._limit_to(max_size)
        throttle = config.scale_throttle
        burst = throttle.burst if throttle.burst is not None else config.max_instances
        self._bucket = TokenBucket.full(throttle.limit, burst or max(1.0, throttle.limit), now)
        self._backoffs = Backoffs.of(config.backoff_initial, config.backoff_cap, random)
        self._backoff = self._backoffs.requests
        self.suspending = Backoff(config.backoff_initial, config.backoff_cap, random)
        """Whether suspending went wrong, so that it is not to be tried for a while; to be read."""

        self.resuming = Backoff(config.backoff_initial, config.backoff_cap, random)
        """The same of resuming."""

        self.no_room: Callable[[], bool] = lambda: False
        """Whether those on top see more than there may be; then no request is repeated, either."""

        self._timers: Timers[tuple[str, str]] = Timers()
        self._instances: dict[str, Instance] = {}
        self._by_stage: Counter[Stage] = Counter()
        self._paused = 0
        self._falling: set[str] = set()
        """Those ASLEEP that no view has shown as suspended yet."""

        self._asked_to_turn: set[str] = set()
        """Those of which the cloud has not answered yet whether they are suspended, or resumed."""

        self._lost: dict[str, float] = {}
        self._departures: dict[str, Departure] = {}
        self._intents = Intents()
        self._early_notices: dict[str, _EarlyNotice] = {}
        """Of instances that no view has shown yet."""

        self._problems: tuple[Problem, ...] = ()
        self._updating = False
        self._update_started = self._began = now
        self._update_again = False
        self._viewed = False
        self._refused: frozenset[str] = frozenset()
        self.disowned = ""
        """Why nothing may be changed at the cloud, as long as the group is not known to be ours; empty if it is."""

        self._withdrawing: list[Intent] = []
        self._withdrawable = withdraws
        self._shutting_down = False
        self._turn = _Turn()
        self._journal_was_empty = not any((recovered or {}).values())
        self._restore(recovered or {}, now)
        self._timers.set(("update", ""), now)

    # --- what those on top ask ---------------------------------------------------------------------------

    @property
    def instances(self) -> Mapping[str, Instance]:
        """All known instances by id; to be read, not changed."""
        return self._instances

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
        """Instances that open intents may still bring."""
        return self._intents.outstanding

    @property
    def coming(self) -> int:
        """Instances on their way to being ready, the outstanding ones included. O(1)."""
        return self._intents.outstanding + self._by_stage[Stage.WAITING] + self._by_stage[Stage.PREPARING]

    @property
    def asleep(self) -> int:
        """Instances that are suspended or about to be, which count against the ceiling. O(1)."""
        return self._by_stage[Stage.ASLEEP]

    @property
    def removing(self) -> int:
        """Instances on their way out, which still count against the ceiling. O(1)."""
        return self._by_stage[Stage.REMOVING]

    @property
    def retained(self) -> list[str]:
        """Ids of those that must not be deleted. O(n)."""
        return [known.id for known in self._instances.values() if known.retained is not None]

    @property
    def total(self) -> int:
        """What counts against the ceiling. O(1)."""
        return len(self._instances) + self._intents.outstanding

    @property
    def viewed(self) -> bool:
        """Whether the cloud's view has been seen at least once."""
        return self._viewed

    @property
    def withdrawable(self) -> int:
        """Unfilled requests that can be taken back now, as far as is known."""
        if not self._withdrawable or self._withdrawing:
            return 0
        return sum(intent.outstanding for intent in self._intents.withdrawable)

    def stranded(self, now: float) -> int:
        """Unfilled requests that can be taken back, and are not likely to be filled: growing is failing."""
        return self.withdrawable if self._viewed and self._blocked(now)[0] is not None else 0

    def departed(self, instance: str) -> Departure | None:
        """How an instance went; None if it is there, was never known, or went long ago or in an earlier life."""
        return self._departures.get(instance)

    @property
    def wake_at(self) -> float | None:
        """When `tick` has something to do, if nothing else happens."""
        return self._timers.next

    def agenda(self) -> Iterator[tuple[float, messages.Action]]:
        """What `tick` will do and when, if nothing else happens; in no order. For people: O(n)."""
        for (kind, key), at in self._timers.items():
            match kind:
                case "update":
                    yield at, messages.Update(self.pool)
                case "sleep":
                    if not self._updating:
                        yield at, messages.Update(self.pool)
                case "intent":
                    intent = self._intents[key]
                    if not intent.in_flight and not self._updating:
                        yield max(at, intent.asked_at + self.config.intent_timeout), messages.Update(self.pool)
                case _ if not self.observing:
                    yield from ((at, action) for action in self._chore(kind, key))

    def ageing(self) -> Iterator[tuple[float, str]]:
        """When which instances that those on top know of grow too old; in no order. For people: O(n)."""
        return ((at, key) for (kind, key), at in self._timers.items() if kind == "age")

    def turning(self) -> Iterator[tuple[float, str]]:
        """When calls to suspend or resume which instances count as failed, unless done by then; in no order. O(n)."""
        for (kind, key), at in self._timers.items():
            if kind == "sleep" or (kind == "ready" and self._sleeps_on(self._instances[key])):
                yield at, key

    def giving_up(self) -> Iterator[tuple[float, str]]:
        """When which instances are done for unless they are ready by then, retained or not; in no order. O(n)."""
        for (kind, key), at in self._timers.items():
            if kind == "ready" and not self._sleeps_on(self._instances[key]):
                yield at, key

    def _chore(self, kind: str, key: str) -> Iterator[messages.Action]:
        """What a timer leads to that is not about the view."""
        match kind:
            case "heartbeat":
                yield messages.Heartbeat(self.pool, key)
            case "prepare":
                yield messages.Prepare(self.pool, key)
            case "ready" if self._sleeps_on(self._instances[key]):
                pass
            case "ready" | "delete" if self._instances[key].retained is None:
                yield messages.Decrease(self.pool, (key,))
            case "ask" if self._may_ask_again:
                yield messages.Increase(self.pool, key, self._intents[key].count)

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
        asked = [intent.asked_at for intent in self._intents if intent.in_flight]
        if asked and min(asked) + UNANSWERED <= now:
            return inf, f"the cloud has not answered the last request within {UNANSWERED:g} s"
        holding = self._backoffs.holding
        return holding.until if holding.active(now) else None, holding.reason

    def request(self, count: int, now: float) -> Step:
        """Ask for *count* more instances, or for as many of them as `limits` allow now."""
        granted = self.limits(now).allowed(count)
        if granted:
            self._bucket.take(granted, now)
            intent = Intent(self._new_intent(), granted, now, now)
            self._intents.open(intent)
            self._write_intent(intent)
            self._ask(intent, now)
            self._withdrawable = self._withdraws
            self._expect(now)
        return self._end()

    def withdraw(self, count: int) -> Step:
        """Take back up to *count* unfilled requests, where the group can; one request at a time."""
        self._withdraw(count, self._intents.withdrawable)
        return self._end()

    def _withdraw(self, count: int, intents: list[Intent]) -> None:
        """Take back up to *count* unfilled requests of these."""
        count = min(count, self.withdrawable)
        if count > 0:
            self._withdrawing = intents
            self._turn.actions.append(messages.Withdraw(self.pool, count))

    def remove(self, reasons: Mapping[str, str], now: float) -> Step:
        """Delete these, each for its reason, in one request; none may hold a slot in use. Passes over unknown ones."""
        for known in self._known(reasons):
            self._remove(known, reasons[known.id], now)
        return self._end()

    def retain(self, instance: str, why: str) -> Step:
        """Ask no more for the deletion of this known instance, whatever the reason; it must not be asked for yet."""
        known = self._instances[instance]
        known.retained = why
        self._write_instance(known)
        return self._end()

    def unretain(self, instance: str, now: float) -> Step:
        """Undo `retain`: if there was a reason to delete it meanwhile, that happens now."""
        known = self._instances[instance]
        known.retained = None
        self._write_instance(known)
        if known.stage is Stage.HELD:
            self._move(known, Stage.REMOVING)
            self._delete(known, now)
        return self._end()

    def suspend(self, reasons: Mapping[str, str], now: float) -> Step:
        """Put these to sleep, each for its reason, in one request; none may run any work. Passes over what is not up.

        That of one that somebody else has suspended is only noted.
        """
        for known in self._known(reasons):
            if self.may_suspend(known.id):
                self._fall_asleep(known, reasons[known.id], now)
                if known.state is State.RUNNING:
                    self._asked_to_turn.add(known.id)
                    self._turn.suspensions.append(known.id)
                self._expect(now)
        return self._end()

    def may_suspend(self, instance: str) -> bool:
        """Whether it is in a state in which `suspend` has an effect."""
        known = self._instances[instance]
        at_hand = known.stage is Stage.READY and self._may_turn(known)
        return self.suspends and at_hand and known.state in {State.RUNNING, *RESTING}

    def resume(self, instances: Iterable[str], now: float) -> Step:
        """Let these run again, in one request. Passes over those that are not known to be suspended."""
        for known in self._known(instances):
            if self.may_resume(known.id):
                self._wake_up(known, now)
                known.resumed = True
                known.coming_since = now
                self._asked_to_turn.add(known.id)
                self._turn.resumptions.append(known.id)
                self._expect(now)
        return self._end()

    def may_resume(self, instance: str) -> bool:
        """Whether it is in a state in which `resume` has an effect."""
        known = self._instances[instance]
        return known.stage is Stage.ASLEEP and self._may_turn(known) and known.state is State.SUSPENDED

    def _may_turn(self, known: Instance) -> bool:
        """Whether the cloud can be asked to suspend or resume it: it is there and ours, and no answer is awaited."""
        return not (known.missed or known.id in self._asked_to_turn or self.disowned)

    def ask_heartbeat(self, instance: str) -> Step:
        """Ask for a heartbeat now, unless one is being asked for; `Alive`, `Paused` or `Unhealthy` tells the answer."""
        self._hasten_heartbeat(instance)
        return self._end()

    def shut_down(self, now: float) -> Step:
        """From now on deletions are retried at the shutdown's own interval."""
        self._shutting_down = True
        for instance in self._instances.values():
            if instance.stage is Stage.REMOVING:
                self._timers.set(("delete", instance.id), now + self.config.shutdown_deletion_interval)
        return self._end()

    def tick(self, now: float) -> Step:  # noqa: C901  (an arm for each kind of timer)
        """Do what is due."""
        for kind, key in self._timers.due(now):
            match kind:
                case "update":
                    self._start_update(now)
                case "heartbeat":
                    self._turn.actions.append(messages.Heartbeat(self.pool, key))
                case "prepare":
                    self._prepare(self._instances[key], now)
                case "ready":
                    self._ready_overdue(self._instances[key], now)
                case "age":
                    self._turn.events.append(messages.Aged(key))
                case "delete":
                    self._delete(self._instances[key], now)
                case "sleep":
                    self._not_suspended(self._instances[key], "it had no effect", now)
                case "ask":
                    self._ask_again(self._intents[key], now)
                case "intent":
                    self._intent_due(self._intents[key], now)
                case "lost":
                    self._lost.pop(key)
                    self._departures.pop(key, None)
                    self._turn.writes.append(Drop(LOST, self._key(key)))
        return self._end()

    def handle(self, fact: messages.Fact, now: float) -> Step:  # noqa: C901, PLR0912  (an arm for each kind of fact)
        """Take in what happened."""
        match fact:
            case messages.Updated(observation):
                self._updated(observation, now)
            case messages.UpdateFailed(_, retry_after):
                self._update_ended(now, at_least=retry_after or 0.0)
            case messages.Increased(intent, accepted):
                self._increased(intent, accepted, now)
            case messages.IncreaseFailed():
                self._increase_failed(fact, now)
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
        return self._end()

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
        fresh = [instance for instance in seen if instance not in self._instances]
        absent = [known for known in self._instances.values() if known.id not in seen]
        for known in list(self._instances.values()):
            if known.id in seen:
                self._refresh(known, seen[known.id], now)
        for known in absent:
            self._absent(known, now)
        fresh.sort(key=lambda each: (seen[each].created_at or now, each))
        refused = tuple(each for each in fresh if not self._appeared(each, seen[each], now, first=first))
        if refused:
            self._refused = frozenset(refused)
            self._turn.events.append(messages.Refused(refused))
        self._forget_early_notices()
        self._expire_intents(now)
        self._note_problems(observation.problems, now)
        self._update_ended(now)

    def _refresh(self, known: Instance, observed: Observed, now: float) -> None:
        """Take in what the view says of a known instance."""
        known.missed = 0
        known.connection_dead = False
        known.state = observed.state
        known.offering = observed.offering or known.offering
        if observed.created_at not in {None, known.created_at}:
            known.created_at = observed.created_at
            self._watch_age(known)
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

    def _shown_running(self, known: Instance, now: float) -> None:
        """The view shows it running; as long as nobody knows what came of a call, only one fetched later counts."""
        about_to_sleep = known.id in self._asked_to_turn or ("sleep", known.id) in self._timers
        if known.stage is Stage.ASLEEP and not about_to_sleep:
            self._wake_up(known, now)  # somebody else did
        self._unpause(known, now)
        if known.stage is Stage.WAITING and known.unsure_since <= self._update_started:
            self._prepare(known, now)

    def _shown_resting(self, known: Instance, now: float) -> None:
        """The view shows it suspended, or on the way there or back; not all of that is our doing."""
        resting = known.state in RESTING
        boots = known.stage is Stage.PREPARING or (known.stage is Stage.WAITING and not known.resumed)
        if known.stage is Stage.ASLEEP:
            self._unpause(known, now)
            self._timers.cancel(("sleep", known.id))
            if known.state is State.SUSPENDED:
                self._note_fallen(known)
            elif not resting:
                self._wake_up(known, now)
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
        expected = known.removal_sent or known.state is State.DELETING
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
        early = self._early_notices.pop(instance, None)
        if early is not None:  # be it overdue: the view may be later than that by as much as it lags
            self._noticed(*early.notice, now)
        return True

    def _match(self, observed: Observed) -> Intent | None:
        """The intent that explains a new instance: the one it carries, else one that fits by count and time."""
        if self._named or observed.intent is not None:
            return self._intents.match_carried(observed.intent)
        return self._intents.match_by_time(observed.created_at)

    def _know(self, instance: str, observed: Observed, origin: Origin, intent: Intent | None, now: float) -> Instance:
        """Take in a new instance, and account for it in its intent."""
        known = Instance(
            instance,
            origin,
            now,
            observed.state,
            intent=intent.id if intent is not None else None,
            coming_since=intent.requested_at if intent is not None else None,
            offering=observed.offering,
            created_at=observed.created_at,
        )
        self._instances[instance] = known
        self._by_stage[known.stage] += 1
        self._timers.set(("ready", instance), now + self.config.instance_ready_timeout)
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
        if known.stage in LEAVING and not known.announced:
            return
        if known.stage is Stage.WAITING:
            pace, what = (self.resuming, "resumed") if known.announced else (self._backoff, "created")
            pace.failed(f"instance {known.id} failed while it was {what}", now)
        self._announce_loss(known, messages.Loss(messages.LossKind.FAILED, "the cloud reports it as failed"))
        self._remove(known, "the cloud reports it as failed", now)

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
        waiting = self._by_stage[Stage.WAITING] + self._by_stage[Stage.REMOVING]
        return bool(self._intents.outstanding or waiting or self._paused or self._falling)

    def _start_update(self, now: float) -> None:
        """Fetch the view, unless that is under way: then once more after it."""
        if self._updating:
            self._update_again = True
            return
        self._updating = True
        self._update_started = now
        self._timers.cancel(("update", ""))
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
        self._timers.set(("update", ""), now + max(at_least, min(interval, self.config.update_interval)))

    def _expect(self, now: float) -> None:
        """A change is coming: do not wait for the long interval."""
        if not self._updating:
            soon = now + min(self.config.update_interval_when_expecting, self.config.update_interval)
            self._timers.advance(("update", ""), soon)

    # --- becoming ready ----------------------------------------------------------------------------------

    def _prepare(self, known: Instance, now: float) -> None:
        """Run the readiness steps; who only looks on takes them to pass."""
        self._move(known, Stage.PREPARING)
        if self.observing:
            self._prepared(known.id, now)
        else:
            self._turn.actions.append(messages.Prepare(self.pool, known.id))

    def _prepared(self, instance: str, now: float) -> None:
        """It may be given work; that it came this far ends any backoff."""
        known = self._instances.get(instance)
        if known is None or known.stage is not Stage.PREPARING:
            return
        known.prepared = True
        if not known.paused:
            self._become_ready(known, now)

    def _become_ready(self, known: Instance, now: float) -> None:
        """It is prepared, and the view shows it running: from now on it may be given work."""
        self._timers.cancel(("ready", known.id))
        self._timers.set(("heartbeat", known.id), now + self.config.heartbeat_interval * self._random())
        self._move(known, Stage.READY)
        known.ready_since = now
        self._note_awake(known)
        slept, known.announced = known.announced, True
        too_old = self.too_old_at(known) <= now
        known.resume_failures = 0
        if slept:
            if known.resumed:  # not by others, nor never suspended
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
            self._timers.set(("age", known.id), self.too_old_at(known))

    def _prepare_failed(self, fact: messages.PrepareFailed, now: float) -> None:
        """Replace it, or try again a little later while there is time."""
        known = self._instances.get(fact.instance)
        if known is None or known.stage is not Stage.PREPARING:
            return
        if fact.final:
            self._never_ready(known, f"it did not become ready: {fact.error}", now)
        else:
            known.trouble = fact.error
            wait = max(self.config.update_interval_when_expecting, fact.retry_after or 0.0)
            self._timers.set(("prepare", known.id), now + wait)

    def _ready_overdue(self, known: Instance, now: float) -> None:
        """It hangs on its way to being ready; one that still sleeps there need not be lost."""
        trouble = f": {known.trouble}" if known.trouble else ""
        reason = f"it was not ready within {self.config.instance_ready_timeout:g} s{trouble}"
        if self._sleeps_on(known):
            self._not_resumed(known, reason, now)
        else:
            self._never_ready(known, reason, now)

    def _sleeps_on(self, known: Instance) -> bool:
        """Whether it was to be resumed, and no view shows that it is."""
        return known.stage is Stage.WAITING and known.resumed and known.state in RESTING

    def _never_ready(self, known: Instance, reason: str, now: float) -> None:
        """It is of no use, and neither is what slept there."""
        (self.resuming if known.announced else self._backoff).failed(f"instance {known.id}: {reason}", now)
        self._announce_loss(known, messages.Loss(messages.LossKind.UNHEALTHY, reason))
        self._remove(known, reason, now)

    # --- health and notices ------------------------------------------------------------------------------

    def _heartbeat_ended(self, instance: str, failure: str, now: float) -> None:
        """Count failures in a row; at the threshold the instance is done for. Empty *failure*: it passed."""
        known = self._instances.get(instance)
        if known is None or known.stage is not Stage.READY:
            return
        known.failures = known.failures + 1 if failure else 0
        cut_off, known.cut_off = known.cut_off and bool(failure), False
        if cut_off or known.failures >= self.config.failure_threshold:
            self._move(known, Stage.UNHEALTHY)
            self._turn.events.append(messages.Unhealthy(instance, self.config.unhealthy_breaks_jobs, failure))
        else:
            self._timers.set(("heartbeat", instance), now + self.config.heartbeat_interval)
            if self.config.heartbeat_on_acquire:
                self._suspect(known, failed=bool(failure))

    def _hasten_heartbeat(self, instance: str) -> None:
        """Ask for it now, unless it is being asked for."""
        timer = ("heartbeat", instance)
        if timer in self._timers:  # set but while the answer is awaited
            self._timers.cancel(timer)
            self._turn.actions.append(messages.Heartbeat(self.pool, instance))

    def _suspect(self, known: Instance, *, failed: bool) -> None:
        """No new work from a heartbeat that fails to the next that passes: nobody is to be given a dead instance."""
        was, known.suspect = known.suspect, failed
        if not failed:
            self._turn.events.append(messages.Alive(known.id))
        if was != failed and not known.paused:
            self._turn.events.append(self._paused_as_suspect(known) if failed else messages.Resumed(known.id))

    def _paused_as_suspect(self, known: Instance) -> messages.Paused:
        return messages.Paused(known.id, "its last heartbeat failed", briefly=False)

    def _noticed(self, instance: str, deadline: float, kind: NoticeKind, now: float) -> None:
        """It goes at *deadline*; of several notices the earliest counts. One may come before the view that shows it."""
        known = self._instances.get(instance)
        if known is None:
            self._keep_notice(messages.Noticed(instance, deadline, kind), now)
        if known is None or known.stage in LEAVING:
            return
        if known.deadline is not None and known.deadline <= deadline:
            return
        known.deadline, known.notice = deadline, kind
        if known.up:
            self._turn.events.append(messages.Doomed(instance, deadline, kind))
        elif not known.announced:
            self._remove(known, "it goes before it was of use", now)

    def _keep_notice(self, notice: messages.Noticed, now: float) -> None:
        """Remember it for an instance that no view has shown: as long, after its time, as requests are waited for."""
        before = self._early_notices.get(notice.instance)
        if before is not None:
            notice = min(before.notice, notice, key=lambda each: each.deadline)
        until = max(now, notice.deadline) + self.config.intent_timeout
        self._early_notices[notice.instance] = _EarlyNotice(notice, until)

    def _forget_early_notices(self) -> None:
        """Drop those whose instances this view should have shown by now; without one nobody knows."""
        early = self._early_notices
        self._early_notices = {id_: each for id_, each in early.items() if each.until > self._update_started}

    def _recall_notice(self, known: Instance) -> None:
        """Tell of a notice that was given before it was ready, be it overdue by now."""
        if known.deadline is not None:
            self._turn.events.append(messages.Doomed(known.id, known.deadline, known.notice))

    def _connection_died(self, instance: str, now: float) -> None:
        """See at once whether it is still there, and whether it is healthy: not every cloud knows when it is gone."""
        known = self._instances.get(instance)
        if known is None or known.stage is Stage.ASLEEP:  # of which nothing else is to be expected
            return
        known.connection_dead = True
        if known.missed and known.stage not in LEAVING:
            self._gone(known, messages.LossKind.VANISHED, "not in the cloud's view, and its connection died", now)
        elif known.stage is Stage.READY and not known.cut_off:
            known.cut_off = True
            self._hasten_heartbeat(instance)
        self._start_update(now)

    def _pause(self, known: Instance, reason: str) -> None:
        """No new work for now."""
        if known.paused != reason:
            self._paused += not known.paused
            known.paused = reason
            if known.up:
                self._turn.events.append(messages.Paused(known.id, reason, briefly=known.missed > 0))

    def _unpause(self, known: Instance, now: float) -> None:
        """All is well (again)."""
        if known.paused:
            known.paused = ""
            self._paused -= 1
            if known.up:
                self._turn.events.append(
                    self._paused_as_suspect(known) if known.suspect else messages.Resumed(known.id)
                )
            elif known.prepared and known.stage is Stage.PREPARING:
                self._become_ready(known, now)

    # --- sleeping ----------------------------------------------------------------------------------------

    def _fall_asleep(self, known: Instance, why: str, now: float) -> None:
        """It sleeps, or is about to; nothing else is done with it."""
        known.asleep = known.asleep or why
        known.asleep_since = now if known.asleep_since is None else known.asleep_since
        known.prepared = known.resumed = known.suspect = known.cut_off = False
        known.failures = 0
        self._unpause_unheard(known)
        self._stop(known)
        self._move(known, Stage.ASLEEP)
        if known.state is not State.SUSPENDED:
            self._falling.add(known.id)
        known.announced = True
        self._write_instance(known)
        self._turn.actions.append(messages.Forget(self.pool, known.id))
        self._turn.events.append(messages.Asleep(known.id, known.asleep))

    def _unpause_unheard(self, known: Instance) -> None:
        """For whoever hears of it is told more than that."""
        self._paused -= bool(known.paused)
        known.paused = ""

    def _stop(self, known: Instance) -> None:
        """Nothing is due for it any more, but perhaps its deletion."""
        for kind in ("ready", "heartbeat", "prepare", "age", "sleep"):
            self._timers.cancel((kind, known.id))
        self._falling.discard(known.id)

    def _wake_up(self, known: Instance, now: float) -> None:
        """It is to run; it has to become ready as if it were new."""
        self._stop(known)
        self._note_awake(known)
        known.coming_since = None
        if known.deadline is not None and known.deadline <= now:  # it has outlived that in its sleep
            known.deadline = None
        self._move(known, Stage.WAITING)
        self._timers.set(("ready", known.id), now + self.config.instance_ready_timeout)
        self._turn.events.append(messages.Waking(known.id))

    def _note_awake(self, known: Instance) -> None:
        """There is no reason for it to sleep any more."""
        if known.asleep:
            known.asleep, known.asleep_since = "", None
            self._write_instance(known)

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
        for known in self._known(fact.asked):
            if known.id not in self._falling or known.state in RESTING:
                continue
            if known.id in accepted:
                self._timers.set(("sleep", known.id), now + self.config.deletion_retry_interval)
            else:
                self._not_suspended(known, error, now, retry_after)
        self._expect(now)

    def _not_suspended(self, known: Instance, error: str, now: float, retry_after: float | None = None) -> None:
        """It goes on running, as far as is known: a view tells."""
        self.suspending.failed(f"instance {known.id} could not be suspended: {error}", now, retry_after)
        self._wake_up(known, now)
        known.unsure_since = now
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
        for known in self._known(fact.asked):
            if self._sleeps_on(known) and known.id not in accepted:
                self._not_resumed(known, error, now, retry_after)
        self._expect(now)

    def _not_resumed(self, known: Instance, error: str, now: float, retry_after: float | None = None) -> None:
        """It sleeps on, as far as is known."""
        self.resuming.failed(f"instance {known.id} could not be resumed: {error}", now, retry_after)
        known.resume_failures += 1
        self._fall_asleep(known, f"it could not be resumed: {error}", now)

    # --- growing -----------------------------------------------------------------------------------------

    def _ask(self, intent: Intent, now: float) -> None:
        """Ask the cloud; also again, where that is idempotent."""
        intent.in_flight = True
        intent.asked_at = now
        intent.overdue = False
        self._timers.set(("intent", intent.id), now + self.config.intent_timeout)
        self._timers.cancel(("ask", intent.id))
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
        self._intents.accepted(intent, accepted)
        intent.asked_at = now
        intent.overdue = False
        if accepted < intent.count:
            self._backoff.failed(f"the cloud accepted {accepted} of {intent.count}", now)
        self._timers.set(("intent", intent_id), now + self.config.intent_timeout)
        self._settle(intent)
        self._expect(now)

    def _increase_failed(self, fact: messages.IncreaseFailed, now: float) -> None:
        """Refused, or nobody knows."""
        self._backoff.failed(fact.error, now, fact.retry_after)
        intent = self._intents.get(fact.intent)
        if intent is None:
            return
        if fact.outcome_known and not intent.doubtful:
            self._intents.accepted(intent, intent.matched)
            self._settle(intent)
            return
        self._doubt(intent, now)

    def _doubt(self, intent: Intent, now: float) -> None:
        """Nobody knows what will come of it; ask again where that is idempotent."""
        intent.in_flight = False
        intent.doubtful = True
        intent.asked_at = now
        intent.overdue = False
        self._settle(intent)
        if self._named and intent.outstanding:
            self._ask_after_backoff(intent)
        self._expect(now)

    def _ask_after_backoff(self, intent: Intent) -> None:
        """Repeat the request when the cloud may be asked again, if that is not too late for it."""
        if self._backoff.until < intent.requested_at + self.config.intent_timeout:
            self._timers.set(("ask", intent.id), self._backoff.until)

    @property
    def _may_ask_again(self) -> bool:
        """Whether there is room for what a repeated request may bring, and a view does not show that it was heard."""
        room = self.ceiling is None or self.total <= self.ceiling
        return self._viewed and room and not (self._shutting_down or self.disowned or self.no_room())

    def _ask_again(self, intent: Intent, now: float) -> None:
        """Repeat a request that was never answered, once there is room for what it may bring."""
        if self._backoff.active(now):  # another request has failed since
            self._ask_after_backoff(intent)
        elif self._may_ask_again:
            self._ask(intent, now)
            self._write_intent(intent)
        else:
            self._timers.set(("ask", intent.id), now + self.config.update_interval_when_expecting)

    def _intent_due(self, intent: Intent, now: float) -> None:
        """It should have appeared by now: see whether it has."""
        expires_at = intent.asked_at + self.config.intent_timeout
        if intent.in_flight:  # the call is bounded by its own time-outs and will be heard of
            self._timers.set(("intent", intent.id), now + self.config.intent_timeout)
        elif now < expires_at:
            self._timers.set(("intent", intent.id), expires_at)
        else:
            self._start_update(now)  # without a view from after that time nobody knows what has appeared

    def _expire_intents(self, now: float) -> None:
        """Give up what should have appeared by the time for which this view was fetched, and the one before.

        What can be taken back is: it might appear when something else has taken its place.
        """
        seen_until = self._update_started - self.config.intent_timeout
        late = [each for each in self._intents if not each.in_flight and each.asked_at <= seen_until]
        expired = [each for each in late if each.overdue and each not in self._withdrawing]
        for intent in expired:
            self._backoff.failed(f"{intent.outstanding} requested instances never appeared", now)
            self._close(intent)
        first_missed = [each for each in late if not each.overdue]
        for intent in first_missed:
            intent.overdue = True
            self._update_again = True
        self._withdraw(sum(each.outstanding for each in first_missed), first_missed)

    def _withdrawn(self, asked: int, taken: int, now: float) -> None:
        """Unfilled requests were taken back; if not all, the rest cannot be, and is not asked for again."""
        candidates, self._withdrawing = self._withdrawing, []
        self._withdrawable = taken >= asked
        for intent in self._intents.take_back(min(taken, asked), candidates):
            self._settle(intent)
        if any(intent.overdue for intent in self._intents):
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
        self._timers.cancel(("intent", intent.id))
        self._timers.cancel(("ask", intent.id))
        self._turn.writes.append(Drop(INTENT, self._key(intent.id)))

    # --- shrinking ---------------------------------------------------------------------------------------

    def _remove(self, known: Instance, reason: str, now: float) -> None:
        """Ask for its deletion, unless that was done before."""
        if known.removal_asked_at is None:
            self._announce_loss(known, None)
            self._start_removing(known, reason)
            self._delete(known, now)

    def _start_removing(self, known: Instance, reason: str) -> None:
        """It is on its way out; nothing else is done with it."""
        self._move(known, Stage.HELD if self.observing or known.retained is not None else Stage.REMOVING)
        known.removing = known.removing or reason
        self._stop(known)
        self._write_instance(known)
        self._turn.actions.append(messages.Forget(self.pool, known.id))

    def _delete(self, known: Instance, now: float) -> None:
        """Ask the cloud, together with all others of this turn, and again if that has no effect."""
        if known.stage is Stage.HELD:
            return
        known.removal_asked_at = now
        known.removal_tries += 1
        self._turn.deletions.append(known.id)
        self._retry_deletion(known, now)
        self._expect(now)

    def _retry_deletion(self, known: Instance, now: float, at_least: float = 0.0) -> None:
        """Ask (again) if it is still there after the interval."""
        config = self.config
        interval = config.shutdown_deletion_interval if self._shutting_down else config.deletion_retry_interval
        self._timers.set(("delete", known.id), now + max(interval, at_least))

    def _removal_sent(self, asked: Iterable[str]) -> None:
        """The cloud was asked: from now on their absence is what is to be expected."""
        for known in self._known(asked):
            known.removal_sent = True

    def _decrease_failed(self, asked: Iterable[str], retry_after: float | None, now: float) -> None:
        """Wait as long as the cloud wants, if that is longer than we would."""
        for known in self._known(asked):
            self._retry_deletion(known, now, at_least=retry_after or 0.0)

    def _gone(self, known: Instance, kind: messages.LossKind, detail: str, now: float) -> None:
        """It is no more."""
        asked_for = known.removal_asked_at is not None
        self._announce_loss(known, None if asked_for else messages.Loss(kind, detail))
        self._paused -= bool(known.paused)
        self._by_stage[known.stage] -= 1
        del self._instances[known.id]
        self._stop(known)
        self._timers.cancel(("delete", known.id))
        self._asked_to_turn.discard(known.id)
        until = now + REMEMBER_LOST
        self._lost[known.id] = until
        self._departures[known.id] = Departure(now, known.removing or detail)
        self._timers.set(("lost", known.id), until)
        self._turn.writes.append(Drop(INSTANCE, self._key(known.id)))
        self._turn.writes.append(Put(LOST, self._key(known.id), LostRecord(pool=self.pool, until=until)))
        self._turn.actions.append(messages.Forget(self.pool, known.id))
        self._turn.events.append(messages.Ended(known.id))

    def _announce_loss(self, known: Instance, loss: messages.Loss | None) -> None:
        """Tell those on top, once."""
        if known.announced:
            known.announced = False
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
            self._timers.set(("lost", self._id(key)), lost.until)

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
        self._timers.set(("intent", intent_id), intent.asked_at + self.config.intent_timeout)
        if again:
            self._timers.set(("ask", intent_id), now)
        self._write_intent(intent)

    def _restore_instance(self, instance: str, record: InstanceRecord, now: float) -> None:
        """A known instance: it has to become ready again, or its removal goes on."""
        known = Instance(
            instance,
            record.origin,
            record.first_seen,
            State.CREATING,
            intent=record.intent,
            retained=record.retained,
            asleep=record.asleep,
            asleep_since=record.asleep_since,
        )
        self._instances[instance] = known
        self._by_stage[known.stage] += 1
        if record.removing:
            self._start_removing(known, record.removing)
            self._timers.set(("delete", instance), now)
        else:
            self._timers.set(("ready", instance), now + self.config.instance_ready_timeout)

    def _known(self, instances: Iterable[str]) -> list[Instance]:
        """Those of them that are known; an answer may come when an instance is gone already."""
        return [self._instances[instance] for instance in instances if instance in self._instances]

    def _move(self, known: Instance, stage: Stage) -> None:
        """Change the stage, and the counts by stage with it."""
        self._by_stage[known.stage] -= 1
        known.stage = stage
        self._by_stage[stage] += 1

    def _write_intent(self, intent: Intent) -> None:
        """Store it."""
        self._turn.writes.append(Put(INTENT, self._key(intent.id), intent.record(self.pool)))

    def _write_instance(self, known: Instance) -> None:
        """Store it."""
        self._turn.writes.append(Put(INSTANCE, self._key(known.id), known.record(self.pool)))

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
        turn, self._turn = self._turn, _Turn()
        if self.observing:
            return Step((), [each for each in turn.actions if isinstance(each, messages.Update)], turn.events)
        if turn.deletions:
            turn.actions.append(messages.Decrease(self.pool, tuple(turn.deletions)))
        if turn.suspensions:
            turn.actions.append(messages.Suspend(self.pool, tuple(turn.suspensions)))
        if turn.resumptions:
            turn.actions.append(messages.Resume(self.pool, tuple(turn.resumptions)))
        return Step(turn.writes, turn.actions, turn.events)


def _identity(problem: Problem) -> tuple[object, ...]:
    """What tells a problem from another; its words may change while it lasts."""
    return problem.kind, problem.offering, problem.since
