"""What people are told: situations over the fake cloud in virtual time, each with the sentences that it gets."""

import json
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import anyio
import pytest
from attrs import frozen

from fleeting import Capability, CapacityUnavailable, ProviderError, QuotaExceeded, ScaleThrottle
from fleeting.testing import DecreaseFault, FakeCloud, FakeGroup, Fault, IncreaseFault, virtual_time
from taskscaler import Explanation, InstanceExplanation, KeyExplanation, LeaseLost, Next, Policy, Pool, Taskscaler
from tests.taskscaler.scaling import FullDisk, scaling, virtual_clock, work

pytestmark = pytest.mark.anyio
anyio_backend = virtual_time

WITHDRAWS = frozenset({Capability.NAMED_CREATE, Capability.WITHDRAW})
NOTICES = frozenset({Capability.NAMED_CREATE, Capability.NOTICES})


@asynccontextmanager
async def working(scaler: Taskscaler, *keys: str, seconds: float = 1000.0) -> AsyncIterator[None]:
    """Jobs are asked for, in this order."""
    async with anyio.create_task_group() as jobs:
        for key in keys:
            jobs.start_soon(work, scaler, key, seconds)
            await anyio.wait_all_tasks_blocked()
        yield
        jobs.cancel_scope.cancel()


@asynccontextmanager
async def stock_out() -> AsyncIterator[Taskscaler]:
    """The cloud refuses, again and again."""
    cloud = FakeCloud()
    cloud.faults.increase.always(IncreaseFault(refuse=CapacityUnavailable("none left in zone-a")))
    async with scaling(cloud, max_instances=5) as scaler, working(scaler, "job-1", "job-2"):
        await anyio.sleep(45)
        yield scaler


@asynccontextmanager
async def unfilled() -> AsyncIterator[Taskscaler]:
    """The cloud accepts, says that it has none, and never delivers."""
    cloud = FakeCloud(capabilities=WITHDRAWS)
    cloud.run_out("no m5.large in zone-a")
    async with scaling(cloud, max_instances=5) as scaler, working(scaler, "job-1"):
        await anyio.sleep(45)
        yield scaler


@asynccontextmanager
async def quota() -> AsyncIterator[Taskscaler]:
    """The account may have no more."""
    cloud = FakeCloud()
    cloud.faults.increase.always(IncreaseFault(refuse=QuotaExceeded("the quota of 8 vCPUs is used up")))
    async with scaling(cloud) as scaler, working(scaler, "job-1"):
        await anyio.sleep(1)
        yield scaler


@asynccontextmanager
async def throttled() -> AsyncIterator[Taskscaler]:
    """Three are wanted; one may be asked for each ten seconds."""
    throttle = ScaleThrottle(limit=0.1, burst=1)
    async with (
        scaling(FakeCloud(boot_time=60), scale_throttle=throttle) as scaler,
        working(scaler, "job-1", "job-2", "job-3"),
    ):
        await anyio.sleep(5)
        yield scaler


@asynccontextmanager
async def at_the_ceiling() -> AsyncIterator[Taskscaler]:
    """Two may exist, and both are in use."""
    async with scaling(FakeCloud(), max_instances=2) as scaler, working(scaler, "job-1", "job-2", "job-3", "job-4"):
        await anyio.sleep(30)
        yield scaler


@asynccontextmanager
async def at_the_ceiling_unfilled() -> AsyncIterator[Taskscaler]:
    """Two may exist; the cloud has delivered one, and says that it has no other."""
    cloud = FakeCloud()
    async with scaling(cloud, max_instances=2) as scaler, working(scaler, "job-1"):
        await anyio.sleep(30)
        cloud.run_out("no m5.large in zone-a")
        async with working(scaler, "job-2", "job-3"):
            await anyio.sleep(30)
            yield scaler


