"""The executor is one of `concurrent.futures`, over real agents; what runs there can be cancelled."""

import os
import pickle
import sys
import traceback
from collections.abc import Iterator
from concurrent.futures import (
    FIRST_COMPLETED,
    CancelledError,
    Executor,
    Future,
    ThreadPoolExecutor,
    as_completed,
    wait,
)
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest

from fleeting import Unreachable, load
from fleeting.connectors import Sink
from fleeting.events import Loss, LossKind
from taskscaler import LeaseLost, NoCapacity, Pool, TaskscalerError
from taskscaler.executors import JobOutcome, JobSpec, Leased, Verdict
from taskscaler.futures import Call, CallFailed, FleetExecutor, Result, ScriptFailed, _remote, _work
from taskscaler.futures import _executor as implementation
from taskscaler.sync import Taskscaler
from tests.fleeting import local_agents

MODULE = """
import os, sys

def divide(a, b=1):
    print("dividing")
    return a / b

class Here:
    @staticmethod
    def where():
        return [os.environ["TASKSCALER_INSTANCE"], os.environ.get("A"), os.path.basename(os.getcwd())]

def a_set():
    return {1}

def leave():
    sys.exit(3)

def shout():
    raise ValueError("\\x1b[2Jboo")
"""


@pytest.fixture(params=["asyncio", "trio"])
def scaler(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Taskscaler]:
    """An open scaler over two instances with a slot each, on both event loops."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    group = load("local", {"directory": str(tmp_path / "group")})
    pool = Pool(group, update_interval_when_expecting=0.02, shutdown_deletion_interval=0.1, max_instances=2)
    scaler = Taskscaler(pool, delete_instances_on_shutdown=True)
    scaler.backend = request.param
    with scaler:
        yield scaler


@pytest.fixture
def fleet(scaler: Taskscaler, tmp_path: Path) -> Iterator[FleetExecutor]:
    """An executor over it."""
    with FleetExecutor(scaler, artifacts=tmp_path / "artifacts") as fleet:
        yield fleet


@pytest.fixture
def module(tmp_path: Path) -> dict[str, Path]:
    """Files for calls into a module of ours."""
    path = tmp_path / "ours.py"
    path.write_text(MODULE)
    return {"ours.py": path}


class Gate:
    """A file that work on an instance waits for, after it has told that it has begun."""

    def __init__(self, directory: Path) -> None:
        """Begin closed."""
        self.path = directory / "gate"
        begun = directory / "begun"
        os.mkfifo(begun)
        self._begun = os.fdopen(os.open(begun, os.O_RDWR), buffering=1)
        self.script = f"""
            echo $$ >> {begun}
            until test -e {self.path}; do sleep 0.01; done
            echo through
        """

    def open(self) -> None:
        """Let everybody through."""
        self.path.touch()

    def close(self) -> None:
        """Listen no more."""
        self._begun.close()

    def pid(self) -> int:
        """Wait until one more has begun; returns its process id."""
        return int(self._begun.readline())


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    """A gate of one's own."""
    with closing(Gate(tmp_path)) as gate:
        yield gate


def result_of(future: "Future[Any]") -> Any:  # noqa: ANN401
    """What the future gives, in time."""
    return future.result()


# --- scripts --------------------------------------------------------------------------------------------


def test_a_script_s_result_says_what_came_of_it(fleet: FleetExecutor) -> None:
    """Output, exit status and place; a script that fails is a result, and an error only if one asks for it."""
    result = result_of(fleet.submit('echo "out $1 $2"; echo err >&2', "a b", 3))
    assert (result.verdict, result.output, result.attempts) == (Verdict.SUCCEEDED, b"out a b 3\nerr\n", 1)
    assert result.check() is result
    failed = result_of(fleet.submit("echo no; exit 3"))
    assert (failed.verdict, failed.exit_code, failed.why) == (Verdict.FAILED, 3, "exited with 3")
    with pytest.raises(ScriptFailed, match="the script failed: exited with 3") as raised:
        failed.check()
    assert "On the instance:\nno" in "".join(traceback.format_exception(raised.value))


def test_an_argument_list_meets_no_shell(fleet: FleetExecutor) -> None:
    """What is in it arrives as it is."""
    assert result_of(fleet.submit(["printf", "%s|", "a b", "$HOME"], "'", 3)).output == b"a b|$HOME|'|3|"


