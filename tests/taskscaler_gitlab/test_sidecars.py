"""Jobs that sidecars run, from a GitLab in memory to processes on this machine, and whatever is lost on the way."""

import filecmp
import io
import os
import shutil
import signal
import socket
import zipfile
from pathlib import Path

import anyio
import pytest

from fleeting import MemoryJournal
from gitlab_jobs import ArtifactsFile, Dependency, Variable
from gitlab_jobs.coordinator import Reply
from gitlab_jobs.testing import FakeGitLab, Fault, State
from taskscaler_gitlab.relay._relay import Standing
from tests.peers import INDEPENDENT
from tests.taskscaler_gitlab import stand_in
from tests.taskscaler_gitlab.cells_here import cell
from tests.taskscaler_gitlab.sidecars import Desk, script, serving

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    # httpx leaves its own generators open when an answer is not read to its end, and trio tells of them
    pytest.mark.filterwarnings("ignore:.*async_generator object .*Stream:pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:Async generator 'httpx:ResourceWarning"),
]


@pytest.fixture
def gitlab(tmp_path: Path) -> FakeGitLab:
    """One that answers at once."""
    (tmp_path / "gitlab").mkdir()
    return FakeGitLab(tmp_path / "gitlab", long_poll=0.05, accepts=0)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A program that stands in for gitlab-runner."""
    return stand_in.made(tmp_path)


SIDECAR = "group/**/sidecars/*/pid"
"""Where the id of its process is, below a test's directory."""


def waits(here: Path, name: str = "go") -> tuple[str, ...]:
    """Lines that say when they have begun, and end when a file is there."""
    return f"echo began; echo began >> {here}/began", f"until [ -e {here / name} ]; do sleep 0.05; done", "echo done"


def works(here: Path) -> tuple[str, ...]:
    """Lines that say when they have begun, and then something each moment; who is silent calls twice a minute."""
    return (*waits(here)[:1], "while sleep 0.2; do echo at work; done")


def kill_what_is_in(here: Path, pattern: str) -> None:
    """Kill the process whose id is in the one file that there is of this name."""
    (file,) = here.glob(pattern)
    os.kill(int(file.read_text().split()[0]), signal.SIGKILL)


def found(here: Path, pattern: str) -> list[Path]:
    """The files of a name."""
    return list(here.glob(pattern))


def once(path: Path) -> str:
    """The token in a sidecar's file."""
    return next(line for line in path.read_text().splitlines() if line.startswith('"token"')).split('"')[3]


def command_lines() -> list[str]:
    """Those of all processes here."""
    return [*map(_command_line, Path("/proc").glob("[0-9]*/cmdline"))]


def _command_line(path: Path) -> str:
    try:
        return path.read_bytes().decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):  # it has just ended
        return ""


async def has_begun(desk: Desk, here: Path) -> None:
    """Wait until a job of `waits` runs, and GitLab knows."""
    await desk.until((here / "began").exists)
    await desk.until(lambda: [work.relay.record.standing for work in desk.works][-1] is Standing.AT_WORK)


async def test_jobs_run_with_all_that_they_need(gitlab: FakeGitLab, program: Path, tmp_path: Path) -> None:
    """Logs, variables, artifacts both ways, an exit code; every slot comes back, and nothing is left of them here."""
    seen = 'echo "$TASKSCALER_INSTANCE/$TASKSCALER_SLOT"'
    first = gitlab.enqueue(script("mkdir out; echo left > out/it", seen, leaves=("out/",)))
    failing = gitlab.enqueue(script("echo fails; exit 3"))
    async with serving(tmp_path, gitlab, program) as desk:
        assert (await desk.ended(first)).state is State.SUCCESS, desk.log(first)
        instance = next(view.record()["instance"] for view in desk.service.jobs if view.id == f"gitlab-{first}")
        assert desk.log(first) in (f"{instance}/0\n", f"{instance}/1\n")
        ended = await desk.ended(failing)
        assert (ended.state, ended.failure_reason, ended.exit_code) == (State.FAILED, "script_failure", 3)
        job = gitlab.server.jobs[first].job
        needs = Dependency(id=job.id, name="first", token=job.token, artifacts_file=ArtifactsFile(filename="a.zip"))
        second = gitlab.enqueue(script("cat out/it", dependencies=(needs,)))
        assert (await desk.ended(second)).state is State.SUCCESS, desk.log(second)
        assert desk.log(second) == "left\n"
        assert (await desk.scaler.capacity()).acquired == 0
        assert desk.notes == []
        assert sorted(str(view.record()["state"]) for view in desk.service.jobs) == ["failed", "succeeded", "succeeded"]
    (kept,) = gitlab.artifacts[first]
    assert zipfile.ZipFile(io.BytesIO(kept.path.read_bytes())).read("out/it") == b"left\n"


