"""What a job wishes, held against what the operator allows. Pure."""

import posixpath
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from typing import TypeVar

from attrs import frozen

from executor_docker._config import DockerConfig, PullPolicy
from executor_docker._errors import DockerError
from executor_docker._options import Device, DockerOptions, Volume
from executor_docker._sizes import in_words, size_of
from fleeting_docker_engine import canonical, is_allowed

N = TypeVar("N", int, float)


@frozen(kw_only=True)
class Limits:
    """What a container may use; None: as much as there is."""

    memory: int | None = None
    """Bytes."""

    cpus: float | None = None
    pids: int | None = None
    shm: int | None = None
    """Bytes."""

    def of_service(self, memory: int | None) -> "Limits":
        """Limits of a service that asks for so much memory, of which it gets at most what the job may have."""
        known = [each for each in (memory, self.memory) if each is not None]
        return Limits(memory=min(known, default=None), cpus=self.cpus, pids=self.pids)

    def within(self, *, cpus: int, memory: int, shares: int) -> "Limits":
        """Lower them to one of so many equal parts of an instance; 0 bytes: nobody knows its memory."""
        if shares == 1:
            return self
        part, cpu = memory // shares or self.memory, cpus / shares
        return Limits(
            memory=part and min(self.memory or part, part),
            cpus=min(self.cpus or cpu, cpu),
            pids=self.pids,
            shm=self.shm,
        )


@frozen(kw_only=True)
class Admitted:
    """A job's wishes, all of which it may have."""

    image: str
    options: DockerOptions
    volumes: tuple[Volume, ...]
    devices: tuple[Device, ...]
    limits: Limits


def admit(config: DockerConfig, options: DockerOptions) -> Admitted:
    """See that a job may have all that it wishes.

    Raises:
        DockerError: It may not; says what, and which setting would allow it.
    """
    volumes = tuple(map(Volume.parse, options.volumes))
    devices = tuple(map(Device.parse, options.devices))
    for volume in volumes:
        _check_volume(config, volume)
    for device in devices:
        _allow("device", posixpath.normpath(device.source), config.allowed_devices, "allowed_devices")
    for capability in options.capabilities:
        _allow("capability", capability, config.allowed_capabilities, "allowed_capabilities")
    for namespace in options.namespaces:
        _allow("instance's namespace", namespace, config.allowed_namespaces, "allowed_namespaces")
    if options.privileged and not config.allow_privileged:
        raise DockerError("the job may not run privileged; if you trust it, set allow_privileged in [executors.docker]")
    _check_policies(config, options.pull_policy)
    _check_services(config, options)
    return Admitted(
        image=_image(config, options),
        options=options,
        volumes=volumes,
        devices=devices,
        limits=_limits(config, options),
    )


def _image(config: DockerConfig, options: DockerOptions) -> str:
    image = options.image or config.image
    if image is None:
        raise DockerError("the job names no image; set image in [executors.docker] or in options.docker")
    if options.image is not None and canonical(image) != canonical(config.image or ""):
        _allow_image("image", image, config.allowed_images, "allowed_images")
    return canonical(image)


def _check_policies(config: DockerConfig, wishes: Iterable[PullPolicy]) -> None:
    for policy in wishes:
        if policy not in (*config.pull_policy, *config.allowed_pull_policies):
            _refuse("pull policy", policy.value, "allowed_pull_policies")


def _check_services(config: DockerConfig, options: DockerOptions) -> None:
    for service in options.services:
        _allow_image("service's image", service.image, config.allowed_services, "allowed_services")
        _check_policies(config, service.pull_policy)
        _size(f"memory for the service {service.names[0]}", service.memory, config.memory)
    if options.services and (config.network != "job" or "network" in options.namespaces):
        raise DockerError('the job has services, which need a network of their own; set network = "job"')


def _check_volume(config: DockerConfig, volume: Volume) -> None:
    source = posixpath.normpath(volume.source) if volume.is_bind else volume.source
    kind = "directory of the instance" if volume.is_bind else "volume"
    _allow(kind, source, config.allowed_volumes, "allowed_volumes")


def _allow_image(what: str, image: str, patterns: Iterable[str], setting: str) -> None:
    if not any(is_allowed(image, pattern) for pattern in patterns):
        _refuse(what, image, setting)


def _allow(what: str, wish: str, patterns: Iterable[str], setting: str) -> None:
    if not any(fnmatchcase(wish, pattern) for pattern in patterns):
        _refuse(what, wish, setting)


def _refuse(what: str, wish: str, setting: str) -> None:
    raise DockerError(f"the job may not use the {what} {wish}; to allow it, add it to {setting} in [executors.docker]")


def _limits(config: DockerConfig, options: DockerOptions) -> Limits:
    return Limits(
        memory=_size("memory", options.memory, config.memory),
        cpus=_limit("cpus", options.cpus, config.cpus, str),
        pids=_limit("pids", options.pids, config.pids, str),
        shm=_size("shm_size", options.shm_size, config.shm_size),
    )


def _size(name: str, wish: str | None, most: str | None) -> int | None:
    return _limit(name, None if wish is None else size_of(wish), None if most is None else size_of(most), in_words)


def _limit(name: str, wish: N | None, most: N | None, words: Callable[[N], str]) -> N | None:
    if wish is not None and most is not None and wish > most:
        found, allowed = words(wish), words(most)
        raise DockerError(f"the job requests {found} of {name}, but at most {allowed} is allowed; request less")
    return most if wish is None else wish
