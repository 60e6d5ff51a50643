"""Traces, without OpenTelemetry: what a tracer makes of what happens to jobs, whatever that is, in any order."""

from collections.abc import Iterator
from itertools import islice
from random import Random

import pytest
from attrs import frozen
from hypothesis import given
from hypothesis import strategies as st

from taskscaler._parts import Part
from taskscaler._span import LONGEST_STATE, Span, SpanContext, context_in, read_context
from taskscaler._tracer import UNFINISHED, Sampling, Trace, Tracer, within
from taskscaler.batch._followed import traced
from taskscaler.executors import JobSpec

TRACE, SPAN = 0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7
PARENT = f"00-{TRACE:032x}-{SPAN:016x}-01"


@frozen
class Place:
    """A slot."""

    pool: str = "spot"
    instance: str = "i-1"
    slot: int = 0


def tracing(*, is_sampled: bool = True, most_open: int = 10) -> tuple[Tracer, list[Span]]:
    """A tracer, and the spans that it has given away."""
    spans: list[Span] = []
    tracer = Tracer(spans.append, lambda *_: Sampling(is_sampled), random=Random(1), most_open=most_open)
    return tracer, spans


def names_below(spans: list[Span], parent: SpanContext) -> list[str]:
    """What a span consists of, as it began."""
    below = [span for span in spans if span.parent is not None and span.parent.span_id == parent.span_id]
    return [span.name for span in sorted(below, key=lambda span: (span.began, span.ended))]


def test_a_job_that_is_tried_twice_is_one_trace() -> None:
    """Each try has its phases in order, and the second is linked to the first."""
    tracer, spans = tracing()
    job = tracer.begin("job", 1)
    for start in (10, 20):
        job.begin_try(start)
        job.acquired(start, start + 1, start + 2, Place())
        job.dialled(start + 2, start + 3)
        for number, phase in enumerate(("ready", "run", "collect"), 3):
            job.enter(phase, start + number)
        job.end_try(start + 6, "failed", has_run_badly=True)
    job.end(30, "failed")
    first, second = [span for span in spans if span.name == "try"]
    assert {span.context.trace_id for span in spans} == {job.context.trace_id}
    assert names_below(spans, job.context) == ["try", "try"]
    for each in (first, second):
        assert names_below(spans, each.context) == ["wait", "acquire", "dial", "ready", "run", "collect"]
    assert (first.links, second.links) == ((), (first.context,))
    assert [span.error for span in spans if span.name in {"run", "collect"}] == ["failed", "", "failed", ""]


def test_what_runs_knows_its_span_before_it_runs() -> None:
    """The variables that a job is given name the very span that is given away as its phase ``run``."""
    tracer, spans = tracing()
    job = tracer.begin("job", 1)
    job.begin_try(1)
    told = context_in(job.env)
    job.dialled(1, 2)
    job.enter("run", 3)
    job.end(4)
    run = next(span for span in spans if span.name == "run")
    assert told == run.context


@pytest.mark.parametrize(("state", "expected"), [("a=1", "a=1"), ("x" * 600, None)])
def test_a_job_has_no_state_beside_a_parent_that_does_not_know_it(state: str, expected: str | None) -> None:
    """The state that a job brings goes on with its trace, or, if it cannot be read, not at all."""
    mine = {"TRACEPARENT": PARENT, "TRACESTATE": state, "MINE": "1"}
    spec = JobSpec(name="a", script="true", env=mine)
    tracer = Tracer(
        lambda _: None, lambda _, parent, __: Sampling(is_sampled=True, state=parent.state if parent else "")
    )
    trace = tracer.begin("job", 1, parent=context_in(mine))
    with within(trace):
        env = traced(spec).env
    assert (env["MINE"], env.get("TRACESTATE")) == ("1", expected)
    assert env["TRACEPARENT"] == trace.env["TRACEPARENT"] != PARENT


def test_what_an_executor_does_not_say_counts_as_its_run() -> None:
    """An executor that knows nothing of phases has run the job since it connected."""
    tracer, spans = tracing()
    job = tracer.begin("job", 1)
    job.begin_try(1)
    job.dialled(1, 2)
    job.dialled(3, 4)
    job.end_try(5)
    job.end(5)
    assert [(span.began, span.ended) for span in spans if span.name == "run"] == [(2, 5)]


def test_nothing_is_given_away_of_a_job_that_is_not_sampled() -> None:
    """The job is told all the same, so that what it does is not sampled either."""
    tracer, spans = tracing(is_sampled=False)
    job = tracer.begin("job", 1, parent=read_context(PARENT))
    job.begin_try(1)
    job.acquired(1, 1, 1, Place())
    told = context_in(job.env)
    job.end_try(2)
    job.end(3)
    assert not spans
    assert tracer.open == 0
    assert told == SpanContext(TRACE, job.context.span_id, is_sampled=False)


