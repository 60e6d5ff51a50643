"""Jobs that sidecars are about to run, without a fleet below them, and what is at both ends of the relay.

``python _sidecars.py gitlab PLACE JOBS`` is a GitLab that has these jobs: it prints its address and a runner's token.
``python _sidecars.py drain`` is one that costs next to nothing: it prints its address, grants every claim, and reads
what it is sent, or sends zeros, as fast as it can. ``python _sidecars.py up|down PORT PATH MIB`` is a sidecar: it sends
a file in chunks of 32 KiB, as gitlab-runner does, or fetches one, and prints the seconds that took.
"""

import socket
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from subprocess import DEVNULL
from time import perf_counter
from types import SimpleNamespace
from typing import cast

import anyio
from anycorn import Config, serve
from anyio.abc import ByteReceiveStream
from anyio.streams.buffered import BufferedByteReceiveStream

import fleeting
from fleeting import LoopClock
from gitlab_jobs import Job, JobInfo, Step, Variable
from gitlab_jobs.client import GitLabClient
from gitlab_jobs.testing import FakeGitLab
from taskscaler import Lease, Policy, Pool, Taskscaler
from taskscaler.executors.instance import InstanceConfig, InstanceExecutor
from taskscaler_gitlab import RunnerSettings, read_config
from taskscaler_gitlab._service import RunnerService
from taskscaler_gitlab._settings import OwnSettings, SidecarSettings
from taskscaler_gitlab._view import JobView
from taskscaler_gitlab._work import OwnRuns, Shop
from taskscaler_gitlab.relay import Relays, RelayWork
from taskscaler_gitlab.relay._relay import hashed

JOB, TOKEN = 1, "glcbt-of-a-job"
ORIGIN = "0123456789ab"
SECRET = "glrt-once"  # noqa: S105  (it opens nothing)
FILE = """
concurrent = {jobs}
check_interval = 1
[[runners]]
url = "{url}"
token = "{token}"
executor = "instance"
[runners.taskscaler]
run_with = "sidecar"
[runners.taskscaler.sidecar]
binary = "{program}"
[runners.autoscaler]
plugin = "local"
capacity_per_instance = {per_instance}
"""
_CHUNK = 32 << 10
_PIECE = 1 << 20


def at_a_port() -> tuple[OwnSettings, int]:
    """Settings with ``reach = "url"``, and the port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    place, sidecar = f"127.0.0.1:{port}", SidecarSettings(executor="shell")
    return OwnSettings(
        run_with="sidecar", sidecar=sidecar, reach="url", listen=place, advertise_url=f"http://{place}"
    ), port


def a_job(number: int = 0, token: str = "") -> Job:
    """One that says hello."""
    step = Step(name="script", script=("echo hello",), timeout=3600, when="on_success")
    none = Variable(key="GIT_STRATEGY", value="none")
    return Job(id=number, token=token, job_info=JobInfo(name="hello"), variables=(none,), steps=(step,))


def offered(relays: Relays, client: GitLabClient, settings: RunnerSettings, job: Job, delivery: str) -> RelayWork:
    """A job whose sidecar has it, and has not called about it; what its life would start, the caller does."""
    shop = Shop(
        settings=settings,
        client=client,
        scaler=cast("Taskscaler", None),
        executor=InstanceExecutor(InstanceConfig()),
        runs=OwnRuns(),
        clock=LoopClock(),
        info={},
        outlives=True,
        is_draining=lambda: False,
    )
    work = relays.take(shop, job, f"gitlab/{ORIGIN}", origin=ORIGIN, now=0.0)
    begun = work.relay.got_slot().relay.starts(delivery, hashed(SECRET), 1).relay
    work.relay = begun.polled(delivery, SECRET, claims=True).relay
    work.lease = cast("Lease", SimpleNamespace(instance="i", slot=0))
    relays.enter(delivery, work)
    return work


@asynccontextmanager
async def serving(
    place: Path,
    client: GitLabClient,
    *,
    url: str,
    token: str,
    program: str,
    jobs: int,
    per_instance: int,
    policy: Policy | None = None,
) -> AsyncIterator[RunnerService]:
    """Have a whole service whose jobs this program runs, on instances of the plugin ``local``, so many at once."""
    config = place / "config.toml"
    await anyio.Path(config).write_text(
        FILE.format(jobs=jobs, url=url, token=token, program=program, per_instance=per_instance)
    )
    executor = InstanceExecutor(InstanceConfig())
    service = RunnerService(read_config(config), executor, place / "state", is_kept=False, say=print)
    service.connect = lambda _: client
    group = fleeting.load("local", {"directory": f"{place}/group"})
    pool = Pool(group, capacity_per_instance=per_instance, max_instances=jobs // per_instance)
    async with Taskscaler(pool, policies=[policy or Policy()]) as scaler, anyio.create_task_group() as tasks:
        await service.take_up(scaler, LoopClock())
        tasks.start_soon(service.run)
        yield service
        await service.leave()
        tasks.cancel_scope.cancel()


def works_of(service: RunnerService) -> Iterator[RelayWork]:
    """The jobs of a service that sidecars run."""
    for view in service.jobs:
        if isinstance(view, JobView) and isinstance(view.work, RelayWork):
            yield view.work


class _GitLab(BaseHTTPRequestHandler):
    """One connection to a GitLab that has seen everything, and remembers nothing."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_PUT(self) -> None:
        """Grant a claim."""
        self._read()
        self._answer(200)

    def do_POST(self) -> None:
        """Take a file."""
        self._read()
        self._answer(201)

    def do_GET(self) -> None:
        """Send a file of as many mebibytes as the query says."""
        size = int(self.path.rpartition("mib=")[2]) << 20
        self._answer(200, size)
        for piece in _zeros(size):
            self.connection.sendall(piece)

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def _answer(self, status: int, size: int = 0) -> None:
        self.send_response(status)
        self.send_header("Job-Status", "running")
        self.send_header("Content-Length", str(size))
        self.end_headers()

    def _read(self) -> None:
        into = memoryview(bytearray(_PIECE))
        if "Content-Length" in self.headers:
            self._skip(int(self.headers["Content-Length"]), into)
            return
        while size := int(self.rfile.readline(), 16):
            self._skip(size, into)
            self.rfile.readline()
        self.rfile.readline()

    def _skip(self, size: int, into: memoryview) -> None:
        while size:
            size -= self.rfile.readinto(into[:size])


