"""What AWS answers, as states, problems, errors, advice and connection details: pure, so told by examples and rules."""

import base64
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from typing import Any

import pytest
from botocore import exceptions
from botocore.loaders import create_loader
from botocore.model import ServiceModel
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519, padding, rsa
from hypothesis import given
from hypothesis import strategies as st

from fleeting import (
    AuthFailed,
    CapacityUnavailable,
    ConnectorConfig,
    InstanceNotFound,
    LoginRejected,
    OutcomeUnknown,
    ProblemKind,
    ProviderError,
    QuotaExceeded,
    RateLimited,
    State,
)
from fleeting.plugins import Mark
from fleeting_aws._translate import (
    Launching,
    Member,
    NotOffered,
    NotPermitted,
    NotSupported,
    advice_on,
    decrypted,
    failure_of,
    harm_in,
    info_of,
    is_refused,
    marks_on,
    missing_in,
    not_launching,
    problems_of,
    refusal,
    state_of,
)
from tests.fleeting_aws.clouds import run_probe


def vocabulary(service: str, shape: str) -> list[str]:
    """The words that the SDK's own description of a service has for something."""
    model = ServiceModel(create_loader().load_service_model(service, "service-2"))
    words: list[str] = model.shape_for(shape).enum
    return words


def vocabulary_of_errors(service: str, status: int) -> list[str]:
    """The codes that the SDK's own description of a service has for this HTTP status."""
    model = ServiceModel(create_loader().load_service_model(service, "service-2"))
    told = [model.shape_for(name).metadata.get("error", {}) for name in model.shape_names]
    return sorted(each["code"] for each in told if each.get("httpStatusCode") == status)


LIFECYCLES = vocabulary("autoscaling", "LifecycleState")
EC2_STATES = vocabulary("ec2", "InstanceStateName")

# --- states ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lifecycle", LIFECYCLES)
def test_every_word_of_the_sdk_is_known(lifecycle: str) -> None:
    """If AWS adds a state to Auto Scaling, an upgrade of the SDK fails here, not at night."""
    assert any(state_of(lifecycle, ec2) is not None for ec2 in EC2_STATES)


@given(st.sampled_from(LIFECYCLES), st.sampled_from(EC2_STATES), st.sampled_from([None, *State]))
def test_nothing_runs_but_what_both_say_runs(lifecycle: str, ec2: str, wanted: State | None) -> None:
    """Work is given only to instances that are in service and running, whatever they are being brought to."""
    running = state_of(lifecycle, ec2, wanted) is State.RUNNING
    assert running == ((lifecycle, ec2) == ("InService", "running"))


@given(st.sampled_from(LIFECYCLES), st.sampled_from([State.SUSPENDED, State.RUNNING]))
def test_what_ec2_has_ended_is_over(lifecycle: str, wanted: State) -> None:
    """Auto Scaling hears minutes later of an instance that somebody else has terminated."""
    assert state_of(lifecycle, "terminated", wanted) is State.DELETED
    assert state_of(lifecycle, "shutting-down", wanted) is State.DELETING


@given(st.text().filter(lambda word: word.partition(":")[0] not in {each.partition(":")[0] for each in LIFECYCLES}))
def test_a_word_that_nobody_knows_is_no_state(word: str) -> None:
    """Such an instance is shown as out of service: it gets no work and loses none."""
    if not word.endswith(":Retained"):
        assert state_of(word, "running") is None
        assert member(word, "running").observed(None).state is State.SUSPENDING


def member(lifecycle: str, ec2: str | None) -> Member:
    """An instance of which both services say this."""
    told = {
        "InstanceId": "i-1",
        "LifecycleState": lifecycle,
        "AvailabilityZone": "eu-west-1a",
        "InstanceType": "t3.nano",
    }
    seen: dict[str, object] = (
        {"State": {"Name": ec2}, "LaunchTime": datetime.now(UTC), "InstanceLifecycle": "spot"} if ec2 else {}
    )
    return Member.of(told, seen)


