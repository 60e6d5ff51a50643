"""Jobs files: what a good one becomes, and what is said of a bad one."""

import os
from pathlib import Path
from textwrap import dedent

import pytest

from fleeting import ConfigError
from fleeting.errors import Mistake
from fleeting.groups.local import LocalGroup
from taskscaler._jobsfile import JobsFile, read_jobs_file
from taskscaler.batch import Retries
from taskscaler.executors.instance import InstanceExecutor

FLEET = """
    [autoscaler]
    plugin = "local"
"""

JOB = """
    [[jobs]]
    name = "a"
    script = "true"
"""


def read(directory: Path, *parts: str) -> JobsFile:
    """Write a file of these parts and read it."""
    path = directory / "jobs.toml"
    path.write_text("".join(dedent(part) for part in parts))
    return read_jobs_file(path)


def problems(directory: Path, *parts: str) -> list[tuple[str, Mistake, str]]:
    """All that is wrong with a file of these parts: where, what kind of mistake, what to do."""
    with pytest.raises(ConfigError) as caught:
        read(directory, *parts)
    assert caught.value.source == f"{directory}/jobs.toml"
    return [(problem.path, problem.mistake, problem.hint) for problem in caught.value.problems]


def test_a_short_file_is_enough(tmp_path: Path) -> None:
    """A plugin and a job; all else has defaults."""
    file = read(tmp_path, FLEET, JOB)
    (job,) = file.jobs
    assert (job.name, job.spec.script, job.executor, job.retries) == ("a", "true", "instance", Retries())
    assert (job.spec.timeout, job.spec.files, job.spec.artifacts) == (None, {}, ())
    assert isinstance(file.groups[0], LocalGroup)
    assert isinstance(file.executors["instance"], InstanceExecutor)
    assert file.autoscaler.delete_instances_on_shutdown
    assert file.report is None


def test_a_file_may_be_called_anything(tmp_path: Path) -> None:
    """Names of files are bytes; what jobs are known as from run to run is text."""
    path = tmp_path / os.fsdecode(b"\xff.toml")
    path.write_text(dedent(FLEET + JOB))
    (job,) = read_jobs_file(path).jobs
    assert job.spec.series.endswith("/\\udcff.toml a")


def test_gitlab_s_keys_mean_what_they_mean_there(tmp_path: Path) -> None:
    """The fleet's settings reach the pool under their own names."""
    file = read(
        tmp_path,
        """
        [autoscaler]
        plugin = "local"
        capacity_per_instance = 2
        max_use_count = 10
        max_instances = 20
        update_interval = "1m30s"
        update_interval_when_expecting = "500ms"
        deletion_retry_interval = "2m"
        shutdown_deletion_interval = "5s"
        shutdown_deletion_retries = 4
        failure_threshold = 5
        instance_ready_command = "cloud-init status --wait"
        instance_acquire_timeout = "20m0s"
        delete_instances_on_shutdown = false

        [autoscaler.scale_throttle]
        limit = 2
        burst = 3

        [autoscaler.plugin_config]
        boot_time = "2s"

        [autoscaler.connector_config]
        username = "runner"
        keepalive = "10s"

        [[autoscaler.policy]]
        idle_count = 1
        idle_time = "20m0s"

        [[autoscaler.policy]]
        periods = ["* 8-15 * * mon-fri"]
        timezone = "Europe/Berlin"
        idle_count = 5
        scale_factor = 1.5
        scale_factor_limit = 10
        preemptive_mode = true
        """,
        JOB,
    )
    pool, (always, office) = file.autoscaler.pool(file.groups[0]), file.autoscaler.policy
    assert (pool.capacity_per_instance, pool.max_use_count, pool.max_instances) == (2, 10, 20)
    assert (pool.update_interval, pool.update_interval_when_expecting) == (90.0, 0.5)
    assert (pool.deletion_retry_interval, pool.shutdown_deletion_interval) == (120.0, 5.0)
    assert (pool.shutdown_deletion_retries, pool.failure_threshold) == (4, 5)
    assert pool.instance_ready_command == "cloud-init status --wait"
    assert (pool.scale_throttle.limit, pool.scale_throttle.burst) == (2.0, 3)
    assert (pool.connector_config.username, pool.connector_config.keepalive) == ("runner", 10.0)
    assert (always.idle_count, always.idle_time, always.preemptive_mode) == (1, 1200.0, None)
    assert (office.periods, office.timezone) == (("* 8-15 * * mon-fri",), "Europe/Berlin")
    assert (office.scale_factor, office.scale_factor_limit, office.preemptive_mode) == (1.5, 10, True)
    assert file.autoscaler.instance_acquire_timeout == 1200.0
    assert not file.autoscaler.delete_instances_on_shutdown


