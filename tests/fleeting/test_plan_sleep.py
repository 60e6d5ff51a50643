"""The plan, of what sleeps and wakes, one rule at a time: answers that come late, are lost, or are not expected."""

from attrs import evolve

from fleeting import NoticeKind, PlanConfig, Preexisting, State
from fleeting.core import Boot, Plan, Stage, Start, Step, messages
from fleeting.core._instance import MOST_NOTICES
from fleeting.core._stages import Asleep, Ready, Sleep
from fleeting.events import Access, LossKind
from tests.strategies import EPOCH, NO_THROTTLE, a_plan, heard, of_type, seen

CONFIG = PlanConfig(scale_throttle=NO_THROTTLE, preexisting=Preexisting.ADOPT)

SUSPENDED = seen(i=State.SUSPENDED)
RUNNING = seen(i=State.RUNNING)


def awake(config: PlanConfig = CONFIG, *, suspends: bool = True) -> Plan:
    """A plan whose one instance is ready."""
    plan = a_plan(config, suspends=suspends)
    plan.tick(EPOCH)
    plan.handle(RUNNING, EPOCH)
    plan.handle(messages.Prepared("i"), EPOCH)
    return plan


def asleep() -> Plan:
    """One whose instance was suspended."""
    plan = awake()
    plan.suspend({"i": "nothing runs there"}, EPOCH)
    plan.handle(messages.SuspendAccepted(("i",), ("i",)), EPOCH)
    look(plan, EPOCH, SUSPENDED)
    assert plan.asleep == 1
    return plan


def waking() -> Plan:
    """One whose instance is being resumed; the cloud has not answered."""
    plan = asleep()
    assert of_type(messages.Resume, plan.resume(["i"], EPOCH).actions)
    return plan


def look(plan: Plan, at: float, view: messages.Updated) -> Step:
    """A view that was fetched then, and not before."""
    if messages.Update("default") not in plan.tick(at).actions and plan.wake_at is not None:
        plan.tick(max(at, plan.wake_at))
    return plan.handle(view, at)


# --- resuming -----------------------------------------------------------------------------------------------


def test_a_lost_answer_does_not_put_to_sleep_what_runs() -> None:
    """The view was faster than the news that nobody knows whether the call was heard."""
    plan = waking()
    look(plan, EPOCH + 5, RUNNING)
    plan.handle(messages.Prepared("i"), EPOCH + 6)
    step = plan.handle(messages.ResumeFailed(("i",), "timed out"), EPOCH + 7)
    assert not heard(step)
    assert plan.instances["i"].stage is Stage.READY
    assert not plan.resuming.active(EPOCH + 7)


def test_what_resumes_for_too_long_is_lost() -> None:
    """Unlike one that the cloud shows as asleep: that sleeps on, and may be tried again."""
    for shown, sleeps in ((SUSPENDED, True), (seen(i=State.RESUMING), False)):
        plan = waking()
        plan.handle(messages.ResumeAccepted(("i",), ("i",)), EPOCH)
        look(plan, EPOCH + 5, shown)
        step = plan.tick(EPOCH + CONFIG.instance_ready_timeout + 1)
        assert bool(plan.asleep) == sleeps
        losses = [event.loss.kind for event in of_type(messages.Gone, step.events) if event.loss]
        assert losses == ([] if sleeps else [LossKind.UNHEALTHY])
        assert plan.resuming.active(EPOCH + CONFIG.instance_ready_timeout + 1)


def test_a_notice_that_ends_while_it_wakes_dooms_it() -> None:
    """Readiness may take longer than what is left; only a time that was over before it woke is outlived."""
    for told, doomed in ((EPOCH + 5, True), (EPOCH + 1, False)):
        plan = asleep()
        plan.handle(messages.Noticed("i", told, NoticeKind.PREEMPTION), EPOCH)
        plan.resume(["i"], EPOCH + 2)
        plan.handle(messages.ResumeAccepted(("i",), ("i",)), EPOCH + 2)
        look(plan, EPOCH + 6, RUNNING)
        plan.handle(messages.Prepared("i"), EPOCH + 7)
        known = plan.instances["i"]
        assert known.availability.access is (Access.CLOSING if doomed else Access.AVAILABLE)
        assert [notice.deadline for notice in known.notices] == ([told] if doomed else [])


