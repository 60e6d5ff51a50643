"""What follows from what happens to a job that a sidecar runs, and each row of what a restart finds."""

from collections.abc import Callable

import pytest
from attrs import evolve

from gitlab_jobs import Answer, Dependency, Job, Outcome
from taskscaler_gitlab._record import Stage
from taskscaler_gitlab.relay._deliveries import decoded, encoded, record_of
from taskscaler_gitlab.relay._relay import Action, How, Record, Relay, Standing, Step, hashed

TOKEN, SECRET, DELIVERY = "glcbt-job", "glrt-once", "d1"
FAILED = Outcome(is_success=False, failure_reason="script_failure", exit_code=3)


def taken(*, keeps_token: bool = False) -> Relay:
    """A job that was just handed out."""
    job = Job(id=7, token=TOKEN, dependencies=(Dependency(id=5, token="glcbt-five"),))
    return Relay(record=record_of(job, key="gitlab/x", prefix="o", now=1.0, keeps_token=keeps_token))


def starting(relay: Relay | None = None, *, is_two_phase: bool = True) -> Relay:
    """One whose sidecar starts."""
    relay = (relay or taken()).got_slot().relay
    relay = relay.kept().relay if is_two_phase else relay
    return relay.starts(DELIVERY, hashed(SECRET), 4000).relay


def offered(relay: Relay | None = None, *, is_two_phase: bool = True) -> Relay:
    """One whose sidecar has it."""
    return starting(relay, is_two_phase=is_two_phase).polled(DELIVERY, SECRET, claims=True).relay


def at_work(relay: Relay | None = None) -> Relay:
    """One that its sidecar has called about."""
    return offered(relay).called(DELIVERY, 7, TOKEN).relay


def summary(step: Step) -> tuple[Standing, How | None, tuple[Action, ...]]:
    """Where it stands, and what is done."""
    return step.relay.record.standing, step.relay.record.how, step.actions


def resumed(record: Record, *, has_slot: bool, is_running: bool) -> Step:
    """A later manager's first look."""
    found = Relay.found(record, placements=3)
    return found.resumed(has_slot=has_slot, is_running=is_running, why="it was lost")


def test_a_job_goes_from_hand_to_hand() -> None:
    """Slot, sidecar, poll, first call, end: each is written down before it counts, and the slot comes back."""
    relay = taken()
    step = relay.got_slot()
    assert (step.record, step.actions) == (None, ())
    step = step.relay.starts(DELIVERY, hashed(SECRET), 4000)
    assert step.record is not None
    assert summary(step) == (Standing.STARTING, None, (Action.START,))
    step = step.relay.polled(DELIVERY, SECRET, claims=True)
    assert (step.record and step.record.standing, step.actions) == (Standing.OFFERED, (Action.OFFER,))
    step = step.relay.called(DELIVERY, 7, TOKEN)
    assert (step.record and step.record.standing, step.actions) == (Standing.AT_WORK, (Action.CLAIM, Action.PASS))
    assert step.relay.called(DELIVERY, 7, TOKEN).actions == (Action.PASS,)
    step = step.relay.answered(Answer(status=200), FAILED, is_update=True)
    assert summary(step) == (Standing.OVER, How.REPORTED, (Action.EXPECT_END,))
    assert step.record
    assert step.record.outcome == FAILED
    assert step.relay.called(DELIVERY, 7, TOKEN).actions == (Action.REFUSE,)
    assert step.relay.sidecar_ended("exited with 0").actions == (Action.RELEASE,)


@pytest.mark.parametrize("call", ["called", "fetches"])
def test_the_first_call_of_any_kind_claims(call: str) -> None:
    """Runners that send no claim begin with a piece of the log, or with what another job has left."""
    step = offered().fetches(DELIVERY, 5, "glcbt-five") if call == "fetches" else offered().called(DELIVERY, 7, TOKEN)
    assert summary(step) == (Standing.AT_WORK, None, (Action.CLAIM, Action.PASS))


