"""What is shown while a batch runs: a live picture on a terminal, one line for each event elsewhere."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

import anyio
from attrs import define, field, frozen
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fleeting.config import harmless
from fleeting.plugins import one_line, span
from taskscaler._names import shortened
from taskscaler._wording import counted
from taskscaler.batch import BatchState, JobChanged, JobState
from taskscaler.cli._text import broken, listed

LIVE_INTERVAL = 0.25
"""Seconds between two pictures: quick enough to look alive."""

GATHERING = 0.1
"""Seconds for which lines about jobs are gathered, to be printed at once."""

PLAIN_INTERVAL = 1.0
"""Seconds between two looks at the fleet where every change becomes a line."""

QUIET = 5.0
"""Seconds in which nothing runs or changes, after which it is said why; then after twice as long, and so on."""

SILENCE = 2.0
"""Seconds of work after which a line says what takes so long, where nothing on the screen can move."""

STEPS = 10
"""How often it is said, where every change becomes a line, how much of the batch is done."""

_FLEET_STATES = ("running", "pending", "creating", "deleting")
_WORDS = {"running": "ready", "pending": "booting"}
"""Where our words for people differ from those of the metrics."""

_ECHO = Text()
"""An empty line for the ``^C`` that a terminal writes where the cursor is: at the end of a full line it would begin
another, and the picture's first line would stay for good."""

_INDENT = 2
"""Columns at least by which what is below the first line of a message is indented."""

_LEFT = "left   "
_WHY = "why    "
_MOST_LINES_OF_WHY = 3
_NARROWEST_CELL = 24
_CELL_GAP = 2
_LONGEST_ID = 32

_STYLES = {  # of the ends that are distinguished while the batch runs
    JobState.FAILED: "red",
    JobState.TIMED_OUT: "red",
    JobState.LOST: "red",
    JobState.NO_CAPACITY: "red",
    JobState.CANCELLED: "yellow",
    JobState.SKIPPED: "yellow",
}


class Instance(Protocol):
    """The part of an `InstanceView` that is shown."""

    @property
    def id(self) -> str:
        """Its id."""
        ...

    @property
    def state(self) -> str:
        """``creating``, ``pending``, ``running`` or ``deleting``."""
        ...

    @property
    def slots(self) -> Sequence[str | None]:
        """For each slot the key that holds it, or None."""
        ...

    @property
    def cleaning(self) -> Collection[int]:
        """Numbers of the slots that are being cleaned."""
        ...


@frozen(kw_only=True)
class Picture:
    """All that can be seen of a batch at one moment."""

    title: str
    time: float
    """Seconds since the start."""

    state: BatchState
    instances: Sequence[Instance]
    ceiling: int
    """`max_instances`; 0: none."""

    left: str = ""
    """How much longer it takes, and what that rests on; empty while nothing is known."""

    why: str = ""
    """Why jobs wait; empty if none does."""


@define
class Progress(ABC):
    """Shows how a batch goes on: informed of changes, it also looks by itself from time to time."""

    console: Console
    look: Callable[[], Awaitable[Picture]]
    time: Callable[[], float]
    """Seconds since the start."""

    @abstractmethod
    def changed(self, change: JobChanged) -> None:
        """Take in that a job changed; the observer of a `Batch`."""

    @abstractmethod
    def say(self, text: str) -> None:
        """Show the user a message."""

    @abstractmethod
    async def show(self) -> None:
        """Keep the display up to date until cancelled."""

    @abstractmethod
    def busy(self, work: str) -> AbstractAsyncContextManager[None]:
        """Show that something else is at work, for the time of the context: ``drawing the timeline``."""


def progress_for(console: Console, look: Callable[[], Awaitable[Picture]], time: Callable[[], float]) -> Progress:
    """Choose what suits the console."""
    live = console.is_terminal and not console.is_dumb_terminal
    return LiveProgress(console, look, time) if live else PlainProgress(console, look, time)


