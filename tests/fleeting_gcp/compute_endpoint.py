"""The Compute Engine REST API on a port of this machine: managed instance groups, their machines, operations.

A cloud in memory that behaves as Google documents it: operations are done when what they asked for is planned, not
when it has happened; lists come in pages; metadata is changed under a fingerprint; a request that was seen before is
not carried out again; what a group has lost it makes once more under the same name; an instance of a regional group
that no zone has room for has no zone, and no URL. What it refuses is in `compute_rules`, with sources. Standard library
only. It runs in threads of its own, so that clients may block; whoever looks into it or changes it holds `Cloud.lock`.

``python -m tests.fleeting_gcp.compute_endpoint INSTANCES`` runs it by itself, over a group of that many, and prints
its URL.
"""

import json
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count, repeat
from threading import Event, RLock
from time import monotonic
from urllib.parse import SplitResult, parse_qsl, urlsplit

from tests.fleeting_gcp import compute_rules as rules
from tests.fleeting_gcp.compute_rules import Json, NoSuchPath, Refusal

SLOW = 0.35
"""Seconds that each answer takes in `Fault.SLOW`."""

PERMISSIONS = {
    "get": "compute.instanceGroupManagers.get",
    "patch": "compute.instanceGroupManagers.update",
    "instanceGroupManagers.list": "compute.instanceGroupManagers.list",
    "instanceGroupManagers.aggregatedList": "compute.instanceGroupManagers.list",
    "listManagedInstances": "compute.instanceGroupManagers.list",
    "createInstances": "compute.instanceGroupManagers.update",
    "deleteInstances": "compute.instanceGroupManagers.update",
    "suspendInstances": "compute.instanceGroupManagers.update",
    "resumeInstances": "compute.instanceGroupManagers.update",
    "resize": "compute.instanceGroupManagers.update",
    "resizeAdvanced": "compute.instanceGroupManagers.update",
    "instances.get": "compute.instances.get",
    "instances.list": "compute.instances.list",
    "instances.aggregatedList": "compute.instances.list",
    "instances.delete": "compute.instances.delete",
    "setMetadata": "compute.instances.setMetadata",
    "getGuestAttributes": "compute.instances.getGuestAttributes",
    "serialPort": "compute.instances.getSerialPortOutput",
    "projects.get": "compute.projects.get",
    "zones.list": "compute.zones.list",
    "regions.get": "compute.regions.get",
    "instanceGroups.list": "compute.instanceGroups.list",
    "instanceTemplates.get": "compute.instanceTemplates.get",
    "zones.operations": "compute.zoneOperations.get",
    "regions.operations": "compute.regionOperations.get",
    "zones.operations.wait": "compute.zoneOperations.get",
    "regions.operations.wait": "compute.regionOperations.get",
}
"""What IAM has to grant for each method, as Google's reference says."""

TEMPLATE = "runner"
"""The instance template of the group."""

CHANGES = frozenset(
    [
        "createInstances",
        "deleteInstances",
        "instances.delete",
        "patch",
        "resize",
        "resizeAdvanced",
        "resumeInstances",
        "setMetadata",
        "suspendInstances",
    ]
)


class Fault(Enum):
    """What may be wrong with the cloud."""

    ERROR = "answers with an error of its own"
    GARBAGE = "answers with half a page of HTML"
    NONSENSE = "answers with half a page of HTML, and says that all is well"
    PROXY = "is not reached, as something in between says in JSON of its own"
    AUTH = "refuses the credentials"
    RATE_LIMIT = "refuses requests as too many, in the way that the Compute API has for that"
    TOO_MANY = "refuses requests as too many, with HTTP's own status"
    QUOTA = "makes no machines because of a quota"
    PROTECTED = "does not delete"
    URLS_ONLY = "takes no names of instances, which the reference of regional groups does not promise"
    LOST_ANSWER = "does what changes something, and breaks the connection"
    LOST_OPERATION = "knows nothing of the operations that it began"
    SILENCE = "never answers"
    SLOW = "takes its time"
    BROKEN_PAGE = "answers pages but the first with an error"
    PAGE_LOOP = "says of every page that the second comes next"