@asynccontextmanager
async def at_the_clouds_ceiling() -> AsyncIterator[Taskscaler]:
    """The group itself holds one, whatever we allow."""
    async with scaling(FakeCloud(max_size=1), max_instances=9) as scaler, working(scaler, "job-1", "job-2"):
        await anyio.sleep(30)
        yield scaler


@asynccontextmanager
async def booting() -> AsyncIterator[Taskscaler]:
    """An instance is on its way."""
    async with scaling(FakeCloud(boot_time=60)) as scaler, working(scaler, "job-1"):
        await anyio.sleep(20)
        yield scaler


@asynccontextmanager
async def not_ready() -> AsyncIterator[Taskscaler]:
    """It runs, and cannot be connected to."""
    cloud = FakeCloud()
    cloud.faults.connect_info.always(Fault(refuse=ProviderError("no address assigned")))
    async with scaling(cloud, instance_ready_timeout=60) as scaler, working(scaler, "job-1"):
        await anyio.sleep(20)
        yield scaler


@asynccontextmanager
async def draining() -> AsyncIterator[Taskscaler]:
    """No more is handed out; one job goes on, one instance is idle."""
    async with scaling(FakeCloud(), policies=[Policy(idle_time=600)]) as scaler, working(scaler, "job-1"):
        await anyio.sleep(5)
        await work(scaler, "job-2", 1)
        await anyio.sleep(5)
        await scaler.drain(timeout=1)
        yield scaler


@asynccontextmanager
async def journal_fails() -> AsyncIterator[Taskscaler]:
    """The disk is full, so nothing is handed out."""
    journal = FullDisk()
    async with scaling(FakeCloud(), journal=journal, policies=[Policy(idle_count=1)]) as scaler:
        await anyio.sleep(10)
        journal.full = True
        async with working(scaler, "job-1", "job-2"):
            await anyio.sleep(30)
            yield scaler
            journal.full = False


@asynccontextmanager
async def idle() -> AsyncIterator[Taskscaler]:
    """Nobody works; one slot is to be kept, and the rest goes after a minute."""
    async with scaling(FakeCloud()) as scaler:
        first, second = await scaler.acquire_lease("job-1"), await scaler.acquire_lease("job-2")
        await scaler.configure(policies=[Policy(idle_count=1, idle_time=60)])
        first.release()
        await anyio.sleep(1)
        second.release()
        await anyio.sleep(20)
        yield scaler


@asynccontextmanager
async def nothing_to_do() -> AsyncIterator[Taskscaler]:
    """There is nothing, and nothing is wanted."""
    async with scaling(FakeCloud()) as scaler:
        await anyio.sleep(6)
        yield scaler


@asynccontextmanager
async def before_eight() -> AsyncIterator[Taskscaler]:
    """Another policy will hold in the morning; it is 22:13 in London, 23:13 in Berlin."""
    busy = Policy(periods=("* 8-15 * * *",), timezone="Europe/Berlin", idle_count=3, idle_time=1200)
    async with scaling(FakeCloud(), policies=[Policy(), busy]) as scaler:
        await anyio.sleep(5)
        yield scaler


@asynccontextmanager
async def exhausted() -> AsyncIterator[Taskscaler]:
    """An instance has had all the work that it may have."""
    cloud = FakeCloud(delete_time=30)
    async with scaling(cloud, capacity_per_instance=2, max_use_count=2, max_instances=1) as scaler:
        await scaler.acquire_lease("job-1")
        await work(scaler, "job-2", 1)
        async with working(scaler, "job-3"):
            await anyio.sleep(5)
            yield scaler


@asynccontextmanager
async def unhealthy() -> AsyncIterator[Taskscaler]:
    """Its heartbeats fail while a job runs there."""
    cloud = FakeCloud()
    async with scaling(cloud, heartbeat_interval=10, capacity_per_instance=2) as scaler, working(scaler, "job-1"):
        await anyio.sleep(1)
        cloud.sicken("i-1")
        await anyio.sleep(60)
        yield scaler


