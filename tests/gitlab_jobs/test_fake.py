"""A GitLab on a desk: the command, as somebody uses it who has a runner and no GitLab."""

import json
import signal
import socket
import subprocess
import sys
import zipfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from anyio.abc import Process
from anyio.streams.text import TextReceiveStream
from click.testing import CliRunner

from gitlab_jobs import FileInvalid
from gitlab_jobs._jobsfile import read_jobs
from gitlab_jobs.cli import main
from gitlab_jobs.cli._fake import _Desk
from gitlab_jobs.client import GitLabClient
from gitlab_jobs.testing import URL
from tests.gitlab_jobs.desk_runner import work

EXAMPLE = Path(__file__).parents[2] / "examples" / "gitlab" / "jobs.toml"
COMMAND = [sys.executable, "-c", "from gitlab_jobs.cli import main; main()", "fake"]
SMALL = '[[jobs]]\nname = "a"\nscript = "echo hello"\n'


class Desk:
    """The command, while it runs."""

    def __init__(self, process: Process) -> None:
        """Read what it prints."""
        assert process.stdout
        self.process = process
        self.printed = ""
        self._stream = TextReceiveStream(process.stdout)

    async def read_until(self, text: str) -> None:
        """Read until it has printed a text."""
        while text not in self.printed:
            self.printed += await self._stream.receive()

    async def read_on(self) -> None:
        """Read until it ends."""
        async for text in self._stream:
            self.printed += text

    def said(self, name: str) -> str:
        """What is printed beside a name."""
        return next(line.split()[1] for line in self.printed.splitlines() if line.startswith(name))


@asynccontextmanager
async def desk(*arguments: str | Path, cwd: Path) -> AsyncIterator[Desk]:
    """Start the command; once it listens, the address and the token are known."""
    async with await anyio.open_process([*COMMAND, *map(str, arguments)], cwd=cwd, stderr=subprocess.STDOUT) as process:
        started = Desk(process)
        await started.read_until("jobs ")
        try:
            yield started
        finally:
            if process.returncode is None:
                process.kill()


@pytest.mark.slow
@pytest.mark.anyio
async def test_a_pipeline_of_twenty_jobs(tmp_path: Path) -> None:
    """Needs, artifacts, a masked value, one that fails, one that is skipped and one that is cancelled: as expected."""
    (tmp_path / "work").mkdir()
    async with desk(EXAMPLE, "--output", tmp_path / "out", cwd=tmp_path) as started, anyio.create_task_group() as tasks:
        tasks.start_soon(work, started.said("url"), started.said("token"), tmp_path / "work")
        await started.read_on()
        status = await started.process.wait()
        tasks.cancel_scope.cancel()
    assert status == 0, started.printed
    assert "20 of 20 jobs ended as expected" in started.printed
    logs = {path.name: path.read_bytes() for path in (tmp_path / "out").glob("*.log")}
    assert b"the password is [MASKED]\n" in logs.values()
    assert not any(b"battery" in log for log in logs.values())
    assert b"linux\nmacos\nwindows\n" in logs.values()
    assert b"".join(b"%d\n" % number for number in range(1, 20001)) in logs.values()
    assert any(zipfile.is_zipfile(path) for path in (tmp_path / "out").iterdir())


@pytest.mark.anyio
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_it_ends_when_it_is_told_to(tmp_path: Path, number: signal.Signals) -> None:
    """Without a traceback, while jobs still wait for a runner."""
    (tmp_path / "jobs.toml").write_text(SMALL)
    async with desk("jobs.toml", cwd=tmp_path) as started:
        started.process.send_signal(number)
        await started.read_on()
        assert await started.process.wait() == 130
    assert "Traceback" not in started.printed


@pytest.mark.anyio
async def test_a_job_that_ends_otherwise_is_named(tmp_path: Path) -> None:
    """And the exit status says so; the token is the user's."""
    (tmp_path / "work").mkdir()
    (tmp_path / "jobs.toml").write_text(SMALL + 'expect = "failed"\n')
    async with desk("jobs.toml", "--token", "glrt-mine", cwd=tmp_path) as started, anyio.create_task_group() as tasks:
        assert started.said("token") == "glrt-mine"
        tasks.start_soon(work, started.said("url"), "glrt-mine", tmp_path / "work")
        await started.read_on()
        assert await started.process.wait() == 1
        tasks.cancel_scope.cancel()
    assert "a: expected failed, found success; see gitlab/1.log" in started.printed
    assert (tmp_path / "gitlab/1.log").read_text() == "hello\n"
    assert (tmp_path / "gitlab").stat().st_mode & 0o777 == 0o700


def test_the_example_has_twenty_jobs() -> None:
    """As its page says."""
    assert len(read_jobs(EXAMPLE)) == 20


def test_a_job_may_have_steps(tmp_path: Path) -> None:
    """As GitLab has them: JSON in a string, and no script beside it but that of `after_script`."""
    path = tmp_path / "jobs.toml"
    path.write_text("[[jobs]]\nname = 'a'\nafter_script = 'true'\n[[jobs.run]]\nname = 'b'\nscript = 'make'\n")
    (planned,) = read_jobs(path)
    assert json.loads(planned.job.run) == [{"name": "b", "script": "make"}]
    assert [step.name for step in planned.job.steps] == ["after_script"]


