"""What Google's answers mean, without Google and without its SDK's transport."""

import json
import re
from base64 import b64encode
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from hypothesis import given
from hypothesis import strategies as st

from fleeting import (
    AuthFailed,
    CapacityUnavailable,
    ConfigError,
    OutcomeUnknown,
    ProblemKind,
    ProviderError,
    QuotaExceeded,
    RateLimited,
    State,
)
from fleeting.plugins import structure
from fleeting_gcp import GcpConfig
from fleeting_gcp import _answers as answers
from fleeting_gcp._answers import Fault, Managed, Refused
from tests.fleeting_gcp.clouds import run_probe
from tests.later import Later

gcp: Any = Later("google.cloud.compute_v1")
errors_of: Any = Later("google.api_core.exceptions")

ZONAL = GcpConfig(name="runners", project="acme", zone="europe-west1-b")
REGIONAL = GcpConfig(name="runners", project="acme", region="europe-west1")

intents = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,46}[a-z0-9])?", fullmatch=True)


# --- instances -------------------------------------------------------------------------------------------


@given(intents, st.integers(1, 1000))
def test_a_name_is_googles_kind_of_name_and_holds_its_intent(intent: str, count: int) -> None:
    """Whatever the intent, names are different, valid, and lead back to it."""
    names = answers.names_for(intent, count)
    assert len(set(names)) == count
    assert {answers.intent_of(name) for name in names} == {intent}
    assert all(re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", name) for name in (names[0], names[-1]))


@given(intents, intents)
def test_two_intents_share_no_name(one: str, other: str) -> None:
    """Not even if one begins as the other does."""
    assert one == other or not {*answers.names_for(one, 12)} & {*answers.names_for(other, 12)}


@pytest.mark.parametrize("intent", ["", "Upper", "a" * 49, "dash-", "under_score"])
def test_an_intent_that_no_name_can_hold_is_refused(intent: str) -> None:
    """Before Google is asked."""
    with pytest.raises(ProviderError, match="48 lower-case letters"):
        answers.names_for(intent, 1)


@pytest.mark.parametrize("name", ["runners-x7k2", "fleeting-x7k2", "web-fleeting-1-2", ""])
def test_names_that_the_group_gives_have_no_intent(name: str) -> None:
    """Even if it is called as we call ours."""
    assert answers.intent_of(name) is None


def test_every_action_and_status_of_the_sdk_has_its_meaning() -> None:
    """A new release of the SDK that knows more makes this fail."""
    managed = gcp.ManagedInstance
    actions = {each.name for each in managed.CurrentAction if each} - {"NONE", "REFRESHING"}
    assert actions <= answers.ACTIONS.keys()
    assert {each.name for each in managed.InstanceStatus if each} <= answers.STATUSES.keys()


@given(st.text(), st.text())
def test_what_is_unheard_of_neither_runs_nor_is_gone(action: str, status: str) -> None:
    """Not to have heard of something is no reason to give it jobs, or to forget it."""
    if action not in answers.ACTIONS and status not in answers.STATUSES:
        assert answers.state_of(action, status) not in {State.RUNNING, State.DELETING, State.DELETED}


def test_an_instance_is_read_from_its_groups_list() -> None:
    """Zone, health, and why it does not come, with the quota that is reached."""
    quota = {"quota_info": {"metric_name": "CPUS", "limit": 24.0}}
    error = {"code": "QUOTA_EXCEEDED", "message": "secret", "error_details": [quota]}
    read = answers.read_managed(
        gcp.ManagedInstance(
            name="runners-1",
            id=7,
            instance="https://www.googleapis.com/compute/v1/projects/acme/zones/europe-west1-b/instances/runners-1",
            current_action="CREATING",
            instance_health=[{"detailed_health_state": "TIMEOUT"}],
            last_attempt={"errors": {"errors": [error]}},
        )
    )
    fault = Fault("QUOTA_EXCEEDED", "europe-west1-b", "CPUS is limited to 24")
    url = "zones/europe-west1-b/instances/runners-1"
    assert read == Managed(name="runners-1", number=7, url=url, state=State.CREATING, is_ill=True, faults=(fault,))
    assert read.observed.offering == "europe-west1-b"


def test_an_instance_without_a_machine_is_read_too() -> None:
    """While a regional group chooses a zone, there is nothing but a name."""
    read = answers.read_managed(gcp.ManagedInstance(name="fleeting-a-0", current_action="CREATING"))
    assert (read.zone, read.number, read.state, read.observed.intent) == (None, 0, State.CREATING, "a")


@pytest.mark.parametrize(
    ("known", "number", "state", "shown"),
    [
        ({}, 7, State.RUNNING, State.RUNNING),
        ({"a": 7}, 7, State.RUNNING, State.RUNNING),
        ({"a": 7}, 8, State.RUNNING, State.FAILED),
        ({"a": 7}, 0, State.CREATING, State.FAILED),
        ({"a": 7}, 0, State.DELETING, State.DELETING),
        ({"b": 7}, 8, State.RUNNING, State.RUNNING),
    ],
)
def test_a_second_machine_of_the_same_name_is_no_resurrection(
    known: dict[str, int], number: int, state: State, shown: State
) -> None:
    """A group makes again what it has lost, under the old name; what ran on the first one is lost all the same."""
    assert answers.risen(Managed(name="a", number=number, state=state), known).state is shown


# --- problems and errors ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("ZONE_RESOURCE_POOL_EXHAUSTED", ProblemKind.CAPACITY),
        ("ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", ProblemKind.CAPACITY),
        ("IP_SPACE_EXHAUSTED", ProblemKind.CAPACITY),
        ("QUOTA_EXCEEDED", ProblemKind.QUOTA),
        ("PERMISSIONS_ERROR", ProblemKind.AUTHORISATION),
        ("CONDITION_NOT_MET", ProblemKind.OTHER),
        ("RESOURCE_NOT_FOUND", ProblemKind.IMAGE),
        ("INVALID_USAGE", ProblemKind.IMAGE),
        ("SOMETHING_NEW", ProblemKind.OTHER),
        ("", ProblemKind.OTHER),
    ],
)
def test_error_codes_are_about_something(code: str, kind: ProblemKind) -> None:
    """Whoever waits learns whether waiting helps."""
    assert answers.kind_of(code) is kind


