"""Pure: what Azure Resource Manager answers, in fleeting's words; and how often it may be asked.

Azure's messages are not repeated, because what somebody else wrote may hold a secret: its codes say as much.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from attrs import define, evolve, frozen

from fleeting import (
    AuthFailed,
    CapacityUnavailable,
    GroupRefused,
    Observed,
    OutcomeUnknown,
    Problem,
    ProblemKind,
    ProviderError,
    QuotaExceeded,
    RateLimited,
    State,
)

if TYPE_CHECKING:  # the SDK is imported when a group is opened
    from azure.mgmt.compute import models

_CODES: Final = {
    ProblemKind.CAPACITY: "AllocationFailed OverconstrainedAllocationRequest OverconstrainedZonalAllocationRequest"
    " SkuNotAvailable ZonalAllocationFailed",
    ProblemKind.QUOTA: "PublicIPCountLimitReached QuotaExceeded",
    ProblemKind.IMAGE: "GalleryImageNotFound ImageNotFound OSProvisioningClientError OSProvisioningInternalError"
    " OSProvisioningTimedOut PlatformImageNotFound",
    ProblemKind.AUTHORISATION: "AuthorizationFailed LinkedAuthorizationFailed RequestDisallowedByPolicy",
}
"""Source: Azure's pages on common deployment errors and on failed allocations."""

_MEANINGS: Final = {
    ProblemKind.CAPACITY: "there is no room for this size here at the moment; allow another size or zone, or wait",
    ProblemKind.QUOTA: "a limit of the subscription is reached; request a higher quota",
    ProblemKind.IMAGE: "the image is missing, or does not boot as Azure expects; check the scale set's image",
    ProblemKind.AUTHORISATION: "a permission is missing; grant what the plugin's documentation lists",
    ProblemKind.OTHER: "the request is retried later; if the problem persists, see the scale set's activity log",
}
_ERRORS: Final[dict[ProblemKind, type[ProviderError]]] = {
    ProblemKind.CAPACITY: CapacityUnavailable,
    ProblemKind.QUOTA: QuotaExceeded,
    ProblemKind.AUTHORISATION: AuthFailed,
}
_SETTLED: Final = {"succeeded", "updating", "failed", "canceled"}
"""States of provisioning in which the power state says how an instance is."""

_ARM_SIZE: Final = re.compile(r"[A-Za-z]+_[A-Z]+\d+(-\d+)?[a-z]*p[a-z]*(_|$)")
"""Sizes with an ARM processor have a p behind the number of cores. Source: Azure's naming of sizes."""

AUTOSCALED: Final = "autoscale settings remove instances with their jobs; disable or delete those settings"
NOT_SEEN: Final = (
    "whether autoscale settings remove its instances could not be checked; grant the role permission to read them"
)

NOTICE_PROBE: Final = Path(__file__).with_name("notices.sh").read_text()


class Missing(ProviderError):
    """Azure knows no such thing."""


class OutOfDate(ProviderError):
    """What was known of the group when the request was made is not so any more: look again."""


@define
class Budget:
    """At most *burst* requests at once, and then one every *interval* seconds."""

    interval: float
    burst: int
    _spent_until: float = -math.inf

    def ready_at(self, now: float) -> float:
        """When the next request may be made: *now*, or later."""
        return max(now, self._spent_until - (self.burst - 1) * self.interval)

    def take(self, now: float) -> None:
        """Make one."""
        self._spent_until = max(now, self._spent_until) + self.interval


def failure_of(  # noqa: PLR0911  (a table)
    what: str, *, status: int, code: str, target: str, message: str, retry_after: str | None, changing: bool
) -> ProviderError:
    """Choose the error for what Azure answered when it was asked to do *what*."""
    said = f"{status} {code}".strip()
    match status:
        case 401 | 403:
            return AuthFailed(f"Azure denied permission to {what} ({said}); check the credentials and their role")
        case 412:
            return OutOfDate(f"Azure did not {what}: somebody else changed the scale set in the meantime")
        case 400 | 404 if target == "instanceIds":
            return OutOfDate(f"Azure did not {what}: an instance went away in the meantime")
        case 404:
            return Missing(f"Azure did not {what}: it does not exist ({said})")
        case 429:
            return RateLimited(f"Azure got too many requests to {what}", retry_after=_seconds_in(retry_after))
        case _ if changing and not 400 <= status < 500:  # noqa: PLR2004  (there it says no)
            return OutcomeUnknown(f"Azure failed to {what} ({said})")
    kind = kind_of(code, message)
    return _ERRORS.get(kind, ProviderError)(f"Azure did not {what} ({said}); {_MEANINGS[kind]}")


