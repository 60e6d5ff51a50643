"""Pure: what Azure Resource Manager answers, in fleeting's words; and how often it may be asked.

Azure's messages are not repeated, because what somebody else wrote may hold a secret: codes say as much.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from attrs import define, frozen

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
    from azure.mgmt.compute.models import (
        InstanceViewStatus,
        VirtualMachine,
        VirtualMachineScaleSet,
        VirtualMachineScaleSetProperties,
        VirtualMachineScaleSetVM,
        VirtualMachineScaleSetVMProfile,
    )
    from azure.mgmt.network.models import NetworkInterface

MOST: Final = 1000
"""Instances of a scale set. Source: Azure's limits."""

MOST_IN_ONE_PLACE: Final = 100
"""The same with a single placement group."""

_KINDS: Final = {
    "AllocationFailed": ProblemKind.CAPACITY,
    "OverconstrainedAllocationRequest": ProblemKind.CAPACITY,
    "OverconstrainedZonalAllocationRequest": ProblemKind.CAPACITY,
    "SkuNotAvailable": ProblemKind.CAPACITY,
    "ZonalAllocationFailed": ProblemKind.CAPACITY,
    "PublicIPCountLimitReached": ProblemKind.QUOTA,
    "QuotaExceeded": ProblemKind.QUOTA,
    "GalleryImageNotFound": ProblemKind.IMAGE,
    "ImageNotFound": ProblemKind.IMAGE,
    "OSProvisioningClientError": ProblemKind.IMAGE,
    "OSProvisioningInternalError": ProblemKind.IMAGE,
    "OSProvisioningTimedOut": ProblemKind.IMAGE,
    "PlatformImageNotFound": ProblemKind.IMAGE,
    "AuthorizationFailed": ProblemKind.AUTHORISATION,
    "LinkedAuthorizationFailed": ProblemKind.AUTHORISATION,
    "RequestDisallowedByPolicy": ProblemKind.AUTHORISATION,
}
"""Azure's codes. Source: its pages on common deployment errors and on failed allocations."""

_MEANINGS: Final = {
    ProblemKind.CAPACITY: "it has no room for this size here now; allow another size or zone, or wait",
    ProblemKind.QUOTA: "a limit of the subscription is reached; have the quota raised",
    ProblemKind.IMAGE: "the image is missing, or does not boot as Azure expects; see to the scale set's image",
    ProblemKind.AUTHORISATION: "it is not permitted; grant what the plugin's documentation lists",
    ProblemKind.OTHER: "see the scale set's activity log",
}

_ERRORS: Final[dict[ProblemKind, type[ProviderError]]] = {
    ProblemKind.CAPACITY: CapacityUnavailable,
    ProblemKind.QUOTA: QuotaExceeded,
    ProblemKind.AUTHORISATION: AuthFailed,
}

AUTOSCALED: Final = "autoscale settings remove instances with their jobs; disable or delete those settings"
AUTOSCALE_SETTINGS: Final = "/providers/Microsoft.Insights/autoscaleSettings?api-version=2022-10-01"

_FAILED: Final = "ProvisioningState/failed"
_POWER: Final = "PowerState/"
_SETTLED: Final = {"succeeded", "updating", "failed"}
"""States of provisioning in which the power state tells how an instance is."""

_ARM_SIZE: Final = re.compile(r"(?:Standard|Basic)_[A-Z]+\d+(?:-\d+)?[a-z]*p[a-z]*(?:_|$)")
"""Sizes with a processor of ARM's have a p among the letters behind the number of cores. Source: Azure's naming."""


# --- how often Azure may be asked ------------------------------------------------------------------------


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


# --- requests that come to nothing -----------------------------------------------------------------------


class Missing(ProviderError):
    """Azure knows no such thing."""


class OutOfDate(ProviderError):
    """What was known of the group when the request was made is not so any more: look again."""


@frozen(kw_only=True)
class Refusal:
    """Why a request came to nothing, as far as the SDK tells."""

    status: int | None = None
    """HTTP status; None: no answer came."""

    code: str = ""
    target: str = ""
    over_quota: bool = False
    """Whether the message speaks of a quota: one code stands for that and for much else."""

    retry_after: float | None = None
    without_token: bool = False
    """Whether nobody gave us a token to ask with."""

    sent: bool = True
    """Whether the request may have reached Azure."""


