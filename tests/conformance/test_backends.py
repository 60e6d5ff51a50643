"""What runs on one backend only may do so: each check runs, and each call is made on both."""

from collections import Counter

import anyio
import pytest

from fleeting.testing import CHECKS, Check, FakeGroup, NotApplicable, judge, virtual_time
from tests.conformance.backends import BACKENDS, IN_TURN, runs, runs_on_both
from tests.conformance.test_fake import CLOUDS, harness_for

anyio_backend = virtual_time

CALLS = {
    "init",
    "update",
    "increase",
    "decrease",
    "connect_info",
    "heartbeat",
    "shutdown",
    "withdraw",
    "suspend",
    "resume",
    "notices",
    "mark_owner",
}
"""Every coroutine that a group can have."""


def test_every_check_runs_and_each_backend_has_its_share() -> None:
    """None is left out, those of both run on both, and of the others each backend has half."""
    assert {check for check, _ in runs()} == {*CHECKS}
    assert len({*runs()}) == len(runs())
    for backend in BACKENDS:
        assert {check for check, where in runs() if where == backend} >= {*filter(runs_on_both, CHECKS)}
    shares = Counter(backend for check, backend in runs() if not runs_on_both(check))
    assert abs(shares["asyncio"] - shares["trio"]) <= 1


def test_the_modules_exist() -> None:
    """One that is renamed does not silently move its checks."""
    assert {check.__module__.rpartition(".")[2] for check in CHECKS} > IN_TURN


@pytest.mark.anyio
async def test_checks_on_both_backends_make_every_call() -> None:
    """So a call that works in one event loop only is found, whatever the others look at."""
    made: set[str] = set()

    class Recorded(FakeGroup):
        def __getattribute__(self, name: str) -> object:
            made.add(name)
            return super().__getattribute__(name)

    async def put_through(check: Check) -> None:
        try:
            await judge(check, harness_for(CLOUDS["slow"](), Recorded))
        except NotApplicable:
            await anyio.lowlevel.checkpoint()

    for check in filter(runs_on_both, CHECKS):
        await put_through(check)
    assert made >= CALLS
