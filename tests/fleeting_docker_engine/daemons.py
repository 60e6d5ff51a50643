"""A Docker daemon for tests: the one that is there, or one of our own with all that is its in one directory."""

import fcntl
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import tarfile
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import anyio
import pytest
from attrs import frozen

from fleeting_docker_engine import Engine, Entry, tar_of
from tests.needs import need

IMAGE = "taskscaler-test/busybox:1"
"""What every container of the tests is made from: a shell and its tools in one program."""

BUSYBOX = Path("/usr/bin/busybox")
DOCKERD = Path("/usr/sbin/dockerd")

USERS = (
    b"root:x:0:0:root:/root:/bin/sh\nworker:x:1000:1001::/home/worker:/bin/sh\nsshd:x:100:65534::/run/sshd:/bin/false\n"
)

PLACE = Path("/var/tmp")  # noqa: S108  (its directories there are private)
"""Where daemons have their directories: on a disk, as their layers need it."""

HELD = "held"
"""The file in such a directory that is locked for as long as the daemon is used."""

BRIDGE = "bridge"
"""The file there that names the bridge which was made for it."""

NUMBER = "number"
"""The file there that tells daemons of one machine apart, as their networks and bridges must not overlap."""

NUMBERS = range(128, 192)
"""The second part of the addresses of a daemon's containers, of which the first is 10."""


@frozen
class Daemon:
    """A daemon that runs."""

    socket: str

    def engine(self) -> Engine:
        """Make a client."""
        return Engine(partial(anyio.connect_unix, self.socket))

    def ask(self, method: str, path: str, **request: Any) -> Any:  # noqa: ANN401  (JSON)
        """Ask one thing, from outside of any event loop."""

        async def ask(engine: Engine) -> object:
            return await engine.ask(method, path, **request)

        return self.use(ask)

    def use(self, use: Callable[[Engine], Awaitable[Any]]) -> Any:  # noqa: ANN401  (JSON)
        """Use a client, from outside of any event loop."""

        async def main() -> object:
            async with self.engine() as engine:
                return await use(engine)

        return anyio.run(main)

    async def holdings(self) -> set[str]:
        """All containers, networks and volumes, by their names."""
        async with self.engine() as engine:
            containers = await engine.ask("GET", "/containers/json", query={"all": True})
            networks = await engine.ask("GET", "/networks")
            volumes = (await engine.ask("GET", "/volumes"))["Volumes"] or []
        names = {f"container {each['Names'][0]} {each['State']}" for each in containers}
        return names | {f"network {each['Name']}" for each in networks} | {f"volume {each['Name']}" for each in volumes}


@contextmanager
def daemon() -> Iterator[Daemon]:
    """Run a daemon with the tests' image, or use the one that ``DOCKER_HOST`` or the usual socket leads to."""
    need("busybox", "ldd")
    given = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock").removeprefix("unix://")
    if _answers(given):
        found = Daemon(given)
        import_image(found)
        yield found
        return
    need("dockerd", "ip", "iptables", "setpriv")
    if os.geteuid() != 0:
        pytest.skip("there is no Docker daemon, and only root can start one")
    with directory() as place, bridge(place) as network, started(place, network) as own:
        import_image(own)
        yield own


@contextmanager
def directory(base: Path = PLACE) -> Iterator[Path]:
    """Make a directory for a daemon, and in the end remove it with all that the daemon has left outside of it.

    First that is done for daemons whose tests were killed: some thirty forgotten bridges leave no addresses for others.
    """
    with (base / "dockerd-tests.lock").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)  # one looks and begins at a time
        for other in base.glob("dockerd-*/"):
            if is_abandoned(other):
                clear_away(other)
        taken = {int(other.read_text()) for other in base.glob(f"dockerd-*/{NUMBER}")}
        made = Path(tempfile.mkdtemp(prefix="dockerd-", dir=base))
        (made / NUMBER).write_text(str(min(set(NUMBERS) - taken)))
        held = (made / HELD).open("w")
        fcntl.flock(held, fcntl.LOCK_EX)
    with held:
        try:
            yield made
        finally:
            clear_away(made)


def is_abandoned(directory: Path) -> bool:
    """Whether nobody holds a daemon's directory any more, nor does the daemon run."""
    try:
        with (directory / HELD).open() as held:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # somebody does, or it was not made here
        return False
    process = directory / "pid"
    return not (process.exists() and Path(f"/proc/{process.read_text()}").exists())


