"""Artifacts between a sidecar and its GitLab, through us: how fast, at what CPU, and in how much memory.

GitLab and the sidecar are processes of their own that do as little as they can, and their bytes are on no disk.
"""

import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, process_time

sys.path.insert(0, str(Path(__file__).parents[1]))

import anyio
from _figures import report
from _needs import PROC, SSHD, run
from _sidecars import JOB, ORIGIN, TOKEN, a_job, at_a_port, offered, upstream
from anyio.abc import ByteStream, TaskGroup
from attrs import frozen

from fleeting import Connection
from fleeting.connectors import listen_tcp
from fleeting.connectors.ssh import MemoryHostKeys, SshConnector
from gitlab_jobs.client import GitLabClient
from taskscaler_gitlab import RunnerSettings
from taskscaler_gitlab._settings import OwnSettings, SidecarSettings
from taskscaler_gitlab.relay import Relays
from taskscaler_gitlab.relay._routes import application
from taskscaler_gitlab.relay._ways import Listening, Way, Ways
from tests.fleeting.sshd import configured, sshd

DELIVERY = "d1"
MIB = 1024
PIECE = 1 << 18
SSH_MIB = 256
ROUNDS = 3
PAGE = os.sysconf("SC_PAGE_SIZE")
PLAIN = Path(__file__).with_name("_sidecars.py")


@frozen(kw_only=True)
class Moved:
    """What it took to move a file."""

    seconds: float
    cpu: float
    """Seconds of this process."""

    grown: int
    """Bytes of its memory, at its peak."""


async def moved(way: str, where: str, mib: int) -> Moved:
    """Have a sidecar send or fetch a file, and see what it takes."""
    began, before, peak = process_time(), _resident(), 0

    async def look() -> None:
        nonlocal peak
        while True:
            peak = max(peak, _resident())
            await anyio.sleep(0.02)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(look)
        seconds = await _sidecar(way, where, f"/d/{DELIVERY}", mib)
        tasks.cancel_scope.cancel()
    return Moved(seconds=seconds, cpu=process_time() - began, grown=max(peak, _resident()) - before)


async def _sidecar(way: str, where: str, path: str, mib: int) -> float:
    done = await anyio.run_process([sys.executable, str(PLAIN), way, where, path, str(mib)], stderr=None)
    return float(done.stdout)


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


@asynccontextmanager
async def relay(url: str, own: OwnSettings, place: str, tasks: TaskGroup) -> AsyncIterator[Ways]:
    """A job of that GitLab, for one who calls where the settings say."""
    async with GitLabClient(url) as client:
        settings = RunnerSettings(url=url, token="glrt-t", executor="instance", taskscaler=own)  # noqa: S106
        relays = Relays(settings, Path(place, "state"), {ORIGIN: settings}, is_kept=True)
        work = offered(relays, client, settings, a_job(JOB, TOKEN), DELIVERY)
        tasks.start_soon(work._claim_if_wanted)  # noqa: SLF001  (what its life would start)
        async with Listening(own).serve(application(relays)) as ways:
            yield ways


async def over_loopback(url: str) -> None:
    """With ``reach = "url"``."""
    own, port = at_a_port()
    with TemporaryDirectory() as place:
        async with anyio.create_task_group() as tasks, relay(url, own, place, tasks):
            await moved("up", str(port), 16)  # what is needed once, is there
            for way in ("up", "down"):
                found = [await moved(way, str(port), MIB) for _ in range(ROUNDS)]
                direct = MIB / await _sidecar(way, url.rpartition(":")[2], "", MIB)
                best = min(found, key=lambda each: each.seconds)
                cpu = min(each.cpu for each in found) / MIB * 1000
                said = f"{MIB} MiB {way}, best of {ROUNDS}; {cpu:.2f} ms of our CPU a MiB; {direct:.0f} without us; "
                report("relay_artifact_mib_s", MIB / best.seconds, "MiB/s", 200, conditions=said + _load())
                grown = max(each.grown for each in found) / (1 << 20)
                report(
                    "relay_artifact_growth_mib", grown, "MiB", 64, conditions=f"{MIB} MiB {way}, the most of {ROUNDS}"
                )
            tasks.cancel_scope.cancel()


