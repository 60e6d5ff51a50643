"""What the group makes of what happens to a scale set: others who change it, failures, evictions, budgets."""

import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest
import trustme
from attrs import evolve
from azure.core.credentials import AccessToken

from fleeting import (
    AuthFailed,
    Capability,
    CapacityUnavailable,
    GroupRefused,
    InstanceNotFound,
    OutcomeUnknown,
    ProblemKind,
    ProviderError,
    QuotaExceeded,
    RateLimited,
    Settings,
    State,
)
from fleeting.plugins import Mark
from fleeting.testing import Trouble
from fleeting_azure import AzureGroup
from fleeting_azure import _arm as arm
from tests.fleeting_azure.arm_cloud import SET, VMS, Mode, Request
from tests.fleeting_azure.arm_rules import Refused
from tests.fleeting_azure.arm_server import Credential, group_of, running, trouble
from tests.fleeting_azure.groups import Opened, hurried, opened
from tests.later import Later
from tests.reaping import HOUR, reap, removed

if TYPE_CHECKING:
    from azure import identity
else:
    identity = Later("azure.identity")

pytestmark = pytest.mark.anyio

both = pytest.mark.parametrize("mode", ["Uniform", "Flexible"])


def sizes(requests: list[Request]) -> list[int]:
    """The capacities that were asked for."""
    return [request.body["sku"]["capacity"] for request in requests]


# --- somebody else ---------------------------------------------------------------------------------------


@both
async def test_a_stale_etag_is_looked_up_again(tmp_path: Path, mode: Mode) -> None:
    """Who changes the capacity between our look and our change loses nothing, and nor do we."""
    async with opened(tmp_path, mode) as azure:
        azure.cloud.before_change = lambda: azure.cloud._resize(2)
        assert await azure.group.increase(3, intent="i") == 3
        assert sizes(azure.cloud.asked(f"PATCH {SET}")) == [3, 5]
        await azure.until(*[State.RUNNING] * 5)


async def test_who_always_comes_before_us_is_given_way(tmp_path: Path) -> None:
    """After some tries it is an error that the manager tries again later; nothing was changed."""
    async with opened(tmp_path) as azure:
        azure.cloud.refuse[f"PATCH {SET}"] = Refused(412, "ConditionNotMet")
        with pytest.raises(ProviderError, match="somebody else changed the scale set"):
            await azure.group.increase(1, intent="i")
        assert len(azure.cloud.asked(f"PATCH {SET}")) == 4
        assert azure.cloud.capacity == 0


@both
async def test_what_somebody_else_deletes_meanwhile_keeps_nothing_alive(tmp_path: Path, mode: Mode) -> None:
    """The request that names an instance that has just gone is made again without it."""
    async with opened(tmp_path, mode) as azure:
        gone, doomed, spared = await azure.grow(3)
        azure.cloud.before_change = lambda: azure.cloud.evict(gone)
        assert set(await azure.group.decrease([gone, doomed])) == {gone, doomed}
        assert await azure.until(State.RUNNING) == [spared]
        assert len(azure.cloud.asked(f"POST {SET}/delete")) == 2


@both
async def test_an_instance_is_the_same_before_and_after_it_is_made(tmp_path: Path, mode: Mode) -> None:
    """Though Azure withholds its ``vmId`` until then; a second manager sees the same ids."""
    async with opened(tmp_path, mode, boot_time=3600.0) as azure:
        assert await azure.group.increase(2, intent="i") == 2
        ids = await azure.until(State.CREATING, State.CREATING)
        for each in azure.cloud.instances.values():
            each.at = 0.0
        assert await azure.until(State.RUNNING, State.RUNNING) == ids
        other = group_of(azure.config)
        await other.init(Settings(owner="others", clock=azure.clock))
        assert list((await other.update()).instances) == ids
        await other.shutdown()


