"""A runner on a fleet: when it asks for jobs, what becomes of each, whatever is lost on the way."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import pytest
from anyio import from_thread
from attrs import asdict, evolve

from fleeting import ConfigError, JournalError, LoopClock, MemoryJournal, Unreachable, Usage
from fleeting.testing import FakeCloud
from gitlab_jobs import Job, Outcome
from gitlab_jobs.client import Reporting
from gitlab_jobs.coordinator import Reply
from gitlab_jobs.testing import FakeGitLab, Fault, State
from taskscaler import Lease, NoCapacity
from taskscaler_gitlab import _service, read_config
from taskscaler_gitlab._config import ServiceConfig
from tests.taskscaler_gitlab.services import Held, Scripted, a_job, serving

pytestmark = [
    pytest.mark.anyio,
    # httpx leaves its own generators open when an answer is not read to its end, and trio tells of them
    pytest.mark.filterwarnings("ignore:.*async_generator object .*Stream:pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:Async generator 'httpx:ResourceWarning"),
]

HTML = Reply(status=200, headers={"Content-Type": "text/html"}, body=b"<!DOCTYPE html><title>Sign in</title>")
FORBIDDEN = Reply(status=403, body={"message": "403 Forbidden"})


@pytest.fixture
def gitlab(tmp_path: Path) -> FakeGitLab:
    """One that answers at once."""
    return FakeGitLab(tmp_path / "gitlab", long_poll=0.05, accepts=0)


async def heeding(_: Job, __: Lease, report: Reporting) -> Outcome:
    """Run until GitLab wants the end."""
    await report.canceling.wait()
    return Outcome(is_success=False, failure_reason="job_canceled")


async def test_each_job_gets_a_slot_runs_and_is_reported(gitlab: FakeGitLab, tmp_path: Path) -> None:
    """Once each, with its log; every slot is given back, and no token is left on the disk."""
    runs = Scripted()
    jobs = [gitlab.enqueue(a_job(f"job {number}")) for number in range(6)]
    async with serving(tmp_path, gitlab, runs=runs) as bench:
        for number in jobs:
            stored = await gitlab.ended(number)
            assert (stored.state, gitlab.log(number)) == (State.SUCCESS, f"hello from {number}\n".encode())
        await bench.until(lambda: not bench.service.running)
        await bench.taken(acquired=0)
        assert sorted(number for number, _ in runs.runs) == jobs
        assert [view.state for view in bench.service.jobs] == ["succeeded"] * 6
    assert not [path for path in (tmp_path / "jobs").rglob("*") if path.name == "job.json"]


async def test_what_a_job_has_used_is_told_once_it_is_over(gitlab: FakeGitLab, tmp_path: Path) -> None:
    """To whoever lists jobs and whoever asks about one, also after the runner was restarted."""
    used = Usage(cpu_time=75.0, peak_memory=3 << 20)
    number = gitlab.enqueue(a_job())
    async with serving(tmp_path, gitlab, runs=Scripted(usage=used)) as bench:
        await gitlab.ended(number)
        await bench.until(lambda: not bench.service.running)
        told = [bench.service.jobs[0]]
    async with serving(tmp_path, gitlab) as bench:
        await bench.until(lambda: bool(bench.service.jobs))
        told += bench.service.jobs
        for view in told:
            assert {**view.record(), **asdict(used)} == view.record()
            assert view.explain()[0].endswith(" is over: succeeded; it used 1m15s of CPU, 3 MiB of memory at most")
        assert len(told) == 2


async def test_a_slot_is_reserved_before_each_request_and_given_back(gitlab: FakeGitLab, tmp_path: Path) -> None:
    """Where no slot can be had, nobody is asked; an answer without a job frees the slot for others."""
    async with serving(tmp_path, gitlab, max_instances=1, capacity_per_instance=1) as bench:
        await bench.until(lambda: gitlab.calls["request"] >= 1)
        lease = await bench.scaler.acquire_lease("somebody else", timeout=20)
        await bench.until(lambda: "until the fleet has a slot" in bench.service.status())
        asked = gitlab.calls["request"]
        number = gitlab.enqueue(a_job())
        await anyio.sleep(0.2)
        assert (gitlab.calls["request"], gitlab.server.jobs[number].state) == (asked, State.PENDING)
        lease.release()
        assert (await gitlab.ended(number)).state is State.SUCCESS


@pytest.mark.parametrize(("concurrent", "more", "whose"), [(2, "", "concurrent = 2"), (9, "limit = 2", "limit = 2")])
async def test_no_more_jobs_than_allowed_run_at_once(
    gitlab: FakeGitLab, tmp_path: Path, concurrent: int, more: str, whose: str
) -> None:
    """The file's number and the runner's own, whichever is smaller; the status says whose it is."""
    held = Held()
    jobs = [gitlab.enqueue(a_job()) for _ in range(4)]
    async with serving(tmp_path, gitlab, runs=Scripted(held), concurrent=concurrent, more=more) as bench:
        await bench.until(lambda: bench.service.running == 2 and not bench.service._asking.polls)
        limit = f"2 of at most 2 jobs; no more are asked for, because of {whose}"
        assert limit in bench.service.status()
        unknown, why = bench.service.explain(f"gitlab-{jobs[-1]}")
        assert unknown.startswith(f"gitlab-{jobs[-1]} is not known here: GitLab has not handed it out")
        assert limit in why
        assert bench.service.explain("somebody else") == ()
        held.go.set()
        for number in jobs:
            assert (await gitlab.ended(number)).state is State.SUCCESS


async def test_a_job_cancelled_before_it_has_an_instance_boots_none(gitlab: FakeGitLab, tmp_path: Path) -> None:
    """GitLab is told that it is being prepared, and so tells of the cancellation."""
    cloud, runs = FakeCloud(boot_time=3600.0), Scripted()
    number = gitlab.enqueue(a_job())
    async with serving(tmp_path, gitlab, cloud=cloud, runs=runs) as bench:
        await bench.until(lambda: bool(bench.service.jobs) and bench.first.work.report is not None)
        view = bench.first
        assert bench.service.key_of(view.id) is not None
        assert "waits for its slot" in view.explain()[0]
        gitlab.cancel(number)  # which the runner learns when it says again that it prepares the job
        await bench.until(lambda: view.over)
        assert runs.runs == []
        await bench.taken(acquired=0, pending=0)


async def test_a_job_whose_instance_goes_before_it_began_is_placed_again(gitlab: FakeGitLab, tmp_path: Path) -> None:
    """On another instance, under another name; GitLab notices nothing."""
    cloud, begun = FakeCloud(), anyio.Event()

    async def at_the_second_try(_: Job, __: Lease, ___: Reporting) -> Outcome:
        if not begun.is_set():
            begun.set()
            await anyio.sleep_forever()
        return Outcome(is_success=True)

    runs = Scripted(at_the_second_try, begins=False)
    number = gitlab.enqueue(a_job())
    async with serving(tmp_path, gitlab, cloud=cloud, runs=runs) as bench:
        await begun.wait()
        first = bench.first.work.instance
        cloud.vanish(first or "")
        assert (await gitlab.ended(number)).state is State.SUCCESS
        assert len({name for _, name in runs.runs}) == len(runs.runs) == 2
        assert bench.service.jobs[0].record()["tries"] == 2
        assert bench.service.jobs[0].record()["instance"] != first


async def test_where_nobody_answers_on_a_connection_that_lives_a_job_is_not_placed_again(
    gitlab: FakeGitLab, tmp_path: Path
) -> None:
    """As if the Docker daemon there hung: the instance is suspect, and the next try goes elsewhere."""
    instances: list[str] = []

    async def mute_at_first(_: Job, lease: Lease, __: Reporting) -> Outcome:
        instances.append(lease.instance)
        if len(instances) == 1:
            raise Unreachable("the Docker daemon did not answer within 30s")
        return Outcome(is_success=True)

    number = gitlab.enqueue(a_job())
    runs = Scripted(mute_at_first, begins=False)
    async with serving(tmp_path, gitlab, runs=runs, max_instances=1, capacity_per_instance=1):
        assert (await gitlab.ended(number)).state is State.SUCCESS
    assert len({*instances}) == len(instances) == 2


async def test_a_job_whose_instance_goes_while_it_runs_fails_honestly(gitlab: FakeGitLab, tmp_path: Path) -> None:
    """It is not run again; one line in its log says why."""
    cloud, held = FakeCloud(), Held()
    runs = Scripted(held)
    number = gitlab.enqueue(a_job())
    async with serving(tmp_path, gitlab, cloud=cloud, runs=runs) as bench:
        await held.begun.wait()
        cloud.vanish(bench.first.work.instance or "")
        stored = await gitlab.ended(number)
        assert (stored.state, stored.failure_reason) == (State.FAILED, "runner_system_failure")
        log = gitlab.log(number).decode()
        assert log.startswith("it runs\n")
        assert "was lost while it ran" in log
        assert len(runs.runs) == 1


async def test_an_operator_ends_a_job(gitlab: FakeGitLab, tmp_path: Path) -> None:
    """Its commands end, its slot is given back, and GitLab learns who did it."""
    held = Held()
    runs = Scripted(held)
    number = gitlab.enqueue(a_job())
    async with serving(tmp_path, gitlab, runs=runs) as bench:
        await held.begun.wait()
        view = bench.first
        assert (view.state, view.as_data()["jobs"]) == ("running", {"running": 1})
        view.cancel()
        stored = await gitlab.ended(number)
        assert (stored.state, stored.failure_reason) == (State.FAILED, "runner_interrupted")
        assert b"cancelled where its runner runs" in gitlab.log(number)
        assert len(runs.abandoned) == 1
        await bench.taken(acquired=0)
        assert view.state == "cancelled"


async def test_gitlabs_cancellation_reaches_the_job(gitlab: FakeGitLab, tmp_path: Path) -> None:
    """What runs it hears of it, and the job is canceled."""

    async def talking(job: Job, lease: Lease, report: Reporting) -> Outcome:
        while not report.canceling.is_set():
            report.log(b"still here\n")
            await anyio.sleep(0.05)
        return await heeding(job, lease, report)

    number = gitlab.enqueue(a_job())
    async with serving(tmp_path, gitlab, runs=Scripted(talking)) as bench:
        await bench.until(lambda: gitlab.server.jobs[number].state is State.RUNNING)
        gitlab.cancel(number)
        assert (await gitlab.ended(number)).state is State.CANCELED


async def test_a_restart_goes_on_with_what_runs(gitlab: FakeGitLab, tmp_path: Path) -> None:
    """The lease is taken up again, the report goes on, the job runs under the same name, and its log is whole."""
    cloud, journal, held = FakeCloud(), MemoryJournal(), Held()
    runs = Scripted(held)
    number = gitlab.enqueue(a_job())
    async with serving(tmp_path, gitlab, cloud=cloud, runs=runs, journal=journal) as bench:
        await held.begun.wait()
        first = bench.first.work.instance
    assert gitlab.server.jobs[number].state is State.RUNNING
    again = Scripted()
    async with serving(tmp_path, gitlab, cloud=cloud, runs=again, journal=journal) as bench:
        assert (await gitlab.ended(number)).state is State.SUCCESS
        assert bench.service.jobs[0].record()["instance"] == first
        assert again.runs == runs.runs
        await bench.taken(acquired=0)
    assert gitlab.log(number) == f"hello from {number}\n".encode() or gitlab.log(number).startswith(b"it runs")


async def test_a_job_is_known_as_soon_as_the_next_runner_is(gitlab: FakeGitLab, tmp_path: Path) -> None:
    """Who follows its log asks for it at once; meanwhile the first runner has it not as over, but as left."""
    cloud, journal, held = FakeCloud(), MemoryJournal(), Held()
    number = gitlab.enqueue(a_job())
    async with serving(tmp_path, gitlab, cloud=cloud, runs=Scripted(held), journal=journal) as bench:
        await held.begun.wait()
        view = bench.first
        assert (view.over, view.left) == (False, False)
    assert (view.over, view.left) == (True, True)
    with anyio.move_on_after(0.05) as waiting:
        await view.wait()
    assert waiting.cancelled_caught, "it is not over"
    next_one = evolve(bench.service)
    assert await next_one.take_up(bench.scaler, LoopClock()) == 1
    assert [each.id for each in next_one.jobs] == [f"gitlab-{number}"]
    assert next_one.explain(f"gitlab-{number}")
    next_one._lock.close()


async def test_logs_of_jobs_that_are_over_outlive_the_runner(gitlab: FakeGitLab, tmp_path: Path) -> None:
    """They are listed, read and explained as before, until they are too many, too large or too old."""
    numbers = [gitlab.enqueue(a_job(f"job {number}")) for number in range(3)]
    ids = [f"gitlab-{number}" for number in numbers]
    async with serving(tmp_path, gitlab, concurrent=1) as bench:
        for number in numbers:
            await gitlab.ended(number)
        await bench.until(lambda: not bench.service.running)
        before = [(view.as_data(), view.record()) for view in bench.service.jobs]
    async with serving(tmp_path, gitlab) as bench:
        assert [(view.as_data(), view.record()) for view in bench.service.jobs] == before
        assert [view.id for view in bench.service.jobs] == ids
        logs = [view.log.read_text() for view in bench.service.jobs if view.log]
        assert logs == [f"hello from {number}\n" for number in numbers]
        assert bench.service.explain(ids[0]) == (f"{ids[0]} (job 0) is over: succeeded",)
        assert bench.service.key_of(ids[0]) is None
        assert not bench.service.running
        await bench.service.jobs[0].wait()
    more = f"[runners.taskscaler.retention]\nsize = {2 * len(logs[0])}"
    async with serving(tmp_path, gitlab, more=more) as bench:
        await bench.until(lambda: [view.id for view in bench.service.jobs] == ids[1:])
    more = '[runners.taskscaler.retention]\nage = "1ms"'
    async with serving(tmp_path, gitlab, more=more) as bench:
        await bench.until(lambda: not bench.service.jobs)
        await bench.until(lambda: not [*(tmp_path / "jobs" / "jobs").iterdir()])  # a thread removes them afterwards


async def test_caches_on_this_machine_are_bounded(gitlab: FakeGitLab, tmp_path: Path) -> None:
    """By the settings, from the start on and after each job."""
    project = tmp_path / "caches" / "project-1"
    project.mkdir(parents=True)
    (project / "old.tar").write_bytes(b"x" * 11)
    own = f'[runners.taskscaler]\ncache_on_manager = "{tmp_path}/caches"\ncache_retention.size = 10'
    async with serving(tmp_path, gitlab, more=own) as bench:
        await bench.until(lambda: not [*project.iterdir()])
        (project / "small.tar").write_bytes(b"x" * 10)
        (project / "large.tar").write_bytes(b"x" * 11)
        await gitlab.ended(gitlab.enqueue(a_job()))
        await bench.until(lambda: [path.name for path in project.iterdir()] == [])
        (project / "small.tar").write_bytes(b"x" * 10)
        await gitlab.ended(gitlab.enqueue(a_job()))
        await bench.until(lambda: not bench.service.running)
        assert [path.name for path in project.iterdir()] == ["small.tar"]


async def test_the_token_of_a_job_goes_to_no_other_gitlab(gitlab: FakeGitLab, tmp_path: Path) -> None:
    """The file names another GitLab after a restart: the job of the first one is given up, and people learn of it."""
    cloud, journal, held = FakeCloud(), MemoryJournal(), Held()
    number = gitlab.enqueue(a_job())
    async with serving(tmp_path, gitlab, cloud=cloud, runs=Scripted(held), journal=journal):
        await held.begun.wait()
    other, again = FakeGitLab(tmp_path / "other", long_poll=0.05), Scripted()
    async with serving(tmp_path, other, cloud=cloud, runs=again, journal=journal, url="http://other.test") as bench:
        await bench.taken(acquired=0)
        await bench.until(lambda: not cloud.alive)
        assert any(f"the job {number} is from another GitLab than http://other.test" in line for line in bench.said)
        assert again.runs == []
    assert not [*tmp_path.glob("jobs/jobs/*/job.json")]  # noqa: ASYNC240  (of no moment here)


async def test_a_job_that_ended_is_reported_by_the_next_runner(gitlab: FakeGitLab, tmp_path: Path) -> None:
    """GitLab was away when it ended; nothing runs again."""

    async def last_words(_: Job, __: Lease, report: Reporting) -> Outcome:
        report.log(b"done\n")
        gitlab.faults = [Fault(call="update", times=1_000_000)]
        return Outcome(is_success=True)

    cloud, journal = FakeCloud(), MemoryJournal()
    number = gitlab.enqueue(a_job())
    async with serving(tmp_path, gitlab, cloud=cloud, runs=Scripted(last_words), journal=journal) as bench:
        await bench.until(lambda: bool(bench.service.jobs) and bench.first.work.record.outcome is not None)
    gitlab.faults = []
    again = Scripted()
    async with serving(tmp_path, gitlab, cloud=cloud, runs=again, journal=journal) as bench:
        assert (await gitlab.ended(number)).state is State.SUCCESS
        assert again.runs == []
        await bench.taken(acquired=0)
    assert gitlab.log(number) == b"done\n"


async def test_a_job_whose_instance_went_during_the_restart_fails(gitlab: FakeGitLab, tmp_path: Path) -> None:
    """It is reported with the reason, and not run a second time."""
    cloud, journal, held = FakeCloud(), MemoryJournal(), Held()
    number = gitlab.enqueue(a_job())
    async with serving(tmp_path, gitlab, cloud=cloud, runs=Scripted(held), journal=journal) as bench:
        await held.begun.wait()
        first = bench.first.work.instance
    cloud.vanish(first or "")
    again = Scripted()
    async with serving(tmp_path, gitlab, cloud=cloud, runs=again, journal=journal):
        stored = await gitlab.ended(number)
        assert (stored.state, stored.failure_reason) == (State.FAILED, "runner_system_failure")
        assert b"its instance was lost while the runner was away" in gitlab.log(number)
        assert again.runs == []


async def test_what_cannot_outlive_the_runner_is_ended_with_it(gitlab: FakeGitLab, tmp_path: Path) -> None:
    """Without a journal no lease is found again: the job is ended there and reported."""
    held = Held()
    runs = Scripted(held)
    number = gitlab.enqueue(a_job())
    async with serving(tmp_path, gitlab, runs=runs):
        await held.begun.wait()
    assert gitlab.server.jobs[number].state is State.FAILED
    assert gitlab.server.jobs[number].failure_reason == "runner_interrupted"
    assert len(runs.abandoned) == 1


async def test_a_wrong_token_silences_the_runner(gitlab: FakeGitLab, tmp_path: Path) -> None:
    """After three refusals; it is said, in the status too, and no slot stays reserved."""
    async with serving(tmp_path, gitlab, token="glrt-wrong") as bench:
        await bench.until(lambda: any("refused the runner's token three times" in line for line in bench.said))
        assert gitlab.calls["request"] == 3
        assert "refused the runner's token three times in a row" in bench.service.status()
        await bench.taken(reserved=0, promised=0)


@pytest.mark.parametrize(
    "reply",
    [HTML, None, Reply(status=201, headers={"Content-Type": "text/plain"}, body=b'{"id": 1, "token": "x"}')],
    ids=["a page", "no answer", "no type"],
)
async def test_answers_that_are_none_cost_no_slot(gitlab: FakeGitLab, tmp_path: Path, reply: Reply | None) -> None:
    """Whatever GitLab, or what stands before it, answers: the runner asks again, and the slot is free meanwhile."""
    gitlab.faults = [Fault(call="request", reply=reply, times=2)]
    number = gitlab.enqueue(a_job())
    async with serving(tmp_path, gitlab) as bench:
        stored = await gitlab.ended(number)
        assert stored.state is State.SUCCESS
        await bench.until(lambda: not bench.service.running)
        await bench.taken(acquired=0)


async def test_the_status_says_if_gitlab_does_not_answer(gitlab: FakeGitLab, tmp_path: Path) -> None:
    """For as long as that is so: an operator looks there first."""
    gitlab.faults = [Fault(call="request", reply=HTML, times=1_000_000)]
    async with serving(tmp_path, gitlab) as bench:
        await bench.until(lambda: "GitLab does not answer as it should" in bench.service.status())
        gitlab.faults = []
        await bench.until(lambda: "GitLab does not answer" not in bench.service.status())


async def test_a_job_that_cannot_be_noted_down_is_refused(gitlab: FakeGitLab, tmp_path: Path) -> None:
    """A full disk costs the job, which fails at once with the reason, and no slot."""
    number = gitlab.enqueue(a_job())
    async with serving(tmp_path, gitlab, runs=Scripted()) as bench:
        (tmp_path / "jobs" / "jobs").rmdir()
        (tmp_path / "jobs" / "jobs").touch()
        stored = await gitlab.ended(number)
        assert (stored.state, stored.failure_reason) == (State.FAILED, "runner_system_failure")
        assert b"cannot be noted down" in gitlab.log(number)
        await bench.taken(acquired=0)


async def test_drained_it_asks_for_no_more(gitlab: FakeGitLab, tmp_path: Path) -> None:
    """What runs goes on to its end, and is waited for until GitLab knows."""
    held = Held()
    number = gitlab.enqueue(a_job())
    async with serving(tmp_path, gitlab, runs=Scripted(held)) as bench:
        await held.begun.wait()
        bench.service.drain()
        await bench.until(lambda: not bench.service._asking.polls)
        later = gitlab.enqueue(a_job("later"))
        held.go.set()
        await bench.service.settle()
        assert gitlab.server.jobs[number].state is State.SUCCESS
        assert gitlab.server.jobs[later].state is State.PENDING
        assert "the daemon is ending" in bench.service.status()


@pytest.mark.parametrize("knows_two_phases", [True, False])
async def test_a_job_without_a_slot_goes_back_if_the_runner_ends_for_good(
    tmp_path: Path, *, knows_two_phases: bool
) -> None:
    """Another runner gets it, or, where GitLab cannot do that, it fails at once; nothing of it is left here."""
    gitlab = FakeGitLab(tmp_path / "gitlab", long_poll=0.05, accepts=0, acknowledgement=3.0)
    if not knows_two_phases:
        gitlab.faults = [Fault(call="update", reply=Reply(status=400, body={"message": "state"}))]
    number = gitlab.enqueue(a_job())
    async with serving(tmp_path, gitlab, cloud=FakeCloud(boot_time=3600.0)) as bench:
        await bench.until(lambda: bool(bench.service.jobs) and bench.first.work.report is not None)
        view = bench.first
        await bench.until(lambda: gitlab.calls["update"] >= (1 if knows_two_phases else 2))
        bench.service.drain()
        assert await bench.scaler.drain(5)
        await bench.service.settle()
        assert not view.over, "the next daemon may have a slot for it"
        bench.service.drain(for_good=True)
        await bench.service.settle()
        assert (view.over, view.left) == (True, False)
        assert not [*tmp_path.glob("jobs/jobs/*/job.json")]  # noqa: ASYNC240  (of no moment here)
    if knows_two_phases:
        (tmp_path / "other").mkdir()
        assert gitlab.server.jobs[number].state is State.PENDING
        async with serving(tmp_path / "other", gitlab):
            again = (await gitlab.ended(number)).retried_as
            assert again is not None
            assert (await gitlab.ended(again)).state is State.SUCCESS
    else:
        stored = gitlab.server.jobs[number]
        assert (stored.state, stored.failure_reason) == (State.FAILED, "runner_system_failure")
        assert b"its runner was drained before there was a slot for it" in gitlab.log(number)


async def test_a_reload_takes_over_numbers_and_the_token(gitlab: FakeGitLab, tmp_path: Path) -> None:
    """At once; what else has changed is named. A file with a mistake changes nothing."""
    held = Held()
    async with serving(tmp_path, gitlab, runs=Scripted(held), token="glrt-wrong", concurrent=1) as bench:
        await bench.until(lambda: any("three times" in line for line in bench.said))
        path = tmp_path / "config.toml"
        text = path.read_text()
        path.write_text(text.replace("concurrent = 1", "concurent = 1"))
        with pytest.raises(ConfigError, match="did you mean `concurrent`"):
            await bench.service.reload()
        changed = text.replace("glrt-wrong", gitlab.runner_token).replace("concurrent = 1", "concurrent = 2")
        path.write_text(changed.replace('executor = "instance"', 'executor = "instance"\noutput_limit = 7'))
        assert await bench.service.reload() == ["runners.output_limit changed"]
        assert bench.said[-1] == "reloaded: concurrent = 2, limit = 0, the token"
        jobs = [gitlab.enqueue(a_job()) for _ in range(2)]
        await bench.until(lambda: bench.service.running == 2)
        held.go.set()
        for number in jobs:
            assert (await gitlab.ended(number)).state is State.SUCCESS


async def test_a_token_that_ends_is_replaced_in_time(gitlab: FakeGitLab, tmp_path: Path) -> None:
    """The runner asks with the new one, and finds it in its file at the next start."""
    soon = (datetime.now(tz=UTC) + timedelta(seconds=4)).isoformat()
    old = gitlab.runner_token
    more = f'token_expires_at = "{soon}"'
    async with serving(tmp_path, gitlab, more=more) as bench:
        await bench.until(lambda: any("token was replaced" in line for line in bench.said))
        number = gitlab.enqueue(a_job())
        assert (await gitlab.ended(number)).state is State.SUCCESS
    kept = read_config(tmp_path / "config.toml").runner.token
    assert kept != old
    assert kept not in "".join(bench.said)


async def test_a_token_that_could_not_be_kept_is_not_replaced(gitlab: FakeGitLab, tmp_path: Path) -> None:
    """The runner would not know it after a restart; it says so, and works on with the old one."""
    soon = (datetime.now(tz=UTC) + timedelta(seconds=2)).isoformat()
    async with serving(tmp_path, gitlab, more=f'token_expires_at = "{soon}"') as bench:
        path = tmp_path / "config.toml"
        path.write_text(path.read_text().replace(f'"{gitlab.runner_token}"', f"'''{gitlab.runner_token}'''"))
        await bench.until(lambda: any("is not replaced" in line for line in bench.said))
        assert gitlab.calls["reset"] == 0


class _Filling(FakeGitLab):
    """A GitLab that answers just when nothing more can be written at the runner."""

    async def reset(self, token: str) -> Reply:
        """See `FakeGitLab`."""
        here = self.directory.parent
        (here / "config.toml").rename(here / "away.toml")
        (here / "jobs" / "token" / "full").mkdir(parents=True)
        return await super().reset(token)


async def test_a_new_token_that_cannot_be_written_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a full disk: it is in use, whatever a reload finds, and is written as soon as there is room."""
    monkeypatch.setattr("taskscaler_gitlab._token_care.LEAST", 0.05)
    gitlab = _Filling(tmp_path / "gitlab", long_poll=0.05, accepts=0)
    soon = (datetime.now(tz=UTC) + timedelta(seconds=2)).isoformat()
    path, before = tmp_path / "config.toml", gitlab.runner_token
    async with serving(tmp_path, gitlab, more=f'token_expires_at = "{soon}"') as bench:
        await bench.until(lambda: any("cannot be kept" in line for line in bench.said))
        text = (tmp_path / "away.toml").read_text()
        path.write_text(text.replace(f'"{before}"', f"'''{before}'''"))
        assert await bench.service.reload() == []
        assert bench.said[-1] == "reloaded: concurrent = 4, limit = 0"
        assert (await gitlab.ended(gitlab.enqueue(a_job()))).state is State.SUCCESS
        path.write_text(text)
        await bench.until(lambda: any("token was replaced, and is kept" in line for line in bench.said))
        assert sum("cannot be kept" in line for line in bench.said) == 1
    assert read_config(path).runner.token not in ("", before)
    assert gitlab.calls["reset"] == 1


