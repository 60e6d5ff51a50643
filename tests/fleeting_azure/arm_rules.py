"""What Azure Resource Manager refuses before it does anything: paths, versions, parameters, bodies. Pure.

Each rule names its source; one marked guessed follows what other resources do, and nobody here has seen it.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from attrs import field, frozen

TOKEN = "eyJ-the-token-that-nobody-may-see"
SUBSCRIPTION = "00000000-0000-0000-0000-000000000001"
GROUP_NAME = "ci"

Table = dict[str, Any]


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


# --- paths and versions ----------------------------------------------------------------------------------

_COMPUTE = (
    "2015-05-01-preview 2015-06-15 2016-03-30 2016-04-30-preview 2016-06-01 2016-07-01 2016-08-01 2016-09-01 2017-03-30"
    " 2017-12-01 2018-04-01 2018-06-01 2018-10-01 2019-03-01 2019-07-01 2019-12-01 2020-06-01 2020-12-01 2021-03-01"
    " 2021-04-01 2021-07-01 2021-11-01 2022-03-01 2022-08-01 2022-11-01 2023-03-01 2023-07-01"
)
"""Source: Azure/azure-sdk-for-python#32029, which quotes the answer."""

_NEWER = " 2023-09-01 2024-03-01 2024-07-01 2024-11-01 2025-04-01 2026-04-01"
"""Source: Azure/azure-rest-api-specs#27695 and azure-mgmt-compute."""

_NETWORK = (
    "2014-12-01-preview 2015-05-01-preview 2015-06-15 2016-03-30 2016-06-01 2016-07-01 2016-08-01 2016-09-01 2016-10-01"
    " 2016-11-01 2016-12-01 2017-03-01 2017-04-01 2017-06-01 2017-08-01 2017-09-01 2017-10-01 2017-11-01 2018-01-01"
    " 2018-02-01 2018-03-01 2018-04-01 2018-05-01 2018-06-01 2018-07-01 2018-08-01 2018-10-01 2018-11-01 2018-12-01"
)
"""Source: Azure/azure-cli#28496, the beginning of what it quotes."""

_SETS, _VMS = "virtualmachinescalesets", "virtualmachines"
_IN_SET = f"{_SETS}/{_VMS}"
VERSIONS: Mapping[tuple[str, str], str] = {
    ("microsoft.compute", _SETS): _COMPUTE + _NEWER,
    ("microsoft.compute", _IN_SET): _COMPUTE + _NEWER,
    ("microsoft.compute", _VMS): _COMPUTE + _NEWER,
    ("microsoft.compute", "locations"): _COMPUTE + _NEWER,
    # Interfaces and addresses of scale sets have the versions of Compute, not of Network: issue #32029, as above.
    ("microsoft.compute", f"{_SETS}/networkinterfaces"): _COMPUTE,
    ("microsoft.compute", f"{_SETS}/publicipaddresses"): _COMPUTE,
    ("microsoft.compute", f"{_IN_SET}/networkinterfaces"): _COMPUTE,
    ("microsoft.compute", f"{_IN_SET}/networkinterfaces/ipconfigurations/publicipaddresses"): _COMPUTE,
    ("microsoft.network", "networkinterfaces"): _NETWORK,
    ("microsoft.network", "publicipaddresses"): _NETWORK,
    ("microsoft.insights", "autoscalesettings"): "2014-04-01 2015-04-01 2021-05-01-preview 2022-10-01",
}
"""Which versions of the API each type of resource has. Source of the last: azure-rest-api-specs, monitor."""

ACTIONS = frozenset("delete deallocate instanceview poweroff restart scaleout simulateeviction start".split())  # noqa: SIM905
"""What may stand behind a resource's name without being one."""


def parts_of(path: str, version: str | None) -> tuple[str, list[str]]:
    """Read a path: the namespace, and what stands behind it, all in lower case, for Azure heeds none.

    Raises:
        Refused: There is no such subscription, resource group, type of resource, or version of it.
    """
    match [part for part in path.lower().split("/") if part]:
        case ["subscriptions", subscription, *_] if subscription != SUBSCRIPTION:
            raise Refused(404, "SubscriptionNotFound", f"The subscription '{subscription}' could not be found.")
        case ["subscriptions", _, "resourcegroups", group, *_] if group != GROUP_NAME:
            raise Refused(404, "ResourceGroupNotFound", f"Resource group '{group}' could not be found.")
        case ["subscriptions", _, "resourcegroups", _, "providers", namespace, *rest] if rest:
            pass
        case ["subscriptions", _, "providers", namespace, "locations", *rest]:
            rest = ["locations", *rest]
        case _:
            raise Refused(404, "NotFound", "The request URL is not valid.")  # guessed
    names = rest[:-1] if len(rest) % 2 and rest[-1] in ACTIONS else rest
    kind = "locations" if rest[0] == "locations" else "/".join(names[::2])
    check_version(namespace, kind, version)
    return namespace, rest


