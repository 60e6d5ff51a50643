"""The API: which request does what, for whom. A Starlette application made of the verbs."""

import json
import logging
import re
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import anyio
from attrs import asdict, define, evolve, field
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from fleeting import ConfigError, ConnectorConfig, FleetingError, JournalError, Unreachable
from fleeting.config import did_you_mean
from fleeting.plugins import structure
from taskscaler._errors import (
    DaemonRefused,
    KeyInUse,
    LeaseLost,
    NoCapacity,
    NoSuchInstance,
    NotDetached,
    NotHeld,
    NotSuspended,
)
from taskscaler._observe import ScalerEvent, event_as_data
from taskscaler._scaler import Taskscaler, find_suspended, find_waiting
from taskscaler._span import read_context
from taskscaler._tracer import within
from taskscaler._wire import CLIENT, ClientUnknown, error_as_data, to_plain
from taskscaler._wording import finite
from taskscaler.batch._described import record_as_data
from taskscaler.batch._log_reader import LogReader
from taskscaler.batch._spoken import spoken_in
from taskscaler.core._slots import DetachedLease
from taskscaler.diagnose._explain import Explanation
from taskscaler.diagnose._explain_key import KeyExplanation
from taskscaler.serve import _bodies as bodies
from taskscaler.serve._batches import Batches
from taskscaler.serve._clients import Client
from taskscaler.serve._events import Listener
from taskscaler.serve._explain_kept import fleet_with_kept, key_with_kept
from taskscaler.serve._hang_up import Gone, unless_gone
from taskscaler.serve._holders import Held, Holders
from taskscaler.serve._kept import Kept
from taskscaler.serve._owners import OwnedJob, Owners, log_of
from taskscaler.serve._peers import Peer
from taskscaler.serve._pieces import Pieces, archive_pieces, log_lines, log_text
from taskscaler.serve._shares import has_room
from taskscaler.serve._verbs import PREFIX, VERBS, Verb, openapi

LARGEST_BODY = 64 * 1024
"""Bytes."""

BODY_TIMEOUT = 10.0
"""Seconds within which a request's body has to be there."""

MOST_READING = 256
"""Logs that are sent at a time, those that are followed included: each is looked at four times a second."""

MOST_WAITING = 1000
"""Of those who wait, so many are listed in one answer."""

HOSTS = frozenset({"localhost", "taskscaler"})
"""What a request may be addressed to: a browser that was led here by a name of somebody else's is refused."""

_CLIENT_ID = re.compile(r"[0-9a-f]{32,64}")

_STATUS: Mapping[type[Exception], int] = {
    ClientUnknown: 404,
    ConfigError: 400,
    ValueError: 400,
    NotDetached: 404,
    NotSuspended: 404,
    NoSuchInstance: 404,
    NotHeld: 404,
    KeyInUse: 409,
    LeaseLost: 410,
    Unreachable: 502,
    NoCapacity: 503,
    JournalError: 503,
}

log = logging.getLogger("taskscaler.serve")


class Fleet(Protocol):
    """What the API needs of the daemon."""

    scaler: Taskscaler
    holders: Holders
    batches: Batches
    owners: Owners
    boot: str
    """Another one after each start."""

    async def status(self) -> dict[str, object]:
        """Describe the daemon at a glance."""
        ...

    def connector_of(self, pool: str) -> ConnectorConfig:
        """How to connect to the instances of a pool."""
        ...

    async def drain(self, timeout: float | None, *, delete: bool) -> bool:
        """Hand out no more slots, and end with the last lease; returns whether that was in time."""
        ...

    async def reload(self) -> dict[str, object]:
        """Read the file again."""
        ...

    def link(self, *, changes: bool) -> dict[str, object]:
        """Make a link to the status page, for one who may only look, or change something, too."""
        ...


@define
class _Call:
    """A request that has been found to be in order."""

    peer: Peer
    body: Any
    client_id: str
    client: Client | None
    request: Request

    @property
    def owned(self) -> Client:
        """The client; there is one, for the verb asks for it."""
        if self.client is None:
            raise ClientUnknown
        return self.client


