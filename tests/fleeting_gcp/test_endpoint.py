"""The endpoint of our own speaks as the real SDK expects it: what the other tests stand on.

It shows, too, why the SDK's own way of waiting is not used.
"""

import json
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from attrs import frozen

from tests.fleeting_gcp.clouds import REGIONAL, serving, write_credentials
from tests.fleeting_gcp.compute_endpoint import PERMISSIONS, Cloud, Fault
from tests.later import Later

gcp: Any = Later("google.cloud.compute_v1")
errors: Any = Later("google.api_core.exceptions")
accounts: Any = Later("google.oauth2.service_account")


@frozen(kw_only=True)
class Client:
    """The SDK, as its documentation has it."""

    cloud: Cloud
    groups: Any
    operations: Any
    machines: Any

    @property
    def is_regional(self) -> bool:
        """Which of the two kinds of clients it has."""
        return self.cloud.place.startswith("regions/")

    @property
    def place(self) -> dict[str, str]:
        """Where the group is."""
        kind, _, name = self.cloud.place.partition("/")
        return {"project": "acme", kind.removesuffix("s"): name}

    @property
    def where(self) -> dict[str, str]:
        """Which group it is."""
        return {**self.place, "instance_group_manager": "runners"}

    def ask(self, method: Any, *, body: object = None, **request: object) -> Any:  # noqa: ANN401  (as above)
        """Call a method in a thread."""
        verb = method.__name__.removesuffix("_unary")
        prefix = "region_" if self.is_regional else ""
        resource = {f"{prefix}instance_group_managers_{verb}_request_resource": body} if body else {}
        request = {**self.where, **resource, **request}
        return method(request=request, retry=None, timeout=60)

    def machine(self, method: str, name: str, **request: object) -> Any:  # noqa: ANN401  (as above)
        """Call a method of the client for machines."""
        call = getattr(self.machines, method)
        where = {"project": "acme", "zone": self.cloud.machines[name].zone, "instance": name}
        return call(request={**where, **request}, retry=None, timeout=60)

    def listed(self) -> list[Any]:
        """List the group, all pages."""
        pager = self.ask(self.groups.list_managed_instances, max_results=500)
        found: list[Any] = list(pager)
        return found

    def done(self, operation: Any) -> Any:  # noqa: ANN401  (as above)
        """Poll an operation until it is done."""
        while operation.status != gcp.Operation.Status.DONE:
            Event().wait(0.01)
            operation = self.operations.get(request={**self.place, "operation": operation.name}, retry=None, timeout=60)
        return operation


@pytest.fixture(params=[{}, REGIONAL], ids=["zonal", "regional"])
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Client]:
    """A cloud with three instances on a page, and the SDK."""
    cloud = Cloud(page=3, boot=0.05, delay=0.02, **request.param)
    credentials = accounts.Credentials.from_service_account_file(str(write_credentials(tmp_path)))
    with serving(cloud):
        options = {"api_endpoint": cloud.url, "universe_domain": "cloud.example"}
        access = {"credentials": credentials, "client_options": options}
        region = "Region" if request.param else ""
        clients = [f"{region}InstanceGroupManagers", f"{region or 'Zone'}Operations", "Instances"]
        groups, operations, machines = (getattr(gcp, f"{kind}Client")(**access) for kind in clients)
        yield Client(cloud=cloud, groups=groups, operations=operations, machines=machines)
        for each in (groups, operations, machines):
            each.transport.close()


def create(client: Client, *names: str, **request: object) -> Any:  # noqa: ANN401  (as above)
    """Have instances made."""
    body = {"instances": [{"name": name} for name in names]}
    return client.ask(client.groups.create_instances_unary, body=body, **request)


def running(client: Client, number: int) -> list[Any]:
    """Poll until so many run; returns all of the list."""
    while True:
        listed = client.listed()
        if sum(each.instance_status == "RUNNING" for each in listed) == number == len(listed):
            return listed
        Event().wait(0.01)


