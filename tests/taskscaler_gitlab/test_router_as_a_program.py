"""``taskscaler-gitlab route`` as a user starts it, between runners of all kinds and their cells."""

import os
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from anyio.abc import Process
from click.testing import CliRunner

from gitlab_jobs import Artifact, ArtifactsFile, Dependency, End, Outcome
from gitlab_jobs.client import GitLabClient, reporting
from gitlab_jobs.testing import FakeGitLab, State
from taskscaler_gitlab.cells._serve import connections_of
from taskscaler_gitlab.cli import main
from tests.fleeting.sshd import free_port
from tests.gitlab_jobs.test_peers import runner as independent_runner
from tests.gitlab_jobs.test_peers import scripted
from tests.peers.ours import COMMAND, our_runner
from tests.peers.real import RealRunner, ended_gently
from tests.taskscaler_gitlab.routers import ABOUT, Cells, a_job, cells, token_of

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    # a client whose router was killed leaves httpx's own iterators where they were
    pytest.mark.filterwarnings("ignore:.*async_generator object .*:pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:Async generator :ResourceWarning"),
]

JOBS = 50


def written(at: Cells, port: int) -> Path:
    """A router's file."""
    path = at.here / "router.toml"
    tables = "".join(f'[cells.{each}]\nurl = "{url}"\n' for each, url in at.urls.items())
    path.write_text(f'[router]\nlisten = "127.0.0.1:{port}"\nstate_dir = "{at.here / "state"}"\n{tables}')
    return path


@asynccontextmanager
async def program(path: Path) -> AsyncIterator[Process]:
    """The router, once it listens."""
    command = [*COMMAND, "route", str(path)]
    environment = {"PATH": os.environ["PATH"], "HOME": str(path.parent), "LC_ALL": "C.UTF-8"}
    with (path.parent / "events").open("ab") as events:
        async with await anyio.open_process(
            command, stdout=subprocess.PIPE, stderr=events, env=environment
        ) as process, ended_gently(process):  # fmt: skip
            assert process.stdout
            said = await process.stdout.receive()
            assert said.startswith(b"routing http://127.0.0.1:"), (path.parent / "events").read_text()
            yield process


async def the_conversation(gitlabs: list[FakeGitLab]) -> None:
    """Jobs that succeed, fail, say much, and leave something for the next one, in each cell."""
    artifacts = (Artifact(paths=("out",), artifact_type="archive", artifact_format="zip", when="on_success"),)
    leaving = [
        each.enqueue(scripted("leave", "echo from here > out", "echo left", artifacts=artifacts)) for each in gitlabs
    ]
    failing = [each.enqueue(scripted("fail", "echo no", "exit 7")) for each in gitlabs]
    large = [each.enqueue(scripted("large", "seq 1 200000")) for each in gitlabs]
    fetching = []
    for gitlab, number in zip(gitlabs, leaving, strict=True):
        assert (await gitlab.ended(number)).state is State.SUCCESS, gitlab.log(number)
        (kept,) = gitlab.artifacts[number]
        file = ArtifactsFile(filename="artifacts.zip", size=kept.path.stat().st_size)
        token = gitlab.server.jobs[number].job.token
        dependency = Dependency(id=number, token=token, name="leave", artifacts_file=file)
        fetching.append(gitlab.enqueue(scripted("fetch", "cat out", dependencies=(dependency,))))
    for number, gitlab in enumerate(gitlabs):
        assert (await gitlab.ended(failing[number])).state is State.FAILED
        assert (await gitlab.ended(large[number])).state is State.SUCCESS
        assert b"\n199999\n200000\n" in gitlab.log(large[number])
        assert (await gitlab.ended(fetching[number])).state is State.SUCCESS, gitlab.log(fetching[number])
        assert b"from here\n" in gitlab.log(fetching[number])


@pytest.mark.parametrize(
    ("kind", "token"),
    [
        pytest.param("independent", "glrt-everywhere", id="independent-everywhere", marks=pytest.mark.peers),
        pytest.param("independent", token_of(2), id="independent-routable", marks=pytest.mark.peers),
        pytest.param("ours", "glrt-everywhere", id="ours-everywhere"),
    ],
)
async def test_the_same_conversation_through_the_router(tmp_path: Path, kind: str, token: str) -> None:
    """Whether the runner is ours or another's, and whether its token names a cell or all cells know it."""
    async with cells(tmp_path, long_poll=1.0, hold=1.0) as at, program(written(at, port := free_port())):
        at.number_apart()
        at.add_everywhere(token)
        url, here = f"http://127.0.0.1:{port}", tmp_path / "work"
        started = independent_runner(url, token, here) if kind == "independent" else our_runner(here, url, token)
        async with started:
            await the_conversation([at.gitlabs["2"]] if token == token_of(2) else [*at.gitlabs.values()])
        if token == token_of(2):
            assert not at.gitlabs["1"].calls


@pytest.mark.real_runner
@pytest.mark.parametrize("token", ["glrt-everywhere", token_of(2)], ids=["everywhere", "routable"])
async def test_the_same_conversation_of_the_real_runner(tmp_path: Path, token: str) -> None:
    """Whatever version it is."""
    (tmp_path / "real").mkdir()
    async with cells(tmp_path, long_poll=1.0, hold=1.0) as at, program(written(at, port := free_port())):
        at.number_apart()
        at.add_everywhere(token)
        async with RealRunner(tmp_path / "real").running(f"http://127.0.0.1:{port}", token):
            await the_conversation([at.gitlabs["2"]] if token == token_of(2) else [*at.gitlabs.values()])