def test_a_problem_says_what_where_and_how_much() -> None:
    """In one sentence, with Google's code, by which its documentation is searched."""
    told = answers.problem_of(Fault("QUOTA_EXCEEDED", "b", "CPUS is limited to 24"), 5.0)
    assert told.message == "a quota is reached in b (QUOTA_EXCEEDED; CPUS is limited to 24)"
    assert (told.kind, told.since, told.offering) == (ProblemKind.QUOTA, 5.0, "b")
    told = answers.problem_of(Fault("ZONE_RESOURCE_POOL_EXHAUSTED", "c"), 5.0)
    assert told.message == "Google has no room for more instances in c (ZONE_RESOURCE_POOL_EXHAUSTED)"


@pytest.mark.parametrize("state", [State.DELETING, State.RUNNING])
def test_what_goes_or_has_come_is_no_problem_any_more(state: State) -> None:
    """Why it did not come before is of no interest then."""
    fault = Fault("QUOTA_EXCEEDED", "b")
    going = Managed(name="a", state=state, faults=(fault,))
    coming = Managed(name="b", state=State.CREATING, faults=(fault, fault))
    assert list(answers.faults_of([going])) == []
    assert list(answers.faults_of([going, coming])) == [fault]


class Response:
    """As much of an answer as errors look at."""

    def __init__(self, **headers: str) -> None:
        """Take the headers."""
        self.headers = headers