def test_an_operation_is_done_when_instances_are_planned(client: Client) -> None:
    """They are listed as being created then, and run later, with a number of their own."""
    client.cloud.boot = 3600
    operation = create(client, "web-1")
    assert operation.status != gcp.Operation.Status.DONE
    assert (client.done(operation)).error.errors == []
    (planned,) = client.listed()
    assert (planned.current_action, planned.instance_status, planned.id) == ("CREATING", "", 0)
    client.cloud.boot = 0
    (made,) = running(client, 1)
    assert (made.current_action, made.name) == ("NONE", "web-1")
    assert made.id > 0


def test_a_list_comes_in_pages(client: Client) -> None:
    """Seven instances, three on a page: three requests."""
    client.cloud.boot = 0
    create(client, *(f"web-{number}" for number in range(7)))
    client.cloud.methods.clear()
    assert len(client.listed()) == 7
    assert client.cloud.methods == ["listManagedInstances"] * 3


def test_a_regional_group_spreads_over_its_zones(client: Client) -> None:
    """The zone is in the instance's URL."""
    client.cloud.boot = 0
    create(client, "web-0", "web-1", "web-2")
    zones = {each.instance.split("/zones/")[1].split("/")[0] for each in client.listed()}
    assert zones == set(client.cloud.zones)


def test_a_request_that_was_seen_before_does_nothing(client: Client) -> None:
    """The same id: the same operation; another id: the name is taken."""
    first = create(client, "web-1", request_id="11111111-1111-4111-8111-111111111111")
    again = create(client, "web-1", request_id="11111111-1111-4111-8111-111111111111")
    assert first.name == again.name
    assert client.cloud.target == 1
    with pytest.raises(errors.Conflict) as caught:
        create(client, "web-1")
    assert caught.value.errors[0]["reason"] == "alreadyExists"


FULL = "https://www.googleapis.com/compute/v1/projects/acme/{}"


@pytest.mark.parametrize("form", ["{}", "projects/acme/{}", FULL, FULL.replace("www", "compute").replace("v1", "beta")])
def test_instances_are_deleted_by_url(client: Client, form: str) -> None:
    """As Google's samples, gcloud and the cluster autoscaler write them; the group becomes smaller.

    One that is no member is refused unless such are to be skipped; so is always what is no URL, or of another place.
    """
    client.cloud.boot = 0
    create(client, "web-1", "web-2")
    gone, left = (
        form.format(f"zones/{client.cloud.machines[name].zone}/instances/{name}") for name in ("web-1", "web-2")
    )
    delete = client.groups.delete_instances_unary
    with pytest.raises(errors.BadRequest, match="not a member"):
        client.ask(delete, body={"instances": [gone.replace("web-1", "web-9")]})
    skip = {"skip_instances_on_validation_error": True}
    client.ask(delete, body={"instances": [gone, gone.replace("web-1", "web-9")], **skip})
    assert [each.name for each in client.listed()] == ["web-2"]
    assert client.cloud.target == 1
    elsewhere = "zones/mars-west1-b/instances/web-2"
    for wrong in ("Web-2", "instances/web-2", elsewhere, f"projects/others/{elsewhere}", f"{left}/", f"x{left}"):
        with pytest.raises(errors.BadRequest, match="Invalid value"):
            client.ask(delete, body={"instances": [wrong], **skip})
    with pytest.raises(errors.BadRequest, match="at most 1000"):
        client.ask(delete, body={"instances": [left] * 1001, **skip})
    with pytest.raises(errors.BadRequest, match="'instances' not specified"):
        client.ask(delete, body=dict(skip))


