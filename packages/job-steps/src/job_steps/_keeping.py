"""Limits of memory where no control group has them: the processes of commands are looked at, and killed over a limit.

One look is at all commands of a run, and at what they have left in the background, which the run does not wait for.
"""

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import anyio
from anyio import to_thread
from attrs import define, field

from job_steps._cgroups import Cgroups, Group
from job_steps._groups import beside
from job_steps._limits import INTERVAL, NO_LIMITS, Known, Limits, memory_of, processes_of, send

_ROUNDS = 200
"""In how many looks all processes of a command are stopped: each may have started others before it was."""


@define
class Keeping:
    """What the commands of a run may have, and what sees to it."""

    limits: Limits = NO_LIMITS
    """`check_limits` was asked about them."""
    cgroups: Cgroups | None = None
    """Where commands get control groups."""
    _watched: dict[int, Group | None] = field(init=False, factory=dict)
    """The processes that lead the sessions of commands, with their groups, which limit no memory."""
    _killed: dict[int, int] = field(init=False, factory=dict)
    _added: anyio.Event = field(init=False, factory=anyio.Event)

    def watch(self, leader: int, group: Group | None) -> None:
        """Have the limit of memory hold for a command from now on, by what is looked at."""
        self._killed.pop(leader, None)
        self._watched[leader] = group
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
                del self._watched[leader]
            elif (had := memory_of(processes, most)) > most:
                self._killed[leader] = had
                if group := self._watched[leader]:
                    group.kill()
                _kill(leader)


@asynccontextmanager
async def kept(limits: Limits, cgroups: Cgroups | None = None) -> AsyncIterator[Keeping]:
    """Have limits kept, as long as this is open."""
    keeping = Keeping(limits, cgroups)
    if limits.memory is None:
        yield keeping
        return
    async with beside() as tasks:
        tasks.start_soon(keeping.look, limits.memory)
        yield keeping


def _kill(leader: int) -> None:
    """Kill a command with all that it has started; all are stopped first, so that none starts another meanwhile.

    The youngest ones are first, which may just be about to, and a look reads nothing twice, to be no slower than that.
    """
    known: Known = {}
    stopped: set[int] = set()
    for _ in range(_ROUNDS):
        more = [process for process in processes_of((leader,), known)[leader] if process not in stopped]
        if not more:
            break
        send(reversed(more), signal.SIGSTOP)
        stopped.update(more)
    send(stopped, signal.SIGKILL)