BAD_FILES = {
    "": "expected jobs, found none; add a table [[jobs]] with a name and a script",
    "jobs = 3": "expected jobs, found none",
    "jobs = [3]": "jobs[0]: expected a table",
    "[[jobs]": "expected TOML (",
    "\udcff": "expected TOML (",
    "x = " + "[" * 5000: "expected TOML (",
    "[job]": "unknown key 'job'; did you mean jobs?",
    "[[jobs]]": "jobs[0]: expected name as a string, found ''",
    '[[jobs]]\nname = "a"': "jobs[0] ('a'): expected a script, or run with a list of steps",
    SMALL + "run = [{ name = 'a' }]": "expected a script, or run with a list of steps, and not both",
    '[[jobs]]\nname = "a"\nrun = "x"': "run is a list of steps, each a table",
    '[[jobs]]\nname = "a"\nrun = [{ x = 2026-11-23 }]': "cannot be written as JSON",
    '[[jobs]]\nname = "a"\nscript = 3': "script is a string or a list of strings",
    SMALL + "scirpt = 3": "unknown key 'scirpt'; did you mean script?",
    SMALL + SMALL: "two jobs are called 'a'",
    SMALL + 'needs = ["a"]': "job 'a' needs 'a', which is not a job above it",
    SMALL + "cancel_after = -1": "cancel_after is a number of seconds, found -1",
    SMALL + "cancel_after = nan": "cancel_after is a number of seconds, found nan",
    SMALL + "cancel_after = true": "cancel_after is a number of seconds, found True",
    SMALL + 'expect = "green"': "expect is one of success, failed, canceled, skipped, found 'green'",
    SMALL + "timeout = 3600.0": "found a number with a fraction @ job.runner_info.timeout",
    SMALL + "variables = 3": "variables is a table of names and values",
    SMALL + "variables = { A = 1 }": "expected a string, found an integer @ job.variables[1].value",
    SMALL + "variables = { A = { valeu = 1 } }": "variables.A: unknown key 'valeu'; did you mean value?",
    SMALL + 'variables = { "A;B" = "x" }': "variables: no shell can have 'A;B'",
    SMALL + 'variables = { A = "x\\u0000" }': "variables.A: no environment can have a NUL",
    SMALL + "artifacts = [{ paths = 3 }]": "expected a list, found an integer @ job.artifacts[0].paths",
    SMALL + "cache = [{ key = 2026-11-23 }]": "cannot be written as JSON",
    SMALL + "inputs = [{ key = 'a', value = { content = inf } }]": "cannot be written as JSON",
}


@pytest.mark.parametrize("text", BAD_FILES, ids=range(len(BAD_FILES)))
def test_a_bad_file_is_one_line(text: str, tmp_path: Path) -> None:
    """It says where, what was found and what was expected."""
    path = tmp_path / "jobs.toml"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(FileInvalid) as error:
        read_jobs(path)
    assert str(error.value).startswith(f"{path}: ")
    assert BAD_FILES[text] in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_has_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In bytes and in jobs."""
    path = tmp_path / "jobs.toml"
    path.write_text("#" * ((32 << 20) + 1))
    with pytest.raises(FileInvalid, match="expected at most 33554432 bytes"):
        read_jobs(path)
    monkeypatch.setattr("gitlab_jobs._jobsfile.MAX_JOBS", 1)
    path.write_text(SMALL + SMALL.replace("a", "b"))
    with pytest.raises(FileInvalid, match="expected at most 1 jobs, found 2"):
        read_jobs(path)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("token", "said"),
    [
        (None, "no runner has asked for a job so far; start one with this url and token\n"),
        ("glrt-other", "a runner asks for jobs with another token than the one above\n"),
        ("glrt-mine", ""),
    ],
)
async def test_a_user_without_a_runner_is_reminded(
    token: str | None, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once, after a while; also one whose runner has another token, about which GitLab says nothing."""
    monkeypatch.setattr("gitlab_jobs.cli._fake._PATIENCE", 0.0)
    (tmp_path / "jobs.toml").write_text(SMALL)
    there = _Desk(read_jobs(tmp_path / "jobs.toml"), tmp_path, "glrt-mine")
    if token is not None:
        async with GitLabClient(URL, transport=there._gitlab.transport()) as client:
            await client.ask(token)
    await there._remind()
    assert capsys.readouterr().out == said


def test_a_port_that_is_taken_is_one_line(tmp_path: Path) -> None:
    """With what to do."""
    (tmp_path / "jobs.toml").write_text(SMALL)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        result = CliRunner().invoke(main, ["fake", str(tmp_path / "jobs.toml"), "--bind", where])
    assert result.output == f"error: --bind: {where}: Address already in use; port 0 is any that is free\n"
    assert result.exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.toml"], "error: nowhere.toml: No such file or directory\n"),
        (["."], "error: .: Is a directory\n"),
        (["jobs.toml", "--bind", "x"], "error: --bind: expected HOST:PORT, found 'x'"),
        (["jobs.toml", "--bind", "127.0.0.1:99999"], "error: --bind: expected HOST:PORT, found '127.0.0.1:99999'"),
        (["jobs.toml", "--bind", "0.0.0.0:0"], "error: --bind: 0.0.0.0 can be reached by other machines, without TLS"),
        (["jobs.toml", "--token", "a\nb"], "error: --token: expected up to 255 printable ASCII characters"),
        (["jobs.toml", "--token", ""], "error: --token: expected up to 255 printable ASCII characters"),
        (["jobs.toml", "--output", "jobs.toml"], "error: jobs.toml: File exists\n"),
        (["jobs.toml", "--outptu", "x"], "Error: No such option '--outptu'. Did you mean '--output'?"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_wrong_arguments_are_one_line(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is started."""
    monkeypatch.chdir(tmp_path)
    Path("jobs.toml").write_text(SMALL)
    result = CliRunner().invoke(main, ["fake", *arguments])
    assert result.exit_code == 2
    assert message in result.output
    assert "Traceback" not in result.output
