"""What becomes of the instances when a scaler is left and nobody has said: one table for all ways to make a scaler."""

from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from fleeting import MemoryJournal
from fleeting.testing import FakeCloud, FakeGroup
from taskscaler import Policy, Pool, Taskscaler, config
from taskscaler._jobsfile import read_jobs_file
from taskscaler.config import Autoscaler

pytestmark = pytest.mark.anyio

SOON = 'update_interval_when_expecting = "10ms"'
Make = Callable[[FakeGroup, Path], Taskscaler]


def in_python(*, journal: bool = False, delete: bool | None = None) -> Make:
    """Make a scaler by hand."""

    def make(group: FakeGroup, _: Path) -> Taskscaler:
        return Taskscaler(
            Pool(group, update_interval_when_expecting=0.01),
            journal=MemoryJournal() if journal else None,
            policies=[Policy(idle_count=1)],
            delete_instances_on_shutdown=delete,
        )

    return make


def of(fleet: Autoscaler, group: FakeGroup) -> Taskscaler:
    """Make the scaler that a file means, but for where its instances come from."""
    return fleet.scaler([group])


def from_jobs_file(*lines: str) -> Make:
    """Make the scaler of a batch."""

    def make(group: FakeGroup, directory: Path) -> Taskscaler:
        policy = "[[autoscaler.policy]]\nidle_count = 1"
        fleet = "\n".join(["[autoscaler]", 'plugin = "local"', SOON, *lines, policy])
        path = directory / "jobs.toml"
        path.write_text(f"{fleet}\n[[jobs]]\nname = 'a'\nscript = 'true'\n")
        return of(read_jobs_file(path).autoscaler, group)

    return make


def from_config_toml(*lines: str) -> Make:
    """Make the scaler of GitLab's file."""

    def make(group: FakeGroup, directory: Path) -> Taskscaler:
        policy = "[[runners.autoscaler.policy]]\nidle_count = 1"
        runner = '[[runners]]\nname = "a"\nexecutor = "instance"\n[runners.autoscaler]\nplugin = "local"'
        path = directory / "config.toml"
        path.write_text("\n".join(["concurrent = 1", runner, SOON, *lines, policy]))
        return of(config.load(path).autoscaler, group)

    return make


class Asked(FakeGroup):
    """When the instance that the policy keeps was asked for; it still boots when the scaler is left."""

    def __init__(self, cloud: FakeCloud) -> None:
        """Manage the cloud."""
        super().__init__(cloud)
        self.asked = anyio.Event()

    async def increase(self, count: int, *, intent: str) -> int:
        """Ask the cloud."""
        accepted = await super().increase(count, intent=intent)
        self.asked.set()
        return accepted


STATE = "state_storage = { enabled = true }"
NO_STATE = "state_storage = { enabled = false }"


@pytest.mark.parametrize(
    ("make", "removed"),
    [
        pytest.param(in_python(), True, id="python"),
        pytest.param(in_python(journal=True), False, id="python, with a journal"),
        pytest.param(in_python(delete=False), False, id="python, to keep"),
        pytest.param(in_python(journal=True, delete=True), True, id="python, with a journal, to remove"),
        pytest.param(from_jobs_file(), True, id="jobs file"),
        pytest.param(from_jobs_file(NO_STATE), True, id="jobs file, without state"),
        pytest.param(from_jobs_file("delete_instances_on_shutdown = false"), False, id="jobs file, to keep"),
        pytest.param(from_config_toml(), False, id="config.toml"),
        pytest.param(from_config_toml(STATE), False, id="config.toml, with state"),
        pytest.param(from_config_toml("delete_instances_on_shutdown = true"), True, id="config.toml, to remove"),
    ],
)
async def test_instances_go_with_the_scaler_unless_somebody_is_to_find_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Make, *, removed: bool
) -> None:
    """The table of defaults in docs/reference/configuration.md; what is said goes before it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    cloud = FakeCloud(boot_time=3600)
    group = Asked(cloud)
    async with make(group, tmp_path):
        await group.asked.wait()
    assert len(cloud.alive) == (0 if removed else 1)


@pytest.mark.parametrize("delete", [None, True])
async def test_who_only_looks_on_removes_nothing(tmp_path: Path, *, delete: bool | None) -> None:
    """Not even if told to: the instances are somebody else's."""
    cloud = FakeCloud(boot_time=3600)
    manager = Asked(cloud)
    async with in_python(journal=True)(manager, tmp_path):
        await manager.asked.wait()
    async with Taskscaler(Pool(FakeGroup(cloud)), observe_only=True, delete_instances_on_shutdown=delete):
        assert len(cloud.alive) == 1
    assert len(cloud.alive) == 1