@asynccontextmanager
async def doomed() -> AsyncIterator[Taskscaler]:
    """The cloud announced to take it away; one of its jobs will be done by then."""
    cloud = FakeCloud(capabilities=NOTICES)
    async with scaling(cloud, capacity_per_instance=2, max_instances=1) as scaler:
        short = await scaler.acquire_lease("short", expected_duration=60)
        await scaler.acquire_lease("long")
        cloud.notice(short.instance, in_seconds=120)
        await anyio.sleep(5)
        yield scaler


@asynccontextmanager
async def undeletable() -> AsyncIterator[Taskscaler]:
    """The cloud says that it deletes, and does not."""
    cloud = FakeCloud()
    cloud.faults.decrease.always(DecreaseFault(ignore=True))
    async with scaling(cloud, policies=[Policy(idle_time=5)]) as scaler:
        await work(scaler, "job-1", 1)
        await anyio.sleep(150)
        yield scaler


@asynccontextmanager
async def lost() -> AsyncIterator[Taskscaler]:
    """An instance vanished under a job, which is tried again under the same key."""
    cloud = FakeCloud(boot_time=30)

    async def retry(scaler: Taskscaler) -> None:
        with pytest.raises(LeaseLost):
            await work(scaler, "job-1", 500)
        await work(scaler, "job-1", 500)

    async with scaling(cloud, update_interval=10) as scaler, anyio.create_task_group() as jobs:
        jobs.start_soon(retry, scaler)
        await anyio.sleep(40)
        cloud.vanish("i-1")
        await anyio.sleep(25)
        yield scaler
        jobs.cancel_scope.cancel()


@asynccontextmanager
async def lost_for_good() -> AsyncIterator[Taskscaler]:
    """An instance vanished under a job that is not tried again."""
    cloud = FakeCloud()
    async with scaling(cloud, update_interval=10) as scaler:
        lease = await scaler.acquire_lease("job-1")
        cloud.vanish(lease.instance)
        await lease.lost()
        await anyio.sleep(20)
        yield scaler


@asynccontextmanager
async def reserved() -> AsyncIterator[Taskscaler]:
    """Two reservations: one has a slot, the other will get one; a lease sleeps."""
    async with scaling(FakeCloud(boot_time=20), max_instances=3) as scaler:
        (await scaler.acquire_lease("sleeper")).suspend()
        await scaler.reserve("one")
        await anyio.sleep(30)
        await scaler.reserve("two")
        await anyio.sleep(10)
        yield scaler


Situation = Callable[[], AbstractAsyncContextManager[Taskscaler]]


@frozen
class Asked:
    """What is asked in a situation, and what must be among what is answered, the answer first."""

    situation: Situation
    lines: Sequence[str]
    instance: str | None = None
    key: str | None = None

    def __str__(self) -> str:
        """For the names of tests."""
        of = self.instance or self.key
        return f"{self.situation.__name__}-{of}" if of else self.situation.__name__


FAILED = "the last try to get more instances failed"

