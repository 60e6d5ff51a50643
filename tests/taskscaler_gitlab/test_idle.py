"""What an idle runner costs GitLab, in virtual time."""

from pathlib import Path

import anyio
import pytest

from fleeting.testing import FakeCloud, virtual_time
from gitlab_jobs.testing import FakeGitLab
from tests.taskscaler_gitlab.services import serving

pytestmark = [
    pytest.mark.anyio,
    # httpx leaves its own generators open when an answer is not read to its end, and trio tells of them
    pytest.mark.filterwarnings("ignore:.*async_generator object .*Stream:pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:Async generator 'httpx:ResourceWarning"),
]
anyio_backend = virtual_time


async def test_an_idle_runner_asks_at_most_twice_a_minute(tmp_path: Path) -> None:
    """GitLab holds each request for as long as it can; nothing else is asked, and one slot stays reserved at most."""
    gitlab = FakeGitLab(tmp_path / "gitlab", long_poll=50.0)
    async with serving(tmp_path, gitlab, cloud=FakeCloud(), update_interval=60.0) as bench:
        await anyio.sleep(
            60
        )  # the first request tells GitLab nothing of what the runner knows, and is answered at once
        before = sum(gitlab.calls.values())
        for _ in range(60):
            await anyio.sleep(10)
            capacity = await bench.scaler.capacity()
            assert capacity.reserved + capacity.promised <= 1
        assert sum(gitlab.calls.values()) - before <= 20
