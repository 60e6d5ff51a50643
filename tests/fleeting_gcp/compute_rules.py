"""What the Compute Engine API refuses before it does anything: paths, parameters, bodies. Pure.

Each rule names its source. "Reference" is Google's REST reference of the method; a rule marked guessed follows what
the API does elsewhere, and nobody here has seen it.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

Json = dict[str, Any]


class Refusal(Exception):
    """Ends a request with an error of the API's."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        """Take what the answer says."""
        super().__init__(message)
        error = {"message": message, "domain": "global", "reason": reason}
        self.status = status
        self.body: Json = {"error": {"code": status, "message": message, "errors": [error]}}


class NoSuchPath(Exception):
    """The front end knows no such path, and answers with a page of HTML, as for any of Google's hosts."""


def invalid(field: str, value: object, why: str = "") -> Refusal:
    """Refuse a value, in the words that the API has for it."""
    return Refusal(400, "invalid", f"Invalid value for field '{field}': '{value}'. {why}".rstrip())


# --- paths and parameters --------------------------------------------------------------------------------

VERSIONS = ("v1", "beta")
"""Nomad's autoscaler sends resizeAdvanced to the second. Source: its code (hashicorp/nomad-autoscaler)."""

_SYSTEM = {
    "$.xgafv",
    "$alt",
    "access_token",
    "alt",
    "callback",
    "fields",
    "key",
    "oauth_token",
    "prettyPrint",
    "quotaUser",
    "uploadType",
    "upload_protocol",
    "userIp",
}
"""What every method takes. Source: the API's discovery document; Google's Python clients send ``$alt``."""

_LISTS = "filter maxResults orderBy pageToken returnPartialSuccess"
PARAMETERS = {
    "get": "",
    "instanceGroupManagers.list": _LISTS,
    "instanceGroupManagers.aggregatedList": f"{_LISTS} includeAllScopes serviceProjectNumber",
    "listManagedInstances": _LISTS,
    "createInstances": "requestId",
    "deleteInstances": "requestId",
    "suspendInstances": "requestId",
    "resumeInstances": "requestId",
    "resize": "requestId size",
    "resizeAdvanced": "requestId",
    "patch": "requestId",
    "instances.get": "view",
    "instances.list": f"{_LISTS} view",
    "instances.aggregatedList": f"{_LISTS} includeAllScopes serviceProjectNumber",
    "instances.delete": "requestId noGracefulShutdown",
    "setMetadata": "requestId",
    "getGuestAttributes": "queryPath variableKey",
    "serialPort": "port start",
    "projects.get": "",
    "zones.list": _LISTS,
    "regions.get": "",
    "instanceGroups.list": _LISTS,
    "instanceTemplates.get": "view",
    "zones.operations": "",
    "regions.operations": "",
    "zones.operations.wait": "",
    "regions.operations.wait": "",
}
"""What each method takes beside that. Source: reference."""


def check_query(method: str, query: Mapping[str, str]) -> None:
    """Refuse what the method has no parameter for, and values out of range."""
    if unknown := query.keys() - _SYSTEM - set(PARAMETERS[method].split()):
        cause = f"Cannot bind query parameter. Field '{min(unknown)}' could not be found in request message."
        raise Refusal(400, "badRequest", f'Invalid JSON payload received. Unknown name "{min(unknown)}": {cause}')
    if "maxResults" in query and number(query, "maxResults") > 500:  # reference: 0 to 500
        raise invalid("maxResults", query["maxResults"], "Must be less than or equal to 500")
    if "port" in query and not 1 <= number(query, "port") <= 4:  # reference: 1 to 4
        raise invalid("port", query["port"], "Must be between 1 and 4")
    if key := query.get("requestId"):
        check_request_id(key)


def number(query: Mapping[str, str], name: str) -> int:
    """Read a number that is not negative."""
    if not query[name].isdecimal():
        raise invalid(name, query[name])
    return int(query[name])


def check_request_id(key: str) -> None:
    """Refuse what is no UUID, or the one of zeros. Source: reference."""
    try:
        good = UUID(key).int != 0
    except ValueError:
        good = False
    if not good:
        raise invalid("requestId", key, "Must be a valid UUID")


def check_zone(zone: str) -> None:
    """Refuse a zone that there is not. Source: what gcloud shows for one."""
    if not re.fullmatch(r"[a-z]+(-[a-z]+[0-9]+)-[a-z]", zone):
        raise invalid("zone", zone, "Unknown zone.")


# --- bodies ----------------------------------------------------------------------------------------------

BODIES: Mapping[str, Mapping[str, type]] = {
    "createInstances": {"instances": list},
    "deleteInstances": {"instances": list, "skipInstancesOnValidationError": bool},
    "suspendInstances": {"instances": list, "forceSuspend": bool},
    "resumeInstances": {"instances": list},
    "resizeAdvanced": {"noCreationRetries": bool, "targetSize": int},
    "setMetadata": {"fingerprint": str, "items": list, "kind": str},
    "patch": {"fingerprint": str, "allInstancesConfig": dict},  # of the resource, what may be changed here
}
"""What the bodies hold, with their types. Source: reference. Other methods have none."""


def read_body(raw: bytes) -> Json:
    """Read the body, which is an object where there is one. Source of the reason: the API's list of errors."""
    try:
        body = json.loads(raw or b"{}")
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise Refusal(400, "parseError", "Parse Error")
    return body


