"""Settings that have changed while sidecars run: each goes on as it was begun, and later ones do not."""

import socket
from pathlib import Path
from typing import Any, cast

import pytest

from fleeting import MemoryJournal
from gitlab_jobs.testing import FakeGitLab, State
from tests.taskscaler_gitlab.sidecars import script, serving
from tests.taskscaler_gitlab.test_sidecars import found, gitlab, has_begun, program, waits

__all__ = ["gitlab", "program"]

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore:.*async_generator object .*Stream:pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:Async generator 'httpx:ResourceWarning"),
]


def at(port: int) -> str:
    """Settings with which sidecars find us at an address."""
    return f'reach = "url"\nadvertise_url = "http://127.0.0.1:{port}"\nlisten = "127.0.0.1:{port}"'


def is_open(port: int) -> bool:
    """Whether anybody listens there."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def test_a_sidecar_that_reports_to_an_address_is_heard_there_to_its_end(
    gitlab: FakeGitLab, program: Path, tmp_path: Path, free_tcp_port: int
) -> None:
    """With reach = "tunnel" by now: a line says so, the job is whole, and nobody listens there after it."""
    journal, number = MemoryJournal(), gitlab.enqueue(script(*waits(tmp_path)))
    async with serving(tmp_path, gitlab, program, journal=journal, is_killed=True, own=at(free_tcp_port)) as desk:
        await has_begun(desk, tmp_path)
    async with serving(tmp_path, gitlab, program, journal=journal) as desk:
        assert [line for line in desk.said if f"the job {number} is reported at 127.0.0.1:{free_tcp_port}" in line]
        await desk.until(lambda: is_open(free_tcp_port))
        later = gitlab.enqueue(script(*waits(tmp_path)))
        await desk.until(lambda: any(work.relay.record.port for work in desk.works))
        (tmp_path / "go").touch()
        assert (await desk.ended(number)).state is State.SUCCESS, desk.log(number)
        assert desk.log(number) == "began\ndone\n"
        assert (await desk.ended(later)).state is State.SUCCESS, desk.log(later)
        await desk.until(lambda: not is_open(free_tcp_port))


@pytest.mark.parametrize("now", ["url", "own"])
async def test_a_sidecar_that_comes_by_a_tunnel_keeps_its_port(
    gitlab: FakeGitLab, program: Path, tmp_path: Path, free_tcp_port: int, now: str
) -> None:
    """With reach = "url" by now, or run_with = "own": it goes on, and its script runs once."""
    journal, number = MemoryJournal(), gitlab.enqueue(script(*waits(tmp_path)))
    async with serving(tmp_path, gitlab, program, journal=journal, is_killed=True) as desk:
        await has_begun(desk, tmp_path)
    own = at(free_tcp_port) if now == "url" else ""
    with_ = "own" if now == "own" else "sidecar"
    async with serving(tmp_path, gitlab, program, journal=journal, own=own, run_with=with_) as desk:
        (tmp_path / "go").touch()
        assert (await desk.ended(number)).state is State.SUCCESS, desk.log(number)
        assert desk.log(number) == "began\ndone\n"
        assert (tmp_path / "began").read_text() == "began\n"


async def test_a_sidecar_whose_address_is_taken_fails_its_job_with_the_reason(
    gitlab: FakeGitLab, program: Path, tmp_path: Path, free_tcp_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would hear it any more: it is ended, and the job's log says why; everything else goes on."""
    monkeypatch.setattr("taskscaler_gitlab.relay._sidecar.FAREWELL", 0.5)
    journal, number = MemoryJournal(), gitlab.enqueue(script(*waits(tmp_path)))
    own = f"{at(free_tcp_port)}\nkeep_job_tokens = true"
    async with serving(tmp_path, gitlab, program, journal=journal, is_killed=True, own=own) as desk:
        await has_begun(desk, tmp_path)
    with socket.create_server(("127.0.0.1", free_tcp_port)):
        async with serving(tmp_path, gitlab, program, journal=journal) as desk:
            ended = await desk.ended(number)
            assert (ended.state, ended.failure_reason) == (State.FAILED, "runner_system_failure")
            assert f"reports to 127.0.0.1:{free_tcp_port}, where this program cannot listen" in desk.log(number)


@pytest.mark.parametrize("has_changed", [True, False])
async def test_a_program_that_was_changed_on_its_instance_is_not_started(
    gitlab: FakeGitLab, program: Path, tmp_path: Path, *, has_changed: bool
) -> None:
    """A job has put another one there: the next job runs elsewhere. One that was only touched is the same."""
    first = gitlab.enqueue(script(*waits(tmp_path)))
    async with serving(tmp_path, gitlab, program, sidecar=f'upload = "{program}"') as desk:
        await has_begun(desk, tmp_path)
        where = desk.works[0].instance or ""
        (there,) = found(tmp_path, "group/**/sidecars/bin/*")
        text = there.read_text()
        there.unlink()
        there.write_text(text + f"# touch {tmp_path}/forged\n" * has_changed)
        there.chmod(0o700)
        second = gitlab.enqueue(script('echo "$TASKSCALER_INSTANCE"'))
        assert (await gitlab.ended(second)).state is State.SUCCESS, desk.log(second)
        assert (desk.log(second) != f"{where}/0\n") or not has_changed
        assert (where in desk.log(second)) is not has_changed
        (tmp_path / "go").touch()
        assert (await desk.ended(first)).state is State.SUCCESS, desk.log(first)


async def test_a_program_that_was_changed_while_nobody_was_here_is_brought_again(
    gitlab: FakeGitLab, program: Path, tmp_path: Path
) -> None:
    """Its name says what should be in it, and that is looked at."""
    journal, first = MemoryJournal(), gitlab.enqueue(script(*waits(tmp_path)))
    upload, one = f'upload = "{program}"', cast("dict[str, Any]", {"max_instances": 1})
    async with serving(tmp_path, gitlab, program, journal=journal, is_left=True, sidecar=upload, **one) as desk:
        await has_begun(desk, tmp_path)
    (there,) = found(tmp_path, "group/**/sidecars/bin/*")
    there.write_text("#!/bin/sh\necho 'Version: 17.9.3'\n")
    second = gitlab.enqueue(script("echo hello"))
    async with serving(tmp_path, gitlab, program, journal=journal, sidecar=upload, **one) as desk:
        assert (await gitlab.ended(second)).state is State.SUCCESS, desk.log(second)
        assert desk.log(second) == "hello\n"
        (tmp_path / "go").touch()
        assert (await desk.ended(first)).state is State.SUCCESS, desk.log(first)