def _zeros(size: int) -> Iterator[bytes]:
    piece = bytes(_PIECE)
    for _ in range(size // _PIECE):
        yield piece


async def gitlab(place: str, jobs: int) -> None:
    """Be a GitLab with jobs."""
    made = FakeGitLab(Path(place), long_poll=1.0, accepts=0)
    for _ in range(jobs):
        made.enqueue(a_job())
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    listener.setblocking(False)
    print(f"http://127.0.0.1:{listener.getsockname()[1]} {made.runner_token}", flush=True)
    config = Config()
    config.bind = [f"fd://{listener.detach()}"]
    config.errorlog = None
    await serve(made.application(), config)  # type: ignore[arg-type]


@asynccontextmanager
async def upstream(*command: str) -> AsyncIterator[str]:
    """Have a process that is a GitLab; gives the line that it prints."""
    whole = [sys.executable, __file__, *command]
    async with await anyio.open_process(whole, stdin=DEVNULL, stderr=None) as process:
        printed = BufferedByteReceiveStream(cast("ByteReceiveStream", process.stdout))
        try:
            yield (await printed.receive_until(b"\n", 1 << 10)).decode().strip()
        finally:
            process.kill()


def drain() -> None:
    """Be a GitLab that remembers nothing, until somebody ends it."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _GitLab)
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()


def up(port: int, path: str, mib: int) -> float:
    """Send a file; returns the seconds until the answer is here."""
    head = (
        f"POST {path}/api/v4/jobs/{JOB}/artifacts HTTP/1.1\r\nHost: us\r\nJOB-TOKEN: {TOKEN}\r\n"
        "Content-Type: multipart/form-data; boundary=x\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    chunk = f"{_CHUNK:x}\r\n".encode() + bytes(_CHUNK) + b"\r\n"
    chunks = chunk * (_PIECE // _CHUNK)
    with socket.create_connection(("127.0.0.1", port)) as ours:
        begin = perf_counter()
        ours.sendall(head.encode())
        for _ in range(mib):
            ours.sendall(chunks)
        ours.sendall(b"0\r\n\r\n")
        _see(ours.recv(_PIECE), 201)
        return perf_counter() - begin


def down(port: int, path: str, mib: int) -> float:
    """Fetch a file; returns the seconds until all of it is here."""
    head = f"GET {path}/api/v4/jobs/{JOB}/artifacts?mib={mib} HTTP/1.1\r\nHost: us\r\nJOB-TOKEN: {TOKEN}\r\n\r\n"
    into = bytearray(_PIECE)
    with socket.create_connection(("127.0.0.1", port)) as ours:
        begin = perf_counter()
        ours.sendall(head.encode())
        start = ours.recv(_PIECE)
        _see(start, 200)
        size = (mib << 20) - len(start.partition(b"\r\n\r\n")[2])
        while size > 0 and (got := ours.recv_into(into)):
            size -= got
        if size:
            raise SystemExit(f"{size} bytes are missing")
        return perf_counter() - begin


def plain_up(port: int, mib: int) -> float:
    """Send as many bytes, and nothing else; returns the seconds until the other end has closed."""
    piece = bytes(_PIECE)
    with socket.create_connection(("127.0.0.1", port)) as ours:
        begin = perf_counter()
        for _ in range(mib):
            ours.sendall(piece)
        ours.shutdown(socket.SHUT_WR)
        ours.recv(1)
        return perf_counter() - begin


def plain_down(port: int) -> float:
    """Receive what comes; returns the seconds until the other end has closed."""
    into = bytearray(_PIECE)
    with socket.create_connection(("127.0.0.1", port)) as ours:
        begin = perf_counter()
        while ours.recv_into(into):
            pass
        return perf_counter() - begin


def _see(answer: bytes, status: int) -> None:
    if not answer.startswith(f"HTTP/1.1 {status}".encode()):
        raise SystemExit(f"expected {status}, got {answer[:200]!r}")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["gitlab", place, jobs]:
            anyio.run(gitlab, place, int(jobs))
        case ["drain"]:
            drain()
        case ["plain-up", port, mib]:
            print(plain_up(int(port), int(mib)))
        case ["plain-down", port, _]:
            print(plain_down(int(port)))
        case ["up" | "down" as way, port, path, mib]:
            print((up if way == "up" else down)(int(port), path, int(mib)))
