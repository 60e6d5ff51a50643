"""Traces as a receiver of OpenTelemetry's gets them, and that nobody suffers from one that is away, slow or strange."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import anyio
import pytest
from opentelemetry import trace as api
from opentelemetry.sdk.trace import TracerProvider

from fleeting import CapacityUnavailable, ConfigError
from fleeting.runtime import CloudCall
from fleeting.testing import FakeCloud, FakeGroup, IncreaseFault, virtual_time
from taskscaler import Policy, Pool, Taskscaler
from taskscaler._parts import MOST_PARTS, Part
from taskscaler._span import READ, SpanContext, carried, context_in, harmless, read_context
from taskscaler.observers import available_observers, load_observer, traces
from taskscaler.observers._spans import of_call
from taskscaler.observers.traces import Traces, TracesConfig
from tests.taskscaler.calling import called
from tests.taskscaler.otlp import Receiver, accept, inside, receiving
from tests.taskscaler.scaling import scaling, virtual_clock
from tests.taskscaler.services import COMMAND, command

pytestmark = pytest.mark.anyio
anyio_backend = virtual_time

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
PHASES = ["wait", "acquire", "dial", "ready", "run", "collect"]
CALLER = SpanContext(0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7, is_sampled=True, state="vendor=1")
PRINT_TRACES = Path(__file__).parents[2] / "examples" / "scripts" / "print_traces.py"
UNREACHED = "the connection to the receiver failed"
SECRETS = ("s3cret-variable", "s3cret-header", "s3cret-script")

JOBS = """
[autoscaler]
plugin = "local"
update_interval_when_expecting = "20ms"
max_instances = 2
plugin_config = {{ directory = "{here}/fleet" }}
[autoscaler.state_storage]
enabled = false
[[jobs]]
name = "good"
matrix = {{ n = ["1", "2", "3"] }}
script = "echo $TRACEPARENT $TRACESTATE; : s3cret-script"
env = {{ TOKEN = "s3cret-variable" }}
[[jobs]]
name = "bad"
script = "echo $TRACEPARENT; exit 3"
retries = {{ failed = 1 }}
"""

ONE_JOB = """
[[jobs]]
name = "a"
script = ":"
"""


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but what a test says, and time for a machine that is busy."""
    for name in [each for each in os.environ if each.startswith("OTEL_")] + ["TRACEPARENT", "TRACESTATE"]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "60")
    monkeypatch.setattr(traces, "FAREWELL", 60.0)


def told(log: Path) -> SpanContext | None:
    """What a job was told of its trace, as it has printed it."""
    words = re.findall(r"^(00-\S+)(?: (\S+))?$", log.read_text(), re.MULTILINE)
    return read_context(*words[-1])


# --- a batch, over a real export ---------------------------------------------------------------------------


@pytest.mark.slow
def test_a_batch_over_a_real_export(tmp_path: Path) -> None:
    """All that a receiver is to get of a batch with --traces, in one run: the functions below say what that is."""
    receiver, results, said = run_followed(tmp_path)
    assert f"traces: {receiver.url}/v1/traces" in said
    assert "lost" not in said
    each_job_is_one_trace(receiver)
    a_retry_is_linked_to_what_it_repeats(receiver)
    what_a_job_does_itself_joins_its_trace(receiver, results)
    decisions_and_calls_say_why(receiver)
    no_secret_is_sent_or_said(receiver, results, said)


