"""Where a job's directories are, and what its containers are made of: pure, but for a look at the instance."""

import posixpath
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import anyio
from attrs import frozen

from fleeting import Completed, ConnectError, Unreachable
from gitlab_jobs import Image, Job, shorten
from taskscaler.executors import Leased
from taskscaler_gitlab._settings import RunnerSettings
from taskscaler_gitlab.runner._errors import JobInvalid
from taskscaler_gitlab.runner._logins import AUTH_CONFIG, logins_of
from taskscaler_gitlab.runner._plan import Leg
from taskscaler_gitlab.runner._variables import JobEnvironment, Place, slug_of

BUILDS, CACHE = "/builds", "/cache"
"""Where they are in containers, unless the runner's settings say otherwise."""

WORKING_DIR = "/job"
"""Where a leg begins in a container."""

_MACHINES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "armv6l": "arm", "i686": "386", "i386": "386"}
PATIENCE = 120.0
"""Seconds within which an instance has to answer."""

_SHORT = 12
_PULL_POLICIES = ("always", "if-not-present", "never")


@frozen(kw_only=True)
class Surroundings:
    """Where a job runs."""

    place: Place
    cache_dir: str
    """Where the project's caches are, as the job sees it."""

    helper_image: str = ""
    """What takes care of sources and files; empty: what the job runs in."""


def surroundings_of(
    job: Job, settings: RunnerSettings, *, instance: str, slot: int, home: str, architecture: str
) -> Surroundings:
    """Say where a job runs.

    Args:
        job: The job.
        settings: The runner's.
        instance: The instance's id.
        slot: The slot's number there.
        home: Where commands start on the instance, absolute.
        architecture: The instance's, as GitLab writes it.
    """
    is_docker = settings.kind == "docker"
    builds = settings.builds_dir or (BUILDS if is_docker else "builds")
    builds_dir = posixpath.join(home or "/", builds)
    caches = settings.cache_dir or (CACHE if is_docker else "cache")
    return Surroundings(
        place=Place(
            builds_dir=builds_dir,
            instance=instance,
            slot=slot,
            concurrent_id=slot,
            concurrent_project_id=slot,
            architecture=architecture or "linux/amd64",
            shared=not is_docker,
            private_builds=is_docker and not settings.docker.is_shared(posixpath.join(builds_dir, slug_of(job))),
            custom_build_dir=settings.custom_build_dir.enabled,
        ),
        cache_dir=posixpath.join(
            home or "/", caches, _inside(settings.cache.path), *owner_of(settings), f"project-{job.job_info.project_id}"
        ),
        helper_image=settings.docker.helper_image if is_docker else "",
    )


def owner_of(settings: RunnerSettings) -> tuple[str, ...]:
    """The part of a cache's path that other runners do not have, whose projects may have the same numbers."""
    return () if settings.cache.shared else (sha256(shorten(settings.token).encode()).hexdigest()[:_SHORT],)


def _inside(path: str) -> str:
    return posixpath.normpath(f"/{path}").lstrip("/")


def container_of(
    job: Job, settings: RunnerSettings, environment: JobEnvironment, surroundings: Surroundings, leg: Leg
) -> Mapping[str, Any]:
    """Say what the executor *docker* is asked for, by the names of its options.

    Raises:
        JobInvalid: The job wishes for what cannot be given.
    """
    settings_of_all = dict(settings.docker.options())
    image = job.image
    options: dict[str, Any] = {**settings_of_all, "working_dir": WORKING_DIR}
    options["caches"] = _volumes(job, settings, environment, surroundings)
    options["registries"] = _logins(job, environment)
    if leg.is_helper:
        options |= {"image": surroundings.helper_image, "user": None}
        return options
    if image.name:
        options["image"] = environment.expand(image.name)
    if image.pull_policy:
        options["pull_policy"] = _policies(image)
    if any(image.entrypoint):  # one empty string is how people leave out that of an image
        options["entrypoint"] = image.entrypoint
    if user := _user(image):
        options["user"] = environment.expand(user)
    options["services"] = [_service(each, environment) for each in job.services]
    return options


def _logins(job: Job, environment: JobEnvironment) -> dict[str, dict[str, str]]:
    """What the job logs in to registries with, by the registries."""
    found = logins_of(job, environment.content(AUTH_CONFIG))
    return {host: {"username": each.username, "password": each.password} for host, each in found.items()}


def _volumes(
    job: Job, settings: RunnerSettings, environment: JobEnvironment, surroundings: Surroundings
) -> dict[str, str]:
    """What is kept in volumes, by their names: what the job's legs share, and what later jobs find."""
    docker = settings.docker
    ours = sha256(shorten(settings.token).encode()).hexdigest()[:_SHORT]
    project = f"gl-{ours}-{job.job_info.project_id}"
    kept = {f"{project}-{sha256(path.encode()).hexdigest()[:_SHORT]}": path for path in docker.kept}
    if surroundings.helper_image or not docker.disable_cache:
        kept[f"{project}-{surroundings.place.slot}-builds"] = environment.builds_dir
    if not docker.disable_cache:
        kept[f"{project}-cache"] = settings.cache_dir or CACHE
    return {name: path for name, path in kept.items() if posixpath.normpath(path) not in docker.bound}


def _service(service: Image, environment: JobEnvironment) -> dict[str, Any]:
    wanted: dict[str, Any] = {"image": environment.expand(service.name), "env": dict(environment.of_service(service))}
    if aliases := tuple(service.alias.replace(",", " ").split()):
        wanted["aliases"] = aliases
    if service.pull_policy:
        wanted["pull_policy"] = _policies(service)
    if any(service.entrypoint):
        wanted["entrypoint"] = service.entrypoint
    if service.command:
        wanted["command"] = service.command
    return wanted


def _policies(image: Image) -> tuple[str, ...]:
    if unknown := [each for each in image.pull_policy if each not in _PULL_POLICIES]:
        raise JobInvalid(f"pull_policy: expected {', '.join(_PULL_POLICIES)}, found {unknown[0]}")
    return image.pull_policy


def _user(image: Image) -> str:
    docker = image.executor_opts.get("docker") or {}
    if not isinstance(docker, Mapping):
        return ""
    if unknown := sorted(set(docker) - {"user"}):
        raise JobInvalid(f"image:docker:{unknown[0]} is not supported by this runner; remove it")
    user = docker.get("user") or ""
    return user if isinstance(user, str) else str(user)


async def look_around(lease: Leased) -> tuple[str, str]:
    """Learn where commands start on an instance, and its architecture as GitLab writes it.

    Raises:
        Unreachable, ConnectError: It does not say.
    """
    with anyio.move_on_after(PATIENCE):
        async with lease.dial() as connection:
            found = await connection.run(("/bin/sh", "-c", "pwd -P && uname -s && uname -m"))
            return _read(lease.instance, found)
    raise Unreachable(f"{lease.instance} did not answer within {PATIENCE:.0f} seconds")


def _read(instance: str, found: Completed) -> tuple[str, str]:
    lines = found.stdout.decode("utf-8", "surrogateescape").split("\n")
    if not found.ok or len(lines) < 3 or not lines[0].startswith("/"):  # noqa: PLR2004
        raise ConnectError(f"{instance} does not report where commands start there: {found.account}")
    home, system, machine, *_ = lines
    return home, f"{system.lower()}/{_MACHINES.get(machine, machine)}"
