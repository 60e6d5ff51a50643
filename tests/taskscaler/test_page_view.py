"""What the status page shows, who may see it, and what it remembers: all pure."""

import json
import unicodedata
from collections.abc import Callable
from itertools import count

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from taskscaler import InstanceEvent, LeaseEvent, ScalerEvent
from taskscaler.serve._page import _history, _passes
from taskscaler.serve._page._history import History
from taskscaler.serve._page._passes import LINK_LASTS, MOST_PASSES, PASS_LASTS, Passes
from taskscaler.serve._page._view import (
    MOST_DECISIONS,
    MOST_QUEUED,
    PoolRow,
    Scene,
    change,
    taken_in,
    whole,
)
from tests.taskscaler.page_moments import WAITING, Moment
from tests.taskscaler.topped import FLEETS, TEXTS, fleet_of

ROWS = st.builds(PoolRow, name=TEXTS, counts=TEXTS, ceiling=st.none() | st.integers(0, 9), notes=st.tuples(TEXTS))
SCENES = st.builds(Scene, fleet=FLEETS, pools=st.lists(ROWS, max_size=2).map(tuple), next=st.tuples(TEXTS), cost=TEXTS)


@given(SCENES, SCENES)
def test_what_changed_leads_from_each_scene_to_the_next(before: Scene, after: Scene) -> None:
    """A browser that takes in a change sees what one sees that has just come."""
    there = taken_in(json.loads(json.dumps(whole(before))), json.loads(json.dumps(change(before, after))))
    assert there == json.loads(json.dumps(whole(after)))
    assert change(after, after) == {}


@given(SCENES)
def test_no_text_has_anything_that_is_not_to_be_seen(scene: Scene) -> None:
    """Neither control characters nor turned text, whoever has named it; of bounded length."""
    data = whole(scene)
    data["instances"] = [*data["instances"].values()]  # by whose places they are asked for: sent back, and not shown
    for job in data["queue"]["jobs"]:
        del job[5:]  # the same, of a job
    for text in _texts(data):
        assert not {unicodedata.category(character) for character in text} & {"Cc", "Cf", "Cs"}
        assert len(text.encode()) <= 600


def _texts(data: object) -> list[str]:
    match data:
        case str():
            return [data]
        case dict():
            return [text for each in data.values() for text in _texts(each)]
        case list():
            return [text for each in data for text in _texts(each)]
    return []


def test_a_change_of_one_instance_is_sent_alone() -> None:
    """What a change costs on the way does not grow with the fleet."""
    before = fleet_of(1000)
    each = evolve(before.instances["default", "i-0003"], cordoned="a disk fails")
    after = evolve(before, instances={**before.instances, each.place: each})
    found = change(Scene(fleet=before), Scene(fleet=after))
    assert [*found] == ["instances"]
    assert [*found["instances"]] == ["default/i-0003"]
    assert found["instances"]["default/i-0003"]["notes"] == "cordoned (a disk fails)"


def test_lists_are_bounded_and_say_how_many_there_are() -> None:
    """However many wait, a page gets so many of them."""
    data = whole(Scene(fleet=fleet_of(3, waiting=5000)))
    assert len(data["queue"]["jobs"]) == MOST_QUEUED
    assert data["queue"]["total"] == 5000
    assert len(data["queue"]["reasons"]) == 1  # said once
    assert len(data["decisions"]) <= MOST_DECISIONS


SAID = {
    "ceiling": ["the limit of 3 instances (max_instances) is reached"],
    "stock-out": ["the cloud says: no capacity for m5.large in zone-a"],
    "cordoned": [
        "cordoned by an operator and get no new work: disk errors, ticket OPS-4711",
        "the limit of 3 instances",
    ],
}


@pytest.mark.parametrize(("name", "moment"), WAITING, ids=[name for name, _ in WAITING])
def test_why_a_job_waits_is_said_beside_it(name: str, moment: Callable[[], Moment]) -> None:
    """In the same words as everywhere, without asking for an explanation."""
    data = whole(moment().scene)
    for words in SAID[name]:
        assert words in data["queue"]["reasons"][0]
        assert words in data["head"]["answer"]
    if name == "stock-out":
        assert any("instances are requested again in" in note for note in data["head"]["pools"][0]["notes"])


def test_without_a_price_the_cost_is_unknown_and_never_zero() -> None:
    """Instance-hours are known."""
    data = whole(dict(WAITING)["ceiling"]().scene)
    assert data["head"]["pools"][0]["cost"].endswith("instance-hours, price unknown")


# --- who may see it --------------------------------------------------------------------------------------


