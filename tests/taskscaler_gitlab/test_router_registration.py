"""Runners that register with a router instead of with a GitLab: they get the jobs of its own runners at the cells."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import httpx
import pytest
from click.testing import CliRunner

from gitlab_jobs import Refused
from gitlab_jobs.client import GitLabClient
from gitlab_jobs.testing import State
from taskscaler_gitlab.cells._held import Answer
from taskscaler_gitlab.cells._kept import KeptJob, Owed
from taskscaler_gitlab.cells._registry_file import RegistryFile
from taskscaler_gitlab.cells._route import hashed
from taskscaler_gitlab.cells._settings import RegistrationSettings
from taskscaler_gitlab.cli import main
from tests.gitlab_jobs.test_peers import runner as independent_runner
from tests.gitlab_jobs.test_peers import scripted
from tests.taskscaler_gitlab.routers import ABOUT, Cells, a_job, cells
from tests.taskscaler_gitlab.test_router import run

pytestmark = [pytest.mark.anyio]

REGISTRATION = "registration-token-of-ours"
UPSTREAM = "glrt-of-the-router-itself"


@asynccontextmanager
async def registering(here: Path) -> AsyncIterator[Cells]:
    """Cells that know a runner of the router's, with whom others may register."""
    async with cells(here, long_poll=0.05, hold=0.3) as at:
        at.add_everywhere(UPSTREAM)
        at.token = UPSTREAM
        at.registration = RegistrationSettings(token_file="", token_expires_after=86_400.0)
        at.registration_token = REGISTRATION
        yield at


async def test_a_registered_runner_gets_jobs_from_all_cells(tmp_path: Path) -> None:
    """It verifies, asks, runs, replaces its token and leaves; no cell ever hears of its tokens, or of the runner."""
    async with registering(tmp_path) as at:
        numbers = {each: gitlab.enqueue(a_job()) for each, gitlab in at.gitlabs.items()}
        async with at.routed() as serving, GitLabClient(serving.urls[0]) as client:
            made = await client.register(REGISTRATION, description="the desk", info=ABOUT)
            assert made.token_expires_at is not None
            assert await client.verify(made.token, system_id="r_0123456789ab") == made
            for _ in numbers:
                await run(client, made.token)
        async with at.routed() as serving, GitLabClient(serving.urls[0]) as client:  # a restart forgets nothing
            fresh = await client.reset_token(made.token)
            with pytest.raises(Refused, match="403"):
                await client.verify(made.token)
            assert (await client.ask(made.token, info=ABOUT)).polled.status == 403
            assert (await client.ask(fresh.token, info=ABOUT)).polled.status == 204
            await client.unregister(fresh.token, system_id="r_0123456789ab")
            with pytest.raises(Refused, match="403"):
                await client.verify(fresh.token)
        for each, gitlab in at.gitlabs.items():
            assert gitlab.server.jobs[numbers[each]].state is State.SUCCESS
            assert (gitlab.calls["register"], gitlab.calls["reset"], gitlab.calls["unregister"]) == (0, 0, 0)


async def test_a_cell_that_refuses_the_routers_own_token_is_no_fault_of_the_runner(tmp_path: Path) -> None:
    """Three refusals would silence it for an hour."""
    async with registering(tmp_path) as at:
        at.token = "glrt-which-no-cell-knows"
        async with at.routed() as serving, httpx.AsyncClient() as http, GitLabClient(serving.urls[0]) as client:
            token = (await client.register(REGISTRATION)).token
            asked = await http.post(f"{serving.urls[0]}/api/v4/jobs/request", json={"token": token})
            assert asked.status_code == 502


async def test_a_token_of_the_router_goes_to_no_cell_whatever_it_is_good_for(tmp_path: Path) -> None:
    """Not after its runner was removed, which gets no job that was kept for it, nor while the list cannot be read."""
    async with registering(tmp_path) as at, at.routed() as serving, GitLabClient(serving.urls[0]) as client:
        token = (await client.register(REGISTRATION)).token
        file = RegistryFile(tmp_path / "router")
        listed = file.path.read_bytes()
        file.path.write_text("{")
        asked = await client.ask(token, info=ABOUT, is_repeated=False)
        assert asked.polled.status == 503, "who is refused three times asks no more for an hour"
        file.path.write_bytes(listed)
        assert (await client.ask(token, info=ABOUT)).polled.status == 204
        job = KeptJob(Owed("1", 7, "t"), Answer(201, {}, b"{}"), anyio.current_time() + 3600, is_two_phase=True)
        await serving.router.polls.kept.keep(hashed(token, ""), job)
        before = [dict(each.calls) for each in at.gitlabs.values()]
        file.change(lambda all_: all_.remove(1))
        assert (await client.ask(token, info=ABOUT)).polled.status == 403
        with pytest.raises(Refused, match="403"):
            await client.verify(token)
        with pytest.raises(Refused, match="403"):
            await client.reset_token(token)
        assert [dict(each.calls) for each in at.gitlabs.values()] == before


