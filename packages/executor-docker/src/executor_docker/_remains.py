"""Finding and removing what was made for jobs: containers, then networks, then volumes."""

from collections.abc import Callable, Container, Mapping
from contextlib import suppress

from executor_docker._owner import CACHE, KIND, UNIT
from fleeting_docker_engine import Engine, EngineRefused, Listed, Network, Volumes, quoted

_GONE = (404, 409)
"""It is not there any more, or is just being removed by somebody else."""

_IN_USE = 403
"""A network that a container is on its way to or from, which the daemon was asked for before or by somebody else. It is
left for the next time: that another job's is still there is no reason for this one to fail."""

Wanted = Callable[[Mapping[str, str]], bool]
"""Decides by its labels whether something is to be removed."""


async def clear(engine: Engine, unwanted: Wanted, *, label: str = UNIT) -> None:
    """Remove all that bears our labels and is not wanted, caches excepted.

    Args:
        engine: The daemon.
        unwanted: Chooses among what bears the label.
        label: What to look for: ``name`` or ``name=value``.
    """
    filters = {"label": [label]}
    query = {"all": True, "filters": filters}
    for container in await engine.ask_for(tuple[Listed, ...], "GET", "/containers/json", query=query):
        if unwanted(container.labels):
            await _remove_container(engine, container.id)
    for network in await engine.ask_for(tuple[Network, ...], "GET", "/networks", query={"filters": filters}):
        if unwanted(network.labels):
            await _remove(engine, f"/networks/{quoted(network.id)}", left=(*_GONE, _IN_USE))
    for volume in (await engine.ask_for(Volumes, "GET", "/volumes", query={"filters": filters})).volumes:
        if volume.labels.get(KIND) != CACHE and unwanted(volume.labels):
            await _remove(engine, f"/volumes/{quoted(volume.name)}")


async def _remove_container(engine: Engine, container: str) -> None:
    """Remove a container and its nameless volumes; returns once it is gone, whoever removes it."""
    path = f"/containers/{quoted(container)}"
    try:
        await engine.ask("DELETE", path, query={"force": True, "v": True})
    except EngineRefused as error:
        if error.status not in _GONE:
            raise
        with suppress(EngineRefused):
            await engine.ask("POST", f"{path}/wait", query={"condition": "removed"})


async def _remove(engine: Engine, path: str, *, left: Container[int] = _GONE) -> None:
    try:
        await engine.ask("DELETE", path)
    except EngineRefused as error:
        if error.status not in left:
            raise