def test_instances_are_deleted_by_name_or_by_url_but_not_by_both(client: Client) -> None:
    """In a regional group, what no zone has room for has no URL."""
    client.cloud.boot = 0
    create(client, "web-1")
    delete = client.groups.delete_instances_unary
    with client.cloud.stock_out():
        create(client, "web-2")
        first, second = client.listed()
        assert bool(second.instance) != client.is_regional
        with pytest.raises(errors.BadRequest, match="Both"):
            client.ask(delete, body={"instances": [first.instance, "web-2"]})
        client.ask(delete, body={"instances": ["web-2"]})
    assert [each.name for each in client.listed()] == ["web-1"]


def test_a_group_is_resized(client: Client) -> None:
    """As Terraform, gcloud and Nomad's autoscaler do it; the last with a method of its own in the beta API."""
    client.cloud.boot = 0
    client.ask(client.groups.resize_unary, size=3)
    assert [each.name[:8] for each in running(client, 3)] == ["runners-"] * 3
    path = f"/compute/beta/projects/acme/{client.cloud.place}/instanceGroupManagers/runners/resizeAdvanced"
    assert raw(client, "POST", path, b'{"targetSize": 4, "noCreationRetries": true}')[0] == 200
    assert len(client.listed()) == client.cloud.target == 4
    assert raw(client, "POST", path, b'{"targetSize": -1}')[0] == 400
    client.ask(client.groups.resize_unary, size=1)
    assert len(client.listed()) == client.cloud.target == 1


def test_an_operation_is_waited_for(client: Client) -> None:
    """Until it is done, or the wait has taken too long; in its own place only."""
    client.cloud.delay = 0.05
    operation = create(client, "web-1")
    done = client.operations.wait(request={**client.place, "operation": operation.name}, retry=None, timeout=60)
    assert done.status == gcp.Operation.Status.DONE
    client.cloud.delay, client.cloud.wait = 3600, 0.02
    operation = create(client, "web-2")
    begun = client.operations.wait(request={**client.place, "operation": operation.name}, retry=None, timeout=60)
    assert begun.status == gcp.Operation.Status.RUNNING
    elsewhere = {key: value.replace("west1", "west9") for key, value in client.place.items()}
    with pytest.raises(errors.NotFound):
        client.operations.wait(request={**elsewhere, "operation": operation.name}, retry=None, timeout=60)


