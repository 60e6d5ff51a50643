"""Bad inputs: the codes of the errors, their sentences (pinned in tests/golden), and that nothing is left behind."""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from attrs import field, frozen
from click.testing import CliRunner

from fleeting.config import available_plugins
from taskscaler._jobsfile import read_jobs_file
from taskscaler.cli import main
from taskscaler.executors import available_executors
from tests.clouds import WITHOUT_CLOUDS, hide_clouds
from tests.golden import Golden

FLEET = '[autoscaler]\nplugin = "local"\n'
FLEET_HERE = f'{FLEET}plugin_config = {{ directory = "<here>/fleet" }}\n'
JOB = '[[jobs]]\nname = "a"\nscript = "true"\n'
POLICY = "[[autoscaler.policy]]\n"
RUN = ("run", "jobs.toml")
PLACES = {
    "<groups>": ", ".join(WITHOUT_CLOUDS),
    "<connectors>": ", ".join(available_plugins("fleeting.connectors")),
    "<executors>": ", ".join(available_executors()),
}
"""What depends on what is installed, by what stands for it in the golden file; the test's directory is ``<here>``."""


@frozen(kw_only=True)
class Bad:
    """One bad input: what is run where, and the code of every line on standard error."""

    codes: tuple[str, ...]
    jobs: str | bytes = FLEET + JOB
    """What is in ``jobs.toml``."""

    arguments: tuple[str, ...] = RUN
    status: int = 2
    env: Mapping[str, str] = field(factory=dict)
    around: Callable[[], None] = lambda: None
    """Makes what else is there."""


def wrong_file(jobs: str | bytes, *codes: str) -> Bad:
    """A jobs file with mistakes, each reported on a line of its own."""
    return Bad(jobs=jobs, codes=codes)


def wrong_arguments(*arguments: str, code: str, around: Callable[[], None] = lambda: None) -> Bad:
    """A command line that makes no sense, with a correct jobs file."""
    return Bad(arguments=arguments, codes=(code,), around=around)


def results_in_the_way() -> None:
    """Leave the results of another batch."""
    Path("full").mkdir()
    Path("full", "results.json").touch()


def no_batch() -> None:
    """Leave what looks like a batch from afar."""
    results_in_the_way()
    Path("full", "resume").touch()


def fleet_of_others() -> None:
    """Make a directory for the fleet that everybody can write into."""
    Path("fleet").mkdir()
    Path("fleet").chmod(0o777)


def state_of_others() -> None:
    """Make a directory for the state that everybody can write into."""
    Path("state").mkdir()
    Path("state").chmod(0o777)


def batch(*events: object, copy: str | None = FLEET + JOB) -> Callable[[], None]:
    """Leave what a batch leaves that told this before it was killed."""

    def leave() -> None:
        resume = Path("results", "resume")
        resume.mkdir(parents=True)
        Path("results", "events.jsonl").write_text("".join(f"{json.dumps(event)}\n" for event in events))
        if copy is not None:
            (resume / "jobs.toml").write_text(copy)

    return leave


HEADER = {"format": "taskscaler events", "version": 1}
JOBS = [{"retries": 2, "names": ["a"]}]
BEGUN = {"event": "begun", "at": 1.7e9, "jobs": JOBS, "pools": [], "jobs_file": "jobs.toml"}
TRIED = {"event": "started", "at": 1.7e9, "job": "z", "pool": "default", "instance": "i", "slot": 0}
RESUME = ("run", "--resume", "results")

