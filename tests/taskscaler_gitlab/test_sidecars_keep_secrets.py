"""Secrets of a job and of its runners, planted wherever they come by: after a run with trouble, nobody else has one."""

import os
import re
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import httpx
import pytest
from attrs import evolve, frozen

from gitlab_jobs import Dependency, GitInfo, Variable
from gitlab_jobs.testing import FakeGitLab
from tests.gitlab_jobs.serving import served
from tests.peers.pipeline import job
from tests.peers.sidecars import relaying, write_config
from tests.taskscaler_gitlab import stand_in
from tests.taskscaler_gitlab.test_sidecars import command_lines, once
from tests.taskscaler_gitlab.test_sidecars_lose_nothing import Door

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

MARK = "s3cret"
"""Part of the secrets that are ours to choose, and of nothing else."""

UNREPORTED = "GitLab does not know that it has failed"
TASKSCALER = str(Path(sys.executable).with_name("taskscaler"))
SHOWS = (("status",), ("jobs",), ("jobs", "--json"), ("instances",), ("leases",), ("explain", "gitlab-1"))


@pytest.fixture
def anyio_backend() -> str:
    """One is enough: what differs is programs of their own."""
    return "asyncio"


@frozen
class Scene:
    """Where everything is."""

    here: Path
    runtime: Path
    """Where its socket is, whose path must be short."""

    @property
    def run(self) -> Path:
        """The service's own directory."""
        return self.here / "r"

    @property
    def socket(self) -> Path:
        """Where it listens for commands."""
        return next(path for path in self.runtime.rglob("*") if stat.S_ISSOCK(path.stat().st_mode))

    @property
    def metrics(self) -> str:
        """Where the last one that has printed it serves metrics."""
        *_, url = re.finditer(r"^metrics: (http\S+)", (self.run / "printed").read_text(), re.MULTILINE)
        return url[1]

    def is_up(self) -> bool:
        """Whether somebody listens there, and where the metrics are: what was printed may be an earlier one's."""
        try:
            with socket.socket(socket.AF_UNIX) as probe:
                probe.connect(str(self.socket))
            httpx.get(self.metrics, trust_env=False)
        except (StopIteration, OSError, ValueError, httpx.TransportError):
            return False
        return True

    def places(self) -> Iterator[tuple[str, str]]:
        """All that others could read: files but the operator's and the sidecar's own, and who runs with what."""
        for path in (each for each in self.run.rglob("*") if each.is_file() and not each.is_symlink()):
            is_own = path == self.run / "config.toml" or path.parent.parent.name == "sidecars"
            if is_own:
                assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0 or path.parent == self.run, path
            elif "bin" not in path.parts:
                yield str(path), path.read_text("latin-1")
        yield "processes", "\n".join(command_lines())

    def shown(self) -> Iterator[tuple[str, str]]:
        """What commands show, the API, and the metrics, as it has printed where they are."""
        yield "metrics", httpx.get(self.metrics, trust_env=False).text
        environment = {**os.environ, "XDG_RUNTIME_DIR": str(self.runtime), "HOME": str(self.run)}
        for arguments in SHOWS:
            command = [TASKSCALER, *arguments, "--socket", str(self.socket)]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            yield " ".join(arguments), done.stdout + done.stderr
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(self.socket)), base_url="http://localhost") as http:
            described = http.get("/v1/openapi.json")
            assert described.status_code == 200, (str(self.socket), described.text)
            known = described.json()["paths"]
            for path in (path for path, verbs in known.items() if "get" in verbs and "{" not in path):
                if "event" not in path:  # which never ends
                    yield path, http.get(path).text


async def shown(scene: Scene) -> list[tuple[str, str]]:
    """The same, while everything else goes on; it is some text, or nothing was looked at."""
    while not scene.is_up():  # noqa: ASYNC110  (only looking tells)
        await anyio.sleep(0.1)
    found = await anyio.to_thread.run_sync(lambda: [*scene.shown()])
    assert all(text for _, text in found)
    return found


def leaks(secrets: Mapping[str, str], *places: Iterable[tuple[str, str]]) -> list[str]:
    """Where which secret is."""
    return [
        f"{name} in {where}"
        for each in places
        for where, text in each
        for name, secret in secrets.items()
        if secret in text
    ]


@pytest.fixture
def runtime() -> Iterator[Path]:
    """A directory with a short path."""
    with TemporaryDirectory() as short:
        yield Path(short)


async def test_nobody_learns_a_secret(tmp_path: Path, runtime: Path) -> None:
    """In logs at their most talkative, errors, explanations, answers of the daemon, notes and command lines."""
    (tmp_path / "gitlab").mkdir()
    gitlab = FakeGitLab(tmp_path / "gitlab", accepts=0)
    plain = job("leaky", "echo tick", f"until [ -e {tmp_path}/go ]; do sleep 0.2; done")
    wanted = evolve(
        plain,
        git_info=GitInfo(repo_url=f"https://gitlab-ci-token:{MARK}-userinfo@gitlab.example.com/group/it.git"),
        variables=(*plain.variables, Variable(key="S", value=f"{MARK}-variable", masked=True)),
        dependencies=(Dependency(id=77, token=f"glcbt-{MARK}-dependency", name="before"),),
    )
    number = gitlab.enqueue(wanted)
    door, scene = Door(gitlab.application()), Scene(tmp_path, runtime)
    program = stand_in.made(tmp_path)
    async with served(gitlab, door) as url:
        sidecar = f'binary = "{program}"'
        config = write_config(scene.run, url, gitlab.runner_token, sidecar=sidecar)
        config.write_text(f'log_level = "debug"\nlisten_address = "127.0.0.1:0"\n{config.read_text()}')
        config.chmod(0o600)
        async with relaying(config, XDG_RUNTIME_DIR=str(runtime)) as process:
            while b"tick" not in gitlab.log(number):
                await gitlab.next_change().wait()
            (file,) = scene.run.rglob("sidecars/*/config.toml")
            secrets = {"chosen": MARK, "runner": gitlab.runner_token, "once": once(file)}
            secrets["job"] = gitlab.server.jobs[number].job.token
            assert leaks(secrets, scene.places(), await shown(scene)) == []
            door.is_open = False
            await anyio.sleep(1)
            door.is_open = True
            process.kill()
        os.kill(int(file.with_name("pid").read_text()), signal.SIGKILL)
        async with relaying(config, XDG_RUNTIME_DIR=str(runtime)):
            while UNREPORTED not in "".join(text for _, text in await shown(scene)):  # noqa: ASYNC110  (likewise)
                await anyio.sleep(0.2)
            assert leaks(secrets, scene.places(), await shown(scene)) == []
    assert leaks(secrets, scene.places()) == []
