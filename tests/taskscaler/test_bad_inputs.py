"""Bad inputs: what a user is told of each, word for word, and that nothing is left behind."""

import json
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
"""What depends on what is installed; the test's own directory is ``<here>``."""


@frozen(kw_only=True)
class Bad:
    """One bad input: what is run where, and every line that is said of it, on standard error."""

    says: tuple[str, ...]
    jobs: str | bytes = FLEET + JOB
    """What is in ``jobs.toml``."""

    arguments: tuple[str, ...] = RUN
    status: int = 2
    env: Mapping[str, str] = field(factory=dict)
    around: Callable[[], None] = lambda: None
    """Makes what else is there."""


def wrong_file(jobs: str | bytes, *messages: str) -> Bad:
    """A jobs file with mistakes, each told with the file's name."""
    return Bad(jobs=jobs, says=tuple(f"jobs.toml: {message}" for message in messages))


def wrong_arguments(*arguments: str, says: str, around: Callable[[], None] = lambda: None) -> Bad:
    """A command line that cannot be meant, with a jobs file that is right."""
    return Bad(arguments=arguments, says=(says,), around=around)


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
        (resume / "history.jsonl").write_text("".join(f"{json.dumps(event)}\n" for event in events))
        if copy is not None:
            (resume / "jobs.toml").write_text(copy)

    return leave


BEGUN = {"event": "begun", "version": 1, "started": 1.7e9, "jobs_file": "jobs.toml"}
TRIED = {"instance": "i", "slot": 0, "started": 1.7e9, "ended": None, "state": "running"}
RESUME = ("run", "--resume", "results")

