"""What the driver of the custom executor says when it was called wrongly: one clear line, and whose fault it is."""

import json
import stat
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from taskscaler_gitlab.cli import main

BUILD, SYSTEM = 3, 4
"""Exit statuses that are not the usual ones."""

USAGE = 2
"""That of wrong arguments: gitlab-runner takes it for a failure of ours, too."""


def called(here: Path, *arguments: str, **more: str) -> Result:
    """Call it as gitlab-runner does; *more* are variables."""
    (here / "response.json").write_text(json.dumps({"id": 17, "token": "secret-token"}))
    (here / "no-job.json").write_text("{}")
    (here / "empty.sh").write_text("")
    (here / "script.sh").write_text("#!/usr/bin/env bash\n")
    env = {
        "BUILD_FAILURE_EXIT_CODE": str(BUILD),
        "SYSTEM_FAILURE_EXIT_CODE": str(SYSTEM),
        "JOB_RESPONSE_FILE": str(here / "response.json"),
        "CUSTOM_ENV_CI_JOB_ID": "17",
        "XDG_RUNTIME_DIR": str(here),
        "XDG_STATE_HOME": str(here / "state"),
        "TASKSCALER_SOCKET": f"{here}/absent.sock",
        **more,
    }
    filled = [each.format(here=here) for each in arguments]
    return CliRunner().invoke(main, ["custom-executor", *filled], env=env, prog_name="taskscaler-gitlab")


def check(done: Result, status: int, why: str) -> None:
    """It is one line, which says what is wrong and what to do, and nothing for gitlab-runner to read."""
    assert isinstance(done.exception, SystemExit), done.exception
    assert (done.stdout, len(done.stderr.splitlines())) == ("", 1), done.stderr
    assert done.stderr.startswith("error: ")
    assert why in done.stderr
    assert "; " in done.stderr
    assert "secret-token" not in done.stderr
    assert done.exit_code == status


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("prepare", "--patience", "0s"), "no daemon answers at"),
        (("run", "--patience", "0s", "{here}/script.sh", "x"), "no daemon answers at"),
        (("cleanup", "--patience", "0s"), "no daemon answers at"),
        (("run", "{here}/absent.sh", "x"), "No such file"),
        (("run", "{here}", "x"), "Is a directory"),
        (("run", "{here}/empty.sh", "x"), "does not say which shell"),
        (("config", "--socket", "https://[::1]:1"), "token"),
        (
            ("config", "--builds-dir", "builds"),
            "--builds-dir: expected an absolute path on the instances, found 'builds'",
        ),
        (("config", "--cache-dir", "~/cache"), "--cache-dir: expected an absolute path"),
        (("config", "--fleet", "gpu"), "--fleet: expected NAME=SOCKET, found 'gpu'"),
    ],
)
def test_what_is_called_wrongly_is_our_failure(tmp_path: Path, arguments: tuple[str, ...], why: str) -> None:
    """Not the job's: it may run elsewhere."""
    check(called(tmp_path, *arguments), SYSTEM, why)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("run", "{here}/script.sh"), "missing argument 'STAGE'"),
        (("prepare", "--ttl", "0s"), "expected 1s to 7d"),
        (("prepare", "--timeout", "soon"), "'soon' is not a duration"),
        (("config", "--shell", "pwsh"), "'pwsh' is not one of 'bash', 'sh'"),
        (("config", "--sokcet", "x"), "no such option '--sokcet'; did you mean '--socket'?"),
        (("confgi",), "no such command 'confgi'"),
    ],
)
def test_wrong_arguments_are_reported_as_everywhere(tmp_path: Path, arguments: tuple[str, ...], why: str) -> None:
    """The operator has written them."""
    check(called(tmp_path, *arguments), USAGE, why)


@pytest.mark.parametrize("part", ["config", "prepare", "cleanup", "run"])
@pytest.mark.parametrize(
    ("response", "why"),
    [
        ("", "JOB_RESPONSE_FILE is not set; this is a command for the custom executor"),
        ("{here}/absent.json", "No such file"),
        ("{here}/no-job.json", "has no job of GitLab's"),
    ],
)
def test_whoever_does_not_say_which_job_it_is_gets_nothing(tmp_path: Path, part: str, response: str, why: str) -> None:
    """As somebody who tries a command by hand."""
    script = ("{here}/script.sh", "x") if part == "run" else ()
    check(called(tmp_path, part, *script, JOB_RESPONSE_FILE=response.format(here=tmp_path)), SYSTEM, why)


