"""Pure: what AWS answers, as states, problems, errors, advice and connection details.

Two services describe an instance: Auto Scaling knows what it intends with it, EC2 knows what it is. The one may be
minutes behind the other, so a state is read from both.
"""

import base64
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import Any

from attrs import frozen

from fleeting import (
    AuthFailed,
    CapacityUnavailable,
    ConnectInfo,
    ConnectorConfig,
    InstanceNotFound,
    LoginRejected,
    Observed,
    OutcomeUnknown,
    Problem,
    ProblemKind,
    ProviderError,
    QuotaExceeded,
    RateLimited,
    State,
)
from fleeting.plugins import Mark

Json = Mapping[str, Any]

OWNER_TAG = "fleeting:owner:"
"""What the key of a manager's mark on the group begins with; its owner follows, its value is when it expires."""

STALE = 3600.0
"""Seconds after which a failed launch says nothing any more of why instances do not come."""

SERVER_ERRORS = 500
LONGEST_MESSAGE = 300
ALL = 100
"""Per cent."""

# --- instances -------------------------------------------------------------------------------------------

_STATES: Mapping[State, str] = {
    State.CREATING: "Pending/None Pending/pending Pending/running InService/pending",
    State.RUNNING: "InService/running",
    State.FAILED: """Pending/stopping Pending/stopped InService/stopping InService/stopped Quarantined/*
        ReplacingRootVolume/* RootVolumeReplaced/* Terminating:Retained/*""",
    State.SUSPENDING: "EnteringStandby/* Standby/running Standby/stopping",
    State.SUSPENDED: "Standby/stopped Warmed/*",
    State.RESUMING: "Standby/pending",
    State.DELETING: "*/shutting-down Detaching/* Terminating/*",
    State.DELETED: "*/terminated Detached/* Terminated/*",
}
"""What Auto Scaling's word and EC2's mean together. What is retained stays until it is terminated once more; of what
loses its root volume, the files are gone; what stops in service was stopped by somebody."""

_STATE_OF = {words: state for state, table in _STATES.items() for words in table.split()}
_LIVING = frozenset({State.RUNNING, State.SUSPENDING, State.SUSPENDED, State.RESUMING})
_ASLEEP = frozenset({State.CREATING, State.SUSPENDING, State.SUSPENDED})
"""What an instance that is being woken seems to be, if one does not know that."""

_CHANGES: Mapping[tuple[State, str, str | None], str] = {
    (State.SUSPENDED, "InService", "running"): "enter_standby",
    (State.SUSPENDED, "Standby", "running"): "stop_instances",
    (State.RUNNING, "Standby", "stopped"): "start_instances",
    (State.RUNNING, "Standby", "running"): "exit_standby",
}
"""What to ask for next, by what an instance is to become. One that stops while it is in service is replaced, so it has
to be in standby before; and it has to run before it returns to service."""


@frozen(kw_only=True)
class Member:
    """An instance of the group, as both services describe it."""

    id: str
    lifecycle: str
    """Auto Scaling's word for its state."""

    ec2: str | None
    """EC2's; None: it does not know the instance."""

    healthy: bool
    offering: str
    created_at: float | None

    @classmethod
    def of(cls, member: Json, seen: Json) -> "Member":
        """Put together what Auto Scaling and EC2 report; nothing, if EC2 does not know it."""
        parts = (member.get("AvailabilityZone"), member.get("InstanceType"), seen.get("InstanceLifecycle"))
        return cls(
            id=member["InstanceId"],
            lifecycle=member["LifecycleState"],
            ec2=seen["State"]["Name"] if seen else None,
            healthy=member.get("HealthStatus", "Healthy").lower() == "healthy",
            offering="/".join(part for part in parts if part),
            created_at=seen["LaunchTime"].timestamp() if seen else None,
        )

    @property
    def state(self) -> State | None:
        """What it is; None: we cannot read that."""
        return state_of(self.lifecycle, self.ec2)

    @property
    def is_leaving(self) -> bool:
        """Whether Auto Scaling is ending it."""
        return self.lifecycle.startswith(("Terminat", "Detach")) and not self.lifecycle.endswith(":Retained")

    @property
    def is_standing_by(self) -> bool:
        """Whether it is out of service for a while, and not counted by the group's desired capacity."""
        return self.lifecycle in {"EnteringStandby", "Standby"}

    @property
    def is_counted(self) -> bool:
        """Whether the group's desired capacity counts it."""
        return not (self.is_leaving or self.is_standing_by or self.lifecycle.startswith("Warmed"))

    @property
    def can_sleep(self) -> bool:
        """Whether it lives, and is of a kind that can be stopped; a group's spot instances cannot."""
        return self.state in _LIVING and not self.offering.endswith("/spot")

    @property
    def words(self) -> str:
        """How it is, in words."""
        known = "" if self.state else ", which this release cannot read"
        health = "healthy" if self.healthy else "unhealthy"
        return f"{self.id} is {health} and {self.lifecycle} at Auto Scaling, {self.ec2} at EC2{known}"

    def change_towards(self, wanted: State) -> str | None:
        """What to ask for next; None: nothing, or nothing yet."""
        return _CHANGES.get((wanted, self.lifecycle, self.ec2))

    def observed(self, wanted: State | None) -> Observed:
        """Show it; one in a state that we cannot read as suspending: it gets no work, and loses none."""
        state = state_of(self.lifecycle, self.ec2, wanted) or State.SUSPENDING
        return Observed(state=state, created_at=self.created_at, offering=self.offering)


