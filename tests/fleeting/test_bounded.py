"""Calls for many instances: at most so many at once, each once, and none for what is forgotten."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import anyio
import pytest

from fleeting.core import messages
from fleeting.runtime._bounded import Bounded
from fleeting.testing import virtual_time

pytestmark = pytest.mark.anyio
anyio_backend = virtual_time


class Calls:
    """Calls that take some seconds."""

    def __init__(self, seconds: float) -> None:
        """Take so long."""
        self.seconds = seconds
        self.begun: list[str] = []
        self.ended: list[messages.Fact] = []
        self.at_once = self.most = 0

    async def __call__(self, instance: str) -> messages.Fact:
        """Note what is under way."""
        self.begun.append(instance)
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        try:
            await anyio.sleep(self.seconds)
        finally:
            self.at_once -= 1
        return messages.HeartbeatPassed(instance)

    @asynccontextmanager
    async def bounded(self, most: int, *, timeout: float = 1e9) -> AsyncIterator[Bounded]:
        """Make them."""
        late = partial(messages.HeartbeatFailed, error="late")
        async with anyio.create_task_group() as tasks:
            yield Bounded(self, most, tasks, self.ended.append, "calls", timeout=timeout, late=late)


async def test_so_many_run_at_once_and_each_once() -> None:
    """Begun in the order in which they came, and as soon as there is room."""
    calls, names = Calls(10), [f"i-{number}" for number in range(10)]
    began = anyio.current_time()
    async with calls.bounded(4) as bounded:
        for name in names:
            bounded.add(name)
            bounded.add(name)
    assert calls.begun == names
    assert sorted(calls.ended) == [messages.HeartbeatPassed(name) for name in names]
    assert calls.most == 4
    assert anyio.current_time() == pytest.approx(began + 30)


async def test_what_is_forgotten_is_not_called_and_ends() -> None:
    """Whether it waits or is under way; it may come again at once."""
    calls = Calls(10)
    async with calls.bounded(1) as bounded:
        bounded.add("runs")
        bounded.add("waits")
        await anyio.sleep(5)
        bounded.forget("runs")
        bounded.forget("waits")
        bounded.add("runs")
    assert calls.begun == ["runs", "runs"]
    assert calls.ended == [messages.HeartbeatPassed("runs")]


async def test_a_call_that_takes_too_long_is_cancelled_and_said_to_be_late() -> None:
    """From its own beginning: what waits for its turn is not late."""
    calls = Calls(10)
    async with calls.bounded(1, timeout=5) as bounded:
        bounded.add("one")
        bounded.add("another")
    assert calls.ended == [messages.HeartbeatFailed("one", "late"), messages.HeartbeatFailed("another", "late")]


async def test_an_outcome_may_lead_to_the_next_call_for_the_same_instance() -> None:
    """The call has ended by then, so that is no second one at once."""
    calls = Calls(1)
    async with anyio.create_task_group() as tasks:

        def feed(fact: messages.Fact) -> None:
            calls.ended.append(fact)
            if len(calls.ended) < 3:
                bounded.add("i-1")

        bounded = Bounded(calls, 1, tasks, feed, "calls")
        bounded.add("i-1")
    assert calls.begun == ["i-1"] * 3