@define(eq=False)
class Api:
    """Answers requests about one fleet."""

    fleet: Fleet
    listeners: set[Listener] = field(factory=set, init=False)
    """Of `events`."""

    clients: dict[str, Listener] = field(factory=dict, init=False)
    """Of `client_events`, by the clients' secrets: the last one of each."""

    answering: int = field(default=0, init=False)
    """Requests that have not been answered in full."""

    reading: Counter[int] = field(factory=Counter, init=False)
    """How many logs and results each user reads at the moment."""

    _settled: anyio.Event = field(factory=anyio.Event, init=False)
    """Set when there is one less."""

    def app(self) -> ASGIApp:
        """Make the application."""
        routes = [Route(f"{PREFIX}{verb.path}", self._endpoint(verb), methods=[verb.method]) for verb in VERBS]
        inner = Starlette(routes=routes, exception_handlers={HTTPException: _no_such_route})

        async def counted(scope: Scope, receive: Receive, send: Send) -> None:
            self.answering += 1
            try:
                await inner(scope, receive, send)
            finally:
                self.answering -= 1
                self._settled.set()

        return counted

    async def settle(self) -> None:
        """Let all streams end, and wait until every request is answered in full."""
        for listener in (*self.listeners, *self.clients.values()):
            listener.close()
        while self.answering:
            self._settled = anyio.Event()
            await self._settled.wait()

    def notify(self, client: Client, message: Mapping[str, object]) -> None:
        """Send news to a client, if it listens; one that does not learns it when it opens itself again."""
        if listener := self.clients.get(client.id):
            listener.notify(_short(Peer(client.uid), message))

    def _endpoint(self, verb: Verb) -> Callable[[Request], Awaitable[Response]]:
        answer = getattr(self, f"_{verb.name}")

        async def endpoint(request: Request) -> Response:
            key = ""
            try:
                call = await self._check(verb, request)
                key = getattr(call.body, "key", None) or ""
                with within(read_context(request.headers.get("traceparent"), request.headers.get("tracestate"))):
                    if verb.waits:
                        result = await unless_gone(call.request.receive, lambda: answer(call))
                    else:
                        result = await answer(call)
            except (Gone, ClientDisconnect):
                return Response(status_code=499)
            except Exception as error:  # noqa: BLE001  (each request ends nothing but itself)
                return refused(error, request, key)
            return result if isinstance(result, Response) else JSONResponse(_short(request.state.peer, result or {}))

        return endpoint

    async def _check(self, verb: Verb, request: Request) -> _Call:
        """See that a request is in order.

        Raises:
            DaemonRefused: It is not.
        """
        headers, peer = request.headers, request.state.peer
        if request.scope["http_version"] not in ("1.0", "1.1"):
            raise DaemonRefused("only HTTP/1.1 is spoken here; use no other version", status=505)
        if not peer.by_token and (host := headers.get("host", "").partition(":")[0]) not in HOSTS:
            raise DaemonRefused(f"this is not {host[:100]!r}; use http://localhost", status=421)
        if "origin" in headers:
            raise DaemonRefused("a page of a website may not ask; use no browser", status=403)
        if verb.owner and not peer.is_owner:
            what = f"see {verb.name}" if verb.method == "GET" else verb.name
            raise DaemonRefused(f"only the daemon's own user may {what}; ask that user to do it", status=403)
        if verb.local and peer.by_token:
            why = "credentials are given on the daemon's Unix socket only; use that"
            other = "" if verb.name == "link" else ", or have the daemon itself run the work: submit it"
            raise DaemonRefused(f"{why}{other}", status=403)
        body = await self._body(verb, request, peer)
        id_ = _client_id(headers.get(CLIENT)) if verb.client else ""
        client = None if verb.name == "open_client" or not verb.client else self._renewed(id_, peer)
        return _Call(peer, body, id_, client, request)

    async def _body(self, verb: Verb, request: Request, peer: Peer) -> Any:  # noqa: ANN401  (of any schema)
        """Read what is asked, from the address or the body."""
        if verb.body is None:
            if verb.method != "GET":
                await read_json(request)
            return None
        query = request.query_params
        data = bodies.of_query(query, verb.body) if verb.asks_in_address else await read_json(request)
        return _named(peer, structure(data, verb.body))

    def _renewed(self, id_: str, peer: Peer) -> Client:
        client = self.fleet.holders.clients.find(id_, peer.uid)
        self.fleet.holders.renew(client)
        return client

    @contextmanager
    def listening(self, client: Client | None) -> Iterator[Listener]:
        """Have somebody hear all events, or a client its own; the client lives as long."""
        listener = Listener()
        if client is None:
            self.listeners.add(listener)
            try:
                yield listener
            finally:
                self.listeners.discard(listener)
            return
        self.clients[client.id] = listener
        try:
            with self.fleet.holders.connected(client):
                yield listener
        finally:
            if self.clients.get(client.id) is listener:
                del self.clients[client.id]

    def hear(self, event: ScalerEvent) -> None:
        """Pass on what the scaler reports; an observer."""
        if self.listeners:
            data = event_as_data(event)
            for listener in self.listeners:
                listener.notify(data)

    # --- looking -----------------------------------------------------------------------------------------

    async def _status(self, _: _Call) -> dict[str, object]:
        return spoken_in(await self.fleet.status())

    async def _capacity(self, _: _Call) -> dict[str, object]:
        return asdict(await self.fleet.scaler.capacity())

    async def _groups(self, _: _Call) -> dict[str, object]:
        return {"groups": {name: to_plain(info) for name, info in self.fleet.scaler.groups.items()}}

    async def _instances(self, _: _Call) -> dict[str, object]:
        return {"instances": to_plain(list(await self.fleet.scaler.instances()))}

    async def _leases(self, call: _Call) -> dict[str, object]:
        holders, peer = self.fleet.holders, call.peer
        own = [each for each in holders.held.values() if peer.is_owner or each.client.uid == peer.uid]
        left = [(each, holders.keeper.kept[each.key]) for each in self._left_by(peer)]
        held = [_lease(each, holders.keeper.kept.get(each.lease.key)) for each in own]
        return {"leases": [*held, *(_left(lease, kept) for lease, kept in left)]}

    def _left_by(self, peer: Peer) -> Sequence[DetachedLease]:
        """Leases that are kept and that no client has, as far as somebody may see them."""
        kept = self.fleet.holders.keeper.kept
        return [each for each in self.fleet.scaler.detached if each.key in kept and peer.may_have(each.key)]

    async def _waiting(self, call: _Call) -> dict[str, object]:
        """Give those at the front: who is further behind asks for an explanation of the key."""
        peer = call.peer
        waiting = find_waiting(self.fleet.scaler, lambda key: peer.is_owner or peer.may_have(key))
        listed = [{**asdict(each), "key": peer.short_key(each.key)} for each in waiting[:MOST_WAITING]]
        return {"waiting": listed, "total": len(waiting)}

    async def _decisions(self, _: _Call) -> dict[str, object]:
        return {"decisions": (await self.fleet.scaler.explain()).as_dict()["decisions"]}

    async def _explain(self, call: _Call) -> dict[str, object]:
        return await self.explain(call.peer, call.body)

    async def explain(self, peer: Peer, asked: bodies.Explain) -> dict[str, object]:
        """Explain to a user what they ask about.

        Raises:
            DaemonRefused: It is nothing of theirs.
        """
        if not (peer.is_owner or (asked.key is not None and asked.instance is None)):
            raise DaemonRefused("only the daemon's own user may ask about this; ask about keys you hold", status=403)
        if peer.is_owner and asked.key is not None and (said := self.fleet.owners.explain(asked.key)):
            return await self._explain_job(asked.key, said)
        ask: Any = self.fleet.scaler.explain
        answer = await ask(instance=asked.instance, key=asked.key)
        match answer:
            case Explanation():
                answer = fleet_with_kept(answer, self.fleet.holders)
            case KeyExplanation():
                answer = key_with_kept(answer, self.fleet.holders)
        if not peer.is_owner:
            short = peer.short_key(answer.key)
            next_ = tuple(evolve(each, keys=tuple(map(peer.short_key, each.keys))) for each in answer.next)
            answer = evolve(answer, key=short, next=next_)
            if answer.state == "unknown":  # behind it, a hint at keys that others use
                answer = evolve(answer, why=answer.why.partition(";")[0])
        if asked.form == "value":
            return {"explanation": to_plain(answer)}
        return spoken_in(answer.as_dict())

    async def _explain_job(self, job: str, said: Sequence[str]) -> dict[str, object]:
        """Explain the job of an owner: where its slot is, or what the owner says of it."""
        key = self.fleet.owners.key_of(job)
        answer = evolve(await self.fleet.scaler.explain(key=job if key is None else key), key=job).as_dict()
        if key is None:
            return {**answer, "answer": said[0], "details": [*said[1:]]}
        return {**answer, "details": [*said, *answer["details"]]}  # type: ignore[misc]  # of sentences, always

    async def _openapi(self, _: _Call) -> dict[str, object]:
        return openapi()

    async def _events(self, _: _Call) -> Response:
        return _Stream(self, None)

    # --- clients and their leases ------------------------------------------------------------------------

    async def _open_client(self, call: _Call) -> dict[str, object]:
        asked: bodies.OpenClient = call.body
        client = self.fleet.holders.open(call.client_id, call.peer.uid, call.peer.pid, asked.ttl)
        held = await self.fleet.holders.reclaim(client, asked.leases)
        detached = [each for each in self.fleet.scaler.detached if call.peer.may_have(each.key)]
        return {
            "ttl": client.ttl,
            "daemon": self.fleet.boot,
            "leases": [to_plain(each.facts) for each in held],
            "detached": to_plain(detached),
            "suspended": self._suspended(asked.leases) if call.peer.is_owner else [],
        }

    def _suspended(self, keys: Iterable[str]) -> list[dict[str, object]]:
        found = [(key, find_suspended(self.fleet.scaler, key)) for key in keys]
        return [{"key": key, "place": each[0], "persistent": each[1]} for key, each in found if each is not None]

    async def _close_client(self, call: _Call) -> None:
        self.fleet.holders.close(call.owned)

    async def _client_events(self, call: _Call) -> Response:
        return _Stream(self, call.owned)

    async def _acquire(self, call: _Call) -> dict[str, object]:
        return await self._receive(call, self.fleet.holders.acquire)

    async def _resume(self, call: _Call) -> dict[str, object]:
        return await self._receive(call, self.fleet.holders.resume)

    async def _replace(self, call: _Call) -> dict[str, object]:
        return await self._receive(call, self.fleet.holders.replace)

    async def _reattach(self, call: _Call) -> dict[str, object]:
        return await self._receive(call, self.fleet.holders.reattach)

    async def _detach(self, call: _Call) -> None:
        self.fleet.holders.detach(call.owned, call.body)

    async def _keep(self, call: _Call) -> dict[str, object]:
        kept = await self.fleet.holders.keep(call.owned, call.body)
        return dict(to_plain(kept.facts))

    async def _stop(self, call: _Call) -> dict[str, object]:
        peer, key = call.peer, call.body.key
        known = [peer.short_key(each) for each in self.fleet.holders.keeper.kept if peer.may_have(each)]
        return {"removed": await self.fleet.holders.stop(key, did_you_mean(peer.short_key(key), known))}

    async def _abandon(self, call: _Call) -> None:
        self.fleet.holders.abandon(call.owned, call.body)

    async def _receive(self, call: _Call, ask: Callable[[Client, Any], Awaitable[Held]]) -> dict[str, object]:
        with self.fleet.holders.connected(call.owned):
            try:
                held = await ask(call.owned, call.body)
            except NoCapacity as error:
                if call.peer.is_owner:
                    raise
                why = str(error).partition("\n")[0]  # what follows names others' work
                raise NoCapacity(why, possible=error.possible, capacity=error.capacity) from error
        return dict(to_plain(held.facts))

    async def _release(self, call: _Call) -> None:
        self.fleet.holders.release(call.owned, call.body)

    async def _suspend(self, call: _Call) -> None:
        self.fleet.holders.suspend(call.owned, call.body)

    async def _reserve(self, call: _Call) -> None:
        with self.fleet.holders.connected(call.owned):
            await self.fleet.holders.reserve(call.owned, call.body)

    async def _unreserve(self, call: _Call) -> None:
        await self.fleet.holders.unreserve(call.owned, call.body.key)

    async def _suspect(self, call: _Call) -> None:
        self.fleet.holders.suspect(call.owned, call.body)

    async def _dial(self, call: _Call) -> dict[str, object]:
        lease = self.fleet.holders.lease(call.owned, call.body)
        connector = self.fleet.connector_of(lease.pool)
        return {"info": to_plain(await lease.connect_info()), "connector": to_plain(connector)}

    # --- batches -----------------------------------------------------------------------------------------

    async def _submit(self, call: _Call) -> dict[str, object]:
        async with aclosing(_chunks(call.request)) as chunks:
            batch = await self.fleet.batches.submit(call.peer, call.body.name, chunks, call.body.request)
        return {"batch": batch.ticket.id, "jobs": batch.jobs or sum(batch.counts.values())}

    async def _batches(self, call: _Call) -> dict[str, object]:
        owned = self.fleet.owners.jobs if call.peer.is_owner else ()
        batches = [batch.as_data() for batch in self.fleet.batches.of(call.peer)]
        return {"batches": [*batches, *(dict(job.as_data()) for job in owned)]}

    async def _jobs(self, call: _Call) -> dict[str, object]:
        asked: bodies.Jobs = call.body
        if job := self._owned(call):
            page = [job.record()][asked.first : asked.first + asked.most]
            return {**job.as_data(), "results": None, "total": 1, "list": page}
        batch = self.fleet.batches.find(call.peer, asked.batch)
        records, total = await self.fleet.batches.jobs(batch, asked.first, asked.most)
        results = str(batch.files.results.directory) if call.peer.is_owner and not call.peer.by_token else None
        return {**batch.as_data(), "results": results, "total": total, "list": list(map(record_as_data, records))}

    def _owned(self, call: _Call) -> OwnedJob | None:
        """Give the job of an owner that is meant; None: it is a batch."""
        return self.fleet.owners.find(call.body.batch) if call.peer.is_owner else None

    async def _wait(self, call: _Call) -> dict[str, object]:
        if job := self._owned(call):
            await job.wait()
            return dict(job.as_data())
        batch = self.fleet.batches.find(call.peer, call.body.batch)
        return (await self.fleet.batches.wait(batch)).as_data()

    async def _cancel(self, call: _Call) -> dict[str, object]:
        if job := self._owned(call):
            job.cancel()
            return dict(job.as_data())
        batch = self.fleet.batches.find(call.peer, call.body.batch)
        await self.fleet.batches.cancel(batch)
        return batch.as_data()

    async def _log(self, call: _Call) -> Response:
        asked: bodies.Log = call.body
        if job := self._owned(call):
            return self._follow(call, log_of(job, asked.job), partial(_is_over, asked, job), lambda: job.left)
        batches = self.fleet.batches
        batch = batches.find(call.peer, asked.batch)
        name = await batches.job_of(batch, asked.job)
        over = partial(batches.is_over, batch, name) if asked.follow else lambda: True
        return self._follow(call, batch.files.results.log(name), over, partial(batches.is_left, batch, name))

    def _follow(self, call: _Call, path: Path, over: Callable[[], bool], left: Callable[[], bool]) -> Response:
        """Send a log as it is asked for. Arguments are those of `log_lines`."""
        asked: bodies.Log = call.body
        opened = partial(LogReader.at_last_lines, lines=asked.lines)
        if asked.after is not None:
            opened = partial(LogReader.after, whole=asked.after)
        if asked.places:
            return self._sent(call.peer, "application/x-ndjson", log_lines(path, opened, over, left))
        return self._sent(call.peer, "text/plain", log_text(path, opened, over))

    async def _results(self, call: _Call) -> Response:
        if job := self._owned(call):
            raise DaemonRefused(f"{job.id} leaves no results here; whose job it was has them", status=409)
        batch = self.fleet.batches.find(call.peer, call.body.batch)
        if batch.fate is None:
            why = f"the batch {batch.ticket.id} is not over; wait for it with `taskscaler wait`"
            raise DaemonRefused(why, status=409)
        return self._sent(call.peer, "application/x-tar", archive_pieces(batch.files.results))

    def _sent(self, peer: Peer, media: str, pieces: AsyncGenerator[bytes]) -> Response:
        """Send pieces to one of those who read.

        Raises:
            DaemonRefused: There are too many.
        """
        if not has_room(MOST_READING, self.reading, peer):
            raise DaemonRefused(f"{MOST_READING} logs are being read already; try again in a moment", status=503)
        return Pieces(media, pieces, partial(self._read, peer))

    @contextmanager
    def _read(self, peer: Peer) -> Iterator[None]:
        """Count one that reads a log, or results."""
        self.reading[peer.uid] += 1
        try:
            yield
        finally:
            self.reading[peer.uid] -= 1
            self.reading += Counter()  # who reads nothing is not counted

    # --- operators ---------------------------------------------------------------------------------------

    async def _cordon(self, call: _Call) -> None:
        await self.fleet.scaler.cordon(call.body.instance, call.body.why)

    async def _uncordon(self, call: _Call) -> None:
        await self.fleet.scaler.uncordon(call.body.instance)

    async def _retain(self, call: _Call) -> None:
        await self.fleet.scaler.retain(call.body.instance, call.body.why)

    async def _unretain(self, call: _Call) -> None:
        await self.fleet.scaler.unretain(call.body.instance)

    async def _drain(self, call: _Call) -> dict[str, object]:
        asked: bodies.Drain = call.body
        return {"drained": await self.fleet.drain(asked.timeout, delete=asked.delete)}

    async def _pause(self, _: _Call) -> dict[str, object]:
        await self.fleet.owners.pause()
        return {"intake": to_plain(self.fleet.owners.intake)}

    async def _unpause(self, _: _Call) -> dict[str, object]:
        await self.fleet.owners.unpause()
        return {"intake": to_plain(self.fleet.owners.intake)}

    async def _canary(self, _: _Call) -> dict[str, object]:
        return dict(to_plain(await self.fleet.owners.fly_canary()))

    async def _link(self, call: _Call) -> dict[str, object]:
        return self.fleet.link(changes=call.body.changes)

    async def _reload(self, _: _Call) -> dict[str, object]:
        return await self.fleet.reload()


