"""GitLab's jobs as a receiver of OpenTelemetry's spans gets them: from a GitLab in memory to processes here."""

import os
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleeting import MemoryJournal
from fleeting.testing import FakeCloud
from gitlab_jobs import End, Features, Job, JobInfo, Outcome, Tracing, Variable
from gitlab_jobs.testing import FakeGitLab, State
from taskscaler.observers.traces import Traces
from taskscaler.tracing import SpanContext, read_context
from taskscaler_gitlab._names_of_traces import context_of, ending, names_of, queued
from tests.taskscaler.otlp import Received, Receiver, receiving
from tests.taskscaler_gitlab import services, stand_in
from tests.taskscaler_gitlab.sidecars import script, serving

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(180),
    # as in test_sidecars.py
    pytest.mark.filterwarnings("ignore:.*async_generator object .*Stream:pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:Async generator 'httpx:ResourceWarning"),
]

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
PHASES = {"wait", "acquire", "dial", "ready", "run", "collect"}
SECRET = "s3cret-of-the-job"
ABOVE = SpanContext(0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7, is_sampled=True, state="vendor=1")
URL = "https://gitlab.example.com/group/project/-/jobs/{}"


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but what a test says."""
    for name in [each for each in os.environ if each.startswith("OTEL_")] + ["TRACEPARENT", "TRACESTATE"]:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def gitlab(tmp_path: Path) -> FakeGitLab:
    """One that answers at once."""
    (tmp_path / "gitlab").mkdir()
    return FakeGitLab(tmp_path / "gitlab", long_poll=0.05, accepts=0)


def a_job(*lines: str, name: str = "build", **more: Any) -> Job:  # noqa: ANN401  (of a job)
    """One with a secret, and with what GitLab says of itself."""
    ours = Variable(key="PASSWORD", value=SECRET, masked=True), Variable(key="GIT_STRATEGY", value="none")
    variables = (*ours, *more.pop("variables", ()))
    job = script(*lines, variables=variables, **more)
    info = JobInfo(
        name=name, stage="test", project_id=3, project_full_path="group/project", pipeline_id=5, time_in_queue_seconds=7
    )
    return services.evolve(job, job_info=info)


def inside(child: Received, parent: Received) -> bool:
    """Whether a span lies within another, of the same trace."""
    return child.trace == parent.trace and parent.began <= child.began <= child.ended <= parent.ended


def one(spans: list[Received]) -> Received:
    """The only one."""
    (span,) = spans
    return span


def run_of(receiver: Receiver, job: Received) -> Received:
    """What ran last of a job."""
    tried = [each for each in receiver.below(job) if each.name == "try"][-1]
    return next(each for each in receiver.below(tried) if each.name == "run")


def told(log: bytes) -> SpanContext | None:
    """What a job was told of its trace, as it has printed it."""
    words = next(line for line in log.decode().splitlines() if line.startswith("told ")).split()
    return read_context(*words[1:])


@pytest.mark.slow
@pytest.mark.parametrize("run_with", ["own", "sidecar"])
async def test_each_job_is_one_trace(
    gitlab: FakeGitLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_with: str
) -> None:
    """From GitLab's queue to its end: with a try, its phases, and what the job does itself; a repetition is linked."""
    jobs = [
        a_job("echo told $TRACEPARENT", "echo $PASSWORD > out", leaves=("out",)),
        a_job("echo told $TRACEPARENT", "exit 3"),
        a_job("echo told $TRACEPARENT", name="own", variables=[Variable(key="TRACEPARENT", value=ABOVE.traceparent)]),
    ]
    with receiving() as receiver:
        monkeypatch.setenv(ENDPOINT, receiver.url)
        program = stand_in.made(tmp_path)
        async with serving(tmp_path, gitlab, program, run_with=run_with, traces=Traces(), concurrent=1) as desk:
            numbers = []
            for job in jobs:
                numbers.append(gitlab.enqueue(job))
                await desk.ended(numbers[-1])
        token = gitlab.server.jobs[numbers[0]].job.token
    first, second, own = receiver.named("job")
    for span, number in zip((first, second, own), numbers, strict=True):
        assert span.attributes["cicd.pipeline.task.run.id"] == str(number)
        assert span.attributes["taskscaler.gitlab.project"] == "group/project"
        assert span.attributes["cicd.pipeline.run.id"] == "5"
        queue, tried = receiver.below(span)
        assert (queue.name, tried.name) == ("queue", "try")
        assert queue.ended - queue.began == pytest.approx(7e9)
        phases = receiver.below(tried)
        assert {each.name for each in phases} >= PHASES
        assert all(inside(each, tried) for each in phases)
        assert inside(tried, span)
    assert [each.error for each in (first, second, own)] == ["", "script_failure", ""]
    assert second.attributes["cicd.pipeline.task.run.result"] == "failure"
    assert second.attributes["process.exit.code"] == 3
    assert run_of(receiver, second).error == "script_failure"
    assert second.links == [(first.trace, first.id)], "it has the same name in the same pipeline"
    for span, number in ((first, numbers[0]), (second, numbers[1])):
        context, run = told(gitlab.log(number)), run_of(receiver, span)
        assert context is not None
        assert (f"{context.trace_id:032x}", f"{context.span_id:016x}") == (run.trace, run.id)
    assert told(gitlab.log(numbers[2])) == ABOVE._replace(state=""), "the job says that itself"
    assert (own.trace, own.parent) == (f"{ABOVE.trace_id:032x}", f"{ABOVE.span_id:016x}")
    if run_with == "own":
        stages = receiver.below(run_of(receiver, second))
        assert [each.name for each in stages][:2] == ["prepare_script", "get_sources"]
        assert one([each for each in stages if each.error]).name == "step_script"
    assert not receiver.named("lease")
    shown = b"".join(receiver.raw)
    assert not [secret for secret in (SECRET, token, gitlab.runner_token) if secret.encode() in shown]


