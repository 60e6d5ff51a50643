"""Our server is a resource manager as far as the real SDK can tell, used here as anybody would use it."""

import gc
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from anyio import to_thread
from azure.core import MatchConditions
from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
    ResourceModifiedError,
    ResourceNotFoundError,
    ServiceRequestError,
)
from azure.core.rest import HttpRequest

from fleeting.testing import Trouble
from tests.fleeting_azure.arm_cloud import GROUP, NETWORK, SET, VMS, Cloud, Mode
from tests.fleeting_azure.arm_rules import SUBSCRIPTION, Refused
from tests.fleeting_azure.arm_server import Credential, running, trouble
from tests.later import Later

if TYPE_CHECKING:
    from azure.mgmt import compute
else:
    compute = Later("azure.mgmt.compute")

pytestmark = [pytest.mark.anyio, pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")]

both = pytest.mark.parametrize("mode", ["Uniform", "Flexible"])
WHERE = ("ci", "runners")
SIZE: Any = {"sku": {"capacity": 2}}


@pytest.fixture(autouse=True)
def collect() -> Iterator[None]:
    """Clear up after the SDK, which drops the connections of answers that it tries again for."""
    yield
    gc.collect()


@asynccontextmanager
async def client(
    directory: Path,
    mode: Mode = "Uniform",
    **settings: Any,  # noqa: ANN401  (those of the cloud)
) -> AsyncIterator["tuple[Cloud, compute.ComputeManagementClient]"]:
    """Run a cloud, and give the SDK's client for it, as it comes but for the endpoint and quick retries."""
    async with running(directory, mode, **settings) as (cloud, config):
        with compute.ComputeManagementClient(
            Credential(),
            SUBSCRIPTION,
            base_url=config.endpoint,
            connection_verify=config.ca_file,
            polling_interval=0,
            retry_backoff_factor=0.001,
        ) as opened:
            yield cloud, opened


@both
async def test_lists_have_pages(tmp_path: Path, mode: Mode) -> None:
    """Seven instances are three requests of three, and the views are on all pages."""
    async with client(tmp_path, mode) as (cloud, azure):
        await cloud.launch(7)

        def listed() -> list[Any]:
            if mode == "Uniform":
                return list(azure.virtual_machine_scale_set_vms.list(*WHERE, expand="instanceView"))
            ours = f"'virtualMachineScaleSet/id' eq '{SET}'"
            return list(azure.virtual_machines.list(WHERE[0], filter=ours, expand="instanceView"))

        found = await to_thread.run_sync(listed)
        assert {each.properties.vm_id for each in found} == {each.vm_id for each in cloud.instances.values()}
        assert [each.properties.instance_view.statuses[-1].code for each in found] == ["PowerState/running"] * 7
        assert [request.query.get("$skiptoken") for request in cloud.log] == [None, "3", "6"]


async def test_a_flexible_set_lists_no_details_and_no_interfaces(tmp_path: Path) -> None:
    """As Azure's do not, which is why the group asks for the machines themselves."""
    async with client(tmp_path, "Flexible") as (cloud, azure):
        await cloud.launch(1)
        (found,) = await to_thread.run_sync(lambda: list(azure.virtual_machine_scale_set_vms.list(*WHERE)))
        assert found.instance_id is not None
        assert found.properties is None
        with pytest.raises(ResourceNotFoundError):
            await to_thread.run_sync(lambda: azure.virtual_machine_scale_set_vms.get(*WHERE, found.instance_id or ""))


@both
async def test_an_etag_guards_the_capacity(tmp_path: Path, mode: Mode) -> None:
    """A change from a stale one is refused with 412; one from the current one is made, and changes it."""
    async with client(tmp_path, mode) as (cloud, azure):

        def resize(capacity: int, etag: str | None) -> Any:  # noqa: ANN401  (the SDK's)
            match: Any = {"etag": etag, "match_condition": MatchConditions.IfNotModified}
            body: Any = {"sku": {"capacity": capacity}}
            return azure.virtual_machine_scale_sets.begin_update(*WHERE, body, **match).result()

        stale = (await to_thread.run_sync(azure.virtual_machine_scale_sets.get, *WHERE)).etag
        assert (await to_thread.run_sync(resize, 2, stale)).etag != stale
        with pytest.raises(ResourceModifiedError):
            await to_thread.run_sync(resize, 3, stale)
        assert len(cloud.instances) == 2


async def test_operations_are_polled_to_their_end(tmp_path: Path) -> None:
    """The SDK's own poller sees one succeed and one fail, with Azure's code."""
    async with client(tmp_path, boot_time=0.05) as (cloud, azure):
        sets = azure.virtual_machine_scale_sets
        body: Any = {"sku": {"capacity": 1}}
        done = await to_thread.run_sync(lambda: sets.begin_update(*WHERE, body).result())
        assert done.sku is not None
        assert done.sku.capacity == 1
        assert any("/operations/" in request.path for request in cloud.log)
        async with trouble(cloud, Trouble.STOCK_OUT)():
            with pytest.raises(HttpResponseError, match="AllocationFailed"):
                await to_thread.run_sync(lambda: sets.begin_update(*WHERE, body).result())
        gone: Any = {"instanceIds": ["0"]}
        await to_thread.run_sync(lambda: sets.begin_delete_instances(*WHERE, gone).wait())
        assert await cloud.alive() == set()


async def test_errors_have_the_sdks_classes(tmp_path: Path) -> None:
    """404, 401, 409 and 400 are told apart by class, code and target."""
    async with client(tmp_path) as (cloud, azure):
        sets = azure.virtual_machine_scale_sets
        with pytest.raises(ResourceNotFoundError):
            await to_thread.run_sync(sets.get, "ci", "others")
        async with trouble(cloud, Trouble.AUTH)():
            with pytest.raises(ClientAuthenticationError):
                await to_thread.run_sync(sets.get, *WHERE)
        async with trouble(cloud, Trouble.QUOTA)():
            with pytest.raises(ResourceExistsError, match="OperationNotAllowed"):
                await to_thread.run_sync(lambda: sets.begin_update(*WHERE, SIZE))
        unknown: Any = {"instanceIds": ["7"]}
        with pytest.raises(HttpResponseError) as caught:
            await to_thread.run_sync(lambda: sets.begin_delete_instances(*WHERE, unknown))
        assert caught.value.error is not None
        assert (caught.value.error.code, caught.value.error.target) == ("InvalidParameter", "instanceIds")


async def asked(azure: "compute.ComputeManagementClient", method: str, url: str, **more: Any) -> Any:  # noqa: ANN401  (JSON)
    """Ask as clients do that are not the compute SDK; returns the status, Azure's code for an error, and the body."""
    if "api-version" not in url:
        url += "?api-version=2018-10-01"
    ask = partial(azure.send_request, HttpRequest(method, url, **more))
    answer = await to_thread.run_sync(ask)
    body = answer.json() if answer.content else None
    return answer.status_code, body.get("error", {}).get("code") if body else None, body


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        (f"{SET}/networks", 404, "InvalidResourceType"),
        (f"{SET}/virtualMachines/0/disks/os", 404, "InvalidResourceType"),
        (f"{SET}/virtualMachines/0/networkInterfaces/other", 404, "ResourceNotFound"),
        (f"{SET}/virtualMachines/0/networkInterfaces/nic/ipConfigurations/ip", 404, "InvalidResourceType"),
        (f"{SET}/virtualMachines/0/networkInterfaces/nic/ipConfigurations/x/publicIPAddresses/pub", 404, None),
        (f"{SET}/virtualMachines/7", 404, "ResourceNotFound"),
        (f"{SET}/virtualMachines/7/networkInterfaces/nic", 404, "ResourceNotFound"),
        (f"{SET}/start", 405, "MethodNotAllowed"),
        (SET.replace("runners", "others"), 404, "ResourceNotFound"),
        (SET.replace("/ci/", "/cd/"), 404, "ResourceGroupNotFound"),
        (SET.replace("0001", "0002"), 404, "SubscriptionNotFound"),
        (SET.replace("Compute", "Commute"), 404, "InvalidResourceNamespace"),
        (f"{NETWORK}/virtualNetworks/net", 404, "InvalidResourceType"),
        (f"{NETWORK}/networkInterfaces/x", 404, "ResourceNotFound"),
        (f"{GROUP}/providers/Microsoft.Compute/disks/os", 404, "InvalidResourceType"),
        (f"{SET}?api-version=2018-10-02", 400, "NoRegisteredProviderFound"),
        (f"{SET}/networkInterfaces?api-version=2026-04-01", 400, "NoRegisteredProviderFound"),
        (f"{SET}?api-version=", 400, "NoRegisteredProviderFound"),
        (f"{SET}/virtualMachines?$expand=everything&api-version=2018-10-01", 400, "InvalidParameter"),
        (f"{VMS}?$filter=name&api-version=2018-10-01", 400, "BadRequest"),
        (f"{VMS}?$expand=instanceView&api-version=2018-10-01", 400, "BadRequest"),
        ("/", 404, "NotFound"),
    ],
)
async def test_what_there_is_not_is_refused(tmp_path: Path, path: str, status: int, code: str | None) -> None:
    """Whatever the path begins like: nothing answers for what it does not know."""
    async with client(tmp_path) as (cloud, azure):
        await cloud.launch(1)
        found = await asked(azure, "GET", f"{cloud.base}{path}")
        assert (found[0], found[1]) == (status, code or found[1])
        assert found[1], "an error has a code"