def test_a_job_has_files_variables_and_artifacts(fleet: FleetExecutor, tmp_path: Path) -> None:
    """All that a `JobSpec` can say; what it leaves stays under its name, though it ran before."""
    (tmp_path / "in").write_text("in")
    job = JobSpec(
        name="job",
        script="#!/bin/sh\ncat in > out; echo $A",
        env={"A": "a"},
        files={"in": tmp_path / "in"},
        artifacts=("out",),
    )
    for _ in range(2):
        result = result_of(fleet.submit(job))
        assert (result.output, result.artifacts) == (b"a\n", tmp_path / "artifacts" / "job")
        assert (result.artifacts / "out").read_text() == "in"
    late = result_of(fleet.submit(JobSpec(name="late", script="sleep 1000", timeout=0.1)))
    assert (late.verdict, late.artifacts) == (Verdict.TIMED_OUT, None)


def test_what_is_not_ours_is_never_replaced(fleet: FleetExecutor, tmp_path: Path) -> None:
    """A directory that was there before, and has the name of a job by chance, stays as it is."""
    precious = tmp_path / "artifacts" / "job" / "precious"
    precious.parent.mkdir(parents=True)
    precious.touch()
    leaves_some = fleet.submit(JobSpec(name="job", script="touch out", artifacts=("out",)))
    with pytest.raises(FileExistsError, match="remove it, or name another directory: '/"):
        result_of(leaves_some)
    assert result_of(fleet.submit(JobSpec(name="job", script="true"))).artifacts is None
    assert precious.exists()


class Wrong:
    """An executor with a mistake, and one that dies in a group of its tasks at first."""

    def __init__(self) -> None:
        """Begin."""
        self.instances: list[str] = []

    async def run(self, job: JobSpec, lease: Leased, *, output: Sink, artifacts: Path) -> JobOutcome:
        """Raise, or not."""
        self.instances.append(lease.instance)
        if job.name == "wrong":
            raise ExceptionGroup("tasks", [KeyError("Id")])
        if len(self.instances) < 2:
            raise ExceptionGroup("tasks", [Unreachable("dead line")])
        return JobOutcome(verdict=Verdict.SUCCEEDED)


def test_what_nobody_expects_speaks_against_the_instance(scaler: Taskscaler) -> None:
    """The future raises it, and other work goes elsewhere; what is documented is not hidden by a group."""
    executor = Wrong()
    with FleetExecutor(scaler, executor=executor) as fleet:
        assert result_of(fleet.submit(JobSpec(name="right", script="true"))).attempts == 2
        assert executor.instances[0] != executor.instances[1]  # where nobody answers though the connection lives
        with pytest.raises(ExceptionGroup):
            result_of(fleet.submit(JobSpec(name="wrong", script="true")))
        assert result_of(fleet.submit(JobSpec(name="right", script="true"))).attempts == 1
    assert executor.instances[2] != executor.instances[3]


@pytest.mark.parametrize(
    ("written", "why"),
    [
        (b"\xff\xfe", "its result cannot be read: "),
        (b"[" * 100_000, "its result cannot be read: "),
        (b"[]", "its result cannot be read: it is not a JSON object"),
        (b'"' + b"x" * 200 + b'"', "its result cannot be read: it has more than 0 MiB"),
    ],
    ids=["odd bytes", "deep", "list", "long"],
)
def test_a_result_that_makes_no_sense_is_the_call_s_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: bytes, why: str
) -> None:
    """An instance may send anything in a result's place."""
    monkeypatch.setattr(_work, "RESULT_LIMIT", 100 if len(written) < 1000 else 1 << 20)
    (tmp_path / _remote.RESULT).write_bytes(written)
    task = _work.task_for(Call("a:b"), (), {}, name="work-1")
    with pytest.raises(CallFailed, match=why):
        task.answer(Result(verdict=Verdict.SUCCEEDED, output=b"", instance="i-1", attempts=1, artifacts=tmp_path))


def test_a_failure_of_a_call_can_be_shown_whatever_it_says() -> None:
    """Its reason is one line, its note no longer than is read, and nothing in them cannot be written."""
    error = CallFailed("a:b", "no\nreason \udcff", b"x" * 1_000_000, "trace\udcff")
    assert str(error) == "a:b failed: no reason ?"
    assert error.__notes__ == ["On the instance:\ntrace?"]
    (note,) = CallFailed("a:b", "no", b"x" * 1_000_000).__notes__
    assert len(note) < 3000


