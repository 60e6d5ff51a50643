"""A job's wishes as the executor *docker* takes them, which is imported only where jobs run in containers."""

from collections.abc import Mapping
from typing import Any

from taskscaler_gitlab.runner._errors import JobInvalid


def is_about_image(error: Exception) -> bool:
    """Whether a job cannot be run because its image is not to be had."""
    return bool(getattr(error, "is_about_image", False))


def docker_options(wanted: Mapping[str, Any]) -> object:
    """Make the options of that executor.

    Raises:
        JobInvalid: One of them cannot be what it is.
    """
    from executor_docker import DockerOptions, PullPolicy, Registry, Service

    def plain_of(table: Mapping[str, Any]) -> dict[str, Any]:
        found = {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}
        return {**found, "pull_policy": tuple(map(PullPolicy, table.get("pull_policy", ())))}

    try:
        plain = plain_of(wanted)
        plain["services"] = tuple(Service(**plain_of(each)) for each in wanted.get("services", ()))
        plain["registries"] = {host: Registry(**login) for host, login in wanted.get("registries", {}).items()}
        return DockerOptions(**plain)
    except (ValueError, TypeError) as error:
        expected, *found = map(str, error.args)
        raise JobInvalid(
            f"the job's image or services: expected {expected}{f', found {found[0]}' if found else ''}"
        ) from None