def test_machines_are_listed_by_zone_and_over_all(client: Client) -> None:
    """With pages and a filter; what has no machine is in no such list."""
    client.cloud.boot = 0
    create(client, "web-1", "web-2", "web-3", "web-4")
    machines = {each.name: each for each in client.cloud.machines.values()}
    zones = {zone: sorted(name for name, each in machines.items() if each.zone == zone) for zone in client.cloud.zones}
    for zone, names in zones.items():
        where = {"project": "acme", "zone": zone}
        pages = client.machines.list(request={**where, "max_results": 2}, retry=None).pages
        assert [[each.name for each in page.items] for page in pages] == [names[:2], names[2:]][: 1 + len(names) // 3]
        for text in ('name = "web-2"', "(name eq web-.*2)", "status=RUNNING"):
            found = client.machines.list(request={**where, "filter": text}, retry=None)
            assert [each.name for each in found] == [name for name in names if text == "status=RUNNING" or "2" in name]
    listed = client.machines.aggregated_list(request={"project": "acme"}, retry=None)
    assert {scope.removeprefix("zones/"): [each.name for each in part.instances] for scope, part in listed} == zones
    client.cloud.boot = 3600
    create(client, "web-5")
    assert all(
        "web-5" not in [each.name for each in part.instances]
        for _, part in client.machines.aggregated_list(request={"project": "acme"}, retry=None)
    )


def test_the_group_is_listed(client: Client) -> None:
    """In its place, and in no other."""
    assert [each.name for each in client.groups.list(request=client.place, retry=None)] == ["runners"]
    elsewhere = {key: value.replace("west1", "west9") for key, value in client.place.items()}
    assert list(client.groups.list(request=elsewhere, retry=None)) == []


def test_what_is_around_the_group_can_be_looked_at(client: Client) -> None:
    """Its template, its zones, and the group as an unmanaged one: what the cluster autoscaler and gcloud ask for."""
    base = "/compute/v1/projects/acme"
    template = client.ask(client.groups.get).instance_template.partition("/projects/acme")[2]
    assert json.loads(raw(client, "GET", f"{base}{template}")[1])["properties"]["machineType"] == "e2-standard-4"
    assert raw(client, "GET", f"{base}/global/instanceTemplates/others")[0] == 404
    zones = [each["name"] for each in json.loads(raw(client, "GET", f"{base}/zones")[1])["items"]]
    region = json.loads(raw(client, "GET", f"{base}/regions/europe-west1")[1])
    assert [each.rpartition("/")[2] for each in region["zones"]] == zones == list(client.cloud.zones)
    assert raw(client, "GET", f"{base}/regions/mars-west1")[0] == 404
    groups = json.loads(raw(client, "GET", f"{base}/{client.cloud.place}/instanceGroups?filter=name+eq+run.*")[1])
    assert [each["name"] for each in groups["items"]] == ["runners"]


def test_a_machine_that_is_deleted_by_hand_is_made_once_more(client: Client) -> None:
    """The group wants as many as before, and gives it the same name and another number."""
    client.cloud.boot = 0
    create(client, "web-1")
    (first,) = running(client, 1)
    client.machine("delete_unary", "web-1")
    (second,) = running(client, 1)
    assert (second.name, second.id == first.id) == ("web-1", False)


@pytest.mark.parametrize(
    ("request_", "error", "said"),
    [
        ({"max_results": 501}, "BadRequest", "Invalid value for field 'maxResults': '501'"),
        ({"page_token": "nobody gave this out"}, "BadRequest", "Invalid value for field 'pageToken'"),
        ({"filter": "as I like it"}, "BadRequest", "Invalid list filter expression"),
        ({"project": "others"}, "NotFound", "The resource 'projects/others' was not found"),
        ({"instance_group_manager": "others"}, "NotFound", "instanceGroupManagers/others"),
    ],
)
def test_lists_are_refused_as_google_refuses_them(
    client: Client, request_: dict[str, Any], error: str, said: str
) -> None:
    """With the API's own errors."""
    with pytest.raises(getattr(errors, error), match=said):
        list(client.ask(client.groups.list_managed_instances, **request_))


@pytest.mark.parametrize("key", ["no-uuid", "00000000-0000-0000-0000-000000000000"])
def test_a_request_id_is_a_uuid(client: Client, key: str) -> None:
    """But not that of zeros."""
    with pytest.raises(errors.BadRequest, match="'requestId'"):
        create(client, "web-1", request_id=key)


def test_a_group_without_pages_lists_all_at_once(client: Client) -> None:
    """Whatever number is asked for."""
    client.cloud.settings = {"listManagedInstancesResults": "PAGELESS"}
    create(client, *(f"web-{number}" for number in range(7)))
    client.cloud.methods.clear()
    assert len(client.listed()) == 7
    assert client.cloud.methods == ["listManagedInstances"]


def test_metadata_has_limits(client: Client) -> None:
    """Of size, and one value for each key."""
    client.cloud.boot = 0
    create(client, "web-1")

    def write(*items: tuple[str, str]) -> None:
        fingerprint = client.cloud.machines["web-1"].fingerprint
        body = {"fingerprint": fingerprint, "items": [{"key": key, "value": value} for key, value in items]}
        client.machine("set_metadata_unary", "web-1", metadata_resource=body)

    with pytest.raises(errors.GoogleAPICallError, match="too large: maximum size 262144"):
        write(("a", "x" * (256 * 1024 + 1)))
    with pytest.raises(errors.BadRequest, match="duplicate keys: a"):
        write(("a", "1"), ("a", "2"))
    with pytest.raises(errors.BadRequest, match=r"metadata\.items\[0\]\.key"):
        write(("not a key", "1"))
    write(("a", "x" * 256 * 1024))


def raw(client: Client, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    """Ask without the SDK, which would not let such requests pass."""
    headers = {"Authorization": "Bearer token", "Content-Type": "application/json"}
    connection = HTTPConnection("127.0.0.1", client.cloud.port)
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    try:
        return answer.status, answer.read()
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/compute/v2/projects/acme"),
        ("GET", "/compute/v1/projects/acme/{}/instanceGroupManagers/runners/networkInterfaces"),
        ("GET", "/compute/v1/projects/acme/{}/instanceGroupManagers/runners/deleteInstances"),
        ("POST", "/compute/v1/projects/acme/{}/instanceGroupManagers/runners/get"),
        ("POST", "/compute/v1/projects/acme/oceans/x/instanceGroupManagers/runners/resize"),
        ("GET", "/"),
    ],
)
def test_what_the_api_does_not_have_is_a_page_of_html(client: Client, method: str, path: str) -> None:
    """Whatever the path begins like, and whatever the method of a path that there is."""
    status, body = raw(client, method, path.format(client.cloud.place))
    assert (status, body[:9]) == (404, b"<!DOCTYPE")
    assert client.cloud.log == []


