"""Pure: what AWS answers, as states, problems, errors, advice and connection details.

Two services tell of an instance: Auto Scaling knows what it intends with it, EC2 knows what it is. The one may be
minutes behind the other, so a state is read from both.
"""

import base64
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from attrs import frozen

from fleeting import (
    AuthFailed,
    CapacityUnavailable,
    ConnectInfo,
    Observed,
    OutcomeUnknown,
    Problem,
    ProblemKind,
    ProviderError,
    QuotaExceeded,
    RateLimited,
    State,
)

Json = Mapping[str, Any]
Change = Literal["enter_standby", "stop_instances", "start_instances", "exit_standby"]

OWNER_TAG = "fleeting:owner:"
"""What the key of a manager's mark on the group begins with; its owner follows, its value is when it expires."""

STALE = 3600.0
"""Seconds after which a failed launch says nothing any more of why instances do not come."""

SERVER_ERRORS = 500
LONGEST_MESSAGE = 300

# --- instances -------------------------------------------------------------------------------------------

_OVER = {"shutting-down": State.DELETING, "terminated": State.DELETED}
_WHATEVER_EC2_SAYS = {
    "Detached": State.DELETED,
    "Detaching": State.DELETING,
    "Quarantined": State.FAILED,
    "ReplacingRootVolume": State.FAILED,  # what was on its disk is gone
    "RootVolumeReplaced": State.FAILED,
    "Terminated": State.DELETED,
    "Terminating": State.DELETING,
}
_STOPPED_BY_OTHERS: Mapping[str | None, State] = {"stopping": State.FAILED, "stopped": State.FAILED}
_STATES: Mapping[str, Mapping[str | None, State]] = {
    "Pending": {**dict.fromkeys((None, "pending", "running"), State.CREATING), **_STOPPED_BY_OTHERS},
    "InService": {"pending": State.CREATING, "running": State.RUNNING, **_STOPPED_BY_OTHERS},
    "EnteringStandby": dict.fromkeys(("running", "stopping", "stopped"), State.SUSPENDING),
    "Standby": {
        "pending": State.RESUMING,
        "running": State.SUSPENDING,
        "stopping": State.SUSPENDING,
        "stopped": State.SUSPENDED,
    },
    "Warmed": dict.fromkeys(("pending", "running", "stopping", "stopped"), State.SUSPENDED),
}
_LIVING = frozenset({State.RUNNING, State.SUSPENDING, State.SUSPENDED, State.RESUMING})
_ASLEEP = frozenset({State.CREATING, State.SUSPENDING, State.SUSPENDED})
"""What an instance that is being woken seems to be, if one does not know that."""

_CHANGES: Mapping[tuple[State, str, str | None], Change] = {
    (State.SUSPENDED, "InService", "running"): "enter_standby",
    (State.SUSPENDED, "Standby", "running"): "stop_instances",
    (State.RUNNING, "Standby", "stopped"): "start_instances",
    (State.RUNNING, "Standby", "running"): "exit_standby",
}
"""What to ask for next, by what an instance is to become. One that stops while it is in service is replaced, so it has
to be in standby before; and it has to run before it returns to service."""


