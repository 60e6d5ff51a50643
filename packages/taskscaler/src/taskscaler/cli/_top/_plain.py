"""One look at a fleet, as plain text: for a pipe, a file, or a terminal that should not be taken over."""

from collections.abc import Iterator, Sequence
from typing import Any

import anyio
from rich.cells import cell_len
from rich.text import Text

from fleeting import LoopClock
from fleeting.cli import SUCCEEDED
from fleeting.plugins import one_line
from taskscaler._socket import Place
from taskscaler.cli._console import PatientConsole
from taskscaler.cli._paragraphs import Paragraphs, Row
from taskscaler.cli._top._feed import Feed
from taskscaler.cli._top._fleet import Fleet
from taskscaler.cli._top._paint import ceiling_of, slots_in_words
from taskscaler.cli._top._rows import DECISIONS, TABS, Order, Tab

LAST_DECISIONS = 5
"""So many are shown."""


def print_once(place: Place) -> int:
    """Print a daemon's fleet as it is now, and return the exit status.

    Raises:
        NoDaemon: None answers.
        FleetingError: It refuses.
    """
    fleet, now = anyio.run(_look, place)
    console = PatientConsole()
    Paragraphs(console).add(*head(fleet))
    for line in tables(fleet, now):
        console.print(Text(line), highlight=False, soft_wrap=True)
    return SUCCEEDED


async def _look(place: Place) -> tuple[Fleet, float]:
    feed = Feed(place, LoopClock(), lambda: None)
    await feed.once()
    return feed.fleet, feed.now


def head(fleet: Fleet) -> Iterator[Row]:
    """Describe the whole."""
    yield "fleet", f"{fleet.name}, {fleet.state}"
    yield "now", fleet.answer
    yield "slots", slots_in_words(fleet)
    yield from (("pool", f"{name}: {counts}{ceiling_of(fleet, name)}") for name, counts in fleet.pools.items())
    yield from [("cost", fleet.cost)] if fleet.cost else []
    if fleet.refused:
        yield "note", f"only a part is shown: {fleet.refused}"


def tables(fleet: Fleet, now: float) -> Iterator[str]:
    """List all there is, a line each below titles; lines are as long as what they say."""
    for tab in TABS:
        if fleet.refused and tab.name != "jobs":
            continue
        rows = tab.rows(fleet, Order(), "")
        shown = rows[:LAST_DECISIONS] if tab is DECISIONS else rows
        yield ""
        yield from _table(tab, shown, now) if rows else [tab.empty]
        if tab.name == "jobs" and (more := fleet.waiting_in_all - len(fleet.waiting)) > 0:
            yield f"and {more} more that wait"


def _table(tab: Tab[Any], rows: Sequence[Any], now: float) -> Iterator[str]:
    cells = [[one_line(column.cell(row, now)) for column in tab.columns] for row in rows]
    lines = [[column.title for column in tab.columns], *cells]
    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        padded = (cell + " " * (room - cell_len(cell)) for cell, room in zip(line, widths, strict=True))
        yield "  ".join(padded).rstrip()