@pytest.mark.parametrize(
    ("status", "reason", "changes", "kind"),
    [
        (401, "authError", "reads", AuthFailed),
        (403, "forbidden", "changes", AuthFailed),
        (403, "rateLimitExceeded", "reads", RateLimited),
        (403, "userRateLimitExceeded", "changes", RateLimited),
        (429, "anything", "changes", RateLimited),
        (403, "quotaExceeded", "changes", QuotaExceeded),
        (400, "invalid", "changes", Refused),
        (404, "notFound", "reads", Refused),
        (412, "conditionNotMet", "changes", Refused),
        (500, "internalError", "reads", ProviderError),
        (503, "backendError", "changes", OutcomeUnknown),
    ],
)
def test_answers_that_say_no_have_a_class_for_each_thing_to_do(
    status: int, reason: str, changes: str, kind: type[ProviderError]
) -> None:
    """One status has two meanings: 403 may be a denial, or one request too many; what Google says is not told on."""
    error = errors_of.from_http_status(status, "token ya29.secret", errors=[{"reason": reason}], response=Response())
    chosen = answers.error_for(error, "resize", changes=changes == "changes")
    assert type(chosen) is kind
    assert str(chosen) == f"Google answers resize with {status} {reason}"


@pytest.mark.parametrize("errors", [["no"], [{"reason": 5}], [{}], [None]])
def test_an_error_of_another_form_is_one_too(errors: list[object]) -> None:
    """Something between us and Google may answer in its place."""
    error = errors_of.from_http_status(502, "", errors=errors, response=Response())
    assert str(answers.error_for(error, "get", changes=False)).startswith("Google answers get with 502")


def test_a_denial_names_the_permission() -> None:
    """It is all that is told on of a message of Google's."""
    message = "Required 'compute.instances.get' permission for 'projects/acme/zones/b/instances/x'"
    error = errors_of.from_http_status(403, message, errors=[{"reason": "forbidden"}], response=Response())
    assert str(answers.error_for(error, "get", changes=False)).endswith("403 forbidden; grant compute.instances.get")


@pytest.mark.parametrize(("header", "seconds"), [("7", 7.0), ("0", None), ("", None), ("soon", None)])
def test_googles_advice_how_long_to_wait_is_passed_on(header: str, seconds: float | None) -> None:
    """If it is advice."""
    error = errors_of.from_http_status(429, "", response=Response(**{"retry-after": header}))
    chosen = answers.error_for(error, "get", changes=False)
    assert isinstance(chosen, RateLimited)
    assert chosen.retry_after == seconds


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("ZONE_RESOURCE_POOL_EXHAUSTED", CapacityUnavailable),
        ("QUOTA_EXCEEDED", QuotaExceeded),
        ("PERMISSIONS_ERROR", AuthFailed),
        ("RESOURCE_IN_USE", Refused),
    ],
)
def test_operations_that_fail_say_why(code: str, kind: type[ProviderError]) -> None:
    """By their first error."""
    error = answers.error_in([code, "MORE"], "delete_instances")
    assert type(error) is kind
    assert str(error) == f"Google could not finish delete_instances: {code}, MORE"


# --- the group -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [ZONAL, REGIONAL])
def test_a_group_that_leaves_its_instances_alone_is_taken_as_it_is(config: GcpConfig) -> None:
    """Nothing to refuse, nothing to say."""
    good = gcp.InstanceGroupManager(
        update_policy={"type_": "OPPORTUNISTIC", "instance_redistribution_type": "NONE"},
        instance_lifecycle_policy={"default_action_on_failure": "DO_NOTHING"},
        distribution_policy={"target_shape": "ANY"},
    )
    assert answers.refusal(good, config) is None
    assert list(answers.advice(good, config)) == []


def test_a_group_with_an_autoscaler_is_refused() -> None:
    """The sentence holds the command that changes it."""
    group = gcp.InstanceGroupManager(status={"autoscaler": "https://x/autoscalers/web"})
    assert answers.refusal(group, ZONAL) == (
        "an autoscaler controls the size of runners; delete it: gcloud compute instance-groups managed"
        " stop-autoscaling runners --project=acme --zone=europe-west1-b"
    )


def test_a_regional_group_that_moves_instances_is_refused() -> None:
    """It would delete busy ones; a zonal one has nowhere to move them."""
    group = gcp.InstanceGroupManager()
    assert answers.refusal(group, ZONAL) is None
    assert str(answers.refusal(group, REGIONAL)).endswith(
        "disable that: gcloud compute instance-groups managed update runners --project=acme"
        " --region=europe-west1 --instance-redistribution-type=none"
    )


