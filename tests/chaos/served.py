"""Stories of a daemon: clients that hold leases, batches that are submitted, and who is killed meanwhile.

In virtual time, over a real socket, with the daemon's own parts: HTTP, clients, leases, batches, scaler. The cloud and
what runs in it are fakes. A life of the daemon ends as by ``kill -9``: what it has on its disk is what it had at that
instant, and what it does from then on reaches neither the cloud nor that disk.

The reckoning asks nothing of the daemon's books but in the end: what ran where, and how often to its end, is known
from the instances themselves.
"""

import json
import shutil
import tarfile
from base64 import b64decode
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from io import BytesIO
from math import inf
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Literal, TypeVar, cast

import anyio
import anyio.to_thread
import httpx
from anyio.abc import TaskGroup
from attrs import Factory, define, evolve, field, frozen

from fleeting import Capability, ConnectInfo, Connection, ConnectorConfig, Unreachable
from fleeting.connectors import Sink
from fleeting.errors import CommandLost, NameUnknown
from fleeting.testing import FakeCloud, FakeGroup, Fault, virtual_run
from fleeting.testing._faults import Script
from fleeting.testing._machine import Method
from taskscaler import Lease, LeaseLost, Policy, Pool, ScalerEvent, Taskscaler, remote
from taskscaler._errors import DaemonRefused, KeyInUse, NoDaemon, NotDetached, NotHeld
from taskscaler.executors import JobOutcome, JobSpec, Leased, Verdict
from taskscaler.remote._scaler import keep_for_command
from taskscaler.serve._app import Api
from taskscaler.serve._holders import Holders
from taskscaler.serve._listen import listening
from taskscaler.serve._server import Server
from tests.chaos.keeping import LATE, Kept, Leaver, MortalKeeper, Place
from tests.chaos.process import Disk, Killed, Life, MortalJournal
from tests.chaos.repeatable import repeatable
from tests.chaos.story import CrashPoint
from tests.taskscaler.calling import Fleet, batches_of
from tests.taskscaler.leaving import LeavingConnection, Left
from tests.taskscaler.scaling import virtual_clock

Backend = Literal["asyncio", "trio"]

F = TypeVar("F", bound=Fault)
T = TypeVar("T")

TTL = 10.0
"""Seconds after which what a killed client held goes back."""

RETURN = 60.0
"""Seconds for which a daemon keeps what its predecessor had handed out."""

DOWN = 3.0
"""Seconds from a daemon's death to the next one."""

STORY_TIMEOUT = 5000.0
"""Virtual seconds in which everything has to be done."""

SETTLE = 400.0
"""Virtual seconds in which the fleet has to be gone once nothing is wanted: the idle time, and calls that are tried
again."""

POLICY = Policy(idle_time=20.0)


@frozen(kw_only=True)
class Program:
    """A client that does some pieces of work, one after the other."""

    name: str
    at: float
    """When it comes."""

    works: tuple[float, ...]
    """How long each takes."""

    reserves: bool = False
    replaces: bool = False
    """Whether it has its first lease replaced."""

    sleeps: bool = False
    """Whether that lease sleeps then."""

    dies_at: float = inf
    """When it is killed, in the middle of whatever it does."""


@frozen(kw_only=True)
class Submitted:
    """A batch that somebody submits and waits for."""

    name: str
    at: float
    jobs: tuple[float, ...]
    """How long each takes."""

    cancelled_at: float = inf


@frozen(kw_only=True)
class Served:
    """All that happens."""

    seed: int
    programs: tuple[Program, ...]
    batches: tuple[Submitted, ...]
    leavers: tuple[Leaver, ...] = ()
    kills: tuple[float, ...] = ()
    """When the daemon is killed."""

    lost_at: tuple[float, ...] = ()
    """When an instance vanishes, one that is busy if there is one."""

    crash: CrashPoint | None = None
    """Where the daemon dies once more."""

    backend: Backend = "asyncio"
    most: int = 4
    """Instances at most, of two slots each."""


