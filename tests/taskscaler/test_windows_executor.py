"""The *instance* executor on Windows, as far as this system can show it: over WinRM, with programs that we play."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from attrs import define
from hypothesis import example, given
from hypothesis import strategies as st

from fleeting import ConnectError, Usage
from fleeting.connectors.powershell import PREFACE
from fleeting.connectors.winrm import WinrmConnector
from fleeting.connectors.winrm._command import LONGEST_LINE
from taskscaler.executors import JobOutcome, JobSpec, Verdict, _windows
from taskscaler.executors._windows import Kind, with_values
from taskscaler.executors.instance import InstanceConfig, InstanceExecutor
from taskscaler.executors.runs import Runs
from tests.fleeting.local_agents import Heard
from tests.fleeting.sshd import configured
from tests.fleeting.winrm_host import Host, winrm_host
from tests.taskscaler import fake_windows
from tests.taskscaler.leased import Slot

pytestmark = pytest.mark.anyio


@define
class Bench:
    """One instance, and everything to run jobs on it."""

    host: Host
    here: Path
    there: Path
    """Where commands start on the instance."""

    output: Heard
    runs: Runs

    async def run(self, script: str, *, config: InstanceConfig | None = None, slot: int = 0, **spec: Any) -> JobOutcome:  # noqa: ANN401
        """Run a job made from these."""
        executor = InstanceExecutor(config or InstanceConfig(), self.runs)
        job = JobSpec(name="job", script=script, **spec)
        lease = Slot("i-1", lambda: WinrmConnector().dial(self.host.info, configured()), slot)
        return await executor.run(job, lease, output=self.output, artifacts=self.here / "artifacts")

    def damage(self, times: int) -> None:
        """Spoil the next archives on their way here."""
        Path(str(self.host.options.programs), "damage").write_text(str(times))

    def left(self) -> list[str]:
        """What lies on the instance where slots are."""
        return sorted(path.name for path in (self.there / "taskscaler").iterdir())


@pytest.fixture(scope="session")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """Run a server; its commands start in a directory of its own."""
    base = tmp_path_factory.mktemp("windows")
    (base / "home").mkdir()
    with winrm_host(base, programs=str(fake_windows.install(base / "programs")), home=str(base / "home")) as found:
        yield found


@pytest.fixture
def bench(host: Host, tmp_path: Path) -> Bench:
    """Use the server."""
    return Bench(host, tmp_path, Path(str(host.options.home)), Heard(), Runs("instance", tmp_path / "runs"))


# --- scripts ---------------------------------------------------------------------------------------------


async def test_a_powershell_script_runs_in_its_slot(bench: Bench) -> None:
    """Both outputs are one, its status is told, the job's variables are there, and nothing is left."""
    script = 'echo "out $A $TASKSCALER_INSTANCE $TASKSCALER_SLOT"; echo "err ä" >&2; pwd; exit 3'
    outcome = await bench.run(script, slot=2, env={"A": "a b"})
    assert (outcome.verdict, outcome.exit_code, outcome.why) == (Verdict.FAILED, 3, "exited with 3")
    told, directory = bench.output.data.decode().removesuffix("\n").rsplit("\n", 1)
    assert told == "out a b i-1 2\nerr ä"
    assert directory.startswith(f"{bench.there}/taskscaler/slot-2-{bench.runs.manager[:8]}-{bench.runs.id}-")
    assert bench.left() == []


@pytest.mark.parametrize("script", ["@echo off\necho hi\nexit 4", "#!cmd\necho hi\nexit 4"])
async def test_a_cmd_script_runs_in_its_slot(bench: Bench, script: str) -> None:
    """It is known by its first line, and has the line ends that cmd's labels need."""
    outcome = await bench.run(script)
    assert (outcome.exit_code, bench.output.data) == (4, b"hi\n")


async def test_a_shebang_names_what_runs_it(bench: Bench) -> None:
    """It gets its options, and the script's file as it is."""
    outcome = await bench.run("#!perl.exe -w\nprint 1;")
    assert (outcome.exit_code, bench.output.data) == (0, b"perl.exe -w #!perl.exe -w\nprint 1;")
    bench.output.data = b""
    await bench.run("#!/usr/bin/env pwsh\necho hi")
    assert bench.output.data == b"hi\n"


async def test_a_long_script_with_any_text_arrives_whole(bench: Bench) -> None:
    """No length limit of a command line holds for a job's script."""
    text = "ä漢\U0001f389'\u2019\"%PATH%$x`" * 2000
    await bench.run(f"cat <<'%%END%%'\n{text}\n%%END%%\n")
    assert bench.output.data.decode() == f"{text}\n"