class _Stream(Response):
    """Server-sent events, for as long as somebody listens."""

    def __init__(self, api: Api, client: Client | None) -> None:
        """Take whose they are; nothing is sent yet."""
        self._api = api
        self._client = client
        super().__init__(media_type="text/event-stream", headers={"cache-control": "no-store"})
        del self.headers["content-length"]

    async def __call__(self, _: Scope, receive: Receive, send: Send) -> None:
        """Send until the other end hangs up."""
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        with self._api.listening(self._client) as listener:

            async def pour() -> None:
                await send(start)
                chunk = b": welcome\n\n"
                while chunk:
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
                    chunk = await listener.next()
                await send({"type": "http.response.body", "body": b"", "more_body": False})

            try:
                await unless_gone(receive, pour)
            except Gone:
                return


async def _chunks(request: Request) -> AsyncGenerator[bytes]:
    """Give a body in pieces, none of which may take long to come.

    Raises:
        DaemonRefused: It is too slow.
    """
    async with aclosing(request.stream()) as stream:
        while True:
            with anyio.move_on_after(BODY_TIMEOUT) as timeout:
                chunk = await anext(stream, None)
            if timeout.cancelled_caught:
                raise DaemonRefused(f"nothing came for {BODY_TIMEOUT:g} s; send it at once", status=408)
            if chunk is None:
                return
            yield chunk