def test_of_very_long_output_the_end_is_kept(fleet: FleetExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program that started it keeps its memory."""
    monkeypatch.setattr(implementation, "OUTPUT_LIMIT", 100_000)
    output = result_of(fleet.submit("yes | head -c 999999; echo end")).output
    assert len(output) == 100_000
    assert output.endswith(b"\nyend\n")


# --- calls ----------------------------------------------------------------------------------------------


def test_a_call_gives_what_the_function_returned(fleet: FleetExecutor, module: dict[str, Path]) -> None:
    """Arguments and values cross as JSON; a module may be sent along."""
    assert result_of(fleet.submit(Call("math:factorial"), 20)) == 2432902008176640000
    assert result_of(fleet.submit(Call("ours:divide", files=module), 1, b=4)) == 0.25
    where = Call("ours:Here.where", files=module, env={"A": "'a"}, python=sys.executable)
    _, variable, directory = result_of(fleet.submit(where))
    assert (variable, directory.partition("-0-")[0]) == ("'a", "slot")
    text = "é\0\\'\"\n{}" * 50_000
    assert result_of(fleet.submit(Call("operator:concat"), text, "")) == text


def test_a_call_that_fails_raises_on_this_side(fleet: FleetExecutor, module: dict[str, Path]) -> None:
    """With what it said, where it raised, and nothing that a terminal would obey."""
    with pytest.raises(CallFailed, match="ours:divide failed: ZeroDivisionError: division by zero") as raised:
        result_of(fleet.submit(Call("ours:divide", files=module), 1, 0))
    assert raised.value.output == b"dividing\n"
    assert 'ours.py", line 6, in divide' in "".join(traceback.format_exception(raised.value))
    with pytest.raises(CallFailed, match="ValueError: boo") as raised:
        result_of(fleet.submit(Call("ours:shout", files=module)))
    assert "\x1b" not in "".join(traceback.format_exception(raised.value))


@pytest.mark.parametrize(
    ("function", "why"),
    [
        ("nowhere:nothing", "ModuleNotFoundError: No module named 'nowhere'"),
        ("math:nothing", "AttributeError: module 'math' has no attribute 'nothing'"),
        ("ours:a_set", "TypeError: Object of type set is not JSON serializable"),
        ("ours:leave", "exited with 3"),
    ],
)
def test_what_cannot_be_called_says_why(fleet: FleetExecutor, module: dict[str, Path], function: str, why: str) -> None:
    """As a failed call, whatever stands in its way."""
    with pytest.raises(CallFailed) as raised:
        result_of(fleet.submit(Call(function, files=module)))
    assert str(raised.value) == f"{function} failed: {why}"


def test_a_python_that_is_not_there_says_so(fleet: FleetExecutor) -> None:
    """In the interpreter's own words."""
    with pytest.raises(CallFailed, match="exited with 127") as raised:
        result_of(fleet.submit(Call("math:sqrt", python="python9"), 4))
    assert b"python9" in raised.value.output


# --- what is refused ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("work", "args", "kwargs", "said"),
    [
        (
            len,
            (),
            {},
            r"expected a script, .*, found builtin_function_or_method; for a function write Call\('module:function'\)",
        ),
        (3, (), {}, "expected a script, .*, found int"),
        ([], (), {}, "expected a script, .*, found list"),
        (["a", 1], (), {}, "expected a script, .*, found list"),
        ("true", (), {"a": 1}, "only a Call takes named arguments, not a"),
        ("#!/bin/sh", (1,), {}, "begins with #! takes no arguments"),
        (Call("math:sqrt"), ({1},), {}, "arguments of math:sqrt must be JSON: Object of type set"),
    ],
)
def test_what_cannot_be_submitted_is_refused_at_once(
    fleet: FleetExecutor,
    work: Any,  # noqa: ANN401
    args: tuple[object, ...],
    kwargs: dict[str, object],
    said: str,
) -> None:
    """With what to write instead."""
    with pytest.raises(TypeError, match=said):
        fleet.submit(work, *args, **kwargs)


@pytest.mark.parametrize("reference", ["sqrt", "math.sqrt", "math:", "math:sqrt()", "a b:c", ":c"])
def test_a_reference_is_module_and_function(reference: str) -> None:
    """Anything else is a mistake."""
    with pytest.raises(ValueError, match=r"expected module:function, such as statistics:mean"):
        Call(reference)


def test_a_job_with_artifacts_needs_a_place_for_them(scaler: Taskscaler) -> None:
    """Before it runs for hours."""
    with FleetExecutor(scaler) as fleet, pytest.raises(TypeError, match="was given no directory for them"):
        fleet.submit(JobSpec(name="job", script="true", artifacts=("a",)))


