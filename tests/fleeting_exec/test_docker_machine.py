"""The adapter for Docker Machine, over a command that behaves as Docker Machine does, well or badly."""

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from attrs import frozen

from fleeting import (
    AuthFailed,
    CapacityUnavailable,
    InstanceNotFound,
    LoopClock,
    ProviderError,
    QuotaExceeded,
    RateLimited,
    Settings,
    State,
)
from fleeting_exec import ExecConfig, ExecGroup, ExitCode

pytestmark = [pytest.mark.anyio]

ADAPTER = str(Path(sys.executable).with_name("fleeting-docker-machine"))
FAKE = Path(__file__).with_name("fake_docker_machine.py")


@frozen
class Place:
    """A machine with Docker Machine on it, and a cloud behind its driver."""

    directory: Path

    @property
    def env(self) -> Mapping[str, str]:
        """What the adapter needs to find it."""
        return {
            "PATH": f"{self.directory / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "MACHINE_STORAGE_PATH": str(self.directory / "store"),
            "FAKE_CLOUD": str(self.directory / "vms"),
            "FAKE_TROUBLE": str(self.directory / "trouble"),
        }

    @property
    def vms(self) -> list[Path]:
        """What the cloud's bill is about."""
        return sorted((self.directory / "vms").iterdir())

    @property
    def machines(self) -> list[Path]:
        """What Docker Machine has in its store."""
        return sorted((self.directory / "store" / "machines").glob("*"))

    def trouble(self, stage: str, message: str | None) -> None:
        """Have something go wrong from now on, or nothing any more."""
        path = self.directory / "trouble" / stage
        path.unlink(missing_ok=True) if message is None else path.write_text(message)

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run the adapter by hand."""
        env = {**os.environ, **self.env, "FLEETING_GROUP": "ci"}
        return subprocess.run([ADAPTER, *arguments], env=env, capture_output=True, text=True, check=False)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[ExecGroup]:
        """Open a group over it, with options as GitLab Runner has them."""
        config = ExecConfig(
            command=(ADAPTER, "fake", "fake-region=eu-1", "--engine-opt=mtu=1400"),
            name="ci",
            state_dir=str(self.directory / "state"),
            env=self.env,
        )
        group = ExecGroup(config)
        await group.init(Settings(owner="test", clock=LoopClock()))
        try:
            yield group
        finally:
            await group.shutdown()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Install the command."""
    for name in ("bin", "vms", "trouble"):
        (tmp_path / name).mkdir()
    command = tmp_path / "bin" / "docker-machine"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {FAKE} "$@"\n')
    command.chmod(0o755)
    return Place(tmp_path)


async def states(group: ExecGroup) -> dict[str, State]:
    """What the group shows."""
    return {name: seen.state for name, seen in (await group.update()).instances.items()}


async def test_a_machine_lives_and_goes(place: Place) -> None:
    """Created through its driver, reached as Docker Machine reaches it, listed, removed."""
    async with place.opened() as group:
        assert await group.increase(2, intent="a") == 2
        seen = (await group.update()).instances
        assert [(each.state, each.intent) for each in seen.values()] == [(State.RUNNING, "a")] * 2
        first, second = seen
        info = await group.connect_info(first)
        assert (info.protocol, info.internal_addr, info.port, info.user) == ("ssh", "192.0.2.7", 22, "ubuntu")
        assert info.key == "the key"
        await group.heartbeat(first)
        assert await group.decrease([first]) == [first]
        assert await states(group) == {second: State.RUNNING}
        with pytest.raises(InstanceNotFound):
            await group.heartbeat(first)
        assert await group.decrease([first, second]) == [first, second]
        assert (place.vms, place.machines) == ([], [])


async def test_machines_of_others_are_not_seen(place: Place) -> None:
    """The store may be shared with people and with GitLab Runner."""
    assert place.run("fake", "create", "ci-of-somebody").returncode == 0
    async with place.opened() as group:
        assert await states(group) == {}
    assert len(place.vms) == 1


@pytest.mark.parametrize(
    ("stage", "message", "kind"),
    [
        ("create", "InsufficientInstanceCapacity: We currently do not have capacity", CapacityUnavailable),
        ("create", "googleapi: Error 403: Quota 'CPUS' exceeded., quotaExceeded", QuotaExceeded),
        ("create", "RequestLimitExceeded: Request limit exceeded.", RateLimited),
        ("pre-create", "AuthFailure: AWS was not able to validate the provided access credentials", AuthFailed),
        ("create", "the CapacityNotOfInterest is InsufficientInstanceCapacityFoo", ProviderError),
        ("provision", "ssh command error", ProviderError),
    ],
)
async def test_a_create_that_fails_leaves_no_machine(
    place: Place, stage: str, message: str, kind: type[ProviderError]
) -> None:
    """Docker Machine keeps what it could not finish, at the cloud and in its store; the adapter does not."""
    place.trouble(stage, message)
    async with place.opened() as group:
        with pytest.raises(kind) as error:
            await group.increase(1, intent="a")
        assert type(error.value) is kind
        assert message in str(error.value)
        assert await states(group) == {}
        assert (place.vms, place.machines) == ([], [])


