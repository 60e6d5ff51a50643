"""Which of several GitLabs is asked when: no job is lost, few are without a slot, slots go round by weight."""

import math
from collections import Counter
from itertools import count

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gitlab_jobs import Polled, Polling
from taskscaler_gitlab.cells._upstreams import OUT_AFTER, PROBE, Ask, GiveBack, Pass, Reserve, Upstreams, Withdraw
from tests.taskscaler_gitlab.cells_in_time import SimCell, World

AT_ONCE = [0.0] * 100


def test_300_jobs_of_three_cells_one_slow_and_one_away_for_half_a_minute() -> None:
    """Each runs once, no slot that a job could have is idle for longer than a second, and shares are fair."""
    cells = {
        "near": SimCell(AT_ONCE),
        "far": SimCell(AT_ONCE, latency=1.0),
        "away": SimCell(AT_ONCE, down=(10.0, 40.0)),
    }
    world = World(cells, slots=8)
    world.run(1000.0)
    assert Counter(job for _, job in world.ran) == Counter({f"{name}-{at}": 1 for name in cells for at in range(100)})
    assert world.worst <= 1.0
    assert world.most_surplus <= 2
    assert world.asked_while_down["away"] <= OUT_AFTER + 30.0 / PROBE + 1
    assert _is_fair(world, 15.0, 40.0, {"near": 1, "far": 1})
    assert _is_fair(world, 50.0, 100.0, {"near": 1, "far": 1, "away": 1})


def test_shares_follow_weights() -> None:
    """Within 10 %, as long as each cell has jobs; however late one answers."""
    weights = {"a": 3.0, "b": 1.0, "c": 2.0}
    latencies = {"a": 0.0, "b": 0.05, "c": 1.0}
    cells = {name: SimCell([0.0] * 400, latencies[name], weight) for name, weight in weights.items()}
    world = World(cells, slots=8)
    world.run(150.0)
    assert _is_fair(world, 10.0, 150.0, weights)
    assert world.worst <= 1.0


def test_who_had_nothing_has_no_claim_on_what_others_had() -> None:
    """A cell whose jobs come late gets its share from then on, and not all slots until it has caught up."""
    cells = {"early": SimCell([0.0] * 300), "late": SimCell([60.0] * 100)}
    world = World(cells, slots=8)
    world.run(110.0)
    assert _is_fair(world, 65.0, 110.0, {"early": 1, "late": 1})


def test_a_slot_covers_all_cells_and_a_new_job_is_there_at_once() -> None:
    """While none has a job, one slot is reserved; the one that comes takes it, and nothing is surplus."""
    world = World({name: SimCell([at]) for name, at in (("a", 20.0), ("b", 30.0), ("c", 40.0))}, slots=2)
    world.run(19.0)
    assert (world.reserved, [len(each.held) for each in world.cells.values()]) == (1, [1, 1, 1])
    world.run(100.0)
    assert [at for at, _ in world.ran] == [20.0, 30.0, 40.0]
    assert world.most_surplus == 0


def test_cells_that_have_jobs_are_asked_one_for_each_slot() -> None:
    """Asked all together, they would hand out jobs for which there is no slot."""
    world = World({name: SimCell([0.0] * 60) for name in ("a", "b", "c")}, slots=1)
    world.run(10.0)
    world.most_surplus = 0
    world.run(60.0)
    assert (world.most_surplus, len(world.ran) > 12) == (0, True)


def test_a_slot_that_brought_nothing_is_offered_to_others_before_it_is_used_again() -> None:
    """A request that was answered without a job is made again with a slot for which we were in line."""
    pollings = {name: Polling(0.0, check_interval=1.0, is_eager=True) for name in ("a", "b")}
    core = Upstreams.of({name: (polling, 1.0) for name, polling in pollings.items()})
    assert core.next(0.0, 3).actions == [Reserve()]
    core.reserved()
    asks = [each for each in core.next(0.0, 3).actions if isinstance(each, Ask)]
    assert [each.cell for each in asks] == ["a", "b"]
    for each in asks:
        pollings[each.cell].asked()
    pollings["a"].answered(Polled(status=204), 50.0, asked_at=0.0)
    core.answered(asks[0], 50.0, key=None, has_failed=False)
    assert core.next(50.0, 3).actions == [GiveBack(), Reserve()]
    core.reserved()
    assert core.next(50.0, 3).actions == [Ask("a", 50.0, may_hold=True)]


def _is_fair(world: World, begin: float, end: float, weights: dict[str, float]) -> bool:
    """Whether each cell had its share of the jobs that began in that time, within 10 %."""
    had = world.shares(end)
    had.subtract(world.shares(begin))
    total, weight = sum(had[name] for name in weights), sum(weights.values())
    return all(
        abs(had[name] - total * each / weight) <= 0.1 * total * each / weight + 1 for name, each in weights.items()
    )


_CELLS = st.builds(
    SimCell,
    arrivals=st.lists(st.floats(0.0, 60.0), max_size=12),
    latency=st.sampled_from([0.0, 0.01, 0.3, 1.0, 3.0]),
    weight=st.sampled_from([0.5, 1.0, 4.0]),
    down=st.sampled_from([(math.inf, math.inf), (0.0, 20.0), (5.0, 35.0)]),
)


