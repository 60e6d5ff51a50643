"""The command that tells scheduled events: the shell's own, and curl's, against a metadata service of ours."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import anyio
import pytest

from fleeting import NoticeKind
from fleeting_azure._arm import NOTICE_PROBE
from tests.fleeting_azure.metadata import event, metadata

pytestmark = [pytest.mark.anyio, pytest.mark.needs("curl")]

shells = pytest.mark.parametrize("shell", ["sh", "dash", "bash"])


async def told(
    events: Sequence[dict[str, object]], shell: str = "sh", indent: int | None = None, name: str = "runners_1"
) -> list[list[str]]:
    """What the probe prints, in words."""
    async with metadata(json.dumps({"DocumentIncarnation": 1, "Events": [*events]}, indent=indent), name) as probe:
        ended = await anyio.run_process([shell, "-c", probe])
    assert ended.stderr == b""
    return [line.split() for line in ended.stdout.decode().splitlines()]


@shells
@pytest.mark.parametrize("indent", [None, 2])
async def test_what_is_announced_for_this_machine_is_told(shell: str, indent: int | None) -> None:
    """A preemption with the seconds that are left; other machines' events, and freezes, are not."""
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=1000), usegmt=True)
    events = [
        event("Preempt", soon, "runners_2", "runners_1"),
        event("Redeploy", soon, "runners_1"),
        event("Preempt", soon, "runners_11"),
        event("Freeze", soon, "runners_1"),
    ]
    lines = await told(events, shell, indent)
    assert [kind for kind, _ in lines] == [NoticeKind.PREEMPTION.value, NoticeKind.MAINTENANCE.value]
    assert all(980 < int(seconds) <= 1000 for _, seconds in lines)


@shells
async def test_every_month_is_reckoned_right(shell: str) -> None:
    """Dates with leading zeros, and after February of a leap year, too."""
    dates = [datetime(2096, month, 8, 9, 8, 9, tzinfo=UTC) for month in range(1, 13)]
    before = [(at - datetime.now(UTC)).total_seconds() for at in dates]
    lines = await told([event("Terminate", format_datetime(at, usegmt=True), "runners_1") for at in dates], shell)
    after = [(at - datetime.now(UTC)).total_seconds() for at in dates]
    found = [int(seconds) for _, seconds in lines]
    assert all(low - 1 <= each <= high + 1 for low, each, high in zip(after, found, before, strict=True))


async def test_a_machine_that_does_not_learn_its_name_takes_nothing_for_its_own() -> None:
    """Each machine of a scale set is told the events of all."""
    assert await told([event("Preempt", "", "runners_2")], name="") == []


@pytest.mark.parametrize("not_before", ["", "Mon, 19 Sep 2016 18:29:47 GMT"])
async def test_what_has_begun_has_no_time_left(not_before: str) -> None:
    """The date of an event that has started is empty."""
    assert await told([event("Preempt", not_before, "runners_1")]) == [["preemption", "0"]]


@pytest.mark.parametrize("answer", ['{"DocumentIncarnation":0,"Events":[]}', "", "<html>"])
async def test_nothing_announced_is_nothing_told(answer: str) -> None:
    """An empty list, an empty answer and nonsense end well."""
    async with metadata(answer) as probe:
        ended = await anyio.run_process(["sh", "-c", probe])
    assert (ended.stdout, ended.stderr, ended.returncode) == (b"", b"", 0)


async def test_elsewhere_it_tells_nothing() -> None:
    """Where there is no such service, as at home, it ends well too."""
    probe = NOTICE_PROBE.replace("169.254.169.254", "127.0.0.1:9")
    ended = await anyio.run_process(["sh", "-c", probe])
    assert (ended.stdout, ended.returncode) == (b"", 0)