def state_of(lifecycle: str, ec2: str | None, wanted: State | None = None) -> State | None:
    """What both services' words mean together, while an instance is being brought to *wanted*.

    Returns:
        None: one of them is a word that we do not know.
    """
    plain = lifecycle.partition(":")[0]
    words = (f"*/{ec2}", f"{lifecycle}/*", f"{plain}/*", f"{plain}/{ec2}")
    state = next((_STATE_OF[each] for each in words if each in _STATE_OF), None)
    return State.RESUMING if wanted is State.RUNNING and state in _ASLEEP else state


def unread(members: Iterable[Member], now: float) -> list[Problem]:
    """Report states that we cannot read."""
    strange = [each for each in members if each.ec2 and each.state is None]
    return [Problem(kind=ProblemKind.OTHER, message=each.words, since=now, offering=each.offering) for each in strange]


# --- errors ----------------------------------------------------------------------------------------------


class NotOffered(ProviderError):
    """AWS does not have this operation here."""


class NotSupported(NotOffered):
    """AWS has this operation, but not for this; it may have been carried out all the same."""


class NotPermitted(AuthFailed):
    """The credentials are right, but may not do this."""


class Launching(OutcomeUnknown):
    """AWS is working on a request, and answers with the outcome if that is repeated as it was."""


class NoSuchGroup(ProviderError):
    """Auto Scaling does not know the group (any more)."""


_CLASSES: Mapping[type[ProviderError], str] = {
    AuthFailed: """AuthFailure ExpiredToken ExpiredTokenException InvalidClientTokenId OptInRequired RequestExpired
        SignatureDoesNotMatch UnrecognizedClientException""",
    NotPermitted: "AccessDenied AccessDeniedException UnauthorizedOperation",
    CapacityUnavailable: """InsufficientCapacity InsufficientHostCapacity InsufficientInstanceCapacity Unsupported
        InsufficientAddressCapacity InsufficientFreeAddressesInSubnet InsufficientReservedInstanceCapacity
        InsufficientVolumeCapacity SpotMaxPriceTooLow UnfulfillableCapacity""",
    QuotaExceeded: """AddressLimitExceeded InstanceLimitExceeded LimitExceeded MaxSpotInstanceCountExceeded
        NetworkInterfaceLimitExceeded VcpuLimitExceeded VolumeLimitExceeded""",
    RateLimited: """RequestLimitExceeded RequestThrottled RequestThrottledException SlowDown ThrottledException
        Throttling ThrottlingException TooManyRequestsException
        ResourceContention ResourceContentionFault ScalingActivityInProgress ScalingActivityInProgressFault""",
    Launching: "IdempotentCallInProgress IdempotentCallInProgressFault",
    OutcomeUnknown: "RequestTimeout",
    NotOffered: "InvalidAction UnknownOperationException",
    NotSupported: "UnsupportedOperation",
    ProviderError: "ServiceLinkedRoleFailure",
}
"""What the caller should do about a code. What is here has been refused, though AWS sends some with HTTP status 500."""