@both
async def test_what_has_no_id_yet_is_not_shown_but_counts(tmp_path: Path, mode: Mode) -> None:
    """A cloud that tells no time of creation tells an instance apart by ``vmId``, once it is made."""
    async with opened(tmp_path, mode, boot_time=3600.0, tells_time=False) as azure:
        assert await azure.group.increase(2, intent="i") == 2
        assert await azure.until() == []
        assert arm.live(azure.group._machines) == 2
        for each in azure.cloud.instances.values():
            each.at = 0.0
        ids = await azure.until(State.RUNNING, State.RUNNING)
        assert set(ids) == {each.vm_id for each in azure.cloud.instances.values()}
        assert set(await azure.group.decrease(ids)) == set(ids)
        assert await azure.until(State.DELETING, State.DELETING) == ids


async def test_an_instance_id_that_came_back_is_not_taken_for_the_old_one(tmp_path: Path) -> None:
    """Asked about an instance that is gone, the group does not answer about, or delete, the one that has its name."""
    async with opened(tmp_path) as azure:
        (old,) = await azure.grow(1)
        azure.cloud.evict(old)
        await azure.cloud.launch(1)
        (new,) = azure.cloud.instances
        assert azure.cloud.instances[new].name == azure.group._machines[old].name
        for question in (azure.group.connect_info, azure.group.heartbeat):
            with pytest.raises(InstanceNotFound):
                await question(old)
        assert await azure.group.decrease([old]) == [old]
        assert await azure.until(State.RUNNING) == [new]
        assert azure.cloud.writes() == 1


@pytest.mark.parametrize("status", [400, 404])
async def test_an_instance_id_that_is_not_active_is_an_instance_that_is_gone(tmp_path: Path, status: int) -> None:
    """Azure has that for one that goes between the list and the question."""
    async with opened(tmp_path) as azure:
        (instance,) = await azure.grow(1)
        azure.cloud.refuse["/virtualMachines/0"] = Refused(status, "InvalidParameter", target="instanceIds")
        with pytest.raises(InstanceNotFound):
            await azure.group.connect_info(instance)


# --- what does not come ----------------------------------------------------------------------------------


@both
async def test_an_allocation_that_fails_is_a_problem_and_is_not_added_to(tmp_path: Path, mode: Mode) -> None:
    """It is told with Azure's code and time; and what is asked for later does not come beside what failed."""
    async with opened(tmp_path, mode) as azure:
        await azure.grow(1)
        async with trouble(azure.cloud, Trouble.STOCK_OUT)():
            assert await azure.group.increase(4, intent="i") == 4
            (problem,) = (await azure.group.update()).problems
        assert (problem.kind, problem.since) == (ProblemKind.CAPACITY, 1767323045.0)
        assert problem.message.startswith("Azure says AllocationFailed: there is no room")
        assert azure.cloud.capacity == 5
        assert len(await azure.grow(5)) == 6
        assert (await azure.group.update()).problems == []
        assert azure.cloud.victims == []


async def test_the_time_of_a_problem_is_that_of_the_first_failure(tmp_path: Path) -> None:
    """However often Azure tries; and what came all the same is none."""
    async with opened(tmp_path) as azure:
        (instance,) = await azure.grow(1)
        await azure.cloud.set_state(instance, "Failed/running")
        azure.cloud.instances[instance].failure = "VMExtensionProvisioningError"
        assert (await azure.group.update()).problems == []
        told = {"code": "ProvisioningState/failed/AllocationFailed", "message": "no room"}
        for minute in (4, 5):
            azure.cloud.statuses = [{**told, "time": f"2026-01-02T03:0{minute}:05+00:00"}]
            (problem,) = (await azure.group.update()).problems
            assert problem.since == 1767323045.0


@both
async def test_instances_that_are_not_listed_yet_are_not_deleted(tmp_path: Path, mode: Mode) -> None:
    """After a failure the capacity is not lowered to what a list shows: Azure would choose who goes."""
    async with opened(tmp_path, mode) as azure:
        await azure.grow(4)
        async with trouble(azure.cloud, Trouble.STOCK_OUT)():
            await azure.group.increase(1, intent="i")
        azure.cloud.unlisted = 3
        assert await azure.group.increase(1, intent="i") == 1
        azure.cloud.unlisted = 0
        await azure.until(*[State.RUNNING] * 5)
        assert azure.cloud.victims == []