async def _keep_open(way: Way) -> None:
    await way.serve()


async def over_ssh(url: str) -> None:
    """Through a tunnel, and by turns what the same connection carries of a command's input or output, and of a port's.

    A command's bytes are in a pipe on the host. A port's are in a connection there, as the sidecar's are, and have no
    HTTP around them: what is between the two figures is not ours to save.
    """
    own = OwnSettings(run_with="sidecar", sidecar=SidecarSettings(executor="shell"))
    with TemporaryDirectory() as place, sshd(Path(place) / "sshd") as server:
        async with (
            SshConnector(MemoryHostKeys()).dial(server.info, configured()) as connection,
            anyio.create_task_group() as tasks,
            relay(url, own, place, tasks) as ways,
            ways.open(connection) as opened,
        ):
            tasks.start_soon(_keep_open, opened)
            await moved("up", str(opened.port), 16)
            for way in ("up", "down"):
                bare, port, ours = [], [], []
                for _ in range(ROUNDS):
                    bare.append(await _bare(connection, way))
                    port.append(await _port(connection, way))
                    ours.append((await moved(way, str(opened.port), SSH_MIB)).seconds)
                speed = SSH_MIB / median(ours)
                for name, others in (("a command's bytes", bare), ("a forwarded port's bytes", port)):
                    ratio = median(each / mine for each, mine in zip(others, ours, strict=True))
                    said = f"{SSH_MIB} MiB {way}, median of {ROUNDS}; {speed:.0f} MiB/s; OpenSSH's sshd; "
                    against = f"{name}, {SSH_MIB / median(others):.0f} MiB/s; "
                    said += f"against {against}{_load()}"
                    report("relay_artifact_over_ssh_ratio", ratio, "ratio", 0.7, conditions=said)
            tasks.cancel_scope.cancel()


async def _bare(connection: Connection, way: str) -> float:
    begin = perf_counter()
    if way == "up":
        await connection.run(f"head -c {SSH_MIB << 20} /dev/zero", stdout=_ignore, check=True)
    else:
        await connection.run("cat > /dev/null", stdin=_zeros(), check=True)
    return perf_counter() - begin


async def _port(connection: Connection, way: str) -> float:
    """The same through a port that is forwarded, to somebody who does nothing with it."""
    async with listen_tcp(connection, "127.0.0.1", 0) as listener, anyio.create_task_group() as tasks:

        async def answer(stream: ByteStream) -> None:
            async with stream:
                if way == "up":
                    with suppress(anyio.EndOfStream):
                        while True:
                            await stream.receive(PIECE)
                else:
                    async for piece in _zeros():
                        await stream.send(piece)

        tasks.start_soon(lambda: listener.serve(answer, at_once=1))
        command = [sys.executable, str(PLAIN), f"plain-{way}", str(listener.port), str(SSH_MIB)]
        done = await anyio.run_process(command, stderr=None)
        tasks.cancel_scope.cancel()
    return float(done.stdout)


async def _zeros() -> AsyncIterator[bytes]:
    for _ in range(SSH_MIB * 4):
        yield bytes(PIECE)


async def _ignore(_: bytes) -> None:
    pass


def _load() -> str:
    return f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs"


async def measure(what: Callable[[str], Awaitable[None]]) -> None:
    """Measure it beside a GitLab."""
    async with upstream("drain") as url:
        await what(url)


def main() -> None:
    """Measure both, the one that needs less first."""
    run(lambda: anyio.run(measure, over_loopback), PROC)
    run(lambda: anyio.run(measure, over_ssh), SSHD)


if __name__ == "__main__":
    main()