WRONG_FILES = {
    "no TOML": wrong_file("[autoscaler\nplugin = 'local'", "FL111"),
    "value cut short": wrong_file(f"{FLEET}max_instances = \n", "FL111"),
    "quote left open": wrong_file(f'{FLEET}{JOB}timeout = "90s\n', "FL111"),
    "table twice": wrong_file(FLEET + FLEET, "FL111"),
    "key twice": wrong_file(f"{FLEET}max_instances = 1\nmax_instances = 2\n{JOB}", "FL111"),
    "brackets without end": wrong_file(f"{FLEET}x = {'[' * 5000}\n", "FL111"),
    "number without end": wrong_file(f"{FLEET}max_instances = {'9' * 5000}\n{JOB}", "FL111"),
    "empty": wrong_file("", "FL113", "FL113"),
    "only a comment": wrong_file("# jobs\n", "FL113", "FL113"),
    "no bytes of text": wrong_file(bytes(range(256)), "FL111"),
    "Latin-1": wrong_file("# ä".encode("latin-1"), "FL111"),
    "UTF-16": wrong_file(FLEET.encode("utf-16"), "FL111"),
    "zeros": wrong_file(bytes(100), "FL111"),
    "no fleet": wrong_file(JOB, "FL113"),
    "no plugin": wrong_file(f"[autoscaler]\n{JOB}", "FL113"),
    "no jobs": wrong_file(f"jobs = []\n{FLEET}", "FL110"),
    "jobs are a table": wrong_file(f'{FLEET}[jobs]\nname = "a"\n', "FL114"),
    "jobs are an empty table": wrong_file(f"jobs = {{}}\n{FLEET}", "FL114"),
    "a job is a word": wrong_file(f'jobs = ["true"]\n{FLEET}', "FL114"),
    "a configuration of GitLab Runner": wrong_file(
        'concurrent = 2\n[[runners]]\n[runners.autoscaler]\nplugin = "local"\n', "FL110"
    ),
    "unknown plugin": wrong_file(f'[autoscaler]\nplugin = "locl"\n{JOB}', "FL120"),
    "plugin without a name": wrong_file(f'[autoscaler]\nplugin = ""\n{JOB}', "FL110"),
    "plugin that is a number": wrong_file(f"[autoscaler]\nplugin = 3\n{JOB}", "FL114"),
    "plugin that could be installed": wrong_file(
        f'[autoscaler]\nplugin = "fleeting-plugin-aws:latest"\n{JOB}', "FL120"
    ),
    "unknown table": wrong_file(f"{FLEET}{JOB}[reports]\n", "FL112"),
    "unknown key of the fleet": wrong_file(f"{FLEET}max_instance = 4\n{JOB}", "FL112"),
    "unknown key of a job": wrong_file(f'{FLEET}{JOB}artefacts = ["x"]\n', "FL112"),
    "key with a line feed": wrong_file(f'{FLEET}"a\\nb" = 1\n{JOB}', "FL112"),
    "number in quotes": wrong_file(f'{FLEET}max_instances = "4"\n{JOB}', "FL114"),
    "number that is a date": wrong_file(f"{FLEET}max_instances = 2026-01-31\n{JOB}", "FL114"),
    "number with a fraction": wrong_file(f"{FLEET}capacity_per_instance = 1.5\n{JOB}", "FL114"),
    "number of more than 64 bits": wrong_file(f"{FLEET}max_instances = {10**30}\n{JOB}", "FL110"),
    "number of more than a float": wrong_file(f"{FLEET}max_instances = {10**400}\n{JOB}", "FL110"),
    "negative number": wrong_file(f"{FLEET}max_use_count = -1\n{JOB}", "FL110"),
    "no capacity": wrong_file(f"{FLEET}capacity_per_instance = 0\n{JOB}", "FL110"),
    "negative capacity": wrong_file(f"{FLEET}capacity_per_instance = -2\n{JOB}", "FL110"),
    "negative ceiling": wrong_file(f"{FLEET}max_instances = -1\n{JOB}", "FL110"),
    "throttle that lets nothing through": wrong_file(f"{FLEET}scale_throttle = {{ limit = 0 }}\n{JOB}", "FL110"),
    "negative throttle": wrong_file(f"{FLEET}scale_throttle = {{ limit = -2 }}\n{JOB}", "FL110"),
    "infinite factor": wrong_file(f"{FLEET}{POLICY}scale_factor = inf\n{JOB}", "FL114"),
    "factor that is no number": wrong_file(f"{FLEET}{POLICY}scale_factor = nan\n{JOB}", "FL114"),
    "unknown choice": wrong_file(f'{FLEET}preexisting = "adpot"\n{JOB}', "FL110"),
    "duration without a unit": wrong_file(f"{FLEET}{JOB}timeout = 90\n", "FL115"),
    "duration without a unit in quotes": wrong_file(f'{FLEET}{JOB}timeout = "20"\n', "FL115"),
    "duration in words": wrong_file(f'{FLEET}{JOB}timeout = "5 min"\n', "FL115"),
    "duration in days": wrong_file(f'{FLEET}{JOB}timeout = "1d"\n', "FL115"),
    "negative duration": wrong_file(f'{FLEET}{JOB}timeout = "-1s"\n', "FL115"),
    "empty duration": wrong_file(f'{FLEET}{JOB}timeout = ""\n', "FL115"),
    "duration of centuries": wrong_file(f'{FLEET}{JOB}timeout = "9999999h"\n', "FL115"),
    "no time": wrong_file(f'{FLEET}{JOB}timeout = "0s"\n', "FL110"),
    "age below zero": wrong_file(f'{FLEET}max_instance_age = "-1h"\n{JOB}', "FL115"),
    "no time to clean": wrong_file(f'{FLEET}instance_cleanup_timeout = "0s"\n{JOB}', "FL110"),
    "no time to acquire": wrong_file(f'{FLEET}instance_acquire_timeout = "0s"\n{JOB}', "FL110"),
    "clean-up of several words": wrong_file(f'{FLEET}instance_cleanup_command = ["rm", "-r"]\n{JOB}', "FL114"),
    "addresses shown by word": wrong_file(f'{FLEET}log_internal_ip = "yes"\n{JOB}', "FL114"),
    "looking all the time": wrong_file(f'{FLEET}update_interval = "0s"\n{JOB}', "FL110"),
    "setting of the plugin": wrong_file(f'{FLEET}plugin_config = {{ boot_tme = "1s" }}\n{JOB}', "FL112"),
    "name of the local group": wrong_file(f'{FLEET}plugin_config = {{ name = "a/b" }}\n{JOB}', "FL110"),
    "relative directory of the local group": wrong_file(
        f'{FLEET}plugin_config = {{ directory = "fleet" }}\n{JOB}', "FL110"
    ),
    "local group without room": wrong_file(f"{FLEET}plugin_config = {{ max_size = 0 }}\n{JOB}", "FL110"),
    "plugin_config that is a word": wrong_file(f'{FLEET}plugin_config = "default"\n{JOB}', "FL114"),
    "unknown protocol": wrong_file(f'{FLEET}connector_config = {{ protocol = "locale" }}\n{JOB}', "FL120"),
    "port beyond all ports": wrong_file(f"{FLEET}connector_config = {{ protocol_port = 65536 }}\n{JOB}", "FL110"),
    "key that is not there": wrong_file(f'{FLEET}connector_config = {{ key_path = "/nowhere/id" }}\n{JOB}', "FL116"),
    "key that is a directory": wrong_file(f'{FLEET}connector_config = {{ key_path = "/" }}\n{JOB}', "FL116"),
    "password that is a number": wrong_file(f"{FLEET}connector_config = {{ password = 12345 }}\n{JOB}", "FL114"),
    "policy that is one table": wrong_file(f"{FLEET}[autoscaler.policy]\nidle_count = 1\n{JOB}", "FL114"),
    "period out of range": wrong_file(f'{FLEET}{POLICY}periods = ["* 25 * * *"]\n{JOB}', "FL110"),
    "period of three fields": wrong_file(f'{FLEET}{POLICY}periods = ["* * *"]\n{JOB}', "FL110"),
    "period that is a word": wrong_file(f'{FLEET}{POLICY}periods = "* * * * *"\n{JOB}', "FL114"),
    "no period": wrong_file(f"{FLEET}{POLICY}periods = []\n{JOB}", "FL110"),
    "time zone": wrong_file(f'{FLEET}{POLICY}timezone = "Berlin"\n{JOB}', "FL110"),
    "negative idle count": wrong_file(f"{FLEET}{POLICY}idle_count = -1\n{JOB}", "FL110"),
    "key of the state storage": wrong_file(f"{FLEET}state_storage = {{ enable = false }}\n{JOB}", "FL112"),
    "state storage switched with a word": wrong_file(f'{FLEET}state_storage = {{ enabled = "false" }}\n{JOB}', "FL114"),
    "state storage that is a switch": wrong_file(f"{FLEET}state_storage = true\n{JOB}", "FL114"),
    "relative directory for state": wrong_file(f'{FLEET}state_storage = {{ dir = "state" }}\n{JOB}', "FL110"),
    "instances kept by number": wrong_file(
        f"{FLEET}state_storage = {{ keep_instance_with_acquisitions = 1 }}\n{JOB}", "FL114"
    ),
    "job without a name": wrong_file(f'{FLEET}[[jobs]]\nscript = "true"\n', "FL113"),
    "job without a script": wrong_file(f'{FLEET}[[jobs]]\nname = "a"\n', "FL113"),
    "name that is a path": wrong_file(f'{FLEET}[[jobs]]\nname = "../a"\nscript = "true"\n', "FL110"),
    "name that is a number": wrong_file(f'{FLEET}[[jobs]]\nname = 1\nscript = "true"\n', "FL114"),
    "name that a terminal would obey": wrong_file(f'{FLEET}[[jobs]]\nname = "\\u001b[31m"\nscript = "true"\n', "FL110"),
    "empty script": wrong_file(f'{FLEET}[[jobs]]\nname = "a"\nscript = "\\n"\n', "FL110"),
    "script with a NUL": wrong_file(f'{FLEET}[[jobs]]\nname = "a"\nscript = "echo \\u0000"\n', "FL110"),
    "same name twice": wrong_file(FLEET + JOB + JOB, "FL110"),
    "copies with the name of another": wrong_file(
        f'{FLEET}{JOB}copies = 2\n[[jobs]]\nname = "a-02"\nscript = "true"\n', "FL110"
    ),
    "no copies": wrong_file(f"{FLEET}{JOB}copies = 0\n", "FL110"),
    "more copies than memory holds": wrong_file(f"{FLEET}{JOB}copies = 1_000_000_000_000\n", "FL110"),
    "more jobs than memory holds, in several tables": wrong_file(
        f"{FLEET}{JOB}copies = 1_000_000\n" + "".join(JOB.replace('"a"', f'"{name}"') for name in "bcde"), "FL110"
    ),
    "a log without room": wrong_file(f"{FLEET}{JOB}log_limit = 100\n", "FL110"),
    "negative retries": wrong_file(f"{FLEET}{JOB}retries = -1\n", "FL110"),
    "unknown executor": wrong_file(f'{FLEET}{JOB}executor = "instanc"\n', "FL120"),
    "settings of an unknown executor": wrong_file(f'{FLEET}{JOB}[executors.podman]\nimage = "x"\n', "FL120"),
    "executor without a directory": wrong_file(f'{FLEET}{JOB}[executors.instance]\nbase = ""\n', "FL110"),
    "default of an unknown executor": wrong_file(f'{FLEET}{JOB}[defaults]\nexecutor = "x"\n', "FL120"),
    "file that is not there": wrong_file(f'{FLEET}{JOB}files = ["nowhere.py"]\n', "FL116"),
    "file with a name too long": wrong_file(f'{FLEET}{JOB}files = ["{"x" * 300}"]\n', "FL116"),
    "file outside": wrong_file(f'{FLEET}{JOB}files = ["../secret"]\n', "FL110"),
    "files that are a word": wrong_file(f'{FLEET}{JOB}files = "jobs.toml"\n', "FL114"),
    "artifact outside": wrong_file(f'{FLEET}{JOB}artifacts = ["/etc/passwd"]\n', "FL110"),
    "artifact above": wrong_file(f'{FLEET}{JOB}artifacts = ["a/../../b"]\n', "FL110"),
    "artifact without a name": wrong_file(f'{FLEET}{JOB}artifacts = [""]\n', "FL110"),
    "recursive glob": wrong_file(f'{FLEET}{JOB}artifacts = ["**/*.log"]\n', "FL110"),
    "name of a variable": wrong_file(f'{FLEET}{JOB}env = {{ "A-B" = "x" }}\n', "FL110"),
    "variable of ours": wrong_file(f'{FLEET}{JOB}env = {{ TASKSCALER_JOB_NAME = "b" }}\n', "FL110"),
    "default variable of ours": wrong_file(f'{FLEET}{JOB}[defaults.env]\nTASKSCALER_SLOT = "1"\n', "FL110"),
    "variables as a list": wrong_file(f'{FLEET}{JOB}env = ["TOKEN=x"]\n', "FL114"),
    "variable that is a number": wrong_file(f"{FLEET}{JOB}env = {{ TOKEN = 12345 }}\n", "FL114"),
    "variable with a NUL": wrong_file(f'{FLEET}{JOB}env = {{ TOKEN = "\\u0000" }}\n', "FL110"),
    "report without a command": wrong_file(f"{FLEET}{JOB}[report]\ncommand = []\n", "FL110"),
    "report that is a word": wrong_file(f'{FLEET}{JOB}[report]\ncommand = "make report"\n', "FL114"),
    "report in one string": wrong_file(f'{FLEET}{JOB}[report]\ncommand = ["make report"]\n', "FL110"),
    "report by an unknown program": wrong_file(f'{FLEET}{JOB}[report]\ncommand = ["no-such-program"]\n', "FL116"),
    "report by a program that is nowhere": wrong_file(
        f'{FLEET}{JOB}[report]\ncommand = ["/nowhere/report"]\n', "FL116"
    ),
    "report by a script that is not copied": wrong_file(f'{FLEET}{JOB}[report]\ncommand = ["./report.sh"]\n', "FL116"),
    "report by a script that cannot be run": wrong_file(
        f'{FLEET}{JOB}[report]\ncommand = ["./jobs.toml"]\nfiles = ["jobs.toml"]\n', "FL116"
    ),
    "report's file that is not there": wrong_file(
        f'{FLEET}{JOB}[report]\ncommand = ["true"]\nfiles = ["report.py"]\n', "FL116"
    ),
    "report's file in the way": wrong_file(f'{FLEET}{JOB}[report]\ncommand = ["true"]\nfiles = ["logs/x"]\n', "FL110"),
    "report's file among what resuming needs": wrong_file(
        f'{FLEET}{JOB}[report]\ncommand = ["true"]\nfiles = ["resume"]\n', "FL110"
    ),
    "report without time": wrong_file(f'{FLEET}{JOB}[report]\ncommand = ["true"]\ntimeout = "0s"\n', "FL110"),
    "job expected to outlast its time-out": wrong_file(
        f'{FLEET}{JOB}timeout = "1m"\nexpected_duration = "2m"\n', "FL110"
    ),
    "default time-out shorter than a job is expected to take": wrong_file(
        f'{FLEET}{JOB}expected_duration = "2m"\n[defaults]\ntimeout = "1m"\n', "FL110"
    ),
    "limit of no factor": wrong_file(f"{FLEET}{POLICY}scale_factor_limit = 3\n{JOB}", "FL110"),
    "limit of a factor below what is kept": wrong_file(
        f"{FLEET}{POLICY}scale_factor = 1.5\nscale_factor_limit = 3\nidle_count = 5\n{JOB}", "FL110"
    ),
    "first pause longer than the longest": wrong_file(f'{FLEET}backoff_initial = "10m"\n{JOB}', "FL110"),
    "certificate and authority": wrong_file(
        f'{FLEET}connector_config = {{ certificate = "{"ab" * 32}", ca_file = "ca.pem" }}\n{JOB}', "FL110"
    ),
    "fingerprint in words": wrong_file(f'{FLEET}connector_config = {{ certificate = "mine" }}\n{JOB}', "FL110"),
    "no time to dial": wrong_file(f'{FLEET}connector_config = {{ timeout = "0s" }}\n{JOB}', "FL110"),
    "one silence ends a connection": wrong_file(
        f"{FLEET}connector_config = {{ keepalive_misses = 1 }}\n{JOB}", "FL110"
    ),
    "user of the connector under another name": wrong_file(
        f'{FLEET}connector_config = {{ user = "me" }}\n{JOB}', "FL112"
    ),
    "key of a policy in the fleet": wrong_file(f"{FLEET}idle_count = 1\n{JOB}", "FL112"),
    "key that could be of several tables": wrong_file(f'{FLEET}timeout = "5m"\n{JOB}', "FL112"),
    "key of the connector in the fleet": wrong_file(f'{FLEET}key_path = "/id"\n{JOB}', "FL112"),
    "key of the fleet in a policy": wrong_file(f"{FLEET}{POLICY}max_instances = 4\n{JOB}", "FL112"),
    "key of a job under GitLab CI's name": wrong_file(f'{FLEET}{JOB}before_script = "true"\n', "FL112"),
    "key with another spelling": wrong_file(f"{FLEET}maxInstances = 4\n{JOB}", "FL112"),
    "key that is near two others": wrong_file(f"{FLEET}suspended_tount = 4\n{JOB}", "FL112"),
    "key in the plural": wrong_file(f"{FLEET}policies = []\n{JOB}", "FL112"),
    "table of jobs in the singular": wrong_file(f'{FLEET}{JOB}[[job]]\nname = "b"\n', "FL112"),
    "pool without a name": wrong_file(f"{FLEET}[[autoscaler.pools]]\nmax_instances = 1\n{JOB}", "FL113"),
    "pools with one name": wrong_file(
        f'{FLEET}[[autoscaler.pools]]\nname = "a"\n[[autoscaler.pools]]\nname = "a"\n{JOB}', "FL110"
    ),
    "pool with a policy": wrong_file(f'{FLEET}[[autoscaler.pools]]\nname = "a"\npolicy = []\n{JOB}', "FL112"),
    "pool of an unknown plugin": wrong_file(
        f'{FLEET}[[autoscaler.pools]]\nname = "a"\nplugin = "nimbus"\n{JOB}', "FL120"
    ),
    "pools that are a word": wrong_file(f'{FLEET}pools = "spot"\n{JOB}', "FL114"),
    "unknown observer": wrong_file(f"{FLEET}observers = {{ webhok = {{}} }}\n{JOB}", "FL120"),
    "observer that is a word": wrong_file(f'{FLEET}observers = {{ webhook = "x" }}\n{JOB}', "FL114"),
    "webhook without an address": wrong_file(f"{FLEET}observers = {{ webhook = {{}} }}\n{JOB}", "FL113"),
    "webhook to a file": wrong_file(f'{FLEET}observers = {{ webhook = {{ url = "file:///x" }} }}\n{JOB}', "FL110"),
    "webhook of an unknown event": wrong_file(
        f'{FLEET}observers = {{ webhook = {{ url = "https://h.example", events = ["leases"] }} }}\n{JOB}', "FL110"
    ),
    "fixed hosts without hosts": wrong_file(
        f'[autoscaler]\nplugin = "static"\nplugin_config = {{ hosts = [] }}\n{JOB}', "FL110"
    ),
    "hosts that are addresses": wrong_file(
        f'[autoscaler]\nplugin = "static"\nplugin_config = {{ hosts = ["10.0.0.1"] }}\n{JOB}', "FL114"
    ),
    "fixed host without an address": wrong_file(
        f'[autoscaler]\nplugin = "static"\nplugin_config = {{ hosts = [{{ name = "a" }}] }}\n{JOB}', "FL113"
    ),
    "fixed host with a port beyond all": wrong_file(
        f'[autoscaler]\nplugin = "static"\nplugin_config = {{ hosts = [{{ address = "h", port = 70000 }}] }}\n{JOB}',
        "FL110",
    ),
    "fixed host twice": wrong_file(
        f'[autoscaler]\nplugin = "static"\nplugin_config.hosts = [{{ address = "h" }}, {{ address = "h" }}]\n{JOB}',
        "FL110",
    ),
    "report by a shell line": wrong_file(f'{FLEET}{JOB}[report]\ncommand = "make | tee report"\n', "FL114"),
    "several files outside": wrong_file(f'{FLEET}{JOB}files = ["../a", "jobs.toml", "/b"]\n', "FL110", "FL110"),
    "a mistake of form and one of meaning": wrong_file(
        f'{FLEET}max_instances = "4"\n{JOB}files = ["nowhere.py"]\n', "FL114", "FL116"
    ),
    "several mistakes": wrong_file(
        f'{FLEET}max_instances = "4"\n{JOB}timeout = 90\nartefacts = ["x"]\n[[jobs]]\nname = "b"\n',
        "FL114",
        "FL115",
        "FL112",
        "FL113",
    ),
}

