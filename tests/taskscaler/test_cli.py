"""The command line: what a person sees of a batch (its sentences are in tests/golden).

What is said of bad inputs is in ``test_bad_inputs``.
"""

import io
import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Awaitable, Callable, Collection, Sequence
from itertools import count
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from anyio.lowlevel import checkpoint
from attrs import define, evolve, frozen
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from fleeting.config import harmless
from fleeting.plugins import span
from fleeting.testing import FakeCloud, FakeGroup
from taskscaler import Policy, Taskscaler
from taskscaler._errors import ReportFailed
from taskscaler._jobsfile import Report, read_jobs_file
from taskscaler._state import StateJournal
from taskscaler.batch import (
    BatchState,
    Begun,
    Ended,
    EventLog,
    GivenUp,
    Job,
    JobChanged,
    JobState,
    Planned,
    Results,
    Started,
    read_events,
)
from taskscaler.cli import main
from taskscaler.cli._changes import changes
from taskscaler.cli._console import PatientConsole
from taskscaler.cli._last_lines import last_lines
from taskscaler.cli._paragraphs import Paragraphs
from taskscaler.cli._progress import LiveProgress, Picture, PlainProgress, paint, progress_for
from taskscaler.cli._report import make_report
from taskscaler.cli._run import _Run
from taskscaler.cli._run_fleet import OwnFleet
from taskscaler.cli._summary import print_summary
from taskscaler.executors import JobSpec
from tests.golden import Golden

FLEET = '[autoscaler]\nplugin = "local"\n'
JOB = '[[jobs]]\nname = "a"\nscript = "true"\n'


@pytest.fixture(autouse=True)
def state_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep the state of fleets away from that of whoever runs the tests."""
    home = tmp_path_factory.mktemp("state-home")
    monkeypatch.setenv("XDG_STATE_HOME", str(home))
    return home


def invoke(*arguments: str) -> Result:
    """Run the command in this process."""
    return CliRunner().invoke(main, arguments, prog_name="taskscaler")


Pin = Callable[[str, str], None]


@pytest.fixture
def pin(golden: Golden, tmp_path: Path) -> Pin:
    """Compare what a command says with tests/golden, under a name; the test's directory is ``<here>``."""

    def pin(name: str, text: str) -> None:
        golden(f"cli/{name}", text.replace(str(tmp_path), "<here>"))

    return pin


def test_the_golden_file_has_nothing_else_of_this(golden: Golden) -> None:
    """What is no longer said is taken out."""
    golden.has_only("cli/", re.findall(r'[^"]\bpin\("([^"]+)"', Path(__file__).read_text()))
    golden.has_only("cli_report/", [failing_report(each) for each in FAILING_REPORTS])
    golden.has_only("cli_changes/", [difference(each) for each in DIFFERENCES])


# --- help -------------------------------------------------------------------------------------------------


def test_help_is_there() -> None:
    """The commands and their options are described."""
    assert "Run jobs on a fleet of instances" in invoke("--help").stdout
    assert "130 after Ctrl-C" in invoke("run", "--help").stdout
    assert invoke("--version").stdout.startswith("taskscaler, version 0.")


def test_help_imports_nothing_heavy() -> None:
    """Help comes at once: neither the display nor what reads files is loaded for it."""
    code = "import sys, taskscaler.cli; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout.split()
    assert "taskscaler.cli" in loaded
    assert {"rich", "cattrs", "tomllib", "taskscaler.batch"}.isdisjoint(loaded)


# --- text ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\ttext\n", "plain\ttext\n"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07after", "after"),
        ("\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1bP1;2|data\x1b\\after", "after"),
        ("\x9b31mred", "red"),
        ("10%\r50%\r100%\n", "100%\n"),
        ("dos\r\nlines\r\n", "dos\nlines\n"),
        ("a\x00b\x08c\x7fd", "abcd"),
        ("\u202egnp.exe", "gnp.exe"),
        ("ends in \x1b", "ends in "),
        ("ends in \x1b[", "ends in "),
        ("[bold]markup[/bold]", "[bold]markup[/bold]"),
    ],
)
def test_a_terminal_is_told_nothing_it_would_obey(text: str, shown: str) -> None:
    """Colours, titles, links, cursor movements and control characters go; words stay."""
    assert harmless(text) == shown


@given(st.text(alphabet=st.sampled_from("\x1b[]P;0m?@\x07\x9b\x9c\\\r\n\ta\u202e") | st.characters()))
def test_nothing_that_a_terminal_obeys_gets_through(text: str) -> None:
    """Whatever is put together, no control character but line feed and tab is left, and a second pass finds nothing."""
    shown = harmless(text)
    assert all(character in "\n\t" or ord(character) >= 0x20 for character in shown)
    assert not any(0x7F <= ord(character) <= 0x9F for character in shown)
    assert harmless(shown) == shown


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (0.44, "0.4s"), (2.94, "2.9s"), (2.96, "3s"), (83.4, "1m23s"), (3723, "1h2m")]
)
def test_durations_are_as_precise_as_anybody_wants(seconds: float, text: str) -> None:
    """Tenths matter below three seconds only."""
    assert span(seconds) == text


# --- what is shown ---------------------------------------------------------------------------------------


@frozen
class Machine:
    """An instance, as the display sees it."""

    id: str
    state: str
    slots: Sequence[str | None]
    cleaning: Collection[int] = ()


def looking_at(shown: Picture) -> Callable[[], Awaitable[Picture]]:
    """What a display looks at that always sees the same."""

    async def look() -> Picture:
        return shown

    return look


def begins(state: BatchState, name: str, instance: str, slot: int, *, at: float, pool: str = "default") -> JobChanged:
    """A job is given a slot."""
    (change,) = state.apply(Started(at=at, job=name, pool=pool, instance=instance, slot=slot))
    return change


def ends(state: BatchState, name: str, end: JobState, *, at: float, **known: Any) -> JobChanged:  # noqa: ANN401  (fields)
    """What it does there ends."""
    (change,) = state.apply(Ended(at=at, job=name, state=end, **known))
    return change


def gives_up(state: BatchState, name: str, why: str, *, at: float, end: JobState = JobState.CANCELLED) -> JobChanged:
    """A job that waits is not run."""
    (change,) = state.apply(GivenUp(at=at, jobs=(name,), state=end, why=why))
    return change


def picture(machines: int, *, jobs: int = 12, ceiling: int = 5) -> Picture:
    """Make a batch in the middle: the last instance boots, one job has failed, some run."""
    state = BatchState(Begun.of([job(f"measure-{number:02}") for number in range(jobs)], at=0.0))
    instances = [Machine(f"i-{number:04}", "running", (None, None)) for number in range(machines - 1)]
    for number, name in enumerate(["measure-00", "measure-01", "measure-02", "measure-03"]):
        begins(state, name, f"i-{number // 2:04}", number % 2, at=2.0)
    ends(state, "measure-00", JobState.FAILED, exit_code=3, why="exited with 3", at=5.0)
    instances[:2] = [
        Machine("i-0000", "running", (None, "measure-01")),
        Machine("i-0001", "running", ("measure-02", "measure-03")),
    ]
    booting = Machine(f"i-{machines - 1:04}", "pending", ())
    return Picture(
        title="taskscaler run jobs.toml",
        time=83.0,
        state=state,
        instances=[*instances, booting],
        ceiling=ceiling,
    )


