"""Runs jobs on a fleet in virtual time: a heap of what happens, and the very core that production runs.

`Core` and its `Plan`s are driven as `fleeting.runtime.Runtime` drives them: each step's actions are performed, a burst
is heeded once, and the core ticks when it says so. What runtime and groups do in production, `Cloud` does here. Nothing
waits and nothing runs beside it, so that one seed leads to one result. There is no journal: what would be written is
not, and heartbeats, which pass on all that lives, are left out, since a fleet has more of them than jobs.
"""

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from heapq import heappop
from math import ceil, inf
from random import Random
from typing import get_args

from attrs import evolve, fields_dict

from fleeting import Capability, GroupInfo
from fleeting.core import build_plan, messages
from fleeting.journal import Recovered
from fleeting.plugins import span
from taskscaler._errors import SimulationStuck
from taskscaler._observe import DecisionEvent, InstanceEvent, LeaseEvent, ScalerEvent
from taskscaler._types import PoolSettings
from taskscaler._wording import counted
from taskscaler.core._decide import Decision
from taskscaler.core._mediator import AllRemoved, Core
from taskscaler.core._slots import Break, Check, Clean, Deliver, LeaseId, Refuse
from taskscaler.simulation._cloud import Bill, Cloud
from taskscaler.simulation._environment import Environment
from taskscaler.simulation._events import Events
from taskscaler.simulation._fleet import Fleet
from taskscaler.simulation._jobs import Jobs
from taskscaler.simulation._outcome import HOUR, Outcome, PoolOutcome
from taskscaler.simulation._tally import Tally, step_of

SOON = 0.006
"""As the runtime has it: a core that is due within so many seconds is not woken earlier."""

PATIENCE = 2 * 86400.0
"""Simulated seconds, besides those that the longest job takes, in which none has ended: after that none ever will."""

SHORTEST_SKIPPED = 1.0
"""Seconds between views from which on these are skipped: between more frequent ones, `SOON` is not negligible."""

PRESENT = 1e9
"""Seconds since the epoch: in 2001."""

WEEK = 7 * 86400.0

LEFT_OUT = 1e12
"""Seconds between the heartbeats of an instance."""

Observer = Callable[[ScalerEvent], None]
"""Hears of every event, in order."""


def simulate(
    fleet: Fleet,
    jobs: Jobs,
    *,
    environment: Environment | None = None,
    seed: int = 0,
    observer: Observer | None = None,
    drain: bool = True,
) -> Outcome:
    """Run jobs on a fleet in virtual time.

    The fleet is empty when the first job is submitted.

    Args:
        fleet: Pools and policies.
        jobs: At least one.
        environment: How long things take, and what goes wrong. None: booting takes a minute, and nothing else time.
        seed: Of all that is left to chance. The same arguments lead to the same outcome, byte for byte.
        observer: Hears of all that a scaler reports; that costs a good part of the speed. None: nobody. If the jobs
            begin before 2001, its events are so many whole weeks later.
        drain: Whether the fleet is removed once all jobs are done, and that is paid for, too.

    Raises:
        SimulationStuck: Some jobs get no slot, ever.
        ValueError: There are no jobs.
    """
    if not len(jobs):
        raise ValueError("jobs: expected at least one, found none")
    offset = _offset(jobs.begins)
    simulation = Simulation(fleet, jobs.later(offset), environment or Environment(), seed, observer, drain=drain)
    with nullcontext() if observer is not None else _uncollected():
        return simulation.run().earlier(offset)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Keep the garbage collector from looking for cycles: a run leaves none, and that takes up to a tenth of its time.

    What an observer leaves is not known.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


