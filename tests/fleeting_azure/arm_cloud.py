"""A scale set in memory, and the requests about it that Azure Resource Manager would answer.

It does what Azure is documented or seen to do, the awkward parts too: instance ids of uniform sets come back, flexible
sets have no list of network interfaces, and what a failed operation left open is made up for by the next one.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from time import monotonic
from typing import Any, Literal
from uuid import uuid4

from attrs import define, field, frozen

from fleeting.testing import Trouble

TOKEN = "eyJ-the-token-that-nobody-may-see"
SUBSCRIPTION = "00000000-0000-0000-0000-000000000001"
GROUP = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/ci"
COMPUTE = f"{GROUP}/providers/Microsoft.Compute"
NETWORK = f"{GROUP}/providers/Microsoft.Network"
SET = f"{COMPUTE}/virtualMachineScaleSets/runners"
VMS = f"{COMPUTE}/virtualMachines"
LOCATION = f"/subscriptions/{SUBSCRIPTION}/providers/Microsoft.Compute/locations/westeurope"
AUTOSCALE = f"{GROUP}/providers/Microsoft.Insights/autoscaleSettings"
SIZE = "Standard_D2s_v5"

Mode = Literal["Uniform", "Flexible"]
Table = dict[str, Any]


@frozen(kw_only=True)
class Request:
    """What was asked."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: Any = None

    @property
    def line(self) -> str:
        """In a few words, such as ``GET …/virtualMachineScaleSets/runners``."""
        return f"{self.method} {self.path}"


@frozen
class Reply:
    """What is answered."""

    status: int
    body: Table | str | None = None
    headers: Mapping[str, str] = field(factory=dict)


class Refused(Exception):
    """Ends a request with an error as Azure words them."""

    def __init__(self, status: int, code: str, message: str = "", *, target: str = "", **headers: str) -> None:
        """Take what the answer says; Azure would not repeat the token, but who knows."""
        super().__init__(code)
        told = {"code": code, "message": f"{message} (asked with {TOKEN})", **({"target": target} if target else {})}
        self.reply = Reply(status, {"error": told}, {name.replace("_", "-"): text for name, text in headers.items()})


@define(kw_only=True, eq=False)
class Instance:
    """A virtual machine of the scale set."""

    number: int
    name: str
    """Instance id in a uniform set, name of the machine in a flexible one."""

    vm_id: str = field(factory=lambda: str(uuid4()))
    created: datetime = field(factory=lambda: datetime.now(UTC))
    provisioning: str = "Creating"
    power: str | None = None
    failure: str | None = None
    """Code of what its last operation failed with."""

    becomes: tuple[str, str | None] | None = ("Succeeded", "running")
    at: float = 0.0


