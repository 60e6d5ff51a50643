"""What AWS refuses before it does anything: by its own description of its services, and by its documentation.

moto takes whatever boto3 sends, and boto3 checks little of what it sends: no upper limit, no pattern. So a plugin that
sends 101 ids where AWS takes 100 would pass every test. Each rule names where it is from; ``guessed`` is what AWS does
not document, such as the words of a message.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from botocore.model import ServiceModel

Refusal = tuple[int, str, str]
"""HTTP status, code, message."""

ON_BEHALF: Mapping[str, Sequence[str]] = {
    "autoscaling:LaunchInstances": ("ec2:CreateFleet", "ec2:DescribeLaunchTemplateVersions"),
}
"""What a caller must be permitted besides the operation itself. Source: AWS's guide, "Launching instances with
synchronous provisioning", prerequisites."""

OTHER_CLIENT = "AKIAOTHERCLIENT"
"""The access key of clients whose requests are not counted as the group's own."""

MOST: Mapping[tuple[str, str], int] = {
    ("EnterStandby", "InstanceIds"): 20,
    ("ExitStandby", "InstanceIds"): 20,
    ("DescribeAutoScalingGroups", "AutoScalingGroupNames"): 50,
    ("DescribeAutoScalingGroups", "MaxRecords"): 100,
    ("DescribeAutoScalingInstances", "InstanceIds"): 50,
    ("DescribeScalingActivities", "MaxRecords"): 100,
    ("LaunchInstances", "RequestedCapacity"): 100,
    ("SetInstanceProtection", "InstanceIds"): 50,
}
"""How many, at most, where only a sentence of the description says so. Source: the SDK's description of the service.
Of `LaunchInstances` it says that no more are launched by one request; that more are refused is guessed."""

FILTER_VALUES = 200
"""Of all filters of one request. Source: EC2's API reference, DescribeInstances, Filter.N."""

MAX_RESULTS = (5, 1000)
"""Source: EC2's API reference, DescribeInstances, MaxResults."""


@cache
def description(service: str) -> "ServiceModel":
    """Load the SDK's own description of a service."""
    from botocore.loaders import create_loader
    from botocore.model import ServiceModel

    return ServiceModel(create_loader().load_service_model(service, "service-2"), service)


def refusal(service: str, operation: str, parameters: Mapping[str, str]) -> Refusal | None:
    """What AWS would answer to a request that breaks a rule; None: it breaks none."""
    if service == "autoscaling" and operation in description(service).operation_names:
        asked = _tree_of(parameters)
        shape = description(service).operation_model(operation).input_shape
        broken = [*_broken(shape, asked, ""), *_more_than_documented(operation, asked)]
        if broken:
            counted = f"{len(broken)} validation error{'s' * (len(broken) > 1)} detected: "
            return 400, "ValidationError", counted + "; ".join(broken)  # words as AWS's other services write them
    if service == "ec2" and operation == "DescribeInstances":
        return _ec2_refusal(parameters)
    return None


def refusal_of_key(asked: Mapping[str, Any]) -> Refusal | None:
    """What EC2 Instance Connect would answer to a key that breaks a rule; None: it breaks none."""
    shape = description("ec2-instance-connect").operation_model("SendSSHPublicKey").input_shape
    broken = [*_broken(shape, asked, "")]
    return (400, "InvalidArgsException", "; ".join(broken)) if broken else None  # words guessed


def _tree_of(parameters: Mapping[str, str]) -> dict[str, Any]:
    """Take the names of parameters apart, such as ``InstanceIds.member.1``."""
    tree: dict[str, Any] = {}
    for name, value in parameters.items():
        *way, last = name.split(".")
        place = tree
        for step in way:
            place = place.setdefault(step, {})
        place[last] = value
    return tree


def _broken(shape: Any, value: Any, where: str) -> Iterator[str]:  # noqa: ANN401  (a shape is what the SDK has)
    """What of a value the description forbids. What it does not know is passed over, as AWS does."""
    match shape.type_name if shape is not None else "":
        case "structure":
            for name in shape.required_members:
                if name not in value:
                    yield f"Value null at '{where}{_small(name)}' failed to satisfy constraint: Member must not be null"
            for name, each in shape.members.items():
                if name in value:
                    yield from _broken(each, value[name], f"{where}{_small(name)}")
        case "list":
            listed = list(value.get("member", {}).values()) if isinstance(value, dict) else []
            yield from _out_of_bounds(shape, len(listed), f"'{where}'", "length")
            for number, each in enumerate(listed, start=1):
                yield from _broken(shape.member, each, f"{where}.{number}.member")
        case _ if shape is not None:
            yield from _broken_scalar(shape, value, f"'{value}' at '{where}'")


def _broken_scalar(shape: Any, value: str, what: str) -> Iterator[str]:  # noqa: ANN401  (as above)
    pattern, enum = shape.metadata.get("pattern"), shape.metadata.get("enum")
    must = f"Value {what} failed to satisfy constraint: Member must"
    if shape.type_name == "string":
        yield from _out_of_bounds(shape, len(value), what, "length")
        if pattern and not re.fullmatch(_for_python(pattern), value):
            yield f"{must} satisfy regular expression pattern: {pattern}"
        if enum and value not in enum:
            yield f"{must} satisfy enum value set: {enum}"
    elif shape.type_name == "integer" and re.fullmatch("-?[0-9]{1,9}", value):
        yield from _out_of_bounds(shape, int(value), what, "value")
    elif shape.type_name == "integer":
        yield f"{must} be an integer"
    elif shape.type_name == "boolean" and value not in {"true", "false"}:
        yield f"{must} be true or false"


def _out_of_bounds(shape: Any, number: int, what: str, kind: str) -> Iterator[str]:  # noqa: ANN401  (as above)
    least, most = shape.metadata.get("min"), shape.metadata.get("max")
    must = f"Value {what} failed to satisfy constraint: Member must have {kind}"
    if least is not None and number < least:
        yield f"{must} greater than or equal to {least}"
    if most is not None and number > most:
        yield f"{must} less than or equal to {most}"


def _more_than_documented(operation: str, asked: Mapping[str, Any]) -> Iterator[str]:
    for (what, name), most in MOST.items():
        value = asked.get(name)
        number = len(value.get("member", {})) if isinstance(value, dict) else int(value or 0)
        if what == operation and number > most:
            yield f"Value at '{_small(name)}' failed to satisfy constraint: at most {most}"


def _ec2_refusal(parameters: Mapping[str, str]) -> Refusal | None:
    values = sum(bool(re.fullmatch(r"Filter\.\d+\.Value\.\d+", name)) for name in parameters)
    if values > FILTER_VALUES:
        return 400, "FilterLimitExceeded", f"The maximum number of filter values is {FILTER_VALUES}."  # words guessed
    if most := parameters.get("MaxResults"):
        if not MAX_RESULTS[0] <= int(most) <= MAX_RESULTS[1]:
            return 400, "InvalidParameterValue", f"Value ( {most} ) for parameter maxResults is invalid."
        if any(name.startswith("InstanceId.") for name in parameters):
            return 400, "InvalidParameterCombination", "The parameter instancesSet cannot be used with maxResults"
    return None


def _small(name: str) -> str:
    return name[0].lower() + name[1:]


def _for_python(pattern: str) -> str:
    """Write a pattern for Python, which has no pairs of surrogates."""
    return pattern.replace(r"\uD800\uDC00-\uDBFF\uDFFF", "\U00010000-\U0010ffff")