STRANGERS: dict[str, Callable[[Relay], Step]] = {
    "another path": lambda relay: relay.called("d2", 7, TOKEN),
    "another job": lambda relay: relay.called(DELIVERY, 8, TOKEN),
    "another token": lambda relay: relay.called(DELIVERY, 7, "glcbt-other"),
    "no token": lambda relay: relay.called(DELIVERY, 7, ""),
    "the sidecar's token": lambda relay: relay.called(DELIVERY, 7, SECRET),
    "no path": lambda relay: relay.called("", 7, TOKEN),
    "undeclared dependency": lambda relay: relay.fetches(DELIVERY, 6, "glcbt-five"),
    "dependency with the job's token": lambda relay: relay.fetches(DELIVERY, 5, TOKEN),
    "job with its dependency's token": lambda relay: relay.fetches(DELIVERY, 7, "glcbt-five"),
    "dependency on another path": lambda relay: relay.fetches("d2", 5, "glcbt-five"),
    "poll with the job's token": lambda relay: relay.polled(DELIVERY, TOKEN, claims=True),
    "poll on another path": lambda relay: relay.polled("d2", SECRET, claims=False),
    "poll with what is no text": lambda relay: relay.polled(DELIVERY, "\udc80", claims=False),
}


@pytest.mark.parametrize("stranger", STRANGERS)
@pytest.mark.parametrize("stand", [starting, offered, at_work])
def test_who_is_not_the_sidecar_is_refused(stranger: str, stand: Callable[[], Relay]) -> None:
    """A wrong token, the right one on another path, another job's number, a dependency that was not declared."""
    relay = stand()
    assert STRANGERS[stranger](relay) == Step(relay, None, (Action.REFUSE,))


def test_nobody_calls_about_a_job_that_was_not_offered() -> None:
    """Its token is known to nobody there; not even who knows it gets through."""
    assert starting().called(DELIVERY, 7, TOKEN).actions == (Action.REFUSE,)
    assert starting().fetches(DELIVERY, 5, "glcbt-five").actions == (Action.REFUSE,)


def test_the_second_poll_gets_nothing() -> None:
    """A sidecar that asks again has not got the answer: it ends, and the job is placed again with another."""
    step = offered().polled(DELIVERY, SECRET, claims=True)
    assert (step.record, step.actions) == (None, (Action.NOTHING, Action.END))
    step = step.relay.sidecar_ended("was ended")
    assert summary(step) == (Standing.TAKEN, None, (Action.RELEASE, Action.ACQUIRE))
    assert step.relay.record.tries == 2
    assert at_work().polled(DELIVERY, SECRET, claims=True).actions == (Action.NOTHING, Action.END)


def test_a_sidecar_that_claims_nothing_gets_the_job_once_it_is_claimed() -> None:
    """It begins at once: from then on it is at work, is never placed again, and nobody else may call about it."""
    step = starting().polled(DELIVERY, SECRET, claims=False)
    assert step.record is not None
    assert summary(step) == (Standing.AT_WORK, None, (Action.CLAIM,))
    due = step.relay
    assert due.polled(DELIVERY, SECRET, claims=False).actions == (Action.CLAIM,)
    assert due.called(DELIVERY, 7, TOKEN).actions == (Action.REFUSE,)
    assert due.fetches(DELIVERY, 5, "glcbt-five").actions == (Action.REFUSE,)
    assert due.gives("d2").actions == (Action.NOTHING,)
    assert due.claimed(is_ours=False).relay.gives(DELIVERY).actions == (Action.NOTHING,)
    assert summary(due.slot_lost("vanished")) == (Standing.OVER, How.FAILED, (Action.FAIL,))
    step = due.gives(DELIVERY)
    assert (step.record, step.actions) == (None, (Action.OFFER,))
    assert step.relay.gives(DELIVERY).actions == (Action.NOTHING,)
    assert step.relay.called(DELIVERY, 7, TOKEN).actions == (Action.PASS,)
    assert step.relay.polled(DELIVERY, SECRET, claims=False).actions == (Action.NOTHING, Action.END)


