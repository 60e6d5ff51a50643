"""Steps in containers on this machine: the agent that they get is made when the first container is."""

import secrets
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from anyio import to_thread
from attrs import frozen

from job_steps._containers import Docker
from job_steps._delegation import Child, Delegation
from job_steps._limits import NO_LIMITS, Limits
from job_steps._loading import origin_of_job
from job_steps._references import ImageReference


@contextmanager
def delegating(work_dir: Path, env: Mapping[str, str]) -> Iterator[Delegation]:
    """Have what runs steps in containers.

    Args:
        work_dir: Where steps run.
        env: What of the environment goes along.
    """
    with TemporaryDirectory(prefix="job-steps-") as directory:
        agent = Path(directory, "agent.pyz")
        docker = Docker(agent=agent, mark=secrets.token_hex(16), work_dir=origin_of_job(work_dir).directory)
        yield Delegation(containers=_WithAgent(docker), env=env)


@frozen
class _WithAgent:
    """Makes containers, and before that the agent."""

    docker: Docker

    async def files_of(self, image: ImageReference, directory: Path) -> Path:
        """See `Containers.files_of`."""
        return await self.docker.files_of(image, directory)

    @asynccontextmanager
    async def open(
        self, image: ImageReference, path: tuple[str, ...], *, root: str = "", limits: Limits = NO_LIMITS
    ) -> AsyncIterator[Child]:
        """See `Containers.open`."""
        await to_thread.run_sync(_place, self.docker.agent)
        async with self.docker.open(image, path, root=root, limits=limits) as child:
            yield child


def _place(agent: Path) -> None:
    from job_steps._zipapp import zipapp

    if not agent.exists():
        agent.write_bytes(zipapp().data)