WRONG_ARGUMENTS = {
    "no file": wrong_arguments("run", code="FL101"),
    "unknown command": wrong_arguments("rnu", code="FL101"),
    "unknown option": wrong_arguments(*RUN, "--outptu", "x", code="FL101"),
    "unknown short option": wrong_arguments(*RUN, "-x", code="FL101"),
    "option of no command": wrong_arguments("--quiet", code="FL101"),
    "two files": wrong_arguments(*RUN, "b.toml", code="FL101"),
    "file that is not there": wrong_arguments("run", "nowhere.toml", code="FL101"),
    "file that is a directory": wrong_arguments("run", ".", code="FL101"),
    "file that cannot be read": wrong_arguments("run", "/proc/self/mem", code="FL102"),
    "results without a name": wrong_arguments(*RUN, "--output", code="FL101"),
    "results that are there": wrong_arguments(
        *RUN,
        "--output",
        "full",
        code="TS103",
        around=results_in_the_way,
    ),
    "results in a file": wrong_arguments(*RUN, "--output", "jobs.toml", code="FL101"),
    "results below a file": wrong_arguments(*RUN, "--output", "jobs.toml/results", code="FL102"),
    "results where nothing can be made": wrong_arguments(*RUN, "--output", "/proc/results", code="FL102"),
    "resuming nothing": wrong_arguments("run", "--resume", code="FL101"),
    "resuming what is not there": wrong_arguments("run", "--resume", "nowhere", code="FL101"),
    "resuming a jobs file": wrong_arguments("run", "--resume", "jobs.toml", code="FL101"),
    "resuming with a jobs file": wrong_arguments(
        *RUN,
        "--resume",
        "full",
        code="FL101",
        around=results_in_the_way,
    ),
    "resuming elsewhere": wrong_arguments(
        "run",
        "--resume",
        "full",
        "--output",
        "other",
        code="FL101",
        around=results_in_the_way,
    ),
    "resuming where no batch was begun": wrong_arguments(
        "run",
        "--resume",
        "full",
        code="TS104",
        around=results_in_the_way,
    ),
    "resuming what is no batch": wrong_arguments(
        "run",
        "--resume",
        "full",
        code="TS104",
        around=no_batch,
    ),
    "resuming a damaged batch": wrong_arguments(
        *RESUME,
        code="TS104",
        around=batch(HEADER, BEGUN, ["x"]),
    ),
    "resuming an empty log": wrong_arguments(
        *RESUME,
        code="TS104",
        around=batch(),
    ),
    "resuming the batch of a newer release": wrong_arguments(
        *RESUME,
        code="TS104",
        around=batch({**HEADER, "version": 1000}),
    ),
    "resuming a batch of other jobs": wrong_arguments(
        *RESUME,
        code="TS104",
        around=batch(HEADER, BEGUN, TRIED),
    ),
    "resuming without the jobs file": wrong_arguments(
        *RESUME,
        code="TS104",
        around=batch(HEADER, {**BEGUN, "jobs_file": "nowhere.toml"}),
    ),
    "resuming with another jobs file": wrong_arguments(
        *RESUME,
        code="TS104",
        around=batch(HEADER, BEGUN, copy=FLEET + "max_instances = 7\n" + JOB),
    ),
    "jobs that are not there": wrong_arguments(*RUN, "--only", "b", code="FL101"),
    "a place that no job has": wrong_arguments(*RUN, "--only", "#2", code="FL101"),
    "rerunning without results": wrong_arguments(*RUN, "--rerun", "failed", code="FL101"),
    "rerunning what nobody knows": wrong_arguments(
        *RESUME, "--rerun", "bad", code="FL101", around=batch(HEADER, BEGUN)
    ),
    "failing fast after no failure": wrong_arguments(*RUN, "--fail-fast", "0", code="FL101"),
    "resuming with a damaged copy of the jobs file": wrong_arguments(
        *RESUME,
        code="TS104",
        around=batch(HEADER, BEGUN, copy="["),
    ),
    "resuming without the copy of the jobs file": wrong_arguments(
        *RESUME,
        code="TS104",
        around=batch(HEADER, BEGUN, copy=None),
    ),
    "report on nothing": wrong_arguments("report", code="FL101"),
    "report on what is not there": wrong_arguments("report", "nowhere", code="TS107"),
    "report on what is no batch": wrong_arguments(
        "report",
        "full",
        code="TS107",
        around=no_batch,
    ),
    "report on a fleet of which nothing was recorded": wrong_arguments(
        "report",
        "results",
        code="TS107",
        around=batch(HEADER, BEGUN),
    ),
    "JUnit XML where nothing is": wrong_arguments(*RUN, "--junit", "nowhere/junit.xml", code="FL101"),
    "annotations for nobody": wrong_arguments(*RUN, "--annotations", "jenkins", code="FL101"),
    "the log of a batch that is not there": wrong_arguments("logs", "nowhere", "a", code="TS107"),
    "the log of no job": wrong_arguments("logs", "results", code="FL101", around=batch(HEADER, BEGUN)),
    "the log of an unknown job": wrong_arguments("logs", "results", "b", code="FL101", around=batch(HEADER, BEGUN)),
    "fewer lines of a log than none": wrong_arguments("logs", "results", "a", "-n", "-1", code="FL101"),
    "a lease for nothing": wrong_arguments("lease", code="FL101"),
    "a lease whose key is empty": wrong_arguments("lease", "--key", "", "--", "true", code="FL101"),
    "a lease that is kept for no time": wrong_arguments("lease", "--keep", "--ttl", "0", "--", "true", code="FL101"),
    "a lease that is kept for too long": wrong_arguments(
        "lease", "--keep", "--ttl", "169h", "--", "true", code="FL101"
    ),
    "a lease that is kept for a word": wrong_arguments("lease", "-d", "--ttl", "long", "--", "true", code="FL101"),
    "a lease that is idle for no time": wrong_arguments(
        *("lease", "--keep", "--idle-timeout", "1ms", "--", "true"), code="FL101"
    ),
    "a bound for a lease that ends": wrong_arguments("lease", "--ttl", "1h", "--", "true", code="FL101"),
    "an idle bound for a lease that ends": wrong_arguments(
        *("lease", "--remote", "--idle-timeout", "1h", "--", "true"), code="FL101"
    ),
    "leaving a command running here": wrong_arguments("lease", "-d", "--", "true", code="FL101"),
    "bringing the working tree here": wrong_arguments("lease", "--sync", "--", "true", code="FL101"),
    "bringing what is no working tree": wrong_arguments(
        *("lease", "--remote", "--sync", "--socket", "no.sock", "--", "true"), code="FL101"
    ),
    "attaching to nothing": wrong_arguments("attach", code="FL101"),
    "attaching to an empty key": wrong_arguments("attach", "", code="FL101"),
    "attaching before the beginning": wrong_arguments("attach", "dev", "--offset", "-1", code="FL101"),
    "attaching nowhere": wrong_arguments("attach", "dev", "--offset", "x", code="FL101"),
    "attaching to two": wrong_arguments("attach", "dev", "test", code="FL101"),
    "stopping nothing": wrong_arguments("stop", code="FL101"),
    "stopping an empty key": wrong_arguments("stop", "", code="FL101"),
    "listing the leases of a key": wrong_arguments("leases", "dev", code="FL101"),
    "negative price": wrong_arguments(*("report", ".", "--price-per-hour", "-1"), code="FL101"),
    "price that is no number": wrong_arguments(*("report", ".", "--price-per-hour", "nan"), code="FL101"),
    "price without an end": wrong_arguments(*("report", ".", "--price-per-hour", "inf"), code="FL101"),
    "price in words": wrong_arguments(*("report", ".", "--price-per-hour", "cheap"), code="FL101"),
    "a doctor for what is not there": wrong_arguments("doctor", "nowhere.toml", code="FL101"),
    "a doctor for a directory": wrong_arguments("doctor", ".", code="FL101"),
    "a doctor for a runner of no file": wrong_arguments("doctor", "--runner", "x", code="FL101"),
    "a doctor without time": wrong_arguments("doctor", "--timeout", "0", code="FL101"),
    "a doctor with too much time": wrong_arguments("doctor", "--timeout", "1e9", code="FL101"),
    "explaining what is not there": wrong_arguments("explain", "jobs", code="TS107"),
    "explaining what is nearly there": wrong_arguments("explain", "ful", code="TS107", around=results_in_the_way),
    "explaining the directory above": wrong_arguments("explain", ".", code="TS107", around=batch(HEADER, BEGUN)),
    "explaining what is no batch": wrong_arguments(
        "explain",
        "full",
        code="TS107",
        around=no_batch,
    ),
    "explaining an unknown job": wrong_arguments(
        "explain",
        "results",
        "--job",
        "b",
        code="TS107",
        around=batch(HEADER, BEGUN),
    ),
    "explaining an unknown instance": wrong_arguments(
        "explain",
        "results",
        "--instance",
        "i-1",
        code="TS107",
        around=batch(HEADER, BEGUN),
    ),
    "explaining two things at once": wrong_arguments(
        "explain",
        "results",
        "--job",
        "a",
        "--instance",
        "i-1",
        code="FL101",
        around=batch(HEADER, BEGUN),
    ),
    "unknown code of an error": wrong_arguments("errors", "FL999", code="FL101"),
    "serving a file with jobs": wrong_arguments("serve", "jobs.toml", code="FL110"),
    "serving a file with a report": Bad(
        jobs=f'{FLEET}[report]\ncommand = ["true"]\n', arguments=("serve", "jobs.toml"), codes=("FL110",)
    ),
    "fetching what is no batch": wrong_arguments("fetch", "nothing", code="FL101"),
    "serving what is a jobs file as a runner": Bad(
        jobs=FLEET, arguments=("serve", "jobs.toml", "--runner", "a"), codes=("FL110",)
    ),
    "serving with a bound that is no duration": wrong_arguments(
        "serve", "jobs.toml", "--stop-timeout", "soon", code="FL101"
    ),
    "serving for a group that does not exist": Bad(
        jobs=FLEET, arguments=("serve", "jobs.toml", "--socket-group", "no such group"), codes=("TS110",), status=1
    ),
    "listening on what is no place": wrong_arguments("serve", "jobs.toml", "--listen", "8443", code="FL101"),
    "a page for everybody that is shown nowhere": wrong_arguments("serve", "jobs.toml", "--http-no-link", code="FL101"),
    "a certificate and nowhere to listen": wrong_arguments(
        "serve", "jobs.toml", "--tls-cert", "jobs.toml", code="FL101"
    ),
    "a key without its certificate": wrong_arguments(
        "serve", "jobs.toml", "--listen", ":1", "--tls-key", "jobs.toml", code="FL101"
    ),
    "a socket that is an address": wrong_arguments(
        "serve", "jobs.toml", "--socket", "https://build.example", code="FL101"
    ),
    "listening everywhere without TLS": Bad(
        jobs=FLEET, arguments=("serve", "jobs.toml", "--listen", ":8443"), codes=("TS110",), status=1
    ),
    "a certificate that is none": Bad(
        jobs=FLEET,
        arguments=("serve", "jobs.toml", "--listen", ":8443", "--tls-cert", "jobs.toml"),
        codes=("TS110",),
        status=1,
    ),
    "an address without a token": wrong_arguments("status", "--socket", "https://build.example", code="FL101"),
    "an address that gives the token away": wrong_arguments("jobs", "--socket", "http://build.example", code="FL101"),
    "explaining a batch and a daemon": wrong_arguments("explain", ".", "--socket", "a.sock", code="FL101"),
    "asking a daemon where nobody ever served": Bad(
        arguments=("status",), codes=("TS109",), status=1, env={"XDG_RUNTIME_DIR": "/dev/null"}
    ),
    "watching a file that is no socket": Bad(
        arguments=("top", "--once", "--socket", "jobs.toml"), codes=("TS109",), status=1
    ),
    "asking a file that is no socket": Bad(arguments=("drain", "--socket", "jobs.toml"), codes=("TS109",), status=1),
    "cordoning without naming an instance": wrong_arguments("cordon", code="FL101"),
}