async def test_a_job_that_takes_too_long_is_ended(bench: Bench) -> None:
    """And cleaned up after."""
    outcome = await bench.run("exec sleep 1000", timeout=3.0)
    assert outcome == JobOutcome(verdict=Verdict.TIMED_OUT, why="took longer than 3s")
    assert bench.left() == []


async def test_a_clean_up_script_runs_after_the_job(bench: Bench) -> None:
    """It may be of another kind than the job's, sees what that left, and its failure is reported."""
    config = InstanceConfig(cleanup_script="@echo off\necho left: *\nexit 7")
    outcome = await bench.run("touch a b", config=config)
    assert (outcome.verdict, outcome.warnings) == (Verdict.SUCCEEDED, ("the clean-up script exited with 7",))
    assert bench.output.data == b"left: a b\n"
    assert bench.left() == []


async def test_an_instance_that_cannot_be_prepared_is_an_error(bench: Bench) -> None:
    """The message says what the instance said."""
    (bench.there / "file").touch()
    with pytest.raises(ConnectError, match=r"(?s)cannot prepare file\\slot-0-\S+ on i-1: exited with 1: .*file"):
        await bench.run("true", config=InstanceConfig(base="file"))


async def test_only_what_is_over_is_removed(bench: Bench) -> None:
    """What a killed run of our manager has left goes; what others have there stays."""
    bench.runs.claim()
    there = bench.there / "taskscaler"
    left = [there / f"slot-1-{owner}-{'0' * 12}-{'1' * 12}" for owner in (bench.runs.manager[:8], "f" * 8)]
    for path in left:
        path.mkdir(parents=True)
        path.with_name(f"{path.name}.script.ps1").touch()
    await bench.run("true")
    kept = bench.left()
    assert kept == [left[1].name, f"{left[1].name}.script.ps1"]
    fake_windows.remove(str(there), [left[1].name])


# --- what a job has used ---------------------------------------------------------------------------------


async def test_a_powershell_script_tells_what_it_has_used(bench: Bench) -> None:
    """However it ends; its output has nothing of that, and nothing is left."""
    outcome = await bench.run("echo hi; exit 3")
    assert (outcome.exit_code, bench.output.data) == (3, b"hi\n")
    assert outcome.cpu_time is not None
    assert outcome.peak_memory
    assert outcome.disk_written is None
    assert bench.left() == []


async def test_what_a_job_writes_there_instead_says_nothing(bench: Bench) -> None:
    """And what it prints says nothing either."""
    outcome = await bench.run("echo c1 m1; echo c1 m1 w1 > ../${PWD##*/}.script.ps1.used")
    assert (outcome.verdict, outcome.usage) == (Verdict.SUCCEEDED, Usage())
    assert bench.left() == []


async def test_a_cmd_script_tells_nothing(bench: Bench) -> None:
    """There is no PowerShell that could ask."""
    assert (await bench.run("@echo off\necho hi")).usage == Usage()


LINES = st.binary() | st.from_regex(rb"[cmtw]?[0-9]{0,20}( [cmtw][0-9]{0,20}){0,3}\s?")


@given(LINES)
@example(b"c" + b"9" * 18)
@example(b"c1 c2")
@example(b"c1 m2\n")
@example("c\u0661".encode())
def test_whatever_is_told_can_be_read(told: bytes) -> None:
    """There are no errors, and no figures of which there cannot be such."""
    usage = _windows.read_used(told)
    assert usage.disk_written is None
    assert 0 <= (usage.cpu_time or 0) < 1 << 53
    assert 0 <= (usage.peak_memory or 0) < 1 << 53
    assert usage == Usage() or told == told.strip()


@given(st.none() | st.integers(0, (1 << 53) - 1), st.none() | st.integers(0, (1 << 53) - 1))
def test_what_is_told_is_what_was_used(micro: int | None, size: int | None) -> None:
    """Each figure, or both, or none."""
    words = [f"{name}{number}" for name, number in (("c", micro), ("m", size)) if number is not None]
    cpu_time = None if micro is None else micro / 1e6
    assert _windows.read_used(" ".join(words).encode()) == Usage(cpu_time=cpu_time, peak_memory=size)


# --- files -----------------------------------------------------------------------------------------------


async def test_files_arrive_and_artifacts_come_back(bench: Bench) -> None:
    """With directories, and names that have spaces."""
    source = bench.here / "source"
    (source / "data").mkdir(parents=True)
    (source / "data" / "a b").write_text("content")
    outcome = await bench.run(
        "mkdir out; cp 'sub/data/a b' out; echo 1 > x.log", files={"sub": source}, artifacts=("out", "*.log", "gone")
    )
    assert (outcome.verdict, outcome.why) == (Verdict.FAILED, "no such artifact: gone")
    assert (bench.here / "artifacts" / "out" / "a b").read_text() == "content"
    assert (bench.here / "artifacts" / "x.log").read_text() == "1\n"
    assert bench.left() == []


