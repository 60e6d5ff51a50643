"""The settings of the `exec` group."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import attrs
from attrs import field, frozen
from attrs.validators import deep_iterable, ge, gt, le, min_len, optional

from fleeting import Duration
from fleeting.plugins import Argv, is_absolute, is_group_name, state_home

LONGEST_READ = 100.0
"""Seconds; the manager gives up on a view after 120."""

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _are_variables(_: object, __: "attrs.Attribute[tuple[str, ...]]", names: Iterable[str]) -> None:
    if wrong := next((name for name in names if not _VARIABLE.fullmatch(name)), None):
        raise ValueError("names of environment variables", wrong)


@frozen(kw_only=True)
class ExecConfig:
    """What ``plugin_config`` may say for ``plugin = "exec"``."""

    command: Argv = field(validator=[min_len(1), deep_iterable(min_len(1))])
    """The program and its first arguments; what is to be done is appended. No shell touches it."""

    name: str = field(default="default", validator=is_group_name)
    """Distinguishes one group from another; the names of its instances begin with it."""

    identity: str | None = field(default=None, validator=optional(min_len(1)))
    """The cloud resource behind the command, where it is known by a name of its own. None: this host's group `name`."""

    state_dir: str | None = field(default=None, validator=is_absolute)
    """Where it is remembered what was asked for, absolute; made if it does not exist. None: below the user's own
    directory for state."""

    env: Mapping[str, str] = field(factory=dict, repr=False)
    """Set for the command. No message shows the values."""

    pass_env: tuple[str, ...] = field(default=(), validator=_are_variables)
    """Variables of the manager's own environment that the command gets too. No message shows their values."""

    create_timeout: Duration = field(default=240.0, validator=gt(0))
    """Seconds that one ``create`` may take; then it is killed, and what it has made is destroyed."""

    destroy_timeout: Duration = field(default=240.0, validator=gt(0))
    """Seconds that one ``destroy`` may take."""

    list_timeout: Duration = field(default=60.0, validator=[gt(0), le(LONGEST_READ)])
    """Seconds that one ``list`` or ``status`` may take."""

    concurrency: int = field(default=8, validator=ge(1))
    """How many ``create`` and ``destroy`` may run at once."""

    max_size: int | None = field(default=None, validator=optional(ge(1)))
    """How many instances there may be at once; None: no limit."""

    owner_mark: bool = False
    """Whether the program knows ``marks``, ``mark`` and ``unmark``: managers on several hosts then exclude each other,
    and what one that has died leaves behind can be removed."""

    def __attrs_post_init__(self) -> None:
        """Check the names in `env` here: what a validator says of a secret is not passed on, keys included."""
        if wrong := next((name for name in self.env if not _VARIABLE.fullmatch(name)), None):
            raise ValueError(f"names of environment variables as keys of env, not {wrong!r}")

    @property
    def root(self) -> Path:
        """The directory of the group's own records.

        Raises:
            RuntimeError: It is not set, and the user has no home directory.
        """
        base = state_home() / "fleeting" / "exec" if self.state_dir is None else Path(self.state_dir)
        return base / self.name
