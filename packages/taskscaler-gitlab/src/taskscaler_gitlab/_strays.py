"""Slots in which an earlier process has left jobs that are not resumed: what runs there is ended, and they go back."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import anyio
from anyio import to_thread
from attrs import define

from taskscaler import Taskscaler
from taskscaler.executors import Executor
from taskscaler_gitlab._record import Left
from taskscaler_gitlab._unforeseen import Unforeseen
from taskscaler_gitlab._work import Runs, end_there, let_go, replaced
from taskscaler_gitlab.relay import Relays


@define(eq=False)
class Strays:
    """What ends them; what nobody foresaw costs one of them alone."""

    scaler: Taskscaler
    relays: Relays
    runs: Runs
    executor: Executor
    unforeseen: Unforeseen
    shelf: Path
    """Where something is kept of jobs that could not be read."""

    async def give_all_back(self, keys: Sequence[str], *, is_over: bool) -> bool:
        """Give leases back of which no record is there; returns whether all of them were.

        Args:
            keys: Of the leases.
            is_over: Whether nothing can run there but a sidecar; otherwise their instances are replaced.
        """
        given: list[bool] = []
        async with anyio.create_task_group() as tasks:

            async def give(key: str) -> None:
                given.append(await self.give_back(key, is_over=is_over))

            for key in keys:
                tasks.start_soon(give, key)
        return all(given)

    async def give_back(self, key: str, *, is_over: bool) -> bool:
        """Give one back, likewise."""
        with self.unforeseen.contained("stray_stays", key=key):
            await let_go(self.scaler, key, self.relays.clear if is_over else replaced)
            return True
        return False

    async def give_up(self, left: Left, *, is_ours: bool) -> None:
        """End a job that is not resumed, as far as that can be done, and leave nothing of it here.

        Args:
            left: What is noted down of it.
            is_ours: Whether it was begun with settings that are known; otherwise its instance is replaced.
        """
        with self.unforeseen.contained("job_stays", path=str(left.directory.path)):
            end = partial(end_there, self.runs, self.executor, directory=left.directory.path)
            await let_go(self.scaler, left.key, end if is_ours else replaced)
            if left.problem:
                await to_thread.run_sync(left.directory.copy_aside, self.shelf)
            await to_thread.run_sync(left.directory.remove)