async def test_a_version_of_the_api_is_required(tmp_path: Path) -> None:
    """And the answer to one that there is not lists those that there are."""
    async with client(tmp_path) as (cloud, azure):
        url = f"{cloud.base}{SET}"
        answer = await to_thread.run_sync(lambda: azure.send_request(HttpRequest("GET", f"{url}?api-versions=1")))
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "MissingApiVersionParameter")
        *_, body = await asked(azure, "GET", f"{url}?api-version=1999-01-01")
        assert "The supported api-versions are '2015-05-01-preview, " in body["error"]["message"]


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("PATCH", SET, {"sku": {"capacity": 1001}}, 400, "InvalidParameter"),
        ("PATCH", SET, {"sku": {"capacity": -1}}, 400, "InvalidParameter"),
        ("PATCH", SET, {"sku": {"capacity": "2"}}, 400, "InvalidParameter"),
        ("PATCH", SET, [], 400, "InvalidRequestContent"),
        ("PUT", SET, {"sku": {"capacity": 1}}, 400, "LocationRequired"),
        (
            "PUT",
            SET,
            {"location": "westeurope", "properties": {"orchestrationMode": "Flexible"}},
            409,
            "PropertyChangeNotAllowed",
        ),
        ("POST", f"{SET}/delete", {}, 400, "InvalidParameter"),
        ("POST", f"{SET}/delete", {"instanceIds": []}, 400, "InvalidParameter"),
        ("POST", f"{SET}/delete", {"instanceIds": ["0", "9"]}, 400, "InvalidParameter"),
        ("POST", f"{SET}/scaleOut", {"capacity": "two"}, 400, "InvalidParameter"),
        ("POST", f"{SET}/virtualMachines/0/simulateEviction", None, 409, "OperationNotAllowed"),
        ("POST", f"{SET}/virtualMachines/0/dance", None, 404, "InvalidResourceType"),
        ("POST", SET, {}, 405, "MethodNotAllowed"),
        (
            "DELETE",
            f"{SET}/virtualMachines/0?forceDeletion=maybe&api-version=2018-10-01",
            None,
            400,
            "InvalidParameter",
        ),
    ],
)
async def test_what_makes_no_sense_changes_nothing(  # noqa: PLR0917  (a table)
    tmp_path: Path, method: str, path: str, body: object, status: int, code: str
) -> None:
    """Each with the status and the code that Azure has for it."""
    async with client(tmp_path) as (cloud, azure):
        await cloud.launch(1)
        etag = cloud.etag
        found = await asked(azure, method, f"{cloud.base}{path}", json=body)
        assert found[:2] == (status, code)
        assert (cloud.capacity, cloud.etag, len(cloud.instances)) == (1, etag, 1)


