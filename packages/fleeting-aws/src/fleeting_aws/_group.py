"""The `aws` group: the instances of one Auto Scaling group."""

import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from pathlib import Path

import anyio
from attrs import define, evolve, field

from fleeting import (
    AuthFailed,
    Capability,
    CapacityUnavailable,
    ConnectInfo,
    GroupInfo,
    GroupRefused,
    InstanceNotFound,
    LoginRejected,
    Notice,
    Observation,
    OutcomeUnknown,
    Problem,
    ProblemKind,
    ProviderError,
    RateLimited,
    Settings,
    State,
    Unsupported,
)
from fleeting_aws import _translate
from fleeting_aws._config import AwsConfig, Sdk
from fleeting_aws._translate import Change, Json, Member, NoSuchGroup, NotOffered

SLICE = 200
"""Instances that one request describes: the most values that EC2 takes in a filter."""

BATCH = 100
"""Instances that one request launches or terminates, at most."""

STANDBY_BATCH = 20
"""Instances that one request takes out of service or back, at most."""

ACTIVITIES = 100
"""How many of the group's latest activities are read."""

KEY_LIFE = 50.0
"""Seconds for which a key that was given to an instance is used; EC2 Instance Connect keeps it for 60."""

NOTICE_INTERVAL = 5.0
"""Seconds between two looks for instances that Auto Scaling has begun to end."""

NO_HOOK = 30.0
"""Seconds that such an instance has left if no life-cycle hook delays its end."""

PROBE = Path(__file__).with_name("notice_probe.sh")
"""Asks an instance's own metadata; see `GroupInfo.notice_probe`."""

log = logging.getLogger("fleeting.aws")


