"""The script of a whole job, as each shell of this machine runs it."""

import re
import shlex
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from gitlab_jobs import Artifact, GitInfo, Step, Variable
from taskscaler_gitlab.runner._caches import name_of
from taskscaler_gitlab.runner._errors import JobInvalid
from taskscaler_gitlab.runner._globs import FIND, OutsideProject, listing, read_pattern
from taskscaler_gitlab.runner._marks import Marks
from taskscaler_gitlab.runner._plan import MAX_WRITTEN, plan_of
from taskscaler_gitlab.runner._script import Before, write_script
from taskscaler_gitlab.runner._stages import Cause, Ended, Phase, filled_in, judge
from taskscaler_gitlab.runner._variables import Place, environment_of
from tests.taskscaler_gitlab.desks import leaving, script
from tests.taskscaler_gitlab.projects import BUSYBOX, SHELL
from tests.taskscaler_gitlab.stage_runs import NONCE, SETTINGS, run

pytestmark = pytest.mark.needs("awk", "find", "grep", "sed", "setsid", "tar")

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)
NAME = st.text(st.characters(exclude_characters="\0/\n", exclude_categories=["Cs"]), min_size=1, max_size=20).filter(
    lambda name: name not in (".", "..") and len(name.encode()) < 200
)


def test_stages_run_in_gitlabs_order(shell: Sequence[str], tmp_path: Path) -> None:
    """Each in a section of its own, and each reports its end."""
    ran = run(shell, script("echo x > f", after=["true"], artifacts=(leaving("f"),)), tmp_path)
    assert ran.code == 0
    assert ran.phases == ["prepare_script", "get_sources", "step_script", "after_script", "cleanup_file_variables"]
    assert judge(ran.plan.stages, ran.marks.ended).cause is None
    assert NONCE not in ran.log


def test_a_failure_before_the_script_ends_the_job(shell: Sequence[str], tmp_path: Path) -> None:
    """Neither script nor after_script run; what is late does."""
    job = script("echo ran", after=["echo after"], artifacts=(leaving("f", when="on_failure"),))
    (tmp_path / "builds").write_text("in the way")
    ran = run(shell, job, tmp_path)
    assert "ran" not in ran.log.splitlines()
    assert ran.phases == ["prepare_script", "cleanup_file_variables"]
    assert judge(ran.plan.stages, ran.marks.ended).cause is Cause.SYSTEM


def test_an_instance_whose_disk_is_full_runs_nothing(shell: Sequence[str], tmp_path: Path) -> None:
    """Not half a script; the log says why, and nobody takes it for a success."""
    ran = run(shell, script("echo ran"), tmp_path, is_full=True)
    assert ran.code not in (0, None)
    assert (ran.marks.all_begun, ran.phases) == (set(), [])
    assert "ERROR: the job cannot be written to this disk; is it full?" in ran.log
    assert judge(ran.plan.stages, filled_in(ran.plan.stages, {}, None, ran.code), {0}).cause is Cause.LOST


def test_a_clock_that_outlives_its_script_hits_nobody(shell: Sequence[str], tmp_path: Path) -> None:
    """Whoever has the number of a script that was killed meanwhile: without its directory, nothing is signalled."""
    text = write_script([], Before(), nonce=NONCE)
    functions = text[text.index("_t_setsid=;") : text.index("trap _t_stop")]
    check = f"_t_home={tmp_path}/gone; trap 'echo hit' USR1; {functions}\n_t_alarm_in 1; wait $_t_alarm; echo over"
    done = subprocess.run([*shell, "-c", check], capture_output=True, check=True)
    assert done.stdout == b"over\n"
    there = check.replace(f"{tmp_path}/gone", str(tmp_path))
    assert b"hit\n" in subprocess.run([*shell, "-c", there], capture_output=True, check=True).stdout


def test_what_is_asked_to_end_takes_its_stage_along(shell: Sequence[str], tmp_path: Path) -> None:
    """Also one that pays no heed to SIGTERM, and what it has started: stages have process groups of their own."""
    lines = ("trap '' TERM", f"sleep 1000 & echo $! $$ > {tmp_path}/running", "kill -TERM $PPID", "wait; sleep 1000")
    ran = run(shell, script(*lines, after=["echo aft''er"]), tmp_path)
    assert ran.code == 128 + signal.SIGTERM
    assert not re.search("after|Terminated|Killed", ran.log)
    for number in (tmp_path / "running").read_text().split():
        wait_for_end(number)


def wait_for_end(number: str) -> None:
    """Wait for the end of a process that is no child of this one: its killer does not wait for it."""
    while is_running(number):
        Event().wait(0.01)


def is_running(number: str) -> bool:
    """Whether there is such a process, beside those that nobody has waited for."""
    try:
        return " Z " not in Path(f"/proc/{number}/stat").read_text()
    except FileNotFoundError:
        return False


