"""What the core costs: µs and decisions for each job, beside 1 to 10,000 instances, in virtual time.

Nothing but the core runs: a script in its place of a cloud answers at once, and what a step would have written and
done is only looked at. Two streams of jobs: one that a warm fleet serves, one after the other; and one in which each
job uses up an instance, so that for each an instance is asked for, made ready and removed.
"""

import heapq
from collections.abc import Callable
from itertools import count
from time import process_time

from _figures import report
from attrs import Factory, define

from fleeting import Observation, Observed, Preexisting, ScaleThrottle, State
from fleeting.core import Chance, Plan, messages
from taskscaler import Policy
from taskscaler._types import PoolSettings
from taskscaler.core._mediator import Core
from taskscaler.core._slots import Deliver

WARM_JOBS = 2_000
COLD_JOBS = 500
LASTS = 0.03
"""Seconds that a job runs, so that a fleet of one instance serves a stream of them."""

WARM_APART = 0.05
"""Seconds between two jobs of a warm fleet."""

COLD_APART = 5.0
"""Seconds between two jobs for which instances have to come and go: none shares a call or a view with another."""

LATENCY = 0.001
"""Seconds that a cloud takes to answer."""


class Counting(Core):
    """A core that counts its decisions."""

    decided = 0

    def _decide(self, now: float) -> None:
        self.decided += 1
        super()._decide(now)


@define
class Script:
    """A core, a cloud that does what it is asked to, and jobs."""

    core: Counting
    now: float = 0.0
    events: list[tuple[float, int, Callable[[], None]]] = Factory(list)
    numbers: "count[int]" = Factory(count)
    shown: dict[str, Observed] = Factory(dict)
    done: int = 0

    def answer(self, fact: messages.Fact) -> None:
        """Let the core take it in a little later."""
        self.after(LATENCY, lambda: self.feed(fact))

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        """Do it then."""
        heapq.heappush(self.events, (self.now + seconds, next(self.numbers), call))

    def feed(self, fact: messages.Fact) -> None:
        """Let the core take it in."""
        self.perform(self.core.handle("pool", fact, self.now).actions)

    def perform(self, actions: object) -> None:  # noqa: C901  (an arm for each kind)
        """Do what was decided; the outcome comes a little later."""
        for action in actions:  # type: ignore[attr-defined]
            match action:
                case messages.Update():
                    self.after(LATENCY, lambda: self.feed(messages.Updated(Observation(dict(self.shown)))))
                case messages.Increase(_, intent, number):
                    for _ in range(number):
                        self.shown[f"i-{next(self.numbers)}"] = Observed(state=State.RUNNING, intent=intent)
                    self.answer(messages.Increased(intent, number))
                case messages.Decrease(_, instances):
                    for instance in instances:
                        self.shown.pop(instance, None)
                    self.answer(messages.Decreased(instances, instances))
                case messages.Prepare(_, instance):
                    self.answer(messages.Prepared(instance))
                case messages.Heartbeat(_, instance):
                    self.answer(messages.HeartbeatPassed(instance))
                case Deliver(lease):
                    if self.core.deliver(lease):
                        self.after(LASTS, lambda key=lease.key: self.release(key))

    def release(self, key: str) -> None:
        """A job is done."""
        self.done += 1
        self.perform(self.core.release(key, self.now).actions)

    def settle(self) -> None:
        """As the engine does after each burst."""
        while actions := self.core.tick(self.now).actions:
            self.perform(actions)

    def run(self, until: Callable[[], bool]) -> None:
        """Let time pass."""
        self.settle()
        while not until():
            due = min(self.events[0][0] if self.events else float("inf"), self.core.wake_at or float("inf"))
            self.now = max(self.now, due)
            while self.events and self.events[0][0] <= self.now:
                heapq.heappop(self.events)[2]()
            self.settle()

    def jobs(self, number: int, apart: float) -> None:
        """A stream of them, until all are done."""
        self.done = 0

        def ask(left: int) -> None:
            self.perform(self.core.acquire(f"job-{left}", self.now).actions)
            if left > 1:
                self.after(apart, lambda: ask(left - 1))

        ask(number)
        self.run(lambda: self.done == number)


def a_script(instances: int, *, max_use_count: int = 0) -> Script:
    """A fleet that is warm, and keeps what it has."""
    pool = PoolSettings(
        name="pool",
        preexisting=Preexisting.ADOPT,
        max_use_count=max_use_count,
        scale_throttle=ScaleThrottle(limit=-1),
        heartbeat_interval=60.0,
        update_interval_when_expecting=1.0,
    )
    plan = Plan(pool, now=0.0, token="life", chance=Chance(0), named=True)  # noqa: S106  (names intents)
    core = Counting([pool], {"pool": plan}, [Policy(idle_time=1e9)], {}, 0.0)
    script = Script(core)
    script.shown = {f"old-{number}": Observed(state=State.RUNNING) for number in range(instances)}
    script.run(lambda: core.ledger.usable == instances)
    return script


def measure(name: str, instances: int, jobs: int, *, max_use_count: int = 0) -> None:
    """Print what a job costs."""
    script = a_script(0 if max_use_count else instances, max_use_count=max_use_count)
    before, start = script.core.decided, process_time()
    script.jobs(jobs, COLD_APART if max_use_count else WARM_APART)
    took = process_time() - start
    report(f"{name}_us_per_job_{instances}", took / jobs * 1e6, "µs", None)
    report(f"{name}_decisions_per_job_{instances}", (script.core.decided - before) / jobs, "", None)


if __name__ == "__main__":
    for instances in (1, 1_000, 10_000):
        measure("core_warm", instances, WARM_JOBS)
    measure("core_cold", 1, COLD_JOBS, max_use_count=1)