def job(name: str) -> Job:
    """Make a job."""
    return Job(spec=JobSpec(name=name, script="true"))


def painted(picture: Picture, width: int, height: int) -> list[str]:
    """Render a picture and return its lines."""
    console = Console(record=True, width=width, height=height, file=io.StringIO())
    console.print(paint(picture, width, height))
    return [line.rstrip() for line in console.export_text().splitlines()]


def test_a_small_fleet_shows_each_job_in_its_slot() -> None:
    """Title and time, the sums, then a line for each instance."""
    lines = painted(picture(3), 80, 24)
    assert lines[0].startswith("taskscaler run jobs.toml")
    assert lines[0].endswith("1m23s")
    assert lines[1].endswith(" 1 of 12 · 1 failed · 3 running · 8 queued")
    assert lines[2:] == [
        "fleet  2 ready · 1 booting, at most 5",
        "",
        "i-0000  idle · measure-01",
        "i-0001  measure-02 · measure-03",
        "i-0002  booting",
    ]


def test_a_slot_that_is_being_cleaned_is_not_idle() -> None:
    """The display says why nothing runs there."""
    lines = painted(evolve(picture(3), instances=[Machine("i-0000", "running", ("measure-01", None), {1})]), 80, 24)
    assert lines[-1] == "i-0000  measure-01 · cleaning"


@pytest.mark.parametrize(("width", "height"), [(80, 24), (140, 40), (80, 12), (40, 8)])
@pytest.mark.parametrize("machines", [3, 60, 500])
def test_the_picture_fits_the_terminal(machines: int, width: int, height: int) -> None:
    """However many instances there are, it is never higher or wider than the terminal, and says what it leaves out."""
    lines = painted(picture(machines), width, height)
    assert len(lines) < height
    assert max(map(len, lines)) <= width
    shown = sum(line.count("i-0") for line in lines)
    assert shown == machines or lines[-1] == f"and {machines - shown} more instances"


def test_long_ids_leave_room_for_what_matters() -> None:
    """Their middle goes; jobs and counts stay in sight."""
    long = "a-very-long-group-name-in-some-region"
    few, many = (
        evolve(shown, instances=[Machine(f"{long}-{each.id}", each.state, each.slots) for each in shown.instances])
        for shown in (picture(3), picture(60))
    )
    assert painted(few, 80, 24)[4] == "a-very-long-grou…e-region-i-0000  idle · measure-01"
    lines = painted(many, 140, 24)
    assert all(cell in lines[4] for cell in (" 1/2", " 2/2", " 0/2"))
    assert "…" in lines[4]


def test_the_picture_says_why_jobs_wait() -> None:
    """In at most three lines, broken between words, and with no line more in all than there is room for."""
    why = "8 jobs wait: the last try to get more instances failed (quota exceeded)" + 9 * ", and so on and on"
    lines = painted(evolve(picture(60), why=why), 60, 24)
    assert lines[3:6] == [
        "why    8 jobs wait: the last try to get more instances",
        "       failed (quota exceeded), and so on and on, and so on",
        "       and on, and so on and on, and so on and on, and so …",
    ]
    assert len(lines) < 24
    assert max(map(len, lines)) <= 60


def test_the_picture_says_how_much_longer_it_takes() -> None:
    """In a line of its own, below the counts; none as long as nothing tells."""
    left = "about 4m (7 jobs took 30s on average, 2 at a time)"
    assert painted(evolve(picture(3), left=left), 80, 24)[2] == f"left   {left}"


def test_no_word_is_broken_on_a_terminal(tmp_path: Path) -> None:
    """Lines, paragraphs and the summary are broken between words; a longer word stays whole, to be copied."""
    said = "j waits: " + "no-capacity-in-eu-central-1a " * 9 + "/a/very/long/path" * 6
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, width=80, color_system=None, _environ={"TERM": "dumb"})
    PlainProgress(console, looking_at(picture(3)), lambda: 83.0).say(said)
    LiveProgress(console, looking_at(picture(3)), lambda: 83.0).say(said)
    Paragraphs(console).add(("why", said))
    state = BatchState(Begun.of([job("a")], at=0.0))
    begins(state, "a", "i-1", 0, at=1.0)
    ends(state, "a", JobState.SUCCEEDED, warnings=(said,), at=2.0)
    print_summary(console, state, Results(tmp_path), now=83.0, timeline="none")
    text = output.getvalue()
    assert text.count("no-capacity-in-eu-central-1a") == 4 * 9
    assert text.count("/a/very/long/path" * 6) == 4
    assert max(len(line) for line in text.splitlines() if "no-capacity" in line) <= 80


def test_what_a_later_run_would_still_run_is_not_done() -> None:
    """Cancelled jobs, and those that found no capacity, leave a gap in the bar."""
    shown = picture(3)
    gives_up(shown.state, "measure-10", "the batch was interrupted", at=6.0)
    gives_up(shown.state, "measure-11", "there was no slot", at=6.0, end=JobState.NO_CAPACITY)
    assert " 1 of 12 · 1 failed · 1 no capacity · 1 cancelled · " in painted(shown, 120, 24)[1]


def test_a_large_fleet_counts_its_slots() -> None:
    """There is no room for names, but each instance still shows how busy it is."""
    lines = painted(picture(60), 140, 24)
    assert lines[4].split()[:6] == ["i-0000", "1/2", "i-0001", "2/2", "i-0002", "0/2"]
    assert lines[-1].split()[-2:] == ["i-0059", "booting"]


@given(busy=st.integers(0, 200), width=st.integers(60, 200))
def test_instances_can_be_distinguished_however_much_they_run(busy: int, width: int) -> None:
    """Ids that begin alike are all that sets two lines apart: the names of jobs are cut, not they."""
    ids = ["default-15816e4fd295", "default-4742b6562773"]
    jobs = tuple(f"job-{number}" for number in range(busy))
    instances = [Machine(id_, "running", jobs) for id_ in ids]
    lines = painted(evolve(picture(0), instances=instances), width, 24)
    assert [line.split()[0] for line in lines[-2:]] == ids


def test_a_message_uses_the_width_of_the_terminal() -> None:
    """Its first line has a prefix or none; what follows is below its text, and cannot be taken for another message."""
    output, message = io.StringIO(), "no more jobs start, running jobs finish; press Ctrl-C again to stop at once"
    console = Console(file=output, force_terminal=True, width=80, color_system=None, _environ={"TERM": "xterm"})
    LiveProgress(console, looking_at(picture(3)), lambda: 83.0).say(message)
    assert output.getvalue() == f"{message}\n"
    PlainProgress(console, looking_at(picture(3)), lambda: 83.0).say(message)
    _, first, second = output.getvalue().splitlines()
    assert first.startswith("[  1m23s] no more")
    assert second == f"{' ' * 10}once"


