"""What a daemon answers, as far as anybody here asks for it: each schema has the keys that are read. Pure.

Source: the Engine API's reference, version 1.41. What is null there where a table or an array may stand, or left out
where it is empty, has a default here; a field without one is in every answer.
"""

import json
import re
from typing import Final, TypeVar

from attrs import Attribute, field, frozen
from attrs.validators import ge

from fleeting import ConfigError
from fleeting.plugins import describe, structure
from fleeting_docker_engine._errors import EngineMalformed

MOST_VALUES: Final = 1 << 16
"""Values in one answer: three bytes of JSON can make an object of a hundred.

A container has 60 of them in a list, and a bridge has ports for 1,023 containers.
"""

T = TypeVar("T")

_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.:-]{0,254}")
"""An id or a name, as the daemon itself allows them; ids of images have a colon."""

_PORT = re.compile(r"[0-9]{0,5}")


def _is_name(_: object, __: "Attribute[str]", value: str) -> None:
    if not _NAME.fullmatch(value):
        raise ValueError("an id or a name")


def _are_names(_: object, __: "Attribute[tuple[str, ...]]", value: tuple[str, ...]) -> None:
    if not all(_NAME.fullmatch(name.replace("/", "")) for name in value):
        raise ValueError("names of containers")


def _is_port(_: object, __: "Attribute[str]", value: str) -> None:
    if not _PORT.fullmatch(value):
        raise ValueError("a port's number")


@frozen
class Created:
    """``POST /containers/create``."""

    id: str = field(alias="Id", validator=_is_name)
    """What the daemon knows it by."""


@frozen
class Listed:
    """An entry of ``GET /containers/json``."""

    id: str = field(alias="Id", validator=_is_name)
    """What the daemon knows it by."""

    names: tuple[str, ...] = field(alias="Names", default=(), validator=_are_names)
    """Each behind a slash."""

    state: str = field(alias="State", default="")
    """In the daemon's word, such as ``running`` or ``exited``."""

    created: float = field(alias="Created", default=0.0, validator=ge(0))
    """Seconds since the epoch."""

    labels: dict[str, str] = field(alias="Labels", factory=dict)
    """All of them."""


@frozen
class Health:
    """In a container's state."""

    status: str = field(alias="Status", default="none")


@frozen
class ContainerState:
    """In ``GET /containers/{id}/json``."""

    status: str = field(alias="Status", default="")
    """In the daemon's word, such as ``running`` or ``exited``."""

    is_running: bool = field(alias="Running", default=False)
    """Whether its main process runs."""

    is_paused: bool = field(alias="Paused", default=False)
    """Whether it is frozen."""

    is_out_of_memory: bool = field(alias="OOMKilled", default=False)
    """Whether it was killed for using too much memory."""

    exit_code: int = field(alias="ExitCode", default=0)
    """What its main process exited with; 0 while it runs."""

    health: Health = field(alias="Health", default=Health())
    """What its health check says."""


@frozen
class ContainerConfig:
    """In ``GET /containers/{id}/json`` and ``GET /images/{name}/json``."""

    labels: dict[str, str] = field(alias="Labels", factory=dict)
    user: str = field(alias="User", default="")


@frozen
class Binding:
    """Where a container's port can be reached on the host."""

    port: str = field(alias="HostPort", default="", validator=_is_port)


@frozen
class Networking:
    """In ``GET /containers/{id}/json``."""

    ports: dict[str, tuple[Binding, ...]] = field(alias="Ports", factory=dict)


@frozen
class HostConfig:
    """What a container may use."""

    memory: int = field(alias="Memory", default=0)
    """Bytes; 0: as much as there is."""


@frozen
class Inspected:
    """``GET /containers/{id}/json``."""

    state: ContainerState = field(alias="State")
    """What it is doing."""

    config: ContainerConfig = field(alias="Config", default=ContainerConfig())
    """What it was made with."""

    host_config: HostConfig = field(alias="HostConfig", default=HostConfig())
    """What it may use."""

    networking: Networking = field(alias="NetworkSettings", default=Networking())
    """How it is reached."""