async def test_jobs_of_several_gitlabs_are_reported_each_to_its_own(program: Path, tmp_path: Path) -> None:
    """Two cells answer one reservation at once: one job runs, the other waits, and no cell hears of another's."""
    cells = [cell(tmp_path, name) for name in ("a", "b")]
    async with serving(
        tmp_path, cells[0].gitlab, program, cells=cells, max_instances=1, capacity_per_instance=1
    ) as desk:
        await desk.until(lambda: all(each.gitlab.held for each in cells))
        numbers = [each.gitlab.enqueue(script(*waits(tmp_path), f"echo of {each.name}")) for each in cells]
        await desk.until(lambda: desk.service.running == 2 and (tmp_path / "began").exists())
        assert "1 job came without a slot" in desk.service.status()
        (tmp_path / "go").touch()
        for each, number in zip(cells, numbers, strict=True):
            assert (await each.gitlab.ended(number)).state is State.SUCCESS
            assert each.gitlab.log(number).decode() == f"began\ndone\nof {each.name}\n"
        await desk.until(lambda: not desk.service.running)
        assert [each.way.refused for each in cells] == [0, 0]
        assert desk.notes == []
        assert (await desk.scaler.capacity()).acquired == 0


async def test_a_job_goes_on_when_the_runner_is_killed(gitlab: FakeGitLab, program: Path, tmp_path: Path) -> None:
    """Its sidecar finds the next one at the same port; the script runs once, and the log is whole."""
    journal, number = MemoryJournal(), gitlab.enqueue(script(*waits(tmp_path)))
    async with serving(tmp_path, gitlab, program, journal=journal, is_killed=True) as desk:
        await has_begun(desk, tmp_path)
        port = desk.works[0].relay.record.port
    async with serving(tmp_path, gitlab, program, journal=journal) as desk:
        await desk.until(lambda: [work.relay.record.port for work in desk.works] == [port])
        (tmp_path / "go").touch()
        assert (await desk.ended(number)).state is State.SUCCESS, desk.log(number)
        assert desk.log(number) == "began\ndone\n"
        assert (tmp_path / "began").read_text() == "began\n"
        assert (await desk.scaler.capacity()).acquired == 0


