"""A scaler that only observes: it decides and explains as if it managed, and nothing of it reaches the cloud.

Explanations are in tests/golden.
"""

import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from attrs import define, evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from fleeting import Capability, LoopClock, MemoryJournal, NoticeKind, Observation, State
from fleeting.core import Step, messages
from fleeting.testing import FakeCloud, FakeGroup, virtual_time
from taskscaler import InstanceEvent, NoCapacity, Policy, Pool, PoolSettings, ScalerEvent, Taskscaler
from taskscaler.core._mediator import Core
from tests.golden import Golden
from tests.strategies import EPOCH, a_plan
from tests.taskscaler.strategies import policies, pool_settings

pytestmark = pytest.mark.anyio
anyio_backend = virtual_time

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "observe-only.md"


Pin = Callable[[str, object], None]


@pytest.fixture
def pin(golden: Golden, anyio_backend_name: str) -> Pin:
    """Compare an explanation with tests/golden, under a name; on asyncio alone, where tasks run in the same order."""

    def pin(name: str, explanation: object) -> None:
        if anyio_backend_name == "asyncio":
            golden(f"observing/{name}", str(explanation))

    return pin


def test_the_golden_file_has_nothing_else_of_this(golden: Golden) -> None:
    """What is no longer said is taken out."""
    golden.has_only("observing/", re.findall(r'[^"]\bpin\("([^"]+)"', Path(__file__).read_text()))


# --- whatever happens, nothing is done ----------------------------------------------------------------------

IDS = st.sampled_from(["i-1", "i-2", "i-3"])

FACTS = st.one_of(
    st.builds(messages.Updated, st.builds(Observation.of, st.dictionaries(IDS, st.sampled_from(State)))),
    st.builds(messages.UpdateFailed, st.just("no answer")),
    st.builds(messages.Increased, st.just("intent-1-1"), st.integers(0, 3)),
    st.builds(messages.Decreased, st.tuples(IDS), st.tuples(IDS)),
    st.builds(messages.Withdrawn, st.integers(1, 3), st.integers(0, 3)),
    st.builds(messages.Prepared, IDS),
    st.builds(messages.PrepareFailed, IDS, st.just("it does not boot"), st.booleans()),
    st.builds(messages.HeartbeatFailed, IDS, st.just("no answer")),
    st.builds(messages.Noticed, IDS, st.sampled_from([EPOCH, EPOCH + 200]), st.sampled_from(NoticeKind)),
    st.builds(messages.ConnectionDied, IDS, st.just("reset by peer")),
)

DEMANDS = st.sampled_from(["acquire", "reserve", "mark_suspect", "remove all", "break all", "journal fails"])

WAITS = st.sampled_from([0.0, 0.01, 5.0, 60.0, 1000.0])


@define
class Observer:
    """A core that observes, and the time."""

    core: Core
    now: float = EPOCH

    @classmethod
    def of(cls, pools: Sequence[PoolSettings], policy: Policy) -> "Observer":
        """One that has just begun."""
        plans = {pool.name: a_plan(pool, withdraws=True, observing=True) for pool in pools}
        return cls(Core(pools, plans, [policy], {}, EPOCH, observing=True))

    def tell(self, fact: messages.Fact) -> None:
        """A fact about the first pool."""
        self.check(self.core.handle(next(iter(self.core.pools)), fact, self.now))

    def demand(self, what: str) -> None:
        """Somebody asks for what is not to be had, or for an end."""
        core, now = self.core, self.now
        match what:
            case "acquire":
                with pytest.raises(NoCapacity, match="observe_only"):
                    core.acquire("job", now)
            case "reserve":
                with pytest.raises(NoCapacity, match="observe_only") as caught:
                    core.reserve("job", now)
                assert not caught.value.possible
            case "mark_suspect":
                for node in core.ledger.nodes.values():
                    self.check(core.mark_suspect(node.pool, node.instance, "it could not be reached", now))
            case "remove all":
                self.check(core.remove_all(now))
            case "break all":
                self.check(core.break_all("the end", now, all_too=True))
            case "journal fails":
                self.check(core.journal_failed("disk full", now))
                self.check(core.journal_recovered(now))

    def wait(self, seconds: float) -> None:
        """Whatever is due in that time is done when it is due."""
        until = self.now + seconds
        while True:
            self.check(self.core.tick(self.now))
            wake_at = self.core.wake_at
            assert wake_at is None or wake_at > self.now, "a busy loop"
            if wake_at is None or wake_at > until:
                break
            self.now = wake_at
        self.now = until

    def check(self, step: Step) -> None:
        """Nothing is done but to look, and nothing is written down."""
        assert not step.writes
        assert {type(action) for action in step.actions} <= {messages.Update}