@define(kw_only=True)
class Cloud:
    """One scale set, and what a test may do to it."""

    mode: Mode
    base: str = ""
    """Where it answers."""

    page: int = 3
    boot_time: float = 0.0
    """Seconds until an instance runs, or is started, deallocated or gone."""

    capacity: int = 0
    etag: int = 0
    provisioning: str = "Succeeded"
    statuses: list[Table] = field(factory=list)
    properties: Table = field(factory=dict)
    """More of the scale set's properties."""

    profile: Table = field(factory=dict)
    """More of its virtual machine profile."""

    zones: Sequence[str] = ()
    size: str = SIZE
    autoscale: list[Table] = field(factory=list)
    public: bool = True
    address: str = "10.1.0."
    """What the internal address of an instance begins with, if it ends with a dot; else all of it."""

    unlisted: int = 0
    """How many of the newest instances no list shows yet."""

    stuck: bool = False
    """Whether operations never end."""

    garbles: bool = False
    """Whether answers are lost on the way: what comes instead is not even TLS."""

    before_change: Callable[[], object] | None = None
    """What somebody else does just before the next change."""

    refuse: dict[str, Refused] = field(factory=dict)
    """Errors for the requests whose line ends so."""

    troubles: dict[Trouble, Any] = field(factory=dict)
    instances: dict[str, Instance] = field(factory=dict)
    """By ``vm_id``."""

    operations: dict[str, tuple[float, str]] = field(factory=dict)
    log: list[Request] = field(factory=list)
    used: set[str] = field(factory=set)
    announced: list[str] = field(factory=list)
    """Instances that will be evicted."""

    victims: list[str] = field(factory=list)
    """Instances that Azure chose to remove because the capacity was lowered."""

    # --- what a test does to it --------------------------------------------------------------------------

    async def launch(self, number: int) -> None:
        """Let somebody add instances with tools of their own."""
        self._resize(self.capacity + number)
        self.tick()

    async def announce(self, instance: str) -> None:
        """Tell the machine itself that it will be evicted."""
        self.announced.append(instance)

    async def kill(self, instance: str) -> None:
        """Let one be gone at once."""
        self.evict(instance)

    def evict(self, instance: str) -> None:
        """Evict a spot instance by deletion."""
        del self.instances[instance]
        self.capacity -= 1

    async def alive(self) -> set[str]:
        """Tell which are there."""
        self.tick()
        return set(self.instances)

    async def set_state(self, instance: str, written: str) -> None:
        """Show one in a state, written ``provisioning/power``."""
        provisioning, _, power = written.partition("/")
        each = self.instances[instance]
        each.provisioning, each.power, each.becomes = provisioning, power or None, None

    def writes(self) -> int:
        """Count the requests that would change something."""
        return sum(request.method != "GET" for request in self.log)

    def asked(self, ending: str) -> list[Request]:
        """The requests whose line ends so, in any case."""
        return [request for request in self.log if request.line.lower().endswith(ending.lower())]

    def tick(self) -> None:
        """Let happen what is due."""
        for each in [each for each in self.instances.values() if each.becomes and each.at <= monotonic()]:
            each.provisioning, each.power = each.becomes or ("", None)
            each.becomes = None
            if each.provisioning == "Gone":
                del self.instances[each.vm_id]
        if self.provisioning == "Updating" and all(each.provisioning != "Creating" for each in self.instances.values()):
            self.provisioning = "Succeeded"

    # --- requests ----------------------------------------------------------------------------------------

    def answer(self, request: Request) -> Reply:
        """Do what is asked."""
        self.tick()
        try:
            self._refuse_as_troubled(request)
            self.log.append(request)
            for ending, refused in self.refuse.items():
                if request.line.endswith(ending):
                    raise refused
            return self._route(request)
        except Refused as refused:
            return refused.reply

    def _refuse_as_troubled(self, request: Request) -> None:
        if Trouble.ERROR in self.troubles:
            raise Refused(500, "InternalServerError", "An unexpected error occurred.")
        if Trouble.AUTH in self.troubles or request.headers.get("authorization") != f"Bearer {TOKEN}":
            raise Refused(401, "InvalidAuthenticationToken", "The access token is invalid.")
        if Trouble.RATE_LIMIT in self.troubles:
            raise Refused(429, "TooManyRequests", "The server rejected the request.", Retry_After="7")
        if Trouble.BROKEN_PAGE in self.troubles and "$skiptoken" in request.query:
            raise Refused(500, "InternalServerError", "An unexpected error occurred.")
        if "api-version" not in request.query:
            raise Refused(400, "MissingApiVersionParameter", "The api-version query parameter is required.")

    def _route(self, request: Request) -> Reply:
        changing = request.method != "GET"
        if changing and self.before_change:
            then, self.before_change = self.before_change, None
            then()
        path = request.path.lower()
        for method, prefix, route in self._routes():
            if request.method == method and f"{path}/".startswith(f"{prefix.lower().rstrip('/')}/"):
                rest = request.path[len(prefix) :].strip("/")
                if (reply := route(request, rest)) is not None:
                    return reply
        raise Refused(404, "ResourceNotFound", f"The Resource '{request.path}' was not found.")

    def _routes(self) -> Iterator[tuple[str, str, Callable[[Request, str], Reply | None]]]:
        """Longer paths first."""
        yield "GET", f"{SET}/virtualMachines/", self._get_uniform
        yield "GET", f"{SET}/virtualMachines", self._list_uniform
        yield "GET", f"{SET}/instanceView", self._instance_view
        yield "POST", f"{SET}/", self._post_set
        yield "GET", SET, self._get_set
        yield "PATCH", SET, self._patch_set
        yield "GET", f"{VMS}/", self._get_flexible
        yield "GET", VMS, self._list_flexible
        yield "POST", f"{VMS}/", self._post_vm
        yield "GET", NETWORK, self._get_network
        yield "GET", AUTOSCALE, lambda request, _: self._paged(request, self.autoscale)
        yield "GET", f"{LOCATION}/operations/", self._get_operation
        yield "GET", f"{LOCATION}/operationResults/", lambda _, __: Reply(200)

    def _get_set(self, request: Request, rest: str) -> Reply | None:
        if rest == "networkInterfaces" and self.mode == "Flexible":
            raise Refused(404, "NotFound", f"Resource {SET} not found.")
        return None if rest else Reply(200, self._model(), {"ETag": f'"{self.etag}"'})

    def _model(self) -> Table:
        profile: Table = {
            "osProfile": {"adminUsername": "azureuser", "linuxConfiguration": {}},
            "storageProfile": {"osDisk": {"osType": "Linux"}},
            **self.profile,
        }
        properties = {
            "orchestrationMode": self.mode,
            "provisioningState": self.provisioning,
            "overprovision": False if self.mode == "Uniform" else None,
            "upgradePolicy": {"mode": "Manual"},
            "singlePlacementGroup": False,
            "virtualMachineProfile": profile,
            **self.properties,
        }
        sku = {"name": self.size, "tier": "Standard", "capacity": self.capacity}
        own = {"id": SET, "name": "runners", "location": "westeurope", "etag": f'"{self.etag}"'}
        return {**own, "sku": sku, "properties": properties}

    def _patch_set(self, request: Request, rest: str) -> Reply:
        if request.headers.get("if-match", f'"{self.etag}"') != f'"{self.etag}"':
            raise Refused(412, "ConditionNotMet", "The condition specified using HTTP conditional header is not met.")
        wanted = request.body["sku"]["capacity"]
        if Trouble.QUOTA in self.troubles:
            message = "Operation could not be completed as it results in exceeding approved Cores quota."
            raise Refused(409, "OperationNotAllowed", message)
        failure = "AllocationFailed" if Trouble.STOCK_OUT in self.troubles else ""
        self._resize(wanted, failure)
        return Reply(200, self._model(), self._operation("Failed" if failure else "Succeeded"))

    def _resize(self, capacity: int, failure: str = "") -> None:
        """Work towards the capacity, as far as there is stock."""
        self.etag += 1
        self.capacity = capacity
        there = [each for each in self.instances.values() if each.provisioning != "Deleting"]
        for each in there[capacity:]:
            self.victims.append(each.vm_id)
            self._set_out(each, "Deleting", ("Gone", None))
        self.provisioning = "Failed" if failure else "Updating"
        self.statuses = [_status(f"ProvisioningState/failed/{failure}", "It failed.")] if failure else []
        for _ in range(0 if failure else capacity - len(there)):
            self._add()

    def _add(self) -> None:
        taken = {each.number for each in self.instances.values()}
        number = next(number for number in range(len(taken) + 1) if number not in taken)
        name = str(number) if self.mode == "Uniform" else f"runners_{uuid4().hex[:8]}"
        made = Instance(number=number, name=name)
        self.instances[made.vm_id] = made
        self._set_out(made, "Creating", ("Succeeded", "running"))

    def _set_out(self, each: Instance, provisioning: str, becomes: tuple[str, str | None]) -> None:
        each.provisioning, each.becomes, each.failure = provisioning, becomes, None
        each.at = monotonic() + (float("inf") if self.stuck else self.boot_time)

    def _post_set(self, request: Request, rest: str) -> Reply | None:
        if rest not in {"delete", "deallocate", "start"} or (self.mode == "Flexible" and rest != "delete"):
            return None
        named = {each.name: each for each in self.instances.values()}
        if unknown := [name for name in request.body["instanceIds"] if name not in named]:
            message = f"The provided instanceId {unknown[0]} is not an active instanceId."
            raise Refused(400, "InvalidParameter", message, target="instanceIds")
        if rest == "delete" and Trouble.PROTECTED in self.troubles:
            raise Refused(409, "OperationNotAllowed", "The instance is protected.")
        for name in request.body["instanceIds"]:
            self._act(named[name], rest)
        return Reply(202, None, self._operation("Succeeded"))

    def _act(self, each: Instance, action: str) -> None:
        if action == "delete":
            self.capacity -= each.provisioning != "Deleting"
            self.etag += 1
            self._set_out(each, "Deleting", ("Gone", None))
        elif action == "deallocate":
            self._set_out(each, "Updating", ("Succeeded", "deallocated"))
            each.power = "deallocating"
        elif Trouble.STOCK_OUT in self.troubles:
            self._set_out(each, "Updating", ("Failed", "deallocated"))
            each.failure = "AllocationFailed"
        else:
            self._set_out(each, "Updating", ("Succeeded", "running"))
            each.power = "starting"

    def _post_vm(self, request: Request, rest: str) -> Reply | None:
        name, _, action = rest.partition("/")
        for each in self.instances.values():
            if self.mode == "Flexible" and each.name == name and action in {"deallocate", "start"}:
                self._act(each, action)
                return Reply(202, None, self._operation("Succeeded"))
        return None

    def _operation(self, ending: str) -> dict[str, str]:
        name = str(uuid4())
        self.operations[name] = (float("inf") if self.stuck else monotonic() + self.boot_time, ending)
        where, tail = f"{self.base}{LOCATION}", f"{name}?api-version=2026-04-01"
        here, there = f"{where}/operations/{tail}", f"{where}/operationResults/{tail}"
        return {"Azure-AsyncOperation": here, "Location": there, "Retry-After": "0"}

    def _get_operation(self, request: Request, rest: str) -> Reply:
        at, ending = self.operations[rest]
        status: Table = {"name": rest, "status": ending if at <= monotonic() else "InProgress"}
        if status["status"] == "Failed":
            status["error"] = {"code": "AllocationFailed", "message": "Allocation failed."}
        return Reply(200, status, {"Retry-After": "0"})

    def _instance_view(self, request: Request, rest: str) -> Reply:
        return Reply(200, {"statuses": self.statuses or [_status("ProvisioningState/succeeded", "")]})

    def _list_uniform(self, request: Request, rest: str) -> Reply | None:
        if rest:
            return None
        if self.mode == "Flexible":  # which tells names only
            return self._paged(request, [{"name": each.name, "instanceId": each.name} for each in self._sorted()])
        return self._paged(request, [self._vm(each) for each in self._sorted()])

    def _list_flexible(self, request: Request, rest: str) -> Reply | None:
        if rest:
            return None
        if request.query.get("$filter") != f"'virtualMachineScaleSet/id' eq '{SET}'":
            raise Refused(400, "BadRequest", "A filter is needed here.")
        return self._paged(request, [self._vm(each) for each in self._sorted() if self.mode == "Flexible"])

    def _sorted(self) -> Sequence[Instance]:
        known = [*self.instances.values()][: len(self.instances) - self.unlisted]
        return sorted(known, key=lambda each: each.number)

    def _get_uniform(self, request: Request, rest: str) -> Reply | None:
        name, _, more = rest.partition("/")
        return self._network_of(name, more) if more else self._get_vm("Uniform", name)

    def _get_flexible(self, request: Request, rest: str) -> Reply | None:
        return self._get_vm("Flexible", rest)

    def _get_vm(self, mode: Mode, name: str) -> Reply | None:
        found = [each for each in self.instances.values() if each.name == name and self.mode == mode]
        return Reply(200, self._vm(found[0])) if found else None

    def _paged(self, request: Request, items: Sequence[Table]) -> Reply:
        start = int(request.query.get("$skiptoken", 0))
        following = start + self.page if start + self.page < len(items) else None
        if Trouble.PAGE_LOOP in self.troubles:
            following = 0
        body: Table = {"value": items[start : start + self.page]}
        if following is not None:
            more = "&".join(f"{key}={value}" for key, value in request.query.items() if key != "$skiptoken")
            body["nextLink"] = f"{self.base}{request.path}?{more}&$skiptoken={following}"
        return Reply(200, body)

    def _vm(self, each: Instance) -> Table:
        uniform = self.mode == "Uniform"
        codes = [f"ProvisioningState/{each.provisioning.lower()}" + (f"/{each.failure}" if each.failure else "")]
        codes += [f"PowerState/{each.power}"] if each.power else []
        properties = {
            "vmId": each.vm_id,
            "provisioningState": each.provisioning,
            "timeCreated": each.created.isoformat(),
            "hardwareProfile": {"vmSize": self.size},
            "networkProfile": {"networkInterfaces": [{"id": self._nic(each), "properties": {"primary": True}}]},
            "instanceView": {"statuses": [_status(code, "") for code in codes]},
        }
        own = {"location": "westeurope", **({"zones": [*self.zones]} if self.zones else {})}
        if uniform:
            identity = {"id": f"{SET}/virtualMachines/{each.name}", "name": f"runners_{each.name}"}
            return {**own, **identity, "instanceId": each.name, "properties": properties}
        properties["virtualMachineScaleSet"] = {"id": SET}
        return {**own, "id": f"{VMS}/{each.name}", "name": each.name, "properties": properties}

    # --- network -----------------------------------------------------------------------------------------

    def _nic(self, each: Instance) -> str:
        if self.mode == "Uniform":
            return f"{SET}/virtualMachines/{each.name}/networkInterfaces/nic"
        return f"{NETWORK}/networkInterfaces/{each.name}-nic"

    def _public_id(self, each: Instance) -> str:
        if self.mode == "Uniform":
            return f"{self._nic(each)}/ipConfigurations/ip/publicIPAddresses/pub"
        return f"{NETWORK}/publicIPAddresses/{each.name}-pub"

    def _get_network(self, request: Request, rest: str) -> Reply | None:
        kind, _, name = rest.partition("/")
        return self._network_of(name.rpartition("-")[0], f"{kind}/{name}") if self.mode == "Flexible" else None

    def _network_of(self, name: str, what: str) -> Reply | None:
        for each in self.instances.values():
            if each.name == name:
                if "publicipaddresses" in what.lower():
                    return Reply(200, {"properties": {"ipAddress": f"127.0.1.{each.number + 4}"}})
                return Reply(200, self._nic_model(each))
        return None

    def _nic_model(self, each: Instance) -> Table:
        address = f"{self.address}{each.number + 4}" if self.address.endswith(".") else self.address
        ip: Table = {"primary": True, "privateIPAddress": address}
        if self.public:
            ip["publicIPAddress"] = {"id": self._public_id(each)}
        more = {"name": "more", "properties": {"primary": False, "privateIPAddress": "10.9.9.9"}}
        configurations = [more, {"name": "ip", "properties": ip}]
        return {"id": self._nic(each), "properties": {"primary": True, "ipConfigurations": configurations}}


def _status(code: str, message: str) -> Table:
    return {"code": code, "level": "Info", "message": f"{message} {TOKEN}", "time": "2026-01-02T03:04:05+00:00"}