@pytest.mark.parametrize("stand", [starting, offered])
def test_before_anything_was_claimed_a_job_is_placed_again_a_few_times(stand: Callable[[Relay], Relay]) -> None:
    """The third loss is the last, and GitLab is told."""
    relay = taken()
    for tries in (1, 2):
        step = stand(relay).slot_lost("vanished")
        assert summary(step) == (Standing.TAKEN, None, (Action.ACQUIRE,))
        assert step.record is not None
        assert (step.record.tries, step.record.delivery, step.record.secret_hash) == (tries + 1, "", "")
        relay = step.relay
    step = stand(relay).slot_lost("vanished")
    assert summary(step) == (Standing.OVER, How.FAILED, (Action.FAIL,))
    assert "3 sidecars or instances were lost before it could run (vanished)" in step.relay.record.why


def test_what_is_lost_at_work_has_failed() -> None:
    """It is never run again silently: GitLab is told, and the slot comes back if it is still there."""
    assert summary(at_work().slot_lost("vanished")) == (Standing.OVER, How.FAILED, (Action.FAIL,))
    ended = at_work().sidecar_ended("was ended by SIGKILL")
    assert summary(ended) == (Standing.OVER, How.FAILED, (Action.RELEASE, Action.FAIL))
    assert ended.relay.record.failure_reason == "runner_system_failure"


@pytest.mark.parametrize(
    ("answer", "is_update", "how"),
    [
        (Answer(status=403), False, How.REVOKED),
        (Answer(status=403), True, How.REVOKED),
        (Answer(status=404), True, How.REVOKED),
        (Answer(status=404), False, None),
        (Answer(status=200, job_status="canceled"), True, How.REVOKED),
        (Answer(status=202, job_status="failed"), False, How.REVOKED),
        (Answer(status=403, job_status="success"), True, How.REPORTED),
        (Answer(status=200, job_status="running"), True, None),
        (Answer(status=500), True, None),
        (Answer(status=None), True, None),
        (Answer(status=416), False, None),
        (Answer(status=202, job_status="canceling"), False, None),
    ],
)
def test_gitlabs_answers_end_a_job_or_do_not(answer: Answer, how: How | None, *, is_update: bool) -> None:
    """Refused or cancelled, it is over; what may come from a proxy, or is to be repeated, changes nothing."""
    step = at_work().answered(answer, None, is_update=is_update)
    assert step.relay.record.how is how
    assert step.actions == ((Action.EXPECT_END,) if how else ())
    assert step.relay.record.is_canceling == (answer.job_status == "canceling")


def test_an_end_that_is_to_be_repeated_is_none() -> None:
    """202 and 412 to a final state: the sidecar says it again."""
    for status in (202, 412, 502):
        assert at_work().answered(Answer(status=status), FAILED, is_update=True).relay.record.how is None


def test_a_claim_that_comes_too_late_ends_the_sidecar() -> None:
    """409: GitLab has given the job to somebody else."""
    step = at_work().claimed(is_ours=False)
    assert summary(step) == (Standing.OVER, How.REVOKED, (Action.EXPECT_END,))
    assert at_work().claimed(is_ours=True).actions == ()


@pytest.mark.parametrize("is_canceling", [False, True])
def test_a_job_that_is_cancelled_before_it_is_claimed(*, is_canceling: bool) -> None:
    """No instance boots for it; a sidecar that starts ends."""
    expected = (How.FAILED, (Action.CANCELED,)) if is_canceling else (How.REVOKED, ())
    assert summary(taken().unwanted(is_canceling=is_canceling)) == (Standing.OVER, *expected)
    step = offered().unwanted(is_canceling=is_canceling)
    assert step.actions == (Action.END, *expected[1])
    assert step.relay.sidecar_ended("").actions == (Action.RELEASE,)
    assert at_work().unwanted(is_canceling=is_canceling).actions == ()