@settings(max_examples=300)
@given(pool_settings(), policies, st.lists(FACTS | DEMANDS | WAITS))
def test_whatever_comes_an_observing_core_does_nothing_but_look(
    pools: list[PoolSettings],
    policy: Policy,
    story: list[messages.Fact | str | float],
) -> None:
    """No fact, no demand and no time that passes makes it change anything, or write anything down."""
    observer = Observer.of(pools, policy)
    for event in story:
        match event:
            case float():
                observer.wait(event)
            case str():
                observer.demand(event)
            case _:
                observer.tell(event)
    observer.wait(0.0)
    assert all(decision.observed for decision in observer.core.decisions)


@given(pool_settings(), policies, st.lists(st.dictionaries(IDS, st.sampled_from(State)), min_size=1), WAITS)
def test_what_runs_counts_as_usable_whatever_was_decided_before(
    pools: list[PoolSettings], policy: Policy, views: list[dict[str, State]], wait: float
) -> None:
    """What was decided was not carried out: an instance that runs in all views offers all of its slots at last."""
    observer = Observer.of([evolve(pool, max_instance_age=0.0) for pool in pools], policy)
    for view in views:
        observer.tell(messages.Updated(Observation.of({**view, "i-0": State.RUNNING})))
        observer.wait(wait)
    node = observer.core.ledger.nodes[f"{pools[0].name}/i-0"]
    assert node.usable == observer.core.ledger.pools[pools[0].name].fresh


# --- what it says -------------------------------------------------------------------------------------------


@asynccontextmanager
async def observing(
    cloud: FakeCloud, *, policies: Sequence[Policy] = (), **settings: object
) -> AsyncIterator[Taskscaler]:
    """A scaler that only looks at the cloud, which must be asked for nothing else."""
    group = FakeGroup(cloud)
    pool = Pool(group, dial=group.dial, **settings)  # type: ignore[arg-type]
    clock = LoopClock(epoch=EPOCH + anyio.current_time())
    before = len(cloud.calls)
    async with Taskscaler(
        pool, policies=policies, clock=clock, observe_only=True, delete_instances_on_shutdown=True
    ) as scaler:
        yield scaler
    assert {call.method for call in cloud.calls[before:]} == {"init", "update", "shutdown"}
    assert not cloud.commands


async def test_it_says_from_the_first_moment_what_it_would_ask_for(pin: Pin) -> None:
    """Three idle slots are wanted, and one instance is there: two more would be asked for, and are not."""
    cloud = FakeCloud()
    cloud.launch(1)
    async with observing(cloud, policies=[Policy(idle_count=3)]) as scaler:
        said = str(await scaler.explain())
        assert "would request 2" in said
        pin("at first", said)
        assert (await scaler.capacity()).idle == 1
        await anyio.sleep(3600)
        assert "would request 2" in str(await scaler.explain())
    assert len(cloud.alive) == 1


