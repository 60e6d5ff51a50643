"""An instance with a Docker daemon, and everything to run jobs on it."""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from attrs import define, evolve, field

from executor_docker import DockerConfig, DockerExecutor, DockerOptions
from executor_docker._owner import Owner
from fleeting_docker_engine import Entry, tar_of
from taskscaler._tracer import Sampling, Tracer, within
from taskscaler.executors import JobOutcome, JobSpec
from tests.fleeting import sshd as ssh
from tests.fleeting.local_agents import Heard, dialled, opened, started
from tests.fleeting.sshd import Server, sshd
from tests.fleeting_docker_engine.daemons import IMAGE, Daemon
from tests.taskscaler.leased import Slot


@contextmanager
def followed() -> Iterator[list[str]]:
    """Follow a job as a trace while the body runs it; gives the phases that are over."""
    phases: list[str] = []
    trace = Tracer(lambda span: phases.append(span.name), lambda *_: Sampling(is_sampled=True)).begin("job")
    trace.begin_try(0.0)
    with within(trace):
        yield phases
    trace.end_try(0.0)


@define
class Bench:
    """One instance, whose daemon is the tests'."""

    docker: Daemon
    slot: Slot
    directory: Path
    output: Heard = field(factory=Heard)

    def executor(self, **config: Any) -> DockerExecutor:  # noqa: ANN401
        """Make an executor, whose manager is this test."""
        given = {"socket": self.docker.socket, "image": IMAGE, "network": "none"}
        return DockerExecutor(DockerConfig(**{**given, **config}), Owner(self.directory / "owner"))

    async def run(
        self,
        script: str,
        *,
        slot: int = 0,
        config: dict[str, Any] | None = None,
        options: dict[str, Any] | None = None,
        executor: DockerExecutor | None = None,
        **spec: Any,  # noqa: ANN401
    ) -> JobOutcome:
        """Run a job made from these."""
        executor = executor or self.executor(**(config or {}))
        job = JobSpec(name="job", script=script, options=DockerOptions(**(options or {})), **spec)
        return await self.carry_out(executor, job, evolve(self.slot, slot=slot))

    async def carry_out(self, executor: DockerExecutor, job: JobSpec, leased: Slot) -> JobOutcome:
        """Have the job run to its end."""
        return await executor.run(job, leased, output=self.output, artifacts=self.artifacts)

    @property
    def artifacts(self) -> Path:
        """Where artifacts are put."""
        return self.directory / "artifacts"

    @property
    def said(self) -> str:
        """What the jobs have printed."""
        return self.output.data.decode()

    async def halves(self) -> tuple[int, float]:
        """Half of what the daemon's host has: bytes of memory, and CPUs."""
        async with self.docker.engine() as engine:
            info = await engine.ask("GET", "/info")
        return info["MemTotal"] // 2, info["NCPU"] / 2

    async def import_empty(self, repository: str, tag: str) -> None:
        """Make an image in which there is nothing."""
        async with self.docker.engine() as engine:
            query = {"fromSrc": "-", "repo": repository, "tag": tag}
            await engine.progress("POST", "/images/create", query=query, body=tar_of({"etc": Entry(mode=0o755)}))

    async def remove_volume(self, name: str) -> None:
        """Remove a cache, which outlives its jobs."""
        async with self.docker.engine() as engine:
            await engine.ask("DELETE", f"/volumes/{name}")

    def lines(self) -> Sequence[str]:
        """The same, line by line."""
        return self.said.splitlines()


@asynccontextmanager
async def bench_over_ssh(docker: Daemon, directory: Path) -> AsyncIterator[tuple[Bench, Server]]:
    """Be an instance that is reached over SSH, and can be lost."""
    with sshd(directory / "sshd") as server:
        yield Bench(docker, Slot(server.info.id, lambda: ssh.dialled(server.info)), directory), server


@asynccontextmanager
async def bench_on(docker: Daemon, directory: Path) -> AsyncIterator[Bench]:
    """Start an agent of one's own beside the daemon."""
    async with opened(directory / "group") as group:  # each run has its own, and may be the fifth
        (instance,) = await started(group)
        yield Bench(docker, Slot(instance, lambda: dialled(group, instance)), directory)
