"""The fleet in a file, whichever file it is: the schema, and what is made from it.

Names, meanings and defaults are GitLab's unless said otherwise.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import Attribute, field, fields_dict, frozen
from attrs.validators import ge, gt, max_len, optional

from fleeting import Clock, Duration, GroupInfo, InstanceGroup, Journal
from fleeting.plugins import is_absolute
from taskscaler._cost import Tariff
from taskscaler._meter import Metered, check_bounds
from taskscaler._observe import ScalerObserver
from taskscaler._scaler import Taskscaler
from taskscaler._types import Policy, Pool, PoolSettings

if TYPE_CHECKING:
    from taskscaler._state import StateJournal


def some(expected: str) -> Callable[[object, "Attribute[Any]", Sequence[object]], None]:
    """Make a validator that refuses what is empty, saying what may stand there."""

    def check(_: object, __: "Attribute[Any]", value: Sequence[object]) -> None:
        if not value:
            raise ValueError(expected)

    return check


def _are_bounds(_: object, __: "Attribute[Any]", value: Sequence[float]) -> None:
    if value:
        check_bounds(value)


@frozen(kw_only=True)
class StateStorage:
    """The table ``state_storage``: what outlives the process."""

    enabled: bool = True
    """Unlike GitLab's: a crash costs neither instances nor the count of their uses."""

    dir: str | None = field(default=None, validator=is_absolute)
    """Made if it does not exist. None: below the user's own directory for state."""

    keep_instance_with_acquisitions: bool = False
    """Whether instances that were in use when an earlier manager was killed are used on, not removed."""

    def journal(self) -> "StateJournal | None":
        """Where state is kept; nothing is opened yet. None: nowhere.

        Raises:
            JournalError: The user has no home directory to keep it in.
        """
        if not self.enabled:
            return None
        from taskscaler._state import StateJournal, default_directory  # brings SQLite along

        return StateJournal(default_directory() if self.dir is None else Path(self.dir))


@frozen(kw_only=True)
class PoolTable(PoolSettings):
    """What the tables ``autoscaler`` and ``autoscaler.pools`` have in common: one pool."""

    plugin: str = field(validator=some("the name of a plugin"))
    """Which instance group: ``local``, ``static``, or the name of an installed plugin."""

    plugin_config: dict[str, object] = field(factory=dict, repr=False)
    """The plugin's own settings."""

    price_per_hour: float | None = field(default=None, validator=optional(ge(0)))
    """What one instance costs an hour, for `status` and reports; None: not known."""

    currency: str = field(default="", validator=max_len(16))
    """Of that price, as it is to be shown."""

    minimum_billing: Duration = field(default=0.0, validator=ge(0))
    """How much time the cloud bills at least each time an instance runs."""

    billing_increment: Duration = field(default=1.0, validator=gt(0))
    """The time of which the cloud bills a whole number."""

    @property
    def tariff(self) -> Tariff:
        """How its instances are paid for."""
        return Tariff(**{name: getattr(self, name) for name in fields_dict(Tariff)})

    def pool(self, group: InstanceGroup) -> Pool:
        """Make a pool of a group with these settings."""
        return Pool(group, **{name: getattr(self, name) for name in fields_dict(PoolSettings)})


@frozen(kw_only=True)
class NamedPool(PoolTable):
    """The table ``autoscaler.pools``: one of several pools, with what it takes over from ``autoscaler``."""

    name: str = field(validator=some("a name for the pool"))