def test_a_notice_that_it_outlives_in_its_sleep_takes_no_other_back() -> None:
    """Of several the earliest counts; once that is over, the next does."""
    plan = asleep()
    for told in (EPOCH + 90, EPOCH + 1, EPOCH + 50):
        plan.handle(messages.Noticed("i", told, NoticeKind.REBALANCE), EPOCH)
    plan.resume(["i"], EPOCH + 2)
    plan.handle(messages.ResumeAccepted(("i",), ("i",)), EPOCH + 2)
    look(plan, EPOCH + 6, RUNNING)
    plan.handle(messages.Prepared("i"), EPOCH + 7)
    notice = plan.instances["i"].notice
    assert notice is not None
    assert notice.deadline == EPOCH + 50


def test_announcements_without_end_fill_nothing() -> None:
    """The earliest ends are kept."""
    plan = asleep()
    for told in range(1000, 0, -1):
        plan.handle(messages.Noticed("i", EPOCH + told, NoticeKind.REBALANCE), EPOCH)
    kept = plan.instances["i"].notices
    assert [each.deadline for each in kept] == [EPOCH + told for told in range(1, len(kept) + 1)]
    assert len(kept) == MOST_NOTICES


def test_a_group_that_cannot_suspend_puts_nothing_to_sleep() -> None:
    """An instance that boots and is shown as suspended is given up, as any that is never ready."""
    plan = a_plan(CONFIG)
    plan.tick(EPOCH)
    plan.handle(SUSPENDED, EPOCH)
    plan.tick(EPOCH + CONFIG.instance_ready_timeout + 1)
    assert not plan.asleep
    assert plan.instances["i"].stage is Stage.REMOVING


def test_failing_while_it_is_resumed_holds_back_no_growth() -> None:
    """New instances are none the worse for it."""
    plan = waking()
    look(plan, EPOCH + 5, seen(i=State.FAILED))
    assert plan.limits(EPOCH + 5).blocked_until is None
    assert plan.resuming.active(EPOCH + 5)
    assert "failed while it was resumed" in plan.resuming.reason


def test_failures_to_resume_are_counted_until_it_is_ready() -> None:
    """One may be the network's; two in a row are not."""
    plan = waking()
    for failures in (1, 2):
        plan.handle(messages.ResumeFailed(("i",), "no room"), EPOCH)
        assert plan.instances["i"].resume_failures == failures
        plan.resume(["i"], EPOCH)
    plan.handle(messages.ResumeAccepted(("i",), ("i",)), EPOCH)
    look(plan, EPOCH + 5, RUNNING)
    plan.handle(messages.Prepared("i"), EPOCH + 6)
    assert plan.instances["i"].resume_failures == 0
    assert not plan.resuming.failures


def test_only_what_we_resumed_shows_that_resuming_works() -> None:
    """Not one that somebody else has resumed."""
    plan = asleep()
    plan.resuming.failed("no room", EPOCH)
    look(plan, EPOCH + 5, RUNNING)
    plan.handle(messages.Prepared("i"), EPOCH + 5)
    assert plan.instances["i"].stage is Stage.READY
    assert plan.resuming.failures == 1


# --- suspending ---------------------------------------------------------------------------------------------


def test_what_could_not_be_suspended_is_prepared_after_a_view_from_then_on() -> None:
    """One that was fetched before may show it running because it did not sleep yet; the next is fetched at once."""
    plan = awake()
    plan.tick(EPOCH + 100)  # a view is being fetched
    plan.suspend({"i": "nothing runs there"}, EPOCH + 101)
    plan.handle(messages.SuspendFailed(("i",), "timed out"), EPOCH + 102)
    step = plan.handle(RUNNING, EPOCH + 103)
    assert not of_type(messages.Prepare, step.actions)
    assert of_type(messages.Update, step.actions)
    assert of_type(messages.Prepare, plan.handle(RUNNING, EPOCH + 104).actions)


def test_an_old_view_does_not_wake_what_falls_asleep() -> None:
    """Neither before the cloud has answered, nor while it has time to carry it out."""
    plan = awake()
    plan.suspend({"i": "nothing runs there"}, EPOCH)
    look(plan, EPOCH + 1, RUNNING)
    assert plan.asleep == 1
    plan.handle(messages.SuspendAccepted(("i",), ("i",)), EPOCH + 2)
    look(plan, EPOCH + 5, RUNNING)
    assert plan.asleep == 1