def test_instances_are_trusted_as_far_as_the_file_says(tmp_path: Path) -> None:
    """How old they may grow, what is done between two jobs, and what is asked of them before each."""
    file = read(tmp_path, FLEET, JOB)
    pool = file.autoscaler.pool(file.groups[0])
    assert (pool.max_instance_age, pool.heartbeat_on_acquire, pool.cleans) == (0.0, False, False)
    keys = """
        max_instance_age = "12h"
        heartbeat_on_acquire = true
        instance_cleanup_command = "docker system prune -f"
        instance_cleanup_timeout = "5m"
        log_external_ip = true
    """
    file = read(tmp_path, FLEET, keys, JOB)
    pool = file.autoscaler.pool(file.groups[0])
    assert (pool.max_instance_age, pool.heartbeat_on_acquire, pool.cleans) == (43200.0, True, True)
    assert pool.instance_cleanup_command == "docker system prune -f"
    assert pool.instance_cleanup_timeout == 300.0
    assert (file.autoscaler.log_internal_ip, file.autoscaler.log_external_ip) == (False, True)


def test_state_is_kept_unless_the_file_says_otherwise(tmp_path: Path) -> None:
    """GitLab's keys; enabled here by default."""
    storage = read(tmp_path, FLEET, JOB).autoscaler.state_storage
    assert (storage.enabled, storage.dir, storage.keep_instance_with_acquisitions) == (True, None, False)
    table = """
        [autoscaler.state_storage]
        enabled = false
        dir = "/var/lib/taskscaler"
        keep_instance_with_acquisitions = true
    """
    storage = read(tmp_path, FLEET, table, JOB).autoscaler.state_storage
    assert (storage.enabled, storage.dir) == (False, "/var/lib/taskscaler")
    assert storage.keep_instance_with_acquisitions


def test_a_job_says_everything_about_itself(tmp_path: Path) -> None:
    """Every key of a job reaches the executor."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "tool.py").touch()
    (job,) = read(
        tmp_path,
        FLEET,
        """
        [[jobs]]
        name = "measure.all_1-2"
        script = "python3 data/tool.py"
        env = { LEVEL = "3" }
        timeout = "1m30s"
        retries = 5
        files = ["data/tool.py", "./data"]
        artifacts = ["out/*.json", "log"]
        expected_duration = "20s"
        detach = false
        """,
    ).jobs
    assert job.detach is False
    assert job.spec.env["LEVEL"] == "3"
    assert (job.spec.timeout, job.retries, job.expected_duration) == (90.0, Retries(lost=5), 20.0)
    assert job.spec.files == {"data/tool.py": tmp_path / "data" / "tool.py", "data": tmp_path / "data"}
    assert job.spec.artifacts == ("out/*.json", "log")


def test_what_a_job_does_not_say_the_defaults_say(tmp_path: Path) -> None:
    """A job's own word replaces theirs, an empty one too; variables are added to theirs."""
    (tmp_path / "common.py").touch()
    silent, speaking = read(
        tmp_path,
        FLEET,
        """
        [defaults]
        timeout = "10m"
        retries = 1
        env = { A = "defaults", B = "defaults" }
        files = ["common.py"]
        artifacts = ["out"]

        [[jobs]]
        name = "silent"
        script = "true"

        [[jobs]]
        name = "speaking"
        script = "true"
        timeout = "1s"
        retries = 0
        env = { B = "job" }
        files = []
        artifacts = []
        """,
    ).jobs
    assert (silent.spec.timeout, silent.retries, silent.spec.artifacts) == (600.0, Retries(lost=1), ("out",))
    assert set(silent.spec.files) == {"common.py"}
    assert (speaking.spec.timeout, speaking.retries, speaking.spec.artifacts) == (1.0, Retries(lost=0), ())
    assert speaking.spec.files == {}
    assert (speaking.spec.env["A"], speaking.spec.env["B"]) == ("defaults", "job")


