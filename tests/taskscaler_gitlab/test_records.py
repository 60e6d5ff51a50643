"""What is noted down of jobs and of the runner itself."""

import stat
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleeting.plugins import one_line
from gitlab_jobs import Job, JobInfo, Outcome
from taskscaler_gitlab._expiry import keep_alone, keep_token, may_keep, parse_time, renew_at, with_token
from taskscaler_gitlab._finished import Finished, finished, keep
from taskscaler_gitlab._keeping import Kept
from taskscaler_gitlab._record import JobDirectory, Record, Stage, found
from taskscaler_gitlab._system_id import system_id
from tests.taskscaler.uses import MEMORY_LIMITS, STEP_USES

WORDS = st.text(st.characters(codec="ascii", exclude_characters="\0"))
RECORD = Record(key="gitlab/1", prefix="0123456789ab-7-aa", taken_at=1.5)
JOB = Job(id=7, token="glcbt-secret", job_info=JobInfo(name="build"))
FILE = '# mine\n[[runners]]\nname = "a"\n  token = "glrt-old" # rotated\nurl = "http://glrt-old"\n'


@given(
    st.builds(
        Record,
        key=WORDS,
        prefix=WORDS,
        taken_at=st.floats(0, 2e9),
        tries=st.integers(1, 9),
        stage=st.sampled_from(Stage),
        is_canceling=st.booleans(),
        is_success=st.none() | st.booleans(),
        failure_reason=st.none() | WORDS.filter(bool),
        exit_code=st.none() | st.integers(-(2**31), 2**31),
    )
)
def test_a_record_is_read_as_it_was_written(record: Record) -> None:
    """Whatever it holds."""
    assert Record.decode(record.encode()) == record


def test_a_job_is_found_again_and_nobody_else_reads_it(tmp_path: Path) -> None:
    """Its token lies in files for our user alone, and goes when GitLab has its end."""
    directory = JobDirectory(tmp_path / "jobs" / "7-a")
    directory.begin(JOB, RECORD)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in [directory.path, *directory.path.iterdir()]}
    assert modes == {"7-a": 0o700, "job.json": 0o600, "state.json": 0o600}
    ended = RECORD.ended(Outcome(is_success=False, failure_reason="script_failure", exit_code=3), is_canceling=False)
    directory.note(ended)
    unfinished, others = found(tmp_path / "jobs")
    assert [(each.read_job(), each.read_record()) for each in unfinished] == [(JOB, ended)]
    assert others == []
    with directory.open_trace() as trace:
        trace.write(b"0123456789")
    with directory.open_trace(4) as trace:
        assert trace.read() == b"0123"
    directory.end()
    assert not any(b"glcbt-secret" in path.read_bytes() for path in directory.path.iterdir())
    assert found(tmp_path / "jobs") == ([], [directory])


HOW = Finished(
    id="gitlab-7", name="build", project="a/b", state="failed", why="script_failure", taken_at=1.0, over_at=9.5
)


def test_a_job_that_is_over_is_known_after_a_restart(tmp_path: Path) -> None:
    """How it ended, and its log; what cannot be read, or is another runner's, is removed."""
    origin = "0123456789ab"
    jobs = [JobDirectory.of(tmp_path, origin, number, f"gitlab/{number:012x}") for number in range(4)]
    other = JobDirectory.of(tmp_path, "ba9876543210", 7, "gitlab/ffffffffffff")
    for each in (*jobs, other):
        each.path.mkdir()
        each.trace.write_bytes(b"its log")
        keep(each, HOW)
    (jobs[1].path / "over.json").unlink()
    (jobs[2].path / "over.json").write_text("{")
    found_again = [*finished([*jobs, other], {origin})]
    assert [each.directory for each in found_again] == [jobs[0], jobs[3]]
    assert {each.how for each in found_again} == {HOW}
    assert found_again[0].kept == Kept(name=jobs[0].path.name, used=9.5, size=7)
    assert sorted(path.name for path in tmp_path.iterdir()) == [jobs[0].path.name, jobs[3].path.name]
    assert found_again[0].explain() == ("gitlab-7 (build of a/b) is over: failed (script_failure)",)