AFTER = {
    "enter_standby": ("Standby", "running"),
    "stop_instances": ("Standby", "stopped"),
    "start_instances": ("Standby", "running"),
    "exit_standby": ("InService", "running"),
}
"""What each request leads to, if it is carried out."""


@given(
    st.sampled_from([("InService", "running"), ("Standby", "running"), ("Standby", "stopped")]),
    st.sampled_from([State.SUSPENDED, State.RUNNING]),
)
def test_each_step_leads_to_what_is_wanted(start: tuple[str, str], wanted: State) -> None:
    """From wherever it is left, an instance is suspended or woken in two requests, and never stopped in service."""
    lifecycle, ec2 = start
    steps = []
    while change := member(lifecycle, ec2).change_towards(wanted):
        assert (change, lifecycle) != ("stop_instances", "InService")
        steps.append(change)
        lifecycle, ec2 = AFTER[change]
    assert state_of(lifecycle, ec2) is wanted
    assert len(steps) <= 2


def test_an_offering_says_where_and_what() -> None:
    """Zone, type, and whether it is spot: what stock-outs are told for."""
    assert member("InService", "running").offering == "eu-west-1a/t3.nano/spot"


@pytest.mark.parametrize(("lifecycle", "hidden"), [("InService", True), ("Standby", True), ("Pending", False)])
def test_what_ec2_does_not_know_is_left_out(lifecycle: str, *, hidden: bool) -> None:
    """Absent once costs nothing, and twice is lost; but a launch that EC2 has not heard of yet is a launch."""
    assert (member(lifecycle, None).state is None) is hidden


# --- errors ----------------------------------------------------------------------------------------------


def refused(code: str, status: int = 400) -> exceptions.ClientError:
    """An error as the SDK raises it."""
    response = {"Error": {"Code": code, "Message": "m"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return exceptions.ClientError(response, "Anything")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (refused("UnauthorizedOperation"), NotPermitted),
        (refused("ExpiredToken"), AuthFailed),
        (refused("Throttling"), RateLimited),
        (refused("RequestLimitExceeded", 503), RateLimited),
        (refused("InsufficientInstanceCapacity", 500), CapacityUnavailable),
        (refused("VcpuLimitExceeded"), QuotaExceeded),
        (refused("InvalidAction"), NotOffered),
        (refused("UnsupportedOperation"), NotSupported),
        (refused("IdempotentCallInProgress", 500), Launching),
        (refused("ResourceContention", 500), RateLimited),
        (refused("ServiceLinkedRoleFailure", 500), ProviderError),
        (refused("InternalFailure", 500), OutcomeUnknown),
        (refused("ValidationError"), ProviderError),
        (exceptions.NoCredentialsError(), AuthFailed),
        (exceptions.ReadTimeoutError(endpoint_url="http://x"), OutcomeUnknown),
    ],
    ids=repr,
)
def test_there_is_a_class_for_each_thing_to_do(error: Exception, kind: type[ProviderError]) -> None:
    """A change that failed is told by what the caller should do about it."""
    assert type(failure_of(error, "launch", changing=True)) is kind


@pytest.mark.parametrize(
    "error",
    [
        exceptions.EndpointConnectionError(endpoint_url="https://x"),
        exceptions.ConnectTimeoutError(endpoint_url="https://x"),
        exceptions.ReadTimeoutError(endpoint_url="https://x"),
        exceptions.ProxyConnectionError(proxy_url="https://user:secret@x"),
        exceptions.SSLError(endpoint_url="https://x", error="?"),
    ],
    ids=repr,
)
def test_a_network_that_is_down_is_no_answer_at_all(error: Exception) -> None:
    """What to look at is the network, not the cloud; a proxy's password is not shown."""
    failure = failure_of(error, "describe", changing=False)
    assert type(failure) is ProviderError
    assert str(failure).startswith("AWS did not answer describe (")
    assert "network, proxy and region" in str(failure)
    assert "secret" not in str(failure)