_CLASS_OF = {code: kind for kind, codes in _CLASSES.items() for code in codes.split()}
_UNREACHED = frozenset({"ConnectionError", "HTTPClientError"})
"""Of the SDK's classes, those above all that say that no whole answer came."""

_NO_CREDENTIALS = re.compile("Credential|NoAuthToken|SSO")


def is_refused(response: Json) -> bool:
    """Whether an answer says for certain that nothing was done."""
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return status < SERVER_ERRORS or response.get("Error", {}).get("Code") in _CLASS_OF


def failure_of(error: Exception, operation: str, *, changing: bool, lost: bool = False) -> Exception:
    """Translate what the SDK raises, distinguished by its classes' names, so that it need not be imported for this.

    Args:
        error: What it raised.
        operation: What it was asked for.
        changing: Whether that changes something.
        lost: Whether the SDK has sent the request before, and nobody knows what came of that.

    Returns:
        The error itself, if it is none of the SDK's.
    """
    names = {kind.__name__ for kind in type(error).__mro__}
    if "ClientError" in names:
        response: Json = getattr(error, "response", {})
        if not changing or is_refused(response):
            refused = refusal(response.get("Error", {}), operation)
            in_doubt = changing and lost and not isinstance(refused, InstanceNotFound | OutcomeUnknown)
            return OutcomeUnknown(f"{refused}; an earlier attempt may have been carried out") if in_doubt else refused
    elif _NO_CREDENTIALS.search(" ".join(names)):
        return AuthFailed(f"{operation} needs AWS credentials: {error}")
    elif not names & {"BotoCoreError", "ResponseParserError"}:
        return error
    kind = OutcomeUnknown if changing else ProviderError
    if names & _UNREACHED:
        return kind(f"AWS did not answer {operation} ({type(error).__name__}); check network, proxy and region")
    return kind(f"AWS gave an invalid answer to {operation} ({type(error).__name__})")


def refusal(answer: Json, asked: str) -> ProviderError:
    """Make the error for something that AWS refused, by the code that it gives; a launch describes itself as others do.

    Of the message, the first line: what follows in some is the request, with its session token.
    """
    code = answer.get("Code") or answer.get("ErrorCode") or "nothing"
    message = (answer.get("Message") or answer.get("ErrorMessage") or "").partition("\n")[0]
    if code == "InvalidInstanceID.NotFound" or "No managed instance found" in message:
        return InstanceNotFound(_find(_INSTANCE, message))
    where = "/".join(answer[key] for key in ("AvailabilityZone", "InstanceType") if answer.get(key))
    words = f"AWS says {code} to {asked}" + (f" in {where}" if where else "")
    return _CLASS_OF.get(code, ProviderError)(words + (f": {message[:LONGEST_MESSAGE]}" if message else ""))


# --- problems --------------------------------------------------------------------------------------------

_WORDS: Sequence[tuple[ProblemKind, re.Pattern[str]]] = (
    (ProblemKind.AUTHORISATION, re.compile(r"not authori[sz]ed|Unauthori[sz]ed|access ?denied|KMS", re.IGNORECASE)),
    (ProblemKind.IMAGE, re.compile(r"image id|\bami-|AMIID|invalid AMI|snapshot", re.IGNORECASE)),
    (ProblemKind.QUOTA, re.compile(r"\blimit\b|LimitExceeded|CountExceeded|quota", re.IGNORECASE)),
    (
        ProblemKind.CAPACITY,
        re.compile(r"capacity|free addresses|not supported in your requested|SpotMaxPrice", re.IGNORECASE),
    ),
)
"""What Auto Scaling says in its activities, which have no codes; the first that fits."""

_INSTANCE = re.compile(r"\bi-[0-9a-f]+")
_ZONE = re.compile(r"\b[a-z]{2}(?:-[a-z]+)+-\d[a-z]\b")
_TYPE = re.compile(r"\b[a-z][a-z0-9-]*\d[a-z0-9-]*\.(?:\d*x?large|metal[a-z0-9-]*|nano|micro|small|medium)\b")


