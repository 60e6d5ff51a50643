"""A runner of several GitLabs: each job runs once and is reported to its own, whatever is slow, away or at once."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from attrs import define

from fleeting import MemoryJournal
from fleeting.testing import FakeCloud
from gitlab_jobs.coordinator import Reply
from gitlab_jobs.testing import FakeGitLab, Fault, State
from taskscaler_gitlab import read_config
from taskscaler_gitlab._asking import Asking
from tests.taskscaler_gitlab.cells_here import CellHere, cell
from tests.taskscaler_gitlab.services import Bench, Held, Scripted, a_job, serving

pytestmark = [
    pytest.mark.anyio,
    # httpx leaves its own generators open when an answer is not read to its end, and trio tells of them
    pytest.mark.filterwarnings("ignore:.*async_generator object .*Stream:pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:Async generator 'httpx:ResourceWarning"),
]

ONE_SLOT: dict[str, Any] = {"max_instances": 1, "capacity_per_instance": 1}


def held_at(cells: list[CellHere]) -> bool:
    """Whether each holds a request."""
    return all(each.gitlab.held for each in cells)


def asking(bench: Bench) -> Asking:
    """What asks them."""
    return bench.service._asking


async def test_jobs_of_three_cells_one_far_and_one_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each runs once and ends at its own cell, no cell has a call about another's, and who was away is taken back."""
    monkeypatch.setattr("taskscaler_gitlab.cells._upstreams.PROBE", 0.2)
    near, _, away = cells = [cell(tmp_path, "near"), cell(tmp_path, "far", latency=1.0), cell(tmp_path, "away")]
    away.way.is_cut = True
    runs = Scripted()
    for each, number in zip(cells, (20, 6, 20), strict=True):
        for _ in range(number):
            each.gitlab.enqueue(a_job(each.name))
    async with serving(tmp_path, near.gitlab, cells=cells, runs=runs, concurrent=8, max_instances=4) as bench:
        await bench.until(
            lambda: near.is_done and "away (http://away.test): 0 jobs, left out" in bench.service.status()
        )
        assert asking(bench).upstreams.cells["away"].probe_at is not None
        away.way.is_cut = False
        await bench.until(lambda: all(each.is_done for each in cells))
        await bench.until(lambda: not bench.service.running)
        assert len(runs.runs) == len({name for _, name in runs.runs}) == 46
        assert [each.way.refused for each in cells] == [0, 0, 0]
        assert {view.id.rpartition("-")[0] for view in bench.service.jobs} == {f"gitlab-{each.name}" for each in cells}
        for each in cells:
            assert all(each.gitlab.log(number) == b"hello from %d\n" % number for number in each.gitlab.server.jobs)
        await bench.taken(acquired=0)


async def both_at_once(bench: Bench, cells: list[CellHere]) -> None:
    """Have each cell answer the one reservation that there is, and wait until both jobs are here."""
    await bench.until(lambda: held_at(cells))
    for each in cells:
        each.gitlab.enqueue(a_job(each.name))
    await bench.until(lambda: bench.service.running == len(cells))


@pytest.mark.parametrize("two_phase", [True, False])
async def test_two_cells_answer_one_reservation_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, two_phase: bool
) -> None:
    """One job runs; the other waits, and its GitLab keeps it for us for as long as that takes; none is run twice."""
    monkeypatch.setattr("gitlab_jobs._job.PENDING", 0.1)
    cells = [cell(tmp_path, name, two_phase=two_phase, acknowledgement=30.0) for name in ("a", "b")]
    held = Held()
    runs = Scripted(held)
    async with serving(tmp_path, cells[0].gitlab, cells=cells, runs=runs, **ONE_SLOT) as bench:
        await both_at_once(bench, cells)
        await held.begun.wait()
        (waiting,) = (each for each in bench.service.jobs if each.state == "queued")
        its = next(each for each in cells if waiting.id.startswith(f"gitlab-{each.name}-"))
        assert "it came without a slot, because another cell answered" in bench.service.explain(waiting.id)[-1]
        assert "1 job came without a slot, and the next is theirs" in bench.service.status()
        before = its.gitlab.calls["update"]
        await bench.until(lambda: its.gitlab.calls["update"] >= before + (5 if two_phase else 0))
        state = State.PENDING if two_phase else State.RUNNING
        await bench.until(lambda: its.gitlab.server.jobs[1].state is state)
        assert len(runs.runs) == 1
        held.go.set()
        await bench.until(lambda: all(each.is_done for each in cells))
        assert sorted(each.states[State.SUCCESS] for each in cells) == [1, 1]
        assert len(runs.runs) == 2
        assert [each.way.refused for each in cells] == [0, 0]