def kind_of(code: str, message: str | None) -> ProblemKind:
    """What a code is about; one stands for quotas and for much else, which only the message distinguishes."""
    if code == "OperationNotAllowed" and "quota" in (message or "").lower():
        return ProblemKind.QUOTA
    return next((kind for kind, codes in _CODES.items() if code in codes.split()), ProblemKind.OTHER)


def _seconds_in(header: str | None) -> float | None:
    """What ``Retry-After`` says, unless it is a date or nonsense."""
    return float(header) if header and header.isdecimal() and int(header) else None


MARK = "fleeting-owner"
"""The tag that is a manager's mark on its scale set."""

RESTARTING = frozenset({"Automatic", "Rolling"})
"""The upgrade policies by which Azure restarts instances when the model of a scale set changes."""

UNMARKABLE = (
    "its upgrade policy restarts instances whenever the model changes, and a mark may count as such a change; set"
    " upgradePolicy.mode to Manual, or owner_mark to false"
)


@frozen(kw_only=True)
class ScaleSet:
    """What matters of a scale set."""

    id: str
    etag: str | None
    sku: Mapping[str, Any]
    tags: Mapping[str, str]
    upgrades: str
    """When instances take over a changed model: ``Manual``, ``Automatic``, ``Rolling``; empty: Azure does not say."""

    capacity: int
    failed: bool
    """Whether Azure has given up on the last change."""

    uniform: bool
    max_size: int
    os: str
    arch: str
    protocol: str
    user: str | None
    spot: bool
    evicts_by_deallocating: bool
    """If so, an instance that is evicted cannot be distinguished from one that was suspended."""

    harm: Sequence[str]
    """What of its set-up breaks jobs, and what to do, each in a few words."""

    advice: Sequence[str]


def scale_set_of(found: "models.VirtualMachineScaleSet") -> ScaleSet:
    """Read a scale set.

    Raises:
        GroupRefused: It has no profile by which Azure could make instances.
        ValueError: It makes no sense.
    """
    properties, sku = found.properties, found.sku
    if found.id is None or properties is None or sku is None or sku.capacity is None:
        raise ValueError("a scale set without all of its parts")
    if (profile := properties.virtual_machine_profile) is None:
        raise GroupRefused(f"scale set {found.name} has no virtual machine profile; use a scale set that has one")
    uniform, spot = properties.orchestration_mode != "Flexible", profile.priority == "Spot"
    protocol = _protocol(profile)
    return ScaleSet(
        id=found.id,
        etag=found.etag,
        sku=dict(sku),
        tags=dict(found.tags or {}),
        upgrades=(properties.upgrade_policy and properties.upgrade_policy.mode) or "",
        capacity=sku.capacity,
        failed=properties.provisioning_state == "Failed",
        uniform=uniform,
        max_size=100 if uniform and properties.single_placement_group else 1000,  # Source: Azure's limits
        os="linux" if protocol == "ssh" else "windows",
        arch="arm64" if _ARM_SIZE.match(sku.name or "") else "amd64",
        protocol=protocol,
        user=profile.os_profile.admin_username if profile.os_profile else None,
        spot=spot,
        evicts_by_deallocating=spot and profile.eviction_policy != "Delete",
        harm=tuple(_harm(properties, uniform=uniform)),
        advice=tuple(_advice(properties)),
    )


