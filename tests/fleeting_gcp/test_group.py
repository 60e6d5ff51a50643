"""The `googlecloud` group over the endpoint of our own: what goes wrong at Google, and ways into instances."""

import json
import os
import subprocess
import sys
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from attrs import define, evolve, field
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

import fleeting
from fleeting import (
    AuthFailed,
    Capability,
    CapacityUnavailable,
    ConnectorConfig,
    GroupRefused,
    InstanceNotFound,
    LoopClock,
    OutcomeUnknown,
    ProblemKind,
    ProviderError,
    RateLimited,
    Settings,
    State,
    Unsupported,
)
from fleeting.connectors.ssh import generate_key
from fleeting.plugins import Mark, ReadsMarks
from fleeting_gcp import GcpGroup
from fleeting_gcp._group import _credentials, _outcome, _Sdk
from tests.fleeting.sshd import free_port
from tests.fleeting_gcp.clouds import REGIONAL, config, serving, write_credentials
from tests.fleeting_gcp.compute_endpoint import PERMISSIONS, Cloud, Fault, Machine
from tests.reaping import HOUR, reap, removed

pytestmark = pytest.mark.anyio

ED25519 = generate_key().public
ECDSA = f"ecdsa-sha2-nistp256 {b64encode(bytes([0, 0, 0, 19]) + b'ecdsa-sha2-nistp256...').decode()}"

README = Path(__file__).parents[2] / "packages" / "fleeting-gcp" / "README.md"


@define
class Haste:
    """A clock on which waiting takes no time."""

    time: float = field(factory=lambda: LoopClock().now())

    def now(self) -> float:
        """The time."""
        return self.time

    async def sleep_until(self, at: float) -> None:
        """Let it be that time."""
        await checkpoint()
        self.time = max(at, self.time)


Open = Callable[..., AbstractAsyncContextManager[GcpGroup]]


@pytest.fixture(params=[{}, REGIONAL], ids=["zonal", "regional"])
def cloud(request: pytest.FixtureRequest) -> Cloud:
    """A cloud in which nothing takes time."""
    return Cloud(**request.param)


@pytest.fixture
def zonal() -> Cloud:
    """One of them, where it makes no difference which."""
    return Cloud()


@pytest.fixture
def opened(tmp_path: Path) -> Open:
    """Serve a cloud and open its group; in the end nothing of it is left open."""

    @asynccontextmanager
    async def opening(
        cloud: Cloud, *, observe_only: bool = False, connector: ConnectorConfig | None = None, **more: object
    ) -> AsyncIterator[GcpGroup]:
        settings = Settings(owner="us", clock=Haste(), connector=connector or ConnectorConfig())
        with serving(cloud):
            group = GcpGroup(config(cloud, write_credentials(tmp_path, cloud.url), **more))
            await group.init(evolve(settings, observe_only=observe_only))
            try:
                yield group
            finally:
                await group.shutdown()

    return opening


async def grow(group: GcpGroup, count: int = 1, *, intent: str = "a-1") -> list[str]:
    """Have instances made, and look; returns their ids."""
    assert await group.increase(count, intent=intent) == count
    return sorted((await group.update()).instances)


async def states(group: GcpGroup) -> dict[str, State]:
    """Look."""
    return {name: each.state for name, each in (await group.update()).instances.items()}


# --- what goes wrong -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("fault", "advice"), [(Fault.RATE_LIMIT, None), (Fault.TOO_MANY, 7.0)])
async def test_one_request_too_many_is_no_denial(
    zonal: Cloud, opened: Open, fault: Fault, advice: float | None
) -> None:
    """Google has 403 for both; with Google's advice how long to wait, if it gives any."""
    async with opened(zonal) as group:
        with zonal.fault(fault), pytest.raises(RateLimited) as caught:
            await group.update()
        assert caught.value.retry_after == advice
        with zonal.fault(Fault.AUTH), pytest.raises(AuthFailed):
            await group.update()


async def test_a_reached_quota_is_a_problem_with_its_name(cloud: Cloud, opened: Open) -> None:
    """It keeps the time when it was first met, and goes when it is over."""
    async with opened(cloud) as group:
        with cloud.fault(Fault.QUOTA):
            await grow(group, 3)
            first, later = (await group.update()).problems, (await group.update()).problems
        assert first == later
        assert {problem.kind for problem in first} == {ProblemKind.QUOTA}
        assert all("CPUS is limited to 24" in problem.message for problem in first)
        assert {problem.offering for problem in first} == set(cloud.zones)
        assert (await group.update()).problems == []
        assert set((await states(group)).values()) == {State.RUNNING}


