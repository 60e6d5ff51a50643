"""Pure: what Google's answers mean here, and what is written where an instance looks for it.

Google's messages may repeat what was sent, and change: only codes are passed on.
"""

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, TypeAlias

from attrs import evolve, frozen
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

import fleeting
from fleeting import Observed, Problem, ProblemKind, ProviderError, State
from fleeting.plugins import Mark, mark_from_text
from fleeting_gcp._config import GcpConfig

Message: TypeAlias = Any
"""One of the SDK's; it is not imported here."""

NOTICE_PROBE = r"""
at=http://metadata.google.internal/computeMetadata/v1/instance
ask() { curl -fsm 2 --noproxy '*' -H Metadata-Flavor:Google "$at/$1"; }
[ "$(ask preempted)" = TRUE ] && echo preemption 25
[ "$(ask maintenance-event)" = TERMINATE_ON_HOST_MAINTENANCE ] && echo maintenance 55
true
"""
"""A preempted machine has 30 s, one that ends for maintenance 60 s; the probe itself may take 5 s of them."""

# --- instances -------------------------------------------------------------------------------------------

_ACTIONS = {
    State.CREATING: "CREATING CREATING_WITHOUT_RETRIES VERIFYING",
    State.SUSPENDING: "SUSPENDING",
    State.RESUMING: "RESUMING",
    State.DELETING: "DELETING ABANDONING STOPPING",
    State.FAILED: "RECREATING RESTARTING STARTING",
}
ACTIONS = {action: state for state, actions in _ACTIONS.items() for action in actions.split()}
"""What the group does with an instance; any other leaves it as its status says. What ran on a machine that is made or
started once more is lost."""

_STATUSES = {
    State.CREATING: "PENDING PROVISIONING STAGING",
    State.RUNNING: "RUNNING",
    State.SUSPENDING: "SUSPENDING",
    State.SUSPENDED: "SUSPENDED",
    State.DELETING: "PENDING_STOP STOPPING DEPROVISIONING",
    State.FAILED: "STOPPED TERMINATED REPAIRING",
}
STATUSES = {status: state for state, statuses in _STATUSES.items() for status in statuses.split()} | {"": State.FAILED}
"""What the machine itself does; empty where there is none. While it stops, what runs on it may still end well."""

_NAME = re.compile(r"fleeting-([a-z0-9](?:[-a-z0-9]{0,46}[a-z0-9])?)-([0-9]{1,3})")


def state_of(action: str, status: str) -> State:
    """What an instance is; what nobody has heard of is neither running nor gone."""
    return ACTIONS.get(action) or STATUSES.get(status, State.CREATING)


def names_for(intent: str, count: int) -> list[str]:
    """Name the instances of an intent: the same each time, and for no other intent.

    Raises:
        ProviderError: An instance's name cannot hold the intent.
    """
    names = [f"fleeting-{intent}-{number}" for number in range(count)]
    if intent_of(names[0]) != intent:
        raise ProviderError(f"intent {intent!r} must consist of at most 48 lower-case letters, digits and dashes")
    return names


def intent_of(name: str) -> str | None:
    """Read the intent back; None: the instance was not asked for by a manager."""
    found = _NAME.fullmatch(name)
    return found[1] if found else None


@frozen
class Fault:
    """Why an instance does not come."""

    code: str
    zone: str | None
    limit: str = ""
    """Which quota is reached, as far as Google says."""


@frozen(kw_only=True)
class Managed:
    """An instance as its group lists it."""

    name: str
    number: int = 0
    """Google's own id, never used twice; 0 while there is no machine."""

    url: str = ""
    """Such as ``zones/europe-west1-b/instances/x``; empty while it is queued: no zone is chosen for it."""

    state: State
    is_ill: bool = False
    """Whether the group's health check fails."""

    faults: tuple[Fault, ...] = ()

    @property
    def zone(self) -> str | None:
        """Where it is, or is to be."""
        return self.url.split("/")[1] if self.url else None

    @property
    def observed(self) -> Observed:
        """What everybody may know of it."""
        return Observed(state=self.state, intent=intent_of(self.name), offering=self.zone)


