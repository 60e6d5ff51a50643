"""Runs one call for many instances, at most so many at once.

A task takes one instance after the other, and hires the next task as soon as more wait: calls that answer at once
need one or two tasks however many there are, slow ones as many as there may be.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from math import inf
from typing import TYPE_CHECKING

import anyio

from fleeting.core import messages

if TYPE_CHECKING:  # importing anyio.abc costs 20 ms more than all that a bare ``import fleeting`` needs of anyio
    from anyio.abc import TaskGroup


class Bounded:
    """A queue of instances, and the tasks that serve it."""

    def __init__(
        self,
        call: Callable[[str], Awaitable[messages.Fact | None]],
        most: int,
        *,
        timeout: float = inf,
        late: Callable[[str], messages.Fact | None] = lambda _: None,
    ) -> None:
        """Prepare.

        Args:
            call: Made for each instance; returns what the core is to learn.
            most: How many calls there may be at once.
            timeout: Seconds that a call may take, once it has begun.
            late: Says what the core is to learn if one took longer; it is cancelled then.
        """
        self._call = call
        self._most = most
        self._timeout = timeout
        self._late = late
        self._queue: OrderedDict[str, None] = OrderedDict()
        self._scopes: dict[str, anyio.CancelScope] = {}
        """Of the calls that are under way."""

        self._hired = 0
        self._arriving = False
        """Whether a task was hired that has not begun yet."""

    def start(self, tasks: "TaskGroup", feed: Callable[[messages.Fact], None], name: str) -> None:
        """From now on calls are made, in *tasks*, and what they return is given to *feed*."""
        self._tasks = tasks
        self._feed = feed
        self._name = name

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