async def read_json(request: Request) -> object:
    """Read a body, within bounds.

    Raises:
        DaemonRefused: It is too large, too slow, or no JSON object.
    """
    data = bytearray()
    with anyio.move_on_after(BODY_TIMEOUT) as timeout:
        async with aclosing(request.stream()) as chunks:
            async for chunk in chunks:
                data += chunk
                if len(data) > LARGEST_BODY:
                    why = f"the body is larger than {LARGEST_BODY} bytes; ask for less at a time"
                    raise DaemonRefused(why, status=413)
    if timeout.cancelled_caught:
        raise DaemonRefused(f"the body did not come within {BODY_TIMEOUT:g} s; send it at once", status=408)
    try:
        found = json.loads(data or b"{}", parse_constant=_no_number)
    except (ValueError, RecursionError):
        raise DaemonRefused("the body is not JSON; send an object", status=400) from None
    if not isinstance(found, dict):
        raise DaemonRefused("the body is not a JSON object; put the keys into {}", status=400)
    return found


def _named(peer: Peer, body: Any) -> Any:  # noqa: ANN401  (of any schema)
    """Give the keys in a request the names that they have in the scaler."""
    if isinstance(body, bodies.Explain) and peer.is_owner:  # who may ask about jobs of batches, too
        return body
    if hasattr(body, "leases"):
        return evolve(body, leases=tuple(map(peer.long_key, body.leases)))
    return evolve(body, key=peer.long_key(body.key)) if getattr(body, "key", None) is not None else body


