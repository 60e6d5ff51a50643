"""Getting an image: from where the daemon has it, or from its registry."""

import base64
import json
from collections.abc import Sequence
from pathlib import Path

import anyio
from attrs import frozen

from executor_docker._config import DockerConfig, PullPolicy
from executor_docker._errors import DockerError
from fleeting.plugins import format_duration
from fleeting_docker_engine import Engine, EngineRefused, ImageInspected, quoted, registry_of

NOT_FOUND = 404

_DENIED = ("denied", "unauthorized", "no basic auth credentials", "authentication required")
"""What registries and the daemon say, for which the API has no code."""


@frozen
class Image:
    """An image that the daemon has."""

    reference: str
    """Pinned by its id: nobody can move it any more."""

    user: str
    """As whom its containers run if nobody says otherwise; empty: root."""


async def get(
    engine: Engine, config: DockerConfig, image: str, instance: str, *, wishes: Sequence[PullPolicy] = ()
) -> Image:
    """Get an image by the first of the policies that can.

    Args:
        engine: The daemon.
        config: Has the policies and logins.
        image: With tag or digest.
        instance: Its id, for messages.
        wishes: The job's own policies; none: those of the settings.

    Raises:
        DockerError: None could; says why the last one could not.
    """
    problem = ""
    for policy in wishes or config.pull_policy:
        if policy is not PullPolicy.ALWAYS and (found := await _inspect(engine, image)):
            return found
        if policy is PullPolicy.NEVER:
            problem = f"{instance} does not have the image {image}, and pull_policy is never"
        else:
            problem = await _pull(engine, config, image, instance)
            if not problem and (found := await _inspect(engine, image)):
                return found
    problem = problem or f"the image {image} vanished from {instance} right after it was pulled"
    raise DockerError(problem, is_about_image=True)


async def _inspect(engine: Engine, image: str) -> Image | None:
    try:
        answer = await engine.ask_for(ImageInspected, "GET", f"/images/{quoted(image)}/json")
    except EngineRefused as error:
        if error.status == NOT_FOUND:
            return None
        raise
    return Image(answer.id, answer.config.user)


async def _pull(engine: Engine, config: DockerConfig, image: str, instance: str) -> str:
    """Pull an image; returns what went wrong, or nothing."""
    registry = registry_of(image)
    login = await _login(config, registry)
    with anyio.move_on_after(config.pull_timeout):
        try:
            await engine.progress("POST", "/images/create", query={"fromImage": image}, headers=login)
        except EngineRefused as error:
            return _why(error.message, image, registry, instance)
        return ""
    limit = format_duration(config.pull_timeout)
    return f"{instance} could not pull the image {image} within {limit}; raise pull_timeout"


def _why(said: str, image: str, registry: str, instance: str) -> str:
    if "no space left on device" in said:
        return f"the disk of {instance} is full: the image {image} cannot be pulled; make room there, or remove images"
    if any(word in said.lower() for word in _DENIED):
        hint = f"check its name, or registries.{registry!r} in [executors.docker]"
        return f"the registry {registry} denied {instance} the image {image}; {hint}"
    return f"{instance} could not pull the image {image}: {said}"


async def _login(config: DockerConfig, registry: str) -> list[tuple[str, str]]:
    """Make the header that logs in to a registry, if there is a login for it."""
    known = config.registries.get(registry)
    if known is None:
        return []
    password = known.password
    if known.password_file is not None:
        password = (await anyio.Path(Path(known.password_file)).read_text()).removesuffix("\n")
    server = "https://index.docker.io/v1/" if registry == "docker.io" else registry
    login = json.dumps({"username": known.username, "password": password, "serveraddress": server})
    return [("X-Registry-Auth", base64.urlsafe_b64encode(login.encode()).decode())]
