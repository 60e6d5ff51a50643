"""What the Engine API is asked to make. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import frozen

from executor_docker._options import Service
from executor_docker._owner import LIMITED_BY, LIMITED_WHY, Unit
from executor_docker._rules import Admitted, Limits
from executor_docker._script import around
from executor_docker._sizes import size_of
from executor_docker._tailored import Tailored
from taskscaler.executors import JobSpec

Body = dict[str, Any]

_NO_LOG = {"Type": "none"}
"""What is attached to needs no copy on the instance's disk."""

_WHOLE_LOG = {"Type": "local", "Config": {"max-size": "1t", "max-file": "1", "compress": "false"}}
"""Of a job that outlives its manager, to the byte: the driver ``json-file`` is for text alone, and none can keep
the beginning rather than the end, so this is all of it."""

_SHORT_LOG = {"Type": "json-file", "Config": {"max-size": "1m", "max-file": "1"}}
"""Of a service, whose last words are shown if it does not get well."""

_CHECK_EVERY = 1_000_000_000
"""Nanoseconds between two looks at a service's health."""

_RETRIES = 1_000_000
"""It is the service's `health_timeout` that ends the waiting, not a number of failures."""


@frozen
class Place:
    """Where a container is put."""

    network: str
    """Its network's name; ``bridge``, ``none`` and ``host`` are Docker's own."""

    is_own: bool = False
    """Whether the network is the job's own, on which containers have names."""


def job_container(
    admitted: Admitted,
    job: JobSpec,
    unit: Unit,
    place: Place,
    *,
    env: Mapping[str, str],
    caches: Mapping[str, str],
    tailored: Tailored | None = None,
) -> Body:
    """Describe a job's container.

    Args:
        admitted: What it may have.
        job: The job.
        unit: Whose labels it bears.
        place: Its network.
        env: All of its variables.
        caches: Volumes by the places where they are to be.
        tailored: How its memory limit was found, which its output begins with; None: it is the usual one.
    """
    options = admitted.options
    by, why, notice = ("", "", "") if tailored is None else (tailored.by, tailored.why, tailored.notice)
    return {
        "Image": admitted.image,
        "Entrypoint": around(options.entrypoint, job.script, is_kept=unit.is_kept, notice=notice),
        "Cmd": [],
        "Env": [f"{name}={value}" for name, value in env.items()],
        "User": options.user or "",
        "WorkingDir": options.working_dir,
        "Labels": {**options.labels, **unit.of_kind("job"), LIMITED_BY: by, LIMITED_WHY: why},
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": {
            **_limited(admitted.limits),
            **_trusted(admitted),
            "Init": options.init,
            "LogConfig": _WHOLE_LOG if unit.is_kept else _NO_LOG,
            "Mounts": [*_mounts(admitted), *_cache_mounts(caches)],
            "Tmpfs": options.tmpfs,
            "NetworkMode": "host" if "network" in options.namespaces else place.network,
        },
    }


def service_container(service: Service, image: str, unit: Unit, place: Place, limits: Limits) -> Body:
    """Describe a service's container."""
    health = {"Healthcheck": _health(service.health)} if service.health else {}
    asked = size_of(service.memory) if service.memory else None
    return {
        "Image": image,
        **({"Entrypoint": [*service.entrypoint]} if service.entrypoint else {}),
        **({"Cmd": [*service.command]} if service.command else {}),
        "Env": [f"{name}={value}" for name, value in service.env.items()],
        "Labels": unit.of_kind("service"),
        **health,
        "HostConfig": {
            **_limited(limits.of_service(asked)),
            "Init": True,
            "LogConfig": _SHORT_LOG,
            "NetworkMode": place.network,
        },
        "NetworkingConfig": {"EndpointsConfig": {place.network: {"Aliases": [*service.names]}}},
    }


def _health(command: str) -> Body:
    interval = {"Interval": _CHECK_EVERY, "Timeout": 30 * _CHECK_EVERY, "Retries": _RETRIES}
    return {"Test": ["CMD-SHELL", command], **interval}


def _limited(limits: Limits) -> Body:
    """Write limits; memory without swap on top of it."""
    known = {
        "Memory": limits.memory,
        "MemorySwap": limits.memory,
        "NanoCpus": None if limits.cpus is None else int(limits.cpus * 1e9),
        "PidsLimit": limits.pids,
        "ShmSize": limits.shm,
    }
    return {name: value for name, value in known.items() if value is not None}


def _trusted(admitted: Admitted) -> Body:
    options = admitted.options
    return {
        "Privileged": options.privileged,
        "CapAdd": [*options.capabilities],
        "CapDrop": [*options.drop_capabilities],
        "Devices": [
            {"PathOnHost": device.source, "PathInContainer": device.target, "CgroupPermissions": device.permissions}
            for device in admitted.devices
        ],
        **({"PidMode": "host"} if "pid" in options.namespaces else {}),
        **({"IpcMode": "host"} if "ipc" in options.namespaces else {}),
    }


def _mounts(admitted: Admitted) -> Sequence[Body]:
    return [
        {
            "Type": "bind" if volume.is_bind else "volume",
            "Source": volume.source,
            "Target": volume.target,
            "ReadOnly": volume.read_only,
        }
        for volume in admitted.volumes
    ]


def _cache_mounts(caches: Mapping[str, str]) -> Sequence[Body]:
    return [{"Type": "volume", "Source": volume, "Target": target} for target, volume in caches.items()]