TABLE = [
    Asked(
        stock_out,
        [
            f"2 jobs wait: {FAILED} (none left in zone-a), the next in 14s",
            "in 14s: the cloud is asked for 2 instances: the backoff is over then",
        ],
    ),
    Asked(
        stock_out,
        [f"job-2 waits for a slot for 45s, as number 2 of 2: 2 jobs wait: {FAILED} (none left in zone-a), the ne"],
        key="job-2",
    ),
    Asked(
        unfilled,
        ["1 job waits: 1 instance is on the way, asked for 42s ago; the cloud says: no m5.large in zone-a"],
    ),
    Asked(quota, [f"1 job waits: {FAILED} (the quota of 8 vCPUs is used up), the next in"]),
    Asked(
        throttled,
        [
            "3 jobs wait: scale_throttle lets no more instances be asked for now, the next in 5s; 1 instance is on",
            "in 5s: the cloud is asked for 1 instance: scale_throttle allows it then",
        ],
    ),
    Asked(at_the_ceiling, ["2 jobs wait: max_instances allows no more than 2 instances (2 ready)"]),
    Asked(
        at_the_ceiling_unfilled,
        [
            (
                "2 jobs wait: max_instances allows no more than 2 instances (1 ready, 1 asked for);"
                " the cloud says: no m5.large in zone-a"
            ),
        ],
    ),
    Asked(at_the_ceiling, ["job-4 waits for a slot for 30s, as number 2 of 2: 2 jobs wait"], key="job-4"),
    Asked(at_the_ceiling, ["job-1 holds slot 0 of i-"], key="job-1"),
    Asked(at_the_ceiling, ["job-5 is not known: it holds no slot and waits for none; did you mean `job-"], key="job-5"),
    Asked(at_the_ceiling, ["i-1 is there: job-", "1 use, 1 slot"], instance="i-1"),
    Asked(
        at_the_ceiling,
        ["i-11 is not known: it was never seen, or it is long gone; did you mean `i-1`?"],
        instance="i-11",
    ),
    Asked(at_the_clouds_ceiling, ["1 job waits: the cloud's own limit allows no more than 1 instance (1 ready)"]),
    Asked(booting, ["1 job waits: 1 instance is on the way", "pool default: 1 booting"]),
    Asked(
        booting,
        ["i-1 is booting: the cloud shows it as creating", "in 14m42s: i-1 is given up, unless ready sooner"],
        instance="i-1",
    ),
    Asked(
        not_ready,
        [
            "1 job waits: 1 instance is on the way; what keeps one from being ready: no address assigned",
            "the readiness steps of i-1 are tried again: no address assigned",
        ],
    ),
    Asked(
        not_ready,
        [
            "i-1 is not ready yet: its readiness steps have failed so far: no address assigned",
            "in 42s: i-1 is given up, unless ready sooner",
        ],
        instance="i-1",
    ),
    Asked(draining, ["no slots are handed out: the scaler is draining; 1 job still holds one"]),
    Asked(draining, ["i-1 is there: job-1 runs on it", "it gets no more work: the scaler is draining"], instance="i-1"),
    Asked(
        draining,
        ["i-2 is there: idle for 6s; nothing is given up while no slots are handed out"],
        instance="i-2",
    ),
    Asked(
        journal_fails,
        [
            "no slots are handed out: the journal cannot be written: no space left on device; 1 job still holds one",
            "nothing is asked of the cloud before what was decided is remembered: the journal cannot be written",
        ],
    ),
    Asked(
        journal_fails,
        ["job-1 is being handed slot 0 of i-1 for 30s: the journal cannot be written: no space left on device"],
        key="job-1",
    ),
    Asked(
        journal_fails,
        ["job-2 waits for a slot for 30s: no slots are handed out: the journal cannot be written"],
        key="job-2",
    ),
    Asked(
        idle,
        [
            "nobody waits; 2 slots are idle",
            "wanted: 0 in use, 0 reserved, 0 waiting, 1 to keep idle: 1 slot, 1 instance; 1 slot to spare",
            "in 39s: i-1 is given up: not needed, and then idle for 1m (idle_time)",
        ],
    ),
    Asked(
        idle,
        ["i-1 is there: idle for 21s, and given up in 39s: not needed, and then idle for 1m (idle_time)"],
        instance="i-1",
    ),
    Asked(
        idle,
        ["i-2 is there: idle for 20s, but needed: of 2 free slots 1 to be kept idle (idle_count), and others go"],
        instance="i-2",
    ),
    Asked(nothing_to_do, ["nobody waits, and no slot is idle", "slots: none", "in 54s: the cloud is checked"]),
    Asked(
        before_eight,
        [
            "nobody waits, and no slot is idle",
            "in 8h46m: the policy changes: idle_count 3, idle_time 20m from 08:00 (Europe/Berlin)",
            "in 8h46m: the cloud is asked for 3 instances: for the policy that holds then",
        ],
    ),
    Asked(
        exhausted,
        ["1 job waits: max_instances allows no more than 1 instance (1 ready)", "1 acquired, 1 unavailable"],
    ),
    Asked(
        exhausted,
        [
            "i-1 is there: job-1 runs on it, and it is given up once it is free",
            "it gets no more work: it is used up",
            "2 of 2 uses, 2 slots",
        ],
        instance="i-1",
    ),
    Asked(unhealthy, ["nobody waits, and no slot is idle", "slots: 1 acquired, 1 unhealthy"]),
    Asked(
        unhealthy,
        [
            "i-1 is there: job-1 runs on it, and it is given up once it is free",
            "it gets no more work: its heartbeats fail: instance i-1 is not healthy: it does not answer",
        ],
        instance="i-1",
    ),
    Asked(
        doomed,
        [
            "nobody waits, and no slot is idle",
            "in 1m25s: long on i-1 is broken, unless done sooner: preemption announced",
            "in 1m55s: the cloud takes i-1 away: preemption announced",
        ],
    ),
    Asked(
        doomed,
        [
            "i-1 is there: short and long run on it, and it is given up once it is free",
            "it gets no more work: preemption announced",
            "in 1m25s: long on i-1 is broken, unless done sooner: preemption announced",
        ],
        instance="i-1",
    ),
    Asked(doomed, ["long holds slot 1 of i-1 for 5s", "in 1m25s: long on i-1 is broken"], key="long"),
    Asked(
        undeletable,
        [
            "i-1 is being removed: not needed; its deletion was asked for 3 times, last 25s ago, without effect so",
            "in 35s: the deletion of i-1 is requested again, unless gone sooner",
        ],
        instance="i-1",
    ),
    Asked(
        lost,
        ["job-1 waits for a slot for 25s: 1 job waits: 1 ins", "it lost slot 0 of i-1 25s ago: the cloud no longer"],
        key="job-1",
    ),
    Asked(lost, ["i-1 is gone: the cloud no longer shows it", "it went 25s ago"], instance="i-1"),
    Asked(
        lost_for_good,
        ["job-1 lost slot 0 of i-1 20s ago: the cloud no longer shows it; nobody has asked for a slot under this key"],
        key="job-1",
    ),
    Asked(reserved, ["1 reservation waits: 1 instance is on the way", "slots: 1 suspended, 1 reserved"]),
    Asked(reserved, ["one has a reservation for 40s: a slot is kept for it"], key="one"),
    Asked(reserved, ["two has a reservation for 10s: 1 reservation waits: 1 instance is on the way"], key="two"),
    Asked(reserved, ["sleeper sleeps in slot 0 of i-1 for 40s"], key="sleeper"),
    Asked(reserved, ["i-1 is there: sleeper sleeps on it", "sleeper sleeps in slot 0 for 40s"], instance="i-1"),
]