async def test_a_zone_without_room_is_named_and_the_others_deliver(opened: Open) -> None:
    """What waits can be deleted, and then is no problem any more."""
    cloud = Cloud(**REGIONAL)
    async with opened(cloud) as group:
        with cloud.stock_out("europe-west1-c"):
            names = await grow(group, 3)
            view = await group.update()
            (problem,) = view.problems
            assert (problem.kind, problem.offering) == (ProblemKind.CAPACITY, "europe-west1-c")
            waiting = [name for name in names if view.instances[name].state is State.CREATING]
            assert [view.instances[name].offering for name in waiting] == ["europe-west1-c"]
            assert await group.decrease(waiting) == waiting
            after = await group.update()
        assert after.problems == []
        assert sorted(after.instances) == sorted(set(names) - set(waiting))


async def test_an_instance_that_is_seen_being_created_comes_to_run(cloud: Cloud, opened: Open) -> None:
    """It has no number of Google's before it has a machine; that it gets one is no replacement."""
    cloud.boot = 3600
    async with opened(cloud) as group:
        (name,) = await grow(group)
        assert await states(group) == {name: State.CREATING}
        cloud.boot = 0
        assert await states(group) == {name: State.RUNNING}


async def test_machines_that_were_begun_before_one_ran_are_no_loss(zonal: Cloud, opened: Open) -> None:
    """Where there is no room, the group begins one after the other under the same name."""
    zonal.boot = 3600
    async with opened(zonal) as group:
        (name,) = await grow(group)
        zonal.machines[name].number, zonal.machines[name].status = 5, "STAGING"
        assert await states(group) == {name: State.CREATING}
        zonal.boot = 0
        assert await states(group) == {name: State.RUNNING}
        assert zonal.machines[name].number != 5


async def test_a_preempted_instance_stays_lost_when_the_group_brings_it_back(cloud: Cloud, opened: Open) -> None:
    """It is shown as failed until it is deleted, whatever runs under its name; then the name is gone."""
    async with opened(cloud) as group:
        (name,) = await grow(group)
        cloud.preempt(name)
        assert await states(group) == {name: State.FAILED}
        assert cloud.machines[name].status == "RUNNING"
        with pytest.raises(ProviderError, match="is failed"):
            await group.heartbeat(name)
        assert await group.decrease([name]) == [name]
        assert await states(group) == {}


async def test_a_lost_operation_leaves_the_outcome_open_and_the_repeat_settles_it(cloud: Cloud, opened: Open) -> None:
    """Google was asked twice, and made one."""
    cloud.delay = 0.01
    async with opened(cloud) as group:
        with cloud.fault(Fault.LOST_OPERATION), pytest.raises(OutcomeUnknown, match="no longer knows"):
            await group.increase(1, intent="a-1")
        assert await group.increase(1, intent="a-1") == 1
        assert cloud.methods.count("createInstances") == 2
        assert "listManagedInstances" not in cloud.methods, "Google knows the request again"
        assert list(await states(group)) == ["fleeting-a-1-0"]


async def test_an_operation_that_does_not_end_is_not_waited_for_for_ever(zonal: Cloud, opened: Open) -> None:
    """After two minutes the outcome is unknown; in between Google is asked less and less often."""
    zonal.delay = 3600
    async with opened(zonal) as group:
        with pytest.raises(OutcomeUnknown, match="within 120 s"):
            await group.increase(1, intent="a-1")
        assert zonal.methods.count("zones.operations") < 50


async def test_an_operation_that_cannot_be_seen_for_a_moment_is_looked_at_again(zonal: Cloud, opened: Open) -> None:
    """One answer that is lost on the way tells nothing."""
    zonal.delay, zonal.stumbles = 0.01, [Fault.ERROR, Fault.TOO_MANY]
    async with opened(zonal) as group:
        assert await group.increase(1, intent="a-1") == 1
    assert zonal.stumbles == []


async def test_an_operation_that_may_not_be_seen_is_not_waited_for(cloud: Cloud, opened: Open) -> None:
    """The outcome is unknown, and the permission that lacks is named."""
    cloud.delay, cloud.granted = 3600, cloud.granted - {"compute.zoneOperations.get", "compute.regionOperations.get"}
    async with opened(cloud) as group:
        with pytest.raises(OutcomeUnknown, match=r"grant compute\.\w+Operations\.get"):
            await group.increase(1, intent="a-1")
        assert sum("operations" in method for method in cloud.methods) == 1


async def test_a_repeat_whose_request_google_has_forgotten_finds_what_is_there(cloud: Cloud, opened: Open) -> None:
    """The names are taken; they are counted, and nothing new is made."""
    async with opened(cloud) as group:
        await grow(group, 3)
        cloud.forget()
        assert await group.increase(3, intent="a-1") == 3
        assert cloud.target == 3


async def test_a_refusal_for_another_reason_stays_one(zonal: Cloud, opened: Open) -> None:
    """If no instance carries the intent, Google's answer is passed on."""
    async with opened(zonal) as group:
        zonal.group = "renamed"
        with pytest.raises(ProviderError, match="404 notFound"):
            await group.increase(1, intent="a-1")


