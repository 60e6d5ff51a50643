"""Which instances of dead managers are removed, and how: the policy, and what comes of it at a cloud."""

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from math import inf
from pathlib import Path
from random import Random

import anyio
import pytest
from attrs import evolve, field, frozen
from hypothesis import given
from hypothesis import strategies as st

from fleeting import Capability, ConnectorConfig, Observed, ProviderError, Provisioner, State
from fleeting.plugins import Mark
from fleeting.runtime import MARK_LASTS
from fleeting.testing import DecreaseFault, FakeCloud, FakeGroup, Fault, virtual_time
from taskscaler.reap import Known, Outcome, Reaped, Reaper, ReapPolicy, Survey, Target, Verdict, judge
from tests.taskscaler.scaling import virtual_clock

anyio_backend = virtual_time
HOUR = 3600.0
NOW = 1e9

# --- the policy ------------------------------------------------------------------------------------------

ages = st.sampled_from([-1e4, 0.0, 59.0, 60.0, 3599.0, 3600.0, 1e5])
marks = st.builds(
    Mark,
    owner=st.sampled_from(["us", "a", "b"]),
    until=st.one_of(ages.map(lambda age: NOW - age), st.just(inf)),
)
instances = st.dictionaries(
    st.sampled_from([f"i-{number}" for number in range(6)]),
    st.builds(
        Observed,
        state=st.sampled_from(State),
        created_at=st.one_of(st.none(), ages.map(lambda age: NOW - age)),
    ),
)
surveys = st.lists(
    st.builds(
        Survey,
        pool=st.uuids().map(str),
        identity=st.just("fake"),
        marks=st.lists(marks, max_size=3, unique_by=lambda mark: mark.owner),
        instances=instances,
        us=st.sampled_from(["", "us"]),
        ours=st.sets(st.sampled_from(["i-0", "i-1"])).map(frozenset),
        holder=st.sampled_from(["", "", "", "somebody (process 1)"]),
        left_alone=st.sampled_from(["", "", "", "it carries no marks"]),
    ),
    max_size=3,
)
policies = st.builds(
    ReapPolicy,
    expired_for=st.sampled_from([60.0, 3600.0]),
    at_most=st.integers(1, 8),
    unmarked=st.sampled_from([None, 60.0, 3600.0]),
)


def is_orphan(survey: Survey, instance: str, policy: ReapPolicy) -> bool:
    """Whether an instance may go, said once more and otherwise: by all that has to be so."""
    seen = survey.instances[instance]
    expiries = [mark.until for mark in survey.marks]
    old = seen.created_at is not None and policy.unmarked is not None and NOW - seen.created_at >= policy.unmarked
    return (
        not survey.left_alone
        and not survey.holder
        and instance not in survey.ours
        and seen.state not in {State.DELETING, State.DELETED}
        and not (survey.us and any(mark.owner == survey.us for mark in survey.marks))
        and (all(until <= NOW - policy.expired_for for until in expiries) if expiries else old)
    )


@given(surveys, policies)
def test_exactly_the_orphans_go_and_no_more_than_may_at_once(found: list[Survey], policy: ReapPolicy) -> None:
    """Each instance of a group that is judged gets one verdict with a reason, and the oldest of the first groups go."""
    verdicts = judge(found, policy, NOW)
    judged = [survey for survey in found if not survey.left_alone]
    places = [(survey.pool, instance) for survey in judged for instance in survey.instances]
    assert sorted((each.pool, each.instance) for each in verdicts) == sorted(places)
    assert all(each.why for each in verdicts)
    by_pool = {survey.pool: survey for survey in found}
    orphans = [each for each in verdicts if is_orphan(by_pool[each.pool], each.instance, policy)]
    assert [each for each in verdicts if each.remove] == orphans[: policy.at_most]
    for survey in judged:
        created = [each.seen.created_at for each in verdicts if each.pool == survey.pool]
        assert created == sorted(created, key=lambda at: inf if at is None else at)