def test_a_terminal_gets_the_live_picture_and_a_pipe_gets_lines() -> None:
    """It depends on where the output goes."""
    terminal = Console(force_terminal=True, file=io.StringIO(), _environ={"TERM": "xterm"})
    assert isinstance(progress_for(terminal, looking_at(picture(3)), lambda: 83.0), LiveProgress)
    assert isinstance(progress_for(Console(file=io.StringIO()), looking_at(picture(3)), lambda: 83.0), PlainProgress)


def test_plain_lines_tell_every_event_with_its_time(pin: Pin) -> None:
    """A log that can be read afterwards: one line each, whatever the width."""
    output, shown = io.StringIO(), picture(3)
    progress = PlainProgress(Console(file=output, width=20), looking_at(shown), lambda: 83.0)
    state = BatchState(Begun.of([job("a"), job("b")], at=0.0))
    progress.changed(begins(state, "a", "i-1", 0, at=1.0))
    progress.changed(ends(state, "a", JobState.LOST, why="instance i-1 was lost (preempted)", at=2.0))
    progress.changed(begins(state, "a", "i-2", 0, at=3.0))
    progress.changed(ends(state, "a", JobState.TIMED_OUT, why="took longer than \x1b[1m2s", at=5.5))
    progress.changed(gives_up(state, "b", "the batch was interrupted", at=6.0))
    lines = output.getvalue().splitlines()
    assert [line[:11] for line in lines] == ["[  1m23s] a"] * 4
    assert "try 2" in lines[2]
    assert " 2.5s" in lines[3]
    assert lines[3].endswith("took longer than 2s")
    pin("plain lines", output.getvalue())


@pytest.mark.anyio
async def test_lines_about_jobs_are_printed_together_and_in_order() -> None:
    """Each print costs; none is later than a moment, what is said otherwise comes after them, and none is lost."""

    class Output(io.StringIO):
        writes, written = 0, anyio.Event()

        def write(self, text: str) -> int:
            self.writes += bool(text)
            self.written.set()
            return super().write(text)

    output = Output()
    state = BatchState(Begun.of([job(f"j{number}") for number in range(12)], at=0.0))
    progress = PlainProgress(Console(file=output), looking_at(picture(0)), lambda: 83.0)

    def begin(numbers: range) -> None:
        for number in numbers:
            progress.changed(begins(state, f"j{number}", "i-1", 0, at=1.0))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(progress.show)
        await anyio.wait_all_tasks_blocked()
        before = output.writes
        begin(range(4))
        assert output.writes == before
        progress.say("said")
        assert output.writes == before + 1
        output.written = anyio.Event()
        begin(range(4, 8))
        await output.written.wait()
        assert output.writes == before + 2
        begin(range(8, 12))
        tasks.cancel_scope.cancel()
    words = [line.split("] ")[1].split()[0] for line in output.getvalue().splitlines() if "fleet" not in line]
    assert words == ["j0", "j1", "j2", "j3", "said", *(f"j{number}" for number in range(4, 12))]


@pytest.mark.anyio
async def test_plain_lines_tell_when_the_fleet_changes() -> None:
    """It is looked at from time to time, and a line is printed if it is not as before."""
    output = io.StringIO()
    progress = PlainProgress(Console(file=output), looking_at(picture(3)), lambda: 83.0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(progress.show)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert output.getvalue() == "[  1m23s] fleet: 2 ready · 1 booting\n"


@pytest.mark.anyio
async def test_plain_lines_tell_how_much_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """With each tenth of the batch, and not when all is over."""
    monkeypatch.setattr("taskscaler.cli._progress.PLAIN_INTERVAL", 0.0)
    names = [f"j{number}" for number in range(20)]
    output, state, waiting = io.StringIO(), BatchState(Begun.of(map(job, names), at=0.0)), iter(names)

    async def look() -> Picture:
        if (name := next(waiting, None)) is None:
            tasks.cancel_scope.cancel()
        else:
            begins(state, name, "i-1", 0, at=1.0)
            ends(state, name, JobState.SUCCEEDED, at=2.0)
        return evolve(picture(0), state=state, left="about 1m")

    progress = PlainProgress(Console(file=output), look, lambda: 83.0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(progress.show)
    lines = [line for line in output.getvalue().splitlines() if "are over" in line]
    assert lines == [f"[  1m23s] {done} of 20 jobs are over; left: about 1m" for done in range(2, 20, 2)]


@pytest.mark.anyio
async def test_work_that_takes_its_time_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal at once, elsewhere in a line when it has taken a while."""
    terminal, plain = io.StringIO(), io.StringIO()
    console = Console(file=terminal, force_terminal=True, _environ={"TERM": "xterm"})
    async with LiveProgress(console, looking_at(picture(3)), lambda: 83.0).busy("drawing"):
        while "drawing …" not in terminal.getvalue():
            await checkpoint()
    progress = PlainProgress(Console(file=plain), looking_at(picture(3)), lambda: 83.0)
    async with progress.busy("quick"):
        pass
    monkeypatch.setattr("taskscaler.cli._progress.SILENCE", 0.0)
    async with progress.busy("drawing"):
        while "drawing" not in plain.getvalue():
            await checkpoint()
    assert plain.getvalue() == "[  1m23s] drawing …\n"


@pytest.mark.anyio
async def test_plain_lines_tell_why_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log of a batch that stands still says why by itself: less and less often, and not while something runs."""
    monkeypatch.setattr("taskscaler.cli._progress.PLAIN_INTERVAL", 0.0)
    output, state, looks = io.StringIO(), BatchState(Begun.of([job("a"), job("b")], at=0.0)), count(1)
    now = 0.0
    progress = PlainProgress(Console(file=output), lambda: look(next(looks)), lambda: now)

    async def look(second: int) -> Picture:
        nonlocal now
        now = float(second)
        if second == 40:
            progress.changed(begins(state, "a", "i-1", 0, at=now))
        if second == 80:
            progress.changed(ends(state, "a", JobState.FAILED, why="it failed", at=now))
        if second == 86:
            tasks.cancel_scope.cancel()
        return evolve(picture(0), state=state, why="2 jobs are waiting: no m5.large in zone-a")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(progress.show)
    lines = [line for line in output.getvalue().splitlines() if "wait" in line]
    assert lines == [f"[{time:>7}] 2 jobs are waiting: no m5.large in zone-a" for time in ("5s", "15s", "35s", "1m25s")]


@pytest.mark.anyio
async def test_what_a_terminal_echoes_finds_an_empty_line() -> None:
    """After a full one, ``^C`` would begin a line of its own, of which the display knows nothing."""
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, width=80, height=24, _environ={"TERM": "xterm"})
    full = [Machine("i-1", "running", tuple(f"job-{number}" for number in range(50)))]
    progress = LiveProgress(console, looking_at(evolve(picture(0), instances=full)), lambda: 83.0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(progress.show)
        await anyio.wait_all_tasks_blocked()
        *_, row, last = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output.getvalue()).split("\n")
        tasks.cancel_scope.cancel()
    assert len(row) == 80
    assert not last


@pytest.mark.anyio
async def test_the_live_picture_is_painted_and_goes() -> None:
    """What should stay is printed above it."""
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, width=80, height=24, _environ={"TERM": "xterm"})
    progress = LiveProgress(console, looking_at(picture(3)), lambda: 83.0)
    state = BatchState(Begun.of([job("a")], at=0.0))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(progress.show)
        await anyio.wait_all_tasks_blocked()
        progress.changed(begins(state, "a", "i-1", 0, at=1.0))
        progress.changed(ends(state, "a", JobState.LOST, why="instance i-1 was lost (preempted)", at=2.0))
        tasks.cancel_scope.cancel()
    assert "2 ready · 1 booting" in output.getvalue()
    assert "a will be retried: instance i-1 was lost (preempted)" in output.getvalue()
    assert "a runs on" not in output.getvalue()