@settings(deadline=None, max_examples=40)
@given(
    st.lists(_CELLS, min_size=1, max_size=4),
    st.integers(1, 6),
    st.sampled_from([0.5, 3.0, 20.0]),
    st.integers(1, 4),
)
def test_whatever_happens_each_job_runs_once(cells: list[SimCell], slots: int, duration: float, requests: int) -> None:
    """With few or many cells and slots, slow or away; at most cells - 1 jobs ever wait here without a slot."""
    named = {str(number): each for number, each in enumerate(cells)}
    world = World(named, slots, duration, requests)
    world.run(3000.0)
    every = Counter(f"{name}-{at}" for name, each in named.items() for at in range(len(each.arrivals)))
    assert Counter(job for _, job in world.ran) == every
    assert world.most_surplus <= len(cells) - 1
    assert 0 <= world.reserved <= slots


class Cells(RuleBasedStateMachine):
    """Cells that answer as they like, slots that come when they like."""

    @initialize(weights=st.lists(st.sampled_from([0.1, 1.0, 5.0]), min_size=1, max_size=4), requests=st.integers(1, 3))
    def begin(self, weights: list[float], requests: int) -> None:
        """Ask nobody yet."""
        several = len(weights) > 1
        self.pollings = {
            str(number): Polling(0.0, request_concurrency=requests, check_interval=1.0, is_eager=several)
            for number, _ in enumerate(weights)
        }
        named = zip(self.pollings.items(), weights, strict=True)
        self.core = Upstreams.of({name: (polling, weight) for (name, polling), weight in named})
        self.now, self.room, self.wanted, self.reserved = 0.0, 3, 0, 0
        self.open: list[Ask] = []
        self.waiting: list[str] = []
        self.placed: list[str] = []
        self.heard: set[str] = set()
        self.keys = (f"job {number}" for number in count())

    @rule()
    def act(self) -> None:
        """Do as it says."""
        step = self.core.next(self.now, self.room)
        for action in step.actions:
            match action:
                case Ask():
                    assert self.reserved
                    assert not self.core.is_paused
                    self.pollings[action.cell].asked()
                    self.open.append(action)
                case Reserve():
                    assert not self.wanted
                    assert self.reserved < self.room
                    self.wanted += 1
                case GiveBack():
                    self.reserved -= 1
                case Withdraw():
                    assert self.core.is_paused
                    self.wanted -= 1
                case Pass(key):
                    assert key == self.waiting.pop(0)
                    self._place(key)
        assert step.wake is None or step.wake > self.now
        if self.core.is_paused and not self.open and not self.waiting:
            assert not self.reserved
            assert not self.wanted

    @rule(is_paused=st.booleans())
    def pause(self, is_paused: bool) -> None:  # noqa: FBT001  (a rule's)
        """Somebody wants no more jobs for a while."""
        self.core.is_paused = is_paused

    def _place(self, key: str) -> None:
        assert key not in self.placed
        self.reserved, self.room = self.reserved - 1, self.room - 1
        self.placed.append(key)

    @precondition(lambda self: self.wanted)
    @rule()
    def slot(self) -> None:
        """There is a slot."""
        self.wanted, self.reserved = self.wanted - 1, self.reserved + 1
        self.core.reserved()

    @precondition(lambda self: self.wanted)
    @rule()
    def no_slot(self) -> None:
        """There is none."""
        self.wanted -= 1
        self.core.not_reserved()

    @precondition(lambda self: self.open)
    @rule(status=st.sampled_from([201, 201, 201, 204, 403, 500, None]), which=st.integers(0, 9))
    def answer(self, status: int | None, which: int) -> None:
        """One of those who were asked says something."""
        ask = self.open.pop(which % len(self.open))
        self.pollings[ask.cell].answered(Polled(status=status), self.now, asked_at=ask.since if ask.may_hold else None)
        key = next(self.keys) if status == 201 else None
        had = self.reserved
        is_covered = self.core.answered(ask, self.now, key=key, has_failed=status not in (201, 204))
        assert is_covered == (key is not None and had > 0)
        if status in (201, 204):
            self.heard.add(ask.cell)
        if key is not None and is_covered:
            self._place(key)
        elif key is not None:
            self.waiting.append(key)

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0, 9))
    def break_off(self, which: int) -> None:
        """We do not wait for an answer."""
        ask = self.open.pop(which % len(self.open))
        self.pollings[ask.cell].cancelled()
        self.core.broken_off(ask)

    @precondition(lambda self: self.waiting)
    @rule()
    def revoke(self) -> None:
        """A job is not wanted any more before it had a slot."""
        self.core.gone(self.waiting.pop())

    @rule(seconds=st.sampled_from([0.1, 0.3, 1.0, 6.0]))
    def wait(self, seconds: float) -> None:
        """Time passes."""
        self.now += seconds

    @precondition(lambda self: self.room < 3)
    @rule()
    def end(self) -> None:
        """A job ends."""
        self.room += 1

    @invariant()
    def few_wait(self) -> None:
        """At most cells - 1 jobs have no slot, and the core knows which."""
        assert self.core.surplus == self.waiting
        assert len(self.waiting) <= len(self.pollings) - 1
        assert self.core.free == self.reserved

    @invariant()
    def who_fails_is_asked_once_at_a_time(self) -> None:
        """And no more often than to see whether it answers again."""
        for name, cell in self.core.cells.items():
            assert sum(each.cell == name for each in self.open) == len(cell.opened)
            assert sum(each.cell == name and each.may_hold for each in self.open) <= (
                1 if len(self.core.cells) > 1 else 3
            )

    @invariant()
    def all_have_answered_or_not(self) -> None:
        """As it should have been, at least once."""
        assert self.core.have_all_answered == (self.heard == self.pollings.keys())


Cells.TestCase.settings = settings(deadline=None, max_examples=80, stateful_step_count=40)
test_cells_that_answer_as_they_like = Cells.TestCase