@both
async def test_views_are_told_only_to_those_who_ask(tmp_path: Path, mode: Mode) -> None:
    """A list without ``$expand`` has no power states; a view can be asked for by itself."""
    async with client(tmp_path, mode) as (cloud, azure):
        await cloud.launch(1)
        (there,) = cloud.instances.values()
        vms: Any = azure.virtual_machine_scale_set_vms
        own: Any = azure.virtual_machines
        if mode == "Uniform":
            (found,) = await to_thread.run_sync(lambda: list(vms.list(*WHERE)))
            view = await to_thread.run_sync(lambda: vms.get_instance_view(*WHERE, there.name))
        else:
            (found,) = await to_thread.run_sync(lambda: list(own.list(WHERE[0])))
            view = await to_thread.run_sync(lambda: own.instance_view(WHERE[0], there.name))
        assert found.properties.instance_view is None
        assert view.statuses[-1].code == "PowerState/running"


async def test_vm_id_is_withheld_while_an_instance_is_created(tmp_path: Path) -> None:
    """Only the time of creation is there from the beginning."""
    async with client(tmp_path, boot_time=3600.0) as (cloud, azure):
        await cloud.launch(1)
        (found,) = await to_thread.run_sync(lambda: list(azure.virtual_machine_scale_set_vms.list(*WHERE)))
        assert found.properties is not None
        assert (found.properties.vm_id, found.properties.provisioning_state) == (None, "Creating")
        (there,) = cloud.instances.values()
        assert found.properties.time_created == there.created