async def test_a_tunnel_whose_port_is_taken_meanwhile_ends_its_job_with_the_reason(
    gitlab: FakeGitLab, program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sidecar knows no other port: it is ended, and whoever has the port hears nothing from us."""
    monkeypatch.setattr("taskscaler_gitlab.relay._ways.PATIENCE", 0.2)
    journal, number = MemoryJournal(), gitlab.enqueue(script(*waits(tmp_path)))
    own = "keep_job_tokens = true"
    async with serving(tmp_path, gitlab, program, journal=journal, own=own, is_killed=True) as desk:
        await has_begun(desk, tmp_path)
        port = desk.works[0].relay.record.port
        (pid,) = (int(path.read_text()) for path in found(tmp_path, SIDECAR))
    with socket.create_server(("127.0.0.1", port)):
        async with serving(tmp_path, gitlab, program, journal=journal, own=own) as desk:
            assert (await desk.ended(number)).state is State.FAILED
            assert f"port {port} on" in desk.log(number)
            assert "is taken" in desk.log(number)
            await desk.until(lambda: not Path(f"/proc/{pid}/root").exists())
            assert (await desk.scaler.capacity()).acquired == 0


async def test_a_sidecar_of_whose_job_nothing_is_noted_down_is_ended(
    gitlab: FakeGitLab, program: Path, tmp_path: Path
) -> None:
    """Its slot is there, its record is not: nobody could say anything of it; its instance gets no more jobs."""
    journal, number = MemoryJournal(), gitlab.enqueue(script(*waits(tmp_path)))
    async with serving(tmp_path, gitlab, program, journal=journal, is_killed=True) as desk:
        await has_begun(desk, tmp_path)
        where = desk.works[0].instance or ""
        (pid,) = (int(path.read_text()) for path in found(tmp_path, SIDECAR))
        (note,) = desk.notes
    shutil.rmtree(note.parent)
    async with serving(tmp_path, gitlab, program, journal=journal) as desk:
        await desk.until(lambda: not Path(f"/proc/{pid}/root").exists())
        while (await desk.scaler.capacity()).acquired:  # noqa: ASYNC110  (until then, its other slot may be had)
            await anyio.sleep(0.02)
        later = gitlab.enqueue(script('echo "$TASKSCALER_INSTANCE"'))
        assert (await desk.ended(later)).state is State.SUCCESS, desk.log(later)
        assert where not in desk.log(later)
        assert (await desk.scaler.capacity()).acquired == 0
        assert gitlab.server.jobs[number].state is State.RUNNING


async def test_a_job_is_left_to_the_next_runner(gitlab: FakeGitLab, program: Path, tmp_path: Path) -> None:
    """A runner that ends in peace leaves what runs, just the same."""
    journal, number = MemoryJournal(), gitlab.enqueue(script(*waits(tmp_path)))
    async with serving(tmp_path, gitlab, program, journal=journal, is_left=True) as desk:
        await has_begun(desk, tmp_path)
    async with serving(tmp_path, gitlab, program, journal=journal) as desk:
        (tmp_path / "go").touch()
        assert (await desk.ended(number)).state is State.SUCCESS, desk.log(number)
        assert desk.log(number) == "began\ndone\n"


async def test_a_runner_whose_state_is_not_kept_ends_its_jobs(
    gitlab: FakeGitLab, program: Path, tmp_path: Path
) -> None:
    """Nobody could find them again: the sidecar is asked to end, and says so to GitLab."""
    number = gitlab.enqueue(script(*waits(tmp_path)))
    async with serving(tmp_path, gitlab, program) as desk:
        await has_begun(desk, tmp_path)
    assert gitlab.server.jobs[number].state is State.FAILED


async def test_a_sidecar_that_is_killed_fails_its_job_with_the_reason(
    gitlab: FakeGitLab, program: Path, tmp_path: Path
) -> None:
    """The last line of the log says it; the job does not run again."""
    number = gitlab.enqueue(script(*waits(tmp_path)))
    async with serving(tmp_path, gitlab, program) as desk:
        await has_begun(desk, tmp_path)
        await desk.until(lambda: "began" in desk.log(number))
        where = desk.works[0].instance or ""
        kill_what_is_in(tmp_path, SIDECAR)
        ended = await desk.ended(number)
        assert (ended.state, ended.failure_reason) == (State.FAILED, "runner_system_failure")
        last = desk.log(number).strip().splitlines()[-1]
        assert "Job failed (system failure): its sidecar was ended by SIGKILL" in last
        assert desk.log(number).startswith("began\n")
        assert (tmp_path / "began").read_text() == "began\n"
        later = gitlab.enqueue(script('echo "$TASKSCALER_INSTANCE"'))
        assert (await desk.ended(later)).state is State.SUCCESS, desk.log(later)
        assert where not in desk.log(later), "what the job has started may still run there"


async def test_an_instance_that_is_lost_fails_its_job_with_the_reason(
    gitlab: FakeGitLab, program: Path, tmp_path: Path
) -> None:
    """Once a job is at work it is not placed again, nor left to the next runner."""
    journal, number = MemoryJournal(), gitlab.enqueue(script(*waits(tmp_path)))
    async with serving(tmp_path, gitlab, program, journal=journal, capacity_per_instance=1) as desk:
        await has_begun(desk, tmp_path)
        await desk.group.decrease([desk.works[0].instance or ""])
        ended = await desk.ended(number)
        assert (ended.state, ended.failure_reason) == (State.FAILED, "runner_system_failure")
        assert "was lost" in desk.log(number).strip().splitlines()[-1]
        assert desk.notes == []
        assert (await desk.scaler.capacity()).acquired == 0


async def test_gitlab_cancels_a_job_that_runs(gitlab: FakeGitLab, program: Path, tmp_path: Path) -> None:
    """The sidecar learns it from what GitLab answers, and reports its end."""
    number = gitlab.enqueue(script(*works(tmp_path)))
    async with serving(tmp_path, gitlab, program) as desk:
        await has_begun(desk, tmp_path)
        gitlab.cancel(number)
        assert (await desk.ended(number)).state is State.CANCELED
        assert [view.record()["state"] for view in desk.service.jobs] == ["cancelled"]


async def test_an_operator_cancels_a_job_that_runs(gitlab: FakeGitLab, program: Path, tmp_path: Path) -> None:
    """The sidecar is told in the answers to its calls, so that it can run what comes after the script."""
    number = gitlab.enqueue(script(*works(tmp_path)))
    async with serving(tmp_path, gitlab, program) as desk:
        await has_begun(desk, tmp_path)
        desk.service.jobs[0].cancel()
        ended = await desk.ended(number)
        assert (ended.state, ended.failure_reason) == (State.FAILED, "job_canceled")


async def test_a_job_that_gitlab_gives_to_others_is_ended(gitlab: FakeGitLab, program: Path, tmp_path: Path) -> None:
    """409 to the claim: the sidecar is refused, its job ends, and the slot comes back."""
    claims = Fault(call="update", reply=Reply(status=409, body={"message": "409 Conflict"}), times=1000)
    gitlab.faults = (claims,)
    gitlab.enqueue(script(*waits(tmp_path)))
    async with serving(tmp_path, gitlab, program) as desk:
        await desk.until(lambda: desk.service.jobs and desk.service.jobs[0].over)
        assert [view.record()["state"] for view in desk.service.jobs] == ["cancelled"]
        assert (await desk.scaler.capacity()).acquired == 0


async def test_a_program_that_is_missing_fails_the_job_and_says_where(
    gitlab: FakeGitLab, program: Path, tmp_path: Path
) -> None:
    """With what to do about it, in the job's log."""
    number = gitlab.enqueue(script("true"))
    async with serving(tmp_path, gitlab, program, sidecar='binary = "/nowhere/gitlab-runner"') as desk:
        assert (await desk.ended(number)).state is State.FAILED
        assert "/nowhere/gitlab-runner does not run on" in desk.log(number)
        assert "name a gitlab-runner there as binary, or one here as upload" in desk.log(number)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("#!/bin/sh\necho 'Version:      13.1.0'\n", "is gitlab-runner 13.1.0; sidecars are 17.1 or later"),
        ("#!/bin/sh\necho 'Version:      unknown'\n", "is gitlab-runner unknown; sidecars are 17.1 or later"),
        ("#!/bin/sh\necho hello\n", "is no gitlab-runner; sidecars are 17.1 or later"),
        ("\x7fELF\x02\x01\x01" + "\0" * 60, "it is for another kind of machine"),
    ],
    ids=["old", "of an unknown version", "something else", "of the wrong architecture"],
)
async def test_a_program_that_is_none_of_those_we_know_fails_the_job(
    gitlab: FakeGitLab, tmp_path: Path, content: str, why: str
) -> None:
    """Too old, something else, for another kind of machine: the job's log says which."""
    wrong = tmp_path / "wrong"
    wrong.write_text(content)
    wrong.chmod(0o755)
    number = gitlab.enqueue(script("true"))
    async with serving(tmp_path, gitlab, wrong) as desk:
        assert (await desk.ended(number)).state is State.FAILED
        assert why in desk.log(number)


