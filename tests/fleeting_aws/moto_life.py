"""What moto leaves out of EC2 Auto Scaling: that everything takes time, may be refused, and is written down.

moto's instances are in service and gone at once, nothing has a limit, and several operations are missing. Here they
pass through the states of a real group. Whatever is due happens when the next request comes, so that there is no thread
and no race. This reaches into moto's own objects, hence the pinned version, and `test_moto.py`, which looks at each
thing that is replaced.

Where an answer is from stands beside it: AWS's documentation, the SDK's description of a service, or what operators
show in public issues. ``guessed`` is what none of them tells.
"""
# ruff: noqa: ANN401, FBT001  (these take the place of moto's own functions, which are as they are)

import base64
import json
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Any

from attrs import define, field
from moto.autoscaling import models, responses
from moto.autoscaling.exceptions import ValidationError
from moto.backends import get_backend
from moto.core.responses import ActionResult
from moto.ec2.models.instances import InstanceBackend
from moto.ec2.responses.general import General
from moto.ec2.responses.windows import Windows

ACCOUNT, REGION = "123456789012", "eu-west-1"
IMAGE = "ami-12c6146b"
CODES = {"pending": 0, "running": 16, "shutting-down": 32, "terminated": 48, "stopping": 64, "stopped": 80}
COUNTED = ("Pending", "InService")
"""States of an instance that the desired capacity counts."""

Group = Any
Member = Any


class Refused(Exception):
    """An error of AWS's for which moto has no class; the server answers with it."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        """Take what the answer says."""
        super().__init__(message)
        self.code, self.status = code, status


@define
class Token:
    """What was asked for under a client token, and what came of it."""

    parameters: dict[str, Any]
    answer: dict[str, Any]


@define
class Life:
    """How the cloud is at the moment; what a test may change."""

    launch_delay: float = 0.0
    """Seconds until a new instance is in service, and the like for the others."""

    terminate_delay: float = 0.0
    stop_delay: float = 0.0
    standby_delay: float = 0.0
    replace_delay: float = 0.0
    """Seconds until an instance that has died is replaced."""

    refusal: list[str] | None = None
    """Code and message with which launches fail."""

    full_zones: list[str] = field(factory=list)
    """Where; empty: everywhere."""

    at_most: int | None = None
    """So many are launched by one request."""

    offers_launch: bool = True
    """Whether LaunchInstances exists."""

    token_only: int = 0
    """So many answers to LaunchInstances have nothing but the token: EC2 takes long, but launches."""

    in_progress: int = 0
    """So many more requests under a token that is known are told that it is in progress."""

    short_by: int = 0
    """So many of the instances that a request launches are in no answer to it (guessed: AWS says nothing of it)."""

    protected: bool = False
    """Whether terminations are refused."""

    addresses: list[str] = field(factory=list)
    """What instances get for an address, one after the other; once there are no more, moto's own."""

    spot: bool = False
    console: str = ""
    password: str = ""
    platform: str | None = None
    due: list[tuple[float, Callable[[], None]]] = field(factory=list)
    activities: list[Any] = field(factory=list)
    """Newest first."""

    tokens: dict[str, Token] = field(factory=dict)
    """What LaunchInstances was asked for. Tokens are kept for good; AWS forgets them after 8 hours."""

    def later(self, delay: float, what: Callable[[], None]) -> None:
        """Have something happen, at the first request after so many seconds."""
        self.due.append((monotonic() + delay, what))

    def settle(self) -> None:
        """Let happen whatever is due, also what follows at once from that."""
        while ready := sorted((each for each in self.due if each[0] <= monotonic()), key=lambda each: each[0]):
            self.due = [each for each in self.due if each not in ready]
            for _, what in ready:
                what()

    def write_down(self, group: Group, description: str, status: str, *, zone: str = "", message: str = "") -> Any:
        """Add a scaling activity."""
        activity: Any = models.Activity(description, "as asked for", group, status_code=status)
        activity.details = json.dumps({"Availability Zone": zone}) if zone else "{}"
        activity.status_message = message
        self.activities.insert(0, activity)
        return activity


LIFE = Life()


def ec2() -> Any:
    """EC2's own record."""
    return get_backend("ec2")[ACCOUNT][REGION]


def autoscaling() -> Any:
    """Auto Scaling's own record."""
    return get_backend("autoscaling")[ACCOUNT][REGION]