async def test_a_reload_does_not_go_back_to_a_token_that_is_just_replaced(
    gitlab: FakeGitLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor to what it has read of it: it would ask with a token that is good for nothing, until the next reload."""
    path, before, read = tmp_path / "config.toml", gitlab.runner_token, _service._read_again

    def read_again(config: ServiceConfig) -> ServiceConfig:
        found = read(config)
        from_thread.run(replaced)
        return found

    async def replaced() -> None:
        (care,) = bench.service._cares
        tasks.start_soon(care._renewed, None)
        while before in path.read_text() and not care.changing.statistics().tasks_waiting:  # noqa: ASYNC110  (nobody says)
            await anyio.sleep(0.01)

    async with anyio.create_task_group() as tasks, serving(tmp_path, gitlab) as bench:
        with monkeypatch.context() as patch:
            patch.setattr(_service, "_read_again", read_again)
            await bench.service.reload()
        await bench.until(lambda: any("token was replaced, and is kept" in line for line in bench.said))
        for _ in range(2):
            assert (await gitlab.ended(gitlab.enqueue(a_job()))).state is State.SUCCESS
            await bench.service.reload()
    assert read_config(path).runner.token not in ("", before)


async def test_a_token_that_a_reload_brings_is_replaced_in_time(gitlab: FakeGitLab, tmp_path: Path) -> None:
    """By its own dates; certificates are not taken over, and the answer says so."""
    (tmp_path / "ca.pem").write_text("one")
    async with serving(tmp_path, gitlab, token="glrt-wrong") as bench:
        await bench.until(lambda: any("check the runner's token" in line for line in bench.said))
        path, soon = tmp_path / "config.toml", (datetime.now(tz=UTC) + timedelta(seconds=2)).isoformat()
        text = path.read_text().replace("glrt-wrong", gitlab.runner_token)
        dates = f'token_expires_at = "{soon}"\ntls-ca-file = "ca.pem"'
        path.write_text(text.replace('executor = "instance"', f'executor = "instance"\n{dates}'))
        assert await bench.service.reload() == ["runners.tls_ca_file changed"]
        await bench.until(lambda: any("token was replaced, and is kept" in line for line in bench.said))
        assert read_config(path).runner.token not in ("glrt-wrong", gitlab.runner_token)


async def test_two_runners_never_have_one_directory_of_jobs(gitlab: FakeGitLab, tmp_path: Path) -> None:
    """Each would run the other's jobs: the second does not begin, and says what to change."""
    async with serving(tmp_path, gitlab) as bench:
        second = evolve(bench.service)
        with pytest.raises(JournalError, match="another runner or process; stop that one first"):
            await second.take_up(bench.scaler, LoopClock())
    async with serving(tmp_path, gitlab) as bench:
        number = gitlab.enqueue(a_job())
        assert (await gitlab.ended(number)).state is State.SUCCESS


class _Hasty(FakeGitLab):
    """A GitLab whose tokens have ended when they come, by the runner's clock."""

    async def reset(self, token: str) -> Reply:
        """See `FakeGitLab`."""
        reply = await super().reset(token)
        return evolve(reply, body={**reply.body, "token_expires_at": "2020-01-01T00:00:00Z"})


async def test_a_clock_that_is_wrong_does_not_replace_tokens_over_and_over(tmp_path: Path) -> None:
    """The token that has just come is used for a while, and the file is not written without a pause."""
    gitlab = _Hasty(tmp_path / "gitlab", long_poll=0.05, accepts=0)
    async with serving(tmp_path, gitlab, more='token_expires_at = "2020-01-01T00:00:00Z"') as bench:
        await bench.until(lambda: any("token was replaced" in line for line in bench.said))
        for _ in range(2):
            assert (await gitlab.ended(gitlab.enqueue(a_job()))).state is State.SUCCESS
    assert gitlab.calls["reset"] == 1


async def test_a_paused_runner_asks_for_nothing_and_goes_on_with_what_it_has(tmp_path: Path) -> None:
    """A request that GitLab holds may still bring a job; no slot is kept, and after a restart it is paused as before.

    Asked to, it asks again; whether it has had an answer says that GitLab knows it.
    """
    gitlab, cloud, journal = FakeGitLab(tmp_path / "gitlab", long_poll=1000.0, accepts=0), FakeCloud(), MemoryJournal()
    held = Held()
    async with serving(tmp_path, gitlab, cloud=cloud, journal=journal, runs=Scripted(held)) as bench:
        await bench.until(lambda: gitlab.held == 1)
        await bench.service.pause()
        intake = bench.service.intake
        assert (intake.paused, intake.requests, intake.answered) == (True, 1, True)
        assert "the runner is paused; 1 request may still bring one; `taskscaler pause" in bench.service.status()
        number = gitlab.enqueue(a_job())
        await bench.until(lambda: held.begun.is_set() and not bench.service._asking.polls)
        assert (bench.service.intake.requests, bench.service.intake.jobs) == (0, 1)
        later, asked = gitlab.enqueue(a_job()), gitlab.calls["request"]
        held.go.set()
        assert (await gitlab.ended(number)).state is State.SUCCESS
        await bench.taken(acquired=0, reserved=0)
    async with serving(tmp_path, gitlab, cloud=cloud, journal=journal) as bench:
        assert any(line.startswith("paused: ") for line in bench.said)
        await bench.taken(acquired=0, reserved=0)
        assert (bench.service.intake.answered, gitlab.calls["request"]) == (False, asked)
        await bench.service.unpause()
        assert (await gitlab.ended(later)).state is State.SUCCESS
        await bench.until(lambda: bench.service.intake.answered)
    assert not (tmp_path / "jobs" / "paused").exists()


async def test_a_slot_is_waited_for_no_longer_once_the_runner_is_paused(gitlab: FakeGitLab, tmp_path: Path) -> None:
    """The fleet grows for nobody then; what waited for a slot with a job gets one."""
    async with serving(tmp_path, gitlab, max_instances=1, capacity_per_instance=1) as bench:
        await bench.until(lambda: gitlab.calls["request"] >= 1)
        lease = await bench.scaler.acquire_lease("somebody else", timeout=20)
        await bench.until(lambda: "until the fleet has a slot" in bench.service.status())
        await bench.service.pause()
        await bench.until(lambda: not bench.service._asking.upstreams.is_waiting)
        lease.release()
        await bench.taken(acquired=0, reserved=0)
        await bench.service.unpause()
        assert (await gitlab.ended(gitlab.enqueue(a_job()))).state is State.SUCCESS


@pytest.mark.parametrize("is_paused", [False, True], ids=["asking", "paused"])
async def test_a_canary_runs_as_all_jobs_do(gitlab: FakeGitLab, tmp_path: Path, *, is_paused: bool) -> None:
    """Paused or not; GitLab never hears of it, whatever rules say of jobs, and it is listed like any other."""

    async def fly(_: Job, lease: Lease, report: Reporting) -> Outcome:
        report.log(f"canary: ran on {lease.instance}, slot {lease.slot}\n".encode())
        return Outcome(is_success=True)

    rules = '[[dispatch]]\nname = "none"\nrefuse = "nobody"\n'
    async with serving(tmp_path, gitlab, runs=Scripted(fly), rules=rules) as bench:
        if is_paused:
            await bench.service.pause()
        canary = await bench.service.fly_canary()
        assert (canary.passed, canary.log) == (True, ())
        assert canary.says.startswith("canary: ran on ")
        assert [(view.id, view.state) for view in bench.service.jobs] == [("gitlab-canary-1", "succeeded")]
        await bench.taken(acquired=0)
        assert gitlab.server.jobs == {}
        bench.service.drain()
        with pytest.raises(NoCapacity, match="the runner is ending"):
            await bench.service.fly_canary()
    async with serving(tmp_path, gitlab) as bench:
        assert bench.service.jobs == []


async def test_a_canary_that_fails_says_why(gitlab: FakeGitLab, tmp_path: Path) -> None:
    """With the end of its log, also if it cannot be noted down."""

    async def fail(_: Job, __: Lease, report: Reporting) -> Outcome:
        report.log(b"\x1b[31mno\x1b[0m such thing\n")
        return Outcome(is_success=False, failure_reason="script_failure", exit_code=1)

    async with serving(tmp_path, gitlab, runs=Scripted(fail)) as bench:
        canary = await bench.service.fly_canary()
        assert (canary.passed, canary.says, canary.log[-1]) == (
            False,
            "the canary failed (script_failure)",
            "no such thing",
        )
        moved = (tmp_path / "jobs" / "jobs").rename(tmp_path / "jobs" / "moved")
        (tmp_path / "jobs" / "jobs").write_text("in the way")
        canary = await bench.service.fly_canary()
        assert (canary.passed, "cannot be noted down" in canary.log[-1]) == (False, True)
        (tmp_path / "jobs" / "jobs").unlink()
        moved.rename(tmp_path / "jobs" / "jobs")


async def test_a_canary_that_nobody_waits_for_is_ended(gitlab: FakeGitLab, tmp_path: Path) -> None:
    """Its slot is given back; one that is cut short by the end of the runner is not taken for GitLab's."""
    cloud, journal, held = FakeCloud(), MemoryJournal(), Held()
    async with serving(tmp_path, gitlab, cloud=cloud, journal=journal, runs=Scripted(held), leaves=False) as bench:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(bench.service.fly_canary)
            await bench.until(held.begun.is_set)
            tasks.cancel_scope.cancel()
        await bench.taken(acquired=0)
        assert [view.state for view in bench.service.jobs] == ["cancelled"]
        held.begun = anyio.Event()
        bench.tasks.start_soon(bench.service.fly_canary)
        await bench.until(held.begun.is_set)
    async with serving(tmp_path, gitlab, cloud=cloud, journal=journal) as bench:
        assert [line for line in bench.said if "canary was cut short" in line]
        await bench.taken(acquired=0)
