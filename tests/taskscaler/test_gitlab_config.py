"""GitLab Runner's config.toml: what each of ten files means, value by value, and what is said of bad ones."""

import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from attrs import fields_dict

from fleeting import ConfigError, ConnectorConfig, PluginNotFound, Preexisting, ScaleThrottle
from fleeting.errors import Mistake
from fleeting.groups.local import LocalGroup
from taskscaler import Policy, config
from taskscaler.config import Autoscaler, RunnerConfig, StateStorage
from taskscaler.core._schedule import Schedule
from tests.golden import Golden

FILES = Path(__file__).parent / "config"

NO_STATE = "state_storage is missing"
REMOVES = "preexisting is missing"


def gitlab(**keys: Any) -> Autoscaler:  # noqa: ANN401  (the fields of an `Autoscaler`)
    """What a file with these keys means, all else being as GitLab documents it."""
    unsaid = {
        "delete_instances_on_shutdown": False,
        "preexisting": Preexisting.REMOVE,
        "state_storage": StateStorage(enabled=False, dir=str(FILES / ".taskscaler")),
    }
    return Autoscaler(**{**unsaid, **keys})


def idle(count: int, seconds: float, **keys: Any) -> Policy:  # noqa: ANN401  (the fields of a `Policy`)
    """A policy told by the system's own clock, as GitLab's are unless they name a time zone."""
    return Policy(idle_count=count, idle_time=seconds, **{"timezone": "Local", **keys})


