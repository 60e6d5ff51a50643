"""What people are told: situations over the fake cloud in virtual time, each with the sentences that it gets."""

import json
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import anyio
import pytest
from attrs import evolve, field, frozen

from fleeting import Capability, CapacityUnavailable, ProviderError, QuotaExceeded, ScaleThrottle
from fleeting.testing import DecreaseFault, FakeCloud, FakeGroup, Fault, IncreaseFault, virtual_time
from taskscaler import Explanation, InstanceExplanation, KeyExplanation, LeaseLost, Next, Policy, Pool, Taskscaler
from tests.golden import Golden
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
    async with scaling(FakeCloud(boot_time=20), max_instances=3, reservation_throttling=False) as scaler:
        (await scaler.acquire_lease("sleeper")).suspend()
        await scaler.reserve("one")
        await anyio.sleep(30)
        await scaler.reserve("two")
        await anyio.sleep(10)
        yield scaler


@asynccontextmanager
async def only_reserved() -> AsyncIterator[Taskscaler]:
    """A reservation, and no job yet."""
    async with scaling(FakeCloud(boot_time=20), max_instances=3) as scaler:
        await scaler.reserve("one")
        await anyio.sleep(30)
        yield scaler


@asynccontextmanager
async def making_room() -> AsyncIterator[Taskscaler]:
    """Two may exist; one is in use, the other has had its one job and is going."""
    async with (
        scaling(FakeCloud(delete_time=60), max_use_count=1, max_instances=2) as scaler,
        working(scaler, "job-1"),
    ):
        await work(scaler, "job-2", 1)
        async with working(scaler, "job-3", "job-4"):
            await anyio.sleep(5)
            yield scaler


@asynccontextmanager
async def retained() -> AsyncIterator[Taskscaler]:
    """An idle instance that an operator wants to look at."""
    async with scaling(FakeCloud()) as scaler:
        async with scaler.acquire("job-1") as lease:
            await scaler.retain(lease.instance, "ticket 7")
        await anyio.sleep(30)
        yield scaler


Situation = Callable[[], AbstractAsyncContextManager[Taskscaler]]


@frozen
class Asked:
    """What is asked in a situation, and what must be in the answer; its sentences are in tests/golden."""

    situation: Situation
    has: Mapping[str, object]
    """By the path in the JSON, such as ``pools.0.limited_by``."""

    next: Mapping[str, int] = field(factory=dict)
    """What is foreseen among other things, and in how many seconds."""

    instance: str | None = None
    key: str | None = None

    def __str__(self) -> str:
        """For the names of tests."""
        of = self.instance or self.key
        return f"{self.situation.__name__}-{of}" if of else self.situation.__name__