async def test_more_than_a_request_holds_is_not_accepted(zonal: Cloud, opened: Open) -> None:
    """The rest is asked for under another intent."""
    async with opened(zonal) as group:
        assert await group.increase(1200, intent="a-1") == 1000
        assert zonal.target == 1000
        names = list(await states(group))
        zonal.methods.clear()
        zonal.launch(200)
        assert len(await group.decrease([*names, *(await states(group)).keys() - set(names)])) == 1200
        assert zonal.methods.count("deleteInstances") == 2
        assert await states(group) == {}


async def test_metadata_that_others_change_is_read_again(zonal: Cloud, opened: Open) -> None:
    """What they wrote stays; who is never fast enough gives up."""
    async with opened(zonal) as group:
        (name,) = await grow(group)
        machine, rivals = zonal.machines[name], iter(range(2))

        def interfere(number: int | None) -> None:
            if number is not None:
                machine.metadata[f"rival-{number}"] = "was here"
                machine.fingerprint = f"rival-{number}"

        zonal.before_change = lambda: interfere(next(rivals, None))
        info = await group.connect_info(name)
        assert info.key
        assert machine.metadata.keys() == {"rival-0", "rival-1", "ssh-keys"}
        zonal.before_change = lambda: interfere(len(machine.metadata))
        with pytest.raises(ProviderError, match=r"somebody else changes the metadata .*: Google answers .* 412"):
            await group.connect_info(name)


async def test_what_somebody_else_deletes_is_gone(cloud: Cloud, opened: Open) -> None:
    """Whoever was faster: it is accepted, the other goes too, and to ask for it says that it is not there."""
    async with opened(cloud) as group:
        one, other = await grow(group, 2)
        cloud.delete_machine(one)
        assert await group.decrease([one, other]) == [one, other]
        assert await states(group) == {}
        for call in (group.connect_info, group.heartbeat):
            with pytest.raises(InstanceNotFound):
                await call(one)


async def test_an_answer_that_makes_no_sense_is_told_as_such(zonal: Cloud, opened: Open) -> None:
    """Also if it comes with the status of success; whether something was changed is unknown then."""
    async with opened(zonal) as group:
        with zonal.fault(Fault.NONSENSE):
            with pytest.raises(ProviderError, match="an invalid answer to listManagedInstances"):
                await group.update()
            with pytest.raises(OutcomeUnknown, match="an invalid answer to create_instances"):
                await group.increase(1, intent="a-1")


async def test_what_something_in_between_answers_is_an_error_like_others(zonal: Cloud, opened: Open) -> None:
    """A proxy has JSON of its own, which the SDK takes for Google's."""
    async with opened(zonal) as group:
        with zonal.fault(Fault.PROXY):
            with pytest.raises(ProviderError):
                await group.update()
            with pytest.raises(OutcomeUnknown):
                await group.increase(1, intent="a-1")


async def test_where_nobody_listens_nothing_was_done(zonal: Cloud, tmp_path: Path) -> None:
    """Only where nothing was sent is that certain, also of a change."""
    settings = config(zonal, write_credentials(tmp_path), endpoint=f"http://127.0.0.1:{free_port()}")
    with pytest.raises(ProviderError, match="Google cannot be reached to get; check the network and the endpoint"):
        await GcpGroup(settings).init(Settings(owner="us", clock=LoopClock()))
    sdk = _Sdk(settings)
    request = {"project": "acme", "zone": "b", "instance_group_manager": "runners", "size": 1}
    result = _outcome(partial(sdk.groups.resize_unary, request=request, retry=None), "resize", changes=True)
    sdk.close()
    assert type(result) is ProviderError


async def test_what_a_stock_out_keeps_waiting_is_deleted_by_name(opened: Open) -> None:
    """It has no zone, so no URL; were it left, it would run and be paid for as soon as there is room."""
    cloud = Cloud(**REGIONAL)
    async with opened(cloud) as group:
        (there,) = await grow(group)
        with cloud.stock_out():
            waiting = [name for name in await grow(group, 2, intent="a-2") if name != there]
            view = await group.update()
            assert {view.instances[name].offering for name in waiting} == {None}
            assert {problem.kind for problem in view.problems} == {ProblemKind.CAPACITY}
            with pytest.raises(InstanceNotFound):
                await group.connect_info(waiting[0])
            assert await group.decrease([there, *waiting]) == [there, *waiting]
        assert await states(group) == {}
        assert cloud.alive() == []
    by_name, by_url = [body["instances"] for _, path, body in cloud.log if path.endswith("deleteInstances")]
    assert (sorted(by_name), len(by_url)) == (sorted(waiting), 1)


