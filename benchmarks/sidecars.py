"""What stands between a real gitlab-runner and its GitLab: the time until it has its job, the CPU of a log's piece.

The runner is the one that ``GITLAB_RUNNER`` names; instances are those of the plugin ``local``. GitLab, and who sends
the pieces, are processes of their own.
"""

import os
import sys
from http import HTTPStatus
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, process_time

import anyio
import httpx
from _figures import report
from _needs import Need, run
from _sidecars import ORIGIN, a_job, at_a_port, offered, serving, upstream, works_of

from gitlab_jobs.client import GitLabClient
from gitlab_jobs.testing import URL, FakeGitLab
from taskscaler import Policy
from taskscaler_gitlab import RunnerSettings
from taskscaler_gitlab._service import RunnerService
from taskscaler_gitlab.relay import Relays
from taskscaler_gitlab.relay._relay import Standing
from taskscaler_gitlab.relay._routes import application
from taskscaler_gitlab.relay._ways import Listening

JOBS = 20
PATCHES = 2000
PIECE = b"a line of a log, as long as most\n" * 62
LOOK = 0.002
DELIVERY = "d1"


async def start() -> float:
    """Seconds from the lease to the sidecar that has the job, as most jobs have it."""
    with TemporaryDirectory() as place:
        gitlab = FakeGitLab(Path(place), long_poll=1.0, accepts=0)
        client = GitLabClient(URL, transport=gitlab.transport())
        took: list[float] = []
        async with serving(
            Path(place),
            client,
            url=URL,
            token=gitlab.runner_token,
            program=os.environ["GITLAB_RUNNER"],
            jobs=1,
            per_instance=1,
            policy=Policy(idle_count=1),
        ) as service:
            for _ in range(JOBS):
                number = gitlab.enqueue(a_job())
                took.append(await _until_offered(service))
                await gitlab.ended(number)
                while service.running:  # noqa: ASYNC110  (nobody says)
                    await anyio.sleep(LOOK)
        return median(took)


async def _until_offered(service: RunnerService) -> float:
    leased: float | None = None
    while True:
        for work in works_of(service):
            if work.lease is not None:
                leased = leased or perf_counter()
                if work.relay.record.standing in (Standing.OFFERED, Standing.AT_WORK):
                    return perf_counter() - leased
        await anyio.sleep(LOOK)


async def patches() -> float:
    """Seconds of our CPU that a piece of a log costs."""
    with TemporaryDirectory() as place:
        async with upstream("gitlab", place, "1") as said:
            url, token = said.split()
            return await _patches(place, url, token)


async def _patches(place: str, url: str, token: str) -> float:
    async with GitLabClient(url) as client, anyio.create_task_group() as tasks:
        own, port = at_a_port()
        settings = RunnerSettings(url=url, token=token, executor="instance", taskscaler=own)
        relays = Relays(settings, Path(place, "state"), {ORIGIN: settings}, is_kept=True)
        asked = await client.ask(token, info=relays.about.as_info)
        if asked.job is None:
            raise SystemExit(f"no job came: {asked.problem}")
        work = offered(relays, client, settings, asked.job, DELIVERY)
        tasks.start_soon(work._claim_if_wanted)  # noqa: SLF001  (what its life would start)
        async with Listening(own).serve(application(relays)):
            began = process_time()
            command = [sys.executable, __file__, "send", str(port), str(asked.job.id), asked.job.token]
            await anyio.run_process(command, stdout=None, stderr=None)
            used = process_time() - began
        tasks.cancel_scope.cancel()
    return used / PATCHES


async def send(port: str, number: str, token: str) -> None:
    """Be a sidecar that has much to say."""
    async with httpx.AsyncClient() as http:
        for count in range(PATCHES):
            at = count * len(PIECE)
            headers = {"JOB-TOKEN": token, "Content-Range": f"{at}-{at + len(PIECE) - 1}"}
            url = f"http://127.0.0.1:{port}/d/{DELIVERY}/api/v4/jobs/{number}/trace"
            answer = await http.patch(url, content=PIECE, headers=headers)
            if answer.status_code != HTTPStatus.ACCEPTED:
                raise SystemExit(f"a piece was refused: {answer.status_code}")


def main() -> None:
    """Measure both."""
    load = f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs"
    report("relay_cpu_ms_per_patch", anyio.run(patches) * 1000, "ms", 2.5, conditions=f"pieces of 2 kB; {load}")
    report("relay_start_ms", anyio.run(start) * 1000, "ms", 500, conditions=f"median of {JOBS}; {load}")


REAL = Need("gitlab-runner", "set GITLAB_RUNNER to its path", lambda: bool(os.environ.get("GITLAB_RUNNER")))

if __name__ == "__main__":
    match sys.argv[1:]:
        case ["send", port, number, token]:
            anyio.run(send, port, number, token)
        case _:
            run(main, REAL)
