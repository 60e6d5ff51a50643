"""The plan against a cloud that does whatever clouds do, with facts in any order and ticks at any time."""

from collections import Counter
from random import Random
from typing import Any

from attrs import Factory, define, evolve
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fleeting import (
    Notice,
    NoticeKind,
    Observation,
    Observed,
    PlanConfig,
    Preexisting,
    Problem,
    ProblemKind,
    ScaleThrottle,
    State,
)
from fleeting.core import NOTHING, Drop, Instance, Put, Stage, Step, messages
from fleeting.core._context import REMEMBER_LOST
from fleeting.core._intents import CLOCK_SKEW
from fleeting.core._pacing import UNANSWERED
from fleeting.core._records import INSTANCE, INTENT
from fleeting.core._stages import Ready, Unhealthy
from fleeting.events import Access, Availability, LossKind
from tests.strategies import EPOCH, NO_THROTTLE, QUICK, Records, a_plan, of_type, seeds

PICKS = st.integers(0, 1000)
OUTCOMES = ["all", "all", "all, without effect", "first", "none", "lost", "lost, but heard"]
CONFIG = PlanConfig(
    update_interval_when_expecting=10.0,
    deletion_retry_interval=20.0,
    failure_threshold=2,
    heartbeat_interval=30.0,
    intent_timeout=100.0,
    instance_ready_timeout=60.0,
    backoff_cap=40.0,
    scale_throttle=NO_THROTTLE,
)


@define
class Machine:
    """What really exists in the cloud."""

    state: State
    created_at: float
    intent: str | None
    """The truth; whether the cloud shows it is another matter."""


@define
class Cloud:
    """A naive cloud: machines, and what it heard of each intent."""

    named: bool
    dated: bool
    machines: dict[str, Machine] = Factory(dict)
    unfilled: list[str] = Factory(list)
    """An intent for each machine that was accepted and does not exist yet."""

    heard: dict[str, int] = Factory(dict)
    """How many were accepted, by intent."""

    born: int = 0

    def create(self, intent: str | None, now: float, state: State = State.CREATING) -> str:
        """A machine comes to exist."""
        self.born += 1
        id_ = f"i{self.born}"
        self.machines[id_] = Machine(state, now, intent)
        return id_

    def increase(self, intent: str, accepted: int) -> int:
        """Idempotent per intent, where they are named."""
        if self.named and intent in self.heard:
            return self.heard[intent]
        self.heard[intent] = self.heard.get(intent, 0) + accepted
        self.unfilled += [intent] * accepted
        return accepted

    def fill(self, now: float) -> None:
        """What was accepted last comes first: clouds keep no order."""
        self.create(self.unfilled.pop(), now)

    def show(self) -> dict[str, Observed]:
        """The true view."""
        return {id_: self._show(machine) for id_, machine in self.machines.items()}

    def _show(self, machine: Machine) -> Observed:
        return Observed(
            state=machine.state,
            created_at=machine.created_at if self.dated else None,
            intent=machine.intent if self.named else None,
        )


@define(eq=False)  # messages of two kinds with the same fields are equal
class Call:
    """An action under way."""

    action: Any
    stale: dict[str, Observed]
    """What the cloud showed when it was begun."""

    began: float

    accepted: int | None = None
    """What an increase has come to already, though its answer is still on the way."""


@define
class Asked:
    """The model's own book of an intent."""

    count: int
    requested_at: float
    asked_at: float
    fresh: bool = True
    """Whether the cloud was not asked for it yet."""

    calls: int = 1
    """Under way now."""

    unanswered: bool = False
    """Whether some call may have been heard though nobody knows."""

    accepted: int | None = None
    matched: int = 0
    withdrawn: int = 0

    @property
    def outstanding(self) -> int:
        """What may still appear."""
        most = self.count if self.accepted is None else self.accepted
        return max(0, most - self.withdrawn - self.matched)


@define
class Early:
    """A notice that may have come before the view that shows its instance."""

    goes_at: float
    kept_until: float
    """Two views in a row that are fetched from then on, and do not show the instance, let it be forgotten."""

    missed: int = 0


@define
class Seen:
    """The model's own book of an instance: what views and facts said of it."""

    missed: int = 0
    dead: bool = False
    woke: float | None = None
    """When it last was woken: what was announced for later than that counts, however long it takes to be ready."""

    failures: int = 0
    cut: bool = False
    """Whether a connection died since the last heartbeat."""

    cut_off: bool = False
    """Whether the last heartbeat failed, and before it a connection died."""
    noticed: bool = False
    asked: bool = False
    """Whether its deletion was asked for."""

    state: State | None = None
    up: bool = False
    """Between when it was first ready or asleep and `Gone`."""

    ready: bool = False
    asleep: bool = False
    falls_asleep_until: float = -1e9
    """Until when the cloud, which has taken it, has time to suspend it."""

    unsure_since: float = -1e9
    """When a call to suspend it came to nothing, as far as anybody knows."""

    paused: bool = False
    first_seen: float = 0.0
    created_at: float | None = None
    """As the views told this manager."""

    aged: bool = False
    """Whether those on top could read that it is too old."""

    notice: Notice | None = None
    """The last one that those on top could read since it is ready."""


