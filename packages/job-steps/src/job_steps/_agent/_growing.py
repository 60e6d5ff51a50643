"""How steps went, kept on disk while they go on: for when the agent is killed."""

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio
from anyio import to_thread
from attrs import define, field

from job_steps._agent._directory import write_whole

if TYPE_CHECKING:
    from job_steps import StepResult

_PAUSE: Final = 1.0
"""Seconds between two times, at least."""

_BYTES_A_SECOND: Final = 1 << 20


async def save_while_it_grows(look: "Callable[[], tuple[object, anyio.Event]]", save: Callable[[], int]) -> None:
    """Save a tree whenever it has changed, until this is cancelled; a mebibyte in each second, whatever the steps do.

    Args:
        look: Says what there is, None if nothing is; and what is set when that has changed.
        save: Saves it, in a thread; returns how many bytes that were.
    """
    while True:
        tree, changed = look()
        if tree is not None:
            size = await to_thread.run_sync(save)
            await anyio.sleep(max(_PAUSE, size / _BYTES_A_SECOND))
        if look()[0] is tree:
            await changed.wait()


@define
class GrowingFile:
    """A file with the results of one run."""

    path: Path | None
    """None: there is none."""
    tree: "StepResult | None" = None
    _changed: anyio.Event = field(init=False, factory=anyio.Event)

    def grow(self, tree: "StepResult") -> None:
        """Take how it went so far."""
        self.tree = tree
        self._changed.set()
        self._changed = anyio.Event()

    async def save_while_it_grows(self) -> None:
        """Keep it on disk until this is cancelled; a disk that takes nothing is no reason for anything."""
        if self.path:
            await save_while_it_grows(lambda: (self.tree, self._changed), self._save_if_possible)

    def save(self) -> int:
        """Write it down; returns how many bytes it has.

        Raises:
            OSError: The disk does not take it.
        """
        if self.path is None or self.tree is None:
            return 0
        data = json.dumps(self.tree.as_dict()).encode()
        write_whole(self.path, data)
        return len(data)

    def _save_if_possible(self) -> int:
        with suppress(OSError):
            return self.save()
        return 0