@pytest.mark.parametrize(
    ("query", "body", "said"),
    [
        ("", b"[1]", "Parse Error"),
        ("", b"{", "Parse Error"),
        ("", b'{"instance": ["web-1"]}', 'Unknown name \\"instance\\"'),
        ("", b'{"instances": "web-1"}', "Invalid value for field 'instances'"),
        ("?size=3", b'{"instances": ["web-1"]}', 'Unknown name \\"size\\"'),
    ],
)
def test_bodies_and_parameters_are_checked(client: Client, query: str, body: bytes, said: str) -> None:
    """Nothing is done."""
    path = f"/compute/v1/projects/acme/{client.cloud.place}/instanceGroupManagers/runners/deleteInstances{query}"
    status, answer = raw(client, "POST", path, body)
    assert status == 400
    assert said in answer.decode()
    assert client.cloud.operations == {}


def test_instances_are_suspended_and_resumed(client: Client) -> None:
    """Each takes as long as a boot, and keeps the machine."""
    client.cloud.boot = 0
    create(client, "web-1")
    (before,) = running(client, 1)
    urls = {"instances": [before.instance[before.instance.index("zones/") :]]}
    client.cloud.boot = 3600
    client.ask(client.groups.suspend_instances_unary, body=urls)
    assert [each.current_action for each in client.listed()] == ["SUSPENDING"]
    client.cloud.boot = 0
    assert [each.instance_status for each in client.listed()] == ["SUSPENDED"]
    client.ask(client.groups.resume_instances_unary, body=urls)
    (after,) = running(client, 1)
    assert after.id == before.id


def test_metadata_is_changed_under_its_fingerprint(client: Client) -> None:
    """A second change under the same one fails."""
    client.cloud.boot = 0
    create(client, "web-1")
    found = client.machine("get", "web-1")
    body = {"fingerprint": found.metadata.fingerprint, "items": [{"key": "a", "value": "b"}]}
    client.machine("set_metadata_unary", "web-1", metadata_resource=body)
    with pytest.raises(errors.PreconditionFailed) as caught:
        client.machine("set_metadata_unary", "web-1", metadata_resource=body)
    assert caught.value.errors[0]["reason"] == "conditionNotMet"
    found = client.machine("get", "web-1")
    assert [(each.key, each.value) for each in found.metadata.items] == [("a", "b")]
    assert found.network_interfaces[0].access_configs[0].nat_i_p == "192.0.2.7"


