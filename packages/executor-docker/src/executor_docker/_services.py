"""Services: started beside the job, and waited for until they are well."""

from collections.abc import Sequence

import anyio
from attrs import define, frozen

from executor_docker import _images
from executor_docker._bodies import Place, service_container
from executor_docker._config import DockerConfig
from executor_docker._errors import DockerError
from executor_docker._options import Service
from executor_docker._owner import Unit
from executor_docker._rules import Limits
from fleeting.connectors import Sink
from fleeting.plugins import format_duration, one_line
from fleeting_docker_engine import STDERR, STDOUT, Created, Demultiplexer, Engine, Inspected, canonical, quoted

LOOK_EVERY = 0.2
"""Seconds between two looks at a service that is not well yet."""

LAST_LINES = 50
"""So many lines of its log are shown of a service that does not get well."""


LAST_BYTES = 1 << 16
"""So many bytes of them."""

LAST_WORDS_TIMEOUT = 10.0
"""Seconds that they may take."""


@frozen
class _Started:
    service: Service
    container: str


@define
class _LastWords:
    """Takes a log for which there is no other place."""

    _said: bytes = b""

    async def __call__(self, chunk: bytes) -> None:
        """Take more of it."""
        self._said = (self._said + chunk)[-LAST_BYTES:]

    @property
    def last_line(self) -> str:
        """The last one that is not empty."""
        return one_line(self._said.strip().rpartition(b"\n")[2].decode(errors="replace"))


async def start(
    engine: Engine,
    config: DockerConfig,
    services: Sequence[Service],
    unit: Unit,
    *,
    place: Place,
    limits: Limits,
    instance: str,
    output: Sink | None,
) -> None:
    """Start services, and wait until all are well.

    Args:
        engine: The daemon.
        config: How to get their images.
        services: What to start.
        unit: Whose labels they bear.
        place: Their network.
        limits: What each may use, unless it says otherwise.
        instance: Its id, for messages.
        output: Gets the log of one that does not get well; None: the error has the end of it.

    Raises:
        DockerError: One did not, in time.
    """
    started = []
    for service in services:
        image = await _images.get(engine, config, canonical(service.image), instance, wishes=service.pull_policy)
        body = service_container(service, image.reference, unit, place, limits)
        container = (await engine.ask_for(Created, "POST", "/containers/create", json=body)).id
        await engine.ask("POST", f"/containers/{quoted(container)}/start")
        started.append(_Started(service, container))
    for each in started:
        if why := await _wait(engine, each):
            said = _LastWords()
            await _show(engine, each, output or said)
            where = "its log is above" if output else f"its log ends with: {said.last_line}"
            raise DockerError(f"the service {each.service.names[0]} ({each.service.image}) {why}; {where}")


async def _wait(engine: Engine, started: _Started) -> str:
    """Wait until a service is well; returns why it will not be, or nothing."""
    with anyio.move_on_after(started.service.health_timeout):
        while True:
            path = f"/containers/{quoted(started.container)}/json"
            state = (await engine.ask_for(Inspected, "GET", path)).state
            if not state.is_running:
                return f"ended with {state.exit_code} before the job started"
            if state.health.status in ("healthy", "none"):  # without a check it is enough that it runs
                return ""
            await anyio.sleep(LOOK_EVERY)
    return f"did not become healthy within {format_duration(started.service.health_timeout)}"


async def _show(engine: Engine, started: _Started, output: Sink) -> None:
    """Show the end of a service's log in the job's, whose lines may be of any length."""
    frames, left = Demultiplexer(), LAST_BYTES
    await output(f"taskscaler: the last words of the service {started.service.names[0]}:\n".encode())

    async def show(chunk: bytes) -> None:
        nonlocal left
        said = b"".join(data for source, data in frames.feed(chunk) if source in (STDOUT, STDERR))[:left]
        left -= len(said)
        if said:
            await output(said)
        if not left:
            scope.cancel()

    query = {"stdout": True, "stderr": True, "tail": LAST_LINES}
    with anyio.move_on_after(LAST_WORDS_TIMEOUT) as scope:
        await engine.download(f"/containers/{quoted(started.container)}/logs", show, query=query)