class PlanMachine(RuleBasedStateMachine):
    """One group, its manager, and restarts of it."""

    @initialize(
        ceiling=st.integers(0, 4),
        preexisting=st.sampled_from(Preexisting),
        named=st.booleans(),
        dated=st.booleans(),
        withdraws=st.booleans(),
        suspends=st.booleans(),
        breaks=st.booleans(),
        throttle=st.sampled_from([NO_THROTTLE, ScaleThrottle(limit=0.3, burst=2)]),
        age=st.sampled_from([0.0, 0.0, 25.0, 150.0]),
        on_acquire=st.booleans(),
        there=st.integers(0, 2),
        up=st.integers(0, 3),
        seed=seeds,
    )
    def start(
        self,
        *,
        ceiling: int,
        preexisting: Preexisting,
        named: bool,
        dated: bool,
        withdraws: bool,
        suspends: bool,
        breaks: bool,
        throttle: ScaleThrottle,
        age: float,
        on_acquire: bool,
        there: int,
        up: int,
        seed: int,
    ) -> None:
        """Any settings, over a group that may hold something already."""
        self.config = evolve(
            CONFIG,
            max_instances=ceiling,
            preexisting=preexisting,
            unhealthy_breaks_jobs=breaks,
            scale_throttle=throttle,
            max_instance_age=age,
            heartbeat_on_acquire=on_acquire,
        )
        self.withdraws = withdraws
        self.given_up: set[str] = set()
        """Intents of which requests were taken back, or some others were: their instances may stand for these."""

        self.suspends = suspends
        self.random = Random(seed)
        self.now = EPOCH
        self.life = 0
        self.cloud = Cloud(named, dated)
        for _ in range(there):
            self.cloud.create(None, self.now - 1000, State.RUNNING)
        self.records = Records()
        self.asked: dict[str, Asked] = {}
        self.noted: dict[str, Availability] = {}
        """What somebody knows of each instance who reads it whenever the plan says that it changed, and only then."""

        self.ended: dict[str, float] = {}
        self.problems: tuple[Problem, ...] = ()
        self.seen: dict[str, Seen] = {}
        self.open_plan()
        self.run_plan()
        self.all_goes_well(0.0)
        self.request(up)
        self.all_goes_well(5.0)

    # --- driving ---------------------------------------------------------------------------------------------

    def open_plan(self) -> None:
        """A manager opens the journal; of an earlier one nothing else is left."""
        self.life += 1
        kept = {kind: dict(records) for kind, records in self.records.kinds.items()}
        self.begin_plan(self.random.getrandbits(64), kept)

    def begin_plan(self, seed: int, recovered: dict[str, dict[str, Any]]) -> None:
        """A plan that begins from these records; two of the same seed and records are equal."""
        self.plan = a_plan(
            self.config,
            now=self.now,
            named=self.cloud.named,
            withdraws=self.withdraws,
            suspends=self.suspends,
            recovered=recovered,
            seed=seed,
            life=self.life,
        )

    def run_plan(self) -> None:
        """And starts."""
        self.journal_was_empty = not any(self.records.kinds.values())
        self.calls: list[Call] = []
        self.seen = {id_: Seen(first_seen=self.seen[id_].first_seen) for id_ in self.plan.instances}
        self.noted = {id_: each.availability for id_, each in self.plan.instances.items()}
        self.refused: set[str] = set()
        self.views = 0
        self.view_began = -1e9
        self.early: dict[str, Early] = {}
        """Notices to this manager, by instance."""

        self.wanted_asleep = ""
        self.tick()

    def tick(self) -> None:
        """Do what is due; a core that wants to be woken at once, for ever, would spin."""
        self.took(self.plan.tick(self.now))
        wake_at = self.plan.wake_at
        assert wake_at is None or wake_at > self.now, "a busy loop"
        for id_, known in self.seen.items():
            assert known.aged or not known.ready or not self.too_old(id_), "too old, and nobody was told"

    def too_old(self, id_: str) -> bool:
        """Whether it has reached its age, as far as anybody can know."""
        known, age = self.seen[id_], self.config.max_instance_age
        born = known.first_seen if known.created_at is None else known.created_at
        return bool(age) and self.now >= born + age

    def feed(self, fact: messages.Fact) -> Step:
        """Hand it to the plan, and follow what it makes of it."""
        return self.took(self.plan.handle(fact, self.now))

    def took(self, step: Step) -> Step:
        """Follow a step: writes, then events, then actions."""
        for write in sorted(step.writes, key=lambda each: isinstance(each, Drop)):  # one commit has no order
            self.check_write(write)
        self.records.apply(step.writes)
        for event in step.events:
            self.check_event(event)
        for action in step.actions:
            self.perform(action)
        return step

    def check_write(self, write: Put | Drop) -> None:
        """Match new instances in the model's book; no intent is forgotten while something may come of it."""
        id_ = write.key.removeprefix("default/")
        match write:
            case Put("instance", _, record) if id_ not in self.seen:
                state = self.shown[id_].state
                self.seen[id_] = Seen(first_seen=self.now, state=state, noticed=self.early.pop(id_, None) is not None)
                if record.intent is not None:
                    self.check_match(id_, record.intent)
            case Put("intent", _, record) if id_ not in self.asked:
                self.asked[id_] = Asked(record.count, self.now, self.now)
            case Drop("intent", _):
                asked = self.asked.pop(id_)
                expired = not asked.calls and self.now >= asked.asked_at + self.config.intent_timeout
                assert expired or not asked.outstanding, "an intent that may still bring something was forgotten"

    def check_match(self, id_: str, intent: str) -> None:
        """Matched by the intent it carries, else by count and time."""
        asked, machine = self.asked[intent], self.cloud.machines.get(id_)
        assert asked.outstanding, "more instances than the intent asked for"
        if machine is not None and self.cloud.named:
            assert machine.intent == intent or machine.intent in self.given_up
        elif machine is not None and self.cloud.dated:
            assert machine.created_at >= asked.requested_at - CLOCK_SKEW
        asked.matched += 1

    def check_event(self, event: messages.Event) -> None:
        """What changes, changes as the model has it; then Gone. Ended is the last that is heard of it."""
        if isinstance(event, messages.Refused | messages.Disowned):
            self.check_group_event(event)
            return
        known = self.seen[event.instance]
        match event:
            case messages.Changed(id_):
                self.noted[id_] = self.plan.instances[id_].availability
                self.check_change(self.plan.instances[id_], known)
            case messages.Alive():
                assert known.ready
                assert self.config.heartbeat_on_acquire
                assert not known.failures
            case messages.Gone(_, loss):
                assert known.up
                known.up = known.ready = known.asleep = False
                self.check_loss(known, loss)
            case messages.Ended(id_):
                assert not known.up, "it ended, and nobody was told that it was gone"
                self.check_end(known)
                self.ended[id_] = self.now
                del self.seen[id_]

    def check_change(self, instance: Instance, known: Seen) -> None:
        """Ready, until it sleeps, or is lost for good; what else there is to read of it has a reason."""
        if known.asleep and instance.stage is not Stage.ASLEEP:
            assert self.now >= known.falls_asleep_until, "an old view was believed"
            known.asleep, known.woke = False, self.now
        elif instance.stage is Stage.ASLEEP and not known.asleep:
            self.check_sleep(instance, known)
        if instance.up:
            self.check_up(instance, known)

    def check_up(self, instance: Instance, known: Seen) -> None:
        """It is ready, or was until it turned out unhealthy."""
        if not known.ready:
            assert not known.missed, "ready while the view does not show it"
            assert self.ended.get(instance.id, -1e9) + REMEMBER_LOST <= self.now, "a lost instance was used again"
            assert known.up or instance.notice is None, "ready for the first time though it is about to go"
            assert isinstance(instance.phase, Ready), "unhealthy though it never was ready"
            assert instance.phase.too_old == self.too_old(instance.id)
            known.up = known.ready = True
        match instance.phase:
            case Ready(too_old=too_old, suspect=suspect):
                assert not too_old or known.aged or self.too_old(instance.id)
                assert not known.aged or too_old, "it became younger"
                known.aged, known.paused = too_old, bool(instance.paused) or suspect
            case Unhealthy():
                assert known.cut_off or known.failures >= self.config.failure_threshold
                known.aged = known.aged or self.too_old(instance.id)
        if instance.notice is not None and instance.notice != known.notice:
            assert instance.notice.deadline > (self.now if known.woke is None else known.woke)
            assert known.noticed
            known.notice = instance.notice

    def check_group_event(self, event: messages.Refused | messages.Disowned) -> None:
        """A group is refused at the first view, and only where the journal explains nothing."""
        if isinstance(event, messages.Refused):
            assert self.views == 1, "refused later than at the first view"
            assert self.journal_was_empty, "what the journal explains may not be refused"
            assert self.config.preexisting is Preexisting.REFUSE
            self.refused |= set(event.instances)

    def check_sleep(self, instance: Instance, known: Seen) -> None:
        """Asleep because those on top want it, or a view shows it."""
        assert self.suspends
        assert instance.asleep
        wanted = instance.id == self.wanted_asleep
        assert wanted or known.state in {State.SUSPENDING, State.SUSPENDED}, "for no reason"
        known.up = known.asleep = True
        known.ready = known.paused = known.aged = known.cut = False
        known.failures, known.notice = 0, None

    def check_loss(self, known: Seen, loss: messages.Loss | None) -> None:
        """Work is broken for one of the known reasons only."""
        if loss is not None and loss.kind is LossKind.FAILED:
            assert known.state is State.FAILED
        elif loss is not None and loss.kind is LossKind.UNHEALTHY:
            assert not known.ready
            assert known.state not in {State.SUSPENDING, State.SUSPENDED}, "lost though it only sleeps on"
        elif loss is not None:
            self.check_end(known)

    def check_end(self, known: Seen) -> None:
        """One bad read kills nothing."""
        deleted = known.state is State.DELETED
        expected = known.missed and (known.asked or known.state is State.DELETING or known.dead)
        assert deleted or expected or known.missed > 1, "lost after one bad read"

    def perform(self, action: messages.Action) -> None:
        """Begin what the shell would begin, if it was written first."""
        if isinstance(action, messages.Forget):
            self.calls = [call for call in self.calls if getattr(call.action, "instance", "") != action.instance]
            return
        match action:
            case messages.Update():
                assert not self.under_way(messages.Update), "two views are fetched at once"
            case messages.Prepare(_, id_):
                assert self.view_began >= self.seen[id_].unsure_since, "prepared though nobody knows whether it runs"
            case messages.Increase(_, intent, count):
                self.check_increase(intent, count)
            case messages.Decrease(_, instances):
                assert len(set(instances)) == len(instances)
                others = [call.began for call in self.under_way(messages.Decrease)]
                assert all(began + UNANSWERED <= self.now for began in others), "a call of its own"
                for id_ in instances:
                    assert self.records[INSTANCE][f"default/{id_}"].retained is None, "deleted though it is retained"
                    assert self.records[INSTANCE][f"default/{id_}"].removing, "deleted before it was written"
                    assert not self.seen[id_].up, "deleted before those on top were told"
                    self.seen[id_].asked = True
            case messages.Heartbeat(_, id_):
                asked = [call.action.instance for call in self.under_way(messages.Heartbeat)]
                assert id_ not in asked, "asked twice at once"
            case messages.Suspend(_, instances) | messages.Resume(_, instances):
                self.check_turn(instances, sleeps=isinstance(action, messages.Suspend))
            case messages.Withdraw(_, count):
                assert self.withdraws
                assert not self.under_way(messages.Withdraw), "two withdrawals at once"
                assert 0 < count <= sum(asked.outstanding for asked in self.asked.values() if not asked.calls)
        self.calls.append(Call(action, self.cloud.show(), self.now))

    def check_turn(self, instances: tuple[str, ...], *, sleeps: bool) -> None:
        """Durable first, of those on top nobody counts on it any more, and one call at a time."""
        assert self.suspends
        assert len(set(instances)) == len(instances)
        under_way = {id_ for kind in (messages.Suspend, messages.Resume) for id_ in self.turning(kind)}
        for id_ in instances:
            assert bool(self.records[INSTANCE][f"default/{id_}"].asleep) == sleeps, "asked for before it was written"
            assert not self.seen[id_].ready, "asked for before those on top were told"
            assert self.seen[id_].asleep == sleeps
            assert id_ not in under_way, "asked for before the last call was answered"

    def turning(self, kind: type[messages.Suspend | messages.Resume]) -> list[str]:
        """Those that the cloud is being asked to suspend, or to resume."""
        return [id_ for call in self.under_way(kind) for id_ in call.action.instances]

    def check_increase(self, intent: str, count: int) -> None:
        """Durable first; never above the ceiling; asked for again only where that is idempotent."""
        record = self.records[INTENT][f"default/{intent}"]
        assert record.count == count, "asked for before it was written"
        asked = self.asked[intent]
        asked.asked_at = self.now
        first = not any(call.action.intent == intent for call in self.under_way(messages.Increase))
        assert not (first and asked.fresh and self.under_way(messages.Increase)), "a call of its own"
        asked.fresh = False
        assert not self.plan.disowned, "asked for in somebody else's group"
        assert self.views, "asked for before the group was seen"
        if self.config.max_instances:
            outstanding = sum(each.outstanding for each in self.asked.values())
            assert len(self.records[INSTANCE]) + outstanding <= self.config.max_instances, "above the ceiling"
        if record.requested_at < self.now:
            assert self.cloud.named, "asked for twice"
            asked.calls += 1

    def under_way(self, kind: type[object]) -> list[Call]:
        """The calls of that kind that were not answered yet."""
        return [call for call in self.calls if isinstance(call.action, kind)]

    def take(self, kind: type[object], pick: int) -> Call:
        """One of the calls of that kind is answered."""
        among = self.under_way(kind)
        call = among[pick % len(among)]
        self.calls.remove(call)
        return call

    def view(self, instances: dict[str, Observed], began: float) -> Step:
        """A view arrives, fetched from that time on; the model notes what it says before the plan is told."""
        self.views += 1
        fresh = [id_ for id_ in instances if id_ not in self.seen]
        self.view_began, self.shown = began, instances
        for id_, known in self.seen.items():
            if id_ in instances:
                known.missed, known.dead, known.state = 0, False, instances[id_].state
                if known.state is not State.RUNNING:
                    known.falls_asleep_until = -1e9
                known.created_at = instances[id_].created_at or known.created_at
            else:
                known.missed += 1
        step = self.feed(messages.Updated(Observation(instances, self.problems)))
        for id_, each in self.early.items():
            each.missed = 0 if id_ in instances else each.missed + (began >= each.kept_until)
        self.early = {id_: each for id_, each in self.early.items() if each.missed < 2}
        for known in self.seen.values():
            assert known.missed < 2, "missing twice, and still not lost"
        for id_ in fresh:
            self.check_fresh(id_, instances[id_])
        return step

    def check_fresh(self, id_: str, observed: Observed) -> None:
        """Lost ones are deleted; what nothing of ours explains is treated as the policy says."""
        known = self.plan.instances.get(id_)
        if known is None:
            assert id_ in self.refused or observed.state in {State.DELETED, State.DELETING}
            return
        self.seen[id_].state, self.seen[id_].created_at = observed.state, observed.created_at
        if self.ended.get(id_, -1e9) + REMEMBER_LOST > self.now:
            assert known.stage is Stage.REMOVING, "a lost instance that came back is deleted"
        elif known.intent is None:
            adopted = self.config.preexisting is Preexisting.ADOPT and not self.seen[id_].noticed
            spoilt = observed.state in {State.FAILED, State.DELETING, State.DELETED}
            assert (known.stage is not Stage.REMOVING) == (adopted and not spoilt)
        if self.seen[id_].noticed:
            done_for = known.stage in {Stage.REMOVING, Stage.ASLEEP}  # asleep, it may outlive the notice
            assert done_for, "one that is about to go, or should have gone, is not made ready"

    # --- those on top ----------------------------------------------------------------------------------------

    @rule(count=st.integers(1, 5))
    def request(self, count: int) -> None:
        """More are wanted."""
        self.took(self.plan.request(count, self.now))

    @precondition(lambda self: self.plan.instances)
    @rule(pick=PICKS)
    def remove(self, pick: int) -> None:
        """One is not needed any more."""
        id_ = list(self.plan.instances)[pick % len(self.plan.instances)]
        self.took(self.plan.remove(dict.fromkeys([id_, "unknown"], "not needed"), self.now))
        known = self.plan.instances[id_]
        assert known.stage is (Stage.REMOVING if known.retained is None else Stage.HELD)

    @precondition(lambda self: any(each.stage is not Stage.REMOVING for each in self.plan.instances.values()))
    @rule(pick=PICKS)
    def retain(self, pick: int) -> None:
        """One must not be deleted, whatever befalls it."""
        kept = [id_ for id_, each in self.plan.instances.items() if each.stage is not Stage.REMOVING]
        self.took(self.plan.retain(kept[pick % len(kept)], "to look at it"))

    @precondition(lambda self: self.plan.instances)
    @rule(pick=PICKS)
    def unretain(self, pick: int) -> None:
        """One may be deleted again; if there was a reason, it is deleted now."""
        id_ = list(self.plan.instances)[pick % len(self.plan.instances)]
        held = self.plan.instances[id_].stage is Stage.HELD
        step = self.took(self.plan.unretain(id_, self.now))
        asked = [each for action in of_type(messages.Decrease, step.actions) for each in action.instances]
        deletion = self.plan.instances[id_].deletion
        assert asked == ([id_] if held and not self.under_way(messages.Decrease) else asked and [id_])
        assert not held or (deletion is not None and deletion.asked_at == self.now)

    @precondition(lambda self: self.plan.instances)
    @rule(pick=PICKS)
    def suspend(self, pick: int) -> None:
        """Nothing runs on one, and something may have to be kept there."""
        id_ = list(self.plan.instances)[pick % len(self.plan.instances)]
        may, running = self.plan.may_suspend(id_), self.plan.instances[id_].state is State.RUNNING
        assert self.suspends or not may
        self.wanted_asleep = id_
        step = self.took(self.plan.suspend(dict.fromkeys([id_, "unknown"], "nothing runs there"), self.now))
        self.wanted_asleep = ""
        assert [each.instances for each in of_type(messages.Suspend, step.actions)] == [(id_,)] * (may and running)
        assert self.seen[id_].asleep or not may

    @precondition(lambda self: self.plan.asleep)
    @rule(pick=PICKS)
    def resume(self, pick: int) -> None:
        """One that sleeps is wanted."""
        asleep = [id_ for id_, known in self.seen.items() if known.asleep]
        id_ = asleep[pick % len(asleep)]
        may = self.plan.may_resume(id_)
        step = self.took(self.plan.resume([id_, "unknown"], self.now))
        assert [each.instances for each in of_type(messages.Resume, step.actions)] == [(id_,)] * may

    @precondition(lambda self: self.suspends and any(known.ready for known in self.seen.values()))
    @rule(
        pick=PICKS,
        falls=st.sampled_from([*OUTCOMES, None]),
        wakes=st.sampled_from([*OUTCOMES, None, None]),
        at_once=st.booleans(),
        seconds=st.sampled_from([0.0, 5.0, 61.0]),
    )
    def sleep_and_wake(self, pick: int, falls: str | None, wakes: str | None, at_once: bool, seconds: float) -> None:  # noqa: FBT001  (drawn)
        """One is to sleep, and then not; whatever the cloud answers, and when."""
        ready = [id_ for id_, known in self.seen.items() if known.ready]
        self.suspend(list(self.plan.instances).index(ready[pick % len(ready)]))
        if self.under_way(messages.Suspend):
            if falls is None:  # the answer is late
                self.turn(messages.Suspend, self.under_way(messages.Suspend)[0].action.instances, at_once=True)
            else:
                self.answer_turn(falls, True, at_once)
        self.look(False, pick)
        if self.plan.asleep:
            self.resume(pick)
        if self.under_way(messages.Resume):
            self.wake(pick, wakes, at_once=at_once)
        self.look(False, pick)
        self.time_passes(seconds)

    def wake(self, pick: int, how: str | None, *, at_once: bool) -> None:
        """The cloud answers; or one runs, or is even ready, before it is known that the answer was lost."""
        if how is None:
            self.turn(messages.Resume, self.under_way(messages.Resume)[0].action.instances, at_once=True)
            self.look(False, pick)
            if at_once and self.under_way(messages.Prepare):
                self.answer_prepare(pick, "passed")
        self.answer_turn(how or "lost", False, at_once)

    @rule(pick=PICKS, passed=st.booleans())
    def ask_heartbeat(self, pick: int, passed: bool) -> None:  # noqa: FBT001  (drawn)
        """Work is to be put on one, if it is alive: whoever is ready is asked, and some answer at once."""
        ids = [*self.plan.instances, "unknown"]
        id_ = ids[pick % len(ids)]
        ready = id_ in self.seen and self.plan.instances[id_].stage is Stage.READY
        self.took(self.plan.ask_heartbeat(id_))
        asked = [call.action.instance for call in self.under_way(messages.Heartbeat)]
        assert (id_ in asked) == ready
        if ready and passed:
            self.answer_heartbeat(asked.index(id_), passed=True)

    @precondition(lambda self: self.withdraws and self.plan.outstanding > 0)
    @rule(count=st.integers(1, 4))
    def withdraw(self, count: int) -> None:
        """Unfilled requests are not needed any more."""
        self.took(self.plan.withdraw(count))

    @precondition(lambda self: self.withdraws)
    @rule(count=st.integers(1, 3), part=st.sampled_from([0.0, 0.5, 1.0]))
    def change_of_mind(self, count: int, part: float) -> None:
        """More are wanted and accepted, and then not wanted any more."""
        self.request(count)
        for call in list(self.under_way(messages.Increase)):
            if call.accepted is None:
                call.accepted = self.cloud.increase(call.action.intent, call.action.count)
            self.answer_increase_to(call)
        self.withdraw(count)
        if self.under_way(messages.Withdraw):
            self.answer_withdraw(part)

    @rule(seconds=st.sampled_from([0.0, 0.5, 2.0, 10.0, 30.0, 60.0, 120.0]))
    def time_passes(self, seconds: float) -> None:
        """Ticks come late, as after a long pause of the process."""
        self.now += seconds
        self.tick()

    @precondition(lambda self: self.plan.wake_at is not None)
    @rule()
    def time_passes_exactly(self) -> None:
        """Ticks come on time."""
        self.now = max(self.now, self.plan.wake_at or 0.0)
        self.tick()

    @rule(heard=st.booleans())
    def crash(self, heard: bool) -> None:  # noqa: FBT001  (drawn)
        """The manager dies, and another takes over from the journal; what was under way may have been heard."""
        for call in self.calls:
            if isinstance(call.action, messages.Increase) and heard and call.accepted is None:
                self.cloud.increase(call.action.intent, call.action.count)
        for asked in self.asked.values():
            asked.unanswered = asked.unanswered or bool(asked.calls)
            asked.calls = 0
            asked.asked_at = asked.requested_at  # all that the journal tells of the time
        known, retained = set(self.plan.instances), self.plan.retained
        total = self.plan.total - self.plan.queued  # which the cloud was not asked for
        self.open_plan()
        assert self.plan.retained == retained, "a restart forgot what must not be deleted"
        assert set(self.plan.instances) == known, "a restart lost sight of an instance"
        assert self.plan.total == total, "a restart forgot what counts against the ceiling"
        self.run_plan()

    # --- what the cloud answers ------------------------------------------------------------------------------

    @precondition(lambda self: self.under_way(messages.Update))
    @rule(how=st.sampled_from(["true", "true", "stale", "drop", "fail"]), pick=PICKS)
    def answer_update(self, how: str, pick: int) -> None:
        """A view arrives: true, as old as the call, short of one instance, or not at all."""
        call = self.take(messages.Update, 0)
        shown = call.stale if how == "stale" else self.cloud.show()
        if how == "drop" and shown:
            del shown[list(shown)[pick % len(shown)]]
        if how == "fail":
            self.feed(messages.UpdateFailed("timed out"))
        else:
            self.view(shown, call.began)

    @rule(short=st.booleans(), pick=PICKS)
    def look(self, short: bool, pick: int) -> None:  # noqa: FBT001  (drawn)
        """The next view is waited for, and shows what there is, or all but one."""
        while not self.under_way(messages.Update):
            assert self.plan.wake_at is not None
            self.now = max(self.now, self.plan.wake_at)
            self.tick()
        self.answer_update("drop" if short else "true", pick)

    @precondition(lambda self: self.is_quiet and not self.problems)
    @rule()
    def view_in_quiet_time(self) -> None:
        """A view that shows what the last one did leads to the next view, and to nothing else: it may be skipped."""
        quiet_until, self.now = self.plan.quiet_until, max(self.now, self.plan.view_at or 0.0)
        step = self.took(self.plan.tick(self.now))
        assert (step.writes, step.actions, step.events) == ([], [messages.Update("default")], [])
        assert self.view(dict(self.shown), self.take(messages.Update, 0).began) is NOTHING
        assert self.plan.view_at == self.now + self.config.update_interval
        assert self.plan.quiet_until == quiet_until

    @property
    def is_quiet(self) -> bool:
        """Whether nothing but the next view is due before it."""
        at = self.plan.view_at
        return at is not None and max(at, self.now) < self.plan.quiet_until

    @precondition(lambda self: any(call.accepted is None for call in self.under_way(messages.Increase)))
    @rule(pick=PICKS, part=st.floats(0.0, 1.0))
    def hear_increase(self, pick: int, part: float) -> None:
        """The cloud takes it, in whole or in part; the answer is on its way."""
        calls = [call for call in self.under_way(messages.Increase) if call.accepted is None]
        call = calls[pick % len(calls)]
        assert isinstance(call.action, messages.Increase)
        call.accepted = self.cloud.increase(call.action.intent, round(call.action.count * part))

    @precondition(lambda self: self.under_way(messages.Increase))
    @rule(pick=PICKS, lost=st.booleans(), retry_after=st.sampled_from([None, 15.0]))
    def answer_increase(self, pick: int, lost: bool, retry_after: float | None) -> None:  # noqa: FBT001  (drawn)
        """The answer arrives, or is lost; what was not heard failed."""
        call = self.take(messages.Increase, pick)
        intent = call.action.intent
        asked = self.asked.get(intent)
        if asked is not None:
            asked.calls -= 1
            if lost:
                asked.unanswered = True
            elif call.accepted is not None and (call.accepted or not asked.unanswered):
                asked.accepted, asked.unanswered, asked.asked_at = call.accepted, False, self.now
            elif not asked.unanswered:
                asked.accepted = asked.matched
        if lost:
            self.feed(messages.IncreaseFailed(intent, "timed out", False, retry_after))
        elif call.accepted is None:
            self.feed(messages.IncreaseFailed(intent, "no capacity", True, retry_after))
        else:
            self.feed(messages.Increased(intent, call.accepted))

    @precondition(lambda self: any(call.accepted is None for call in self.under_way(messages.Increase)))
    @rule(pick=PICKS)
    def never_ask(self, pick: int) -> None:
        """It waited for the journal, which failed for a while, and is not sent any more."""
        calls = [call for call in self.under_way(messages.Increase) if call.accepted is None]
        call = calls[pick % len(calls)]
        assert isinstance(call.action, messages.Increase)
        self.calls.remove(call)
        asked = self.asked.get(call.action.intent)
        if asked is not None:
            asked.calls -= 1
            if not asked.unanswered:
                asked.accepted = asked.matched
        self.feed(messages.NotAsked(call.action.intent))

    @precondition(lambda self: self.cloud.unfilled)
    @rule()
    def appear(self) -> None:
        """What was accepted comes to exist."""
        self.cloud.fill(self.now)

    @precondition(lambda self: self.cloud.unfilled)
    @rule()
    def never_appear(self) -> None:
        """What was accepted never comes, and nobody says so."""
        self.cloud.unfilled.pop(0)

    @precondition(lambda self: self.under_way(messages.Decrease))
    @rule(pick=PICKS, how=st.sampled_from(["all", "all", "first", "none", "lost"]), state=st.booleans())
    def answer_decrease(self, pick: int, how: str, state: bool) -> None:  # noqa: FBT001  (drawn)
        """Accepted in whole, in part or not at all; gone at once, or shown as being deleted."""
        instances = self.take(messages.Decrease, pick).action.instances
        accepted = {"all": instances, "lost": instances, "first": instances[:1], "none": ()}[how]
        for id_ in accepted:
            self.delete(id_, at_once=state)
        for id_ in instances:
            if id_ in self.seen:  # it may be there once more since it was asked for
                self.seen[id_].asked = True
        if how in {"none", "lost"}:
            self.feed(messages.DecreaseFailed(instances, "timed out", 5.0))
        else:
            self.feed(messages.Decreased(instances, accepted))

    def delete(self, id_: str, *, at_once: bool) -> None:
        """It is gone, or shown as going."""
        if at_once:
            self.cloud.machines.pop(id_, None)
        elif id_ in self.cloud.machines:
            self.cloud.machines[id_].state = State.DELETING

    @precondition(lambda self: self.under_way(messages.Suspend) or self.under_way(messages.Resume))
    @rule(how=st.sampled_from(OUTCOMES), sleeps=st.booleans(), at_once=st.booleans())
    def answer_turn(self, how: str, sleeps: bool, at_once: bool) -> None:  # noqa: FBT001  (drawn)
        """Accepted in whole, in part or not at all; done at once, or shown as being done, or neither."""
        sleeps = bool(self.under_way(messages.Suspend)) and (sleeps or not self.under_way(messages.Resume))
        kind = messages.Suspend if sleeps else messages.Resume
        instances = self.take(kind, 0).action.instances
        accepted = {"first": instances[:1], "none": (), "lost": ()}.get(how, instances)
        if how != "all, without effect":
            self.turn(kind, accepted, at_once=at_once)
        if sleeps:
            self.answer_suspend(instances, None if how.startswith("lost") else accepted)
        elif how.startswith("lost"):
            self.feed(messages.ResumeFailed(instances, "no room"))
        else:
            self.feed(messages.ResumeAccepted(instances, accepted))

    def answer_suspend(self, instances: tuple[str, ...], accepted: tuple[str, ...] | None) -> None:
        """So many were accepted; None: nobody knows."""
        for known in [self.seen[id_] for id_ in instances if id_ in self.seen]:
            taken = accepted is not None and known in [self.seen.get(id_) for id_ in accepted]
            if known.asleep and taken and known.state is State.RUNNING:
                known.falls_asleep_until = self.now + self.config.deletion_retry_interval
            elif known.asleep and known.state is State.RUNNING:
                known.unsure_since = self.now
        if accepted is None:
            self.feed(messages.SuspendFailed(instances, "timed out"))
        else:
            self.feed(messages.SuspendAccepted(instances, accepted))

    def turn(self, kind: type[object], instances: tuple[str, ...], *, at_once: bool) -> None:
        """They fall asleep, or wake up."""
        for machine in [self.cloud.machines[id_] for id_ in instances if id_ in self.cloud.machines]:
            if kind is messages.Suspend and machine.state is State.RUNNING:
                machine.state = State.SUSPENDED if at_once else State.SUSPENDING
            elif kind is messages.Resume and machine.state is State.SUSPENDED:
                machine.state = State.RUNNING if at_once else State.RESUMING

    @precondition(lambda self: self.under_way(messages.Withdraw))
    @rule(part=st.sampled_from([0.0, 0.5, 1.0, 1.0]))
    def answer_withdraw(self, part: float) -> None:
        """Some unfilled requests are taken back; which, the cloud does not say."""
        asked = self.take(messages.Withdraw, 0).action.count
        taken = min(round(asked * part), len(self.cloud.unfilled))
        del self.cloud.unfilled[len(self.cloud.unfilled) - taken :]
        before = sum(each.outstanding for each in self.asked.values())
        step = self.plan.handle(messages.Withdrawn(asked, taken), self.now)
        self.follow_withdrawal(step, taken)
        self.took(step)
        assert before - sum(each.outstanding for each in self.asked.values()) <= taken, "more than was taken back"

    def follow_withdrawal(self, step: Step, taken: int) -> None:
        """Which of the settled intents is given up is for the plan to say, but not how much."""
        left = taken
        for write in step.writes:
            asked = self.asked[write.key.removeprefix("default/")]
            now_out = 0
            if isinstance(write, Put):
                record = write.record
                now_out = max(0, (record.count if record.accepted is None else record.accepted) - record.matched)
            assert not asked.calls, "taken back while the cloud was still being asked"
            given_up = asked.outstanding - now_out
            self.given_up |= {write.key.removeprefix("default/")} if given_up else set()
            left -= given_up
            asked.withdrawn += given_up
        assert left >= 0, "more was given up than was taken back"

    @precondition(lambda self: self.under_way(messages.Prepare))
    @rule(pick=PICKS, how=st.sampled_from(["passed", "passed", "retry", "failed"]))
    def answer_prepare(self, pick: int, how: str) -> None:
        """It becomes ready, or does not."""
        id_ = self.take(messages.Prepare, pick).action.instance
        if how == "passed":
            self.feed(messages.Prepared(id_))
        else:
            self.feed(messages.PrepareFailed(id_, "no answer", final=how == "failed"))

    @precondition(lambda self: self.under_way(messages.Heartbeat))
    @rule(pick=PICKS, passed=st.booleans())
    def answer_heartbeat(self, pick: int, passed: bool) -> None:  # noqa: FBT001  (drawn)
        """It is healthy, or does not show it."""
        id_ = self.take(messages.Heartbeat, pick).action.instance
        known = self.seen[id_]
        known.failures = 0 if passed else known.failures + 1
        known.cut_off, known.cut = known.cut and not passed, False
        self.feed(messages.HeartbeatPassed(id_) if passed else messages.HeartbeatFailed(id_, "no answer"))

    # --- what befalls the cloud ------------------------------------------------------------------------------

    @precondition(lambda self: self.cloud.machines)
    @rule(pick=PICKS, state=st.sampled_from(State), shown=st.booleans())
    def change(self, pick: int, state: State, shown: bool) -> None:  # noqa: FBT001  (drawn)
        """A machine boots, fails, is suspended, or is deleted by somebody else."""
        machines = list(self.cloud.machines.values())
        machines[pick % len(machines)].state = state
        if shown:
            self.look(False, 0)

    @precondition(lambda self: self.cloud.machines)
    @rule(pick=PICKS)
    def vanish(self, pick: int) -> None:
        """A machine is gone without a word."""
        del self.cloud.machines[list(self.cloud.machines)[pick % len(self.cloud.machines)]]

    @precondition(lambda self: self.ended)
    @rule(pick=PICKS)
    def come_back(self, pick: int) -> None:
        """One that was given up for lost exists after all."""
        id_ = list(self.ended)[pick % len(self.ended)]
        self.cloud.machines.setdefault(id_, Machine(State.RUNNING, self.now, None))

    @rule()
    def foreign(self) -> None:
        """The cloud, or somebody else, adds a machine by itself."""
        self.cloud.create(None, self.now, State.RUNNING)

    @rule(pick=PICKS, seconds=st.sampled_from([10.0, 100.0]))
    def notice(self, pick: int, seconds: float) -> None:
        """The cloud announces that a machine will go."""
        ids = [*self.cloud.machines, *self.plan.instances, "unknown"]
        id_ = ids[pick % len(ids)]
        if id_ in self.seen:
            self.seen[id_].noticed = True
        else:
            earlier = self.early.get(id_)
            goes_at = min(earlier.goes_at if earlier else 1e12, self.now + seconds)
            self.early[id_] = Early(goes_at, max(self.now, goes_at) + max(self.config.intent_timeout, REMEMBER_LOST))
        self.feed(messages.Noticed(id_, self.now + seconds, NoticeKind.PREEMPTION))

    @rule(pick=PICKS)
    def connection_dies(self, pick: int) -> None:
        """An open connection breaks."""
        ids = [*self.plan.instances, "unknown"]
        id_ = ids[pick % len(ids)]
        if id_ in self.seen and not self.seen[id_].asleep:
            self.seen[id_].dead = self.seen[id_].cut = True
        self.feed(messages.ConnectionDied(id_, "reset by peer"))

    @rule(error=st.sampled_from(["", "it is somebody else's"]))
    def disown(self, error: str) -> None:
        """Somebody else took the group, or it is ours again."""
        step = self.feed(messages.Disowned(error))
        assert of_type(messages.Disowned, step.events) == [messages.Disowned(error)]
        assert (self.plan.limits(self.now).allowed(1) == 0) or not error

    @rule(there=st.booleans())
    def problem(self, there: bool) -> None:  # noqa: FBT001  (drawn)
        """The cloud says why it does not deliver, or that all is well again."""
        self.problems = (Problem(kind=ProblemKind.CAPACITY, message="sold out"),) if there else ()

    @rule(seconds=st.sampled_from([0.0, 0.0, 15.0]))
    def all_goes_well(self, seconds: float) -> None:
        """For a while everything is answered, and answered well."""
        until = self.now + seconds
        self.behave()
        while self.plan.wake_at is not None and self.plan.wake_at <= until:
            self.now = max(self.now, self.plan.wake_at)
            self.tick()
            self.behave()
        self.now = until
        self.tick()

    # --- progress --------------------------------------------------------------------------------------------

    @rule()
    def all_settles_once_the_cloud_behaves(self) -> None:
        """No intent stays open, no removal unfinished, and every adopted or requested instance is ready, or sleeps."""
        self.problems = ()
        self.disown("")
        for machine in self.cloud.machines.values():
            if machine.state not in {State.DELETING, State.DELETED}:
                machine.state = State.RUNNING
        for id_ in self.plan.retained:
            self.took(self.plan.unretain(id_, self.now))
        self.let_settle()
        asleep = [id_ for id_, known in self.seen.items() if known.asleep]
        assert all(self.cloud.machines[id_].state is State.SUSPENDED for id_ in asleep), "asleep, and nobody knows"
        self.took(self.plan.resume(asleep, self.now))
        self.let_settle()
        assert not list(self.plan.intents), "an intent stays open for ever"
        stages = Counter(instance.stage for instance in self.plan.instances.values())
        assert set(stages) <= {Stage.READY, Stage.UNHEALTHY}, "an instance is stuck"
        assert {id_ for id_ in self.cloud.machines if id_ not in self.refused} == set(self.plan.instances)

    def let_settle(self) -> None:
        """Enough time passes, and everything is answered well."""
        until = self.now + 2 * self.config.intent_timeout
        while self.now < until:
            self.behave()
            wake_at = self.plan.wake_at
            assert wake_at is not None
            self.now = max(self.now, wake_at)
            self.tick()
        self.behave()

    def behave(self) -> None:
        """The cloud does what it is asked, at once, and answers."""
        answers = 0
        while self.calls:
            answers += 1
            assert answers < 100, "calls without end at one moment"
            while self.cloud.unfilled:
                self.cloud.fill(self.now)
            for id_, machine in list(self.cloud.machines.items()):
                if machine.state in {State.CREATING, State.RESUMING}:
                    machine.state = State.RUNNING
                elif machine.state is State.SUSPENDING:
                    machine.state = State.SUSPENDED
                elif machine.state in {State.DELETING, State.DELETED}:
                    del self.cloud.machines[id_]
            self.answer_well(self.calls[0])

    def answer_well(self, call: Call) -> None:  # noqa: C901  (an arm for each kind)
        """The answer that everybody hopes for."""
        match call.action:
            case messages.Update():
                self.calls.remove(call)
                self.view(self.cloud.show(), call.began)
            case messages.Increase(_, intent, count):
                if call.accepted is None:
                    call.accepted = self.cloud.increase(intent, count)
                self.answer_increase_to(call)
            case messages.Decrease(_, instances):
                self.calls.remove(call)
                for id_ in instances:
                    self.delete(id_, at_once=True)
                self.feed(messages.Decreased(instances, instances))
            case messages.Suspend(_, instances):
                self.calls.remove(call)
                self.turn(messages.Suspend, instances, at_once=True)
                self.answer_suspend(instances, instances)
            case messages.Resume(_, instances):
                self.calls.remove(call)
                self.turn(messages.Resume, instances, at_once=True)
                self.feed(messages.ResumeAccepted(instances, instances))
            case messages.Withdraw():
                self.answer_withdraw_with(call, 0)
            case messages.Prepare(_, id_):
                self.calls.remove(call)
                self.feed(messages.Prepared(id_))
            case messages.Heartbeat(_, id_):
                self.calls.remove(call)
                self.seen[id_].failures = 0
                self.feed(messages.HeartbeatPassed(id_))

    def answer_increase_to(self, call: Call) -> None:
        """In full."""
        self.calls.remove(call)
        intent = call.action.intent
        asked = self.asked.get(intent)
        if asked is not None:
            asked.calls -= 1
            if call.accepted or not asked.unanswered:
                asked.accepted, asked.unanswered, asked.asked_at = call.accepted, False, self.now
        assert call.accepted is not None
        self.feed(messages.Increased(intent, call.accepted))

    def answer_withdraw_with(self, call: Call, taken: int) -> None:
        """So many were taken back."""
        self.calls.remove(call)
        self.feed(messages.Withdrawn(call.action.count, taken))

    # --- what always holds -----------------------------------------------------------------------------------

    @invariant()
    def the_counts_are_those_of_a_recount(self) -> None:
        """`outstanding`, `coming` and `total` are what the model's own books say."""
        outstanding = sum(asked.outstanding for asked in self.asked.values())
        stages = [instance.stage for instance in self.plan.instances.values()]
        assert self.plan.outstanding == outstanding + self.plan.queued
        assert self.plan.total == len(self.seen) + outstanding + self.plan.queued
        assert not self.plan.queued or self.under_way(messages.Increase), "it waits for nothing"
        assert not (self.plan.queued and self.plan.blocked(self.plan._now)), "it counts as coming, and is not asked for"
        assert self.plan.asleep == sum(each is Stage.ASLEEP for each in stages)
        assert self.plan._table.paused == sum(bool(each.paused) for each in self.plan.instances.values())
        for id_ in self.plan._power.falling:
            instance = self.plan.instances[id_]
            assert instance.stage is Stage.ASLEEP
            assert instance.state is not State.SUSPENDED, "waited for though it sleeps"
        assert self.plan.coming == self.plan.outstanding + sum(
            each in {Stage.WAITING, Stage.PREPARING} for each in stages
        )
        plan, room = self.plan, self.plan.limits(self.now).room
        counts = (plan.coming, plan.removing, plan.total, plan.outstanding, plan.withdrawable, room, plan.ceiling)
        assert plan.standing == counts, "it was counted before the last message"

    @invariant()
    def the_journal_is_what_the_plan_knows(self) -> None:
        """A restart at any moment finds every open intent and every instance."""
        intents = {f"default/{intent.id}": intent.record("default") for intent in self.plan.intents}
        instances = {f"default/{id_}": each.record("default") for id_, each in self.plan.instances.items()}
        assert self.records[INTENT] == intents
        assert self.records[INSTANCE] == instances
        assert set(self.seen) == set(self.plan.instances)
        assert set(self.asked) == {intent.id for intent in self.plan.intents}

    @invariant()
    def those_on_top_know_what_the_plan_knows(self) -> None:
        """They believe an instance to be there, to be up and to sleep exactly while the plan does."""
        for id_, known in self.seen.items():
            instance = self.plan.instances[id_]
            assert known.up == instance.announced
            assert known.ready == instance.up
            assert known.asleep == (instance.stage is Stage.ASLEEP)
            assert not instance.up or not instance.asleep

    @invariant()
    def whoever_reads_what_changed_knows_all(self) -> None:
        """No change of whether an instance may be given work goes without a `Changed`."""
        for id_, instance in self.plan.instances.items():
            assert self.noted[id_] == instance.availability

    @invariant()
    def availability_says_what_the_events_said(self) -> None:
        """Given no work, paused, closing or asleep exactly while the events of its life say so."""
        for id_, known in self.seen.items():
            instance = self.plan.instances[id_]
            access = instance.availability.access
            closing = instance.stage is Stage.UNHEALTHY or known.aged or instance.notice is not None
            assert (access is Access.ASLEEP) == known.asleep
            assert (access in {Access.AVAILABLE, Access.PAUSED, Access.CLOSING}) == known.ready
            if known.ready:
                ready = Access.PAUSED if known.paused else Access.AVAILABLE
                assert access is (Access.CLOSING if closing else ready)

    @invariant()
    def what_gets_no_work_has_a_reason(self) -> None:
        """The view does not show it running, or its last heartbeat failed where each has to pass."""
        for id_, known in self.seen.items():
            instance = self.plan.instances[id_]
            if instance.stage is Stage.READY:
                suspect = self.config.heartbeat_on_acquire and known.failures > 0
                assert known.paused == (bool(instance.paused) or suspect)

    @invariant()
    def what_is_refused_is_left_alone(self) -> None:
        """Neither used nor removed."""
        assert not self.refused & set(self.plan.instances)

    @invariant()
    def nothing_is_done_with_what_is_being_removed_or_sleeps(self) -> None:
        """Neither prepared nor probed: what was under way for it was stopped."""
        for call in [*self.under_way(messages.Prepare), *self.under_way(messages.Heartbeat)]:
            assert not self.plan.instances[call.action.instance].removing
            assert self.plan.instances[call.action.instance].stage is not Stage.ASLEEP

    @invariant()
    def it_always_wakes_again(self) -> None:
        """There is always something to wait for: the next view, or the answer to one under way."""
        assert self.plan.wake_at is not None or self.under_way(messages.Update)


TestPlanMachine = PlanMachine.TestCase
TestPlanMachine.settings = settings(max_examples=150, stateful_step_count=50, phases=QUICK)
