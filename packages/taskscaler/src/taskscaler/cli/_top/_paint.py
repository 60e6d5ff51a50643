"""Draws a view of a fleet as lines for a terminal of any size. Pure: nothing is read or written.

All that comes from a daemon, and so from clouds, instances and jobs, passes `fit` or `broken_up`: nothing that a
terminal would obey is left of it.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from attrs import frozen
from rich.cells import cell_len, set_cell_size

from fleeting.config import harmless
from fleeting.plugins import one_line, span
from taskscaler._names import shortened
from taskscaler.cli._text import broken, listed
from taskscaler.cli._top._fleet import Fleet, slot_words
from taskscaler.cli._top._rows import TABS, Column, Mood, Order, named
from taskscaler.cli._top._view import Hold, Question, View

Part = tuple[str, str]
"""A text, and its style as rich writes them."""

Line = Sequence[Part]

LEAST_WIDTH, LEAST_HEIGHT = 40, 10
"""Smaller terminals are told that they are too small."""

USUAL_WIDTH = 80
_LABEL = 7
_LINES_OF_ANSWER = 2
_MOST_POOLS = 3
_WIDEST = 44
"""Columns that a growing column has at most."""

_STYLES: dict[Mood, str] = {"": "", "good": "green", "busy": "yellow", "bad": "red", "dim": "dim"}
_CHOSEN = "reverse"

KEYS: Sequence[tuple[str, str]] = (
    ("Up, Down, PgUp, PgDn, Home, End", "choose a row; also j, k, g and G"),
    ("Tab, Shift+Tab, 1, 2, 3", "show another list: instances, jobs, decisions"),
    ("Enter", "explain what is chosen: why it is there, what it waits for, what happens next"),
    ("i", "in the explanation of a running job: explain its instance"),
    ("Esc", "go back; in a list, remove the filter"),
    ("/", "show only rows that contain what you type, in any column"),
    ("s, S", "sort by the next column; reverse the order"),
    ("c", "cordon the instance, so that it gets no new work; undo that if it is cordoned"),
    ("r", "retain the instance, so that it is not deleted; undo that if it is retained"),
    ("q", "quit; the fleet goes on"),
)
"""What each key does, for who asks."""

_HINTS = "Enter explain  / filter  s sort  c cordon  r retain  Tab lists  ? keys  q quit"

ASKED: dict[Hold, str] = {
    "cordon": "it gets no new work; what runs there goes on",
    "uncordon": "it gets work again",
    "retain": "it is not deleted, whatever happens, and keeps costing money",
    "unretain": "it may be deleted again",
}
"""What follows from a yes."""


@frozen(kw_only=True)
class Scene:
    """All that is drawn."""

    fleet: Fleet
    view: View
    """Settled among the rows."""

    rows: Sequence[Any]
    details: Sequence[str] = ()
    """Sentences about the view's subject, once they are there; the answer first."""

    lost: str = ""
    """Why nothing comes from the daemon; empty: all is well."""

    lost_for: float = 0.0
    """Seconds since then."""

    now: float
    """Seconds since the epoch, on the daemon's clock."""


def room_of(fleet: Fleet, height: int) -> int:
    """How many rows a list has room for."""
    return max(1, height - first_row(fleet) - 2)


def first_row(fleet: Fleet) -> int:
    """On which line the first row of a list stands, from 0."""
    return 3 + _LINES_OF_ANSWER + min(max(1, len(fleet.pools)), _MOST_POOLS + 1) + 2


def paint(scene: Scene, width: int, height: int) -> Sequence[Line]:
    """Draw it, on exactly *height* lines none of which is wider than *width*."""
    if width < LEAST_WIDTH or height < LEAST_HEIGHT:
        small = f"this needs a terminal of {LEAST_WIDTH} columns and {LEAST_HEIGHT} lines"
        return [[(fit(small, width), "")], *([[]] * (height - 1))][:height]
    head = [*_head(scene, width)]
    foot = [*_foot(scene, width)]
    body = [*_body(scene, width, height - len(head) - len(foot))]
    lines = [*head, *body]
    lines += [[]] * (height - len(foot) - len(lines))
    return [_cropped(line, width) for line in [*lines[: height - len(foot)], *foot]]


def _cropped(line: Line, width: int) -> Line:
    """Leave out what a narrow terminal has no room for."""
    if sum(cell_len(text) for text, _ in line) <= width:
        return line
    kept: list[Part] = []
    for text, style in line:
        kept.append((fit(text, width), style))
        width -= cell_len(kept[-1][0])
    return kept


# --- head ------------------------------------------------------------------------------------------------


