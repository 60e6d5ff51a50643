"""What a router before cells costs: the time that it adds to a call, the memory of requests that it holds.

Cells, and runners, are processes of their own: what they take is not what the router takes.
"""

import json
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from statistics import median
from subprocess import PIPE
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import cast

import anyio
import anyio.abc
import httpx
from _figures import report
from anyio.abc import ByteReceiveStream, Process

HELD = 5000
CALLS = 1500
PIECE = b"a line of a log, as long as most\n" * 62
"""Two kilobytes."""

_RESPONSE = b"HTTP/1.1 202 Accepted\r\nJob-Status: running\r\nRange: 0-1\r\nContent-Length: 0\r\n\r\n"


async def cell() -> None:
    """Be a cell that answers pieces of logs at once, and holds requests for jobs for ever; prints its port."""

    async def answer(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            buffer = b""
            while True:
                try:
                    buffer += await stream.receive()
                except (anyio.EndOfStream, anyio.BrokenResourceError):
                    return
                while b"\r\n\r\n" in buffer:
                    head, _, rest = buffer.partition(b"\r\n\r\n")
                    lines = head.lower().split(b"\r\n")
                    length = next(int(each[15:]) for each in lines if each.startswith(b"content-length:"))
                    if len(rest) < length:
                        break
                    buffer = rest[length:]
                    if lines[0].startswith(b"patch"):
                        await stream.send(_RESPONSE)

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1", backlog=4096)
    print(listener.extra(anyio.abc.SocketAttribute.local_port), flush=True)
    await listener.serve(answer)


async def hold(url: str, count: str) -> None:
    """Be so many runners that wait for jobs; prints when all have asked."""
    host, _, port = url.removeprefix("http://").partition(":")
    open_ = []
    for number in range(int(count)):
        body = json.dumps({"token": _token(number), "info": {}, "system_id": "r_0123456789ab"}).encode()
        head = f"POST /api/v4/jobs/request HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n"
        made = await anyio.connect_tcp(host, int(port))
        await made.send(head.encode() + body)
        open_.append(made)
    print("asked", flush=True)
    await anyio.sleep_forever()


def _token(number: int) -> str:
    from gitlab_jobs import mint_routable

    return mint_routable("glrt-t2_", {"c": 1, "o": 1}, number.to_bytes(16, "big"))


@asynccontextmanager
async def _process(*arguments: str) -> AsyncIterator[tuple[Process, str]]:
    """A part of this program, and the first line that it prints."""
    async with await anyio.open_process([sys.executable, *arguments], stdout=PIPE, stderr=None) as process:
        try:
            yield process, (await cast("ByteReceiveStream", process.stdout).receive()).decode().strip()
        finally:
            process.kill()


@asynccontextmanager
async def _router(place: Path, cell_port: str) -> AsyncIterator[tuple[Process, str]]:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    listen = f'[router]\nlisten = "127.0.0.1:{port}"\nstate_dir = "{place}/state"\n'
    (place / "router.toml").write_text(f'{listen}[cells.1]\nurl = "http://127.0.0.1:{cell_port}"\n')
    command = ("-c", "from taskscaler_gitlab.cli import main; main()", "route", str(place / "router.toml"))
    async with _process(*command) as (process, _):
        yield process, f"http://127.0.0.1:{port}"


async def added(place: Path) -> tuple[float, float, float]:
    """Milliseconds by which a piece of a log is later, as most are; those that it takes without a router; CPU's.

    Both are sent in turn, so that what disturbs the machine disturbs both.
    """
    async with (
        _process(__file__, "cell") as (_, port),
        _router(place, port) as (process, url),
        httpx.AsyncClient() as http,
    ):
        began_at = _used(process.pid)
        took: dict[str, list[float]] = {f"http://127.0.0.1:{port}": [], url: []}
        headers = {"JOB-TOKEN": _token(1), "Content-Range": f"0-{len(PIECE) - 1}"}
        for count in range(CALLS):
            for base, times in took.items():
                began = perf_counter()
                answer = await http.patch(f"{base}/api/v4/jobs/1/trace", content=PIECE, headers=headers)
                if count >= CALLS // 10:
                    times.append(perf_counter() - began)
                if answer.status_code != HTTPStatus.ACCEPTED:
                    raise SystemExit(f"a piece was refused: {answer.status_code}")
        direct, routed = (median(each) * 1000 for each in took.values())
        return routed - direct, direct, (_used(process.pid) - began_at) / CALLS * 1000


async def held(place: Path) -> tuple[float, float]:
    """Mebibytes of the router with all runners waiting, and before."""
    async with _process(__file__, "cell") as (cell_process, port), _router(place, port) as (process, url):
        before = _resident(process.pid)
        async with _process(__file__, "hold", url, str(HELD)):
            with anyio.fail_after(600):
                while _sockets(cell_process.pid) <= HELD:  # noqa: ASYNC110  (nobody says)
                    await anyio.sleep(0.2)
            await anyio.sleep(1)
            return _resident(process.pid), before


def _used(pid: int) -> float:
    """Seconds of CPU that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def _sockets(pid: int) -> int:
    return sum(each.is_socket() for each in Path(f"/proc/{pid}/fd").iterdir())


def main() -> None:
    """Measure all of it."""
    load = f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs"
    with TemporaryDirectory() as place:
        more, direct, cpu = anyio.run(added, Path(place))
        conditions = f"median of {CALLS} pieces of 2 kB, {direct:.2f} ms without; {load}"
        report("route_added_ms", more, "ms", 3, conditions=conditions)
        report("route_cpu_ms_per_call", cpu, "ms", 3, conditions="the same; what it adds on a machine that is idle")
    with TemporaryDirectory() as place:
        resident, before = anyio.run(held, Path(place))
        conditions = f"{HELD} requests that one cell holds; {before:.0f} MiB before"
        report("route_held_mib", resident, "MiB", 300, conditions=conditions)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["cell"]:
            anyio.run(cell)
        case ["hold", url, count]:
            anyio.run(hold, url, count)
        case _:
            main()