def _protocol(profile: "models.VirtualMachineScaleSetVMProfile") -> str:
    """For Windows prefer https; take plain http only where Azure was asked to set up nothing else."""
    disk = profile.storage_profile and profile.storage_profile.os_disk
    windows = profile.os_profile and profile.os_profile.windows_configuration
    if not windows and not (disk and disk.os_type == "Windows"):
        return "ssh"
    listeners = (windows and windows.win_rm and windows.win_rm.listeners) or []
    return "winrm" if {each.protocol for each in listeners} == {"Http"} else "winrm+https"


def _harm(properties: "models.VirtualMachineScaleSetProperties", *, uniform: bool) -> Iterator[str]:
    """What makes Azure remove instances by itself."""
    if uniform and properties.overprovision is not False:
        yield "it overprovisions, and removes instances that may already have jobs; set overprovision to false"
    if properties.automatic_repairs_policy and properties.automatic_repairs_policy.enabled:
        yield "it replaces unhealthy instances together with their jobs; set automaticRepairsPolicy.enabled to false"
    resiliency = properties.resiliency_policy
    if resiliency and (zones := resiliency.automatic_zone_rebalancing_policy) and zones.enabled:
        yield "it moves instances between zones; set automaticZoneRebalancingPolicy.enabled to false"


def _advice(properties: "models.VirtualMachineScaleSetProperties") -> Iterator[str]:
    """What may be meant so, and is better not."""
    if (upgrades := properties.upgrade_policy) and upgrades.mode in RESTARTING:
        yield "its upgrade policy restarts instances whenever the model changes; set upgradePolicy.mode to Manual"
    if properties.spot_restore_policy and properties.spot_restore_policy.enabled:
        yield "it restores evicted instances, only for them to be removed again; set spotRestorePolicy.enabled to false"


def is_autoscaled(answer: Any, scale_set: str) -> bool:  # noqa: ANN401  (JSON, for which there is another SDK)
    """Find in a page of autoscale settings whether an enabled one is about the scale set."""
    settings = [each["properties"] for each in answer["value"]]
    targets = {(each.get("targetResourceUri") or "").lower() for each in settings if each.get("enabled")}
    return scale_set.lower() in targets


def capacity_for(capacity: int, live: int | None, wanted: int, max_size: int) -> tuple[int, int]:
    """What to set the capacity to, and how many of those wanted that gives room for.

    *live* is how many instances are listed if the last change failed, else None: Azure does not go on with what that
    left open, but would, beside what is wanted now, if the capacity were raised from where it stands. It is never
    lowered: of instances that are not listed yet, or counted otherwise, Azure would make up by deleting others.
    """
    base = capacity if live is None else min(capacity, live)
    accepted = max(0, min(wanted, max_size - base))
    return max(capacity, base + accepted), accepted


def live(machines: "Mapping[str, Machine]") -> int:
    """How many instances there are that are not being deleted."""
    return sum(machine.observed.state is not State.DELETING for machine in machines.values())


def share(accepted: int, wishes: Iterable[int]) -> list[int]:
    """Divide what was accepted among several who asked, in their order."""
    shares: list[int] = []
    for wish in wishes:
        shares.append(min(wish, accepted - sum(shares)))
    return shares


@frozen(kw_only=True)
class Machine:
    """An instance, as the group sees it."""

    id: str | None
    """What Azure never uses twice, see `identity_of`; None: it has not reported that yet."""

    name: str
    """What Azure wants to be given: the instance id in a uniform set, the name of the machine in a flexible one."""

    observed: Observed
    problems: Sequence[Problem]
    nic: str | None
    """Id of its primary network interface."""


def machine_of(found: "models.VirtualMachine | models.VirtualMachineScaleSetVM", scale_set: ScaleSet) -> Machine:
    """Read an instance, with its instance view.

    Raises:
        ValueError: It makes no sense.
    """
    properties, name = found.properties, getattr(found, "instance_id", None) or found.name
    if properties is None or name is None:
        raise ValueError("an instance without all of its parts")
    statuses = (properties.instance_view and properties.instance_view.statuses) or []
    codes = [each.code or "" for each in statuses]
    power = [code.removeprefix("PowerState/") for code in codes if code.startswith("PowerState/")]
    size = properties.hardware_profile.vm_size if properties.hardware_profile else None
    offering = f"{'-'.join([found.location, *(found.zones or [])])}/{size}{'/spot' if scale_set.spot else ''}"
    state = state_of(properties.provisioning_state, power, evicts_by_deallocating=scale_set.evicts_by_deallocating)
    created = properties.time_created
    nics = (properties.network_profile and properties.network_profile.network_interfaces) or []
    primary = sorted(nics, key=lambda nic: not (nic.properties and nic.properties.primary))
    return Machine(
        id=identity_of(found),
        name=name,
        observed=Observed(state=state, created_at=created.timestamp() if created else None, offering=offering),
        problems=() if state is State.RUNNING else problems_of(statuses, offering),  # it came, whatever failed
        nic=primary[0].id if primary else None,
    )