def clear_away(directory: Path) -> None:
    """Remove the directory of a daemon that has ended, its bridge, and those of networks that it still knew."""
    files = [directory / "data/network/files/local-kv.db", directory / BRIDGE]
    known = b"".join(file.read_bytes() for file in files if file.exists())
    for name in {name.decode() for name in re.findall(rb"br-[0-9a-f]{12}|dockertest[0-9]+", known)}:
        if Path(f"/sys/class/net/{name}").exists():
            _ip("link", "delete", name)
    shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def bridge(directory: Path) -> Iterator[str]:
    """Make a bridge for the daemon with that directory: another may have the usual one."""
    number = int((directory / NUMBER).read_text())
    name = f"dockertest{number}"
    (directory / BRIDGE).write_text(name)
    mac = f"02:42:0a:{number:02x}:80:01"  # set, else it changes whenever the container with the lowest goes
    _ip("link", "add", "name", name, "address", mac, "type", "bridge")
    try:
        _ip("address", "add", f"10.{number}.128.1/24", "dev", name)
        _ip("link", "set", name, "up")
        while _let_pass("--delete", number):  # of tests that were killed
            pass
        assert _let_pass("--insert", number)
        yield name
    finally:
        _let_pass("--delete", number)
        _ip("link", "delete", name)


def _let_pass(verb: str, number: int) -> bool:
    """Insert or delete the rule that the machine forwards between our containers; False if that cannot be done.

    A daemon of somebody else's may have forbidden what it does not know, and ours writes no rules.
    """
    network = f"10.{number}.0.0/16"
    rule = ["FORWARD", "--source", network, "--destination", network, "--jump", "ACCEPT"]
    command = ["/usr/sbin/iptables", "--wait", verb, *rule]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def _ip(*arguments: str) -> None:
    subprocess.run(["/sbin/ip", *arguments], check=True)


@contextmanager
def started(directory: Path, bridge: str) -> Iterator[Daemon]:
    """Run a daemon of our own."""
    path = directory / "docker.sock"
    command = [
        "setpriv",
        "--pdeathsig=TERM",  # so that it does not outlive a test run that is killed
        str(DOCKERD),
        f"--data-root={directory}/data",
        f"--exec-root={directory}/exec",
        f"--pidfile={directory}/pid",
        f"--host=unix://{path}",
        "--exec-opt=native.cgroupdriver=cgroupfs",
        f"--bridge={bridge}",
        # For 512: killed tries leave theirs for a while.
        f"--default-address-pool=base=10.{(directory / NUMBER).read_text()}.0.0/17,size=26",
        # A daemon that starts removes the chains of all daemons from the machine's tables, to make them anew; whoever
        # makes a network meanwhile fails. What the tests need of the network, forwarding and its proxy do.
        "--iptables=false",
        "--ip6tables=false",
    ]
    ready = directory / "ready.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified, (directory / "log").open("wb") as log:
        notified.bind(str(ready))
        env = {**os.environ, "NOTIFY_SOCKET": str(ready), "GOGC": "400"}  # collects its garbage a quarter as often
        with subprocess.Popen(command, stdout=log, stderr=log, env=env) as process:
            try:
                _await_ready(notified, process, directory / "log")
                yield Daemon(str(path))
            finally:
                process.send_signal(signal.SIGTERM)
                process.wait()


def _await_ready(notified: socket.socket, process: "subprocess.Popen[bytes]", log: Path) -> None:
    """Wait until the daemon is ready, and skip the test if it exits instead."""
    ended = os.pidfd_open(process.pid)
    try:
        while True:
            readable, _, _ = select.select([notified.fileno(), ended], [], [])
            if notified.fileno() in readable:
                if b"READY=1" in notified.recv(4096):
                    return
            else:
                pytest.skip(f"dockerd does not start here: {log.read_text()[-500:]}")
    finally:
        os.close(ended)


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as sock, suppress(OSError):
        sock.connect(path)
        return True
    return False


def import_image(target: Daemon, name: str = IMAGE) -> None:
    """Make the image from busybox alone; nothing is pulled."""
    repository, _, tag = name.rpartition(":")

    async def load(engine: Engine) -> None:
        query = {"fromSrc": "-", "repo": repository, "tag": tag}
        await engine.progress("POST", "/images/create", query=query, body=root_file_system())

    target.use(load)


def root_file_system() -> bytes:
    """A root file system of one program with many names, and a user."""
    directories = {name: Entry(mode=0o755) for name in ("bin", "etc", "root", "home", "home/worker")}
    files = {"bin/busybox": Entry(BUSYBOX.read_bytes(), 0o755), "etc/passwd": Entry(USERS)}
    buffer = BytesIO(tar_of({**directories, "tmp": Entry(mode=0o1777), **files}))
    names = subprocess.run([str(BUSYBOX), "--list"], check=True, capture_output=True, text=True).stdout.split()
    with tarfile.open(fileobj=buffer, mode="a") as tar:
        for name in names:
            if name != "busybox":
                link = tarfile.TarInfo(f"bin/{name}")
                link.type, link.linkname = tarfile.SYMTYPE, "busybox"
                tar.addfile(link)
    return buffer.getvalue()