async def test_a_start_without_room_leaves_the_instance_suspended(tmp_path: Path) -> None:
    """It failed, and still it is what it was, with a problem that names its offering."""
    async with opened(tmp_path, zones=["2"]) as azure:
        (instance,) = await azure.grow(1)
        await azure.group.suspend([instance])
        await azure.until(State.SUSPENDED)
        async with trouble(azure.cloud, Trouble.STOCK_OUT)():
            assert await azure.group.resume([instance]) == [instance]
            await azure.until(State.SUSPENDED)
        (problem,) = (await azure.group.update()).problems
        assert (problem.kind, problem.offering) == (ProblemKind.CAPACITY, "westeurope-2/Standard_D2s_v5")


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("SkuNotAvailable", CapacityUnavailable),
        ("QuotaExceeded", QuotaExceeded),
        ("LinkedAuthorizationFailed", AuthFailed),
        ("Conflict", ProviderError),
    ],
)
async def test_codes_choose_errors(tmp_path: Path, code: str, error: type[ProviderError]) -> None:
    """Refused outright, a change is an error of the class that says what to do, and none of unknown outcome."""
    async with opened(tmp_path) as azure:
        azure.cloud.refuse[f"PATCH {SET}"] = Refused(409, code)
        with pytest.raises(error, match=f"409 {code}") as caught:
            await azure.group.increase(1, intent="i")
        assert type(caught.value) is error


@both
async def test_an_operation_that_never_ends_holds_nothing_up(tmp_path: Path, mode: Mode) -> None:
    """Its instances stay in creating; more can be asked for, they can be deleted, and no thread waits for it."""
    async with opened(tmp_path, mode, stuck=True) as azure:
        threads = {thread.name for thread in threading.enumerate() if "LROPoller" in thread.name}
        assert await azure.group.increase(1, intent="i") == 1
        (instance,) = await azure.until(State.CREATING)
        assert await azure.group.increase(1, intent="i") == 1
        await azure.until(State.CREATING, State.CREATING)
        assert await azure.group.decrease([instance]) == [instance]
        await azure.until(State.DELETING, State.CREATING)
        assert await azure.group.decrease([instance]) == [instance]
        assert len(azure.cloud.asked(f"POST {SET}/delete")) == 1
        assert threads == set()
        assert not [request for request in azure.cloud.log if "/operations/" in request.path]


# --- asked too often, or answered badly ------------------------------------------------------------------


@pytest.mark.parametrize(("header", "advice"), [("37", 37.0), ("0", None), ("soon", None), (None, None)])
async def test_throttling_is_told_with_azures_advice(tmp_path: Path, header: str | None, advice: float | None) -> None:
    """With ``Retry-After`` and without, it is asked once, and the manager waits."""
    async with opened(tmp_path) as azure:
        headers = {} if header is None else {"Retry_After": header}
        azure.cloud.refuse[f"PATCH {SET}"] = Refused(429, "OperationNotAllowed", "Too many requests.", **headers)
        with pytest.raises(RateLimited) as caught:
            await azure.group.increase(1, intent="i")
        assert caught.value.retry_after == advice
        assert len(azure.cloud.asked(f"PATCH {SET}")) == 1


async def test_the_view_does_without_problems_that_azure_does_not_tell_now(tmp_path: Path) -> None:
    """If only the scale set itself may not be looked at so often, the instances are shown, and what was told before."""
    async with opened(tmp_path) as azure:
        azure.cloud._resize(0, "AllocationFailed")
        first = (await azure.group.update()).problems
        azure.cloud.refuse["/instanceView"] = Refused(429, "TooManyRequests")
        assert (await azure.group.update()).problems == first != []


async def test_the_scale_set_is_looked_at_as_often_as_azure_allows(tmp_path: Path) -> None:
    """However often the view is fetched; the instances are listed each time."""
    async with opened(tmp_path) as azure:
        begun = azure.clock.now()
        for _ in range(30):
            await azure.group.update()
        assert len(azure.cloud.asked("/instanceView")) <= 10 + (azure.clock.now() - begun) / 12 + 1
        assert len(azure.cloud.asked(f"GET {SET}/virtualMachines")) == 30