def _head(scene: Scene, width: int) -> Iterator[Line]:
    fleet = scene.fleet
    live = f"connection lost {span(int(scene.lost_for))} ago" if scene.lost else "live"
    state = fleet.state if fleet.state != "serving" else ""
    title = listed(filter(None, ["taskscaler top", one_line(fleet.name).rpartition("/")[2], state]))
    room = width - len(live) - 1
    yield [(fit(title, room, pad=True), "bold"), (" ", ""), (live, "bold red" if scene.lost else "green")]
    answer = broken_up(fleet.answer, width - _LABEL, most=_LINES_OF_ANSWER)
    for number in range(_LINES_OF_ANSWER):
        yield _labelled("" if number else "now", answer[number] if number < len(answer) else "", width)
    yield _labelled("slots", slots_in_words(fleet), width)
    yield from _pools(fleet, width)
    yield _labelled("cost", fleet.cost or "nothing is known", width)


def _labelled(label: str, text: str, width: int) -> Line:
    return [(f"{label:<{_LABEL}}", "dim"), (fit(text, width - _LABEL), "")]


def slots_in_words(fleet: Fleet) -> str:
    """Count what slots do, and who waits."""
    return ", ".join(f"{count} {words}" for words, count in slot_words(fleet)) or "none"


def _pools(fleet: Fleet, width: int) -> Iterator[Line]:
    pools = [*fleet.pools.items()]
    over_all = f"; at most {fleet.ceiling} in all pools" if fleet.ceiling is not None else ""
    for number, (name, counts) in enumerate(pools[:_MOST_POOLS]):
        text = f"{name}: {counts}{ceiling_of(fleet, name)}{'' if number else over_all}"
        yield _labelled("" if number else "pool", text, width)
    if len(pools) > _MOST_POOLS:
        yield _labelled("", f"and {len(pools) - _MOST_POOLS} more pools", width)
    if not pools:
        yield _labelled("pool", "none", width)


def ceiling_of(fleet: Fleet, pool: str) -> str:
    """Say how many instances a pool may have; empty: any number, or nobody knows."""
    most = fleet.ceilings.get(pool)
    return f", at most {most}" if most is not None else ""


# --- body ------------------------------------------------------------------------------------------------


def _body(scene: Scene, width: int, height: int) -> Iterator[Line]:
    if scene.view.help:
        yield from _help(width)
    elif scene.view.subject is not None:
        yield from _details(scene, width, height)
    else:
        yield _tabs(scene, width)
        yield from _list(scene, width, height - 1)


def _help(width: int) -> Iterator[Line]:
    yield [(fit("what keys do (any key closes this)", width, pad=True), "bold underline")]
    for keys, what in KEYS:
        first, *rest = broken_up(what, width - 34)
        yield [(f"{keys:<34}", "bold"), (first, "")]
        yield from ([(" " * 34, ""), (line, "")] for line in rest)


def detail_lines(scene: Scene, width: int) -> list[str]:
    """The details, broken into lines."""
    return [line for text in scene.details for line in [*broken_up(text, width - 2), ""]]


def _details(scene: Scene, width: int, height: int) -> Iterator[Line]:
    subject = scene.view.subject
    assert subject is not None  # noqa: S101  (its only caller has looked)
    title = "decision" if subject.kind == "decision" else f"{subject.kind} {named(subject.name)}"
    yield [(fit(title, width, pad=True), "bold underline")]
    lines = detail_lines(scene, width) or ["asking the daemon …"]
    scroll = min(scene.view.scroll, max(0, len(lines) - (height - 1)))
    yield from ([("  ", ""), (line, "")] for line in lines[scroll : scroll + height - 1])


def _tabs(scene: Scene, width: int) -> Line:
    view, parts, used = scene.view, [], 0
    counts = (len(scene.fleet.instances), _jobs(scene.fleet), len(scene.fleet.decisions))
    for number, (tab, count) in enumerate(zip(TABS, counts, strict=True)):
        text = f" {number + 1}:{tab.name} ({count}) "
        parts.append((text, "bold reverse" if number == view.tab else "dim"))
        used += len(text)
    return [*parts, (fit(_shown(scene), width - used), "yellow")]


def _jobs(fleet: Fleet) -> int:
    return fleet.waiting_in_all + len(fleet.running)


def _shown(scene: Scene) -> str:
    """Say what keeps rows from being there, or in their places."""
    view, order = scene.view, scene.view.order
    only = f"{len(scene.rows)} with “{view.filter}”" if view.filter or view.typing else ""
    return "  " + ", ".join(filter(None, [only, "reversed" if order.reverse and order.column is None else ""]))


def _title(number: int, column: Column[Any], order: Order, room: int) -> str:
    """Write a column's title, and which way the rows are sorted if they are sorted by it."""
    way = "" if number != order.column else "↑" if order.reverse else "↓"
    return fit(column.title + way, room, pad=True, right=column.right)


