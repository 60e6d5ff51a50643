"""What users of comparable autoscalers lost machines, jobs or money by, each in a story where nothing else happens."""

from collections.abc import Iterator

import pytest
from attrs import evolve

from fleeting import Capability
from fleeting.core import Instance, Plan, Stage
from fleeting.events import Access, Loss
from taskscaler import Policy
from taskscaler._types import PoolSettings
from taskscaler.core._ledger import Ledger
from taskscaler.core._mediator import Core
from taskscaler.core._slots import Node
from tests.chaos.growth import Demand, Growth, most_wanted
from tests.chaos.play import Result, play
from tests.chaos.story import Job, Story, Trouble
from tests.chaos.troubles import PEER_NEEDS, RACES

POOL = PoolSettings(
    name="pool",
    capacity_per_instance=2,
    max_instances=6,
    update_interval=10.0,
    update_interval_when_expecting=2.0,
    deletion_retry_interval=10.0,
    intent_timeout=40.0,
    instance_ready_timeout=60.0,
    backoff_initial=1.0,
    backoff_cap=5.0,
)

STORY = Story(
    seed=1,
    pool=POOL,
    policy=Policy(idle_count=1, idle_time=8.0),
    jobs=tuple(Job(key=f"job-{number}", at=at, duration=9.0) for number, at in enumerate([0, 0, 0, 1, 30, 30, 30, 90])),
    cloud={"boot_time": 2.0, "appear_after": 1.0, "delete_time": 2.0, "latency": {"update": 0.1, "decrease": 1.0}},
    least_faults=0,
)


def played(kind: str, *, named: bool, backend: str = "asyncio") -> Iterator[Result]:
    """The story with one trouble, which meets it as it begins, works and has a lull."""
    capabilities = frozenset({Capability.WITHDRAW, *([Capability.NAMED_CREATE] if named else [])})
    for at in (0.0, 12.0, 28.0):
        yield play(
            evolve(
                STORY,
                troubles=(Trouble(at=at, kind=kind),),
                backend=backend,
                commit_time=0.3,
                cloud={**STORY.cloud, "capabilities": capabilities},
            )
        )


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("named", [True, False], ids=["named", "unnamed"])
@pytest.mark.parametrize("kind", PEER_NEEDS)
def test_it_breaks_no_promise(kind: str, backend: str, named: bool) -> None:  # noqa: FBT001  (a parameter of pytest's)
    """All jobs end, nothing above a ceiling or unwanted is asked for, and nobody works on what is being removed."""
    happened = 0
    for result in played(kind, named=named, backend=backend):
        assert not result.violations
        assert result.jobs >= len(STORY.jobs)
        happened += result.faults[kind]
    assert happened >= 2, "there was nothing that it could happen to"


@pytest.mark.usefixtures("quiet")
def test_growth_that_is_forgotten_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A burst that is over, and the next one: who counts only what was answered asks twice for the same."""

    def coming(plan: Plan) -> int:
        answered = sum(intent.outstanding for intent in plan.intents if not intent.in_flight)
        return answered + plan._table.count(Stage.WAITING) + plan._table.count(Stage.PREPARING)

    monkeypatch.setattr(Plan, "coming", property(coming))
    said = [each for result in played("burst over before growth answers", named=True) for each in result.violations]
    assert any("would do" in each for each in said), said


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("kind", RACES)
def test_a_slot_of_what_is_removed_is_seen(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job comes just as an idle instance is removed: who still hands out its slots deletes it under the job."""

    def stay_open(_: Ledger, node: Node) -> None:
        node.pool_slots.to_remove.pop(node.instance, None)

    announce = Plan._announce_loss

    def tell_of_losses_only(plan: Plan, known: Instance, loss: Loss | None) -> None:
        if loss is not None:
            announce(plan, known, loss)

    sync = Core._sync

    def see_nothing_leave(core: Core, pool: str, known: Instance, node: Node | None, now: float) -> None:
        if known.availability.access is not Access.LEAVING:
            sync(core, pool, known, node, now)

    monkeypatch.setattr(Ledger, "retire", stay_open)
    monkeypatch.setattr(Plan, "_announce_loss", tell_of_losses_only)
    monkeypatch.setattr(Core, "_sync", see_nothing_leave)
    said = [each for result in played(kind, named=True) for each in result.violations]
    assert any("on which" in each or "whose deletion was asked for" in each for each in said), said


def test_demand_is_remembered_at_its_peak() -> None:
    """What was asked for while many waited may still be owed when they are gone."""
    demand = Demand()
    for now, by in ((1.0, 5), (2.0, -3), (3.0, 1)):
        demand.change(now, by)
    assert [demand.peak(since) for since in (0.0, 1.0, 1.5, 2.0, 2.5, 3.0, 9.0)] == [5, 5, 5, 3, 3, 3, 3]


def test_who_was_told_to_wait_is_hasty_until_then() -> None:
    """But for what was on its way already; of several waits the longest counts."""
    growth = Growth()
    growth.told_to_wait(1, 100.0, 20.0)
    growth.told_to_wait(1, 101.0, 5.0)
    assert [growth.hasty(1, now, 1.0) for now in (101.5, 103.0, 119.0, 120.0)] == [0.0, 120.0, 120.0, 0.0]
    assert not growth.hasty(2, 103.0, 1.0)


def test_what_so_many_jobs_can_want() -> None:
    """An instance has as many slots as it may be used, if that is less."""
    policy = Policy(idle_count=2, scale_factor=0.5, scale_factor_limit=3)
    assert most_wanted(policy, evolve(POOL, capacity_per_instance=4, max_use_count=2), 4) == 5
    assert most_wanted(policy, evolve(POOL, capacity_per_instance=4), 4) == 3
