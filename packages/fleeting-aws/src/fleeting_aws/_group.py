"""The `aws` group: the instances of one Auto Scaling group."""

import logging
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import anyio
from attrs import define, evolve, field

from fleeting import (
    Capability,
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
    Settings,
    State,
)
from fleeting.connectors import ssh
from fleeting.plugins import Mark, SharedCall, accepted, ask_in_batches, put_mark, undone_on_failure
from fleeting_aws import _translate
from fleeting_aws._config import AwsConfig, Sdk
from fleeting_aws._launch import Launcher
from fleeting_aws._translate import (
    Json,
    Member,
    NoSuchGroup,
    NotOffered,
    NotPermitted,
    NotSupported,
    members_of,
    missing_in,
    open_in,
    room_in,
    spare_in,
)

SLICE = 200
"""Instances that one request describes: the most values that EC2 takes in a filter."""

BATCH = 100
"""Instances that one request terminates, at most."""

LAUNCH_AGAIN = 900.0
"""Seconds for which the desired capacity is raised after AWS has refused to launch: permissions and regions change."""

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

TO_LAUNCH = ("autoscaling:LaunchInstances", "ec2:CreateFleet", "ec2:DescribeLaunchTemplateVersions")
"""Permissions without which AWS does not launch. Source: "Launching instances with synchronous provisioning"."""

CAPABILITIES = frozenset(Capability) - {Capability.NAMED_CREATE, Capability.PRICES}

PROBE = Path(__file__).with_name("notice_probe.sh")
"""Asks an instance's own metadata; see `GroupInfo.notice_probe`."""

log = logging.getLogger("fleeting.aws")


