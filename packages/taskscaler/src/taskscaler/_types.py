"""The vocabulary of taskscaler: pools and policies. Names, meanings and defaults are GitLab's."""

from collections.abc import Mapping
from functools import cached_property
from typing import Protocol

from attrs import field, frozen
from attrs.validators import ge, gt

from fleeting import ConnectInfo, ConnectorConfig, Duration, InstanceGroup, PlanConfig, dial
from fleeting.config import as_given, in_words
from fleeting.runtime import Dial, ReadyHook
from taskscaler.core._schedule import ALWAYS, validate_period, validate_timezone

ADAPTIVE = "adaptive"

MODES = ("static", ADAPTIVE)
"""How long what is not needed idles: as long as the policy says, or as long as has paid."""


@frozen(kw_only=True, field_transformer=in_words)
class Policy:
    """How much to keep idle, and when that holds. Of several that match, the last holds."""

    periods: tuple[str, ...] = field(default=(ALWAYS,))
    """Cron expressions of five fields, each a span of time: every minute it matches. Any will do."""

    timezone: str = field(default="UTC")
    """In which the periods are, by its name in the IANA database, such as ``Europe/Berlin``."""

    idle_count: int = field(default=0, validator=ge(0))
    """Idle slots to keep, in jobs, not instances."""

    idle_time: Duration = field(default=0.0, validator=ge(0))
    """How long an instance that is not needed stays idle before it is given up."""

    scale_factor: float = field(default=0.0, validator=ge(0))
    """Idle slots to keep as a share of those in use; at least `idle_count`."""

    scale_factor_limit: int = field(default=0, validator=ge(0))
    """At most so many idle slots by the factor; 0: no limit."""

    preemptive_mode: bool | None = None
    """Whether reservations succeed only against capacity that is ready. None: if `idle_count` is above 0."""

    mode: str = field(default="static")
    """``static``: what is not needed idles for `idle_time`. ``adaptive``: for as long as has paid lately, at the price
    that `idle_time` gives: so much idling is what a boot is worth that somebody waits for."""

    @periods.validator
    def _check_periods(self, _: object, periods: tuple[str, ...]) -> None:
        if not periods:
            raise ValueError("at least one cron expression, such as * 8-15 * * mon-fri")
        for period in periods:
            validate_period(period)

    @timezone.validator
    def _check_timezone(self, _: object, name: str) -> None:
        validate_timezone(name)

    @mode.validator
    def _check_mode(self, _: object, mode: str) -> None:
        if mode not in MODES:
            raise ValueError('one of "static", "adaptive"')
        if mode == ADAPTIVE and not self.idle_time:
            raise ValueError("static, or an idle_time above 0: it is the price at which idling is weighed")

    @cached_property
    def adaptive(self) -> bool:
        """Whether it is learned how long idling pays."""
        return self.mode == ADAPTIVE

    @property
    def effect(self) -> Mapping[str, float | str]:
        """What it leads to, by the settings' names, whenever it holds."""
        return {
            "idle_count": self.idle_count,
            "idle_time": self.idle_time,
            "scale_factor": self.scale_factor,
            "scale_factor_limit": self.scale_factor_limit,
            "preemptive_mode": self.preemptive,
            "mode": self.mode,
        }

    @property
    def preemptive(self) -> bool:
        """`preemptive_mode`, with its default worked out."""
        return self.idle_count > 0 if self.preemptive_mode is None else self.preemptive_mode


@frozen(kw_only=True, field_transformer=in_words)
class PoolSettings(PlanConfig):
    """All settings of a pool that are plain data; the schemas of files build on it."""

    capacity_per_instance: int = field(default=1, validator=ge(1))
    """Jobs at once on one instance."""

    max_use_count: int = field(default=0, validator=ge(0))
    """Jobs that an instance may run in its life; 0: any number."""

    reservation_throttling: bool = True
    """Whether reservations by themselves neither request instances nor keep those that are not needed, and are refused
    while growth is throttled or backing off. So runners that find no job do not keep a fleet."""

    instance_ready_command: str | None = None
    """Run on a new instance through the connector; failure replaces the instance. A refused login is tried again."""

    instance_cleanup_command: str | None = None
    """Run on an instance through the connector after each job, before its slot is used again; failure replaces the
    instance once it is free. Its environment has TASKSCALER_INSTANCE, TASKSCALER_SLOT and TASKSCALER_KEY, the job's."""

    instance_cleanup_timeout: Duration = field(default=60.0, validator=gt(0))
    """How long cleaning up after a job may take."""

    instance_heartbeat_command: str | None = None
    """Run on an instance through the connector with each heartbeat; failure counts as one of the group's does."""

    heartbeat_timeout: Duration = field(default=10.0, validator=gt(0))
    """Seconds that a heartbeat, its command included, may take."""

    notice_interval: Duration = field(default=10.0, validator=gt(0))
    """Seconds between two looks for notices on an instance, where the cloud announces there what it takes away.

    Each look makes a connection of its own: with a thousand instances, a longer interval spares the manager."""

    suspended_count: int = field(default=0, validator=ge(0))
    """So many idle instances that are not needed are suspended instead of deleted, where the group can do that."""

    suspended_time: Duration = field(default=86400.0, validator=gt(0))
    """How long such an instance stays suspended before it is deleted."""

    shutdown_deletion_retries: int = field(default=3, validator=ge(0))
    """How often deletions are asked for again while shutting down."""

    connector_config: ConnectorConfig = field(factory=ConnectorConfig)
    """How to connect to instances; overrides what the group reports."""

    @property
    def cleans(self) -> bool:
        """Whether slots are cleaned between jobs."""
        return self.instance_cleanup_command is not None


class CleanupHook(Protocol):
    """The caller's own last step of cleaning up after a job."""

    async def __call__(self, info: ConnectInfo, *, slot: int, key: str) -> None:
        """Make the slot fit for the next job, within the pool's `instance_cleanup_timeout`.

        Args:
            info: How to connect to the instance.
            slot: The number of the slot, from 0; other slots of the instance may be in use.
            key: Of the lease that used it last.

        Raises:
            ConnectError: It could not be cleaned; the instance is replaced once it is free.
        """
        ...


@frozen(field_transformer=in_words)
class Pool(PoolSettings):
    """A group of instances to run jobs on, and how to use it."""

    group: InstanceGroup = field(kw_only=False)
    """As `fleeting.load` returns it, or made by hand; not yet opened."""

    dial: Dial = field(default=dial, kw_only=True)
    """Connects to an instance."""

    ready_hook: ReadyHook | None = field(default=None, kw_only=True)
    """The caller's own last readiness step; raising `ConnectError` replaces the instance. See `fleeting.ReadyHook`."""

    cleanup_hook: CleanupHook | None = field(default=None, kw_only=True)
    """The caller's own last step of cleaning up after a job; comes after `instance_cleanup_command`."""

    @group.validator
    def _check_group(self, _: object, group: InstanceGroup) -> None:
        if not callable(getattr(group, "increase", None)):
            expected = "an instance group, such as fleeting.load returns"
            raise TypeError(f"group: expected {expected}, found {as_given(group)}")

    @property
    def cleans(self) -> bool:
        """Whether slots are cleaned between jobs."""
        return super().cleans or self.cleanup_hook is not None