def test_an_output_that_knows_few_characters_does_not_end_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be written is a question mark: names, what jobs print, and the dots between our own words."""
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii", write_through=True))
    PatientConsole().print("1 ready · größer")
    assert written.getvalue() == b"1 ready ? gr??er\n"


FORGED = "x\n[   0.1s] good succeeded on i-1\r\nbad succeeded\u2028y\x1b[2K"
"""A name, or a reason, that wants to be a line of the manager's own."""


def test_no_name_and_no_reason_prints_a_line_of_ours(tmp_path: Path) -> None:
    """Instances, reasons, warnings, titles: each is a part of one line; a text of several lines is indented."""
    results = Results(tmp_path / "results")
    results.prepare()
    results.begin(0)
    state = BatchState(Begun.of([job("bad")], at=0.0))
    output = io.StringIO()
    shown = Picture(title=FORGED, time=0.0, state=state, instances=(), ceiling=0, why=FORGED)
    plain = PlainProgress(Console(file=output), looking_at(shown), lambda: 83.0)
    plain.changed(begins(state, "bad", FORGED, 0, at=2.0, pool=FORGED))
    plain.changed(ends(state, "bad", JobState.FAILED, why=FORGED, warnings=(FORGED,), at=3.0))
    plain.say(FORGED)
    said = [line for line in output.getvalue().split("\n") if not line.startswith(" " * 10)]
    assert [line.partition("]")[0] for line in said] == [*["[  1m23s"] * 3, ""]
    print_summary(Console(file=output), state, results, now=83.0, timeline=FORGED)
    assert not re.search(r"^(good|bad succeeded|\[   0)", output.getvalue(), re.MULTILINE)
    terminal = Console(file=output, force_terminal=True, width=200)
    terminal.print(paint(shown, 200, 20))
    assert not re.search(r"^(good|bad succeeded|\[   0)", output.getvalue(), re.MULTILINE)


def test_the_summary_tells_what_a_person_asks(tmp_path: Path, pin: Pin) -> None:
    """How many, how long, where, what was retried and why, what failed and what it said last."""
    results = Results(tmp_path / "results")
    results.prepare()
    results.begin(0)
    results.log("bad").write_bytes(b"".join(b"line %d\r\n" % number for number in range(9)) + b"\x1b[31mBoom\x1b[0m\n")
    unlucky = Job(spec=JobSpec(name="unlucky", script="true"), retries=0)
    state = BatchState(Begun.of([job("good"), job("bad"), job("late"), unlucky], at=0.0))
    begins(state, "good", "i-1", 0, at=2.0)
    ends(state, "good", JobState.LOST, why="instance i-1 was lost (preempted)", at=4.0)
    begins(state, "good", "i-2", 0, at=6.0)
    ends(state, "good", JobState.SUCCEEDED, exit_code=0, warnings=("the clean-up failed",), at=8.0)
    begins(state, "bad", "i-2", 1, at=6.0)
    ends(state, "bad", JobState.FAILED, exit_code=3, why="exited with 3", at=9.0)
    gives_up(state, "late", "the batch was interrupted", at=9.0)
    begins(state, "unlucky", "i-1", 1, at=2.0)
    ends(state, "unlucky", JobState.LOST, why="instance i-1 was lost (preempted)", at=4.0)
    output = io.StringIO()
    print_summary(Console(file=output, width=40), state, results, now=83.0, timeline="timeline.svg")
    heads, bad, unlucky_too = output.getvalue().strip().split("\n\n")
    labels = ["jobs", "time", "instances", "retried", "warning", "timeline", "results", "resume", "run"]
    assert [line.split()[0] for line in heads.splitlines()] == labels
    jobs, time, instances, retried, *_ = heads.splitlines()
    assert re.findall(r"\d+", jobs) == ["4", "1", "1", "1", "1"]
    assert re.findall(r"[\dms]*\ds", time) == ["1m23s", "2s", "6s"], "in all, and what jobs waited"
    assert re.findall(r"i-\d", instances) == ["i-1", "i-2"]
    assert retried.endswith(" good: instance i-1 was lost (preempted)")
    assert bad.splitlines()[1:] == [
        f"  {line}" for line in (*(f"line {n}" for n in range(5, 9)), "Boom", results.log("bad"))
    ]
    assert "\n" not in unlucky_too
    pin("summary", output.getvalue())


def test_a_job_that_was_retried_for_one_reason_is_named_once(tmp_path: Path) -> None:
    """With how often; and the instance that jobs were lost with can be found among all of them."""
    state = BatchState(Begun.of([job("a"), job("b")], at=0.0))
    for _ in range(2):
        begins(state, "a", "i-1", 0, at=2.0)
        ends(state, "a", JobState.LOST, why="preempted", at=4.0)
    for name in ("a", "b"):
        begins(state, name, "i-2", 0, at=6.0)
        ends(state, name, JobState.SUCCEEDED, exit_code=0, at=8.0)
    output = io.StringIO()
    print_summary(Console(file=output), state, Results(tmp_path), now=83.0, timeline="timeline.svg")
    assert "retried    a (2 times): preempted\n" in output.getvalue()
    assert "instances  2: i-1 (2 jobs, 2 lost), i-2 (2 jobs)\n" in output.getvalue()


def test_on_a_terminal_the_summary_is_broken_between_words(tmp_path: Path) -> None:
    """No id in two parts, and what follows stands below; paths are left whole, to be copied."""
    state = BatchState(Begun.of([job("good")], at=0.0))
    for number in range(3):
        begins(state, "good", f"i-{number:030}", 0, at=2.0)
        ends(state, "good", JobState.LOST, why="preempted", at=4.0)
    output, results = io.StringIO(), Results(tmp_path / ("long" * 20))
    console = Console(file=output, width=50, force_terminal=True, no_color=True, _environ={"TERM": "xterm"})
    print_summary(console, state, results, now=83.0, timeline="timeline.svg")
    lines = [line.rstrip() for line in harmless(output.getvalue()).splitlines()]
    assert lines[1:4] == [
        "jobs       1: 1 lost",
        "time       1m23s in all; jobs waited 2s in the",
        "           median, 2s at most",
    ]
    assert lines[4:7] == [
        "instances  3: i-000000000000000000000000000000 (1",
        "           job, 1 lost),",
        "           i-000000000000000000000000000001 (1",
    ]
    assert f"results    {results.directory}" in lines