MEANT = {
    "aws-docker": RunnerConfig(
        path=FILES / "aws-docker.toml",
        key="runners[0]",
        name="docker on AWS",
        executor="docker-autoscaler",
        concurrent=10,
        autoscaler=gitlab(
            plugin="aws",
            capacity_per_instance=1,
            max_use_count=1,
            max_instances=10,
            plugin_config={
                "name": "docker-asg",
                "profile": "default",
                "config_file": "/home/ci/.aws/config",
                "credentials_file": "/home/ci/.aws/credentials",
            },
            connector_config=ConnectorConfig(username="ec2-user", use_external_addr=True),
            policy=(idle(5, 1200),),
        ),
        ignored=("runners.url", "runners.token", "runners.shell", "runners.docker"),
    ),
    "aws-instance": RunnerConfig(
        path=FILES / "aws-instance.toml",
        key="runners[0]",
        name="shell on AWS",
        executor="instance",
        concurrent=50,
        limit=20,
        autoscaler=gitlab(
            plugin="fleeting-plugin-aws",
            capacity_per_instance=5,
            max_use_count=0,
            max_instances=10,
            plugin_config={"name": "linux-asg", "region": "eu-central-1", "credentials_profile": "ci"},
            connector_config=ConnectorConfig(username="ubuntu", timeout=300.0, use_external_addr=True),
            policy=(idle(5, 1200),),
        ),
        ignored=(
            "check_interval",
            "shutdown_timeout",
            "session_server",
            "runners.url",
            "runners.id",
            "runners.token",
            "runners.token_obtained_at",
            "runners.token_expires_at",
            "runners.shell",
            "runners.cache",
        ),
    ),
    "aws-windows": RunnerConfig(
        path=FILES / "aws-windows.toml",
        key="runners[0]",
        name="Windows on AWS",
        executor="docker-autoscaler",
        concurrent=4,
        autoscaler=gitlab(
            plugin="aws:latest",
            capacity_per_instance=1,
            max_use_count=1,
            max_instances=4,
            instance_acquire_timeout=1800.0,
            instance_ready_command="docker info",
            plugin_config={"name": "windows-asg", "region": "us-east-1"},
            connector_config=ConnectorConfig(
                os="windows",
                arch="amd64",
                protocol="winrm",
                protocol_port=5985,
                username="Administrator",
                key_path="/etc/gitlab-runner/windows.pem",
                keepalive=20.0,
                timeout=900.0,
            ),
            policy=(idle(1, 2700),),
        ),
        ignored=("runners.url", "runners.token", "runners.shell", "runners.environment", "runners.docker"),
    ),
    "aws-mac": RunnerConfig(
        path=FILES / "aws-mac.toml",
        key="runners[0]",
        name="macOS on AWS",
        executor="instance",
        concurrent=8,
        autoscaler=gitlab(
            plugin="aws",
            capacity_per_instance=2,
            max_use_count=0,
            max_instances=4,
            plugin_config={"name": "mac2metal", "region": "us-west-2"},
            connector_config=ConnectorConfig(username="ec2-user", key_path="macos-key.pem", timeout=3600.0),
            policy=(idle(2, 86400),),
        ),
        ignored=("runners.url", "runners.token", "runners.instance"),
        unsupported=("vm_isolation: there are no nested virtual machines here, jobs share the instance itself",),
    ),
    "google-docker": RunnerConfig(
        path=FILES / "google-docker.toml",
        key="runners[0]",
        name="docker on Google Cloud",
        executor="docker-autoscaler",
        concurrent=10,
        autoscaler=gitlab(
            plugin="googlecloud",
            capacity_per_instance=1,
            max_use_count=1,
            max_instances=10,
            plugin_config={
                "name": "docker-group",
                "project": "ci-project",
                "zone": "europe-west1-c",
                "credentials_file": "/home/ci/.config/gcloud/application_default_credentials.json",
            },
            connector_config=ConnectorConfig(username="runner", use_external_addr=True),
            policy=(idle(5, 1200),),
        ),
        ignored=("runners.url", "runners.token", "runners.shell", "runners.docker"),
    ),
    "google-zones": RunnerConfig(
        path=FILES / "google-zones.toml",
        key="runners[2]",
        name="zone c",
        executor="instance",
        concurrent=90,
        limit=12,
        autoscaler=gitlab(
            plugin="googlecompute:1.0.0",
            capacity_per_instance=3,
            max_instances=5,
            plugin_config={"name": "runners-c", "project": "ci-project", "zone": "europe-west1-c"},
            policy=(idle(0, 300),),
        ),
        ignored=("log_level", "runners.url", "runners.token"),
    ),
    "azure-docker": RunnerConfig(
        path=FILES / "azure-docker.toml",
        key="runners[0]",
        name="docker on Azure",
        executor="docker-autoscaler",
        concurrent=10,
        autoscaler=gitlab(
            plugin="azure",
            capacity_per_instance=1,
            max_use_count=1,
            max_instances=10,
            plugin_config={
                "name": "docker-scale-set",
                "subscription_id": "00000000-1111-2222-3333-444444444444",
                "resource_group_name": "ci",
            },
            connector_config=ConnectorConfig(
                username="azureuser",
                password="azure-docker-password",
                use_static_credentials=True,
                timeout=600.0,
                use_external_addr=True,
            ),
            policy=(idle(5, 1200),),
        ),
        ignored=("runners.url", "runners.token", "runners.shell", "runners.docker"),
    ),
    "azure-windows": RunnerConfig(
        path=FILES / "azure-windows.toml",
        key="runners[0]",
        name="Windows on Azure",
        executor="instance",
        concurrent=50,
        autoscaler=gitlab(
            plugin="registry.gitlab.com/gitlab-org/fleeting/plugins/azure:1.0.0",
            capacity_per_instance=5,
            max_use_count=0,
            max_instances=10,
            plugin_config={
                "name": "windows-scale-set",
                "subscription_id": "00000000-1111-2222-3333-444444444444",
                "resource_group_name": "ci",
            },
            connector_config=ConnectorConfig(
                os="windows",
                protocol="winrm+https",
                protocol_port=5986,
                username="Administrator",
                password="azure-windows-password",
                use_static_credentials=True,
                timeout=600.0,
            ),
            policy=(idle(5, 1200),),
        ),
        ignored=(
            "runners.url",
            "runners.token",
            "runners.shell",
            "runners.feature_flags",
            "runners.autoscaler.vm_isolation",
        ),
    ),
    "policies": RunnerConfig(
        path=FILES / "policies.toml",
        key="runners[0]",
        name="by the clock",
        executor="docker-autoscaler",
        concurrent=200,
        autoscaler=gitlab(
            plugin="aws",
            capacity_per_instance=2,
            max_use_count=100,
            max_instances=100,
            plugin_config={"name": "clock-asg"},
            policy=(
                idle(0, 0, periods=("* * * * *",), timezone="UTC"),
                idle(
                    4,
                    1800,
                    periods=("* 8-15 * * mon-fri",),
                    timezone="Europe/Berlin",
                    scale_factor=0.5,
                    scale_factor_limit=50,
                ),
                idle(
                    40,
                    5400,
                    periods=("30-59 13 * * wed", "0-29 14 * * wed"),
                    timezone="Europe/Berlin",
                    preemptive_mode=False,
                ),
                idle(0, 90, periods=("0-14 3 * * SUN",), preemptive_mode=True),
            ),
        ),
        ignored=("runners.url", "runners.token", "runners.docker"),
    ),
    "every-key": RunnerConfig(
        path=FILES / "every-key.toml",
        key="runners[0]",
        name="everything said",
        executor="instance",
        concurrent=30,
        limit=40,
        autoscaler=gitlab(
            plugin="gitlab-org/fleeting/plugins/aws:latest",
            capacity_per_instance=3,
            max_use_count=12,
            max_instances=25,
            delete_instances_on_shutdown=True,
            instance_ready_command="cloud-init status --wait",
            instance_acquire_timeout=1200.0,
            log_internal_ip=True,
            log_external_ip=True,
            update_interval=30.0,
            update_interval_when_expecting=0.5,
            deletion_retry_interval=120.0,
            shutdown_deletion_interval=5.0,
            shutdown_deletion_retries=6,
            failure_threshold=5,
            reservation_throttling=False,
            scale_throttle=ScaleThrottle(limit=2.0, burst=10),
            state_storage=StateStorage(enabled=True, dir=str(FILES / "state"), keep_instance_with_acquisitions=True),
            plugin_config={"name": "everything-asg"},
            instance_operation_time_buckets=(1.0, 5.0, 30.0),
            instance_life_duration_buckets=(600.0, 3600.0),
            connector_config=ConnectorConfig(
                os="linux",
                arch="arm64",
                protocol="ssh",
                protocol_port=2222,
                username="ci",
                password="every-key-password",
                key_path="/etc/gitlab-runner/id_ed25519",
                use_static_credentials=True,
                keepalive=15.0,
                timeout=120.0,
                use_external_addr=True,
            ),
            policy=(
                idle(
                    6,
                    900,
                    timezone="America/New_York",
                    scale_factor=1.5,
                    scale_factor_limit=60,
                    preemptive_mode=True,
                ),
            ),
        ),
        ignored=(
            "connection_max_age",
            "runners.url",
            "runners.token",
            "runners.request_concurrency",
            "runners.output_limit",
            "runners.builds_dir",
            "runners.pre_build_script",
            "runners.custom_build_dir",
        ),
    ),
}
"""What GitLab documents that the files in `FILES` mean, but for the notes."""