class PassesMachine(RuleBasedStateMachine):
    """Links and passes against what was given out, when, and used."""

    def __init__(self) -> None:
        """Nothing was given out."""
        super().__init__()
        numbers = count()
        self.passes = Passes(lambda: f"secret-{next(numbers)}")
        self.now = 0.0
        self.links: dict[str, tuple[bool, float]] = {}
        self.given: dict[str, tuple[bool, float]] = {}

    @rule(seconds=st.sampled_from([1.0, LINK_LASTS, PASS_LASTS]))
    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds

    @rule(changes=st.booleans())
    def link(self, *, changes: bool) -> None:
        """Make a link."""
        self.links[self.passes.link(self.now, changes=changes)] = changes, self.now + LINK_LASTS

    @rule(data=st.data())
    def trade(self, data: st.DataObject) -> None:
        """Use a link, or what is none."""
        secret = data.draw(st.sampled_from([*self.links, "guessed", "x" * 10_000, "\ud800"]))
        changes, until = self.links.pop(secret, (False, 0.0))
        traded = self.passes.trade(secret, self.now)
        assert (traded is not None) == (self.now < until)
        assert self.passes.trade(secret, self.now) is None
        if traded is not None:
            assert traded.found.changes == traded.found.permits(traded.csrf) == changes
            assert not any(
                traded.found.permits(wrong) for wrong in ("", "guessed", traded.secret, secret, "x" * 10_000)
            )
            assert not any(each in repr((traded, self.passes)) for each in (traded.csrf, traded.secret))
            self.given[traded.secret] = changes, self.now + PASS_LASTS

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        """Leave."""
        secret = data.draw(st.sampled_from([*self.given, "guessed"]))
        self.passes.end(secret)
        self.given.pop(secret, None)

    @invariant()
    def passes_are_found(self) -> None:
        """Exactly those that were given for links, as long as they are good."""
        for secret, (changes, until) in [*self.given.items()][-MOST_PASSES:]:
            found = self.passes.find(secret, self.now)
            assert (found is not None) == (self.now < until)
            assert found is None or found.changes == changes
        for secret in (*self.links, "guessed", ""):
            assert self.passes.find(secret, self.now) is None


TestPasses = PassesMachine.TestCase


def test_of_too_many_passes_the_oldest_gives_way() -> None:
    """So many browsers may look, and no number of links takes more memory."""
    passes = Passes()
    secrets = []
    for _ in range(MOST_PASSES + 1):
        traded = passes.trade(passes.link(0.0, changes=False), 0.0)
        assert traded is not None
        secrets.append(traded.secret)
    assert [passes.find(secret, 0.0) is not None for secret in secrets] == [False, *[True] * MOST_PASSES]
    for _ in range(_passes.MOST_LINKS + 5):
        passes.link(0.0, changes=True)
    assert len(passes._links) == _passes.MOST_LINKS


# --- what is over ----------------------------------------------------------------------------------------


def lease(at: float, what: str, key: str = "job") -> LeaseEvent:
    """What happened to a lease."""
    return LeaseEvent(at=at, key=key, pool="p", instance="i-1", slot=0, what=what)


def instance(at: float, state: str, *, lost: bool = False) -> InstanceEvent:
    """What became of an instance."""
    return InstanceEvent(at=at, pool="p", instance="i-1", state=state, lost=lost)


def test_jobs_and_instances_are_remembered_with_their_times() -> None:
    """From when to when, when the instance was ready, and whether it was lost."""
    history = History()
    events: list[ScalerEvent] = [
        instance(1, "creating"),
        instance(5, "running"),
        lease(6, "acquired"),
        lease(9, "released"),
        lease(10, "acquired", "other"),
        lease(12, "lost", "other"),
        instance(12, "gone", lost=True),
    ]
    for event in events:
        history.hear(event)
    found = [(each.key, each.began, each.ready, each.ended, each.lost) for each in history.between(0, history.total)]
    assert found == [("job", 6, None, 9, False), ("other", 10, None, 12, True), ("", 1, 5, 12, True)]
    assert [each.key for each in history.between(1, 2)] == ["other"]


@given(st.integers(0, 12), st.integers(0, 12), st.integers(0, 12))
def test_each_end_is_told_once_as_long_as_it_is_kept(first: int, second: int, third: int) -> None:
    """Whoever has seen some gets the rest, and what is too old is forgotten."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_history, "MOST_KEPT", 8)
        history, told = History(), []
    seen = 0
    for number in (first, second, third):
        for _ in range(number):
            key = f"{history.total}"
            history.hear(lease(0.0, "acquired", key))
            history.hear(lease(1.0, "released", key))
        told.append([int(each.key) for each in history.between(seen, history.total)])
        kept = range(max(seen, history.total - history._over.maxlen), history.total)  # type: ignore[operator]
        assert told[-1] == [*kept]
        seen = history.total