class Simulation:
    """One run."""

    def __init__(
        self, fleet: Fleet, jobs: Jobs, environment: Environment, seed: int, observer: Observer | None, *, drain: bool
    ) -> None:
        """Set it up at the first submit; see `simulate`."""
        self.fleet = fleet
        self.jobs = jobs
        self.now = jobs.begins
        self._seed = seed
        self._observer = observer
        self._drain = drain
        self._environment = environment
        self._events = Events()
        self._alarm = self.now
        self._soon = True
        self._changed = False
        self._over = False
        self._progress_at = jobs.ends
        """When a job ended last, or the last one came."""

        self._expected = len(jobs)
        self._patience = PATIENCE + max(jobs.durations)
        self._running: dict[LeaseId, float] = {}
        """Since when each job runs."""

        self._waiting: dict[int, float] = {}
        """Since when each job waits."""

        shortest = min(pool.update_interval for pool in fleet.pools)
        self._skips_from = 2 * shortest if shortest >= SHORTEST_SKIPPED else inf
        """Seconds to the next event or submit from which on it is worth asking the core."""

        self._tally = Tally(begins=self.now, step=step_of(jobs.ends - jobs.begins))
        self.clouds = {pool.name: self._cloud(pool.name) for pool in fleet.pools}
        self._tariffs = {pool.name: pool.tariff for pool in fleet.pools}
        self.core = self._core()
        self._decided = 0
        """How many decisions were made so far."""

        self._decision: Decision | None = None
        self._do: dict[type, Callable[..., None]] = {
            Deliver: self._deliver,
            Break: self._break,
            Check: self._check,
            Clean: self._clean,
            Refuse: self._refuse,
            AllRemoved: self._all_removed,
            DecisionEvent: self._notify,
            InstanceEvent: self._notify,
            **dict.fromkeys({*get_args(messages.Action)} - {messages.Forget}, self._ask_cloud),
        }

    def _core(self) -> Core:
        """As a scaler makes it."""
        pools = [_settings(pool) for pool in self.fleet.pools]
        plans = {
            pool.name: build_plan(
                pool,
                GroupInfo(identity=f"simulated/{pool.name}", capabilities=_capabilities(pool)),
                Recovered(epoch=1),
                self.now,
                random=self._random(f"{pool.name}/plan").random,
                journaled=False,
            )
            for pool in pools
        }
        return Core(
            pools,
            plans,
            self.fleet.policies,
            {},
            self.now,
            watched=self._observer is not None,
            max_instances=self.fleet.max_instances,
            journaled=False,
        )

    def _cloud(self, pool: str) -> Cloud:
        tariff = next(each.tariff for each in self.fleet.pools if each.name == pool)
        return Cloud(
            pool,
            self._environment.of(pool),
            Bill(tariff),
            now=lambda: self.now,
            schedule=self._after,
            feed=self._feed,
            feed_all=self._feed_all,
            grown=self._grown,
            is_busy=self._is_busy,
            random=lambda subject: self._random(f"{pool}/{subject}"),
        )

    def _random(self, subject: str) -> Random:
        """A stream of numbers; a text as seed is hashed in the same way everywhere."""
        return Random(f"{self._seed}/{subject}")  # noqa: S311  (nothing is secret here)

    # --- time --------------------------------------------------------------------------------------------

    def run(self) -> Outcome:
        """Let all happen, in order."""
        self._open()
        events, submits, jobs, submitted = self._events, self.jobs.submits, len(self.jobs), 0
        soon, next_submit = events.soon, submits[0]
        while not self._over:
            if not soon:  # there always is another: the end of a step
                events.advance()
            due = soon[0][0]
            if self._alarm < due and self._alarm < next_submit:
                self._skip_views(min(due, next_submit))
                self.now = max(self.now, self._alarm)
                self._tick()
            elif next_submit <= due:
                self.now = next_submit
                self._submit(submitted)
                submitted += 1
                next_submit = submits[submitted] if submitted < jobs else inf
            else:
                self.now = due
                heappop(soon)[2]()
        return self._outcome()

    def _skip_views(self, until: float) -> None:
        """Skip views before *until* if they would show nothing new and change nothing, as most in a quiet time.

        The core says when it has something else to do. The last view before that is played, so that all state that
        views bring up to date is as if none had been skipped.
        """
        if until - self._alarm < self._skips_from:
            return
        quiet_until = min(until, self.core.quiet_until(self.now))
        if quiet_until <= self._alarm or any(cloud.has_news for cloud in self.clouds.values()):
            return
        for pool, plan in self.core.plans.items():
            at = plan.view_at
            if at is not None:
                interval = plan.config.update_interval
                plan.postpone_view(self.clouds[pool].skip_views(at, interval, quiet_until))
        wake_at = self.core.wake_at
        self._alarm = inf if wake_at is None else wake_at

    def _open(self) -> None:
        """See each group once, as a scaler does before it is open: at once, whatever that takes."""
        self._tick()
        self._events = Events()  # there was nothing in them but those views
        for pool, cloud in self.clouds.items():
            self._feed(pool, cloud.view())
            cloud.begin()
        self._tally.forget_decisions()  # what was decided before anything was known
        self._after(self._tally.step, self._end_step)

    def _after(self, seconds: float, call: Callable[[], None]) -> None:
        """Do it so many seconds from now; what is due at the same time is done in this order."""
        self._events.add(self.now + seconds, call)

    def _end_step(self) -> None:
        """Note how it stands, and see whether anything goes on at all."""
        tally = self._tally
        instances = self._close_step()
        if self.now > self._progress_at + self._patience:
            last = f"; the last decision: {self._decision}" if self._decision is not None else ""
            raise SimulationStuck(
                f"no job has ended for {span(self._patience)} of simulated time: {tally.running} run,"
                f" {tally.waiting} wait, and there are {counted(instances, 'instance')}{last};"
                " check max_instances, the shares of failures, what the cloud takes to boot, and when it takes"
                " instances back"
            )
        self._after(tally.step, self._end_step)

    def _close_step(self) -> int:
        """Note how it stands, also before a step is over. Returns how many instances there are."""
        tally = self._tally
        instances = sum(len(cloud.machines) for cloud in self.clouds.values())
        if self.core.decisions:
            tally.note_limits(self.core.decisions[-1], self.now - tally.step_began)
        tally.end_step(instances, self.now)
        return instances

    # --- driving the core --------------------------------------------------------------------------------

    def _tick(self) -> None:
        """Let the core do what is due."""
        core = self.core
        self._changed = False
        self._perform(core.tick(self.now).actions)
        if core.decided > self._decided:
            self._decided, self._decision = core.decided, core.decisions[-1]
            self._tally.decide(self._decision)
        if self._changed:
            core.heed(self.now)
        at = core.wake_at
        self._alarm = inf if at is None else at
        self._soon = self._alarm <= self.now + SOON

    def _heed(self) -> None:
        """The core has changed: see whether it is due earlier for that, unless it is due soon anyway."""
        self._changed = True
        if not self._soon:
            self.core.heed(self.now)
            at = self.core.wake_at
            if at is not None and at < self._alarm:
                self._alarm = at
                self._soon = at <= self.now + SOON

    def _feed(self, pool: str, fact: messages.Fact) -> None:
        """Let the core take in what happened at a cloud."""
        self._perform(self.core.handle(pool, fact, self.now).actions)
        self._heed()

    def _feed_all(self, pool: str, facts: Sequence[messages.Fact]) -> None:
        """The same of what happened to several instances at this moment."""
        self._perform(self.core.handle_all(pool, facts, self.now).actions)
        self._heed()

    def _perform(self, actions: Iterable[object]) -> None:
        """Do what was decided. What is of no use to a job or a cloud here is left out."""
        for action in actions:
            do = self._do.get(action.__class__)
            if do is not None:
                do(action)

    def _ask_cloud(self, action: messages.Action) -> None:
        self.clouds[action.pool].perform(action)

    # --- jobs --------------------------------------------------------------------------------------------

    def _submit(self, number: int) -> None:
        """A job comes."""
        self._tally.submit()
        self._waiting[number] = self.now
        self._perform(self.core.acquire(str(number), self.now).actions)
        if number in self._waiting:
            self._tally.queue()
            self._await(number)
        self._heed()

    def _deliver(self, action: Deliver) -> None:
        """A job has a slot, and runs."""
        lease = action.lease
        if self.core.deliver(lease):
            number = int(lease.key)
            tally = self._tally
            tally.waiting -= 1
            came = self._waiting.pop(number)
            tally.start(came, self.now - came)
            if self._observer is not None:
                self._notify_lease(lease, "acquired")
            self._running[lease] = self.now
            self._after(self.jobs.durations[number], partial(self._end_job, lease))
            cloud = self.clouds[lease.pool]
            if lease.instance in cloud.preempted:  # which the scaler has not noticed yet, as nothing ran there
                self._after(0.0, partial(cloud.cut_off, lease.instance))

    def _end_job(self, lease: LeaseId) -> None:
        """A job is done, unless its instance is lost; the scaler may notice that only later, and then it breaks."""
        tally = self._tally
        since = self._running.get(lease)
        if since is None or lease.instance in self.clouds[lease.pool].preempted:
            return
        del self._running[lease]
        tally.running -= 1
        tally.done += 1
        tally.busy += self.now - since
        actions = self.core.release(lease.key, self.now).actions
        if self._observer is not None:
            self._notify_lease(lease, "released")
        if actions:
            self._perform(actions)
        self._end_if_done()
        self._heed()

    def _break(self, action: Break) -> None:
        """A job's instance is lost: it runs once more from its start, as soon as there is a slot."""
        tally, lease = self._tally, action.lease
        lost_at = min(self.now, self.clouds[lease.pool].preempted.get(lease.instance, inf))
        tally.busy += max(0.0, lost_at - self._running.pop(lease))
        tally.running -= 1
        tally.interrupted += 1
        tally.waiting += 1
        if self._observer is not None:
            self._notify_lease(lease, "lost", str(action.loss))
        self._after(0.0, partial(self._try_again, int(lease.key)))

    def _try_again(self, number: int) -> None:
        key = str(number)
        self._waiting[number] = self.now
        self._perform(self.core.acquire(key, self.now, place=_ticket(key)).actions)
        if number in self._waiting:
            self._await(number)
        self._heed()

    def _await(self, number: int) -> None:
        """A job begins to wait, if only for a sign of life of its instance: for so long, each time."""
        if self.fleet.acquire_timeout != inf:
            self._after(self.fleet.acquire_timeout, partial(self._give_up, number, self.now))

    def _give_up(self, number: int, since: float) -> None:
        """Somebody has waited for as long as may be, if they still do."""
        if self._waiting.get(number) == since:
            key = str(number)
            self._perform(self.core.cancel(key, self.now).actions)
            self._refuse(Refuse(key, "no slot became free in time"))
            self._heed()

    def _refuse(self, action: Refuse) -> None:
        del self._waiting[int(action.key)]
        self._tally.refused += 1
        self._tally.waiting -= 1
        self._end_if_done()

    def _check(self, action: Check) -> None:
        self._perform(self.core.check(action.lease, self.now).actions)
        self._changed = True

    def _clean(self, clean: Clean) -> None:
        if self.core.ledger.wants(clean):
            cloud = self.clouds[clean.pool]
            self._after(cloud.clean_time(), partial(self._cleaned, clean))

    def _cleaned(self, clean: Clean) -> None:
        self._perform(self.core.cleaned(clean, "", self.now).actions)
        self._heed()

    def _end_if_done(self) -> None:
        """See whether that was the last."""
        tally = self._tally
        self._progress_at = max(self._progress_at, self.now)
        if tally.done + tally.refused == self._expected:
            if self._drain:
                self._after(0.0, self._remove_all)
            else:
                self._over = True

    def _remove_all(self) -> None:
        self._perform(self.core.remove_all(self.now).actions)
        self._heed()

    def _all_removed(self, action: AllRemoved) -> None:  # noqa: ARG002  (it says nothing)
        self._over = True

    def _grown(self) -> None:
        """There are more instances than there were."""
        total = sum(len(cloud.machines) for cloud in self.clouds.values())
        self._tally.grow(total)

    def _is_busy(self, pool: str, instance: str) -> bool:
        node = self.core.ledger.node(pool, instance)
        return node is not None and bool(node.awake)

    # --- reporting ---------------------------------------------------------------------------------------

    def _notify(self, event: ScalerEvent) -> None:
        if self._observer is not None:
            self._observer(event)

    def _notify_lease(self, lease: LeaseId, what: str, why: str = "") -> None:
        self._notify(
            LeaseEvent(
                at=self.now,
                key=lease.key,
                pool=lease.pool,
                instance=lease.instance,
                slot=lease.slot,
                what=what,
                why=why,
            )
        )

    def _outcome(self) -> Outcome:
        """Add it all up."""
        tally = self._tally
        for cloud in self.clouds.values():
            cloud.settle()
        if self.now > tally.step_began or tally.this_step.submitted:
            self._close_step()
        pools = [_of(cloud) for cloud in self.clouds.values()]
        slots = {pool.name: pool.capacity_per_instance for pool in self.fleet.pools}
        return Outcome(
            seed=self._seed,
            jobs=len(self.jobs),
            done=tally.done,
            refused=tally.refused,
            interrupted=tally.interrupted,
            waits=tally.waits(),
            delays=tally.delays(),
            began=self.jobs.begins,
            ended=self.now,
            busy_hours=tally.busy / HOUR,
            slot_hours=sum(pool.instance_hours * slots[pool.name] for pool in pools),
            peak_instances=tally.peak_instances,
            peak_waiting=tally.peak_waiting,
            idle_removed=tally.churn.removed,
            undone=tally.churn.undone,
            decisions=tally.decisions,
            reasons=tally.all_reasons(),
            held_back=dict(sorted(tally.held_back.items(), key=lambda each: (-each[1], each[0]))),
            pools=pools,
            series=tally.series(),
        )


