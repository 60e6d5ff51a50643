"""The command's looks and changes: each as a user types it, against a GitLab behind a socket."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from anyio import to_thread
from attrs import define
from click.testing import CliRunner, Result

from gitlab_jobs import Refused, Unreachable
from gitlab_jobs.coordinator import Reply
from gitlab_jobs.testing import FakeGitLab, Fault
from taskscaler_gitlab import read_config
from taskscaler_gitlab._gitlab import said
from taskscaler_gitlab.cli import main
from tests.gitlab_jobs.serving import served

pytestmark = pytest.mark.anyio

FILE = """
sentry_dsn = "x"
[[runners]]
name = "desk"
url = "{url}"
token = "{token}"
executor = "instance"
[runners.autoscaler]
plugin = "local"
plugin_config = {{ directory = "{here}/fleet" }}
[runners.autoscaler.state_storage]
enabled = true
dir = "{here}/state"
"""


@define
class Bench:
    """A GitLab, and a file for it."""

    gitlab: FakeGitLab
    url: str
    here: Path

    @property
    def path(self) -> Path:
        """The file."""
        return self.here / "config.toml"

    def write(self, token: str | None = None, url: str | None = None) -> None:
        """Write the file."""
        text = FILE.format(url=url or self.url, token=token or self.gitlab.runner_token, here=self.here)
        self.path.write_text(text)

    async def command(self, *arguments: str | Path, env: dict[str, str] | None = None) -> Result:
        """Run the command."""
        return await to_thread.run_sync(lambda: CliRunner().invoke(main, [*map(str, arguments)], env=env))


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    """Both, and the file is right."""
    gitlab = FakeGitLab(tmp_path / "gitlab", long_poll=0.05)
    async with served(gitlab) as url:
        made = Bench(gitlab, url, tmp_path)
        made.write()
        yield made


async def test_check_says_that_all_is_well(bench: Bench) -> None:
    """GitLab knows the token, the group can be opened, and what is ignored is named."""
    done = await bench.command("check", bench.path)
    assert done.exit_code == 0, done.output
    assert "ignored: sentry_dsn means nothing here" in done.output
    assert f"ok: {bench.url} knows the runner as number" in done.output
    assert "can be opened, with 0 instances; at most 1 jobs run at once" in done.output


async def test_check_says_what_is_wrong(bench: Bench) -> None:
    """A token that GitLab does not know, a GitLab that answers with a page, one that is away, a file with mistakes."""
    bench.write(token="glrt-wrong")
    done = await bench.command("check", bench.path)
    assert (done.exit_code, "error: POST runners/verify: GitLab answered 403" in done.output) == (1, True)
    bench.write()
    page = Reply(status=200, headers={"Content-Type": "text/html"}, body=b"<!DOCTYPE html>")
    bench.gitlab.faults = [Fault(call="verify", reply=page, times=100)]
    done = await bench.command("check", bench.path)
    assert (done.exit_code, "error: POST runners/verify" in done.output) == (1, True)
    bench.write(url="http://127.0.0.1:9")
    assert (await bench.command("check", bench.path)).exit_code == 1
    bench.path.write_text("concurent = 2\n" + bench.path.read_text())
    done = await bench.command("check", bench.path)
    assert (done.exit_code, "did you mean `concurrent`?" in done.output) == (2, True)


async def test_a_runner_is_registered_into_a_file(bench: Bench) -> None:
    """A new one, or beside those that are there; its token is not in the output, and the file is for its user alone."""
    path = bench.here / "new.toml"
    token = bench.gitlab.runner_token
    arguments = ("register", path, "--url", bench.url, "--name", 'a "b"')
    done = await bench.command(*arguments, env={"CI_SERVER_TOKEN": token})
    assert done.exit_code == 0, done.output
    assert token not in done.output
    assert path.stat().st_mode & 0o777 == 0o600
    found = read_config(path)
    assert (found.runner.name, found.runner.url, found.runner.token) == ('a "b"', bench.url, token)
    done = await bench.command(*arguments[:-1], "second", "--token", "an-old-registration-token")
    assert done.exit_code == 0, done.output
    second = read_config(path, runner="second").runner
    assert second.token not in ("an-old-registration-token", token)
    done = await bench.command("register", path, "--url", bench.url, "--token", "glrt-wrong")
    assert (done.exit_code, "403" in done.output) == (1, True)
    assert json.dumps("glrt-wrong") not in path.read_text()


async def test_a_token_is_replaced_in_its_file(bench: Bench) -> None:
    """The old one is good for nothing afterwards; where the new one could not be kept, nothing is asked for."""
    old = bench.gitlab.runner_token
    done = await bench.command("reset-token", bench.path)
    assert done.exit_code == 0, done.output
    new = read_config(bench.path).runner.token
    assert new != old
    assert new not in done.output
    assert (await bench.command("check", bench.path)).exit_code == 0
    bench.path.write_text(bench.path.read_text().replace(f'"{new}"', f"'''{new}'''"))
    done = await bench.command("reset-token", bench.path)
    assert (done.exit_code, "nothing was changed" in done.output) == (2, True)


async def test_a_runner_is_taken_off_gitlab(bench: Bench) -> None:
    """Its entry stays, for whoever wants to look."""
    before = bench.path.read_text()
    done = await bench.command("unregister", bench.path)
    assert done.exit_code == 0, done.output
    assert bench.path.read_text() == before


async def test_help_names_every_command(bench: Bench) -> None:
    """From the first look on."""
    done = await bench.command("--help")
    assert all(name in done.output for name in ("check", "register", "reset-token", "run", "unregister"))


def test_errors_say_what_to_do_in_the_file() -> None:
    """What a program would do about a certificate, or about nobody who answers, is no help to whoever has a file."""
    untrusted = "the certificate of a cannot be trusted: b; if it is the right one, pass a context that trusts its"
    assert "; name the certificate of its authority in tls-ca-file" in said(
        Unreachable(f"POST runners/verify: {untrusted} authority as tls")
    )
    assert said(Unreachable("POST a: refused")) == "POST a: refused; start it, or correct url"
    assert said(Refused("POST a: GitLab answered 403", status=403)) == "POST a: GitLab answered 403"