def run_followed(here: Path) -> tuple[Receiver, Path, str]:
    """What came of a batch with --traces, where its results are, and all that the command has said."""
    (here / "jobs.toml").write_text(JOBS.format(here=here))
    with receiving() as receiver:
        done = subprocess.run(
            [*COMMAND, "run", "jobs.toml", "--output", "out", "--traces"],
            cwd=here,
            env={
                **os.environ,
                **CALLER.env,
                ENDPOINT: receiver.url,
                "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20s3cret-header",
                "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=tests",
            },
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 1, done.stderr  # a job has failed
    return receiver, here / "out", done.stdout + done.stderr


def each_job_is_one_trace(receiver: Receiver) -> None:
    """With all its phases in order, one within the other, and a part of what has started the command."""
    jobs = receiver.named("job")
    assert {job.attributes["cicd.pipeline.task.name"] for job in jobs} == {"good-1", "good-2", "good-3", "bad"}
    for job in jobs:
        assert (job.trace, job.parent) == (f"{CALLER.trace_id:032x}", f"{CALLER.span_id:016x}")
        for tried in receiver.below(job):
            assert tried.name == "try"
            assert inside(tried, job)
            phases = receiver.below(tried)
            assert [phase.name for phase in phases] == PHASES
            assert all(inside(phase, tried) for phase in phases)
            ends = [phase.ended for phase in phases]
            assert all(phase.began >= end for phase, end in zip(phases[1:], ends, strict=False))
            assert tried.attributes["host.id"] == phases[1].attributes["host.id"]
    assert {span.resource["service.name"] for span in receiver.spans} == {"taskscaler"}
    assert {span.resource["deployment.environment.name"] for span in receiver.spans} == {"tests"}


def a_retry_is_linked_to_what_it_repeats(receiver: Receiver) -> None:
    """Both tries are in the job's trace, with how they ended, and what failed is what ran."""
    job = next(job for job in receiver.named("job") if job.attributes["cicd.pipeline.task.name"] == "bad")
    first, second = receiver.below(job)
    assert (first.links, second.links) == ([], [(job.trace, first.id)])
    assert job.attributes["cicd.pipeline.task.run.result"] == "failure"
    assert [each.attributes["process.exit.code"] for each in (first, second)] == [3, 3]
    assert [each.attributes["error.type"] for each in (job, first, second)] == ["failed"] * 3
    assert [each.name for each in receiver.below(second) if each.error] == ["run"]


def what_a_job_does_itself_joins_its_trace(receiver: Receiver, results: Path) -> None:
    """The variables that it has name the span of its own last run, and bring the state of who submitted it."""
    for job in receiver.named("job"):
        runs = [run for tried in receiver.below(job) for run in receiver.below(tried) if run.name == "run"]
        context = told(results / "logs" / f"{job.attributes['cicd.pipeline.task.name']}.log")
        assert context
        assert (f"{context.trace_id:032x}", f"{context.span_id:016x}") == (runs[-1].trace, runs[-1].id)
        if job.attributes["cicd.pipeline.task.name"] != "bad":
            assert context.state == CALLER.state


def decisions_and_calls_say_why(receiver: Receiver) -> None:
    """Each decision has its reasons, each call what it was about, and what has changed the fleet its decision."""
    decisions = receiver.named("decide")
    limited = [each for each in decisions if each.attributes.get("taskscaler.pool.default.limited_by")]
    assert limited[0].attributes["taskscaler.pool.default.limited_by"] == "max_instances"
    asking = {
        (each.trace, each.id): each.attributes for each in decisions if each.attributes.get("taskscaler.increase")
    }
    assert sum(int(each["taskscaler.increase"]) for each in asking.values()) == 2  # at once, if all jobs wait by then
    assert all(
        f"requests {each['taskscaler.increase']}" in str(each["taskscaler.decision.text"]) for each in asking.values()
    )
    increases = receiver.named("cloud increase")
    assert {link for each in increases for link in each.links} <= {*asking}
    assert all(each.links for each in increases)
    for count in ("asked", "accepted"):
        assert sum(int(each.attributes[f"taskscaler.{count}"]) for each in increases) == 2
    assert all(str(each.attributes["cloud.resource_id"]).startswith("local:") for each in increases)
    assert len(receiver.named("cloud prepare")) == 2
    assert sum(int(each.attributes["taskscaler.asked"]) for each in receiver.named("cloud decrease")) == 2
    assert receiver.named("cloud update")


def no_secret_is_sent_or_said(receiver: Receiver, results: Path, said: str) -> None:
    """Neither variables nor scripts nor what is shown to the receiver stand in spans, on the terminal or in a log."""
    assert receiver.headers[0]["authorization"] == "Bearer s3cret-header"
    shown = b"".join(receiver.raw) + said.encode() + (results / "fleet.log").read_bytes()
    assert not [secret for secret in SECRETS if secret.encode() in shown]


# --- receivers that are no help ----------------------------------------------------------------------------


def refuses(handler: BaseHTTPRequestHandler) -> None:
    """Answer that something is wrong there."""
    handler.send_response(500, "s3cret-reason")
    handler.send_header("Content-Length", "0")
    handler.end_headers()


def never_ends(handler: BaseHTTPRequestHandler) -> None:
    """Answer for as long as anybody listens."""
    handler.send_response(400)
    handler.send_header("Content-Length", str(1 << 40))
    handler.end_headers()
    while True:
        handler.wfile.write(b"x" * (1 << 16))


def is_elsewhere(handler: BaseHTTPRequestHandler) -> None:
    """Send to another place, at a length that nobody reads."""
    handler.send_response(307)
    handler.send_header("Location", "/v2/traces")
    handler.send_header("Content-Length", str(1 << 30))
    handler.end_headers()
    while True:
        handler.wfile.write(b"x" * (1 << 16))


def is_no_server(handler: BaseHTTPRequestHandler) -> None:
    """Answer something else than HTTP."""
    handler.wfile.write(bytes(range(256)) * 1000)
    handler.close_connection = True


def hangs_up(handler: BaseHTTPRequestHandler) -> None:
    """Say nothing."""
    handler.close_connection = True


def faults(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str | int]]:
    """What was logged: each event's name, and why spans are lost or how many were."""
    keys = {"traces_fail": "why", "traces_recovered": "spans_lost", "traces_lost": "spans_lost"}
    assert not [record for record in caplog.records if record.name.startswith(("opentelemetry", "urllib3"))]
    ours = [record for record in caplog.records if record.name == "taskscaler.traces"]
    return [(record.message, vars(record)[keys[record.message]]) for record in ours]


