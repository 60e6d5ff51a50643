"""Dials a server in a network namespace of its own, then lets the network swallow everything; a program for `unshare`.

Prints, for a command that runs and for one that is begun afterwards, after how many seconds it was given up.
"""

import fcntl
import json
import socket
import struct
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import anyio

from fleeting import Connection, Unreachable
from tests.fleeting.local_agents import Heard
from tests.fleeting.sshd import dialled, sshd

_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1  # linux/sockios.h, linux/if.h


def switch_loopback(*, on: bool) -> None:
    """Raise the loopback interface, or take it down: then packets vanish, and nobody is told."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request = fcntl.ioctl(sock, _SIOCGIFFLAGS, struct.pack("16sh22x", b"lo", 0))
        flags = struct.unpack("16sh22x", request)[1]
        fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", flags | _IFF_UP if on else flags & ~_IFF_UP))


async def given_up(run: Callable[[], Awaitable[object]]) -> float:
    """Tell after how many seconds a command is given up."""
    begun = anyio.current_time()
    with suppress(Unreachable):
        await run()
        return -1.0
    return anyio.current_time() - begun


async def play(directory: Path, keepalive: float) -> dict[str, float]:
    """Lose the network while a command runs, and before one is begun."""
    times: dict[str, float] = {}
    for case in ("running", "new"):
        switch_loopback(on=True)
        with sshd(directory) as server:
            async with dialled(server.info, keepalive=keepalive) as connection:
                times[case] = await (lose_running if case == "running" else lose_new)(connection)
            switch_loopback(on=True)
    return times


async def lose_running(connection: Connection) -> float:
    """Lose the network while a command runs."""
    heard = Heard()
    async with anyio.create_task_group() as tasks:

        async def lose() -> None:
            await heard.lines(1)
            switch_loopback(on=False)

        tasks.start_soon(lose)
        return await given_up(lambda: connection.run("echo here; exec sleep 1000", stdout=heard))
    raise AssertionError


async def lose_new(connection: Connection) -> float:
    """Lose the network, then begin a command."""
    await connection.run("true")
    switch_loopback(on=False)
    return await given_up(lambda: connection.run("true"))


if __name__ == "__main__":
    backend, seconds, where = sys.argv[1:]
    sys.stdout.write(json.dumps(anyio.run(play, Path(where), float(seconds), backend=backend)))
