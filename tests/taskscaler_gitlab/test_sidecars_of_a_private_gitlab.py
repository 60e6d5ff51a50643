"""A GitLab whose certificate a private authority has signed: the service, its sidecars and their git trust it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from attrs import evolve, frozen

from gitlab_jobs.testing import FakeGitLab, State
from tests.gitlab_jobs.serving import served
from tests.peers.pipeline import job, said
from tests.peers.real import RealRunner
from tests.peers.sidecars import relaying, write_config
from tests.taskscaler_gitlab import projects
from tests.taskscaler_gitlab.sidecars import script, serving
from tests.taskscaler_gitlab.test_sidecars import found, gitlab, has_begun, program, waits

__all__ = ["gitlab", "program"]

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@frozen
class Private:
    """An authority of our own, and a certificate for this machine."""

    ca: Path
    certificate: Path


@pytest.fixture
def private(tmp_path: Path) -> Private:
    """Both, in files."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    return Private(tmp_path / "ca.pem", tmp_path / "server.pem")


@pytest.fixture
def server(private: Private, tmp_path: Path) -> Iterator[projects.Server]:
    """A git server with that certificate."""
    with projects.serving(tmp_path / "git", private.certificate) as running:
        yield running


async def test_a_sidecar_is_given_the_certificates(
    gitlab: FakeGitLab, program: Path, tmp_path: Path, private: Private
) -> None:
    """In a file for its user alone, which its configuration names, and as a variable of the job; others get none."""
    number = gitlab.enqueue(script(*waits(tmp_path)))
    async with serving(tmp_path, gitlab, program, more=f'tls-ca-file = "{private.ca}"') as desk:
        await has_begun(desk, tmp_path)
        (chain,) = found(tmp_path, "group/**/sidecars/*/ca.pem")
        assert chain.read_bytes() == private.ca.read_bytes()
        assert chain.stat().st_mode & 0o777 == 0o600
        assert f'"tls-ca-file" = "{chain}"' in chain.with_name("config.toml").read_text()
        (tmp_path / "go").touch()
        assert (await desk.ended(number)).state is State.SUCCESS, desk.log(number)
    plain = gitlab.enqueue(script("echo hello"))
    async with serving(tmp_path, gitlab, program) as desk:
        assert (await desk.ended(plain)).state is State.SUCCESS, desk.log(plain)
        assert "tls-ca-file" not in "".join(each.read_text() for each in found(tmp_path, "group/**/config.toml"))


LOOK = (
    "cat file",
    "git config --get-regexp '^http\\..*\\.sslcainfo$' | cut -d' ' -f1 || true",
    'grep -c "BEGIN CERTIFICATE" "$CI_SERVER_TLS_CA_FILE"',
)


@pytest.mark.real_runner
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_real_runner_fetches_from_it(server: projects.Server, private: Private, tmp_path: Path) -> None:
    """Everything is behind TLS of that authority; and git trusts it, for the address of the project."""
    real = RealRunner(tmp_path)
    project = server.project("group/private")
    sources = project.job(project.commit({"file": "what is there\n"}))
    plain = job("private", *LOOK)
    wanted = evolve(
        plain,
        git_info=sources.git_info,
        job_info=evolve(sources.job_info, name="private"),
        variables=(said("GIT_STRATEGY", "clone"),),
    )
    (tmp_path / "gitlab").mkdir()
    gitlab = FakeGitLab(tmp_path / "gitlab")
    number = gitlab.enqueue(wanted)
    async with served(gitlab, certificate=private.certificate) as url:
        assert url.startswith("https://")
        more, sidecar = f'tls-ca-file = "{private.ca}"', f'binary = "{real.program}"'
        async with relaying(write_config(tmp_path / "r", url, gitlab.runner_token, sidecar=sidecar, more=more)):
            ended = await gitlab.ended(number)
    log = gitlab.log(number).decode()
    assert ended.state is State.SUCCESS, log
    assert "what is there\n" in log
    assert [line for line in server.requests if " known " in line]
