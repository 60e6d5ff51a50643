"""One job towards a coordinator: what is sent, and what answers mean. Each test reads as a transcript."""

import pytest

from gitlab_jobs import Answer, End, Outcome, Patch, Phase, Report, Trace, Update, known_reason
from gitlab_jobs._job import CLAIM_PATIENCE, FINAL_PATIENCE, LOG_PATIENCE, NO_ANSWER

FAILED = Outcome(is_success=False, failure_reason="script_failure", exit_code=3)
DONE = Outcome(is_success=True, exit_code=0)


def ok(status: int, **headers: str) -> Answer:
    """An answer; headers with underscores for dashes."""
    return Answer.of(status, {name.replace("_", "-"): value for name, value in headers.items()})


def running(*, log: bytes = b"") -> Report:
    """A job that is claimed at 0."""
    report = Report(Trace(), 0.0)
    assert report.request(0.0) == Update(state="running")
    report.answered(ok(200), 0.0)
    assert report.phase is Phase.RUNNING
    report.trace.write(log)
    return report


def test_a_job_from_claim_to_end() -> None:
    """Claimed at once, the log in patches, the rest of it and the final state with its checksum."""
    report = running(log=b"one\n")
    assert report.request(0.0) == Patch(0, b"one\n")
    assert report.request(0.0) == Patch(0, b"one\n")  # it is still under way
    report.answered(ok(202), 0.1)
    report.trace.write(b"two\n")
    assert report.request(1.0) is None
    assert report.wake == 3.1
    report.finish(FAILED, 2.0)
    assert report.request(2.0) == Patch(4, b"two\n")
    report.answered(ok(202), 2.0)
    final = report.request(2.0)
    assert final == Update(
        state="failed", checksum=report.trace.checksum, size=8, failure_reason="script_failure", exit_code=3
    )
    report.answered(ok(200), 2.1)
    assert report.end is End.REPORTED
    assert report.request(9.0) is None


def test_an_exit_code_of_0_is_left_out() -> None:
    """As GitLab Runner does."""
    report = running()
    report.finish(DONE, 0.0)
    assert report.request(0.0) == Update(state="success", checksum="crc32:00000000", size=0)


def test_a_job_that_is_being_prepared_is_said_to_be_pending() -> None:
    """Every 15 seconds, until it can run and is claimed; nothing of the log before."""
    report = Report(Trace(), 0.0, two_phase=True)
    report.trace.write(b"booting")
    assert report.request(0.0) == Update(state="pending")
    assert not report.is_kept
    report.answered(ok(200), 0.0)
    assert report.is_kept
    assert (report.request(14.9), report.wake) == (None, 15.0)
    assert report.request(15.0) == Update(state="pending")
    report.answered(NO_ANSWER, 20.0)
    report.start(21.0)
    assert report.request(21.0) == Update(state="running")
    report.answered(ok(200), 21.0)
    assert report.request(21.0) == Patch(0, b"booting")


@pytest.mark.parametrize("status", [200, 400])
def test_a_job_that_can_run_before_an_answer_came_is_still_claimed(status: int) -> None:
    """The answer to the call that said it was pending is none to the claim."""
    report = Report(Trace(), 0.0, two_phase=True)
    report.request(0.0)
    report.start(0.1)
    report.answered(ok(status), 0.2)
    assert (report.is_claimed, report.request(0.2)) == (False, Update(state="running"))
    assert report.is_kept is (status == 200)


def test_a_gitlab_without_two_phases_has_given_us_the_job() -> None:
    """It answers 400 to what it does not know: the job is claimed at once."""
    report = Report(Trace(), 0.0, two_phase=True)
    report.request(0.0)
    report.answered(ok(400), 0.0)
    assert report.request(0.0) == Update(state="running")


@pytest.mark.parametrize(
    "answer", [ok(403), ok(404), ok(409), ok(200, Job_Status="canceled"), ok(403, Job_Status="failed")]
)
def test_a_job_that_is_not_ours_is_dropped(answer: Answer) -> None:
    """Without another word."""
    report = Report(Trace(), 0.0)
    report.request(0.0)
    report.answered(answer, 0.0)
    assert (report.end, report.request(99.0)) == (End.REVOKED, None)


def test_a_claim_that_nobody_answers_is_given_up() -> None:
    """It is repeated, less and less often; the job runs nowhere in the meantime."""
    report = Report(Trace(), 0.0)
    times = []
    while report.end is None:
        assert report.wake is not None
        times.append(report.wake)
        if report.request(times[-1]):
            report.answered(NO_ANSWER, times[-1])
    assert (times[:4], report.end) == ([0.0, 1.0, 3.0, 7.0], End.GIVEN_UP)
    assert times[-1] >= CLAIM_PATIENCE