@given(
    st.builds(
        Finished,
        id=WORDS,
        name=st.text().map(one_line),
        project=st.text().map(one_line),
        state=WORDS,
        why=WORDS,
        taken_at=st.floats(0, 2e9),
        begun_at=st.none() | st.floats(0, 2e9),
        over_at=st.floats(0, 2e9),
        tries=st.integers(1, 9),
        instance=st.none() | WORDS,
        exit_code=st.none() | st.integers(-(2**31), 2**31),
        cpu_time=st.none() | st.floats(0, 2e9),
        peak_memory=st.none() | st.integers(0, 2**53),
        disk_written=st.none() | st.integers(0, 2**53),
        memory_limit=st.none() | MEMORY_LIMITS,
        steps=st.lists(STEP_USES, max_size=3).map(tuple),
    )
)
def test_how_a_job_ended_is_read_as_it_was_written(how: Finished) -> None:
    """Whatever its name is."""
    assert Finished.decode(how.encode()) == how


def test_the_system_id_stays(tmp_path: Path) -> None:
    """It is made once; what is not one is replaced."""
    made = system_id(tmp_path / "here")
    assert made.startswith("r_")
    assert system_id(tmp_path / "here") == made
    (tmp_path / "here" / "system_id").write_text("nonsense\n")
    assert system_id(tmp_path / "here") != "nonsense"


def test_a_token_is_replaced_at_three_quarters_of_its_life() -> None:
    """As GitLab Runner does it; without an end, never."""
    assert renew_at(100.0, 200.0) == 175.0
    assert renew_at(100.0, 50.0) == 100.0
    assert renew_at(100.0, None) is None


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("2026-01-01T00:00:00Z", 1767225600.0),
        ("2026-01-01T00:00:00.000+00:00", 1767225600.0),
        ("2026-01-01T00:00:00", 1767225600.0),
        ("0001-01-01T00:00:00Z", None),
        ("soon", None),
        (None, None),
    ],
)
def test_times_are_read_as_gitlab_writes_them(text: str | None, at: float | None) -> None:
    """The year 1 is GitLab Runner's word for never."""
    assert parse_time(text) == at


def test_a_new_token_takes_the_old_ones_place_in_the_file(tmp_path: Path) -> None:
    """Nothing else changes, and neither do the permissions."""
    path = tmp_path / "config.toml"
    path.write_text(FILE)
    path.chmod(0o640)
    assert may_keep(path, "glrt-old") == ""
    keep_token(path, "glrt-old", "glrt-new")
    assert path.read_text() == FILE.replace('"glrt-old" #', '"glrt-new" #')
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_new_token_takes_no_other_ones_place(tmp_path: Path) -> None:
    """Somebody has put another one into the file of its own meanwhile, and means it."""
    path = tmp_path / "token"
    path.write_text("glrt-other\n")
    with pytest.raises(ValueError, match="another token"):
        keep_alone(path, "glrt-old", "glrt-new")
    assert path.read_text() == "glrt-other\n"
    keep_alone(path, "glrt-other", "glrt-new")
    assert path.read_text() == "glrt-new\n"


def test_a_token_cannot_add_to_the_file() -> None:
    """Whatever characters a GitLab gives one: the file says just that token."""
    new = 'x" # \\u0041'
    assert tomllib.loads(with_token('token = "glrt-old"\n', "glrt-old", new)) == {"token": new}


@pytest.mark.parametrize("text", ["", FILE + 'token = "glrt-old"\n', "token = '''glrt-old'''\n"])
def test_a_file_in_which_the_token_cannot_be_replaced_is_left_alone(text: str) -> None:
    """It is missing, twice there, or written in another way."""
    with pytest.raises(ValueError, match="does not stand in it once"):
        with_token(text, "glrt-old", "glrt-new")
