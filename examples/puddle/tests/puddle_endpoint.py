"""Puddle's API on a port of this machine: a cloud in memory that can be made to fail in every way a cloud has."""

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any
from urllib.parse import parse_qs, urlsplit

import anyio
from anyio.abc import ByteStream, SocketAttribute, SocketStream, TaskGroup, TaskStatus
from anyio.streams.buffered import BufferedByteReceiveStream
from attrs import define, evolve, field
from fleeting import InstanceGroup
from fleeting.testing import Harness, Trouble

from fleeting_puddle import Config, Group
from fleeting_puddle._group import STATES

TOKEN = "puddle-token-4711"
PAGE = 3
LIMIT = 120
SLOW = 0.5
RETRY_AFTER = 7

Reply = tuple[int, object]


class Refused(Exception):
    """Ends a request with an error of the API's."""

    def __init__(self, status: int, code: str) -> None:
        """Take what the answer says."""
        super().__init__(code)
        self.reply: Reply = (status, {"code": code, "message": f"not with the token {TOKEN}"})


@define(kw_only=True)
class Instance:
    """One instance, as the API shows it."""

    id: str
    label: str | None
    pool: str | None
    status: str = "active"
    created: str = field(factory=lambda: now())

    def public(self) -> dict[str, str | None]:
        """What a listing has of it."""
        return {"id": self.id, "label": self.label, "status": self.status, "created": self.created}


@define
class Having:
    """A trouble that the cloud has."""

    after: int
    """How many requests the cloud had seen when it began."""

    over: anyio.Event = field(factory=anyio.Event)