async def test_the_program_is_brought_to_each_instance_once(gitlab: FakeGitLab, program: Path, tmp_path: Path) -> None:
    """Under a name that says what is in it; a second job finds it there."""
    first, second = gitlab.enqueue(script("true")), gitlab.enqueue(script(*waits(tmp_path)))
    async with serving(tmp_path, gitlab, program, sidecar=f'upload = "{program}"', max_instances=1) as desk:
        assert (await gitlab.ended(first)).state is State.SUCCESS, desk.log(first)
        await has_begun(desk, tmp_path)
        (there,) = found(tmp_path, "group/**/sidecars/bin/*")
        assert filecmp.cmp(there, program, shallow=False)
        assert there.stat().st_mode & 0o777 == 0o700
        (tmp_path / "go").touch()
        assert (await desk.ended(second)).state is State.SUCCESS, desk.log(second)


@pytest.mark.parametrize("has_room", [True, False])
async def test_an_instance_on_which_no_sidecar_starts_takes_no_more_jobs(
    gitlab: FakeGitLab, program: Path, tmp_path: Path, *, has_room: bool
) -> None:
    """A job has removed the program, or nothing can be brought there: the next one runs on another instance."""
    first = gitlab.enqueue(script(*waits(tmp_path)))
    async with serving(tmp_path, gitlab, program, sidecar=f'upload = "{program}"') as desk:
        await has_begun(desk, tmp_path)
        spoilt = desk.works[0].instance or ""
        (there,) = found(tmp_path, "group/**/sidecars/bin/*")
        shutil.rmtree(there.parent)
        if not has_room:
            there.parent.touch()
            desk.service._relays.sidecars.forget(spoilt)  # as a restart does
        second = gitlab.enqueue(script('echo "$TASKSCALER_INSTANCE"'))
        assert (await gitlab.ended(second)).state is State.SUCCESS, desk.log(second)
        assert spoilt not in desk.log(second)
        (tmp_path / "go").touch()
        assert (await desk.ended(first)).state is State.SUCCESS, desk.log(first)