def _offset(begins: float) -> float:
    """How much later the core lives than jobs that begin long ago, or at nought: it takes the time to be the present.

    Whole weeks, so that policies hold at the same hours of the same days.
    """
    return 0.0 if begins >= PRESENT else ceil((PRESENT - begins) / WEEK) * WEEK


def _ticket(key: str) -> int:
    """The place in the queue that a job had at first: all come in their order, and the ledger counts from 1."""
    return int(key) + 1


def _settings(pool: PoolSettings) -> PoolSettings:
    """What of a file's pool the core reads."""
    given = {name: getattr(pool, name) for name in fields_dict(PoolSettings)}
    return evolve(PoolSettings(**given), heartbeat_interval=LEFT_OUT)


def _capabilities(pool: PoolSettings) -> frozenset[Capability]:
    """What the simulated group of a pool can do."""
    suspends = {Capability.SUSPEND_RESUME} if pool.suspended_count else set()
    return frozenset({Capability.NAMED_CREATE, *suspends})


def _of(cloud: Cloud) -> PoolOutcome:
    """What one cloud has come to."""
    tariff = cloud.bill.tariff
    billed = cloud.bill.increments * tariff.increment / 1e6 / HOUR
    return PoolOutcome(
        name=cloud.pool,
        bought=cloud.bought,
        deleted=cloud.deleted,
        failed=cloud.failed,
        preempted=len(cloud.preempted),
        refused=cloud.refused,
        peak=cloud.peak,
        calls=cloud.calls,
        instance_hours=cloud.bill.ran / 1e6 / HOUR,
        billed_hours=billed,
        cost=None if tariff.price_per_hour is None else billed * tariff.price_per_hour,
        currency=tariff.currency,
    )
