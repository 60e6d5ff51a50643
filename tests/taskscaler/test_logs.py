"""A job's log, read from its end on and followed while it grows and is cut short."""

import fcntl
import re
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from attrs import define
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from fleeting.errors import WrongArguments
from taskscaler._recorded_run import read_run
from taskscaler.batch import BatchEvent, Begun, Ended, JobState, Planned, Results, Retries, Started
from taskscaler.batch._addresses import Addresses
from taskscaler.batch._events import as_line, header
from taskscaler.batch._job import LEAST_LOG_LIMIT
from taskscaler.batch._log import JobLog
from taskscaler.batch._log_reader import LogReader
from taskscaler.batch._select import select, select_one
from taskscaler.cli import main
from taskscaler.cli._logs import INTERVAL, show

LEFT_OUT = re.compile(rb"\ntaskscaler: +([0-9]+) bytes (?:are|were) left out[^\n]*\n")


def job_log(path: Path, limit: int = LEAST_LOG_LIMIT) -> JobLog:
    """Open a log as a batch does."""
    log = JobLog(limit, Addresses())
    log.open_at(path)
    return log


def text(start: int, length: int) -> bytes:
    """A part of an endless text that never repeats itself."""
    first = start // 8
    lines = b"".join(b"%07d\n" % number for number in range(first, first + length // 8 + 2))
    return lines[start % 8 :][:length]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(st.integers(1, 900), st.none(), st.just("again")), max_size=40), st.integers(0, 3))
def test_a_follower_sees_all_but_what_it_is_told_was_left_out(steps: list[int | str | None], extra: int) -> None:
    """In order, nothing twice: what is shown and what is said to be missing add up to what the job has printed.

    So it is, too, if another reader goes on where an earlier one was.
    """
    with TemporaryDirectory() as directory:
        path = Path(directory) / "log"
        log = job_log(path, LEAST_LOG_LIMIT + extra)
        seen, written = b"", 0
        with ExitStack() as stack:
            reader = stack.enter_context(closing(LogReader.at_last_lines(path, 10)))
            for step in [*steps, None]:
                if step is None:
                    seen += b"".join(reader.read())
                elif isinstance(step, str):
                    reader = stack.enter_context(closing(LogReader.after(path, reader.whole)))
                else:
                    log._write(text(written, step))
                    written += step
        at = last = 0
        for found in LEFT_OUT.finditer(seen):
            shown = seen[last : found.start()]
            assert shown == text(at, len(shown))
            at, last = at + len(shown) + int(found[1]), found.end()
        assert seen[last:] == text(at, written - at)


@given(st.integers(0, 12), st.booleans())
def test_the_last_lines_are_those_that_tail_shows(lines: int, ends: bool) -> None:  # noqa: FBT001  (drawn)
    """Whether or not the last one has an end."""
    printed = [b"line %d\n" % number for number in range(10)]
    whole = b"".join(printed) if ends else b"".join(printed)[:-1]
    with TemporaryDirectory() as directory:
        path = Path(directory) / "log"
        path.write_bytes(whole)
        with closing(LogReader.at_last_lines(path, lines)) as reader:
            expected = b"".join(printed[10 - min(lines, 10) :])
            assert b"".join(reader.read()) == (expected if ends else expected[:-1] if lines else b"")


# --- which job ---------------------------------------------------------------------------------------------

NAMES = ["prepare", "train-01", "train-02", "train-10", "report"]


def test_jobs_are_chosen_by_name_place_and_pattern() -> None:
    """Each once, in the order of the batch, whatever the order in which they are named."""
    assert select(NAMES, ["report", "train-0?", "#1", "train-01"]) == ["prepare", "train-01", "train-02", "report"]
    assert select_one(NAMES, "train-1*") == "train-10"
    assert select_one(NAMES, "#5") == "report"


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("prepar", "'prepar' matches no job; did you mean `prepare`?"),
        ("x*", "'x*' matches no job; the first job is `prepare`"),
        ("#0", "'#0' is the place of no job; the batch has #1 to #5"),
        ("#6", "'#6' is the place of no job; the batch has #1 to #5"),
        ("#one", "'#one' is the place of no job; the batch has #1 to #5"),
    ],
)
def test_who_means_no_job_is_told_the_nearest(wanted: str, message: str) -> None:
    """Nothing is passed over in silence."""
    with pytest.raises(WrongArguments) as caught:
        select(NAMES, ["report", wanted])
    assert str(caught.value) == message


