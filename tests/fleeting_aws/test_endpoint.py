"""The tests' endpoint refuses what AWS refuses, and takes what other clients of Auto Scaling groups send."""

from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.fleeting_aws.clouds import REGION, Cloud, new_cloud, other_client

GROUP = {"AutoScalingGroupName": "fleet"}
IDS = [f"i-{number:017x}" for number in range(101)]
LAUNCH = {**GROUP, "RequestedCapacity": 1, "ClientToken": "token", "AvailabilityZones": [f"{REGION}a"]}


def client(cloud: Cloud, service: str = "autoscaling") -> Any:  # noqa: ANN401  (the SDK has no types)
    """Make a client that sends what it is given, and once."""
    return other_client(cloud.port, service, parameter_validation=False, retries={"total_max_attempts": 1})


def refused(cloud: Cloud, operation: str, parameters: dict[str, Any], service: str = "autoscaling") -> tuple[int, str]:
    """Tell with which HTTP status and code a request is refused."""
    with pytest.raises(ClientError) as failure:
        getattr(client(cloud, service), operation)(**parameters)
    response: dict[str, Any] = failure.value.response
    return response["ResponseMetadata"]["HTTPStatusCode"], response["Error"]["Code"]


@pytest.mark.parametrize(
    ("operation", "parameters"),
    [
        ("launch_instances", {**LAUNCH, "RequestedCapacity": 0}),
        ("launch_instances", {**LAUNCH, "RequestedCapacity": 101}),
        ("launch_instances", {**LAUNCH, "ClientToken": "x" * 65}),
        ("launch_instances", {**LAUNCH, "ClientToken": "a token"}),
        ("launch_instances", {**LAUNCH, "RetryStrategy": "NONE"}),
        ("launch_instances", {**LAUNCH, "AvailabilityZones": [f"{REGION}a", f"{REGION}b"]}),
        ("launch_instances", {**LAUNCH, "AvailabilityZones": [f"{REGION}z"]}),
        ("launch_instances", {**LAUNCH, "AvailabilityZoneIds": ["euw1-az3"]}),
        ("launch_instances", {**LAUNCH, "AvailabilityZones": []}),
        ("launch_instances", {**LAUNCH, "AutoScalingGroupName": "nobody"}),
        ("terminate_instance_in_auto_scaling_group", {"InstanceIds": IDS[:1]}),
        ("terminate_instance_in_auto_scaling_group", {"InstanceIds": IDS[:1], "ShouldDecrementDesiredCapacity": True}),
        (
            "terminate_instance_in_auto_scaling_group",
            {**GROUP, "InstanceIds": IDS, "ShouldDecrementDesiredCapacity": True},
        ),
        ("enter_standby", {**GROUP, "InstanceIds": IDS[:21], "ShouldDecrementDesiredCapacity": True}),
        ("exit_standby", {**GROUP, "InstanceIds": IDS[:21]}),
        ("set_desired_capacity", {**GROUP, "DesiredCapacity": 21}),
        ("describe_auto_scaling_groups", {"AutoScalingGroupNames": [str(number) for number in range(51)]}),
        ("describe_scaling_activities", {**GROUP, "MaxRecords": 101}),
        ("create_or_update_tags", {"Tags": [{"Key": "x" * 129, "ResourceId": "fleet"}]}),
    ],
)
def test_what_auto_scaling_does_not_take_is_refused(cloud: Cloud, operation: str, parameters: dict[str, Any]) -> None:
    """And nothing was done."""
    assert refused(cloud, operation, parameters) == (400, "ValidationError")
    assert cloud.do("group") == {"desired": 0, "there": 0}


@pytest.mark.parametrize(
    ("parameters", "code"),
    [
        ({"Filters": [{"Name": "instance-id", "Values": [*IDS, *IDS]}]}, "FilterLimitExceeded"),
        ({"MaxResults": 4}, "InvalidParameterValue"),
        ({"MaxResults": 1001}, "InvalidParameterValue"),
        ({"MaxResults": 10, "InstanceIds": IDS[:1]}, "InvalidParameterCombination"),
    ],
)
def test_what_ec2_does_not_take_is_refused(cloud: Cloud, parameters: dict[str, Any], code: str) -> None:
    """With EC2's own codes."""
    assert refused(cloud, "describe_instances", parameters, "ec2") == (400, code)


@pytest.mark.parametrize(
    "change",
    [
        {"InstanceOSUser": "x" * 33},
        {"SSHPublicKey": "ssh-ed25519 AAAA"},
        {"InstanceId": "fleet-1"},
        {"InstanceOSUser": ""},
    ],
)
def test_a_key_that_instance_connect_does_not_take_is_refused(cloud: Cloud, change: dict[str, str]) -> None:
    """Names and keys have lengths; an id is one of EC2's."""
    key = {"InstanceId": IDS[0], "InstanceOSUser": "ubuntu", "SSHPublicKey": "ssh-ed25519 " + "A" * 68}
    service, operation = "ec2-instance-connect", "send_ssh_public_key"
    assert refused(cloud, operation, key, service) == (400, "EC2InstanceNotFoundException")
    assert refused(cloud, operation, {**key, **change}, service) == (400, "InvalidArgsException")


