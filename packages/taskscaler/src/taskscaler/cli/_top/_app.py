"""The terminal's part of `top`: keys go into the view, and lines come out. Everything else is pure, or the feed's."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import anyio
from attrs import evolve
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.strip import Strip
from textual.widget import Widget

from fleeting import FleetingError, LoopClock
from taskscaler._socket import Place
from taskscaler.cli._top._feed import Feed
from taskscaler.cli._top._fleet import Fleet
from taskscaler.cli._top._paint import Line, Scene, detail_lines, first_row, paint, room_of
from taskscaler.cli._top._rows import Order
from taskscaler.cli._top._view import Around, Question, Quit, Subject, View, moved, pressed, settled

FRAME = 0.25
"""Seconds between two pictures at least, however much happens."""

TICK = 4
"""After so many frames without any news, ages are written again."""

EXPLAIN_INTERVAL = 2.0
"""Seconds between two questions about what is explained at the moment."""

WHEEL = 3
"""Rows that a turn of the mouse's wheel goes."""


class Picture(Widget, can_focus=True):
    """Shows lines; whatever they say was made fit for a terminal before."""

    DEFAULT_CSS = "Picture { width: 100%; height: 100%; }"

    lines: Sequence[Line] = ()

    def show(self, lines: Sequence[Line]) -> None:
        """Show other lines; those that have not changed are not written again."""
        before, self.lines = self.lines, lines
        if len(before) != len(lines):
            self.refresh()
            return
        changed = [number for number, line in enumerate(lines) if line != before[number]]
        if changed:
            self.refresh_lines(changed[0], changed[-1] - changed[0] + 1)

    def refresh_lines(self, y: int, count: int) -> None:
        """Have some lines written again."""
        from textual.geometry import Region

        self.refresh(Region(0, y, self.size.width, count))

    def render_line(self, y: int) -> Strip:
        """Give one line."""
        width = self.size.width
        if y >= len(self.lines):
            return Strip.blank(width)
        segments = [Segment(text, Style.parse(style) if style else Style.null()) for text, style in self.lines[y]]
        return Strip(segments).adjust_cell_length(width)