def read_managed(answer: Message) -> Managed:
    """Read an item of the listing."""
    _, below, place = answer.instance.partition("zones/")
    url = f"{below}{place}"
    errors = answer.last_attempt.errors.errors
    return Managed(
        name=answer.name or url.rpartition("/")[2],
        number=answer.id,
        url=url,
        state=state_of(answer.current_action, answer.instance_status),
        is_ill=any(health.detailed_health_state in ("UNHEALTHY", "TIMEOUT") for health in answer.instance_health),
        faults=tuple(Fault(error.code, url.split("/")[1] if url else None, _limit(error)) for error in errors),
    )


def _limit(error: Message) -> str:
    quotas = (each.quota_info for each in error.error_details if each.quota_info.metric_name)
    return " and ".join(f"{quota.metric_name} is limited to {quota.limit:g}" for quota in quotas)


def risen(instance: Managed, known: Mapping[str, int]) -> Managed:
    """Show an instance as failed once a second machine bears its name, or is to: what ran on the first is lost."""
    same = known.get(instance.name, instance.number) == instance.number
    return instance if same or instance.state is State.DELETING else evolve(instance, state=State.FAILED)


# --- problems --------------------------------------------------------------------------------------------

KINDS: Mapping[ProblemKind, tuple[str, str, type[ProviderError] | None]] = {
    ProblemKind.QUOTA: ("QUOTA|LIMIT_EXCEEDED", "a quota is reached", fleeting.QuotaExceeded),
    ProblemKind.CAPACITY: (
        "RESOURCE_POOL_EXHAUSTED|STOCKOUT|IP_SPACE_EXHAUSTED|UNAVAILABLE",
        "Google has no room for more instances",
        fleeting.CapacityUnavailable,
    ),
    ProblemKind.AUTHORISATION: (
        "PERMISSION|UNAUTHORIZED|FORBIDDEN|DENIED|CONSTRAINT|POLICY",
        "the group may not create instances",
        fleeting.AuthFailed,
    ),
    ProblemKind.IMAGE: ("NOT_FOUND|NOT_READY|INVALID|UNSUPPORTED", "the instance template cannot be used", None),
    ProblemKind.OTHER: ("", "instances cannot be created", None),
}
"""By what is in the error codes of Compute Engine, the first that fits: what it is in words, and as an error."""


def kind_of(code: str) -> ProblemKind:
    """What an error code is about."""
    return next(kind for kind, (pattern, _, _) in KINDS.items() if re.search(pattern, code))


def faults_of(instances: Iterable[Managed]) -> Iterable[Fault]:
    """Gather why those that are wanted do not come, each reason once; the last attempt at those that run is over."""
    over = (State.RUNNING, State.DELETING)
    return dict.fromkeys(fault for each in instances if each.state not in over for fault in each.faults)


def problem_of(fault: Fault, since: float) -> Problem:
    """Put it into words."""
    kind, where = kind_of(fault.code), f" in {fault.zone}" if fault.zone else ""
    message = f"{KINDS[kind][1]}{where} ({fault.code}{'; ' if fault.limit else ''}{fault.limit})"
    return Problem(kind=kind, message=message, since=since, offering=fault.zone)


# --- errors ----------------------------------------------------------------------------------------------

NOT_FOUND, CONFLICT, CHANGED, TOO_MANY, BROKEN = 404, 409, 412, 429, 500


class Refused(ProviderError):
    """Google did nothing, for a reason that has no error of its own here."""

    def __init__(self, message: str, status: int = CONFLICT) -> None:
        """Take HTTP's status."""
        self.status = status
        super().__init__(message)


def error_for(error: Message, what: str, *, changes: bool) -> ProviderError:
    """Choose the error for an answer that says no.

    Args:
        error: The SDK's. Of its message, only the missing permission is passed on.
        what: The method that was called.
        changes: Whether it would have changed something.
    """
    given = [each for each in error.errors if isinstance(each, dict)]  # something in between may have its own idea
    reasons = sorted({*(str(each.get("reason", "")) for each in given), error.reason or ""} - {""})
    said = " ".join((f"Google answers {what} with {error.code:d}", *reasons))
    codes = said.lower().replace("_", "")
    if error.code == TOO_MANY or "limitexceeded" in codes:
        wait = error.response.headers.get("retry-after", "")
        return fleeting.RateLimited(said, retry_after=float(wait) if wait.isdecimal() and int(wait) else None)
    if "quota" in codes:
        return fleeting.QuotaExceeded(said)
    if error.code in (401, 403):
        lacking = re.search(r"\bcompute\.\w+\.\w+", error.message)
        return fleeting.AuthFailed(f"{said}; grant {lacking[0]}" if lacking else said)
    if error.code < BROKEN:
        return Refused(said, error.code)
    return fleeting.OutcomeUnknown(said) if changes else ProviderError(said)