async def explain(scaler: Taskscaler, asked: Asked) -> Explanation | InstanceExplanation | KeyExplanation:
    """Ask."""
    if asked.instance is not None:
        return await scaler.explain(instance=asked.instance)
    if asked.key is not None:
        return await scaler.explain(key=asked.key)
    return await scaler.explain()


@pytest.mark.parametrize("asked", TABLE, ids=str)
async def test_what_a_person_is_told(asked: Asked) -> None:
    """The answer first, and below it, in order, what matters most; all of it is JSON too."""
    async with asked.situation() as scaler:
        explanation = await explain(scaler, asked)
    said = str(explanation).splitlines()
    assert said[0].startswith(asked.lines[0])
    for line in asked.lines[1:]:
        assert any(line in each for each in said[1:]), (line, said)
    assert json.loads(json.dumps(explanation.as_dict(), allow_nan=False))["answer"] == said[0]


async def test_one_thing_is_asked_at_a_time() -> None:
    """An instance and a key at once are refused."""
    async with scaling(FakeCloud()) as scaler:
        with pytest.raises(ValueError, match="not both"):
            await scaler.explain(instance="i-1", key="job-1")  # type: ignore[call-overload]


async def test_what_is_foreseen_comes_true() -> None:
    """An idle instance is there until the moment that was foreseen, and not after."""
    cloud = FakeCloud()
    async with scaling(cloud, policies=[Policy(idle_time=100)]) as scaler:
        await work(scaler, "job", 10)
        await anyio.sleep(30)
        (given_up,) = (each for each in (await scaler.explain(instance="i-1")).next if each.what is Next.GIVE_UP)
        await anyio.sleep(given_up.after - 0.1)
        assert (await scaler.explain(instance="i-1")).state == "running"
        await anyio.sleep(0.2)
        assert (await scaler.explain(instance="i-1")).state in {"deleting", "gone"}