def groups() -> dict[str, Group]:
    """The groups in it."""
    found: dict[str, Group] = autoscaling().autoscaling_groups
    return found


def find(name: str) -> Group:
    """Give a group."""
    if name not in groups():  # moto's own words
        raise ValidationError("AutoScalingGroup name not found - null")
    return groups()[name]


def member(instance: str) -> tuple[Group, Member]:
    """Give an instance and its group."""
    for group in groups().values():
        for each in group.instance_states:
            if each.instance_id == instance:
                return group, each
    # words as in yaybu/touchdown#51
    raise ValidationError(f"Instance Id not found - No managed instance found for instance ID: {instance}")


def become(each: Member, lifecycle: str | None = None, state: str | None = None) -> None:
    """Put an instance into a state."""
    each.lifecycle_state = lifecycle or each.lifecycle_state
    if state is not None:
        each.instance._state.name, each.instance._state.code = state, CODES.get(state, 16)


# --- launching and terminating ---------------------------------------------------------------------------

_launch_at_once = models.FakeAutoScalingGroup.replace_autoscaling_group_instances


def launch(group: Group, count: int, zone: str | None = None) -> list[Member]:
    """Launch instances, one reservation each, as single launches have; many share one."""
    before = len(group.instance_states)
    zones = group.availability_zones
    group.availability_zones = [zone] if zone else zones
    for lot in [1] * count if count <= 20 else [count]:
        _launch_at_once(group, lot, group.get_propagated_tags())
    group.availability_zones = zones
    new = group.instance_states[before:]
    for each in new:
        _begin(group, each)
    return list(new)


def _begin(group: Group, each: Member) -> None:
    become(each, "Pending", "pending")
    each.instance.platform = LIFE.platform
    each.instance.lifecycle = "spot" if LIFE.spot else None
    if LIFE.addresses:
        each.instance.nics[0].private_ip_address = LIFE.addresses.pop(0)
    words = f"Launching a new EC2 instance: {each.instance_id}"
    activity = LIFE.write_down(group, words, "PreInService", zone=each.availability_zone)

    def arrive() -> None:
        if each.lifecycle_state == "Pending":
            become(each, "InService", "running")
            activity.status_code = "Successful"

    LIFE.later(LIFE.launch_delay, arrive)


def refused_in(zone: str | None) -> list[str] | None:
    """Tell with what a launch fails there; None: it does not."""
    return LIFE.refusal if not LIFE.full_zones or zone in LIFE.full_zones else None


def reconcile(group: Group) -> None:
    """Launch or terminate until there are as many as desired; what fails is tried again at the next change."""
    counted = [each for each in group.instance_states if each.lifecycle_state in COUNTED]
    lacking = group.desired_capacity - len(counted)
    if lacking > 0:
        zone = group.availability_zones[0]
        if refusal := refused_in(zone):
            words = "Launching a new EC2 instance.  Status Reason: " + refusal[1]
            LIFE.write_down(group, words, "Failed", zone=zone, message=refusal[1])
        else:
            launch(group, min(lacking, LIFE.at_most or lacking))
    unprotected = [each for each in counted if not each.protected_from_scale_in]
    for each in unprotected[: max(0, -lacking)]:
        end(group, each)


def end(group: Group, each: Member) -> Any:
    """Terminate an instance of a group."""
    become(each, "Terminating", "shutting-down")
    activity = LIFE.write_down(group, f"Terminating EC2 instance: {each.instance_id}", "InProgress")

    def vanish() -> None:
        group.instance_states = [other for other in group.instance_states if other is not each]
        each.instance.terminate()
        activity.status_code = "Successful"

    LIFE.later(LIFE.terminate_delay, vanish)
    return activity


def die(instance: str) -> None:
    """End an instance at EC2, of which Auto Scaling hears later; then it is replaced."""
    group, each = member(instance)
    each.instance.terminate()

    def replace() -> None:
        if each in group.instance_states:
            group.instance_states = [other for other in group.instance_states if other is not each]
            if each.lifecycle_state in COUNTED:
                reconcile(group)

    LIFE.later(LIFE.replace_delay, replace)


def rebalance(instance: str, zone: str) -> None:
    """Do as AZRebalance does: launch in another zone, end this one, protected or not."""
    group, each = member(instance)
    launch(group, 1, zone)
    end(group, each)