def error_in(codes: Sequence[str], what: str) -> ProviderError:
    """Choose the error for an operation that ended with these error codes, at least one."""
    return (KINDS[kind_of(codes[0])][2] or Refused)(f"Google could not finish {what}: {', '.join(codes)}")


# --- the group itself ------------------------------------------------------------------------------------


MARK = "fleeting-owner"
"""The key of the metadata, in the group's configuration for all instances, that is its manager's mark."""


def mark_on(group: Message) -> list[Mark]:
    """The mark of its manager, if there is one."""
    mark = mark_from_text(group.all_instances_config.properties.metadata.get(MARK, ""))
    return [mark] if mark is not None else []


def marked(group: Message, text: str) -> Mapping[str, object]:
    """The change of a group that marks it, if nobody has changed it meanwhile.

    All that the configuration has is sent, for what is left out of a map may be kept or not; for the same reason, a
    mark is emptied and not removed.
    """
    own = group.all_instances_config.properties
    properties = {"labels": dict(own.labels), "metadata": {**own.metadata, MARK: text}}
    return {"fingerprint": group.fingerprint, "all_instances_config": {"properties": properties}}


def refusal(group: Message, config: GcpConfig) -> str | None:
    """Say why the group may not be managed as it is, and what to do; None: it may."""
    if group.status.autoscaler:
        return f"an autoscaler controls the size of {config.name}; delete it: {_gcloud(config, 'stop-autoscaling')}"
    if config.region and group.update_policy.instance_redistribution_type != "NONE":
        moves = f"{config.name} deletes running instances in one zone to create others in another"
        return f"{moves}; disable that: {_gcloud(config, 'update')} --instance-redistribution-type=none"
    if config.owner_mark and group.update_policy.type_ == "PROACTIVE":
        applies = f"{config.name} applies changes of its configuration to running instances, and a mark is one"
        do = f"{_gcloud(config, 'update')} --update-policy-type=opportunistic"
        return f"{applies}; disable that: {do}, or set owner_mark to false"
    return None


def advice(group: Message, config: GcpConfig) -> Iterator[str]:
    """Say what should be changed, one sentence each."""
    update = f"{config.name} {{}}; better: {_gcloud(config, 'update')} --{{}}"
    if group.auto_healing_policies:
        yield update.format("recreates unhealthy instances, with their jobs", "clear-autohealing")
    if group.instance_lifecycle_policy.default_action_on_failure != "DO_NOTHING":
        yield update.format("recreates preempted instances", "default-action-on-vm-failure=do-nothing")
    if group.update_policy.type_ == "PROACTIVE":
        yield update.format("replaces running instances when its template changes", "update-policy-type=opportunistic")
    if config.region and group.distribution_policy.target_shape in ("", "EVEN"):
        yield update.format("waits for a zone that has no room while others have", "target-distribution-shape=any")


def login_advice(project: str, *, os_login: bool | None) -> Iterator[str]:
    """Say what OS Login, switched on for a whole project or not to be seen (None), means for the keys that we write."""
    if os_login:
        yield (
            f"OS Login is on for project {project}, and its instances ignore SSH keys in metadata unless their own says"
            " enable-oslogin=FALSE; put that into the instance template, or log in with username and key_path"
        )
    if os_login is None:
        yield f"whether OS Login is on for project {project} could not be seen; grant compute.projects.get"


def _gcloud(config: GcpConfig, verb: str) -> str:
    place = " ".join(f"--{kind}={name}" for kind, name in config.place.items())
    return f"gcloud compute instance-groups managed {verb} {config.name} {place}"