@given(surveys, policies)
def test_no_instance_goes_while_a_mark_lives(found: list[Survey], policy: ReapPolicy) -> None:
    """Whoever renews its mark keeps its instances, whatever else stands on the group."""
    alive = [evolve(each, marks=[*each.marks, Mark(owner="living", until=NOW + 1)]) for each in found]
    assert not any(verdict.remove for verdict in judge(alive, policy, NOW))


@given(surveys, policies, st.sampled_from([-7 * HOUR, 12 * HOUR]))
def test_only_differences_of_times_matter(found: list[Survey], policy: ReapPolicy, shift: float) -> None:
    """All clocks set forward alike change nothing."""

    def later(survey: Survey) -> Survey:
        moved = {
            id_: evolve(seen, created_at=None if seen.created_at is None else seen.created_at + shift)
            for id_, seen in survey.instances.items()
        }
        expiries = [evolve(mark, until=mark.until + shift) for mark in survey.marks]
        return evolve(survey, instances=moved, marks=expiries)

    before, after = judge(found, policy, NOW), judge([*map(later, found)], policy, NOW + shift)
    assert [(each.instance, each.remove, each.why) for each in before] == [
        (each.instance, each.remove, each.why) for each in after
    ]


def test_a_policy_that_leaves_no_room_for_clocks_is_refused() -> None:
    """A minute is the least."""
    for short in ({"expired_for": 59.0}, {"unmarked": 0.0}, {"at_most": 0}):
        with pytest.raises(ValueError, match="must be >="):
            ReapPolicy(**short)


@pytest.mark.parametrize(
    ("marks", "state", "why"),
    [
        ([Mark(owner="a", until=NOW - 2 * HOUR)], State.RUNNING, "the mark of a expired 2h ago"),
        ([Mark(owner="a", until=NOW - 60)], State.RUNNING, "the mark of a expired only 1m ago"),
        ([Mark(owner="a", until=NOW + 60)], State.RUNNING, "a manages the group: its mark expires 1m from now"),
        ([Mark(owner="a", until=NOW + 3 * HOUR)], State.RUNNING, "its clock, or the one here, is wrong"),
        ([Mark(owner="a", until=inf)], State.RUNNING, "when the mark of a expires cannot be read"),
        ([Mark(owner="us", until=NOW - 2 * HOUR)], State.RUNNING, "this configuration's own manager"),
        ([], State.RUNNING, "nobody knows whether it is managed"),
        ([Mark(owner="a", until=NOW - 2 * HOUR)], State.DELETING, "it is deleting already"),
    ],
)
def test_each_verdict_says_why(marks: Sequence[Mark], state: State, why: str) -> None:
    """In the words that the table shows."""
    seen = {"i-1": Observed(state=state)}
    survey = Survey(pool="p", identity="fake", marks=marks, instances=seen, us="us")
    (verdict,) = judge([survey], ReapPolicy(), NOW)
    assert why in verdict.why


# --- at a cloud ------------------------------------------------------------------------------------------


def a_cloud(count: int = 3) -> FakeCloud:
    """One whose group can be marked, with instances that a manager has left."""
    cloud = FakeCloud(capabilities=frozenset({Capability.NAMED_CREATE, Capability.OWNER_MARK}))
    cloud.clock = virtual_clock()
    cloud.launch(count)
    return cloud


@frozen
class Reaping:
    """The command, without its printing."""

    cloud: FakeCloud
    policy: ReapPolicy = field(factory=ReapPolicy)
    known: Known | None = None
    group: type[FakeGroup] = FakeGroup

    @property
    def reaper(self) -> Reaper:
        """A new one, by the cloud's own time."""
        return Reaper(policy=self.policy, clock=virtual_clock(), known=self.known)

    def targets(self) -> list[Target]:
        """Open nothing yet."""
        return [Target(pool="p", group=self.group(self.cloud), connector=ConnectorConfig())]

    async def look(self) -> tuple[list[Survey], list[Verdict]]:
        """Survey and judge."""
        found = await self.reaper.survey(self.targets())
        return found, judge(found, self.policy, self.cloud.now)

    async def run(self) -> list[Reaped]:
        """Remove what may be removed."""
        return await self.reaper.remove(self.targets(), *await self.look())


