"""moto's server as a process of its own, with a life (`moto_life`), troubles, a log of what was asked, and a control.

``python -m tests.fleeting_aws.moto_server`` prints the port on which it listens, on loopback, and serves until it is
killed. A POST to ``/control`` calls a function of `CONTROL`.
"""

import json
import logging
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

from attrs import define, field, frozen
from moto import backends
from moto.core import responses, serialize
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server

from tests.fleeting_aws import moto_life as life
from tests.fleeting_aws import moto_rules
from tests.fleeting_aws.moto_rules import OTHER_CLIENT

Environ = dict[str, Any]
Start = Callable[..., object]

SLOW = 0.5

ERRORS = {
    "AUTH": (403, "AccessDenied", "User: arn:aws:iam::123456789012:user/ci is not authorized to perform this"),
    "BROKEN_PAGE": (500, "InternalFailure", "We are sorry."),
    "ERROR": (500, "InternalFailure", "We are sorry."),
    "RATE_LIMIT": (400, "Throttling", "Rate exceeded"),
}
"""Status, code and message of the troubles in which nothing is done; EC2's own codes are others.

Source: the services' lists of common errors. Messages are as operators show them; what follows one, which permission is
lacking, is guessed."""

EC2_CODES = {
    "AccessDenied": "UnauthorizedOperation",
    "Throttling": "RequestLimitExceeded",
    "InternalFailure": "InternalError",
}

# codes: EC2's list of error codes; words: AWS's guide, "Troubleshoot Amazon EC2 Auto Scaling: EC2 instance launch
# failures", shortened
LAUNCH_REFUSALS = {
    "STOCK_OUT": [
        "InsufficientInstanceCapacity",
        "We currently do not have sufficient m5.large capacity in the Availability Zone you requested (eu-west-1a).",
    ],
    "QUOTA": [
        "VcpuLimitExceeded",
        "You have requested more vCPU capacity than your current vCPU limit of 32 allows. Launching failed.",
    ],
}


@frozen
class Asked:
    """A request, as far as it can be read without knowing the service."""

    service: str
    """As the signature has it."""

    operation: str
    parameters: dict[str, str]
    body: bytes

    @property
    def permissions(self) -> list[str]:
        """What the caller needs for it, as IAM names it."""
        name = f"{self.service}:{self.operation}"
        return [name, *moto_rules.ON_BEHALF.get(name, ())]


