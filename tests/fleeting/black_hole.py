"""Dials a server in a network namespace of its own, then lets the network swallow everything; a program for `unshare`.

Prints, for a command that runs and for one that is begun afterwards, after how many seconds it was given up.
"""

import fcntl
import json
import socket
import struct
import sys
from contextlib import suppress
from pathlib import Path

import anyio

from fleeting import Connection, Unreachable
from tests.fleeting.local_agents import Heard
from tests.fleeting.sshd import dialled, sshd
from tests.time_limits import longer_and_longer

_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1  # linux/sockios.h, linux/if.h


def switch_loopback(*, on: bool) -> None:
    """Raise the loopback interface, or take it down: then packets vanish, and nobody is told."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request = fcntl.ioctl(sock, _SIOCGIFFLAGS, struct.pack("16sh22x", b"lo", 0))
        flags = struct.unpack("16sh22x", request)[1]
        fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", flags | _IFF_UP if on else flags & ~_IFF_UP))


async def play(directory: Path, shortest: float) -> dict[str, float]:
    """Lose the network while a command runs, and before one is begun.

    Args:
        directory: For the server's files.
        shortest: Seconds between two probes. A busy host may miss them before the network is lost; then the case is
            played again with a longer interval.
    """
    times: dict[str, float] = {}
    for case in (lose_running, lose_new):
        for keepalive in longer_and_longer(shortest):
            switch_loopback(on=True)
            with sshd(directory) as server, suppress(Unreachable):
                async with dialled(server.info, keepalive=keepalive) as connection:
                    times[case.__name__] = await case(connection)
                    switch_loopback(on=True)
                    break
    return times


async def lose_running(connection: Connection) -> float:
    """Lose the network while a command runs; returns the seconds until the command fails.

    Raises:
        Unreachable: The connection was given up while the network was there.
    """
    heard, lost_at = Heard(), None
    async with anyio.create_task_group() as tasks:

        async def lose() -> None:
            nonlocal lost_at
            await heard.lines(1)
            switch_loopback(on=False)
            lost_at = anyio.current_time()

        tasks.start_soon(lose)
        try:
            await connection.run("echo here; exec sleep 1000", stdout=heard)
        except Unreachable as error:
            failure = error
        else:
            raise AssertionError("the command ended")
        tasks.cancel_scope.cancel()
    if lost_at is None:
        raise failure
    return anyio.current_time() - lost_at


async def lose_new(connection: Connection) -> float:
    """Lose the network, then begin a command; returns the seconds until the command fails.

    Raises:
        Unreachable: The connection was given up while the network was there.
    """
    await connection.run("true")
    switch_loopback(on=False)
    lost_at = anyio.current_time()
    try:
        await connection.run("true")
    except Unreachable:
        return anyio.current_time() - lost_at
    raise AssertionError("the command ended")


if __name__ == "__main__":
    backend, seconds, where = sys.argv[1:]
    sys.stdout.write(json.dumps(anyio.run(play, Path(where), float(seconds), backend=backend)))
