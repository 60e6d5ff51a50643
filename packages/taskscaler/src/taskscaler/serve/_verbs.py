"""What may be asked of the daemon, as data: routes, permissions and the OpenAPI document are made of it."""

from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Any, Literal, get_args, get_origin, get_type_hints

from attrs import NOTHING, fields, frozen

from taskscaler._wire import CLIENT
from taskscaler.serve import _bodies as bodies

PREFIX = "/v1"


@frozen(kw_only=True)
class Verb:
    """One thing that may be asked."""

    name: str
    """Which function answers."""

    method: Literal["GET", "POST", "DELETE"]
    path: str
    """Below `PREFIX`."""

    summary: str
    answer: str
    """What a good answer has."""

    body: type | None = None
    """The schema of what is sent; of a GET, of the query."""

    owner: bool = False
    """Whether only the daemon's own user may ask."""

    local: bool = False
    """Whether that is answered on the Unix socket only: with credentials."""

    client: bool = False
    """Whether a client has to be named in the header."""

    waits: bool = False
    """Whether the answer may take long; whoever hangs up gives up."""

    streams: bool = False
    """Whether the answer is a stream of server-sent events."""

    uploads: bool = False
    """Whether an archive is sent; the schema is that of the query then."""

    media: str = "application/json"
    """Of the answer, unless it is such a stream."""

    @property
    def asks_in_address(self) -> bool:
        """Whether what is asked stands in the query, and not in the body."""
        return self.method == "GET" or self.uploads


