"""What the settings of a fleet say, in words."""

from collections.abc import Iterator

from fleeting import ConnectorConfig, JournalError, Preexisting
from fleeting.plugins import format_duration
from taskscaler._types import Policy
from taskscaler._wording import counted
from taskscaler.cli._paragraphs import Row
from taskscaler.config import Autoscaler, PoolTable
from taskscaler.core._schedule import ALWAYS, Schedule

UNEXPLAINED = {
    Preexisting.REFUSE: "prevent the start",
    Preexisting.REMOVE: "are removed",
    Preexisting.ADOPT: "are used as if new",
}
"""What becomes of instances that stand in the group when a manager starts, and of which nothing is known."""


def fleet_rows(fleet: Autoscaler, now: float) -> Iterator[Row]:
    """What the settings mean; *now*, in seconds since the epoch, is for which policy holds."""
    for pool in fleet.all_pools:
        yield from ([("pool", pool.name)] if fleet.pools else [])
        yield "plugin", pool.plugin
        yield "fleet", _size(pool)
        yield "connection", _connection(pool.connector_config)
        yield "at start", f"unknown instances {UNEXPLAINED[pool.preexisting]}"
    if fleet.pools:
        most = f"at most {counted(fleet.ceiling, 'instance')}" if fleet.ceiling else "any number of instances"
        yield "all pools", f"{most}, in this order of preference"
    yield from policy_rows(fleet.policy, now)
    yield "state", _state(fleet)
    yield "at end", _at_end(fleet)


def policy_rows(policies: tuple[Policy, ...], now: float) -> Iterator[Row]:
    """Print every policy, in the order of the file, and which one holds."""
    holding = Schedule(policies).at(now).policy
    for policy in policies:
        yield "policy", f"{_when(policy)}: {_idle(policy)}{'; applies now' if policy is holding else ''}"
    if holding is None:
        yield "policy", f"{'none applies now' if policies else 'none'}: {_idle(Policy())}"


def _size(fleet: PoolTable) -> str:
    ceiling = fleet.max_instances
    most = f"at most {counted(ceiling, 'instance')}" if ceiling else "as many instances as the group allows"
    life = str(fleet.max_use_count) if fleet.max_use_count else "any number"
    return f"{most}; each runs {counted(fleet.capacity_per_instance, 'job')} at once, {life} in all"


def _connection(config: ConnectorConfig) -> str:
    protocol = config.protocol or "the plugin's protocol"
    port = f", port {config.protocol_port}" if config.protocol_port else ""
    user = f" as {config.username}" if config.username else ""
    return f"{protocol}{user}, {'external' if config.use_external_addr else 'internal'} address{port}"


def _when(policy: Policy) -> str:
    if ALWAYS in policy.periods:
        return "always"
    return f"{' or '.join(policy.periods)} ({policy.timezone or 'UTC'})"


def _idle(policy: Policy) -> str:
    leaves = f"after {format_duration(policy.idle_time)}" if policy.idle_time else "at once"
    if policy.adaptive:
        leaves = f"once idling does not pay, at the price of {format_duration(policy.idle_time)} for a boot"
    return f"keeps {_kept(policy)} idle, removes what is not needed {leaves}"


def _kept(policy: Policy) -> str:
    if not policy.scale_factor:
        return counted(policy.idle_count, "slot") if policy.idle_count else "nothing"
    least = f", at least {policy.idle_count}" if policy.idle_count else ""
    most = f", at most {policy.scale_factor_limit}" if policy.scale_factor_limit else ""
    return f"{policy.scale_factor:g} times the slots in use{least}{most}"


def _at_end(fleet: Autoscaler) -> str:
    """Say what becomes of the instances: fixed hosts were there before, and will be."""
    if not fleet.delete_instances_on_shutdown:
        return "instances stay"
    ends = {"hosts are given back" if pool.plugin == "static" else "instances are removed" for pool in fleet.all_pools}
    return ", ".join(sorted(ends, reverse=True))


def _state(fleet: Autoscaler) -> str:
    storage = fleet.state_storage
    if not storage.enabled:
        return "not kept across restarts"
    from taskscaler._state import default_directory

    try:
        return f"kept in {storage.dir or default_directory()}"
    except JournalError as error:
        return str(error)
