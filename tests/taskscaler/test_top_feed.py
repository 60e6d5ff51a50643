"""What `top` knows of a daemon, over a socket and in virtual time: events, looks, restarts, and what is not for it."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import anyio
import pytest

from fleeting import LoopClock
from fleeting.testing import FakeCloud, virtual_time
from taskscaler._errors import DaemonRefused
from taskscaler.cli._top._feed import Feed
from taskscaler.cli._top._view import Question, Subject
from taskscaler.serve._peers import Peer
from tests.taskscaler.daemons import client, daemon, restarted

pytestmark = pytest.mark.anyio
anyio_backend = virtual_time


async def until(true: Callable[[], bool]) -> None:
    """Wait for what will be known."""
    with anyio.fail_after(600):
        while not true():  # noqa: ASYNC110  (in virtual time)
            await anyio.sleep(0.1)


async def test_it_hears_what_happens_and_comes_back_with_the_daemon(tmp_path: Path) -> None:
    """It also learns what events do not say, does what it is told, and says while nobody answers that it is so."""
    path, cloud = tmp_path / "s.sock", FakeCloud()
    async with restarted(path, cloud, max_instances=1) as service, anyio.create_task_group() as tasks:
        await service.start()
        feed = Feed(path, LoopClock(0.0), lambda: None)
        tasks.start_soon(feed.run)
        await until(lambda: feed.fleet.name == "fleet.toml")
        async with client(path, cloud) as scaler, scaler.acquire("a") as lease:
            await until(lambda: "a" in feed.fleet.running)
            assert feed.fleet.running["a"].instance == lease.instance
            assert feed.fleet.ceilings == {"default": 1}
            await feed.hold(Question(verb="cordon", instance=f"default/{lease.instance}", why="a disk"))
            await until(lambda: [each.cordoned for each in feed.fleet.instances.values()] == ["a disk"])
            said = await feed.explain(Subject(kind="job", name="a"))
            assert said[0].startswith("a has held slot 0")
            async with anyio.create_task_group() as waiting:
                waiting.start_soon(partial(scaler.acquire_lease, "b", timeout=100))
                await until(lambda: [job.key for job in feed.fleet.waiting] == ["b"])
                waiting.cancel_scope.cancel()
        await until(lambda: not feed.fleet.running)
        await service.stop()
        await until(lambda: "no daemon answers" in feed.lost)
        await service.start("second")
        await until(lambda: not feed.lost)
        tasks.cancel_scope.cancel()


async def test_a_member_sees_its_own_and_why_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon's sentence stands for the rest; nothing is tried in vain again and again."""
    path, cloud = tmp_path / "s.sock", FakeCloud()
    monkeypatch.setattr(Peer, "is_owner", False)
    async with daemon(path, cloud), client(path, cloud) as scaler, scaler.acquire("m") as lease:
        feed = Feed(path, LoopClock(0.0), lambda: None)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(feed.run)
            await until(lambda: bool(feed.fleet.refused))
            assert feed.fleet.refused.startswith("only the daemon's own user may see instances")
            assert [(job.key, job.instance) for job in feed.fleet.jobs] == [("m", lease.instance)]
            assert feed.fleet.capacity["acquired"] == 1
            with pytest.raises(DaemonRefused, match="only the daemon's own user may cordon"):
                await feed.hold(Question(verb="cordon", instance=lease.instance))
            await anyio.sleep(10)
            assert not feed.lost
            tasks.cancel_scope.cancel()