# --- what replaces moto's own ----------------------------------------------------------------------------


def _group_set_desired(self: Group, new_capacity: int | None) -> None:
    self.desired_capacity = self.min_size if new_capacity is None else new_capacity
    reconcile(self)


def _set_desired(_: object, group_name: str, desired_capacity: int) -> None:
    group = find(group_name)
    if not group.min_size <= desired_capacity <= group.max_size:
        # that it is refused: the description of MaxSize; words guessed
        side = "above max" if desired_capacity > group.max_size else "below min"
        raise ValidationError(
            f"New SetDesiredCapacity value {desired_capacity} is {side} value of the AutoScalingGroup."
        )
    group.set_desired_capacity(desired_capacity)


CAPACITY_CODES = ("Insufficient", "Unfulfillable", "SpotMaxPrice", "MaxSpot", "Vcpu", "InstanceLimit")
"""What the codes begin with for which AWS tries again by itself, if it is asked to. Which these are is guessed."""


def _launch_instances(self: Any) -> ActionResult:
    """Answer as AWS's guide has it, "Launching instances with synchronous provisioning", where nothing else is said."""
    if not LIFE.offers_launch:
        raise Refused("InvalidAction", "The action LaunchInstances is not valid for this web service.")
    names = ("AutoScalingGroupName", "RequestedCapacity", "RetryStrategy")
    lists = ("AvailabilityZones", "AvailabilityZoneIds", "SubnetIds")
    asked = {**{name: self._get_param(name) for name in names}, **{name: self._get_param(name, []) for name in lists}}
    token = self._get_param("ClientToken")
    told = {"AutoScalingGroupName": asked["AutoScalingGroupName"], "ClientToken": token}
    if (known := LIFE.tokens.get(token)) is None:
        known = LIFE.tokens[token] = Token(asked, _launched(asked))
    elif known.parameters != asked:  # code and status: the SDK's description of the operation
        raise Refused("IdempotentParameterMismatch", "The parameters do not match those of an earlier request.")
    elif LIFE.in_progress:
        LIFE.in_progress -= 1
        raise Refused("IdempotentCallInProgress", "Another request with this client token is in progress.", 500)
    if LIFE.token_only:
        LIFE.token_only -= 1
        return ActionResult(told)
    return ActionResult({**told, **known.answer})


def _launched(asked: dict[str, Any]) -> dict[str, Any]:
    """Launch what is asked for, or refuse it."""
    group, count = find(asked["AutoScalingGroupName"]), int(asked["RequestedCapacity"])
    zone = _zone_for(group, asked)
    policy = (group.mixed_instances_policy or {}).get("InstancesDistribution", {})
    spot = 100 - int(policy.get("OnDemandPercentageAboveBaseCapacity", 100))
    if getattr(group, "launch_configuration_name", None):  # that it is refused: AWS's guide; code and words: guessed
        raise ValidationError("LaunchInstances is not supported for groups with a launch configuration.")
    if spot and (spot < 100 or int(policy.get("OnDemandBaseCapacity", 0))):  # likewise
        raise ValidationError("LaunchInstances is not supported for groups with both On-Demand and Spot Instances.")
    if group.desired_capacity + count > group.max_size:  # guessed
        raise ValidationError("The requested capacity would exceed the group's maximum size.")
    where = {"AvailabilityZone": zone, "InstanceType": group.instance_type, "MarketType": "OnDemand"}
    code, message = refused_in(zone) or ("InsufficientInstanceCapacity", "There is not enough for all of them.")
    fit = 0 if refused_in(zone) else min(count, LIFE.at_most or count)
    group.desired_capacity += fit
    ids = [each.instance_id for each in launch(group, fit, zone)] if fit else []
    if group.warm_pool is not None:  # launches and says that it cannot: AWS's guide; status and words: guessed
        raise Refused("UnsupportedOperation", "LaunchInstances is not supported for groups with a warm pool.")
    if fit < count and asked["RetryStrategy"] == "retry-with-group-configuration" and code.startswith(CAPACITY_CODES):
        group.desired_capacity += count - fit
        reconcile(group)
    return {
        "Instances": [{**where, "InstanceIds": ids[LIFE.short_by :]}] if ids else [],
        "Errors": [{**where, "ErrorCode": code, "ErrorMessage": message}] if fit < count else [],
    }


