"""Both ends of the protocol against programs that others have written: a GitLab and a runner in Rust.

They are built in ``tests/peers``; the real runner has its own tests beside these.
"""

import io
import json
import os
import random
import subprocess
import zipfile
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream
from attrs import define, field

from gitlab_jobs import Artifact, ArtifactsFile, Dependency, End, Job, JobInfo, Outcome, Polling, Step, Variable
from gitlab_jobs.client import GitLabClient, Reporting, Runner, info, reporting
from gitlab_jobs.testing import FakeGitLab, State
from tests.gitlab_jobs.serving import served
from tests.gitlab_jobs.test_fake import EXAMPLE, desk
from tests.peers import INDEPENDENT

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

MOCK, CLIENT = INDEPENDENT.programs
SYSTEM_ID = "r_ourownrunner"
ABOUT = info("refspecs", "artifacts", "upload_multiple_artifacts")
LINE = 1 << 20


@define
class Mock:
    """The independent GitLab."""

    url: str
    token: str
    _process: Process
    _printed: BufferedByteReceiveStream
    _turn: anyio.Lock = field(factory=anyio.Lock)

    async def do(self, command: str, **more: Any) -> Mapping[str, Any]:  # noqa: ANN401  (the command's)
        """Have it do something; the answer."""
        assert self._process.stdin
        async with self._turn:
            await self._process.stdin.send(json.dumps({"do": command, **more}).encode() + b"\n")
            answer: Mapping[str, Any] = json.loads(await self._printed.receive_until(b"\n", LINE))
        assert "error" not in answer, answer
        return answer


@asynccontextmanager
async def mock() -> AsyncIterator[Mock]:
    """Start it."""
    async with await anyio.open_process([str(MOCK)], stderr=None) as process:
        assert process.stdin
        assert process.stdout
        printed = BufferedByteReceiveStream(process.stdout)
        url, token = (await printed.receive_until(b"\n", LINE)).decode().split()
        try:
            yield Mock(url, token, process, printed)
        finally:
            await process.stdin.aclose()  # it ends with that