@pytest.mark.parametrize("name", MEANT)
def test_a_file_means_what_gitlab_documents(name: str) -> None:
    """All values, those that the file leaves unsaid too."""
    meant = MEANT[name]
    loaded = config.load(FILES / f"{name}.toml", runner=meant.name)
    unsaid = [NO_STATE] if name != "every-key" else []
    assert [note.partition(":")[0] for note in loaded.notes] == [*unsaid, REMOVES]
    assert loaded == RunnerConfig(**{**fields_of(meant), "notes": loaded.notes})


def fields_of(value: RunnerConfig) -> dict[str, Any]:
    """Take a value apart, one level deep."""
    return {name: getattr(value, name) for name in type(value).__annotations__}


def test_all_files_are_looked_at() -> None:
    """There are ten."""
    assert sorted(MEANT) == sorted(path.stem for path in FILES.glob("*.toml"))
    assert len(MEANT) == 10


@pytest.mark.parametrize("name", MEANT)
def test_no_secret_is_shown(name: str) -> None:
    """Tokens, passwords and variables are in no repr; most are not even kept."""
    shown = repr(config.load(FILES / f"{name}.toml", runner=MEANT[name].name))
    for secret in ("glrt-", "-password", "-secret"):
        assert secret not in shown


@pytest.mark.parametrize("name", MEANT)
def test_a_file_loads_without_its_plugin(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening the group says what to install, under whichever name the file has the plugin."""
    monkeypatch.setattr(sys, "path", [])
    loaded = config.load(FILES / f"{name}.toml", runner=MEANT[name].name)
    cloud = {"aws": "fleeting-aws", "google": "fleeting-gcp", "azure": "fleeting-azure"}
    distribution = cloud.get(name.partition("-")[0], "fleeting-aws")
    with pytest.raises(PluginNotFound) as caught:
        loaded.scaler()
    assert caught.value.hint == f"pip install {distribution}"


BERLIN = "+02:00"
"""In the summer of 2026, of which 8 July is a Wednesday."""


@pytest.mark.parametrize(
    ("at", "idle_count"),
    [
        ("2026-07-08T07:59:59", 0),
        ("2026-07-08T08:00:00", 4),
        ("2026-07-08T13:29:59", 4),
        ("2026-07-08T13:30:00", 40),
        ("2026-07-08T14:29:59", 40),
        ("2026-07-08T14:30:00", 4),
        ("2026-07-08T15:59:59", 4),
        ("2026-07-08T16:00:00", 0),
        ("2026-07-11T12:00:00", 0),
    ],
)
def test_periods_are_spans_and_the_last_policy_wins(at: str, idle_count: int) -> None:
    """As the clock of the policy's time zone tells it."""
    schedule = Schedule(config.load(FILES / "policies.toml").autoscaler.policy)
    policy = schedule.at(datetime.fromisoformat(at + BERLIN).timestamp()).policy
    assert policy is not None
    assert policy.idle_count == idle_count


@pytest.mark.parametrize(("name", "jobs"), [("aws-docker", 10), ("aws-instance", 20), ("every-key", 30)])
def test_the_file_limits_how_many_jobs_run_at_once(name: str, jobs: int) -> None:
    """By `concurrent` over all runners, and by the runner's own `limit`, whichever is less."""
    assert config.load(FILES / f"{name}.toml").jobs_at_once == jobs


# --- smaller files ---------------------------------------------------------------------------------------


def load(directory: Path, text: str, runner: str | None = None) -> RunnerConfig:
    """Write a file and load it."""
    path = directory / "config.toml"
    path.write_text(dedent(text))
    return config.load(path, runner=runner)


def fleet(*keys: str) -> str:
    """A file with one runner, and these lines in its autoscaler."""
    return "\n".join(["[[runners]]", "[runners.autoscaler]", 'plugin = "local"', *keys])


def test_what_is_unsaid_is_as_gitlab_documents(tmp_path: Path) -> None:
    """Every default, as the documentation of GitLab Runner has it."""
    loaded = load(tmp_path, fleet("[[runners.autoscaler.policy]]"))
    auto = loaded.autoscaler
    assert (loaded.name, loaded.concurrent, loaded.limit, loaded.jobs_at_once) == ("", 1, 0, 1)
    assert (auto.capacity_per_instance, auto.max_use_count, auto.max_instances) == (1, 0, 0)
    assert (auto.update_interval, auto.update_interval_when_expecting) == (60.0, 2.0)
    assert (auto.deletion_retry_interval, auto.failure_threshold) == (60.0, 3)
    assert (auto.shutdown_deletion_interval, auto.shutdown_deletion_retries) == (10.0, 3)
    assert (auto.instance_acquire_timeout, auto.instance_ready_command) == (900.0, None)
    assert (auto.delete_instances_on_shutdown, auto.reservation_throttling) == (False, True)
    assert auto.scale_throttle == ScaleThrottle(limit=100.0, burst=None)
    assert auto.state_storage == StateStorage(enabled=False, dir=str(tmp_path / ".taskscaler"))
    (policy,) = auto.policy
    assert (policy.periods, policy.timezone, policy.idle_count, policy.idle_time) == (("* * * * *",), "Local", 0, 0.0)
    assert (policy.scale_factor, policy.scale_factor_limit, policy.preemptive) == (0.0, 0, False)


def test_a_zero_is_as_good_as_nothing(tmp_path: Path) -> None:
    """Go cannot tell them apart, and people write both."""
    zeros = """
        capacity_per_instance = 0
        update_interval = "0s"
        update_interval_when_expecting = 0
        failure_threshold = 0
        shutdown_deletion_retries = 0
        instance_acquire_timeout = "0"
        instance_ready_command = ""
        preexisting = ""
        scale_throttle = { limit = 0, burst = 0 }
        state_storage = { dir = "" }
        connector_config = { os = "", protocol = "", protocol_port = 0, timeout = "0s" }
        policy = [{ periods = [], timezone = "", idle_time = "0s" }]
    """
    nothing = """
        scale_throttle = {}
        state_storage = {}
        connector_config = {}
        policy = [{}]
    """
    assert load(tmp_path, fleet(zeros)).autoscaler == load(tmp_path, fleet(nothing)).autoscaler


def test_a_file_that_says_it_gets_no_note(tmp_path: Path) -> None:
    """Of state and of what stands there already, whichever it is."""
    said = fleet('preexisting = "adopt"', "state_storage = { enabled = false }")
    assert load(tmp_path, said).notes == ()
    assert load(tmp_path, said).autoscaler.preexisting is Preexisting.ADOPT


def test_state_is_kept_beside_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the command is started, and however the file is named."""
    load(tmp_path, fleet("state_storage = { enabled = true }"))
    monkeypatch.chdir(tmp_path)
    assert config.load("config.toml").autoscaler.state_storage.dir == str(tmp_path / ".taskscaler")
    load(tmp_path, fleet("state_storage = { enabled = true, dir = '/var/lib/runner' }"))
    assert config.load("config.toml").autoscaler.state_storage.dir == "/var/lib/runner"


def test_a_fleet_of_a_plugin_that_is_there(tmp_path: Path) -> None:
    """The plugin's settings are read as the file's, and everything reaches the scaler."""
    text = fleet(
        "capacity_per_instance = 2",
        f'plugin_config = {{ directory = "{tmp_path}", boot_time = 1500000000 }}',
        "state_storage = { enabled = true }",
    )
    loaded = load(tmp_path, text)
    (group,) = loaded.groups()
    assert isinstance(group, LocalGroup)
    assert group._config.boot_time == 1.5
    pool = loaded.autoscaler.pool(group)
    assert (pool.group, pool.capacity_per_instance, pool.preexisting) == (group, 2, Preexisting.REMOVE)
    journal = loaded.autoscaler.state_storage.journal()
    assert journal is not None
    assert journal.directory == tmp_path / ".taskscaler"


@pytest.mark.anyio
async def test_a_runner_of_one_s_own_is_one_line(tmp_path: Path) -> None:
    """The scaler that the file describes gives slots."""
    loaded = load(
        tmp_path, fleet(f'plugin_config = {{ directory = "{tmp_path}" }}', "delete_instances_on_shutdown = true")
    )
    async with loaded.scaler() as scaler, scaler.acquire("job-1") as lease, lease.dial() as connection:
        assert (await connection.run("echo hello", check=True)).stdout == b"hello\n"


def test_what_will_not_be_had_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nobody learns from an attack that there was no isolation."""
    load(tmp_path, fleet("vm_isolation = { enabled = true }")).scaler()
    (record,) = caplog.records
    assert (record.name, record.message) == ("taskscaler.config", "unsupported_setting")


# --- bad files -------------------------------------------------------------------------------------------

TWO = """
    [[runners]]
    name = "a"
    [runners.autoscaler]
    plugin = "local"
    [[runners]]
    name = "b"
    [runners.autoscaler]
    plugin = "local"
    [[runners]]
    name = "c"
"""
HERE = "runners[0].autoscaler"

BAD_FILES = [
    ("plugin = ?", None, "", Mistake.SYNTAX),
    ("", None, "", Mistake.VALUE),
    ("[[runer]]", None, "", Mistake.VALUE),
    ("[runners]", None, "runners", Mistake.VALUE),
    ("runners = 3", None, "runners", Mistake.VALUE),
    ("runners = [3]", None, "runners", Mistake.VALUE),
    ("runners = []", None, "runners", Mistake.VALUE),
    ("[[runners]]\n[runners.autoscalar]\n", None, "runners", Mistake.VALUE),
    ("[[runners]]\n[runners.machine]\n", None, "runners", Mistake.VALUE),
    (TWO, None, "runners", Mistake.VALUE),
    (TWO.replace("name", "#name"), None, "runners", Mistake.VALUE),
    (TWO, "A", "runners", Mistake.VALUE),
    (TWO, "c", "runners[2].autoscaler", Mistake.VALUE),
    (TWO.replace('"b"', '"a"'), "a", "runners", Mistake.VALUE),
    ("[[runners]]\nautoscaler = 3\n", None, "runners[0].autoscaler", Mistake.TYPE),
    ("[[runners]]\n[runners.autoscaler]\n", None, "runners[0].autoscaler.plugin", Mistake.MISSING_KEY),
    ("[[runners]]\nautoscaler.plugin = ''", None, "runners[0].autoscaler.plugin", Mistake.VALUE),
    ("[[runners]]\nlimit = -1\nautoscaler.plugin = 'x'", None, "runners[0].limit", Mistake.VALUE),
    ("concurrent = 0\n" + fleet(), None, "concurrent", Mistake.VALUE),
    ("concurrent = 1.5\n" + fleet(), None, "concurrent", Mistake.TYPE),
]

BAD_KEYS = [
    ("max_instance = 3", "max_instance", Mistake.UNKNOWN_KEY),
    ("max_instances = -1", "max_instances", Mistake.VALUE),
    ("max_instances = '9'", "max_instances", Mistake.TYPE),
    ("max_use_count = true", "max_use_count", Mistake.TYPE),
    ("capacity_per_instance = -2", "capacity_per_instance", Mistake.VALUE),
    ("update_interval = '1d'", "update_interval", Mistake.DURATION),
    ("update_interval = 1.5", "update_interval", Mistake.DURATION),
    ("update_interval = -1", "update_interval", Mistake.DURATION),
    ("instance_ready_command = ['true']", "instance_ready_command", Mistake.TYPE),
    ("reservation_throttling = 'no'", "reservation_throttling", Mistake.TYPE),
    ("preexisting = 'keep'", "preexisting", Mistake.VALUE),
    ("state_storage = true", "state_storage", Mistake.TYPE),
    ("state_storage = { dir = 3 }", "state_storage.dir", Mistake.TYPE),
    ("state_storage = { enable = true }", "state_storage.enable", Mistake.UNKNOWN_KEY),
    ("scale_throttle = 5", "scale_throttle", Mistake.TYPE),
    ("scale_throttle = { limit = -2 }", "scale_throttle.limit", Mistake.VALUE),
    ("scale_throttle = { burst = -1 }", "scale_throttle.burst", Mistake.VALUE),
    ("connector_config = { protocol_port = 70000 }", "connector_config.protocol_port", Mistake.VALUE),
    ("connector_config = { password = 1234 }", "connector_config.password", Mistake.TYPE),
    ("connector_config = { user = 'x' }", "connector_config.user", Mistake.UNKNOWN_KEY),
    ("plugin_config = ['name']", "plugin_config", Mistake.TYPE),
    ("[runners.autoscaler.policy]", "policy", Mistake.TYPE),
    ("policy = [3]", "policy[0]", Mistake.TYPE),
    ("policy = [{ idle_time = '5m', mode = 'adaptve' }]", "policy[0].mode", Mistake.VALUE),
    ("policy = [{ mode = 'adaptive' }]", "policy[0].mode", Mistake.VALUE),
    ("policy = [{ idle_count = -1 }]", "policy[0].idle_count", Mistake.VALUE),
    ("policy = [{ idle_count = 2.5 }]", "policy[0].idle_count", Mistake.TYPE),
    ("policy = [{ scale_factor = -0.5 }]", "policy[0].scale_factor", Mistake.VALUE),
    ("policy = [{ periods = '* * * * *' }]", "policy[0].periods", Mistake.TYPE),
    ("policy = [{ periods = ['* * * * * *'] }]", "policy[0].periods[0]", Mistake.VALUE),
    ("policy = [{ timezone = 'Berlin' }]", "policy[0].timezone", Mistake.VALUE),
    ("policy = [{ idle_scale = 3 }]", "policy[0].idle_scale", Mistake.UNKNOWN_KEY),
]


@pytest.mark.parametrize(("text", "runner", "key", "mistake"), BAD_FILES)
def test_a_bad_file_gets_one_clear_error(
    golden: Golden, tmp_path: Path, *, text: str, runner: str | None, key: str, mistake: Mistake
) -> None:
    """The file, the key path, what was found, what was expected, and what to do."""
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text, runner)
    (problem,) = caught.value.problems
    assert (problem.path, problem.mistake, caught.value.source) == (key, mistake, f"{tmp_path}/config.toml")
    golden(f"gitlab_file/{text!r} {runner}", str(problem))


