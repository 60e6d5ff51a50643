"""What the first minute of a batch would be: the cores themselves, driven through it in no time. Pure.

The cloud of this minute grants what is asked for, and has nothing ready yet: that is all that can be known beforehand.
"""

from collections.abc import Iterator, Mapping, Sequence

from attrs import define, field, frozen

from fleeting import GroupInfo, Observation
from fleeting.core import Step, build_plan, messages
from fleeting.journal import Recovered
from fleeting.plugins import format_duration
from taskscaler._observe import DecisionEvent
from taskscaler._types import Policy, PoolSettings
from taskscaler._wording import counted
from taskscaler.core._decide import Decision
from taskscaler.core._mediator import Core

MINUTE = 60.0

MOST_WAITING = 10_000
"""Jobs that a batch has wait at once; see `taskscaler.batch`."""

_MOST_STEPS = 10_000
"""Times that something is due in a minute: a bound, not an expectation."""


@frozen
class Asked:
    """Instances that are asked for at once."""

    after: float
    """Seconds since the start."""

    pool: str
    instances: int


@frozen(kw_only=True)
class FirstMinute:
    """The first minute of a batch on an empty fleet."""

    jobs: int
    asked: Sequence[Asked]
    """In the order of time."""

    decision: Decision | None
    """The first one, which says why so many; None: nothing is asked for."""

    pools: Sequence[PoolSettings]
    price_per_hour: float | None = None
    """What one instance costs an hour, if that is known."""

    @property
    def at_once(self) -> int:
        """Instances that are asked for with the first decision."""
        return sum(asked.instances for asked in self.asked if asked.after == self.asked[0].after)

    @property
    def instances(self) -> int:
        """Instances that are asked for within the minute."""
        return sum(asked.instances for asked in self.asked)

    def sentences(self) -> Iterator[str]:
        """Say it, one thought each."""
        if not self.asked:
            why = f": {self.decision}" if self.decision is not None else ""
            yield f"no instance is requested within a minute{why}"
            return
        several = len({asked.pool for asked in self.asked}) > 1
        of = self._by_pool(self.asked[0].after) if several else ""
        more = self.instances - self.at_once
        later = f", {more} more within the minute" if more else ""
        yield f"{counted(self.at_once, 'instance')} {_are(self.at_once)} requested at once{of}{later}"
        yield f"because: {self.decision}"
        running = min(self.jobs, self.slots)
        jobs = f"the first {counted(running, 'job')}" if running < self.jobs else counted(running, "job")
        longest = format_duration(max(pool.instance_ready_timeout for pool in self.pools))
        yield (
            f"{jobs} can begin as soon as these are ready, which is up to the cloud;"
            f" an instance that is not ready after {longest} is replaced"
        )
        if self.price_per_hour is not None:
            yield f"they cost {self.instances * self.price_per_hour:.2f} per hour"

    @property
    def slots(self) -> int:
        """Jobs that run at once on all that is asked for."""
        each = {pool.name: pool.capacity_per_instance for pool in self.pools}
        return sum(asked.instances * each[asked.pool] for asked in self.asked)

    def _by_pool(self, after: float) -> str:
        return f" ({', '.join(f'{each.instances} of {each.pool}' for each in self.asked if each.after == after)})"


def first_minute(
    pools: Sequence[PoolSettings],
    policies: Sequence[Policy],
    infos: Mapping[str, GroupInfo],
    *,
    jobs: int,
    now: float,
    max_instances: int = 0,
    price_per_hour: float | None = None,
) -> FirstMinute:
    """Drive the cores through the first minute.

    Args:
        pools: In order of preference, with names that differ.
        policies: As for `taskscaler.Taskscaler`.
        infos: What the groups say of themselves, by the names of the pools; one that has not been asked is left out.
        jobs: How many wait from the start.
        now: Seconds since the epoch: policies depend on it.
        max_instances: Over all pools; 0: any number.
        price_per_hour: What one instance costs, if that is known.
    """
    unknown, nothing = GroupInfo(identity=""), Recovered(epoch=1)
    plans = {
        pool.name: build_plan(pool, infos.get(pool.name, unknown), nothing, now, random=lambda: 0.5, journaled=False)
        for pool in pools
    }
    core = Core(pools, plans, policies, {}, now, watched=True, max_instances=max_instances, journaled=False)
    minute = _Minute(core, now)
    minute.begin(min(jobs, MOST_WAITING))
    minute.pass_to(now + MINUTE)
    return FirstMinute(
        jobs=jobs,
        asked=minute.asked,
        decision=minute.decision,
        pools=pools,
        price_per_hour=price_per_hour,
    )


@define
class _Minute:
    """The cores, and what they do."""

    core: Core
    now: float
    began: float = field(init=False)
    asked: list[Asked] = field(factory=list)
    decision: Decision | None = None

    def __attrs_post_init__(self) -> None:
        """Note when it begins."""
        self.began = self.now

    def begin(self, jobs: int) -> None:
        """See the groups, which are empty, and have the jobs wait."""
        for pool in self.core.plans:
            self._take(self.core.handle(pool, messages.Updated(Observation({})), self.now))
        for number in range(jobs):
            self._take(self.core.acquire(f"job-{number}", self.now))
        self._take(self.core.tick(self.now))

    def pass_to(self, until: float) -> None:
        """Do what is due, when it is due."""
        for _ in range(_MOST_STEPS):
            due = self.core.wake_at
            if due is None or due > until:
                return
            self.now = max(self.now, due)
            self._take(self.core.tick(self.now))

    def _take(self, step: Step) -> None:
        """Perform what a core wants, as a cloud that grants everything would."""
        for action in step.actions:
            match action:
                case messages.Increase(pool, intent, count):
                    self.asked.append(Asked(self.now - self.began, pool, count))
                    self._take(self.core.handle(pool, messages.Increased(intent, count), self.now))
                case messages.Update(pool):
                    self._take(self.core.handle(pool, messages.Updated(Observation({})), self.now))
                case DecisionEvent(decision=decision) if self.decision is None or not self.asked:
                    self.decision = decision


def _are(number: int) -> str:
    return "is" if number == 1 else "are"
