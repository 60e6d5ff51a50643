"""What `top` shows and what keys do, without a terminal: order, filter, what is chosen, what is known after events."""

import unicodedata
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from taskscaler.cli._top._fleet import Fleet, after
from taskscaler.cli._top._paint import Scene, paint, room_of
from taskscaler.cli._top._plain import head, tables
from taskscaler.cli._top._rows import INSTANCES, JOBS, TABS, Order, Tab
from taskscaler.cli._top._view import Around, Question, Quit, Subject, View, pressed, settled
from tests.taskscaler.scaling import EPOCH
from tests.taskscaler.topped import FLEETS, PLANTED, TEXTS, changed, fleet_of

ORDERS = st.builds(Order, st.none() | st.integers(0, 2), st.booleans())
KEYS = ["up", "down", "pageup", "end", "home", "tab", "1", "2", "3", "s", "S", "slash", "escape", "enter", "c", "r"]
KEYS += ["question_mark", "i", "a", "backspace", "q", "left"]


def rows_of(view: View, fleet: Fleet) -> list[Any]:
    """The rows of what is looked at."""
    return view.list.rows(fleet, view.order, view.filter)


def press(view: View, fleet: Fleet, *keys: str, room: int = 5) -> tuple[View, list[object]]:
    """Press keys one after the other; each is a name, or the character itself."""
    wishes: list[object] = []
    for key in keys:
        rows = rows_of(view, fleet)
        around = Around(fleet=fleet, rows=rows, room=room)
        view, wish = pressed(settled(view, rows, room), key, key if len(key) == 1 else None, around)
        wishes += [] if wish is None else [wish]
    return settled(view, rows_of(view, fleet), room), wishes


def drawn(view: View, fleet: Fleet, width: int = 80, height: int = 24, **more: Any) -> list[str]:  # noqa: ANN401
    """The lines of a picture."""
    rows = rows_of(view, fleet)
    scene = Scene(fleet=fleet, view=settled(view, rows, room_of(fleet, height)), rows=rows, now=EPOCH, **more)
    return ["".join(text for text, _ in line) for line in paint(scene, width, height)]


@settings(max_examples=40)
@given(FLEETS, st.sampled_from(TABS), ORDERS, TEXTS)
def test_a_filter_leaves_what_contains_it_and_an_order_loses_nothing(
    fleet: Fleet,
    tab: Tab[Any],
    order: Order,
    filter_: str,
) -> None:
    """Rows are those that match, each once; the key they are sorted by goes one way."""
    rows = tab.rows(fleet, order, filter_)
    wanted = [row for row in tab.items(fleet) if filter_.casefold() in tab.text(row).casefold()]
    assert sorted(map(tab.id, rows)) == sorted(map(tab.id, wanted))
    if order.column is not None:
        keys = [tab.columns[order.column].key(row) for row in rows]
        assert keys == sorted(keys, reverse=order.reverse)


@settings(max_examples=40)
@given(FLEETS, FLEETS, st.integers(0, 12), st.integers(1, 6))
def test_what_is_chosen_stays_chosen_while_it_is_there(before: Fleet, later: Fleet, index: int, room: int) -> None:
    """Wherever it moves; if it goes, what has taken its place is chosen; and it is in sight in any case."""
    view, _ = press(View(), before, *["down"] * index, room=room)
    rows = rows_of(view, later)
    now = settled(view, rows, room)
    ids = [INSTANCES.id(row) for row in rows]
    if view.here.id in ids and before.instances:
        assert now.here.id == view.here.id
    elif rows:
        assert now.here.index == min(view.here.index, len(rows) - 1)
    if rows:
        assert now.here.top <= now.here.index < now.here.top + room
        assert now.current is rows[now.here.index]
        assert 0 <= now.here.top <= max(0, len(rows) - room)
    else:
        assert now.current is None


@settings(max_examples=40)
@given(FLEETS, st.lists(st.sampled_from(KEYS), max_size=12), st.integers(1, 150), st.integers(1, 45), TEXTS)
def test_no_picture_has_anything_that_a_terminal_obeys(
    fleet: Fleet, keys: list[str], width: int, height: int, text: str
) -> None:
    """And each fits: as many lines as the terminal has, none wider; whatever was pressed, whatever a daemon says."""
    view, _ = press(View(), fleet, *keys)
    lines = drawn(view, fleet, width, height, details=[text, text * 2], lost=text)
    assert len(lines) == height
    for line in lines:
        assert cell_len(line) <= width
        assert not {unicodedata.category(each) for each in line} & {"Cc", "Cs", "Zl", "Zp"}
        assert "\u202e" not in line
    plain = [*(row for _, row in head(fleet)), *tables(fleet, EPOCH)]
    assert not any("\x1b" in line or "\x9b" in line for line in plain[len([*head(fleet)]) :])


@settings(max_examples=40)
@given(FLEETS, st.lists(st.sampled_from(KEYS), max_size=20))
def test_nothing_is_changed_without_a_yes_to_a_question_that_names_it(fleet: Fleet, keys: list[str]) -> None:
    """Each wish but to quit is a question that was on the screen when Enter was pressed."""
    view = View()
    for key in keys:
        before = view
        view, wishes = press(view, fleet, key)
        for wish in wishes:
            assert isinstance(wish, Quit) or (wish is before.question and key == "enter")


