"""The settings of the `local` group."""

from pathlib import Path

from attrs import field, frozen
from attrs.validators import ge, optional

from fleeting import Duration, GroupRefused
from fleeting.groups._rules import is_name
from fleeting.plugins import is_absolute, state_home


@frozen(kw_only=True)
class LocalConfig:
    """What ``plugin_config`` may say for ``plugin = "local"``."""

    name: str = field(default="default", validator=is_name)
    """Distinguishes one group from another; instance ids begin with it."""

    directory: str | None = field(default=None, validator=is_absolute)
    """Where the instances live, absolute; made if it does not exist, removed when the last instance and the
    manager are gone. None: below the user's own directory for state, named after the group."""

    boot_time: Duration = field(default=0.0, validator=ge(0))
    """Seconds from the creation of an instance until it runs."""

    resume_time: Duration = field(default=0.0, validator=ge(0))
    """Seconds from when a suspended instance is asked to resume until it runs."""

    orphan_ttl: Duration = field(default=30.0, validator=ge(0))
    """Seconds that an instance lives on without a manager; one that is suspended stays until it is deleted. Should be
    longer than a restart of the manager takes, and longer than `boot_time` if instances are to survive a restart while
    they boot."""

    max_size: int | None = field(default=None, validator=optional(ge(1)))
    """How many instances there may be at once; None: no limit."""

    @property
    def root(self) -> Path:
        """The directory of the group.

        In the directory for temporary files another user could take its name first, and keep the group from opening.

        Raises:
            GroupRefused: It is not set, and the user has no home directory.
        """
        if self.directory is not None:
            return Path(self.directory)
        try:
            return state_home() / "fleeting" / "local" / self.name
        except RuntimeError as error:
            raise GroupRefused("there is no home directory for the instances; set directory") from error
