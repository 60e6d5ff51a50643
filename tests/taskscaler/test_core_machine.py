"""The core over simple simulated clouds, in virtual time: what users rely on, whatever happens on the way."""

import heapq
import json
import pickle
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from copy import deepcopy
from itertools import count
from math import inf
from random import Random
from typing import Any

import pytest
from attrs import Factory, define, evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fleeting import NoticeKind, Observation, Observed, Preexisting, Problem, ProblemKind, State
from fleeting.core import TOO_OLD, Instance, Plan, Stage, Step, messages
from fleeting.core._pacing import UNANSWERED
from fleeting.events import Loss
from taskscaler._errors import NoCapacity, NoSuchInstance, NotDetached, TaskscalerError
from taskscaler._observe import GONE, DecisionEvent, InstanceEvent, label_of
from taskscaler._types import Policy, PoolSettings
from taskscaler.core._choices import NOT_NEEDED
from taskscaler.core._decide import MAKES_ROOM, Removal, idle_slots
from taskscaler.core._ledger import NOT_REATTACHED
from taskscaler.core._mediator import COALESCE, REST, REST_PER_BOOT, Core, InstanceLost
from taskscaler.core._sleepers import OVER, OVER_ALL_CEILINGS
from taskscaler.core._slots import (
    DIRTY,
    FINAL,
    LEASE,
    USES,
    Break,
    Check,
    Clean,
    Closed,
    Deliver,
    Expired,
    LeaseId,
    LeaseRecord,
    MarkUnhealthy,
    Node,
)
from taskscaler.diagnose._explain import Explanation, explain
from taskscaler.diagnose._explain_instance import InstanceExplanation, explain_instance
from taskscaler.diagnose._explain_key import KeyExplanation, explain_key
from taskscaler.diagnose._forecast import Next, Upcoming, forecast
from taskscaler.diagnose._snapshot import Snapshot
from tests.strategies import EPOCH, NO_THROTTLE, QUICK, Records, a_plan, of_type, seeds
from tests.taskscaler.strategies import policies, pool_settings

LATENCY = 0.25
"""Seconds that a call to the cloud takes."""

CLEANUP = 3.0
"""Seconds that it takes to clean a slot."""

REATTACH_TIMEOUT = 45.0
"""Seconds for which persistent leases are kept that nobody holds."""

PICKS = st.integers(0, 1000)
TTLS = st.sampled_from([inf, inf, 0.0, 3.0, 40.0])
"""Seconds for which a lease sleeps at the most."""


@define
class Machine:
    """What exists in a cloud."""

    created_at: float
    intent: str | None
    runs_at: float
    deleted: bool = False
    sick: bool = False
    turned: State = State.RUNNING
    """What it was told to become last: SUSPENDED or RUNNING."""

    turns_at: float = -inf
    """When it is that."""

    def state(self, now: float) -> State:
        """What the cloud shows."""
        if now < self.runs_at:
            return State.CREATING
        if now >= self.turns_at:
            return self.turned
        return State.SUSPENDING if self.turned is State.SUSPENDED else State.RESUMING

    def turn(self, state: State, now: float) -> None:
        """Have it suspended or resumed, if it can be."""
        if self.state(now) is (State.RUNNING if state is State.SUSPENDED else State.SUSPENDED):
            self.turned, self.turns_at = state, now + TURN


TURN = 1.5
"""Seconds that it takes to suspend or resume a machine."""


@define
class Cloud:
    """One pool's cloud, and what goes wrong there next."""

    pool: str
    boot: float
    machines: dict[str, Machine] = Factory(dict)
    asked: dict[str, int] = Factory(dict)
    trouble: deque[str] = Factory(deque)
    """Outcomes of the next increases."""

    bad_cleanups: int = 0
    """Clean-ups to come that fail."""

    bad_turns: int = 0
    """Suspensions and resumptions to come that are refused."""

    bad_reads: int = 0
    """Views to come that do not show one of the machines."""

    stock_out: Problem | None = None
    """Why nothing can be had; None: it can."""

    unfilled: list[str] = Factory(list)
    """Requests that wait for stock: the intents they were made for, oldest first."""

    numbers: Any = Factory(lambda: count(1))

    def create(self, intent: str | None, now: float) -> None:
        """A machine comes to exist; it runs after its boot."""
        self.machines[f"{self.pool}{next(self.numbers)}"] = Machine(now, intent, now + self.boot)

    def order(self, intent: str, now: float) -> None:
        """One more is asked for: it is there at once, or once there is stock."""
        if self.stock_out is None:
            self.create(intent, now)
        else:
            self.unfilled.append(intent)

    def run_out(self, now: float) -> None:
        """There is no stock any more."""
        if self.stock_out is None:
            self.stock_out = Problem(kind=ProblemKind.CAPACITY, message="none left", since=now, offering=self.pool)

    def restock(self, now: float) -> None:
        """There is: what waits for it exists."""
        self.stock_out, unfilled, self.unfilled = None, self.unfilled, []
        for intent in unfilled:
            self.create(intent, now)

    def withdraw(self, wanted: int) -> int:
        """Take back the newest requests that are not filled; tells how many."""
        taken = min(wanted, len(self.unfilled))
        del self.unfilled[len(self.unfilled) - taken :]
        return taken

    def view(self, now: float, pick: int) -> dict[str, Observed]:
        """What is shown: all, or one less."""
        shown = {
            id_: Observed(
                state=machine.state(now),
                created_at=machine.created_at,
                intent=machine.intent,
                offering=self.pool,
            )
            for id_, machine in self.machines.items()
        }
        if self.bad_reads and shown:
            self.bad_reads -= 1
            del shown[list(shown)[pick % len(shown)]]
        return shown


@define
class Dice:
    """Chance, to be remembered."""

    random: Random
    drawn: list[float] = Factory(list)

    def __call__(self) -> float:
        """Draw a number from 0 to 1."""
        self.drawn.append(self.random.random())
        return self.drawn[-1]

    def __deepcopy__(self, _: object) -> "Dice":
        """What a copy draws is its own affair."""
        return Dice(self.random)


INPUTS = (
    *("acquire", "cancel", "release", "reserve", "unreserve", "suspend", "resume", "mark_unreachable", "mark_suspect"),
    *("reattach", "detach", "replace"),
    *("deliver", "check", "cleaned", "cordon", "uncordon", "retain", "unretain"),
    *("stop_handing_out", "break_all", "remove_all", "configure"),
    *("tick", "handle", "handle_all", "journal_failed", "journal_recovered"),
)
"""All by which anything reaches a core."""


class Tape(list[tuple[str, tuple[object, ...], dict[str, object], object]]):
    """What a core was asked and answered, in order; not what a copy of it was."""

    def __deepcopy__(self, _: object) -> "Tape":
        """Nothing: what a copy does is its own affair."""
        return Tape()


class RecordedCore(Core):
    """A core whose messages are recorded, and which spares no decision that would do anything, now or sooner."""

    tape: Tape
    replays: bool = False
    """Whether it is told what another was, whose spared decisions were looked at."""

    def _due_at(self, now: float) -> float:
        due_at = super()._due_at(now)
        if self._touched and due_at > self.heeds_news_at(now) and not self.replays:
            _, decision = self.foresee(now)
            increase = 0 if self.removing_all else decision.increase  # then nothing is asked for, and all is taken back
            unwanted = [(self.plans[pool.pool], pool.withdraw) for pool in decision.pools]
            withdrawn = [
                min(plan.outstanding if self.removing_all else count, plan.withdrawable) for plan, count in unwanted
            ]
            choices = [*decision.removals, *decision.sleeps, *decision.wakes]
            assert [increase, *withdrawn, *choices] == [0] * (1 + len(withdrawn)), f"spared: {decision}"
            assert decision.look_again_at >= due_at, f"spared, and due too late: {decision}"
        return due_at

    def _give_up(self, removals: Iterable[Removal], now: float) -> None:
        """No more than is over a ceiling, besides what is not needed or makes room: as decided, not as sent."""
        removals = list(removals)
        kept, bound_to = self.ledger.fulfilled, {pool for pools in self.ledger.bound for pool in pools}
        super()._give_up(removals, now)
        if make_room := [each.pool for each in removals if each.why == MAKES_ROOM]:
            assert len(make_room) <= self.decisions[-1].displaced, "more makes room than is called for"
            assert not bound_to.intersection(make_room), "what somebody waits for makes room"
            assert self.ledger.fulfilled == kept, "what is kept for a reservation makes room"
        whys = Counter((each.pool, each.why) for each in removals)
        staying = 0
        for name, plan in self.plans.items():
            known = plan.instances.values()
            stay = sum(each.stage is not Stage.REMOVING for each in known) + plan.outstanding
            stay += whys[name, NOT_NEEDED] + whys[name, MAKES_ROOM]
            staying += stay
            if whys[name, OVER]:
                assert plan.ceiling is not None
                enough = plan.ceiling - whys[name, OVER_ALL_CEILINGS]
                assert stay >= enough, "more was given up than was over the ceiling"
        if any(why == OVER_ALL_CEILINGS for _, why in whys):
            assert self.ceiling is not None
            assert staying >= self.ceiling, "more was given up than was over the ceiling of all pools"


def _recorded(name: str) -> Callable[..., object]:
    def call(core: RecordedCore, *args: object, **kwargs: object) -> object:
        answer: object = None
        try:
            answer = getattr(Core, name)(core, *args, **kwargs)
        except TaskscalerError as error:
            answer = str(error)
            raise
        finally:
            core.tape.append((name, args, kwargs, answer))
        return answer

    return call


for _name in INPUTS:
    setattr(RecordedCore, _name, _recorded(_name))