@define(eq=False)
class AwsGroup:
    """Launches into the group, ends instances of it by name, and shows what two services tell of them."""

    _config: AwsConfig
    _sdk: Sdk = field(init=False)
    _settings: Settings = field(init=False)
    _group: Json = field(factory=dict, init=False)
    _members: Mapping[str, Member] = field(factory=dict, init=False)
    """As of the last look, as the group itself."""

    _looking: anyio.Lock = field(factory=anyio.Lock, init=False)
    _looks: int = field(default=0, init=False)
    """How many were begun."""

    _seen: int = field(default=0, init=False)
    """Which of them was the last to end well."""

    _launches: bool = field(default=True, init=False)
    """Whether AWS lets us launch; else the desired capacity is all that can be changed."""

    _grace: float = field(default=NO_HOOK, init=False)
    _wanted: dict[str, State] = field(factory=dict, init=False)
    """Instances that are being suspended or woken, which takes several requests, by id."""

    _ended: set[str] = field(factory=set, init=False)
    """Instances that we have had terminated, and that are still there."""

    _strange: dict[str, float] = field(factory=dict, init=False)
    """States that we cannot read, in words, with when each was first met."""

    _host_keys: dict[str, str] = field(factory=dict, init=False)
    _passwords: dict[str, str] = field(factory=dict, init=False, repr=False)

    @_sdk.default
    def _make_sdk(self) -> Sdk:
        return Sdk(self._config)

    async def init(self, settings: Settings) -> GroupInfo:
        """Look whether the group is there, and whether it is fit to be managed."""
        self._settings = settings
        try:
            await self._sdk.open()
            return await self._introduce()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._sdk.close()
            raise

    async def update(self) -> Observation:
        """Show the instances; go on with those that are being suspended or woken."""
        await self._look()
        if not self._settings.observe_only:
            for error in (await self._go_on([*self._wanted])).values():
                log.warning("change_failed", extra={"group": self._config.name, "error": str(error)})
        shown = {each.id: each for each in self._members.values() if not each.is_hidden}
        view = {each: member.observed(self._wanted.get(each)) for each, member in shown.items()}
        self._forget(view.keys())
        return Observation(view, [*self._find_strange(shown.values()), *await self._find_problems()])

    async def increase(self, count: int, *, intent: str) -> int:
        """Launch instances, as many as there is room for; where that is not offered, raise the desired capacity."""
        self._refuse_if_observing()
        if not self._launches or _room_in(self._group) < count:
            self._group = await self._read_group()
            count = min(count, _room_in(self._group))
        if count <= 0:
            return 0
        if not self._launches:
            return await self._raise_desired(count)
        try:
            return await self._launch(min(count, BATCH), intent)
        except (NotOffered, AuthFailed) as error:
            self._group = await self._read_group()
            accepted = await self._raise_desired(min(count, _room_in(self._group)))
            log.info("launch_not_offered", extra={"group": self._config.name, "error": str(error)})
            self._launches = False
            return accepted

    async def withdraw(self, count: int) -> int:
        """Lower the desired capacity by what is still missing; what came meanwhile is protected from scale-in."""
        self._refuse_if_observing()
        group = await self._read_group()
        desired: int = group["DesiredCapacity"]
        smallest: int = group["MinSize"]
        taken = max(0, min(count, _missing_in(group), desired - smallest))
        if taken:
            await self._change("set_desired_capacity", DesiredCapacity=desired - taken)
        return taken

    async def decrease(self, instances: Sequence[str]) -> Sequence[str]:
        """Have instances terminated, and the desired capacity lowered with them, down to the group's minimum."""
        self._refuse_if_observing()
        group = await self._read_group()
        there = {each.id: each for each in _members_of(group) if not each.is_leaving}
        named = [there[instance] for instance in instances if instance in there]
        standing_by = [each.id for each in named if each.is_standing_by]
        in_service = [each.id for each in named if not each.is_standing_by]
        room = max(0, group["DesiredCapacity"] - group["MinSize"])
        minimum = ProviderError(f"{self._config.name} has a minimum size of {group['MinSize']}; set it to 0")
        refused: dict[str, ProviderError] = dict.fromkeys(in_service[room:], minimum)
        for batch in _batches(in_service[:room], BATCH):
            refused |= await self._terminate(batch, decrement=True)
        for batch in _batches(standing_by, BATCH):  # the desired capacity does not count these
            refused |= await self._terminate(batch, decrement=False)
        self._ended |= {each.id for each in named} - refused.keys()
        if refused and len(refused) == len(instances):
            raise next(iter(refused.values()))
        return [instance for instance in instances if instance not in refused]

    async def suspend(self, instances: Sequence[str]) -> Sequence[str]:
        """Take instances out of service, then stop them; the second step follows with `update`."""
        return await self._bring(instances, State.SUSPENDED)

    async def resume(self, instances: Sequence[str]) -> Sequence[str]:
        """Start instances, then return them to service; the second step follows with `update`."""
        return await self._bring(instances, State.RUNNING)

    async def connect_info(self, instance: str) -> ConnectInfo:
        """Tell how to connect, with a key that the instance takes for a minute, or its Windows password."""
        seen = await self._describe_one(instance)
        connector = self._settings.connector
        told = _translate.info_of(seen)
        info = evolve(told, user=connector.username or told.user, protocol=connector.protocol or told.protocol)
        own = connector.use_static_credentials or connector.password is not None or self._settings.observe_only
        if info.protocol == "ssh":
            info = evolve(info, host_key=await self._find_host_key(instance))
            return info if own else await self._with_key(info, seen)
        return info if own or info.os != "windows" else await self._with_password(info)

    async def heartbeat(self, instance: str) -> None:
        """Return if it runs and Auto Scaling takes it for healthy; many who ask at once cost one look."""
        await self._look()
        member = self._members.get(instance)
        if member is None:
            raise InstanceNotFound(instance)
        if (member.lifecycle, member.ec2) != ("InService", "running") or not member.healthy:
            health = "healthy" if member.healthy else "unhealthy"
            raise ProviderError(f"{instance} is {health} and {member.lifecycle} at Auto Scaling, {member.ec2} at EC2")

    async def notices(self) -> AsyncIterator[Notice]:
        """Tell which instances Auto Scaling has begun to end, though we have not asked for it."""
        told: set[str] = set()
        while True:
            leaving = {each.id for each in _members_of(await self._read_group()) if each.is_leaving} - self._ended
            for instance in sorted(leaving - told):
                yield Notice(instance=instance, deadline=self._now() + self._grace)
            told = leaving
            await self._settings.clock.sleep_until(self._now() + NOTICE_INTERVAL)

    async def mark_owner(self, until: float | None) -> None:
        """Put a tag on the group. A newcomer looks once more after that: of two at once, both are refused."""
        self._refuse_if_observing()
        owner, marks = self._settings.owner, _translate.marks_on(await self._read_group())
        if until is None:
            return await self._unmark([owner] if owner in marks else [])
        self._refuse_if_marked(marks)
        written = datetime.fromtimestamp(until, UTC).isoformat(timespec="seconds")
        tag = {**self._tag(owner), "Value": written, "PropagateAtLaunch": False}
        await self._sdk.change("autoscaling", "create_or_update_tags", Tags=[tag])
        if marks.get(owner, 0.0) <= self._now():
            await self._settle_marks(owner)
        return None

    async def shutdown(self) -> None:
        """Close the connections to AWS."""
        await self._sdk.close()

    # --- opening -----------------------------------------------------------------------------------------

    async def _introduce(self) -> GroupInfo:
        try:
            self._group = group = await self._read_group()
        except NoSuchGroup as error:
            raise GroupRefused(str(error)) from error
        if mistake := _translate.mistake_in(group):
            raise GroupRefused(f"{self._config.name} cannot be managed: {mistake}")
        lacking: list[str] = []
        policies = (await self._read_if_permitted("describe_policies", lacking)).get("ScalingPolicies", [])
        hooks = (await self._read_if_permitted("describe_lifecycle_hooks", lacking)).get("LifecycleHooks", [])
        ending = [each for each in hooks if each["LifecycleTransition"] == "autoscaling:EC2_INSTANCE_TERMINATING"]
        self._grace = max((each.get("HeartbeatTimeout", NO_HOOK) for each in ending), default=NO_HOOK)
        protected = group.get("NewInstancesProtectedFromScaleIn")  # else to lower the capacity may cost an instance
        always = {Capability.NOTICES, Capability.OWNER_MARK, Capability.SUSPEND_RESUME}
        return GroupInfo(
            identity=group["AutoScalingGroupARN"],
            max_size=group["MaxSize"],
            capabilities=frozenset({*always, Capability.WITHDRAW} if protected else always),
            advice=[*_translate.advice_on(group, policies), *lacking],
            notice_probe=await self._sdk.offload(PROBE.read_text),
        )

    async def _read_if_permitted(self, operation: str, lacking: list[str]) -> Json:
        try:
            return await self._sdk.read("autoscaling", operation, AutoScalingGroupName=self._config.name)
        except AuthFailed as error:
            lacking.append(f"not everything could be looked at: {error}; permit it")
            return {}

    def _refuse_if_observing(self) -> None:
        if self._settings.observe_only:
            raise Unsupported(f"the group {self._config.name} was opened to observe only; open it to manage it")

    def _now(self) -> float:
        return self._settings.clock.now()

    # --- looking -----------------------------------------------------------------------------------------

    async def _read_group(self) -> Json:
        name = self._config.name
        answer = await self._sdk.read("autoscaling", "describe_auto_scaling_groups", AutoScalingGroupNames=[name])
        if not answer["AutoScalingGroups"]:
            raise NoSuchGroup(f"there is no Auto Scaling group {name} in this region; correct name or region")
        group: Json = answer["AutoScalingGroups"][0]
        return group

    async def _look(self) -> None:
        """Ask both services, EC2 in slices; one look that began since then answers all who have asked meanwhile."""
        asked = self._looks
        async with self._looking:
            if self._seen > asked:
                return
            self._looks = look = self._looks + 1
            group = await self._read_group()
            seen: dict[str, Json] = {}
            for ids in _batches([each["InstanceId"] for each in group["Instances"]], SLICE):
                filters = [{"Name": "instance-id", "Values": ids}]
                answer = await self._sdk.read("ec2", "describe_instances", Filters=filters, MaxResults=SLICE)
                seen |= {each["InstanceId"]: each for lot in answer["Reservations"] for each in lot["Instances"]}
            both = (Member.of(each, seen.get(each["InstanceId"])) for each in group["Instances"])
            self._members, self._group, self._seen = {each.id: each for each in both}, group, look

    async def _find_problems(self) -> list[Problem]:
        """Ask why instances do not come, if some do not."""
        if _missing_in(self._group) <= 0:
            return []
        latest = {"AutoScalingGroupName": self._config.name, "PaginationConfig": {"MaxItems": ACTIVITIES}}
        try:
            answer = await self._sdk.read("autoscaling", "describe_scaling_activities", **latest)
        except AuthFailed as error:
            return [Problem(kind=ProblemKind.AUTHORISATION, message=str(error))]
        return _translate.problems_of(answer["Activities"], self._now())

    def _find_strange(self, members: Iterable[Member]) -> list[Problem]:
        """Report states that we cannot read, each with when it was first met."""
        unread = [each for each in members if each.state is None]
        hint = "which this release cannot read"
        words = [f"{each.id} is {each.lifecycle} at Auto Scaling and {each.ec2} at EC2, {hint}" for each in unread]
        self._strange = {each: self._strange.get(each, self._now()) for each in words}
        return [Problem(kind=ProblemKind.OTHER, message=each, since=since) for each, since in self._strange.items()]

    def _forget(self, shown: Collection[str]) -> None:
        """Drop what was kept of instances that are gone, and of those that are what they were to become."""
        states = {each: self._members[each].state for each in shown}
        self._wanted = {each: to for each, to in self._wanted.items() if each in states and states[each] is not to}
        self._ended &= self._members.keys()
        for kept in (self._host_keys, self._passwords):
            for gone in kept.keys() - self._members.keys():
                del kept[gone]

    # --- changing ----------------------------------------------------------------------------------------

    async def _launch(self, count: int, intent: str) -> int:
        """Launch at once, in the zone with the fewest instances; in the next one what there is no room for there."""
        group = self._group
        used = Counter(each["AvailabilityZone"] for each in group["Instances"])
        launched, refused = 0, None
        for zone in sorted(group["AvailabilityZones"], key=lambda zone: used[zone]):
            try:
                left = count - launched
                token = sha256(f"{intent}/{zone}/{left}".encode()).hexdigest()
                one = {"AvailabilityZones": [zone], "RequestedCapacity": left, "RetryStrategy": "none"}
                answer = await self._change("launch_instances", ClientToken=token, **one)
            except OutcomeUnknown:
                raise
            except ProviderError as error:
                refused = error
            else:
                launched += sum(len(lot["InstanceIds"]) for lot in answer.get("Instances", []))
                refused = next((_translate.refusal(error, "a launch") for error in answer.get("Errors", [])), None)
            if launched >= count or not isinstance(refused, CapacityUnavailable):
                break
        if refused is not None and not launched:
            raise refused
        return launched

    async def _raise_desired(self, count: int) -> int:
        """Have Auto Scaling launch by itself; tells what came of it, for somebody may set the capacity too."""
        before: int = self._group["DesiredCapacity"]
        await self._change("set_desired_capacity", DesiredCapacity=before + count)
        after: int = (await self._read_group())["DesiredCapacity"]
        return max(0, min(count, after - before))

    async def _terminate(self, instances: Sequence[str], *, decrement: bool) -> dict[str, ProviderError]:
        """Have a batch terminated; if that is refused, one after the other. Returns why, for those that are not."""
        try:
            operation = "terminate_instance_in_auto_scaling_group"
            await self._change(operation, InstanceIds=instances, ShouldDecrementDesiredCapacity=decrement)
        except ProviderError as error:
            if len(instances) == 1 or isinstance(error, AuthFailed | OutcomeUnknown | RateLimited):
                return dict.fromkeys(instances, error)
            refused: dict[str, ProviderError] = {}
            for each in instances:
                refused |= await self._terminate([each], decrement=decrement)
            return refused
        return {}

    async def _bring(self, instances: Sequence[str], wanted: State) -> Sequence[str]:
        """Begin to suspend or wake instances; returns those that are on the way."""
        self._refuse_if_observing()
        await self._look()
        able = [each for each in instances if each in self._members and self._members[each].can_sleep]
        self._wanted |= dict.fromkeys(able, wanted)
        refused = await self._go_on(able)
        for each in refused:
            del self._wanted[each]
        if refused and len(refused) == len(instances):
            raise next(iter(refused.values()))
        return [each for each in able if each not in refused]

    async def _go_on(self, instances: Iterable[str]) -> dict[str, ProviderError]:
        """Ask for what comes next for each of these; returns why, for those for which it is refused."""
        todo: dict[Change, list[str]] = {}
        for each in instances:
            if each in self._members and (change := self._members[each].change_towards(self._wanted[each])):
                todo.setdefault(change, []).append(each)
        refused: dict[str, ProviderError] = {}
        for change, ids in todo.items():
            for batch in _batches(ids, STANDBY_BATCH):
                try:
                    await self._step(change, batch)
                except ProviderError as error:
                    refused |= dict.fromkeys(batch, error)
        return refused

    async def _step(self, change: Change, instances: Sequence[str]) -> None:
        if change in {"start_instances", "stop_instances"}:
            await self._sdk.change("ec2", change, InstanceIds=instances)
        else:
            lower = {"ShouldDecrementDesiredCapacity": True} if change == "enter_standby" else {}
            await self._change(change, InstanceIds=instances, **lower)

    async def _change(self, operation: str, **parameters: object) -> Json:
        """Ask Auto Scaling to change something about the group."""
        return await self._sdk.change("autoscaling", operation, AutoScalingGroupName=self._config.name, **parameters)

    # --- connecting --------------------------------------------------------------------------------------

    async def _describe_one(self, instance: str) -> Json:
        filters = [{"Name": "instance-id", "Values": [instance]}]
        answer = await self._sdk.read("ec2", "describe_instances", Filters=filters)
        seen: list[Json] = [each for lot in answer["Reservations"] for each in lot["Instances"]]
        if not seen or seen[0]["State"]["Name"] in {"shutting-down", "terminated"}:
            raise InstanceNotFound(instance)
        return seen[0]

    async def _find_host_key(self, instance: str) -> str | None:
        """Read it from the console, where it appears some time after the boot; it never changes."""
        for latest in ({"Latest": True}, {}):  # what is current is told of some types only
            if instance in self._host_keys:
                break
            try:
                answer = await self._sdk.read("ec2", "get_console_output", InstanceId=instance, **latest)
            except NotOffered:
                continue
            except AuthFailed as error:
                log.info("console_not_permitted", extra={"group": self._config.name, "error": str(error)})
                break
            if key := _translate.host_key_in(answer.get("Output", "")):
                self._host_keys[instance] = key
        return self._host_keys.get(instance)

    async def _with_key(self, info: ConnectInfo, seen: Json) -> ConnectInfo:
        """Have the instance take a key for a minute: the user's own, or one that is made for this."""
        private, public = await self._sdk.offload(_make_key, self._settings.connector.key_path, info.id)
        expires_at = self._now() + KEY_LIFE
        there = {"InstanceId": info.id, "AvailabilityZone": seen["Placement"]["AvailabilityZone"]}
        key = {"InstanceOSUser": info.user, "SSHPublicKey": public}
        await self._sdk.change("ec2-instance-connect", "send_ssh_public_key", **there, **key)
        return evolve(info, key=private, expires_at=expires_at)

    async def _with_password(self, info: ConnectInfo) -> ConnectInfo:
        """Read the password that Windows has made at its first start, with the private key of its key pair."""
        path = self._settings.connector.key_path
        if path is None:
            hint = "set key_path in connector_config to its key pair's private key, or set password"
            raise LoginRejected(f"the password of {info.id} is encrypted; {hint}")
        if info.id not in self._passwords:
            data = (await self._sdk.read("ec2", "get_password_data", InstanceId=info.id))["PasswordData"].strip()
            if not data:
                raise ProviderError(f"Windows has not told the password of {info.id} yet; it takes some minutes")
            self._passwords[info.id] = await self._sdk.offload(_decrypt, data, path, info.id)
        return evolve(info, password=self._passwords[info.id])

    # --- marking -----------------------------------------------------------------------------------------

    async def _settle_marks(self, owner: str) -> None:
        """Look whether somebody else has marked the group meanwhile, and clear away what has expired."""
        marks = _translate.marks_on(await self._read_group())
        try:
            self._refuse_if_marked(marks)
        except GroupRefused:
            await self._unmark([owner])
            raise
        await self._unmark([each for each in marks if each != owner])

    def _refuse_if_marked(self, marks: Mapping[str, float]) -> None:
        for holder, until in marks.items():
            if holder != self._settings.owner and until > self._now():
                when = datetime.fromtimestamp(until, UTC).isoformat(timespec="seconds")
                raise GroupRefused(f"{self._config.name} is managed by {holder}; stop that, or wait until {when}")

    async def _unmark(self, owners: Sequence[str]) -> None:
        if owners:
            await self._sdk.change("autoscaling", "delete_tags", Tags=[self._tag(owner) for owner in owners])

    def _tag(self, owner: str) -> dict[str, object]:
        key = f"{_translate.OWNER_TAG}{owner}"
        return {"ResourceId": self._config.name, "ResourceType": "auto-scaling-group", "Key": key}


