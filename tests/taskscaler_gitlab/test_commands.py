"""The command's looks and changes: each as a user types it, against a GitLab behind a socket."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from anyio import to_thread
from attrs import define
from click.testing import CliRunner, Result

from fleeting import LoopClock
from fleeting.groups.local import LocalConfig, LocalGroup
from gitlab_jobs import Refused, Unreachable
from gitlab_jobs.coordinator import Reply
from gitlab_jobs.testing import FakeGitLab, Fault
from taskscaler import Pool, Taskscaler
from taskscaler.serve import read_fleet_file
from taskscaler_gitlab import read_config
from taskscaler_gitlab._gitlab import said
from taskscaler_gitlab._record import KEYS, JobDirectory, Record, hold
from taskscaler_gitlab.cli import main
from taskscaler_gitlab.cli._run import directory_of
from taskscaler_gitlab.relay import DeliveryDirectory
from taskscaler_gitlab.relay._deliveries import record_of
from tests.gitlab_jobs.serving import served
from tests.taskscaler_gitlab import stand_in
from tests.taskscaler_gitlab.services import a_job

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

KEPT_IDLE = """
[[runners.autoscaler.policy]]
idle_count = 1
idle_time = "1h"
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


async def test_a_canary_runs_as_gitlabs_jobs_do(bench: Bench) -> None:
    """On an instance, by whatever runs jobs; GitLab never hears of it."""
    done = await bench.command("check", bench.path, "--canary")
    assert done.exit_code == 0, done.output
    assert "ok: canary: ran on default-" in done.output
    assert bench.gitlab.calls["request"] == 0
    program = stand_in.made(bench.here)
    sidecar = f'[runners.taskscaler]\nrun_with = "sidecar"\n[runners.taskscaler.sidecar]\nbinary = "{program}"\n'
    bench.path.write_text(bench.path.read_text() + sidecar)
    done = await bench.command("check", bench.path, "--canary")
    assert done.exit_code == 0, done.output
    assert (
        f'sidecars: jobs run with the executor "shell" of a gitlab-runner: on each instance as {program}' in done.output
    )
    assert "ok: canary: ran on default-" in done.output


async def test_a_canary_leaves_the_instances_of_the_runner(bench: Bench) -> None:
    """Without state_storage, too, where the runner keeps a journal all the same: the second finds that of the first."""
    text = bench.path.read_text().partition("[runners.autoscaler.state_storage]")[0]
    bench.path.write_text(text.replace('plugin = "local"', 'plugin = "local"\nmax_instances = 1') + KEPT_IDLE)
    ran_on = []
    for _ in range(2):
        done = await bench.command("check", bench.path, "--canary")
        assert done.exit_code == 0, done.output
        ran_on.append(done.output.partition("ok: canary: ran on ")[2].partition(",")[0])
    assert ran_on[0] == ran_on[1] != ""


async def test_a_canary_removes_no_instances_that_it_does_not_know(bench: Bench) -> None:
    """They may be those of a GitLab Runner that runs with the same file: it says that they are there, and ends."""
    async with Taskscaler(
        Pool(LocalGroup(LocalConfig(directory=str(bench.here / "fleet")))), delete_instances_on_shutdown=False
    ) as scaler:
        lease = await scaler.acquire_lease("somebody's")
        lease.release()
    done = await bench.command("check", bench.path, "--canary")
    assert done.exit_code == 1, done.output
    assert "the group already holds 1 instance unknown to the journal" in done.output
    more = 'plugin = "local"\nmax_instances = 1\npreexisting = "adopt"'
    adopting = bench.path.read_text().replace('plugin = "local"', more)
    bench.path.write_text(adopting + KEPT_IDLE)
    done = await bench.command("check", bench.path, "--canary")
    assert done.exit_code == 0, done.output
    assert f"ok: canary: ran on {lease.instance}," in done.output


@pytest.mark.parametrize("left", ["a lock", "a job", "a delivery"])
async def test_a_canary_is_refused_where_the_runner_has_jobs(bench: Bench, left: str) -> None:
    """One that runs, or was stopped while jobs ran: nothing is begun, and one sentence says what to do."""
    fleet = read_fleet_file(bench.path)
    directory = directory_of(read_config(bench.path), fleet)
    with hold(directory) as lock:
        job = a_job()
        if left == "a job":
            of = JobDirectory.of(directory / "jobs", "0" * 12, 7, f"{KEYS}{'0' * 12}")
            of.begin(job, Record(key=of.key, prefix=of.path.name, taken_at=0.0))
        elif left == "a delivery":
            key = f"{KEYS}{'0' * 12}"
            made = DeliveryDirectory.of(directory / "deliveries", "0" * 12, 7, key)
            made.note(record_of(job, key=key, prefix="0" * 12, now=0.0, keeps_token=False))
        if left != "a lock":
            lock.close()
        done = await bench.command("check", bench.path, "--canary")
    assert done.exit_code == 1, done.output
    said = "stop that one first" if left == "a lock" else "the runner has 1 unfinished job in"
    assert said in done.output
    assert not [*(bench.here / "fleet").glob("*/instances/*")]