@both
async def test_other_clients_are_understood(tmp_path: Path, mode: Mode) -> None:
    """A PUT of the whole model (Terraform), scaleOut, ``*`` (az), DELETE and power of one machine, in any case."""
    async with client(tmp_path, mode) as (cloud, azure):
        sets, vms, own = azure.virtual_machine_scale_sets, azure.virtual_machine_scale_set_vms, azure.virtual_machines
        (model,) = await to_thread.run_sync(lambda: list(sets.list(WHERE[0])))
        assert model.sku is not None
        model.sku.capacity = 2
        await to_thread.run_sync(lambda: sets.begin_create_or_update("CI", "RUNNERS", model).result())
        more: Any = {"capacity": 1}
        await to_thread.run_sync(lambda: sets.begin_scale_out(*WHERE, more).result())
        assert len(cloud.instances) == 3
        first, *_ = cloud.instances.values()
        one = partial(vms.begin_power_off, *WHERE) if mode == "Uniform" else partial(own.begin_power_off, WHERE[0])
        await to_thread.run_sync(lambda: one(first.name).result())
        assert first.power == "stopped"
        gone = partial(vms.begin_delete, *WHERE) if mode == "Uniform" else partial(own.begin_delete, WHERE[0])
        await to_thread.run_sync(lambda: gone(first.name, force_deletion=True).result())
        assert len(await cloud.alive()) == cloud.capacity == 2
        everyone: Any = {"instanceIds": ["*"]}
        await to_thread.run_sync(lambda: sets.begin_delete_instances(*WHERE, everyone).result())
        assert await cloud.alive() == set()


@both
async def test_interfaces_and_addresses_are_listed(tmp_path: Path, mode: Mode) -> None:
    """Of a uniform set and of its machines; those of a flexible one are resources of their own."""
    async with client(tmp_path, mode) as (cloud, azure):
        await cloud.launch(2)
        where = SET if mode == "Uniform" else NETWORK
        for kind, other in (("networkInterfaces", NETWORK), ("publicIPAddresses", NETWORK)):
            status, _, body = await asked(azure, "GET", f"{cloud.base}{where}/{kind}")
            assert (status, len(body["value"])) == (200, 2)
            for each in body["value"]:
                assert (await asked(azure, "GET", f"{cloud.base}{each['id']}"))[2] == each
            if mode == "Uniform":
                assert (await asked(azure, "GET", f"{cloud.base}{other}/{kind}"))[2] == {"value": []}
            else:
                assert (await asked(azure, "GET", f"{cloud.base}{SET}/{kind}"))[:2] == (404, "NotFound")


async def test_a_spot_machine_is_evicted_on_request(tmp_path: Path) -> None:
    """As Azure lets its users rehearse it."""
    async with client(tmp_path, profile={"priority": "Spot"}) as (cloud, azure):
        await cloud.launch(1)
        await to_thread.run_sync(lambda: azure.virtual_machine_scale_set_vms.simulate_eviction(*WHERE, "0"))
        assert await cloud.alive() == set()


async def test_throttling_is_retried_by_the_sdk_as_it_comes(tmp_path: Path) -> None:
    """With the header it is asked again for every verb: what the group turns off, because a thread sleeps meanwhile."""
    async with client(tmp_path) as (cloud, azure):
        cloud.refuse[f"GET {SET}"] = Refused(429, "TooManyRequests", Retry_After="0")
        with pytest.raises(HttpResponseError) as caught:
            await to_thread.run_sync(azure.virtual_machine_scale_sets.get, *WHERE)
        assert caught.value.status_code == 429
        assert len(cloud.log) > 1


async def test_a_post_that_failed_is_repeated_by_the_sdk_as_it_comes(tmp_path: Path) -> None:
    """Which is what would apply a change twice."""
    async with client(tmp_path) as (cloud, azure):
        cloud.refuse[f"PATCH {SET}"] = Refused(500, "InternalServerError")
        with pytest.raises(HttpResponseError):
            await to_thread.run_sync(lambda: azure.virtual_machine_scale_sets.begin_update(*WHERE, SIZE))
        assert len(cloud.log) > 1


async def test_nobody_else_is_trusted(tmp_path: Path) -> None:
    """Without the authority's certificate, the SDK does not talk to it; without TLS it would not show its token."""
    async with running(tmp_path, "Uniform") as (cloud, config):
        for url, why in (
            (config.endpoint, "CERTIFICATE_VERIFY_FAILED"),
            (config.endpoint.replace("s:", ":"), "non-TLS"),
        ):
            azure = compute.ComputeManagementClient(Credential(), SUBSCRIPTION, base_url=url, retry_total=0)
            with azure, pytest.raises(ServiceRequestError, match=why):
                await to_thread.run_sync(azure.virtual_machine_scale_sets.get, *WHERE)
        assert cloud.log == []
