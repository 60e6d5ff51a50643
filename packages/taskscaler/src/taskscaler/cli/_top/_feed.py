"""Keeps what is known of a fleet up to date: asks a daemon, hears its events, and comes back when it does."""

import math
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from typing import Any

import anyio
from attrs import define, field

from fleeting import Clock, FleetingError
from taskscaler._errors import DaemonRefused, NoDaemon
from taskscaler._socket import Place
from taskscaler.cli._top._fleet import READ_AS, Fleet, after, in_full, in_part, in_short
from taskscaler.cli._top._view import Question, Subject
from taskscaler.remote._link import Link

SHORT_INTERVAL = 2.0
"""Seconds between two looks at what events do not tell: who waits, and why."""

FULL_INTERVAL = 10.0
"""Seconds between two looks at all instances of a large fleet; a small one is looked at with each short look."""

SMALL = 200
"""Instances of a small fleet."""

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0
"""Seconds between two tries to reach a daemon that is away."""


@define(eq=False)
class Feed:
    """What is known of one daemon's fleet, from now on."""

    place: Place
    clock: Clock
    changed: Callable[[], object]
    """Called when there is something new."""

    fleet: Fleet = field(factory=Fleet, init=False)
    lost: str = field(default="", init=False)
    """Why nothing comes from the daemon; empty: all is well."""

    lost_at: float = field(default=0.0, init=False)
    """Since when, in seconds since the epoch."""

    _link: Link = field(init=False)
    _wanted: anyio.Event = field(init=False)
    """Set when all should be looked at at once."""

    _full_at: float = field(default=-math.inf, init=False)

    def __attrs_post_init__(self) -> None:
        """Make the way to the daemon; it is not gone yet."""
        self._link = Link(self.place, 0.0, _nothing, _nobody, _nobody, 0.0)

    @property
    def now(self) -> float:
        """The time on the daemon's clock, in seconds since the epoch."""
        return self.clock.now() + self.fleet.ahead

    async def run(self) -> None:
        """Keep it up to date until cancelled.

        Raises:
            WrongArguments: There is no token to show.
        """
        async with self._link.opened():
            pause = FIRST_PAUSE
            while True:
                self._wanted = anyio.Event()
                try:
                    await self._look(full=True)
                    pause = FIRST_PAUSE
                    await self._follow()
                except (FleetingError, ValueError) as error:
                    self._lose(str(error))
                await anyio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)

    async def once(self) -> None:
        """Look at all there is, and at nothing more. Raises as `explain`."""
        async with self._link.opened():
            await self._look(full=True)

    async def explain(self, subject: Subject) -> list[str]:
        """Ask for all that is to be said of an instance or a job, a sentence each.

        Raises:
            FleetingError, ValueError: There is no answer, or the daemon refuses.
        """
        params = {"instance": subject.name} if subject.kind == "instance" else {"key": subject.name}
        said = await self._link.once("GET", "/explain", params=params)
        with _reading():
            following = [f"next, {each['sentence']}" for each in said["next"]]
            return [str(said["answer"]), *map(str, said["details"]), *following]

    async def hold(self, question: Question) -> None:
        """Do to an instance what was asked, and look what has become of it.

        Raises:
            FleetingError, ValueError: There is no answer, or the daemon refuses.
        """
        await self._link.once("POST", f"/{question.verb}", {"instance": question.instance, "why": question.why})
        self._wanted.set()

    def _lose(self, why: str) -> None:
        if not self.lost:
            self.lost_at = self.clock.now()
        self.lost = why
        self.changed()

    async def _look(self, *, full: bool) -> None:
        """Ask for what events do not tell, or for all there is. Raises as `explain`."""
        ask = self._link.once
        status, waiting = await ask("GET", "/status"), await ask("GET", "/waiting")
        with _reading():
            fleet = in_short(self.fleet, status, waiting)
        if full:
            try:
                instances, explained = await ask("GET", "/instances"), await ask("GET", "/explain")
            except DaemonRefused as error:
                leases = await ask("GET", "/leases")
                with _reading():
                    fleet = in_part(fleet, leases, str(error))
            else:
                with _reading():
                    fleet = in_full(fleet, instances, explained, self.clock.now())
            self._full_at = self.clock.now()
        self.fleet, self.lost = fleet, ""
        self.changed()

    async def _follow(self) -> None:
        """Hear events, and look from time to time, until one of the two fails. Raises as `explain`."""
        failed: list[Exception] = []
        async with anyio.create_task_group() as tasks:

            async def until_it_fails(part: Callable[[], Awaitable[None]]) -> None:
                try:
                    await part()
                except (FleetingError, ValueError) as error:
                    failed.append(error)
                tasks.cancel_scope.cancel()

            tasks.start_soon(until_it_fails, self._look_on)
            if not self.fleet.refused:
                tasks.start_soon(until_it_fails, self._listen)
        raise failed[0] if failed else NoDaemon(f"the daemon at {self.place} has ended")

    async def _look_on(self) -> None:
        while True:
            with anyio.move_on_after(SHORT_INTERVAL):
                await self._wanted.wait()
            small = len(self.fleet.instances) <= SMALL
            full = small or self._wanted.is_set() or self.clock.now() >= self._full_at + FULL_INTERVAL
            self._wanted = anyio.Event()
            await self._look(full=full)

    async def _listen(self) -> None:
        async with aclosing(self._link.stream("/events")) as events:
            async for event in events:
                if event is None:
                    self._wanted.set()  # for what has happened since the first look
                else:
                    self._hear(event)

    def _hear(self, event: Mapping[str, Any]) -> None:
        if event.get("event") == "missed":
            self._wanted.set()
            return
        with _reading():
            fleet = after(self.fleet, event)
        if fleet is not self.fleet:
            self.fleet = fleet
            self.changed()


@contextmanager
def _reading() -> Iterator[None]:
    """Read an answer: one that is none of our release is as good as none.

    Raises:
        NoDaemon: It is none.
    """
    try:
        yield
    except READ_AS as error:
        why = f"the daemon's answer cannot be read ({type(error).__name__}: {error})"
        raise NoDaemon(f"{why}; use the taskscaler of the daemon's own release") from error


async def _nothing() -> None:
    """Begin no client."""


def _nobody(_: object) -> None:
    """Hear nothing as a client."""