@given(st.text(min_size=1, max_size=20), st.integers(400, 599), st.booleans())
def test_no_refusal_is_anything_else(code: str, status: int, changing: bool) -> None:  # noqa: FBT001  (hypothesis gives it)
    """Whatever AWS writes, it is a `ProviderError`; and a read that fails is never of unknown outcome."""
    failure = failure_of(refused(code, status), "x", changing=changing)
    assert isinstance(failure, ProviderError)
    assert changing or not isinstance(failure, OutcomeUnknown) or "InProgress" in code


MEANS_NOTHING_DONE = [each for each in vocabulary_of_errors("autoscaling", 500) if each != "IdempotentCallInProgress"]


@pytest.mark.parametrize("code", MEANS_NOTHING_DONE)
def test_a_server_error_that_aws_describes_is_a_refusal(code: str) -> None:
    """It says what was not done. If AWS describes another one, an upgrade of the SDK fails here."""
    assert is_refused(refused(code, 500).response)
    assert not isinstance(failure_of(refused(code, 500), "x", changing=True), OutcomeUnknown)


@given(st.text(min_size=1, max_size=20), st.integers(400, 599))
def test_after_a_try_that_was_lost_no_refusal_of_a_change_is_certain(code: str, status: int) -> None:
    """The SDK tells of the last try; that an instance is gone holds whichever try ended it."""
    failure = failure_of(refused(code, status), "x", changing=True, lost=True)
    assert isinstance(failure, OutcomeUnknown | InstanceNotFound)
    assert not isinstance(failure_of(refused(code, 400), "x", changing=False, lost=True), OutcomeUnknown)


def test_the_request_is_not_repeated() -> None:
    """To a wrong signature AWS answers with what should have been signed, and that holds the session's token."""
    message = "The signature does not match.\n\nThe canonical string\nx-amz-security-token:4711"
    response = {"Error": {"Code": "SignatureDoesNotMatch", "Message": message}}
    words = str(failure_of(exceptions.ClientError(response, "x"), "x", changing=False))
    assert words == "AWS says SignatureDoesNotMatch to x: The signature does not match."


@pytest.mark.parametrize(
    "told",
    [
        {"Code": "InvalidInstanceID.NotFound", "Message": "The instance ID 'i-0abc' does not exist"},
        {
            "Code": "ValidationError",
            "Message": "Instance Id not found - No managed instance found for instance ID: i-0abc",
        },
    ],
)
def test_both_services_tell_what_is_gone_in_their_own_way(told: dict[str, str]) -> None:
    """The instance's id stands in the message only."""
    failure = refusal(told, "x")
    assert isinstance(failure, InstanceNotFound)
    assert failure.instance == "i-0abc"


def test_a_mistake_of_ours_is_not_blamed_on_the_cloud() -> None:
    """What is none of the SDK's errors is raised as it is."""
    mistake = KeyError("x")
    assert failure_of(mistake, "launch", changing=True) is mistake


# --- problems --------------------------------------------------------------------------------------------

NOW = 1_000_000.0


def activity(at: float, message: str = "", zone: str = "eu-west-1a", what: str = "Launching") -> dict[str, Any]:
    """A scaling activity; without a message, it went well."""
    return {
        "Description": f"{what} a new EC2 instance",
        "StatusCode": "Failed" if message else "Successful",
        "StatusMessage": message,
        "StartTime": datetime.fromtimestamp(at, UTC),
        "Details": f'{{"Subnet ID":"subnet-1","Availability Zone":"{zone}"}}',
    }