class World:
    """A core, its clouds, its journal and its jobs; time passes only where it is told to."""

    def __init__(
        self,
        pools: Sequence[PoolSettings],
        policy: Policy,
        seed: int,
        boot: float = 6.0,
        *,
        keep_used: bool = False,
        suspends: bool = False,
        withdraws: bool = True,
        max_instances: int = 0,
        persistent: bool = False,
        binds: bool = False,
        watched: bool = True,
    ) -> None:
        """Start the first manager, over empty clouds.

        Args:
            pools: In order of preference.
            policy: The one that holds.
            seed: Of what is random.
            boot: Seconds until a machine runs.
            keep_used: As `Core` has it.
            suspends: Whether the clouds can.
            withdraws: Whether the clouds can.
            max_instances: As `Core` has it.
            persistent: Whether every second job has a lease that outlives its manager.
            binds: Whether every third job takes slots of the last pool alone.
            watched: As `Core` has it: where nobody watches, decisions are spared that would do nothing.
        """
        self.watched = watched
        self.persistent = persistent
        self.binds = binds
        self.suspends = suspends
        self.withdraws = withdraws
        self.max_instances = max_instances
        self.keep_used = keep_used
        self.pools = {pool.name: pool for pool in pools}
        self.policy = policy
        self.random = Random(seed)
        self.now = EPOCH
        self.clouds = {pool: Cloud(pool, boot) for pool in self.pools}
        self.records = Records()
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.numbers = count(1)
        self.running: dict[str, LeaseId] = {}
        self.sleeping: dict[str, tuple[str, int]] = {}
        self.replaced: dict[str, tuple[str, int]] = {}
        """Those that slept and are to begin elsewhere, which the journal does not know yet."""

        """Jobs that were suspended, and the node and slot that they have to come back to."""

        self.called: set[str] = set()
        """Of those, jobs that are to be resumed."""

        self.left: dict[str, tuple[str, int]] = {}
        """Jobs that run although the manager has ended which began them, and node and slot that they run in."""

        self.wanted: set[str] = set()
        """Of those, jobs that somebody comes back for."""

        self.haunted: set[str] = set()
        """Nodes where something may still run that no lease knows of, and that are not to be used on."""

        self.durations: dict[str, float] = {}
        """Of all jobs that were asked for and are not done."""

        self.dirty: set[tuple[str, int]] = set()
        """Slots, by instance, that a job was given and that were not cleaned since, where that is wanted."""

        self.life = 0
        self.journal_works = True
        self.changes: list[messages.Action] = []
        """All that the clouds were told to change so far."""

        self.start()

    # --- running ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """A manager starts from what the journal holds; jobs of an earlier one are asked for again."""
        self.life += 1
        self.waiting: list[Step] = []
        self.failing = False
        self.alive_at: dict[str, float] = {}
        """When a heartbeat of a node passed last."""

        self.began, self.found = self.now, deepcopy(self.records.kinds)
        self.dice = Dice(self.random)
        self.core = self.a_core(self.dice)
        self.told: dict[tuple[str, str], str] = {}
        self.leave_behind()
        self.called.clear()
        self.sleeping |= self.replaced
        self.replaced.clear()
        asleep = {key: (record.host, record.slot) for key, record in self.records[LEASE].items() if record.suspended}
        assert asleep == {key: place for key, place in self.sleeping.items() if key in asleep}, "it sleeps elsewhere"
        self.sleeping = asleep
        go_on = asleep.keys() | self.left.keys()
        for key in go_on:  # it may have been resumed and done, and only that may not have been durable
            self.durations.setdefault(key, 0.0)
        for key in [key for key in self.durations if key not in go_on]:
            self.durations[f"job-{next(self.numbers)}"] = self.durations.pop(key)
        again = [key for key in self.durations if key not in go_on]
        self.settle()
        for key in again:
            self.acquire(key)
        self.settle()

    def leave_behind(self) -> None:
        """A manager is dead: what ran under persistent leases goes on, and what became of the rest nobody knows."""
        places = {
            key: (f"{lease.pool}/{lease.instance}", lease.slot) for key, lease in self.running.items()
        } | self.left
        leases = self.records[LEASE].items()
        self.left = {key: (each.host, each.slot) for key, each in leases if each.persistent and not each.suspended}
        lasting = {key: place for key, place in places.items() if self.lasts(key)}
        assert lasting.items() <= self.left.items(), "a persistent lease did not outlive its manager"
        assert {key: (each.node.id, each.slot) for key, each in self.core.ledger.detached.items()} == self.left
        unknown = {node for key, (node, _) in places.items() if not self.lasts(key)}
        self.haunted |= {node for node in unknown if not (self.keep_used or self.pools[node.partition("/")[0]].cleans)}
        self.running.clear()
        self.wanted.clear()

    def lasts(self, key: str) -> bool:
        """Whether a job's lease is persistent."""
        return self.persistent and int(key.rpartition("-")[2]) % 2 == 0

    def acquire(self, key: str) -> None:
        """Ask for a slot for a job."""
        self.take(self.core.acquire(key, self.now, persistent=self.lasts(key), pools=self.pools_of(key)))

    def pools_of(self, key: str) -> tuple[str, ...]:
        """Of which pools its slot is to be; empty: of any."""
        is_bound = self.binds and len(self.pools) > 1 and int(key.rpartition("-")[2]) % 3 == 0
        return tuple(self.pools)[-1:] if is_bound else ()

    def a_core(self, random: Callable[[], float], *, journaled: bool = True) -> RecordedCore:
        """The core with which this life began."""
        plans = {
            name: a_plan(
                pool,
                now=self.began,
                named=True,
                recovered={
                    kind: {key: record for key, record in kept.items() if key.startswith(f"{name}/")}
                    for kind, kept in self.found.items()
                },
                random=random,
                life=self.life,
                suspends=self.suspends,
                withdraws=self.withdraws,
                journaled=journaled,
            )
            for name, pool in self.pools.items()
        }
        core = RecordedCore(
            list(self.pools.values()),
            plans,
            [self.policy],
            self.found,
            self.began,
            keep_used=self.keep_used,
            watched=self.watched,
            max_instances=self.max_instances,
            reattach_timeout=REATTACH_TIMEOUT,
            journaled=journaled,
        )
        core.tape = Tape()
        return core

    def check_replay(self, *, journaled: bool = True) -> None:
        """A fresh core that is told the same does the same; all that goes in and out can be stored.

        One without a journal does the same, too, and only need not write it.
        """
        again = self.a_core(iter(self.dice.drawn).__next__, journaled=journaled)
        again.replays = True
        for message in pickle.loads(pickle.dumps(self.core.tape)):  # noqa: S301  (our own)
            name, args, kwargs, answer = message
            with suppress(TaskscalerError):
                getattr(again, name)(*args, **kwargs)
            if journaled or not isinstance(answer, Step):
                assert again.tape[-1] == message
            else:
                does = again.tape[-1][-1]
                assert isinstance(does, Step)
                assert [*does.actions, *does.events] == [*answer.actions, *answer.events]
            assert " at 0x" not in repr(answer)

    def take(self, step: Step) -> None:
        """Queue a step, as the engine does; of several faults the core hears when the first begins."""
        if self.failing:
            handed_out = [each.lease.key for each in of_type(Deliver, step.actions)]
            assert set(handed_out) <= set(self.records[LEASE]), "handed out while the journal fails"
            assert not of_type(Check, step.actions), "handed out while the journal fails"
        for action in step.actions:
            if isinstance(action, Deliver | Check):
                lease, ledger = action.lease, self.core.ledger
                assignment = ledger.find(lease)
                if assignment is None:  # lost later in the same turn: it is not delivered
                    continue
                resumed = assignment.resuming
                cordoned = ledger.why_cordoned(lease.pool, lease.instance) is not None
                assert resumed or not cordoned, "handed out though its instance is cordoned"
                disowned = self.core.plans[lease.pool].disowned
                assert resumed or not disowned, "handed out in somebody else's group"
        for action in of_type(messages.Decrease, step.actions):
            self.check_decrease(action)
        for suspend in of_type(messages.Suspend, step.actions):
            leases = self.core.ledger.leases.values()
            under_work = {assignment.node.instance for assignment in leases if not assignment.suspended}
            assert self.suspends
            assert not under_work.intersection(suspend.instances), "suspended under a job"
        for action in step.actions:
            if isinstance(action, messages.Suspend | messages.Resume):
                assert not self.core.plans[action.pool].disowned, "suspended or resumed in somebody else's group"
        for increase in of_type(messages.Increase, step.actions):
            plan = self.core.plans[increase.pool]
            assert plan.viewed, "asked for more before the group was seen"
            assert plan.ceiling is None or plan.total <= plan.ceiling, "above the ceiling"
            self.check_increase(increase)
        self.waiting.append(step)

    def check_increase(self, action: messages.Increase) -> None:
        """Nothing is asked for a second time while the first request may still be filled."""
        if action.intent in self.clouds[action.pool].asked:
            return
        for name, cloud in self.clouds.items():
            open_there = self.core.plans[name].outstanding
            assert not self.withdraws or len(cloud.unfilled) <= open_there, f"{name} may still fill what is forgotten"
        ceiling = self.core.ceiling
        assert ceiling is None or self.core.total <= ceiling, "above the ceiling over all pools"

    def check_decrease(self, action: messages.Decrease) -> None:
        """Only what is free is deleted, and only for a reason that holds."""
        plan, ledger = self.core.plans[action.pool], self.core.ledger
        for id_ in action.instances:
            assert plan.instances[id_].retained is None, "deleted though it is retained"
            node = ledger.nodes.get(f"{action.pool}/{id_}")
            assert node is None or node.closed is Closed.RETURNING, "deleted before it was given up"
            assert not any(each.node.instance == id_ for each in ledger.leases.values()), "deleted under a job"

    def settle(self) -> None:
        """Tick, commit, perform, until nothing more is to be done now."""
        for _ in range(100):
            self.take(self.core.tick(self.now))
            wake_at = self.core.wake_at
            assert wake_at is None or wake_at > self.now, "a busy loop"
            if not any(step.writes or step.actions for step in self.waiting):
                return
            if not self.commit():
                return
        raise AssertionError("the core never comes to rest")

    def commit(self) -> bool:
        """All writes, then all actions; or nothing, if the journal fails."""
        if not self.journal_works:
            if not self.failing:
                step = self.core.journal_failed("disk full", self.now)
                self.failing = True
                self.take(step)
            return False
        steps, self.waiting = self.waiting, []
        self.replaced.clear()
        for step in steps:
            self.records.apply(step.writes)
        failed, self.failing = self.failing, False
        if failed:
            self.take(self.core.journal_recovered(self.now))
        for step in steps:
            for action in step.actions:
                if failed and isinstance(action, messages.Increase):
                    self.take(self.core.handle(action.pool, messages.NotAsked(action.intent), self.now))
                else:
                    self.perform(action)
        return True

    def pass_time(self, seconds: float) -> None:
        """Whatever is due in that time happens when it is due."""
        until = self.now + seconds
        self.settle()
        while True:
            due = min(self.events[0][0] if self.events else inf, self.core.wake_at or inf)
            if due > until:
                break
            self.now = max(self.now, due)
            while self.events and self.events[0][0] <= self.now:
                heapq.heappop(self.events)[2]()
            self.settle()
        self.now = until
        self.settle()

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        """Do it then, if the same manager is still alive."""
        life = self.life

        def do() -> None:
            if self.life == life:
                call()

        heapq.heappush(self.events, (self.now + seconds, next(self.numbers), do))

    def feed(self, pool: str, fact: messages.Fact) -> None:
        """Hand it to the core."""
        self.take(self.core.handle(pool, fact, self.now))

    # --- performing ------------------------------------------------------------------------------------------

    def perform(self, action: object) -> None:  # noqa: C901, PLR0912  (an arm for each kind)
        """Begin it; its outcome comes a little later."""
        match action:
            case Check(lease):
                self.take(self.core.check(lease, self.now))
            case Deliver(lease):
                self.deliver(lease)
            case Break(lease, loss) if lease.key in self.durations:  # else it was done before it could be told
                self.check_given_up(lease, loss)
                if self.sleeping.pop(lease.key, None) is None and self.left.pop(lease.key, None) is None:
                    assert self.running.pop(lease.key) == lease
                self.called.discard(lease.key)
                self.wanted.discard(lease.key)
                self.submit(self.durations.pop(lease.key))
            case Expired(lease):
                assert lease.key not in self.called, "expired though somebody waits for it"
                if self.sleeping.pop(lease.key, None) is not None:  # else it expired while its manager was dead
                    self.submit(self.durations.pop(lease.key))
            case messages.Suspend() | messages.Resume():
                self.changes.append(action)
                self.after(LATENCY, lambda: self.turn(action))
            case messages.Increase() | messages.Decrease():
                self.changes.append(action)
                self.after(LATENCY, lambda: self.change(action))
            case messages.Withdraw(pool, number):
                self.after(LATENCY, lambda: self.withdraw(pool, number))
            case messages.Update(pool):
                self.after(LATENCY, lambda: self.update(pool))
            case messages.Prepare(pool, instance):
                self.after(LATENCY, lambda: self.feed(pool, messages.Prepared(instance)))
            case messages.Heartbeat(pool, instance):
                self.after(LATENCY, lambda: self.heartbeat(pool, instance))
            case Clean():
                if self.core.ledger.wants(action):
                    self.after(CLEANUP, lambda: self.clean(action))
            case InstanceEvent():
                self.hear(action)
            case Break() | messages.Forget() | InstanceLost() | MarkUnhealthy() | DecisionEvent():
                pass
            case _:
                raise AssertionError(f"{action} was not to be expected")

    def check_given_up(self, lease: LeaseId, loss: Loss) -> None:
        """Only what nobody has come back for is given up; what ran there may still run."""
        if loss.detail == NOT_REATTACHED:
            assert lease.key in self.left.keys() - self.wanted, "given up though somebody has it, or waits for it"
            if not (self.keep_used or self.pools[lease.pool].cleans):
                self.haunted.add(f"{lease.pool}/{lease.instance}")

    def hear(self, event: InstanceEvent) -> None:
        """An observer is told of a new state, and never of one that it knows."""
        place = event.pool, event.instance
        assert self.told.get(place, GONE) != event.state
        if event.state == GONE:
            assert event.lost == (self.told[place] != "deleting")
            del self.told[place]
        else:
            self.told[place] = event.state

    def deliver(self, lease: LeaseId) -> None:
        """A job starts, if its slot still stands; by now its lease and its use are durable."""
        if not self.core.deliver(lease):
            return
        node, since = f"{lease.pool}/{lease.instance}", self.core.ledger.leases[lease.key].since
        assert self.records[LEASE][lease.key] == LeaseRecord(
            node, lease.slot, since, persistent=self.lasts(lease.key), pools=self.pools_of(lease.key)
        )
        if lease.key in self.left:
            assert self.left.pop(lease.key) == (node, lease.slot), "reattached elsewhere"
            self.wanted.remove(lease.key)
            self.run(lease)
            return
        assert (node, lease.slot) not in self.left.values(), "given a slot that a detached lease has"
        if lease.key in self.sleeping:
            assert self.sleeping.pop(lease.key) == (node, lease.slot), "resumed elsewhere"
            self.called.discard(lease.key)
            self.run(lease)
            return
        assert node not in self.haunted, "given a slot of an instance where something may still run"
        assert self.records[USES][node].uses >= 1
        pool = self.pools[lease.pool]
        machine = self.clouds[pool.name].machines.get(lease.instance)
        assert machine is None or self.now < machine.created_at + (pool.max_instance_age or inf), "used though too old"
        uses = self.core.ledger.nodes[node].uses
        assert pool.max_use_count == 0 or uses <= pool.max_use_count, "used more often than allowed"
        alive_at = self.alive_at.get(node, -inf)
        assert not pool.heartbeat_on_acquire or alive_at >= since, "given work without a sign of life"
        assert (lease.instance, lease.slot) not in self.dirty, "given a slot that was not cleaned"
        if pool.cleans:
            self.dirty.add((lease.instance, lease.slot))
        self.run(lease)

    def run(self, lease: LeaseId) -> None:
        """A job goes on, or begins."""
        pool = self.pools[lease.pool]
        assert lease.key not in self.running
        self.running[lease.key] = lease
        on_node = [each for each in self.running.values() if (each.pool, each.instance) == (lease.pool, lease.instance)]
        assert len({each.slot for each in on_node}) == len(on_node) <= pool.capacity_per_instance
        if self.durations[lease.key] < inf:
            self.after(self.durations[lease.key], lambda: self.done(lease))

    def done(self, lease: LeaseId) -> None:
        """A job has ended by itself."""
        if self.running.get(lease.key) == lease:
            del self.running[lease.key], self.durations[lease.key]
            self.take(self.core.release(lease.key, self.now))

    def clean(self, clean: Clean) -> None:
        """A slot was cleaned, or could not be; nothing runs there meanwhile."""
        where = clean.instance, clean.slot
        assert where not in {(lease.instance, lease.slot) for lease in self.running.values()}, "cleaned under a job"
        assert (f"{clean.pool}/{clean.instance}", clean.slot) not in self.left.values(), "cleaned under a detached job"
        cloud = self.clouds[clean.pool]
        failure = "the disk is full" if cloud.bad_cleanups else ""
        cloud.bad_cleanups -= bool(failure)
        if not failure:
            self.dirty.discard(where)
        self.take(self.core.cleaned(clean, failure, self.now))

    def update(self, pool: str) -> None:
        """The view arrives."""
        cloud = self.clouds[pool]
        shown = cloud.view(self.now, self.random.randrange(1000))
        self.feed(pool, messages.Updated(Observation(shown, () if cloud.stock_out is None else (cloud.stock_out,))))

    def withdraw(self, pool: str, number: int) -> None:
        """The cloud takes requests back."""
        self.feed(pool, messages.Withdrawn(number, self.clouds[pool].withdraw(number)))

    def heartbeat(self, pool: str, instance: str) -> None:
        """The machine is healthy, or does not show it."""
        machine = self.clouds[pool].machines.get(instance)
        if machine is None or machine.sick or machine.state(self.now) is not State.RUNNING:
            self.feed(pool, messages.HeartbeatFailed(instance, "no answer"))
        else:
            self.alive_at[f"{pool}/{instance}"] = self.now
            self.feed(pool, messages.HeartbeatPassed(instance))

    def turn(self, action: messages.Suspend | messages.Resume) -> None:
        """The cloud suspends or resumes what it was asked to, or does not."""
        cloud, asked = self.clouds[action.pool], action.instances
        refused, cloud.bad_turns = bool(cloud.bad_turns), max(0, cloud.bad_turns - 1)
        sleeps = isinstance(action, messages.Suspend)
        for machine in [cloud.machines[id_] for id_ in asked if id_ in cloud.machines and not refused]:
            machine.turn(State.SUSPENDED if sleeps else State.RUNNING, self.now)
        if refused:
            why = "no capacity"
            self.feed(action.pool, messages.SuspendFailed(asked, why) if sleeps else messages.ResumeFailed(asked, why))
        else:
            accepted = messages.SuspendAccepted(asked, asked) if sleeps else messages.ResumeAccepted(asked, asked)
            self.feed(action.pool, accepted)

    def change(self, action: messages.Increase | messages.Decrease) -> None:
        """The cloud does what it was asked, or what its trouble makes of it."""
        cloud = self.clouds[action.pool]
        if isinstance(action, messages.Decrease):
            for id_ in action.instances:
                cloud.machines.pop(id_, None)
            self.feed(action.pool, messages.Decreased(action.instances, action.instances))
            return
        trouble = cloud.trouble.popleft() if cloud.trouble else ""
        accepted = {"partial": action.count // 2, "refused": 0, "not heard": 0}.get(trouble, action.count)
        if action.intent not in cloud.asked and trouble not in {"refused", "not heard"}:
            cloud.asked[action.intent] = accepted
            for _ in range(accepted):
                cloud.order(action.intent, self.now)
        self.feed(action.pool, self.answer(action, cloud, trouble))

    def answer(self, action: messages.Increase, cloud: Cloud, trouble: str) -> messages.Fact:
        """What the cloud says of an increase."""
        if trouble == "refused":
            return messages.IncreaseFailed(action.intent, "no capacity")
        if trouble in {"not heard", "heard, not answered"}:
            return messages.IncreaseFailed(action.intent, "timed out", outcome_known=False)
        return messages.Increased(action.intent, cloud.asked[action.intent])

    # --- asking ----------------------------------------------------------------------------------------------

    def submit(self, duration: float) -> str:
        """A job is asked for."""
        key = f"job-{next(self.numbers)}"
        self.durations[key] = duration
        self.acquire(key)
        return key

    def suspend(self, key: str, ttl: float = inf) -> None:
        """A job that runs is to sleep, and to begin anew if it does so for too long."""
        lease = self.running.pop(key)
        self.sleeping[key] = f"{lease.pool}/{lease.instance}", lease.slot
        self.take(self.core.suspend(lease, self.now, self.now + ttl))

    def resume(self, key: str) -> None:
        """A job that sleeps is to go on."""
        self.called.add(key)
        self.take(self.core.resume(key))

    def reattach(self, key: str) -> None:
        """Somebody comes back for a job that runs."""
        self.wanted.add(key)
        self.take(self.core.reattach(key))

    def let_go(self, key: str) -> None:
        """Whoever holds the persistent lease of a job that runs leaves it to somebody else."""
        lease = self.running.pop(key)
        self.left[key] = f"{lease.pool}/{lease.instance}", lease.slot
        self.take(self.core.detach(lease, self.now))

    def replace(self, key: str) -> None:
        """A job that runs or sleeps is to begin anew on another instance."""
        self.running.pop(key, None)
        if key in self.sleeping:
            self.replaced[key] = self.sleeping.pop(key)
        self.take(self.core.replace(key, self.now, "it is slow"))

    def forget(self, key: str) -> None:
        """Whoever waits, or was just handed a slot, wants it no more."""
        del self.durations[key]
        self.running.pop(key, None)
        self.take(self.core.cancel(key, self.now))

    def behave(self) -> None:
        """From now on nothing goes wrong."""
        self.journal_works = True
        for cloud in self.clouds.values():
            cloud.trouble.clear()
            cloud.bad_reads = cloud.bad_cleanups = cloud.bad_turns = 0
            cloud.restock(self.now)
            for machine in cloud.machines.values():
                machine.sick = False
        for name, plan in self.core.plans.items():
            self.feed(name, messages.Disowned(""))
            for id_, instance in plan.instances.items():
                if instance.stage is not Stage.REMOVING:
                    self.take(self.core.uncordon(f"{name}/{id_}", self.now))
                    self.take(self.core.unretain(f"{name}/{id_}", self.now))

    def check_nothing_is_to_spare(self) -> None:
        """No instance that nobody needs has been idle, and to spare, for longer than `idle_time`."""
        ledger = self.core.ledger
        assert not ledger.cleaning, "a clean-up never ends"
        in_use = sum(self.core._supply(pool, self.now).in_use for pool in self.pools)
        needed = ledger.reserved + ledger.pending + idle_slots(self.policy, in_use)
        for node in ledger.nodes.values():
            if not node.busy and node.usable and self.now > node.idle_since + self.policy.idle_time:
                spare_since = self.core.choices.surplus.since(node.usable, self.now)
                needed_lately = self.now <= spare_since + self.policy.idle_time
                assert needed_lately or ledger.usable - node.usable < needed, f"{node.id} is not needed, and stays"


Thing = tuple[str, str, str]
"""What is done, to which pool, and to which instance, for how many, or whose work."""


def next_actions(core: Core, now: float, *, routine: bool) -> tuple[float, list[Thing]]:
    """Let time pass for a core alone, until it does something, be it routine or not, or an instance grows too old."""
    told, take_over = [], core._route
    slept = {place: asleep(known) for place, known in all_instances(core).items()}
    held = {place for place, known in all_instances(core).items() if known.stage is Stage.HELD}

    def hear(pool: str, step: Step, now: float) -> None:
        for event in step.events:
            if isinstance(event, messages.Changed):
                known, node = core.plans[pool].instances[event.instance], core.ledger.node(pool, event.instance)
                before, slept[pool, known.id] = slept.get((pool, known.id), False), asleep(known)
                if known.availability.why == TOO_OLD and node is not None and node.closed not in FINAL:
                    told.append(("age", pool, known.id))
                if before != slept[pool, known.id] and known.stage not in {Stage.REMOVING, Stage.HELD}:
                    told.append(("unturned", pool, known.id))
                if known.stage is Stage.HELD and (pool, known.id) not in held:
                    told.append(("stay", pool, known.id))
        take_over(pool, step, now)

    core._route = hear  # type: ignore[method-assign]
    for _ in range(1000):
        done = [thing for action in core.tick(now).actions for thing in things_done(action)]
        turned = {thing[1:] for thing in done if thing[0] in {"suspend", "resume"}}
        done += [thing for thing in told if thing[0] == "age" or thing[1:] not in turned]
        told.clear()
        if happened := [thing for thing in done if routine or thing[0] not in {"look", "check"}]:
            return now, happened
        if core.wake_at is None:
            break
        now = max(now, core.wake_at)
    return inf, []


def all_instances(core: Core) -> dict[tuple[str, str], Instance]:
    """Those of all pools, by pool and id."""
    return {(name, id_): known for name, plan in core.plans.items() for id_, known in plan.instances.items()}


def asleep(known: Instance) -> bool:
    """Whether the plan has it sleep."""
    return known.stage is Stage.ASLEEP


def things_done(action: object) -> Iterator[Thing]:  # noqa: C901  (an arm for each kind)
    """What an action does; that somebody is handed a slot, or refused one, only follows from what others do."""
    match action:
        case messages.Update(pool):
            yield "look", pool, ""
        case messages.Heartbeat(pool, instance):
            yield "check", pool, instance
        case messages.Prepare(pool, instance):
            yield "prepare", pool, instance
        case messages.Increase(pool, _, number):
            yield "ask", pool, str(number)
        case messages.Withdraw(pool, number):
            yield "withdraw", pool, str(number)
        case messages.Suspend(pool, instances):
            yield from (("suspend", pool, instance) for instance in instances)
        case messages.Resume(pool, instances):
            yield from (("resume", pool, instance) for instance in instances)
        case messages.Decrease(pool, instances):
            yield from (("delete", pool, instance) for instance in instances)
        case Break(lease, _):
            yield "break", lease.pool, lease.key
        case Expired(lease):
            yield "expire", lease.pool, lease.key


def things(item: Upcoming) -> list[Thing]:
    """The same, of what is foreseen."""
    kinds = {Next.ASK_AGAIN: "ask", Next.GIVE_UP: "delete", Next.OVERDUE: "delete", Next.ABANDON: "break"}
    kind = kinds.get(item.what, item.what.value)
    return [(kind, item.pool, each) for each in item.keys or item.instances or [str(item.count or "")]]


class CoreMachine(RuleBasedStateMachine):
    """Jobs come and go, clouds misbehave, managers die."""

    @initialize(
        pools=pool_settings(),
        policy=policies,
        seed=seeds,
        jobs=st.integers(0, 4),
        keep_used=st.booleans(),
        can=st.sets(st.sampled_from(["suspend", "withdraw"])),
        max_instances=st.sampled_from([0, 0, 4]),
        persistent=st.booleans(),
        watched=st.booleans(),
    )
    def start(
        self,
        *,
        pools: list[PoolSettings],
        policy: Policy,
        seed: int,
        jobs: int,
        keep_used: bool,
        can: set[str],
        max_instances: int,
        persistent: bool,
        watched: bool,
    ) -> None:
        """A fleet, with some jobs under way."""
        self.world = World(
            pools,
            policy,
            seed,
            keep_used=keep_used,
            suspends="suspend" in can,
            withdraws="withdraw" in can,
            max_instances=max_instances,
            persistent=persistent,
            binds=bool(seed % 2),
            watched=watched,
        )
        self.reserved: list[str] = []
        self.submit([60.0] * jobs)
        self.world.pass_time(20)

    def a_cloud(self, pick: int) -> Cloud:
        """Any of them."""
        clouds = list(self.world.clouds.values())
        return clouds[pick % len(clouds)]

    def a_machine(self, pick: int) -> tuple[Cloud, str] | None:
        """Any of them, with its cloud."""
        machines = [(cloud, id_) for cloud in self.world.clouds.values() for id_ in cloud.machines]
        return machines[pick % len(machines)] if machines else None

    # --- jobs ------------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.world.durations) < 10)
    @rule(jobs=st.lists(st.sampled_from([0.5, 5.0, 20.0]), min_size=1, max_size=5))
    def submit(self, jobs: list[float]) -> None:
        """A job is asked for."""
        for duration in jobs:
            self.world.submit(duration)

    @precondition(lambda self: self.world.durations)
    @rule(pick=PICKS)
    def cancel(self, pick: int) -> None:
        """A job is not wanted any more, wherever it stands; one that sleeps or was left is only not to be had again."""
        jobs = sorted(self.world.durations)
        key = jobs[pick % len(jobs)]
        if key in self.world.left:
            if key in self.world.core.ledger.detached:  # else it is about to hear that it was lost
                self.world.wanted.discard(key)
                self.world.take(self.world.core.cancel(key, self.world.now))
        elif key not in self.world.sleeping:
            self.world.forget(key)
        elif key in self.world.called and self.world.core.ledger.leases[key].resuming:
            self.world.called.discard(key)
            self.world.take(self.world.core.cancel(key, self.world.now))

    @precondition(lambda self: self.world.running)
    @rule(pick=PICKS, seconds=st.sampled_from([0.0, 0.3, 2.0, 30.0]), ttl=TTLS)
    def suspend(self, pick: int, seconds: float, ttl: float) -> None:
        """A job falls asleep."""
        jobs = sorted(self.world.running)
        self.world.suspend(jobs[pick % len(jobs)], ttl)
        self.world.pass_time(seconds)

    @precondition(lambda self: len(self.world.durations) < 10)
    @rule(
        pick=PICKS,
        jobs=st.integers(1, 3),
        seconds=st.sampled_from([0.3, 4.0, 15.0, 70.0]),
        meanwhile=st.sampled_from(["", "", "", "crash", "bad turn", "misfortune", "a job"]),
        wakes=st.booleans(),
        ttl=TTLS,
    )
    def jobs_sleep(self, *, pick: int, jobs: int, seconds: float, meanwhile: str, wakes: bool, ttl: float) -> None:
        """Jobs begin and fall asleep, all goes well or not, and they go on, or not yet."""
        before = set(self.world.running)
        self.submit([90.0] * jobs)
        self.world.pass_time(15)
        for key in sorted(set(self.world.running) - before):
            self.world.suspend(key, ttl)
        self.world.pass_time(1.0 if pick % 2 else 10.0)
        match meanwhile:
            case "crash":
                self.crash()
            case "bad turn":
                self.bad_turn_ahead(pick)
            case "misfortune":
                self.misfortune(pick, ["vanish", "dead connection", "suspend", "resume"][pick % 4])
            case "a job":
                self.submit([20.0] * jobs)
        self.world.pass_time(seconds)
        for _ in range(len(self.world.sleeping) if wakes else 0):
            if self.world.sleeping.keys() - self.world.called:
                self.resume(pick)
        self.world.pass_time(seconds)

    @precondition(lambda self: self.world.sleeping.keys() - self.world.called)
    @rule(pick=PICKS)
    def resume(self, pick: int) -> None:
        """A job that sleeps goes on in its slot, as soon as its instance runs."""
        jobs = sorted(self.world.sleeping.keys() - self.world.called)
        key = jobs[pick % len(jobs)]
        if key in self.world.core.ledger.leases:  # else it is about to hear that it was lost
            self.world.resume(key)

    @precondition(lambda self: self.world.left.keys() - self.world.wanted)
    @rule(pick=PICKS)
    def reattach(self, pick: int) -> None:
        """Somebody comes back for a job that outlived its manager; a second who does so is refused."""
        jobs = sorted(self.world.left.keys() - self.world.wanted)
        key = jobs[pick % len(jobs)]
        if key in self.world.core.ledger.detached:  # else it is about to hear that it was lost
            self.world.reattach(key)
            with pytest.raises(NotDetached):
                self.world.core.reattach(key)

    @precondition(lambda self: any(map(self.world.lasts, self.world.running)))
    @rule(pick=PICKS)
    def let_go(self, pick: int) -> None:
        """Whoever holds a persistent lease leaves it to somebody else."""
        jobs = sorted(filter(self.world.lasts, self.world.running))
        key = jobs[pick % len(jobs)]
        if key in self.world.core.ledger.leases:  # else it is about to hear that it was lost
            self.world.let_go(key)

    @precondition(lambda self: self.world.persistent and len(self.world.durations) < 10)
    @rule(
        pick=PICKS,
        jobs=st.integers(2, 4),
        seconds=st.sampled_from([0.1, 4.0, 15.0, 70.0]),
        meanwhile=st.sampled_from(["", "", "crash", "misfortune", "a job", "clean-up fails"]),
        comes=st.booleans(),
    )
    def jobs_outlive_their_manager(self, *, pick: int, jobs: int, seconds: float, meanwhile: str, comes: bool) -> None:
        """Jobs begin, their manager dies, all goes well or not, and somebody comes back for them, or nobody does."""
        self.submit([90.0] * jobs)
        self.world.pass_time(15)
        self.crash()
        self.world.pass_time(seconds if pick % 2 else 0.0)
        for _ in range(len(self.world.left) if comes else 0):
            if self.world.left.keys() - self.world.wanted:
                self.reattach(pick)
        match meanwhile:
            case "crash":
                self.crash()
            case "misfortune":
                self.misfortune(pick, ["vanish", "dead connection", "suspend", "resume"][pick % 4])
            case "a job":
                self.submit([20.0] * jobs)
            case "clean-up fails":
                self.a_cloud(pick).bad_cleanups = 1
        self.world.pass_time(seconds)

    @precondition(lambda self: {*self.world.running, *self.world.sleeping} - self.world.called)
    @rule(pick=PICKS)
    def replace(self, pick: int) -> None:
        """A job begins anew on another instance, as soon as there is one."""
        world = self.world
        keys = sorted({*world.running, *world.sleeping} - world.called)
        key = keys[pick % len(keys)]
        if key in world.core.ledger.leases:  # else it is about to hear that it was lost
            old = world.core.ledger.leases[key].node
            world.replace(key)
            again = world.core.ledger.leases.get(key)
            assert again is None or again.node is not old, "on the same instance again"

    @rule(pick=PICKS)
    def bad_turn_ahead(self, pick: int) -> None:
        """The next suspension or resumption is refused."""
        self.a_cloud(pick).bad_turns = 1

    @rule()
    def reserve(self) -> None:
        """In preemptive mode only what is ready now may be reserved; refusals tell whether one may come later."""
        core, key = self.world.core, f"reserved-{next(self.world.numbers)}"
        idle, waits = core.capacity().idle, core.ledger.pending_for_any
        leaving = core._not_to_reserve(self.world.policy, self.world.now)
        try:
            self.world.take(core.reserve(key, self.world.now))
        except NoCapacity as error:
            assert idle <= leaving or self.world.failing
            if not error.possible and not self.world.failing:
                assert all(
                    core.ceiling is not None
                    or plan.ceiling is not None
                    or plan.limits(self.world.now).blocked_until
                    or not plan.viewed
                    for plan in core.plans.values()
                )
            return
        self.reserved.append(key)
        if self.world.policy.preemptive:
            assert idle
            assert not waits
            assert core.capacity().promised == 0

    @precondition(lambda self: self.reserved)
    @rule(got_job=st.booleans(), duration=st.sampled_from([0.5, 20.0]))
    def settle_reservation(self, got_job: bool, duration: float) -> None:  # noqa: FBT001  (drawn)
        """A reservation that is backed converts at once."""
        world, key = self.world, self.reserved.pop(0)
        if not got_job:
            world.take(world.core.unreserve(key, world.now))
            return
        fulfilled = world.core.capacity().promised == 0 and world.core.ledger.reserved > 0 and not world.failing
        world.durations[key] = duration
        pools = world.pools_of(key)
        step = world.core.acquire(key, world.now, persistent=world.lasts(key), pools=pools)
        if fulfilled and not pools:
            assert [each.lease.key for each in step.actions if isinstance(each, Deliver | Check)] == [key]
        world.take(step)

    # --- time, and what goes wrong ---------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.0, 0.2, 1.0, 6.0, 30.0, 90.0]))
    def pass_time(self, seconds: float) -> None:
        """Whatever is due happens."""
        self.world.pass_time(seconds)

    @rule(pick=PICKS, what=st.sampled_from(["partial", "refused", "not heard", "heard, not answered"]))
    def trouble_ahead(self, pick: int, what: str) -> None:
        """The next increase goes wrong."""
        self.a_cloud(pick).trouble.append(what)

    @rule(pick=PICKS, comes=st.booleans())
    def stock(self, pick: int, comes: bool) -> None:  # noqa: FBT001  (drawn)
        """A cloud has nothing left, or something again."""
        cloud = self.a_cloud(pick)
        if comes:
            cloud.restock(self.world.now)
        else:
            cloud.run_out(self.world.now)

    @rule(pick=PICKS)
    def bad_read_ahead(self, pick: int) -> None:
        """The next view will be short of a machine."""
        self.a_cloud(pick).bad_reads = 1

    @rule(pick=PICKS)
    def bad_cleanup_ahead(self, pick: int) -> None:
        """The next clean-up fails."""
        self.a_cloud(pick).bad_cleanups = 1

    @rule(pick=PICKS)
    def foreign(self, pick: int) -> None:
        """The cloud adds a machine by itself."""
        self.a_cloud(pick).create(None, self.world.now)

    @rule(pick=PICKS, how=st.sampled_from(["vanish", "sick", "notice", "dead connection", "suspend", "resume"]))
    def misfortune(self, pick: int, how: str) -> None:
        """Something befalls a machine."""
        hit = self.a_machine(pick)
        if hit is None:
            return
        cloud, id_ = hit
        match how:
            case "vanish":
                del cloud.machines[id_]
            case "sick":
                cloud.machines[id_].sick = True
            case "suspend" | "resume":
                if self.world.suspends:
                    turned = State.SUSPENDED if how == "suspend" else State.RUNNING
                    cloud.machines[id_].turn(turned, self.world.now)
            case "notice":
                self.world.feed(cloud.pool, messages.Noticed(id_, self.world.now + 10, NoticeKind.PREEMPTION))
            case _:
                self.world.feed(cloud.pool, messages.ConnectionDied(id_, "reset by peer"))
        self.world.settle()

    @rule(pick=PICKS, how=st.sampled_from(["cordon", "uncordon", "retain", "unretain"]))
    def hold(self, pick: int, how: str) -> None:
        """An operator wants something of an instance, or no longer."""
        core, now = self.world.core, self.world.now
        ids = [f"{name}/{id_}" for name, plan in core.plans.items() for id_ in plan.instances]
        if not ids:
            return
        id_ = ids[pick % len(ids)]
        try:
            match how:
                case "cordon":
                    self.world.take(core.cordon(id_, "it is slow", self.world.now))
                case "uncordon":
                    self.world.take(core.uncordon(id_, now))
                case "retain":
                    self.world.take(core.retain(id_, "to look at it", now))
                case _:
                    self.world.take(core.unretain(id_, now))
        except NoSuchInstance:
            pool, _, of_pool = id_.partition("/")
            assert core.plans[pool].instances[of_pool].stage is Stage.REMOVING

    @rule(pick=PICKS, error=st.sampled_from(["", "", "it is somebody else's"]))
    def disown(self, pick: int, error: str) -> None:
        """Somebody else took a group, or it is ours again; the other pools' jobs are served meanwhile."""
        pool = self.a_cloud(pick).pool
        self.world.feed(pool, messages.Disowned(error))
        self.world.settle()
        pools = self.world.core.ledger.pools
        assert bool(self.world.core.plans[pool].disowned) == bool(error)
        assert not (error and pools[pool].counts.usable)

    @rule(works=st.booleans())
    def journal(self, works: bool) -> None:  # noqa: FBT001  (drawn)
        """The disk fills up, or is freed."""
        self.world.journal_works = works

    @rule()
    def crash(self) -> None:
        """Whatever was not committed is lost, and so is the knowledge of what was under way."""
        self.world.journal_works = True
        self.reserved.clear()
        self.world.start()

    # --- what users rely on ----------------------------------------------------------------------------------

    @rule(routine=st.booleans())
    def what_is_foreseen_is_what_happens_next(self, routine: bool) -> None:  # noqa: FBT001  (drawn)
        """If nothing else happens, the first thing foreseen happens then, and nothing before; with routine or not."""
        core, now = deepcopy(self.world.core), self.world.now
        passed_over = {Next.POLICY, Next.TAKEN} if routine else {Next.POLICY, Next.TAKEN, Next.LOOK, Next.CHECK}
        foreseen = [item for item in Snapshot(core, now).upcoming if item.what not in passed_over]
        at, happened = next_actions(core, now, routine=routine)
        soonest = [thing for item in foreseen if item.at <= at for thing in things(item)]
        assert [item.at for item in foreseen[:1]] == [at][: len(happened)], (foreseen[:1], happened)
        if any(kind == "age" for kind, *_ in happened):  # what that leads to is decided at once if a decision is due
            assert Counter(soonest) <= Counter(happened)
        else:
            assert sorted(soonest) == sorted(happened)

    @rule()
    def every_job_is_served_in_the_end(self) -> None:
        """No waiter starves, once the clouds behave; reservations that nobody uses are given up first."""
        world = self.world
        world.behave()
        for key in self.reserved:
            world.take(world.core.unreserve(key, world.now))
        self.reserved.clear()
        for key in world.sleeping.keys() - world.called:
            if key in world.core.ledger.leases:
                world.resume(key)
        for key in sorted(world.left.keys() - world.wanted)[::2]:  # nobody comes for the others
            if key in world.core.ledger.detached:
                world.reattach(key)
        for _ in range(60):
            if not world.durations:
                return
            world.pass_time(50)
        raise AssertionError(f"still not done after 50 minutes: {world.core.decisions[-1]}")

    @precondition(lambda self: not any(pool.max_instance_age for pool in self.world.pools.values()))
    @rule(jobs=st.integers(0, 6))
    def a_constant_load_settles(self, jobs: int) -> None:
        """While as many jobs run as before, the fleet stays as it is, and holds nothing to spare."""
        self.every_job_is_served_in_the_end()
        world = self.world
        for _ in range(jobs):
            world.submit(inf)
        world.pass_time(400)
        before = len(world.changes)
        world.pass_time(200)
        assert world.changes[before:] == [], "it churns"
        world.check_nothing_is_to_spare()
        for key in list(world.durations):
            world.forget(key)

    def teardown(self) -> None:
        """Messages are data: what a core was told and answered can be stored, and told once more."""
        if hasattr(self, "world"):
            self.world.check_replay()
            self.world.check_replay(journaled=False)

    # --- what always holds -----------------------------------------------------------------------------------

    @invariant()
    def no_ceiling_is_exceeded_by_what_we_asked_for(self) -> None:
        """Of machines that our intents brought, no more exist than are allowed, but for those being replaced."""
        world = self.world
        for name, cloud in world.clouds.items():
            plan = world.core.plans[name]
            ours = sum(machine.intent is not None for id_, machine in cloud.machines.items() if id_ in plan.instances)
            if plan.ceiling is not None:
                assert ours <= plan.ceiling

    @invariant()
    def everything_can_be_explained(self) -> None:
        """Whatever the state, there is an answer, and JSON has words for it."""
        core, now = self.world.core, self.world.now
        snapshot = Snapshot(core, now)
        instances = ["no such one", "a1", *(id_ for plan in core.plans.values() for id_ in plan.instances)]
        keys = ["no such one", "job-1", *self.reserved, *self.world.durations]
        instance, key = instances[int(now * 5) % len(instances)], keys[int(now * 5) % len(keys)]
        answers: list[Explanation | InstanceExplanation | KeyExplanation] = [
            explain(snapshot),
            of_instance := explain_instance(snapshot, instance),
            of_key := explain_key(snapshot, key),
        ]
        for answer in answers:
            assert answer.answer
            data = answer.as_dict()
            assert json.loads(json.dumps(data, allow_nan=False)) == data
            assert len(str(answer).splitlines()) == len(list(answer.sentences()))
        assert (of_instance.state in {"unknown", "gone"}) is (instance not in instances[2:])
        if not any(step.actions for step in self.world.waiting):
            assert (of_key.state in {"unknown", "lost", "expired"}) is (key not in keys[2:])

    @invariant()
    def no_dead_instance_is_used(self) -> None:
        """The ledger holds exactly the instances that the plan has announced, and those that it expects back."""
        for name, plan in self.world.core.plans.items():
            announced = {id_ for id_, instance in plan.instances.items() if instance.announced}
            nodes = self.world.core.ledger.pools[name].nodes.values()
            assert announced == {node.instance for node in nodes if node.closed is not Closed.RETURNING}
            for node in nodes:
                assert node.instance in plan.instances
                if plan.instances[node.instance].paused:
                    assert not node.usable

    @invariant()
    def what_is_read_of_an_instance_again_changes_nothing(self) -> None:
        """No change of an instance was missed: the ledger is in line with each."""
        core = self.world.core
        pools = core.ledger.pools.items()
        before = {pool: (pool_slots.version, [*pool_slots.changed_sleepers]) for pool, pool_slots in pools}
        for name, plan in core.plans.items():
            for known in plan.instances.values():
                core._sync(name, known, core.ledger.node(name, known.id), self.world.now)
        assert (core._writes, core._actions) == ([], [])
        assert before == {pool: (pool_slots.version, [*pool_slots.changed_sleepers]) for pool, pool_slots in pools}

    @invariant()
    def what_is_known_of_sleepers_is_what_going_through_all_of_them_shows(self) -> None:
        """Their slots and their ends are kept up to date one by one."""
        core, now = self.world.core, self.world.now
        for name, pool_slots in core.ledger.pools.items():
            plan, sleepers = core.plans[name], [*pool_slots.lists.sleepers.values()]
            at_hand = [
                node
                for node in sleepers
                if node.counts.rare.asleep and not node.counts.rare.wake_requested
                if core.choices.may_wake(node, now) and now < plan.too_old_at(plan.instances[node.instance])
            ]
            known = core.choices.sleepers[name]
            assert known.slots(now) == sum(node.counts.rare.asleep for node in at_hand)
            assert [*known.to_resume(1 << 30, now)] == at_hand[::-1]
            assert known.free == sum(not node.busy for node in sleepers)
            for places in (0, len(sleepers)):
                endings = known.endings(self.world.policy, now, places=places, too_many="too many")
                stopped = [node for node in sleepers if not (node.busy or node.retained)]
                ends = [(due, each.instance) for due, each in endings]
                assert sorted(ends) == self.ends(plan, stopped, places)
                assert ends == sorted(ends, key=lambda each: each[0])

    def ends(self, plan: Plan, stopped: Sequence[Node], places: int) -> Sequence[tuple[float, str]]:
        """When which suspended instances are given up that hold no leases."""
        ends, policy = [], self.world.policy
        for number, node in enumerate(stopped):
            known = plan.instances[node.instance]
            assert known.sleep is not None
            assert known.sleep.since is not None
            idle_until = known.sleep.since + policy.idle_time
            due = [plan.too_old_at(known), known.sleep.since + self.world.core.pools[plan.pool].suspended_time]
            due += [-inf] if known.resume_failures > 1 else []
            due += [idle_until] if node.cordoned is not None or number < len(stopped) - places else []
            ends.append((max(self.world.now, min(due)), node.instance))
        return sorted(ends)

    @invariant()
    def no_job_outlives_a_doomed_instance(self) -> None:
        """None of them declared that it would be done in time."""
        core, now = self.world.core, self.world.now
        if any(step.actions for step in self.world.waiting):
            return
        for lease in self.world.running.values():
            doom = core.doomed.get((lease.pool, lease.instance))
            assert doom is None or now < doom.deadline

    @invariant()
    def what_sleeps_at_the_cloud_runs_no_job(self) -> None:
        """No instance is put to sleep under a job, and none sleeps for ever for whom somebody waits."""
        for name, plan in self.world.core.plans.items():
            for id_, instance in plan.instances.items():
                if instance.stage is Stage.ASLEEP:
                    node = self.world.core.ledger.nodes[f"{name}/{id_}"]
                    awake = [each for each in node.leases if not each.suspended]
                    assert node.rests or node.cleaning or awake
                    assert all(each.detached for each in awake), "but for what somebody else has put to sleep"
                    assert not node.usable
                    assert node.closed is Closed.ASLEEP

    @invariant()
    def a_detached_lease_is_reattached_or_given_up_never_both(self) -> None:
        """Whoever comes back for it in time gets it; the time for that runs for the others, and for no other lease."""
        ledger, world = self.world.core.ledger, self.world
        if any(step.actions for step in world.waiting):
            return
        assert ledger.detached.keys() == world.left.keys()
        deadlines = dict(ledger.deadlines.items())
        assert deadlines.keys() == world.left.keys() - world.wanted
        assert all(world.now < at <= world.now + REATTACH_TIMEOUT for at in deadlines.values())

    @invariant()
    def no_slot_of_a_detached_lease_is_handed_out(self) -> None:
        """It counts as acquired, and its instance stays; nobody else has it, nor is it cleaned."""
        ledger = self.world.core.ledger
        for lease in ledger.detached.values():
            node = lease.node
            assert node.awake[lease.slot] is lease
            assert lease.slot not in node.vacant
            assert lease.slot not in node.cleaning
            assert node.counts.acquired == len(node.awake)
            assert self.world.core.plans[node.pool].instances[node.instance].stage is not Stage.REMOVING
        held = {(f"{lease.pool}/{lease.instance}", lease.slot) for lease in self.world.running.values()}
        assert not held.intersection(self.world.left.values())

    @invariant()
    def observers_know_the_state_of_every_instance(self) -> None:
        """No change is missed, though only what a step touches is looked at."""
        if self.world.watched and not any(step.actions for step in self.world.waiting):
            plans = self.world.core.plans.items()
            states = {(name, id_): label_of(each) for name, plan in plans for id_, each in plan.instances.items()}
            assert self.world.told == states

    @invariant()
    def what_is_dirty_is_remembered(self) -> None:
        """Whatever slot would be no good after a crash: its lease, its dirt or its removal is in the journal."""
        records, ledger = self.world.records, self.world.core.ledger
        if any(step.writes for step in self.world.waiting):
            return
        kept = {(record.host, record.slot) for kind in (LEASE, DIRTY) for record in records[kind].values()}
        for node in ledger.nodes.values():
            for slot in range(node.pool_slots.per_node):
                assert (node.instance, slot) not in self.world.dirty or (node.id, slot) in kept
        assert {record.host for record in records[DIRTY].values()} <= set(ledger.nodes)

    @invariant()
    def jobs_and_leases_agree(self) -> None:
        """Whoever runs holds a lease; whoever waits is known."""
        ledger = self.world.core.ledger
        if any(step.actions for step in self.world.waiting):
            return  # not performed yet, as while the journal fails
        assert set(self.world.running) <= set(ledger.leases)
        waiting = {waiter.key for waiter in ledger.queue() if not waiter.reserves}
        assert set(ledger.leases) | waiting == set(self.world.durations)
        if not any(step.writes for step in self.world.waiting):
            assert set(self.world.records[LEASE]) == set(ledger.leases)


TestCoreMachine = CoreMachine.TestCase
TestCoreMachine.settings = settings(max_examples=75, stateful_step_count=30, phases=QUICK)


# --- whole lives of jobs, one after the other --------------------------------------------------------------------


@settings(max_examples=30, derandomize=True)
@given(pool_settings(), policies, st.integers(1, 6), seeds)
def test_a_constant_stream_of_jobs_settles(pools: list[PoolSettings], policy: Policy, jobs: int, seed: int) -> None:
    """Each job that ends is followed by the next: without a use limit the fleet stays as it is."""
    world = World([evolve(pool, max_use_count=0, max_instance_age=0.0) for pool in pools], policy, seed)

    def next_job() -> None:
        key = world.submit(inf)
        world.after(10.0, lambda: follow(key))

    def follow(key: str) -> None:
        world.durations[key] = 0.0
        if key in world.running:
            world.done(world.running[key])
            next_job()
        else:
            world.after(1.0, lambda: follow(key))

    for _ in range(jobs):
        next_job()
    world.pass_time(300)
    before = len(world.changes)
    world.pass_time(300)
    assert world.changes[before:] == []


# --- single rules, and what the machine found -----------------------------------------------------------------


def a_world(policy: Policy | None = None, **changes: Any) -> World:  # noqa: ANN401  (settings of a pool)
    """One pool without throttle."""
    pool = PoolSettings(name="a", scale_throttle=NO_THROTTLE, preexisting=Preexisting.REMOVE)
    return World([evolve(pool, **changes)], policy or Policy(), 0)


def test_nothing_is_asked_for_before_the_first_view() -> None:
    """A refused group must not have been changed, and its instances count against the ceiling."""
    pool = PoolSettings(name="a", scale_throttle=NO_THROTTLE)
    core = Core([pool], {"a": a_plan(pool)}, [Policy(idle_count=2)], {}, EPOCH)
    actions = [*core.tick(EPOCH).actions, *core.tick(EPOCH + 1).actions]
    assert of_type(messages.Update, actions)
    assert not of_type(messages.Increase, actions)


def test_what_is_being_removed_is_not_over_the_ceiling_twice() -> None:
    """Two over the ceiling: two are given up, not two more at each decision until they are gone."""
    world = a_world(Policy(idle_time=1000.0), max_instances=2, preexisting=Preexisting.ADOPT)
    for _ in range(4):
        world.clouds["a"].create(None, world.now)
    world.pass_time(100)
    assert len(world.clouds["a"].machines) == 2
    assert sum(len(each.instances) for each in of_type(messages.Decrease, world.changes)) == 2


def test_what_goes_for_its_own_pool_goes_for_all_pools() -> None:
    """One over its pool's ceiling and over that of all pools is one to give up, and another pool's stays."""
    pools = [PoolSettings(name=name, scale_throttle=NO_THROTTLE, preexisting=Preexisting.ADOPT) for name in "ab"]
    world = World([evolve(pools[0], max_instances=1), pools[1]], Policy(idle_time=1000.0), 0, max_instances=2)
    for cloud in "aab":
        world.clouds[cloud].create(None, world.now)
    world.pass_time(100)
    assert {name: len(cloud.machines) for name, cloud in world.clouds.items()} == {"a": 1, "b": 1}


def test_what_goes_for_all_pools_is_not_over_the_ceiling_of_its_own() -> None:
    """One over its pool's ceiling, and two more over that of all pools: three are given up, and each for a reason."""
    pool = PoolSettings(name="a", scale_throttle=NO_THROTTLE, preexisting=Preexisting.ADOPT, max_instances=6)
    world = World([pool], Policy(idle_count=4, idle_time=1000.0), 0, max_instances=4)
    world.pass_time(30)
    for _ in range(3):
        world.clouds["a"].create(None, world.now)
    world.pass_time(100)
    assert len(world.clouds["a"].machines) == 4
    assert sum(len(each.instances) for each in of_type(messages.Decrease, world.changes)) == 3


def test_what_is_kept_idle_makes_room_for_who_waits_for_another_pool() -> None:
    """Idle instances that the policy wants fill the fleet: as many go as those who are bound need, and no more."""
    pools = [PoolSettings(name=name, scale_throttle=NO_THROTTLE) for name in "ab"]
    world = World(pools, Policy(idle_count=4), 0, max_instances=4)
    world.pass_time(30)
    assert len(world.clouds["a"].machines) == 4
    world.binds = True
    for key in ("bound-3", "bound-6"):
        world.durations[key] = 20.0
        world.acquire(key)
    world.pass_time(15)
    assert {key: lease.pool for key, lease in world.running.items()} == dict.fromkeys(world.durations, "b")
    assert {name: len(cloud.machines) for name, cloud in world.clouds.items()} == {"a": 2, "b": 2}
    assert sum(len(each.instances) for each in of_type(messages.Decrease, world.changes)) == 2
    before = len(world.changes)
    world.pass_time(600)
    assert not world.durations
    assert world.changes[before:] == []


@pytest.mark.parametrize("preemptive", [True, False])
def test_reservations_that_come_and_go_keep_nothing_from_making_room(preemptive: bool) -> None:  # noqa: FBT001
    """What is reserved stays; once it is not any more, it goes, even if somebody would reserve it again at once."""
    pools = [PoolSettings(name=name, scale_throttle=NO_THROTTLE) for name in "ab"]
    policy = Policy(idle_count=2, preemptive_mode=preemptive)
    world = World(pools, policy, 0, max_instances=2)
    world.pass_time(30)
    for key in ("first", "second"):
        world.take(world.core.reserve(key, world.now))
    world.binds = True
    world.durations["bound-3"] = 20.0
    world.acquire("bound-3")
    world.pass_time(100)
    assert len(world.clouds["a"].machines) == world.core.ledger.fulfilled == 2
    world.take(world.core.unreserve("second", world.now))
    with pytest.raises(NoCapacity, match="about to be removed") as refused:
        world.core.reserve("second", world.now)
    assert refused.value.possible
    world.pass_time(15)
    assert [lease.pool for lease in world.running.values()] == ["b"]
    assert world.core.ledger.fulfilled == 1


def test_what_is_used_up_while_a_deletion_waits_to_be_sent_goes_with_it() -> None:
    """One was over the ceiling when that was decided, and not any more when the cloud has answered the last call."""
    adopting = {"preexisting": Preexisting.ADOPT, "max_use_count": 1}
    world = a_world(Policy(idle_count=1, idle_time=1000.0), max_instances=3, **adopting)
    for _ in range(2):
        world.submit(inf)
    world.pass_time(60)
    first, second = world.running.values()
    for _ in range(2):
        world.clouds["a"].create(None, world.now)
    world.done(first)
    world.pass_time(0.02)
    world.update("a")
    world.pass_time(REST)
    assert world.core.plans["a"].standing.removing == 2
    world.done(second)
    before = len(world.changes)
    world.pass_time(0.5)
    assert [len(each.instances) for each in of_type(messages.Decrease, world.changes[before:])] == [2]


def test_what_is_worn_out_makes_room_under_the_ceiling() -> None:
    """One over the ceiling and one worn out: the one is the other, and no idle instance goes before its time."""
    world = a_world(Policy(idle_time=1000.0), max_instances=2, max_use_count=2, preexisting=Preexisting.ADOPT)
    for _ in range(3):
        world.clouds["a"].create(None, world.now)
        world.submit(inf)
    world.pass_time(100)
    first, second, _ = list(world.running.values())
    world.done(first)
    world.submit(inf)
    world.settle()
    (again,) = (lease for lease in world.running.values() if lease.instance == first.instance)
    world.done(again)
    world.done(second)
    world.pass_time(100)
    assert first.instance not in world.clouds["a"].machines
    assert second.instance in world.clouds["a"].machines


def test_an_idle_instance_with_few_uses_left_is_not_in_use() -> None:
    """Unavailable slots count as in use on busy instances only: else idle ones would call for more idle ones."""
    policy = Policy(scale_factor=0.5, idle_count=1)
    world = a_world(policy, capacity_per_instance=4, max_use_count=1)
    world.pass_time(100)
    assert world.core.decisions[-1].demand.in_use == 0
    world.submit(inf)
    world.pass_time(400)
    assert world.core.decisions[-1].demand.in_use == 4
    assert world.core.decisions[-1].idle_target == 2
    assert len(world.clouds["a"].machines) == 3


def test_a_small_remainder_is_given_up_though_an_older_host_is_needed() -> None:
    """One node has fallen idle first but is needed; another, all but worn out, is not needed and goes."""
    world = a_world(Policy(idle_count=3, idle_time=5.0), capacity_per_instance=4, max_use_count=4)
    world.pass_time(60)
    for _ in range(2):
        world.submit(30.0)
    world.pass_time(2)
    world.check_nothing_is_to_spare()
    world.pass_time(300)
    world.check_nothing_is_to_spare()


def test_work_is_not_given_to_an_instance_that_the_view_does_not_show() -> None:
    """It became ready just when a view missed it: whoever waits goes on waiting until the next view."""
    pool = PoolSettings(name="a", scale_throttle=NO_THROTTLE)
    core = Core([pool], {"a": a_plan(pool)}, [], {}, EPOCH)
    core.tick(EPOCH)
    core.handle("a", messages.Updated(Observation({})), EPOCH)
    core.acquire("job", EPOCH)
    (increase,) = of_type(messages.Increase, [*core.tick(EPOCH).actions, *core.tick(EPOCH + 1).actions])
    core.handle("a", messages.Increased(increase.intent, 1), EPOCH)
    core.handle("a", messages.Updated(Observation({"i": Observed(state=State.RUNNING)})), EPOCH)
    core.handle("a", messages.Updated(Observation({})), EPOCH)
    assert not of_type(Deliver, core.handle("a", messages.Prepared("i"), EPOCH).actions)
    shown = messages.Updated(Observation({"i": Observed(state=State.RUNNING)}))
    assert of_type(Deliver, core.handle("a", shown, EPOCH).actions)


def test_what_happens_to_several_at_one_moment_comes_to_the_same_in_one_turn() -> None:
    """Two of three instances become ready, and one cannot be prepared: those who wait get what they would have got."""
    pool = PoolSettings(name="a", scale_throttle=NO_THROTTLE)
    core = Core([pool], {"a": a_plan(pool)}, [], {}, EPOCH)
    core.tick(EPOCH)
    core.handle("a", messages.Updated(Observation({})), EPOCH)
    for key in ("first", "second", "third"):
        core.acquire(key, EPOCH)
    (increase,) = of_type(messages.Increase, [*core.tick(EPOCH).actions, *core.tick(EPOCH + 1).actions])
    core.handle("a", messages.Increased(increase.intent, 3), EPOCH)
    shown = {instance: Observed(state=State.RUNNING) for instance in ("i", "j", "k")}
    core.handle("a", messages.Updated(Observation(shown)), EPOCH)
    failed = messages.PrepareFailed("j", "no way in")
    facts: list[messages.Fact] = [messages.Prepared("i"), failed, messages.Prepared("k")]
    other = deepcopy(core)
    together = core.handle_all("a", facts, EPOCH + 2)
    steps = [other.handle("a", fact, EPOCH + 2) for fact in facts]
    one_by_one = [action for step in steps for action in step.actions]
    assert len(of_type(Deliver, together.actions)) == 2
    assert Counter(map(repr, together.actions)) == Counter(map(repr, one_by_one))
    assert core.plans["a"].instances == other.plans["a"].instances
    assert core.capacity() == other.capacity()


def test_where_booting_takes_a_minute_more_goes_into_a_call() -> None:
    """What is wanted after a decision waits for a hundredth of a boot; if none is known, a tenth of a second."""
    world = World([PoolSettings(name="a", scale_throttle=NO_THROTTLE)], Policy(idle_time=1000.0), 0, boot=60.0)
    world.pass_time(1)
    for _ in range(3):
        world.submit(inf)
    world.pass_time(0.02)
    world.submit(inf)
    world.pass_time(REST)
    world.pass_time(100)
    for jobs in (1, 2):
        for _ in range(jobs):
            world.submit(inf)
        world.pass_time(0.02)
    world.pass_time(REST)
    asked = [each.count for each in of_type(messages.Increase, world.changes)]
    world.pass_time(62 * REST_PER_BOOT)
    assert asked == [3, 1, 1]
    assert [each.count for each in of_type(messages.Increase, world.changes)] == [3, 1, 1, 2]


def test_leases_of_a_dead_manager_are_dropped_and_their_instances_replaced() -> None:
    """Nobody holds them any more, and what ran there is not to be trusted."""
    world = a_world()
    world.submit(inf)
    world.pass_time(30)
    (used,) = world.clouds["a"].machines
    world.start()
    world.pass_time(60)
    assert set(world.records[LEASE]) == set(world.running)
    assert len(world.running) == 1
    assert used not in world.clouds["a"].machines
    assert Counter(lease.instance for lease in world.running.values())[used] == 0


def test_what_growth_makes_surplus_is_taken_back_at_once() -> None:
    """A decision changes what it was made on: of two small requests one will do, once a large instance can be had."""
    large = PoolSettings(name="a", capacity_per_instance=4, scale_throttle=NO_THROTTLE)
    small = PoolSettings(name="b", max_instances=2, scale_throttle=NO_THROTTLE)
    world = World([large, small], Policy(idle_count=4), 0, boot=1000.0)
    world.core.plans["a"]._growth.ceiling = 0
    world.clouds["b"].run_out(world.now)
    world.pass_time(20)
    assert len(world.clouds["b"].unfilled) == 2
    world.core.plans["a"]._growth.ceiling = 1
    world.take(world.core.acquire("job", world.now))
    world.pass_time(1)
    assert len(world.clouds["a"].machines) == 1
    assert len(world.clouds["b"].unfilled) == 1


def test_what_waits_behind_a_call_that_hangs_is_asked_of_another_pool() -> None:
    """Once the first pool's cloud has not answered for half a minute, and not when something else happens; foreseen."""
    world = World([PoolSettings(name=name, scale_throttle=NO_THROTTLE) for name in "ab"], Policy(), 0)
    world.pass_time(20)
    world.submit(0.5)
    world.pass_time(0.02)
    (asked,) = world.changes
    world.submit(0.5)
    world.pass_time(REST)
    core, since = deepcopy(world.core), world.now
    assert (core.plans["a"].queued, world.changes) == (1, [asked])
    at, happened = next_actions(core, since, routine=False)
    assert happened == [("ask", "b", "1")]
    assert since < at <= since + UNANSWERED + 2 * COALESCE
    assert core.plans["a"].queued == 0
    (item,) = [item for item in forecast(world.core, since) if item.what is Next.ASK]
    assert (item.at, item.pool, item.count, item.why) == (at, "b", 1, "the cloud has not answered pool a")


def assert_foreseen(world: World) -> None:
    """What is foreseen first is what happens first."""
    core = deepcopy(world.core)
    foreseen = [item for item in Snapshot(core, world.now).upcoming if item.what not in {Next.LOOK, Next.CHECK}]
    at, happened = next_actions(core, world.now, routine=False)
    assert sorted(thing for item in foreseen if item.at <= at for thing in things(item)) == sorted(happened)
    assert foreseen[0].at == at


def test_that_a_retained_instance_is_not_ready_in_time_is_foreseen() -> None:
    """It stays; but another is asked for in its place, and nobody should wonder why."""
    pool = PoolSettings(name="a", scale_throttle=NO_THROTTLE, instance_ready_timeout=60.0)
    world = World([pool], Policy(), 0, boot=1000.0)
    world.pass_time(10)
    world.submit(inf)
    world.pass_time(10)
    (known,) = world.core.plans["a"].instances.values()
    world.take(world.core.retain(known.id, "to look at it", world.now))
    assert_foreseen(world)
    (item,) = [item for item in forecast(world.core, world.now) if item.what is Next.STAY]
    assert (item.instances, item.why) == ((known.id,), "retained: to look at it")


def test_what_was_just_released_is_foreseen_to_go_when_it_goes() -> None:
    """It is to spare from when it was released, though nothing has ticked since."""
    pool = PoolSettings(name="a", scale_throttle=NO_THROTTLE)
    world = World([pool], Policy(idle_time=5.0), 0, watched=False)
    key = world.submit(inf)
    world.pass_time(600)
    world.forget(key)
    assert_foreseen(world)


def test_of_what_goes_together_the_least_preferred_is_foreseen() -> None:
    """One of another pool was idle for long enough before, but there was no surplus then: when there is, it stays."""
    quick = PoolSettings(name="a", scale_throttle=NO_THROTTLE, update_interval_when_expecting=5.0)
    pools = [evolve(quick, max_instances=1), evolve(quick, name="b")]
    world = World(pools, Policy(idle_time=30.0, scale_factor=0.3), 0, watched=False)
    world.pass_time(20)
    for duration in (0.5, 0.5, 0.5, 20.0):
        world.submit(duration)
    world.pass_time(50)
    assert_foreseen(world)


def test_instances_that_are_given_up_together_are_removed_in_one_request() -> None:
    """Else the second waits for the cloud's answer to the first."""
    world = World([PoolSettings(name="a", scale_throttle=NO_THROTTLE)], Policy(), 0, persistent=True)
    for _ in range(4):
        world.submit(inf)
    world.pass_time(60)
    world.durations.clear()  # nobody comes back for them
    world.start()
    _, happened = next_actions(deepcopy(world.core), world.now, routine=False)
    held = sorted(lease.id.instance for lease in world.core.ledger.detached.values())
    assert len(held) > 1
    assert [thing for thing in happened if thing[0] == "delete"] == [("delete", "a", each) for each in held]


def test_a_resumption_that_is_tried_again_is_foreseen() -> None:
    """The first try was refused; the lease that waits there is named, and the next try happens when it is due."""
    world = World([PoolSettings(name="a", scale_throttle=NO_THROTTLE)], Policy(), 0, suspends=True)
    key = world.submit(90.0)
    world.pass_time(15)
    world.suspend(key)
    world.pass_time(10)
    world.clouds["a"].bad_turns = 1
    world.resume(key)
    world.pass_time(0.5)
    foreseen = [item for item in forecast(world.core, world.now) if item.what is Next.RESUME]
    assert [(item.instances, item.why) for item in foreseen] == [(("a1",), f"{key} is resuming")]
    assert next_actions(deepcopy(world.core), world.now, routine=False) == (foreseen[0].at, [("resume", "a", "a1")])


def test_a_request_that_waited_for_the_journal_in_vain_is_made_again() -> None:
    """It is never sent; then all is as before the decision that wanted it, and yet that was not the last word."""
    world = a_world()
    world.pass_time(10)
    world.journal_works = False
    world.submit(5.0)
    world.pass_time(1)
    assert world.failing
    assert not world.clouds["a"].machines
    world.journal_works = True
    world.pass_time(60)
    assert not world.durations, "the job has not ended"


def test_what_is_cordoned_goes_first_where_one_is_over_the_ceiling() -> None:
    """It is of no use to anybody; then no idle instance that is goes before its time."""
    world = a_world(Policy(idle_count=2, idle_time=1000.0), max_instances=2)
    world.pass_time(30)
    world.take(world.core.cordon("a1", "it is slow", world.now))
    world.core.plans["a"]._growth.ceiling = 1
    world.pass_time(30)
    assert set(world.clouds["a"].machines) == {"a2"}


def test_a_ceiling_that_falls_below_what_is_there_is_heeded_at_once() -> None:
    """The cloud lowers its own: there was no more room before and there is none now, but one is too many."""
    pool = PoolSettings(name="a", scale_throttle=NO_THROTTLE, preexisting=Preexisting.ADOPT)
    core = Core([pool], {"a": a_plan(pool)}, [Policy(idle_count=3)], {}, EPOCH)
    shown = {id_: Observed(state=State.RUNNING) for id_ in ("i", "j", "k")}
    core.tick(EPOCH)
    core.handle("a", messages.Updated(Observation(shown, max_size=3)), EPOCH)
    for id_ in shown:
        core.handle("a", messages.Prepared(id_), EPOCH)
    assert not of_type(messages.Decrease, [act for later in range(3) for act in core.tick(EPOCH + later).actions])
    core.handle("a", messages.Updated(Observation(shown, max_size=2)), EPOCH + 3)
    actions = [act for later in range(3, 6) for act in core.tick(EPOCH + later).actions]
    assert [len(each.instances) for each in of_type(messages.Decrease, actions)] == [1]


def test_all_that_a_pool_gives_up_goes_in_one_request() -> None:
    """Used up, unhealthy or idle: a cloud that limits the rate of requests is asked once."""
    world = a_world(Policy(idle_count=2), max_use_count=1)
    for _ in range(3):
        world.submit(20.0)
    world.pass_time(30)
    assert [len(each.instances) for each in of_type(messages.Decrease, world.changes)] == [3]


def test_remove_all_leaves_nothing() -> None:
    """Every instance is deleted as it falls free."""
    world = a_world(Policy(idle_count=3))
    world.pass_time(30)
    assert len(world.clouds["a"].machines) == 3
    world.take(world.core.stop_handing_out("the end"))
    steps = [world.core.remove_all(world.now), world.core.tick(world.now), world.core.tick(world.now + 1)]
    doomed = [id_ for step in steps for each in of_type(messages.Decrease, step.actions) for id_ in each.instances]
    assert sorted(doomed) == sorted(world.clouds["a"].machines)


def test_views_that_show_nothing_new_lead_to_no_decision_while_everything_is_removed() -> None:
    """A job that is waited for can take hours, in which the cloud is looked at."""
    world = a_world(Policy(idle_count=3))
    world.submit(100_000.0)
    world.pass_time(30)
    world.take(world.core.stop_handing_out("the end"))
    world.take(world.core.remove_all(world.now))
    world.pass_time(300)
    decided_at = world.core.decisions[-1].at
    world.pass_time(3600)
    assert world.core.decisions[-1].at == decided_at
