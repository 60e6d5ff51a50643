"""The cells, as the router calls them: each over clients of its own, whoever asks."""

import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.metadata import version
from typing import Any

import anyio
import httpx
from attrs import define, field

from fleeting import ConfigError
from fleeting.errors import ConfigProblem, Mistake
from gitlab_jobs.client import GitLabClient
from taskscaler_gitlab.cells._held import Held, Origin
from taskscaler_gitlab.cells._route import AWAY
from taskscaler_gitlab.cells._settings import CellSettings

CALL, TRANSFER = 60.0, 3600.0
"""Seconds that a cell has to answer to a call, and that a file may take."""

_KEPT_OPEN = 100
"""Connections to a cell that are kept open while nothing is asked."""


@define(eq=False)
class Cell:
    """One cell."""

    name: str
    origin: Origin
    client: GitLabClient
    away_until: float = field(default=0.0, init=False)
    """Until when it is asked after others because it did not answer."""

    def held(self) -> Held:
        """Make a request that it may hold."""
        return Held(self.origin)

    @property
    def is_away(self) -> bool:
        """Whether it did not answer a moment ago."""
        return anyio.current_time() < self.away_until

    def note(self, *, answers: bool) -> None:
        """Remember whether it has answered."""
        self.away_until = 0.0 if answers else anyio.current_time() + AWAY


def cell_of(name: str, settings: CellSettings) -> Cell:
    """Make the clients of a cell; nothing is connected to.

    Raises:
        ConfigError: Its certificate cannot be used.
    """
    context = _trust(name, settings) if settings.url.startswith("https:") else None
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=_KEPT_OPEN)
    transport = httpx.AsyncHTTPTransport(verify=True if context is None else context, limits=limits)
    agent = f"taskscaler-gitlab {version('taskscaler-gitlab')}"
    client = GitLabClient(settings.url, transport=transport, user_agent=agent)
    base = client.http.base
    root = base.raw_path.decode("ascii").removesuffix("/api/v4/")
    return Cell(name, Origin(base.host, base.port or (80 if context is None else 443), root, context), client)


@asynccontextmanager
async def open_cells(cells: Mapping[str, CellSettings]) -> AsyncIterator[Mapping[str, Cell]]:
    """Have clients of all cells while the context is open.

    Raises:
        ConfigError: A certificate cannot be used.
    """
    made = {name: cell_of(name, settings) for name, settings in cells.items()}
    async with AsyncExitStack() as stack:
        for each in made.values():
            await stack.enter_async_context(each.client)
        yield made


def _trust(name: str, settings: CellSettings) -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        if settings.tls_ca_file:
            context.load_verify_locations(cafile=settings.tls_ca_file)
    except (OSError, ssl.SSLError) as error:
        why: Any = error.reason if isinstance(error, ssl.SSLError) else error.strerror
        found = f"{settings.tls_ca_file} cannot be used ({why or 'no certificate is in it'})"
        where, kind = f"cells.{name}.tls_ca_file", Mistake.MISSING_FILE
        problem = ConfigProblem(path=where, found=found, hint="name a file in PEM", mistake=kind)
        raise ConfigError([problem]) from error
    return context