async def test_where_pools_use_the_same_ids_both_can_be_asked_for() -> None:
    """By the pool's name before the id."""
    groups = [FakeGroup(FakeCloud(identity=name)) for name in ("here", "there")]
    pools = [Pool(group, dial=group.dial, name=group.cloud.identity, max_instances=1) for group in groups]
    async with Taskscaler(pools, clock=virtual_clock()) as scaler, working(scaler, "job-1", "job-2", "job-3"):
        await anyio.sleep(10)
        assert [(await scaler.explain(instance=f"{pool.name}/i-1")).pool for pool in pools] == ["here", "there"]
        assert (await scaler.explain()).answer == (
            "1 job waits: pool here: max_instances allows no more than 1 instance (1 ready);"
            " pool there: max_instances allows no more than 1 instance (1 ready)"
        )


async def test_who_only_observes_is_told_what_would_happen() -> None:
    """What is to spare would go at once; looking goes on."""
    cloud = FakeCloud()
    cloud.launch()
    group = FakeGroup(cloud)
    async with Taskscaler(Pool(group, dial=group.dial), clock=virtual_clock(), observe_only=True) as scaler:
        await anyio.sleep(5)
        said = str(await scaler.explain())
    assert "no slots are handed out: observe-only" in said
    assert "now (only observed, not done): i-1 is given up: not needed" in said
    assert "in 55s: the cloud is checked" in said


# --- the schema, as the page has it -----------------------------------------------------------------------

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "explain-json.md"


def documented(heading: str) -> set[str]:
    """The first column of the tables under a heading, up to the next."""
    _, _, after = PAGE.read_text().partition(f"# {heading}\n")
    assert after, f"{PAGE.name} has no heading {heading!r}"
    section = re.split(r"^#", after, maxsplit=1, flags=re.MULTILINE)[0]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("|")]
    return {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}


async def test_the_page_has_every_key() -> None:
    """What is in the JSON is documented, and what is documented is in the JSON."""
    async with idle() as scaler:
        overall = (await scaler.explain()).as_dict()
        instance = (await scaler.explain(instance="i-1")).as_dict()
        key = (await scaler.explain(key="job-1")).as_dict()
    kinds = {kind.value for kind in Next}
    assert documented("`scaler`: `scaler.explain()`") == overall.keys()
    assert documented("A pool") == one_of(overall["pools"]).keys()
    assert documented("A decision") == one_of(overall["decisions"]).keys()
    assert documented("What comes next") == one_of(overall["next"]).keys() | kinds
    assert documented("`instance`: `scaler.explain(instance=…)`") == instance.keys()
    assert documented("`key`: `scaler.explain(key=…)`") == key.keys()


def one_of(items: object) -> dict[str, object]:
    """The first of some, all of which have the same keys."""
    assert isinstance(items, list)
    return dict(items[0])