def test_each_of_many_failures_is_one_line_with_its_last_line(tmp_path: Path) -> None:
    """At most fifty; the rest is counted, and it is said where more of their output is."""
    names = [f"job-{number}" for number in range(60)]
    state = BatchState(Begun(at=0.0, jobs=tuple(Planned(name=name, retries=0) for name in names)))
    results = Results(tmp_path)
    results.log(names[0]).parent.mkdir(parents=True)
    for name in names:
        state.apply(Started(at=1.0, job=name, pool="", instance="i-1", slot=0))
        state.apply(Ended(at=2.0, job=name, state=JobState.FAILED, exit_code=3, why="exited with 3"))
        results.log(name).write_text("\x1b[31mfirst\nlast: \x1b[31mno disk\ntaskscaler: exited with 3\n")
    output = io.StringIO()
    print_summary(Console(file=output), state, results, now=83.0, timeline="none")
    lines = output.getvalue().splitlines()
    assert sum("no disk" in line for line in lines) == 50
    assert "job-0 failed: exited with 3 · last: no disk" in lines
    assert lines[-2:] == [
        f"and 10 more jobs; see {results.summary}",
        f"for more of what a job printed: taskscaler logs {tmp_path} JOB",
    ]


def test_last_lines_of_a_long_log_are_read_from_its_end(tmp_path: Path) -> None:
    """A log may be larger than memory; our own remarks in it are left out."""
    log = tmp_path / "log"
    log.write_text("x" * 200_000 + "\nlast\n\n\ntaskscaler: exited with 3\n")
    assert last_lines(log)[-1] == "last"
    log.write_text("once\ntaskscaler: exited with 3\ntwice\nagain\ntaskscaler: exited with 3\n")
    assert last_lines(log) == ["twice", "again"], "what earlier tries printed is not repeated"
    log.write_text("once\ntaskscaler: exited with 3\ntaskscaler: exited with 3\n")
    assert last_lines(log) == ["once"], "unless the last one printed nothing"
    assert last_lines(tmp_path / "nowhere") == []


# --- the report ------------------------------------------------------------------------------------------


def results_in(directory: Path) -> Results:
    """Make the results of a batch without jobs."""
    results = Results(directory / "results")
    results.prepare()
    results.begin(0)
    results.write_summary(BatchState(Begun.of([], at=0.0)), now=1.0)
    return results


@pytest.mark.anyio
async def test_a_report_is_made_from_the_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command runs where the results are, with its files beside them and without this machine's secrets."""
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    code = "import json, os; print(json.load(open('results.json'))['version'], os.environ.get('SECRET_TOKEN'))"
    (tmp_path / "report.py").write_text(code)
    results = results_in(tmp_path)
    report = Report(command=(sys.executable, "report.py"), files=("report.py",))
    assert await make_report(report, tmp_path, results) == "1 None\n"
    assert report_text(results) == "1 None\n"


FAILING_REPORTS: Sequence[tuple[str, ...]] = [
    ("/bin/sh", "-c", "echo out; echo broken >&2; exit 4"),
    ("/bin/sh", "-c", "exit 5"),
    ("no-such-program",),
    ("sleep", "1000"),
]


def failing_report(command: Sequence[str]) -> str:
    """What it is in the golden file."""
    return " ".join(command)


@pytest.mark.anyio
@pytest.mark.parametrize("command", FAILING_REPORTS, ids=failing_report)
async def test_a_report_that_fails_says_why(tmp_path: Path, golden: Golden, command: tuple[str, ...]) -> None:
    """In a sentence, with what it wrote to stderr; nothing is kept."""
    results = results_in(tmp_path)
    with pytest.raises(ReportFailed) as caught:
        await make_report(Report(command=command, timeout=0.1 if command[0] == "sleep" else 60.0), tmp_path, results)
    assert str(caught.value).split("\n")[1:] == (["broken"] if "broken" in command[-1] else [])
    golden(f"cli_report/{failing_report(command)}", str(caught.value))
    assert report_text(results) is None


def report_text(results: Results) -> str | None:
    """Read what was kept of the report."""
    path = results.directory / "report.txt"
    return path.read_text() if path.exists() else None


# --- whole runs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("script", "status"), [("echo done > out", 0), ("exit 3", 1), ("true", 1)])
@pytest.mark.needs("tar")
def test_a_run_tells_its_outcome_by_the_exit_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, status: int
) -> None:
    """0 if all succeeded, 1 if a job failed, one that left no artifact included; no instance is left."""
    monkeypatch.chdir(tmp_path)
    fleet = f'plugin_config = {{ directory = "{tmp_path}/fleet" }}\nmax_instances = 2\n'
    Path("jobs.toml").write_text(
        f"{FLEET}update_interval_when_expecting = '50ms'\n{fleet}"
        f'[[jobs]]\nname = "a"\ncopies = 3\nscript = "{script}"\nartifacts = ["out"]\n'
        '[report]\ncommand = ["/bin/sh", "-c", "cat artifacts/*/out || true"]\n'
    )
    result = invoke("run", "jobs.toml", "--output", "results")
    assert (result.exit_code, result.stderr) == (status, "")
    jobs = json.loads(Path("results", "results.json").read_text())["jobs"]
    assert {each["state"] for each in jobs} == {"failed" if status else "succeeded"}
    assert result.stdout.endswith("\ndone\ndone\ndone\n") == (status == 0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["jobs.toml", "results"]


@pytest.mark.parametrize("named", [True, False])
def test_a_run_cleans_up_and_names_addresses_as_the_file_says(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    named: bool,  # noqa: FBT001
) -> None:
    """On real processes: the next job finds what the clean-up left, on the same instance."""
    monkeypatch.chdir(tmp_path)
    fleet = f'plugin_config = {{ directory = "{tmp_path}/fleet" }}\nmax_instances = 1\nheartbeat_on_acquire = true\n'
    command = f"instance_cleanup_command = 'echo \"$TASKSCALER_KEY $TASKSCALER_SLOT\" >> {tmp_path}/cleaned'\n"
    Path("jobs.toml").write_text(
        f"{FLEET}update_interval_when_expecting = '50ms'\n{fleet}{command}log_internal_ip = {str(named).lower()}\n"
        f"[[jobs]]\nname = 'a'\ncopies = 2\nscript = 'cat {tmp_path}/cleaned || true'\n"
    )
    assert invoke("run", "jobs.toml", "--output", "results").exit_code == 0
    first, second = (Path("results", "logs", f"a-0{number}.log").read_text() for number in (1, 2))
    assert second.endswith("a-01 0\n")
    for log in (first, second):
        assert log.startswith("taskscaler: runs on default-") == (f"({tmp_path}/fleet" in log) == named


def test_a_report_that_fails_fails_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pin: Pin) -> None:
    """All jobs succeeded, but what they were for was not made."""
    monkeypatch.chdir(tmp_path)
    fleet = f'plugin_config = {{ directory = "{tmp_path}/fleet" }}\n'
    quick = 'update_interval_when_expecting = "50ms"\n'
    Path("jobs.toml").write_text(f'{FLEET}{quick}{fleet}{JOB}[report]\ncommand = ["false"]\n')
    result = invoke("run", "jobs.toml", "--output", "results")
    assert (result.exit_code, result.stderr[-9:]) == (1, " [TS105]\n")
    pin("report failed", result.stderr)
    assert "1 succeeded" in result.stdout