def _zone_for(group: Group, asked: dict[str, Any]) -> str | None:
    """Where to launch. Source: the SDK's description of the parameters; the words are guessed."""
    zones, ids, subnets = asked["AvailabilityZones"], asked["AvailabilityZoneIds"], asked["SubnetIds"]
    if zones and ids:
        raise ValidationError("You cannot specify both AvailabilityZones and AvailabilityZoneIds.")
    if not (zones or ids or subnets) and len(group.availability_zones) > 1:
        raise ValidationError("Either AvailabilityZones or SubnetIds must be specified for multi-AZ groups.")
    known = {each.zone_id: each.name for each in ec2().describe_availability_zones()}
    placed = {each.id: each.availability_zone for each in ec2().describe_subnets()}
    chosen = [*zones, *(known.get(each, each) for each in ids), *(placed.get(each, each) for each in subnets)]
    if stray := [each for each in chosen if each not in group.availability_zones]:
        raise ValidationError(f"{stray[0]} is none of the Availability Zones of the Auto Scaling group.")
    if len(set(chosen)) > 1:
        raise ValidationError("The subnets must reside in the specified Availability Zones.")
    return chosen[0] if chosen else None


def _terminate(self: Any) -> ActionResult:
    decrement = self._get_bool_param("ShouldDecrementDesiredCapacity", False)
    one, several, name = (self._get_param(each) for each in ("InstanceId", "InstanceIds", "AutoScalingGroupName"))
    if bool(one) == bool(several) or (several and not name):  # the SDK's description; words guessed
        raise ValidationError("Specify either InstanceId, or InstanceIds and AutoScalingGroupName.")
    found = [member(instance) for instance in several or [one]]
    if several and any(group.name != name for group, _ in found):  # guessed
        raise ValidationError(f"Not all of the instances are in the Auto Scaling group {name}.")
    leaving = [(group, each) for group, each in found if each.lifecycle_state != "Terminating"]
    for group, _ in leaving[:1]:
        if LIFE.protected or (decrement and group.desired_capacity - len(leaving) < group.min_size):
            raise ValidationError(  # words as in hashicorp/nomad-autoscaler#1290
                f"Currently, desiredSize equals minSize ({group.min_size}). Terminating instance without replacement"
                " will violate group's min size constraint. Either set shouldDecrementDesiredCapacity flag to false or"
                " lower group's min size."
            )
    activities = []
    for group, each in leaving:
        group.desired_capacity -= decrement
        activities.append(end(group, each))
    for group in {id(group): group for group, _ in leaving}.values():
        reconcile(group)
    return ActionResult({"Activities": activities} if several else {"Activity": activities[0]})


def _enter_standby(_: object, group_name: str, instance_ids: list[str], should_decrement: bool) -> list[Any]:
    group = find(group_name)
    chosen = [member(instance)[1] for instance in instance_ids]
    # much as in reproio/ecs_deploy#47
    if bad := [each.instance_id for each in chosen if each.lifecycle_state != "InService"]:
        raise ValidationError(f"The instance {bad[0]} is not in InService.")
    if should_decrement and group.desired_capacity - len(chosen) < group.min_size:
        # that it is refused: the description of EnterStandby; words guessed
        raise ValidationError("EnterStandby would violate the group's min size constraint.")
    for each in chosen:
        become(each, "EnteringStandby")
        LIFE.later(LIFE.standby_delay, partial(become, each, "Standby"))
    group.desired_capacity -= len(chosen) * should_decrement
    return [LIFE.write_down(group, "Moving EC2 instance to Standby", "InProgress") for _ in chosen]


def _exit_standby(_: object, group_name: str, instance_ids: list[str]) -> list[Any]:
    group = find(group_name)
    chosen = [member(instance)[1] for instance in instance_ids]
    if bad := [each.instance_id for each in chosen if each.lifecycle_state != "Standby"]:  # guessed by the one above
        raise ValidationError(f"The instance {bad[0]} is not in Standby.")
    for each in chosen:
        become(each, "Pending")
        LIFE.later(LIFE.standby_delay, partial(become, each, "InService"))
    group.desired_capacity += len(chosen)
    return [LIFE.write_down(group, "Moving EC2 instance out of Standby", "PreInService") for _ in chosen]