def problems_of(activities: Iterable[Json], now: float) -> list[Problem]:
    """Why instances do not come.

    Args:
        activities: Those of the group, newest first. A launch that went well settles what was before it in its zone.
        now: Seconds since the epoch.

    Returns:
        One for each kind and offering, since when it has been met without a success in between.
    """
    met: dict[tuple[ProblemKind, str], list[tuple[float, str]]] = {}
    settled: set[str] = set()
    for activity in activities:
        message, started = activity.get("StatusMessage", ""), activity["StartTime"].timestamp()
        zone = _find(_ZONE, activity.get("Details", "")) or _find(_ZONE, message)
        if not activity.get("Description", "").startswith("Launching") or zone in settled:
            continue
        if activity["StatusCode"] == "Successful":
            settled.add(zone)
        elif activity["StatusCode"] in {"Failed", "Cancelled"} and message:
            kind = next((kind for kind, words in _WORDS if words.search(message)), ProblemKind.OTHER)
            where = "/".join(part for part in (zone, _find(_TYPE, message)) if part)
            met.setdefault((kind, where), []).append((started, message))
    return [
        Problem(kind=kind, message=failures[0][1], since=failures[-1][0], offering=where or None)
        for (kind, where), failures in met.items()
        if failures[0][0] > now - STALE
    ]


