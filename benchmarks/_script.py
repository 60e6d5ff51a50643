"""The very core in virtual time: a script takes the place of clouds and jobs, and answers all that a core decides.

What a step would have written is left aside, and what it would have done happens a moment later.
"""

import heapq
from collections.abc import Callable, Iterable
from functools import partial
from itertools import count
from math import inf
from time import process_time

from attrs import Factory, define

from fleeting import Capability, GroupInfo, Observation, Observed, Preexisting, ScaleThrottle, State
from fleeting.core import build_plan, messages
from fleeting.journal import Recovered
from taskscaler import Policy
from taskscaler._types import PoolSettings
from taskscaler.core._mediator import AllRemoved, Core
from taskscaler.core._slots import Deliver

LATENCY = 0.001
"""Seconds that a cloud takes to answer."""

NEVER = 1e9
"""Seconds after which something is due that is not to be measured."""

KEEP = Policy(idle_time=NEVER)
POOL = PoolSettings(
    name="pool",
    preexisting=Preexisting.ADOPT,
    scale_throttle=ScaleThrottle(limit=-1),
    heartbeat_interval=NEVER,
    update_interval=NEVER,
    update_interval_when_expecting=1.0,
    suspended_time=NEVER,
)
"""Adopts what is there, and limits nothing."""


@define
class Cloud:
    """Does what it is asked to."""

    shown: dict[str, Observed] = Factory(dict)
    numbers: "count[int]" = Factory(count)
    delivers: bool = True
    """Whether what was asked for appears."""

    def read(self, action: messages.Action) -> messages.Fact | None:
        """What comes of looking; None if that is not what was asked for."""
        match action:
            case messages.Update():
                return messages.Updated(Observation(dict(self.shown)))
            case messages.Prepare(_, instance):
                return messages.Prepared(instance)
            case messages.Heartbeat(_, instance):
                return messages.HeartbeatPassed(instance)
            case _:
                return None

    def change(self, action: messages.Action) -> messages.Fact | None:
        """What comes of a change; None if that is not what was asked for."""
        match action:
            case messages.Increase(_, intent, number):
                for _ in range(number if self.delivers else 0):
                    self.shown[f"i-{next(self.numbers)}"] = Observed(state=State.RUNNING, intent=intent)
                return messages.Increased(intent, number)
            case messages.Decrease(_, instances):
                for instance in instances:
                    self.shown.pop(instance, None)
                return messages.Decreased(instances, instances)
            case messages.Withdraw(_, number):
                return messages.Withdrawn(number, number)
            case messages.Suspend(_, instances):
                self.shown |= dict.fromkeys(instances, Observed(state=State.SUSPENDED))
                return messages.SuspendAccepted(instances, instances)
            case messages.Resume(_, instances):
                self.shown |= dict.fromkeys(instances, Observed(state=State.RUNNING))
                return messages.ResumeAccepted(instances, instances)
            case _:
                return None


@define
class Script:
    """A core, its cloud, and jobs."""

    core: Core
    cloud: Cloud
    now: float = 0.0
    lasts: float = 0.03
    """Seconds that a job runs."""

    events: list[tuple[float, int, Callable[[], None]]] = Factory(list)
    numbers: "count[int]" = Factory(count)
    done: int = 0
    """Jobs that have ended."""

    removed: bool = False
    """Whether nothing is left, after `Core.remove_all`."""

    views: float = 0.0
    """Seconds of computing that went into views: they alone may grow with what they show."""

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        """Do it then."""
        heapq.heappush(self.events, (self.now + seconds, next(self.numbers), call))

    def perform(self, actions: Iterable[object]) -> None:
        """Do what was decided; what comes of it, comes a little later."""
        for action in actions:
            if isinstance(action, messages.Action):
                self.after(LATENCY, partial(self.answer, action))
            elif isinstance(action, Deliver):
                if self.core.deliver(action.lease):
                    self.after(self.lasts, partial(self.release, action.lease.key))
            elif isinstance(action, AllRemoved):
                self.removed = True

    def answer(self, action: messages.Action) -> None:
        """Let the core take in what came of it."""
        start = process_time() if isinstance(action, messages.Update) else 0.0  # which itself is not for nothing
        fact = self.cloud.read(action) or self.cloud.change(action)
        if fact is not None:
            self.perform(self.core.handle("pool", fact, self.now).actions)
        if isinstance(action, messages.Update):
            self.views += process_time() - start

    def acquire(self, key: str) -> None:
        """A job wants a slot."""
        self.perform(self.core.acquire(key, self.now).actions)

    def release(self, key: str) -> None:
        """A job is done."""
        self.done += 1
        self.perform(self.core.release(key, self.now).actions)

    def settle(self) -> None:
        """As the runtime does after each burst."""
        while actions := self.core.tick(self.now).actions:
            self.perform(actions)

    def run(self, until: Callable[[], bool]) -> None:
        """Let time pass."""
        self.settle()
        while not until():
            wake_at = self.core.wake_at
            due = min(self.events[0][0] if self.events else inf, inf if wake_at is None else wake_at)
            self.now = max(self.now, due)
            while self.events and self.events[0][0] <= self.now:
                heapq.heappop(self.events)[2]()
            self.settle()

    def jobs(self, number: int, *, apart: float) -> None:
        """A stream of them, until all are done."""
        self.done = 0
        for each in range(number):
            self.after(each * apart, partial(self.acquire, f"job-{each}"))
        self.run(lambda: self.done == number)


def a_script(instances: int = 0, *, policy: Policy = KEEP, pool: PoolSettings = POOL) -> Script:
    """A fleet of instances that are there from the start, and ready; nothing is due but what jobs bring about."""
    can = frozenset({Capability.NAMED_CREATE, Capability.WITHDRAW, Capability.SUSPEND_RESUME})
    chances = count(1)
    plan = build_plan(
        pool,
        GroupInfo(identity="benchmark", capabilities=can),
        Recovered(epoch=1),
        0.0,
        random=lambda: next(chances) % 97 / 97,
    )
    core = Core([pool], {"pool": plan}, [policy], {}, 0.0)
    cloud = Cloud({f"old-{number}": Observed(state=State.RUNNING) for number in range(instances)})
    script = Script(core, cloud)
    slots = instances * core.ledger.pools["pool"].fresh
    script.run(lambda: plan.viewed and core.ledger.usable == slots)
    script.views = 0.0
    return script