def failure_of(what: str, refusal: Refusal, *, changing: bool) -> ProviderError:  # noqa: PLR0911  (a table)
    """Choose the error for a request that came to nothing, *what* in the infinitive."""
    said = " ".join(filter(None, (str(refusal.status or ""), refusal.code))) or "nothing"
    kind = ProblemKind.QUOTA if refusal.over_quota else kind_of(refusal.code)
    match refusal.status:
        case _ if refusal.without_token:
            return AuthFailed("no credentials for Azure were found; log in, or give this machine an identity")
        case 401 | 403:
            return AuthFailed(f"Azure does not let us {what} ({said}); see to the credentials and their role")
        case 404 if refusal.target != "instanceIds":
            return Missing(f"Azure did not {what}: there is none ({said})")
        case 412:
            return OutOfDate(f"Azure did not {what}: somebody else changed the scale set meanwhile")
        case 400 | 404 if refusal.target == "instanceIds":
            return OutOfDate(f"Azure did not {what}: an instance was gone meanwhile")
        case 429:
            return RateLimited(f"Azure was asked too often to {what}", retry_after=refusal.retry_after)
        case None if refusal.sent:
            return OutcomeUnknown(f"Azure was asked to {what} and gave no answer that makes sense")
        case int() as status if changing and (status < 400 or status >= 500):  # noqa: PLR2004
            return OutcomeUnknown(f"Azure was asked to {what}, and failed ({said})")
    meaning = _MEANINGS[kind] if kind is not ProblemKind.OTHER else "it is tried again later"
    return _ERRORS.get(kind, ProviderError)(f"Azure did not {what} ({said}); {meaning}")


def kind_of(code: str) -> ProblemKind:
    """What a code is about."""
    return _KINDS.get(code, ProblemKind.OTHER)


# --- the scale set ---------------------------------------------------------------------------------------


@frozen(kw_only=True)
class ScaleSet:
    """What matters of a scale set."""

    id: str
    etag: str | None
    uniform: bool
    capacity: int
    failed: bool
    """Whether Azure has given up on the last change."""

    size: str
    tier: str | None
    max_size: int
    os: str
    arch: str
    protocol: str
    user: str | None
    spot: bool
    evicts_by_deallocating: bool
    """If so, an evicted instance cannot be told from one that was suspended."""

    harm: Sequence[str] = ()
    """What of its set-up breaks jobs, and what to do, each in a few words."""

    advice: Sequence[str] = ()


def scale_set_of(found: "VirtualMachineScaleSet") -> ScaleSet:
    """Read a scale set.

    Raises:
        GroupRefused: It has no profile by which Azure could make instances.
        ValueError: It makes no sense.
    """
    properties, sku = found.properties, found.sku
    if found.id is None or properties is None or sku is None or sku.capacity is None or sku.name is None:
        raise ValueError("a scale set without all of its parts")
    if (profile := properties.virtual_machine_profile) is None:
        raise GroupRefused(f"scale set {found.name} has no virtual machine profile; make one that has")
    uniform = properties.orchestration_mode != "Flexible"
    windows = _is_windows(profile)
    spot = profile.priority == "Spot"
    return ScaleSet(
        id=found.id,
        etag=found.etag,
        uniform=uniform,
        capacity=sku.capacity,
        failed=properties.provisioning_state == "Failed",
        size=sku.name,
        tier=sku.tier,
        max_size=MOST_IN_ONE_PLACE if uniform and properties.single_placement_group else MOST,
        os="windows" if windows else "linux",
        arch=arch_of(sku.name),
        protocol=_winrm(profile) if windows else "ssh",
        user=profile.os_profile.admin_username if profile.os_profile else None,
        spot=spot,
        evicts_by_deallocating=spot and profile.eviction_policy != "Delete",
        harm=tuple(_harm(properties, uniform=uniform)),
        advice=tuple(_advice(properties)),
    )


def _is_windows(profile: "VirtualMachineScaleSetVMProfile") -> bool:
    disk = profile.storage_profile.os_disk if profile.storage_profile else None
    configured = profile.os_profile is not None and profile.os_profile.windows_configuration is not None
    return configured or (disk is not None and disk.os_type == "Windows")


