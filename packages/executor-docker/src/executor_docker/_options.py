"""What one job wishes, the table ``[jobs.options.docker]``. Whether it gets it is the operator's to say."""

import re
from pathlib import PurePosixPath

from attrs import Attribute, field, frozen
from attrs.validators import ge, gt, min_len, optional

from executor_docker._config import Namespace, PullPolicy, Registry, as_capabilities
from executor_docker._sizes import is_size
from fleeting import Duration

NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,62}")
"""What names a volume, a cache, or a host on a network."""

RESERVED = "taskscaler.", "fleeting."
"""How labels begin by which the executor, and groups of containers, know what is theirs."""


def is_inside_path(path: str) -> bool:
    """Whether it may be a place in a container: absolute, no detours, not the root."""
    parts = PurePosixPath(path).parts
    return path.startswith("/") and len(parts) > 1 and ".." not in parts and path.isprintable()


def _places(_: object, __: "Attribute[dict[str, str]]", value: dict[str, str]) -> None:
    if bad := [path for path in value if not is_inside_path(path)]:
        raise ValueError("absolute paths in the container", bad[0])


def _a_place(_: object, __: "Attribute[str]", value: str) -> None:
    if not is_inside_path(value):
        raise ValueError("an absolute path in the container")


def _caches(_: object, __: "Attribute[dict[str, str]]", value: dict[str, str]) -> None:
    if bad := [name for name, path in value.items() if not (NAME.fullmatch(name) and is_inside_path(path))]:
        raise ValueError("for each name an absolute path in the container", bad[0])


def _without_files(_: object, __: "Attribute[dict[str, Registry]]", value: dict[str, Registry]) -> None:
    """Files on the manager are the operator's to name, not a job's."""
    if bad := [host for host, login in value.items() if login.password_file is not None]:
        raise ValueError("a password, not a file, for each registry", bad[0])


@frozen
class Volume:
    """Something of the instance's in the container."""

    source: str
    """A directory's or file's absolute path, or a volume's name."""

    target: str
    read_only: bool

    @property
    def is_bind(self) -> bool:
        """Whether it is part of the instance's own file system."""
        return self.source.startswith("/")

    @classmethod
    def parse(cls, text: str) -> "Volume":
        """Read ``source:/target`` or ``source:/target:ro``.

        Raises:
            ValueError: It is none of them.
        """
        source, _, rest = text.partition(":")
        target, _, mode = rest.partition(":")
        known = source.startswith("/") or NAME.fullmatch(source)
        if not known or not is_inside_path(target) or mode not in ("", "ro", "rw"):
            raise ValueError("volumes such as source:/target or source:/target:ro", text)
        return cls(source, target, mode == "ro")


@frozen
class Device:
    """A device of the instance's in the container."""

    source: str
    target: str
    permissions: str

    @classmethod
    def parse(cls, text: str) -> "Device":
        """Read ``/dev/x``, ``/dev/x:/dev/y`` or ``/dev/x:/dev/y:rw``.

        Raises:
            ValueError: It is none of them.
        """
        source, *rest = text.split(":")
        target, permissions, *more = [*rest, "", ""]
        right = is_inside_path(source) and is_inside_path(target or source) and set(permissions) <= set("rwm")
        if not right or any(more):
            raise ValueError("devices such as /dev/x, /dev/x:/dev/y or /dev/x:/dev/y:rw", text)
        return cls(source, target or source, permissions or "rwm")


def _volumes(_: object, __: "Attribute[tuple[str, ...]]", value: tuple[str, ...]) -> None:
    for text in value:
        Volume.parse(text)


def _devices(_: object, __: "Attribute[tuple[str, ...]]", value: tuple[str, ...]) -> None:
    for text in value:
        Device.parse(text)


def _aliases(_: object, __: "Attribute[tuple[str, ...]]", value: tuple[str, ...]) -> None:
    if bad := [alias for alias in value if not NAME.fullmatch(alias)]:
        raise ValueError("host names", bad[0])