@pytest.mark.parametrize("status", [500, 502, 503, 504])
async def test_a_change_that_failed_after_all_is_not_made_twice(tmp_path: Path, status: int) -> None:
    """The SDK by itself would repeat it at once, though it may have been carried out."""
    async with opened(tmp_path) as azure:
        azure.cloud.refuse[f"PATCH {SET}"] = Refused(status, "InternalExecutionError")
        with pytest.raises(OutcomeUnknown):
            await azure.group.increase(1, intent="i")
        assert len(azure.cloud.asked(f"PATCH {SET}")) == 1


async def test_an_answer_that_breaks_on_the_way_is_a_lost_one(tmp_path: Path) -> None:
    """The SDK has one class for a connection that TLS sees break and for one that was never made."""
    async with opened(tmp_path) as azure:
        azure.cloud.before_change = lambda: setattr(azure.cloud, "garbles", True)
        with pytest.raises(OutcomeUnknown):
            await azure.group.increase(1, intent="i")


async def test_who_is_not_trusted_is_asked_for_nothing(tmp_path: Path) -> None:
    """A certificate of another authority, and a file that is not there, are told with the setting to correct."""
    async with running(tmp_path, "Uniform") as (cloud, config):
        other = tmp_path / "other.pem"
        trustme.CA().cert_pem.write_to_path(other)
        for file, said in ((other, "is not trusted; correct endpoint or ca_file"), (tmp_path / "no", "no ca_file")):
            with pytest.raises(ProviderError, match=said):
                await group_of(evolve(config, ca_file=str(file))).init(Settings(owner="tests", clock=hurried()))
        assert cloud.log == []


async def test_heartbeats_of_the_same_moment_are_answered_by_one_list(tmp_path: Path) -> None:
    """However many instances there are; and who is gone is not found."""
    async with opened(tmp_path, page=30) as azure:
        gone, *left = await azure.grow(20)
        azure.cloud.evict(gone)
        azure.cloud.log.clear()

        async def lost() -> None:
            with pytest.raises(InstanceNotFound):
                await azure.group.heartbeat(gone)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lost)
            for name in left:
                tasks.start_soon(azure.group.heartbeat, name)
        assert 1 <= len(azure.cloud.log) <= 2
        assert len(azure.cloud.asked(f"GET {SET}/virtualMachines")) == len(azure.cloud.log)


async def test_heartbeats_that_come_one_by_one_keep_to_a_budget(tmp_path: Path) -> None:
    """After a burst, the instances are listed for them every three seconds at most."""
    async with opened(tmp_path) as azure:
        (name,) = await azure.grow(1)
        azure.cloud.log.clear()
        begun = azure.clock.now()
        for _ in range(15):
            await azure.group.heartbeat(name)
        assert azure.clock.now() - begun >= 15
        assert len(azure.cloud.log) == 15


async def test_where_nobody_listens_nothing_was_done(tmp_path: Path) -> None:
    """Only where nothing was sent is that certain."""
    async with running(tmp_path, "Uniform") as (_, config):
        with nobody() as port:
            group = group_of(evolve(config, endpoint=f"https://127.0.0.1:{port}"))
            with pytest.raises(ProviderError, match="cannot be reached") as caught:
                await group.init(Settings(owner="tests", clock=hurried()))
        assert not isinstance(caught.value, OutcomeUnknown)


