"""What plugins of all clouds share."""

from collections.abc import Sequence
from math import ceil

import anyio
import pytest
from anyio.lowlevel import checkpoint
from hypothesis import given
from hypothesis import strategies as st

from fleeting import AuthFailed, LoopClock, OutcomeUnknown, ProviderError, RateLimited, Settings, Unsupported
from fleeting.plugins import accepted, ask_in_batches, undone_on_failure

IDS = st.lists(st.integers(0, 99).map(str), unique=True, max_size=30)


@given(instances=IDS, bad=IDS, size=st.integers(1, 7))
def test_only_what_is_refused_by_itself_is_refused(instances: list[str], bad: list[str], size: int) -> None:
    """A cloud that refuses a batch because of one instance changes all the others, each once, with few requests."""
    changed: list[str] = []
    requests = 0

    async def ask(batch: Sequence[str]) -> None:
        nonlocal requests
        requests += 1
        await checkpoint()
        assert 0 < len(batch) <= size
        if {*batch} & {*bad}:
            raise ProviderError("one of these is none of ours")
        changed.extend(batch)

    refused = anyio.run(ask_in_batches, ask, instances, size)
    assert refused.keys() == {*instances} & {*bad}
    assert sorted(changed) == sorted({*instances} - {*bad})
    batches, halvings = ceil(len(instances) / size), (size - 1).bit_length()
    assert requests <= batches + 2 * halvings * len(refused)


@pytest.mark.anyio
@pytest.mark.parametrize("error", [AuthFailed("no"), OutcomeUnknown("maybe"), RateLimited("later")])
async def test_after_what_would_meet_every_request_nothing_more_is_asked(error: ProviderError) -> None:
    """A half or another batch would be refused as well, or made twice; what was not asked for is not accepted."""
    asked: list[Sequence[str]] = []

    async def ask(batch: Sequence[str]) -> None:
        await checkpoint()
        asked.append(batch)
        if "b" in batch:
            raise error if len(batch) == 1 else ProviderError("one of these is none of ours")

    assert await ask_in_batches(ask, ["a", "b", "c", "d", "e"], 4) == dict.fromkeys("bcde", error)
    assert asked == [["a", "b", "c", "d"], ["a", "b"], ["a"], ["b"]]


def test_all_refused_is_an_error_and_some_refused_is_less() -> None:
    """What is not accepted is asked for again later; if that is everything, it is told why."""
    error = ProviderError("no")
    assert accepted(["a", "b"], {"a": error}) == ["b"]
    assert accepted([], {}) == []
    with pytest.raises(ProviderError, match="no"):
        accepted(["a"], {"a": error})


@pytest.mark.anyio
async def test_what_was_begun_is_undone_if_it_is_cancelled() -> None:
    """To its end, whatever is cancelled; and if all goes well, nothing is undone."""
    undone: list[str] = []

    async def undo() -> None:
        await checkpoint()
        undone.append("all")

    async with undone_on_failure(undo):
        await checkpoint()
    assert undone == []
    with anyio.CancelScope() as scope:
        async with undone_on_failure(undo):
            scope.cancel()
            await checkpoint()
    assert undone == ["all"]


@pytest.mark.anyio
async def test_who_only_looks_is_refused_changes() -> None:
    """Plugins ask this before they ask their clouds for a change."""
    await checkpoint()
    Settings(owner="a", clock=LoopClock()).refuse_if_observing()
    with pytest.raises(Unsupported, match="open it to manage it"):
        Settings(owner="a", clock=LoopClock(), observe_only=True).refuse_if_observing()