STOCK_OUT = "We currently do not have sufficient m5.large capacity in the Availability Zone you requested (eu-west-1a)."


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        (STOCK_OUT, ProblemKind.CAPACITY),
        ("Could not launch Spot Instances. UnfulfillableCapacity - no capacity.", ProblemKind.CAPACITY),
        ("You have requested more vCPU capacity than your current vCPU limit of 32 allows.", ProblemKind.QUOTA),
        ("Max spot instance count exceeded. MaxSpotInstanceCountExceeded", ProblemKind.QUOTA),
        ("The image id '[ami-0abc]' does not exist. Launching EC2 instance failed.", ProblemKind.IMAGE),
        ("You are not authorized to perform this operation.", ProblemKind.AUTHORISATION),
        ("Something else.", ProblemKind.OTHER),
    ],
)
def test_what_auto_scaling_says_has_a_kind(message: str, kind: ProblemKind) -> None:
    """Activities have no codes, only sentences."""
    (problem,) = problems_of([activity(NOW - 60, message)], NOW)
    assert problem.kind is kind
    assert problem.message == message


def test_a_problem_lasts_from_its_first_to_its_last_failure() -> None:
    """The same problem keeps its since, however often the launch is tried; each offering has its own."""
    other = activity(NOW - 50, STOCK_OUT.replace("1a", "1b"), "eu-west-1b")
    failures = [activity(NOW - 10, STOCK_OUT), other, activity(NOW - 7000, STOCK_OUT)]
    found = {problem.offering: problem.since for problem in problems_of(failures, NOW)}
    assert found == {"eu-west-1a/m5.large": NOW - 7000, "eu-west-1b/m5.large": NOW - 50}


def test_a_launch_that_went_well_settles_its_zone() -> None:
    """What failed before is history there, and only there; and a termination settles nothing."""
    later = [activity(NOW - 5, what="Terminating"), activity(NOW - 10)]
    failures = [activity(NOW - 20, STOCK_OUT), activity(NOW - 30, STOCK_OUT.replace("1a", "1b"), "eu-west-1b")]
    assert [problem.offering for problem in problems_of([*later, *failures], NOW)] == ["eu-west-1b/m5.large"]


def test_an_old_failure_is_no_reason() -> None:
    """What failed hours ago does not tell why nothing comes now."""
    assert problems_of([activity(NOW - 4000, STOCK_OUT)], NOW) == []


# --- the group -------------------------------------------------------------------------------------------

FIT = {
    "MinSize": 0,
    "MaxSize": 10,
    "DefaultCooldown": 0,
    "NewInstancesProtectedFromScaleIn": True,
    "AvailabilityZones": ["eu-west-1a", "eu-west-1b"],
    "SuspendedProcesses": [{"ProcessName": "AZRebalance"}],
}


def test_a_group_that_is_as_it_should_be_needs_no_advice() -> None:
    """Nothing is said without a reason."""
    assert list(advice_on(FIT, [])) == []


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"MinSize": 2}, "minimum size is 2"),
        ({"DefaultCooldown": 300}, "cooldown is 300 s"),
        ({"NewInstancesProtectedFromScaleIn": False}, "not protected"),
        ({"MaxInstanceLifetime": 86400}, "lifetime is 86400 s"),
        ({"CapacityRebalance": True}, "Capacity Rebalancing"),
        ({"SuspendedProcesses": [{"ProcessName": "AZRebalance"}, {"ProcessName": "Launch"}]}, "Launch is suspended"),
    ],
)
def test_what_would_harm_is_told(change: dict[str, Any], word: str) -> None:
    """One sentence for each thing, with what to do about it."""
    (sentence,) = advice_on({**FIT, **change}, [])
    assert word in sentence
    assert ";" in sentence