def test_a_job_that_is_abandoned_is_never_claimed() -> None:
    """GitLab gives it to another runner; once it is claimed, that is too late."""
    report = Report(Trace(), 0.0, two_phase=True)
    report.abandon()
    assert (report.end, report.request(0.0)) == (End.ABANDONED, None)
    report = running()
    report.abandon()
    assert report.end is None


def test_a_job_that_fails_while_it_is_prepared_is_claimed_to_say_so() -> None:
    """GitLab takes no final state of a job that nobody acknowledged."""
    report = Report(Trace(), 0.0, two_phase=True)
    report.finish(FAILED, 0.0)
    assert report.request(0.0) == Update(state="running")
    report.answered(ok(200), 0.0)
    final = report.request(0.0)
    assert isinstance(final, Update)
    assert final.state == "failed"


def test_a_quiet_job_says_that_it_lives() -> None:
    """Thirty seconds after the last successful call, with what there is of the log."""
    report = running()
    assert (report.request(29.0), report.wake) == (None, 30.0)
    assert report.request(30.0) == Update(state="running", checksum="crc32:00000000", size=0)
    report.answered(ok(200), 30.0)
    assert report.wake == 60.0


def test_a_patch_that_fails_is_repeated_at_the_next_interval() -> None:
    """The job goes on, also if the coordinator does not find it: that may be a proxy."""
    report = running(log=b"abc")
    for number, answer in enumerate([NO_ANSWER, ok(500), ok(404), ok(400)]):
        assert report.request(3.0 * number) == Patch(0, b"abc")
        report.answered(answer, 3.0 * number)
        assert report.request(3.0 * number + 2.9) is None
    assert report.end is None
    report.request(12.0)
    report.answered(NO_ANSWER, 12.0)
    assert isinstance(report.request(30.0), Update)  # whether that gets through
    report.answered(ok(200), 30.0)
    assert report.request(30.0) == Patch(0, b"abc")


def test_the_coordinator_says_where_to_go_on() -> None:
    """At once, from what it has; the same place again is a failure."""
    report = running(log=b"0123456789")
    report.request(0.0)
    report.answered(ok(416, Range="0-4"), 0.0)
    assert report.request(0.0) == Patch(4, b"456789")
    report.answered(ok(416, Range="0-4"), 0.0)
    assert report.request(0.0) is None
    assert report.request(3.0) == Patch(4, b"456789")


def test_a_proxy_that_takes_less_gets_less() -> None:
    """Half as much each time, but never nothing."""
    report = running(log=b"x" * (1 << 20))
    sizes = []
    for number in range(12):
        patch = report.request(3.0 * number)
        if isinstance(patch, Patch):
            sizes.append(len(patch.body))
            report.answered(ok(413), 3.0 * number)
        else:
            report.answered(ok(200), 3.0 * number)
    assert sizes[:3] == [1 << 20, 1 << 19, 1 << 18]
    assert sizes[-1] == 1 << 10


@pytest.mark.parametrize(
    ("named", "seconds"), [("10", 10.0), ("0", 3.0), ("-1", 3.0), ("x", 3.0), ("99999", 900.0), ("1" * 5000, 3.0)]
)
def test_the_coordinator_names_the_interval(named: str, seconds: float) -> None:
    """Up to fifteen minutes; what makes no sense changes nothing."""
    report = running(log=b"a")
    report.request(0.0)
    report.answered(ok(202, X_GitLab_Trace_Update_Interval=named), 0.0)
    report.trace.write(b"b")
    assert report.wake == min(seconds, 30.0)


def test_a_job_that_is_cancelled_is_to_end() -> None:
    """Its log goes on until it has; whatever it says then, it was cancelled."""
    report = running(log=b"a")
    report.request(0.0)
    report.answered(ok(202, Job_Status="canceling"), 0.0)
    assert (report.is_canceling, report.end) == (True, None)
    report.finish(DONE, 1.0)
    final = report.request(1.0)
    assert isinstance(final, Update)
    assert (final.state, final.failure_reason) == ("failed", "job_canceled")


@pytest.mark.parametrize("answer", [ok(403), ok(202, Job_Status="canceled"), ok(202, Job_Status="failed")])
def test_a_job_that_is_taken_away_is_over(answer: Answer) -> None:
    """In the answer to a patch."""
    report = running(log=b"a")
    report.request(0.0)
    report.answered(answer, 0.0)
    assert report.end is End.REVOKED
    report.finish(DONE, 1.0)
    assert report.request(1.0) is None


def test_a_final_state_that_is_accepted_is_asked_about_again() -> None:
    """After the interval that the coordinator names."""
    report = running()
    report.finish(DONE, 0.0)
    report.request(0.0)
    report.answered(ok(202, X_GitLab_Trace_Update_Interval="7"), 0.0)
    assert (report.request(6.9), report.wake) == (None, 7.0)
    assert isinstance(report.request(7.0), Update)