def _list(scene: Scene, width: int, height: int) -> Iterator[Line]:
    view, here = scene.view, scene.view.here
    widths = widths_of(view.list.columns, width)
    columns = enumerate(zip(view.list.columns, widths, strict=True))
    titles = [_title(number, column, view.order, room) for number, (column, room) in columns]
    yield [(fit(" ".join(titles), width, pad=True), "bold underline")]
    if not scene.rows:
        for line in broken_up(_why_empty(scene), width - 2):
            yield [("  ", ""), (line, "dim")]
    for number, row in enumerate(scene.rows[here.top : here.top + height - 1], here.top):
        style = "dim" if scene.lost else _STYLES[view.list.mood(row)]
        style = f"{_CHOSEN} {style}" if number == here.index else style
        yield [(row_text(view.list.columns, widths, row, scene.now), style)]


def _why_empty(scene: Scene) -> str:
    view = scene.view
    if scene.fleet.refused and view.list is not TABS[1]:
        return f"the daemon does not show this: {scene.fleet.refused}"
    return f"nothing contains “{view.filter}”; Esc shows all" if view.filter else view.list.empty


def row_text(columns: Sequence[Column[Any]], widths: Sequence[int], row: object, now: float) -> str:
    """Write a row, as wide as its columns are."""
    return " ".join(_cell(column, room, row, now) for column, room in zip(columns, widths, strict=True))


def _cell(column: Column[Any], room: int, row: object, now: float) -> str:
    text = one_line(column.cell(row, now))
    if column.grows and cell_len(text) > room:
        text = shortened(text, room)
    return fit(text, room, pad=True, right=column.right)


def widths_of(columns: Sequence[Column[Any]], width: int) -> list[int]:
    """Share the width out among columns: those that grow have more where there is more, the last one what is left."""
    wider = max(0, width - USUAL_WIDTH) // 4
    fixed = [min(column.width + wider, _WIDEST) if column.grows else column.width for column in columns[:-1]]
    return [*fixed, max(1, width - sum(fixed) - len(fixed))]


# --- foot ------------------------------------------------------------------------------------------------


def _foot(scene: Scene, width: int) -> Iterator[Line]:
    view = scene.view
    if view.question is not None:
        yield from _question(view.question, width)
        return
    yield [_said(scene, width)]
    if view.typing:
        yield [(fit(f"filter: {view.filter}▏  (Enter keeps it, Esc removes it)", width, pad=True), "bold")]
    else:
        yield [(fit(_hints(view), width, pad=True), "dim")]


def _said(scene: Scene, width: int) -> Part:
    if scene.lost:
        return fit(f"{scene.lost}; trying again", width), "bold red"
    if not scene.view.message and scene.fleet.refused:
        return fit(f"only a part is shown: {scene.fleet.refused}", width), "yellow"
    return fit(scene.view.message, width), "yellow"


def _hints(view: View) -> str:
    if view.subject is None:
        return _HINTS
    on = "  c cordon  r retain" if view.subject.kind == "instance" else ""
    on = "  i its instance" if view.subject.instance else on
    return f"Esc back  Up, Down scroll{on}  ? keys  q quit"


def _question(question: Question, width: int) -> Iterator[Line]:
    what = f"{question.verb} {one_line(question.instance)}? {ASKED[question.verb]}"
    yield [(fit(what, width, pad=True), "bold yellow")]
    why = f"reason (optional): {question.why}▏  " if question.takes_reason else ""
    end = "Enter: yes   Esc: no"
    room = width - len(end)
    yield [(fit_end(why, room), "bold"), (end, "bold reverse")]


# --- text ------------------------------------------------------------------------------------------------


_READ_PER_COLUMN = 64
"""Characters of a text that are looked at for each column: what takes no room has no end otherwise."""


def fit(text: str, room: int, *, pad: bool = False, right: bool = False) -> str:
    """Make a text fit for a terminal, and into so many of its columns; what is cut off is replaced by an ellipsis."""
    if room <= 0:
        return ""
    text = text[: _READ_PER_COLUMN * room]
    clean = text if text.isascii() and text.isprintable() else " ".join(harmless(_whole(text)).split("\n"))
    if cell_len(clean) > room:
        clean = set_cell_size(clean, room - 1).rstrip() + "…"
    if not pad:
        return clean
    return " " * (room - cell_len(clean)) + clean if right else set_cell_size(clean, room)


def fit_end(text: str, room: int) -> str:
    """Show the end of what is being typed."""
    clean = fit(text, FAR_ENOUGH)
    while cell_len(clean) > room:
        clean = clean[1:]
    return set_cell_size(clean, max(0, room))


FAR_ENOUGH = 1000


def _whole(text: str) -> str:
    """Give a text that has bytes as UTF-8, and neither tabs nor other white space that moves the cursor."""
    return " ".join(text.encode(errors="replace").decode().replace("\t", " ").splitlines())


def broken_up(text: str, room: int, *, most: int | None = None) -> list[str]:
    """Break a text into lines between words, each fit for a terminal."""
    return [fit(line, room) for line in broken(one_line(text), max(1, room), most=most)]