def test_policies_are_named() -> None:
    """Whatever else changes the group's size fights with us; a policy that is off does not."""
    (sentence,) = advice_on(FIT, [{"PolicyName": "cpu"}, {"PolicyName": "off", "Enabled": False}])
    assert "(cpu)" in sentence


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"SuspendedProcesses": []}, "AZRebalance"),
        ({"DesiredCapacityType": "vcpu"}, "counts vcpu"),
        ({"MixedInstancesPolicy": {"LaunchTemplate": {"Overrides": [{"WeightedCapacity": "4"}]}}}, "weights"),
        ({"WarmPoolConfiguration": {"InstanceReusePolicy": {"ReuseOnScaleIn": True}}}, "ReuseOnScaleIn"),
        ({"Operator": {"Principal": "ecs.amazonaws.com"}}, "only ecs.amazonaws.com"),
        ({"Status": "Delete in progress"}, "Delete in progress"),
    ],
)
def test_what_makes_a_group_unfit_is_told(change: dict[str, Any], word: str) -> None:
    """One clause for each thing, with what to do about it."""
    (clause,) = harm_in({**FIT, **change})
    assert word in clause
    assert ";" in clause
    assert not [*harm_in(FIT)]


def test_one_zone_is_never_rebalanced() -> None:
    """There is nothing that AZRebalance could balance."""
    assert not [*harm_in({**FIT, "AvailabilityZones": ["eu-west-1a"], "SuspendedProcesses": []})]


@given(base=st.none() | st.integers(0, 3), percentage=st.none() | st.integers(0, 100))
def test_only_a_policy_of_one_kind_is_launched_into(base: int | None, percentage: int | None) -> None:
    """What is left out is as AWS has it: no base, and On-Demand only."""
    told = {"OnDemandBaseCapacity": base, "OnDemandPercentageAboveBaseCapacity": percentage}
    policy = {key: value for key, value in told.items() if value is not None}
    on_demand = percentage in {None, 100}
    spot = percentage == 0 and not base
    served = not_launching({**FIT, "MixedInstancesPolicy": {"InstancesDistribution": policy}}) is None
    assert served == (on_demand or spot)


@pytest.mark.parametrize("change", [{"LaunchConfigurationName": "old"}, {"WarmPoolConfiguration": {"MinSize": 0}}])
def test_what_is_not_launched_into_is_advice(change: dict[str, Any]) -> None:
    """It works as well, but AWS does not say at once what came."""
    (sentence,) = advice_on({**FIT, **change}, [])
    assert "LaunchInstances" in sentence
    assert ";" in sentence


def test_what_a_warm_pool_keeps_is_not_counted() -> None:
    """The desired capacity does not count it, so it is neither missing nor too many."""
    told = {"InstanceId": "i-1", "LifecycleState": "Warmed:Stopped", "AvailabilityZone": "eu-west-1a"}
    assert missing_in({"DesiredCapacity": 1, "Instances": [told]}) == 1


def test_marks_are_read_and_of_what_is_no_time_nobody_knows_when_it_expires() -> None:
    """Somebody may have written anything into a tag."""
    tags = [("fleeting:owner:a", "100"), ("fleeting:owner:b", "soon"), ("Name", "fleet")]
    marks = marks_on({"Tags": [{"Key": key, "Value": value} for key, value in tags]})
    assert marks == [Mark(owner="a", until=100.0), Mark(owner="b", until=inf)]


# --- connecting ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({"Architecture": "x86_64"}, ("linux", "amd64", "ssh", "ec2-user")),
        ({"Architecture": "arm64"}, ("linux", "arm64", "ssh", "ec2-user")),
        ({"Architecture": "arm64_mac"}, ("darwin", "arm64", "ssh", "ec2-user")),
        ({"Platform": "windows", "Architecture": "x86_64"}, ("windows", "amd64", "winrm", "Administrator")),
    ],
)
def test_what_it_is_decides_how_to_connect(told: dict[str, str], expected: tuple[str, ...]) -> None:
    """System, architecture, protocol and user follow from EC2's description."""
    info = info_of(
        {"InstanceId": "i-1", "PrivateIpAddress": "10.0.0.1", "PublicIpAddress": "", **told}, ConnectorConfig()
    )
    assert (info.os, info.arch, info.protocol, info.user) == expected
    assert (info.internal_addr, info.external_addr) == ("10.0.0.1", None)


