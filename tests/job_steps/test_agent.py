"""Parts of the agent: logs, the zipapp and the Pythons that start it, one request, and the rules that it applies."""

import ast
import json
import re
import runpy
import shutil
import subprocess
import sys
import zipfile
from collections import namedtuple
from contextlib import AsyncExitStack
from io import BytesIO
from pathlib import Path

import anyio
import pytest
from attrs import frozen

from job_steps import _zipapp
from job_steps._agent._holding import Holding
from job_steps._agent._job import KeptJob, directory_of
from job_steps._agent._log import JobLog
from job_steps._agent._main import main
from job_steps._agent._running import Rules, prepare, run
from job_steps._agent._service import Service
from job_steps._messages import RunMessage
from job_steps.client import CallFailed, Code, RunRequest, step_runner
from tests.fleeting.local_agents import POLL
from tests.job_steps.agents import agent

ZIPAPP_MAIN = Path(_zipapp.__file__).with_name("_zipapp_main.py")


# --- logs ---------------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_log_is_kept_up_to_its_limit_and_says_what_is_missing(tmp_path: Path) -> None:
    """The job goes on; whoever follows has what was kept, from any byte."""
    log = JobLog(str(tmp_path / "log"), limit=10)
    for piece in (b"12345", b"67890abc", b"def"):
        await log.write(piece)
    log.end()
    whole = b"".join([piece async for piece in log.follow(0)])
    assert whole == b"1234567890\n[6 bytes of this log were not kept: a log is kept up to 0 MiB]\n"
    assert b"".join([piece async for piece in log.follow(8)]) == whole[8:]


@pytest.mark.anyio
async def test_whoever_follows_hears_each_piece_and_the_end(tmp_path: Path) -> None:
    """From the beginning, from later, and from where nothing is yet; a job that is closed ends it, too."""
    log, heard = JobLog(str(tmp_path / "log")), {0: b"", 3: b"", 7: b""}
    async with anyio.create_task_group() as tasks:

        async def follow(offset: int) -> None:
            async for piece in log.follow(offset):
                heard[offset] += piece

        for offset in heard:
            tasks.start_soon(follow, offset)
        for piece in (b"12", b"345", b"6789"):
            await anyio.wait_all_tasks_blocked()
            await log.write(piece)
        await anyio.wait_all_tasks_blocked()
        log.close()
    assert heard == {0: b"123456789", 3: b"456789", 7: b"89"}


@pytest.mark.parametrize("job", ["1", "../../etc", "a/b", ".", "é" * 300, "x" * 300, "\ud800"])
def test_a_jobs_directory_is_its_own_whatever_its_id_is(job: str) -> None:
    """No id leads out of the directory of all."""
    directory = directory_of(Path("/jobs"), job)
    assert directory.parent == Path("/jobs")
    assert len(directory.name.encode()) <= 100
    assert directory.name not in {".", ".."}


@pytest.mark.parametrize("written", [b"", b"{", b"[]", b'{"id": "1"}', b'{"state": "GONE"}', b"\xff"])
@pytest.mark.anyio
async def test_what_is_no_job_on_disk_is_passed_over(tmp_path: Path, written: bytes) -> None:
    """A crash within a write leaves nothing that a later agent would fall over."""
    (tmp_path / "job.json").write_bytes(written)
    assert KeptJob.load(tmp_path) is None


# --- the zipapp ---------------------------------------------------------------------------------------------


def test_equal_contents_have_equal_bytes_and_one_name() -> None:
    """Built twice, with nothing in it that is compiled for a machine, and far below 40 MiB."""
    first, second = _zipapp.zipapp.__wrapped__(), _zipapp.zipapp.__wrapped__()
    assert first == second
    with zipfile.ZipFile(BytesIO(first.data)) as file:
        names = file.namelist()
    assert {Path(name).suffix for name in names} == {".py"}
    assert len(set(names)) == len(names)
    assert {"__main__.py", "job_steps/_agent/_main.py", "exceptiongroup/__init__.py"} <= set(names)
    assert not [name for name in names if name.startswith(("job_steps/cli", "job_steps/client", "fleeting"))]
    assert len(first.data) < 2 << 20


def test_every_python_can_parse_what_it_sees_first() -> None:
    """By the oldest grammar that this Python knows, and by nothing that Python 2 has not."""
    tree = ast.parse(ZIPAPP_MAIN.read_text(), feature_version=(3, 4))
    newer = (
        ast.JoinedStr,
        ast.AnnAssign,
        ast.NamedExpr,
        ast.Nonlocal,
        ast.AsyncFunctionDef,
        ast.YieldFrom,
        ast.Starred,
    )
    assert not [node for node in ast.walk(tree) if isinstance(node, newer)]
    for function in [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]:
        assert function.returns is None
        assert not function.args.kwonlyargs
        assert not [each for each in function.args.args if each.annotation]


VersionInfo = namedtuple("VersionInfo", "major minor micro releaselevel serial")  # noqa: PYI024  (as Python's own)