WRONG_FILES = {
    "no TOML": wrong_file(
        "[autoscaler\nplugin = 'local'",
        ("found a mistake at line 1, column 12: expected ']' at the end of a table declaration, expected TOML [FL111]"),
    ),
    "value cut short": wrong_file(
        f"{FLEET}max_instances = \n",
        "found a mistake at line 3, column 17: invalid value, expected TOML; write a value, and text in quotes [FL111]",
    ),
    "quote left open": wrong_file(
        f'{FLEET}{JOB}timeout = "90s\n',
        "found a mistake at line 6, column 15: illegal character '\\n', expected TOML [FL111]",
    ),
    "table twice": wrong_file(
        FLEET + FLEET,
        "found a mistake at line 3, column 12: cannot declare ('autoscaler',) twice, expected TOML [FL111]",
    ),
    "key twice": wrong_file(
        f"{FLEET}max_instances = 1\nmax_instances = 2\n{JOB}",
        "found a mistake at line 4, column 18: cannot overwrite a value, expected TOML [FL111]",
    ),
    "brackets without end": wrong_file(
        f"{FLEET}x = {'[' * 5000}\n",
        "found brackets within brackets without end, expected TOML [FL111]",
    ),
    "number without end": wrong_file(
        f"{FLEET}max_instances = {'9' * 5000}\n{JOB}",
        "found a number with thousands of digits, expected TOML [FL111]",
    ),
    "empty": wrong_file(
        "",
        "autoscaler: found nothing, expected a table; this key is required [FL113]",
        "jobs: found nothing, expected an array; this key is required [FL113]",
    ),
    "only a comment": wrong_file(
        "# jobs\n",
        "autoscaler: found nothing, expected a table; this key is required [FL113]",
        "jobs: found nothing, expected an array; this key is required [FL113]",
    ),
    "no bytes of text": wrong_file(
        bytes(range(256)),
        "found the byte 0x80 in line 2, expected TOML in UTF-8; save it with that encoding [FL111]",
    ),
    "Latin-1": wrong_file(
        "# ä".encode("latin-1"),
        "found the byte 0xe4 in line 1, expected TOML in UTF-8; save it with that encoding [FL111]",
    ),
    "UTF-16": wrong_file(
        FLEET.encode("utf-16"),
        "found the byte 0xff in line 1, expected TOML in UTF-8; save it with that encoding [FL111]",
    ),
    "zeros": wrong_file(
        bytes(100),
        "found a mistake at line 1, column 1: invalid statement, expected TOML [FL111]",
    ),
    "no fleet": wrong_file(
        JOB,
        "autoscaler: found nothing, expected a table; this key is required [FL113]",
    ),
    "no plugin": wrong_file(
        f"[autoscaler]\n{JOB}",
        "autoscaler.plugin: found nothing, expected a string; this key is required [FL113]",
    ),
    "no jobs": wrong_file(
        f"jobs = []\n{FLEET}",
        "jobs: found an array, expected at least one job [FL110]",
    ),
    "jobs are a table": wrong_file(
        f'{FLEET}[jobs]\nname = "a"\n',
        "jobs: found a table, expected an array; write [[jobs]] [FL114]",
    ),
    "jobs are an empty table": wrong_file(
        f"jobs = {{}}\n{FLEET}",
        "jobs: found a table, expected an array; write [[jobs]] [FL114]",
    ),
    "a job is a word": wrong_file(
        f'jobs = ["true"]\n{FLEET}',
        'jobs[0]: found string "true", expected a table [FL114]',
    ),
    "a configuration of GitLab Runner": wrong_file(
        'concurrent = 2\n[[runners]]\n[runners.autoscaler]\nplugin = "local"\n',
        (
            "found [[runners]], as in a config.toml of GitLab Runner, expected a jobs file with [autoscaler] and"
            " [[jobs]]; see what it means with taskscaler check [FL110]"
        ),
    ),
    "unknown plugin": wrong_file(
        f'[autoscaler]\nplugin = "locl"\n{JOB}',
        (
            'autoscaler.plugin: found string "locl", expected the name of an installed plugin (<groups>); did you '
            "mean local? [FL120]"
        ),
    ),
    "plugin without a name": wrong_file(
        f'[autoscaler]\nplugin = ""\n{JOB}',
        'autoscaler.plugin: found string "", expected the name of a plugin [FL110]',
    ),
    "plugin that is a number": wrong_file(
        f"[autoscaler]\nplugin = 3\n{JOB}",
        'autoscaler.plugin: found integer 3, expected a string; write "3" [FL114]',
    ),
    "plugin that could be installed": wrong_file(
        f'[autoscaler]\nplugin = "fleeting-plugin-aws:latest"\n{JOB}',
        (
            'autoscaler.plugin: found string "aws", expected the name of an installed plugin (<groups>); pip '
            "install fleeting-aws [FL120]"
        ),
    ),
    "unknown table": wrong_file(
        f"{FLEET}{JOB}[reports]\n",
        (
            "reports: found an unknown key, expected one of autoscaler, jobs, defaults, executors, report; did you "
            "mean report? [FL112]"
        ),
    ),
    "unknown key of the fleet": wrong_file(
        f"{FLEET}max_instance = 4\n{JOB}",
        "autoscaler.max_instance: found an unknown key, expected a known key; did you mean max_instances? [FL112]",
    ),
    "unknown key of a job": wrong_file(
        f'{FLEET}{JOB}artefacts = ["x"]\n',
        "jobs[0].artefacts: found an unknown key, expected a known key; did you mean artifacts? [FL112]",
    ),
    "key with a line feed": wrong_file(
        f'{FLEET}"a\\nb" = 1\n{JOB}',
        'autoscaler."a\\nb": found an unknown key, expected a known key [FL112]',
    ),
    "number in quotes": wrong_file(
        f'{FLEET}max_instances = "4"\n{JOB}',
        'autoscaler.max_instances: found string "4", expected an integer; write 4 without quotes [FL114]',
    ),
    "number that is a date": wrong_file(
        f"{FLEET}max_instances = 2026-01-31\n{JOB}",
        "autoscaler.max_instances: found date 2026-01-31, expected an integer [FL114]",
    ),
    "number with a fraction": wrong_file(
        f"{FLEET}capacity_per_instance = 1.5\n{JOB}",
        "autoscaler.capacity_per_instance: found float 1.5, expected an integer [FL114]",
    ),
    "number of more than 64 bits": wrong_file(
        f"{FLEET}max_instances = {10**30}\n{JOB}",
        (
            "autoscaler.max_instances: found integer 1000000000000000000000000000000, expected an integer of at "
            "most 64 bits [FL110]"
        ),
    ),
    "number of more than a float": wrong_file(
        f"{FLEET}max_instances = {10**400}\n{JOB}",
        (
            "autoscaler.max_instances: found integer "
            "100000000000000000000000000000000000000000000000000000000000…, expected an integer of at most 64 bits "
            "[FL110]"
        ),
    ),
    "negative number": wrong_file(
        f"{FLEET}max_use_count = -1\n{JOB}",
        "autoscaler.max_use_count: found integer -1, expected >= 0 [FL110]",
    ),
    "no capacity": wrong_file(
        f"{FLEET}capacity_per_instance = 0\n{JOB}",
        "autoscaler.capacity_per_instance: found integer 0, expected >= 1 [FL110]",
    ),
    "negative capacity": wrong_file(
        f"{FLEET}capacity_per_instance = -2\n{JOB}",
        "autoscaler.capacity_per_instance: found integer -2, expected >= 1 [FL110]",
    ),
    "negative ceiling": wrong_file(
        f"{FLEET}max_instances = -1\n{JOB}",
        "autoscaler.max_instances: found integer -1, expected >= 0 [FL110]",
    ),
    "throttle that lets nothing through": wrong_file(
        f"{FLEET}scale_throttle = {{ limit = 0 }}\n{JOB}",
        "autoscaler.scale_throttle.limit: found float 0.0, expected a number above 0, or -1 for no limit [FL110]",
    ),
    "negative throttle": wrong_file(
        f"{FLEET}scale_throttle = {{ limit = -2 }}\n{JOB}",
        "autoscaler.scale_throttle.limit: found float -2.0, expected a number above 0, or -1 for no limit [FL110]",
    ),
    "infinite factor": wrong_file(
        f"{FLEET}{POLICY}scale_factor = inf\n{JOB}",
        "autoscaler.policy[0].scale_factor: found float inf, expected a number [FL114]",
    ),
    "factor that is no number": wrong_file(
        f"{FLEET}{POLICY}scale_factor = nan\n{JOB}",
        "autoscaler.policy[0].scale_factor: found float nan, expected a number [FL114]",
    ),
    "unknown choice": wrong_file(
        f'{FLEET}preexisting = "adpot"\n{JOB}',
        (
            'autoscaler.preexisting: found string "adpot", expected one of "refuse", "remove", "adopt"; did you '
            "mean adopt? [FL110]"
        ),
    ),
    "duration without a unit": wrong_file(
        f"{FLEET}{JOB}timeout = 90\n",
        'jobs[0].timeout: found integer 90, expected a duration such as "90s" or "1h30m"; write "90s" [FL115]',
    ),
    "duration without a unit in quotes": wrong_file(
        f'{FLEET}{JOB}timeout = "20"\n',
        'jobs[0].timeout: found string "20", expected a duration such as "90s" or "1h30m"; write "20s" [FL115]',
    ),
    "duration in words": wrong_file(
        f'{FLEET}{JOB}timeout = "5 min"\n',
        'jobs[0].timeout: found string "5 min", expected a duration such as "90s" or "1h30m" [FL115]',
    ),
    "duration in days": wrong_file(
        f'{FLEET}{JOB}timeout = "1d"\n',
        (
            'jobs[0].timeout: found string "1d", expected a duration such as "90s" or "1h30m"; days are not a '
            'unit, write "24h" [FL115]'
        ),
    ),
    "negative duration": wrong_file(
        f'{FLEET}{JOB}timeout = "-1s"\n',
        (
            'jobs[0].timeout: found string "-1s", expected a duration such as "90s" or "1h30m"; it cannot be '
            "negative [FL115]"
        ),
    ),
    "empty duration": wrong_file(
        f'{FLEET}{JOB}timeout = ""\n',
        'jobs[0].timeout: found string "", expected a duration such as "90s" or "1h30m" [FL115]',
    ),
    "duration of centuries": wrong_file(
        f'{FLEET}{JOB}timeout = "9999999h"\n',
        (
            'jobs[0].timeout: found string "9999999h", expected a duration such as "90s" or "1h30m"; it can be at '
            'most "2562047h47m16s" [FL115]'
        ),
    ),
    "no time": wrong_file(
        f'{FLEET}{JOB}timeout = "0s"\n',
        "jobs[0].timeout: found float 0.0, expected > 0 [FL110]",
    ),
    "age below zero": wrong_file(
        f'{FLEET}max_instance_age = "-1h"\n{JOB}',
        (
            'autoscaler.max_instance_age: found string "-1h", expected a duration such as "90s" or "1h30m"; '
            "it cannot be negative [FL115]"
        ),
    ),
    "no time to clean": wrong_file(
        f'{FLEET}instance_cleanup_timeout = "0s"\n{JOB}',
        "autoscaler.instance_cleanup_timeout: found float 0.0, expected > 0 [FL110]",
    ),
    "no time to acquire": wrong_file(
        f'{FLEET}instance_acquire_timeout = "0s"\n{JOB}',
        "autoscaler.instance_acquire_timeout: found float 0.0, expected > 0 [FL110]",
    ),
    "clean-up of several words": wrong_file(
        f'{FLEET}instance_cleanup_command = ["rm", "-r"]\n{JOB}',
        "autoscaler.instance_cleanup_command: found an array, expected a string [FL114]",
    ),
    "addresses shown by word": wrong_file(
        f'{FLEET}log_internal_ip = "yes"\n{JOB}',
        'autoscaler.log_internal_ip: found string "yes", expected true or false [FL114]',
    ),
    "looking all the time": wrong_file(
        f'{FLEET}update_interval = "0s"\n{JOB}',
        "autoscaler.update_interval: found float 0.0, expected > 0 [FL110]",
    ),
    "setting of the plugin": wrong_file(
        f'{FLEET}plugin_config = {{ boot_tme = "1s" }}\n{JOB}',
        (
            "autoscaler.plugin_config.boot_tme: found an unknown key, expected one of name, directory, boot_time, "
            "resume_time, orphan_ttl, max_size; did you mean boot_time? [FL112]"
        ),
    ),
    "name of the local group": wrong_file(
        f'{FLEET}plugin_config = {{ name = "a/b" }}\n{JOB}',
        (
            'autoscaler.plugin_config.name: found string "a/b", expected 1 to 64 letters, digits, dots, dashes and '
            "underscores, beginning with a letter or digit [FL110]"
        ),
    ),
    "relative directory of the local group": wrong_file(
        f'{FLEET}plugin_config = {{ directory = "fleet" }}\n{JOB}',
        'autoscaler.plugin_config.directory: found string "fleet", expected an absolute path [FL110]',
    ),
    "local group without room": wrong_file(
        f"{FLEET}plugin_config = {{ max_size = 0 }}\n{JOB}",
        "autoscaler.plugin_config.max_size: found integer 0, expected >= 1 [FL110]",
    ),
    "plugin_config that is a word": wrong_file(
        f'{FLEET}plugin_config = "default"\n{JOB}',
        "autoscaler.plugin_config: found a string, expected a table [FL114]",
    ),
    "unknown protocol": wrong_file(
        f'{FLEET}connector_config = {{ protocol = "locale" }}\n{JOB}',
        (
            'autoscaler.connector_config.protocol: found string "locale", expected the name of an installed plugin '
            "(<connectors>); did you mean local? [FL120]"
        ),
    ),
    "port beyond all ports": wrong_file(
        f"{FLEET}connector_config = {{ protocol_port = 65536 }}\n{JOB}",
        "autoscaler.connector_config.protocol_port: found integer 65536, expected <= 65535 [FL110]",
    ),
    "key that is not there": wrong_file(
        f'{FLEET}connector_config = {{ key_path = "/nowhere/id" }}\n{JOB}',
        (
            'autoscaler.connector_config.key_path: found string "/nowhere/id", expected the file of a private key '
            "that you may read [FL116]"
        ),
    ),
    "key that is a directory": wrong_file(
        f'{FLEET}connector_config = {{ key_path = "/" }}\n{JOB}',
        (
            'autoscaler.connector_config.key_path: found string "/", expected the file of a private key that you '
            "may read [FL116]"
        ),
    ),
    "password that is a number": wrong_file(
        f"{FLEET}connector_config = {{ password = 12345 }}\n{JOB}",
        "autoscaler.connector_config.password: found an integer, expected a string [FL114]",
    ),
    "policy that is one table": wrong_file(
        f"{FLEET}[autoscaler.policy]\nidle_count = 1\n{JOB}",
        "autoscaler.policy: found a table, expected an array; write [[autoscaler.policy]] [FL114]",
    ),
    "period out of range": wrong_file(
        f'{FLEET}{POLICY}periods = ["* 25 * * *"]\n{JOB}',
        (
            "autoscaler.policy[0].periods: found an array, expected cron expressions such as * 8-15 * * mon-fri "
            "(bad hour in '* 25 * * *') [FL110]"
        ),
    ),
    "period of three fields": wrong_file(
        f'{FLEET}{POLICY}periods = ["* * *"]\n{JOB}',
        (
            "autoscaler.policy[0].periods: found an array, expected cron expressions of five fields such as * 8-15 "
            "* * mon-fri ('* * *' has 3) [FL110]"
        ),
    ),
    "period that is a word": wrong_file(
        f'{FLEET}{POLICY}periods = "* * * * *"\n{JOB}',
        'autoscaler.policy[0].periods: found string "* * * * *", expected an array; write ["* * * * *"] [FL114]',
    ),
    "no period": wrong_file(
        f"{FLEET}{POLICY}periods = []\n{JOB}",
        (
            "autoscaler.policy[0].periods: found an array, expected at least one cron expression, such as * 8-15 * "
            "* mon-fri [FL110]"
        ),
    ),
    "time zone": wrong_file(
        f'{FLEET}{POLICY}timezone = "Berlin"\n{JOB}',
        (
            'autoscaler.policy[0].timezone: found string "Berlin", expected the name of a time zone such as UTC or '
            "Europe/Berlin [FL110]"
        ),
    ),
    "negative idle count": wrong_file(
        f"{FLEET}{POLICY}idle_count = -1\n{JOB}",
        "autoscaler.policy[0].idle_count: found integer -1, expected >= 0 [FL110]",
    ),
    "key of the state storage": wrong_file(
        f"{FLEET}state_storage = {{ enable = false }}\n{JOB}",
        (
            "autoscaler.state_storage.enable: found an unknown key, expected one of enabled, dir, "
            "keep_instance_with_acquisitions; did you mean enabled? [FL112]"
        ),
    ),
    "state storage switched with a word": wrong_file(
        f'{FLEET}state_storage = {{ enabled = "false" }}\n{JOB}',
        (
            'autoscaler.state_storage.enabled: found string "false", expected true or false; write false without '
            "quotes [FL114]"
        ),
    ),
    "state storage that is a switch": wrong_file(
        f"{FLEET}state_storage = true\n{JOB}",
        "autoscaler.state_storage: found boolean true, expected a table [FL114]",
    ),
    "relative directory for state": wrong_file(
        f'{FLEET}state_storage = {{ dir = "state" }}\n{JOB}',
        'autoscaler.state_storage.dir: found string "state", expected an absolute path [FL110]',
    ),
    "instances kept by number": wrong_file(
        f"{FLEET}state_storage = {{ keep_instance_with_acquisitions = 1 }}\n{JOB}",
        "autoscaler.state_storage.keep_instance_with_acquisitions: found integer 1, expected true or false [FL114]",
    ),
    "job without a name": wrong_file(
        f'{FLEET}[[jobs]]\nscript = "true"\n',
        "jobs[0].name: found nothing, expected a string; this key is required [FL113]",
    ),
    "job without a script": wrong_file(
        f'{FLEET}[[jobs]]\nname = "a"\n',
        "jobs[0].script: found nothing, expected a string; this key is required [FL113]",
    ),
    "name that is a path": wrong_file(
        f'{FLEET}[[jobs]]\nname = "../a"\nscript = "true"\n',
        (
            'jobs[0].name: found string "../a", expected at most 100 letters, digits, dots, hyphens and '
            "underscores, a letter or digit first [FL110]"
        ),
    ),
    "name that is a number": wrong_file(
        f'{FLEET}[[jobs]]\nname = 1\nscript = "true"\n',
        'jobs[0].name: found integer 1, expected a string; write "1" [FL114]',
    ),
    "name that a terminal would obey": wrong_file(
        f'{FLEET}[[jobs]]\nname = "\\u001b[31m"\nscript = "true"\n',
        (
            'jobs[0].name: found string "\\u001b[31m", expected at most 100 letters, digits, dots, hyphens and '
            "underscores, a letter or digit first [FL110]"
        ),
    ),
    "empty script": wrong_file(
        f'{FLEET}[[jobs]]\nname = "a"\nscript = "\\n"\n',
        'jobs[0].script: found string "\\n", expected something other than white space [FL110]',
    ),
    "script with a NUL": wrong_file(
        f'{FLEET}[[jobs]]\nname = "a"\nscript = "echo \\u0000"\n',
        'jobs[0].script: found string "echo \\u0000", expected a string without NUL characters [FL110]',
    ),
    "same name twice": wrong_file(
        FLEET + JOB + JOB,
        'jobs[1].name: found string "a", which jobs[0] has too, expected names that differ [FL110]',
    ),
    "copies with the name of another": wrong_file(
        f'{FLEET}{JOB}copies = 2\n[[jobs]]\nname = "a-02"\nscript = "true"\n',
        'jobs[1].name: found string "a-02", which jobs[0] has too, expected names that differ [FL110]',
    ),
    "no copies": wrong_file(
        f"{FLEET}{JOB}copies = 0\n",
        "jobs[0].copies: found integer 0, expected >= 1 [FL110]",
    ),
    "more copies than memory holds": wrong_file(
        f"{FLEET}{JOB}copies = 1_000_000_000_000\n",
        "jobs[0].copies: found integer 1000000000000, expected <= 1000000 [FL110]",
    ),
    "more jobs than memory holds, in several tables": wrong_file(
        f"{FLEET}{JOB}copies = 1_000_000\n" + "".join(JOB.replace('"a"', f'"{name}"') for name in "bcde"),
        "jobs: found an array, expected at most 1000000 jobs in all, copies counted (these are 1000004) [FL110]",
    ),
    "a log without room": wrong_file(
        f"{FLEET}{JOB}log_limit = 100\n",
        "jobs[0].log_limit: found integer 100, expected >= 4096 [FL110]",
    ),
    "negative retries": wrong_file(
        f"{FLEET}{JOB}retries = -1\n",
        "jobs[0].retries: found integer -1, expected >= 0 [FL110]",
    ),
    "unknown executor": wrong_file(
        f'{FLEET}{JOB}executor = "instanc"\n',
        (
            'jobs[0].executor: found string "instanc", expected the name of an installed plugin (<executors>); did '
            "you mean instance? [FL120]"
        ),
    ),
    "settings of an unknown executor": wrong_file(
        f'{FLEET}{JOB}[executors.podman]\nimage = "x"\n',
        'executors.podman: found string "podman", expected the name of an installed plugin (<executors>) [FL120]',
    ),
    "executor without a directory": wrong_file(
        f'{FLEET}{JOB}[executors.instance]\nbase = ""\n',
        'executors.instance.base: found string "", expected the path of a directory [FL110]',
    ),
    "default of an unknown executor": wrong_file(
        f'{FLEET}{JOB}[defaults]\nexecutor = "x"\n',
        'defaults.executor: found string "x", expected the name of an installed plugin (<executors>) [FL120]',
    ),
    "file that is not there": wrong_file(
        f'{FLEET}{JOB}files = ["nowhere.py"]\n',
        'jobs[0].files[0]: found string "nowhere.py", expected a file or directory in . [FL116]',
    ),
    "file with a name too long": wrong_file(
        f'{FLEET}{JOB}files = ["{"x" * 300}"]\n',
        (
            'jobs[0].files[0]: found string "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…", '
            "expected a file or directory in . [FL116]"
        ),
    ),
    "file outside": wrong_file(
        f'{FLEET}{JOB}files = ["../secret"]\n',
        (
            "jobs[0].files: found an array, expected paths inside the directory, relative to it ('../secret' is "
            "none) [FL110]"
        ),
    ),
    "files that are a word": wrong_file(
        f'{FLEET}{JOB}files = "jobs.toml"\n',
        'jobs[0].files: found string "jobs.toml", expected an array; write ["jobs.toml"] [FL114]',
    ),
    "artifact outside": wrong_file(
        f'{FLEET}{JOB}artifacts = ["/etc/passwd"]\n',
        (
            "jobs[0].artifacts: found an array, expected paths inside the directory, relative to it ('/etc/passwd' "
            "is none) [FL110]"
        ),
    ),
    "artifact above": wrong_file(
        f'{FLEET}{JOB}artifacts = ["a/../../b"]\n',
        (
            "jobs[0].artifacts: found an array, expected paths inside the directory, relative to it ('a/../../b' "
            "is none) [FL110]"
        ),
    ),
    "artifact without a name": wrong_file(
        f'{FLEET}{JOB}artifacts = [""]\n',
        ("jobs[0].artifacts: found an array, expected paths inside the directory, relative to it ('' is none) [FL110]"),
    ),
    "recursive glob": wrong_file(
        f'{FLEET}{JOB}artifacts = ["**/*.log"]\n',
        (
            "jobs[0].artifacts: found an array, expected paths or globs without ** ('**/*.log' has it); name a "
            "directory to take all that is in it [FL110]"
        ),
    ),
    "name of a variable": wrong_file(
        f'{FLEET}{JOB}env = {{ "A-B" = "x" }}\n',
        'jobs[0].env: found the name "A-B", expected letters, digits and underscores, no digit first [FL110]',
    ),
    "variable of ours": wrong_file(
        f'{FLEET}{JOB}env = {{ TASKSCALER_JOB_NAME = "b" }}\n',
        (
            'jobs[0].env: found the name "TASKSCALER_JOB_NAME", expected one that does not begin with TASKSCALER_ '
            "[FL110]"
        ),
    ),
    "default variable of ours": wrong_file(
        f'{FLEET}{JOB}[defaults.env]\nTASKSCALER_SLOT = "1"\n',
        'defaults.env: found the name "TASKSCALER_SLOT", expected one that does not begin with TASKSCALER_ [FL110]',
    ),
    "variables as a list": wrong_file(
        f'{FLEET}{JOB}env = ["TOKEN=x"]\n',
        "jobs[0].env: found an array, expected a table [FL114]",
    ),
    "variable that is a number": wrong_file(
        f"{FLEET}{JOB}env = {{ TOKEN = 12345 }}\n",
        "jobs[0].env.TOKEN: found an integer, expected a string [FL114]",
    ),
    "variable with a NUL": wrong_file(
        f'{FLEET}{JOB}env = {{ TOKEN = "\\u0000" }}\n',
        "jobs[0].env.TOKEN: found a string, expected a string without NUL characters [FL110]",
    ),
    "report without a command": wrong_file(
        f"{FLEET}{JOB}[report]\ncommand = []\n",
        "report.command: found an array, expected a program and its arguments [FL110]",
    ),
    "report that is a word": wrong_file(
        f'{FLEET}{JOB}[report]\ncommand = "make report"\n',
        'report.command: found string "make report", expected an array; write ["make report"] [FL114]',
    ),
    "report in one string": wrong_file(
        f'{FLEET}{JOB}[report]\ncommand = ["make report"]\n',
        (
            'report.command: found the program "make report", expected one that can be run on this machine; write '
            "each argument as a string of its own [FL116]"
        ),
    ),
    "report by an unknown program": wrong_file(
        f'{FLEET}{JOB}[report]\ncommand = ["no-such-program"]\n',
        'report.command: found the program "no-such-program", expected one that can be run on this machine [FL116]',
    ),
    "report by a program that is nowhere": wrong_file(
        f'{FLEET}{JOB}[report]\ncommand = ["/nowhere/report"]\n',
        'report.command: found the program "/nowhere/report", expected one that can be run on this machine [FL116]',
    ),
    "report by a script that is not copied": wrong_file(
        f'{FLEET}{JOB}[report]\ncommand = ["./report.sh"]\n',
        'report.command: found the program "./report.sh", expected one that can be run on this machine [FL116]',
    ),
    "report by a script that cannot be run": wrong_file(
        f'{FLEET}{JOB}[report]\ncommand = ["./jobs.toml"]\nfiles = ["jobs.toml"]\n',
        'report.command: found the program "./jobs.toml", expected one that can be run on this machine [FL116]',
    ),
    "report's file that is not there": wrong_file(
        f'{FLEET}{JOB}[report]\ncommand = ["true"]\nfiles = ["report.py"]\n',
        'report.files[0]: found string "report.py", expected a file or directory in . [FL116]',
    ),
    "report's file in the way": wrong_file(
        f'{FLEET}{JOB}[report]\ncommand = ["true"]\nfiles = ["logs/x"]\n',
        (
            "report.files: found an array, expected names that the results do not have themselves ('logs/x' is "
            "one) [FL110]"
        ),
    ),
    "report's file among what resuming needs": wrong_file(
        f'{FLEET}{JOB}[report]\ncommand = ["true"]\nfiles = ["resume"]\n',
        (
            "report.files: found an array, expected names that the results do not have themselves ('resume' is "
            "one) [FL110]"
        ),
    ),
    "report without time": wrong_file(
        f'{FLEET}{JOB}[report]\ncommand = ["true"]\ntimeout = "0s"\n',
        "report.timeout: found float 0.0, expected > 0 [FL110]",
    ),
    "several mistakes": wrong_file(
        f'{FLEET}max_instances = "4"\n{JOB}timeout = 90\nartefacts = ["x"]\n[[jobs]]\nname = "b"\n',
        'autoscaler.max_instances: found string "4", expected an integer; write 4 without quotes [FL114]',
        'jobs[0].timeout: found integer 90, expected a duration such as "90s" or "1h30m"; write "90s" [FL115]',
        "jobs[0].artefacts: found an unknown key, expected a known key; did you mean artifacts? [FL112]",
        "jobs[1].script: found nothing, expected a string; this key is required [FL113]",
    ),
}