async def lease_once(follower: Traces) -> None:
    """Lease a slot, and give it back."""
    group = FakeGroup(FakeCloud())
    pool = Pool(group, dial=group.dial)
    async with (
        Taskscaler(pool, policies=[Policy(idle_time=60)], observers=[follower], clock=virtual_clock()) as scaler,
        scaler.acquire("job-1"),
    ):
        pass


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (refuses, "the receiver answers 500"),
        (never_ends, "the receiver answers 400"),
        (is_elsewhere, "the receiver answers 307, a redirect, which is not followed"),
        (is_no_server, UNREACHED),
        (hangs_up, UNREACHED),
    ],
    ids=["500", "huge", "elsewhere", "garbage", "hangs up"],
)
async def test_a_receiver_that_fails_costs_spans_alone(
    answer: Callable[[BaseHTTPRequestHandler], None],
    why: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Jobs run, the end comes soon, and the log says once what is wrong, in words of ours, and how much was lost."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.5")
    with receiving(answer) as receiver:
        monkeypatch.setenv(ENDPOINT, receiver.url)
        follower = Traces()
        await lease_once(follower)
    assert follower.lost >= 4
    assert follower.trouble == f"{follower.lost} spans were lost: {why}"
    assert faults(caplog) == [("traces_fail", why), ("traces_lost", follower.lost)]