def _short(peer: Peer, data: Mapping[str, Any]) -> dict[str, Any]:
    """Give the keys in an answer the names that whoever asks knows them by."""
    short = dict(data)
    if isinstance(short.get("key"), str):
        short["key"] = peer.short_key(short["key"])
    for name in ("leases", "detached", "suspended"):
        if isinstance(short.get(name), list):
            short[name] = [_short(peer, each) for each in short[name]]
    return short


def _is_over(asked: bodies.Log, job: OwnedJob) -> bool:
    return not asked.follow or job.over


def _no_number(word: str) -> None:
    raise ValueError(word)


def _client_id(given: str | None) -> str:
    if given is None or not _CLIENT_ID.fullmatch(given):
        raise DaemonRefused(
            f"the header {CLIENT} has to name the client: 32 to 64 hexadecimal digits, at random", status=400
        )
    return given


def refused(error: Exception, request: Request, key: str = "") -> Response:
    """Answer with an error; what was not foreseen is a mistake of ours, and goes into the log."""
    if isinstance(error, DaemonRefused):
        status = error.status
    else:
        unlisted = 400 if isinstance(error, FleetingError) else 500
        status = next((each for cls, each in _STATUS.items() if isinstance(error, cls)), unlisted)
    if status == 500:  # noqa: PLR2004  (HTTP's)
        log.error("request_failed", exc_info=error, extra={"path": request.url.path})
        error = DaemonRefused("the daemon failed; its log says how", status=status)
    return JSONResponse({"error": _with_short_key(request.state.peer, key, error_as_data(error))}, status)