def log_of(number: int) -> bytes:
    """What a job prints: of some more than one patch can have."""
    chosen = random.Random(number)
    size = chosen.choice([0, 1, 100, 10_000, (1 << 20) + 7]) if number % 20 else 3 << 20
    line = f"job {number} says {chosen.random()} é\n".encode()
    return (line * (size // len(line) + 1))[:size].decode(errors="ignore").encode()


def archive_of(number: int) -> bytes:
    """What it leaves."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr(zipfile.ZipInfo("out"), random.Random(number).randbytes(number * 100))
    return packed.getvalue()


@define
class Worker:
    """A runner that does in Python what the name of a job says: ``print 7``, ``leave 7``, ``fail 7``, ``fetch 7``."""

    client: GitLabClient
    runner: Runner
    directory: Path
    wanted: int
    ends: Counter[End] = field(factory=Counter)
    downloads: anyio.Lock = field(factory=anyio.Lock)

    async def work(self, enough: anyio.CancelScope) -> None:
        """Run jobs until there were enough. No earlier: a job whose answer is not waited for would be lost."""
        while True:
            if (job := await self.runner.ask()) is None:
                continue
            with anyio.CancelScope(shield=True):
                async with reporting(self.client, job, info=ABOUT) as report:
                    assert await report.claim()
                    self.ends[await report.finish(await self.run(job, report))] += 1
            if self.ends.total() == self.wanted:
                enough.cancel()

    async def run(self, job: Job, report: Reporting) -> Outcome:
        """One job."""
        what, _, number = job.job_info.name.partition(" ")
        log = log_of(int(number))
        for at in range(0, len(log), 100_001):
            report.log(log[at : at + 100_001])
            await anyio.lowlevel.checkpoint()
        if what == "leave":
            left = self.directory / f"{job.id}.zip"
            left.write_bytes(archive_of(int(number)))
            await self.client.upload(job, job.artifacts[0], left, filename="left.zip")
        if what == "fetch":
            (dependency,) = job.dependencies
            async with self.downloads:  # the mock counts failures of all jobs together
                await self.client.download(dependency, self.directory / f"{job.id}.in")
            assert (self.directory / f"{job.id}.in").read_bytes() == archive_of(int(number) - 1)
        if what == "fail":
            return Outcome(is_success=False, failure_reason="script_failure", exit_code=3)
        return Outcome(is_success=True)


@pytest.mark.peers
async def test_many_jobs_of_an_independent_gitlab(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, full: bool
) -> None:
    """Logs and archives arrive to the byte, though two of three answers to a download are a failure."""
    total = 200 if full else 60  # logs of 60 have every size that there is
    monkeypatch.setattr("gitlab_jobs._transfers._PAUSE", 0.01)
    kinds = ["leave", "fetch", "print", "fail"]
    async with mock() as gitlab, GitLabClient(gitlab.url) as client:
        await gitlab.do("fail_downloads", times=2)
        jobs: dict[int, int] = {}
        for number in range(total):
            kind = kinds[number % 4]
            wishes: dict[str, Any] = {"leave": {"artifacts": ["out"]}, "fetch": {"dependencies": [*jobs][-1:]}}
            made = await gitlab.do("enqueue", name=f"{kind} {number}", script=["true"], **wishes.get(kind, {}))
            jobs[made["id"]] = number
        polling = Polling(anyio.current_time(), request_concurrency=4, check_interval=0.1)
        runner = Runner(client, gitlab.token, info=ABOUT, system_id=SYSTEM_ID, polling=polling)
        worker = Worker(client, runner, tmp_path, wanted=total)
        async with anyio.create_task_group() as tasks:
            for _ in range(16):
                tasks.start_soon(worker.work, tasks.cancel_scope)
        assert worker.ends == {End.REPORTED: total}
        for job, number in jobs.items():
            state = await gitlab.do("state", id=job)
            assert state["state"] == ("failed" if number % 4 == 3 else "success")
            (tmp_path / str(job)).mkdir()
            await gitlab.do("save", id=job, to=str(tmp_path / str(job)))
            assert (tmp_path / str(job) / "log").read_bytes() == log_of(number)
            assert state["patches"] >= -(-len(log_of(number)) // (1 << 20))
            assert len(state["artifacts"]) == (number % 4 == 0)
            if number % 4 == 0:
                assert (tmp_path / str(job) / "0").read_bytes() == archive_of(number)


@pytest.mark.peers
async def test_a_job_that_an_independent_gitlab_cancels() -> None:
    """It is over at the next call, and nothing more is sent."""
    async with mock() as gitlab, GitLabClient(gitlab.url) as client:
        await gitlab.do("interval", seconds=1)
        number = (await gitlab.do("enqueue", name="endless", script=["true"]))["id"]
        job = await Runner(client, gitlab.token, info=ABOUT, system_id=SYSTEM_ID).ask()
        assert job
        async with reporting(client, job, info=ABOUT) as report:
            assert await report.claim()
            report.log(b"one\n")
            while not (await gitlab.do("state", id=number))["patches"]:  # noqa: ASYNC110  (the mock has no events)
                await anyio.sleep(0.05)
            await gitlab.do("cancel", id=number)
            report.log(b"two\n")
            await report.over.wait()
            assert await report.finish(Outcome(is_success=True)) is End.REVOKED
        assert (await gitlab.do("state", id=number))["log_bytes"] == 4


@pytest.mark.peers
async def test_an_independent_gitlab_that_breaks_at_what_it_does_not_know() -> None:
    """It ends the connection when it is told that a job is pending; the job is run and reported all the same."""
    about = info("refspecs", "two_phase_job_commit", "cancel_gracefully")
    async with mock() as gitlab, GitLabClient(gitlab.url) as client:
        number = (await gitlab.do("enqueue", name="print 1", script=["true"]))["id"]
        job = await Runner(client, gitlab.token, info=about, system_id=SYSTEM_ID).ask()
        assert job
        async with reporting(client, job, info=about) as report:
            await anyio.sleep(0.2)
            assert await report.claim()
            assert await report.finish(Outcome(is_success=True)) is End.REPORTED
        assert (await gitlab.do("state", id=number))["state"] == "success"


# --- our end against an independent runner --------------------------------------------------------------------


@asynccontextmanager
async def runner(url: str, token: str, directory: Path, *, at_a_time: int = 6) -> AsyncIterator[Process]:
    """The independent runner."""
    await anyio.Path(directory).mkdir()
    command = [str(CLIENT), url, token, str(directory), str(at_a_time)]
    async with await anyio.open_process(command, stdout=None, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()


def is_there(process: int) -> bool:
    """Whether a process has not ended."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def scripted(name: str, *script: str, **more: Any) -> Job:  # noqa: ANN401  (the job's)
    """A job that a shell can run."""
    step = Step(name="script", script=script, timeout=3600, when="on_success")
    variables = (Variable(key="GIT_STRATEGY", value="none", public=True),)
    return Job(id=0, token="", job_info=JobInfo(name=name), steps=(step,), variables=variables, **more)


@pytest.mark.peers
async def test_jobs_of_ours_on_an_independent_runner(tmp_path: Path) -> None:
    """Logs of several patches, archives from one job to the next, and failures; the runner keeps no checksum."""
    gitlab = FakeGitLab(tmp_path / "gitlab", accepts=0)
    (tmp_path / "gitlab").mkdir()
    artifacts = (Artifact(paths=("out",), artifact_type="archive", artifact_format="zip", when="on_success"),)
    numbers = [
        gitlab.enqueue(scripted(f"leave {each}", f"echo from {each} > out", "seq 1 1000", artifacts=artifacts))
        for each in range(10)
    ]
    failing = gitlab.enqueue(scripted("fail", "echo no", "exit 7"))
    large = gitlab.enqueue(scripted("large", "seq 1 400000"))
    async with served(gitlab) as url, runner(url, gitlab.runner_token, tmp_path / "work"):
        for number in numbers:
            stored = await gitlab.ended(number)
            assert stored.state is State.SUCCESS, gitlab.log(number)
            assert gitlab.log(number) == b"".join(b"%d\n" % each for each in range(1, 1001))
        fetching = []
        for each, number in enumerate(numbers):
            (kept,) = gitlab.artifacts[number]
            assert (kept.artifact_type, kept.artifact_format) == ("archive", "zip")
            file = ArtifactsFile(filename="artifacts.zip", size=kept.path.stat().st_size)
            token = gitlab.server.jobs[number].job.token
            dependency = Dependency(id=number, token=token, name=f"leave {each}", artifacts_file=file)
            nothing = Dependency(id=failing, token="t", name="fail")
            fetching.append(gitlab.enqueue(scripted("fetch", "cat out", dependencies=(dependency, nothing))))
        for each, number in enumerate(fetching):
            assert (await gitlab.ended(number)).state is State.SUCCESS, gitlab.log(number)
            assert gitlab.log(number) == f"from {each}\n".encode()
        assert (await gitlab.ended(failing)).state is State.FAILED
        assert gitlab.log(failing) == b"no\n"
        assert (await gitlab.ended(large)).state is State.SUCCESS
        assert gitlab.log(large) == b"".join(b"%d\n" % each for each in range(1, 400_001))


@pytest.mark.peers
async def test_a_job_of_ours_is_cancelled_on_an_independent_runner(tmp_path: Path) -> None:
    """It cannot be asked to end gracefully: it is refused, with the state, and its process is gone."""
    gitlab = FakeGitLab(tmp_path, accepts=0)
    number = gitlab.enqueue(
        scripted("endless", f"echo $$ > {tmp_path}/pid", "while true; do echo tick; sleep 0.1; done")
    )
    other = gitlab.enqueue(scripted("other", "echo done"))
    async with served(gitlab) as url, runner(url, gitlab.runner_token, tmp_path / "work"):
        while not gitlab.log(number):
            await gitlab.next_change().wait()
        gitlab.cancel(number)
        process = int((tmp_path / "pid").read_text())
        while is_there(process):  # noqa: ASYNC110  (it is another's child)
            await anyio.sleep(0.05)
        assert (await gitlab.ended(other)).state is State.SUCCESS
    assert gitlab.server.jobs[number].state is State.CANCELED
    assert gitlab.log(number).startswith(b"tick\n")


@pytest.mark.peers
async def test_the_desks_pipeline_on_an_independent_runner(tmp_path: Path) -> None:
    """All twenty jobs of the example end as it says."""
    async with desk(EXAMPLE, "--output", tmp_path / "out", cwd=tmp_path) as started, runner(
        started.said("url"), started.said("token"), tmp_path / "work"
    ):  # fmt: skip
        await started.read_on()
        status = await started.process.wait()
    assert status == 0, started.printed
    assert "20 of 20 jobs ended as expected" in started.printed