WRONG_ARGUMENTS = {
    "no file": wrong_arguments(
        "run", says="missing argument 'JOBS'; to go on with an interrupted batch, give --resume DIR [FL101]"
    ),
    "unknown command": wrong_arguments("rnu", says="no such command 'rnu'; did you mean 'run'? [FL101]"),
    "unknown option": wrong_arguments(
        *RUN, "--outptu", "x", says="no such option '--outptu'; did you mean '--output'? [FL101]"
    ),
    "unknown short option": wrong_arguments(*RUN, "-x", says="no such option '-x'; see taskscaler run --help [FL101]"),
    "option of no command": wrong_arguments("--quiet", says="no such option '--quiet'; see taskscaler --help [FL101]"),
    "two files": wrong_arguments(
        *RUN, "b.toml", says="got unexpected extra argument (b.toml); see taskscaler run --help [FL101]"
    ),
    "file that is not there": wrong_arguments(
        "run",
        "nowhere.toml",
        says="invalid value for 'JOBS': File 'nowhere.toml' does not exist; see taskscaler run --help [FL101]",
    ),
    "file that is a directory": wrong_arguments(
        "run", ".", says="invalid value for 'JOBS': File '.' is a directory; see taskscaler run --help [FL101]"
    ),
    "file that cannot be read": wrong_arguments(
        "run",
        "/proc/self/mem",
        says=(
            "/proc/self/mem cannot be used: Input/output error; see to the path, its permissions and the disk's"
            " space, then run the command again [FL102]"
        ),
    ),
    "results without a name": wrong_arguments(
        *RUN, "--output", says="option '--output' requires an argument; see taskscaler run --help [FL101]"
    ),
    "results that are there": wrong_arguments(
        *RUN,
        "--output",
        "full",
        says="full is not empty; name another directory, or remove it [TS103]",
        around=results_in_the_way,
    ),
    "results in a file": wrong_arguments(
        *RUN,
        "--output",
        "jobs.toml",
        says="invalid value for '--output': Directory 'jobs.toml' is a file; see taskscaler run --help [FL101]",
    ),
    "results below a file": wrong_arguments(
        *RUN,
        "--output",
        "jobs.toml/results",
        says=(
            "jobs.toml/results cannot be used: Not a directory; see to the path, its permissions and the disk's"
            " space, then run the command again [FL102]"
        ),
    ),
    "results where nothing can be made": wrong_arguments(
        *RUN,
        "--output",
        "/proc/results",
        says=(
            "/proc/results cannot be used: No such file or directory; see to the path, its permissions and the"
            " disk's space, then run the command again [FL102]"
        ),
    ),
    "resuming nothing": wrong_arguments(
        "run", "--resume", says="option '--resume' requires an argument; see taskscaler run --help [FL101]"
    ),
    "resuming what is not there": wrong_arguments(
        "run",
        "--resume",
        "nowhere",
        says="invalid value for '--resume': Directory 'nowhere' does not exist; see taskscaler run --help [FL101]",
    ),
    "resuming a jobs file": wrong_arguments(
        "run",
        "--resume",
        "jobs.toml",
        says="invalid value for '--resume': Directory 'jobs.toml' is a file; see taskscaler run --help [FL101]",
    ),
    "resuming with a jobs file": wrong_arguments(
        *RUN,
        "--resume",
        "full",
        says="--resume takes no file; the batch goes on with the one that it was begun with [FL101]",
        around=results_in_the_way,
    ),
    "resuming elsewhere": wrong_arguments(
        "run",
        "--resume",
        "full",
        "--output",
        "other",
        says="--resume takes no --output; the results go where those of the batch are [FL101]",
        around=results_in_the_way,
    ),
    "resuming where no batch was begun": wrong_arguments(
        "run",
        "--resume",
        "full",
        says="no batch was begun in full; run its jobs file instead [TS104]",
        around=results_in_the_way,
    ),
    "resuming what is no batch": wrong_arguments(
        "run",
        "--resume",
        "full",
        says="no batch was begun in full; run its jobs file instead [TS104]",
        around=no_batch,
    ),
    "resuming a damaged batch": wrong_arguments(
        *RESUME,
        says="results/resume/history.jsonl is damaged: line 2 makes no sense; start a new batch [TS104]",
        around=batch(BEGUN, ["x"]),
    ),
    "resuming an empty history": wrong_arguments(
        *RESUME,
        says="results/resume/history.jsonl is damaged: its first line is missing; start a new batch [TS104]",
        around=batch(),
    ),
    "resuming the batch of a newer release": wrong_arguments(
        *RESUME,
        says=(
            "results/resume/history.jsonl cannot be used: a newer release has written it; go on with that release"
            " [TS104]"
        ),
        around=batch({**BEGUN, "version": 1000}),
    ),
    "resuming a batch of other jobs": wrong_arguments(
        *RESUME,
        says="results/resume/history.jsonl is damaged: it has the unknown job 'z'; start a new batch [TS104]",
        around=batch(BEGUN, {"event": "try", "job": "z", "number": 1, "attempt": TRIED, "warnings": []}),
    ),
    "resuming without the jobs file": wrong_arguments(
        *RESUME,
        says="nowhere.toml is no longer there; put it back as it is kept in results/resume/jobs.toml [TS104]",
        around=batch({**BEGUN, "jobs_file": "nowhere.toml"}),
    ),
    "resuming with another jobs file": wrong_arguments(
        *RESUME,
        says=(
            "jobs.toml is not what the batch was begun with: jobs changed; put it back as it is kept in"
            " results/resume/jobs.toml, or start a new batch [TS104]"
        ),
        around=batch(BEGUN, copy=FLEET + JOB.replace("true", "false")),
    ),
    "resuming with a damaged copy of the jobs file": wrong_arguments(
        *RESUME,
        says="results/resume/jobs.toml is damaged; start a new batch [TS104]",
        around=batch(BEGUN, copy="["),
    ),
    "resuming without the copy of the jobs file": wrong_arguments(
        *RESUME,
        says="results/resume/jobs.toml is gone; start a new batch [TS104]",
        around=batch(BEGUN, copy=None),
    ),
    "report on nothing": wrong_arguments(
        "report", says="missing argument 'RESULTS'; see taskscaler report --help [FL101]"
    ),
    "report on what is not there": wrong_arguments(
        "report",
        "nowhere",
        says="there is no directory nowhere; name the one that has the results [TS107]",
    ),
    "report on what is no batch": wrong_arguments(
        "report",
        "full",
        says=(
            "full/results.json cannot be used: it is not what a batch has written; name the directory that"
            " `taskscaler run` has written the results to, and a job or an instance of that batch [TS107]"
        ),
        around=no_batch,
    ),
    "report on a fleet of which nothing was recorded": wrong_arguments(
        "report",
        "results",
        says="nothing was recorded of the fleet of results; see fleet.log and the logs there [TS107]",
        around=batch(BEGUN),
    ),
    "negative price": wrong_arguments(
        *("report", ".", "--price-per-hour", "-1"),
        says=(
            "invalid value for '--price-per-hour': '-1' is no price, such as 0.12; see taskscaler report --help [FL101]"
        ),
    ),
    "price that is no number": wrong_arguments(
        *("report", ".", "--price-per-hour", "nan"),
        says=(
            "invalid value for '--price-per-hour': 'nan' is no price, such as 0.12; see taskscaler report --help"
            " [FL101]"
        ),
    ),
    "price without an end": wrong_arguments(
        *("report", ".", "--price-per-hour", "inf"),
        says=(
            "invalid value for '--price-per-hour': 'inf' is no price, such as 0.12; see taskscaler report --help"
            " [FL101]"
        ),
    ),
    "price in words": wrong_arguments(
        *("report", ".", "--price-per-hour", "cheap"),
        says=(
            "invalid value for '--price-per-hour': 'cheap' is no price, such as 0.12; see taskscaler report --help"
            " [FL101]"
        ),
    ),
    "explaining what is not there": wrong_arguments(
        "explain", "jobs", says="there is no directory jobs; name the one that has the results [TS107]"
    ),
    "explaining what is nearly there": wrong_arguments(
        "explain", "ful", says="there is no directory ful; did you mean full? [TS107]", around=results_in_the_way
    ),
    "explaining the directory above": wrong_arguments(
        "explain", ".", says=". holds no results of a batch; did you mean results? [TS107]", around=batch(BEGUN)
    ),
    "explaining what is no batch": wrong_arguments(
        "explain",
        "full",
        says=(
            "full/results.json cannot be used: it is not what a batch has written; name the directory that"
            " `taskscaler run` has written the results to, and a job or an instance of that batch [TS107]"
        ),
        around=no_batch,
    ),
    "explaining an unknown job": wrong_arguments(
        "explain",
        "results",
        "--job",
        "b",
        says="the batch in results has no job 'b'; it has a [TS107]",
        around=batch(BEGUN),
    ),
    "explaining an unknown instance": wrong_arguments(
        "explain",
        "results",
        "--instance",
        "i-1",
        says="the fleet of results had no instance 'i-1'; nothing was recorded of it [TS107]",
        around=batch(BEGUN),
    ),
    "explaining two things at once": wrong_arguments(
        "explain",
        "results",
        "--job",
        "a",
        "--instance",
        "i-1",
        says="--job and --instance are two questions; ask one at a time [FL101]",
        around=batch(BEGUN),
    ),
    "unknown code of an error": wrong_arguments(
        "errors", "FL999", says="no error has the code 'FL999'; taskscaler errors lists all [FL101]"
    ),
}