@define(eq=False)
class AwsGroup:
    """Launches into the group, ends instances of it by name, and shows what two services report about them."""

    _config: AwsConfig
    _sdk: Sdk = field(init=False)
    _launcher: Launcher = field(init=False)
    _settings: Settings = field(init=False)
    _group: Json = field(factory=dict, init=False)
    _members: Mapping[str, Member] = field(factory=dict, init=False)
    """As of the last look, as the group itself."""

    _look: SharedCall[None] = field(init=False, repr=False)

    _changing: anyio.Lock = field(factory=anyio.Lock, init=False)
    """One request at a time changes the group: its desired capacity can be set, but not raised or lowered."""

    _launches_at: float = field(default=0.0, init=False)
    """When to try again whether AWS lets us launch; until then the desired capacity is all that can be changed."""

    _grace: float = field(default=NO_HOOK, init=False)
    _wanted: dict[str, State] = field(factory=dict, init=False)
    """Instances that are being suspended or woken, which takes several requests, by id."""

    _since: Mapping[tuple[ProblemKind, str | None], float | None] = field(factory=dict, init=False)
    """When each problem, by kind and offering, was first met."""

    @_look.default
    def _shared(self) -> SharedCall[None]:
        return SharedCall(self._fetch)

    async def init(self, settings: Settings) -> GroupInfo:
        """Look whether the group is there, and whether it is fit to be managed."""
        self._settings, self._sdk = settings, Sdk(self._config)
        self._launcher = Launcher(self._config.name, settings.clock, partial(self._change, "launch_instances"))
        async with undone_on_failure(self._sdk.close):
            await self._sdk.open()
            return await self._introduce()

    async def update(self) -> Observation:
        """Show the instances; go on with those that are being suspended or woken."""
        await self._look()
        if not self._settings.observe_only:
            for error in (await self._go_on(self._wanted)).values():
                log.warning("change_failed", extra={"group": self._config.name, "error": str(error)})
        there = self._members  # what EC2 should know and does not is left out: it is gone, or this is a bad read
        view = {id_: each.observed(self._wanted.get(id_)) for id_, each in there.items() if each.ec2 or each.state}
        self._wanted = {each: to for each, to in self._wanted.items() if each in there and there[each].state is not to}
        return Observation(view, await self._find_problems(), max_size=self._group["MaxSize"])

    async def increase(self, count: int, *, intent: str) -> int:
        """Launch instances, as many as there is room for; where that is not offered, raise the desired capacity."""
        self._settings.refuse_if_observing()
        if self._now() >= self._launches_at and _translate.not_launching(self._group) is None:
            try:
                return await self._launch(count, intent)
            except (NotOffered, NotPermitted) as error:
                self._launches_at = self._now() + LAUNCH_AGAIN
                hint = "permit " + ", ".join(TO_LAUNCH) if isinstance(error, NotPermitted) else "see the guide for AWS"
                why = f"{error}; the desired capacity is raised instead; {hint}"
                log.warning("launch_refused", extra={"group": self._config.name, "error": why})
                if isinstance(error, NotSupported):
                    raise OutcomeUnknown(f"{error}; it may have launched anyway") from error
        return await self._shift_desired(lambda group: min(count, room_in(group)))

    async def withdraw(self, count: int) -> int:
        """Lower the desired capacity by what is still missing; what came meanwhile is protected from scale-in."""
        self._settings.refuse_if_observing()
        return await self._shift_desired(lambda group: min(count, open_in(group)), sign=-1)

    async def decrease(self, instances: Sequence[str]) -> Sequence[str]:
        """Have instances terminated, and the desired capacity lowered by those that it counts."""
        self._settings.refuse_if_observing()
        group = await self._read_group()
        named = [each for each in members_of(group) if each.id in instances and not each.is_leaving]
        counted = [each.id for each in named if each.is_counted]
        spare, above = spare_in(group), max(0, -missing_in(group))
        lowering = [*counted[:spare], *counted[spare + above :]]  # of those between, the group has more than it wants
        others = [each.id for each in named if each.id not in lowering]
        refused: dict[str, ProviderError] = {}
        for ending, lower in ((lowering, True), (others, False)):
            end = partial(self._step, "terminate_instance_in_auto_scaling_group", ShouldDecrementDesiredCapacity=lower)
            refused |= await ask_in_batches(end, ending, BATCH)
        there = {each: why for each, why in refused.items() if not isinstance(why, InstanceNotFound)}
        return accepted(instances, there)

    async def suspend(self, instances: Sequence[str]) -> Sequence[str]:
        """Take instances out of service, then stop them; the second step follows with `update`."""
        return await self._bring(instances, State.SUSPENDED)

    async def resume(self, instances: Sequence[str]) -> Sequence[str]:
        """Start instances, then return them to service; the second step follows with `update`."""
        return await self._bring(instances, State.RUNNING)

    async def connect_info(self, instance: str) -> ConnectInfo:
        """How to connect, with a key that the instance takes for a minute, or its Windows password."""
        seen = await self._describe_one(instance)
        connector = self._settings.connector
        info = _translate.info_of(seen, connector)
        if info.protocol == "ssh":
            info = evolve(info, host_key=await self._find_host_key(instance), pin_host_key=True)
        if connector.use_static_credentials or connector.password is not None:
            return info
        if info.protocol == "ssh":  # to send a key changes the instance
            return info if self._settings.observe_only else await self._with_key(info, seen)
        return await self._with_password(info) if info.os == "windows" else info

    async def heartbeat(self, instance: str) -> None:
        """Return if it runs and Auto Scaling takes it for healthy; many who ask at once cost one look."""
        await self._look()
        if (member := self._members.get(instance)) is None:
            raise InstanceNotFound(instance)
        if member.state is not State.RUNNING or not member.healthy:
            raise ProviderError(member.words)

    async def notices(self) -> AsyncIterator[Notice]:
        """Which instances Auto Scaling has begun to end, whoever wants it so."""
        reported: Collection[str] = ()
        while True:
            members = members_of(await self._read_group())
            leaving = {each.id: each.lifecycle.endswith(":Proceed") for each in members if each.is_leaving}
            for each in leaving.keys() - reported:
                yield Notice(instance=each, deadline=self._now() + (NO_HOOK if leaving[each] else self._grace))
            reported = leaving.keys()
            await self._settings.clock.sleep_until(self._now() + NOTICE_INTERVAL)

    async def mark_owner(self, until: float | None) -> None:
        """Put a tag on the group, and look once more after that: of two at once, both are refused."""
        self._settings.refuse_if_observing()
        await put_mark(
            until,
            owner=self._settings.owner,
            clock=self._settings.clock,
            group=self._config.name,
            read=self.read_marks,
            write=self._write_mark,
            erase=self._unmark,
        )

    async def read_marks(self) -> Sequence[Mark]:
        """Read the tags of the group, which come with it."""
        return _translate.marks_on(await self._read_group())

    async def shutdown(self) -> None:
        """Close the connections to AWS."""
        await self._sdk.close()

    # --- opening -----------------------------------------------------------------------------------------

    async def _introduce(self) -> GroupInfo:
        try:
            self._group = group = await self._read_group()
        except NoSuchGroup as error:
            raise GroupRefused(str(error)) from error
        harm = [*_translate.harm_in(group)]
        if harm and not self._settings.observe_only:
            raise GroupRefused(f"{self._config.name} cannot be managed as it is: {'. And '.join(harm)}")
        lacking: list[str] = []
        policies = await self._list("describe_policies", "ScalingPolicies", lacking)
        hooks = await self._list("describe_lifecycle_hooks", "LifecycleHooks", lacking)
        ending = [each for each in hooks if each["LifecycleTransition"] == "autoscaling:EC2_INSTANCE_TERMINATING"]
        self._grace = max((each["HeartbeatTimeout"] for each in ending), default=NO_HOOK)
        return GroupInfo(
            identity=group["AutoScalingGroupARN"],
            max_size=group["MaxSize"],
            capabilities=CAPABILITIES,
            advice=[
                *(f"a manager would refuse it as it is: {each}" for each in harm),
                *_translate.advice_on(group, policies),
                *lacking,
            ],
            notice_probe=await self._sdk.offload(PROBE.read_text),
        )

    async def _list(self, operation: str, key: str, lacking: list[str], **more: object) -> Sequence[Json]:
        """List something about the group; what is not permitted is listed among what is lacking."""
        try:
            found: Sequence[Json] = (await self._sdk.read("autoscaling", operation, **self._named, **more))[key]
        except NotPermitted as error:
            lacking.append(f"some settings could not be checked: {error}; permit it")
            return []
        return found

    @property
    def _named(self) -> dict[str, str]:
        return {"AutoScalingGroupName": self._config.name}

    def _now(self) -> float:
        return self._settings.clock.now()

    # --- looking -----------------------------------------------------------------------------------------

    async def _read_group(self) -> Json:
        name = self._config.name
        answer = await self._sdk.read("autoscaling", "describe_auto_scaling_groups", AutoScalingGroupNames=[name])
        groups: Sequence[Json] = answer["AutoScalingGroups"]
        if not groups:
            raise NoSuchGroup(f"there is no Auto Scaling group {name} in this region; correct name or region")
        return groups[0]

    async def _describe(self, instances: Sequence[str]) -> dict[str, Json]:
        """Ask EC2; a filter passes over those that it does not know."""
        filters = [{"Name": "instance-id", "Values": instances}]
        answer = await self._sdk.read("ec2", "describe_instances", Filters=filters, MaxResults=SLICE)
        return {each["InstanceId"]: each for lot in answer["Reservations"] for each in lot["Instances"]}

    async def _describe_one(self, instance: str) -> Json:
        seen = (await self._describe([instance])).get(instance)
        if seen is None or seen["State"]["Name"] in {"shutting-down", "terminated"}:
            raise InstanceNotFound(instance)
        return seen

    async def _fetch(self) -> None:
        """Ask both services, EC2 in slices."""
        group, seen = await self._read_group(), dict[str, Json]()
        ids = [each["InstanceId"] for each in group["Instances"]]
        for start in range(0, len(ids), SLICE):
            seen |= await self._describe(ids[start : start + SLICE])
        both = (Member.of(each, seen.get(each["InstanceId"], {})) for each in group["Instances"])
        self._members, self._group = {each.id: each for each in both}, group

    async def _find_problems(self) -> list[Problem]:
        """Which states cannot be read, and why instances do not come, if some do not; each since it was met."""
        found, lacking = _translate.unread(self._members.values(), self._now()), list[str]()
        if missing_in(self._group) > 0:
            latest = {"PaginationConfig": {"MaxItems": ACTIVITIES}}
            activities = await self._list("describe_scaling_activities", "Activities", lacking, **latest)
            found += _translate.problems_of(activities, self._now())
        found += [Problem(kind=ProblemKind.AUTHORISATION, message=words, since=self._now()) for words in lacking]
        met = {(each.kind, each.offering): each.since for each in found}
        self._since = {key: self._since.get(key, since) for key, since in met.items()}
        return [evolve(each, since=self._since[each.kind, each.offering]) for each in found]

    # --- changing ----------------------------------------------------------------------------------------

    async def _launch(self, count: int, intent: str) -> int:
        group = self._group if room_in(self._group) >= count else await self._read_group()
        return await self._launcher.launch(count, intent, group)

    async def _shift_desired(self, by: Callable[[Json], int], *, sign: int = 1) -> int:
        """Change the desired capacity by what *by* makes of the group's state; returns by how much it changed.

        Somebody else may set it at the same time, so it is looked at once more.
        """
        async with self._changing:
            group = await self._read_group()
            before = after = int(group["DesiredCapacity"])
            if (shift := by(group)) > 0:
                after += sign * shift
                await self._sdk.change("autoscaling", "set_desired_capacity", **self._named, DesiredCapacity=after)
                with suppress(ProviderError):  # it was set, whether or not that can be seen
                    after = int((await self._read_group())["DesiredCapacity"])
        return max(0, min(shift, sign * (after - before)))

    async def _bring(self, instances: Sequence[str], wanted: State) -> Sequence[str]:
        """Begin to suspend or wake instances; returns those that are on the way."""
        self._settings.refuse_if_observing()
        await self._look()
        able = [each for each in instances if each in self._members and self._members[each].can_sleep]
        refused = await self._go_on(dict.fromkeys(able, wanted))
        self._wanted |= {each: wanted for each in able if each not in refused}
        return accepted(able, refused)

    async def _go_on(self, wanted: Mapping[str, State]) -> dict[str, ProviderError]:
        """Ask for what comes next for each of these; returns why, for those for which it is refused."""
        todo: dict[str, list[str]] = {}
        for each in wanted.keys() & self._members.keys():
            if change := self._members[each].change_towards(wanted[each]):
                todo.setdefault(change, []).append(each)
        refused: dict[str, ProviderError] = {}
        for change, instances in todo.items():
            lower: Json = {"ShouldDecrementDesiredCapacity": True} if change == "enter_standby" else {}
            refused |= await ask_in_batches(partial(self._step, change, **lower), instances, STANDBY_BATCH)
        return refused

    async def _step(self, change: str, instances: Sequence[str], **how: object) -> None:
        if change in {"start_instances", "stop_instances"}:
            await self._sdk.change("ec2", change, InstanceIds=instances)
        else:
            await self._change(change, InstanceIds=instances, **how)

    async def _change(self, operation: str, **parameters: object) -> Json:
        async with self._changing:
            return await self._sdk.change("autoscaling", operation, **self._named, **parameters)

    # --- connecting --------------------------------------------------------------------------------------

    async def _find_host_key(self, instance: str) -> str | None:
        """Read it from the console, where it appears some time after the boot; None: it is pinned when first seen."""
        for latest in ({"Latest": True}, {}):  # what is current is known for some types only
            with suppress(NotPermitted, NotOffered):
                answer = await self._sdk.read("ec2", "get_console_output", InstanceId=instance, **latest)
                return ssh.printed_host_key(answer.get("Output", ""))
        return None

    async def _with_key(self, info: ConnectInfo, seen: Json) -> ConnectInfo:
        """Have the instance take a key for a minute: the user's own, or one that is made for this."""
        pair = await self._make_key(info.id)
        expires_at = self._now() + KEY_LIFE
        there = {"InstanceId": info.id, "AvailabilityZone": seen["Placement"]["AvailabilityZone"]}
        key = {"InstanceOSUser": info.user, "SSHPublicKey": pair.public}
        await self._sdk.change("ec2-instance-connect", "send_ssh_public_key", **there, **key)
        return evolve(info, key=pair.private, expires_at=expires_at)

    async def _with_password(self, info: ConnectInfo) -> ConnectInfo:
        """Read the password that Windows has made at its first start, with the private key of its key pair."""
        if self._settings.connector.key_path is None:
            hint = "set key_path in connector_config to its key pair's private key, or set password"
            raise LoginRejected(f"the password of {info.id} is encrypted; {hint}")
        data = (await self._sdk.read("ec2", "get_password_data", InstanceId=info.id))["PasswordData"].strip()
        if not data:
            raise ProviderError(f"Windows has not reported the password of {info.id} yet; this takes a few minutes")
        return evolve(info, password=_translate.decrypted(data, (await self._make_key(info.id)).private, info.id))

    async def _make_key(self, instance: str) -> "ssh.KeyPair":  # quoted, for it is imported only when it is used
        """Read the user's key; where there is none, make one."""
        path = self._settings.connector.key_path
        return await self._sdk.offload(partial(ssh.read_key_pair, path, instance) if path else ssh.generate_key)

    # --- marking -----------------------------------------------------------------------------------------

    async def _write_mark(self, until: float) -> None:
        tag = {**self._tag(self._settings.owner), "Value": str(max(0, round(until))), "PropagateAtLaunch": False}
        await self._sdk.change("autoscaling", "create_or_update_tags", Tags=[tag])

    async def _unmark(self, owners: Sequence[str]) -> None:
        await self._sdk.change("autoscaling", "delete_tags", Tags=[self._tag(owner) for owner in owners])

    def _tag(self, owner: str) -> dict[str, object]:
        key = f"{_translate.OWNER_TAG}{owner}"
        return {"ResourceId": self._config.name, "ResourceType": "auto-scaling-group", "Key": key}