def identity_of(found: "models.VirtualMachine | models.VirtualMachineScaleSetVM") -> str | None:
    """What is the same in all states of an instance, and no other has had or will have: name and time of creation.

    A uniform set gives the name of an instance that is gone to another, and no two of one name are created at once.
    ``vmId`` would do, were it not withheld while Azure creates: it stands in where no time is reported, but not before
    the instance is made, because until then the time may still come. Azure changes the case of names at will.

    Source: Azure's pages on names and instance ids; ``timeCreated`` is reported since version 2021-11-01 of the API.
    """
    if (properties := found.properties) is None:
        return None
    if properties.time_created:
        name = found.name or getattr(found, "instance_id", None) or ""
        return f"{name.lower()}-{properties.time_created.astimezone(UTC):%Y%m%dT%H%M%S%f}"
    return None if (properties.provisioning_state or "").lower() == "creating" else properties.vm_id


def state_of(  # noqa: PLR0911  (a table)
    provisioning: str | None, power: Sequence[str], *, evicts_by_deallocating: bool
) -> State:
    """What provisioning and power state mean together; what is unheard of is not used for the time being."""
    match (provisioning or "").lower(), power:
        case "deleting", _:
            return State.DELETING
        case "failed" | "canceled", []:
            return State.FAILED
        case settled, _ if settled not in _SETTLED:
            return State.CREATING
        case _, [
            "running"
        ]:  # though the last change failed: an extension, or a start that came too late, breaks no job
            return State.RUNNING
        case _, ["starting"]:
            return State.RESUMING
        case _, ["stopped"]:  # it was shut down from within, is paid for and does nothing
            return State.FAILED
        case _, ["stopping" | "deallocating" | "deallocated"] if evicts_by_deallocating:
            return State.FAILED
        case _, ["stopping" | "deallocating"]:
            return State.SUSPENDING
        case _, ["deallocated"]:
            return State.SUSPENDED
    return State.CREATING


def problems_of(
    statuses: "Iterable[models.InstanceViewStatus] | None", offering: str | None = None
) -> Sequence[Problem]:
    """Why what was asked for does not come, from the statuses of an instance or of the scale set."""
    problems = []
    for status in statuses or ():
        if (written := status.code or "").lower().startswith("provisioningstate/failed/"):
            code = written.rpartition("/")[2]
            kind = kind_of(code, status.message)
            since = status.time.timestamp() if status.time else None
            said = f"Azure says {code}: {_MEANINGS[kind]}"
            problems.append(Problem(kind=kind, message=said, since=since, offering=offering))
    return problems


def first_met(problems: Iterable[Problem], known: Mapping[Problem, float], now: float) -> Mapping[Problem, float]:
    """Each problem once, without its time, and when it was first met: the time at Azure moves with each try."""
    found: dict[Problem, float] = {}
    for problem in problems:
        what, at = evolve(problem, since=None), now if problem.since is None else problem.since
        found[what] = min(at, found.get(what, at), known.get(what, at))
    return found


def addresses_of(nic: Any) -> tuple[str | None, str | None]:  # noqa: ANN401  (JSON)
    """The primary internal address, and the id of the external one that goes with it."""
    found = [each["properties"] for each in nic["properties"]["ipConfigurations"]]
    first = min(found, key=lambda each: not each.get("primary"))
    return first.get("privateIPAddress"), (first.get("publicIPAddress") or {}).get("id")