def test_an_operator_ends_a_job() -> None:
    """At work, its sidecar is told; in a hurry, it is ended; before that, GitLab learns that its runner did it."""
    assert at_work().interrupted("why", is_hasty=False).actions == (Action.TELL, Action.EXPECT_END)
    assert at_work().interrupted("why", is_hasty=True).actions == (Action.END,)
    assert summary(starting().interrupted("why", is_hasty=False)) == (
        Standing.OVER, How.FAILED, (Action.END, Action.FAIL),
    )  # fmt: skip
    assert taken().interrupted("why", is_hasty=False).relay.record.failure_reason == "runner_interrupted"


def test_a_manager_that_ends_leaves_what_runs_and_hands_back_what_does_not() -> None:
    """What was offered may run already."""
    assert at_work().left(outlives=True).actions == (Action.DETACH,)
    assert offered().left(outlives=True).actions == (Action.DETACH,)
    assert summary(starting().left(outlives=True)) == (
        Standing.OVER, How.HANDED_BACK, (Action.END, Action.HAND_BACK),
    )  # fmt: skip
    assert summary(taken().left(outlives=True)) == (Standing.OVER, How.HANDED_BACK, (Action.HAND_BACK,))
    assert at_work().left(outlives=False).actions == (Action.END,)


def test_no_slot_while_draining_hands_the_job_back() -> None:
    """It is not this runner's fault, and GitLab gives it to another one."""
    assert summary(taken().got_no_slot("none", is_draining=True)) == (
        Standing.OVER, How.HANDED_BACK, (Action.HAND_BACK,),
    )  # fmt: skip
    assert summary(taken().got_no_slot("none", is_draining=False)) == (Standing.OVER, How.FAILED, (Action.FAIL,))


AT_WORK, OFFERED, STARTING, TAKEN = at_work().record, offered().record, starting().record, taken().record
KEPT = at_work(taken(keeps_token=True)).record
WAITING = taken().kept().relay.record
ONE_PHASE = starting(is_two_phase=False).record
OVER = at_work().answered(Answer(status=200), FAILED, is_update=True).relay.record
BACK = starting().left(outlives=True).relay.record
SENT_BACK = starting(is_two_phase=False).left(outlives=True).relay.record
UNTOLD = at_work(taken(keeps_token=True)).slot_lost("vanished").relay.record


@pytest.mark.parametrize(
    ("record", "has_slot", "is_running", "how", "actions"),
    [
        pytest.param(AT_WORK, True, True, None, [Action.FOLLOW], id="at work, runs: go on"),
        pytest.param(AT_WORK, True, False, How.UNREPORTED, [Action.RELEASE], id="at work, ended: nobody can be told"),
        pytest.param(KEPT, True, False, How.FAILED, [Action.RELEASE, Action.FAIL], id="at work, ended, token: told"),
        pytest.param(AT_WORK, False, False, How.UNREPORTED, [], id="at work, instance lost: nobody can be told"),
        pytest.param(KEPT, False, False, How.FAILED, [Action.FAIL], id="at work, instance lost, token kept: told"),
        pytest.param(OFFERED, True, True, None, [Action.FOLLOW], id="offered, runs: it may be at work already"),
        pytest.param(OFFERED, True, False, How.HANDED_BACK, [Action.RELEASE], id="offered, ended: left to lapse"),
        pytest.param(STARTING, True, True, How.HANDED_BACK, [Action.END], id="starting: ended, left to lapse"),
        pytest.param(STARTING, True, False, How.HANDED_BACK, [Action.RELEASE], id="starting, ended: left to lapse"),
        pytest.param(STARTING, False, False, How.HANDED_BACK, [], id="starting, instance lost: left to lapse"),
        pytest.param(ONE_PHASE, True, True, How.UNREPORTED, [Action.END], id="starting, claimed: nobody can be told"),
        pytest.param(TAKEN, False, False, How.UNREPORTED, [], id="taken, maybe claimed: nobody can be told"),
        pytest.param(WAITING, False, False, How.HANDED_BACK, [], id="taken, waits for an instance: left to lapse"),
        pytest.param(OVER, True, True, How.REPORTED, [Action.END], id="over, still runs: ended"),
        pytest.param(OVER, True, False, How.REPORTED, [Action.RELEASE], id="over: given back"),
        pytest.param(OVER, False, False, How.REPORTED, [], id="over, given back"),
        pytest.param(BACK, False, False, How.HANDED_BACK, [], id="handed back: left to lapse"),
        pytest.param(SENT_BACK, False, False, How.UNREPORTED, [], id="handed back, does not lapse: nobody can be told"),
        pytest.param(UNTOLD, False, False, How.FAILED, [Action.FAIL], id="failed, maybe not told: told"),
    ],
)
def test_each_row_of_what_a_restart_finds(
    record: Record, how: How | None, actions: list[Action], *, has_slot: bool, is_running: bool
) -> None:
    """The record, the lease and the sidecar together say what is to be done."""
    step = resumed(decoded(encoded(record)), has_slot=has_slot, is_running=is_running)
    assert (step.relay.record.how, list(step.actions)) == (how, actions)


