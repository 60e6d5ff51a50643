"""The plan: what a group should hold, against what the cloud shows. Pure.

`Plan.handle` takes messages about one group and answers with a `Step`. It knows instances and intents, nothing of slots
or jobs: the consumer says how many more to `request` and which to `remove`, and learns through events of which
instances something has changed.

The plan takes the messages and moves instances through their stages; what it calls owns the rest: `_views` when the
cloud's view is fetched and what of it has to be looked at, `_growth` what the cloud is asked for, `_power` which
instances sleep, `_deletions` which are deleted with which call, `_departed` which are gone. What they share is in
`_context`. The stages of an instance, what each of them knows and which may follow which, are in `_stages`; what is to
be done once its time has come, in `_due`.

One that is retained is never asked to be deleted, whatever the reason: where it would be REMOVING it is HELD, as
long as it is retained, and like any other it is gone once the view no longer shows it.

What the cloud shows decides, but one bad read kills nothing: an instance that is missing once gets no
new work and the view is fetched again at once; missing twice, or missing once with a dead connection,
it is lost. A lost instance that comes back is deleted, never used. A dead connection asks for a heartbeat
at once, and if that fails no others are waited for: not every cloud knows when an instance is gone.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from math import inf
from typing import Any, NamedTuple, assert_never, get_args

from attrs import evolve

from fleeting._types import Notice, NoticeKind, Observation, Observed, Problem, State
from fleeting.core import messages
from fleeting.core._agenda import Agenda
from fleeting.core._chance import Chance
from fleeting.core._context import Context
from fleeting.core._deletions import Deletions
from fleeting.core._departed import Departed, Departure
from fleeting.core._due import VIEW, Due, Timer
from fleeting.core._growth import Growth
from fleeting.core._instance import Instance, InstanceRecord, LostRecord, Origin
from fleeting.core._intents import Intent
from fleeting.core._last_view import LastView
from fleeting.core._pacing import Backoff, Limits
from fleeting.core._plan_config import PlanConfig, Preexisting
from fleeting.core._power import RESTING, Power
from fleeting.core._records import INSTANCE, INTENT, LOST
from fleeting.core._stages import (
    Boot,
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
from fleeting.core._views import Views

ROUNDS = 60
"""Rounds of heartbeats in a `heartbeat_interval`: every second, if that is a minute."""

LEAVING = frozenset({Stage.REMOVING, Stage.HELD})
"""Instances that are done for; nothing else is done with them."""


class Standing(NamedTuple):
    """How many instances there are and may be: see the properties of `Plan`."""

    coming: int
    removing: int
    total: int
    outstanding: int
    withdrawable: int
    room: int | None
    """`Limits.room`."""

    ceiling: int | None
    """Beside the room, of which there is none under any ceiling that is reached already."""


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
        max_size_is: str = "",
        named: bool = False,
        withdraws: bool = False,
        suspends: bool = False,
        recovered: Mapping[str, Mapping[str, Any]] | None = None,
        observing: bool = False,
        journaled: bool = True,
    ) -> None:
        """Start from what the journal knows.

        Args:
            config: The group's settings.
            now: Seconds since the epoch.
            token: What intents are named after, with a number; another one for each life of a manager.
            chance: Gives the numbers for jitter.
            max_size: The cloud's own ceiling, if it has one.
            max_size_is: What that is, in words.
            named: Whether a repeated increase is idempotent per intent (`NAMED_CREATE`).
            withdraws: Whether unfilled requests can be taken back (`WITHDRAW`).
            suspends: Whether instances can be suspended and resumed (`SUSPEND_RESUME`).
            recovered: Records by kind and key, of this pool only.
            observing: Whether to ask for views and nothing else, and to take what they show as ours and usable. What
                the consumer requests or removes would be believed to have been asked for: it must not, either.
            journaled: Whether anybody keeps a journal; else no step has writes.
        """
        self.config = evolve(config, preexisting=Preexisting.ADOPT) if observing else config
        self.pool = config.name
        self.observing = observing
        self._chance = chance
        self._now = self._began = now
        self._turn = Turn(journaled=journaled)
        last_view = LastView()
        self._table = InstanceTable(last_view)
        self._timers: Timers[Timer] = Timers()
        self._context = Context(config=self.config, table=self._table, timers=self._timers, turn=self._turn)
        self._views = Views(self._context, last_view, now)
        self._growth = Growth(
            self._context,
            self._views,
            now=now,
            token=token,
            chance=chance,
            max_size=max_size,
            max_size_is=max_size_is,
            named=named,
            withdraws=withdraws,
        )
        self._power = Power(self._context, self._views, chance, suspends=suspends)
        self._deletions = Deletions(self._context, self._views)
        self.agenda = Agenda(self._context, self._views, self._growth, self._deletions, observing)
        """What it will do and when, if nothing else happens."""

        self._departed = Departed(self._context)
        self.missed = 0
        """How often a view did not show a known instance that was not expected to go; to be read."""

        self.handled = 0
        """How many messages were taken in; to be read."""

        self._standing: Standing | None = None
        """As of when somebody last asked."""

        self._counted = -1
        """How many messages had been taken in then."""

        self._take: Mapping[type, Callable[[Any, float], None]] = {
            **dict.fromkeys(get_args(messages.Command), self._take_command),
            **dict.fromkeys(get_args(messages.Fact), self._take_fact),
        }
        """By the message's class: to ask of which union it is takes longer than most messages do."""

        self._journal_was_empty = not any((recovered or {}).values())
        self._restore(recovered or {}, now)
        self._views.begin(now)

    # --- what the consumer reads --------------------------------------------------------------------------

    @property
    def instances(self) -> Mapping[str, Instance]:
        """All known instances by id; to be read, not changed."""
        return self._table.by_id

    @property
    def intents(self) -> Iterable[Intent]:
        """The open intents, oldest first; to be read, not changed."""
        return self._growth.intents

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Why the cloud says that capacity is not coming."""
        return self._growth.problems

    @property
    def ceiling(self) -> int | None:
        """How many instances there may be: the lower one of our limit and the cloud's own; None: any number."""
        return self._growth.ceiling

    @property
    def ceiling_is(self) -> str:
        """Which of the two that is, in words: ``max_instances``, or as `GroupInfo.max_size_is`."""
        return self._growth.ceiling_is

    @property
    def disowned(self) -> str:
        """Why nothing may be changed at the cloud, as long as the group is not known to be ours; empty if it is."""
        return self._context.disowned

    @property
    def crowded(self) -> bool:
        """Whether the consumer sees more than there may be; then no request is repeated, either."""
        return self._growth.crowded

    @property
    def suspends(self) -> bool:
        """Whether instances can be suspended and resumed."""
        return self._power.suspends

    @property
    def suspending(self) -> Backoff:
        """Whether suspending went wrong, so that it is not to be tried for a while; to be read."""
        return self._power.suspending

    @property
    def resuming(self) -> Backoff:
        """The same of resuming."""
        return self._power.resuming

    @property
    def last_failure(self) -> tuple[float, str] | None:
        """When and why growing failed last, whatever has succeeded since; None: it never did."""
        return self._growth.last_failure

    @property
    def outstanding(self) -> int:
        """Instances that open intents may still bring, and those that the next call asks for."""
        return self._growth.outstanding

    @property
    def queued(self) -> int:
        """Instances that are asked for once the cloud has answered the call under way."""
        return self._growth.queued

    @property
    def asking(self) -> bool:
        """Whether a call for more instances is under way: what is asked for meanwhile goes into the next one."""
        return self._growth.asking

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
    def stages(self) -> Mapping[Stage, int]:
        """How many instances are in each stage. O(1)."""
        return {stage: self._table.count(stage) for stage in Stage}

    @property
    def retained(self) -> list[str]:
        """Ids of those that must not be deleted, sorted. O(such instances)."""
        return sorted(self._table.retained)

    @property
    def total(self) -> int:
        """What counts against the ceiling. O(1)."""
        return self._growth.total

    @property
    def viewed(self) -> bool:
        """Whether the cloud's view has been seen at least once."""
        return self._views.viewed

    @property
    def withdrawable(self) -> int:
        """Unfilled requests that can be taken back now, as far as is known."""
        return self._growth.withdrawable

    def stranded(self, now: float) -> int:
        """Unfilled requests that can be taken back, and are not likely to be filled: growing is failing."""
        return self._growth.stranded(now)

    def dropped(self, now: float) -> int:
        """How many of those queued will not be asked for, *now* being the present or later. O(1)."""
        return self._growth.dropped(now)

    def departed(self, instance: str) -> Departure | None:
        """How an instance went; None if it is there, was never known, or went long ago or in an earlier life."""
        return self._departed.how(instance)

    @property
    def wake_at(self) -> float | None:
        """When `tick` has something to do, if nothing else happens."""
        return self._timers.next

    @property
    def view_at(self) -> float | None:
        """When the next view is fetched; None: one is being fetched."""
        return self._timers.at(VIEW)

    @property
    def quiet_until(self) -> float:
        """When something other than a view is due; -inf if the next view may lead to something, whatever it shows.

        Until then a view that shows what the last one did leads to nothing but the next view, `update_interval` after
        it. O(timers).
        """
        if self._expecting or len(self._growth.intents) or self._growth.problems or not self._views.settled:
            return -inf
        return min((at for timer, at in self._timers.items() if timer.due is not Due.VIEW), default=inf)

    def postpone_view(self, at: float) -> None:
        """Fetch the next view only then, before `quiet_until`: those until then would show what the last one did.

        This is for simulators, which know what views will show.
        """
        self._views.postpone(at)

    def limits(self, now: float) -> Limits:
        """What stands between a wish for more instances and asking for them. O(1)."""
        return self._growth.limits(now)

    @property
    def standing(self) -> Standing:
        """All numbers that decisions read and no time changes; the very same object as long as none of them does. O(1).

        They are counted once after each message.
        """
        if self._counted != self.handled or self._standing is None:
            self._counted = self.handled
            growth = self._growth
            outstanding = growth.outstanding
            standing = Standing(
                self.coming,
                self.removing,
                len(self._table.by_id) + outstanding,
                outstanding,
                growth.withdrawable,
                growth.room,
                growth.ceiling,
            )
            if standing != self._standing:
                self._standing = standing
        return self._standing

    def blocked(self, now: float) -> bool:
        """Whether `limits` has a `blocked_until`. O(1)."""
        return self._growth.blocked(now)

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
        return self._power.may_suspend(self._table.by_id[instance])

    def resume(self, instances: Iterable[str], now: float) -> Step:
        """See `messages.Wake`."""
        return self.handle(messages.Wake(tuple(instances)), now)

    def may_resume(self, instance: str) -> bool:
        """Whether it is in a state in which `resume` has an effect."""
        return self._power.may_resume(self._table.by_id[instance])

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
        """Take in what is wanted, or what happened: the only way in. Equal messages at equal times give equal steps."""
        self._now = now
        self.handled += 1
        self._take[message.__class__](message, now)
        return self._end()

    def handle_all(self, facts: Sequence[messages.Fact], now: float) -> Step:
        """Take in what happened at one moment, each to another instance, with one step for all."""
        self._now = now
        self.handled += len(facts)
        for fact in facts:
            self._take_fact(fact, now)
        return self._end()

    def _take_command(self, command: messages.Command, now: float) -> None:  # noqa: C901, PLR0912  (an arm for each)
        """Do what the consumer wants."""
        match command:
            case messages.Tick():
                for timer in self._timers.due(now):
                    self._do(timer, now)
            case messages.Request(count):
                self._growth.request(count, now)
            case messages.TakeBack(count):
                self._growth.take_back(count, now)
            case messages.Remove(reasons):
                for known in self._table.known(reasons):
                    self._remove(known, reasons[known.id], now)
            case messages.Retain(instance, why):
                self._retain(self._table.by_id[instance], why)
            case messages.Unretain(instance):
                self._unretain(self._table.by_id[instance], now)
            case messages.PutToSleep(reasons):
                self._power.put_to_sleep(reasons, now)
            case messages.Wake(instances):
                self._power.wake(instances, now)
            case messages.AskHeartbeat(instance):
                self._hasten_heartbeat(instance)
            case messages.Crowded(crowded):
                self._growth.crowded = crowded
            case messages.ShutDown():
                self._shut_down(now)

    def _do(self, timer: Timer, now: float) -> None:  # noqa: C901, PLR0912  (an arm for each kind of timer)
        """Do what is due; what is due most stands first."""
        match timer.due:
            case Due.HEARTBEAT:
                self._turn.actions.append(messages.Heartbeat(self.pool, timer.id))
            case Due.RETURNED:
                self._departed.forget(now)
            case Due.VIEW:
                self._views.fetch(now)
            case Due.PREPARE:
                self._turn.actions.append(messages.Prepare(self.pool, timer.id))
            case Due.READY:
                known = self._table.by_id[timer.id]
                self._never_ready(known, self._late(known), now)
            case Due.AGE:
                self._age(self._table.by_id[timer.id])
            case Due.SUSPENDED:
                self._power.not_suspended(self._table.by_id[timer.id], "it had no effect", now)
            case Due.RESUMED:
                known = self._table.by_id[timer.id]
                self._power.not_resumed(known, self._late(known), now)
            case Due.DELETE:
                self._deletions.ask(self._table.by_id[timer.id], now)
            case Due.DECREASE:
                pass  # each turn ends with it
            case Due.ASK:
                self._growth.ask_again(self._growth.intents[timer.id], now)
            case Due.ANSWERED:
                pass  # each turn ends with it
            case Due.APPEARED:
                self._growth.intent_due(self._growth.intents[timer.id], now)
            case _:
                assert_never(timer.due)

    def _take_fact(self, fact: messages.Fact, now: float) -> None:  # noqa: C901, PLR0912  (an arm for each kind)
        """Take in what happened; what happens most stands first."""
        match fact:
            case messages.HeartbeatPassed(instance):
                self._heartbeat_ended(instance, "", now)
            case messages.Prepared(instance):
                self._prepared(instance, now)
            case messages.Updated(observation, changed):
                self._updated(observation, changed, now)
            case messages.UpdateFailed(_, retry_after):
                self._views.ended(now, expecting=self._expecting, at_least=retry_after or 0.0)
            case messages.Increased():
                self._growth.increased(fact, now)
            case messages.IncreaseFailed():
                self._growth.increase_failed(fact, now)
            case messages.NotAsked(intent):
                self._growth.not_asked(intent, now)
            case messages.Decreased(asked):
                self._deletions.answered(asked)
            case messages.DecreaseFailed():
                self._deletions.failed(fact, now)
            case messages.Withdrawn(asked, taken):
                self._growth.withdrawn(asked, taken, now)
            case messages.SuspendAccepted() | messages.SuspendFailed():
                self._power.suspend_answered(fact, now)
            case messages.ResumeAccepted() | messages.ResumeFailed():
                self._power.resume_answered(fact, now)
            case messages.PrepareFailed():
                self._prepare_failed(fact, now)
            case messages.HeartbeatFailed(instance, error):
                self._heartbeat_ended(instance, error, now)
            case messages.Noticed(instance, deadline, kind):
                self._noticed(instance, deadline, kind, now)
            case messages.Disowned(error):
                self._context.disowned = error
                self._turn.events.append(fact)
            case messages.ConnectionDied(instance):
                self._connection_died(instance, now)

    # --- the cloud's view --------------------------------------------------------------------------------

    def _updated(self, observation: Observation, changed: Collection[str] | None, now: float) -> None:
        """Compare the view with what we know; the only place that is O(n), if nobody says what of it has changed."""
        if observation.max_size is not None:
            self._growth.limit_to(observation.max_size)
        seen = observation.instances
        differing = self._views.compare(seen, changed, now)
        for known in self._table.known(differing.known):
            self._refresh(known, seen[known.id], now)
        for known in self._table.known(differing.missing):
            self._absent(known, now)
        self._growth.begin_view()
        first = differing.first
        refused = tuple(each for each in differing.fresh if not self._appeared(each, seen[each], now, first=first))
        if refused:
            self._views.refused = frozenset(refused)
            self._turn.events.append(messages.Refused(refused))
        self._views.compared(seen, differing.fresh)
        self._growth.expire(now)
        self._growth.note_problems(observation.problems, now)
        self._views.rest(now)
        self._views.ended(now, expecting=self._expecting)

    @property
    def _expecting(self) -> bool:
        """Whether the view should change soon."""
        waiting = self._table.count(Stage.WAITING) + self._table.count(Stage.REMOVING)
        return bool(self._growth.intents.outstanding or waiting or self._table.paused or self._power.falling)

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
        stage = known.phase.stage
        falls_asleep = stage is Stage.ASLEEP and known.state is not State.SUSPENDED
        waits = stage is Stage.WAITING and known.state is not State.CREATING  # for that there is nothing to do
        if waits or falls_asleep:
            self._views.look_at(known.id)  # something may be done then even if it shows what this one does

    def _note_shown(self, known: Instance, observed: Observed) -> None:
        """Remember what the view says, whatever it leads to."""
        if known.missed:
            known.missed = 0
            self._table.note_change(known)
        known.connection_dead = False
        if known.state is not observed.state:
            known.state = observed.state
            self._table.note_change(known)
            self._power.time_boot(known)
        known.offering = observed.offering or known.offering
        if observed.created_at not in {None, known.created_at}:
            known.created_at = observed.created_at
            self._table.note_change(known)
            self._watch_age(known)

    def _shown_running(self, known: Instance, now: float) -> None:
        """The view shows it running; as long as nobody knows what came of a call, only one fetched later counts."""
        if known.phase.stage is Stage.ASLEEP and not self._power.about_to_sleep(known.id):
            self._power.wake_up(known, Boot(Start.WOKEN), now)  # somebody else did
        if known.paused:
            self._unpause(known, now)
        if isinstance(known.phase, Waiting) and known.phase.unsure_since <= self._views.started:
            self._prepare(known, known.phase, now)

    def _shown_resting(self, known: Instance, now: float) -> None:
        """The view shows it suspended, or on the way there or back; not all of that is our doing."""
        resting = known.state in RESTING
        waits = isinstance(known.phase, Waiting) and known.phase.boot.start is not Start.RESUMED
        boots = waits or known.stage is Stage.PREPARING
        if known.stage is Stage.ASLEEP:
            if known.paused:
                self._unpause(known, now)
            self._timers.cancel(Timer(Due.SUSPENDED, known.id))
            if known.state is State.SUSPENDED:
                self._power.seen_suspended(known)
            elif not resting:
                self._power.wake_up(known, Boot(Start.WOKEN), now)
        elif self._power.suspends and resting and boots:
            self._power.fall_asleep(known, f"the cloud shows it as {known.state.value}", now)
        elif known.stage is not Stage.WAITING or not self._power.suspends:
            self._pause(known, f"it is {known.state.value}")

    def _absent(self, known: Instance, now: float) -> None:
        """It is not in the view: gone if that was to be expected, or if this is no single bad read."""
        known.missed += 1
        self._views.look_at(known.id)
        deletion = known.deletion
        expected = (deletion is not None and deletion.sent) or known.state is State.DELETING
        self.missed += not expected
        if expected or known.missed > 1 or known.connection_dead:
            self._gone(known, messages.LossKind.VANISHED, "the cloud no longer shows it", now)
        else:
            self._pause(known, "the cloud's last view did not show it")
            self._views.fetch_again()

    def _appeared(self, instance: str, observed: Observed, now: float, *, first: bool) -> bool:
        """A new one is in the view. Returns False if its presence is to be refused."""
        returned = instance in self._departed
        leaving = observed.state is State.DELETING
        if observed.state is State.DELETED or (leaving and returned) or instance in self._views.refused:
            return True
        intent = None if returned else self._growth.match(observed)
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
        early = self._views.early_notices.take(instance)
        if early is not None:  # be it overdue: the view may be later than that by as much as it lags
            self._noticed(*early, now)
        return True

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
        self._turn.write_instance(known.id)
        if intent is not None:
            self._growth.matched(intent)
        return known

    def _deleted_by_others(self, known: Instance, now: float) -> None:
        """The cloud is deleting it. If that was not us, its work goes on until it is gone."""
        if known.announced:
            self._pause(known, "somebody else is deleting it")
        elif known.stage not in LEAVING:
            self._start_removing(known, "somebody else is deleting it")
            self._deletions.ask_later(known, now)

    def _failed(self, known: Instance, now: float) -> None:
        """The cloud gave up on it; work is broken, and what is left of it is deleted."""
        if known.stage in LEAVING:
            return
        if known.stage is Stage.WAITING:
            pace, what = (self._power.resuming, "resumed") if known.announced else (self._growth, "created")
            pace.failed(f"instance {known.id} failed while it was {what}", now)
        why = "the cloud reports it as failed"
        self._remove(known, why, now, messages.Loss(messages.LossKind.FAILED, why))

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
            self._turn.write_instance(known.id)
        known.ready_since = now
        known.resume_failures = 0
        if preparing.boot.start is not Start.NEW:
            if preparing.boot.start is Start.RESUMED:
                self._power.resuming.succeeded()
        elif not too_old:
            self._growth.succeeded(known.offering)
        elif known.origin is Origin.REQUESTED and known.first_seen >= self._began:  # its like would be no younger
            self._growth.failed(f"instance {known.id} was older than max_instance_age before it was ready", now)
        if not too_old:
            self._watch_age(known)

    def too_old_at(self, known: Instance) -> float:
        """When it may be given no more work; infinite if there is no such time."""
        born = known.first_seen if known.created_at is None else known.created_at
        return born + (self.config.max_instance_age or inf)

    def _watch_age(self, known: Instance) -> None:
        """Note when it will be too old, if the consumer knows of it."""
        if known.up and self.config.max_instance_age:
            self._timers.set(Timer(Due.AGE, known.id), self.too_old_at(known))

    def _age(self, known: Instance) -> None:
        """It has reached its age."""
        if isinstance(known.phase, Ready):
            known.phase.too_old = True
        self._table.note_change(known)

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

    def _never_ready(self, known: Instance, reason: str, now: float) -> None:
        """It is of no use, and neither is what slept there."""
        (self._power.resuming if known.announced else self._growth).failed(f"instance {known.id}: {reason}", now)
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
        if ready.suspect != failed:
            ready.suspect = failed
            self._table.note_change(known)
        if not failed:
            self._turn.events.append(messages.Alive(known.id))

    def _noticed(self, instance: str, deadline: float, kind: NoticeKind, now: float) -> None:
        """It goes at *deadline*; of several notices the earliest counts. One may come before the view that shows it."""
        known = self._table.by_id.get(instance)
        if known is None:
            self._views.early_notices.keep(messages.Noticed(instance, deadline, kind), now)
        if known is None or known.stage in LEAVING:
            return
        before = known.notice
        known.announce(Notice(instance=instance, deadline=deadline, kind=kind))
        if known.notice is before:
            return
        self._table.note_change(known)
        if not known.announced:
            self._remove(known, "it goes before it was of use", now)

    def _connection_died(self, instance: str, now: float) -> None:
        """See at once whether it is still there, and whether it is healthy: not every cloud knows when it is gone."""
        known = self._table.by_id.get(instance)
        if known is None or known.stage is Stage.ASLEEP:  # of which nothing else is to be expected
            return
        known.connection_dead = True
        self._views.look_at(known.id)
        if known.missed and known.stage not in LEAVING:
            self._gone(known, messages.LossKind.VANISHED, "not in the cloud's view, and its connection died", now)
        elif isinstance(known.phase, Ready) and not known.phase.cut_off:
            known.phase.cut_off = True
            self._hasten_heartbeat(instance)
        self._views.fetch(now)

    def _pause(self, known: Instance, reason: str) -> None:
        """No new work for now."""
        if known.paused != reason:
            self._table.pause(known, reason)

    def _unpause(self, known: Instance, now: float) -> None:
        """All is well again."""
        self._table.pause(known, "")
        if isinstance(known.phase, Preparing) and known.phase.prepared:
            self._become_ready(known, known.phase, now)

    # --- shrinking ---------------------------------------------------------------------------------------

    def _retain(self, known: Instance, why: str) -> None:
        """Ask no more for its deletion."""
        self._table.retain(known, why)
        self._turn.write_instance(known.id)

    def _unretain(self, known: Instance, now: float) -> None:
        """If there was a reason to delete it meanwhile, that happens now."""
        self._table.retain(known, None)
        self._turn.write_instance(known.id)
        if isinstance(known.phase, Held):
            self._table.move(known, Removing(known.phase.why))
            self._deletions.ask(known, now)

    def _shut_down(self, now: float) -> None:
        """From now on deletions are retried at the shutdown's own interval."""
        self._context.shutting_down = True
        self._deletions.hasten(now)
        self._growth.give_up_queued(now)

    def _remove(self, known: Instance, reason: str, now: float, loss: messages.Loss | None = None) -> None:
        """Ask for its deletion, unless that was done before. *loss*: what befell it; None: nothing, it is given up."""
        if known.stage not in LEAVING:
            self._announce_loss(known, loss)
            self._start_removing(known, reason)
        if known.deletion is None:
            self._deletions.ask(known, now)

    def _start_removing(self, known: Instance, reason: str) -> None:
        """It is on its way out; nothing else is done with it."""
        self._table.move(known, Held(reason) if self.observing or known.retained is not None else Removing(reason))
        self._context.stop(known.id)
        self._power.forget(known.id)
        self._turn.write_instance(known.id)
        self._turn.actions.append(messages.Forget(self.pool, known.id))

    def _gone(self, known: Instance, kind: messages.LossKind, detail: str, now: float) -> None:
        """It is no more."""
        if known.announced:
            self._announce_loss(known, None if known.deletion is not None else messages.Loss(kind, detail))
        self._table.drop(known)
        if known.stage not in LEAVING:  # else it was stopped before
            self._context.stop(known.id)
        self._timers.cancel(Timer(Due.DELETE, known.id))
        self._power.forget(known.id)
        self._growth.gone(known.intent)
        self._turn.write_instance(known.id)
        self._departed.add(known.id, known.removing or detail, now)
        self._turn.actions.append(messages.Forget(self.pool, known.id))
        self._turn.events.append(messages.Ended(known.id))

    def _announce_loss(self, known: Instance, loss: messages.Loss | None) -> None:
        """Report that it is lost to work, if the consumer knows of it; it is to leave its stage at once."""
        if known.announced:
            self._turn.events.append(messages.Gone(known.id, loss))

    # --- bookkeeping -------------------------------------------------------------------------------------

    def _restore(self, recovered: Mapping[str, Mapping[str, Any]], now: float) -> None:
        """Take up what an earlier manager left; the first view shows what has become of it."""
        explained = Counter(record.intent for record in recovered.get(INSTANCE, {}).values())
        for key, intent in recovered.get(INTENT, {}).items():
            self._growth.restore(self._id(key), intent, explained[self._id(key)], now)
        for key, record in recovered.get(INSTANCE, {}).items():
            self._restore_instance(self._id(key), record, now)
        for key, lost in sorted(recovered.get(LOST, {}).items(), key=lambda item: item[1].until):
            self._departed.remember(self._id(key), lost.until)

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

    def _record(self, kind: str, id_: str) -> Write:
        """What the journal is to hold of it after this turn."""
        key = self._key(id_)
        if kind == LOST:
            until = self._departed.until(id_)
            return Drop(kind, key) if until is None else Put(kind, key, LostRecord(pool=self.pool, until=until))
        kept: Intent | Instance | None = self._growth.intents.get(id_) if kind == INTENT else self._table.by_id.get(id_)
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
        self._deletions.send(self._now)
        if self._growth.queued:
            self._growth.drop_blocked(self._now)
        changed = self._table.take_changed()
        if changed:
            turn.events += [messages.Changed(id_) for id_ in changed]
        elif turn.is_empty:
            return NOTHING
        if self.observing:
            step = Step((), [each for each in turn.actions if isinstance(each, messages.Update)], turn.events)
            turn.begin()
            return step
        if turn.suspensions:
            turn.actions.append(messages.Suspend(self.pool, tuple(turn.suspensions)))
        if turn.resumptions:
            turn.actions.append(messages.Resume(self.pool, tuple(turn.resumptions)))
        writes = [self._record(*each) for each in turn.writes]
        step = Step(writes, turn.actions, turn.events)
        turn.begin()
        return step