def test_traces_beyond_the_bound_are_left_out() -> None:
    """Jobs that never end keep no more memory than the bound says, and those that do make room."""
    tracer, spans = tracing(most_open=2)
    jobs = [tracer.begin("job", number) for number in range(5)]
    assert [job.context.is_sampled for job in jobs] == [True, True, False, False, False]
    assert (tracer.open, tracer.left_out) == (2, 3)
    jobs[0].end(9)
    assert tracer.begin("job", 10).context.is_sampled
    tracer.end_all(11)
    assert [span.error for span in spans] == ["", UNFINISHED, UNFINISHED]
    assert tracer.open == 0


def test_a_lease_is_a_part_of_what_asks_for_it() -> None:
    """Of a trace that came along, or of what the program is at itself; else it is a trace of its own."""
    tracer, _ = tracing()
    came = read_context(PARENT)
    with within(came):
        assert tracer.begin_lease("a").context.trace_id == TRACE
    assert tracer.begin_lease("b").context.trace_id != TRACE
    tracer.surroundings = lambda: came
    assert tracer.begin_lease("c").context.trace_id == TRACE


def test_a_call_is_linked_to_the_decision_before_it() -> None:
    """Not to one that was made while it was under way."""
    tracer, _ = tracing()
    first, second = (SpanContext(TRACE, span, is_sampled=True) for span in (1, 2))
    tracer.decided(1.0, first)
    tracer.decided(2.0, None)
    tracer.decided(3.0, second)
    assert [tracer.decision_before(at) for at in (0.5, 1.0, 2.5, 9.0)] == [(), (first,), (first,), (second,)]


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "00",
        PARENT.upper(),
        PARENT[:-1],
        f"{PARENT}-00",
        f"ff{PARENT[2:]}",
        f"00-{'0' * 32}-{SPAN:016x}-01",
        f"00-{TRACE:032x}-{'0' * 16}-01",
        f"{PARENT}\n{PARENT}",
    ],
)
def test_a_context_that_is_none_is_passed_over(wrong: str) -> None:
    """What W3C does not allow is as good as nothing."""
    assert read_context(wrong) is None


def test_a_context_is_read_as_it_is_written() -> None:
    """With its flags and state; of a later version what this one knows, and no state that is too long or strange."""
    assert read_context(PARENT, "a=1,b=2") == SpanContext(TRACE, SPAN, is_sampled=True, state="a=1,b=2")
    assert read_context(f"{PARENT[:-2]}00") == SpanContext(TRACE, SPAN, is_sampled=False)
    assert read_context(f"01{PARENT[2:]}-more") == SpanContext(TRACE, SPAN, is_sampled=True)
    for state in ("a=" + "x" * LONGEST_STATE, "a=\x1b[31m", "a=ü"):
        assert read_context(PARENT, state) == SpanContext(TRACE, SPAN, is_sampled=True)


@given(st.integers(1, 2**128 - 1), st.integers(1, 2**64 - 1), st.booleans())
def test_what_a_process_is_told_it_reads(trace: int, span: int, is_sampled: bool) -> None:  # noqa: FBT001  (drawn)
    """Any context that is written into an environment is read from it."""
    context = SpanContext(trace, span, is_sampled, "a=1")
    assert context_in(context.env) == context


TIMES = st.floats(-1e3, 2e9)
HAPPENINGS = st.one_of(
    st.tuples(st.just("begin_try"), TIMES),
    st.tuples(st.just("acquired"), TIMES, TIMES, TIMES),
    st.tuples(st.just("waited"), TIMES, TIMES),
    st.tuples(st.just("dialled"), TIMES, TIMES, st.sampled_from(["", "unreachable"])),
    st.tuples(st.just("add"), st.just("stage"), TIMES, TIMES),
    st.tuples(st.sampled_from(["add_parts", "tell_parts"]), TIMES, TIMES, TIMES, st.none() | TIMES),
    st.tuples(st.just("end_run"), TIMES, st.sampled_from(["", "failed"])),
    st.tuples(st.just("expect_run"), st.none() | TIMES),
    st.tuples(st.just("add_first"), st.just("queue"), TIMES),
    st.tuples(st.just("enter"), st.sampled_from(["ready", "run", "collect"]), TIMES),
    st.tuples(st.just("end_try"), TIMES, st.sampled_from(["", "failed"]), st.booleans()),
    st.tuples(st.just("end"), TIMES),
)


def happen(trace: Trace, what: str, *args: float | str | bool) -> None:
    """Have something happen to a job."""
    match what:
        case "add_parts" | "tell_parts":
            began, ended, at, since = args
            parts = [Part("stage", began, ended), Part("step", ended, began, 0)]  # type: ignore[arg-type]
            more = {"at": at} if what == "add_parts" else {}
            getattr(trace, what)(parts, since=since, **more)
        case "expect_run":
            trace.expect_run(trace.tries, *args)  # type: ignore[arg-type]
        case "acquired":
            trace.acquired(*args, Place())  # type: ignore[arg-type, call-arg]  # drawn as it is declared
        case "waited":
            trace.waited(*args, "NoCapacity")  # type: ignore[arg-type, call-arg]
        case "end_try":
            at, error, badly = args
            trace.end_try(at, error, has_run_badly=bool(badly))  # type: ignore[arg-type]
        case _:
            getattr(trace, what)(*args)