async def test_who_does_not_know_the_registration_token_is_the_cells_to_decide(tmp_path: Path) -> None:
    """So runners can still be registered with a cell."""
    async with registering(tmp_path) as at:
        async with at.routed() as serving, GitLabClient(serving.urls[0]) as client:
            made = await client.register("glrtr-of-a-cell")
        assert at.calls("register") == [1, 0]
        assert made.token in at.gitlabs["1"].server._runners


@pytest.mark.peers
@pytest.mark.slow
async def test_a_registered_runner_may_be_any(tmp_path: Path) -> None:
    """One that others have written."""
    async with registering(tmp_path) as at, at.routed() as serving:
        async with GitLabClient(serving.urls[0]) as client:
            token = (await client.register(REGISTRATION)).token
        at.number_apart()
        numbers = {each: gitlab.enqueue(scripted("says", "echo here")) for each, gitlab in at.gitlabs.items()}
        async with independent_runner(serving.urls[0], token, tmp_path / "work"):
            for each, gitlab in at.gitlabs.items():
                assert (await gitlab.ended(numbers[each])).state is State.SUCCESS
                assert gitlab.log(numbers[each]) == b"here\n"


async def test_runners_lists_those_that_have_registered(tmp_path: Path) -> None:
    """While the router runs; one that is removed is refused at once."""
    for name, text in (("registration", REGISTRATION), ("cell", UPSTREAM)):
        (tmp_path / name).write_text(text + "\n")
    path = tmp_path / "router.toml"
    path.write_text(
        f'[router]\nstate_dir = "{tmp_path}/router"\n[registration]\ntoken_file = "registration"\n'
        '[cells.1]\nurl = "http://127.0.0.1:1"\ntoken_file = "cell"\n'
    )

    def listed(*arguments: str) -> str:
        done = CliRunner().invoke(main, ["runners", str(path), *arguments])
        assert done.exit_code == 0, done.output
        return done.output

    assert listed() == "no runner has registered\n"
    async with registering(tmp_path) as at, at.routed() as serving, GitLabClient(serving.urls[0]) as client:
        token = (await client.register(REGISTRATION, description="the desk")).token
        await client.verify(token, system_id="r_0123456789ab")
        head, row = listed().splitlines()
        assert head.split()[:2] == ["id", "token"]
        assert row.endswith("the desk")
        assert token not in row
        (found,) = json.loads(listed("--json"))
        assert (found["id"], found["managers"], found["description"]) == (1, ["r_0123456789ab"], "the desk")
        assert "token_hash" not in found
        assert listed("--remove", "1") == "no runner has registered\n"
        with pytest.raises(Refused, match="403"):
            await client.verify(token)
    done = CliRunner().invoke(main, ["runners", str(path), "--remove", "7"])
    assert (done.exit_code, "no runner has the number 7" in done.output) == (2, True)


CELL = '[cells.1]\nurl = "http://127.0.0.1:1"\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (CELL + '[registration]\ntoken_file = "good"\n', "no jobs for runners that register"),
        (CELL + 'token_file = "good"\n', "a token for runners that cannot register"),
        (CELL + 'token_file = "good"\n[registration]\ntoken_file = "short"\n', "16 to 1024 printable"),
        (CELL + 'token_file = "empty"\n[registration]\ntoken_file = "good"\n', "1 to 1024 printable"),
        (CELL + 'token_file = "good"\n[registration]\ntoken_file = "missing"\n', "registration.token_file"),
        (CELL + 'token_file = "good"\n[registration]\n', "token_file"),
        (CELL + 'token_file = "good"\n[registration]\ntoken_file = "good"\ntoken_expires_after = "1s"\n', "5m or more"),
        (CELL + 'token_file = "good"\n[registration]\ntoken_file = "good"\ntoken = "x"\n', "unknown key"),
    ],
    ids=range(8),
)
def test_a_file_with_mistakes(tmp_path: Path, text: str, said: str) -> None:
    """Of what is about runners that register; no message shows a token."""
    for name, inside in (("good", REGISTRATION), ("short", "tiny"), ("empty", "")):
        (tmp_path / name).write_text(inside)
    path = tmp_path / "router.toml"
    path.write_text(text)
    done = CliRunner().invoke(main, ["route", str(path)])
    assert (done.exit_code, said in done.output) == (2, True), done.output
    assert REGISTRATION not in done.output