def test_a_fleet_that_cannot_be_opened_is_told_about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pin: Pin) -> None:
    """The file is right, the world is not: status 1; a directory for the results that was there stays."""
    monkeypatch.chdir(tmp_path)
    Path("in-the-way").touch()
    fleet = f'plugin_config = {{ directory = "{tmp_path}/in-the-way/fleet" }}\n'
    Path("jobs.toml").write_text(f"{FLEET}{fleet}{JOB}")
    Path("results").mkdir()
    result = invoke("run", "jobs.toml", "--output", "results")
    assert (result.exit_code, result.stderr[-9:]) == (1, " [FL201]\n")
    assert f"{tmp_path}/in-the-way/fleet" in result.stderr
    pin("fleet not opened", result.stderr)
    assert list(Path("results").iterdir()) == []


# --- state that outlives the command, and going on with a batch ----------------------------------------------


def fleet_in(directory: Path, *, settings: str = "") -> str:
    """Settings of a fleet that is quick, and in a directory of its own."""
    return (
        f'{FLEET}update_interval_when_expecting = "20ms"\nmax_instances = 1\n{settings}'
        f'plugin_config = {{ directory = "{directory}/fleet" }}\n'
    )


def identity_of(directory: Path) -> str:
    """Whom the state of that fleet belongs to."""
    return f"local:{socket.gethostname()}:{directory.resolve()}/fleet"


TWO_POOLS = """
[autoscaler]
plugin = "local"
max_instances = 2
update_interval_when_expecting = "20ms"
[[autoscaler.pools]]
name = "spot"
max_instances = 1
plugin_config = {{ directory = "{directory}/spot", name = "s" }}
[[autoscaler.pools]]
name = "on-demand"
plugin_config = {{ directory = "{directory}/on-demand", name = "d" }}
[[jobs]]
name = "job"
copies = 2
script = "touch {directory}/$TASKSCALER_JOB_INDEX; until [ -e {directory}/0 -a -e {directory}/1 ]; do sleep 0.05; done"
"""
"""Neither job ends before the other has begun."""


def test_a_run_over_two_pools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has no room in the first goes to the second; whoever tells of an instance tells whose it is."""
    monkeypatch.chdir(tmp_path)
    Path("jobs.toml").write_text(TWO_POOLS.format(directory=tmp_path))
    result = invoke("run", "jobs.toml", "--output", "results")
    assert result.exit_code == 0
    summary = json.loads(Path("results/results.json").read_text())
    assert sorted(job["attempts"][0]["pool"] for job in summary["jobs"]) == ["on-demand", "spot"]
    assert sorted(instance["pool"] for instance in summary["fleet"]["instances"]) == ["on-demand", "spot"]
    assert " of spot (1 job)" in result.output
    assert " of on-demand (1 job)" in result.output
    (begun, *_) = read_events(Path("results/events.jsonl"))
    assert isinstance(begun, Begun)
    assert [pool.name for pool in begun.pools] == ["spot", "on-demand"]


def test_a_run_keeps_its_state_unless_it_is_told_not_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state_home: Path
) -> None:
    """In the user's directory, in the one that the file names, or nowhere."""
    monkeypatch.chdir(tmp_path)
    for settings, where in (
        ("", state_home / "taskscaler"),
        (f'state_storage.dir = "{tmp_path}/state"\n', tmp_path / "state"),
        (f'state_storage = {{ enabled = false, dir = "{tmp_path}/none" }}\n', tmp_path / "none"),
    ):
        Path("jobs.toml").write_text(fleet_in(tmp_path, settings=settings) + JOB)
        assert invoke("run", "jobs.toml", "--output", f"results-{where.name}").exit_code == 0
        assert StateJournal(where).path([identity_of(tmp_path)]).exists() == (where.name != "none")


def test_state_that_cannot_be_used_is_told_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state_home: Path, pin: Pin
) -> None:
    """Held by another, damaged, of a newer release, in a place of no use: one line that says what to do, status 1."""
    monkeypatch.chdir(tmp_path)
    Path("jobs.toml").write_text(fleet_in(tmp_path) + JOB)
    journal, identity = StateJournal(state_home / "taskscaler"), identity_of(tmp_path)

    def refusal() -> str:
        result = invoke("run", "jobs.toml", "--output", "results")
        assert (result.exit_code, result.stderr.count("\n"), result.stdout) == (1, 1, "")
        known = {identity: "<group>", str(path): "<journal>", str(state_home): "<state>", str(os.getpid()): "<pid>"}
        return re.sub("|".join(map(re.escape, known)), lambda found: known[found[0]], result.stderr)

    path = journal.path([identity])
    anyio.run(journal.open, [identity], "somebody", {})
    held = refusal()
    assert "<group>" in held
    assert "somebody (process <pid>)" in held
    assert held.endswith(" [FL202]\n")
    pin("state held", held)
    anyio.run(journal.close)
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version = 1000")
    database.close()
    newer = refusal()
    assert "newer release" in newer
    pin("state newer", newer)
    path.write_bytes(b"no database at all" * 1000)
    damaged = refusal()
    assert "damaged" in damaged
    assert "`preexisting`" in damaged
    pin("state damaged", damaged)
    (state_home / "taskscaler").chmod(0o777)
    exposed = refusal()
    assert "[autoscaler.state_storage]" in exposed
    pin("state exposed", exposed)
    assert not (tmp_path / "fleet").exists()


def interrupted(directory: Path, file: str, *, events: int) -> None:
    """Run a batch, and leave what it had left had it been killed after so many events of its jobs."""
    (directory / "jobs.toml").write_text(file)
    invoke("run", "jobs.toml", "--output", "results")
    results = Results(directory / "results")
    lines = results.events.read_bytes().splitlines(keepends=True)
    kinds = [json.loads(line).get("event") for line in lines]
    of_jobs = [number for number, kind in enumerate(kinds) if kind in {"begun", "started", "ended"}]
    results.events.write_bytes(b"".join(lines[: of_jobs[events - 1] + 1]))
    results.resume.mkdir()
    results.jobs_file.write_text(file)