@contextmanager
def nobody() -> Iterator[int]:
    """Hold a port, without listening."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


async def test_wishes_that_must_wait_become_one_change(tmp_path: Path) -> None:
    """Azure allows a few updates a minute: of forty wishes at once, one change is made; each gets its share."""
    async with opened(tmp_path) as azure:
        answers: list[int] = []

        async def wish(count: int) -> None:
            answers.append(await azure.group.increase(count, intent="i"))

        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(wish, 1)
                tasks.start_soon(wish, 2)
        assert sorted(answers) == [1] * 20 + [2] * 20
        assert len(azure.cloud.asked(f"PATCH {SET}")) <= 2
        assert azure.cloud.capacity == 60


async def test_changes_keep_to_the_budget(tmp_path: Path) -> None:
    """After a burst, one every fifteen seconds, however they are asked for."""
    async with opened(tmp_path) as azure:
        begun = azure.clock.now()
        for _ in range(12):
            await azure.group.increase(1, intent="i")
        assert azure.clock.now() - begun >= 30
        assert len(azure.cloud.asked(f"PATCH {SET}")) == 12


async def test_who_gives_up_while_waiting_is_not_asked_for(tmp_path: Path) -> None:
    """A wish that was cancelled in the queue is dropped; the others are carried out."""
    async with opened(tmp_path) as azure:
        async with trouble(azure.cloud, Trouble.SLOW)(), anyio.create_task_group() as tasks:
            tasks.start_soon(increase, azure.group, 1)
            await until(lambda: bool(azure.cloud.asked(f"GET {SET}")))
            with anyio.CancelScope() as given_up:
                tasks.start_soon(cancel_soon, given_up)
                await azure.group.increase(10, intent="i")
            tasks.start_soon(increase, azure.group, 2)
        assert azure.cloud.capacity == 3


async def test_who_asks_for_others_too_and_gives_up_leaves_nothing_to_be_asked_twice(tmp_path: Path) -> None:
    """Azure does what it was asked to; the others know that, and do not ask again."""
    async with opened(tmp_path) as azure:
        given_up = anyio.CancelScope()
        azure.cloud.before_change = given_up.cancel

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(within, given_up, azure.group)
            tasks.start_soon(increase, azure.group, 2)
        assert sizes(azure.cloud.asked(f"PATCH {SET}")) == [3]
        assert azure.cloud.capacity == 3


async def increase(group: AzureGroup, count: int) -> None:
    """Ask for instances."""
    await group.increase(count, intent="i")


async def within(scope: anyio.CancelScope, group: AzureGroup) -> None:
    """Ask for one instance, unless the scope is cancelled."""
    with scope:
        await group.increase(1, intent="i")


async def cancel_soon(scope: anyio.CancelScope) -> None:
    """Cancel it once everybody else waits."""
    await anyio.wait_all_tasks_blocked()
    scope.cancel()


async def until(met: Callable[[], bool]) -> None:
    """Wait for the cloud."""
    while not met():
        await anyio.lowlevel.checkpoint()


async def test_no_more_is_accepted_than_a_scale_set_can_hold(tmp_path: Path) -> None:
    """Beyond Azure's ceiling a part is, in the order of asking; and nothing is asked for at the ceiling."""
    async with opened(tmp_path, properties={"singlePlacementGroup": True}, capacity=98, page=100) as azure:
        assert azure.info.max_size == 100
        assert await azure.group.increase(5, intent="i") == 2
        assert await azure.group.increase(5, intent="i") == 0
        assert sizes(azure.cloud.asked(f"PATCH {SET}")) == [100]


# --- eviction, suspension --------------------------------------------------------------------------------

SPOT = {"priority": "Spot", "evictionPolicy": "Delete"}


@both
async def test_an_evicted_instance_is_gone_and_replaced_by_no_more_than_is_asked(tmp_path: Path, mode: Mode) -> None:
    """Deleted on eviction, it leaves the view; its offering says that it is a spot instance."""
    async with opened(tmp_path, mode, profile=SPOT) as azure:
        evicted, left = await azure.grow(2)
        assert (await azure.shown())[left].offering == "westeurope/Standard_D2s_v5/spot"
        azure.cloud.evict(evicted)
        assert await azure.until(State.RUNNING) == [left]
        assert len(await azure.grow(1)) == 2


async def test_where_azure_evicts_by_deallocating_that_is_a_failure(tmp_path: Path) -> None:
    """It would else be taken for suspended, and its jobs would wait for it; so nothing can be suspended there."""
    profile = {**SPOT, "evictionPolicy": "Deallocate"}
    async with opened(tmp_path, profile=profile) as azure:
        assert Capability.SUSPEND_RESUME not in azure.info.capabilities
        (instance,) = await azure.grow(1)
        await azure.cloud.set_state(instance, "Succeeded/deallocated")
        await azure.until(State.FAILED)