def test_a_log_s_limit_is_the_job_s_own_or_the_default(tmp_path: Path) -> None:
    """64 MiB if nothing is said."""
    assert read(tmp_path, FLEET, JOB).jobs[0].log_limit == 64 << 20
    defaults = "[defaults]\nlog_limit = 10_000\n"
    assert read(tmp_path, FLEET, defaults, JOB).jobs[0].log_limit == 10_000
    assert read(tmp_path, FLEET, defaults, JOB, "log_limit = 5_000\n").jobs[0].log_limit == 5_000


@pytest.mark.parametrize(
    ("copies", "first", "last"), [(1, "a-01", "a-01"), (40, "a-01", "a-40"), (100, "a-001", "a-100")]
)
def test_copies_are_numbered(tmp_path: Path, copies: int, first: str, last: str) -> None:
    """Names count from 1 and sort; the job is told its index from 0, and how many there are."""
    jobs = read(tmp_path, FLEET, JOB, f"copies = {copies}\n").jobs
    assert (len(jobs), jobs[0].name, jobs[-1].name) == (copies, first, last)
    names = [job.name for job in jobs]
    assert names == sorted(names)
    env = jobs[-1].spec.env
    assert env["TASKSCALER_JOB_NAME"] == last
    assert (env["TASKSCALER_JOB_INDEX"], env["TASKSCALER_JOB_COUNT"]) == (str(copies - 1), str(copies))


def test_a_single_job_is_number_0_of_1(tmp_path: Path) -> None:
    """A script need not care whether there are copies."""
    env = read(tmp_path, FLEET, JOB).jobs[0].spec.env
    assert (env["TASKSCALER_JOB_INDEX"], env["TASKSCALER_JOB_COUNT"]) == ("0", "1")


def test_executors_have_settings_of_their_own(tmp_path: Path) -> None:
    """They stand under the executor's name."""
    file = read(tmp_path, FLEET, JOB, '[executors.instance]\nbase = "/jobs"\ncleanup_script = "docker prune"\n')
    executor = file.executors["instance"]
    assert isinstance(executor, InstanceExecutor)
    assert (executor._config.base, executor._config.cleanup_script) == ("/jobs", "docker prune")


def test_a_report_names_a_command_and_its_files(tmp_path: Path) -> None:
    """The files lie beside the jobs file."""
    (tmp_path / "report.py").touch()
    report = read(tmp_path, FLEET, JOB, '[report]\ncommand = ["python3", "report.py"]\nfiles = ["report.py"]\n').report
    assert report is not None
    assert (report.command, report.files, report.timeout) == (("python3", "report.py"), ("report.py",), 600.0)


def test_variables_stay_out_of_every_repr(tmp_path: Path) -> None:
    """People put tokens there."""
    file = read(tmp_path, FLEET, JOB, 'env = { TOKEN = "hunter2" }\n')
    assert file.jobs[0].spec.env["TOKEN"] == "hunter2"
    assert "hunter2" not in repr(file)