def check_version(namespace: str, kind: str, version: str | None) -> None:
    """Refuse what there is no such version of. The words and the first status are those of issue #32029."""
    if version is None:
        raise Refused(400, "MissingApiVersionParameter", "The api-version query parameter (?api-version=) is required.")
    if not any(known == namespace for known, _ in VERSIONS):
        raise Refused(404, "InvalidResourceNamespace", f"The resource namespace '{namespace}' is invalid.")
    if (versions := VERSIONS.get((namespace, kind))) is None:  # the status is guessed
        what = f"The resource type '{kind}' could not be found in the namespace '{namespace}'"
        raise Refused(404, "InvalidResourceType", f"{what} for api version '{version}'.")
    if version not in versions.split():
        what = f"No registered resource provider found for location 'westeurope' and API version '{version}'"
        known = ", ".join(versions.split())
        raise Refused(
            400, "NoRegisteredProviderFound", f"{what} for type '{kind}'. The supported api-versions are '{known}'."
        )


def not_found(kind: str, name: str) -> Refused:
    """Refuse what is not there, in the words that everybody knows."""
    what = f"The Resource 'Microsoft.Compute/{kind}/{name}' under resource group '{GROUP_NAME}' was not found."
    return Refused(
        404, "ResourceNotFound", f"{what} For more details please go to https://aka.ms/ARMResourceNotFoundFix"
    )


# --- parameters and bodies -------------------------------------------------------------------------------


def invalid(target: str, message: str) -> Refused:
    """Refuse a value. Source of code and target: k8s's and az's issues about instance ids."""
    return Refused(400, "InvalidParameter", message, target=target)


def wants_view(query: Mapping[str, str], others: Collection[str] = ()) -> bool:
    """Read ``$expand``; without it no status is told. Source: the REST reference of the methods."""
    expand = query.get("$expand", "")
    if expand and expand.lower() not in ("instanceview", *others):
        raise invalid("$expand", f"The value '{expand}' of parameter $expand is invalid.")
    return expand.lower() == "instanceview"


def check_flags(query: Mapping[str, str]) -> None:
    """Refuse what is neither true nor false."""
    for flag in ("forceDeletion", "hibernate", "skipShutdown"):
        if query.get(flag, "true").lower() not in ("true", "false"):
            raise invalid(flag, f"The value of parameter {flag} is invalid.")


def set_in(expression: str) -> str:
    """Read which scale set's machines are wanted. Source: the REST reference of virtualMachines.list."""
    if not (found := re.fullmatch(r"'virtualMachineScaleSet/id' eq '([^']+)'", expression, re.IGNORECASE)):
        raise Refused(400, "BadRequest", f"The filter '{expression}' is not supported.")
    return found[1].lower()


def read_body(raw: bytes) -> Any:  # noqa: ANN401  (JSON)
    """Read a body: an object, or none. Source of the code: Azure's list of common errors."""
    try:
        body = json.loads(raw) if raw else None
    except ValueError:
        body = ()
    if body is not None and not isinstance(body, dict):
        raise Refused(400, "InvalidRequestContent", "The request content was invalid and could not be deserialized.")
    return body


def capacity_in(body: Any, now: int, most: int) -> int:  # noqa: ANN401  (JSON)
    """Read the capacity that is wanted: a whole number, within the limits of the scale set."""
    capacity = ((body or {}).get("sku") or {}).get("capacity", now)
    if not isinstance(capacity, int) or isinstance(capacity, bool) or not 0 <= capacity <= most:
        raise invalid("sku.capacity", f"The value {capacity} of parameter 'sku.capacity' is not from 0 to {most}.")
    return capacity


def tags_in(body: Any) -> Table | None:  # noqa: ANN401  (JSON)
    """Read the tags that are wanted, all of them. Source of the limits: Azure's guide to tags; the words are guessed.

    That a PATCH replaces them all is guessed: the reference of the method only calls them the resource's tags.
    """
    tags = (body or {}).get("tags")
    if tags is None:
        return None
    if not isinstance(tags, dict) or len(tags) > 50:
        raise Refused(400, "InvalidTags", "A resource has at most 50 tags.")
    for name, value in tags.items():
        if not 0 < len(name) <= 512 or set(name) & set("<>%&\\?/") or not isinstance(value, str) or len(value) > 256:
            raise Refused(400, "InvalidTagNameCharacters", f"The tag '{name}' is invalid.")
    return {**tags}


def check_model(body: Any, mode: str) -> None:  # noqa: ANN401  (JSON)
    """Refuse a PUT without a place, or one that changes what may not be. Source: Azure's list of common errors."""
    if not (body or {}).get("location"):
        raise Refused(400, "LocationRequired", "The location property is required for this definition.")
    if (body.get("properties") or {}).get("orchestrationMode", mode) != mode:
        message = "Changing property 'orchestrationMode' is not allowed."
        raise Refused(409, "PropertyChangeNotAllowed", message, target="orchestrationMode")


def named_in(body: Any, there: Collection[str], *, required: bool) -> Sequence[str]:  # noqa: ANN401  (JSON)
    """Read which instances are meant; ``*``, or none where none are required, means all, as az has it."""
    named = (body or {}).get("instanceIds")
    if named in (None, []) and not required:
        return [*there]
    if not isinstance(named, list) or not named:
        raise invalid("instanceIds", "Required parameter 'instanceIds' is missing (null).")
    if named == ["*"]:
        return [*there]
    if unknown := [name for name in named if name not in there]:
        message = f"The provided instanceId {unknown[0]} is not an active Virtual Machine Scale Set VM instanceId."
        raise invalid("instanceIds", message)
    return [*map(str, named)]