async def test_secrets_are_in_no_file_of_ours(
    gitlab: FakeGitLab, program: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither the runner's token nor the job's, neither its variables nor the sidecar's token, where others look."""
    secret = Variable(key="S", value="planted-secret", masked=True)
    number = gitlab.enqueue(script(*waits(tmp_path), variables=(secret,)))
    async with serving(tmp_path, gitlab, program, journal=MemoryJournal()) as desk:
        await has_begun(desk, tmp_path)
        (config,) = found(tmp_path, "group/**/sidecars/*/config.toml")
        assert config.stat().st_mode & 0o777 == 0o600
        job = gitlab.server.jobs[number].job
        planted = [job.token, "planted-secret", once(config), gitlab.runner_token]
        (note,) = desk.notes
        assert note.stat().st_mode & 0o777 == 0o600
        explained = "\n".join(desk.service.explain(f"gitlab-{number}"))
        places = [note.read_text(), caplog.text, explained, *desk.said, *(repr(work) for work in desk.works)]
        assert [secret for secret in planted for place in (*places, *command_lines()) if secret in place] == []
        (tmp_path / "go").touch()
        assert (await desk.ended(number)).state is State.SUCCESS
        assert not config.exists()


async def test_the_token_is_kept_where_that_is_wanted(gitlab: FakeGitLab, program: Path, tmp_path: Path) -> None:
    """So that a job is reported whose sidecar ended while no runner was there."""
    journal, number = MemoryJournal(), gitlab.enqueue(script(*waits(tmp_path)))
    async with serving(
        tmp_path, gitlab, program, journal=journal, is_killed=True, own="keep_job_tokens = true"
    ) as desk:
        await has_begun(desk, tmp_path)
    kill_what_is_in(tmp_path, SIDECAR)
    async with serving(tmp_path, gitlab, program, journal=journal) as desk:
        ended = await desk.ended(number)
        assert (ended.state, ended.failure_reason) == (State.FAILED, "runner_system_failure")
        assert "Job failed (system failure): its sidecar " in desk.log(number)  # as it is found, or a moment later


async def test_without_its_token_a_lost_job_is_explained(gitlab: FakeGitLab, program: Path, tmp_path: Path) -> None:
    """GitLab cannot be told; whoever asks here is."""
    journal, number = MemoryJournal(), gitlab.enqueue(script(*waits(tmp_path)))
    async with serving(tmp_path, gitlab, program, journal=journal, is_killed=True) as desk:
        await has_begun(desk, tmp_path)
    kill_what_is_in(tmp_path, SIDECAR)
    async with serving(tmp_path, gitlab, program, journal=journal) as desk:
        await desk.until(lambda: desk.service.jobs and desk.service.jobs[0].over)
        explained = "\n".join(desk.service.explain(f"gitlab-{number}"))
        assert "GitLab does not know that it has failed (its sidecar " in explained
        assert (await desk.scaler.capacity()).acquired == 0


async def test_the_sidecar_finds_us_at_an_address(
    gitlab: FakeGitLab, program: Path, tmp_path: Path, free_tcp_port: int
) -> None:
    """With reach = "url" it is told one, and we listen where we are told."""
    address = f"127.0.0.1:{free_tcp_port}"
    own = f'reach = "url"\nadvertise_url = "http://{address}"\nlisten = "{address}"'
    number = gitlab.enqueue(script("echo hello"))
    async with serving(tmp_path, gitlab, program, own=own) as desk:
        assert (await desk.ended(number)).state is State.SUCCESS, desk.log(number)
        assert desk.log(number) == "hello\n"


async def test_a_job_waits_for_gitlab_to_come_back(gitlab: FakeGitLab, program: Path, tmp_path: Path) -> None:
    """While GitLab is away its sidecar is told at once, and says everything again later."""
    number = gitlab.enqueue(script(*waits(tmp_path)))
    async with serving(tmp_path, gitlab, program) as desk:
        await has_begun(desk, tmp_path)
        updates, appends = gitlab.calls["update"], gitlab.calls["append"]
        gitlab.faults = (Fault(call="update", after=updates, times=2), Fault(call="append", after=appends, times=2))
        (tmp_path / "go").touch()
        assert (await desk.ended(number)).state is State.SUCCESS
        assert desk.log(number) == "began\ndone\n"


@pytest.mark.peers
async def test_an_independent_runner_is_a_sidecar(gitlab: FakeGitLab, tmp_path: Path) -> None:
    """A program that others have written: artifacts both ways; it asks for more when it is done, and is ended."""
    program, client = tmp_path / "gitlab-runner", INDEPENDENT.programs[1]
    program.write_text(
        "#!/bin/sh\n"
        "[ \"$1\" != --version ] || { echo 'Version:      17.9.3'; exit; }\n"
        'said() { sed -n "s/^\\"$1\\" = \\"\\(.*\\)\\"$/\\1/p" config.toml; }\n'
        f'mkdir -p builds && exec {client} "$(said url)" "$(said token)" "$PWD/builds" 1\n'
    )
    program.chmod(0o755)
    first = gitlab.enqueue(script("echo left > kept", leaves=("kept",)))
    async with serving(tmp_path, gitlab, program) as desk:
        assert (await desk.ended(first)).state is State.SUCCESS, desk.log(first)
        job = gitlab.server.jobs[first].job
        needs = Dependency(id=job.id, name="first", token=job.token, artifacts_file=ArtifactsFile(filename="a.zip"))
        second = gitlab.enqueue(script("cat kept; exit 1", dependencies=(needs,)))
        assert (await desk.ended(second)).state is State.FAILED
        assert "left\n" in desk.log(second)
        assert (await desk.scaler.capacity()).acquired == 0