@both
async def test_suspended_and_resumed(tmp_path: Path, mode: Mode) -> None:
    """Deallocated and started, asked once each; who is there already is accepted, who is gone is not."""
    async with opened(tmp_path, mode) as azure:
        assert Capability.SUSPEND_RESUME in azure.info.capabilities
        one, two = await azure.grow(2)
        assert set(await azure.group.suspend([one, two, "gone"])) == {one, two}
        await azure.until(State.SUSPENDED, State.SUSPENDED)
        assert await azure.group.suspend([one]) == [one]
        assert await azure.group.resume([two]) == [two]
        await azure.until(State.SUSPENDED, State.RUNNING)
        assert await azure.group.resume([two]) == [two]
        per_set = [request.line for request in azure.cloud.log if request.method == "POST" and SET in request.path]
        per_vm = [request.line for request in azure.cloud.log if request.method == "POST" and VMS in request.path]
        assert (len(per_set), len(per_vm)) == ((2, 0) if mode == "Uniform" else (0, 3))
        assert await azure.group.decrease([one]) == [one]
        assert await azure.until(State.RUNNING) == [two]


# --- opening ---------------------------------------------------------------------------------------------

HARM = [
    ({"overprovision": True}, "set overprovision to false"),
    ({"automaticRepairsPolicy": {"enabled": True}}, "automaticRepairsPolicy.enabled"),
    ({"resiliencyPolicy": {"automaticZoneRebalancingPolicy": {"enabled": True}}}, "automaticZoneRebalancingPolicy"),
]


@pytest.mark.parametrize(("properties", "remedy"), HARM, ids=["overprovision", "repairs", "zones"])
async def test_a_set_up_that_breaks_jobs_is_refused(tmp_path: Path, properties: object, remedy: str) -> None:
    """The message says what to change; who only looks gets it as advice."""
    async with running(tmp_path, "Uniform", properties=properties) as (_, config):
        with pytest.raises(GroupRefused, match=remedy):
            await group_of(config).init(Settings(owner="tests", clock=hurried()))
    async with opened(tmp_path, observe_only=True, properties=properties) as azure:
        assert any(remedy in advice for advice in azure.info.advice)


@both
@pytest.mark.parametrize(("enabled", "target"), [(True, SET), (True, SET.upper()), (False, SET), (True, f"{SET}-2")])
async def test_autoscale_settings_of_azures_are_found(
    tmp_path: Path, mode: Mode, *, enabled: bool, target: str
) -> None:
    """Those that are enabled and about this scale set are refused, in whatever case; no others are."""
    settings = [{"properties": {"enabled": enabled, "targetResourceUri": target}}]
    refused = enabled and target.lower() == SET.lower()
    async with running(tmp_path, mode, autoscale=settings) as (_, config):
        group = group_of(config)
        if refused:
            with pytest.raises(GroupRefused, match="autoscale settings"):
                await group.init(Settings(owner="tests", clock=hurried()))
        else:
            assert (await group.init(Settings(owner="tests", clock=hurried()))).advice == ()
            await group.shutdown()


async def test_autoscale_settings_are_found_on_any_page(tmp_path: Path) -> None:
    """A resource group may have many, and some that are about nothing."""
    others = [{"properties": {"enabled": True, "targetResourceUri": target}} for target in (None, "x", "y", "z")]
    ours = {"properties": {"enabled": True, "targetResourceUri": SET}}
    async with running(tmp_path, "Uniform", autoscale=[*others, ours], page=2) as (_, config):
        with pytest.raises(GroupRefused, match="autoscale settings"):
            await group_of(config).init(Settings(owner="tests", clock=hurried()))


async def test_what_may_not_be_seen_is_said(tmp_path: Path) -> None:
    """A role that does not include autoscale settings does; the user is told what was not looked at."""
    async with running(tmp_path, "Uniform", properties={"upgradePolicy": {"mode": "Rolling"}}) as (cloud, config):
        cloud.refuse["autoscaleSettings"] = Refused(403, "AuthorizationFailed")
        group = group_of(config)
        info = await group.init(Settings(owner="tests", clock=hurried()))
        await group.shutdown()
    assert [advice.split()[0:3] for advice in info.advice] == [
        ["its", "upgrade", "policy"],
        ["whether", "autoscale", "settings"],
    ]