@pytest.mark.parametrize(
    "group",
    [
        {"launch_configuration_name": "old"},
        {"mixed_instances_policy": {"InstancesDistribution": {"OnDemandPercentageAboveBaseCapacity": 50}}},
    ],
)
def test_nothing_is_launched_into_a_group_that_is_not_served(cloud: Cloud, group: dict[str, object]) -> None:
    """AWS takes launch templates only, and policies of one kind only."""
    cloud.do("group", **group)
    assert refused(cloud, "launch_instances", LAUNCH) == (400, "ValidationError")


def test_a_warm_pool_is_launched_beside_and_told_off(cloud: Cloud) -> None:
    """As AWS describes it: a cold start, and an error."""
    cloud.do("warm_pool")
    assert refused(cloud, "launch_instances", LAUNCH) == (400, "UnsupportedOperation")
    assert cloud.do("group") == {"desired": 1, "there": 1}


def test_a_token_stands_for_one_launch(cloud: Cloud) -> None:
    """The same request gets the same answer; another request under it is refused; one in progress says so."""
    cloud.do("set", token_only=1)
    launch = client(cloud).launch_instances
    assert {*launch(**LAUNCH)} - {"ResponseMetadata"} == {"AutoScalingGroupName", "ClientToken"}
    first, again = launch(**LAUNCH), launch(**LAUNCH)
    assert first["Instances"] == again["Instances"]
    assert refused(cloud, "launch_instances", {**LAUNCH, "RequestedCapacity": 2}) == (
        400,
        "IdempotentParameterMismatch",
    )
    cloud.do("set", in_progress=1)
    assert refused(cloud, "launch_instances", LAUNCH) == (500, "IdempotentCallInProgress")
    assert cloud.do("group") == {"desired": 1, "there": 1}


@pytest.mark.parametrize("lacking", ["ec2:CreateFleet", "ec2:DescribeLaunchTemplateVersions"])
def test_a_launch_needs_what_aws_does_for_the_caller(cloud: Cloud, lacking: str) -> None:
    """`autoscaling:LaunchInstances` alone is not enough."""
    cloud.do("set", denied=[lacking])
    assert refused(cloud, "launch_instances", LAUNCH) == (403, "AccessDenied")


# --- other clients ---------------------------------------------------------------------------------------


def test_a_launch_may_name_its_zone_by_id_or_subnet_or_not_at_all(cloud: Cloud) -> None:
    """As AWS's command line has it; a group in one zone needs no name."""
    (zone,) = client(cloud, "ec2").describe_availability_zones(ZoneNames=[f"{REGION}b"])["AvailabilityZones"]
    subnets = client(cloud, "ec2").describe_subnets()["Subnets"]
    subnet = next(each["SubnetId"] for each in subnets if each["AvailabilityZone"] == f"{REGION}a")
    launch = client(cloud).launch_instances
    by_id = launch(**GROUP, RequestedCapacity=1, ClientToken="1", AvailabilityZoneIds=[zone["ZoneId"]])
    by_subnet = launch(**GROUP, RequestedCapacity=1, ClientToken="2", SubnetIds=[subnet])
    zones = [each["Instances"][0]["AvailabilityZone"] for each in (by_id, by_subnet)]
    assert zones == [f"{REGION}b", f"{REGION}a"]
    new_cloud(cloud.port, group={"availability_zones": [f"{REGION}a"]})
    assert launch(**GROUP, RequestedCapacity=1, ClientToken="3")["Instances"][0]["InstanceIds"]


def test_a_launch_may_be_retried_by_aws(cloud: Cloud) -> None:
    """With the other retry strategy a stock-out raises the desired capacity, and AWS launches when it can."""
    cloud.do("set", refusal=["InsufficientInstanceCapacity", "none left"])
    answer = client(cloud).launch_instances(**LAUNCH, RetryStrategy="retry-with-group-configuration")
    assert answer["Errors"][0]["ErrorCode"] == "InsufficientInstanceCapacity"
    assert cloud.do("group") == {"desired": 1, "there": 0}
    cloud.do("set", refusal=None)
    assert cloud.do("group") == {"desired": 1, "there": 1}


def test_a_group_may_be_scaled_as_cluster_autoscaler_does_it(cloud: Cloud) -> None:
    """A capacity without cooldown, activities, and each instance terminated by itself.

    Source: kubernetes/autoscaler, cloudprovider/aws/auto_scaling_groups.go.
    """
    scaling = client(cloud)
    scaling.set_desired_capacity(**GROUP, DesiredCapacity=2, HonorCooldown=False)
    pages = scaling.get_paginator("describe_auto_scaling_groups").paginate(
        AutoScalingGroupNames=["fleet"], PaginationConfig={"PageSize": 100}
    )
    (group,) = [each for page in pages for each in page["AutoScalingGroups"]]
    assert {each["LifecycleState"] for each in group["Instances"]} == {"InService"}
    assert len(scaling.describe_scaling_activities(**GROUP, MaxRecords=1)["Activities"]) == 1
    for each in group["Instances"]:
        answer = scaling.terminate_instance_in_auto_scaling_group(
            InstanceId=each["InstanceId"], ShouldDecrementDesiredCapacity=True
        )
        assert answer["Activity"]["StatusCode"]
    assert cloud.do("group") == {"desired": 0, "there": 0}