def test_sources_are_tried_again(tmp_path: Path) -> None:
    """GET_SOURCES_ATTEMPTS: what fails once is not the end, after a pause, and what is left of it is cleared away."""
    job = script("echo ran")
    wanted = (Variable(key="GET_SOURCES_ATTEMPTS", value="2"), Variable(key="GIT_STRATEGY", value="clone"))
    sources = GitInfo(repo_url=f"file://{tmp_path}/none", ref="main", sha="0" * 40, refspecs=("+a:b",))
    ran = run(SHELL, evolve(job, variables=wanted, git_info=sources), tmp_path)
    assert ran.log.count("it failed; another try in 5 seconds") == 1
    assert ran.log.count("Getting source from Git repository") == 1
    assert "ran" not in ran.log.splitlines()
    assert judge(ran.plan.stages, ran.marks.ended).cause is Cause.SCRIPT


def test_time_is_kept(shell: Sequence[str], tmp_path: Path) -> None:
    """A script and an after_script that take too long are stopped, each for itself, with what they have started."""
    limits = tuple(Variable(key=key, value="1s") for key in ("RUNNER_SCRIPT_TIMEOUT", "RUNNER_AFTER_SCRIPT_TIMEOUT"))
    ran = run(shell, script("sleep 1000 & wait", after=["sleep 1000; echo no"], variables=limits), tmp_path)
    verdict = judge(ran.plan.stages, ran.marks.ended)
    assert verdict.cause is Cause.TIMEOUT
    assert verdict.stage is not None
    assert verdict.stage.phase is Phase.SCRIPT
    assert "no" not in ran.log.splitlines()


@pytest.mark.needs("busybox")
@given(values=st.lists(TEXT, min_size=1, max_size=5), commands=st.lists(TEXT, min_size=1, max_size=5))
@settings(max_examples=8, deadline=None)
def test_what_a_job_says_is_what_it_gets(values: list[str], commands: list[str]) -> None:
    """Values of variables, files, and arguments in scripts come through as they are, in every shell."""
    names = [f"V{number}" for number in range(len(values))]
    variables = tuple(Variable(key=name, value=value, raw=True) for name, value in zip(names, values, strict=True))
    files = tuple(
        Variable(key=f"F{name}", value=value, raw=True, file=True) for name, value in zip(names, values, strict=True)
    )
    lines = [f'printf "%s|" "${name}" "$(cat "$F{name}"; echo .)" >> got' for name in names]
    lines += [f"printf '%s|' {shlex.quote(command)} >> got" for command in commands]
    expected = "".join(f"{value}|{value}.|" for value in values) + "".join(f"{command}|" for command in commands)
    for each in (SHELL, (BUSYBOX, "sh")):
        with TemporaryDirectory() as directory:
            ran = run(each, script(*lines, variables=(*variables, *files)), Path(directory))
            assert ran.code == 0, ran.log
            (got,) = Path(directory, "builds").rglob("got")
            assert got.read_bytes() == expected.encode()


@given(names=st.sets(NAME, min_size=1, max_size=8))
@settings(max_examples=8, deadline=None)
def test_files_of_any_name_are_left(names: set[str]) -> None:
    """Whatever is in their names, but for ends of lines."""
    with TemporaryDirectory() as directory:
        make = " && ".join(f": > {shlex.quote(f'out/{name}')}" for name in names)
        ran = run(SHELL, script(f"mkdir out && {make}", artifacts=(leaving("out"),)), Path(directory))
        assert ran.files() == {f"out/{name}" for name in names}, ran.log


