"""What `moto_life` takes from moto, and what it replaces there, is as it was when that was written.

When moto is upgraded and one of these fails: look at what has changed there; see whether `moto_life` still fits, and is
still needed; then write down the new version and digests, which the failing test prints.
"""

import inspect
from hashlib import sha256
from typing import Any

from tests.later import Later

moto_life: Any = Later("tests.fleeting_aws.moto_life")

VERSION = "5.2.5"

DIGESTS = {
    "Activity.__init__": "f5da35ef3e9c",
    "AutoScalingBackend.create_auto_scaling_group": "6134d039b543",
    "AutoScalingBackend.create_or_update_tags": "d38e8c61b6ce",
    "AutoScalingBackend.delete_tags": "deeef0b5ec77",
    "FakeAutoScalingGroup.__init__": "43b3f3b09fd3",
    "FakeAutoScalingGroup.replace_autoscaling_group_instances": "e32e15774ef5",
    "InstanceState.__init__": "14e6ab04a16c",
    "AutoScalingResponse.describe_auto_scaling_groups": "69d1cf248660",
    "Instance.terminate": "b5e4ee68c414",
    "InstanceResponse.describe_instances": "fa6a9013b378",
    "FakeAutoScalingGroup.set_desired_capacity": "4a026bb5666e",
    "AutoScalingBackend.set_desired_capacity": "4f07307b13b8",
    "AutoScalingBackend.enter_standby_instances": "63fa68b9e676",
    "AutoScalingBackend.exit_standby_instances": "38e5f0ec1837",
    "AutoScalingResponse.terminate_instance_in_auto_scaling_group": "7740bac98fc3",
    "AutoScalingResponse.describe_scaling_activities": "14eb4471e266",
    "InstanceBackend.stop_instances": "122b72200b48",
    "InstanceBackend.start_instances": "d63bc0ad1d5b",
    "General.get_console_output": "13dbe398f5f7",
    "Windows.get_password_data": "d73017315f14",
    "moto.backends.list_of_moto_modules": "4f741a10b065",
    "moto.core.utils.method_names_from_class": "9dbac89d082b",
    "AttributePicker.get_possible_keys": "cb284052c5ea",
    "XFormedAttributePicker.get_possible_keys": "f0d20f55f37f",
}
"""Of the source of everything that is used or replaced."""


def leant_upon() -> list[tuple[Any, str]]:
    """What is used as it is."""
    from moto import backends
    from moto.autoscaling import models, responses
    from moto.core import serialize, utils
    from moto.ec2.models.instances import Instance
    from moto.ec2.responses.instances import InstanceResponse

    return [
        (models.Activity, "__init__"),
        (models.AutoScalingBackend, "create_auto_scaling_group"),
        (models.AutoScalingBackend, "create_or_update_tags"),
        (models.AutoScalingBackend, "delete_tags"),
        (models.FakeAutoScalingGroup, "__init__"),
        (models.FakeAutoScalingGroup, "replace_autoscaling_group_instances"),
        (models.InstanceState, "__init__"),
        (responses.AutoScalingResponse, "describe_auto_scaling_groups"),
        (Instance, "terminate"),
        (InstanceResponse, "describe_instances"),
        (backends, "list_of_moto_modules"),
        (utils, "method_names_from_class"),
        (serialize.AttributePicker, "get_possible_keys"),
        (serialize.XFormedAttributePicker, "get_possible_keys"),
    ]


def digest(owner: Any, name: str) -> str:  # noqa: ANN401  (a class of moto's)
    """Stand for what a function does."""
    return sha256(inspect.getsource(getattr(owner, name)).encode()).hexdigest()[:12]


def test_moto_is_the_one_that_this_was_written_for() -> None:
    """The version is pinned in the workspace; this says why."""
    import moto

    assert moto.__version__ == VERSION


def test_moto_does_what_it_did() -> None:
    """Be it what is built upon, or what is replaced because it does too little."""
    concerned = [*leant_upon(), *((owner, name) for owner, name, _ in moto_life.REPLACED)]
    assert {f"{owner.__name__}.{name}": digest(owner, name) for owner, name in concerned} == DIGESTS


def test_moto_lacks_what_is_added() -> None:
    """Once it has it, ours may go."""
    assert [name for owner, name, _ in moto_life.ADDED if hasattr(owner, name)] == []


def test_what_replaces_a_function_takes_what_that_took() -> None:
    """Moto's own code calls it, by name or by position."""
    for owner, name, ours in moto_life.REPLACED:
        theirs = inspect.signature(getattr(owner, name)).parameters
        assert len(inspect.signature(ours).parameters) == len(theirs), f"{owner.__name__}.{name}"