def test_cordon_and_retain_ask_first_and_offer_what_can_be_undone() -> None:
    """With a reason, if one is given; Esc changes nothing; what is cordoned already can be let go."""
    fleet = fleet_of(3)
    view, wishes = press(View(), fleet, "down", "c")
    assert not wishes
    assert "cordon default/i-0001? it gets no new work" in drawn(view, fleet)[-2]
    view, wishes = press(view, fleet, *"a disk", "x", "backspace", "enter")
    assert wishes == [Question(verb="cordon", instance="default/i-0001", why="a disk")]
    view, wishes = press(view, fleet, "r", "escape")
    assert (view.message, wishes) == ("nothing was changed", [])
    cordoned = changed(fleet, "default", "i-0001", cordoned="a disk")
    assert "cordoned (a disk)" in "\n".join(drawn(view, cordoned))
    assert press(view, cordoned, "c", "enter")[1] == [Question(verb="uncordon", instance="default/i-0001")]


def test_a_key_in_the_details_is_about_what_they_are_of() -> None:
    """Even if that has gone meanwhile, and another row is chosen in the list behind."""
    fleet = fleet_of(3)
    view, _ = press(View(), fleet, "down", "enter")
    assert view.subject == Subject(kind="instance", name="default/i-0001")
    gone = {"event": "instance", "at": EPOCH, "pool": "default", "instance": "i-0001", "state": "gone", "why": ""}
    view, wishes = press(view, after(fleet, gone), "c", "enter")
    assert not wishes
    job, _ = press(View(), fleet, "2", "end", "enter", "i", "c")
    assert job.question is not None
    assert job.question.instance == "default/i-0001"


def test_sorting_and_filtering_are_said_where_the_lists_are() -> None:
    """Whoever sees two rows of a thousand sees why."""
    fleet = fleet_of(9)
    view, _ = press(View(), fleet, "s", "S", "slash", *"i-000", "enter")
    lines = drawn(view, fleet)
    assert "9 with “i-000”" in lines[6]
    assert lines[7].startswith("INSTANCE↑ ")
    assert lines[8].startswith("i-0008")
    view, _ = press(view, fleet, "slash", "z", "enter")
    assert "nothing contains “i-000z”; Esc shows all" in drawn(view, fleet)[8]


def test_events_are_taken_in_at_once() -> None:
    """An instance comes and goes, a waiting job gets its slot and gives it back; what is unknown changes nothing."""
    fleet = fleet_of(3)
    at = {"at": EPOCH, "pool": "default", "instance": "i-0002"}
    fleet = after(fleet, {**at, "event": "instance", "state": "running", "why": ""})
    assert fleet.instances["default", "i-0002"].state == "running"
    taken = after(fleet, {**at, "event": "lease", "key": "queued-0", "slot": 1, "what": "acquired"})
    assert taken.instances["default", "i-0002"].slots == (None, "queued-0")
    assert [job.key for job in taken.waiting] == ["queued-1", "queued-2"]
    assert taken.running["queued-0"].instance == "i-0002"
    given_back = after(taken, {**at, "event": "lease", "key": "queued-0", "slot": 1, "what": "released"})
    assert given_back.instances["default", "i-0002"].slots == (None, None)
    assert "queued-0" not in given_back.running
    gone = after(taken, {**at, "event": "instance", "state": "gone", "why": ""})
    assert ("default", "i-0002") not in gone.instances
    assert "queued-0" not in gone.running
    said = after(gone, {"event": "decision", "at": EPOCH, "text": "2 more"})
    assert said.decisions[0].text == "2 more"
    assert after(said, {"event": "from a later release"}) is said


@pytest.mark.parametrize("width", [80, 140])
@pytest.mark.parametrize("count", [0, 3, 1000])
def test_a_fleet_of_any_size_says_what_matters(count: int, width: int) -> None:
    """Why there is no capacity, the ceiling, and the first rows; where there is more room, ids are not cut."""
    fleet = fleet_of(count)
    shown = "\n".join(drawn(View(), fleet, width, 24))
    assert f"the limit of {count} instances" in shown
    assert f"at most {count}" in shown
    assert ("there are no instances" in shown) == (not count)
    queue = "\n".join(drawn(evolve(View(), tab=TABS.index(JOBS)), fleet, width, 24))
    assert ("#1 in the queue: the limit is reached" in queue) == bool(count)
    if count == 1000:
        assert "i-0013" in shown
        assert "i-0014" not in shown


def test_a_part_is_shown_with_why_it_is_one() -> None:
    """To members of the group, and to anybody while the connection is lost."""
    part = evolve(fleet_of(0), refused="only the daemon's own user may do that")
    assert any("the daemon does not show this: only" in line for line in drawn(View(), part))
    lost = drawn(View(), fleet_of(3), lost="no daemon answers", lost_for=5)
    assert lost[0].endswith("connection lost 5s ago")
    assert "no daemon answers; trying again" in lost[-2]


def test_planted_sequences_come_out_as_words() -> None:
    """What would be obeyed is taken away, and what can be read stays."""
    fleet = changed(fleet_of(3), "default", "i-0000", why=f"{PLANTED} end", slots=(PLANTED,))
    shown = "\n".join(drawn(View(), fleet, 140))
    assert "redgnp end · redgnp" in shown
    assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(shown)
