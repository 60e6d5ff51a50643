"""The `ssh` connector where it takes a while: much output, a network that is a black hole, connections by the hundred.

Those of sizes have two: a small one, where each fault would show, and with ``--full`` the whole one.
"""

import json
import resource
import sys
from pathlib import Path

import anyio
import pytest
from attrs import evolve

from fleeting.connectors.ssh import MemoryHostKeys, SshConnector
from tests.fleeting.sshd import configured, only_root, sshd

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

MIB = 1 << 20


def peak_memory() -> int:
    """The most memory that this process has used since the last look, in bytes."""
    status = Path("/proc/self/status").read_text()
    peak = next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:"))
    Path("/proc/self/clear_refs").write_text("5")
    return int(peak) << 10


async def test_a_gibibyte_of_output_needs_little_memory(tmp_path: Path, *, full: bool) -> None:
    """What was taken is let go of, and the keys are exchanged anew on the way, as the protocol asks after so much."""
    size, much, settings = (0, 1024 * MIB, []) if full else (0, 64 * MIB, ["RekeyLimit 16M"])

    async def count(chunk: bytes) -> None:
        nonlocal size
        size += len(chunk)

    with sshd(tmp_path, *settings) as server:
        async with SshConnector(MemoryHostKeys()).dial(server.info, configured(timeout=200.0)) as connection:
            await connection.run(f"head -c {32 * MIB} /dev/zero", stdout=count)
            peak_memory()
            before, size = peak_memory(), 0
            assert (await connection.run(f"head -c {much} /dev/zero", stdout=count)).ok
            assert size == much
            assert peak_memory() - before < 32 * MIB


@only_root
@pytest.mark.needs("unshare", "sshd", "ip")
async def test_a_network_that_swallows_everything_is_noticed(tmp_path: Path, anyio_backend: str) -> None:
    """In a namespace of its own, with the interface down, no command hangs, running or new."""
    command = ["unshare", "-n", sys.executable, "-m", "tests.fleeting.black_hole"]
    done = await anyio.run_process([*command, anyio_backend, "0.3", str(tmp_path)], check=False, stderr=None)
    assert done.returncode == 0
    times = json.loads(done.stdout)
    assert times.keys() == {"lose_running", "lose_new"}
    assert all(seconds > 0 for seconds in times.values())


async def test_a_thousand_connections_at_once(tmp_path: Path, *, full: bool) -> None:
    """Each instance has a connection of its own, all of them stay, and all of them work."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    connector, count, ready = SshConnector(MemoryHostKeys()), 0, anyio.Event()
    all_ready, most = anyio.Event(), 1000 if full else 100
    with sshd(tmp_path) as server:

        async def hold(number: int) -> None:
            nonlocal count
            info = evolve(server.info, id=f"i-{number}")
            async with connector.dial(info, configured(timeout=200.0)) as connection:
                count += 1
                if count == most:
                    all_ready.set()
                await ready.wait()
                if number % 50 == 0:
                    assert (await connection.run(["echo", str(number)])).stdout == b"%d\n" % number

        async with anyio.create_task_group() as tasks:
            for number in range(most):
                tasks.start_soon(hold, number)
            await all_ready.wait()
            assert len(server.connections) == most
            ready.set()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