async def test_a_scale_set_that_is_not_there_is_named(tmp_path: Path) -> None:
    """The user is told which of the settings to look at."""
    async with running(tmp_path, "Uniform") as (_, config):
        group = group_of(evolve(config, name="runers"))
        with pytest.raises(GroupRefused, match="no scale set 'runers' in resource group 'ci'"):
            await group.init(Settings(owner="tests", clock=hurried()))


async def test_a_scale_set_without_a_profile_is_refused(tmp_path: Path) -> None:
    """A flexible one may have none; then Azure cannot make instances."""
    async with running(tmp_path, "Flexible", properties={"virtualMachineProfile": None}) as (_, config):
        with pytest.raises(GroupRefused, match="no virtual machine profile"):
            await group_of(config).init(Settings(owner="tests", clock=hurried()))


class Locked:
    """A credential chain that finds nothing, and says at length where it has looked."""

    def get_token(self, *scopes: str, **_: object) -> AccessToken:
        """Find none."""
        raise identity.CredentialUnavailableError(
            "EnvironmentCredential: hunter2 is wrong. ManagedIdentityCredential: …"
        )


async def test_without_credentials_the_user_is_told_what_to_do(tmp_path: Path) -> None:
    """And not all that was tried, which may name secrets."""
    async with running(tmp_path, "Uniform") as (cloud, config):
        with pytest.raises(AuthFailed) as caught:
            await AzureGroup(config, credential=Locked()).init(Settings(owner="tests", clock=hurried()))
        said = "no credentials for Azure were found; log in, or give this machine an identity"
        assert (str(caught.value), caught.value.__context__) == (said, None)
        assert cloud.log == []


async def test_the_token_is_asked_for_this_endpoint(tmp_path: Path) -> None:
    """The SDK's own authentication asks for the scope of the cloud that the endpoint belongs to."""
    async with running(tmp_path, "Uniform") as (cloud, config):
        credential = Credential()
        group = AzureGroup(config, credential=credential)
        await group.init(Settings(owner="tests", clock=hurried()))
        await group.shutdown()
        assert credential.scopes == (f"{cloud.base}/.default",)


# --- how to connect --------------------------------------------------------------------------------------

WINDOWS = {"storageProfile": {"osDisk": {"osType": "Windows"}}}


def listening(*protocols: str) -> object:
    """A profile of Windows with listeners for WinRM."""
    listeners = [{"protocol": protocol} for protocol in protocols]
    windows = {"windowsConfiguration": {"winRM": {"listeners": listeners}}}
    return {**WINDOWS, "osProfile": {"adminUsername": "Admin", **windows}}


@both
@pytest.mark.parametrize(
    ("profile", "expected"),
    [
        ({}, ("linux", "ssh", "azureuser")),
        ({"osProfile": None, **WINDOWS}, ("windows", "winrm+https", None)),
        (listening("Http", "Https"), ("windows", "winrm+https", "Admin")),
        (listening("Http"), ("windows", "winrm", "Admin")),
    ],
    ids=["linux", "windows", "windows-https", "windows-http"],
)
async def test_how_to_connect(tmp_path: Path, mode: Mode, profile: object, expected: tuple[str, str, str]) -> None:
    """Protocol and user come from the profile, with https preferred; addresses from the primary configuration."""
    async with opened(tmp_path, mode, profile=profile) as azure:
        (instance,) = await azure.grow(1)
        info = await azure.group.connect_info(instance)
        assert (info.os, info.protocol, info.user) == expected
        assert (info.internal_addr, info.external_addr) == ("10.1.0.4", "127.0.1.4")
        assert (azure.info.notice_probe is not None) == (info.os == "linux")


async def test_without_a_public_address_there_is_none(tmp_path: Path) -> None:
    """And the architecture is told by the size's name."""
    async with opened(tmp_path, public=False, size="Standard_D4pds_v6") as azure:
        (instance,) = await azure.grow(1)
        info = await azure.group.connect_info(instance)
        assert (info.external_addr, info.arch) == (None, "arm64")