async def test_a_job_without_any_artifact_leaves_no_directory(bench: Bench) -> None:
    """Nothing is made for nothing."""
    outcome = await bench.run("true", artifacts=("a", "b"))
    assert outcome.why == "no such artifact: a, b"
    assert not (bench.here / "artifacts").exists()


@pytest.mark.parametrize(("times", "verdict"), [(2, Verdict.SUCCEEDED), (3, Verdict.FAILED)])
async def test_what_comes_damaged_is_fetched_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, times: int, verdict: Verdict
) -> None:
    """Only from the piece on that came wrong; the third time it is given up."""
    monkeypatch.setattr(_windows, "PIECE", 4096)
    bench.damage(times)
    outcome = await bench.run("head -c 50000 /dev/zero > zeros; echo end > z", artifacts=("z*",))
    bench.damage(0)
    assert outcome.verdict is verdict
    if verdict is Verdict.SUCCEEDED:
        assert (bench.here / "artifacts" / "zeros").read_bytes() == bytes(50000)
    else:
        assert outcome.why == "the artifacts were refused: their archive came damaged 3 times: the checksums differ"


async def test_artifacts_that_are_too_large_are_refused(bench: Bench) -> None:
    """The limit is the same as elsewhere."""
    outcome = await bench.run(
        "head -c 1000000 /dev/zero > big", artifacts=("big",), config=InstanceConfig(artifact_limit=1000)
    )
    assert outcome.why == "the artifacts were refused: they have more than 1000 bytes; raise artifact_limit"


async def test_what_arrives_damaged_is_an_error(monkeypatch: pytest.MonkeyPatch, bench: Bench) -> None:
    """The instance tells the checksum of what it got."""
    monkeypatch.setattr(_windows._Hashed, "compare", lambda hashed, _, what: _COMPARE(hashed, "0" * 64, what))
    with pytest.raises(ConnectError, match="the job's script arrived damaged"):
        await bench.run("true")


_COMPARE = _windows._Hashed.compare


async def test_more_than_was_announced_is_damage() -> None:
    """Whoever sends on after the last piece is not believed."""
    stored = Heard()
    pieces = _windows._Pieces([fake_windows.checksum(b"a")], stored)
    await pieces.take(b"ab")
    with pytest.raises(_windows._Corrupt):
        await pieces.end()
    assert stored.data == b""


# --- what is sent ----------------------------------------------------------------------------------------

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))


@given(
    st.dictionaries(st.from_regex("[a-z]{1,8}", fullmatch=True), TEXTS | st.lists(TEXTS)),
    st.sampled_from([_windows.PREPARE, _windows.RUN, _windows.SEND]),
)
@example({"a": "'\u2018\u2019\u201a\u201b''", "b": ["\n$c = 'd'\n", "", ")"]}, _windows.RUN)
def test_parameters_are_what_they_were(values: dict[str, Any], body: str) -> None:
    """Whatever text is given, a script begins with exactly that, and goes on with its own."""
    assert fake_windows.read_values(with_values(body, **values)) == (values, body)


@given(TEXTS)
def test_the_line_that_runs_a_script_is_cmd_s(path: str) -> None:
    """It fits, and there is nothing in it that cmd would take for anything, whatever the path is."""
    line = Kind.of("exit").line(path[:200], "")
    assert len(line) < LONGEST_LINE
    assert not set(line) & set('"%!^&|<>()\r\n')
    values, body = fake_windows.read_values(fake_windows.decoded(line.split()[-1]).removeprefix(PREFACE))
    assert (values, body) == ({"script": path[:200]}, _windows.RUN)


@pytest.mark.parametrize(
    ("script", "suffix", "program"),
    [
        ("Get-Item .", ".ps1", "powershell.exe"),
        ("", ".ps1", "powershell.exe"),
        ("#! PowerShell.exe\n", ".ps1", "powershell.exe"),
        ("#!/usr/bin/env pwsh", ".ps1", "pwsh.exe"),
        ("#!C:\\Windows\\System32\\cmd.exe /c\r\n", ".cmd", ""),
        ("@rem x", ".cmd", ""),
        ("#!python -u\n", "", "python -u"),
        ("# a comment", ".ps1", "powershell.exe"),
    ],
)
def test_the_first_line_tells_the_kind(script: str, suffix: str, program: str) -> None:
    """PowerShell's is what is not said to be anything else."""
    kind = Kind.of(script)
    assert (kind.suffix, kind.program) == (suffix, program)


@given(TEXTS)
def test_a_cmd_script_has_cmd_s_line_ends(text: str) -> None:
    """All of them, and its lines are what they were."""
    script = "@" + text
    content = Kind.of(script).content.decode()
    assert content.count("\n") == content.count("\r\n") == len(script.splitlines())
    assert content.splitlines() == script.splitlines()