def served_of(seed: int) -> Served:
    """Draw a story."""
    random = Random(seed)
    programs = tuple(
        Program(
            name=f"p{number}",
            at=random.uniform(0, 30),
            works=tuple(random.uniform(0.5, 15) for _ in range(random.randint(1, 4))),
            reserves=random.random() < 0.3,
            replaces=random.random() < 0.3,
            dies_at=random.uniform(5, 60) if random.random() < 0.3 else inf,
        )
        for number in range(random.randint(2, 6))
    )
    batches = tuple(
        Submitted(
            name=f"b{number}",
            at=random.uniform(0, 30),
            jobs=tuple(random.uniform(0.5, 20) for _ in range(random.randint(1, 6))),
            cancelled_at=random.uniform(5, 60) if random.random() < 0.2 else inf,
        )
        for number in range(random.randint(1, 3))
    )
    return Served(
        seed=seed,
        programs=_sleepy(seed, programs),
        batches=batches,
        leavers=_leavers(seed),
        kills=tuple(sorted(random.uniform(1, 90) for _ in range(random.randint(0, 4)))),
        lost_at=tuple(random.uniform(5, 60) for _ in range(random.choice([0, 0, 1, 2]))),
        backend=random.choice(["asyncio", "trio"]),
        most=random.randint(1, 5),
    )


def _sleepy(seed: int, programs: tuple[Program, ...]) -> tuple[Program, ...]:
    """Let leases sleep, of those that are replaced."""
    random = Random(f"{seed} sleepy")
    return tuple(evolve(each, sleeps=each.replaces and random.random() < 0.5) for each in programs)


def _leavers(seed: int) -> tuple[Leaver, ...]:
    """Draw who has leases kept."""
    random = Random(f"{seed} kept")
    return tuple(
        Leaver(
            name=f"k{number}",
            at=random.uniform(0, 30),
            seconds=random.uniform(0.5, 15),
            ttl=random.uniform(1, 90),
            idle_timeout=random.choice([None, random.uniform(1, 60)]),
            runs=random.choice([0.0, random.uniform(1, 120)]),
            returns_at=random.choice([inf, random.uniform(20, 120)]),
            stopped_at=random.uniform(5, 90) if random.random() < 0.2 else inf,
            dies_at=random.uniform(5, 60) if random.random() < 0.3 else inf,
        )
        for number in range(random.choice([0, 0, 1, 2, 3]))
    )


@define(eq=False)
class Running:
    """A job's script on an instance: it goes on whatever becomes of the daemon."""

    job: str
    instance: str
    slot: int
    life: int
    """Of the daemon that has started it."""

    ends_at: float
    over: anyio.Event = Factory(anyio.Event)
    """Set when it has ended, well or not."""

    well: bool = False


@define(eq=False)
class World:
    """What is there whoever is killed."""

    cloud: FakeCloud
    tasks: TaskGroup
    wrong: list[str] = Factory(list)
    scripts: dict[str, Running] = Factory(dict)
    """By the names of tries."""

    joined: int = 0
    lost: set[str] = Factory(set)
    """Instances that have vanished."""

    kept: Kept = field(init=False)

    def __attrs_post_init__(self) -> None:
        """Keep nothing yet."""
        self.kept = Kept(Left(self.cloud), self.wrong)

    programs: dict[tuple[str, int], str] = Factory(dict)
    """Which living program works in a slot."""

    def start(self, name: str, job: str, lease: Leased, duration: float, life: int) -> None:
        """Start a script; one that ran in that slot before is ended, as executors do it."""
        if name in self.scripts:
            return
        place = (lease.instance, lease.slot)
        for other in self.scripts.values():
            if (other.instance, other.slot) == place:
                other.over.set()
            elif other.job == job and not other.over.is_set() and other.instance in self.cloud.alive:
                self.wrong.append(f"{job} begins on {place} while it runs on {other.instance}")
        self.kept.check_free(*place, job)
        if place in self.programs:
            self.wrong.append(f"{job} begins in {place}, where {self.programs[place]} works")
        script = self.scripts[name] = Running(job, lease.instance, lease.slot, life, anyio.current_time() + duration)
        self.tasks.start_soon(self._run, script)

    async def _run(self, script: Running) -> None:
        """Let it end by itself, unless it is ended, or its instance goes."""
        with anyio.move_on_at(script.ends_at):
            await script.over.wait()
        if not script.over.is_set() and script.instance in self.cloud.alive:
            script.well = True
        script.over.set()

    def finished(self, job: str) -> tuple[int, int]:
        """How often a job has come to its end, and how often where that is still known."""
        ended = [script for script in self.scripts.values() if script.job == job and script.well]
        return len(ended), sum(script.instance not in self.lost for script in ended)

    @contextmanager
    def working(self, program: str, lease: Lease) -> Iterator[None]:
        """Work in a slot, which nobody else may have."""
        place = (lease.instance, lease.slot)
        ran = [
            each.job for each in self.scripts.values() if (each.instance, each.slot) == place and not each.over.is_set()
        ]
        if place in self.programs or ran:
            self.wrong.append(f"{program} works in {place}, where {self.programs.get(place) or ran} is")
        if lease.instance not in self.cloud.alive | self.lost:
            self.wrong.append(f"{program} got a slot of {lease.instance}, which is gone")
        self.kept.check_free(*place, program)
        self.programs[place] = program
        try:
            yield
        finally:
            del self.programs[place]


