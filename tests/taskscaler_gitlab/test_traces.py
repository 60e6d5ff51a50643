"""GitLab's jobs as a receiver of OpenTelemetry's spans gets them: from a GitLab in memory to processes here."""

import json
import os
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleeting import MemoryJournal
from fleeting.testing import FakeCloud
from gitlab_jobs import End, Features, Job, JobInfo, Outcome, Step, Tracing, Variable
from gitlab_jobs.testing import FakeGitLab, State
from job_steps import StepResult
from taskscaler.observers.traces import Traces
from taskscaler.tracing import SpanContext, read_context
from taskscaler_gitlab._names_of_traces import context_of, ending, names_of, queued
from tests.taskscaler.otlp import Received, Receiver, inside, receiving
from tests.taskscaler_gitlab import services, stand_in
from tests.taskscaler_gitlab.sidecars import script, serving

pytestmark = [
    pytest.mark.anyio,
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
    """A manager that leaves it sends neither it nor the try; the next one sends both, once, from their beginning."""
    cloud, journal, held = FakeCloud(), MemoryJournal(), services.Held()
    number = gitlab.enqueue(services.a_job())
    with receiving() as receiver:
        monkeypatch.setenv(ENDPOINT, receiver.url)
        runs = services.Scripted(held)
        async with services.serving(tmp_path, gitlab, cloud=cloud, runs=runs, journal=journal, traces=Traces()):
            await held.begun.wait()
        assert not receiver.named("job")
        assert not receiver.named("try")
        assert receiver.named("wait")
        async with services.serving(tmp_path, gitlab, cloud=cloud, journal=journal, traces=Traces()) as bench:
            assert (await gitlab.ended(number)).state is State.SUCCESS
            await bench.until(lambda: not bench.service.running)
    job = one(receiver.named("job"))
    tried = one(receiver.below(job))
    assert inside(tried, job)
    assert {each.name for each in receiver.below(tried)} >= {"wait", "acquire"}
    assert all(inside(each, tried) for each in receiver.below(tried))


def a_job_of_steps(*more: dict[str, str]) -> Job:
    """One with `run`, a part of something that GitLab is at itself, with steps in a step."""
    inner = '- {name: lint, script: "sleep 0.1; echo $PASSWORD"}\n- {name: link, script: "true"}\n'
    make = f"mkdir -p ci; printf '%s' 'spec: {{}}\n---\nrun:\n{inner}' > ci/step.yml"
    run = [{"name": "make", "script": make}, {"name": "build", "step": "./ci"}, *more]
    job = a_job("true", leaves=("ci",))
    above = Tracing(trace_id=f"{ABOVE.trace_id:032x}", span_parent_id=f"{ABOVE.span_id:016x}")
    steps = tuple(each for each in job.steps if each.name != "script")
    after = Step(name="after_script", script=("echo after",), when="always", allow_failure=True)
    features = services.evolve(job.features, tracing=above)
    return services.evolve(job, run=json.dumps(run), steps=(*steps, after), features=features)


def steps_of(receiver: Receiver, span: Received) -> dict[str, Received]:
    """All steps below a span, by the names that lead to them."""
    found: dict[str, Received] = {}
    for each in receiver.below(span):
        assert inside(each, span)
        if "taskscaler.step.path" in each.attributes:
            found |= {str(each.attributes["taskscaler.step.path"]): each, **steps_of(receiver, each)}
    return found


def kept_results(here: Path) -> StepResult:
    """What the runner keeps of how the only job's steps went."""
    (results,) = here.glob("jobs/jobs/*/step-results.json")
    return StepResult.from_dict(json.loads(results.read_text()))


@pytest.mark.slow
@pytest.mark.parametrize("is_killed", [False, True], ids=["whole", "killed"])
async def test_a_job_of_steps_is_one_tree(
    gitlab: FakeGitLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_killed: bool
) -> None:
    """Below what GitLab is at: its try, what ran, stages, steps, and those in a step, at the times of the results.

    Also if the manager is killed while a step runs: the next one sends what it has not, and nothing else.
    """
    begun, go = tmp_path / "begun", tmp_path / "go"
    job = a_job_of_steps({"name": "wait", "script": f"touch {begun}; until [ -e {go} ]; do sleep 0.05; done"})
    journal = MemoryJournal()
    more: dict[str, Any] = {"run_with": "own", "concurrent": 1}
    with receiving() as receiver:
        monkeypatch.setenv(ENDPOINT, receiver.url)
        number = gitlab.enqueue(job)
        async with serving(
            tmp_path, gitlab, tmp_path, journal=journal, traces=Traces(), is_killed=is_killed, **more
        ) as desk:
            while not begun.exists():  # noqa: ASYNC110  (a file)
                await anyio.sleep(0.05)
            if not is_killed:
                go.touch()
                await desk.ended(number)
        go.touch()
        if is_killed:
            assert not receiver.named("step_run")
            async with serving(tmp_path, gitlab, tmp_path, journal=journal, traces=Traces(), **more) as desk:
                await desk.ended(number)
    tree = kept_results(tmp_path)
    span = one(receiver.named("job"))
    assert (span.trace, span.parent) == (f"{ABOVE.trace_id:032x}", f"{ABOVE.span_id:016x}")
    assert (gitlab.server.jobs[number].state, span.error) == (State.SUCCESS, "")
    tried = one([each for each in receiver.below(span) if each.name == "try"])
    ran = one([each for each in receiver.below(tried) if each.name == "run"])
    stages = receiver.below(ran)
    assert all(inside(*each) for each in ((tried, span), (ran, tried), *((stage, ran) for stage in stages)))
    assert [each.name for each in stages][:4] == ["prepare_script", "get_sources", "step_run", "after_script"]
    ends = [each.ended for each in stages]
    assert all(stage.began >= end for stage, end in zip(stages[1:], ends, strict=False))
    spans = steps_of(receiver, stages[2])
    assert {*spans} == {"make", "build", "build/lint", "build/link", "wait"}
    for path, step in tree.walk():
        if path:
            assert step.started is not None
            assert step.ended is not None
            seen = spans["/".join(path)]
            assert (seen.began, seen.ended) == (round(step.started * 1e9), round(step.ended * 1e9))
            assert seen.attributes.get("process.exit.code") == step.exit_code
    ours = [each for each in receiver.spans if each.trace == span.trace]
    ids = [each.id for each in ours]
    assert len({*ids}) == len(ids)
    assert {each.parent for each in ours} <= {*ids, span.parent}
    shown = b"".join(receiver.raw)
    assert SECRET.encode() not in shown


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
    ("trace", "span"),
    [
        ("0" * 32, f"{ABOVE.span_id:016x}"),
        (f"{ABOVE.trace_id:032x}", "0" * 16),
        (f"{ABOVE.trace_id:032x}-{ABOVE.span_id:016x}-01-", ""),
        (f"{ABOVE.trace_id:032x}\n", f"{ABOVE.span_id:016x}"),
        ("f" * (1 << 20), f"{ABOVE.span_id:016x}"),
        ("x" * 32, f"{ABOVE.span_id:016x}"),
        ("\u0660" * 32, f"{ABOVE.span_id:016x}"),
    ],
    ids=["no trace", "no span", "more", "lines", "long", "letters", "digits of others"],
)
def test_a_job_that_is_a_part_of_nonsense_is_a_trace_by_itself(trace: str, span: str) -> None:
    """Whether GitLab says so or the job; it can name what it is a part of, and nothing else."""
    features = Features(tracing=Tracing(trace_id=trace, span_parent_id=span))
    own = Variable(key="TRACEPARENT", value=f"00-{trace}-{span}-01")
    state = Variable(key="TRACESTATE", value="a=1")
    assert context_of(Job(id=1, token="", features=features, variables=(own, state))) is None


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
