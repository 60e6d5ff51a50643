"""Plays a story: one manager after the other, the jobs, the troubles, and at the end the reckoning."""

import traceback
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from math import inf
from random import Random
from typing import Any, Literal, cast

import anyio
from anyio.abc import TaskGroup
from attrs import Factory, asdict, define, evolve

from fleeting import Completed, GroupRefused, LoopClock, Notice, State, Unreachable
from fleeting.core import Put, Write
from fleeting.testing import Command, virtual_run
from taskscaler import (
    Capacity,
    Lease,
    LeaseEvent,
    LeaseExpired,
    LeaseLost,
    NoCapacity,
    NotSuspended,
    Pool,
    ScalerEvent,
    Taskscaler,
)
from taskscaler.core._ledger import NOT_REATTACHED
from tests.chaos.observer import EPOCH, Observer, Run
from tests.chaos.process import Disk, Killed, Life, MortalGroup, MortalJournal
from tests.chaos.repeatable import repeatable
from tests.chaos.story import CLEANUP_COMMAND, READY_COMMAND, Job, Story, Wish
from tests.chaos.troubles import KINDS, lay_ambushes
from tests.chaos.witness import Witness

JOBS_TIMEOUT = 20_000.0
"""Virtual seconds after the last trouble in which every job has to end."""

SETTLE = 500.0
"""Virtual seconds in which everything comes to rest: a call that is never answered takes 300 of them."""

LONGEST_DECREASE = 20.0
"""Virtual seconds that a deletion takes at the most to reach the cloud."""

HEEDED = 2.0
"""Virtual seconds in which work is broken whose instance is at its announced end."""

QUIET_UPDATES = 5
"""So many intervals between updates are watched at the end: nothing else happens in them."""

CALM = frozenset({"update", "heartbeat", "mark_owner"})
"""Calls that are made while nothing happens."""

RENEWAL = frozenset({"increase", "decrease", "connect_info", "dial", "withdraw"})
"""Calls that replacing an instance takes."""

FILLERS = ("update refused", "update stale", "update throttled")
"""Troubles that can always be had."""


@define(eq=False)
class Result:
    """What came of a story."""

    seed: int
    jobs: int = 0
    faults: Counter[str] = Factory(Counter)
    met: Counter[str] = Factory(Counter)
    """Transitions."""

    places: Counter[str] = Factory(Counter)
    """How often its managers came by where they can be killed, up to when everything has come to rest."""

    violations: list[str] = Factory(list)
    timeline: list[str] = Factory(list)


class Site:
    """One pool of a play: the `Scene` of the troubles that happen there."""

    def __init__(self, play: "Play", observer: Observer) -> None:
        """Of this observer's pool."""
        self._play = play
        self.observer = observer
        self.cloud = observer.cloud
        self.disk = play.disk
        self.random = play.random
        self.later = play.later
        self.bring = play.bring
        self.met = play.met

    @property
    def life(self) -> Life:
        """The manager of the moment."""
        return self._play.life

    @property
    def races(self) -> list[str]:
        """Those of all pools."""
        return self._play.races

    @property
    def bad_cleanups(self) -> list[str]:
        """Those of all pools."""
        return self._play.bad_cleanups

    @property
    def ready_fails(self) -> int:
        """Those of all pools."""
        return self._play.ready_fails

    @ready_fails.setter
    def ready_fails(self, number: int) -> None:
        self._play.ready_fails = number

    @property
    def busy(self) -> Sequence[str]:
        """Instances on which jobs run."""
        runs = self.observer.running.values()
        return list(dict.fromkeys(run.lease.instance for run in runs if run.lease.pool == self.observer.pool))

    @property
    def cleaning(self) -> int:
        """So many slots are being cleaned."""
        return sum(number for (life, _, _), number in self.observer.cleaning.items() if life == self.life.number)