@pytest.mark.parametrize("found", [(2, 7, 18), (3, 6, 8), (3, 9, 20)])
def test_a_python_that_is_too_old_says_so_in_one_sentence(
    found: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With its own name and version; nothing else of the agent is touched."""
    monkeypatch.setattr(sys, "version_info", VersionInfo(*found, "final", 0))
    assert runpy.run_path(str(ZIPAPP_MAIN))["main"]() == 3
    version = ".".join(map(str, found))
    assert capsys.readouterr().err == f"agent.pyz: Python 3.10 or later is needed; {sys.executable} is {version}\n"


def _older_pythons() -> list[str]:
    """Those of this machine, also of pyenv, that are too old."""
    named = [shutil.which(f"python{version}") for version in ("2.7", "3.6", "3.7", "3.8", "3.9")]
    installed = [str(path) for path in Path.home().glob(".pyenv/versions/*/bin/python")]
    command = ("-c", "import sys; sys.exit(sys.version_info >= (3, 10))")
    return [
        each
        for each in filter(None, (*named, *installed))
        if subprocess.run([each, *command], check=False, capture_output=True).returncode == 0
    ]


def test_older_pythons_say_what_they_are(tmp_path: Path) -> None:
    """Whatever they make of the rest of the zipapp."""
    (tmp_path / "agent.pyz").write_bytes(_zipapp.zipapp().data)
    found = _older_pythons()
    if not found:
        pytest.skip("no Python before 3.10 on this machine")
    for each in found:
        ran = subprocess.run(
            [each, tmp_path / "agent.pyz", "serve", "/nonexistent"], capture_output=True, text=True, check=False
        )
        said = r"agent\.pyz: Python 3\.10 or later is needed; \S+ is [23]\.\d+\.\d+\n"
        assert (ran.returncode, ran.stdout) == (3, "")
        assert re.fullmatch(said, ran.stderr)


def test_a_zipapp_that_cannot_be_laid_out_runs_all_the_same(tmp_path: Path) -> None:
    """Where its directory is another's, or a disk is full."""
    (tmp_path / "agent.pyz").write_bytes(_zipapp.zipapp().data)
    (tmp_path / f"agent.pyz.{sys.implementation.cache_tag}").write_text("in the way")
    ran = subprocess.run([sys.executable, tmp_path / "agent.pyz", "check"], capture_output=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, b"")


# --- one request ---------------------------------------------------------------------------------------------


@frozen
class Ran:
    """What came of one request."""

    status: int
    output: str
    complaint: str


def _run(placed: Path, directory: Path, request: object, *options: str) -> Ran:
    """Have the agent run one request."""
    (directory / "request.json").write_text(request if isinstance(request, str) else json.dumps(request))
    program = f"{placed}/{_zipapp.zipapp().name}/agent.pyz"
    command = [sys.executable, program, "run", str(directory / "request.json"), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return Ran(done.returncode, done.stdout, done.stderr)


def test_a_request_runs_with_its_log_on_standard_output(placed: Path, tmp_path: Path) -> None:
    """Its exit status is that of the step that failed, and its tree is in the file that was asked for."""
    steps = "- {name: first, script: 'echo $A ${{ vars.B }}'}\n- {name: second, script: exit 7}\n"
    request = {
        "id": "1",
        "work_dir": str(tmp_path),
        "env": {"A": "one"},
        "variables": [{"key": "B", "value": "two", "file": False, "masked": False}],
        "steps": steps,
        "time_limit": 600,
    }
    ran = _run(placed, tmp_path, request, "--results", str(tmp_path / "results.json"))
    assert ran.status == 7
    assert "one two\n" in ran.output
    assert "step `second`: the command ended with exit status 7" in ran.complaint
    results = json.loads((tmp_path / "results.json").read_text())
    assert [(step["name"], step["status"]) for step in results["steps"]] == [
        ("first", "success"),
        ("second", "failure"),
    ]


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        ("nonsense", "request.json: not JSON"),
        ("[]", "request.json: expected an object"),
        ({"steps": 5}, "steps: not of a request, or not of the type"),
        ({"stepz": ""}, "stepz: not of a request"),
        ({"steps": "", "variables": [{"name": "x"}]}, "variables: expected objects with key, value, file and masked"),
        ({"steps": "", "env": {"A": 1}}, "env: expected strings"),
        ({"steps": "[]", "work_dir": "here"}, "work_dir: expected an absolute path, found 'here'"),
        ({"steps": "[", "work_dir": "/"}, "not YAML"),
    ],
)
def test_a_request_that_is_none_says_so_in_one_sentence(
    tmp_path: Path, request_: object, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing was run: the exit status is 2."""
    file = tmp_path / "request.json"
    file.write_text(request_ if isinstance(request_, str) else json.dumps(request_))
    assert main(["run", str(file)]) == 2
    heard = capsys.readouterr()
    assert heard.out == ""
    assert said in heard.err
    assert heard.err.count("\n") == 1


def _open_files(process: int) -> int:
    return len(list(Path(f"/proc/{process}/fd").iterdir()))


@pytest.mark.anyio
async def test_an_agent_that_has_too_many_files_open_goes_on(placed: Path, tmp_path: Path) -> None:
    """Those who are connected are served, and those who come once others have gone."""
    socket = tmp_path / "agent" / "agent.sock"
    async with agent(placed, tmp_path / "agent", files=40) as (process, client), AsyncExitStack() as many:
        for _ in range(45):
            await many.enter_async_context(await anyio.connect_unix(socket))
        while _open_files(process.pid) < 40:  # noqa: ASYNC110  (it tells nobody)
            await anyio.sleep(POLL)
        await client.statuses()
        await many.aclose()
        async with step_runner(await anyio.connect_unix(socket)) as later:
            await later.statuses()


# --- rules ---------------------------------------------------------------------------------------------------

NO_SCRIPTS = Rules.of([{"scripts": False}, {"timeout": 0.3}])


@pytest.mark.anyio
async def test_the_agents_rules_hold_whatever_a_manager_says(tmp_path: Path) -> None:
    """A list that they forbid is refused at once, a function that a step writes for itself when it is to be loaded."""
    (tmp_path / "jobs").mkdir()
    async with anyio.create_task_group() as tasks:
        listener = await anyio.create_unix_listener(tmp_path / "s")
        service = Service(tmp_path / "jobs", tasks, NO_SCRIPTS)
        tasks.start_soon(listener.serve, service.serve)
        async with listener, step_runner(await anyio.connect_unix(tmp_path / "s")) as client:
            with pytest.raises(CallFailed, match="the policy's `scripts` refuses the step `a`") as failed:
                await client.run(RunRequest(id="1", steps="- {name: a, script: echo}", work_dir=str(tmp_path)))
            assert failed.value.code is Code.PERMISSION_DENIED
            assert await client.statuses() == []
            tasks.cancel_scope.cancel()


def test_a_policy_that_is_none_keeps_the_agent_from_starting(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rather than from applying it."""
    (tmp_path / "policy.json").write_text('{"scriptz": false}')
    assert main(["serve", str(tmp_path / "agent"), "--policy", str(tmp_path / "policy.json")]) == 2
    assert "unknown key 'scriptz' in a policy" in capsys.readouterr().err
    assert not (tmp_path / "agent").exists()


@pytest.mark.parametrize(
    "policy", ["{", "[]", '{"scripts": 0}', '{"before": []}', '{"breakpoints": true}', "[" * 99999]
)
def test_a_jobs_own_policy_that_is_none_is_refused(policy: str) -> None:
    """Also one that says what only an operator may: a manager can send anything."""
    with pytest.raises(CallFailed, match=r"^policy: ") as failed:
        Rules.of([]).narrowed(policy)
    assert failed.value.code is Code.INVALID_ARGUMENT


def test_a_jobs_own_policy_allows_nothing() -> None:
    """Not that it is held at breakpoints, nor more time: those rules are the operator's alone."""
    narrowed = Rules.of([]).narrowed('{"commits": true}')
    assert not narrowed.allow_breakpoints
    assert narrowed.own_names == frozenset()
    assert Rules.of([{"breakpoints": True}]).narrowed('{"commits": true}').allow_breakpoints


@pytest.mark.anyio
async def test_the_machine_and_a_manager_may_both_add_steps(tmp_path: Path) -> None:
    """The machine's are around all others, and need no leave of the manager's policy; its own need the machine's."""
    machines = {"before": [{"name": "first", "script": "echo 1"}], "after": [{"name": "last", "script": "echo 5"}]}
    managers = {"scripts": False, "before": [{"name": "scan", "script": "echo 2"}], "allowed_paths": ["ci"]}
    (tmp_path / "ci").mkdir()
    (tmp_path / "ci" / "step.yml").write_text("{}\n---\nexec: {command: [echo, '3']}\n")
    admitted = Rules.of([managers]).admitted("- {name: build, step: ./ci}\n")
    asked = RunMessage(id="x", work_dir=str(tmp_path), steps=admitted)
    printed = b""

    async def log(data: bytes) -> None:
        nonlocal printed
        printed += data

    files = tmp_path / "files"
    files.mkdir()
    prepared = await prepare(asked, Rules.of([machines, managers]))
    outcome = await run(
        prepared,
        mark="x",
        note=tmp_path / "note",
        files=files,
        log=log,
        on_result=lambda _: None,
        holding=Holding("x"),
    )
    assert [line for line in printed.decode().splitlines() if line.isdigit()] == ["1", "2", "3", "5"], outcome.message
    with pytest.raises(CallFailed, match="the policy's `scripts` refuses the step `scan`"):
        await prepare(asked, Rules.of([{"scripts": False, "allowed_paths": ["*"]}, managers]))


def test_the_shortest_time_of_all_rules_counts() -> None:
    """A manager can ask for less, not for more."""
    assert NO_SCRIPTS.time_limit(None) == NO_SCRIPTS.time_limit(600) == 0.3
    assert NO_SCRIPTS.time_limit(0.1) == 0.1
    assert Rules().time_limit(None) is None