# --- as concurrent.futures documents --------------------------------------------------------------------


def test_map_keeps_the_order(fleet: FleetExecutor) -> None:
    """Of the arguments, not of the ends; one result for each set of them."""
    results = fleet.map('sleep "0.$2"; echo "$1"', "abcd", [3, 0, 2, 0])
    assert [result.output for result in results] == [b"a\n", b"b\n", b"c\n", b"d\n"]
    assert list(fleet.map(Call("math:sqrt"), [4, 9])) == [2.0, 3.0]


def test_who_stops_mapping_has_the_rest_cancelled(fleet: FleetExecutor, gate: Gate) -> None:
    """What runs too: an error ends the map, and the fleet is free."""
    results = fleet.map(f'test "$1" -gt 0 && exit 0; {gate.script}', [1, 0, 0, 0])
    assert next(results).verdict is Verdict.SUCCEEDED
    gate.pid()
    results.close()  # type: ignore[attr-defined]
    fleet.shutdown()
    assert not gate.path.exists()


def test_it_works_with_wait_and_as_completed(fleet: FleetExecutor, gate: Gate) -> None:
    """Futures of any executor go together."""
    slow, quick = fleet.submit(gate.script), fleet.submit("echo quick")
    done, pending = wait([slow, quick], return_when=FIRST_COMPLETED)
    assert (done, pending) == ({quick}, {slow})
    gate.pid()
    assert slow.running()
    with pytest.raises(TimeoutError):
        slow.result(timeout=0)
    gate.open()
    with ThreadPoolExecutor() as threads:
        futures: set[Future[Any]] = {slow, threads.submit(int)}
        assert set(as_completed(futures)) == futures


def test_it_is_an_executor(fleet: FleetExecutor) -> None:
    """Anything that takes one may be given it, and calls back when a future is done; even to submit more."""
    assert isinstance(fleet, Executor)
    more: Future[Future[Result]] = Future()
    fleet.submit("echo 1").add_done_callback(lambda _: more.set_result(fleet.submit("echo 2")))
    assert result_of(result_of(more)).output == b"2\n"


def test_shutdown_waits_and_takes_no_more(fleet: FleetExecutor) -> None:
    """What was submitted is done by then; to say it again does no harm."""
    futures = [fleet.submit("true") for _ in range(4)]
    fleet.shutdown()
    assert all(future.done() for future in futures)
    with pytest.raises(RuntimeError, match="cannot schedule new futures after shutdown"):
        fleet.submit("true")
    fleet.shutdown(cancel_futures=True)


def test_shutdown_can_cancel_what_has_not_begun(fleet: FleetExecutor, gate: Gate) -> None:
    """And only that: what runs goes on to its end, which need not be waited for."""
    running = [fleet.submit(gate.script) for _ in range(2)]
    assert gate.pid() != gate.pid()
    queued = [fleet.submit("true") for _ in range(3)]
    fleet.shutdown(wait=False, cancel_futures=True)
    assert all(future.cancelled() for future in queued)
    assert not any(future.done() for future in running)
    gate.open()
    assert {result_of(future).verdict for future in running} == {Verdict.SUCCEEDED}


# --- cancellation ---------------------------------------------------------------------------------------


def test_queued_work_is_cancelled_as_ever(fleet: FleetExecutor, gate: Gate) -> None:
    """It never begins, and whoever waits hears of it."""
    blocking = [fleet.submit(gate.script) for _ in range(2)]
    assert gate.pid() != gate.pid()
    queued = fleet.submit(f"touch {gate.path}")
    assert not queued.running()
    assert queued.cancel()
    assert queued.cancel()
    assert queued.cancelled()
    with pytest.raises(CancelledError):
        queued.result()
    assert set(wait([queued]).done) == {queued}
    assert not gate.path.exists()
    gate.open()
    wait(blocking)
    assert not blocking[0].cancel()
    assert not blocking[0].cancelled()


def test_running_work_is_cancelled_on_the_instance(fleet: FleetExecutor, gate: Gate) -> None:
    """Its whole process tree has ended, though it ignores SIGTERM, when the future is done."""
    future = fleet.submit(f"trap '' TERM; {gate.script}")
    pid = gate.pid()
    with local_agents.watched(pid):
        assert future.running()
        assert future.cancel()
        assert set(wait([future]).done) == {future}
        assert not local_agents.is_there(pid)
    assert future.cancelled()
    assert not future.running()
    assert future.cancel()
    for ask in (future.result, future.exception):
        with pytest.raises(CancelledError):
            ask()


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_cancels_everything(scaler: Taskscaler, gate: Gate, error: type[BaseException]) -> None:
    """Nobody who presses Ctrl-C wants to wait for the queue."""
    futures = []
    with pytest.raises(error), FleetExecutor(scaler) as fleet:
        futures = [fleet.submit(gate.script) for _ in range(5)]
        gate.pid()
        raise error
    assert all(future.cancelled() for future in futures)