@pytest.mark.parametrize(
    ("variable", "value", "why"),
    [
        ("TASKSCALER_FLEET", "gpu", "its runner has small, large; name one of those"),
        ("TASKSCALER_FLEET", "smal", "did you mean 'small'?"),
        ("TASKSCALER_FLEET", "/run/other.sock\x1b[31m", "the job asks for the fleet '/run/other.sock"),
        ("CI_JOB_ID", "18", "the job 17 sets CI_JOB_ID to '18'"),
    ],
)
def test_what_a_job_asks_for_and_cannot_have_is_its_failure(
    tmp_path: Path, variable: str, value: str, why: str
) -> None:
    """So it is not tried again."""
    fleets = ("--fleet", "small={here}/s.sock", "--fleet", "large={here}/l.sock")
    check(called(tmp_path, "config", *fleets, **{f"CUSTOM_ENV_{variable}": value}), BUILD, why)


def test_a_choice_goes_to_the_calls_that_follow(tmp_path: Path) -> None:
    """As the socket of the fleet, with nothing else on standard output."""
    fleets = ("--fleet", "small={here}/s.sock", "--fleet", "large={here}/l.sock")
    done = called(tmp_path, "config", *fleets, CUSTOM_ENV_TASKSCALER_FLEET="large")
    assert (done.exit_code, done.stderr) == (0, "")
    assert json.loads(done.stdout)["job_env"]["TASKSCALER_SOCKET"] == f"{tmp_path}/l.sock"


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However large a job is, we are not."""
    monkeypatch.setattr("taskscaler_gitlab.custom._driver.LARGEST", 8)
    check(called(tmp_path, "config"), SYSTEM, "has more than")


UNFORESEEN = [
    RuntimeError("a mistake\nof ours"),
    BaseExceptionGroup("several", [KeyboardInterrupt("a mistake of ours")]),
    MemoryError("a mistake of ours"),
]


@pytest.mark.parametrize("error", UNFORESEEN, ids=lambda error: type(error).__name__)
def test_what_nobody_foresaw_is_not_the_jobs_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """Python would end with the status that gitlab-runner takes for the script's. The job's log has one line of it."""

    def fails(_: object) -> None:
        raise error

    monkeypatch.setattr("taskscaler_gitlab.custom._driver.shell_for", fails)
    check(called(tmp_path, "run", "{here}/script.sh", "x"), SYSTEM, "a mistake of ours in ")
    assert "Traceback (most recent call last):\n" in kept(tmp_path).read_text()


def kept(here: Path) -> Path:
    """Where the operator finds what went wrong."""
    return here / "state" / "taskscaler" / "custom-executor-errors.log"


def test_a_traceback_is_kept_for_the_operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job's log says where, and has none of it; the file is the operator's alone, and does not grow for ever."""

    def deep(depth: int) -> None:
        if depth:
            deep(depth - 1)
        raise RuntimeError("x" * 100_000)

    monkeypatch.setattr("taskscaler_gitlab.custom._driver.shell_for", lambda _: deep(3))
    file = kept(tmp_path)
    for _ in range(40):
        done = called(tmp_path, "run", "{here}/script.sh", "x")
        assert f" with its traceback, which is in {file} on " in done.stderr
        assert (done.exit_code, len(done.stderr.splitlines()), "Traceback" in done.stderr) == (SYSTEM, 1, False)
        assert file.read_text().rpartition(" job=17\n")[2].count("x") >= 60_000
        assert (stat.S_IMODE(file.stat().st_mode), stat.S_IMODE(file.parent.stat().st_mode)) == (0o600, 0o700)
    assert sorted(each.name for each in file.parent.iterdir()) == [file.name, file.with_suffix(".old.log").name]
    assert max(each.stat().st_size for each in file.parent.iterdir()) < 1_200_000


def test_a_traceback_that_cannot_be_kept_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is our failure all the same, and said in one line."""

    def fails(_: object) -> None:
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr("taskscaler_gitlab.custom._driver.shell_for", fails)
    (tmp_path / "state").touch()
    done = called(tmp_path, "run", "{here}/script.sh", "x")
    check(done, SYSTEM, "a mistake of ours in ")
    assert "Traceback" not in done.stderr
    assert ".log" not in done.stderr


def test_sigint_is_not_the_jobs_failure_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before there is an event loop."""

    def fails(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("taskscaler_gitlab.custom._driver.shell_for", fails)
    check(called(tmp_path, "run", "{here}/script.sh", "x"), SYSTEM, "SIGINT has ended this")


@pytest.mark.parametrize("module", ["taskscaler_gitlab.custom._driver", "taskscaler.cli.job_slot"])
@pytest.mark.parametrize("arguments", [("config",), ("prepare",), ("run", "{here}/script.sh", "x"), ("cleanup",)])
def test_what_cannot_be_imported_is_not_the_jobs_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, arguments: tuple[str, ...]
) -> None:
    """As while packages are replaced under a gitlab-runner that works."""
    for name in {"taskscaler_gitlab.custom._driver", module}:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, module, None)
    check(called(tmp_path, *arguments), SYSTEM, f"import of {module} halted")