async def test_it_says_what_it_would_remove(pin: Pin) -> None:
    """Of two idle instances neither is needed, once their idle time has passed; they stay, and it goes on saying so."""
    cloud = FakeCloud()
    cloud.launch(2)
    async with observing(cloud, policies=[Policy(idle_time=100)]) as scaler:
        assert (await scaler.explain()).decision.removals == ()
        await anyio.sleep(101)
        said = str(await scaler.explain())
        assert "would remove i-1, i-2" in said
        pin("not needed", said)
        await anyio.sleep(3600)
        said = str(await scaler.explain())
        assert "would remove i-1, i-2" in said
        pin("not needed, an hour later", said)
        first, second = [view.why for view in await scaler.instances()]
        assert first == second
        assert first.startswith("would be removed: ")
        pin("not needed: an instance", first)
        await scaler.configure(policies=[Policy(idle_count=3)])
        await anyio.sleep(1)
        said = str(await scaler.explain())
        assert "would request 1" in said
        assert "would remove" not in said
        pin("needed again", said)
        assert [view.why for view in await scaler.instances()] == ["", ""]


async def test_what_has_failed_is_of_no_use(pin: Pin) -> None:
    """The cloud shows an instance as failed: another would be asked for, and that one removed."""
    cloud = FakeCloud(boot_time=10)
    cloud.launch(2)
    cloud.fail("i-1")
    async with observing(cloud, policies=[Policy(idle_count=2)], backoff_initial=1.0, max_instances=2) as scaler:
        await anyio.sleep(61)
        explanation = str(await scaler.explain())
        assert "1 unusable, 1 ready, at most 2" in explanation
        assert "would request none: max_instances" in explanation
        assert "would remove i-1: " in explanation
        pin("failed", explanation)


async def test_the_guide_shows_what_is_explained() -> None:
    """Five idle slots are wanted, two instances are there, and one more may be had."""
    cloud = FakeCloud()
    cloud.launch(2)
    async with observing(cloud, policies=[Policy(idle_count=5)], max_instances=3) as scaler:
        assert f"```\n{await scaler.explain()}\n```" in GUIDE.read_text()


async def test_who_asks_for_a_slot_is_refused(pin: Pin) -> None:
    """There is a slot; but it is not to be had here, now or later."""
    cloud = FakeCloud()
    cloud.launch(1)
    async with observing(cloud) as scaler:
        with pytest.raises(NoCapacity, match="observe_only") as caught:
            await scaler.acquire_lease("job")
        assert not caught.value.possible
        with pytest.raises(NoCapacity, match="observe_only"):
            await scaler.reserve("job")
        said = str(await scaler.explain())
        assert "observe_only" in said
        pin("no slots", said)


async def test_it_looks_on_while_another_manages(caplog: pytest.LogCaptureFixture) -> None:
    """It sees the manager's instances come and go, neither hinders it, nor takes what goes for lost."""
    cloud = FakeCloud(boot_time=10, capabilities=frozenset())
    group = FakeGroup(cloud)
    manager = Taskscaler(Pool(group, dial=group.dial), journal=MemoryJournal(), clock=LoopClock(epoch=EPOCH))
    async with manager:
        looking_on, told = Pool(FakeGroup(cloud), update_interval=5.0), list[ScalerEvent]()
        clock = LoopClock(epoch=EPOCH)
        observer = Taskscaler(looking_on, observe_only=True, clock=clock, observers=[told.append])
        async with observer:
            async with manager.acquire("job"):
                await anyio.sleep(6)
                assert [view.id for view in await observer.instances()] == list(cloud.alive)
            await anyio.sleep(20)
            assert not cloud.alive
            assert not await observer.instances()
    assert "instance_lost" not in caplog.text
    ends = [event for event in told if isinstance(event, InstanceEvent) and event.state == "gone"]
    assert [event.lost for event in ends] == [False]


async def test_notices_are_left_to_the_manager() -> None:
    """A cloud may give each notice to one listener only: who observes does not listen."""
    cloud = FakeCloud(capabilities=frozenset({Capability.NOTICES}))
    (instance,) = cloud.launch(1)
    async with observing(cloud, policies=[Policy(idle_time=1e9)]) as scaler:
        cloud.notice(instance, in_seconds=100)
        await anyio.sleep(1)
        assert (await scaler.instances())[0].why == ""


def test_a_journal_is_refused() -> None:
    """It is the manager's, with the lock that comes with it."""
    with pytest.raises(ValueError, match="journal: expected None with observe_only"):
        Taskscaler(Pool(FakeGroup()), journal=MemoryJournal(), observe_only=True)