async def test_a_job_is_one_span_over_restarts(
    gitlab: FakeGitLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a manager that leaves it, only its try is sent; the next one sends the job, which both belong to."""
    cloud, journal, held = FakeCloud(), MemoryJournal(), services.Held()
    number = gitlab.enqueue(services.a_job())
    with receiving() as receiver:
        monkeypatch.setenv(ENDPOINT, receiver.url)
        runs = services.Scripted(held)
        async with services.serving(tmp_path, gitlab, cloud=cloud, runs=runs, journal=journal, traces=Traces()):
            with anyio.fail_after(60):
                await held.begun.wait()
        assert not receiver.named("job")
        assert one(receiver.named("try")).attributes["taskscaler.left"]
        async with services.serving(tmp_path, gitlab, cloud=cloud, journal=journal, traces=Traces()) as bench:
            assert (await gitlab.ended(number)).state is State.SUCCESS
            await bench.until(lambda: not bench.service.running, patience=60.0)
    job = one(receiver.named("job"))
    assert [each.name for each in receiver.below(job)] == ["try", "try"]
    assert all(inside(each, job) for each in receiver.below(job))


TEXTS = st.text(st.characters(exclude_categories=()), max_size=9)


@given(
    name=TEXTS,
    value=TEXTS,
    number=st.integers(1, 2**70),
    waited=st.floats(),
    key=st.sampled_from(["CI_JOB_URL", "CI_PIPELINE_URL", "TOKEN"]),
)
def test_whatever_a_job_says_its_span_can_be_sent_and_shows_no_variable(
    name: str, value: str, number: int, waited: float, key: str
) -> None:
    """Texts are short, of one line, and Unicode; of variables, only addresses that GitLab shows to everybody stand."""
    info = JobInfo(name=name, pipeline_id=number, time_in_queue_seconds=waited)
    secret = Variable(key=key, value=f"x{value}{SECRET}")
    address = Variable(key="CI_JOB_URL", value=URL.format(number), public=True)
    names = names_of(Job(id=number, token=SECRET, job_info=info, variables=(secret, address)))
    for each in names.values():
        assert isinstance(each, str)
        assert each.encode()
        assert len(each.splitlines()) == 1
        assert SECRET not in each
    assert names["cicd.pipeline.task.run.url.full"] == URL.format(number)
    assert 0.0 <= queued(Job(id=1, token="", job_info=info)) <= 30 * 86400


@given(st.text(max_size=9), st.text(max_size=9))
def test_what_gitlab_is_at_itself_is_above_its_job(trace: str, span: str) -> None:
    """As far as it is fit for that; the job's own variables win."""
    features = Features(tracing=Tracing(trace_id=trace, span_parent_id=span))
    assert context_of(Job(id=1, token="", features=features)) is None
    fit = Features(tracing=Tracing(trace_id=f"{ABOVE.trace_id:032X}", span_parent_id=f"{ABOVE.span_id:016x}"))
    assert context_of(Job(id=1, token="", features=fit)) == ABOVE._replace(state="")
    own = Variable(key="TRACEPARENT", value=f"00-{1:032x}-{1:016x}-00")
    assert context_of(Job(id=1, token="", features=fit, variables=(own,))) == SpanContext(1, 1, is_sampled=False)


@pytest.mark.parametrize(
    ("outcome", "end", "error", "result"),
    [
        (Outcome(is_success=True), End.REPORTED, "", "success"),
        (Outcome(is_success=False, failure_reason="job_canceled"), None, "job_canceled", "cancellation"),
        (Outcome(is_success=False, failure_reason="job_execution_timeout"), None, "job_execution_timeout", "timeout"),
        (Outcome(is_success=False, failure_reason="runner_system_failure"), None, "runner_system_failure", "error"),
        (Outcome(is_success=False, failure_reason="a b\n"), None, "unknown_failure", "error"),
        (None, End.REVOKED, "revoked", "cancellation"),
        (None, End.GIVEN_UP, "unreported", "error"),
        (None, End.ABANDONED, "", None),
    ],
)
def test_a_job_ends_in_opentelemetrys_words(
    outcome: Outcome | None, end: End | None, error: str, result: str | None
) -> None:
    """With GitLab's reason as the kind of error."""
    how = ending(outcome, end)
    assert (how.error, how.attributes.get("cicd.pipeline.task.run.result")) == (error, result)