class Play:
    """One story, being played."""

    life: Life
    tasks: TaskGroup

    def __init__(self, story: Story, *, verbose: bool = False) -> None:
        """Set the scene."""
        self.story = story
        self.result = Result(story.seed)
        self.random = Random(f"{story.seed} as it falls out")
        self.disk = Disk(commit_time=story.commit_time)
        self.observer, *others = (Observer(story, self.disk.records, number) for number in range(len(story.pools)))
        for other in others:
            other.join(self.observer)
        self.observers = {each.pool: each for each in self.observer.all}
        self.sites = [Site(self, observer) for observer in self.observers.values()]
        self.result.violations = self.observer.violations
        self.ready_fails = 0
        self.bad_cleanups: list[str] = []
        self.races: list[str] = []
        self.jobs = list(story.jobs)
        """The story's, and those that troubles bring besides."""

        self.witness = Witness(self.result.met, self.say)
        self.disk.on_commit = self.witness.committed
        self.disk.on_storing = self._on_storing
        self._verbose = verbose
        self._outcomes: dict[str, str] = {}
        self._came: set[str] = set()
        """The keys of the jobs that were brought at some time."""

        self._expired: set[str] = set()
        """Keys of jobs that slept for too long once: that would happen to them again and again."""

        self._runs: dict[str, Run] = {}
        """The last attempt of each job that is not over yet."""

        self._all_ended = anyio.Event()
        self._pending: list[Callable[[], object]] = []
        self._places: Counter[str] = Counter()
        self._lives = 0
        self._living = 0
        for site in self.sites:
            site.observer.say = self.say
            site.observer.on_notice = self._await_doom
            site.observer.on_decrease = self._on_decrease
            site.cloud.on_command = self._on_command
            lay_ambushes(site)

    @property
    def now(self) -> float:
        """By all clocks."""
        return self.observer.cloud.now

    @property
    def alive(self) -> frozenset[str]:
        """Instances that exist, in all pools."""
        return frozenset[str]().union(*(site.cloud.alive for site in self.sites))

    # --- what troubles ask -------------------------------------------------------------------------------

    def later(self, seconds: float, call: Callable[[], object]) -> None:
        """Do it then, or when all troubles end."""
        self._pending.append(call)
        self.tasks.start_soon(self._do_later, seconds, call)

    def bring(self, number: int, patience: float = inf) -> None:
        """Bring so many more jobs, to the manager of the moment or else to the next."""
        if self._all_ended.is_set():
            self._all_ended = anyio.Event()
        wish = Wish.PLAIN if patience == inf else Wish.CANCEL
        for _ in range(number):
            job = Job(key=f"brought-{len(self.jobs)}", at=self.now - EPOCH, duration=5.0, wish=wish, patience=patience)
            self.jobs.append(job)
            self._come(job)
            if self.life.jobs is not None:
                self.life.jobs.start_soon(self._bring, self.life, job)

    def _come(self, job: Job) -> None:
        """Count the job as one that there is, the first time that it is brought."""
        if job.key not in self._came:
            self._came.add(job.key)
            self.observer.demand.change(self.now, 1)

    def met(self, kind: str) -> None:
        """Count it."""
        self.result.faults[kind] += 1
        self.say(f"TROUBLE {kind}")

    async def _do_later(self, seconds: float, call: Callable[[], object]) -> None:
        await anyio.sleep(seconds)
        if call in self._pending:
            self._pending.remove(call)
            call()

    def say(self, what: str) -> None:
        """Put it on the timeline."""
        if self._verbose:
            self.result.timeline.append(f"{self.now - EPOCH:10.2f}  {what}")

    # --- acts --------------------------------------------------------------------------------------------

    async def play(self) -> None:
        """From the first job to the last call."""
        self.clock = LoopClock(EPOCH)
        async with anyio.create_task_group() as self.tasks:
            for site in self.sites:
                site.cloud.clock = self.clock
                site.observer.on_violation = self.tasks.cancel_scope.cancel  # one is enough
            self.tasks.start_soon(self._manage)
            await self._make_trouble()
            self._behave()
            with anyio.move_on_after(JOBS_TIMEOUT):
                await self._all_ended.wait()
            await self._check_jobs()
            await anyio.sleep(LONGEST_DECREASE)
            self._release_all()  # what was told to hang by a call that was under way when the troubles ended
            self.result.places = Counter(self._places)  # a manager that dies later has no time to settle
            await anyio.sleep(SETTLE)
            await self._check_quiet()
            await self._check_at_rest()
            await self._end()
            self.tasks.cancel_scope.cancel()

    async def _make_trouble(self) -> None:
        """Let everything go wrong that is to, as far as there is something that it can happen to."""
        waiting: list[str] = []
        for trouble in self.story.troubles:
            await self._until(trouble.at)
            waiting = [kind for kind in [*waiting, trouble.kind] if not self._happens(kind)]
        await self._until(max(job.at for job in self.story.jobs))
        while self.result.faults.total() < self.story.least_faults:
            self._happens(self.random.choice(FILLERS))
            await anyio.sleep(self.story.pool.update_interval)

    def _happens(self, name: str) -> bool:
        kind = KINDS[name]
        happened = kind.happen(self.sites[0] if len(self.sites) == 1 else self.random.choice(self.sites))
        if happened and not kind.counts_itself:
            self.met(name)
        return happened

    def _behave(self) -> None:
        """From now on nothing goes wrong."""
        self.say("TROUBLES END")
        pending, self._pending = self._pending, []
        for call in pending:
            call()
        for site in self.sites:
            site.cloud.faults.clear()
            site.cloud.restock()
        self.disk.full = False
        self.ready_fails = 0
        self.bad_cleanups.clear()
        self.races.clear()
        self.life.lethal = None
        self._release_all()

    def _release_all(self) -> None:
        """No instance hangs any longer."""
        for cloud in (site.cloud for site in self.sites):
            for machine in list(cloud.machines.values()):
                machine.sickness = ""
                if machine.hangs or machine.runs_at == inf or (machine.ended_at <= self.now and machine.gone_at == inf):
                    cloud.release(machine.id)

    async def _end(self) -> None:
        """The last manager leaves in good order."""
        last = self.life
        last.leave.set()
        await last.over.wait()
        if self.story.delete_on_shutdown and self.alive:
            self.observer.violate(f"{sorted(self.alive)} were left on shutdown")
        if self._living:
            self.observer.violate(f"{self._living} managers have not ended")

    async def _until(self, at: float) -> None:
        """Sleep until so many seconds after the story's beginning; not at all if that is past."""
        if (left := EPOCH + at - self.now) > 0:
            await anyio.sleep(left)

    # --- managers ----------------------------------------------------------------------------------------

    async def _manage(self) -> None:
        """Start a manager, and another one whenever it died."""
        while True:
            self._lives += 1
            self.life = life = Life(self._lives, self.random, self._places, self.story.crash)
            life.on_death = self._died
            self.tasks.start_soon(self._live, life)
            await life.over.wait()
            if life.leave.is_set():
                return
            await anyio.sleep(self.random.choice([0.0, 1.0, 10.0]))

    def _died(self, life: Life) -> None:
        ran = sum(observer.died(life) for observer in self.observers.values())
        self.result.met["job: retried after a crash"] += ran
        self.met(f"crash {life.death}")

    async def _live(self, life: Life) -> None:
        """One manager's process."""
        self.say(f"process {life.number} starts")
        self._living += 1
        try:
            with life.scope:
                await self._run_scaler(life)
        except GroupRefused as refused:
            self._clear_group(str(refused))
        except Exception as error:  # noqa: BLE001  (whatever it is, it is the verdict)
            self._judge(life, error)
        finally:
            self._living -= 1
            life.over.set()

    async def _run_scaler(self, life: Life) -> None:
        pools = []
        for observer, (settings, _) in zip(self.observers.values(), self.story.pools, strict=True):
            group = MortalGroup(life, observer)
            pools.append(Pool(group, dial=group.dial, **asdict(settings, recurse=False)))
        life.scaler = Taskscaler(
            pools,
            policies=[self.story.policy],
            max_instances=self.story.max_instances,
            journal=MortalJournal(life, self.disk),
            clock=self.clock,
            delete_instances_on_shutdown=self.story.delete_on_shutdown,
            keep_instance_with_acquisitions=self.story.keep_used,
            reattach_timeout=self.story.reattach_timeout,
            observers=[partial(self._note_lease, life)]
            if any(job.returns is not None for job in self.story.jobs)
            else [],
            random=Random(f"{self.story.seed} {life.number}").random,
        )
        self.witness.attach(life.scaler)
        async with life.scaler, anyio.create_task_group() as jobs:
            life.jobs = jobs
            try:
                await self._bring_all(life, jobs)
            finally:
                life.jobs = None

    async def _bring_all(self, life: Life, jobs: TaskGroup) -> None:
        """Bring what is left of the jobs, each at its time, and at the end one more."""
        left = [job for job in self.jobs if job.key not in self._outcomes]
        for job in sorted(left, key=lambda job: job.at):
            await self._until(job.at)
            self._come(job)
            jobs.start_soon(self._bring, life, job)
        await life.leave.wait()
        await self._last_call(life, jobs)

    async def _last_call(self, life: Life, jobs: TaskGroup) -> None:
        """Stop in the middle of things: half of the time a job runs, half of the time it waits."""
        runs = anyio.Event()
        self.observer.demand.change(self.now, 1)

        async def work() -> None:
            try:
                async with life.scaler.acquire("last call", timeout=inf):
                    runs.set()
                    await anyio.sleep_forever()
            except (LeaseLost, NoCapacity) as error:
                self.result.met[f"last call: {type(error).__name__}"] += 1
            else:
                self.observer.violate("the last call was not broken off")

        jobs.start_soon(work)
        if self.story.seed % 2:
            await runs.wait()
        else:
            await anyio.wait_all_tasks_blocked()
        await life.scaler.stop()

    def _judge(self, life: Life, error: BaseException) -> None:
        """A manager ended with an error: of a dead one, only what its death has not caused is of interest."""
        if isinstance(error, BaseExceptionGroup):
            for each in error.exceptions:
                self._judge(life, each)
        elif isinstance(error, GroupRefused):  # the first view came late, and ended a manager that had begun its work
            self._clear_group(str(error))
        elif not (life.dead and isinstance(error, Killed)):
            where = "".join(traceback.format_exception(error))
            self.observer.violate(f"process {life.number} ended with {error!r}\n{where}")

    def _clear_group(self, refusal: str) -> None:
        """An operator removes what is not ours; if no view showed anything of that kind, the refusal was wrong."""
        self.result.met["group: refused"] += 1
        if not any(site.observer.heard.viewed & site.observer.unexplained for site in self.sites):
            self.observer.violate(f"{refusal}; but {sorted(self.alive)} were asked for")
        for site in self.sites:
            for instance in site.cloud.alive & site.observer.unexplained:
                site.cloud.vanish(instance)

    async def _on_command(self, instance: str, command: Command) -> Completed:
        """Play an instance."""
        if command.command == READY_COMMAND:
            await anyio.sleep(0.5)
            if self.ready_fails:
                self.ready_fails -= 1
                self.met("ready command fails")
                return Completed(exit_status=1, stderr=b"disk missing")
        elif command.command == CLEANUP_COMMAND:
            return await self._clean(instance, int(command.env["TASKSCALER_SLOT"]))
        else:
            await anyio.sleep(float(str(command.command).partition(" ")[2]))
        return Completed(exit_status=0)

    async def _clean(self, instance: str, slot: int) -> Completed:
        """Clean a slot, or fail to."""
        life, trouble = self.life, self.bad_cleanups.pop(0) if self.bad_cleanups else ""
        observer = next(each for each in self.observers.values() if instance in each.cloud.machines)
        with observer.being_cleaned(life, instance, slot):
            if trouble:
                self.met(trouble)
            await anyio.sleep(inf if trouble == "clean-up hangs" else self.random.choice([0.0, 1.0, 4.0]))
        if trouble:
            return Completed(exit_status=1, stderr=b"the disk is read-only")
        observer.cleaned(life, instance, slot)
        return Completed(exit_status=0)

    def _on_storing(self, writes: Sequence[Write]) -> None:
        """Let jobs come in the instant in which it is settled that an idle instance goes, and nobody was asked yet."""
        removed = [
            write.key.partition("/")
            for write in writes
            if isinstance(write, Put) and write.kind == "instance" and write.record.removing
        ]
        for pool, _, instance in removed:
            self._race(self.observers[pool], [instance], "job as a removal is stored")

    def _on_decrease(self, observer: Observer, instances: Sequence[str]) -> None:
        """Let jobs come while the cloud is being asked."""
        self._race(observer, instances, "job as a removal is asked for")

    def _race(self, observer: Observer, instances: Sequence[str], kind: str) -> None:
        busy = {run.lease.instance for run in observer.running.values()}
        machines = [observer.cloud.machines[id_] for id_ in instances if id_ in observer.cloud.machines]
        idle = [each for each in machines if each.state(self.now) is State.RUNNING and each.id not in busy]
        if idle and kind in self.races:
            self.races.remove(kind)
            self.met(kind)
            self.bring(self.story.pool.capacity_per_instance * len(observer.cloud.alive))  # others may have room, too

    def _await_doom(self, observer: Observer, notice: Notice) -> None:
        """What was announced has to be heeded by its time."""
        self.tasks.start_soon(self._check_doom, observer, notice)

    async def _check_doom(self, observer: Observer, notice: Notice) -> None:
        await self._until(notice.deadline - EPOCH + self.story.commit_time + HEEDED)
        observer.check_doom(notice)

    # --- jobs --------------------------------------------------------------------------------------------

    async def _bring(self, life: Life, job: Job) -> None:
        """See a job through, under one manager."""
        patience = job.at + job.patience - (self.now - EPOCH) if job.wish is Wish.CANCEL else inf
        with anyio.move_on_after(patience) as scope:
            while not await self._attempt(life, job):
                pass
        if scope.cancelled_caught and not life.dead:
            where = "running" if job.key in self._runs else "waiting"
            self._end_job(life, job, "cancelled", f"acquire: cancelled while {where}")

    async def _attempt(self, life: Life, job: Job) -> bool:
        """Try once; returns whether there is nothing more to try."""
        self._runs.pop(job.key, None)
        try:
            if job.wish in {Wish.RESERVE, Wish.UNRESERVE} and not await self._reserve(life, job):
                return True
            if job.sleeps:
                await self._work_with_a_break(life, job)
            elif job.returns is not None:
                await self._work_that_lasts(life, job, job.returns)
            else:
                async with life.scaler.acquire(
                    job.key,
                    timeout=job.patience if job.wish is Wish.IMPATIENT else inf,
                    expected_duration=job.duration if job.declared else inf,
                ) as lease:
                    await self._work(life, job, lease)
        except NotSuspended as error:
            return self._retry(life, self._ended_asleep(life, job, error))
        except LeaseLost:
            self._lost_asleep(life, job)
            return self._retry(life, "after a loss")
        except Unreachable:
            return self._retry(life, "after a broken connection")
        except NoCapacity as error:
            self._refused(life, job, error)
            return True
        self._end_job(life, job, "done", "job: done")
        return True

    def _refused(self, life: Life, job: Job, error: NoCapacity) -> None:
        """It ran out of patience, or its manager has ended under it, rightly or not: the next one goes on with it."""
        if life.scaler._runtime.ended and not life.leave.is_set():
            return
        if job.wish is not Wish.IMPATIENT and not life.dead:
            self.observer.violate(f"{job.key} was refused: {error}")
        self._end_job(life, job, "timed out", "acquire: timed out")

    async def _reserve(self, life: Life, job: Job) -> bool:
        """Reserve and think about it; returns whether the job is wanted after all."""
        try:
            await life.scaler.reserve(job.key)
        except NoCapacity:
            self.result.met["reservation: refused"] += 1
        else:
            self.result.met["reservation: kept"] += 1
            try:
                await anyio.sleep(job.patience)
            except BaseException:
                with suppress(Killed):
                    await life.scaler.unreserve(job.key)
                raise
        if job.wish is Wish.UNRESERVE:
            await life.scaler.unreserve(job.key)
            self._end_job(life, job, "unreserved", "reservation: given up")
            return False
        return True

    async def _work_with_a_break(self, life: Life, job: Job) -> None:
        """Run the job, let it sleep half-way, and go on; what slept when a manager died goes on under the next."""
        lease = await self._lease_asleep(life, job)
        if lease is None:
            job = evolve(job, ttl=inf) if job.key in self._expired else job
            lease = await life.scaler.acquire_lease(job.key, timeout=inf)
            async with lease.unless_lost(), self._giving_up(lease):
                await self._work(life, job, lease, how="half")
                lease.suspend(ttl=job.ttl)
                self.say(f"{job.key} sleeps")
            await anyio.sleep(job.sleeps)
            asked_at = self.now
            lease = await life.scaler.resume(job.key)
            if not life.dead:
                self.observers[lease.pool].check_in_time(job, asked_at)
        async with lease.hold():
            await self._work(life, job, lease, how="resumed")

    async def _work_that_lasts(self, life: Life, job: Job, returns: float) -> None:
        """Run the job, or what an earlier manager left of it, once its owner is back."""
        if kept := next((left for left in life.scaler.detached if left.key == job.key), None):
            await anyio.sleep(returns)
            try:
                lease = await life.scaler.reattach(job.key)
            except LeaseLost as error:
                if not life.dead:
                    given_up = error.loss.detail == NOT_REATTACHED
                    self.result.met["lease: given up" if given_up else "lease: lost while detached"] += 1
                raise
            self.result.met["job: reattached after a crash"] += 1
            async with lease.hold():
                await self._work(life, job, lease, how="reattached", since=kept.since)
            return
        expected = job.duration if job.declared else inf
        lease = await life.scaler.acquire_lease(job.key, timeout=inf, expected_duration=expected, persistent=True)
        async with lease.hold():
            await self._work(life, job, lease)

    def _note_lease(self, life: Life, event: ScalerEvent) -> None:
        """What was detached may be lost, or given up; what a dead manager says so counts if it was durable."""
        if isinstance(event, LeaseEvent) and event.what == "lost":
            self.observers[event.pool].lost_detached(event.key, died=life.dead, given_up=NOT_REATTACHED in event.why)

    async def _lease_asleep(self, life: Life, job: Job) -> Lease | None:
        """The job's lease that an earlier manager left, if it did; also one of whose loss only that one knew."""
        try:
            lease = await life.scaler.resume(job.key)
        except NotSuspended as error:
            self._ended_asleep(life, job, error)
        else:
            self.result.met["job: resumed after a crash"] += 1
            return lease
        return None

    @asynccontextmanager
    async def _giving_up(self, lease: Lease) -> AsyncIterator[None]:
        """Release the lease if anything goes wrong; it may sleep else."""
        try:
            yield
        except BaseException:
            lease.release()
            raise

    def _ended_asleep(self, life: Life, job: Job, error: NotSuspended) -> str:
        """What slept is lost or has expired, if anybody lives to hear of it; returns when it is retried, in words."""
        if not isinstance(error, LeaseExpired):
            self._lost_asleep(life, job)
            return "after a loss in its sleep"
        self._expired.add(job.key)
        if not life.dead:
            self.observer.expired(job)
        return "after it expired"

    def _lost_asleep(self, life: Life, job: Job) -> None:
        """What slept is lost, if anybody lives to hear of it."""
        if not life.dead:
            self.observer.lost_asleep(job)

    async def _work(self, life: Life, job: Job, lease: Any, *, how: str = "", since: float = -inf) -> None:  # noqa: ANN401
        """Run the job, or half of it, where the lease says."""
        if life.dead:
            await anyio.sleep_forever()
        observer = self.observers[lease.pool]
        goes_on: dict[str, Callable[[Job, Life, Lease], Run]] = {
            "resumed": observer.resumed,
            "reattached": partial(observer.reattached, since=since),
        }
        self.say(f"{job.key} {'goes on' if how in goes_on else 'starts'} on {lease.instance} slot {lease.slot}")
        begin = goes_on.get(how, observer.started)
        run = self._runs[job.key] = begin(job, life, lease)
        try:
            if job.wish is Wish.DIAL:
                async with lease.dial() as connection:
                    await connection.run(f"work {job.duration}", check=True)
            else:
                await anyio.sleep(job.duration)
            if how == "half":
                observer.suspended(run)
        finally:
            observer.ended(run)

    def _retry(self, life: Life, why: str) -> bool:
        """Count it. Returns False: there is more to try."""
        if not life.dead:
            self.result.met[f"job: retried {why}"] += 1
        return life.dead

    def _end_job(self, life: Life, job: Job, outcome: str, met: str) -> None:
        """Note how it ended, unless nobody is there to hear of it."""
        if life.dead:
            return
        if job.key in self._outcomes:
            self.observer.violate(f"{job.key} was {outcome} after it was {self._outcomes[job.key]}")
        self.say(f"{job.key} {outcome}")
        self.result.met[met] += 1
        self._outcomes[job.key] = outcome
        self.observer.demand.change(self.now, -1)
        if len(self._outcomes) == len(self.jobs):
            self._all_ended.set()

    # --- the reckoning -----------------------------------------------------------------------------------

    async def _check_jobs(self) -> None:
        """None is lost."""
        self.result.jobs = len(self._outcomes)
        left = [job.key for job in self.jobs if job.key not in self._outcomes]
        if left:
            self.observer.violate(f"{left} never ended\n{await self.life.scaler.explain()}")

    async def _check_quiet(self) -> None:
        """For a while nothing happens but what happens at intervals."""
        calls = [len(site.cloud.calls) for site in self.sites]
        commits, ticks = self.witness.commits, self.witness.ticks
        await anyio.sleep(QUIET_UPDATES * self.story.pool.update_interval)
        made = [
            call.method for site, before in zip(self.sites, calls, strict=True) for call in site.cloud.calls[before:]
        ]
        if self.story.renews:
            self._check_renewals(made)
            return
        if restless := set(made) - CALM:
            self.observer.violate(f"does not come to rest: still calls {sorted(restless)}")
        if made.count("update") > (QUIET_UPDATES + 1) * len(self.sites):
            self.observer.violate(f"does not come to rest: {made.count('update')} updates")
        if (more := self.witness.commits - commits) > 0:
            self.observer.violate(f"does not come to rest: {more} commits")
        if (woken := self.witness.ticks - ticks) > 4 * len(made) + 10:
            self.observer.violate(f"does not come to rest: wakes up {woken} times for {len(made)} calls")

    def _check_renewals(self, made: Sequence[str]) -> None:
        """Idle instances are replaced as they grow old, and nothing else happens."""
        seconds = QUIET_UPDATES * self.story.pool.update_interval
        most = self.story.policy.idle_count * (seconds / self.story.pool.max_instance_age + 2)
        tier = {"suspend"} if self.story.pool.suspended_count else set()  # what was replaced too soon may sleep there
        if restless := set(made) - CALM - RENEWAL - tier:
            self.observer.violate(f"does not come to rest: still calls {sorted(restless)}")
        if made.count("increase") > most:
            self.observer.violate(f"does not come to rest: asks for instances {made.count('increase')} times")

    async def _check_at_rest(self) -> None:
        """All is as it should be; where instances are replaced for ever, at some moment between two replacements."""
        with anyio.move_on_after(SETTLE if self.story.renews else 0.0):
            while await self._look_for_unrest():  # noqa: ASYNC110  (nobody tells of what is looked at there)
                await anyio.sleep(0.5)
        for what in await self._look_for_unrest():
            self.observer.violate(what)

    async def _look_for_unrest(self) -> Sequence[str]:
        """Ask the scaler what it knows, and return all that is not as it should be."""
        scaler = self.life.scaler
        return [*self._unrest(await scaler.capacity(), {view.id for view in await scaler.instances()})]

    def _unrest(self, capacity: Capacity, known: set[str]) -> Iterator[str]:
        """Nothing is held, waited for or forgotten; what exists is what the policy wants. Yields what is not so."""
        alive = self.alive
        if capacity.acquired or capacity.pending or capacity.reserved or capacity.promised:
            yield f"somebody still holds, waits or has reserved: {capacity}"
        if known != alive:
            yield f"exist: {sorted(alive)}, known: {sorted(known)}"
        records = self.disk.records
        stored = {key.partition("/")[2] for key in records.get("instance", {})}
        if stored != alive or records.get("intent") or records.get("lease") or records.get("dirty"):
            yield f"exist: {sorted(alive)}, in the journal: {records}"
        if not {key.partition("/")[2] for key in records.get("uses", {})} <= alive:
            yield f"uses of instances that are gone: {records['uses']}"
        yield from self._against_the_policy(capacity.idle)

    def _against_the_policy(self, idle: int) -> Iterator[str]:
        """Just enough is kept idle."""
        wanted, alive = self.story.policy.idle_count, len(self.alive)
        pools = [pool for pool, _ in self.story.pools]
        slots = max(min(pool.capacity_per_instance, pool.max_use_count or inf) for pool in pools)
        ceilings = [self.story.max_instances or inf, sum(observer.ceiling for observer in self.observers.values())]
        if idle >= wanted + slots or (not wanted and alive):
            yield f"{idle} idle slots on {alive} instances, though the policy wants {wanted}"
        if idle < wanted and alive < min(ceilings):
            yield f"only {idle} idle slots on {alive} instances, though the policy wants {wanted}"


def play(story: Story, *, verbose: bool = False) -> Result:
    """Play a story in virtual time."""
    the_play = Play(story, verbose=verbose)
    try:
        with repeatable(story.backend, story.seed):
            anyio.run(the_play.play, **virtual_run(cast("Literal['asyncio', 'trio']", story.backend)))
    except Exception as error:  # noqa: BLE001  (whatever it is, it is the verdict)
        the_play.observer.violations.append("".join(traceback.format_exception(error)))
    return the_play.result