@pytest.mark.parametrize(("line", "key", "mistake"), BAD_KEYS)
def test_a_bad_key_gets_one_clear_error(golden: Golden, tmp_path: Path, line: str, key: str, mistake: Mistake) -> None:
    """The same, of a key of the autoscaler."""
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, fleet(line))
    (problem,) = caught.value.problems
    assert (problem.path, problem.mistake) == (f"{HERE}.{key}", mistake)
    golden(f"gitlab_key/{line}", str(problem))


def test_the_golden_file_has_no_other_mistakes(golden: Golden) -> None:
    """A mistake that goes takes its sentence along."""
    golden.has_only("gitlab_file/", [f"{text!r} {runner}" for text, runner, *_ in BAD_FILES])
    golden.has_only("gitlab_key/", [line for line, *_ in BAD_KEYS])


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    """Of the top of the file and of the runner."""
    text = "concurrent = 0\n" + fleet("max_instances = -1", "policy = [{ idle_time = 'soon' }]")
    assert paths(tmp_path, text) == ["concurrent", f"{HERE}.max_instances", f"{HERE}.policy[0].idle_time"]


def test_the_plugins_own_are_told_with_them(tmp_path: Path) -> None:
    """If they are installed; one that is not says nothing."""
    lines = (
        "max_instances = -1",
        "plugin_config = { boot = '2s' }",
        "observers = { webhook = { urk = 'x' }, no = {} }",
    )
    config_, observers = f"{HERE}.plugin_config", f"{HERE}.observers.webhook"
    assert paths(tmp_path, fleet(*lines)) == [
        f"{HERE}.max_instances",
        f"{config_}.boot",
        f"{observers}.urk",
        f"{observers}.url",
    ]


