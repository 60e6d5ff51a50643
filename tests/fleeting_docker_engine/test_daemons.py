"""The tests' own daemons leave nothing on the machine, whatever became of those who used them."""

import fcntl
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.fleeting_docker_engine.daemons import HELD, NUMBER, directory

LINKS = Path("/sys/class/net")

pytestmark = [
    pytest.mark.needs("ip"),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a bridge"),
]


@pytest.fixture
def bridge() -> Iterator[str]:
    """A bridge of a Docker network, as a daemon names it."""
    name = f"br-{uuid4().hex[:12]}"
    subprocess.run(["/sbin/ip", "link", "add", "name", name, "type", "bridge"], check=True)
    yield name
    subprocess.run(["/sbin/ip", "link", "delete", name], check=False, capture_output=True)


def know(directory: Path, bridge: str) -> None:
    """Let the daemon with that directory have had a network with that bridge."""
    files = directory / "data/network/files"
    files.mkdir(parents=True)
    (files / "local-kv.db").write_bytes(b"\0BridgeName\0" + bridge.encode() + b"\0")


@pytest.fixture
def left(tmp_path: Path, bridge: str) -> Path:
    """The directory of a daemon that knew of the bridge, and has ended."""
    left = tmp_path / "dockerd-left"
    know(left, bridge)
    (left / HELD).touch()
    return left


def test_what_a_killed_run_has_left_goes_with_the_next(tmp_path: Path, left: Path, bridge: str) -> None:
    """The directory of its daemon, and the bridges of networks that the daemon still had."""
    with directory(tmp_path):
        assert not left.exists()
        assert not (LINKS / bridge).exists()


def test_what_is_in_use_stays(tmp_path: Path, left: Path, bridge: str) -> None:
    """Be it by another run or by a daemon that has not ended yet."""
    with (left / HELD).open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with directory(tmp_path):
            assert left.exists()
    (left / "pid").write_text(str(os.getpid()))
    with directory(tmp_path):
        assert left.exists()
        assert (LINKS / bridge).exists()


def test_a_daemon_takes_its_bridges_along(tmp_path: Path, bridge: str) -> None:
    """A network whose job was killed is known to the daemon until its end, and the bridge stays after that."""
    with directory(tmp_path) as made:
        know(made, bridge)
    assert not made.exists()
    assert not (LINKS / bridge).exists()


def test_no_two_daemons_have_the_same_addresses(tmp_path: Path) -> None:
    """Be there as many as there are tests at a time; who has ended leaves its to others."""
    with directory(tmp_path) as first, directory(tmp_path) as second:
        assert (first / NUMBER).read_text() != (second / NUMBER).read_text()
        kept = (first / NUMBER).read_text()
    with directory(tmp_path) as third:
        assert (third / NUMBER).read_text() == kept