class Top(App[None]):
    """The fleet of a daemon in the terminal."""

    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+q", "quit", show=False)]
    CSS = "Screen { background: ansi_default; color: ansi_default; }"

    feed: Feed
    """What is shown; there once the loop runs."""

    def __init__(self, opened: Callable[[Callable[[], object]], Feed]) -> None:
        """Take what makes the feed, once the loop runs, from what is to be called when there is news."""
        super().__init__(ansi_color=True)
        self.theme = "ansi-dark"
        self._opened = opened
        self._view = View()
        self._details: tuple[Subject, list[str]] | None = None
        self._news = True
        self._quiet = 0
        """Frames since the last picture."""

        self._rows: tuple[Any, list[Any]] = (None, [])
        """Those of the list, by what they depend on."""

        self._asked: anyio.Event | None = None
        """Set when what is explained has changed."""

    def compose(self) -> ComposeResult:
        """Have one widget, which is everything."""
        yield Picture()

    def on_mount(self) -> None:
        """Begin to ask and to listen."""
        self.feed = self._opened(self._changed)
        self._asked = anyio.Event()
        self.query_one(Picture).focus()
        self.run_worker(self.feed.run(), exit_on_error=True)
        self.run_worker(self._explain_on(), exit_on_error=True)
        self.set_interval(FRAME, self._frame)

    def _changed(self) -> None:
        self._news = True

    def _frame(self) -> None:
        """Draw, if there is anything new, or time has gone by."""
        self._quiet += 1
        if self._news or self._quiet >= TICK:
            self._draw()

    def _draw(self) -> None:
        self._news, self._quiet = False, 0
        width, height = self.size
        self._settle(height)
        self.query_one(Picture).show(paint(self._scene(), width, height))

    def _settle(self, height: int) -> None:
        self._view = settled(self._view, self._listed(), room_of(self.feed.fleet, height))

    def _scene(self) -> Scene:
        feed, view = self.feed, self._view
        known = self._details is not None and self._details[0] == view.subject
        details = self._details[1] if known and self._details else []
        if view.subject is not None and view.subject.kind == "decision":
            details = [view.subject.name]
        return Scene(
            fleet=feed.fleet,
            view=view,
            rows=self._listed(),
            details=details,
            lost=feed.lost,
            lost_for=feed.clock.now() - feed.lost_at if feed.lost else 0.0,
            now=feed.now,
        )

    def _listed(self) -> list[Any]:
        """Give the rows of the list; sorted again only if something has changed."""
        view = self._view
        basis: tuple[Fleet, int, Order, str] = (self.feed.fleet, view.tab, view.order, view.filter)
        last = self._rows[0]
        if last is None or last[0] is not basis[0] or last[1:] != basis[1:]:
            self._rows = (basis, view.list.rows(self.feed.fleet, view.order, view.filter))
        return self._rows[1]

    # --- keys and mouse ----------------------------------------------------------------------------------

    async def on_key(self, event: events.Key) -> None:
        """Take in a key."""
        event.prevent_default()
        event.stop()
        width, height = self.size
        self._settle(height)
        before, room = self._view.subject, room_of(self.feed.fleet, height)
        around = Around(fleet=self.feed.fleet, rows=self._listed(), room=room)
        view, wish = pressed(self._view, event.key, event.character, around)
        if view.subject is not None:  # not farther than there is anything
            last = max(0, len(detail_lines(self._scene(), width)) - room)
            view = evolve(view, scroll=min(view.scroll, last))
        self._view = view
        if view.subject != before and self._asked is not None:
            self._asked.set()
        match wish:
            case Quit():
                self.exit()
            case Question():
                self.run_worker(self._hold(wish), exit_on_error=True)
        self._draw()

    def on_paste(self, event: events.Paste) -> None:
        """Take what is pasted as typed, in one line, if anything is being typed."""
        event.stop()
        if self._view.typing or self._view.question is not None:
            around = Around(fleet=self.feed.fleet)
            for character in event.text.splitlines()[0] if event.text else "":
                self._view, _ = pressed(self._view, character, character, around)
            self._draw()

    def on_mouse_scroll_down(self, _: events.MouseScrollDown) -> None:
        """Go down."""
        self._turn(WHEEL)

    def on_mouse_scroll_up(self, _: events.MouseScrollUp) -> None:
        """Go up."""
        self._turn(-WHEEL)

    def on_click(self, event: events.Click) -> None:
        """Choose the row that is clicked on."""
        row = event.screen_y - first_row(self.feed.fleet)
        if self._in_list and 0 <= row < room_of(self.feed.fleet, self.size.height):
            self._choose(lambda here: here.top + row)

    @property
    def _in_list(self) -> bool:
        return self._view.subject is None and self._view.question is None and not self._view.help

    def _turn(self, rows: int) -> None:
        if self._in_list:
            self._choose(lambda here: here.index + rows)

    def _choose(self, index: Callable[[Any], int]) -> None:
        room = room_of(self.feed.fleet, self.size.height)
        self._settle(self.size.height)
        self._view = moved(self._view, self._listed(), index(self._view.here), room)
        self._draw()

    def on_resize(self) -> None:
        """Draw for the terminal as it is now."""
        if hasattr(self, "feed"):
            self._draw()

    # --- the daemon --------------------------------------------------------------------------------------

    async def _hold(self, question: Question) -> None:
        """Do what was said yes to, and say what has become of it."""
        done = {"cordon": "cordoned", "uncordon": "no longer cordoned", "retain": "retained"}
        try:
            await self.feed.hold(question)
            said = f"{question.instance} is {done.get(question.verb, 'no longer retained')}"
        except (FleetingError, ValueError) as error:
            said = f"the daemon: {error}"
        self._view = evolve(self._view, message=said)
        self._news = True

    async def _explain_on(self) -> None:
        """Keep the explanation of what is looked at up to date."""
        while True:
            asked = self._asked = anyio.Event()
            subject = self._view.subject
            if subject is not None and subject.kind != "decision":
                self._details = (subject, await self._explained(subject))
                self._news = True
            with anyio.move_on_after(EXPLAIN_INTERVAL):
                await asked.wait()

    async def _explained(self, subject: Subject) -> list[str]:
        try:
            return await self.feed.explain(subject)
        except (FleetingError, ValueError) as error:
            return [f"the daemon: {error}"]


def show(place: Place) -> int:
    """Show the fleet until the user quits; returns the exit status."""
    app = Top(lambda changed: Feed(place, LoopClock(), changed))
    app.run()
    return app.return_code or 0