async def test_a_restart_goes_on_with_a_job_that_waits(tmp_path: Path) -> None:
    """What runs goes on, and what came without a slot has the next one; neither GitLab gives its job to others."""
    cells = [cell(tmp_path, name) for name in ("a", "b")]
    held, journal, cloud = Held(), MemoryJournal(), FakeCloud()
    more: dict[str, Any] = {"cells": cells, "journal": journal, "cloud": cloud, **ONE_SLOT}
    async with serving(tmp_path, cells[0].gitlab, runs=Scripted(held), **more) as bench:
        await both_at_once(bench, cells)
        await held.begun.wait()
    runs = Scripted(again := Held())
    async with serving(tmp_path, cells[0].gitlab, runs=runs, **more) as bench:
        await again.begun.wait()
        await bench.until(lambda: "1 job came without a slot" in bench.service.status())
        assert len(runs.runs) == 1
        again.go.set()
        await bench.until(lambda: all(each.is_done for each in cells))
        assert len(runs.runs) == 2


async def test_no_more_jobs_run_than_allowed_whoever_hands_them_out(tmp_path: Path) -> None:
    """Three cells answer at once, with slots for all: with ``concurrent = 1`` one runs after the other."""
    cells = [cell(tmp_path, name) for name in ("a", "b", "c")]
    held = Held()
    runs = Scripted(held)
    async with serving(tmp_path, cells[0].gitlab, cells=cells, runs=runs, concurrent=1) as bench:
        await both_at_once(bench, cells)
        await held.begun.wait()
        assert len(asking(bench).upstreams.surplus) == 2
        assert "because of concurrent = 1" in bench.service.status()
        assert len(runs.runs) == 1
        held.go.set()
        await bench.until(lambda: all(each.is_done for each in cells))


async def test_a_waiting_job_that_is_cancelled_leaves_nothing(tmp_path: Path) -> None:
    """Its GitLab wants no more of it before it has a slot: the next slot is for somebody else."""
    cells = [cell(tmp_path, name) for name in ("a", "b")]
    held = Held()
    async with serving(tmp_path, cells[0].gitlab, cells=cells, runs=Scripted(held), **ONE_SLOT) as bench:
        await both_at_once(bench, cells)
        await held.begun.wait()
        (waiting,) = (each for each in bench.service.jobs if each.state == "queued")
        waiting.cancel()
        await bench.until(lambda: waiting.over)
        assert asking(bench).upstreams.surplus == []
        held.go.set()
        await bench.until(lambda: not bench.service.running)
        assert sorted(next(iter(each.states)).value for each in cells) == ["failed", "success"]
        await bench.taken(acquired=0)


@pytest.mark.parametrize("two_phase", [True, False])
async def test_a_waiting_job_is_handed_back_if_the_runner_ends_for_good(tmp_path: Path, *, two_phase: bool) -> None:
    """Its GitLab gives it to another runner, or is told that it failed; what runs comes to its end."""
    cells = [cell(tmp_path, name, two_phase=two_phase) for name in ("a", "b")]
    held = Held()
    async with serving(tmp_path, cells[0].gitlab, cells=cells, runs=Scripted(held), **ONE_SLOT) as bench:
        await both_at_once(bench, cells)
        await held.begun.wait()
        bench.service.drain(for_good=True)
        await bench.until(lambda: bench.service.running == 1)
        held.go.set()
        await bench.service.settle()
        states = sorted(next(iter(each.states)).value for each in cells)
        assert states == (["pending", "success"] if two_phase else ["failed", "success"])