def test_a_gitlab_that_is_away_for_long_costs_nothing() -> None:
    """However often a call fails, a running job goes on, and is asked for its state until it is heard."""
    report, now = running(log=b"abc"), 0.0
    while now < 24 * 3600.0:
        if report.request(now):
            report.answered(NO_ANSWER, now)
        assert report.wake is not None
        now = report.wake
    assert report.phase is Phase.RUNNING


def calls(report: Report, answers: list[Answer], until: float) -> list[tuple[float, object]]:
    """What is sent at what time, if these are the answers, over and over."""
    sent: list[tuple[float, object]] = []
    while report.wake is not None and report.wake <= until:
        now = report.wake
        if request := report.request(now):
            report.answered(answers[len(sent) % len(answers)], now)
            sent.append((now, request))
    return sent


@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize("held", [["0-4", "0-0"], ["0-99"], [""], ["0-4", "0-5"], ["0-10"]], ids=" ".join)
def test_a_coordinator_that_contradicts_itself_is_not_asked_without_end(held: list[str], ends: bool) -> None:  # noqa: FBT001
    """Where it wants to go on is followed once; then it has time to find out."""
    report = running(log=b"0123456789")
    if ends:
        report.finish(DONE, 0.0)
    sent = calls(report, [ok(416, Range=each) for each in held], 600.0)
    assert len(sent) < 250


def test_a_log_that_differs_for_ever_is_sent_some_times() -> None:
    """Less and less often; then the state is said without a checksum, for it matters more."""
    report = running(log=b"abc")
    report.request(0.0)
    report.answered(ok(202), 0.0)
    report.finish(DONE, 0.0)
    updates = []
    while report.end is None:
        assert report.wake is not None
        now = report.wake
        request = report.request(now)
        if isinstance(request, Patch):
            report.answered(ok(202), now)
        elif request:
            updates.append((now, request))
            report.answered(ok(200 if request.checksum is None else 412), now)
    assert [now for now, _ in updates] == [0.0, 1.0, 3.0, 7.0, 15.0, 31.0, 63.0, 123.0, 183.0, 243.0, 303.0, 363.0][:12]
    assert updates[-1][1] == Update(state="success")
    assert report.end is End.REPORTED


def test_a_log_that_differs_is_sent_again() -> None:
    """All of it, before the final state."""
    report = running(log=b"abc")
    report.request(0.0)
    report.answered(ok(202), 0.0)
    report.finish(DONE, 0.0)
    report.request(0.0)
    report.answered(ok(412), 0.0)
    assert report.request(1.0) == Patch(0, b"abc")


@pytest.mark.parametrize(
    ("answer", "end"),
    [
        (ok(403, Job_Status="success"), End.REPORTED),
        (ok(403, Job_Status="failed"), End.REVOKED),
        (ok(403), End.REVOKED),
        (ok(404), End.REVOKED),
        (ok(200, Job_Status="success"), End.REPORTED),
    ],
)
def test_a_final_state_that_was_taken_before_is_known(answer: Answer, end: End) -> None:
    """If the answer was lost, the coordinator refuses the repetition, and says which state it has."""
    report = running()
    report.finish(DONE, 0.0)
    report.request(0.0)
    report.answered(answer, 0.0)
    assert report.end is end


def test_a_log_that_nobody_takes_does_not_keep_back_the_final_state() -> None:
    """After half an hour it is said without the rest of the log, and without a checksum of it."""
    report = running(log=b"abc")
    report.finish(DONE, 0.0)
    sent = calls(report, [ok(500)], LOG_PATIENCE - 1)
    assert {request for _, request in sent} == {Patch(0, b"abc")}
    assert report.wake is not None
    now = report.wake + 60.0
    assert report.request(now) == Update(state="success")
    report.answered(ok(200), now)
    assert report.end is End.REPORTED


def test_a_final_state_that_nobody_takes_is_given_up() -> None:
    """After hours: a coordinator that is away for long may come back."""
    report = running(log=b"a")
    report.finish(DONE, 0.0)
    calls = 0
    while report.end is None:
        assert report.wake is not None
        now = report.wake
        if report.request(now):
            calls += 1
            report.answered(NO_ANSWER, now)
    assert report.end is End.GIVEN_UP
    assert FINAL_PATIENCE / 60 <= calls <= FINAL_PATIENCE / 60 + 10


@pytest.mark.parametrize(
    ("reason", "known", "word"),
    [
        ("script_failure", [], "script_failure"),
        ("job_canceled", ["job_canceled"], "job_canceled"),
        ("job_canceled", [], "unknown_failure"),
        ("image_pull_failure", [], "runner_system_failure"),
        ("runner_configuration_error", [], "script_failure"),
    ],
)
def test_reasons_are_in_words_that_gitlab_knows(reason: str, known: list[str], word: str) -> None:
    """Those it does not list are replaced, as GitLab Runner does."""
    assert known_reason(reason, known) == word