@pytest.mark.parametrize("release", ["new", "old"])
async def test_a_machine_that_cannot_be_removed_stays_in_sight(place: Place, release: str) -> None:
    """It costs money: it is never dropped from the store by force. Old releases say that they succeeded."""
    place.trouble("old-release", "yes" if release == "old" else None)
    async with place.opened() as group:
        await group.increase(1, intent="a")
        (name,) = await states(group)
        place.trouble("rm", "RequestLimitExceeded")
        with pytest.raises(ProviderError, match=f"fleeting-docker-machine destroy {name} exited with"):
            await group.decrease([name])
        assert await states(group) == {name: State.RUNNING}
        place.trouble("rm", None)
        assert await group.decrease([name]) == [name]
        assert (place.vms, place.machines) == ([], [])


async def test_one_bad_answer_of_the_cloud_kills_nothing(place: Place) -> None:
    """All machines are in the state ``Error`` then, as one whose creation failed would be."""
    async with place.opened() as group:
        await group.increase(1, intent="a")
        (name,) = before = await states(group)
        place.trouble("state", "the API is down")
        assert await states(group) == before
        with pytest.raises(ProviderError, match="is not running: its state is unknown"):
            await group.heartbeat(name)
        place.trouble("state", None)
        await group.heartbeat(name)
        await group.decrease([name])


async def test_a_machine_that_was_stopped_has_failed(place: Place) -> None:
    """As preemptible machines are: what ran there is lost, and it has to be removed."""
    async with place.opened() as group:
        await group.increase(1, intent="a")
        place.vms[0].write_text("Stopped")
        ((name, state),) = (await states(group)).items()
        assert state is State.FAILED
        await group.decrease([name])
        assert place.vms == []


async def test_a_host_that_cannot_be_read_is_shown(place: Place) -> None:
    """It may cost money, too."""
    async with place.opened() as group:
        await group.increase(1, intent="a")
        (place.machines[0] / "config.json").write_text("")
        assert list((await states(group)).values()) == [State.CREATING]


@pytest.mark.parametrize("arguments", [[], ["fake"], ["list"], ["fake", "create"], ["fake", "fly", "x"]])
def test_a_wrong_call_is_told_how(place: Place, arguments: list[str]) -> None:
    """With the exit status for it."""
    done = place.run(*arguments)
    assert done.returncode == 64
    assert "fleeting-docker-machine DRIVER [OPTION ...] create|destroy|status NAME" in done.stderr


def test_it_helps(place: Place) -> None:
    """Who calls it by hand learns what it is for and how it is called; that is not a mistake."""
    for asked in (["--help"], ["-h"]):
        done = subprocess.run([ADAPTER, *asked], capture_output=True, text=True, check=False, env={**place.env})
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("Usage: fleeting-docker-machine DRIVER ")
        assert 'command = ["fleeting-docker-machine"' in done.stdout


def test_without_its_group_it_is_said_so(place: Place) -> None:
    """As when somebody tries it by hand."""
    done = subprocess.run([ADAPTER, "fake", "list"], env=place.env, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert (
        done.stderr
        == "there is no FLEETING_GROUP in the environment; it is the name of the group, and set by fleeting\n"
    )


@pytest.mark.parametrize("printed", ["", "null", "[]", "{}", '{"Driver": 1}'])
def test_an_inspection_that_makes_no_sense_is_said_so(place: Place, printed: str) -> None:
    """In a line, not in a traceback."""
    fake = place.directory / "bin" / "docker-machine"
    fake.unlink()
    fake.write_text(f"""#!/bin/sh
case $1 in
ls) printf 'a\\tRunning\\n' ;;
inspect) printf '%s' '{printed}' ;;
esac
""")
    fake.chmod(0o755)
    done = place.run("fake", "status", "a")
    assert (done.returncode, done.stderr) == (
        1,
        "docker-machine inspect did not print a JSON object with a Driver; run it by hand to see why\n",
    )


def test_without_docker_machine_it_is_said_so(place: Place) -> None:
    """With what to do, not in a traceback."""
    (place.directory / "bin" / "docker-machine").unlink()
    done = place.run("fake", "list")
    assert (done.returncode, done.stderr) == (
        1,
        "there is no program docker-machine; install it, or add its directory to PATH in plugin_config.env\n",
    )


def test_it_starts_on_the_standard_library_alone() -> None:
    """It is run for every question; fleeting and what that needs would take longer to import than to answer."""
    look = "import sys, fleeting_docker_machine as _; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert {"fleeting", "fleeting_exec", "anyio", "attr"}.isdisjoint(done.stdout.split())


def test_its_statuses_are_those_of_the_contract() -> None:
    """It spells them as `os` does, so as not to import ours."""
    assert {code.name: code.value for code in ExitCode} == {
        "DONE": os.EX_OK,
        "UNKNOWN_COMMAND": os.EX_USAGE,
        "NOT_FOUND": os.EX_NOINPUT,
        "NO_CAPACITY": os.EX_UNAVAILABLE,
        "QUOTA": os.EX_CANTCREAT,
        "RATE_LIMITED": os.EX_TEMPFAIL,
        "NOT_ALLOWED": os.EX_NOPERM,
    }
