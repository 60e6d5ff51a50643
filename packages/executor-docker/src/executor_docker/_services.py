"""Services: started beside the job, and waited for until they are well."""

from collections.abc import Sequence
from typing import Any

import anyio
from attrs import frozen

from executor_docker import _images
from executor_docker._bodies import Place, service_container
from executor_docker._config import DockerConfig
from executor_docker._errors import DockerError
from executor_docker._options import Service
from executor_docker._owner import Unit
from executor_docker._rules import Limits
from fleeting import Sink, format_duration
from fleeting_docker.engine import STDERR, STDOUT, Demultiplexer, Engine, canonical, quoted

LOOK_EVERY = 0.2
"""Seconds between two looks at a service that is not well yet."""

LAST_LINES = 50
"""So many lines of its log are shown of a service that does not get well."""


@frozen
class _Started:
    service: Service
    container: str


async def start(
    engine: Engine,
    config: DockerConfig,
    services: Sequence[Service],
    unit: Unit,
    *,
    place: Place,
    limits: Limits,
    instance: str,
    output: Sink,
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
        output: Gets the log of one that does not get well.

    Raises:
        DockerError: One did not, in time.
    """
    started = []
    for service in services:
        image = await _images.get(engine, config, canonical(service.image), instance)
        body = service_container(service, image.reference, unit, place, limits)
        container = (await engine.ask("POST", "/containers/create", json=body))["Id"]
        await engine.ask("POST", f"/containers/{quoted(container)}/start")
        started.append(_Started(service, container))
    for each in started:
        if why := await _wait(engine, each):
            await _show(engine, each, output)
            raise DockerError(f"the service {each.service.names[0]} ({each.service.image}) {why}; its log is above")


async def _wait(engine: Engine, started: _Started) -> str:
    """Wait until a service is well; returns why it will not be, or nothing."""
    with anyio.move_on_after(started.service.health_timeout):
        while True:
            state = (await engine.ask("GET", f"/containers/{quoted(started.container)}/json"))["State"]
            if not state["Running"]:
                return f"ended with {state['ExitCode']} before the job began"
            if _is_well(state):
                return ""
            await anyio.sleep(LOOK_EVERY)
    return f"did not become healthy within {format_duration(started.service.health_timeout)}"


def _is_well(state: dict[str, Any]) -> bool:
    """Tell whether it is healthy or, if it has no check, whether it runs."""
    health = (state.get("Health") or {}).get("Status", "none")
    return health in ("healthy", "none")


async def _show(engine: Engine, started: _Started, output: Sink) -> None:
    """Show the end of a service's log in the job's."""
    frames = Demultiplexer()
    await output(f"taskscaler: the last words of the service {started.service.names[0]}:\n".encode())

    async def show(chunk: bytes) -> None:
        for source, data in frames.feed(chunk):
            if source in (STDOUT, STDERR):
                await output(data)

    query = {"stdout": True, "stderr": True, "tail": LAST_LINES}
    await engine.download(f"/containers/{quoted(started.container)}/logs", show, query=query)