def outcomes(reaped: Sequence[Reaped]) -> list[Outcome]:
    """What became of each."""
    return [each.outcome for each in reaped]


@asynccontextmanager
async def managing(cloud: FakeCloud, seed: int = 1) -> AsyncIterator[Provisioner]:
    """A manager of the cloud's group, which keeps what it finds."""
    group = FakeGroup(cloud)
    async with Provisioner(
        group, dial=group.dial, on_event=lambda _: None, random=Random(seed).random, clock=virtual_clock()
    ) as provisioner:
        yield provisioner


@pytest.mark.anyio
async def test_what_a_dead_manager_has_left_is_removed() -> None:
    """Once its mark has expired for long enough; until then nothing is, and looking changes nothing."""
    cloud = a_cloud()
    cloud.owner_mark = Mark(owner="dead", until=cloud.now + 100)
    for wait, count in ((0.0, 0), (100.0, 0), (HOUR - 1, 0), (1.0, 3)):
        await anyio.sleep(wait)
        _, verdicts = await Reaping(cloud).look()
        assert sum(each.remove for each in verdicts) == count
    assert {call.method for call in cloud.calls} == {"init", "update", "read_marks", "shutdown"}
    reaped = await Reaping(cloud).run()
    assert outcomes(reaped) == [Outcome.REMOVED] * 3
    assert "the mark of dead expired 1h ago" in reaped[0].why
    await anyio.sleep(10)
    assert not cloud.alive


@pytest.mark.anyio
async def test_a_living_manager_loses_nothing() -> None:
    """However often one looks, over hours: its mark is renewed."""
    cloud = a_cloud(0)
    async with managing(cloud) as provisioner:
        provisioner.request(3)
        for _ in range(50):
            await anyio.sleep(333)
            assert await Reaping(cloud).run() == []
        assert len(cloud.alive) == 3


@pytest.mark.anyio
async def test_a_manager_that_was_killed_is_cleared_away_behind_and_the_next_one_can_begin() -> None:
    """A whole life: it marks, makes instances and is gone; its mark expires, and so do they."""
    cloud = a_cloud(0)
    with pytest.raises(BaseExceptionGroup):
        async with managing(cloud) as provisioner:
            provisioner.request(2)
            await anyio.sleep(10)
            cloud.faults.mark_owner.always(Fault(refuse=ProviderError("killed")))  # so that it stays
            raise KeyboardInterrupt
    cloud.faults.clear()
    assert cloud.owner_mark is not None
    assert len(cloud.alive) == 2
    await anyio.sleep(MARK_LASTS + HOUR)
    assert outcomes(await Reaping(cloud).run()) == [Outcome.REMOVED] * 2
    await anyio.sleep(10)
    async with managing(cloud, seed=2) as provisioner:
        provisioner.request(1)
        await anyio.sleep(10)
        assert len(cloud.alive) == 1


class _Returning(FakeGroup):
    """Its manager comes back while this one is on its way: just before the group is opened to be changed."""

    async def read_marks(self) -> Sequence[Mark]:
        if not self._observing:
            self.cloud.owner_mark = Mark(owner="dead", until=self.cloud.now + MARK_LASTS)
        return await super().read_marks()


class _Behind(FakeGroup):
    """Its manager lives, hours behind by its clock, and renews the mark after the survey."""

    async def read_marks(self) -> Sequence[Mark]:
        if not self._observing and self.cloud.owner_mark is not None:
            self.cloud.owner_mark = evolve(self.cloud.owner_mark, until=self.cloud.owner_mark.until + 60)
        return await super().read_marks()


