"""One GitLab of a runner, and what the runner has for it: the way there, its token, its jobs' surroundings."""

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

from attrs import define, field

from gitlab_jobs.client import GitLabClient, Runner
from taskscaler_gitlab._config import ServiceConfig
from taskscaler_gitlab._settings import RunnerSettings
from taskscaler_gitlab._work import Shop


@define(eq=False)
class Cell:
    """One of them; of a runner with one GitLab, the only one, whose name is empty."""

    name: str
    settings: RunnerSettings
    """The runner's, with this GitLab's address and token."""

    client: GitLabClient
    origin: str
    """Stands for GitLab and this manager of its runner, in the names of tries: 12 hexadecimal digits."""

    weight: float = 1.0
    token_file: Path | None = None
    """Where its token is; None: in the configuration itself."""

    token_in_file: str = field(default="", repr=False)
    """As we read or wrote it last: where a new one could not be written, the one in use is another."""

    noted: str = field(default="", init=False)
    """The name of the settings that its jobs are begun with."""

    shop: Shop = field(init=False)
    runner: Runner = field(init=False)
    """Asks it for jobs, once it may be asked."""

    @property
    def called(self) -> str:
        """What it is called, for people."""
        return f"{self.name} ({self.settings.url})" if self.name else self.settings.url


def cells_of(config: ServiceConfig, system_id: str, clients: "dict[str, GitLabClient]") -> Iterator[Cell]:
    """Make the cells of a configuration, in its order, with their clients by the cells' names."""
    every, upstreams = config.runner.cells, {each.cell: each for each in config.runner.taskscaler.upstreams}
    urls = [each.url for each in every.values()]
    for name, settings in every.items():
        its = upstreams.get(name)
        # Whoever had one GitLab and has several now keeps its jobs; behind one address, the name tells cells apart.
        place = settings.url if urls.count(settings.url) == 1 else f"{settings.url} {name}"
        yield Cell(
            name=name,
            settings=settings,
            client=clients[name],
            origin=sha256(f"{place} {system_id}".encode()).hexdigest()[:12],
            weight=1.0 if its is None else its.weight,
            token_file=None if its is None else Path(its.token_file),
            token_in_file=settings.token,
        )