async def test_a_receiver_that_is_not_there_is_not_waited_for(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leaving takes what it may take at the most, whatever the exporter would do yet."""
    with receiving() as receiver:
        pass
    monkeypatch.setattr(traces, "FAREWELL", 0.05)
    monkeypatch.setenv(ENDPOINT, receiver.url)
    follower = Traces()
    await lease_once(follower)
    assert not receiver.spans
    ((first, _), (last, lost)) = faults(caplog)
    assert (first, last) == ("traces_fail", "traces_lost")
    assert lost == follower.lost >= 4


async def test_a_receiver_that_accepts_at_any_length_has_accepted(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody reads all of an answer that says that all is well."""

    def accepts(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", str(1 << 30))
        handler.end_headers()
        while True:
            handler.wfile.write(b"x" * (1 << 16))

    with receiving(accepts) as receiver:
        monkeypatch.setenv(ENDPOINT, receiver.url)
        await lease_once(Traces())
    assert receiver.named("lease")
    assert faults(caplog) == []


async def test_a_receiver_that_never_finishes_its_answer_is_not_waited_for(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it still says: leaving takes what it may take at the most, and what nobody has accepted is lost."""
    go_on = threading.Event()

    def drips(handler: BaseHTTPRequestHandler) -> None:
        while not go_on.wait(0.02):
            handler.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        accept(handler)

    monkeypatch.setattr(traces, "FAREWELL", 0.05)
    with receiving(drips) as receiver:
        monkeypatch.setenv(ENDPOINT, receiver.url)
        follower = Traces()
        await lease_once(follower)
        go_on.set()
    assert follower.lost >= 4
    why = "there was no time left to send the last spans"
    assert faults(caplog) == [("traces_fail", why), ("traces_lost", follower.lost)]


@pytest.mark.slow
def test_a_command_says_what_was_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At its end: who has no receiver saw before where spans go, and nothing else."""
    with receiving() as receiver:
        pass
    monkeypatch.setattr(traces, "FAREWELL", 0.05)
    monkeypatch.setenv(ENDPOINT, receiver.url)
    (tmp_path / "jobs.toml").write_text(JOBS.format(here=tmp_path).partition("[[jobs]]")[0] + ONE_JOB)
    status, said = command("run", str(tmp_path / "jobs.toml"), "--output", str(tmp_path / "out"), "--traces")
    assert status == 0
    assert re.search(r"^.*traces: \d+ spans were lost: \S", said, re.MULTILINE)


@asynccontextmanager
async def crowded(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Receiver, Traces, threading.Event]]:
    """Have four spans on their way to a receiver that answers nobody before an event is set, and room for eight."""
    go_on = threading.Event()

    def waits(handler: BaseHTTPRequestHandler) -> None:
        go_on.wait()
        accept(handler)

    monkeypatch.setattr(traces, "FAREWELL_IN_TROUBLE", 30.0)
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "8")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "4")
    with receiving(waits) as receiver:
        monkeypatch.setenv(ENDPOINT, receiver.url)
        async with Traces() as follower:
            for number in range(4):
                follower.tracer.begin("job", number).end(number)
            assert receiver.came.wait()
            yield receiver, follower, go_on