@frozen
class Waited:
    """``POST /containers/{id}/wait``."""

    exit_code: int = field(alias="StatusCode")
    """What the container's main process exited with."""


@frozen
class CpuUsage:
    """In ``GET /containers/{id}/stats``."""

    total: int | None = field(alias="total_usage", default=None)
    """Nanoseconds."""


@frozen
class CpuStats:
    """In ``GET /containers/{id}/stats``."""

    usage: CpuUsage = field(alias="cpu_usage", default=CpuUsage())


@frozen
class MemoryStats:
    """In ``GET /containers/{id}/stats``, in bytes; the first is not there with version 2 of control groups."""

    most: int | None = field(alias="max_usage", default=None)
    now: int | None = field(alias="usage", default=None)


@frozen
class Stats:
    """``GET /containers/{id}/stats``."""

    cpu: CpuStats = field(alias="cpu_stats", default=CpuStats())
    """What it has used of the processors."""

    memory: MemoryStats = field(alias="memory_stats", default=MemoryStats())
    """What it holds."""


@frozen
class ImageInspected:
    """``GET /images/{name}/json``."""

    id: str = field(alias="Id", validator=_is_name)
    """The image's digest."""

    config: ContainerConfig = field(alias="Config", default=ContainerConfig())
    """What it says about the containers made of it."""


@frozen
class Network:
    """An entry of ``GET /networks``."""

    id: str = field(alias="Id", validator=_is_name)
    """What the daemon knows it by."""

    labels: dict[str, str] = field(alias="Labels", factory=dict)
    """All of them."""


@frozen
class Volume:
    """In ``GET /volumes``."""

    name: str = field(alias="Name", validator=_is_name)
    labels: dict[str, str] = field(alias="Labels", factory=dict)


@frozen
class Volumes:
    """``GET /volumes``."""

    volumes: tuple[Volume, ...] = field(alias="Volumes", default=())
    """All that match."""


@frozen
class Info:
    """``GET /info``."""

    id: str = field(alias="ID", default="")
    """The daemon's own."""

    architecture: str = field(alias="Architecture", default="")
    """The processor's, as the kernel names it."""

    cpus: int = field(alias="NCPU", default=1, validator=ge(1))
    """How many there are."""

    memory: int = field(alias="MemTotal", default=0, validator=ge(0))
    """Bytes."""


@frozen
class Progress:
    """A line of progress."""

    error: str


def parsed(body: bytes | bytearray, endpoint: str) -> object:
    """Read JSON; nothing at all is None.

    Raises:
        EngineMalformed: It is none, or would take more memory than any answer needs.
    """
    if not body.strip():
        return None
    values = sum(map(body.count, (b",", b"[", b"{")))
    if values > MOST_VALUES:
        raise EngineMalformed(endpoint, f"JSON of {values} values", f"at most {MOST_VALUES}")
    try:
        answer: object = json.loads(body)
    except (ValueError, RecursionError) as error:
        start = describe(bytes(body[:100]).decode(errors="replace"))
        raise EngineMalformed(endpoint, start, "JSON") from error
    return answer


def structured(answer: object, kind: type[T], endpoint: str) -> T:
    """Make a value of an answer.

    Args:
        answer: As JSON gives it.
        kind: One of the schemas above, or a tuple of one.
        endpoint: What was asked, for the error.

    Raises:
        EngineMalformed: It is something else; says what was found where.
    """
    try:
        return structure(answer, kind, foreign=True)
    except ConfigError as error:
        problem = error.problems[0]
        where = f" at {problem.path}" if problem.path else ""
        raise EngineMalformed(endpoint, f"{problem.found}{where}", problem.expected) from error