def _winrm(profile: "VirtualMachineScaleSetVMProfile") -> str:
    """Prefer https; plain http only where Azure was told to set up nothing else."""
    windows = profile.os_profile.windows_configuration if profile.os_profile else None
    listeners = windows.win_rm.listeners if windows and windows.win_rm else None
    protocols = {str(listener.protocol).lower() for listener in listeners or ()}
    return "winrm" if protocols == {"http"} else "winrm+https"


def arch_of(size: str) -> str:
    """Which processor a size has, by its name."""
    return "arm64" if _ARM_SIZE.match(size) else "amd64"


def _harm(properties: "VirtualMachineScaleSetProperties", *, uniform: bool) -> Iterator[str]:
    """What makes Azure remove instances by itself."""
    if uniform and properties.overprovision is not False:
        yield "it overprovisions, and takes back instances that may have jobs already; set overprovision to false"
    if properties.automatic_repairs_policy and properties.automatic_repairs_policy.enabled:
        yield "it repairs instances by itself, with their jobs; set automaticRepairsPolicy.enabled to false"
    resiliency = properties.resiliency_policy
    if resiliency and (zones := resiliency.automatic_zone_rebalancing_policy) and zones.enabled:
        yield "it moves instances between zones; set automaticZoneRebalancingPolicy.enabled to false"


def _advice(properties: "VirtualMachineScaleSetProperties") -> Iterator[str]:
    """What may be meant so, and is better not."""
    if (upgrades := properties.upgrade_policy) and upgrades.mode in {"Automatic", "Rolling"}:
        yield f"its upgrade policy {upgrades.mode} restarts instances whenever the model changes; make it Manual"
    if properties.spot_restore_policy and properties.spot_restore_policy.enabled:
        yield "it restores evicted instances, only for them to be removed again; set spotRestorePolicy.enabled to false"


def is_autoscaled(answer: Any, scale_set: str) -> bool:  # noqa: ANN401  (the SDK for this would be one more)
    """Tell from a list of autoscale settings whether an enabled one is about the scale set."""
    about = [each["properties"] for each in answer["value"]]
    targets = {str(each.get("targetResourceUri")).lower() for each in about if each.get("enabled")}
    return scale_set.lower() in targets


def capacity_for(capacity: int, live: int | None, wanted: int, max_size: int) -> tuple[int, int]:
    """What to set the capacity to, and how many of those wanted that gives room for.

    Args:
        capacity: What it is set to.
        live: How many instances there are, if the last change failed: Azure does not go on with what that left open,
            but would, beside what is wanted now, if the capacity were raised from where it stands. None: it did not.
        wanted: Instances to add.
        max_size: What a scale set can hold.
    """
    base = capacity if live is None else min(capacity, live)
    accepted = max(0, min(wanted, max_size - base))
    return base + accepted, accepted


def live(machines: "Mapping[str, Machine]") -> int:
    """How many instances there are that are not being deleted."""
    return sum(machine.observed.state is not State.DELETING for machine in machines.values())


def share(accepted: int, wishes: Iterable[int]) -> list[int]:
    """Divide what was accepted among several who asked, in their order."""
    shares = []
    for wish in wishes:
        shares.append(min(wish, accepted))
        accepted -= shares[-1]
    return shares


# --- instances -------------------------------------------------------------------------------------------


@frozen(kw_only=True)
class Machine:
    """An instance, as the group sees it."""

    id: str
    """What Azure never uses twice; a uniform set's instance ids may come back."""

    name: str
    """What Azure wants to be told: the instance id in a uniform set, the name of the machine in a flexible one."""

    observed: Observed
    problems: Sequence[Problem]
    nic: str | None
    """Id of its primary network interface."""