def test_an_interrupted_run_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pin: Pin) -> None:
    """Jobs that are over stay so, others run; the report is made, and afterwards there is nothing to resume."""
    monkeypatch.chdir(tmp_path)
    report = '[report]\ncommand = ["echo", "reported"]\n'
    script = f"[[jobs]]\nname = 'a'\ncopies = 3\nscript = 'echo >> {tmp_path}/ran-$TASKSCALER_JOB_NAME'\n"
    interrupted(tmp_path, fleet_in(tmp_path) + script + report, events=4)  # begun, a-01 twice, a-02 once
    result = invoke("run", "--resume", "results")
    assert (result.exit_code, result.stderr) == (0, "")
    (resuming,) = (line for line in result.stdout.splitlines() if "resuming" in line)
    assert re.findall(r"\d+", resuming.partition("] ")[2]) == ["1", "3", "1"], "over, of all, to be retried"
    (retried,) = (line for line in result.stdout.splitlines() if line.startswith("retried "))
    assert "a-02: " in retried
    pin("resuming", "\n".join([resuming.partition("] ")[2], retried]))
    assert result.stdout.endswith("reported\n")
    jobs = json.loads(Path("results", "results.json").read_text())["jobs"]
    assert [(each["state"], len(each["attempts"])) for each in jobs] == [
        ("succeeded", 1),
        ("succeeded", 2),
        ("succeeded", 1),
    ]
    assert [len(Path(f"ran-a-0{number}").read_text()) for number in (1, 2, 3)] == [1, 2, 2]
    result = invoke("run", "--resume", "results")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "3 of 3" in result.stdout
    pin("nothing to resume: all succeeded", result.stdout)


def test_a_batch_that_is_over_is_as_it_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pin: Pin) -> None:
    """Resuming it fails if it has failed, and runs nothing; the jobs file need not be there any more."""
    monkeypatch.chdir(tmp_path)
    Path("jobs.toml").write_text(fleet_in(tmp_path) + JOB.replace("true", "exit 3"))
    assert invoke("run", "jobs.toml", "--output", "results").exit_code == 1
    Path("jobs.toml").unlink()
    result = invoke("run", "--resume", "results")
    assert result.exit_code == 1
    assert "0 of 1" in result.stdout
    pin("nothing to resume: none succeeded", result.stdout)


def test_what_failed_is_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pin: Pin) -> None:
    """Over or not; with the jobs as the file has them now, and with what never ran; the status is that of the end."""
    monkeypatch.chdir(tmp_path)
    fleet = fleet_in(tmp_path)
    jobs = [f"[[jobs]]\nname = '{name}'\nscript = '{script}'\n" for name, script in (("a", "true"), ("b", "exit 3"))]
    Path("jobs.toml").write_text(fleet + "".join([*jobs, JOB.replace('"a"', '"c"')]))
    first = invoke("run", "jobs.toml", "--output", "results", "--only", "b", "--fail-fast")
    assert first.exit_code == 1
    assert "1 of 3 jobs selected" in first.stdout
    assert states(Path("results")) == {"a": "cancelled", "b": "failed", "c": "cancelled"}
    new = "[[jobs]]\nname = 'd'\nscript = 'true'\n"
    Path("jobs.toml").write_text(fleet + "".join([jobs[0].replace("true", "false"), jobs[1].replace("3", "0"), new]))
    resumed = invoke("run", "--resume", "results")
    assert resumed.exit_code == 1
    told = [line.partition("] ")[2] for line in resumed.stdout.splitlines() if "the jobs file: " in line]
    pin("resumed with other jobs", "\n".join(told))
    assert states(Path("results")) == {"a": "failed", "b": "failed", "d": "succeeded"}
    Path("jobs.toml").write_text(fleet + "".join([jobs[0], jobs[1].replace("3", "0"), new]))
    again = invoke("run", "--resume", "results", "--rerun", "failed")
    assert (again.exit_code, again.stderr) == (0, "")
    assert "running again: 2 jobs (--rerun failed)" in again.stdout
    assert states(Path("results")) == {"a": "succeeded", "b": "succeeded", "d": "succeeded"}
    attempts = json.loads(Path("results", "results.json").read_text())["jobs"][1]["attempts"]
    assert [(each["run"], each["state"]) for each in attempts] == [(1, "failed"), (3, "succeeded")]
    assert not Path("results", "resume").exists()
    nothing = invoke("run", "--resume", "results", "--rerun", "failed")
    assert nothing.exit_code == 0
    pin("nothing to run again", nothing.stdout)


def states(results: Path) -> dict[str, str]:
    """States of all jobs, from the results."""
    return {each["name"]: each["state"] for each in json.loads((results / "results.json").read_text())["jobs"]}