@define
class App:
    """The endpoint of all services."""

    inner: Any = field(factory=lambda: DomainDispatcherApplication(create_backend_app))
    lock: threading.Lock = field(factory=threading.Lock)
    calls: Counter[str] = field(factory=Counter)
    """What was asked, as IAM names it, such as ``ec2:DescribeInstances``."""

    troubles: set[str] = field(factory=set)
    faults: list[dict[str, Any]] = field(factory=list)
    """Errors for operations that are to fail so many times: ``operation``, ``times``, ``status``, ``code``;
    the first ``after`` go well."""

    denied: set[str] = field(factory=set)
    """Operations that are not permitted, as IAM names them."""

    race: int | None = None
    """What somebody else sets the desired capacity to, right after us."""

    page: int = 0
    """Instances on one page of a listing; 0: as many as are asked for."""

    keys: str = ""
    """A file that gets the keys that EC2 Instance Connect is sent."""

    spoken: threading.Event = field(factory=threading.Event)
    """Set when a silence is over."""

    def __call__(self, environ: Environ, start: Start) -> Iterable[bytes]:
        """Answer one request."""
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        if environ["PATH_INFO"] == "/control":
            return self._control(json.loads(body), start)
        asked = _asked(environ, body)
        with self.lock:
            if OTHER_CLIENT not in environ.get("HTTP_AUTHORIZATION", ""):
                self.calls.update(asked.permissions)
        if "SILENCE" in self.troubles:
            self.spoken.wait()
            return _hang_up(environ)
        if "SLOW" in self.troubles:
            threading.Event().wait(SLOW)
        if "GARBAGE" in self.troubles:
            start("200 OK", [("Content-Type", "text/html")])
            return [b"<html><h1>Welcome"]
        with self.lock:
            if error := self._error_for(asked):
                return _refuse(start, asked.service, *error)
            life.LIFE.settle()
            answer = self._answer(environ, start, asked)
            life.LIFE.settle()
        return _hang_up(environ) if "LOST_ANSWER" in self.troubles else answer

    def _error_for(self, asked: Asked) -> tuple[int, str, str] | None:
        for name in ("AUTH", "ERROR", "RATE_LIMIT"):
            if name in self.troubles:
                return ERRORS[name]
        if lacking := next((each for each in asked.permissions if each in self.denied), None):
            status, code, message = ERRORS["AUTH"]
            return status, code, f"{message}: {lacking}"
        if "BROKEN_PAGE" in self.troubles and "NextToken" in asked.parameters:
            return ERRORS["BROKEN_PAGE"]
        if broken := moto_rules.refusal(asked.service, asked.operation, asked.parameters):
            return broken
        for fault in self.faults:
            if fault["operation"] == asked.operation and fault.get("after"):
                fault["after"] -= 1
            elif fault["operation"] == asked.operation and fault["times"]:
                fault["times"] -= 1
                return fault["status"], fault["code"], fault.get("message", "")
        return None

    def _answer(self, environ: Environ, start: Start, asked: Asked) -> Iterable[bytes]:
        body = asked.body
        if asked.operation == "SendSSHPublicKey":
            return self._take_key(start, json.loads(body))
        if asked.operation == "DescribeInstances" and self.page:
            smaller = {**asked.parameters, "MaxResults": str(self.page)}
            if "PAGE_LOOP" in self.troubles:
                smaller.pop("NextToken", None)
            body = urlencode(smaller).encode()
        if asked.operation == "SetDesiredCapacity" and self.race is not None:
            answer = self._ask_moto(environ, start, asked, body)
            life.find("fleet").set_desired_capacity(self.race)
            return answer
        return self._ask_moto(environ, start, asked, body)

    def _ask_moto(self, environ: Environ, start: Start, asked: Asked, body: bytes) -> Iterable[bytes]:
        environ = {**environ, "wsgi.input": BytesIO(body), "CONTENT_LENGTH": str(len(body))}
        try:
            return list(self.inner(environ, start))
        except life.Refused as refused:
            return _refuse(start, asked.service, refused.status, refused.code, str(refused))

    def _take_key(self, start: Start, asked: dict[str, str]) -> Iterable[bytes]:
        """Do what EC2 Instance Connect does, but for the minute after which it forgets the key."""
        if broken := moto_rules.refusal_of_key(asked):
            return _refuse(start, "ec2-instance-connect", *broken)
        there = {each.id for each in life.ec2().all_instances() if each._state.name == "running"}
        if asked["InstanceId"] not in there:
            return _refuse(start, "ec2-instance-connect", 400, "EC2InstanceNotFoundException", "no such instance")
        if self.keys:
            with Path(self.keys).open("a") as file:
                file.write(asked["SSHPublicKey"] + "\n")
        start("200 OK", [("Content-Type", "application/x-amz-json-1.1")])
        return [json.dumps({"RequestId": "1", "Success": True}).encode()]

    # --- the control -------------------------------------------------------------------------------------

    def _control(self, asked: dict[str, Any], start: Start) -> Iterable[bytes]:
        with self.lock:
            answer = getattr(self, f"do_{asked.pop('do')}")(**asked)
            life.LIFE.settle()
        start("200 OK", [("Content-Type", "application/json")])
        return [json.dumps(answer).encode()]

    def do_reset(self, life_: dict[str, Any], group: dict[str, Any], suspended: list[str]) -> None:
        """Begin anew."""
        self.troubles, self.faults, self.denied = set(), [], set()
        self.page, self.keys, self.race = 0, "", None
        life.reset(life_, group, suspended)

    def do_set(self, **values: Any) -> None:  # noqa: ANN401  (of whatever type the attribute is)
        """Change attributes of the app or of the life."""
        for name, value in values.items():
            setattr(self if hasattr(self, name) else life.LIFE, name, set(value) if name == "denied" else value)
        self._go_on()

    def do_trouble(self, name: str, *, on: bool) -> None:
        """Begin a trouble, or end it."""
        refusals = LAUNCH_REFUSALS.get(name)
        if refusals is not None:
            life.LIFE.refusal = refusals if on else None
        elif name == "PARTIAL":
            life.LIFE.at_most = 1 if on else None
        elif name == "PROTECTED":
            life.LIFE.protected = on
        elif on:
            self.troubles.add(name)
        else:
            self.troubles.discard(name)
        if name == "SILENCE":
            self.spoken.set() if not on else self.spoken.clear()
        self._go_on()

    def do_calls(self) -> dict[str, int]:
        """What was asked so far."""
        return dict(self.calls)

    def do_alive(self) -> list[str]:
        """What is paid for."""
        return [
            each.id for each in life.ec2().all_instances() if each._state.name not in {"terminated", "shutting-down"}
        ]

    def do_kill(self, instance: str) -> None:
        """End an instance, as somebody with EC2's own tools could."""
        life.die(instance)

    def do_launch(self, count: int) -> None:
        """Launch, as somebody with Auto Scaling's own tools could."""
        group = life.find("fleet")
        group.set_desired_capacity(group.desired_capacity + count)

    def do_state(self, instance: str, written: str) -> None:
        """Show an instance in a state, such as ``Standby/stopped``."""
        lifecycle, _, state = written.partition("/")
        life.become(life.member(instance)[1], lifecycle, state or "running")

    def do_lifecycle(self, instance: str) -> str:
        """Tell Auto Scaling's word for an instance's state."""
        lifecycle: str = life.member(instance)[1].lifecycle_state
        return lifecycle

    def do_rebalance(self, instance: str, zone: str) -> None:
        """Move an instance to another zone, as AZRebalance does."""
        life.rebalance(instance, zone)

    def do_health(self, instance: str, status: str) -> None:
        """Have Auto Scaling take an instance for healthy or not."""
        life.member(instance)[1].health_status = status

    def do_warm_pool(self, *, reuse: bool = False) -> None:
        """Give the group a warm pool."""
        life.find("fleet").put_warm_pool(None, 0, "Stopped", {"ReuseOnScaleIn": reuse})

    def do_hook(self, seconds: int) -> None:
        """Have a life-cycle hook delay the end of instances."""
        transition = "autoscaling:EC2_INSTANCE_TERMINATING"
        life.autoscaling().create_lifecycle_hook("drain", "fleet", transition, seconds, "CONTINUE")

    def do_activity(self, zone: str, status: str, message: str) -> None:
        """Have a launch written down."""
        life.LIFE.write_down(life.find("fleet"), "Launching a new EC2 instance.", status, zone=zone, message=message)

    def do_group(self, **values: Any) -> dict[str, int]:  # noqa: ANN401  (of whatever type the attribute is)
        """Change attributes of moto's group; tells its sizes."""
        group = life.find("fleet")
        for name, value in values.items():
            setattr(group, name, value)
        return {"desired": group.desired_capacity, "there": len(group.instance_states)}

    def _go_on(self) -> None:
        for group in life.groups().values():
            life.reconcile(group)