@given(st.lists(st.tuples(st.integers(0, 2), HAPPENINGS), max_size=40), st.integers(1, 3))
def test_whatever_happens_each_span_ends_once_and_within_its_parent(
    happenings: list[tuple[int, tuple[str, ...]]], most_open: int
) -> None:
    """In any order, by any clock: every span that began ends, once, parents hold their children, times do not go back.

    Nothing is kept of what has ended, and every parent and every link is a span that was given away.
    """
    tracer, spans = tracing(most_open=most_open)
    jobs = [tracer.begin("job", 0) for _ in range(3)]
    for number, (what, *args) in happenings:
        happen(jobs[number], what, *args)
        assert tracer.open <= most_open
    tracer.end_all(0)
    known = {span.context.span_id: span for span in spans}
    assert len(known) == len(spans)
    assert tracer.open == 0
    assert {job.context.span_id for job in jobs if job.context.is_sampled} <= known.keys()
    for span in spans:
        assert span.began <= span.ended
        for link in span.links:
            assert known[link.span_id].ended <= span.began
        if span.parent is not None:
            parent = known[span.parent.span_id]
            assert parent.began <= span.began <= span.ended <= parent.ended
            assert parent.context.trace_id == span.context.trace_id


# --- managers that are killed ------------------------------------------------------------------------------

STAGES = [Part("stage", 0.5, 0.75), Part("step", 0.6, 0.7, 0)]
"""Of something that ran, by a clock of its own."""


def work(trace: Trace, first: int = 1, leg: int = 0, since: float | None = None, at: float = 100.0) -> Iterator[float]:
    """Try a job twice, or what is left of that: each try runs two things. Stops after everything it does."""
    for number in range(first, 3):
        trace.begin_try(0.0 if number == first else at, number=number)
        yield at
        trace.acquired(at, at + 1, at + 1, Place())
        yield at
        for which in range(leg, 2):
            trace.expect_run(which, since)
            trace.dialled(at + 1, at + 2)
            yield at
            for phase in ("ready", "run", "collect"):
                trace.enter(phase, at + 3)
                yield at
            trace.add_parts(STAGES, at + 4, since=at)
            yield at
            trace.end_run(at + 4, "failed")
            since, at = None, at + 10
            yield at
        trace.end_try(at, "failed")
        leg, at = 0, at + 100
        yield at


def whole_tree(spans: list[Span], job: SpanContext) -> None:
    """See that they are one tree, and none is in it twice, unless it is the same."""
    known: dict[int, Span] = {}
    for span in spans:
        before = known.setdefault(span.context.span_id, span)
        assert (before.name, before.parent) == (span.name, span.parent)
        known[span.context.span_id] = span
    for span in known.values():
        if span.context == job:
            continue
        assert span.parent is not None
        parent = known[span.parent.span_id]
        assert parent.began <= span.began <= span.ended <= parent.ended, span.name
    tries = [span for span in known.values() if span.name == "try"]
    assert [span.attributes["taskscaler.try"] for span in tries] == [1, 2]
    for each in tries:
        assert names_below([*known.values()], each.context).count("run") == 2
    assert names_below([*known.values()], job).count("try") == 2
    assert len([span for span in known.values() if span.name == "step"]) == 4


@pytest.mark.parametrize("is_left", [False, True], ids=["killed", "left"])
def test_a_job_is_one_tree_wherever_its_manager_is_killed(*, is_left: bool) -> None:
    """The next one goes on with the same spans: those that were sent before are sent again, or are there already."""
    for kill_at in range(1, 100):
        tracer, spans = tracing()
        job = tracer.begin("job", 0.0, seed="one")
        story = work(job)
        done = [*islice(story, kill_at)]
        if len(done) < kill_at:
            job.end(done[-1])
            whole_tree(spans, job.context)
            break
        if is_left:
            job.leave()
        number, leg = reached(kill_at)
        again = tracer.begin("job", 0.0, seed="one")
        for _ in work(again, number, leg, since=0.0 if leg < 2 else None, at=1000.0):
            pass
        again.end(2000)
        assert again.context == job.context
        whole_tree(spans, job.context)
    else:
        pytest.fail("the story has no end")


def reached(steps: int) -> tuple[int, int]:
    """Which try is to be gone on with, and which of what it runs, after so many steps, as it would be noted down."""
    each_run, before = 6, 2
    each_try = before + 2 * each_run + 1
    number, done = divmod(steps, each_try)
    return number + 1, max(0, done - before) // each_run