class _Another(FakeGroup):
    """Another manager takes it between the last look and our mark."""

    async def mark_owner(self, until: float | None) -> None:
        if until is not None and until > self.cloud.now and self._owner != "other":
            self.cloud.owner_mark = Mark(owner="other", until=self.cloud.now + MARK_LASTS)
        await super().mark_owner(until)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("group", "why"),
    [
        (_Returning, "dead manages the group"),
        (_Behind, "dead lives: it has renewed its mark; check the clock here"),
        (_Another, "managed by other"),
    ],
)
async def test_a_manager_that_comes_in_between_keeps_everything(group: type[FakeGroup], why: str) -> None:
    """Marks are read again right before, and only who has the mark removes anything."""
    cloud = a_cloud()
    cloud.owner_mark = Mark(owner="dead", until=cloud.now - 2 * HOUR)
    reaped = await Reaping(cloud, group=group).run()
    assert outcomes(reaped) == [Outcome.SPARED] * 3
    assert why in reaped[0].why
    assert not any(call.method == "decrease" for call in cloud.calls)
    assert cloud.owner_mark.until > cloud.now - 2 * HOUR
    assert len(cloud.alive) == 3


class _TakenOver(FakeGroup):
    """The mark is lost between two batches."""

    async def decrease(self, instances: Sequence[str]) -> Sequence[str]:
        accepted = await super().decrease(instances)
        self.cloud.owner_mark = Mark(owner="other", until=self.cloud.now + MARK_LASTS)
        return accepted


@pytest.mark.anyio
async def test_who_loses_the_mark_half_way_stops_there() -> None:
    """What was removed is removed; the rest, and the mark, are somebody else's."""
    cloud = a_cloud(60)
    cloud.owner_mark = Mark(owner="dead", until=cloud.now - 2 * HOUR)
    reaping = Reaping(cloud, ReapPolicy(at_most=100), group=_TakenOver)
    reaper = reaping.reaper
    reaped = await reaper.remove(reaping.targets(), *await reaping.look())
    assert outcomes(reaped) == [Outcome.REMOVED] * 50 + [Outcome.SPARED] * 10
    assert reaper.notes == []
    assert cloud.owner_mark.owner == "other"


@pytest.mark.anyio
async def test_what_is_left_is_still_an_orphan() -> None:
    """The group is left as it was found: as expired as it was, so that the next run goes on at once."""
    cloud = a_cloud(5)
    expired = cloud.now - 2 * HOUR
    cloud.owner_mark = Mark(owner="dead", until=expired)
    reaping = Reaping(cloud, ReapPolicy(at_most=2))
    for left in (3, 1, 0):
        assert set(outcomes(await reaping.run())) == {Outcome.REMOVED}
        await anyio.sleep(1)
        assert len(cloud.alive) == left
        assert re.fullmatch("reap-after-dead-by-[0-9a-f]{8}", cloud.owner_mark.owner)
        assert cloud.owner_mark.until == expired


@pytest.mark.anyio
async def test_what_the_cloud_refuses_is_reported_and_tried_again_later() -> None:
    """In part, or with an error; and a mark that cannot be taken away is noted."""
    cloud = a_cloud(3)
    cloud.owner_mark = Mark(owner="dead", until=cloud.now - 2 * HOUR)
    cloud.faults.decrease.once(DecreaseFault(accept=1))
    assert sorted(outcomes(await Reaping(cloud).run()), key=str) == [Outcome.FAILED] * 2 + [Outcome.REMOVED]
    await anyio.sleep(1)
    cloud.faults.decrease.once(DecreaseFault(refuse=ProviderError("it is protected")))
    reaped = await Reaping(cloud).run()
    assert [(each.outcome, each.why) for each in reaped] == [(Outcome.FAILED, "it is protected")] * 2
    assert outcomes(await Reaping(cloud).run()) == [Outcome.REMOVED] * 2


@pytest.mark.anyio
async def test_a_mark_that_cannot_be_put_back_is_noted() -> None:
    """It expires by itself, and the group is an orphan again when that has been so for long enough."""
    cloud = a_cloud(1)
    cloud.owner_mark = Mark(owner="dead", until=cloud.now - 2 * HOUR)
    reaping, reaper = Reaping(cloud), Reaping(cloud).reaper
    looked = await reaping.look()
    cloud.faults.mark_owner.once(Fault(), times=2)
    cloud.faults.mark_owner.once(Fault(refuse=ProviderError("no")))
    assert outcomes(await reaper.remove(reaping.targets(), *looked)) == [Outcome.REMOVED]
    (note,) = reaper.notes
    assert note == "its mark was left on the group and expires within 5m: no"