def test_a_lost_answer_does_not_wake_what_sleeps() -> None:
    """The view was faster than the news that nobody knows whether the call was heard."""
    plan = awake()
    plan.suspend({"i": "nothing runs there"}, EPOCH)
    look(plan, EPOCH + 1, seen(i=State.SUSPENDING))
    assert not heard(plan.handle(messages.SuspendFailed(("i",), "timed out"), EPOCH + 2))
    assert plan.asleep == 1
    assert not plan.suspending.active(EPOCH + 2)


def test_a_late_answer_does_not_call_off_a_removal() -> None:
    """It was given up while the cloud was asked to suspend it."""
    for answer in (messages.SuspendFailed(("i",), "timed out"), messages.SuspendAccepted(("i",), ("i",))):
        plan = awake()
        plan.suspend({"i": "nothing runs there"}, EPOCH)
        plan.remove({"i": "not needed"}, EPOCH)
        plan.handle(answer, EPOCH + 1)
        plan.tick(EPOCH + 1000)
        assert plan.instances["i"].stage is Stage.REMOVING


def test_a_sleeper_that_one_view_missed_is_no_reason_to_look_more_often() -> None:
    """Once it is seen again."""
    plan = asleep()
    look(plan, EPOCH + 100, seen())
    plan.handle(SUSPENDED, EPOCH + 101)
    assert plan.wake_at == EPOCH + 101 + CONFIG.update_interval


def test_only_falling_asleep_shows_that_suspending_works() -> None:
    """Not that one sleeps on, view after view."""
    plan = asleep()
    plan.suspending.failed("internal error", EPOCH)
    look(plan, EPOCH + 60, SUSPENDED)
    assert plan.suspending.failures == 1
    plan.resume(["i"], EPOCH + 60)
    plan.handle(messages.ResumeAccepted(("i",), ("i",)), EPOCH + 60)
    look(plan, EPOCH + 65, RUNNING)
    plan.handle(messages.Prepared("i"), EPOCH + 65)
    plan.suspend({"i": "nothing runs there"}, EPOCH + 66)
    look(plan, EPOCH + 70, SUSPENDED)
    assert not plan.suspending.failures


def test_a_connection_that_dies_asleep_says_nothing() -> None:
    """Of course it does; and one view that does not show the instance is one bad read then, too."""
    plan = asleep()
    assert not plan.handle(messages.ConnectionDied("i", "reset by peer"), EPOCH + 1).actions
    assert not heard(look(plan, EPOCH + 100, seen()))
    assert set(plan.instances) == {"i"}


def test_nothing_of_its_waking_life_outlasts_its_sleep() -> None:
    """Failed heartbeats, a dead connection, suspicion, preparation: it becomes ready as if it were new."""
    plan = awake(evolve(CONFIG, heartbeat_on_acquire=True))
    plan.handle(messages.HeartbeatFailed("i", "no answer"), EPOCH)
    plan.handle(messages.ConnectionDied("i", "reset by peer"), EPOCH)
    plan.handle(RUNNING, EPOCH)
    plan.suspend({"i": "nothing runs there"}, EPOCH)
    assert [plan.instances["i"].phase] == [Asleep(Sleep("nothing runs there", EPOCH))]
    plan.handle(messages.SuspendAccepted(("i",), ("i",)), EPOCH)
    look(plan, EPOCH + 5, SUSPENDED)
    look(plan, EPOCH + 100, RUNNING)
    plan.handle(messages.Prepared("i"), EPOCH + 100)
    assert [plan.instances["i"].phase] == [Ready(Boot(Start.WOKEN))]


# --- in a group that may be somebody else's -----------------------------------------------------------------


def test_nothing_is_turned_in_a_group_that_was_lost() -> None:
    """Neither suspended nor resumed, until it is ours again."""
    plan = awake()
    plan.handle(messages.Disowned("it is somebody else's"), EPOCH)
    assert not plan.suspend({"i": "nothing runs there"}, EPOCH).actions
    plan.handle(messages.Disowned(""), EPOCH)
    assert of_type(messages.Suspend, plan.suspend({"i": "nothing runs there"}, EPOCH).actions)
    sleeper = asleep()
    sleeper.handle(messages.Disowned("it is somebody else's"), EPOCH)
    assert not sleeper.resume(["i"], EPOCH).actions
    assert sleeper.asleep == 1
