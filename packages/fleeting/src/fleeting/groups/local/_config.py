"""The settings of the `local` group."""

import os
import re
import tempfile
from pathlib import Path

import attrs
from attrs import field, frozen
from attrs.validators import ge, optional

from fleeting._durations import Duration

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def _is_name(_: object, __: "attrs.Attribute[str]", value: str) -> None:
    if not _NAME.fullmatch(value):
        raise ValueError("1 to 64 letters, digits, dots, dashes and underscores, beginning with a letter or digit")


def _is_absolute(_: object, __: "attrs.Attribute[str | None]", value: str | None) -> None:
    if value is not None and not Path(value).is_absolute():
        raise ValueError("an absolute path")


@frozen(kw_only=True)
class LocalConfig:
    """What ``plugin_config`` may say for ``plugin = "local"``."""

    name: str = field(default="default", validator=_is_name)
    """Tells one group from another; instance ids begin with it."""

    directory: str | None = field(default=None, validator=_is_absolute)
    """Where the instances live, absolute; made if it does not exist, removed when the last instance and the
    manager are gone. None: in the directory for temporary files, named after the user and `name`."""

    boot_time: Duration = field(default=0.0, validator=ge(0))
    """Seconds from the creation of an instance until it runs."""

    orphan_ttl: Duration = field(default=30.0, validator=ge(0))
    """Seconds that an instance lives on without a manager. Should be longer than a restart of the manager takes,
    and longer than `boot_time` if instances are to survive a restart while they boot."""

    max_size: int | None = field(default=None, validator=optional(ge(1)))
    """How many instances there may be at once; None: no limit."""

    @property
    def root(self) -> Path:
        """The directory of the group."""
        if self.directory is not None:
            return Path(self.directory)
        return Path(tempfile.gettempdir(), f"fleeting-{os.getuid()}-{self.name}")
