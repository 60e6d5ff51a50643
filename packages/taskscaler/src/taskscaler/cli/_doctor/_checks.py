"""Runs checks side by side, each in a thread of its own: what a plugin raises, or that it hangs, ends only its check.

A check is a plain function, since what it calls is other people's code, which may block where it must not. It reports
as it goes, so that what it found before it hung is not lost. A thread that hangs cannot be ended: it is left alone, and
the command ends without it.
"""

from collections.abc import Callable, Sequence
from functools import partial

import anyio
from anyio import to_thread
from attrs import define, field, frozen

from fleeting.plugins import span
from taskscaler.cli._doctor._finding import Finding, Grade, of_error

Report = Callable[[Finding], None]

SLOW = "check network, proxy and credentials, or allow more with --timeout"
"""What to do about whatever takes too long."""

GRACE = 5.0
"""Seconds beyond its time after which a check is given up that should have ended by itself."""


@frozen
class Check:
    """One thing to be looked at."""

    name: str
    run: Callable[[Report], None] = field(repr=False)
    """Blocks; may raise anything."""

    patience: float
    """Seconds after which it is given up."""

    pool: str = ""
    about: str = ""
    """What stands before what is said of it if it fails, such as ``group aws: ``."""

    doing: Callable[[], str] = field(default=str, repr=False)
    """Says what is under way."""


@define
class _Run:
    """A check under way."""

    check: Check
    over: anyio.Event = field(factory=anyio.Event, init=False)
    found: list[Finding] = field(factory=list, init=False)
    is_alive: bool = field(default=False, init=False)

    async def carry_out(self, limiter: anyio.CapacityLimiter) -> None:
        """Run the check, and give it up when its time is over."""
        with anyio.move_on_after(self.check.patience) as scope:
            await to_thread.run_sync(self._body, abandon_on_cancel=True, limiter=limiter)
        if scope.cancelled_caught:
            self.found = [*self.found, self._late()]  # the thread appends to the other list
        self.over.set()

    def _body(self) -> None:
        self.is_alive = True
        try:
            self.check.run(partial(list.append, self.found))
        except BaseException as error:  # noqa: BLE001  (also SystemExit: a plugin's ends no more than its check)
            self.found.extend(of_error(self.check.name, error, pool=self.check.pool, about=self.check.about))
        finally:
            self.is_alive = False

    def _late(self) -> Finding:
        doing = self.check.doing()
        return Finding(
            check=self.check.name,
            grade=Grade.PROBLEM,
            found=f"{self.check.about}{doing and f'{doing}: '}no result after {span(self.check.patience)}",
            do=f"{SLOW}; if the plugin blocks, report it to its author",
            pool=self.check.pool,
        )


@define
class Checks:
    """Several checks at once."""

    _runs: list[_Run] = field(factory=list, init=False)

    @property
    def hangs(self) -> bool:
        """Whether a thread is left that may never end."""
        return any(run.is_alive for run in self._runs)

    async def run(self, checks: Sequence[Check], show: Report) -> None:
        """Run them, and show what they find in their order, as soon as that is possible."""
        runs = [_Run(check) for check in checks]
        self._runs += runs
        limiter = anyio.CapacityLimiter(max(1, len(runs)))
        async with anyio.create_task_group() as tasks:
            for run in runs:
                tasks.start_soon(run.carry_out, limiter)
            for run in runs:
                await run.over.wait()
                for finding in run.found:
                    show(finding)