def _stop_instances(self: Any, instance_ids: list[str]) -> list[Any]:
    return [_turn(self.get_instance(each), "stopping", "stopped") for each in instance_ids]


def _start_instances(self: Any, instance_ids: list[str]) -> list[Any]:
    if refusal := LIFE.refusal:
        raise Refused(refusal[0], refusal[1])
    return [_turn(self.get_instance(each), "pending", "running") for each in instance_ids]


def _turn(instance: Any, through: str, to: str) -> tuple[Any, Any]:
    previous = type(instance._state)(instance._state.name, instance._state.code)
    if previous.name == through or previous.name not in {"running", "stopped"}:
        # code: EC2's list of error codes; words guessed
        raise Refused("IncorrectInstanceState", f"The instance '{instance.id}' is not in a state for that.")

    def put(state: str) -> None:
        instance._state.name, instance._state.code = state, CODES[state]

    put(through)
    LIFE.later(LIFE.stop_delay, lambda: put(to) if instance._state.name == through else None)
    return instance, previous


def _describe_activities(self: Any) -> ActionResult:
    name, limit = self._get_param("AutoScalingGroupName"), self._get_int_param("MaxRecords", 100)
    mine = [each for each in LIFE.activities if each.auto_scaling_group_name == name]
    return ActionResult({"Activities": mine[:limit]})


def _get_console_output(self: Any) -> ActionResult:
    instance = self.ec2_backend.get_instance(self._get_param("InstanceId"))
    return ActionResult({"InstanceId": instance.id, "Output": base64.b64encode(LIFE.console.encode()).decode()})


def _get_password_data(self: Any) -> ActionResult:
    return ActionResult({"InstanceId": self._get_param("InstanceId"), "PasswordData": LIFE.password})


REPLACED: list[tuple[Any, str, Any]] = [
    (models.FakeAutoScalingGroup, "set_desired_capacity", _group_set_desired),
    (models.AutoScalingBackend, "set_desired_capacity", _set_desired),
    (models.AutoScalingBackend, "enter_standby_instances", _enter_standby),
    (models.AutoScalingBackend, "exit_standby_instances", _exit_standby),
    (responses.AutoScalingResponse, "terminate_instance_in_auto_scaling_group", _terminate),
    (responses.AutoScalingResponse, "describe_scaling_activities", _describe_activities),
    (InstanceBackend, "stop_instances", _stop_instances),
    (InstanceBackend, "start_instances", _start_instances),
    (General, "get_console_output", _get_console_output),
    (Windows, "get_password_data", _get_password_data),
]
"""What moto has, and what stands in its place."""

ADDED: list[tuple[Any, str, Any]] = [(responses.AutoScalingResponse, "launch_instances", _launch_instances)]
"""What moto does not have."""


def begin() -> None:
    """Put it all in its place."""
    for owner, name, ours in [*REPLACED, *ADDED]:
        setattr(owner, name, ours)


def reset(life: dict[str, Any], group: dict[str, Any], suspended: list[str]) -> None:
    """Begin anew, with one group; what moto loads for seconds, such as its images, stays."""
    fresh = Life(**life)
    for name in Life.__slots__:
        if not name.startswith("__"):
            setattr(LIFE, name, getattr(fresh, name))
    groups().clear()
    ec2().reservations.clear()
    if not ec2().launch_template_name_to_ids:
        ec2().create_launch_template("fleet", "", {"ImageId": IMAGE, "InstanceType": "m5.large"}, {})
    autoscaling().lifecycle_hooks.clear()
    autoscaling().create_auto_scaling_group(
        **{
            "name": "fleet",
            "availability_zones": [f"{REGION}a", f"{REGION}b"],
            "desired_capacity": 0,
            "max_size": 20,
            "min_size": 0,
            "launch_config_name": None,
            "launch_template": {"LaunchTemplateName": "fleet", "Version": "$Default"},
            "vpc_zone_identifier": None,
            "default_cooldown": None,
            "health_check_period": 0,
            "health_check_type": "EC2",
            "load_balancers": [],
            "target_group_arns": [],
            "placement_group": None,
            "termination_policies": [],
            "tags": [],
            "new_instances_protected_from_scale_in": True,
            **group,
        }
    )
    find("fleet").suspended_processes = suspended
