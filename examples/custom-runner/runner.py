"""A runner of one's own: asks a coordinator for jobs, runs each in a slot of a fleet, and drains at Ctrl-C."""

import signal
from contextlib import suppress
from itertools import count

import anyio

import fleeting
from taskscaler import LeaseLost, NoCapacity, Policy, Pool, Taskscaler

JOBS = [(f"job-{number}", f"sleep 0.{number}; echo {number}") for number in range(8)]


async def request_job() -> tuple[str, str] | None:
    """Ask your coordinator for a job here: its name and script, or None if there is none at the moment."""
    return JOBS.pop(0) if JOBS else None


async def report(name: str, status: str, output: bytes = b"") -> None:
    """Tell your coordinator here."""
    print(name, status, output.decode().strip(), flush=True)


async def run_job(scaler: Taskscaler, key: str, name: str, script: str) -> None:
    """Run a job in the slot that was reserved for it."""
    try:
        async with scaler.acquire(key) as lease, lease.dial() as connection:
            done = await connection.run(script)
        await report(name, done.outcome, done.stdout)
    except (LeaseLost, NoCapacity, fleeting.ConnectError) as error:
        await report(name, f"was not finished, give it to somebody again: {error}")


async def wait_for_signal(draining: anyio.Event) -> None:
    """Begin to drain at the first Ctrl-C or SIGTERM; the second ends the program as ever, and deletes the fleet."""
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        await anext(signals)
    draining.set()


async def main() -> None:
    """Reserve a slot, then ask for a job: so none is taken that cannot be run. Leaving waits for those taken."""
    pool, draining = Pool(fleeting.load("local"), capacity_per_instance=2, max_instances=2), anyio.Event()
    scaler = Taskscaler(pool, policies=[Policy(idle_time=60)])
    async with scaler, anyio.create_task_group() as tasks:
        tasks.start_soon(wait_for_signal, draining)
        for key in map("slot-{}".format, count()):
            with anyio.move_on_after(0.1):
                await draining.wait()
                return
            with suppress(NoCapacity):
                await scaler.reserve(key)
                if job := await request_job():
                    tasks.start_soon(run_job, scaler, key, *job)
                else:
                    await scaler.unreserve(key)


anyio.run(main)