@frozen(kw_only=True)
class Service:
    """A container beside the job's, which the job reaches by name."""

    image: str = field(validator=min_len(1))
    """What it is made of."""

    aliases: tuple[str, ...] = field(default=(), validator=_aliases)
    """Names that it has on the job's network; none: one made of the image's, ``redis`` for ``library/redis:7``."""

    env: dict[str, str] = field(factory=dict, repr=False)
    """Its environment."""

    entrypoint: tuple[str, ...] = ()
    """Instead of the image's own."""

    command: tuple[str, ...] = ()
    """The same."""

    pull_policy: tuple[PullPolicy, ...] = ()
    """When to fetch the image; none: as the executor says. Only what the executor allows."""

    health: str | None = field(default=None, validator=optional(min_len(1)))
    """A shell command that succeeds in the container once it serves; None: the image's own check, if it has one."""

    health_timeout: Duration = field(default=60.0, validator=gt(0))
    """Seconds within which it must be healthy; one without a check, running."""

    memory: str | None = field(default=None, validator=is_size)
    """Memory that it may hold at once, such as ``512m``. None: as the job."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names that it has on the job's network."""
        plain = self.image.partition("@")[0].rpartition("/")[2].partition(":")[0]
        return self.aliases or (plain,)


@frozen(kw_only=True)
class DockerOptions:
    """What a job wishes of the docker executor."""

    image: str | None = field(default=None, validator=optional(min_len(1)))
    """What to run the job in. None: the executor's."""

    entrypoint: tuple[str, ...] = ()
    """A program and its arguments that is given the script's command; the image's own is not run."""

    pull_policy: tuple[PullPolicy, ...] = ()
    """When to fetch the image, tried in this order; none: as the executor says. Only what the executor allows."""

    registries: dict[str, Registry] = field(factory=dict, repr=False, validator=_without_files)
    """The job's own logins, by registry, where the executor has none."""

    user: str | None = field(default=None, validator=optional(min_len(1)))
    """As whom the script runs: ``name``, ``uid`` or ``uid:gid``. None: the image's user."""

    working_dir: str = field(default="/job", validator=_a_place)
    """Where the script begins; its files are there."""

    memory: str | None = field(default=None, validator=is_size)
    """Memory that the job may hold at once, such as ``512m``; at most, and without it, what the executor allows."""

    cpus: float | None = field(default=None, validator=optional(gt(0)))
    """How many processors it may use; at most, and without it, what the executor allows."""

    pids: int | None = field(default=None, validator=optional(ge(1)))
    """How many processes and threads it may have at once; at most, and without it, what the executor allows."""

    shm_size: str | None = field(default=None, validator=is_size)
    """How large ``/dev/shm`` is, such as ``1g``; at most, and without it, what the executor says."""

    volumes: tuple[str, ...] = field(default=(), validator=_volumes)
    """``source:/target`` or ``source:/target:ro``: a directory of the instance, or a volume that is there."""

    caches: dict[str, str] = field(factory=dict, validator=_caches)
    """Directories that are kept for the next job with a cache of that name, by the names."""

    tmpfs: dict[str, str] = field(factory=dict, validator=_places)
    """File systems in memory: where, and mount options such as ``"size=64m"``."""

    services: tuple[Service, ...] = ()
    """Containers that run beside the job."""

    labels: dict[str, str] = field(factory=dict)
    """Put on the container."""

    init: bool = True
    """Whether process 1 is Docker's small init, which reaps what nobody waits for."""

    privileged: bool = False
    """Whether it may do what the host's root may; only if the executor allows it."""

    devices: tuple[str, ...] = field(default=(), validator=_devices)
    """Of the host; only those that the executor allows."""

    capabilities: tuple[str, ...] = field(default=(), converter=as_capabilities)
    """Given beyond Docker's own; only those that the executor allows."""

    drop_capabilities: tuple[str, ...] = field(default=(), converter=as_capabilities)
    """Taken of Docker's own."""

    namespaces: tuple[Namespace, ...] = ()
    """Namespaces of the instance that it shares."""

    @labels.validator
    def _not_ours(self, _: object, value: dict[str, str]) -> None:
        if bad := [label for label in value if label.strip().lower().startswith(RESERVED)]:
            raise ValueError(f"labels that do not start with {' or '.join(RESERVED)}", bad[0])