@pytest.mark.needs("busybox")
def test_tools_of_a_small_system_are_enough(tmp_path: Path) -> None:
    """Its tar reads no names from files, and its awk, find and sed are others."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("tar", "awk", "find", "sed", "xargs", "tr", "cp", "grep", "wc", "sleep", "setsid", "date", "mkdir"):
        (tools / name).symlink_to(BUSYBOX)
    names = ("-rf", "a\\nb", "it's", "é ü", "x*")
    make = "; ".join(f": > {shlex.quote(f'out/{name}')}" for name in names)
    job = script(f"mkdir -p out/empty; {make}; ln -s x out/link", artifacts=(leaving("out"),))
    ran = run((BUSYBOX, "sh"), job, tmp_path, tools=tools)
    assert ran.code == 0, ran.log
    assert {f"out/{name}" for name in (*names, "empty", "link")} <= ran.files(), ran.log


PART = st.sampled_from(["a", "b", "ab", ".x", "a.c"])
PATHS = st.sets(st.lists(PART, min_size=1, max_size=3).map("/".join), min_size=1, max_size=8)
PIECE = st.sampled_from(["a", "b", ".", "*", "?", "[ab]", "[!a]", "{a,ab}", "x", "c"])
GLOBS = st.lists(st.one_of(st.just("**"), st.lists(PIECE, min_size=1, max_size=2).map("".join)), min_size=1, max_size=3)


def _plain(piece: str) -> str:
    """A piece of a pattern as a regular expression."""
    if piece[0] in "*?":
        return "[^/]*" if piece[0] == "*" else "[^/]"
    if piece[0] == "[":
        return piece.replace("!", "^")
    return f"({piece[1:-1].replace(',', '|')})" if piece[0] == "{" else re.escape(piece)


def matches(parts: Sequence[str], globs: Sequence[str]) -> bool:
    """Whether a path, or a directory above it, matches: read part by part."""
    if not globs:
        return True
    if globs[0] == "**":
        return any(matches(parts[start:], globs[1:]) for start in range(len(parts) + 1))
    if not parts:
        return False
    regex = re.sub(r"\*+|\?|\[!?\w+\]|\{[^}]*\}|.", lambda found: _plain(found[0]), globs[0])
    return re.fullmatch(regex, parts[0]) is not None and matches(parts[1:], globs[1:])


@given(paths=PATHS, globs=GLOBS)
@settings(max_examples=30, deadline=None)
def test_patterns_mean_what_they_mean_at_gitlab(paths: set[str], globs: list[str]) -> None:
    """The program of the instance picks what a plain reading of the pattern picks."""
    if ".." in globs or "." in globs:
        return
    files = {path for path in paths if not any(other.startswith(f"{path}/") for other in paths)}
    with TemporaryDirectory() as directory:
        for path in files:
            Path(directory, path).parent.mkdir(parents=True, exist_ok=True)
            Path(directory, path).touch()
        pattern = read_pattern("/".join(globs), directory)
        text = f"{FIND}\n{listing([pattern], [], untracked=False)}"
        done = subprocess.run(["/bin/sh", "-c", text], cwd=directory, capture_output=True, check=True)
    found = {line.removeprefix("./") for line in done.stdout.decode().splitlines()}
    assert found == {path for path in files if matches(path.split("/"), globs)}


@pytest.mark.parametrize("path", ["", "..", "../a", "/etc", "a/../..", "a\nb", "a\0b", "a" * 5000])
def test_patterns_that_lead_out(path: str) -> None:
    """They mean nothing in the project."""
    with pytest.raises(OutsideProject):
        read_pattern(path, "/builds/project")


def test_the_texts_of_a_job_do_not_fill_the_memory() -> None:
    """A hundred paths of a kilobyte could stand for gigabytes: all of them together have a limit."""
    long = Variable(key="LONG", value="x" * 10_000)
    job = script("true", variables=(long,), artifacts=(leaving(*["$LONG" * 100] * 100),))
    environment = environment_of(job, SETTINGS, Place(builds_dir="/builds", instance="i-1", slot=0))
    with pytest.raises(JobInvalid, match="refer to long values less often"):
        plan_of(job, SETTINGS, environment, cache_dir="/cache", brings=False)


@pytest.mark.parametrize("mark", ["x", "'"])
def test_all_stages_fit_into_memory(mark: str) -> None:
    """With the variables that each begins with, and quotation marks as the script of a leg has them."""
    place = Place(builds_dir="/builds", instance="i-1", slot=0)
    steps = tuple(Step(name=f"step{number}", script=("true",), when="on_success") for number in range(120))
    job = evolve(script("true", variables=(Variable(key="LONG", value=mark * 600_000),)), steps=steps)
    with pytest.raises(JobInvalid, match="more than 64000000 characters with what each of its stages runs"):
        plan_of(job, SETTINGS, environment_of(job, SETTINGS, place), cache_dir="/cache", brings=False)
    few = script("true", variables=(Variable(key="LONG", value=mark * 300_000),))
    stages = plan_of(few, SETTINGS, environment_of(few, SETTINGS, place), cache_dir="/cache", brings=False).stages
    assert len(write_script(stages, Before(), nonce=NONCE)) < MAX_WRITTEN + 1_000_000


def test_a_pattern_of_braces_and_stars_is_read_once() -> None:
    """Not again for each of them."""
    pattern = read_pattern("{*" * 2000, "/builds/project")
    assert len(pattern.regex) < 50_000


def test_an_absolute_pattern_in_the_project() -> None:
    """It means what it does without the project's directory."""
    assert read_pattern("/builds/project/out/*.o", "/builds/project").place == "./out"
    assert read_pattern("/builds/project", "/builds/project").place == "."


@given(key=TEXT, other=TEXT)
def test_no_two_keys_have_one_name(key: str, other: str) -> None:
    """A name is a name, whatever the key."""
    assert re.fullmatch(r"[A-Za-z0-9_-]+", name_of(key))
    assert (name_of(key) == name_of(other)) == (key == other)