async def test_a_receiver_that_is_slow_fills_a_bounded_queue(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What finds no room is lost and said once; what waits is sent when the receiver is back, and that is said, too."""
    async with crowded(monkeypatch) as (receiver, follower, go_on):
        for number in range(100):
            follower.tracer.begin("job", number).end(number)
        assert follower.lost == 92
        go_on.set()
    assert len(receiver.spans) == 12
    assert faults(caplog) == [("traces_fail", "the queue was full"), ("traces_recovered", 92)]


async def test_steps_without_end_are_not_waited_for(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A receiver that hangs, and a job of 100,000 steps: what there is no room for is counted, and all else goes on."""
    async with crowded(monkeypatch) as (receiver, follower, go_on):
        job = follower.tracer.begin("job", 1.0)
        job.begin_try(1.0)
        job.enter("run", 2.0)
        job.add_parts([Part(f"step {number}", 2.0, 3.0) for number in range(100_000)], 4.0)
        job.end(5.0)
        assert follower.lost == MOST_PARTS + 3 - 8
        go_on.set()
    assert len(receiver.spans) == 12
    assert faults(caplog)[0] == ("traces_fail", "the queue was full")


# --- the receiver of the documentation -----------------------------------------------------------------------


async def follow_one_job() -> None:
    """Send a job whose step has failed."""
    async with Traces() as follower:
        job = follower.tracer.begin("job", 1.0, {"cicd.pipeline.task.name": "greet"})
        job.begin_try(1.0)
        job.enter("run", 2.5)
        job.add_parts([Part("build", 2.5, 3.0), Part("lint", 2.5, 2.75, 0, error="failed")], 4.0)
        job.end_try(4.0, "failed")
        job.end(4.0, "failed")
    assert not follower.lost


@pytest.mark.slow
def test_the_receiver_of_the_guide_prints_a_job_as_a_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    """When it has all of it: each span below what it is a part of, how long it took, and how it failed."""
    receiver: list[str | Path] = [sys.executable, PRINT_TRACES, "0"]
    with subprocess.Popen(receiver, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        monkeypatch.setenv(*program.stdout.readline().strip().split("="))
        anyio.run(follow_one_job)
        program.send_signal(signal.SIGINT)
        printed, said = program.communicate()
    assert (program.returncode, said) == (0, "")
    assert printed.splitlines() == [
        "job greet  3.000 s  failed",
        "  try  3.000 s  failed",
        "    run  1.500 s  failed",
        "      build  0.500 s",
        "        lint  0.250 s  failed",
    ]


# --- what the environment and the settings say -------------------------------------------------------------


@pytest.mark.parametrize(
    ("sampler", "caller", "expected"),
    [
        ("parentbased_traceidratio", None, 0),
        ("parentbased_traceidratio", CALLER, 1),
        ("parentbased_traceidratio", CALLER._replace(is_sampled=False), 0),
        ("parentbased_always_off", None, 0),
        ("parentbased_always_off", CALLER, 1),
        ("always_off", CALLER, 0),
    ],
)
async def test_who_asks_decides_whether_a_job_is_sampled(
    sampler: str, caller: SpanContext | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sampler that is based on the parent is: what runs is told likewise, and nothing is sent of what is not."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0")
    for name, value in ({} if caller is None else caller.env).items():
        monkeypatch.setenv(name, value)
    with receiving() as receiver:
        monkeypatch.setenv(ENDPOINT, receiver.url)
        async with scaling(FakeCloud(), observers=[Traces()]) as scaler, scaler.acquire("job-1") as lease:
            context = context_in(lease.trace_env)
    assert context
    assert context.is_sampled == bool(expected)
    assert context.trace_id == (context.trace_id if caller is None else caller.trace_id)
    assert len(receiver.named("lease")) == expected
    assert not receiver.named("decide")  # these have no parent


@pytest.mark.parametrize(
    ("state", "kept"),
    [
        ("vendor=1, other=2,", "vendor=1,other=2"),
        ("4tenant@vendor=a b", "4tenant@vendor=a b"),
        (",".join(f"k{number}=v" for number in range(32)), None),
        (",".join(f"k{number}=v" for number in range(33)), ""),
        ("s3cret", ""),
        ("A=s3cret", ""),
        ("a=1,a=s3cret", ""),
    ],
)
async def test_a_state_that_is_none_is_passed_over(
    state: str, kept: str | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What a job brings as one is neither told on nor logged unless the library can read it, which would say so."""
    caller = read_context(CALLER.traceparent, state)
    with receiving() as receiver:
        monkeypatch.setenv(ENDPOINT, receiver.url)
        async with Traces() as follower:
            job = follower.tracer.begin("job", 1.0, parent=caller)
            job.end(2.0)
    assert job.context.state == (state if kept is None else kept)
    assert len(receiver.named("job")) == 1
    assert not caplog.records


async def test_a_lease_is_a_part_of_the_programs_own_span(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that follows itself with OpenTelemetry finds its leases below the span that it was at."""
    own = TracerProvider(shutdown_on_exit=False).get_tracer("program")
    with receiving() as receiver:
        monkeypatch.setenv(ENDPOINT, receiver.url)
        async with scaling(FakeCloud(), observers=[Traces()]) as scaler:
            with own.start_as_current_span("work") as span:
                async with scaler.acquire("job-1") as lease:
                    with suppress(Exception):
                        async with lease.dial():
                            pass
        context = span.get_span_context()
    (lease_span,) = receiver.named("lease")
    assert (int(lease_span.trace, 16), int(lease_span.parent, 16)) == (context.trace_id, context.span_id)
    assert [each.name for each in receiver.below(lease_span)] == ["wait", "acquire", "dial"]
    assert lease_span.attributes["taskscaler.key"] == "job-1"
    assert api.get_current_span() is api.INVALID_SPAN


async def test_a_lease_of_a_daemon_is_a_part_of_what_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands and clients send along what their environment says, and the daemon's own counts for nothing."""
    for name, value in CALLER._replace(trace_id=1).env.items():
        monkeypatch.setenv(name, value)
    follower = Traces()
    follower.inherits = False
    with receiving() as receiver:
        monkeypatch.setenv(ENDPOINT, receiver.url)
        async with called(FakeCloud(), observers=[follower]) as (caller, _):
            client = caller.called(1)
            await client("POST", "/client", {"ttl": 60})
            headers = carried(CALLER.env)
            assert (await client("POST", "/acquire", {"key": "a", "request": "1"}, headers=headers)).status == 200
            assert (await client("POST", "/acquire", {"key": "b", "request": "2"})).status == 200
    traced, alone = (
        next(span for span in receiver.named("lease") if span.attributes["taskscaler.key"] == key) for key in "ab"
    )
    assert (traced.trace, traced.parent) == (f"{CALLER.trace_id:032x}", f"{CALLER.span_id:016x}")
    assert not alone.parent


async def test_a_call_that_fails_says_how(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the class of its error; no span, of what it led to neither, has words of the cloud's."""
    cloud = FakeCloud()
    said = "s3cret-words http://s3cret-user:s3cret-password@cloud/ " + "x" * 5000
    cloud.faults.increase.once(IncreaseFault(refuse=CapacityUnavailable(said)))
    with receiving() as receiver:
        monkeypatch.setenv(ENDPOINT, receiver.url)
        async with scaling(cloud, observers=[Traces()]) as scaler, scaler.acquire("job-1"):
            pass
    failed = receiver.named("cloud increase")[0]
    assert (failed.error, failed.attributes["error.type"]) == ("CapacityUnavailable", "CapacityUnavailable")
    held_back = [each for each in receiver.named("decide") if "taskscaler.pool.default.limited_by" in each.attributes]
    assert {each.attributes["taskscaler.pool.default.limited_by"] for each in held_back} == {"backoff"}
    assert str(held_back[0].attributes["taskscaler.decision.text"]).endswith("requests none: backoff")
    assert b"s3cret" not in b"".join(receiver.raw)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"OTEL_TRACES_EXPORTER": "jaeger"}, "OTEL_TRACES_EXPORTER: expected otlp or none"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "set OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf"),
    ],
)
def test_what_the_environment_wants_and_cannot_have(
    variables: Mapping[str, str], expected: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A command ends before anything begins, with one line that says what to set."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=expected):
        Traces()
    (tmp_path / "jobs.toml").write_text(JOBS.format(here=tmp_path))
    status, said = command("run", str(tmp_path / "jobs.toml"), "--traces")
    assert status == 2
    assert expected in said


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("OTEL_BSP_MAX_QUEUE_SIZE", "0"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "abc"),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "1" * 20),
        ("OTEL_BSP_SCHEDULE_DELAY", "-1"),
        ("OTEL_BSP_EXPORT_TIMEOUT", "1.5"),
        (ENDPOINT, "http://s3cret@host:99999"),
        (ENDPOINT, "http://[s3cret"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "s3cret:4318"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "x-api-key: s3cret"),
        ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "a=b,s3cret"),
    ],
)
def test_a_variable_that_makes_no_sense(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One line names it and what is expected, before anything begins; what may be a secret is not shown anywhere."""
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigError, match=f"^the environment: {variable}: expected ") as raised:
        Traces()
    assert len(str(raised.value)) < 300
    assert "s3cret" not in str(raised.value) + caplog.text
    assert not caplog.records


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("OTEL_BSP_MAX_QUEUE_SIZE", "100"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", ""),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "5000"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "a=b, c=d e,"),
    ],
)
async def test_a_variable_that_makes_sense_alone(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """None needs another beside it, as a small queue once needed smaller batches."""
    monkeypatch.setenv(variable, value)
    with receiving() as receiver:
        monkeypatch.setenv(ENDPOINT, receiver.url)
        await lease_once(Traces())
    assert receiver.named("lease")
    assert faults(caplog) == []


@pytest.mark.parametrize("variables", [{"OTEL_SDK_DISABLED": "true"}, {"OTEL_TRACES_EXPORTER": "none"}])
async def test_the_environment_may_turn_it_off(variables: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Then nothing is sent anywhere, whatever the command line or the file says."""
    with receiving() as receiver:
        for name, value in {**variables, ENDPOINT: receiver.url}.items():
            monkeypatch.setenv(name, value)
        follower = Traces()
        await lease_once(follower)
        assert not follower.endpoint
    assert not receiver.raw


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"endpoint": "localhost:4318"}, "a url that begins with http:// or https://"),
        ({"endpoint": "http://[::1"}, "a url that begins with http:// or https://"),
        ({"endpoint": "https://user:s3cret@example.com"}, "OTEL_EXPORTER_OTLP_HEADERS is for credentials"),
        ({"attributes": {str(number): "" for number in range(51)}}, "at most 50 attributes"),
        ({"endpont": "http://localhost"}, "did you mean `endpoint`"),
    ],
)
def test_settings_that_cannot_be_used(settings: Mapping[str, object], expected: str) -> None:
    """Each is named, with what to write, and no password."""
    with pytest.raises(ConfigError, match=re.escape(expected)) as raised:
        load_observer("traces", settings)
    assert "s3cret" not in str(raised.value)


