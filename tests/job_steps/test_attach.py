"""`attach`, as a command of the agent and of `job-steps`: what people type, what they see, and how it ends."""

import fcntl
import io
import json
import os
import pty
import pwd
import socket
import subprocess
import sys
import termios
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import cast

import anyio
import pytest
from anyio import to_thread
from attrs import define, field
from click.testing import CliRunner

from job_steps import _agents_here
from job_steps._agent._alone import remove_left
from job_steps._agent._holding import attach_command
from job_steps._agent._main import main
from job_steps._agents_here import Agent, CannotAttach, KnownJob, agents_here, sockets_below
from job_steps._attach import Wish, _chosen
from job_steps._messages import RunState
from job_steps._prompt import identity_of
from job_steps._zipapp import zipapp
from job_steps.cli import main as click_main
from job_steps.client import RunRequest, StepRunnerClient
from tests.job_steps.agents import agent, log_of
from tests.job_steps.test_breakpoints import TOKEN, TWO

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    """One is enough: what is tested are programs."""
    return "asyncio"


async def as_program(placed: Path, *arguments: str, typed: str = "") -> tuple[int, list[str], str]:
    """Run the agent's own `attach`; returns how it ended, and what it printed, also in error."""
    command = [sys.executable, placed / zipapp().name / "agent.pyz", "attach", *arguments]
    env = {**os.environ, "SHELL": "/bin/sh"}
    done = await anyio.run_process([str(each) for each in command], input=typed.encode(), check=False, env=env)
    return done.returncode, done.stdout.decode().splitlines(), done.stderr.decode()


Attached = Callable[..., Awaitable[tuple[int, list[str], str]]]
"""The same as `as_program`, in this process, which costs a tenth."""