@pytest.mark.parametrize(
    ("connector", "protocol"),
    [
        (ConnectorConfig(ca_file="ours.pem"), "winrm+https"),
        (ConnectorConfig(certificate="ab" * 32), "winrm+https"),
        (ConnectorConfig(protocol="ssh", ca_file="ours.pem"), "ssh"),
    ],
)
def test_windows_is_reached_by_https_where_its_certificate_is_known(connector: ConnectorConfig, protocol: str) -> None:
    """Otherwise as it listens at its first start, and as GitLab's plugin does it: no image has a certificate."""
    assert info_of({"InstanceId": "i-1", "Platform": "windows"}, connector).protocol == protocol


def test_a_password_comes_back_as_it_was() -> None:
    """EC2 encrypts it with the public half of the key pair."""
    key = rsa.generate_private_key(65537, 2048)
    form = serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    data = base64.b64encode(key.public_key().encrypt(b"pa$$", padding.PKCS1v15())).decode()
    assert decrypted(data, key.private_bytes(*form).decode(), "i-1") == "pa$$"


@pytest.mark.parametrize("other", [ed25519.Ed25519PrivateKey.generate(), rsa.generate_private_key(65537, 2048)])
def test_no_password_was_encrypted_for_another_key(other: ed25519.Ed25519PrivateKey | rsa.RSAPrivateKey) -> None:
    """The wrong key is told, not guessed at, whatever its kind."""
    public = rsa.generate_private_key(65537, 2048).public_key()
    data = base64.b64encode(public.encrypt(b"pa$$", padding.PKCS1v15())).decode()
    form = serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    with pytest.raises(LoginRejected, match="does not belong to i-1's key pair"):
        decrypted(data, other.private_bytes(*form).decode(), "i-1")


# --- the probe -------------------------------------------------------------------------------------------


def probe(directory: Path, metadata: dict[str, str]) -> list[str]:
    """Run the probe on an instance with this metadata; returns the words that it prints."""
    done = run_probe(directory, metadata)
    assert (done.exit_status, done.stderr) == (0, b"")
    return done.stdout.decode().split()


def test_the_probe_is_silent_if_there_is_nothing(tmp_path: Path) -> None:
    """An instance that stays prints nothing and exits with 0."""
    assert probe(tmp_path, {"autoscaling/target-lifecycle-state": "InService"}) == []


@given(at=st.datetimes(min_value=datetime(2020, 1, 1), max_value=datetime(2099, 12, 31)))  # noqa: DTZ001  (made UTC below)
def test_the_probe_reckons_as_the_calendar_does(tmp_path_factory: pytest.TempPathFactory, at: datetime) -> None:
    """Seconds until a spot interruption, on any day of the century, without a command that reads dates."""
    at = at.replace(microsecond=0, tzinfo=UTC)
    told = f'{{"action": "terminate", "time": "{at:%Y-%m-%dT%H:%M:%SZ}"}}'
    before = datetime.now(UTC).timestamp()
    kind, left = probe(tmp_path_factory.mktemp("probe"), {"spot/instance-action": told})
    after = datetime.now(UTC).timestamp()
    assert kind == "preemption"
    assert int(before) <= at.timestamp() - int(left) <= after


def test_the_probe_tells_the_end_that_auto_scaling_intends(tmp_path: Path) -> None:
    """Whatever else is announced, an instance that is to be terminated goes."""
    told = {"autoscaling/target-lifecycle-state": "Terminated", "events/recommendations/rebalance": "{}"}
    assert probe(tmp_path, told) == ["preemption", "120"]


def test_the_probe_tells_a_rebalance_recommendation(tmp_path: Path) -> None:
    """It is no end yet, but new work had better go elsewhere."""
    assert probe(tmp_path, {"events/recommendations/rebalance": '{"noticeTime": "x"}'}) == ["rebalance", "3600"]