@given(data=st.binary(max_size=200), cuts=st.lists(st.integers(1, 20), max_size=20), at=st.integers(0, 200))
def test_marks_are_found_wherever_pieces_end(data: bytes, cuts: list[int], at: int) -> None:
    """What is not ours passes as it is, and what is ours is understood, however the output comes in."""
    mark = f"\x1e{NONCE} ".encode()
    text = data[:at] + mark + b"begin 3\n" + mark + b"end 3 7 yes\n" + data[at:]
    marks, passed, left = Marks(NONCE, 100), b"", text
    for cut in [*cuts, len(text)]:
        passed, left = passed + marks.feed(left[:cut]), left[cut:]
    passed += marks.feed(left) + marks.end()
    assert passed == data + (b"" if not data or data.endswith(b"\n") else b"\n")
    assert (marks.begun, marks.ended, marks.size) == (3, {3: Ended(7, is_stopped=True)}, len(text))


@pytest.mark.parametrize("line", [b"end\n", b"begin x\n", b"nonsense " * 20, b"end 3 9999\n", b""])
def test_what_only_looks_like_a_mark_is_passed_on(line: bytes) -> None:
    """A job that guesses them gains nothing."""
    text = f"\x1e{NONCE} ".encode() + line
    marks = Marks(NONCE, 100)
    passed = marks.feed(text) + marks.end()
    assert passed.rstrip(b"\n") == text.rstrip(b"\n")
    assert not marks.ended


@pytest.mark.parametrize(
    ("lines", "took"),
    [
        (["open 2 at 1000", "begin 2", "end 2 0 ", "close 2 at 1042"], {2: 42}),
        (["open 2 at 1000", "close 2 at 1001", "open 3 at 1001", "close 3 at 1003"], {2: 1, 3: 2}),
        (["open 2 at 1000", "close 2 at 990"], {2: 0}),  # somebody has set the clock
        (["open 2", "close 2"], {}),  # as earlier releases wrote them
        (["open 2 at 1000", "close 2"], {}),
        (["open 2 at 1000"], {}),
        (["open 2 at 1000", "close 3 at 1001"], {}),
        (["close 2 at 1001"], {}),
    ],
)
def test_how_long_stages_took_is_read_from_marks(lines: list[str], took: dict[int, int]) -> None:
    """Of those that have begun and ended, where both times are known."""
    marks = Marks(NONCE, 100)
    assert marks.feed("".join(f"\x1e{NONCE} {line}\n" for line in lines).encode()) == b""
    assert marks.took == took


def test_a_judgement_needs_every_end() -> None:
    """A stage that has begun and not ended is lost; one that did not begin is none of the matter."""
    steps = (Step(name="script", script=("true",)), Step(name="after_script", script=("true",)))
    job = evolve(script("true"), steps=steps, artifacts=(Artifact(paths=("a",)),))
    place = Place(builds_dir="/builds", instance="i-1", slot=0)
    plan = plan_of(job, SETTINGS, environment_of(job, SETTINGS, place), cache_dir="/cache", brings=False)
    assert judge(plan.stages, {0: Ended(0)}, {0, 1}).cause is Cause.LOST
    assert judge(plan.stages, {0: Ended(0), 1: Ended(3)}, {0, 1}).code == 3
    assert judge(plan.stages, {0: Ended(0), 1: Ended(0)}, {0, 1}).cause is None


def test_what_the_output_does_not_say_any_more() -> None:
    """The exit code is that of the stage that was at work, unless an earlier one has failed; a signal is no end."""
    job = script("true", after=["true"])
    place = Place(builds_dir="/builds", instance="i-1", slot=0)
    stages = plan_of(job, SETTINGS, environment_of(job, SETTINGS, place), cache_dir="/cache", brings=False).stages
    *_, step, late, last = (stage.number for stage in stages)
    before = {number: Ended(0) for number in range(step)}
    assert judge(stages, filled_in(stages, before, step, 3)).code == 3
    assert judge(stages, filled_in(stages, before, step, 0)).cause is None
    assert judge(stages, filled_in(stages, {**before, step: Ended(5)}, late, 5)).code == 5
    assert filled_in(stages, before, step, 137) == filled_in(stages, before, step, None) == before
    assert last in filled_in(stages, before, step, 0)


def test_marks_of_stages_that_a_job_does_not_have_are_not_kept() -> None:
    """A job that forges a million of them grows nothing here, and its output is read once."""
    mark = f"\x1e{NONCE} "
    marks = Marks(NONCE, 3)
    text = "".join(f"{mark}begin {number}\n{mark}end {number} 0 \n" for number in range(20_000)).encode()
    assert marks.feed(text) + marks.end() == b""
    assert (marks.all_begun, set(marks.ended)) == ({0, 1, 2}, {0, 1, 2})
