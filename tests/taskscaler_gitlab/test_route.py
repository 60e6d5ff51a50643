"""A runner's request at several cells, message by message: whatever they answer, and whenever."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gitlab_jobs import mint_routable
from taskscaler_gitlab.cells._route import (
    AT_ONCE,
    GRACE,
    PARTING,
    PATIENCE,
    PAUSE,
    Action,
    Ask,
    Give,
    HangUp,
    Keep,
    Memory,
    Nothing,
    Refuse,
    Round,
    Unavailable,
    hint,
    in_order,
    is_foreign,
)

CELLS = ("1", "2", "3")
ENDS = (Give, Nothing, Refuse, Unavailable)
DEADLINE = 50.0


def test_cells_are_asked_one_after_the_other_and_then_hold_all_at_once() -> None:
    """Two cells never hand out a job each to a runner that has asked for one."""
    asked = Round(CELLS, DEADLINE)
    assert asked.look(0.0) == [Ask("1", None)]
    assert asked.answered("1", 204, "a", 0.1) == [Ask("2", None)]
    assert asked.answered("2", 204, "b", 0.2) == [Ask("3", None)]
    assert asked.answered("3", 204, "c", 0.3) == [Ask("1", "a"), Ask("2", "b"), Ask("3", "c")]
    assert asked.wake == DEADLINE
    assert asked.answered("2", 201, "d", 20.0) == [Give("2")]
    assert asked.known == {"1": "a", "2": "d", "3": "c"}
    assert asked.answered("1", 201, None, 20.1) == [Keep("1")]
    assert (asked.look(20.5), asked.wake) == ([], 20.0 + GRACE)
    assert asked.look(20.0 + GRACE) == [HangUp("3")]
    assert asked.wake is None
    assert asked.answered("3", None, None, 22.1) == []


def test_a_cell_that_is_slow_holds_up_the_others_for_a_moment_only() -> None:
    """It is still listened to."""
    asked = Round(CELLS, DEADLINE)
    asked.look(0.0)
    assert (asked.look(PATIENCE / 2), asked.wake) == ([], PATIENCE)
    assert asked.look(PATIENCE) == [Ask("2", None)]
    assert asked.answered("2", 204, "b", PATIENCE + 0.1) == [Ask("3", None)]
    assert asked.answered("3", 204, "c", PATIENCE + 0.2) == [Ask("2", "b"), Ask("3", "c")]
    assert asked.answered("1", 201, None, 2.0) == [Give("1")]
    assert asked.look(2.0 + GRACE) == [HangUp("2"), HangUp("3")]


def test_a_cell_that_was_asked_for_what_there_is_now_is_heard_to_the_end() -> None:
    """However slow it is: it answers by itself, and if it has handed out a job, hanging up would lose that."""
    asked = Round(("1", "2"), DEADLINE)
    asked.look(0.0)
    asked.look(PATIENCE)
    assert asked.answered("2", 201, None, PATIENCE) == [Give("2")]
    assert (asked.wake, asked.look(PATIENCE + GRACE)) == (None, [])
    assert asked.answered("1", 201, None, 30.0) == [Keep("1")]


def test_a_request_that_is_not_to_be_held_ends_when_all_cells_have_answered() -> None:
    """Whatever each has said; a service that keeps a slot for the answer would take a router that waits for slow."""
    asked = Round(CELLS, AT_ONCE, may_hold=False)
    assert asked.look(0.0) == [Ask("1", None)]
    assert asked.answered("1", 204, "a", 0.1) == [Ask("2", None)]
    assert asked.answered("2", 503, None, 0.2) == [Ask("3", None)]
    assert asked.answered("3", 403, None, 0.3) == [Nothing()]
    assert (asked.known, asked.late) == ({"1": "a", "2": ""}, [])
    assert asked.wake is None


def test_a_request_that_is_not_to_be_held_waits_for_a_slow_cell_but_not_for_ever() -> None:
    """What that answers later is kept; nobody hangs up on it, since it may be handing out a job."""
    asked = Round(("1", "2"), AT_ONCE, may_hold=False)
    asked.look(0.0)
    asked.look(PATIENCE)
    assert asked.answered("2", 204, "b", PATIENCE) == []
    assert asked.wake == AT_ONCE
    assert asked.look(AT_ONCE) == [Nothing()]
    assert asked.late == ["1"]
    assert asked.wake is None
    assert asked.answered("1", 201, "a", AT_ONCE + 60.0) == [Keep("1")]


def test_a_request_that_is_not_to_be_held_waits_for_no_cell_that_is_away() -> None:
    """Unless all are; it is known to the runner as before, who may have jobs of it once it is back."""
    asked = Round(("2", "1"), AT_ONCE, {"1": "a"}, may_hold=False, away=("1",))
    assert asked.look(0.0) == [Ask("2", None)]
    assert asked.answered("2", 403, None, 0.1) == [Unavailable()]
    assert asked.known == {"1": "a"}
    asked = Round(("2", "1"), AT_ONCE, may_hold=False, away=("1", "2"))
    assert asked.look(0.0) == [Ask("2", None)]
    asked = Round(("2", "1"), DEADLINE, away=("1",))
    asked.look(0.0)
    assert asked.answered("2", 204, "b", 0.1) == [Ask("1", None)]


def test_a_runner_is_refused_only_if_no_cell_knows_it() -> None:
    """Three refusals silence a runner for an hour; a cell that cannot be asked may know it."""
    asked = Round(CELLS, DEADLINE)
    asked.look(0.0)
    asked.answered("1", 403, None, 0.1)
    asked.answered("2", 403, None, 0.2)
    assert asked.answered("3", 403, None, 0.3) == [Refuse()]
    asked = Round(CELLS, DEADLINE)
    asked.look(0.0)
    asked.answered("1", 403, None, 0.1)
    asked.answered("2", None, None, 0.2)
    assert asked.answered("3", 403, None, 0.3) == [Unavailable()]


def test_a_cell_that_does_not_hold_requests_is_asked_as_often_as_a_runner_would() -> None:
    """Also one that gives no ticket."""
    asked = Round(("1", "2"), DEADLINE)
    asked.look(0.0)
    asked.answered("1", 204, None, 0.0)
    assert asked.answered("2", 204, "b", 0.0) == [Ask("2", "b")]
    assert asked.wake == PAUSE
    assert asked.answered("2", 204, "b", 0.1) == []
    assert asked.look(PAUSE) == [Ask("1", None), Ask("2", "b")] or asked.open == ["1"]


def test_at_the_end_what_is_on_its_way_may_still_come() -> None:
    """A job that a cell hands out as it is hung up on is answered, and not lost."""
    asked = Round(("1",), DEADLINE, {"1": "a"})
    asked.look(0.0)
    asked.answered("1", 204, "a", 0.1)
    assert asked.look(DEADLINE) == [HangUp("1")]
    assert asked.answered("1", 201, "b", DEADLINE + 0.1) == [Give("1")]
    asked = Round(("1",), DEADLINE)
    asked.look(0.0)
    asked.answered("1", 204, "a", 0.1)
    asked.look(DEADLINE)
    assert asked.look(DEADLINE + PARTING) == [Nothing()]


class World:
    """Cells that answer, and what the router has made of it."""

    def __init__(self, count: int, *, may_hold: bool = True, away: int = 0) -> None:
        """Begin a round."""
        self.now, names = 0.0, [str(each) for each in range(count)]
        deadline = DEADLINE if may_hold else AT_ONCE
        self.round = Round(names, deadline, may_hold=may_hold, away=names[count - away :])
        self.open: set[str] = set()
        self.hung_up: set[str] = set()
        self.held: set[str] = set()
        """The cells that are open, and were asked to hold the request."""

        self.jobs: Counter[str] = Counter()
        self.done: Counter[str] = Counter()
        self.ends: list[Action] = []
        self.is_abandoned = False
        self.refused: set[str] = set()
        self.asked: set[str] = set()
        self.do(self.round.look(0.0))

    def do(self, actions: Sequence[Action]) -> None:
        """Note what is done, and that it may be."""
        for action in actions:
            match action:
                case Ask(cell, ticket):
                    self.held |= {cell} if ticket else set()
                    assert cell not in self.open, "a cell is asked once at a time"
                    assert not self.ends, "nobody is asked when the runner has its answer"
                    assert not self.is_abandoned
                    assert cell not in self.refused, "a cell that does not know the runner is not asked again"
                    assert self.round.may_hold or cell not in self.asked, "else a cell is asked once"
                    self.open.add(cell)
                    self.asked.add(cell)
                case HangUp(cell):
                    assert cell in self.open
                    assert cell not in self.hung_up
                    self.hung_up.add(cell)
                case Give(cell) | Keep(cell):
                    self.done[cell] += 1
        self.ends += [each for each in actions if isinstance(each, ENDS)]
        assert len(self.ends) <= 1, "a runner has one answer"

    def answer(self, cell: str, status: int | None, ticket: str | None) -> None:
        """A cell answers."""
        self.open.discard(cell)
        self.held.discard(cell)
        self.hung_up.discard(cell)
        self.jobs[cell] += status == 201
        if status == 403:
            self.refused.add(cell)
        self.do(self.round.answered(cell, status, ticket, self.now))
        assert self.done == self.jobs, "each job is given or kept, at once"

    def wait(self, seconds: float) -> None:
        """Time passes, and everything is done when it is due."""
        until = self.now + seconds
        while (wake := self.round.wake) is not None and wake <= until:
            assert wake >= self.now, "it is not busy"
            self.now = wake
            self.do(self.round.look(wake))
            assert self.round.wake is None or self.round.wake > wake, "it does not spin"
        self.now = until
        self.do(self.round.look(until))


@given(data=st.data(), count=st.integers(1, 4), may_hold=st.booleans(), away=st.integers(0, 4))
def test_whatever_cells_answer_a_runner_has_one_answer_in_time_and_no_job_is_lost(
    data: Any,  # noqa: ANN401  (hypothesis has no name for it)
    count: int,
    *,
    may_hold: bool,
    away: int,
) -> None:
    """In any order, late, twice with a job, never; also if the runner hangs up, gets another, or is not to be held."""
    world = World(count, may_hold=may_hold, away=min(away, count))
    moves = data.draw(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 40)), max_size=40))
    for kind, size in moves:
        if kind == 0:
            world.wait(size / 4)
        elif kind in (1, 2) and size > 30 and not world.ends and not world.is_abandoned:
            world.is_abandoned = True
            was_hung_up = {*world.hung_up}
            world.do(world.round.abandon() if kind == 1 else world.round.has_another(world.now))
            assert world.hung_up - was_hung_up == (world.held - was_hung_up if kind == 1 else set())
            if kind == 2:
                world.wait(GRACE)
                assert world.hung_up >= world.held
        elif world.open:
            cell = sorted(world.open)[size % len(world.open)]
            known = cell in world.refused
            status = [204, 201, 403, None, 409, 503, 204, 204][size % 8]
            assert not known
            knows = cell in world.round.known and world.jobs[cell]
            world.answer(cell, 204 if status == 403 and knows else status, [None, "a", "b"][size % 3])
            if status == 403 and cell in world.round.known:
                world.refused.discard(cell)
    if world.is_abandoned:
        assert not world.ends
        return
    world.wait(max(0.0, (DEADLINE + PARTING if may_hold else AT_ONCE) - world.now))
    assert len(world.ends) == 1
    if isinstance(world.ends[0], Refuse):
        assert not world.round.known
    for cell in sorted(world.open):  # what comes when all is over
        world.answer(cell, 201, None)


# --- what is known without asking ------------------------------------------------------------------------------------


def token(cell: int) -> str:
    """A runner's, of a cell."""
    return mint_routable("glrt-t2_", {"c": cell, "o": 1}, bytes(16))


