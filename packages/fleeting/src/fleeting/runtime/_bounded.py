"""Runs one call for many instances, at most so many at once.

A task takes one instance after the other, and hires the next task as soon as more wait: calls that answer at once
need one or two tasks however many there are, slow ones as many as there may be.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from math import inf
from typing import TYPE_CHECKING

import anyio
from attrs import define, field

from fleeting.core import messages

if TYPE_CHECKING:  # importing anyio.abc costs 20 ms more than all that a bare ``import fleeting`` needs of anyio
    from anyio.abc import TaskGroup


@define(eq=False)
class Bounded:
    """A queue of instances, and the tasks that serve it."""

    _call: Callable[[str], Awaitable[messages.Fact | None]]
    """Made for each instance; returns what the core is to learn."""

    _most: int
    """How many calls there may be at once."""

    _tasks: "TaskGroup"
    _feed: Callable[[messages.Fact], None]
    _name: str
    """Of the tasks."""

    _timeout: float = field(default=inf, kw_only=True)
    """Seconds that a call may take, once it has begun."""

    _late: Callable[[str], messages.Fact | None] = field(default=lambda _: None, kw_only=True)
    """Says what the core is to learn if one took longer; it is cancelled then."""

    _queue: OrderedDict[str, None] = field(factory=OrderedDict, init=False)
    _scopes: dict[str, "anyio.CancelScope"] = field(factory=dict, init=False)
    """Of the calls that are under way."""

    _hired: int = field(default=0, init=False)
    _arriving: bool = field(default=False, init=False)
    """Whether a task was hired that has not begun yet."""

    def add(self, instance: str) -> None:
        """Have the call made for an instance, unless it waits for that or is being called."""
        if instance not in self._scopes:
            self._queue[instance] = None
            self._hire()

    def forget(self, instance: str) -> None:
        """Make no call for the instance, and cancel the one under way."""
        self._queue.pop(instance, None)
        scope = self._scopes.pop(instance, None)
        if scope is not None:
            scope.cancel()

    def _hire(self) -> None:
        """Have one more task, if there is work for it."""
        if self._queue and not self._arriving and self._hired < self._most:
            self._hired += 1
            self._arriving = True
            self._tasks.start_soon(self._work, name=self._name)

    async def _work(self) -> None:
        """Serve the queue until it is empty."""
        self._arriving = False
        try:
            while self._queue:
                instance, _ = self._queue.popitem(last=False)
                self._hire()
                await self._run(instance)
        finally:
            self._hired -= 1

    async def _run(self, instance: str) -> None:
        """Make one call; it has ended when its outcome is fed back, which may lead to the next for the instance."""
        outcome = None
        with anyio.CancelScope(deadline=anyio.current_time() + self._timeout) as scope:
            self._scopes[instance] = scope
            try:
                outcome = await self._call(instance)
            finally:
                wanted = self._scopes.get(instance) is scope
                if wanted:
                    del self._scopes[instance]
        if scope.cancelled_caught:
            outcome = self._late(instance)
        if wanted and outcome is not None:
            self._feed(outcome)