async def test_a_wrong_token_silences_one_cell_alone(tmp_path: Path) -> None:
    """The others go on; a reload brings the right token, and the cell is asked at once."""
    good, wrong = cells = [cell(tmp_path, "good"), cell(tmp_path, "wrong")]
    (tmp_path / "wrong.token").write_text("glrt-wrong")
    async with serving(tmp_path, good.gitlab, cells=cells) as bench:
        await bench.until(
            lambda: any("wrong (http://wrong.test) refused the runner's token" in each for each in bench.said)
        )
        assert "wrong (http://wrong.test): 0 jobs, refused the runner's token three times" in bench.service.status()
        assert (await good.gitlab.ended(good.gitlab.enqueue(a_job()))).state is State.SUCCESS
        (tmp_path / "wrong.token").write_text(wrong.gitlab.runner_token)
        assert await bench.service.reload() == []
        assert bench.said[-1] == "reloaded: concurrent = 4, limit = 0, the token of wrong"
        assert (await wrong.gitlab.ended(wrong.gitlab.enqueue(a_job()))).state is State.SUCCESS


async def test_a_busy_cell_is_left_alone_and_holds_nobody_up(tmp_path: Path) -> None:
    """For as long as it says, and no slot is reserved for it; the others have all of them."""
    quick, busy = cells = [cell(tmp_path, "quick"), cell(tmp_path, "busy")]
    reply = Reply(status=503, headers={"Retry-After": "3600"}, body={"message": "503 Service Unavailable"})
    busy.gitlab.faults = [Fault(call="request", reply=reply, times=1000)]
    async with serving(tmp_path, quick.gitlab, cells=cells, concurrent=8) as bench:
        await bench.until(lambda: "busy (http://busy.test): 0 jobs, the last request failed" in bench.service.status())
        for number in [quick.gitlab.enqueue(a_job()) for _ in range(20)]:
            assert (await quick.gitlab.ended(number)).state is State.SUCCESS
        assert busy.gitlab.calls["request"] == 1
        assert not asking(bench).upstreams.cells["busy"].opened


@define
class Ending(FakeGitLab):
    """A GitLab whose tokens end soon, until one was replaced."""

    async def verify(self, token: str) -> Reply:
        """See `FakeGitLab`."""
        reply = await super().verify(token)
        soon = (datetime.now(tz=UTC) + timedelta(seconds=2)).isoformat()
        return Reply(status=200, body={**reply.body, "token_expires_at": soon})


async def test_a_token_that_ends_is_replaced_in_its_file(tmp_path: Path) -> None:
    """That of its cell alone; the cell is asked with it, and the file is as private as before."""
    (tmp_path / "gitlab").mkdir()
    lasts, ends = cells = [cell(tmp_path, "lasts"), CellHere("ends", Ending(tmp_path / "gitlab", accepts=0))]
    before = {each.name: each.gitlab.runner_token for each in cells}
    (tmp_path / "ends.token").write_text(ends.gitlab.runner_token)
    (tmp_path / "ends.token").chmod(0o600)
    async with serving(tmp_path, lasts.gitlab, cells=cells) as bench:
        await bench.until(lambda: any("the runner's ends token was replaced" in each for each in bench.said))
        assert (await ends.gitlab.ended(ends.gitlab.enqueue(a_job()))).state is State.SUCCESS
    after = read_config(tmp_path / "config.toml").runner.tokens
    assert (after["lasts"], after["ends"] == before["ends"]) == (before["lasts"], False)
    assert (tmp_path / "ends.token").stat().st_mode & 0o777 == 0o600


async def test_who_had_one_gitlab_keeps_its_jobs_when_there_are_several(tmp_path: Path) -> None:
    """A job that runs goes on, and is reported to where it came from."""
    first, second = cells = [cell(tmp_path, "first"), cell(tmp_path, "second")]
    held, journal, cloud = Held(), MemoryJournal(), FakeCloud()
    number = first.gitlab.enqueue(a_job())
    more: dict[str, Any] = {"journal": journal, "cloud": cloud}
    async with serving(tmp_path, first.gitlab, runs=Scripted(held), url=first.url, **more):
        await held.begun.wait()
    async with serving(tmp_path, first.gitlab, cells=cells, **more) as bench:
        assert (await first.gitlab.ended(number)).state is State.SUCCESS
        assert second.gitlab.server.jobs == {}
        assert not [line for line in bench.said if "another GitLab" in line]