VERBS: Sequence[Verb] = (
    Verb(
        name="status",
        method="GET",
        path="/status",
        summary="Show the daemon and its fleet at a glance.",
        answer="fleet, pid, version, since, state, deletes, answer, capacity, cost, clients, owners, intake",
    ),
    Verb(
        name="capacity",
        method="GET",
        path="/capacity",
        summary="Count slots by state, and who waits.",
        answer="idle, reserved, acquired, suspended, unavailable, unhealthy, pending, promised, unready",
    ),
    Verb(name="groups", method="GET", path="/groups", summary="Show the groups.", answer="groups, by pool"),
    Verb(
        name="instances",
        method="GET",
        path="/instances",
        summary="List all known instances, oldest first.",
        answer="instances",
        owner=True,
    ),
    Verb(
        name="leases",
        method="GET",
        path="/leases",
        summary="List leases: all of them for the daemon's own user, else those of the user who asks.",
        answer="leases: key, pool, instance, slot, since, uid, pid, ttl, kept, ends_at",
    ),
    Verb(
        name="waiting",
        method="GET",
        path="/waiting",
        summary="List who waits for a slot, first come first: all for the daemon's own user, else the keys of the user "
        "who asks.",
        answer="waiting: key, reserves, since, place, why, of at most 1,000; total: how many there are",
    ),
    Verb(
        name="decisions",
        method="GET",
        path="/decisions",
        summary="List the last scaling decisions, newest last.",
        answer="decisions",
        owner=True,
    ),
    Verb(
        name="explain",
        method="GET",
        path="/explain",
        summary="Explain the whole, an instance, or a key; others than the daemon's own user may ask for their keys.",
        answer="an explanation",
        body=bodies.Explain,
    ),
    Verb(
        name="events",
        method="GET",
        path="/events",
        summary="Stream what happens to instances and leases, and what is decided.",
        answer="events, as observers get them",
        owner=True,
        streams=True,
    ),
    Verb(
        name="open_client",
        method="POST",
        path="/client",
        summary="Begin a client, or have it live on for its bound; name the leases that it had.",
        answer="ttl; daemon: another one after each restart; of those named: leases, suspended; detached",
        body=bodies.OpenClient,
        client=True,
    ),
    Verb(
        name="close_client",
        method="DELETE",
        path="/client",
        summary="End a client: all that it holds goes back.",
        answer="nothing",
        client=True,
    ),
    Verb(
        name="client_events",
        method="GET",
        path="/client/events",
        summary="Keep a client alive, and stream what happens to its leases.",
        answer="events `lost` and `unhealthy`",
        client=True,
        streams=True,
    ),
    Verb(
        name="acquire",
        method="POST",
        path="/acquire",
        summary="Wait for a slot.",
        answer="key, lease, pool, instance, slot, place, persistent",
        body=bodies.Acquire,
        client=True,
        waits=True,
    ),
    Verb(
        name="release",
        method="POST",
        path="/release",
        summary="Give a slot back.",
        answer="nothing",
        body=bodies.OfLease,
        client=True,
    ),
    Verb(
        name="suspend",
        method="POST",
        path="/suspend",
        summary="Let a lease sleep.",
        answer="nothing",
        body=bodies.Suspend,
        client=True,
        owner=True,
    ),
    Verb(
        name="resume",
        method="POST",
        path="/resume",
        summary="Wait for a suspended lease.",
        answer="key, lease, pool, instance, slot, place, persistent",
        body=bodies.Resume,
        client=True,
        owner=True,
        waits=True,
    ),
    Verb(
        name="replace",
        method="POST",
        path="/replace",
        summary="Give a lease's slot back, and wait for one on another instance, under the same key.",
        answer="key, lease, pool, instance, slot, place, persistent",
        body=bodies.Replace,
        client=True,
        waits=True,
    ),
    Verb(
        name="detach",
        method="POST",
        path="/detach",
        summary="Let go of a lease, and keep its slot for anybody of the same user who reattaches it.",
        answer="nothing",
        body=bodies.OfLease,
        client=True,
    ),
    Verb(
        name="reattach",
        method="POST",
        path="/reattach",
        summary="Take up a lease that an earlier daemon handed out to the same user, or that was detached.",
        answer="key, lease, pool, instance, slot, place, persistent",
        body=bodies.Resume,
        client=True,
        waits=True,
    ),
    Verb(
        name="keep",
        method="POST",
        path="/keep",
        summary="Have a lease outlive its client, for a bound.",
        answer="name (for what the client leaves on the instance), ttl, idle_timeout, stays, there, noted",
        body=bodies.Keep,
        client=True,
    ),
    Verb(
        name="stop",
        method="POST",
        path="/stop",
        summary="End a lease that is kept, with what was left in it, no matter which client has it.",
        answer="removed: whether all that was left is gone; if not, the instance is removed",
        body=bodies.OfKey,
        waits=True,
    ),
    Verb(
        name="abandon",
        method="POST",
        path="/abandon",
        summary="Give back what a request has got, or will get, if its answer is not wanted any more.",
        answer="nothing",
        body=bodies.OfRequest,
        client=True,
    ),
    Verb(
        name="reserve",
        method="POST",
        path="/reserve",
        summary="Keep a slot for an acquire to come.",
        answer="nothing",
        body=bodies.Reserve,
        client=True,
        waits=True,
    ),
    Verb(
        name="unreserve",
        method="POST",
        path="/unreserve",
        summary="Give up a reservation.",
        answer="nothing",
        body=bodies.OfKey,
        client=True,
    ),
    Verb(
        name="suspect",
        method="POST",
        path="/suspect",
        summary="Say that something is wrong with a lease's instance.",
        answer="nothing",
        body=bodies.Suspect,
        client=True,
    ),
    Verb(
        name="dial",
        method="POST",
        path="/dial",
        summary="Ask how to connect to a lease's instance, credentials included.",
        answer="info, as `fleeting.ConnectInfo`; connector, as `fleeting.ConnectorConfig`",
        body=bodies.OfLease,
        client=True,
        owner=True,
        local=True,
        waits=True,
    ),
    Verb(
        name="submit",
        method="POST",
        path="/batches",
        summary="Hand over a batch: a tar archive with its jobs file and all files that its jobs need.",
        answer="batch: what it is called from now on; jobs: how many it has",
        body=bodies.Submit,
        uploads=True,
    ),
    Verb(
        name="batches",
        method="GET",
        path="/batches",
        summary="List batches: all of them for the daemon's own user, else those of the user who asks.",
        answer="batches: batch, name, uid, submitted, state, why, jobs (how many, by state), ended",
    ),
    Verb(
        name="jobs",
        method="GET",
        path="/batch",
        summary="Describe a batch and some of its jobs.",
        answer="a batch as in `batches`, results (its directory, for the daemon's own user on the socket), total, and "
        "list: the jobs",
        body=bodies.Jobs,
    ),
    Verb(
        name="wait",
        method="GET",
        path="/batch/wait",
        summary="Wait until a batch is over, or cannot continue.",
        answer="a batch as in `batches`",
        body=bodies.OfBatch,
        waits=True,
    ),
    Verb(
        name="cancel",
        method="POST",
        path="/batch/cancel",
        summary="End a batch and its jobs.",
        answer="a batch as in `batches`",
        body=bodies.OfBatch,
    ),
    Verb(
        name="log",
        method="GET",
        path="/batch/log",
        summary="Read the last lines of a job's log, and follow it if asked to.",
        answer="what the job printed; or lines of JSON, if asked for",
        body=bodies.Log,
        media="text/plain",
    ),
    Verb(
        name="results",
        method="GET",
        path="/batch/results",
        summary="Fetch all that a batch has left, once it is over.",
        answer="a tar archive of its results",
        body=bodies.OfBatch,
        media="application/x-tar",
    ),
    *(
        Verb(
            name=name,
            method="POST",
            path=f"/{name}",
            summary=summary,
            answer="nothing",
            body=bodies.OfInstance,
            owner=True,
        )
        for name, summary in (
            ("cordon", "Give an instance no new work."),
            ("uncordon", "Give an instance work again."),
            ("retain", "Do not delete an instance."),
            ("unretain", "Let an instance be deleted."),
        )
    ),
    Verb(
        name="pause",
        method="POST",
        path="/pause",
        summary="Ask for no more jobs from elsewhere, even after a restart; what is there goes on.",
        answer="intake, as in `status`",
        body=bodies.Nothing,
        owner=True,
    ),
    Verb(
        name="unpause",
        method="POST",
        path="/unpause",
        summary="Ask for jobs from elsewhere again.",
        answer="intake, as in `status`",
        body=bodies.Nothing,
        owner=True,
    ),
    Verb(
        name="canary",
        method="POST",
        path="/canary",
        summary="Run a job of the daemon's own as those from elsewhere run, while the connection is open.",
        answer="passed; says: where it ran, or why it failed; log: its last lines, if it failed",
        body=bodies.Nothing,
        owner=True,
        waits=True,
    ),
    Verb(
        name="drain",
        method="POST",
        path="/drain",
        summary="Hand out no more slots, wait until no lease is held, and end the daemon.",
        answer="drained: whether no lease is held any more; the daemon ends with the last one in any case",
        body=bodies.Drain,
        owner=True,
        waits=True,
    ),
    Verb(
        name="reload",
        method="POST",
        path="/reload",
        summary="Read the file again: the policies are taken over, what else has changed is named.",
        answer="policies: how many; pending: what takes effect with the next start",
        body=bodies.Nothing,
        owner=True,
    ),
    Verb(
        name="link",
        method="POST",
        path="/link",
        summary="Make a link to the status page, which is good once: to look, or with `changes` to cordon, retain and "
        "drain, too.",
        answer="url; seconds: how long it is good",
        body=bodies.Link,
        owner=True,
        local=True,
    ),
    Verb(
        name="openapi",
        method="GET",
        path="/openapi.json",
        summary="Describe all of this.",
        answer="an OpenAPI document",
    ),
)