TABLE = [
    Asked(
        stock_out,
        {"capacity.pending": 2, "pools.0.limited_by": "backoff", "pools.0.backoff": "none left in zone-a"},
        {"ask": 14},
    ),
    Asked(stock_out, {"state": "waiting", "place": 2, "queue": 2}, {"ask": 14}, key="job-2"),
    Asked(unfilled, {"pools.0.coming": 1, "pools.0.problems.0": "no m5.large in zone-a"}),
    Asked(quota, {"pools.0.limited_by": "backoff", "pools.0.backoff": "the quota of 8 vCPUs is used up"}),
    Asked(throttled, {"capacity.pending": 3, "pools.0.limited_by": "scale_throttle", "pools.0.coming": 1}, {"ask": 5}),
    Asked(
        at_the_ceiling,
        {
            "capacity.pending": 2,
            "pools.0.limited_by": "max_instances",
            "pools.0.ceiling": 2,
            "pools.0.instances.running": 2,
        },
    ),
    Asked(
        at_the_ceiling_unfilled,
        {"pools.0.limited_by": "max_instances", "pools.0.coming": 1, "pools.0.problems.0": "no m5.large in zone-a"},
    ),
    Asked(at_the_ceiling, {"state": "waiting", "place": 2, "queue": 2}, key="job-4"),
    Asked(at_the_ceiling, {"state": "holding", "slot": 0}, key="job-1"),
    Asked(at_the_ceiling, {"state": "unknown", "instance": None}, key="job-5"),
    Asked(at_the_ceiling, {"state": "running", "uses": 1, "slots": 1}, instance="i-1"),
    Asked(at_the_ceiling, {"state": "unknown"}, instance="i-11"),
    Asked(at_the_clouds_ceiling, {"pools.0.limited_by": "the cloud's own limit", "pools.0.ceiling": 1}),
    Asked(booting, {"pools.0.coming": 1, "pools.0.instances.creating": 1}),
    Asked(booting, {"state": "creating"}, {"overdue": 882}, instance="i-1"),
    Asked(not_ready, {"pools.0.coming": 1, "pools.0.troubles.0": "no address assigned"}),
    Asked(not_ready, {"state": "pending"}, {"overdue": 42}, instance="i-1"),
    Asked(draining, {"shut": "the scaler is draining", "capacity.acquired": 1}),
    Asked(draining, {"state": "running", "why_no_work": "the scaler is draining"}, instance="i-1"),
    Asked(draining, {"state": "running", "jobs": []}, instance="i-2"),
    Asked(
        journal_fails,
        {
            "shut": "the journal cannot be written: no space left on device",
            "journal_error": "the journal cannot be written: no space left on device",
        },
    ),
    Asked(journal_fails, {"state": "assigned", "instance": "i-1", "slot": 0}, key="job-1"),
    Asked(journal_fails, {"state": "waiting"}, key="job-2"),
    Asked(idle, {"capacity.idle": 2, "decision.idle_target": 1, "decision.spare": 1}, {"give_up": 40}),
    Asked(idle, {"state": "running", "why_no_work": ""}, {"give_up": 40}, instance="i-1"),
    Asked(idle, {"state": "running", "why_no_work": ""}, instance="i-2"),
    Asked(nothing_to_do, {"capacity.idle": 0, "capacity.acquired": 0}, {"look": 54}),
    Asked(before_eight, {"policy.idle_count": 0}, {"policy": 31595, "ask": 31595}),
    Asked(exhausted, {"pools.0.limited_by": "max_instances", "capacity.acquired": 1, "capacity.unavailable": 1}),
    Asked(exhausted, {"state": "running", "uses": 2, "max_uses": 2, "slots": 2, "jobs.0.key": "job-1"}, instance="i-1"),
    Asked(unhealthy, {"capacity.acquired": 1, "capacity.unhealthy": 1}),
    Asked(unhealthy, {"state": "running", "jobs.0.key": "job-1"}, instance="i-1"),
    Asked(doomed, {"capacity.acquired": 2}, {"break": 85, "taken": 115}),
    Asked(
        doomed,
        {"jobs.0.key": "short", "jobs.1.key": "long", "why_no_work": "preemption announced"},
        {"break": 85},
        instance="i-1",
    ),
    Asked(doomed, {"state": "holding", "slot": 1}, {"break": 85}, key="long"),
    Asked(undeletable, {"state": "deleting"}, {"delete": 35}, instance="i-1"),
    Asked(lost, {"state": "waiting"}, key="job-1"),
    Asked(lost, {"state": "gone", "why": "the cloud no longer shows it"}, instance="i-1"),
    Asked(lost_for_good, {"state": "lost", "instance": "i-1", "slot": 0}, key="job-1"),
    Asked(reserved, {"capacity.promised": 1, "capacity.reserved": 1, "capacity.suspended": 1, "pools.0.coming": 1}),
    Asked(reserved, {"state": "reserved", "place": None}, key="one"),
    Asked(only_reserved, {"capacity.promised": 1, "pools.0.coming": 0, "decision.reserved": 0}),
    Asked(reserved, {"state": "reserved", "place": 1}, key="two"),
    Asked(reserved, {"state": "suspended", "instance": "i-1", "slot": 0}, key="sleeper"),
    Asked(reserved, {"state": "running", "jobs.0.suspended": True}, instance="i-1"),
    Asked(
        making_room,
        {
            "capacity.pending": 2,
            "pools.0.limited_by": "max_instances",
            "pools.0.instances": {"running": 1, "deleting": 1},
        },
    ),
    Asked(retained, {"state": "running", "holds": "retained (ticket 7)"}, instance="i-1"),
]


async def explain(scaler: Taskscaler, asked: Asked) -> Explanation | InstanceExplanation | KeyExplanation:
    """Ask."""
    if asked.instance is not None:
        return await scaler.explain(instance=asked.instance)
    if asked.key is not None:
        return await scaler.explain(key=asked.key)
    return await scaler.explain()


def found(data: object, path: str) -> object:
    """What the JSON has under a path."""
    for step in path.split("."):
        data = data[int(step)] if isinstance(data, list) else data[step]  # type: ignore[index]
    return data