@pytest.mark.parametrize(
    ("given_token", "cell"),
    [
        (token(2), "2"),
        (token(9), None),  # no such cell
        (token(2)[:-1] + "!", None),
        ("glrt-" + "A" * 5_000, None),
        ("glrt-abcdef", None),
        ("", None),
        ("ä", None),
    ],
)
def test_a_token_is_a_hint_or_none(given_token: str, cell: str | None) -> None:
    """Of a cell that there is."""
    assert hint(given_token, {"1": 0, "2": 0}) == cell


def test_the_latest_is_remembered() -> None:
    """What was not asked for longest goes first."""
    memory = Memory[int, str](2)
    memory.remember(1, "a")
    memory.remember(2, "b")
    assert memory.recall(1) == "a"
    memory.remember(3, "c")
    assert (memory.recall(1), memory.recall(2), memory.recall(3), len(memory)) == ("a", None, "c", 2)
    memory.forget(1)
    memory.forget(1)
    assert memory.recall(1) is None


def test_cells_take_turns_and_those_that_are_away_come_last() -> None:
    """Each cell begins as often as the others."""
    assert [in_order(CELLS, each, ())[0] for each in range(6)] == [*CELLS, *CELLS]
    assert in_order(CELLS, 0, {"1"}) == ["2", "3", "1"]


@pytest.mark.parametrize(
    ("status", "headers", "foreign"),
    [(403, {}, True), (404, {}, True), (401, {}, True), (403, {"Job-Status": "canceled"}, False), (416, {}, False)],
)
def test_a_refusal_with_a_jobs_state_is_from_its_cell(status: int, headers: dict[str, str], foreign: bool) -> None:  # noqa: FBT001  (a table)
    """Others may be from any."""
    assert is_foreign(status, headers) is foreign