@frozen(kw_only=True)
class Member:
    """An instance of the group, as both services tell."""

    id: str
    lifecycle: str
    """Auto Scaling's word for its state."""

    ec2: str | None
    """EC2's; None: it does not know the instance."""

    healthy: bool
    offering: str
    created_at: float | None

    @classmethod
    def of(cls, member: Json, seen: Json | None) -> "Member":
        """Put together what Auto Scaling and EC2 tell."""
        told = seen or {}
        parts = (member.get("AvailabilityZone"), member.get("InstanceType"), told.get("InstanceLifecycle"))
        return cls(
            id=member["InstanceId"],
            lifecycle=member["LifecycleState"],
            ec2=told["State"]["Name"] if seen else None,
            healthy=member.get("HealthStatus", "Healthy").lower() == "healthy",
            offering="/".join(part for part in parts if part),
            created_at=told["LaunchTime"].timestamp() if seen else None,
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
    def can_sleep(self) -> bool:
        """Whether it lives, and is of a kind that can be stopped; a group's spot instances cannot."""
        return self.state in _LIVING and not self.offering.endswith("/spot")

    @property
    def is_hidden(self) -> bool:
        """Whether EC2 should know it and does not: either it is gone, or this is a bad read."""
        return self.ec2 is None and not self.is_leaving and not self.lifecycle.startswith("Pending")

    def change_towards(self, wanted: State) -> Change | None:
        """Tell what to ask for next; None: nothing, or nothing yet."""
        return _CHANGES.get((wanted, self.lifecycle, self.ec2))

    def observed(self, wanted: State | None) -> Observed:
        """Show it; one in a state that we cannot read as suspending: it gets no work, and loses none."""
        state = state_of(self.lifecycle, self.ec2, wanted) or State.SUSPENDING
        return Observed(state=state, created_at=self.created_at, offering=self.offering)


def state_of(lifecycle: str, ec2: str | None, wanted: State | None = None) -> State | None:
    """Tell what both services' words mean together, while an instance is being brought to *wanted*.

    Returns:
        None: one of them is a word that we do not know.
    """
    plain = lifecycle.partition(":")[0]
    if ec2 in _OVER:
        return _OVER[ec2]
    if lifecycle.endswith(":Retained"):  # it stays until it is terminated once more
        return State.FAILED
    state = _WHATEVER_EC2_SAYS.get(plain) or _STATES.get(plain, {}).get(ec2)
    return State.RESUMING if wanted is State.RUNNING and state in _ASLEEP else state


# --- errors ----------------------------------------------------------------------------------------------


class NotOffered(ProviderError):
    """AWS does not have this operation here."""


class NoSuchGroup(ProviderError):
    """Auto Scaling does not know the group (any more)."""


_CLASSES: Mapping[type[ProviderError], str] = {
    AuthFailed: """AccessDenied AccessDeniedException AuthFailure Blocked ExpiredToken ExpiredTokenException
        IncompleteSignature InvalidClientTokenId MissingAuthenticationToken OptInRequired RequestExpired
        SignatureDoesNotMatch UnauthorizedOperation UnrecognizedClientException""",
    CapacityUnavailable: """InsufficientCapacity InsufficientHostCapacity InsufficientInstanceCapacity Unsupported
        InsufficientReservedInstanceCapacity InsufficientVolumeCapacity SpotMaxPriceTooLow UnfulfillableCapacity""",
    QuotaExceeded: """AddressLimitExceeded InstanceLimitExceeded InsufficientAddressCapacity LimitExceeded
        InsufficientFreeAddressesInSubnet MaxSpotInstanceCountExceeded NetworkInterfaceLimitExceeded
        VcpuLimitExceeded VolumeLimitExceeded""",
    RateLimited: """RequestLimitExceeded RequestThrottled RequestThrottledException SlowDown ThrottledException
        Throttling ThrottlingException TooManyRequestsException""",
    OutcomeUnknown: "IdempotentCallInProgress IdempotentCallInProgressFault RequestTimeout",
    NotOffered: "InvalidAction UnknownOperationException UnsupportedOperation",
}
_CLASS_OF = {code: kind for kind, codes in _CLASSES.items() for code in codes.split()}
_NO_CREDENTIALS = frozenset(
    ("CredentialRetrievalError", "NoAuthTokenError", "NoCredentialsError", "PartialCredentialsError", "SSOError")
)


def failure_of(error: Exception, operation: str, *, changing: bool) -> Exception | None:
    """Translate what the SDK raises, told apart by its classes' names, so that it need not be imported for this.

    Returns:
        None: it is none of the SDK's errors.
    """
    names = {kind.__name__ for kind in type(error).__mro__}
    if "ClientError" in names:
        response: Json = getattr(error, "response", {})
        told, status = response.get("Error", {}), response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        if changing and status >= SERVER_ERRORS and told.get("Code") not in _CLASS_OF:
            return OutcomeUnknown(f"AWS failed to answer {operation} (status {status})")
        return refusal(told, operation)
    if names & _NO_CREDENTIALS:
        return AuthFailed(f"AWS cannot be asked for {operation} without credentials: {error}")
    if names & {"BotoCoreError", "ResponseParserError"}:
        words = f"AWS gave no answer to {operation} that makes sense ({type(error).__name__})"
        return OutcomeUnknown(words) if changing else ProviderError(words)
    return None


def refusal(told: Json, asked: str) -> ProviderError:
    """Make the error for something that AWS refused, by the code that it gives; a launch tells of itself as others."""
    code = told.get("Code") or told.get("ErrorCode") or "nothing"
    message = told.get("Message") or told.get("ErrorMessage") or ""
    where = "/".join(told[key] for key in ("AvailabilityZone", "InstanceType") if told.get(key))
    words = f"AWS says {code} to {asked}" + (f" in {where}" if where else "")
    return _CLASS_OF.get(code, ProviderError)(words + (f": {message[:LONGEST_MESSAGE]}" if message else ""))


# --- problems --------------------------------------------------------------------------------------------

_WORDS: Sequence[tuple[ProblemKind, re.Pattern[str]]] = (
    (ProblemKind.AUTHORISATION, re.compile(r"not authori[sz]ed|Unauthori[sz]ed|access ?denied|KMS", re.IGNORECASE)),
    (ProblemKind.IMAGE, re.compile(r"image id|\bami-|AMIID|invalid AMI|snapshot", re.IGNORECASE)),
    (ProblemKind.QUOTA, re.compile(r"\blimit\b|LimitExceeded|CountExceeded|quota|free addresses", re.IGNORECASE)),
    (ProblemKind.CAPACITY, re.compile(r"capacity|not supported in your requested|SpotMaxPrice", re.IGNORECASE)),
)
"""What Auto Scaling says in its activities, which have no codes; the first that fits."""

_ZONE = re.compile(r"\b[a-z]{2}(?:-[a-z]+)+-\d[a-z]\b")
_TYPE = re.compile(r"\b[a-z][a-z0-9-]*\d[a-z0-9-]*\.(?:\d*x?large|metal[a-z0-9-]*|nano|micro|small|medium)\b")


def problems_of(activities: Iterable[Json], now: float) -> list[Problem]:
    """Tell why instances do not come.

    Args:
        activities: Those of the group, newest first. A launch that went well settles what was before it in its zone.
        now: Seconds since the epoch.

    Returns:
        One for each kind and offering, since when it has been met without a success in between.
    """
    found: dict[tuple[ProblemKind, str], Problem] = {}
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
            key = kind, "/".join(part for part in (zone, _find(_TYPE, message)) if part)
            if key in found or started > now - STALE:
                words = found[key].message if key in found else message
                found[key] = Problem(kind=kind, message=words, since=started, offering=key[1] or None)
    return list(found.values())


def _find(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(text)
    return found[0] if found else ""


# --- the group itself ------------------------------------------------------------------------------------


def mistake_in(group: Json) -> str | None:
    """Tell why a group cannot be managed at all; None: it can."""
    overrides = group.get("MixedInstancesPolicy", {}).get("LaunchTemplate", {}).get("Overrides", [])
    weighted = any(each.get("WeightedCapacity", "1") != "1" for each in overrides)
    suspended = _suspended(group) & {"Launch", "Terminate"}
    if group.get("Status"):
        return f"it is being deleted ({group['Status']}); name another"
    if weighted or group.get("DesiredCapacityType", "units") != "units":
        return "its capacity is counted in weights, not in instances; take the weights out of its instance types"
    return f"its processes {' and '.join(sorted(suspended))} are suspended; resume them" if suspended else None


def advice_on(group: Json, policies: Sequence[Json]) -> list[str]:
    """Say what should be changed about a group, one sentence each."""
    names = ", ".join(each["PolicyName"] for each in policies if each.get("Enabled", True))
    rebalances = len(group.get("AvailabilityZones", [])) > 1 and "AZRebalance" not in _suspended(group)
    smallest, largest, cooldown = group["MinSize"], group["MaxSize"], group.get("DefaultCooldown")
    advice = {
        f"it has scaling policies ({names}), which change its size too; remove them": names,
        "its instances are not protected from scale-in, so that busy ones may be ended; protect new instances": (
            not group.get("NewInstancesProtectedFromScaleIn")
        ),
        "AZRebalance is on, which ends instances whatever they do; suspend that process": rebalances,
        f"its minimum size is {smallest}, below which nothing is ever removed; set it to 0": smallest,
        f"its maximum size is {largest}, so that nothing can be launched; raise it": not largest,
        f"its default cooldown is {cooldown} s, during which others' changes have to wait; set it to 0": cooldown,
        "it has a warm pool, whose instances are paid for and never used; delete it": group.get(
            "WarmPoolConfiguration"
        ),
    }
    return [sentence for sentence, applies in advice.items() if applies]


def _suspended(group: Json) -> set[str]:
    return {each["ProcessName"] for each in group.get("SuspendedProcesses", [])}


def marks_on(group: Json) -> dict[str, float]:
    """Tell who has marked a group, by name, and when each mark expires; what cannot be read has expired."""
    marks = {tag["Key"]: tag["Value"] for tag in group.get("Tags", []) if tag["Key"].startswith(OWNER_TAG)}
    return {key.removeprefix(OWNER_TAG): _time(written) for key, written in marks.items()}


def _time(written: str) -> float:
    try:
        return datetime.fromisoformat(written).timestamp()
    except ValueError:
        return 0.0


# --- connecting ------------------------------------------------------------------------------------------

_ARCHITECTURES = {"x86_64": "amd64", "x86_64_mac": "amd64", "arm64_mac": "arm64", "i386": "386"}
_HOST_KEYS = re.compile(r"-----BEGIN SSH HOST KEY KEYS-----(.*?)-----END SSH HOST KEY KEYS-----", re.DOTALL)
_KEY_TYPES = ("ssh-ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521", "ssh-rsa")


def info_of(seen: Json) -> ConnectInfo:
    """Tell how to connect to an instance, as far as EC2's description of it tells."""
    architecture: str = seen.get("Architecture", "x86_64")
    windows = seen.get("Platform", "").lower() == "windows"
    return ConnectInfo(
        id=seen["InstanceId"],
        os="windows" if windows else "darwin" if architecture.endswith("_mac") else "linux",
        arch=_ARCHITECTURES.get(architecture, architecture),
        protocol="winrm+https" if windows else "ssh",
        internal_addr=seen.get("PrivateIpAddress") or seen.get("Ipv6Address"),
        external_addr=seen.get("PublicIpAddress") or None,
        user="Administrator" if windows else "ec2-user",
    )


def host_key_in(console: str) -> str | None:
    """Find the host key that cloud-init writes to an instance's console; the first block, which is the boot's own."""
    block = _HOST_KEYS.search(console)
    keys = dict(line.split()[:2] for line in block[1].splitlines() if len(line.split()) > 1) if block else {}
    return next((f"{kind} {keys[kind]}" for kind in _KEY_TYPES if kind in keys), None)


def public_half(key: str) -> str:
    """Tell the public key of a private one, as one ``type base64`` line.

    Raises:
        ValueError: The key cannot be read.
    """
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    public: bytes = _private(key).public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return public.decode()


def decrypted(password_data: str, key: str) -> str:
    """Decrypt a Windows password with the private key of the instance's key pair.

    Raises:
        ValueError: The key cannot be read, or is another one.
    """
    from cryptography.hazmat.primitives.asymmetric import padding, rsa

    private = _private(key)
    if not isinstance(private, rsa.RSAPrivateKey):
        raise ValueError("EC2 encrypts passwords for RSA keys only")
    password: bytes = private.decrypt(base64.b64decode(password_data), padding.PKCS1v15())
    return password.decode()


def _private(key: str) -> Any:  # noqa: ANN401  (one class of several)
    from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_ssh_private_key

    return (load_ssh_private_key if "OPENSSH" in key else load_pem_private_key)(key.encode(), None)