def test_a_run_killed_at_its_very_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No job is left, but perhaps instances are: the fleet is opened, emptied and closed, and the results written."""
    monkeypatch.chdir(tmp_path)
    interrupted(tmp_path, fleet_in(tmp_path) + JOB, events=3)
    Path("results", "results.json").unlink()
    result = invoke("run", "--resume", "results")
    assert (result.exit_code, result.stderr) == (0, "")
    assert " runs on " not in result.stdout
    assert json.loads(Path("results", "results.json").read_text())["jobs"][0]["state"] == "succeeded"


def test_the_fleet_of_an_interrupted_batch_stays_as_it_was_but_for_policies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pin: Pin
) -> None:
    """Else its instances could be lost; what differs is said, and where the file is kept. A comment is no change."""
    monkeypatch.chdir(tmp_path)
    file = fleet_in(tmp_path) + JOB
    interrupted(tmp_path, file, events=2)

    def refusal() -> str:
        result = invoke("run", "--resume", "results")
        assert (result.exit_code, result.stderr.count("\n"), result.stdout) == (2, 1, "")
        return result.stderr

    Path("jobs.toml").write_text(file.replace("max_instances = 1", "max_instances = 4").replace('"true"', '"false"'))
    changed = refusal()
    assert all(word in changed for word in (f"{tmp_path}/jobs.toml", "max_instances", "results/resume/jobs.toml"))
    assert changed.endswith(" [TS104]\n")
    pin("resumed with another file", changed)
    Path("jobs.toml").unlink()
    gone = refusal()
    assert all(word in gone for word in (f"{tmp_path}/jobs.toml", "results/resume/jobs.toml"))
    assert gone.endswith(" [TS104]\n")
    pin("resumed without the file", gone)
    Path("jobs.toml").write_text("???")
    assert "jobs.toml: invalid TOML at" in refusal()
    Path("jobs.toml").write_text(f"# a comment\n{file}[[autoscaler.policy]]\nidle_time = '1ms'\n")
    assert invoke("run", "--resume", "results").exit_code == 0


DIFFERENCES: Sequence[tuple[str, str, Sequence[str]]] = [
    ("max_instances = 2", "max_instances = 4", ["autoscaler.max_instances"]),
    ("", "max_use_count = 1", ["autoscaler.max_use_count"]),
    ("unhealthy_breaks_jobs = true", "", ["autoscaler.unhealthy_breaks_jobs"]),
    ('update_interval = "1m"', 'update_interval = "90s"', ["autoscaler.update_interval"]),
    (
        'instance_ready_command = "login hunter2"',
        'instance_ready_command = "login hunter3"',
        ["autoscaler.instance_ready_command"],
    ),
    (
        'connector_config = { password = "hunter2", timeout = "1s" }',
        'connector_config = { password = "hunter3", timeout = "1s" }',
        ["autoscaler.connector_config.password"],
    ),
    ("", "state_storage = { enabled = false }", ["autoscaler.state_storage.enabled"]),
    ("[[autoscaler.policy]]", "[[autoscaler.policy]]\nidle_count = 1", []),
    ("# a comment", "", []),
    ("", "[defaults]\nretries = 1\n[report]\ncommand = ['x']", ["defaults", "report"]),
]
"""What a file has before and after, and the keys that differ."""


def difference(before_after_keys: tuple[str, str, Sequence[str]]) -> str:
    """What it is in the golden file."""
    before, after, _ = before_after_keys
    return f"{before!r} {after!r}"


@pytest.mark.parametrize("case", DIFFERENCES, ids=difference)
def test_what_differs_between_two_files_is_told_without_secrets(
    golden: Golden, case: tuple[str, str, Sequence[str]]
) -> None:
    """Settings by their key paths, numbers and durations with their values; policies may differ."""
    before, after, keys = case
    told = changes(FLEET + before, FLEET + after)
    assert [each.split()[0] for each in told] == keys
    assert "hunter" not in str(told)
    golden(f"cli_changes/{difference(case)}", "\n".join(told))


# --- signals ---------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_sigterm_while_the_fleet_is_opened_begins_nothing(tmp_path: Path) -> None:
    """Opening is given up; no instance was asked for, and the results say that no job ran."""
    path, cloud = tmp_path / "jobs.toml", FakeCloud(latency={"init": 3600.0})
    path.write_text(fleet_in(tmp_path, settings="state_storage.enabled = false\n") + JOB)
    file, results = read_jobs_file(path), Results(tmp_path / "results")
    file = evolve(file, groups=[FakeGroup(cloud)])
    results.prepare()
    events = EventLog(results, jobs_file=path, text=file.text)
    run = _Run(file, OwnFleet.of(file), events, Console(file=io.StringIO()))
    ended = []

    async def see() -> None:
        ended.append(await run.run())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(see)
        await anyio.wait_all_tasks_blocked()
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL, "else this would be the end of the tests"
        signal.raise_signal(signal.SIGTERM)
    assert ended == [128 + signal.SIGTERM]
    assert [call.method for call in cloud.calls] == ["init"]
    assert [job["state"] for job in json.loads(results.summary.read_text())["jobs"]] == ["cancelled"]


# --- reloading the policies ----------------------------------------------------------------------------------


@define
class PoliciesOnly:
    """A scaler of which only the policies matter."""

    policies: Sequence[Policy] | None = None

    async def configure(self, *, policies: Sequence[Policy]) -> None:
        """Take them."""
        self.policies = policies


@pytest.mark.anyio
async def test_policies_are_read_anew_while_jobs_run(tmp_path: Path, pin: Pin) -> None:
    """They take effect; what cannot is told; a file that is wrong changes nothing."""
    path, output, scaler = tmp_path / "jobs.toml", io.StringIO(), PoliciesOnly()
    path.write_text(fleet_in(tmp_path) + JOB)
    file, results = read_jobs_file(path), Results(tmp_path / "results")
    fleet = OwnFleet.of(file)
    run = _Run(file, fleet, EventLog(results, jobs_file=path, text=file.text), Console(file=output, width=200))
    run._prepare()
    fleet.scaler = cast("Taskscaler", scaler)
    path.write_text(path.read_text() + "[[autoscaler.policy]]\nidle_count = -1\n")
    await run._reload()
    assert scaler.policies is None
    changed = path.read_text().replace("max_instances = 1", "max_instances = 3")
    path.write_text(changed.replace("idle_count = -1", "idle_count = 2"))
    await run._reload()
    assert scaler.policies == (Policy(idle_count=2),)
    path.unlink()
    await run._reload()
    said = [line.partition("] ")[2] for line in output.getvalue().splitlines()]
    assert [re.findall(r"\[([A-Z]+\d+)\]$", line) for line in said] == [["FL110"], [], [], [], ["FL102"], []]
    assert "autoscaler.policy[0].idle_count" in said[0]
    assert said[1] == said[5], "the policies have not changed"
    assert said[3].startswith("autoscaler.max_instances ")
    pin("reloading", "\n".join(said))


@pytest.mark.slow
def test_a_hangup_reloads_the_policies(tmp_path: Path) -> None:
    """The real signal, to the real command: more instances are kept at once, and the job goes on to its end."""
    path, go = tmp_path / "jobs.toml", tmp_path / "go"
    os.mkfifo(go)
    job = f"[[jobs]]\nname = 'a'\nscript = 'read line < {go}'\n"
    path.write_text(fleet_in(tmp_path).replace("max_instances = 1", "max_instances = 2") + job)
    command = [str(Path(sys.executable).with_name("taskscaler")), "run", str(path), "--output", str(tmp_path / "out")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if "a runs on" in line:
                path.write_text(path.read_text() + "[[autoscaler.policy]]\nidle_count = 1\nidle_time = '1h'\n")
                process.send_signal(signal.SIGHUP)
            elif "fleet: 2 ready" in line:
                go.write_text("go\n")
    assert process.returncode == 0, "".join(said)
    assert any("the policies were reloaded (1 in all)" in line for line in said)


@pytest.mark.slow
def test_a_terminal_that_goes_away_does_not_end_the_batch(tmp_path: Path) -> None:
    """Whoever closes the window, or loses the line, hangs up on the display and not on the jobs."""
    (tmp_path / "jobs.toml").write_text(f"{fleet_in(tmp_path)}{JOB.replace('true', 'sleep 0.5')}copies = 2\n")
    ours, theirs = os.openpty()
    command = str(Path(sys.executable).with_name("taskscaler"))
    process = os.posix_spawn(
        command,
        [command, "run", str(tmp_path / "jobs.toml"), "--output", str(tmp_path / "out")],
        {**os.environ, "TERM": "xterm"},
        setsid=True,  # so that the first terminal it opens is its own
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.ttyname(theirs), os.O_RDWR, 0),
            (os.POSIX_SPAWN_DUP2, 0, 1),
            (os.POSIX_SPAWN_OPEN, 2, str(tmp_path / "err"), os.O_WRONLY | os.O_CREAT, 0o600),
        ],
    )
    os.close(theirs)
    shown = b""
    while b"1 running" not in shown:
        shown += os.read(ours, 4096)
    os.close(ours)
    _, status = os.waitpid(process, 0)
    assert (os.waitstatus_to_exitcode(status), (tmp_path / "err").read_text()) == (0, "")
    jobs = json.loads((tmp_path / "out" / "results.json").read_text())["jobs"]
    assert [each["state"] for each in jobs] == ["succeeded", "succeeded"]