@pytest.mark.parametrize("asked", TABLE, ids=str)
async def test_what_a_person_is_told(asked: Asked, golden: Golden, anyio_backend_name: str) -> None:
    """The answer first, and below it, in order, what matters most; all of it is JSON too."""
    async with asked.situation() as scaler:
        explanation = await explain(scaler, asked)
    data = json.loads(json.dumps(explanation.as_dict(), allow_nan=False))
    assert {path: found(data, path) for path in asked.has} == asked.has
    foreseen = [(each["what"], round(each["after"])) for each in data["next"]]
    assert set(foreseen) >= set(asked.next.items())
    said = str(explanation)
    assert said.splitlines()[0] == data["answer"]
    if anyio_backend_name == "asyncio":  # in whose order things happen each time; trio throws a die
        golden(f"explain/{asked}", said)


def test_the_golden_file_has_no_other_explanations(golden: Golden) -> None:
    """What is no longer asked is taken out."""
    golden.has_only("explain/", ["two pools", "observing", *map(str, TABLE)])


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


async def test_where_pools_use_the_same_ids_both_can_be_asked_for(golden: Golden) -> None:
    """By the pool's name before the id."""
    groups = [FakeGroup(FakeCloud(identity=name)) for name in ("here", "there")]
    pools = [Pool(group, dial=group.dial, name=group.cloud.identity, max_instances=1) for group in groups]
    async with Taskscaler(pools, clock=virtual_clock()) as scaler, working(scaler, "job-1", "job-2", "job-3"):
        await anyio.sleep(10)
        assert [(await scaler.explain(instance=f"{pool.name}/i-1")).pool for pool in pools] == ["here", "there"]
        explanation = await scaler.explain()
        assert [(pool.name, pool.limited_by) for pool in explanation.pools] == [
            ("here", "max_instances"),
            ("there", "max_instances"),
        ]
        golden("explain/two pools", explanation.answer)


async def test_who_only_observes_is_told_what_would_happen(golden: Golden) -> None:
    """What is to spare would go at once; looking goes on."""
    cloud = FakeCloud()
    cloud.launch()
    group = FakeGroup(cloud)
    async with Taskscaler(Pool(group, dial=group.dial), clock=virtual_clock(), observe_only=True) as scaler:
        await anyio.sleep(5)
        explanation = await scaler.explain()
    assert explanation.shut.startswith("observe_only")
    assert [(each.what, round(each.after), each.observed) for each in explanation.next] == [
        (Next.GIVE_UP, 0, True),
        (Next.LOOK, 55, False),
    ]
    golden("explain/observing", str(explanation))


# --- the guide --------------------------------------------------------------------------------------------

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "why-did-it-not-scale.md"

SHOWN = (
    "explain/at_the_ceiling",
    "explain/stock_out",
    "explain/before_eight",
    "explain/idle-i-1",
    "explain/at_the_ceiling-job-4",
    "explain_run/over",
    "explain_run/over: a job",
    "explain_run/interrupted: a job with steps",
    "explain_run/interrupted: a job that ran out of memory",
    "explain_run/over: a lost instance",
)
"""What its blocks are, in their order."""


def test_the_guide_shows_what_is_printed(golden: Golden) -> None:
    """Its blocks are answers of these tests; the other answers that it explains begin one of them, up to a ``…``."""
    blocks = [each.removeprefix("\n") for each in GUIDE.read_text().split("\n```")[1::2] if each.startswith("\n")]
    assert [f"{each}\n" for each in blocks if not each.startswith("taskscaler ")] == [*map(golden.text, SHOWN)]
    answers = [line for asked in TABLE for line in golden.text(f"explain/{asked}").splitlines()]
    answers.append(golden.text("explain/two pools"))
    messages = re.findall(r"^\| `(.+?)` \|", GUIDE.read_text(), re.MULTILINE)
    assert [each for each in messages if not any(line.startswith(each.split("…")[0]) for line in answers)] == []


# --- the schema, as the page has it -----------------------------------------------------------------------

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "explain-json.md"


async def test_who_is_not_ready_yet_is_named_or_counted() -> None:
    """A sentence for each reason; one instance is named, several are counted."""
    async with booting() as scaler:
        (pool,) = (await scaler.explain()).pools
    pool = evolve(pool, troubles={"no address": ["i-1", "i-3"], "login refused": ["i-2"]})
    assert [*pool.unready()] == ["2 instances are not ready yet: no address", "i-2 is not ready yet: login refused"]


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