@pytest.mark.anyio
async def test_groups_that_nobody_marked_are_left_alone_unless_asked_for() -> None:
    """Then they are marked meanwhile, and bear no mark in the end."""
    cloud = a_cloud(2)
    await anyio.sleep(2 * HOUR)
    cloud.launch(1)
    assert await Reaping(cloud).run() == []
    assert outcomes(await Reaping(cloud, ReapPolicy(unmarked=HOUR)).run()) == [Outcome.REMOVED] * 2
    assert cloud.owner_mark is None


class _Blind(FakeGroup):
    """Can be marked, and shows no marks."""

    read_marks = None  # type: ignore[assignment]


@pytest.mark.anyio
async def test_groups_whose_marks_nobody_can_read_are_left_alone() -> None:
    """With the reason; one that does not answer is a failure."""
    cloud, plain = a_cloud(), FakeCloud(capabilities=frozenset())
    cloud.owner_mark = Mark(owner="dead", until=cloud.now - 2 * HOUR)
    plain.clock = virtual_clock()
    for reaping, why, has_failed in (
        (Reaping(cloud, group=_Blind), "does not show marks", False),
        (Reaping(plain), "carries no marks", False),
    ):
        (survey,), verdicts = await reaping.look()
        assert why in survey.left_alone
        assert survey.has_failed is has_failed
        assert verdicts == []
    cloud.faults.read_marks.once(Fault(refuse=ProviderError("internal error")))
    (survey,), _ = await Reaping(cloud).look()
    assert survey.has_failed
    assert "internal error" in survey.left_alone


# --- what this machine knows -----------------------------------------------------------------------------


@pytest.mark.anyio
async def test_what_a_manager_here_has_on_record_stays(tmp_path: Path) -> None:
    """Whether it runs, was killed, or has another file; and the mark of our own manager keeps everything."""
    from taskscaler._state import StateJournal

    cloud = a_cloud(0)
    group = FakeGroup(cloud)
    known = Known(tmp_path)
    assert known.instances("fake/group") == frozenset()
    async with Provisioner(
        group,
        dial=group.dial,
        on_event=lambda _: None,
        journal=StateJournal(tmp_path),
        random=Random(1).random,
        clock=virtual_clock(),
    ) as provisioner:
        provisioner.request(2)
        await anyio.sleep(10)
        mine = cloud.alive
        assert cloud.owner_mark is not None
        assert known.owner == cloud.owner_mark.owner
        assert known.instances("fake/group") == mine
        assert known.instances("fake/other") == frozenset()
        assert "process" in known.holder("fake/group")
        cloud.owner_mark = Mark(owner="dead", until=cloud.now - 2 * HOUR)
        assert await Reaping(cloud, known=known).run() == []
        cloud.owner_mark = Mark(owner=known.owner, until=cloud.now + MARK_LASTS)
    assert known.holder("fake/group") == ""
    cloud.owner_mark = Mark(owner="dead", until=cloud.now - 2 * HOUR)
    assert cloud.alive == mine
    assert await Reaping(cloud, known=known).run() == []
    (other,) = cloud.launch(1)
    assert [each.instance for each in await Reaping(cloud, known=known).run()] == [other]
    cloud.owner_mark = Mark(owner=known.owner, until=cloud.now - 2 * HOUR)
    assert await Reaping(cloud, known=evolve(known)).run() == []


@pytest.mark.anyio
async def test_a_journal_that_cannot_be_read_keeps_everything(tmp_path: Path) -> None:
    """It may name what would be removed."""
    (tmp_path / "broken.sqlite").write_text("nothing of ours, and long enough to be looked at" * 30)
    cloud = a_cloud()
    cloud.owner_mark = Mark(owner="dead", until=cloud.now - 2 * HOUR)
    (survey,), verdicts = await Reaping(cloud, known=Known(tmp_path)).look()
    assert survey.has_failed
    assert "broken.sqlite" in survey.left_alone
    assert verdicts == []
