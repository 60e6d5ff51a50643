"""Limits of memory where no control group has them: the processes of commands are looked at, and killed over a limit.

One look is at all commands of a run, and at what they have left in the background, which the run does not wait for.
"""

import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress

import anyio
from anyio import to_thread
from attrs import define, field

from job_steps._cgroups import Cgroups
from job_steps._limits import INTERVAL, NO_LIMITS, Limits, memory_of, processes_of, send

_ROUNDS = 10
"""In how many looks all processes of a command are stopped: each may have started others before it was."""


@define
class Keeping:
    """What the commands of a run may have, and what sees to it."""

    limits: Limits = NO_LIMITS
    """`check_limits` was asked about them."""
    cgroups: Cgroups | None = None
    """Where commands get control groups."""
    _watched: set[int] = field(init=False, factory=set)
    """The processes that lead the sessions of commands."""
    _killed: dict[int, int] = field(init=False, factory=dict)
    _added: anyio.Event = field(init=False, factory=anyio.Event)

    def watch(self, leader: int) -> None:
        """Have the limit of memory hold for a command from now on, by what is looked at."""
        self._killed.pop(leader, None)
        self._watched.add(leader)
        self._added.set()

    def killed(self, leader: int) -> int | None:
        """How many bytes a command had when it was killed because that was too much; None if it was not."""
        return self._killed.get(leader)

    async def look(self, most: int) -> None:
        """Look, until this is cancelled."""
        while True:
            await self._added.wait()
            await anyio.sleep(INTERVAL)
            with suppress(OSError):  # no descriptor is free to look with; the next look has one
                await to_thread.run_sync(self._look, most)
            if not self._watched:
                self._added = anyio.Event()

    def _look(self, most: int) -> None:
        for leader, processes in processes_of(tuple(self._watched)).items():
            if not processes:
                self._watched.discard(leader)
            elif (had := memory_of(processes, most)) > most:
                self._killed[leader] = had
                _kill(leader)


@asynccontextmanager
async def kept(limits: Limits, cgroups: Cgroups | None = None) -> AsyncIterator[Keeping]:
    """Have limits kept, as long as this is open."""
    keeping = Keeping(limits, cgroups)
    if limits.memory is None:
        yield keeping
        return
    failure: Exception | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(keeping.look, limits.memory)
        try:
            yield keeping
        except Exception as error:  # noqa: BLE001  (raised again below, outside of the group, which would wrap it)
            failure = error
        tasks.cancel_scope.cancel()
    if failure:
        raise failure


def _kill(leader: int) -> None:
    """Kill a command with all that it has started; all are stopped first, so that none starts another meanwhile."""
    stopped: set[int] = set()
    for _ in range(_ROUNDS):
        more = _new(processes_of((leader,)), stopped)
        if not more:
            break
        send(more, signal.SIGSTOP)
        stopped |= more
    send(stopped, signal.SIGKILL)


def _new(found: Mapping[int, list[int]], known: set[int]) -> set[int]:
    return {process for processes in found.values() for process in processes} - known