def openapi() -> dict[str, Any]:
    """Describe the API, as OpenAPI 3.1 has it."""
    paths: dict[str, dict[str, Any]] = {}
    for verb in VERBS:
        paths.setdefault(f"{PREFIX}{verb.path}", {})[verb.method.lower()] = _operation(verb)
    return {
        "openapi": "3.1.0",
        "info": {"title": "taskscaler", "version": version("taskscaler")},
        "paths": paths,
        "security": [{}, {"token": []}],
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "description": "Over TCP."}},
            "schemas": {"Error": _ERROR, **{cls.__name__: _schema(cls) for cls in _bodies()}},
            "parameters": {
                "client": {
                    "name": CLIENT,
                    "in": "header",
                    "required": True,
                    "schema": {"type": "string", "pattern": "^[0-9a-f]{32,64}$"},
                    "description": "The client's secret, which it makes up.",
                }
            },
        },
    }


_ERROR = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {"code": {"type": "string"}, "type": {"type": "string"}, "message": {"type": "string"}},
            "required": ["code", "type", "message"],
        }
    },
}


def _operation(verb: Verb) -> dict[str, Any]:
    media = "text/event-stream" if verb.streams else verb.media
    error = {
        "description": "refused",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
    }
    operation: dict[str, Any] = {
        "operationId": verb.name,
        "summary": verb.summary,
        "description": " ".join(_restrictions(verb)),
        "responses": {"200": {"description": verb.answer, "content": {media: {}}}, "default": error},
    }
    parameters: list[dict[str, Any]] = [{"$ref": "#/components/parameters/client"}] if verb.client else []
    if verb.uploads:
        operation["requestBody"] = {"required": True, "content": {"application/x-tar": {}}}
    if verb.body is not None and verb.asks_in_address:
        schema = _schema(verb.body)
        parameters += [
            {"name": name, "in": "query", "required": name in schema.get("required", ()), "schema": each}
            for name, each in schema["properties"].items()
        ]
    elif verb.body is not None:
        schema = {"$ref": f"#/components/schemas/{verb.body.__name__}"}
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return {**operation, **({"parameters": parameters} if parameters else {})}


def _restrictions(verb: Verb) -> Iterator[str]:
    if verb.owner:
        yield "The daemon's own user only."
    if verb.local:
        yield "On the Unix socket only."


def _bodies() -> Iterator[type]:
    yield from dict.fromkeys(verb.body for verb in VERBS if verb.body is not None and not verb.asks_in_address)


def _schema(cls: type) -> dict[str, Any]:
    hints = get_type_hints(cls)
    required = [each.name for each in fields(cls) if each.default is NOTHING]
    return {
        "type": "object",
        "properties": {each.name: _type(hints[each.name]) for each in fields(cls)},
        "additionalProperties": False,
        **({"required": required} if required else {}),
    }


_TYPES: Mapping[Any, str] = {str: "string", float: "number", int: "integer", bool: "boolean", type(None): "null"}


def _type(hint: Any) -> dict[str, Any]:  # noqa: ANN401  (whatever is in a schema)
    if hint in _TYPES:
        return {"type": _TYPES[hint]}
    arguments = get_args(hint)
    if get_origin(hint) is Literal:
        return {"enum": list(arguments)}
    if get_origin(hint) is tuple:
        return {"type": "array", "items": _type(arguments[0])}
    return {"anyOf": [_type(each) for each in arguments]}