def test_another_runner_s_mistakes_are_its_own(tmp_path: Path) -> None:
    """Only what is asked for is judged."""
    text = TWO.replace('plugin = "local"', "plugin = 3", 1)
    assert load(tmp_path, text, "b").name == "b"


def test_the_plugin_judges_its_settings(tmp_path: Path) -> None:
    """When it is asked; the message has the path in this file."""
    loaded = load(tmp_path, fleet("plugin_config = { boot = '2s' }"))
    with pytest.raises(ConfigError) as caught:
        loaded.groups()
    assert str(caught.value).startswith(f"{tmp_path}/config.toml: unknown key `boot` in {HERE}.plugin_config")


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    """The operating system's own word."""
    with pytest.raises(FileNotFoundError):
        config.load(tmp_path / "config.toml")
    (tmp_path / "config.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8"):
        config.load(tmp_path / "config.toml")


@pytest.mark.parametrize("table", [Autoscaler, StateStorage, Policy, ScaleThrottle, ConnectorConfig])
def test_every_key_is_documented(table: type) -> None:
    """The reference has them all."""
    text = (Path(__file__).parents[2] / "docs" / "reference" / "configuration.md").read_text()
    assert [key for key in fields_dict(table) if f"`{key}`" not in text.replace("[[policy]]", "policy")] == []


def paths(directory: Path, text: str) -> Sequence[str]:
    """Where the mistakes of a file are."""
    with pytest.raises(ConfigError) as caught:
        load(directory, text)
    return [problem.path for problem in caught.value.problems]
