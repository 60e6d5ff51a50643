"""The operator's settings, the table ``[executors.docker]``: how to reach daemons, and what jobs may ask for."""

from enum import Enum
from typing import Literal

from attrs import Attribute, field, frozen
from attrs.validators import ge, gt, min_len, optional

from executor_docker._sizes import in_words, is_size, size_of
from fleeting import Duration
from fleeting.plugins import Argv, is_absolute


class PullPolicy(Enum):
    """When a daemon fetches an image from its registry."""

    ALWAYS = "always"
    IF_NOT_PRESENT = "if-not-present"
    NEVER = "never"


NetworkMode = Literal["job", "bridge", "none"]

Namespace = Literal["network", "pid", "ipc"]


def _capability(name: str) -> str:
    return name.upper().removeprefix("CAP_")


def as_capabilities(names: tuple[str, ...]) -> tuple[str, ...]:
    """Write names of capabilities as the Engine API does; a converter."""
    return tuple(map(_capability, names))


@frozen(kw_only=True)
class Registry:
    """How to log in to one registry."""

    username: str = field(validator=min_len(1))
    """Whom to log in as."""

    password: str | None = field(default=None, repr=False)
    """A secret; or name a file that has it."""

    password_file: str | None = field(default=None, validator=is_absolute)
    """A file on the manager with the password in it, absolute; its last newline does not count."""

    def __attrs_post_init__(self) -> None:
        """See that there is one password."""
        if (self.password is None) == (self.password_file is None):
            raise ValueError("either password or password_file")


LEAST_MEMORY = 6 << 20
"""Bytes: no daemon takes a lower limit."""


def _is_limit(_: object, __: "Attribute[str]", value: str) -> None:
    if size_of(value) < LEAST_MEMORY:
        raise ValueError("at least 6m, Docker's lowest limit")


@frozen(kw_only=True)
class TailorMemory:
    """The table ``tailor_memory``: limits by what earlier runs of a job needed."""

    max: str = field(validator=_is_limit)
    """What a job gets at the most, such as ``"4g"``, however much it needed; at least `DockerConfig.memory`."""

    min: str = field(default="64m", validator=_is_limit)
    """Below what no limit is lowered."""

    def __attrs_post_init__(self) -> None:
        """See that something lies between the two."""
        if size_of(self.min) > size_of(self.max):
            raise ValueError("a min that is no more than max")

    @property
    def least(self) -> int:
        """Bytes below which no limit is lowered."""
        return size_of(self.min)

    @property
    def most(self) -> int:
        """Bytes above which none is raised."""
        return size_of(self.max)


def _some(_: object, __: "Attribute[tuple[PullPolicy, ...]]", value: tuple[PullPolicy, ...]) -> None:
    if not value:
        raise ValueError("at least one policy")


@frozen(kw_only=True)
class DockerConfig:
    """Settings of the docker executor. What is not allowed here, no job gets."""

    socket: str = field(default="/var/run/docker.sock", validator=is_absolute)
    """The daemon's socket on the instance, absolute."""

    stdio_command: Argv = ("docker", "-H", "unix://{socket}", "system", "dial-stdio")
    """What connects its input and output with the socket, on instances whose connector has no tunnels."""

    image: str | None = field(default=None, validator=optional(min_len(1)))
    """Image of jobs that name none; always allowed."""

    allowed_images: tuple[str, ...] = ()
    """Patterns of the other images that jobs may name; ``*`` stands for any characters, ``/`` too."""

    allowed_services: tuple[str, ...] = ()
    """The same for services."""

    pull_policy: tuple[PullPolicy, ...] = field(default=(PullPolicy.IF_NOT_PRESENT,), validator=_some)
    """Tried in this order until one gets the image."""

    allowed_pull_policies: tuple[PullPolicy, ...] = ()
    """Those that jobs may ask for instead; ``pull_policy``'s own they may always."""

    pull_timeout: Duration = field(default=1800.0, validator=gt(0))
    """Seconds that one image may take."""

    registries: dict[str, Registry] = field(factory=dict, repr=False)
    """Logins, by registry: ``docker.io``, ``registry.example:5000``. They are sent with the pull and kept nowhere."""

    memory: str | None = field(default=None, validator=is_size)
    """How much memory a job has unless it asks for less, such as ``"2g"``; swap is not added to it."""

    tailor_memory: TailorMemory | None = None
    """How far limits follow what earlier runs of the same job needed: 1.2 times the 95th percentile of the last 20,
    and twice as much after a job was killed for lack of memory. None: not at all."""

    cpus: float | None = field(default=None, validator=optional(gt(0)))
    """How many CPUs a job has unless it asks for fewer."""

    pids: int | None = field(default=None, validator=optional(ge(1)))
    """The same with processes and threads."""

    shm_size: str | None = field(default=None, validator=is_size)
    """The same with ``/dev/shm``; None: Docker's 64 MiB."""

    shares: int = field(default=1, validator=ge(1))
    """Into so many equal parts an instance is divided, of which a job gets the CPU and memory of one; give it the
    fleet's capacity_per_instance. 1: not divided."""

    network: NetworkMode = "job"
    """A network for each job, Docker's one for all, or none. Services need one for each job."""

    allowed_volumes: tuple[str, ...] = ()
    """Patterns of directories of the instance, and of named volumes, that jobs may mount."""

    allowed_devices: tuple[str, ...] = ()
    """Patterns of the instance's devices that jobs may have."""

    allowed_capabilities: tuple[str, ...] = field(default=(), converter=as_capabilities)
    """Capabilities that jobs may add to Docker's usual ones."""

    allowed_namespaces: tuple[Namespace, ...] = ()
    """Namespaces of the instance that jobs may share."""

    allow_privileged: bool = False
    """Whether jobs may have the instance as good as to themselves."""

    artifact_limit: int = field(default=2**30, validator=gt(0))
    """Bytes that the artifacts of one job may have."""

    cache_dir: str | None = field(default=None, validator=is_absolute)
    """Where caches are kept on the manager too, for instances that do not live long; absolute. None: nowhere."""

    cache_limit: int = field(default=2**30, validator=gt(0))
    """Bytes that one cache may have there."""

    cleanup_timeout: Duration = field(default=60.0, validator=gt(0))
    """Seconds that clearing up after a job may take."""

    def __attrs_post_init__(self) -> None:
        """See that the command for connectors without tunnels can be written."""
        if not self.stdio_command:
            raise ValueError("a program and its arguments in stdio_command")
        if self.tailor_memory and self.memory and self.tailor_memory.most < size_of(self.memory):
            raise ValueError(f"a max in tailor_memory of at least memory, {in_words(size_of(self.memory))}")
