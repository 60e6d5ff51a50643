"""A scale set in memory, and the requests about it that Azure Resource Manager would answer.

It does what Azure is documented or seen to do, the awkward parts too: instance ids of uniform sets come back, ``vmId``
is withheld while an instance is created, flexible sets have no list of network interfaces, and what a failed operation
left open is made up for by the next one. What it refuses is in `arm_rules`, with sources.

It takes what the plugin sends, and what Azure's own clients, ``az vmss``, Terraform and the cluster autoscaler send:
lists of sets, of interfaces and of addresses, PUT of the whole model, scaleOut, DELETE of one machine, and power
operations on one, some or all. Source of paths and parameters: azure-mgmt-compute.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from time import monotonic
from typing import Any, Literal
from uuid import uuid4

from attrs import define, field, frozen

from fleeting.testing import Trouble
from tests.fleeting_azure import arm_rules as rules
from tests.fleeting_azure.arm_rules import SUBSCRIPTION, TOKEN, Refused, Reply, Table

GROUP = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/ci"
COMPUTE = f"{GROUP}/providers/Microsoft.Compute"
NETWORK = f"{GROUP}/providers/Microsoft.Network"
SET = f"{COMPUTE}/virtualMachineScaleSets/runners"
VMS = f"{COMPUTE}/virtualMachines"
LOCATION = f"/subscriptions/{SUBSCRIPTION}/providers/Microsoft.Compute/locations/westeurope"
AUTOSCALE = f"{GROUP}/providers/Microsoft.Insights/autoscaleSettings"
SIZE = "Standard_D2s_v5"
NAME = SET.rpartition("/")[2]

Mode = Literal["Uniform", "Flexible"]


@frozen(kw_only=True)
class Request:
    """What was asked."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: Any = None
    malformed: Refused | None = None
    """Why the body cannot be read."""

    @property
    def line(self) -> str:
        """In a few words, such as ``GET …/virtualMachineScaleSets/runners``."""
        return f"{self.method} {self.path}"


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

    @property
    def vm_name(self) -> str:
        """The name of its virtual machine."""
        return f"runners_{self.name}" if self.name.isdecimal() else self.name

    @property
    def id(self) -> str:
        """What the group knows it by."""
        return f"{self.vm_name}-{self.created:%Y%m%dT%H%M%S%f}"


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
    tags: Table = field(factory=dict)
    provisioning: str = "Succeeded"
    statuses: list[Table] = field(factory=list)
    properties: Table = field(factory=dict)
    """More of the scale set's properties."""

    profile: Table = field(factory=dict)
    """More of its virtual machine profile."""

    zones: Sequence[str] = ()
    size: str = SIZE
    autoscale: list[Table] = field(factory=list)
    tells_vm_id: bool = False
    """Whether ``vmId`` is told while an instance is created."""

    tells_time: bool = True
    """Whether ``timeCreated`` is told; it has seven digits behind the point. Source: azure-rest-api-specs#23344."""

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

    since: str = "2026-01-02T03:04:05+00:00"
    """When all that has a status came to have it."""

    troubles: dict[Trouble, Any] = field(factory=dict)
    instances: dict[str, Instance] = field(factory=dict)
    """By `Instance.id`."""

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
        """Announce to the machine itself that it will be evicted."""
        self.announced.append(instance)

    async def kill(self, instance: str) -> None:
        """Let one be gone at once."""
        self.evict(instance)

    def evict(self, instance: str) -> None:
        """Evict a spot instance by deletion."""
        del self.instances[instance]
        self.capacity -= 1

    async def alive(self) -> set[str]:
        """Which are there."""
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
                del self.instances[each.id]
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
        if request.malformed:
            raise request.malformed

    def _route(self, request: Request) -> Reply:
        if request.method != "GET" and self.before_change:
            then, self.before_change = self.before_change, None
            then()
        namespace, rest = rules.parts_of(request.path, request.query.get("api-version"))
        rules.check_flags(request.query)
        route = {"microsoft.compute": self._compute, "microsoft.network": self._network}.get(namespace, self._insights)
        if (reply := route(request, rest)) is None:  # guessed
            raise Refused(405, "MethodNotAllowed", f"{request.method} is not supported for '{request.path}'.")
        return reply

    def _compute(self, request: Request, rest: list[str]) -> Reply | None:  # noqa: PLR0911  (a table)
        match request.method, rest:
            case "GET", ["virtualmachinescalesets"]:
                return self._paged(request, [self._model()])
            case _, ["virtualmachinescalesets", name, *_] if name != NAME:
                raise rules.not_found("virtualMachineScaleSets", name)
            case _, ["virtualmachinescalesets", _, "virtualmachines", *_]:
                return self._uniform(request, rest[3:])
            case _, ["virtualmachinescalesets", _, *_]:
                return self._scale_set(request, rest[2:])
            case "GET", ["virtualmachines"]:
                return self._list_flexible(request)
            case _, ["virtualmachines", name, *more]:
                return self._machine(request, self._named("Flexible", name), more)
            case "GET", ["locations", _, "operations", name]:
                return self._get_operation(name)
            case "GET", ["locations", _, "operationresults", _]:
                return Reply(200)
        return None

    def _scale_set(self, request: Request, rest: list[str]) -> Reply | None:  # noqa: PLR0911  (a table)
        match request.method, rest:
            case "GET", []:
                return Reply(200, self._model(), {"ETag": f'"{self.etag}"'})
            case "PATCH", []:
                return self._change(request)
            case "PUT", []:
                rules.check_model(request.body, self.mode)
                return self._change(request)
            case "GET", ["instanceview"]:
                return Reply(
                    200, {"statuses": self.statuses or [_status("ProvisioningState/succeeded", "", self.since)]}
                )
            case "GET", ["networkinterfaces" | "publicipaddresses"] if self.mode == "Flexible":
                raise Refused(404, "NotFound", f"Resource {SET} not found.")  # Azure/azure-cli#28258
            case "GET", ["networkinterfaces"]:
                return self._of_all(request, self._nic_model)
            case "GET", ["publicipaddresses"]:
                return self._paged(request, [self._public_model(each) for each in self._sorted() if self.public])
            case "POST", ["scaleout"]:
                more = (request.body or {}).get("capacity")
                body = {"sku": {"capacity": self.capacity + more if isinstance(more, int) else more}}
                self._resize(rules.capacity_in(body, self.capacity, 1000))
                return Reply(202, None, self._operation("Succeeded"))
            case "POST", ["delete" | "deallocate" | "poweroff" | "start" as action]:
                return self._act_on_many(request, action)
        return None

    def _uniform(self, request: Request, rest: list[str]) -> Reply | None:
        """Answer about machines as parts of their scale set."""
        if rest:
            return self._machine(request, self._named("Uniform", rest[0]), rest[1:])
        view = rules.wants_view(request.query)
        if self.mode == "Flexible":  # which tells names only
            return self._of_all(request, lambda each: {"name": each.name, "instanceId": each.name})
        return self._of_all(request, partial(self._vm, view=view))

    def _named(self, mode: Mode, name: str) -> Instance:
        for each in self.instances.values():
            if each.name.lower() == name and self.mode == mode:
                return each
        raise rules.not_found("virtualMachines", name)

    def _machine(  # noqa: PLR0911  (a table)
        self, request: Request, each: Instance, rest: list[str]
    ) -> Reply | None:
        """Answer about one machine. Only a spot machine is evicted; that others are refused is guessed."""
        match request.method, rest:
            case "GET", []:
                return Reply(200, self._vm(each, view=rules.wants_view(request.query, ("userdata",))))
            case "GET", ["instanceview"]:
                return Reply(200, self._view(each))
            case "DELETE", []:
                self._act(each, "delete")
                return Reply(202, None, self._operation("Succeeded"))
            case "POST", ["deallocate" | "poweroff" | "start" as action]:
                self._act(each, action)
                return Reply(202, None, self._operation("Succeeded"))
            case "POST", ["simulateeviction"]:
                if self.profile.get("priority") != "Spot":
                    raise Refused(409, "OperationNotAllowed", "Only a Spot virtual machine can be evicted.")
                self.evict(each.id)
                return Reply(204)
            case "GET", ["networkinterfaces" | "publicipaddresses", *_] if self.mode == "Uniform":
                return self._network_of(request, each, rest)
        return None

    def _insights(self, request: Request, rest: list[str]) -> Reply | None:
        return self._paged(request, self.autoscale) if (request.method, len(rest)) == ("GET", 1) else None

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
        return {**own, "sku": sku, "tags": self.tags, "properties": properties}

    def _change(self, request: Request) -> Reply:
        if request.headers.get("if-match", "*") not in ("*", f'"{self.etag}"'):
            raise Refused(412, "ConditionNotMet", "The condition specified using HTTP conditional header is not met.")
        if request.headers.get("if-none-match") == "*":
            raise Refused(412, "PreconditionFailed", "The resource exists already.")
        if (tags := rules.tags_in(request.body)) is not None:
            self.tags = tags
            self.etag += 1  # guessed: another representation has another tag
            if "sku" not in request.body:
                return Reply(200, self._model(), self._operation("Succeeded"))
        most = 100 if self.mode == "Uniform" and self._model()["properties"]["singlePlacementGroup"] else 1000
        wanted = rules.capacity_in(request.body, self.capacity, most)
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
            self.victims.append(each.id)
            self._set_out(each, "Deleting", ("Gone", None))
        self.provisioning = "Failed" if failure else "Updating"
        self.statuses = [_status(f"ProvisioningState/failed/{failure}", "It failed.", self.since)] if failure else []
        for _ in range(0 if failure else capacity - len(there)):
            self._add()

    def _add(self) -> None:
        taken = {each.number for each in self.instances.values()}
        number = next(number for number in range(len(taken) + 1) if number not in taken)
        name = str(number) if self.mode == "Uniform" else f"runners_{uuid4().hex[:8]}"
        made = Instance(number=number, name=name)
        self.instances[made.id] = made
        self._set_out(made, "Creating", ("Succeeded", "running"))

    def _set_out(self, each: Instance, provisioning: str, becomes: tuple[str, str | None]) -> None:
        each.provisioning, each.becomes, each.failure = provisioning, becomes, None
        each.at = monotonic() + (float("inf") if self.stuck else self.boot_time)

    def _act_on_many(self, request: Request, action: str) -> Reply:
        """Act on the instances that the body names. Power is for the machines themselves in a flexible set."""
        if self.mode == "Flexible" and action != "delete":
            raise Refused(409, "OperationNotAllowed", "It is not supported for scale sets of this mode.")  # guessed
        named = {each.name: each for each in self.instances.values()}
        names = rules.named_in(request.body, named, required=action == "delete")
        if action == "delete" and Trouble.PROTECTED in self.troubles:
            raise Refused(409, "OperationNotAllowed", "The instance is protected.")
        for name in names:
            self._act(named[name], action)
        return Reply(202, None, self._operation("Succeeded"))

    def _act(self, each: Instance, action: str) -> None:
        if action == "delete":
            self.capacity -= each.provisioning != "Deleting"
            self.etag += 1
            self._set_out(each, "Deleting", ("Gone", None))
        elif action in ("deallocate", "poweroff"):
            going, gone = ("deallocating", "deallocated") if action == "deallocate" else ("stopping", "stopped")
            self._set_out(each, "Updating", ("Succeeded", gone))
            each.power = going
        elif Trouble.STOCK_OUT in self.troubles:
            self._set_out(each, "Updating", ("Failed", "deallocated"))
            each.failure = "AllocationFailed"
        else:
            self._set_out(each, "Updating", ("Succeeded", "running"))
            each.power = "starting"

    def _operation(self, ending: str) -> dict[str, str]:
        name = str(uuid4())
        self.operations[name] = (float("inf") if self.stuck else monotonic() + self.boot_time, ending)
        where, tail = f"{self.base}{LOCATION}", f"{name}?api-version=2026-04-01"
        here, there = f"{where}/operations/{tail}", f"{where}/operationResults/{tail}"
        return {"Azure-AsyncOperation": here, "Location": there, "Retry-After": "0"}

    def _get_operation(self, name: str) -> Reply:
        if name not in self.operations:
            raise Refused(404, "NotFound", f"The operation '{name}' was not found.")  # guessed
        at, ending = self.operations[name]
        status: Table = {"name": name, "status": ending if at <= monotonic() else "InProgress"}
        if status["status"] == "Failed":
            status["error"] = {"code": "AllocationFailed", "message": "Allocation failed."}
        return Reply(200, status, {"Retry-After": "0"})

    def _list_flexible(self, request: Request) -> Reply:
        """List the machines of the resource group. Views go with a filter only. Source: REST reference."""
        expression = request.query.get("$filter", "")
        view = rules.wants_view(request.query)
        if view and not expression:
            raise Refused(400, "BadRequest", "The expand expression needs a filter.")
        asked = rules.set_in(expression) if expression else SET.lower()
        ours = self.mode == "Flexible" and asked == SET.lower()
        return self._of_all(request, partial(self._vm, view=view)) if ours else self._paged(request, [])

    def _sorted(self) -> Sequence[Instance]:
        known = [*self.instances.values()][: len(self.instances) - self.unlisted]
        return sorted(known, key=lambda each: each.number)

    def _of_all(self, request: Request, model: Callable[[Instance], Table]) -> Reply:
        """List what belongs to the machines. One deleted between two pages moves no other (guessed)."""
        machines = self._sorted()
        return self._paged(request, [model(each) for each in machines], [each.number for each in machines])

    def _paged(self, request: Request, items: Sequence[Table], keys: Sequence[int] = ()) -> Reply:
        """Answer with a page of what is there, which begins with the key that the token is, or the next one left."""
        keys = keys or range(len(items))
        if not (token := request.query.get("$skiptoken", "0")).isdecimal():
            raise rules.invalid("$skiptoken", "The continuation token is invalid.")
        start = bisect_left(keys, int(token))
        following = keys[start + self.page] if start + self.page < len(items) else None
        if Trouble.PAGE_LOOP in self.troubles:
            following = 0
        first = start - 1 if start and Trouble.SHIFTED_PAGE in self.troubles else start
        body: Table = {"value": items[first : start + self.page]}
        if following is not None:
            more = "&".join(f"{key}={value}" for key, value in request.query.items() if key != "$skiptoken")
            body["nextLink"] = f"{self.base}{request.path}?{more}&$skiptoken={following}"
        return Reply(200, body)

    def _view(self, each: Instance) -> Table:
        codes = [f"ProvisioningState/{each.provisioning.lower()}" + (f"/{each.failure}" if each.failure else "")]
        codes += [f"PowerState/{each.power}"] if each.power else []
        return {"statuses": [_status(code, "", self.since) for code in codes]}

    def _vm(self, each: Instance, *, view: bool) -> Table:
        uniform = self.mode == "Uniform"
        properties = {
            **({"vmId": each.vm_id} if each.provisioning != "Creating" or self.tells_vm_id else {}),
            "provisioningState": each.provisioning,
            **({"timeCreated": f"{each.created:%Y-%m-%dT%H:%M:%S.%f}0+00:00"} if self.tells_time else {}),
            "hardwareProfile": {"vmSize": self.size},
            "networkProfile": {"networkInterfaces": [{"id": self._nic(each), "properties": {"primary": True}}]},
            **({"instanceView": self._view(each)} if view else {}),
        }
        own = {"location": "westeurope", **({"zones": [*self.zones]} if self.zones else {})}
        if uniform:
            identity = {"id": f"{SET}/virtualMachines/{each.name}", "name": each.vm_name}
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

    def _network(self, request: Request, rest: list[str]) -> Reply | None:
        """Answer about interfaces and addresses of their own, which only machines of flexible sets have."""
        if request.method != "GET" or len(rest) > 2:
            return None
        of = [each for each in self._sorted() if self.mode == "Flexible"]
        models = [self._nic_model(each) for each in of] if rest[0] == "networkinterfaces" else []
        models += [self._public_model(each) for each in of if self.public] if rest[0] == "publicipaddresses" else []
        return self._paged(request, models) if len(rest) == 1 else _one(models, rest)

    def _network_of(self, request: Request, each: Instance, rest: list[str]) -> Reply | None:
        """Answer about interfaces and addresses that are parts of a machine of a uniform set."""
        match rest:
            case ["networkinterfaces"]:
                return self._paged(request, [self._nic_model(each)])
            case ["networkinterfaces", _]:
                return _one([self._nic_model(each)], rest)
            case ["networkinterfaces", "nic", "ipconfigurations", "ip", "publicipaddresses"]:
                return self._paged(request, [self._public_model(each)] if self.public else [])
            case ["networkinterfaces", "nic", "ipconfigurations", "ip", "publicipaddresses", _]:
                return _one([self._public_model(each)] if self.public else [], rest)
        raise rules.not_found("networkInterfaces", rest[-1])

    def _public_model(self, each: Instance) -> Table:
        model = {"id": self._public_id(each), "properties": {"ipAddress": f"127.0.1.{each.number + 4}"}}
        return {**model, "name": self._public_id(each).rpartition("/")[2]}

    def _nic_model(self, each: Instance) -> Table:
        address = f"{self.address}{each.number + 4}" if self.address.endswith(".") else self.address
        ip: Table = {"primary": True, "privateIPAddress": address}
        if self.public:
            ip["publicIPAddress"] = {"id": self._public_id(each)}
        more = {"name": "more", "properties": {"primary": False, "privateIPAddress": "10.9.9.9"}}
        configurations = [more, {"name": "ip", "properties": ip}]
        model = {"id": self._nic(each), "name": self._nic(each).rpartition("/")[2]}
        return {**model, "properties": {"primary": True, "ipConfigurations": configurations}}


def _one(models: Sequence[Table], rest: Sequence[str]) -> Reply:
    """The one of that name."""
    for model in models:
        if model["name"].lower() == rest[-1]:
            return Reply(200, model)
    raise rules.not_found(rest[-2], rest[-1])


def _status(code: str, message: str, since: str) -> Table:
    return {"code": code, "level": "Info", "message": f"{message} {TOKEN}", "time": since}