def _asked(environ: Environ, body: bytes) -> Asked:
    scope = environ.get("HTTP_AUTHORIZATION", "").partition("Credential=")[2].split(",")[0].split("/")
    service = scope[3] if len(scope) > 3 else "unsigned"
    if target := environ.get("HTTP_X_AMZ_TARGET"):
        return Asked(service, target.partition(".")[2], {}, body)
    parameters = dict(parse_qsl(body.decode(), keep_blank_values=True))
    return Asked(service, parameters.get("Action", ""), parameters, body)


def _refuse(start: Start, service: str, status: int, code: str, message: str) -> Iterable[bytes]:
    """Answer with an error, as the service writes it."""
    if service == "ec2-instance-connect":
        start(f"{status} -", [("Content-Type", "application/x-amz-json-1.1")])
        return [json.dumps({"__type": code, "message": message}).encode()]
    if service == "ec2":
        code = EC2_CODES.get(code, code)
        text = f"<Response><Errors><Error><Code>{code}</Code><Message>{message}</Message></Error></Errors></Response>"
    else:
        text = f"<ErrorResponse><Error><Code>{code}</Code><Message>{message}</Message></Error></ErrorResponse>"
    start(f"{status} -", [("Content-Type", "text/xml")])
    return [text.encode()]


def _hang_up(environ: Environ) -> Iterable[bytes]:
    """Break the connection instead of answering."""
    environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
    raise ConnectionResetError


def remember() -> None:
    """Let moto work out once what stays the same.

    With each request it lists the directory of its package and the methods of a class, and for each member of each
    answer under which names an object may have it: half of all that it computes.
    """
    modules = frozenset(backends.list_of_moto_modules())
    backends.list_of_moto_modules = lambda: modules
    responses.method_names_from_class = cache(responses.method_names_from_class)
    for picker in (serialize.AttributePicker, serialize.XFormedAttributePicker):
        picker.get_possible_keys = _remembered(picker.get_possible_keys)


def _remembered(possible_keys: Callable[[Any, Any], Iterable[str]]) -> Callable[[Any, Any], Iterable[str]]:
    """Ask once for each class of objects and each place in an answer: on nothing else does it depend."""
    known: dict[tuple[Any, ...], list[str]] = {}

    def remembered(picker: Any, context: Any) -> list[str]:  # noqa: ANN401  (moto's own)
        asked = (type(context.obj), context.operation_model.name, context.key_path, context.key)
        if asked not in known:
            known[asked] = [*possible_keys(picker, context)]
        return known[asked]

    return remembered


def main() -> None:
    """Serve until killed."""
    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    life.begin()
    remember()
    server = make_server("127.0.0.1", 0, App(), threaded=True, request_handler=MotoRequestHandler)
    sys.stdout.write(f"{server.port}\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    main()