@define
class Puddle:
    """The cloud."""

    tasks: TaskGroup
    port: int = 0
    open: tuple[anyio.CancelScope, anyio.Event] = field(init=False)
    """What closes the port, and tells when it is closed."""

    requests: int = 0
    """How many there were, whatever came of them."""

    instances: dict[str, Instance] = field(factory=dict)
    queue: list[str] = field(factory=list)
    """Labels of requests that wait for stock."""

    answers: dict[str, Reply] = field(factory=dict)
    """By idempotency key."""

    log: list[str] = field(factory=list)
    """Every request that was understood, such as ``GET /pools/pond``."""

    troubles: dict[Trouble, Having] = field(factory=dict)
    """Those that it has at the moment."""

    out_since: str = ""
    taken: int = 0
    """How many were asked for since the last trouble began."""

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self.port}/v1"

    # --- what a test does to it --------------------------------------------------------------------------

    def trouble(self, kind: Trouble) -> Callable[[], AbstractAsyncContextManager[None]]:
        """Have a trouble from entering to leaving."""
        return partial(self.trouble_after, kind, 0)

    @asynccontextmanager
    async def trouble_after(self, kind: Trouble, requests: int) -> AsyncIterator[None]:
        """Have a trouble from entering to leaving, once so many requests were answered as usual."""
        self.troubles[kind] = Having(self.requests + requests)
        self.out_since = now()
        self.taken = 0
        if kind is Trouble.UNREACHABLE:
            await self.close()
        try:
            yield
        finally:
            if kind is Trouble.UNREACHABLE:
                await self.tasks.start(self.listen)
            self.troubles.pop(kind).over.set()
            self._fill()

    def has(self, kind: Trouble) -> bool:
        """Whether it has a trouble now."""
        return kind in self.troubles and self.requests > self.troubles[kind].after

    async def listen(self, *, task_status: TaskStatus[None]) -> None:
        """Answer on the port, a free one at first, until it is closed."""
        closed = anyio.Event()
        async with await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=self.port) as listener:
            self.port = listener.extra(SocketAttribute.local_port)
            with anyio.CancelScope() as scope:
                self.open = scope, closed
                task_status.started()
                await listener.serve(self.serve, self.tasks)
        closed.set()

    async def close(self) -> None:
        """Refuse connections from now on."""
        scope, closed = self.open
        scope.cancel()
        await closed.wait()

    async def launch(self, number: int) -> None:
        """Make instances that no label says anything about."""
        for _ in range(number):
            self.add("pond", None)

    async def kill(self, instance: str) -> None:
        """End one at once."""
        self.instances[instance].status = "gone"

    async def alive(self) -> Sequence[str]:
        """Which are on the bill, in this pool or in none."""
        return [each.id for each in self.instances.values() if each.status != "gone" and each.pool != "lake"]

    async def set_status(self, instance: str, status: str) -> None:
        """Show one in a state."""
        self.instances[instance].status = status

    def writes(self) -> int:
        """Count the requests that would change something."""
        return sum(not request.startswith("GET ") for request in self.log)

    def add(self, pool: str | None, label: str | None) -> Instance:
        """Make an instance."""
        made = Instance(id=f"p-{len(self.instances) + 1}", pool=pool, label=label)
        self.instances[made.id] = made
        return made

    # --- the API -----------------------------------------------------------------------------------------

    async def serve(self, stream: SocketStream) -> None:
        """Answer one request."""
        async with stream:
            try:
                request = await read_request(stream)
            except anyio.EndOfStream:
                return
            self.requests += 1
            if self.has(Trouble.SILENCE):
                return await self.troubles[Trouble.SILENCE].over.wait()
            if self.has(Trouble.SLOW):
                await anyio.sleep(SLOW)
            status, body = self._reply(*request)
            if self.has(Trouble.LATE_ANSWER):
                return await self.troubles[Trouble.LATE_ANSWER].over.wait()
            if not self.has(Trouble.LOST_ANSWER):
                garbage = self.has(Trouble.GARBAGE)
                await stream.send(response(status, "<html><h1>Welcome" if garbage else json.dumps(body)))
        return None

    def _reply(self, method: str, path: str, headers: dict[str, str], body: Any) -> Reply:
        try:
            self._refuse_as_troubled(headers)
            if self.has(Trouble.MALFORMED):
                return 200, {} if method == "GET" else []
            self.log.append(f"{method} {path}")
            key = headers.get("idempotency-key")
            if key and key in self.answers:
                return self.answers[key]
            reply = 200, self._route(method, urlsplit(path.removeprefix("/v1")), body)
            if key:
                self.answers[key] = reply
        except Refused as refused:
            return refused.reply
        return reply

    def _refuse_as_troubled(self, headers: dict[str, str]) -> None:
        if self.has(Trouble.ERROR):
            raise Refused(500, "internal")
        if self.has(Trouble.GARBAGE):
            raise Refused(502, "proxy")
        if self.has(Trouble.AUTH) or headers["authorization"] != f"Bearer {TOKEN}":
            raise Refused(401, "unauthorized")
        if self.has(Trouble.RATE_LIMIT):
            raise Refused(429, "too_many_requests")

    def _route(self, method: str, url: Any, body: Any) -> object:
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        match method, url.path.strip("/").split("/"):
            case "GET", ["pools", "pond" | "lake"]:
                return {"limit": LIMIT, "problems": self._problems()}
            case "GET", ["pools", "pond" | "lake" as pool, "instances"]:
                return self._page(pool, int(query.get("page", 0)))
            case "POST", ["pools", "pond", "instances"]:
                return {"accepted": self._create(body["count"], body["label"])}
            case "POST", ["pools", "pond", "withdraw"]:
                taken, self.queue = self.queue[: body["count"]], self.queue[body["count"] :]
                return {"withdrawn": len(taken)}
            case "POST", ["instances"]:
                return self.add(None, body["label"]).public()
            case "POST", ["instances", instance, "pool"]:
                self._find(instance).pool = body["pool"]
                return {}
            case "GET", ["instances", instance]:
                found = self._find(instance)
                access = {"address": f"{instance}.pond", "user": "frog", "password": f"secret-of-{instance}"}
                return {**found.public(), **access}
            case "DELETE", ["instances", instance]:
                return self._delete(self._find(instance))
        raise Refused(404, "no_such_path")

    def _problems(self) -> list[dict[str, str]]:
        return [{"code": "no_stock", "since": self.out_since}] if self.has(Trouble.STOCK_OUT) else []

    def _page(self, pool: str, start: int) -> object:
        if start and self.has(Trouble.BROKEN_PAGE):
            raise Refused(500, "internal")
        shown = [each.public() for each in self.instances.values() if each.pool == pool and each.status != "gone"]
        following = str(start + PAGE) if start + PAGE < len(shown) else None
        if self.has(Trouble.EMPTY_PAGE) and following == str(PAGE):
            following = "-1"
        if start < 0:
            return {"instances": [], "next": str(PAGE)}
        first = start - 1 if start and self.has(Trouble.SHIFTED_PAGE) else start
        return {
            "instances": shown[first : start + PAGE],
            "next": "0" if self.has(Trouble.PAGE_LOOP) else following,
        }

    def _create(self, count: int, label: str) -> int:
        if self.has(Trouble.QUOTA):
            raise Refused(403, "quota")
        room = LIMIT - sum(each.status != "gone" for each in self.instances.values())
        if self.has(Trouble.PARTIAL):
            room = 1 - self.taken
            if not room:
                raise Refused(403, "quota")
        accepted = min(count, room)
        self.taken += accepted
        self.queue += [label] * accepted
        if Trouble.STOCK_OUT not in self.troubles:
            self._fill()
        return accepted

    def _fill(self) -> None:
        for label in self.queue:
            self.add("pond", label)
        self.queue.clear()

    def _delete(self, instance: Instance) -> object:
        if self.has(Trouble.PROTECTED):
            raise Refused(409, "protected")
        instance.status = "gone"
        return {}

    def _find(self, instance: str) -> Instance:
        if instance not in self.instances or self.instances[instance].status == "gone":
            raise Refused(404, "not_found")
        return self.instances[instance]