@frozen(kw_only=True)
class Autoscaler(PoolTable):
    """The table ``autoscaler``: a fleet."""

    pools: tuple[NamedPool, ...] = field(default=())
    """In order of preference. None: the fleet itself is the only one."""

    policy: tuple[Policy, ...] = ()
    """What to keep idle, and when; the last that matches holds."""

    state_storage: StateStorage = StateStorage()
    """What outlives the process, and where."""

    instance_acquire_timeout: Duration = field(default=900.0, validator=gt(0))
    """How long an acquire may wait; in a jobs file: how long nothing may run while jobs wait."""

    reattach_timeout: Duration = field(default=600.0, validator=gt(0))
    """How long after a start the persistent leases of an earlier manager are kept for their owners."""

    log_internal_ip: bool = False
    """Whether a job's log may name the internal address of its instance."""

    log_external_ip: bool = False
    """Whether a job's log may name the external address of its instance."""

    observers: dict[str, dict[str, object]] = field(factory=dict, repr=False)
    """Settings of observers, by the names of their plugins; each hears of all that the fleet does."""

    instance_operation_time_buckets: tuple[float, ...] = field(default=(), validator=_are_bounds)
    """For the metrics: upper bounds in seconds of the buckets of the four times below, unless they have their own."""

    instance_creation_time_buckets: tuple[float, ...] = field(default=(), validator=_are_bounds)
    """Of the time from a request until the cloud shows the instance."""

    instance_is_running_time_buckets: tuple[float, ...] = field(default=(), validator=_are_bounds)
    """Of the time from a request until the instance runs."""

    instance_deletion_time_buckets: tuple[float, ...] = field(default=(), validator=_are_bounds)
    """Of the time until an instance that is deleted is gone."""

    instance_readiness_time_buckets: tuple[float, ...] = field(default=(), validator=_are_bounds)
    """Of the time from a request until the instance takes jobs."""

    instance_life_duration_buckets: tuple[float, ...] = field(default=(), validator=_are_bounds)
    """Of how long instances live."""

    delete_instances_on_shutdown: bool = True
    """Unlike GitLab's: a batch leaves nothing running. A ``config.toml`` that lacks the key means false, as there."""

    @pools.validator
    def _check_names(self, _: object, pools: tuple[NamedPool, ...]) -> None:
        names = [pool.name for pool in pools]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError("pools with different names", twice[0], " twice")

    @property
    def all_pools(self) -> Sequence[PoolTable]:
        """The pools in order of preference, at least one."""
        return self.pools or (self,)

    @property
    def buckets(self) -> Mapping[str, tuple[float, ...]]:
        """The bounds of the metrics' histograms that the file says something of, by their names."""
        usual = self.instance_operation_time_buckets
        found = {
            "instance_creation_time": self.instance_creation_time_buckets or usual,
            "instance_is_running_time": self.instance_is_running_time_buckets or usual,
            "instance_deletion_time": self.instance_deletion_time_buckets or usual,
            "instance_readiness_time": self.instance_readiness_time_buckets or usual,
            "instance_life_duration": self.instance_life_duration_buckets,
        }
        return {name: bounds for name, bounds in found.items() if bounds}

    @property
    def ceiling(self) -> int:
        """Instances that there may be over all pools; 0: any number."""
        return self.ceiling_with({})

    def ceiling_with(self, infos: Mapping[str, GroupInfo]) -> int:
        """Instances that there may be over all pools, with what their groups allow; 0: any number.

        Args:
            infos: What the groups say of themselves, by the names of the pools; may lack some.
        """
        sizes = {name: info.max_size for name, info in infos.items()}
        each = [min(filter(None, (pool.max_instances, sizes.get(pool.name))), default=0) for pool in self.all_pools]
        ceilings = [self.max_instances] if self.max_instances else []
        return min([*ceilings, *([sum(each)] if all(each) else [])], default=0)

    def scaler(
        self,
        groups: Sequence[InstanceGroup],
        *,
        clock: Clock | None = None,
        observe_only: bool = False,
        observers: Sequence[ScalerObserver] = (),
    ) -> Taskscaler:
        """Make a scaler over groups with these settings; nothing is opened yet.

        Args:
            groups: What the plugins of `all_pools` made, in that order; not opened yet.
            clock: None: the event loop's time.
            observe_only: Whether only to look on, as in `Taskscaler`; what is stored is not looked at then.
            observers: As in `Taskscaler`.

        Raises:
            JournalError: As `StateStorage.journal`.
        """
        journal: Journal | None = None if observe_only else self.state_storage.journal()
        for observer in observers:
            if isinstance(observer, Metered):
                observer.use_buckets(self.buckets)
        return Taskscaler(
            [pool.pool(group) for pool, group in zip(self.all_pools, groups, strict=True)],
            policies=self.policy,
            max_instances=self.max_instances if self.pools else 0,
            journal=journal,
            clock=clock,
            acquire_timeout=self.instance_acquire_timeout,
            reattach_timeout=self.reattach_timeout,
            delete_instances_on_shutdown=self.delete_instances_on_shutdown,
            keep_instance_with_acquisitions=self.state_storage.keep_instance_with_acquisitions,
            observe_only=observe_only,
            observers=observers,
        )