def test_one_job_is_not_several() -> None:
    """They are named, but not all of a million."""
    with pytest.raises(WrongArguments) as caught:
        select_one([f"job-{number}" for number in range(5)], "job-*")
    assert str(caught.value) == "'job-*' matches 5 jobs: job-0, job-1, job-2 and 2 more; name one of them"


# --- the command -------------------------------------------------------------------------------------------

BEGUN = Begun(at=1.0, jobs=(Planned(name="a", retries=Retries(failed=1)), Planned(name="b", retries=0)))


def started(name: str) -> Started:
    """A try begins."""
    return Started(at=2.0, job=name, pool="", instance="i-1", slot=0)


def failed(name: str) -> Ended:
    """A try ends."""
    return Ended(at=3.0, job=name, state=JobState.FAILED, exit_code=1, why="exited with 1")


@pytest.fixture
def results(tmp_path: Path) -> Results:
    """A batch that is begun."""
    results = Results(tmp_path / "results")
    results.log("a").parent.mkdir(parents=True)
    results.events.write_bytes(header())
    happened(results, BEGUN)
    return results


def happened(results: Results, *events: BatchEvent) -> None:
    """Write down what happened."""
    with results.events.open("ab") as file:
        file.writelines(map(as_line, events))


@contextmanager
def running(results: Results) -> Iterator[None]:
    """Run the batch, as far as others can see."""
    with results.events.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def test_the_last_lines_of_a_job_are_shown(results: Results) -> None:
    """Without what a terminal would obey; of a job by its place, too."""
    happened(results, started("a"), failed("a"))
    results.log("a").write_bytes(b"one\n\x1b[31mtwo\x1b[0m\nthree \xff\n")
    shown = CliRunner().invoke(main, ["logs", str(results.directory), "#1", "-n", "2"])
    assert (shown.exit_code, shown.output) == (0, "two\nthree \ufffd\n")
    none = CliRunner().invoke(main, ["logs", str(results.directory), "b", "-f"])
    assert (none.exit_code, none.stderr) == (0, "b has printed nothing\n")
    wrong = CliRunner().invoke(main, ["logs", str(results.directory), "c"])
    assert wrong.exit_code == 2
    assert "'c' matches no job; the first job is `a`" in wrong.stderr


@define
class Meanwhile:
    """What happens while a follower waits for more, step by step."""

    steps: Iterator[None]

    def __call__(self, seconds: float) -> None:
        """Have the next thing happen."""
        assert seconds == INTERVAL
        next(self.steps, None)


def test_a_log_is_followed_through_all_tries(results: Results, capsys: pytest.CaptureFixture[str]) -> None:
    """Until the job is over, not only its first try; what is printed last is not lost."""

    def steps() -> Iterator[None]:
        for event, printed in ((started("a"), "first try\n"), (failed("a"), "it failed\n"), (started("a"), "half a ")):
            happened(results, event)
            with results.log("a").open("a") as file:
                file.write(printed)
            yield
        with results.log("a").open("a") as file:
            file.write("line")
        happened(results, failed("a"))
        yield

    with running(results):
        show(read_run(results.directory), "a", 5, follow=True, pause=Meanwhile(steps()))
    shown = capsys.readouterr()
    assert shown.out.splitlines() == ["first try", "it failed", "half a line"]
    assert shown.err == "a has not started yet; waiting for it\n"


def test_following_ends_when_nobody_runs_the_batch(results: Results, capsys: pytest.CaptureFixture[str]) -> None:
    """A command that was killed leaves a job that is not over."""
    happened(results, started("a"))
    results.log("a").write_text("it runs\n")

    with ExitStack() as command:
        command.enter_context(running(results))

        def steps() -> Iterator[None]:
            yield
            command.close()
            yield

        show(read_run(results.directory), "a", 5, follow=True, pause=Meanwhile(steps()))
    assert capsys.readouterr().out == "it runs\n"