HOMELESS = {"XDG_STATE_HOME": "", "HOME": "~"}
"""The environment of a user whose home directory nobody knows, as in a container."""

WRONG_SURROUNDINGS = {
    "report's program is not on the PATH": Bad(
        jobs=f'{FLEET}{JOB}[report]\ncommand = ["sh", "report.sh"]\n',
        env={"PATH": "/nowhere"},
        codes=("FL116",),
    ),
    "state in no directory": Bad(
        jobs=FLEET_HERE + JOB,
        env={"XDG_STATE_HOME": "/dev/null"},
        codes=("FL202",),
        status=1,
    ),
    "home that is no directory": Bad(
        jobs=FLEET_HERE + JOB,
        env={"XDG_STATE_HOME": "", "HOME": "/dev/null"},
        codes=("FL202",),
        status=1,
    ),
    "user without a home, who runs a batch": Bad(jobs=FLEET + JOB, codes=("FL201",), env=HOMELESS),
    "user without a home, who serves": Bad(
        jobs=FLEET, arguments=("serve", "jobs.toml"), codes=("FL201",), env=HOMELESS
    ),
    "user without a home, who checks": Bad(
        jobs=FLEET + JOB, arguments=("check", "jobs.toml"), codes=("FL201",), env=HOMELESS
    ),
    "user without a home for state": Bad(jobs=FLEET_HERE + JOB, codes=("FL202",), status=1, env=HOMELESS),
    "user without a home for state, who serves": Bad(
        jobs=FLEET_HERE,
        arguments=("serve", "jobs.toml", "--socket", "a.sock", "--listen", "127.0.0.1:0"),
        codes=("FL202",),
        status=1,
        env=HOMELESS,
    ),
    "state that others can change": Bad(
        jobs=f'{FLEET_HERE}state_storage = {{ dir = "<here>/state" }}\n{JOB}',
        around=state_of_others,
        codes=("FL202",),
        status=1,
    ),
    "fleet below a file": Bad(
        jobs=f'{FLEET}plugin_config = {{ directory = "/dev/null/fleet" }}\n{JOB}',
        codes=("FL201",),
        status=1,
    ),
    "fleet that others can change": Bad(
        jobs=FLEET_HERE + JOB,
        around=fleet_of_others,
        codes=("FL201",),
        status=1,
    ),
}