@pytest.mark.parametrize("call", [AzureGroup.connect_info, AzureGroup.heartbeat])
async def test_an_instance_of_an_earlier_manager_is_found(
    tmp_path: Path, call: Callable[[AzureGroup, str], Awaitable[object]]
) -> None:
    """Before the first view, it is looked up."""
    async with opened(tmp_path) as azure:
        await azure.cloud.launch(1)
        azure.cloud.tick()
        for instance in azure.cloud.instances:
            await call(azure.group, instance)
        assert len(azure.cloud.asked(f"GET {SET}/virtualMachines")) == 1


# --- the owner's mark ------------------------------------------------------------------------------------


def marking(azure: Opened) -> AzureGroup:
    """Another object for the same scale set, which is to be marked."""
    return group_of(evolve(azure.config, owner_mark=True))


@both
async def test_a_mark_leaves_other_tags_and_the_changes_of_others_alone(tmp_path: Path, mode: Mode) -> None:
    """It is written only if nobody has changed the scale set since it was read."""
    async with opened(tmp_path, mode) as azure:
        azure.cloud.tags = {"team": "ours"}
        azure.cloud.before_change = lambda: azure.cloud._resize(2)
        await azure.group.mark_owner(1000.4)
        assert azure.cloud.tags == {"team": "ours", "fleeting-owner": "tests 1000"}
        assert azure.cloud.capacity == 2
        assert len(azure.cloud.asked(f"PATCH {SET}")) == 2
        assert await azure.group.read_marks() == [Mark(owner="tests", until=1000.0)]
        await azure.group.mark_owner(None)
        assert azure.cloud.tags == {"team": "ours", "fleeting-owner": ""}
        assert await azure.group.read_marks() == []
        before = azure.cloud.writes()
        await azure.group.mark_owner(None)
        assert azure.cloud.writes() == before


async def test_a_mark_that_is_none_keeps_nobody_out_and_proves_nobodys_death(tmp_path: Path) -> None:
    """Somebody may have written anything into the tag."""
    async with opened(tmp_path) as azure:
        azure.cloud.tags = {"fleeting-owner": "the build team"}
        assert await azure.group.read_marks() == [Mark(owner="the build team", until=inf)]
        await azure.group.mark_owner(1000.0)
        assert azure.cloud.tags == {"fleeting-owner": "tests 1000"}


async def test_who_always_changes_the_scale_set_keeps_it_from_being_marked(tmp_path: Path) -> None:
    """After some tries it is an error, and it is not known to be ours."""
    async with opened(tmp_path) as azure:
        azure.cloud.refuse[f"PATCH {SET}"] = Refused(412, "ConditionNotMet")
        with pytest.raises(ProviderError, match="somebody else changed the scale set"):
            await azure.group.mark_owner(1000.0)
        assert len(azure.cloud.asked(f"PATCH {SET}")) == 4


@pytest.mark.parametrize("policy", ["Automatic", "Rolling"])
async def test_a_scale_set_that_restarts_instances_when_it_changes_is_not_marked(tmp_path: Path, policy: str) -> None:
    """It is refused with the reason, but only if it was to be marked; marks are claimed only then, too."""
    async with opened(tmp_path, properties={"upgradePolicy": {"mode": policy}}) as azure:
        assert Capability.OWNER_MARK not in azure.info.capabilities
        with pytest.raises(GroupRefused, match=r"upgradePolicy\.mode to Manual, or owner_mark to false"):
            await marking(azure).init(Settings(owner="others", clock=azure.clock))


async def test_what_a_dead_manager_has_left_is_removed_and_a_living_ones_is_not(tmp_path: Path) -> None:
    """By the mark, whoever's it is."""
    async with opened(tmp_path) as azure:
        there = await azure.grow(2)
        await azure.group.mark_owner(azure.clock.now() + 10 * HOUR)
        assert await reap(lambda: marking(azure), azure.clock) == []
        expired = azure.clock.now() - HOUR - 1
        await azure.group.mark_owner(expired)
        assert removed(await reap(lambda: marking(azure), azure.clock)) == set(there)
        assert azure.cloud.tags["fleeting-owner"].startswith("reap-after-tests-by-")
        assert azure.cloud.tags["fleeting-owner"].endswith(f" {expired:.0f}")
        assert not await azure.cloud.alive()