async def test_a_router_that_is_killed_under_running_jobs_loses_none(tmp_path: Path) -> None:
    """All end as they would have, with their whole logs, each at its own cell; their tokens say nothing."""
    async with cells(tmp_path) as at:
        at.add_everywhere("glrt-everywhere")
        for number in range(JOBS):
            at.gitlabs[str(number % 2 + 1)].enqueue(a_job(f"job {number}"))
        path, killed, back = written(at, port := free_port()), anyio.Event(), anyio.Event()
        running, ends = 0, list[End]()

        async def run() -> None:
            nonlocal running
            while (job := (await client.ask("glrt-everywhere", info=ABOUT)).job) is None:
                pass  # fifty ask at once; on a busy machine, one may be told to come again
            async with reporting(client, job, info=ABOUT) as report:
                assert await report.claim()
                report.log(f"{job.job_info.name} begins\n".encode())
                running += 1
                await killed.wait()
                report.log(b"ends\n")
                ends.append(await report.finish(Outcome(is_success=True)))

        async with GitLabClient(f"http://127.0.0.1:{port}") as client, anyio.create_task_group() as tasks:
            async with program(path) as process:
                for _ in range(JOBS):
                    tasks.start_soon(run)
                while running < JOBS:  # noqa: ASYNC110  (nobody says)
                    await anyio.sleep(0.05)
                process.send_signal(signal.SIGKILL)
                await process.wait()
                killed.set()
                await anyio.wait_all_tasks_blocked()
            tasks.start_soon(stays, path, back)
            while len(ends) < JOBS:  # noqa: ASYNC110  (nobody says)
                await anyio.sleep(0.05)
            back.set()
        assert ends == [End.REPORTED] * JOBS
        for gitlab in at.gitlabs.values():
            for number, stored in gitlab.server.jobs.items():
                assert stored.state is State.SUCCESS
                assert gitlab.log(number) == f"{stored.job.job_info.name} begins\nends\n".encode()


async def stays(path: Path, over: anyio.Event) -> None:
    """A router, until it is over."""
    async with program(path):
        await over.wait()


GOOD = '[cells.1]\nurl = "http://127.0.0.1:1"\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GOOD + '[cells.01]\nurl = "http://127.0.0.1:2"\n', "cells.01: the ID of [cells.1] again"),
        (GOOD + '[cells.1]\nurl = "http://127.0.0.1:2"\n', "invalid TOML"),
        (GOOD + '[cells.2]\nurl = "http://127.0.0.1:1/"\n', "cells.2.url: the url of [cells.1] again"),
        (GOOD + "[router]\nlisen = 7\n", "did you mean `listen`?"),
        ("[cells.1]\nurl = 7\n", "cells.1.url"),
        ('[cells.1]\nurl = "ftp://x"\n', "an address such as https://cell-1.gitlab.example.com"),
        ('[cells.1]\nurl = "https://[::1"\n', "an address such as https://cell-1.gitlab.example.com"),
        ('[cells.1]\nurl = "https://here:port"\n', "an address such as https://cell-1.gitlab.example.com"),
        ('[cells.1]\nurl = "https://here:65536"\n', "an address such as https://cell-1.gitlab.example.com"),
        ('[cells."a b"]\nurl = "http://127.0.0.1:1"\n', "a number, as tokens have it, or a name"),
        ("cells = {}\n", "no cell"),
        ("", "cells"),
        (GOOD + '[router]\nlisten = "here"\n', "HOST:PORT"),
        (GOOD + '[router]\nstate_dir = "here"\n', "an absolute path"),
        (GOOD + '[router]\ntls_cert_file = "missing.pem"\n', "router.tls_cert_file"),
        (GOOD + '[router]\nhold = "0s"\n', "a duration such as 50s"),
        (GOOD + "[router]\nconnections_per_client = -1\n", "router.connections_per_client"),
        (GOOD + 'tls_ca_file = "missing.pem"\n', "cells.1.tls_ca_file"),
        (GOOD + "unknown = 1\n", "unknown key"),
    ],
    ids=range(19),
)
def test_a_file_with_mistakes(tmp_path: Path, text: str, said: str) -> None:
    """Each is one line; nothing is connected to."""
    path = tmp_path / "router.toml"
    path.write_text(text)
    done = CliRunner().invoke(main, ["route", str(path)])
    assert (done.exit_code, said in done.output) == (2, True), done.output
    assert "Traceback" not in done.output


@pytest.mark.parametrize(("open_files", "most"), [(65_536, 16_384), (1_024, 384), (1, 1)])
def test_who_connects_leaves_files_for_cells(open_files: int, most: int) -> None:
    """Strangers took all that may be open, and the requests of runners that were connected found no cell."""
    assert connections_of(open_files) == most


def test_a_router_for_other_machines_needs_tls(tmp_path: Path) -> None:
    """Or a proxy before it that ends TLS, which is to be said."""
    path = tmp_path / "router.toml"
    path.write_text(f'{GOOD}[router]\nlisten = "0.0.0.0:0"\nstate_dir = "{tmp_path}"\n')
    done = CliRunner().invoke(main, ["route", str(path)])
    assert done.exit_code == 1
    assert "without TLS" in done.output
    assert "name a certificate with `tls_cert_file`" in done.output