def check_body(method: str, body: Json) -> None:
    """Refuse fields that are unknown (guessed: other APIs of Google do) or of another type."""
    fields = BODIES.get(method, {})
    for name, value in body.items():
        if name not in fields:
            raise Refusal(
                400, "badRequest", f'Invalid JSON payload received. Unknown name "{name}": Cannot find field.'
            )
        if not isinstance(value, fields[name]):
            raise invalid(name, value)
    if "instances" in fields and not body.get("instances"):  # guessed
        raise Refusal(400, "required", "Required field 'instances' not specified")


_REFERENCE = re.compile(
    r"(?:https://(?:www|compute|content)\.googleapis\.com/compute/(?:v1|beta|alpha)/)?"
    r"(?:projects/(?P<project>[^/]+)/)?zones/(?P<zone>[^/]+)/instances/(?P<name>[^/]+)"
)
NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
"""Source: reference, RFC 1035."""

MOST = 1000
"""Instances in one request. Source: reference of deleteInstances, suspendInstances and others."""


def members(references: Sequence[object], project: str, zones: Iterable[str]) -> list[tuple[str | None, str]]:
    """Read which instances are meant: zone and name, the zone None where only a name is given.

    A full URL, one without host, and one that begins with the zone mean the same; gcloud and the cluster autoscaler
    (autoscaling_gce_client.go) send the first, Google's own samples the last. Source for names, and that they and URLs
    do not go together: the reference of deleteInstances of zonal groups. That of regional ones is silent; that they
    take names too is guessed.
    """
    if len(references) > MOST:
        raise invalid("instances", f"{len(references)} values", f"at most {MOST}.")
    found: list[tuple[str | None, str]] = []
    for reference in map(str, references):
        if NAME.fullmatch(reference):
            found.append((None, reference))
            continue
        if not (url := _REFERENCE.fullmatch(reference)):
            raise invalid("instances", reference, "The URL is malformed.")
        if url["project"] not in (None, project) or url["zone"] not in zones:
            raise invalid("instances", reference, "It is not in the group's zone or region.")
        found.append((url["zone"], url["name"]))
    if len({zone is None for zone, _ in found}) > 1:
        raise Refusal(400, "invalid", "Both URLs and names of instances were given.")  # the words are guessed
    return found


VALUE, ALL = 256 * 1024, 512 * 1024
"""Bytes of one value of the metadata, and of all. Source: Google's guide to metadata."""


def check_metadata(items: Sequence[Json]) -> None:
    """Refuse metadata that is too large, has a key twice, or one that is none."""
    keys = [str(each.get("key", "")) for each in items]
    for place, each in enumerate(items):
        if not re.fullmatch(r"[a-zA-Z0-9-_]{1,128}", keys[place]):  # reference
            raise invalid(f"metadata.items[{place}].key", keys[place])
        if (size := len(str(each.get("value", "")).encode())) > VALUE:
            field, most = f"metadata.items[{place}].value", f"maximum size {VALUE} character(s); actual size {size}."
            raise Refusal(413, "uploadTooLarge", f"Value for field '{field}' is too large: {most}")
    if len(set(keys)) < len(keys):
        raise Refusal(400, "invalid", f"Metadata has duplicate keys: {max(keys, key=keys.count)}")
    if sum(len(str(each).encode()) for each in items) > ALL:
        raise Refusal(413, "uploadTooLarge", "Metadata is too large.")


def check_for_all(kind: str, entries: Mapping[str, object]) -> None:
    """Refuse what no instance could have. Source: Google's guides to labels and metadata; the words are guessed."""
    if kind == "metadata":
        check_metadata([{"key": key, "value": value} for key, value in entries.items()])
    elif kind == "labels":
        for key, value in entries.items():
            if not re.fullmatch(r"[a-z][a-z0-9_-]{0,62}", key) or not re.fullmatch(r"[a-z0-9_-]{0,63}", str(value)):
                raise invalid(f"allInstancesConfig.properties.labels[{key}]", value)
    else:
        raise Refusal(400, "badRequest", f'Invalid JSON payload received. Unknown name "{kind}": Cannot find field.')


# --- lists -----------------------------------------------------------------------------------------------

_CONDITION = re.compile(r'\(?\s*(name|status|zone)\s*(=|!=|eq|ne)\s*(?:"([^"]*)"|([^\s()"]+))\s*\)?')


def filtered(expression: str, items: Sequence[Json]) -> list[Json]:
    """Choose by one comparison: ``=`` by equality, ``eq`` by a regular expression that matches all of the value.

    Source: reference of the parameter. More than one comparison is refused here, though Google takes them.
    """
    if not expression:
        return [*items]
    if not (found := _CONDITION.fullmatch(expression)):
        raise invalid("filter", expression, "Invalid list filter expression.")
    field, operator, wanted = found[1], found[2], found[3] if found[3] is not None else found[4]
    wanting = operator in ("=", "eq")
    fits: Callable[[str], bool] = (
        (lambda value: value == wanted) if "=" in operator else (lambda value: re.fullmatch(wanted, value) is not None)
    )
    return [each for each in items if fits(str(each.get(field, ""))) == wanting]


def page(items: Sequence[Json], query: Mapping[str, str], most: int) -> tuple[list[Json], str | None]:
    """Cut a page out; returns it and the token of the next. A token is whatever was given out before."""
    token = query.get("pageToken", "0")
    if not token.isdecimal():  # one behind the end is what is left when the list has shrunk meanwhile
        raise invalid("pageToken", token)
    start, size = int(token), min(number(query, "maxResults") or 500 if "maxResults" in query else 500, most)
    return [*items[start : start + size]], str(start + size) if start + size < len(items) else None