def _with_short_key(peer: Peer, key: str, data: Mapping[str, object]) -> dict[str, object]:
    """Give the key of a request, wherever an error names it, the name that whoever asks knows it by."""
    short = peer.short_key(key)
    return {
        name: each.replace(repr(key), repr(short)).replace(key, short) if key and isinstance(each, str) else each
        for name, each in data.items()
    }


async def _no_such_route(_: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    what = "the path takes another method" if status == 405 else "there is no such path"  # noqa: PLR2004  (HTTP's)
    refusal = DaemonRefused(f"{what}; see {PREFIX}/openapi.json", status=status)
    return JSONResponse({"error": error_as_data(refusal)}, status)


def _lease(held: Held, kept: Kept | None) -> dict[str, object]:
    lease, client = held.lease, held.client
    facts = {"key": lease.key, "pool": lease.pool, "instance": lease.instance, "slot": lease.slot}
    bounds = {"ttl": client.ttl, "kept": kept is not None, "ends_at": None}
    return {**facts, "since": held.since, "uid": client.uid, "pid": client.pid, **bounds}


def _left(lease: DetachedLease, kept: Kept) -> dict[str, object]:
    facts = {"key": lease.key, "pool": lease.pool, "instance": lease.instance, "slot": lease.slot}
    bounds = {"ttl": kept.ttl, "kept": True, "ends_at": finite(kept.ends_at)}
    return {**facts, "since": lease.since, "uid": kept.uid, "pid": None, **bounds}