def _members_of(group: Json) -> list[Member]:
    return [Member.of(each, None) for each in group["Instances"]]


def _room_in(group: Json) -> int:
    """How many more there may be; what stands by takes room, for it comes back."""
    room: int = group["MaxSize"] - group["DesiredCapacity"]
    return room - sum(each.is_standing_by for each in _members_of(group))


def _missing_in(group: Json) -> int:
    """How many instances are still to come, for all that Auto Scaling knows."""
    counted = sum(not each.is_leaving and not each.is_standing_by for each in _members_of(group))
    desired: int = group["DesiredCapacity"]
    return desired - counted


def _batches(items: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    return (items[start : start + size] for start in range(0, len(items), size))


def _make_key(path: str | None, instance: str) -> tuple[str, str]:
    """Give a private key and its public half: the one in the file, or a new one."""
    if path is not None:
        private = Path(path).read_text()
        return private, _read_key(partial(_translate.public_half, private), path, instance)
    from fleeting.connectors.ssh import generate_key

    pair = generate_key()
    return pair.private, pair.public


def _decrypt(data: str, path: str, instance: str) -> str:
    return _read_key(partial(_translate.decrypted, data, Path(path).read_text()), path, instance)


def _read_key(read: Callable[[], str], path: str, instance: str) -> str:
    try:
        return read()
    except (TypeError, ValueError) as error:  # this is how cryptography asks for a passphrase, too
        raise LoginRejected(f"the key in {path} cannot be used for {instance}: {error}") from error
