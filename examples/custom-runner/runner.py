"""A runner of one's own: asks a GitLab for jobs, runs each in a slot of a fleet, and drains at Ctrl-C.

Its arguments are the address and the token that `gitlab-jobs fake examples/custom-runner/jobs.toml` prints.
"""

import signal
import sys
from itertools import count

import anyio

import fleeting
from gitlab_jobs import Job, Outcome
from gitlab_jobs.client import GitLabClient, Reporting, Runner, info, reporting
from taskscaler import LeaseLost, NoCapacity, Policy, Pool, Taskscaler

ABOUT = info("variables", "two_phase_job_commit", "return_exit_code", name="custom-runner")


async def run_job(scaler: Taskscaler, client: GitLabClient, key: str, job: Job) -> None:
    """Run a job in the slot that was reserved for it; GitLab hears of all that happens to it."""
    async with reporting(client, job, info=ABOUT) as report:
        try:
            async with scaler.acquire(key) as lease, lease.dial() as connection:
                outcome = await run_script(report, connection, job) if await report.claim() else None
        except (LeaseLost, NoCapacity, fleeting.ConnectError) as error:
            report.note(f"The job was not finished: {error}\n")
            outcome = Outcome(is_success=False, failure_reason="runner_system_failure")
        if outcome is not None:
            print(job.job_info.name, outcome.state, (await report.finish(outcome)).value, flush=True)


async def run_script(report: Reporting, connection: fleeting.Connection, job: Job) -> Outcome | None:
    """Run its commands, unless GitLab wants it to end before; None if it does."""
    script = "\n".join(["set -e", *(line for step in job.steps if step.name == "script" for line in step.script)])
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(cancel_after, report.over, tasks.cancel_scope)
        done = await connection.run(script, env={each.key: each.value for each in job.variables if not each.file})
        tasks.cancel_scope.cancel()
        report.log(done.stdout + done.stderr)
        reason = None if done.ok else "script_failure"
        return Outcome(is_success=reason is None, failure_reason=reason, exit_code=done.exit_status)
    return None


async def cancel_after(event: anyio.Event, scope: anyio.CancelScope) -> None:
    """End what a scope is about once something has happened."""
    await event.wait()
    scope.cancel()


async def drain_at_signal(scope: anyio.CancelScope) -> None:
    """Ask for no more jobs after the first Ctrl-C or SIGTERM; the second ends the program as ever."""
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        await anext(signals)
    scope.cancel()


async def main(url: str, token: str) -> None:
    """Reserve a slot, then ask for a job: so none is taken that cannot be run. Leaving waits for those taken."""
    pool = Pool(fleeting.load("local"), capacity_per_instance=2, max_instances=2)
    scaler, asking = Taskscaler(pool, policies=[Policy(idle_time=60)]), anyio.CancelScope()
    async with scaler, GitLabClient(url) as client, anyio.create_task_group() as tasks:
        tasks.start_soon(drain_at_signal, asking)
        runner = Runner(client, token, info=ABOUT)
        with asking:
            for key in map("slot-{}".format, count()):
                await runner.turn()
                await scaler.reserve(key, timeout=float("inf"))
                if job := await runner.ask():
                    tasks.start_soon(run_job, scaler, client, key, job)
                else:
                    await scaler.unreserve(key)


url, token = sys.argv[1:]
anyio.run(main, url, token)