@pytest.fixture
def attached(placed: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Attached:
    """Return what attaches as the agent's own command does."""
    monkeypatch.setattr(sys, "argv", [str(placed / zipapp().name / "agent.pyz")])

    async def run(*arguments: str, typed: str = "") -> tuple[int, list[str], str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
        code = await to_thread.run_sync(main, ["attach", *arguments])
        out, err = capsys.readouterr()
        return code, out.splitlines(), err

    return run


@define
class Place:
    """Where an agent is."""

    placed: Path
    directory: Path
    client: StepRunnerClient
    jobs: list[str] = field(factory=list)

    async def begin(self, job: str, *breakpoints: str, steps: str = TWO) -> None:
        """Start a job, and wait until it is held."""
        request = RunRequest(
            id=job, steps=steps, work_dir=str(self.directory / job), variables=(TOKEN,), breakpoints=breakpoints
        )
        await self.client.run(request)
        if breakpoints:
            async for held in self.client.follow_held(job):
                if held.step:
                    break


@asynccontextmanager
async def place(placed: Path, directory: Path) -> AsyncIterator[Place]:
    """An agent that allows breakpoints, where `attach` looks for it."""
    policy = directory / "policy.json"
    policy.write_text('{"breakpoints": true}')
    async with agent(placed, placed / zipapp().name / f"run-{directory.name}", options=("--policy", str(policy))) as (
        _,
        client,
    ):
        yield Place(placed, directory, client)


async def test_a_session(placed: Path, tmp_path: Path) -> None:
    """From one step that is held to the next, to the end; secrets are masked, but for the shell."""
    async with place(placed, tmp_path) as there:
        await there.begin("job", "build:before")
        shown = ["env", "inputs", "outputs", "command", "shell", "break check:failure", "break chek", "break x:y", "hm"]
        typed = "\n".join([*shown, "help", "c", "env", "continue", ""])
        code, out, err = await as_program(placed, typed=typed)
        await log_of(there.client, "job")
    assert (code, err) == (0, "")
    script = "echo building > built; echo $TOKEN"
    assert out == [
        "before build; `help` for commands",
        '(job-steps) TOKEN = "[MASKED]"',
        f'(job-steps) script = "{script}"',
        "(job-steps) no outputs",
        out[4],
        f"in {tmp_path / 'job'}",
        "(job-steps) (job-steps) (job-steps) breakpoints: there is no step `chek`; did you mean `check`?",
        "(job-steps) breakpoints: `x:y`; expected STEP, STEP:before, STEP:after or STEP:failure",
        "(job-steps) `hm` is not a command; `help` shows those there are",
        "(job-steps) inputs, env, outputs   show what the step has, with secrets masked",
        "command                show what runs, and where",
        "shell                  open a shell in the step's directory, with its environment, unmasked",
        "continue, abort        go on, or cancel the run",
        "break STEP[:WHEN]      hold the job at a later step",
        "quit                   leave; the job stays held",
        "(job-steps) failed: check (exit status 3); `help` for commands",
        "(job-steps) no env",
        "(job-steps) job has failed: step `check`: the command ended with exit status 3",
    ]
    assert out[4].endswith(f" -c '{script}'")


async def test_whoever_leaves_leaves_the_job_held(placed: Path, tmp_path: Path, attached: Attached) -> None:
    """By `quit`, by the end of what is typed; a script lists, continues and aborts without a prompt."""
    async with place(placed, tmp_path) as there:
        await there.begin("one", "build", "check")
        await there.begin("other", "check:before")
        for typed in ("quit\n", "", "env\n"):
            code, out, _ = await attached("one", typed=typed)
            assert (code, out[-1].removeprefix("(job-steps) ")) == (0, "one stays held")
        code, out, _ = await attached("--json")
        listed = [(each["job"], each["hold"], each["step"], each["when"]) for each in json.loads(out[0])]
        assert sorted(listed) == [("one", 1, "build", "before"), ("other", 1, "check", "before")]
        code, out, _ = await attached("--list")
        assert out[0].split() == ["JOB", "STEP", "WHEN", "GOES", "ON", "IN"]
        assert sorted(line.split()[:3] for line in out[1:]) == [
            ["one", "build", "before"],
            ["other", "check", "before"],
        ]
        assert (await attached("on", "--continue"))[:2] == (0, [])
        await held_at(there.client, "one", 2)
        assert (await attached("one", "--abort"))[:2] == (0, [])
        await log_of(there.client, "one")
        code, _, err = await attached("one")
        assert (code, err) == (2, "agent.pyz: the job one was cancelled; nothing holds it any more\n")
        assert (await attached("--abort"))[:2] == (0, [])
        await log_of(there.client, "other")
        assert (await attached("--list"))[:2] == (0, ["no job is held"])
        assert (await attached("--json"))[:2] == (0, ["[]"])


async def held_at(client: StepRunnerClient, job: str, number: int) -> None:
    """Wait until a job is held so often."""
    async for held in client.follow_held(job):
        if held.step and held.step.number == number:
            return


async def test_what_cannot_be_attached_to(placed: Path, tmp_path: Path, attached: Attached) -> None:
    """One sentence each, with the nearest name."""
    async with place(placed, tmp_path) as there:
        wait = json.dumps([{"name": "wait", "script": "until [ -e go ]; do sleep 0.05; done"}])
        await there.begin("waiting", steps=wait)
        said = [
            ((), "no job is held at a breakpoint; to wait for one that is running, name it"),
            (("witing",), "there is no job witing; did you mean waiting?"),
            (("zzz",), "there is no job zzz; `--list` shows the jobs that are held"),
            (("waiting", "--continue"), "the job waiting is not held"),
            (("waiting", "--break=wiat"), "breakpoints: there is no step `wiat`; did you mean `wait`?"),
            (("--socket", "/nowhere"), "/nowhere: no agent listens there (No such file or directory)"),
        ]
        for arguments, error in said:
            assert await attached(*arguments) == (2, [], f"agent.pyz: {error}\n")
        assert await attached("waiting", "--break=wait:after") == (0, [], "")
        await there.begin("waiting too", steps=wait)
        code, _, err = await attached("wait")
        assert (code, err) == (2, "agent.pyz: the names of 2 jobs begin with wait; type more of the name\n")
        (tmp_path / "waiting" / "go").touch()
        await held_at(there.client, "waiting", 1)
        await there.begin("third", "build")
        code, _, err = await attached()
        assert (code, err[:30]) == (2, "agent.pyz: 2 jobs are held: wa")


@contextmanager
def terminal(placed: Path, *arguments: str) -> Iterator[int]:
    """Somebody's terminal, in which `attach` runs."""
    ours, theirs = pty.openpty()
    command = [sys.executable, str(placed / zipapp().name / "agent.pyz"), "attach", *arguments]
    in_front = partial(fcntl.ioctl, theirs, termios.TIOCSCTTY, 0)
    with subprocess.Popen(
        command,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=in_front,  # noqa: PLW1509  (no thread holds anything that this needs)
        env={**os.environ, "SHELL": "/bin/sh"},
    ) as process:
        os.close(theirs)
        try:
            yield ours
        finally:
            process.terminate()
            os.close(ours)


async def shown(screen: int, text: str) -> None:
    """Wait until a terminal shows something."""
    seen = ""
    while text not in seen:
        await anyio.wait_readable(screen)
        with suppress(OSError):  # the last who had it open has ended
            seen += os.read(screen, 4096).decode().replace("\r\n", "\n")


async def test_two_who_are_attached_to_one_step(placed: Path, tmp_path: Path, attached: Attached) -> None:
    """Who did not decide sees at once that it is not held any more, and is asked at the next breakpoint."""
    async with place(placed, tmp_path) as there:
        await there.begin("job", "build", "check:before")
        with terminal(placed) as screen:
            await shown(screen, "before build; `help` for commands\n(job-steps) ")
            assert (await attached("job", "--continue"))[:2] == (0, [])
            await shown(
                screen,
                "\nit is not held here any more: somebody else has decided, or its time is over\n"
                "before check; `help` for commands\n(job-steps) ",
            )
            await there.client.close("job")
            await shown(screen, "job ")


async def test_an_agent_that_is_killed_ends_the_prompt(placed: Path, tmp_path: Path, attached: Attached) -> None:
    """One line says so."""
    policy = tmp_path / "policy.json"
    policy.write_text('{"breakpoints": true}')
    directory = placed / zipapp().name / f"run-{tmp_path.name}"
    async with agent(placed, directory, options=("--policy", str(policy))) as (process, client):
        await Place(placed, tmp_path, client).begin("job", "build")
        with terminal(placed, "job") as screen:
            await shown(screen, "(job-steps) ")
            process.kill()
            await shown(screen, "agent.pyz: the agent has ended, or was killed, and its jobs with it\n")
    code, _, err = await attached("--socket", str(directory / "agent.sock"))
    assert (code, err.partition(": no agent")[1]) == (2, ": no agent")


async def test_it_attaches_here_and_by_what_reaches_another_host(
    placed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`job-steps attach` looks in the user's home; with `--via`, a command takes a line for the other host's shell."""
    monkeypatch.setenv("HOME", str(placed.parent))
    async with place(placed, tmp_path) as there:
        await there.begin("a job", "build", "check:before")

        async def via(*arguments: str) -> tuple[int, str]:
            code = f"from job_steps.cli import main; main(['attach', '--via', '/bin/sh -c', *{arguments!r}])"
            done = await anyio.run_process([sys.executable, "-c", code], check=False)  # it becomes what it runs
            return done.returncode, done.stderr.decode()

        async def here(*arguments: str) -> tuple[int, str, str]:
            done = await to_thread.run_sync(CliRunner().invoke, click_main, ["attach", *arguments])
            return done.exit_code, done.stdout, done.stderr

        code, out, _ = await here("--list")
        assert (code, out.splitlines()[1].split()[:3]) == (0, ["a", "job", "build"])
        assert await via("--continue", "a job") == (0, "")
        await held_at(there.client, "a job", 2)
        assert await here("a job", "--abort") == (0, "", "")
        wrong = {"no-such-command -x": "No such file or directory", "'": "No closing quotation"}
        for command, error in wrong.items():
            assert await here("--via", command) == (2, "", f"error: --via {command}: {error}\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    said = f"no agent of yours runs on this host (looked in {tmp_path}/.job-steps); start a job with breakpoints"
    assert await here("--list") == (0, "no job is held\n", "")
    assert await here("--json") == (0, "[]\n", "")
    assert await here() == (2, "", f"error: {said}\n")
    assert await via() == (2, "error: there is no agent in ~/.job-steps of this host\n")


def test_what_a_job_has_put_in_the_place_of_an_address_is_passed_over(tmp_path: Path) -> None:
    """Jobs have the agent's user: nobody who attaches waits for a FIFO, or reads whatever is there."""
    places = [tmp_path / "version" / f"run-{number}" / "socket" for number in range(5)]
    for place in places:
        place.parent.mkdir(parents=True)
    os.mkfifo(places[0])
    places[1].mkdir()
    places[2].symlink_to("/etc/passwd")
    places[3].write_bytes(b"/" * 5000)
    places[4].write_text("/run/socket\n")
    assert sockets_below(tmp_path) == ["/run/socket"]


@contextmanager
def listening(placed: Path, name: str, *, backlog: int = 10) -> Iterator[tuple[socket.socket, str]]:
    """A job's own service where agents are looked for, which takes nobody in by itself; with its address."""
    directory = placed / zipapp().name / f"run-{name}"
    directory.mkdir()
    address = f"/tmp/{name}-{os.getpid()}.sock"  # noqa: S108  (a path that is short enough)
    (directory / "socket").write_text(address)
    with socket.socket(socket.AF_UNIX) as service:
        service.bind(address)
        service.listen(backlog)
        try:
            yield service, address
        finally:
            Path(address).unlink()
            (directory / "socket").unlink()
            directory.rmdir()


async def test_no_agent_keeps_anybody_from_another_one(placed: Path, tmp_path: Path, attached: Attached) -> None:
    """One that says nonsense, or ends at once, is passed over, and said to be, without what a terminal would obey."""
    async with place(placed, tmp_path) as there:
        await there.begin("job", "build")
        with listening(placed, "nonsense") as (service, address):

            async def answer() -> None:
                await anyio.wait_readable(service)
                connection, _ = service.accept()
                with connection:
                    connection.sendall(b"HTTP/1.1 200 \x1b[31mOK\r\n\r\n")

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(answer)
                code, out, err = await attached("--list")
        assert (code, out[1].split()[:2]) == (0, ["job", "build"])
        assert err.startswith(f"{address} is passed over: ")
        assert "\x1b" not in err
        assert err.count("\n") == 1


async def test_an_agent_that_does_not_answer_is_waited_for_no_longer_than_that(
    placed: Path, attached: Attached, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it takes somebody in and then says nothing, or takes nobody in."""
    monkeypatch.setattr(_agents_here, "ANSWER_TIMEOUT", 0.2)
    with listening(placed, "silent") as (_, address):
        code, _, err = await attached("--socket", address)
        assert (code, err) == (2, "agent.pyz: it has not answered within 0.2 s\n")
        code, out, err = await attached("--list")
        assert (code, out) == (0, ["no job is held"])
        assert f"{address} is passed over: it has not answered within 0.2 s\n" in err
    with listening(placed, "full", backlog=0) as (_, address), socket.socket(socket.AF_UNIX) as first:
        first.connect(address)
        code, _, err = await attached("--socket", address)
        assert (code, err) == (2, f"agent.pyz: {address}: no agent listens there (Resource temporarily unavailable)\n")


def test_a_job_that_two_agents_have_is_chosen_by_its_address() -> None:
    """A service that a job has put there may say that it has any other job."""
    nobody = cast("StepRunnerClient", None)  # it is not asked
    known = [KnownJob(Agent(where, nobody, 0), "job", RunState.RUNNING, None) for where in ("/a", "/b")]
    with pytest.raises(CannotAttach, match=r"^2 agents have a job job; name one of them with --socket: /a, /b$"):
        _chosen(Wish(job="job"), known)


async def test_what_is_said_of_jobs_is_nothing_that_a_terminal_obeys(
    placed: Path, tmp_path: Path, attached: Attached
) -> None:
    """In errors as in lists, where each has one line."""
    async with place(placed, tmp_path) as there:
        await there.begin("\x1b[31mone", "build")
        await there.begin("two\nfree  build  before", "build")
        code, _, err = await attached()
        assert code == 2
        assert "\x1b" not in err
        code, out, _ = await attached("--list")
        assert (code, len(out)) == (0, 3)


async def test_a_shell_that_outlives_its_hold_is_told_and_its_terminal_is_as_before(
    placed: Path, tmp_path: Path, attached: Attached
) -> None:
    """Somebody in a shell hears at once that the job goes on; the shell ends with the job, whatever it has set."""
    wait = json.dumps([{"name": "wait", "script": "until [ -e go ]; do sleep 0.1; done"}])
    async with place(placed, tmp_path) as there:
        await there.begin("job", "wait", steps=wait)
        with terminal(placed, "job") as screen:
            await shown(screen, "(job-steps) ")
            before = termios.tcgetattr(screen)
            os.write(screen, b"shell\n")
            is_set = False
            while not is_set:  # the prompt may take what is typed before the shell is there
                os.write(screen, b"stty raw -echo; echo is''set; exec sleep 1000\n")
                with anyio.move_on_after(10):
                    await shown(screen, "isset")
                    is_set = True
            assert termios.tcgetattr(screen) != before
            assert (await attached("job", "--continue"))[:2] == (0, [])
            await shown(screen, "it is not held here any more: somebody else has decided, or its time is over")
            await there.client.close("job")
            await shown(screen, "job was cancelled")
            assert termios.tcgetattr(screen) == before


def test_roots_shell_is_that_of_the_jobs_user() -> None:
    """A job chooses what is in the environment of a shell, which must not make it root."""
    assert identity_of(1000, 1000) == identity_of(0, 0) == identity_of(0, 1000) == {}
    nobody = pwd.getpwnam("nobody")
    assert identity_of(nobody.pw_uid, 0) == {
        "user": nobody.pw_uid,
        "group": nobody.pw_gid,
        "extra_groups": os.getgrouplist("nobody", nobody.pw_gid),
    }
    assert identity_of(4_000_000, 0) == {"user": 4_000_000, "group": 4_000_000, "extra_groups": ()}
    with pytest.raises(PermissionError, match="attach as its user, not as root"):
        identity_of(None, 0)


async def test_an_agent_is_its_users(placed: Path, tmp_path: Path) -> None:
    """Whom the other end of the connection names."""
    async with place(placed, tmp_path), agents_here([], placed) as agents:
        assert {each.user for each in agents} == {os.getuid()}


def test_the_address_in_a_log_is_never_waited_for(tmp_path: Path) -> None:
    """A job may have put a FIFO there, or more than an address has."""
    where = tmp_path / "socket"
    where.write_text("/run/a.sock")
    assert attach_command(tmp_path, "job").endswith(" attach --socket /run/a.sock job")
    where.unlink()
    os.mkfifo(where)
    assert attach_command(tmp_path, "job").endswith(" attach job")


def test_what_killed_runs_have_left_is_removed(tmp_path: Path) -> None:
    """Nobody who attaches looks through it; what has another name, or belongs to a run that goes on, stays."""
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    stays = {f"run-alone-{os.getpid()}-x", "run-alone-", "run-alone-x-y", "run"}
    for name in (*stays, f"run-alone-{ended.pid}-x", f"run-alone-{2**70}-x"):
        (tmp_path / name / "inside").mkdir(parents=True)
    remove_left(tmp_path)
    assert {each.name for each in tmp_path.iterdir()} == stays