TABLE = {
    f"{kind}: {name}": bad
    for kind, table in (("file", WRONG_FILES), ("arguments", WRONG_ARGUMENTS), ("surroundings", WRONG_SURROUNDINGS))
    for name, bad in table.items()
}


def everything_in(directory: Path) -> set[Path]:
    """All files and directories."""
    return set(directory.rglob("*"))


def test_the_table_is_long() -> None:
    """Two hundred are asked for; each is another mistake. Those of programs are in test_bad_arguments."""
    inputs = {(bad.jobs, bad.arguments, *bad.env.items(), bad.around) for bad in TABLE.values()}
    assert len(inputs) == len(TABLE) >= 200


@pytest.mark.parametrize("name", TABLE)
def test_a_bad_input_is_reported_by_code_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden, name: str
) -> None:
    """One line for each mistake, on standard error: what is wrong, where, what to do, the code; and no traceback."""
    bad = TABLE[name]
    here, home = tmp_path / "here", tmp_path / "home"
    here.mkdir()
    home.mkdir()
    hide_clouds(monkeypatch)
    monkeypatch.chdir(here)
    jobs = bad.jobs if isinstance(bad.jobs, bytes) else bad.jobs.replace("<here>", str(here)).encode()
    Path("jobs.toml").write_bytes(jobs)
    bad.around()
    before = everything_in(tmp_path)
    result = CliRunner().invoke(
        main, bad.arguments, prog_name="taskscaler", env={"XDG_STATE_HOME": str(home), "TMPDIR": str(home), **bad.env}
    )
    lines = result.stderr.splitlines()
    assert all(line.startswith("error: ") for line in lines)
    assert tuple(re.findall(r" \[(\w+)\]$", line)[0] for line in lines) == bad.codes
    if name.startswith("file: "):
        assert all(line.startswith("error: jobs.toml: ") for line in lines)
    assert (result.exit_code, result.stdout) == (bad.status, "")
    assert isinstance(result.exception, SystemExit), "nothing else may get through"
    assert everything_in(tmp_path) == before
    text = result.stderr.replace(str(here), "<here>")
    for place, value in PLACES.items():
        text = text.replace(f"installed: {value})", f"installed: {place})")
    golden(f"bad_inputs/{name}", text)


def test_the_golden_file_has_no_sentence_too_many(golden: Golden) -> None:
    """A bad input that goes takes its sentences along."""
    golden.has_only("bad_inputs/", TABLE)


@pytest.mark.parametrize("jobs", [f"\ufeff{FLEET}{JOB}", f"{FLEET}{JOB}".replace("\n", "\r\n")], ids=["BOM", "CRLF"])
def test_what_editors_on_windows_add_is_no_mistake(tmp_path: Path, jobs: str) -> None:
    """A mark of the byte order and carriage returns are read over."""
    (tmp_path / "jobs.toml").write_bytes(jobs.encode())
    file = read_jobs_file(tmp_path / "jobs.toml")
    assert [job.spec.script for job in file.jobs] == ["true"]