@define(eq=False)
class Outliving:
    """An executor whose scripts are names and durations; they outlive the daemon.

    As every executor, it reaches its scripts through the lease: so the daemon hears of connections that die.
    """

    world: World
    life: Life

    async def run(self, job: JobSpec, lease: Leased, *, output: Sink, artifacts: Path) -> JobOutcome:
        """Never asked to."""
        raise AssertionError((job, lease, output, artifacts))

    async def start(self, job: JobSpec, lease: Leased, *, name: str) -> None:
        """Start it, unless the daemon is dead by then."""
        duration, _, batch = job.script.partition(" ")
        async with self._connected(lease):
            self.world.start(name, f"{batch}/{job.name}", lease, float(duration), self.life.number)

    async def attach(
        self,
        job: JobSpec,
        lease: Leased,
        *,
        name: str,
        offset: int = 0,
        elapsed: float = 0.0,
        output: Sink,
        artifacts: Path,
    ) -> JobOutcome:
        """Wait for its end, and pass on what it has printed."""
        del elapsed, artifacts
        async with self._connected(lease) as connection:
            script = self.world.scripts.get(name)
            if script is None:
                raise NameUnknown(name)
            self.world.joined += script.life != self.life.number
            printed = f"{script.job} on {script.instance}\n".encode() * 3
            await output(printed[offset : len(printed) // 2])
            await self._wait(script, connection)
            if not script.well:
                raise CommandLost(job.name, "it is gone")
            await output(printed[max(offset, len(printed) // 2) :])
        return JobOutcome(verdict=Verdict.SUCCEEDED, exit_code=0)

    async def end(self, lease: Leased, *, name: str) -> None:
        """End it, unless the daemon is dead by then."""
        async with self._connected(lease):
            if name in self.world.scripts:
                self.world.scripts[name].over.set()

    @asynccontextmanager
    async def _connected(self, lease: Leased) -> AsyncIterator[Connection]:
        """Reach the instance, and let some time pass before and after what is done there."""
        async with lease.dial() as connection:
            await anyio.sleep(0.1)
            self._check()
            yield connection
            await anyio.sleep(0.1)
            self._check()

    async def _wait(self, script: Running, connection: Connection) -> None:
        """Wait until it is over; raises `Unreachable` if nobody can know, because the connection died before."""
        why = ""
        async with anyio.create_task_group() as tasks:

            async def wait_closed() -> None:
                nonlocal why
                why = await connection.wait_closed()
                tasks.cancel_scope.cancel()

            tasks.start_soon(wait_closed)
            await script.over.wait()
            tasks.cancel_scope.cancel()
        self._check()
        if why:
            raise Unreachable(why)

    def _check(self) -> None:
        if self.life.dead:
            raise Killed("dead processes do nothing on instances")


class _Group(FakeGroup):
    """One life's access to the cloud."""

    def __init__(self, cloud: FakeCloud, life: Life) -> None:
        """Open nothing yet."""
        super().__init__(cloud)
        self._life = life

    async def shutdown(self) -> None:
        """A dead process closes nothing."""
        if not self._life.dead:
            await super().shutdown()

    @asynccontextmanager
    async def _call(self, method: Method, script: Script[F], **arguments: object) -> AsyncIterator[F]:
        """Reach the cloud while the process lives; what is on its way at its death may still arrive."""
        self._life.pass_by(method, after=False)
        with anyio.CancelScope() as scope:
            self._life.calls.add(scope)
            try:
                async with super()._call(method, script, **arguments) as fault:
                    yield fault
            finally:
                self._life.calls.discard(scope)
        self._life.pass_by(method, after=True)


@define(eq=False)
class Outcome:
    """What came of a story."""

    wrong: list[str] = Factory(list)
    places: Counter[str] = Factory(Counter)
    """How often daemons came by where they can be killed."""

    lives: int = 0
    finished: Counter[str] = Factory(Counter)
    """How often each job, and each piece of a program's work, was done."""

    joined: int = 0
    """How often a daemon joined a script that an earlier one had started."""


@define(eq=False)
class _Play:
    """One story, being played."""

    story: Served
    here: Path
    outcome: Outcome = Factory(Outcome)
    disk: Disk = Factory(Disk)
    random: Random = field(init=False)
    world: World = field(init=False)
    tasks: TaskGroup = field(init=False)
    life: Life | None = None
    fleet: Fleet | None = None
    clients: dict[str, remote.Taskscaler] = Factory(dict)
    """By the names of programs."""

    ending: bool = False

    @property
    def socket(self) -> Path:
        """Leads to where the daemon of the moment listens."""
        return self.here / "s.sock"

    @property
    def leases(self) -> Path:
        """Where the daemon of the moment writes down leases that it keeps."""
        return self.here / f"leases-{self.outcome.lives}"

    @property
    def batches(self) -> Path:
        """Where the daemon of the moment has its batches: what a dead one still writes, it writes elsewhere."""
        return self.here / f"batches-{self.outcome.lives}"

    # --- the daemon --------------------------------------------------------------------------------------

    async def serve(self) -> None:
        """Live again and again."""
        while not self.ending:
            self.outcome.lives += 1
            life = self.life = Life(self.outcome.lives, self.random, self.outcome.places, self.story.crash)
            life.on_death = self._note_death
            self.tasks.start_soon(self._live, life)  # what a dead one's tasks still do keeps nobody waiting
            await life.over.wait()
            if not self.ending:
                await anyio.sleep(DOWN)

    async def _live(self, life: Life) -> None:
        """Live once."""
        try:
            with life.scope:
                async with self._daemon(life) as fleet:
                    self.fleet = fleet
                    await life.leave.wait()
        except BaseException as error:
            if not (life.dead and isinstance(error, Exception | BaseExceptionGroup)):
                raise
        finally:
            life.over.set()

    def _note_death(self, _: Life) -> None:
        """Keep the disk as it is at this instant; nobody listens any more."""
        self.fleet = None
        self.socket.unlink(missing_ok=True)
        for place in (self.batches, self.leases):
            if place.exists():
                following = place.with_name(f"{place.name.partition('-')[0]}-{self.outcome.lives + 1}")
                shutil.copytree(place, following, symlinks=True)

    @asynccontextmanager
    async def _daemon(self, life: Life) -> AsyncIterator[Fleet]:
        clock, apis = virtual_clock(), list[Api]()

        def hear(event: ScalerEvent) -> None:
            for api in apis:
                api.hear(event)
                api.fleet.batches.hear(event)
                api.fleet.holders.keeper.hear(event)

        @asynccontextmanager
        async def dial(info: ConnectInfo, config: ConnectorConfig) -> AsyncIterator[Connection]:
            async with group.dial(info, config) as connection:
                yield LeavingConnection(self.world.kept.left, connection)

        group = _Group(self.world.cloud, life)
        pool = Pool(
            group,
            dial=dial,
            capacity_per_instance=2,
            max_instances=self.story.most,
            update_interval=10.0,
            update_interval_when_expecting=2.0,
            deletion_retry_interval=10.0,
        )
        scaler = Taskscaler(
            pool,
            policies=[POLICY],
            journal=MortalJournal(life, self.disk),
            delete_instances_on_shutdown=False,
            acquire_timeout=STORY_TIMEOUT,
            reattach_timeout=RETURN,
            clock=clock,
            observers=[hear],
            random=self.random.random,
        )
        place = self.here / f"s{life.number}.sock"
        async with listening(place, None) as listener, scaler, anyio.create_task_group() as tasks:
            fleet = Fleet(scaler, boot=f"life {life.number}")
            api = Api(fleet)
            apis.append(api)
            fleet.holders = Holders(scaler, clock.now, tasks.start_soon, api.notify)
            keeper = fleet.holders.keeper = MortalKeeper(scaler, clock.now, tasks.start_soon, self.leases, life=life)
            executors = {"instance": Outliving(self.world, life)}
            fleet.batches = batches_of(scaler, self.batches, tasks.start_soon, clock=clock, executors=executors)
            await keeper.take_up()
            await fleet.batches.take_up()
            server = Server(api.app())
            tasks.start_soon(fleet.holders.watch)
            tasks.start_soon(server.serve, listener)
            self.socket.symlink_to(place)
            yield fleet
            self.socket.unlink()
            await fleet.batches.leave()
            await server.close()
            tasks.cancel_scope.cancel()

    async def kill(self, at: float) -> None:
        """Kill the daemon, if one is there."""
        await anyio.sleep_until(at)
        if self.life is not None and not self.life.dead and not self.ending:
            self.life.kill("at a moment of the story's")

    async def lose(self, at: float) -> None:
        """Have an instance vanish."""
        await anyio.sleep_until(at)
        busy = sorted({each.instance for each in self.world.scripts.values() if not each.over.is_set()})
        there = [each for each in busy or sorted(self.world.cloud.alive) if each in self.world.cloud.alive]
        if there:
            self.world.lost.add(lost := self.random.choice(there))
            self.world.cloud.vanish(lost)

    # --- who uses it -------------------------------------------------------------------------------------

    async def run_program(self, program: Program) -> None:
        """Do its work, or die."""
        await anyio.sleep_until(program.at)
        with anyio.CancelScope() as scope:
            self.tasks.start_soon(self._kill_program, program, scope)
            while not await self._run_connected(program):  # noqa: ASYNC110  (nobody says when one is there)
                await anyio.sleep(1)

    async def _run_connected(self, program: Program) -> bool:
        """Do all of its work; False: there was no daemon to begin with."""
        dial = FakeGroup(self.world.cloud).dial
        scaler = self.clients[program.name] = remote.Taskscaler(self.socket, ttl=TTL, patience=STORY_TIMEOUT, dial=dial)
        try:
            async with scaler:
                for number, seconds in enumerate(program.works):
                    await self._do(scaler, program, number, seconds)
        except NoDaemon:
            return False
        return True

    async def _kill_program(self, program: Program | Leaver, scope: anyio.CancelScope) -> None:
        if program.dies_at < inf:
            await anyio.sleep_until(program.dies_at)
            if scaler := self.clients.get(program.name):
                scaler._link._http = httpx.AsyncClient(transport=_Nowhere())  # it says nothing more, not even farewell
            scope.cancel()

    async def _do(self, scaler: remote.Taskscaler, program: Program, number: int, seconds: float) -> None:
        """Do one piece of work, as often as it takes."""
        key = f"{program.name}-{number}"
        if program.reserves:
            await scaler.reserve(key, timeout=STORY_TIMEOUT)
        while not self.outcome.finished[key]:
            with suppress(LeaseLost), self._unless_lost(program):
                lease = await scaler.acquire_lease(key)
                if program.sleeps and not number:
                    lease.suspend()
                if program.replaces and not number:
                    lease = await scaler.replace(key, why="slow", timeout=STORY_TIMEOUT)
                async with lease.hold():
                    with self.world.working(key, lease):
                        await anyio.sleep(seconds)
                    self.outcome.finished[key] += 1

    @contextmanager
    def _unless_lost(self, program: Program) -> Iterator[None]:
        """A lease that was lost cannot be replaced; any other can."""
        try:
            yield
        except NotHeld as error:
            if not self.world.lost:
                self.world.wrong.append(f"{program.name} was told: {error}")

    async def run_leaver(self, leaver: Leaver) -> None:
        """Have a lease kept, go, and see to it that it ends in time."""
        async with anyio.create_task_group() as tasks:
            if leaver.stopped_at < inf:
                tasks.start_soon(self._stop_kept, leaver)
            await anyio.sleep_until(leaver.at)
            with anyio.CancelScope() as scope:
                self.tasks.start_soon(self._kill_program, leaver, scope)
                await self._connect(leaver, self._leave)
            if leaver.returns_at < inf:
                await anyio.sleep_until(max(leaver.returns_at, anyio.current_time()))
                await self._connect(leaver, self._return)
        await anyio.sleep(leaver.ttl + LATE)
        while self.fleet is None:  # noqa: ASYNC110  (nobody says when one is there)
            await anyio.sleep(1)
        if leaver.name in self.fleet.holders.keeper.kept:
            self.world.wrong.append(f"{self.fleet.holders.keeper.kept[leaver.name]} is kept for ever")

    async def _connect(self, leaver: Leaver, work: Callable[[remote.Taskscaler, Leaver], Awaitable[None]]) -> None:
        """Do something as a client, as soon as a daemon is there."""
        dial = FakeGroup(self.world.cloud).dial
        while True:
            scaler = self.clients[leaver.name] = remote.Taskscaler(
                self.socket, ttl=TTL, patience=STORY_TIMEOUT, dial=dial
            )
            with suppress(NoDaemon):
                async with scaler:
                    await work(scaler, leaver)
                return
            await anyio.sleep(1)

    async def _leave(self, scaler: remote.Taskscaler, leaver: Leaver) -> None:
        kept = self.world.kept
        place: Place | None = None
        try:
            lease = await scaler.acquire_lease(leaver.name)
            with self._unless_stopped(leaver):
                async with lease.unless_lost():
                    with self.world.working(leaver.name, lease):
                        facts = await keep_for_command(
                            scaler,
                            lease,
                            ttl=leaver.ttl,
                            idle_timeout=leaver.idle_timeout,
                            there=leaver.runs > 0 or None,
                        )
                        place = kept.keep(leaver, lease, facts.name)
                        if leaver.runs:
                            self.tasks.start_soon(kept.run_command, place)
                        await anyio.sleep(leaver.seconds)
                    kept.leave(place)
                    lease.detach()
        finally:
            if place is not None:
                kept.leave(place)

    async def _return(self, scaler: remote.Taskscaler, leaver: Leaver) -> None:
        place = self.world.kept.places.get(leaver.name)
        try:
            lease = await self._reattach(scaler, leaver.name)
        except (NotDetached, LeaseLost) as error:
            if place is not None:
                self.world.kept.refuse(place, error, self.world.lost)
            return
        if place is None:  # it was killed before it knew that the lease is kept
            lease.release()
            return
        self.world.kept.take(place, lease)
        with self._unless_stopped(leaver):
            async with lease.hold():
                try:
                    with self.world.working(leaver.name, lease):
                        await anyio.sleep(leaver.seconds)
                finally:
                    place.may_end(anyio.current_time())

    async def _reattach(self, scaler: remote.Taskscaler, key: str) -> Lease:
        """Take a lease up, once the daemon has noticed that its first client is gone."""
        while True:
            with suppress(KeyInUse):
                return await scaler.reattach(key)
            await anyio.sleep(1)

    @contextmanager
    def _unless_stopped(self, leaver: Leaver) -> Iterator[None]:
        """A lease is lost with its instance, or if somebody stops it."""
        try:
            yield
        except (LeaseLost, DaemonRefused) as error:
            if anyio.current_time() < leaver.stopped_at and not self.world.lost:
                self.world.wrong.append(f"{leaver.name} was told: {error}")

    async def _stop_kept(self, leaver: Leaver) -> None:
        """End it, if it is kept."""
        await anyio.sleep_until(leaver.stopped_at)
        kept = self.world.kept
        kept.stopping.add(leaver.name)
        if place := kept.places.get(leaver.name):
            place.may_end(anyio.current_time())
        await self._ask("POST", "/stop", besides=(404,), json={"key": leaver.name})
        kept.stopping.discard(leaver.name)

    async def run_batch(self, batch: Submitted) -> None:
        """Submit it, follow the log of its first job, and wait for its end, over all deaths of the daemon."""
        await anyio.sleep_until(batch.at)
        id_ = (await self._submit(batch))["batch"]
        logs: list[bytes] = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._follow, id_, logs)
            if batch.cancelled_at < inf:
                await anyio.sleep_until(batch.cancelled_at)
                await self._ask("POST", "/batch/cancel", json={"batch": id_})
            ended = await self._ask("GET", "/batch/wait", params={"batch": id_})
        listed = (await self._ask("GET", "/batch", params={"batch": id_}))["list"]
        self._check_batch(batch, ended, listed, b"".join(logs))

    def _check_batch(
        self, batch: Submitted, ended: Mapping[str, Any], listed: Sequence[Mapping[str, Any]], log: bytes
    ) -> None:
        wrong = self.world.wrong
        if ended["state"] not in {"succeeded", *(["cancelled"] if batch.cancelled_at < inf else [])}:
            wrong.append(f"{batch.name} has {ended['state']}: {ended['why']}, {ended['jobs']}")
        if len(listed) != len(batch.jobs):
            wrong.append(f"{batch.name} has {len(listed)} jobs and not {len(batch.jobs)}")
        for job in listed:
            name = f"{batch.name}/{job['name']}"
            done, known = self.world.finished(name)
            self.outcome.finished[name] += done
            if known > 1 or (job["state"] == "succeeded" and not done):
                wrong.append(f"{name} has {job['state']}, and came {done} times to its end")
            if job["state"] != "succeeded" and batch.cancelled_at == inf:
                wrong.append(f"{name} has {job['state']}")
        path = self.batches / ended["batch"] / "results" / "logs" / "j0.log"
        kept = path.read_bytes() if path.exists() else b""
        if log != kept:
            wrong.append(f"who followed a log of {batch.name} saw {log!r}, where there is {kept!r}")

    async def _submit(self, batch: Submitted) -> Mapping[str, Any]:
        text = "".join(
            f'[[jobs]]\nname = "j{number}"\nscript = "{duration} {batch.name}"\n'
            for number, duration in enumerate(batch.jobs)
        )
        buffer = BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            member = tarfile.TarInfo("jobs.toml")
            member.size = len(text)
            tar.addfile(member, BytesIO(text.encode()))
        params = {"name": "jobs.toml", "request": batch.name}
        return await self._ask("POST", "/batches", params=params, content=buffer.getvalue())

    async def _follow(self, id_: str, logs: list[bytes]) -> None:
        """Follow a log, from one daemon to the next."""
        asked = {"batch": id_, "job": "j0", "lines": "1000", "follow": "true", "places": "true"}
        while True:
            with suppress(httpx.HTTPError):
                async with self._http() as http, http.stream("GET", "/batch/log", params=asked) as answer:
                    if await self._take_log(answer, asked, logs):
                        return
            await anyio.sleep(1)

    @staticmethod
    async def _take_log(answer: httpx.Response, asked: dict[str, str], logs: list[bytes]) -> bool:
        """Take what comes; returns whether nothing more will."""
        begun = b""
        async with aclosing(cast("AsyncGenerator[bytes]", answer.aiter_raw())) as pieces:
            async for piece in pieces:
                *lines, begun = (begun + piece).split(b"\n")
                for said in map(json.loads, lines):
                    if "over" in said:
                        return bool(said["over"])
                    asked["after"] = str(said["next"])
                    logs.append(b64decode(said["data"]))
        return False

    def _http(self) -> httpx.AsyncClient:
        transport = httpx.AsyncHTTPTransport(uds=str(self.socket), verify=False)
        return httpx.AsyncClient(transport=transport, base_url="http://localhost/v1", timeout=STORY_TIMEOUT)

    async def _ask(
        self,
        method: str,
        path: str,
        besides: Collection[int] = (),
        **sent: Any,  # noqa: ANN401  (httpx's)
    ) -> Mapping[str, Any]:
        """Ask until some daemon answers, with success or one of the other statuses."""
        while True:
            with suppress(httpx.HTTPError, ValueError):
                async with self._http() as http:
                    answer = await http.request(method, path, **sent)
                    found: Mapping[str, Any] = answer.json()
                if answer.is_success or answer.status_code in besides:
                    return found
                if answer.status_code not in {503, 507}:
                    raise RuntimeError(f"{method} {path} was answered with {answer.text}")
            await anyio.sleep(1)

    # --- all of it ---------------------------------------------------------------------------------------

    async def play(self) -> None:
        """Play it, and look at what is left."""
        self.random = Random(self.story.seed)
        async with anyio.create_task_group() as self.tasks:
            sleepy = {Capability.SUSPEND_RESUME} if any(each.sleeps for each in self.story.programs) else set()
            cloud = FakeCloud(
                boot_time=3.0, delete_time=2.0, capabilities=frozenset({Capability.NAMED_CREATE, *sleepy})
            )
            self.world = World(cloud, self.tasks)
            self.outcome.wrong = self.world.wrong
            self.tasks.start_soon(self.serve)
            for at in self.story.kills:
                self.tasks.start_soon(self.kill, at)
            for at in self.story.lost_at:
                self.tasks.start_soon(self.lose, at)
            with anyio.move_on_after(STORY_TIMEOUT) as timeout:
                async with anyio.create_task_group() as users:
                    for program in self.story.programs:
                        users.start_soon(self.run_program, program)
                    for batch in self.story.batches:
                        users.start_soon(self.run_batch, batch)
                    for leaver in self.story.leavers:
                        users.start_soon(self.run_leaver, leaver)
            if timeout.cancelled_caught:
                self.world.wrong.append(f"not all was done after {STORY_TIMEOUT:g} s: {self.outcome.finished}")
            await self._reckon()
            self.ending = True
            self.outcome.joined = self.world.joined
            if self.life is not None:
                self.life.leave.set()

    async def _reckon(self) -> None:
        """Nothing is held, and nothing is left of the fleet."""
        await anyio.sleep(max(*self.story.kills, *self.story.lost_at, 0.0, 0.0) + TTL + RETURN + SETTLE)
        wrong = self.world.wrong
        if self.fleet is None:
            wrong.append("no daemon serves")
            return
        capacity = await self.fleet.scaler.capacity()
        held = (capacity.acquired, capacity.reserved, capacity.pending, len(self.fleet.holders.held))
        if any(held):
            wrong.append(f"in the end, {held} slots are acquired, reserved, waited for and held")
        if len(self.fleet.holders.clients):
            wrong.append(f"in the end, there are {len(self.fleet.holders.clients)} clients")
        if self.fleet.scaler.detached:
            wrong.append(f"in the end, leases are detached: {self.fleet.scaler.detached}")
        if self.world.cloud.alive:
            wrong.append(f"in the end, there are instances: {sorted(self.world.cloud.alive)}")
        if self.fleet.holders.keeper.kept or any(self.leases.glob("*")):
            wrong.append(f"in the end, leases are kept: {self.fleet.holders.keeper.kept}, {[*self.leases.glob('*')]}")
        if leases := self.disk.records.get("lease"):
            wrong.append(f"in the end, the journal has leases: {[*leases]}")
        self._check_programs()

    def _check_programs(self) -> None:
        """Each piece of work of the living is done, and none twice."""
        for program in self.story.programs:
            for number in range(len(program.works)):
                done = self.outcome.finished[f"{program.name}-{number}"]
                if done > 1 or (not done and program.dies_at == inf):
                    self.world.wrong.append(f"{program.name}-{number} was done {done} times")


class _Nowhere(httpx.AsyncBaseTransport):
    """What a dead process has to connect with."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Reach nobody."""
        raise httpx.ConnectError("dead processes say nothing", request=request)


@contextmanager
def _without_threads() -> Iterator[None]:
    """Do at once what would be done in a thread: threads have their own time, and outlive who is killed."""
    before = anyio.to_thread.run_sync

    async def run_sync(function: Any, *args: Any, **_: Any) -> Any:  # noqa: ANN401  (anyio's)
        await anyio.lowlevel.checkpoint()
        return function(*args)

    anyio.to_thread.run_sync = run_sync  # type: ignore[assignment]
    try:
        yield
    finally:
        anyio.to_thread.run_sync = before


def play_served(story: Served) -> Outcome:
    """Play a story."""
    with (
        TemporaryDirectory() as directory,
        _without_threads(),
        repeatable(story.backend, story.seed),
    ):
        playing = _Play(story, Path(directory))
        anyio.run(playing.play, **virtual_run(story.backend))
    return playing.outcome
