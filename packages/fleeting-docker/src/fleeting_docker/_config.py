"""The settings of the `docker` group."""

import re
from collections.abc import Iterable

import attrs
from attrs import field, frozen
from attrs.validators import ge, gt, in_, min_len, optional

from fleeting import Duration
from fleeting.plugins import is_absolute, is_group_name

_VOLUME = re.compile(r"(/[^:]*|[a-zA-Z0-9][a-zA-Z0-9_.-]*):/[^:]*(:ro|:rw)?")


def _are_volumes(_: object, __: "attrs.Attribute[tuple[str, ...]]", volumes: Iterable[str]) -> None:
    if wrong := next((volume for volume in volumes if not _VOLUME.fullmatch(volume)), None):
        raise ValueError("volumes such as source:/target or source:/target:ro", wrong)


@frozen(kw_only=True)
class DockerGroupConfig:
    """What ``plugin_config`` may say for ``plugin = "docker"``."""

    name: str = field(default="default", validator=is_group_name)
    """Distinguishes one group from another on a daemon; the names of its instances begin with it."""

    socket: str = field(default="/var/run/docker.sock", validator=is_absolute)
    """The daemon's socket on this machine, absolute."""

    image: str | None = field(default=None, validator=optional(min_len(1)))
    """An image with OpenSSH's server in it, which the daemon has; nothing is pulled. None: one is made."""

    root_file_system: str | None = field(default=None, validator=is_absolute)
    """What it is made of: a directory, or a tar archive, absolute. None: this machine's OpenSSH and busybox."""

    sshd: str = field(default="/usr/sbin/sshd", validator=is_absolute)
    """Where the server is in the image."""

    user: str = field(default="root", validator=min_len(1))
    """Whom jobs log in as."""

    volumes: tuple[str, ...] = field(default=(), validator=_are_volumes)
    """``source:/target``, such as the daemon's own socket: then jobs can use the docker executor."""

    memory: int | None = field(default=None, validator=optional(ge(6 * 2**20)))
    """Bytes that an instance may use; None: as many as there are."""

    cpus: float | None = field(default=None, validator=optional(gt(0)))
    """CPUs that it may use."""

    network: str = field(default="bridge", validator=min_len(1))
    """The network that instances are on; it must be there."""

    address: str = field(default="127.0.0.1", validator=in_(("127.0.0.1", "::1", "0.0.0.0")))  # noqa: S104  (the user's to choose)
    """The address of this host at which the instances' SSH servers can be reached."""

    max_size: int | None = field(default=None, validator=optional(ge(1)))
    """How many instances there may be at once; None: no limit."""

    owner_mark: bool = False
    """Whether managers mark the group, by volumes: those on several hosts then exclude each other, and what one that
    has died leaves behind can be removed."""

    timeout: Duration = field(default=60.0, validator=gt(0))
    """Seconds that the daemon may take for one answer."""

    def __attrs_post_init__(self) -> None:
        """See that it is known which image is meant."""
        if self.image is not None and self.root_file_system is not None:
            raise ValueError("either image or root_file_system")