def test_everything_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    """Mistakes of form come together, in the order of the file, and those of the plugin's settings with them."""
    assert problems(
        tmp_path,
        """
        [autoscaler]
        plugin = "local"
        max_instance = 4
        update_interval = 60
        failure_threshold = 0
        plugin_config = { boot_time = 3 }

        [[jobs]]
        name = "a b"
        script = " "
        retries = "2"
        """,
    ) == [
        ("autoscaler.max_instance", Mistake.UNKNOWN_KEY, "did you mean `max_instances`?"),
        ("autoscaler.update_interval", Mistake.DURATION, 'write "60s"'),
        ("autoscaler.failure_threshold", Mistake.VALUE, ""),
        ("autoscaler.plugin_config.boot_time", Mistake.DURATION, 'write "3s"'),
        ("jobs[0].name", Mistake.VALUE, ""),
        ("jobs[0].script", Mistake.VALUE, ""),
        ("jobs[0].retries", Mistake.TYPE, "write 2 without quotes"),
    ]


def test_form_and_meaning_are_judged_together(tmp_path: Path) -> None:
    """A mistake of form hides no other, and what it has left empty is no second mistake."""
    assert problems(
        tmp_path,
        """
        [autoscaler]
        plugin = "local"
        max_instances = "4"

        [defaults]
        files = ["nowhere.py", "../a", "/b"]

        [[jobs]]
        script = "true"
        copies = 1_000_000_000_000
        files = "x"

        [[jobs]]
        name = 3
        script = "true"
        files = ["nothere.py"]
        env = { 1ST = "x", B = 2 }
        executor = "instanc"

        [report]
        command = "no-such-program"
        files = ["none.py"]
        """,
    ) == [
        ("autoscaler.max_instances", Mistake.TYPE, "write 4 without quotes"),
        ("defaults.files[1]", Mistake.VALUE, ""),
        ("defaults.files[2]", Mistake.VALUE, ""),
        ("jobs[0].copies", Mistake.VALUE, ""),
        ("jobs[0].files", Mistake.TYPE, 'write ["x"]'),
        ("jobs[0].name", Mistake.MISSING_KEY, ""),
        ("jobs[1].name", Mistake.TYPE, 'write "3"'),
        ("jobs[1].files[0]", Mistake.MISSING_FILE, ""),
        ("jobs[1].env", Mistake.VALUE, ""),
        ("jobs[1].env.B", Mistake.TYPE, ""),
        ("jobs[1].executor", Mistake.NOT_INSTALLED, "did you mean `instance`?"),
        ("report.command", Mistake.TYPE, 'write ["no-such-program"]'),
        ("report.files[0]", Mistake.MISSING_FILE, ""),
    ]


def test_all_that_contradicts_is_told_at_once(tmp_path: Path) -> None:
    """So do mistakes of meaning: names, files, plugins and their settings."""
    assert problems(
        tmp_path,
        """
        [autoscaler]
        plugin = "local"
        plugin_config = { boot = "2s" }

        [defaults]
        executor = "instanc"

        [[jobs]]
        name = "a"
        script = "true"
        files = ["nowhere.py"]

        [[jobs]]
        name = "a"
        script = "true"
        executor = "kubernetes"
        env = { 1ST = "x" }

        [executors.instance]
        bas = "x"
        """,
    ) == [
        ("autoscaler.plugin_config.boot", Mistake.UNKNOWN_KEY, "did you mean `boot_time`?"),
        ("defaults.executor", Mistake.NOT_INSTALLED, "did you mean `instance`?"),
        ("jobs[0].files[0]", Mistake.MISSING_FILE, ""),
        ("jobs[1].name", Mistake.VALUE, "give each job its own name"),
        ("jobs[1].executor", Mistake.NOT_INSTALLED, ""),
        ("jobs[1].env", Mistake.VALUE, ""),
        ("executors.instance.bas", Mistake.UNKNOWN_KEY, "did you mean `base`?"),
    ]