async def test_a_canary_is_refused_where_a_lease_outlived_its_holder(bench: Bench) -> None:
    """What runs there is not known to the runner's notes, and is not ended by a check."""
    async with read_fleet_file(bench.path).scaler(LoopClock(), []) as scaler:
        lease = await scaler.acquire_lease("gitlab/0123456789ab", persistent=True)
        lease.detach()
    done = await bench.command("check", bench.path, "--canary")
    assert done.exit_code == 1, done.output
    assert "1 lease on the fleet, such as gitlab/0123456789ab, may have work that runs on" in done.output
    async with read_fleet_file(bench.path).scaler(LoopClock(), []) as scaler:
        assert [(each.key, each.instance) for each in scaler.detached] == [("gitlab/0123456789ab", lease.instance)]


async def test_a_canary_that_fails_says_why(bench: Bench) -> None:
    """With the end of its log."""
    sidecar = '[runners.taskscaler]\nrun_with = "sidecar"\n[runners.taskscaler.sidecar]\nbinary = "/nowhere"\n'
    bench.path.write_text(bench.path.read_text() + sidecar)
    done = await bench.command("check", bench.path, "--canary")
    assert done.exit_code == 1, done.output
    assert "error: the canary failed (runner_system_failure); its log ends with" in done.output
    assert "/nowhere does not run on" in done.output


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


def several(bench: Bench) -> None:
    """Make the runner one of several GitLabs, of which one is away."""
    tables = "".join(
        f'[[runners.taskscaler.upstreams]]\ncell = "{cell}"\nurl = "{url}"\ntoken_file = "{cell}.token"\n'
        for cell, url in (("here", bench.url), ("away", "http://127.0.0.1:9"))
    )
    lines = [line for line in bench.path.read_text().splitlines() if not line.startswith(("url", "token"))]
    bench.path.write_text("\n".join(lines).replace("[runners.autoscaler]", f"{tables}[runners.autoscaler]", 1))
    for cell in ("here", "away"):
        (bench.here / f"{cell}.token").write_text(bench.gitlab.runner_token)


async def test_of_several_gitlabs_each_is_checked(bench: Bench) -> None:
    """One that is away fails the check, by its name; the canary asks none of them."""
    several(bench)
    done = await bench.command("check", bench.path)
    assert done.exit_code == 1
    assert "cells: slots that all of them could use are shared as here 50%, away 50%" in done.output
    assert f"ok: here ({bench.url}) knows the runner as number" in done.output
    assert "error: POST runners/verify" in done.output
    bench.path.write_text(bench.path.read_text().replace("http://127.0.0.1:9", f"{bench.url}/"))
    (bench.here / "away.token").write_text(second := f"{bench.gitlab.runner_token}2")
    bench.gitlab.server.add_runner(second)
    done = await bench.command("check", bench.path, "--canary")
    assert done.exit_code == 0, done.output
    assert "ok: canary: ran on default-" in done.output
    assert bench.gitlab.calls["request"] == 0


async def test_a_token_of_one_of_several_is_replaced_in_its_file(bench: Bench) -> None:
    """Which is meant has to be said; the configuration stays as it is."""
    several(bench)
    before, old = bench.path.read_text(), bench.gitlab.runner_token
    done = await bench.command("reset-token", bench.path)
    assert (done.exit_code, "say which with --cell: here, away" in done.output) == (2, True)
    done = await bench.command("reset-token", bench.path, "--cell", "her")
    assert (done.exit_code, "did you mean `here`?" in done.output) == (2, True)
    done = await bench.command("reset-token", bench.path, "--cell", "here")
    assert done.exit_code == 0, done.output
    new = (bench.here / "here.token").read_text().strip()
    assert new != old
    assert new not in done.output
    assert (bench.path.read_text(), (bench.here / "away.token").read_text()) == (before, old)
    done = await bench.command("unregister", bench.path, "--cell", "here")
    assert done.exit_code == 0, done.output
    bench.write()
    done = await bench.command("reset-token", bench.path, "--cell", "here")
    assert (done.exit_code, "the runner has no upstreams" in done.output) == (2, True)


async def test_a_wrong_place_for_metrics_is_one_line(bench: Bench) -> None:
    """It is refused before anything begins, as every wrong argument."""
    done = await bench.command("run", bench.path, "--metrics", "nowhere")
    assert (done.exit_code, done.output.count("\n")) == (2, 1)
    assert done.output.startswith("error: --metrics: 'nowhere' is not HOST:PORT")


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