def test_a_job_that_was_offered_and_runs_goes_on_after_a_restart() -> None:
    """Its first call claims it, and brings the token; a poll says that the sidecar never got it, and ends it."""
    relay = resumed(OFFERED, has_slot=True, is_running=True).relay
    assert not relay.has_token
    step = relay.called(DELIVERY, 7, TOKEN)
    assert (step.actions, step.relay.has_token) == ((Action.CLAIM, Action.PASS), True)
    assert summary(step.relay.sidecar_ended("was lost")) == (Standing.OVER, How.FAILED, (Action.RELEASE, Action.FAIL))
    step = relay.polled(DELIVERY, SECRET, claims=True)
    assert step.actions == (Action.NOTHING, Action.END)
    assert summary(step.relay.sidecar_ended("was ended")) == (Standing.OVER, How.HANDED_BACK, (Action.RELEASE,))


def test_that_gitlab_keeps_a_job_is_noted_down_once_in_any_standing() -> None:
    """Also while it waits for its instance, and not after its end."""
    for relay in (taken(), starting(is_two_phase=False), offered(is_two_phase=False)):
        step = relay.kept()
        assert step.record is not None
        assert (step.record.is_two_phase, step.record.standing) == (True, relay.record.standing)
        assert step.relay.kept() == Step(step.relay)
    over = taken().unwanted(is_canceling=False).relay
    assert over.kept() == Step(over)


def test_a_call_that_comes_before_the_first_look_brings_the_token() -> None:
    """What it has brought is not forgotten by looking; without one, GitLab cannot be told."""
    found = Relay.found(AT_WORK, placements=3)
    assert not found.has_token
    relay = found.called(DELIVERY, 7, TOKEN).relay
    step = relay.resumed(has_slot=False, is_running=False, why="it was lost")
    assert summary(step) == (Standing.OVER, How.FAILED, (Action.FAIL,))
    assert summary(found.slot_lost("it was lost")) == (Standing.OVER, How.UNREPORTED, ())


def test_no_token_is_on_disk_unless_that_is_wanted() -> None:
    """Hashes are, of the job's, of those of what it depends on, and of the sidecar's."""
    written = encoded(AT_WORK).decode()
    assert [token for token in (TOKEN, SECRET, "glcbt-five") if token in written] == []
    assert hashed(TOKEN) in written
    assert TOKEN in encoded(KEPT).decode()
    assert TOKEN not in repr(KEPT)


def test_clients_see_the_same_stages_as_of_our_own_jobs() -> None:
    """What may be handed back is taken, what is claimed is claimed, and what has an end has ended."""
    assert [each.stage for each in (TAKEN, STARTING, OFFERED)] == [Stage.TAKEN] * 3
    assert (AT_WORK.stage, OVER.stage) == (Stage.CLAIMED, Stage.ENDED)
    assert evolve(AT_WORK, standing=Standing.OVER, how=How.REVOKED).stage is Stage.CLAIMED
