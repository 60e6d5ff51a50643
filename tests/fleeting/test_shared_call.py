"""Calls that are made once for all who ask at about the same time."""

from itertools import pairwise
from typing import Literal

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleeting import ProviderError
from fleeting.plugins import SharedCall
from fleeting.testing import virtual_run

TAKES = 20.0
"""Seconds that a call takes."""

moments = st.lists(st.floats(0, 100), min_size=1, max_size=30)


@given(asked_at=moments, fails=st.booleans(), backend=st.sampled_from(["asyncio", "trio"]))
def test_nobody_waits_for_more_than_two_calls_or_gets_an_old_answer(
    asked_at: list[float], *, fails: bool, backend: Literal["asyncio", "trio"]
) -> None:
    """Whoever asks, whenever, and whether or not there is an answer."""
    calls: list[float] = []

    async def ask() -> float:
        begun = anyio.current_time()
        calls.append(begun)
        await anyio.sleep(TAKES)
        if fails:
            raise ProviderError(str(begun))
        return begun

    async def main() -> None:
        shared, start = SharedCall(ask), anyio.current_time()

        async def one(delay: float) -> None:
            await anyio.sleep_until(start + delay)
            now = anyio.current_time()
            try:
                begun = await shared()
            except ProviderError as error:
                begun = float(str(error))
            assert begun >= now
            assert anyio.current_time() <= now + 2 * TAKES + 1e-6

        async with anyio.create_task_group() as tasks:
            for delay in asked_at:
                tasks.start_soon(one, delay)

    anyio.run(main, **virtual_run(backend))
    assert all(later - earlier >= TAKES - 1e-6 for earlier, later in pairwise(calls))


@pytest.mark.anyio
async def test_a_cancelled_call_answers_nobody() -> None:
    """The next one who waits makes it again."""
    calls = 0

    async def ask() -> int:
        nonlocal calls
        calls += 1
        await anyio.sleep(0.01)
        return calls

    shared = SharedCall(ask)
    async with anyio.create_task_group() as tasks:
        scope = anyio.CancelScope()

        async def first() -> None:
            with scope:
                await shared()

        answers: list[int] = []

        async def second() -> None:
            answers.append(await shared())

        tasks.start_soon(first)
        await anyio.lowlevel.checkpoint()
        tasks.start_soon(second)
        await anyio.lowlevel.checkpoint()
        scope.cancel()
    assert answers == [2]


@pytest.mark.anyio
async def test_an_error_that_many_get_holds_on_to_none_of_them() -> None:
    """Its traceback is as long for the last as for the first, so it keeps nobody's frames, and can be read."""

    async def ask() -> None:
        await anyio.sleep(0.01)
        raise ProviderError("no answer")

    shared, lengths = SharedCall(ask), []

    async def one() -> None:
        with pytest.raises(ProviderError) as caught:
            await shared()
        lengths.append(len(caught.traceback))

    async with anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(one)
    assert len(set(lengths)) == 1