REFUSALS = {
    Fault.ERROR: (503, "backendError", "Backend Error"),
    Fault.AUTH: (401, "authError", "Invalid Credentials"),
    Fault.RATE_LIMIT: (403, "rateLimitExceeded", "Quota exceeded for quota group 'ReadGroup' and limit 'per 100 s'."),
    Fault.TOO_MANY: (429, "rateLimitExceeded", "Too many requests"),
}
"""Those that concern every request: status, reason and message."""


@dataclass(kw_only=True)
class Machine:
    """A managed instance, and the machine that it is, if there is one."""

    name: str
    zone: str
    number: int = 0
    action: str = "CREATING"
    status: str = ""
    since: float = field(default_factory=monotonic)
    created: str = ""
    address: str = "127.0.0.1"
    metadata: dict[str, str] = field(default_factory=dict)
    fingerprint: str = "fp-0"
    errors: list[Json] = field(default_factory=list)
    health: str = ""
    windows: bool = False
    arch: str = "X86_64"
    guest_attributes: dict[str, str] = field(default_factory=dict)
    serial: dict[int, str] = field(default_factory=dict)

    def turn(self, action: str, status: str) -> None:
        """Let something begin."""
        self.action, self.status, self.since = action, status, monotonic()


@dataclass(kw_only=True)
class Operation:
    """What was begun."""

    body: Json
    since: float = field(default_factory=monotonic)