def _find(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(text)
    return found[0] if found else ""


# --- the group itself ------------------------------------------------------------------------------------


def harm_in(group: Json) -> Iterator[str]:
    """Say what must be changed about a group before it is managed, one clause each."""
    suspended = _suspended_in(group)
    if len(group["AvailabilityZones"]) > 1 and "AZRebalance" not in suspended:
        yield (
            "AZRebalance launches instances that nobody has asked for, and ends others whatever they do;"
            " suspend that process, or leave the group one Availability Zone"
        )
    overrides = group.get("MixedInstancesPolicy", {}).get("LaunchTemplate", {}).get("Overrides", [])
    if any(each.get("WeightedCapacity", "1") != "1" for each in overrides):
        yield "its capacity counts weights, not instances; remove the weights from its instance types"
    if (unit := group.get("DesiredCapacityType", "units")) != "units":
        yield f"its capacity counts {unit}, not instances; set its desired capacity type to units"
    if group.get("WarmPoolConfiguration", {}).get("InstanceReusePolicy", {}).get("ReuseOnScaleIn"):
        yield "its warm pool reuses instances that have run jobs; set ReuseOnScaleIn to false"
    if operator := group.get("Operator", {}).get("Principal"):
        yield f"only {operator} may change it; name another group"
    if status := group.get("Status"):
        yield f"its status is {status}; name another group"


def advice_on(group: Json, policies: Sequence[Json]) -> Iterator[str]:
    """Say what should be changed about a group, one sentence each."""
    smallest, cooldown, longest = group["MinSize"], group.get("DefaultCooldown"), group.get("MaxInstanceLifetime")
    if names := ", ".join(each["PolicyName"] for each in policies if each.get("Enabled", True)):
        yield f"it has scaling policies ({names}), which also change its size; remove them"
    if not group.get("NewInstancesProtectedFromScaleIn"):
        yield "its instances are not protected from scale-in, so AWS may end busy ones; protect new instances"
    if smallest:
        yield f"its minimum size is {smallest}, below which nothing is ever removed; set it to 0"
    if cooldown:
        yield f"its default cooldown is {cooldown} s, during which other changes must wait; set it to 0"
    if longest:
        yield f"its maximum instance lifetime is {longest} s, after which even busy ones are replaced; remove it"
    if group.get("CapacityRebalance"):
        yield "it replaces spot instances at risk, together with their jobs; switch Capacity Rebalancing off"
    for process in sorted({"Launch", "Terminate"} & _suspended_in(group)):
        yield f"its process {process} is suspended, so it does not follow its desired capacity; resume the process"
    if why := not_launching(group):
        yield f"{why}; until then its desired capacity is raised, and AWS does not report the outcome at once"


def not_launching(group: Json) -> str | None:
    """Say why LaunchInstances does not serve a group, as far as its description shows; None: it does.

    Source: AWS's guide, "Launch instances synchronously", its notes and limitations.
    """
    policy = group.get("MixedInstancesPolicy", {}).get("InstancesDistribution", {})
    base, spot = policy.get("OnDemandBaseCapacity", 0), ALL - policy.get("OnDemandPercentageAboveBaseCapacity", ALL)
    if "LaunchConfigurationName" in group:
        return "it has a launch configuration, which LaunchInstances does not support; give it a launch template"
    if "WarmPoolConfiguration" in group:
        return "it has a warm pool, which LaunchInstances does not support; delete the pool"
    if spot and (base or spot < ALL):
        return "its policy mixes On-Demand and Spot, which LaunchInstances does not support; choose one of them"
    return None


def _suspended_in(group: Json) -> set[str]:
    return {each["ProcessName"] for each in group.get("SuspendedProcesses", [])}


def members_of(group: Json) -> list[Member]:
    """The instances of a group, as far as Auto Scaling knows them."""
    return [Member.of(each, {}) for each in group["Instances"]]


def room_in(group: Json) -> int:
    """How many more there may be; what stands by takes room, for it comes back."""
    return int(group["MaxSize"] - group["DesiredCapacity"]) - sum(each.is_standing_by for each in members_of(group))


def spare_in(group: Json) -> int:
    """By how much the desired capacity may be lowered."""
    return max(0, int(group["DesiredCapacity"] - group["MinSize"]))


def open_in(group: Json) -> int:
    """How many requests can be taken back; none where to lower the desired capacity may cost an instance."""
    return min(missing_in(group), spare_in(group)) if group.get("NewInstancesProtectedFromScaleIn") else 0


def missing_in(group: Json) -> int:
    """How many instances are still to come, for all that Auto Scaling knows; below 0: more than it wants."""
    return int(group["DesiredCapacity"]) - sum(each.is_counted for each in members_of(group))


def marks_on(group: Json) -> list[Mark]:
    """The marks on a group, for those who clean up behind dead managers: what cannot be read proves nobody's death."""
    marks = {tag["Key"]: tag["Value"] for tag in group.get("Tags", []) if tag["Key"].startswith(OWNER_TAG)}
    return [
        Mark(owner=key.removeprefix(OWNER_TAG), until=float(at) if at.isdecimal() else inf) for key, at in marks.items()
    ]


# --- connecting ------------------------------------------------------------------------------------------

_ARCHITECTURES = {"x86_64": "amd64", "x86_64_mac": "amd64", "arm64_mac": "arm64", "i386": "386"}


def info_of(seen: Json, connector: ConnectorConfig) -> ConnectInfo:
    """How to connect to an instance, as far as EC2's description and the settings say."""
    architecture: str = seen.get("Architecture", "x86_64")
    windows = seen.get("Platform", "").lower() == "windows"
    return ConnectInfo(
        id=seen["InstanceId"],
        os="windows" if windows else "darwin" if architecture.endswith("_mac") else "linux",
        arch=_ARCHITECTURES.get(architecture, architecture),
        protocol=connector.protocol or (_winrm(connector) if windows else "ssh"),
        internal_addr=seen.get("PrivateIpAddress") or seen.get("Ipv6Address"),
        external_addr=seen.get("PublicIpAddress") or None,
        user=connector.username or ("Administrator" if windows else "ec2-user"),
    )


def _winrm(connector: ConnectorConfig) -> str:
    """Choose what Amazon's images listen for, as GitLab's plugin does; https where the settings know a certificate."""
    return "winrm+https" if connector.ca_file or connector.certificate else "winrm"


def decrypted(password_data: str, key: str, instance: str) -> str:
    """Decrypt a Windows password with the private key of the instance's key pair.

    Raises:
        LoginRejected: The key is another one.
    """
    from cryptography.hazmat.primitives.asymmetric import padding
    from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_ssh_private_key

    private: Any = (load_ssh_private_key if "OPENSSH" in key else load_pem_private_key)(key.encode(), None)
    try:
        return str(private.decrypt(base64.b64decode(password_data), padding.PKCS1v15()), "ascii")
    except (AttributeError, ValueError):  # what is none of RSA decrypts nothing
        raise LoginRejected(f"the key in key_path does not belong to {instance}'s key pair; correct it") from None