# --- losses ---------------------------------------------------------------------------------------------


def test_work_whose_instance_is_lost_runs_again_elsewhere(fleet: FleetExecutor, gate: Gate, tmp_path: Path) -> None:
    """Its future goes on, and its result tells how often it was begun."""
    future = fleet.submit(gate.script)
    gate.pid()
    agents = list((tmp_path / "group").glob("*/agent.pid"))
    for agent in agents:
        local_agents.kill(int(agent.read_text()))
    gate.pid()
    gate.open()
    result = result_of(future)
    assert (result.attempts, result.verdict) == (2, Verdict.SUCCEEDED)
    assert result.instance not in {agent.parent.name for agent in agents}


def test_work_whose_clean_up_fails_with_its_instance_runs_again(scaler: Taskscaler, tmp_path: Path) -> None:
    """The executor's own error, raised when it is cut short, is no reason to give the work up."""
    lost: list[str] = []

    class Careless:
        async def run(self, _: JobSpec, lease: Leased, *, output: Sink, artifacts: Path) -> JobOutcome:
            if lost:
                return JobOutcome(verdict=Verdict.SUCCEEDED)
            lost.append(lease.instance)
            try:
                async with lease.dial():
                    local_agents.kill(int((tmp_path / "group" / lease.instance / "agent.pid").read_text()))
                    await anyio.sleep_forever()
            finally:
                raise OSError("the logs could not be fetched")

    with FleetExecutor(scaler, executor=Careless()) as fleet:
        result = result_of(fleet.submit("true"))
    assert result.attempts == 2
    assert [result.instance] != lost


def test_work_that_loses_one_instance_too_many_fails(scaler: Taskscaler, gate: Gate, tmp_path: Path) -> None:
    """With what became of the last; the error can be sent to another process."""
    with FleetExecutor(scaler, retries=0) as fleet:
        future = fleet.submit(gate.script)
        gate.pid()
        for agent in (tmp_path / "group").glob("*/agent.pid"):
            local_agents.kill(int(agent.read_text()))
        error = future.exception()
    assert isinstance(error, LeaseLost | Unreachable)


def test_there_may_be_no_slot_in_time(scaler: Taskscaler, gate: Gate) -> None:
    """If the caller has set a time for that."""
    with FleetExecutor(scaler) as patient, FleetExecutor(scaler, acquire_timeout=0.05) as fleet:
        blocking = [patient.submit(gate.script) for _ in range(2)]
        assert gate.pid() != gate.pid()
        with pytest.raises(NoCapacity, match="no slot became free within"):
            result_of(fleet.submit("true"))
        gate.open()
        wait(blocking)


def test_work_ends_with_the_scaler(tmp_path: Path, gate: Gate) -> None:
    """An executor that nobody shut down keeps no scaler open, and no future waits for ever."""
    group = load("local", {"directory": str(tmp_path / "group")})
    pool = Pool(group, update_interval_when_expecting=0.02, max_instances=1)
    with Taskscaler(pool, delete_instances_on_shutdown=True) as scaler:
        fleet = FleetExecutor(scaler)
        running = fleet.submit(gate.script)
        gate.pid()
        queued = fleet.submit("true")
    for future in (running, queued):
        assert isinstance(future.exception(), TaskscalerError)
        assert not future.cancel()
    with pytest.raises(TaskscalerError, match="the scaler has ended"):
        fleet.submit("true")


# --- errors ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        CallFailed("a:b", "ValueError: c", b"out", "Traceback …"),
        ScriptFailed("exited with 3", b"out"),
        NoCapacity("none", possible=True),
        LeaseLost("key", "i-1", Loss(LossKind.DELETED, "gone")),
        Unreachable("gone"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_survive_being_pickled(error: Exception) -> None:
    """Class, message, parts and notes."""
    again = pickle.loads(pickle.dumps(error))  # noqa: S301  (we made it)
    assert type(again) is type(error)
    assert (str(again), vars(again)) == (str(error), vars(error))