WRONG_SURROUNDINGS = {
    "report's program is not on the PATH": Bad(
        jobs=f'{FLEET}{JOB}[report]\ncommand = ["sh", "report.sh"]\n',
        env={"PATH": "/nowhere"},
        says=(
            'jobs.toml: report.command: found the program "sh", expected one that can be run on this machine [FL116]',
        ),
    ),
    "state in no directory": Bad(
        jobs=FLEET_HERE + JOB,
        env={"XDG_STATE_HOME": "/dev/null"},
        says=(
            (
                "/dev/null/taskscaler cannot be made: Not a directory; set dir in [autoscaler.state_storage] to another"
                " directory [FL202]"
            ),
        ),
        status=1,
    ),
    "home that is no directory": Bad(
        jobs=FLEET_HERE + JOB,
        env={"XDG_STATE_HOME": "", "HOME": "/dev/null"},
        says=(
            (
                "/dev/null/.local/state/taskscaler cannot be made: Not a directory; set dir in"
                " [autoscaler.state_storage] to another directory [FL202]"
            ),
        ),
        status=1,
    ),
    "state that others can change": Bad(
        jobs=f'{FLEET_HERE}state_storage = {{ dir = "<here>/state" }}\n{JOB}',
        around=state_of_others,
        says=(
            (
                "<here>/state belongs to or can be written by another user; set dir in [autoscaler.state_storage] to"
                " another directory, one of your own with mode 0700 [FL202]"
            ),
        ),
        status=1,
    ),
    "fleet below a file": Bad(
        jobs=f'{FLEET}plugin_config = {{ directory = "/dev/null/fleet" }}\n{JOB}',
        says=("/dev/null/fleet cannot be made: Not a directory; set plugin_config.directory to another one [FL201]",),
        status=1,
    ),
    "fleet that others can change": Bad(
        jobs=FLEET_HERE + JOB,
        around=fleet_of_others,
        says=(
            (
                "<here>/fleet belongs to or can be written by another user, or is a link; the group needs a directory"
                " of its own with mode 0700 [FL201]"
            ),
        ),
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
    """Sixty are asked for; each asks for something else."""
    inputs = {(bad.jobs, bad.arguments, *bad.env.items(), bad.around) for bad in TABLE.values()}
    assert len(inputs) == len(TABLE) >= 60


@pytest.mark.parametrize("bad", list(TABLE.values()), ids=list(TABLE))
def test_a_bad_input_is_told_in_a_line_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: Bad
) -> None:
    """What was found, what was expected, what to do, and the code to look up; on standard error, and no traceback."""
    here, home = tmp_path / "here", tmp_path / "home"
    here.mkdir()
    home.mkdir()
    hide_clouds(monkeypatch)
    monkeypatch.chdir(here)
    places = {**PLACES, "<here>": str(here)}

    def placed(text: str) -> str:
        for place, value in places.items():
            text = text.replace(place, value)
        return text

    Path("jobs.toml").write_bytes(bad.jobs if isinstance(bad.jobs, bytes) else placed(bad.jobs).encode())
    bad.around()
    before = everything_in(tmp_path)
    result = CliRunner().invoke(
        main, bad.arguments, prog_name="taskscaler", env={"XDG_STATE_HOME": str(home), "TMPDIR": str(home), **bad.env}
    )
    assert result.stderr.splitlines() == [f"error: {placed(line)}" for line in bad.says]
    assert (result.exit_code, result.stdout) == (bad.status, "")
    assert isinstance(result.exception, SystemExit), "nothing else may get through"
    assert everything_in(tmp_path) == before


@pytest.mark.parametrize("jobs", [f"\ufeff{FLEET}{JOB}", f"{FLEET}{JOB}".replace("\n", "\r\n")], ids=["BOM", "CRLF"])
def test_what_editors_on_windows_add_is_no_mistake(tmp_path: Path, jobs: str) -> None:
    """A mark of the byte order and carriage returns are read over."""
    (tmp_path / "jobs.toml").write_bytes(jobs.encode())
    file = read_jobs_file(tmp_path / "jobs.toml")
    assert [job.spec.script for job in file.jobs] == ["true"]