@define
class PlainProgress(Progress):
    """One line for each event, with the time since the start."""

    _fleet: str = field(default="", init=False)
    _steps: int = field(default=0, init=False)
    """Of `STEPS`, how many of the batch are done."""

    _quiet_until: float = field(default=QUIET, init=False)
    _quiet: float = field(default=QUIET, init=False)
    _gathered: list[str] = field(factory=list, init=False)
    _has_gathered: anyio.Event | None = field(default=None, init=False)
    """Set when something was gathered; None: nobody would print it, so that nothing is."""

    def changed(self, change: JobChanged) -> None:
        """Print soon what became of the job, unless it never began."""
        self._be_quiet(QUIET)
        if change.record.attempts:
            self._gathered += self._lines(describe(change))
            if self._has_gathered is None:
                self._print_gathered()
            else:
                self._has_gathered.set()

    def say(self, text: str) -> None:
        """Print it with the time."""
        self._gathered += self._lines(text)
        self._print_gathered()

    async def show(self) -> None:
        """Print what has changed."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._print_on)
                await self._look_on()
        finally:
            self._has_gathered = None
            self._print_gathered()

    def _lines(self, text: str) -> list[str]:
        return _broken_up(self.console, f"[{span(self.time()):>7}] ", text)

    def _print_gathered(self) -> None:
        lines, self._gathered = self._gathered, []
        if lines:
            _print(self.console, lines)

    async def _print_on(self) -> None:
        """Print what is gathered, again and again."""
        while True:
            self._has_gathered = anyio.Event()
            await self._has_gathered.wait()
            await anyio.sleep(GATHERING)
            self._print_gathered()

    async def _look_on(self) -> None:
        """Print a line whenever the fleet has changed, and now and then why nothing runs."""
        while True:
            picture = await self.look()
            fleet = describe_fleet(picture.instances)
            if fleet != self._fleet:
                self._fleet = fleet
                self.say(f"fleet: {fleet}")
            self._say_how_much(picture)
            if picture.state.count(JobState.RUNNING):
                self._be_quiet(QUIET)
            elif picture.why and self.time() >= self._quiet_until:
                self._be_quiet(2 * self._quiet)
                self.say(picture.why)
            await anyio.sleep(PLAIN_INTERVAL)

    @asynccontextmanager
    async def busy(self, work: str) -> AsyncIterator[None]:
        """Print a line if it takes its time."""

        async def say_later() -> None:
            await anyio.sleep(SILENCE)
            self.say(f"{work} …")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(say_later)
            yield
            tasks.cancel_scope.cancel()

    def _say_how_much(self, picture: Picture) -> None:
        """Print now and then how much is done, and what is left: which the lines of single jobs do not show."""
        done, of = picture.state.done, len(picture.state)
        steps = done * STEPS // max(1, of)
        if steps > self._steps and done < of and picture.left:
            self.say(f"{done} of {of} jobs are over; left: {picture.left}")
        self._steps = steps

    def _be_quiet(self, seconds: float) -> None:
        """Do not say before so many seconds are over why nothing runs."""
        self._quiet = seconds
        self._quiet_until = self.time() + seconds


@define
class LiveProgress(Progress):
    """A picture that is painted over, and lines above it for what should stay to be read."""

    def changed(self, change: JobChanged) -> None:
        """Print only what went wrong; the picture shows the rest."""
        if change.record.why and change.record.attempts:
            self.say(describe(change))

    def say(self, text: str) -> None:
        """Print one line above the picture."""
        _print(self.console, _broken_up(self.console, "", text))

    @asynccontextmanager
    async def busy(self, work: str) -> AsyncIterator[None]:
        """Turn a wheel."""
        with self.console.status(f"{work} …"):
            yield

    async def show(self) -> None:
        """Paint the picture again and again; it is gone afterwards, for the summary says it all."""
        with Live(console=self.console, auto_refresh=False, transient=True, vertical_overflow="crop") as live:
            while True:
                picture = await self.look()
                live.update(Group(paint(picture, self.console.width, self.console.height - 1), _ECHO), refresh=True)
                await anyio.sleep(LIVE_INTERVAL)


def _broken_up(console: Console, prefix: str, text: str) -> list[str]:
    """Put a text behind a prefix; what is below its first line is indented, and cannot be taken for a line of ours.

    On a terminal it is broken between words; elsewhere it is not, so that it can be searched for.
    """
    lines, indent = harmless(text).splitlines(), " " * max(_INDENT, len(prefix))
    if console.is_terminal:
        lines = [piece for line in lines for piece in broken(line, console.width - len(indent))]
    return [f"{indent if number else prefix}{line}" for number, line in enumerate(lines)]


def _print(console: Console, lines: Iterable[str]) -> None:
    console.print(Text("\n".join(lines)), highlight=False, soft_wrap=True)


def describe(change: JobChanged) -> str:
    """Say in a line what became of a job."""
    record = change.record
    attempt = record.attempts[-1] if record.attempts and record.attempts[-1].state is record.state else None
    where = f" on {one_line(attempt.place)}" if attempt else ""
    why = f": {one_line(record.why)}" if record.why else ""
    match record.state:
        case JobState.RUNNING if len(record.attempts) > 1:
            return f"{record.name} runs{where}, try {len(record.attempts)}"
        case JobState.RUNNING:
            return f"{record.name} runs{where}"
        case JobState.QUEUED if (wait := record.retry_at - change.at) > 0:
            return f"{record.name} retries in {span(wait)}{why}"
        case JobState.QUEUED:
            return f"{record.name} will be retried{why}"
        case _:
            took = f" after {span(attempt.duration)}" if attempt else ""
            return f"{record.name} {record.state.words}{where}{took}{why}"


def describe_fleet(instances: Sequence[Instance]) -> str:
    """Count the instances by state: ``2 ready · 1 creating``."""
    counts = Counter(instance.state for instance in instances)
    return listed(f"{counts[state]} {_WORDS.get(state, state)}" for state in _FLEET_STATES if counts[state]) or "none"


def paint(picture: Picture, width: int, height: int) -> RenderableType:
    """Draw the picture, at most *height* lines high."""
    head = [_title(picture), _jobs(picture), *_left(picture), _fleet(picture), *_why(picture, width)]
    return Group(*head, Text(), _instances(picture, width, height - len(head) - 2))


def _title(picture: Picture) -> RenderableType:
    line = Table.grid(expand=True)
    line.add_column(no_wrap=True, overflow="ellipsis")
    line.add_column(justify="right")
    line.add_row(Text(one_line(picture.title), style="bold"), Text(span(picture.time)))
    return line


def _jobs(picture: Picture) -> RenderableType:
    state = picture.state
    line = Table.grid(padding=(0, 1))
    bar = ProgressBar(total=max(1, len(state)), completed=state.done, width=20, complete_style="green")  # rich's is red
    line.add_row("jobs  ", bar, _counts(state))
    return line


def _counts(state: BatchState) -> Text:
    """Write what matters most first: a narrow terminal cuts off the end."""
    bad = [(f"{state.count(kind)} {kind.words}", style) for kind, style in _STYLES.items() if state.count(kind)]
    waiting = [(f"{state.count(kind)} {kind.words}", "") for kind in (JobState.RUNNING, JobState.QUEUED)]
    parts = [(f"{state.done} of {len(state)}", "bold"), *bad, *waiting]
    return Text(" · ", overflow="ellipsis", no_wrap=True).join(Text(text, style) for text, style in parts)


def _left(picture: Picture) -> Iterator[Text]:
    if picture.left:
        yield Text(f"{_LEFT}{picture.left}", no_wrap=True, overflow="ellipsis")


def _fleet(picture: Picture) -> RenderableType:
    limit = f", at most {picture.ceiling}" if picture.ceiling else ""
    return Text(f"fleet  {describe_fleet(picture.instances)}{limit}", no_wrap=True, overflow="ellipsis")


def _why(picture: Picture, width: int) -> Iterator[Text]:
    """Say why jobs wait, in so few lines that the instances stay in sight."""
    lines = broken(one_line(picture.why), width - len(_WHY), most=_MOST_LINES_OF_WHY) if picture.why else []
    for number, line in enumerate(lines):
        label = "" if number else _WHY
        yield Text(f"{label:<{len(_WHY)}}{line}", style="yellow", no_wrap=True, overflow="ellipsis")


def _instances(picture: Picture, width: int, room: int) -> RenderableType:
    """Give each instance a line with the names of its jobs or, where lines are too few, a cell with their number."""
    room = max(1, room)
    if len(picture.instances) <= room:
        return _lines(picture.instances, width)
    columns = max(1, width // _NARROWEST_CELL)
    shown = picture.instances[: columns * (room - 1)]
    grid = Table.grid(padding=(0, _CELL_GAP), expand=True)
    for _ in range(columns):
        grid.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    for start in range(0, len(shown), columns):
        grid.add_row(*(_cell(instance) for instance in shown[start : start + columns]))
    hidden = len(picture.instances) - len(shown)
    return Group(grid, Text(f"and {counted(hidden, 'more instance')}", style="dim")) if hidden else grid


def _lines(instances: Sequence[Instance], width: int) -> RenderableType:
    ids = [shortened(one_line(instance.id), min(_LONGEST_ID, width // 2)) for instance in instances]
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True, min_width=max(map(len, ids), default=0))  # long rows of jobs would cut ids short
    grid.add_column(no_wrap=True, overflow="ellipsis")
    for id_, instance in zip(ids, instances, strict=True):
        grid.add_row(id_, _slots(instance))
    return grid


def _slots(instance: Instance) -> Text:
    if instance.state != "running":
        return Text(_WORDS.get(instance.state, instance.state), style="dim")
    line = Text()  # joined with a dim text, everything would be dim
    for number, key in enumerate(instance.slots):
        free = "cleaning" if number in instance.cleaning else "idle"
        line.append(" · " if number else "", style="dim").append(one_line(key or free), style="" if key else "dim")
    return line


def _cell(instance: Instance) -> Text:
    """Write the id, cut to what room the state or the number of jobs leaves it."""
    busy = sum(key is not None for key in instance.slots)
    ready = instance.state == "running"
    status = f"{busy}/{len(instance.slots)}" if ready else _WORDS.get(instance.state, instance.state)
    id_ = shortened(one_line(instance.id), _NARROWEST_CELL - _CELL_GAP - 1 - len(status))
    return Text.assemble(id_, " ", (status, "" if ready and busy else "dim"))