async def test_the_settings_of_a_file_win_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where to, what the fleet is called, and what is added to each span."""
    assert "traces" in available_observers()
    monkeypatch.setenv(ENDPOINT, "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "another")
    with receiving() as receiver:
        config = TracesConfig(endpoint=f"{receiver.url}/", service_name="builds", attributes={"team": "a"})
        await lease_once(Traces(config))
    assert {(span.resource["service.name"], span.resource["team"]) for span in receiver.spans} == {("builds", "a")}


def test_two_who_follow_the_same_jobs_are_refused() -> None:
    """A job has one trace, and is told of one."""
    with pytest.raises(ValueError, match="expected one for traces, found 2"):
        Taskscaler(Pool(FakeGroup(FakeCloud())), observers=[Traces(), Traces()])


def test_addresses_lose_their_passwords() -> None:
    """What a cloud, a group or a user has a hand in is one line, not too long, and without what may be a secret."""
    shown = harmless("tcp://user:s3cret@host:2375/a\nb and ssh://tok@en@host" + "x" * 5000)
    assert "s3cret" not in shown
    assert "tok" not in shown
    assert "\n" not in shown
    assert len(shown) < 1100
    assert harmless("x" * 5000).endswith("…")
    for ahead in range(READ - 30, READ):  # what is not looked at begins within the address
        assert "s3cret" not in harmless("\n" * ahead + "tcp://user:s3cret@host")
    call = CloudCall(
        pool="p", name="update", identity="docker:tcp://me:s3cret@host", plugin="fleeting_aws", began=1.0, accepted=2
    )
    assert of_call(call) == {
        "taskscaler.pool": "p",
        "taskscaler.call": "update",
        "cloud.resource_id": "docker:tcp://host",
        "cloud.provider": "aws",
        "taskscaler.accepted": 2,
    }