@dataclass(kw_only=True)
class Cloud:
    """One project with one managed instance group."""

    project: str = "acme"
    group: str = "runners"
    place: str = "zones/europe-west1-b"
    zones: tuple[str, ...] = ("europe-west1-b",)
    page: int = 500
    boot: float = 0.0
    """Seconds that it takes to make, delete, suspend or resume a machine."""

    delay: float = 0.0
    """Seconds for which an operation runs."""

    settings: Json = field(default_factory=dict)
    """What the group's resource says beside what all do."""

    fingerprint: str = "fp-0"
    """Of the group's resource."""

    for_all: Json = field(default_factory=dict)
    """Labels and metadata of the group's configuration for all instances."""

    template: dict[str, str] = field(default_factory=dict)
    """The metadata that new machines have."""

    project_metadata: dict[str, str] = field(default_factory=dict)
    """The metadata that all machines of the project have."""

    wait: float = 120.0
    """Seconds that ``operations.wait`` takes at most. Source: its reference."""

    granted: frozenset[str] = frozenset(PERMISSIONS.values())
    on_metadata: Callable[[Machine], None] = lambda _: None
    """What is done on a machine when its metadata has changed: the guest agent's part."""

    on_boot: Callable[[Machine], None] = lambda _: None
    """What is done when a machine runs, for the first time or once more."""

    on_end: Callable[[Machine], None] = lambda _: None
    """What is done when a machine ends, or sleeps."""

    on_guest: Callable[[Machine], None] = lambda _: None
    """What is done on a machine before its guest attributes are shown."""

    before_change: Callable[[], None] = lambda: None
    """What somebody else does just before metadata is changed."""

    stumbles: list[Fault] = field(default_factory=list)
    """What is wrong when an operation is looked at, once each."""

    addresses: Iterator[str] = field(default_factory=lambda: repeat("127.0.0.1"))
    """Those of new machines: this one, unless nobody connects to them."""

    port: int = 0
    target: int = 0
    machines: dict[str, Machine] = field(default_factory=dict)
    operations: dict[str, Operation] = field(default_factory=dict)
    requests: dict[str, Json] = field(default_factory=dict)
    """What was answered, by request id."""

    log: list[tuple[str, str, Json]] = field(default_factory=list)
    """Every request that was understood: method, path, body."""

    methods: list[str] = field(default_factory=list)
    """Their names, as in `PERMISSIONS`."""

    faults: dict[Fault, Event] = field(default_factory=dict)
    out_of_stock: set[str] = field(default_factory=set)
    protected: set[str] = field(default_factory=set)
    """Names of instances that may not be deleted."""

    tokens: set[str] = field(default_factory=set)
    """Every token that was shown; refusals repeat them."""

    lock: RLock = field(default_factory=RLock)
    numbers: Iterator[int] = field(default_factory=lambda: count(4_000_000_000_000_000_001))

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self.port}"

    # --- what a test does to it --------------------------------------------------------------------------

    @contextmanager
    def fault(self, kind: Fault) -> Iterator[None]:
        """Be so from entering to leaving."""
        self.faults[kind] = Event()
        try:
            yield
        finally:
            self.faults.pop(kind).set()

    @contextmanager
    def stock_out(self, *zones: str) -> Iterator[None]:
        """Have no room in these zones, or in all, from entering to leaving.

        In a regional group, what is asked for while no zone has room is put into none.
        """
        self.out_of_stock = set(zones or self.zones)
        try:
            yield
        finally:
            self.out_of_stock = set()

    def launch(self, number: int) -> list[str]:
        """Let somebody resize the group upwards: the names are the group's own."""
        with self.lock:
            names = [self._new_name() for _ in range(number)]
            for name in names:
                self._add(name)
            self.tick()
            return names

    def preempt(self, name: str) -> None:
        """Take a machine away; the group makes it once more, under its name, as soon as there is room."""
        with self.lock:
            self.on_end(self.machines[name])
            self.machines[name].turn("RECREATING", "STOPPING")
            self.machines[name].number = 0

    def delete_machine(self, name: str) -> None:
        """Let somebody delete an instance from the group."""
        with self.lock:
            self._delete(self.machines[name])

    def set_state(self, name: str, state: str) -> None:
        """Show an instance in a state, such as ``NONE/RUNNING``, and leave it there."""
        with self.lock:
            machine = self.machines[name]
            machine.action, _, machine.status = state.partition("/")
            machine.since = float("inf")

    def alive(self) -> list[str]:
        """What is paid for."""
        with self.lock:
            self.tick()
            return [each.name for each in self.machines.values() if each.number]

    def writes(self) -> int:
        """Count the requests that would change something."""
        return sum(name in CHANGES for name in self.methods)

    def forget(self) -> None:
        """Know request ids no more, as after a while."""
        self.requests.clear()

    # --- time --------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Let happen what takes time."""
        for machine in list(self.machines.values()):
            if monotonic() - machine.since >= self.boot:
                self._advance(machine)

    def _advance(self, machine: Machine) -> None:
        match machine.action:
            case "CREATING" | "RECREATING":
                self._create(machine)
            case "DELETING":
                self.on_end(machine)
                del self.machines[machine.name]
            case "SUSPENDING":
                machine.turn("NONE", "SUSPENDED")
            case "RESUMING":
                machine.turn("NONE", "RUNNING")
                self.on_boot(machine)

    def _create(self, machine: Machine) -> None:
        machine.zone = machine.zone or self._zone_with_room()
        if not machine.zone or machine.zone in self.out_of_stock:
            message = f"The zone '{machine.zone}' does not have enough resources available."
            machine.errors = [{"code": "ZONE_RESOURCE_POOL_EXHAUSTED", "message": message}]
        elif Fault.QUOTA in self.faults:
            quota = {"metricName": "CPUS", "limit": 24.0, "limitName": "CPUS-per-project-region"}
            message = "Quota 'CPUS' exceeded.  Limit: 24.0 in region europe-west1."
            machine.errors = [
                {"code": "QUOTA_EXCEEDED", "message": message, "errorDetails": [{"quotaInfo": quota}]},
            ]
        else:
            machine.number, machine.errors = next(self.numbers), []
            machine.created = datetime.now(UTC).isoformat(timespec="milliseconds")
            machine.turn("NONE", "RUNNING")
            self.on_boot(machine)

    def _zone_with_room(self) -> str:
        return next((zone for zone in self.zones if zone not in self.out_of_stock), "")

    def _add(self, name: str) -> None:
        zone = self.zones[self.target % len(self.zones)]
        if self.place.startswith("regions/") and not self._zone_with_room():
            zone = ""
        self.machines[name] = Machine(name=name, zone=zone, metadata=dict(self.template), address=next(self.addresses))
        self.target += 1

    def _delete(self, machine: Machine) -> None:
        if machine.action != "DELETING":
            self.target -= 1
            machine.turn("DELETING", "STOPPING" if machine.number else "")

    # --- the API -----------------------------------------------------------------------------------------

    def answer(self, method: str, url: str, headers: Mapping[str, str], raw: bytes) -> tuple[int, Json]:
        """Answer a request with a status and JSON.

        Raises:
            NoSuchPath: The API has none such.
        """
        token = headers.get("authorization", "").removeprefix("Bearer ")
        try:
            with self.lock:
                self._refuse_as_faulty(token)
                self.tick()
                name, reply = self._route(method, urlsplit(url), raw)
            return 200, self._waited_for(reply) if name.endswith(".wait") else reply
        except Refusal as refusal:
            refusal.body["error"]["message"] += f" (asked with {token})"
            return refusal.status, refusal.body

    def _refuse_as_faulty(self, token: str) -> None:
        if token:
            self.tokens.add(token)
        for fault in REFUSALS.keys() & self.faults:
            raise Refusal(*REFUSALS[fault])
        if not token:
            raise Refusal(*REFUSALS[Fault.AUTH])

    def _route(self, method: str, url: SplitResult, raw: bytes) -> tuple[str, Json]:
        """Find the method and call it, unless the request breaks one of the rules."""
        match url.path.split("/"):
            case ["", "compute", version, "projects", project, *where] if version in rules.VERSIONS:
                query = dict(parse_qsl(url.query, keep_blank_values=True))
                body = rules.read_body(raw)
            case _:
                raise NoSuchPath
        found = self._find_method(method, where, query, body)
        if found is None:
            raise NoSuchPath
        name, reply = found
        self.log.append((method, url.path, body))
        self.methods.append(name)
        resource = f"projects/{'/'.join([project, *where])}"
        if PERMISSIONS[name] not in self.granted:
            raise Refusal(403, "forbidden", f"Required '{PERMISSIONS[name]}' permission for '{resource}'")
        if project != self.project:
            raise Refusal(404, "notFound", f"The resource 'projects/{project}' was not found")
        rules.check_query(name, query)
        rules.check_body(name, body)
        if where[:1] == ["zones"] and where[1:]:
            rules.check_zone(where[1])
        if (
            "instanceGroupManagers" in where[2:3]
            and where[3:]
            and where[:4] != [*self.place.split("/"), where[2], self.group]
        ):
            raise Refusal(404, "notFound", f"The resource '{resource}' was not found")
        return name, reply()

    def _find_method(  # noqa: C901, PLR0911, PLR0912  (a table)
        self, method: str, where: list[str], query: dict[str, str], body: Json
    ) -> tuple[str, Callable[[], Json]] | None:
        match method, where:
            case "GET", []:
                return "projects.get", self._show_project
            case "GET", ["zones"]:
                return "zones.list", lambda: self._items([{"name": zone} for zone in self.zones], query)
            case "GET", ["regions", region]:
                return "regions.get", partial(self._show_region, region)
            case "GET", ["zones" | "regions" as kind, place, "instanceGroups"]:
                return "instanceGroups.list", partial(self._list_groups, f"{kind}/{place}", query)
            case "GET", ["global", "instanceTemplates", name]:
                return "instanceTemplates.get", partial(self._show_template, name)
            case "GET", ["zones" | "regions" as kind, place, "instanceGroupManagers"]:
                return "instanceGroupManagers.list", partial(self._list_groups, f"{kind}/{place}", query)
            case "GET", ["aggregated", "instanceGroupManagers"]:
                return "instanceGroupManagers.aggregatedList", partial(self._aggregate, "instanceGroupManagers", query)
            case "GET", ["zones" | "regions" as kind, _, "instanceGroupManagers", _]:
                return "get", partial(self._show_group, kind)
            case "PATCH", ["zones" | "regions", _, "instanceGroupManagers", _]:
                return "patch", partial(self._once, query, "patch", partial(self._patch_group, body))
            case "POST", ["zones" | "regions", _, "instanceGroupManagers", _, "listManagedInstances"]:
                return "listManagedInstances", partial(self._page, query)
            case "POST", ["zones" | "regions", _, "instanceGroupManagers", _, name] if name in CHANGES:
                return name, partial(self._once, query, name, partial(self._plan, name, {**query, **body}))
            case "GET", ["zones" | "regions" as kind, place, "operations", operation]:
                return f"{kind}.operations", partial(self._show_operation, f"{kind}/{place}", operation)
            case "POST", ["zones" | "regions" as kind, place, "operations", operation, "wait"]:
                return f"{kind}.operations.wait", partial(self._show_operation, f"{kind}/{place}", operation)
            case "GET", ["zones", zone, "instances"]:
                return "instances.list", partial(self._list_machines, zone, query)
            case "GET", ["aggregated", "instances"]:
                return "instances.aggregatedList", partial(self._aggregate, "instances", query)
            case "GET", ["zones", zone, "instances", machine]:
                return "instances.get", partial(self._show_machine, zone, machine)
            case "DELETE", ["zones", zone, "instances", machine]:
                return "instances.delete", partial(self._delete_by_hand, zone, machine)
            case "POST", ["zones", zone, "instances", machine, "setMetadata"]:
                return "setMetadata", partial(self._set_metadata, zone, machine, body)
            case "GET", ["zones", zone, "instances", machine, "getGuestAttributes"]:
                return "getGuestAttributes", partial(self._show_guest, zone, machine, query)
            case "GET", ["zones", zone, "instances", machine, "serialPort"]:
                return "serialPort", partial(self._show_serial, zone, machine, query)
        return None

    def _show_project(self) -> Json:
        items = [{"key": key, "value": value} for key, value in self.project_metadata.items()]
        return {"name": self.project, "commonInstanceMetadata": {"fingerprint": "fp-project", "items": items}}

    def _show_group(self, kind: str) -> Json:
        shown: Json = {
            "name": self.group,
            "targetSize": self.target,
            "baseInstanceName": "runners",
            "instanceTemplate": f"{self._base}/global/instanceTemplates/{TEMPLATE}",
            "listManagedInstancesResults": "PAGINATED",
            "status": {"isStable": all(each.action == "NONE" for each in self.machines.values())},
            "updatePolicy": {"type": "OPPORTUNISTIC", "instanceRedistributionType": "NONE"},
            "instanceLifecyclePolicy": {"defaultActionOnFailure": "DO_NOTHING"},
            "distributionPolicy": {"targetShape": "ANY"} if kind == "regions" else {},
            "fingerprint": self.fingerprint,
            **({"allInstancesConfig": {"properties": self.for_all}} if self.for_all else {}),
        }
        return shown | self.settings

    def _patch_group(self, body: Json) -> list[Json]:
        """Change the configuration for all instances. Source: reference of patch, which is JSON's merge patch."""
        self.before_change()
        if body.get("fingerprint") != self.fingerprint:
            raise Refusal(412, "conditionNotMet", "Supplied fingerprint does not match current fingerprint.")
        for kind, entries in body.get("allInstancesConfig", {}).get("properties", {}).items():
            rules.check_for_all(kind, entries)
            merged = {**self.for_all.get(kind, {}), **entries}
            self.for_all = {**self.for_all, kind: {key: value for key, value in merged.items() if value is not None}}
        self.fingerprint = f"fp-{next(self.numbers)}"
        return []

    def _show_region(self, region: str) -> Json:
        zones = [f"{self._base}/zones/{zone}" for zone in self.zones if zone.startswith(f"{region}-")]
        if not zones:
            raise Refusal(404, "notFound", f"The resource 'projects/{self.project}/regions/{region}' was not found")
        return {"name": region, "zones": zones}

    def _show_template(self, name: str) -> Json:
        if name != TEMPLATE:
            raise Refusal(404, "notFound", f"The resource 'global/instanceTemplates/{name}' was not found")
        items = [{"key": key, "value": value} for key, value in self.template.items()]
        return {"name": TEMPLATE, "properties": {"machineType": "e2-standard-4", "metadata": {"items": items}}}

    def _list_groups(self, place: str, query: dict[str, str]) -> Json:
        kind = place.partition("/")[0]
        return self._items([self._show_group(kind)] if place == self.place else [], query)

    def _aggregate(self, what: str, query: dict[str, str]) -> Json:
        """List what there is by scope; scopes that have nothing are left out. Source: reference, but for the second."""
        if what == "instances":
            scopes = {f"zones/{zone}": self._machines_in(zone) for zone in self.zones}
        else:
            scopes = {self.place: [self._show_group(self.place.partition("/")[0])]}
        chosen = {scope: rules.filtered(query.get("filter", ""), items) for scope, items in scopes.items()}
        return {"items": {scope: {what: items} for scope, items in chosen.items() if items}}

    def _list_machines(self, zone: str, query: dict[str, str]) -> Json:
        return self._items(self._machines_in(zone), query)

    def _machines_in(self, zone: str) -> list[Json]:
        here = [each for each in self.machines.values() if each.zone == zone and each.number]
        return [self._show_machine(zone, each.name) for each in sorted(here, key=lambda each: each.name)]

    def _items(self, items: list[Json], query: dict[str, str]) -> Json:
        shown, token = rules.page(rules.filtered(query.get("filter", ""), items), query, self.page)
        return ({"items": shown} if shown else {}) | ({"nextPageToken": token} if token else {})

    def _page(self, query: dict[str, str]) -> Json:
        """List the group; one without pages has all on one, whatever is asked for. Source: reference of the group."""
        if query.get("pageToken") and Fault.BROKEN_PAGE in self.faults:
            raise Refusal(503, "backendError", "Backend Error")
        items = [self._show_managed(self.machines[name]) for name in sorted(self.machines)]
        items = rules.filtered(query.get("filter", ""), items)
        if Fault.PAGE_LOOP in self.faults:
            return {"managedInstances": items[: self.page], "nextPageToken": str(min(self.page, len(items)))}
        if self._show_group("zones")["listManagedInstancesResults"] != "PAGINATED":
            return {"managedInstances": items}
        shown, token = rules.page(items, query, self.page)
        return {"managedInstances": shown} | ({"nextPageToken": token} if token else {})

    def _show_managed(self, machine: Machine) -> Json:
        shown: Json = {"instance": self._url(machine), "name": machine.name, "currentAction": machine.action}
        if machine.number:
            shown |= {"id": str(machine.number), "instanceStatus": machine.status}
        if machine.errors:
            shown["lastAttempt"] = {"errors": {"errors": machine.errors}}
        if machine.health:
            shown["instanceHealth"] = [{"detailedHealthState": machine.health}]
        return shown

    def _url(self, machine: Machine) -> str | None:
        """Null as long as there is no zone. Source: GoogleCloudPlatform/cluster-toolkit#6127."""
        if not machine.zone:
            return None
        return f"{self._base}/zones/{machine.zone}/instances/{machine.name}"

    @property
    def _base(self) -> str:
        """What the URLs of resources begin with, wherever they are asked for."""
        return f"https://www.googleapis.com/compute/v1/projects/{self.project}"

    def _once(self, query: dict[str, str], name: str, act: Callable[[], list[Json]]) -> Json:
        """Carry out what was not asked for before, and begin an operation."""
        key = query.get("requestId", "")
        if key not in self.requests:
            self.requests[key] = self._begin(name, act())
        return self.requests[key] if key else self.requests.pop(key)

    def _plan(self, name: str, body: Json) -> list[Json]:  # noqa: C901  (a table)
        match name:
            case "createInstances":
                return self._create_named([str(each.get("name") or self._new_name()) for each in body["instances"]])
            case "resize":
                self._resize(body)
            case "resizeAdvanced":
                self._resize({"size": str(body.get("targetSize", ""))})
            case "deleteInstances":
                members = self._members(body, skip=body.get("skipInstancesOnValidationError", False))
                if Fault.PROTECTED in self.faults or self.protected & {each.name for each in members}:
                    return [{"code": "RESOURCE_IN_USE", "message": "It is protected against deletion."}]
                for machine in members:
                    self._delete(machine)
            case "suspendInstances":
                for machine in self._members(body):
                    self.on_end(machine)
                    machine.turn("SUSPENDING", "SUSPENDING")
            case "resumeInstances":
                for machine in self._members(body):
                    if machine.zone in self.out_of_stock:
                        return [{"code": "ZONE_RESOURCE_POOL_EXHAUSTED", "message": "no room"}]
                    machine.turn("RESUMING", "PROVISIONING")
        return []

    def _create_named(self, names: list[str]) -> list[Json]:
        for name in names:
            if not rules.NAME.fullmatch(name):
                raise rules.invalid("instances[].name", name)
            if name in self.machines:
                raise Refusal(409, "alreadyExists", f"The resource '{name}' already exists")
        for name in names:
            self._add(name)
        self.tick()
        return []

    def _new_name(self) -> str:
        return f"runners-{next(self.numbers) % 36**4:04x}"

    def _resize(self, body: Json) -> None:
        """Have the group choose what to add or to delete. Source: reference; that the last ones go is guessed."""
        if "size" not in body:
            raise Refusal(400, "required", "Required field 'size' not specified")
        size = rules.number(body, "size")
        for _ in range(size - self.target):
            self._add(self._new_name())
        left = [each for each in self.machines.values() if each.action != "DELETING"]
        for machine in left[size:]:
            self._delete(machine)

    def _members(self, body: Json, *, skip: bool = False) -> list[Machine]:
        found = []
        for zone, name in rules.members(body["instances"], self.project, self.zones):
            if zone is None and Fault.URLS_ONLY in self.faults:
                raise rules.invalid("instances", name, "The URL is malformed.")
            member = self.machines.get(name)
            if member and zone in (None, member.zone) and member.action != "DELETING":
                found.append(member)
            elif not skip:
                raise Refusal(400, "invalid", f"Instance '{name}' is not a member of the managed instance group.")
        return found

    def _begin(self, kind: str, errors: list[Json], place: str = "") -> Json:
        name = f"operation-{next(self.numbers)}"
        place = place or self.place
        body: Json = {"kind": "compute#operation", "name": name, "operationType": kind, "place": place}
        if errors:
            body["error"] = {"errors": errors}
        self.operations[name] = Operation(body=body)
        return self._shown(name)

    def _shown(self, name: str) -> Json:
        operation = self.operations[name]
        done = monotonic() - operation.since >= self.delay
        shown = {key: value for key, value in operation.body.items() if key not in ("place", "error")}
        error = {"error": operation.body["error"]} if done and "error" in operation.body else {}
        return shown | error | {"status": "DONE" if done else "RUNNING", "progress": 100 if done else 0}

    def _show_operation(self, place: str, name: str) -> Json:
        if self.stumbles:
            raise Refusal(*REFUSALS[self.stumbles.pop()])
        known = name in self.operations and self.operations[name].body["place"] == place
        if not known or Fault.LOST_OPERATION in self.faults:
            raise Refusal(404, "notFound", f"The resource '{name}' was not found")
        return self._shown(name)

    def _waited_for(self, operation: Json) -> Json:
        """Look at an operation until it is done, or it has taken too long. Others are answered meanwhile."""
        end = monotonic() + self.wait
        while operation["status"] != "DONE" and monotonic() < end:
            Event().wait(0.005)
            with self.lock:
                operation = self._shown(operation["name"])
        return operation

    def _delete_by_hand(self, zone: str, name: str) -> Json:
        """Delete a machine behind the group's back: it makes another of the name. Source: Google's guide to groups."""
        machine = self._find(zone, name)
        self.preempt(machine.name)
        return self._begin("delete", [], f"zones/{zone}")

    def _find(self, zone: str, name: str) -> Machine:
        machine = self.machines.get(name)
        if machine is None or machine.zone != zone or not machine.number:
            raise Refusal(404, "notFound", f"The resource 'zones/{zone}/instances/{name}' was not found")
        return machine

    def _show_machine(self, zone: str, name: str) -> Json:
        machine = self._find(zone, name)
        items = [{"key": key, "value": value} for key, value in machine.metadata.items()]
        features = [{"type": "WINDOWS"}] if machine.windows else [{"type": "VIRTIO_SCSI_MULTIQUEUE"}]
        access = [{"natIP": "192.0.2.7", "type": "ONE_TO_ONE_NAT"}]
        return {
            "id": str(machine.number),
            "name": machine.name,
            "zone": f"{self._base}/zones/{machine.zone}",
            "selfLink": self._url(machine),
            "status": machine.status,
            "creationTimestamp": machine.created,
            "lastStartTimestamp": machine.created,
            "metadata": {"fingerprint": machine.fingerprint, "items": items},
            "disks": [{"boot": True, "architecture": machine.arch, "guestOsFeatures": features}],
            "networkInterfaces": [{"networkIP": machine.address, "accessConfigs": access}],
        }

    def _set_metadata(self, zone: str, name: str, body: Json) -> Json:
        machine = self._find(zone, name)
        self.before_change()
        if body.get("fingerprint") != machine.fingerprint:
            raise Refusal(412, "conditionNotMet", "Supplied fingerprint does not match current metadata fingerprint.")
        rules.check_metadata(body.get("items", []))
        machine.metadata = {each["key"]: each["value"] for each in body.get("items", [])}
        machine.fingerprint = f"fp-{next(self.numbers)}"
        self.on_metadata(machine)
        return self._begin("setMetadata", [], f"zones/{machine.zone}")

    def _show_guest(self, zone: str, name: str, query: dict[str, str]) -> Json:
        machine = self._find(zone, name)
        self.on_guest(machine)
        prefix = query.get("queryPath", "")
        on = machine.metadata.get("enable-guest-attributes") == "TRUE"
        if not on or not machine.guest_attributes:
            raise Refusal(404, "notFound", f"The resource '{prefix}' of type 'Guest Attribute' was not found.")
        items = [{"namespace": "hostkeys", "key": k, "value": v} for k, v in machine.guest_attributes.items()]
        return {"queryPath": prefix, "queryValue": {"items": items}}

    def _show_serial(self, zone: str, name: str, query: dict[str, str]) -> Json:
        return {"contents": self._find(zone, name).serial.get(int(query.get("port", 1)), ""), "start": "0", "next": "0"}


