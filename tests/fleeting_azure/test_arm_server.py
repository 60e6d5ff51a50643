"""Our server is a resource manager as far as the real SDK can tell, used here as anybody would use it."""

import gc
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

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
from azure.mgmt.compute import ComputeManagementClient

from fleeting.testing import Trouble
from tests.fleeting_azure.arm_cloud import SET, SUBSCRIPTION, Cloud, Mode, Refused
from tests.fleeting_azure.arm_server import Credential, running, trouble

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
) -> AsyncIterator[tuple[Cloud, ComputeManagementClient]]:
    """Run a cloud, and give the SDK's client for it, as it comes but for the endpoint and quick retries."""
    async with running(directory, mode, **settings) as (cloud, config):
        with ComputeManagementClient(
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
        assert {each.properties.vm_id for each in found} == set(cloud.instances)
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
            azure = ComputeManagementClient(Credential(), SUBSCRIPTION, base_url=url, retry_total=0)
            with azure, pytest.raises(ServiceRequestError, match=why):
                await to_thread.run_sync(azure.virtual_machine_scale_sets.get, *WHERE)
        assert cloud.log == []