def machine_of(found: "VirtualMachine | VirtualMachineScaleSetVM", scale_set: ScaleSet) -> Machine:
    """Read an instance, with its instance view.

    Raises:
        ValueError: It makes no sense.
    """
    properties = found.properties
    name = getattr(found, "instance_id", None) or found.name
    if properties is None or name is None:
        raise ValueError("an instance without all of its parts")
    statuses = (properties.instance_view.statuses if properties.instance_view else None) or ()
    power = next((code.removeprefix(_POWER) for code in _codes(statuses) if code.startswith(_POWER)), None)
    size = properties.hardware_profile.vm_size if properties.hardware_profile else None
    place = "-".join([found.location or "", *(found.zones or ())])
    offering = "/".join([place, str(size), *(["spot"] if scale_set.spot else [])])
    return Machine(
        id=properties.vm_id or name,
        name=name,
        observed=Observed(
            state=state_of(
                properties.provisioning_state, power, evicts_by_deallocating=scale_set.evicts_by_deallocating
            ),
            created_at=seconds(properties.time_created),
            offering=offering,
        ),
        problems=problems_of(statuses, offering),
        nic=_nic_of(found),
    )


def _codes(statuses: "Iterable[InstanceViewStatus]") -> Iterator[str]:
    return (status.code for status in statuses if status.code)


def _nic_of(found: "VirtualMachine | VirtualMachineScaleSetVM") -> str | None:
    profile = found.properties.network_profile if found.properties else None
    nics = (profile.network_interfaces if profile else None) or []
    first = next((nic for nic in nics if nic.properties and nic.properties.primary), nics[0] if nics else None)
    return first.id if first else None


def state_of(provisioning: str | None, power: str | None, *, evicts_by_deallocating: bool) -> State:  # noqa: PLR0911  (a table)
    """What provisioning and power state mean together; what is unheard of is not used for the time being."""
    match (provisioning or "").lower(), (power or "").lower():
        case "deleting", _:
            return State.DELETING
        case "failed", "":
            return State.FAILED
        case settled, _ if settled not in _SETTLED:
            return State.CREATING
        case _, "running":  # though the last change failed: an extension, or a start that came too late, breaks no job
            return State.RUNNING
        case _, "starting":
            return State.RESUMING
        case _, "stopped":  # it was shut down from within, is paid for and does nothing
            return State.FAILED
        case _, "stopping" | "deallocating" | "deallocated" if evicts_by_deallocating:
            return State.FAILED
        case _, "stopping" | "deallocating":
            return State.SUSPENDING
        case _, "deallocated":
            return State.SUSPENDED
    return State.CREATING


def problems_of(statuses: "Iterable[InstanceViewStatus] | None", offering: str | None = None) -> list[Problem]:
    """Why what was asked for does not come, from the statuses of an instance or of the scale set."""
    problems = []
    for status in statuses or ():
        if status.code and status.code.lower().startswith(_FAILED.lower()):
            code = status.code[len(_FAILED) :].strip("/") or "failed"
            kind = kind_of(code)
            if kind is ProblemKind.OTHER and code == "OperationNotAllowed" and speaks_of_quota(status.message):
                kind = ProblemKind.QUOTA
            message = f"Azure says {code}: {_MEANINGS[kind]}"
            problems.append(Problem(kind=kind, message=message, since=seconds(status.time), offering=offering))
    return problems


def speaks_of_quota(message: str | None) -> bool:
    """Whether this is the kind of ``OperationNotAllowed`` that means a quota; its code does not tell."""
    return "quota" in (message or "").lower()


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that Azure wants to be left alone, if it says so in a way that makes sense."""
    try:
        advice = float(headers.get("Retry-After", ""))
    except ValueError:
        return None
    return advice if 0 < advice < math.inf else None


def seconds(time: datetime | None) -> float | None:
    """Seconds since the epoch."""
    return time.timestamp() if time is not None else None


# --- addresses -------------------------------------------------------------------------------------------


def names_in(resource: str) -> dict[str, str]:
    """The names in a resource's id, by their kind in lower case: ``{"networkinterfaces": "nic-1", …}``."""
    parts = resource.strip("/").split("/")
    return {kind.lower(): name for kind, name in zip(parts[::2], parts[1::2], strict=False)}


def addresses_of(nic: "NetworkInterface") -> tuple[str | None, str | None]:
    """The primary internal address, and the id of the external one that goes with it."""
    configurations = [each.properties for each in (nic.properties and nic.properties.ip_configurations) or ()]
    found = [each for each in configurations if each]
    if not found:
        return None, None
    first = next((each for each in found if each.primary), found[0])
    return first.private_ip_address, first.public_ip_address.id if first.public_ip_address else None