def test_guest_attributes_have_to_be_switched_on(client: Client) -> None:
    """And the serial port shows what the machine prints."""
    client.cloud.boot = 0
    create(client, "web-1")
    machine = client.cloud.machines["web-1"]
    machine.guest_attributes = {"ssh-ed25519": "AAAA"}
    machine.serial = {1: "booted", 4: "answers"}
    with pytest.raises(errors.NotFound):
        client.machine("get_guest_attributes", "web-1", query_path="hostkeys/")
    machine.metadata["enable-guest-attributes"] = "TRUE"
    told = client.machine("get_guest_attributes", "web-1", query_path="hostkeys/")
    assert [(each.key, each.value) for each in told.query_value.items] == [("ssh-ed25519", "AAAA")]
    assert (client.machine("get_serial_port_output", "web-1")).contents == "booted"
    assert (client.machine("get_serial_port_output", "web-1", port=4)).contents == "answers"


def test_no_room_and_no_quota_are_told_at_the_instance(client: Client) -> None:
    """The group goes on trying, and succeeds as soon as it can."""
    client.cloud.boot = 0
    with client.cloud.stock_out():
        create(client, "web-1")
        (waiting,) = client.listed()
        assert waiting.current_action == "CREATING"
        assert [each.code for each in waiting.last_attempt.errors.errors] == ["ZONE_RESOURCE_POOL_EXHAUSTED"]
    with client.cloud.fault(Fault.QUOTA):
        (waiting,) = client.listed()
        (error,) = waiting.last_attempt.errors.errors
        assert (error.code, error.error_details[0].quota_info.metric_name) == ("QUOTA_EXCEEDED", "CPUS")
    (made,) = running(client, 1)
    assert not made.last_attempt.errors.errors


def test_what_a_group_has_lost_it_makes_again_under_the_same_name(client: Client) -> None:
    """Only the number tells."""
    client.cloud.boot = 0
    create(client, "web-1")
    (first,) = running(client, 1)
    client.cloud.boot = 3600
    client.cloud.preempt("web-1")
    (lost,) = client.listed()
    assert (lost.current_action, lost.id) == ("RECREATING", 0)
    client.cloud.boot = 0
    (second,) = running(client, 1)
    assert (second.name, second.id == first.id) == (first.name, False)


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (Fault.ERROR, "ServiceUnavailable"),
        (Fault.GARBAGE, "BadGateway"),
        (Fault.AUTH, "Unauthorized"),
        (Fault.RATE_LIMIT, "Forbidden"),
        (Fault.TOO_MANY, "TooManyRequests"),
    ],
)
def test_refusals_are_the_sdks_own_errors(client: Client, fault: Fault, kind: str) -> None:
    """Each with the status and the reason that Google has for it."""
    with client.cloud.fault(fault), pytest.raises(errors.GoogleAPICallError) as caught:
        client.ask(client.groups.get)
    assert type(caught.value).__name__ == kind


def test_a_denial_names_the_permission(client: Client) -> None:
    """As IAM's do."""
    client.cloud.granted = frozenset(PERMISSIONS.values()) - {"compute.instanceGroupManagers.get"}
    with pytest.raises(errors.Forbidden, match=r"compute\.instanceGroupManagers\.get"):
        client.ask(client.groups.get)


def test_another_group_is_not_found(client: Client) -> None:
    """Nor is this one, in another place."""
    with pytest.raises(errors.NotFound):
        client.ask(client.groups.get, instance_group_manager="others")


def test_an_operation_can_be_lost(client: Client) -> None:
    """What it was to do is done all the same."""
    operation = create(client, "web-1")
    with client.cloud.fault(Fault.LOST_OPERATION), pytest.raises(errors.NotFound):
        client.done(operation)
    assert client.cloud.target == 1


def test_the_sdks_own_waiting_leaves_this_machine(client: Client) -> None:
    """Its poller asks the public API whatever the endpoint is, which is why operations are polled by our own client."""
    access = {"api_endpoint": client.cloud.url}
    anonymous = Later("google.auth.credentials").AnonymousCredentials()
    groups = type(client.groups)(credentials=anonymous, client_options=access)
    service = "region_operations" if client.is_regional else "zone_operations"
    assert groups.api_endpoint == client.cloud.url
    assert getattr(groups.transport, f"_{service}_client").api_endpoint == "compute.googleapis.com"