def max_size(group: Message, config: GcpConfig) -> int:
    """How many instances the group may have."""
    return 2000 if config.region or group.list_managed_instances_results == "PAGINATED" else 1000


# --- one instance's machine ------------------------------------------------------------------------------


def platform_of(machine: Message) -> tuple[str, str]:
    """Recognise os and arch by the disk that it boots from."""
    boot = [disk for disk in machine.disks if disk.boot]
    given = [word for disk in boot for word in (*disk.licenses, *(each.type_ for each in disk.guest_os_features))]
    windows = any("windows" in word.lower() for word in given)
    return "windows" if windows else "linux", "arm64" if any(disk.architecture == "ARM64" for disk in boot) else "amd64"


def addresses(machine: Message) -> tuple[str | None, str | None]:
    """The internal and the external address, IPv6 where there is no other."""
    cards = machine.network_interfaces
    access = [each for card in cards for each in (*card.access_configs, *card.ipv6_access_configs)]
    inside = [address for card in cards for address in (card.network_i_p, card.ipv6_address) if address]
    outside = [address for each in access for address in (each.nat_i_p, each.external_ipv6) if address]
    return next(iter(inside), None), next(iter(outside), None)


def started_at(machine: Message) -> float:
    """When it was started last, in seconds since the epoch."""
    return datetime.fromisoformat(machine.last_start_timestamp or machine.creation_timestamp).timestamp()


def is_on(machine: Message, key: str, *, otherwise: bool = False) -> bool:
    """Whether a switch is on in a machine's metadata; what that does not say is as in the project's."""
    return _is_on(machine.metadata, key, otherwise=otherwise)


def project_is_on(project: Message, key: str) -> bool:
    """Whether a switch is on for the whole project."""
    return _is_on(project.common_instance_metadata, key, otherwise=False)


def _is_on(metadata: Message, key: str, *, otherwise: bool) -> bool:
    given = (each.value.upper() in ("TRUE", "1", "Y", "YES") for each in metadata.items if each.key == key)
    return next(given, otherwise)


# --- what is written into the metadata -------------------------------------------------------------------


def with_ssh_key(lines: str, user: str, public: str, until: float, now: float) -> str:
    """Add a key that the guest agent lets nobody in with after its end, and drop those that are over."""
    rule = json.dumps({"userName": user, "expireOn": _written(until)})
    others = [line for line in _current(lines, now) if public not in line]
    return "\n".join([*others, f"{user}:{public} google-ssh {rule}"])


def with_windows_key(lines: str, user: str, key: rsa.RSAPrivateKey, until: float, now: float) -> str:
    """Ask the guest agent for a new password, encrypted for the key."""
    asked = {"userName": user, **_public(key), "expireOn": _written(until)}
    return "\n".join([*_current(lines, now), json.dumps(asked)])


def windows_password(output: str, key: rsa.RSAPrivateKey) -> str | None:
    """Find the guest agent's answer on the serial port 4; None: it has not come."""
    sha1 = hashes.SHA1()  # noqa: S303  (the guest agent knows no other)
    padded, modulus = padding.OAEP(padding.MGF1(sha1), sha1, None), _public(key)["modulus"]
    for answer in map(_object, output.splitlines()):
        if answer.get("modulus") == modulus and answer.get("encryptedPassword"):
            with suppress(ValueError):  # anybody on the machine may write there
                return key.decrypt(b64decode(str(answer["encryptedPassword"])), padded).decode()
    return None


def _public(key: rsa.RSAPrivateKey) -> dict[str, str]:
    numbers = key.public_key().public_numbers()
    parts = {"modulus": numbers.n, "exponent": numbers.e}
    return {part: b64encode(n.to_bytes((n.bit_length() + 7) // 8, "big")).decode() for part, n in parts.items()}


def _current(lines: str, now: float) -> list[str]:
    """The lines that have no end, or have not come to it."""
    ends = {line: str(_object(line[line.find("{") :]).get("expireOn", "9999-12-31")) for line in lines.splitlines()}
    return [line for line, end in ends.items() if end > _written(now)]


def _object(text: str) -> dict[str, object]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):  # the second: of a thousand brackets
        return {}
    return found if isinstance(found, dict) else {}


def _written(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S+0000")