def test_what_a_group_does_by_itself_is_advised_against() -> None:
    """One sentence each, with the option that changes it."""
    busy = gcp.InstanceGroupManager(
        auto_healing_policies=[{"health_check": "x"}],
        update_policy={"type_": "PROACTIVE", "instance_redistribution_type": "NONE"},
    )
    options = [sentence.rpartition(" --")[2] for sentence in answers.advice(busy, REGIONAL)]
    assert options == [
        "clear-autohealing",
        "default-action-on-vm-failure=do-nothing",
        "update-policy-type=opportunistic",
        "target-distribution-shape=any",
    ]


@pytest.mark.parametrize(
    ("config", "results", "size"), [(ZONAL, "", 1000), (ZONAL, "PAGINATED", 2000), (REGIONAL, "PAGELESS", 2000)]
)
def test_the_size_of_a_group_is_limited_by_its_kind(config: GcpConfig, results: str, size: int) -> None:
    """And by whether its list comes in pages."""
    assert answers.max_size(gcp.InstanceGroupManager(list_managed_instances_results=results), config) == size


@pytest.mark.parametrize("endpoint", ["", "http://compute.googleapis.com", "ftp://x", "https://"])
def test_tokens_are_not_sent_in_plain_text(endpoint: str) -> None:
    """But to this machine itself."""
    with pytest.raises(ConfigError, match="an https address"):
        structure({"name": "runners", "project": "acme", "zone": "b", "endpoint": endpoint}, GcpConfig)
    for fine in ("https://compute-x.p.googleapis.com", "compute-x.p.googleapis.com", "http://127.0.0.1:1"):
        structure({"name": "runners", "project": "acme", "zone": "b", "endpoint": fine}, GcpConfig)


@pytest.mark.parametrize("where", [{}, {"zone": "b", "region": "europe"}])
def test_it_is_said_once_where_the_group_is(where: dict[str, str]) -> None:
    """Either zone or region, and the error says which is which."""
    with pytest.raises(ConfigError, match="either zone, for a zonal group, or region, for a regional one"):
        structure({"name": "runners", "project": "acme", **where}, GcpConfig)


# --- a machine -------------------------------------------------------------------------------------------


def test_addresses_are_found_on_any_card() -> None:
    """IPv4 before IPv6, and none where there is none."""
    assert answers.addresses(gcp.Instance()) == (None, None)
    one = gcp.Instance(network_interfaces=[{"network_i_p": "10.0.0.5", "access_configs": [{"nat_i_p": "192.0.2.7"}]}])
    assert answers.addresses(one) == ("10.0.0.5", "192.0.2.7")
    six = {"ipv6_address": "2001:db8::1", "ipv6_access_configs": [{"external_ipv6": "2001:db8::2"}]}
    assert answers.addresses(gcp.Instance(network_interfaces=[six])) == ("2001:db8::1", "2001:db8::2")


@pytest.mark.parametrize(
    ("disk", "platform"),
    [
        ({"boot": True}, ("linux", "amd64")),
        ({"boot": True, "architecture": "ARM64"}, ("linux", "arm64")),
        ({"boot": True, "guest_os_features": [{"type_": "WINDOWS"}]}, ("windows", "amd64")),
        ({"boot": True, "licenses": ["https://x/windows-cloud/licenses/windows-server-2025-dc"]}, ("windows", "amd64")),
        ({"boot": False, "guest_os_features": [{"type_": "WINDOWS"}]}, ("linux", "amd64")),
    ],
)
def test_os_and_arch_are_those_of_the_boot_disk(disk: dict[str, object], platform: tuple[str, str]) -> None:
    """Other disks may come from anywhere."""
    assert answers.platform_of(gcp.Instance(disks=[disk])) == platform


def test_the_time_of_the_last_start_is_read_with_its_zone() -> None:
    """A machine that was never stopped has only the time of its creation."""
    first, last = "2026-01-01T01:00:00.000+01:00", "2026-01-01T01:00:10.000+00:00"
    assert answers.started_at(gcp.Instance(creation_timestamp=first)) == 1767225600.0
    assert answers.started_at(gcp.Instance(creation_timestamp=first, last_start_timestamp=last)) == 1767229210.0


# --- metadata --------------------------------------------------------------------------------------------

NOON = 1767268800.0
"""2026-01-01 12:00 UTC."""