@asynccontextmanager
async def running() -> AsyncIterator[Puddle]:
    """Run a cloud of its own on a free port."""
    async with anyio.create_task_group() as tasks:
        cloud = Puddle(tasks)
        cloud.add("lake", None)
        await tasks.start(cloud.listen)
        yield cloud
        tasks.cancel_scope.cancel()


def harness_for(cloud: Puddle, group: Callable[[Config], InstanceGroup] = Group) -> Harness:
    """Describe to the conformance suite what it may do to the cloud."""
    config = Config(url=cloud.url, pool="pond", token=TOKEN, timeout=1)
    return Harness(
        make=lambda: group(config),
        kill=cloud.kill,
        alive=cloud.alive,
        launch=cloud.launch,
        troubles={kind: cloud.trouble(kind) for kind in Trouble},
        states=STATES,
        set_state=cloud.set_status,
        trouble_after=cloud.trouble_after,
        writes=cloud.writes,
        requests=lambda: cloud.requests,
        retry_after=RETRY_AFTER,
        respelled=[
            lambda: group(evolve(config, url=f"{cloud.url}/", timeout=2)),
            lambda: group(evolve(config, url=cloud.url.replace("http:", "HTTP:"))),
        ],
        elsewhere=lambda: group(evolve(config, pool="lake")),
        room=100,
        secrets=[TOKEN],
        unknown_id="p-1000",
        deadline=5,
        patience=5,
        settle=0.02,
        poll=0.01,
    )


async def read_request(stream: ByteStream) -> tuple[str, str, dict[str, str], Any]:
    """Read method, path, headers (names in lower case) and the JSON that was sent."""
    buffered = BufferedByteReceiveStream(stream)
    try:
        head = (await buffered.receive_until(b"\r\n\r\n", 65536)).decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:])}
        body = await buffered.receive_exactly(int(headers.get("content-length", 0)))
    except anyio.IncompleteRead:
        raise anyio.EndOfStream from None
    method, path, _ = head[0].split()
    return method, path, headers, json.loads(body or "null")


def response(status: int, body: str) -> bytes:
    """Write an answer that is the last on its connection."""
    advice = f"Retry-After: {RETRY_AFTER}\r\n" if status == 429 else ""
    return f"HTTP/1.1 {status} -\r\nContent-Length: {len(body)}\r\nConnection: close\r\n{advice}\r\n{body}".encode()


def now() -> str:
    """The time as the API does."""
    return datetime.now(UTC).isoformat()