async def test_what_came_to_a_zone_meanwhile_is_deleted_by_url(opened: Open) -> None:
    """What was queued when the group was looked at last may not be any more."""
    cloud = Cloud(**REGIONAL)
    async with opened(cloud) as group:
        with cloud.stock_out():
            (name,) = await grow(group)
        assert await group.decrease([name]) == [name]
        assert cloud.log[-1][2]["instances"][0].endswith(f"/instances/{name}")
        assert await states(group) == {}


async def test_where_names_are_not_taken_the_queued_wait_and_the_others_go(
    opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    """What is queued is not accepted, so that it is asked for again, with its URL once it has one."""
    cloud = Cloud(**REGIONAL)
    async with opened(cloud) as group:
        (there,) = await grow(group)
        with cloud.stock_out(), cloud.fault(Fault.URLS_ONLY):
            (waiting,) = {*await grow(group, intent="a-2")} - {there}
            assert await group.decrease([there, waiting]) == [there]
            assert "queued_not_deleted" in caplog.messages
            assert list(await states(group)) == [waiting]
        assert await group.decrease([waiting]) == [waiting]
        assert await states(group) == {}


async def test_one_that_cannot_be_deleted_does_not_keep_the_queued_alive(opened: Open) -> None:
    """The queued go first."""
    cloud = Cloud(**REGIONAL)
    async with opened(cloud) as group:
        (there,) = await grow(group)
        with cloud.stock_out():
            (waiting,) = {*await grow(group, intent="a-2")} - {there}
            cloud.protected = {there}
            with pytest.raises(ProviderError):
                await group.decrease([there, waiting])
            assert list(await states(group)) == [there]


async def test_a_failing_health_check_fails_the_heartbeat(zonal: Cloud, opened: Open) -> None:
    """Where the group has one."""
    async with opened(zonal) as group:
        (name,) = await grow(group)
        await group.heartbeat(name)
        zonal.machines[name].health = "UNHEALTHY"
        await group._clock.sleep_until(group._clock.now() + 1)
        with pytest.raises(ProviderError, match="fails the group's health check"):
            await group.heartbeat(name)


async def test_heartbeats_of_the_same_moment_are_answered_by_one_list(zonal: Cloud, opened: Open) -> None:
    """However many instances there are: the API's quota is one for all. Whoever asks later gets a newer one."""
    async with opened(zonal) as group:
        names = await grow(group, 20)
        for _ in range(2):
            await group._clock.sleep_until(group._clock.now() + 5)
            zonal.methods.clear()
            async with anyio.create_task_group() as tasks:
                for name in names:
                    tasks.start_soon(group.heartbeat, name)
            assert zonal.methods == ["listManagedInstances"]


# --- suspending ------------------------------------------------------------------------------------------


async def test_an_instance_is_suspended_and_resumed(cloud: Cloud, opened: Open) -> None:
    """It is the same before and after; what is there already is accepted and not asked for; others are not touched."""
    async with opened(cloud) as group:
        name, other = await grow(group, 2)
        cloud.boot = 3600
        assert await group.suspend([name, "fleeting-gone-0"]) == [name]
        assert await states(group) == {name: State.SUSPENDING, other: State.RUNNING}
        assert await group.resume([name]) == [], "it is on its way down"
        cloud.boot = 0
        assert await states(group) == {name: State.SUSPENDED, other: State.RUNNING}
        cloud.methods.clear()
        assert await group.suspend([name]) == [name]
        assert await group.resume([other]) == [other]
        assert cloud.writes() == 0
        cloud.boot = 3600
        assert await group.resume([name]) == [name]
        assert (await states(group))[name] is State.RESUMING
        cloud.boot = 0
        assert await states(group) == {name: State.RUNNING, other: State.RUNNING}


async def test_without_room_a_suspended_instance_stays_so(zonal: Cloud, opened: Open) -> None:
    """The error says that another zone or type might do."""
    async with opened(zonal) as group:
        (name,) = await grow(group)
        await group.suspend([name])
        with zonal.stock_out(), pytest.raises(CapacityUnavailable):
            await group.resume([name])
        assert await states(group) == {name: State.SUSPENDED}
        assert await group.resume([name]) == [name]


# --- ways in ---------------------------------------------------------------------------------------------


async def test_a_key_is_put_where_the_guest_agent_looks(cloud: Cloud, opened: Open) -> None:
    """It ends by itself, the manager fetches another before that, and what stood there stays."""
    cloud.template = {"ssh-keys": "joe:ssh-rsa AAAAj joe@desk", "startup-script": "true"}
    async with opened(cloud, connector=ConnectorConfig(username="ci")) as group:
        (name,) = await grow(group)
        info = await group.connect_info(name)
        assert (info.user, info.os, info.arch, info.protocol) == ("ci", "linux", "amd64", "ssh")
        assert (info.internal_addr, info.external_addr) == ("127.0.0.1", "192.0.2.7")
        assert info.key
        assert "PRIVATE" in info.key
        metadata = cloud.machines[name].metadata
        joe, ours = metadata["ssh-keys"].splitlines()
        assert (joe, metadata["startup-script"]) == ("joe:ssh-rsa AAAAj joe@desk", "true")
        assert ours.startswith("ci:ssh-ed25519 ")
        assert info.expires_at is not None
        assert 11 * 3600 < info.expires_at - group._clock.now() < 12 * 3600
        await group.connect_info(name)
        assert len(metadata["ssh-keys"].splitlines()) == 2


@pytest.mark.parametrize(
    "connector",
    [ConnectorConfig(use_static_credentials=True), ConnectorConfig(key_path="key"), ConnectorConfig(password="p")],
)
async def test_who_has_a_way_in_is_given_none(zonal: Cloud, opened: Open, connector: ConnectorConfig) -> None:
    """Metadata is left alone then."""
    async with opened(zonal, connector=connector) as group:
        (name,) = await grow(group)
        assert (await group.connect_info(name)).key is None
        assert "setMetadata" not in zonal.methods


@pytest.mark.parametrize(
    ("project", "template", "written"),
    [
        ({}, {"enable-oslogin": "TRUE"}, False),
        ({"enable-oslogin": "TRUE"}, {}, False),
        ({"enable-oslogin": "TRUE"}, {"enable-oslogin": "FALSE"}, True),
        ({"enable-oslogin": "FALSE"}, {}, True),
    ],
)
async def test_os_login_is_left_alone(
    zonal: Cloud, opened: Open, project: dict[str, str], template: dict[str, str], *, written: bool
) -> None:
    """Where it is on, the guest agent reads no keys in the metadata; what the instance says goes before the project."""
    zonal.project_metadata, zonal.template = project, template
    async with opened(zonal) as group:
        (name,) = await grow(group)
        assert bool((await group.connect_info(name)).key) == written
        assert ("setMetadata" in zonal.methods) == written


async def advice_for(cloud: Cloud, credentials: Path, **connector: Any) -> list[str]:  # noqa: ANN401  (the connector's)
    """Open a group and close it; returns what its user is told about OS Login."""
    with serving(cloud):
        group = GcpGroup(config(cloud, write_credentials(credentials)))
        settings = Settings(owner="us", clock=LoopClock(), connector=ConnectorConfig(**connector))
        advice = (await group.init(settings)).advice
        await group.shutdown()
    return [each for each in advice if "OS Login" in each]


async def test_os_login_of_the_project_is_told(zonal: Cloud, tmp_path: Path) -> None:
    """With what to do; also that it could not be seen. It concerns only those for whom keys would be written."""
    assert await advice_for(zonal, tmp_path) == []
    zonal.project_metadata = {"enable-oslogin": "TRUE"}
    (advice,) = await advice_for(zonal, tmp_path)
    assert "OS Login is on for project acme" in advice
    assert "enable-oslogin=FALSE; put that into the instance template" in advice
    zonal.granted -= {"compute.projects.get"}
    (advice,) = await advice_for(zonal, tmp_path)
    assert advice == "whether OS Login is on for project acme could not be seen; grant compute.projects.get"
    zonal.methods.clear()
    for connector in ({"key_path": "key"}, {"use_static_credentials": True}, {"os": "windows"}):
        assert await advice_for(zonal, tmp_path, **connector) == []
    assert "projects.get" not in zonal.methods


async def test_who_observes_changes_no_metadata(zonal: Cloud, opened: Open) -> None:
    """And cannot suspend either."""
    zonal.launch(1)
    async with opened(zonal, observe_only=True) as group:
        (name,) = await states(group)
        assert (await group.connect_info(name)).key is None
        for call in (group.suspend, group.resume, group.decrease):
            with pytest.raises(Unsupported, match="observe only"):
                await call([name])
        assert zonal.writes() == 0


async def test_a_host_key_is_waited_for_where_the_guest_publishes_it(zonal: Cloud, opened: Open) -> None:
    """A machine that has just started has not got there yet; one that never does is connected to all the same."""
    zonal.template = {"enable-guest-attributes": "TRUE"}
    async with opened(zonal) as group:
        quick, mute = await grow(group, 2)
        keys = {"ssh-rsa": "AAAAr", "ssh-ed25519": ED25519.split()[1]}
        asked = iter(range(3))
        zonal.on_guest = lambda machine: (
            None if next(asked, None) is not None else machine.guest_attributes.update(keys)
        )
        info = await group.connect_info(quick)
        assert (info.host_key, info.pin_host_key) == (ED25519, True)
        assert zonal.methods.count("getGuestAttributes") == 4
        zonal.on_guest = lambda _: None
        zonal.methods.clear()
        assert (await group.connect_info(mute)).host_key is None
        assert zonal.methods.count("getGuestAttributes") < 10


async def test_a_guest_that_is_still_publishing_its_keys_is_waited_for(zonal: Cloud, opened: Open) -> None:
    """The guest agent writes them one by one; a report of some of them must not be the one that is pinned."""
    zonal.template = {"enable-guest-attributes": "TRUE"}
    ecdsa, ed25519 = ({kind: key} for kind, key in map(str.split, (ECDSA, ED25519)))
    async with opened(zonal) as group:
        (name,) = await grow(group)
        steps = iter([ecdsa, ed25519])
        zonal.on_guest = lambda machine: machine.guest_attributes.update(next(steps))
        assert (await group.connect_info(name)).host_key == ED25519
        zonal.on_guest = lambda machine: setattr(machine, "guest_attributes", ecdsa)
        assert (await group.connect_info(name)).host_key == ECDSA


async def test_a_host_key_is_read_from_the_serial_port(zonal: Cloud, opened: Open) -> None:
    """Where cloud-init prints it; whoever may not read the port does without."""
    async with opened(zonal) as group:
        (name,) = await grow(group)
        printed = "-----BEGIN SSH HOST KEY KEYS-----\n{} root\n-----END SSH HOST KEY KEYS-----\n"
        zonal.machines[name].serial[1] = printed.format(ED25519) + printed.format(generate_key().public)
        info = await group.connect_info(name)
        assert (info.host_key, info.pin_host_key) == (ED25519, True)
        zonal.granted -= {"compute.instances.getSerialPortOutput"}
        assert (await group.connect_info(name)).host_key is None


def set_password(machine: Machine) -> None:
    """Do as the guest agent of a Windows machine."""
    asked = json.loads(machine.metadata["windows-keys"].splitlines()[-1])
    modulus, exponent = (int.from_bytes(b64decode(asked[part]), "big") for part in ("modulus", "exponent"))
    sha1 = hashes.SHA1()  # noqa: S303  (as it does)
    public = rsa.RSAPublicNumbers(exponent, modulus).public_key()
    secret = public.encrypt(b"s3cret", padding.OAEP(padding.MGF1(sha1), sha1, None))
    answer = {"userName": asked["userName"], "modulus": asked["modulus"], "passwordFound": True}
    line = json.dumps(answer | {"encryptedPassword": b64encode(secret).decode()})
    machine.serial[4] = f"ready\n{line}\n"


async def test_windows_is_given_a_password_that_only_we_can_read(zonal: Cloud, opened: Open) -> None:
    """The key that it is encrypted for is of the moment; no SSH key is written."""
    zonal.on_metadata = set_password
    async with opened(zonal) as group:
        (name,) = await grow(group)
        zonal.machines[name].windows = True
        info = await group.connect_info(name)
        assert (info.os, info.protocol, info.user, info.password) == ("windows", "winrm+https", "fleeting", "s3cret")
        assert "s3cret" not in repr(info)
        assert zonal.machines[name].metadata.keys() == {"windows-keys"}


async def test_a_windows_guest_that_does_not_answer_is_not_waited_for_for_ever(zonal: Cloud, opened: Open) -> None:
    """The manager tries again later."""
    async with opened(zonal) as group:
        (name,) = await grow(group)
        zonal.machines[name].windows = True
        with pytest.raises(ProviderError, match="has not set a password within 90 s"):
            await group.connect_info(name)


# --- opening ---------------------------------------------------------------------------------------------


async def test_a_group_that_is_not_there_is_refused(zonal: Cloud, opened: Open) -> None:
    """With where it was looked for."""
    with pytest.raises(GroupRefused, match=r"no projects/acme/zones/europe-west1-b/instanceGroupManagers/others"):
        async with opened(zonal, name="others"):
            pass


async def test_a_group_with_an_autoscaler_is_refused(zonal: Cloud, opened: Open) -> None:
    """Before anything is asked of it."""
    zonal.settings = {"status": {"autoscaler": "https://www.googleapis.com/compute/v1/x/autoscalers/web"}}
    with pytest.raises(GroupRefused, match="an autoscaler controls the size of runners"):
        async with opened(zonal):
            pass
    assert zonal.methods == ["get"]


async def test_who_observes_is_told_instead_of_refused(zonal: Cloud, tmp_path: Path) -> None:
    """To look at a group does no harm, however it is set up."""
    zonal.settings = {"status": {"autoscaler": "https://www.googleapis.com/compute/v1/x/autoscalers/web"}}
    with serving(zonal):
        group = GcpGroup(config(zonal, write_credentials(tmp_path)))
        info = await group.init(Settings(owner="us", clock=LoopClock(), observe_only=True))
        await group.shutdown()
    assert info.advice[0].startswith("a manager would refuse it as it is: an autoscaler controls the size of runners")


@pytest.mark.parametrize("connector", [ConnectorConfig(os="windows"), ConnectorConfig(protocol="winrm+https")])
async def test_windows_has_no_probe_for_notices(zonal: Cloud, tmp_path: Path, connector: ConnectorConfig) -> None:
    """It is a shell's."""
    with serving(zonal):
        group = GcpGroup(config(zonal, write_credentials(tmp_path)))
        info = await group.init(Settings(owner="us", clock=LoopClock(), connector=connector))
        await group.shutdown()
    assert (info.notice_probe, Capability.NOTICES in info.capabilities) == (None, False)


async def test_a_group_is_told_what_to_change(zonal: Cloud, tmp_path: Path) -> None:
    """In `GroupInfo.advice`, and its size follows from how it lists."""
    zonal.settings = {"updatePolicy": {"type": "PROACTIVE"}, "listManagedInstancesResults": "PAGELESS"}
    with serving(zonal):
        group = GcpGroup(config(zonal, write_credentials(tmp_path)))
        info = await group.init(Settings(owner="us", clock=LoopClock()))
        await group.shutdown()
    (advice,) = info.advice
    assert "--update-policy-type=opportunistic" in advice
    assert info.max_size == 1000
    assert info.identity == "googlecloud:projects/acme/zones/europe-west1-b/instanceGroupManagers/runners"


async def test_credentials_that_cannot_be_read_are_named(zonal: Cloud, tmp_path: Path, opened: Open) -> None:
    """The file may be missing, or hold something else; its text is not shown."""
    (tmp_path / "other.json").write_text('{"type": "secret"}')
    for name in ("missing.json", "other.json"):
        with pytest.raises(AuthFailed, match=f"credentials_file .*{name} holds no Google credentials") as caught:
            async with opened(zonal, credentials_file=str(tmp_path / name)):
                pass
        assert "secret" not in str(caught.value)


async def test_missing_application_default_credentials_are_told(
    zonal: Cloud, tmp_path: Path, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what to do about it."""
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "missing.json"))
    with pytest.raises(AuthFailed, match="Google's application default credentials are missing; log in"):
        async with opened(zonal, credentials_file=None):
            pass


async def test_application_default_credentials_are_used_if_none_are_named(
    zonal: Cloud, tmp_path: Path, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Google's own tools find them."""
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(write_credentials(tmp_path)))
    async with opened(zonal, credentials_file=None) as group:
        assert await states(group) == {}


def test_the_file_that_gcloud_writes_at_a_login_is_one_of_credentials(tmp_path: Path) -> None:
    """Existing configurations name it."""
    login = {"type": "authorized_user", "client_id": "a", "client_secret": "b", "refresh_token": "c"}
    path = tmp_path / "application_default_credentials.json"
    path.write_text(json.dumps(login | {"quota_project_id": "acme"}))
    assert _credentials(config(Cloud(), path)).refresh_token == "c"


def test_credentials_for_another_cloud_than_the_public_one_lead_there(tmp_path: Path) -> None:
    """Sovereign clouds have the same API elsewhere; their files of credentials tell where."""
    sdk = _Sdk(config(Cloud(), write_credentials(tmp_path), endpoint=None))
    clients = (sdk.groups, sdk.operations, sdk.machines, sdk.machine_operations)
    assert {client.api_endpoint for client in clients} == {"compute.cloud.example"}
    sdk.close()


def test_a_service_account_can_be_impersonated(tmp_path: Path) -> None:
    """Whoever has the credentials asks for tokens of that account's, for the same scope."""
    account = "runners@acme.iam.gserviceaccount.com"
    found = _credentials(config(Cloud(), write_credentials(tmp_path), impersonate_service_account=account))
    assert type(found).__module__ == "google.auth.impersonated_credentials"
    assert found.service_account_email == account


def test_the_sdk_is_not_imported_before_a_group_is_opened() -> None:
    """It takes a second, and more memory than all else together; loading the plugin and making a group take neither."""
    program = (
        "import sys, fleeting;"
        "fleeting.load('googlecompute', {'name': 'a', 'project': 'b', 'zone': 'c', 'credentials_file': 'd'});"
        "print([name for name in sys.modules if name.startswith(('google', 'requests', 'grpc'))])"
    )
    done = subprocess.run([sys.executable, "-c", program], env=os.environ, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_plugin_is_found_by_both_names() -> None:
    """GitLab's older name for it too."""
    settings = {"name": "runners", "project": "acme", "zone": "europe-west1-b"}
    assert all(isinstance(fleeting.load(name, settings), GcpGroup) for name in ("googlecloud", "googlecompute"))


# --- permissions -----------------------------------------------------------------------------------------


def permissions_in_readme() -> set[str]:
    """The role that the README lists."""
    role = README.read_text().partition("includedPermissions:")[2].partition("```")[0]
    return {line.removeprefix("- ") for line in role.split("\n") if line.startswith("- ")}


async def test_the_role_in_the_readme_is_enough_and_not_more(cloud: Cloud, opened: Open) -> None:
    """Everything that the group can do is done with it, and each of its permissions is asked for."""
    cloud.granted, cloud.delay = frozenset(permissions_in_readme()), 0.01
    cloud.template = {"enable-guest-attributes": "TRUE"}
    async with opened(cloud) as group:
        linux, windows = await grow(group, 2)
        await group.connect_info(linux)
        cloud.machines[windows].windows = True
        cloud.on_metadata = set_password
        await group.connect_info(windows)
        await group.heartbeat(linux)
        await group.suspend([linux])
        await group.resume([linux])
        await group.decrease([linux, windows])
    used = {PERMISSIONS[method] for method in cloud.methods}
    of_the_other_kind = set() if cloud.place.startswith("regions/") else {"compute.regionOperations.get"}
    assert used | of_the_other_kind == permissions_in_readme()


# --- the owner's mark ------------------------------------------------------------------------------------


async def test_a_mark_leaves_all_else_of_the_configuration_alone(cloud: Cloud, opened: Open) -> None:
    """It is written only if nobody has changed the group since it was read; what is there already stays."""
    cloud.for_all = {"labels": {"team": "ours"}, "metadata": {"before": "1"}}

    def interfere() -> None:
        cloud.before_change = lambda: None
        cloud.for_all["metadata"]["meanwhile"] = "2"
        cloud.fingerprint = "fp-other"

    cloud.before_change = interfere
    async with opened(cloud, owner_mark=True) as group:
        await group.mark_owner(1000.4)
        others = {"before": "1", "meanwhile": "2"}
        assert cloud.for_all == {"labels": {"team": "ours"}, "metadata": {**others, "fleeting-owner": "us 1000"}}
        assert cloud.methods.count("patch") == 2
        assert await group.read_marks() == [Mark(owner="us", until=1000.0)]
        await group.mark_owner(None)
        assert cloud.for_all["metadata"] == {**others, "fleeting-owner": ""}
        assert await group.read_marks() == []
        await group.mark_owner(None)
        assert cloud.methods.count("patch") == 3
        cloud.for_all["metadata"]["fleeting-owner"] = "the build team"
        assert await group.read_marks() == [Mark(owner="the build team", until=inf)]


async def test_who_always_changes_the_group_keeps_it_from_being_marked(zonal: Cloud, opened: Open) -> None:
    """After some tries it is an error, and the group is not known to be ours."""

    def interfere() -> None:
        zonal.fingerprint += "x"

    zonal.before_change = interfere
    async with opened(zonal) as group:
        with pytest.raises(ProviderError, match="somebody else changes runners repeatedly"):
            await group.mark_owner(1000.0)
        assert zonal.methods.count("patch") == 5


async def test_a_group_that_applies_its_configuration_by_itself_is_not_marked(zonal: Cloud, opened: Open) -> None:
    """It is refused with the command that changes that, but only if it was to be marked."""
    zonal.settings = {"updatePolicy": {"type": "PROACTIVE", "instanceRedistributionType": "NONE"}}
    async with opened(zonal) as group:
        assert isinstance(group, ReadsMarks)
    with pytest.raises(GroupRefused, match="--update-policy-type=opportunistic, or set owner_mark to false"):
        async with opened(zonal, owner_mark=True):
            pass


async def test_marks_are_claimed_only_if_they_are_wanted(zonal: Cloud, tmp_path: Path) -> None:
    """Each one changes the group."""
    with serving(zonal):
        for wanted in (True, False):
            group = GcpGroup(config(zonal, write_credentials(tmp_path, zonal.url), owner_mark=wanted))
            info = await group.init(Settings(owner="us", clock=Haste()))
            await group.shutdown()
            assert (Capability.OWNER_MARK in info.capabilities) is wanted


async def test_what_a_dead_manager_has_left_is_removed_and_a_living_ones_is_not(
    cloud: Cloud, opened: Open, tmp_path: Path
) -> None:
    """By the mark, whoever's it is."""
    clock = Haste()

    def make() -> GcpGroup:
        return GcpGroup(config(cloud, tmp_path / "account.json", owner_mark=True))

    async with opened(cloud, owner_mark=True) as group:
        there = await grow(group, 2)
        await group.mark_owner(clock.now() + 60)
        assert await reap(make, clock) == []
        expired = clock.now() - HOUR - 1
        await group.mark_owner(expired)
        assert removed(await reap(make, clock)) == set(there)
        assert cloud.for_all["metadata"]["fleeting-owner"].startswith("reap-after-us-by-")
        assert cloud.for_all["metadata"]["fleeting-owner"].endswith(f" {expired:.0f}")
        assert not cloud.alive()