def test_a_key_is_added_with_its_end_and_only_keys_that_are_over_go() -> None:
    """What others have written stays, ours is there once, however often it is renewed."""
    over = 'me:ssh-rsa AAAAo google-ssh {"userName":"me","expireOn":"2026-01-01T11:59:59+0000"}'
    still = 'me:ssh-rsa AAAAs google-ssh {"userName":"me","expireOn":"2026-01-01T12:00:01+0000"}'
    lines = f"joe:ssh-rsa AAAAj joe@desk\n{over}\n{still}"
    once = answers.with_ssh_key(lines, "ci", "ssh-ed25519 AAAAc", NOON + 60, NOON)
    ours = 'ci:ssh-ed25519 AAAAc google-ssh {"userName": "ci", "expireOn": "2026-01-01T12:01:00+0000"}'
    assert once.splitlines() == ["joe:ssh-rsa AAAAj joe@desk", still, ours]
    twice = answers.with_ssh_key(once, "ci", "ssh-ed25519 AAAAc", NOON + 90, NOON)
    assert twice.splitlines()[:-1] == ["joe:ssh-rsa AAAAj joe@desk", still]
    assert twice.count("AAAAc") == 1


@given(st.text(), st.text())
def test_whatever_stands_in_the_metadata_is_borne(lines: str, output: str) -> None:
    """Others may write anything there; the serial port shows anything."""
    assert "AAAAc" in answers.with_ssh_key(lines, "ci", "ssh-ed25519 AAAAc", NOON, NOON)
    assert answers.windows_password(output, key()) is None


@cache
def key() -> rsa.RSAPrivateKey:
    """Ours, which takes a while to make."""
    return rsa.generate_private_key(65537, 2048)


def test_a_windows_password_is_read_by_whom_it_was_encrypted_for() -> None:
    """Of all the answers on the port, the one to our key."""
    asked = json.loads(answers.with_windows_key("", "ci", key(), NOON + 60, NOON))
    assert asked["expireOn"] == "2026-01-01T12:01:00+0000"
    sha1 = hashes.SHA1()  # noqa: S303  (as the guest agent has it)
    secret = key().public_key().encrypt(b"pa55", padding.OAEP(padding.MGF1(sha1), sha1, None))
    answer = {"modulus": asked["modulus"], "passwordFound": True, "encryptedPassword": b64encode(secret).decode()}
    others = {"modulus": "other", "encryptedPassword": "AAAA"}
    output = f"\nready\n[]\n{json.dumps(others)}\n{json.dumps(answer)}\n"
    assert answers.windows_password(output, key()) == "pa55"


@pytest.mark.parametrize("secret", ["AAAA", "no base64", b64encode(bytes(256)).decode()])
def test_what_only_looks_like_a_windows_password_is_none(secret: str) -> None:
    """Whoever works on the machine may write to its port, and read there which answer we wait for."""
    asked = json.loads(answers.with_windows_key("", "ci", key(), NOON + 60, NOON))
    forged = json.dumps({"modulus": asked["modulus"], "encryptedPassword": secret})
    assert answers.windows_password(f"{'[' * 100_000}\n{forged}\n", key()) is None


# --- notices ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("preempted", "maintenance", "told"),
    [
        ("FALSE", "NONE", ""),
        ("TRUE", "NONE", "preemption 25\n"),
        ("FALSE", "MIGRATE_ON_HOST_MAINTENANCE", ""),
        ("FALSE", "TERMINATE_ON_HOST_MAINTENANCE", "maintenance 55\n"),
        ("TRUE", "TERMINATE_ON_HOST_MAINTENANCE", "preemption 25\nmaintenance 55\n"),
        (None, None, ""),
    ],
)
def test_the_probe_tells_what_the_metadata_server_announces(
    tmp_path: Path, preempted: str | None, maintenance: str | None, told: str
) -> None:
    """A migration costs nothing; and a metadata server that does not answer announces nothing."""
    values = {"preempted": preempted, "maintenance_event": maintenance}
    done = run_probe(tmp_path, **{name: value for name, value in values.items() if value is not None})
    assert (done.returncode, done.stdout.decode()) == (0, told)