NO_SUCH_PATH = b"<!DOCTYPE html><title>Error 404 (Not Found)!!1</title>"
"""What the front end says, of any host of Google's, where there is nothing."""


def _handler(cloud: Cloud) -> type[BaseHTTPRequestHandler]:  # noqa: C901  (the class counts as one)
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            if silence := cloud.faults.get(Fault.SILENCE):
                silence.wait()
                return self._hang_up()
            if Fault.SLOW in cloud.faults:
                Event().wait(SLOW)
            for fault, status in ((Fault.GARBAGE, 502), (Fault.NONSENSE, 200)):
                if fault in cloud.faults:
                    return self._send(status, b"<html><h1>Welcome")
            if Fault.PROXY in cloud.faults:
                return self._send(502, b'{"error": "bad gateway"}')
            headers = {name.lower(): value for name, value in self.headers.items()}
            before = cloud.writes()
            try:
                status, answer = cloud.answer(self.command, self.path, headers, body)
            except NoSuchPath:
                return self._send(404, NO_SUCH_PATH)
            if Fault.LOST_ANSWER in cloud.faults and cloud.writes() > before:
                return self._hang_up()
            return self._send(status, json.dumps(answer).encode())

        do_GET = do_POST = do_DELETE = do_PATCH = do_PUT = _serve  # noqa: N815  (the names that http.server looks for)

        def _send(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "text/html" if body.startswith(b"<") else "application/json")
            self.send_header("Content-Length", str(len(body)))
            if status == 429:
                self.send_header("Retry-After", "7")
            self.end_headers()
            self.wfile.write(body)

        def _hang_up(self) -> None:
            self.close_connection = True
            with suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  (as http.server has it)
            """Say nothing."""

    return Handler


class Server(ThreadingHTTPServer):
    """Serves a cloud; a client that is gone is nobody's mistake."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, cloud: Cloud) -> None:
        """Listen on a free port of loopback."""
        super().__init__(("127.0.0.1", 0), _handler(cloud))
        cloud.port = self.server_address[1]
        self.started = Event()
        """Set when it serves; to shut it down before would be to wait for ever."""

    def service_actions(self) -> None:
        """Serve."""
        self.started.set()

    def handle_error(self, request: object, client_address: object) -> None:
        """Log mistakes only."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


def main() -> None:
    """Run a cloud for another process, until that closes our input."""
    cloud = Cloud()
    cloud.launch(int(sys.argv[1]))
    with Server(cloud) as server:
        print(cloud.url, flush=True)  # noqa: T201  (for whoever started us)
        server.serve_forever()


if __name__ == "__main__":
    main()
